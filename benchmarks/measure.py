"""Interleaved timing: on a shared machine only ratios of neighbouring measurements mean something."""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
import numpy as np

from hamcmc.paper.machine import versions

PACKAGES = {  # and the modules in them
    "hamcmc": "hamcmc",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "numpy": "numpy",
    "blackjax": "blackjax",
    "numpyro": "numpyro",
    "nutpie": "nutpie",
    "posteriors": "posteriors",
    "torch": "torch",
    "smurff": "smurff",
    "myfm": "myfm",
    "scikit-surprise": "surprise",
    "noisereduce": "noisereduce",
    "pyrnnoise": "pyrnnoise",
    "pesq": "pesq",
}
Burst = Callable[[], Any]  # runs many iterations once


class Against(NamedTuple):
    """Ours beside one peer: what was compared, the two as a ratio or as numbers, and who is ahead."""

    peer: str
    what: str
    found: str
    ahead: str


class Table(NamedTuple):
    """What a benchmark found: rows are dicts of columns, values already rounded; and how that stands against peers."""

    title: str
    rows: list[dict[str, Any]]
    against: Sequence[Against] = ()


def interleave(bursts: dict[str, Burst], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of every burst in every round, after one to warm up. The order is turned round from round to round."""
    for burst in bursts.values():
        jax.block_until_ready(burst())
    seconds = {name: np.empty(rounds) for name in bursts}
    for r in range(rounds):
        for name in list(bursts)[:: 1 if r % 2 else -1]:
            began = time.perf_counter()
            jax.block_until_ready(bursts[name]())
            seconds[name][r] = time.perf_counter() - began
    return seconds


def ratio(ours: np.ndarray, peer: np.ndarray) -> str:
    """Median and quartiles of the ratio over rounds."""
    low, median, high = np.quantile(ours / peer, [0.25, 0.5, 0.75])
    digits = ".2f" if median >= 0.1 else ".1g"
    return f"{median:{digits}} ({low:{digits}}–{high:{digits}})"


def by_time(peer: str, what: str, ours: np.ndarray, theirs: np.ndarray) -> Against:
    """Who is faster: even, unless all quartiles are on one side of 1."""
    low, _, high = np.quantile(ours / theirs, [0.25, 0.5, 0.75])
    ahead = "hamcmc" if high < 1 else "peer" if low > 1 else "even"
    return Against(peer, what, f"takes {ratio(ours, theirs)} of its time", ahead)


def microseconds(seconds: np.ndarray, iterations: int) -> float:
    """The median per iteration."""
    return float(f"{np.median(seconds) / iterations * 1e6:.3g}")


def installed() -> dict[str, str]:
    """Versions of Python and of those packages that are there."""
    return versions(*(name for name in PACKAGES if find_spec(PACKAGES[name])))


def require_kernels() -> None:
    """End unless the C++ kernels of factorization are there: its form in XLA takes many times as long."""
    from hamcmc.factorization.native.library import available

    if not (found := available()):
        raise SystemExit(f"this would not measure what users have: {found.why_not}")
