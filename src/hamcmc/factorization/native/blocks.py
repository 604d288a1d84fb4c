"""How the ratings are kept."""

from typing import NamedTuple

from jax import Array


class Blocks(NamedTuple):
    """Ratings of q row blocks, each ordered by (part, row).

    Those of row block b in part p and row i stand at ``indptr[b, p, i]`` to ``indptr[b, p, i + 1]``.
    """

    indptr: Array  # int32[q, B, I + 1]
    columns: Array  # int32[q, n], within the column block: 0 … J − 1
    values: Array  # float32[q, n]
