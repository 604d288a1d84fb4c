"""The draws of a run, read from memory or from its directory, whether it is complete or not."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from hamcmc._types import Record
from hamcmc.store import moments
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.draws import Array, open_store
from hamcmc.store.errors import DamagedRun, RunError
from hamcmc.store.files import reading, require
from hamcmc.store.settings import read_settings

KINDS = {"sampler": dict, "chains": int, "thin": int, "warmup": int, "num_samples": int}  # what run.json must say
COUNTERS = {"status": str, "draws": int, "iteration": int}  # what a checkpoint must say


class StoredRun:
    """The draws of a run, from memory or from its directory, complete or still going on.

    Attributes:
        settings: what was asked (``run.json``).
        meta: how far the run got: iteration, draws, seconds, gradients, status.
    """

    def __init__(self, root: Any, settings: Record, meta: Record, summary: Mapping[str, np.ndarray]):
        self._root, self.settings, self.meta, self._moments = root, settings, meta, summary

    @classmethod
    def open(cls, path: str | os.PathLike) -> Self:
        """Read a run's directory, also while it is being written."""
        path = Path(path)
        settings = read_settings(path)
        checkpoint = read_checkpoint(path)
        if checkpoint is None:
            raise RunError(f"{path} has no draws yet: its first checkpoint is still to come")
        require(settings, path / "run.json", KINDS)
        require(checkpoint.meta, path / "checkpoint", COUNTERS)
        chains, replicas = settings["chains"], settings.get("replicas", 1)
        if chains % replicas:
            raise DamagedRun(f"{path / 'run.json'} is damaged: {chains} chains cannot be ensembles of {replicas}")
        arrays = [Array(**a) for a in settings["arrays"]]
        root = open_store(path / "draws.zarr", arrays, checkpoint.meta["draws"], "r")
        return cls(root, settings, checkpoint.meta, moments.summary(checkpoint.arrays))

    @property
    def draws(self) -> int:
        """Stored draws per chain."""
        return int(self.meta["draws"])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name → shape of one draw."""
        return {a["name"]: tuple(a["shape"]) for a in self.settings["arrays"] if a["group"] == "posterior"}

    @property
    def partial(self) -> bool:
        """Whether only a part of the parameters is stored, or a function of them."""
        return "store" in self.settings

    def require_whole(self, what: str) -> None:
        """Raise if only a part of the parameters is stored."""
        if self.partial:
            raise ValueError(f"{what} needs whole draws, but this run was made with store=…: run it without")

    def _group(self, group: str) -> dict[str, np.ndarray]:
        names = [a["name"] for a in self.settings["arrays"] if a["group"] == group]
        return {n: self.read(f"{group}/{n}", 0, self.draws) for n in names}

    def read(self, key: str, start: int, stop: int) -> np.ndarray:
        """Draws start … stop−1 of ``group/name``, (chain, draw, …)."""
        with self._reading(key):
            found = np.asarray(self._root[key][:, start:stop])
            if key.startswith("posterior/") and not np.isfinite(found).all():
                raise ValueError(f"some of the draws {start} … {stop - 1} are missing")  # a run stores finite ones only
        return found

    def read_at(self, key: str, numbers: np.ndarray) -> np.ndarray:
        """The draws of ``group/name`` with these numbers, (chain, draw, …)."""
        with self._reading(key):
            return np.asarray(self._root[key].oindex[:, numbers])

    def chunk(self, key: str) -> int:
        """Draws of ``group/name`` that are stored together, and best read together."""
        with self._reading(key):
            return int(self._root[key].chunks[1])

    def _reading(self, key: str) -> Any:
        return reading(f"{key} in {getattr(self._root.store, 'root', 'memory')}")

    @property
    def posterior(self) -> dict[str, np.ndarray]:
        """Parameter name → draws (chain, draw, …)."""
        return self._group("posterior")

    @property
    def sample_stats(self) -> dict[str, np.ndarray]:
        """Step sizes and the sampler's Info, (chain, draw) each."""
        return self._group("sample_stats")

    @property
    def gradients(self) -> dict[str, np.ndarray]:
        """Stochastic gradients at the draws, if they were stored."""
        return self._group("gradients")

    @property
    def weights(self) -> np.ndarray:
        """ε of each draw, an array (draw,); the estimator is Σ ε h(θ) / Σ ε."""
        return self.read("sample_stats/step_size", 0, self.draws)[0]

    @property
    def mean(self) -> dict[str, np.ndarray]:
        """Σ ε θ / Σ ε over all chains and **all** iterations after warm-up, not only the stored ones.

        NaN before the first of them. A run that failed counts iterations up to its last good segment.
        """
        return {n: self._moments[f"mean.{n}"].mean(0) for n in self._known}

    @property
    def variance(self) -> dict[str, np.ndarray]:
        """The weighted variance over all chains and all iterations after warm-up."""
        means, variances = ({n: self._moments[f"{m}.{n}"] for n in self._known} for m in ("mean", "variance"))
        return {n: variances[n].mean(0) + means[n].var(0) for n in self._known}

    @property
    def _known(self) -> list[str]:
        """The names of all sampled parameters, also of those that are not stored."""
        return [n.removeprefix("mean.") for n in self._moments if n.startswith("mean.")]
