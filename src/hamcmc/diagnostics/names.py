"""The names of scalar parameters."""

import numpy as np


def label(name: str, shape: tuple[int, ...], index: int) -> str:
    """The name of one entry, such as ``W[2, 0]``."""
    return f"{name}[{', '.join(str(i) for i in np.unravel_index(index, shape))}]" if shape else name
