"""Denoise a recording."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Cleaned(NamedTuple):
    """A stretch of clean speech."""

    audio: np.ndarray
    draws: np.ndarray | None
    sd: np.ndarray | None
    frequencies: np.ndarray
    frame_seconds: float


def denoise(
    blocks: Iterable[np.ndarray],
    rate: int,
    *,
    dictionary: Any = None,
    quality: str = "best",
    sampler: str | None = None,
    iterations: int | None = None,
    seed: int = 0,
    draws: int = 0,
    uncertainty: bool = False,
    length: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Iterator[Cleaned]:
    """Clean speech, stretch by stretch."""
    for block in blocks:
        yield Cleaned(block, np.stack([block] * draws) if draws else None, None, np.zeros(0), 0.008)
