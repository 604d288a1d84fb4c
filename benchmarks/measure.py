"""Interleaved timing: on a shared machine only ratios of neighbouring measurements mean something."""

import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import numpy as np

Burst = Callable[[], Any]  # runs many iterations once


class Table(NamedTuple):
    """What a benchmark found: rows are dicts of columns, values already rounded."""

    title: str
    rows: list[dict[str, Any]]


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
    return f"{median:.2f} ({low:.2f}–{high:.2f})"


def microseconds(seconds: np.ndarray, iterations: int) -> float:
    """The median per iteration."""
    return float(f"{np.median(seconds) / iterations * 1e6:.3g}")


def machine() -> dict[str, Any]:
    """Versions and hardware."""
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "?")
    packages = ("hamcmc", "jax", "jaxlib", "numpy", "blackjax")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "platform": platform.platform(),
        "python": platform.python_version(),
    } | {p: version(p) for p in packages}
