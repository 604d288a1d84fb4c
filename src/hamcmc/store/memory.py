"""Draws in memory, as far as they are used like those in a zarr store. Runs without a directory need no zarr."""

from collections.abc import Mapping
from typing import Any

import numpy as np


class MemoryArray:
    """An array of draws (chain, draw, …)."""

    store = None

    def __init__(self, values: np.ndarray, chunk: int):
        self.values, self.chunks = values, (len(values), chunk)

    @property
    def shape(self) -> tuple[int, ...]:
        """Chains, draws and the shape of one draw."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return self.values.ndim

    @property
    def dtype(self) -> np.dtype:
        """The type of a number."""
        return self.values.dtype

    @property
    def oindex(self) -> "MemoryArray":
        """The same: one list of draws at a time is taken."""
        return self

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.values[key].copy()

    def __setitem__(self, key: Any, values: np.ndarray) -> None:
        self.values[key] = values

    def resize(self, shape: tuple[int, ...]) -> None:
        """Cut the array to a smaller shape."""
        self.values = self.values[tuple(slice(n) for n in shape)].copy()


class MemoryGroup:
    """Arrays by ``group/name``."""

    store = None

    def __init__(self) -> None:
        self.arrays: dict[str, MemoryArray] = {}

    def __getitem__(self, key: str) -> MemoryArray:
        return self.arrays[key]

    def put(self, group: str, values: Mapping[str, np.ndarray], chunk: int = 1) -> None:
        """Add arrays to a group."""
        self.arrays |= {f"{group}/{name}": MemoryArray(np.array(x), chunk) for name, x in values.items()}
