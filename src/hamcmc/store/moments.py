"""Weighted running mean and variance of all chains, summed on the host in double precision, segment by segment."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from hamcmc._types import PyTree


class Moments(NamedTuple):
    """Weighted sums over a segment, of parameters less `shift`: Σw, Σw(x−c), Σw(x−c)²."""

    shift: PyTree
    weight: jax.Array
    first: PyTree
    second: PyTree


class RunningMoments:
    """Merges the weighted sums of segments (Chan's parallel formula). Arrays are (chain, …), one for each name."""

    def __init__(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]):
        self.names = list(names)
        self.weight = 0.0
        self.means = [np.zeros(s) for s in shapes]
        self.squares = [np.zeros(s) for s in shapes]  # Σ w (x − mean)²

    def add(self, segment: Moments) -> None:
        """Merge the sums of one segment."""
        host = jax.device_get(segment)
        w = float(host.weight)
        total = self.weight + w
        leaves = zip(*(jax.tree.leaves(t) for t in (host.shift, host.first, host.second)))
        for i, (shift, first, second) in enumerate(leaves):
            first = first.astype(np.float64)
            mean = shift + first / w
            square = second - first**2 / w
            delta = mean - self.means[i]
            self.means[i] = self.means[i] + delta * (w / total)
            self.squares[i] = self.squares[i] + square + delta**2 * (self.weight * w / total)
        self.weight = total

    def pack(self) -> dict[str, np.ndarray]:
        """Named arrays for a checkpoint."""
        return {"moments.weight": np.asarray(self.weight)} | {
            f"moments.{kind}.{n}": x
            for kind, arrays in (("mean", self.means), ("square", self.squares))
            for n, x in zip(self.names, arrays)
        }

    def unpack(self, arrays: Mapping[str, np.ndarray]) -> None:
        """The inverse of :meth:`pack`."""
        self.weight = float(arrays["moments.weight"])
        self.means = [arrays[f"moments.mean.{n}"] for n in self.names]
        self.squares = [arrays[f"moments.square.{n}"] for n in self.names]


def summary(packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``mean.NAME`` and ``variance.NAME`` from the arrays that :meth:`RunningMoments.pack` returned.

    They are NaN where nothing was added. A checkpoint without moments gives an empty dict.
    """
    weight = float(packed.get("moments.weight", 0)) or np.nan

    def named(prefix: str) -> dict[str, np.ndarray]:
        """The arrays with this prefix, by the name that follows it."""
        return {k.removeprefix(prefix): v for k, v in packed.items() if k.startswith(prefix)}

    means = {f"mean.{n}": m + 0 * weight for n, m in named("moments.mean.").items()}
    return means | {f"variance.{n}": s / weight for n, s in named("moments.square.").items()}
