"""The layout of ratings in memory."""

from typing import NamedTuple

import numpy as np
from jax import Array


class Blocks(NamedTuple):
    """Ratings of q row blocks, each ordered by (part, row).

    The ratings of row block b in part p and row i are entries ``indptr[b, p, i]`` to ``indptr[b, p, i + 1]``.
    """

    indptr: Array | np.ndarray  # int32[q, B, I + 1]
    columns: Array | np.ndarray  # int32[q, n], within the column block: 0 … J − 1
    values: Array | np.ndarray  # float32[q, n]
