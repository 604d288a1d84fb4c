"""The draws of a run, to look at: from memory, or from a run's directory, complete or not."""

import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc.store import moments
from hamcmc.store.record import Array, RunError, open_store, read_checkpoint, read_settings, reading, require

KINDS = {"sampler": dict, "chains": int, "thin": int, "warmup": int, "num_samples": int}


class Result:
    """The draws of a run, from memory or from its directory, complete or still going on.

    Attributes:
        settings: what was asked (``run.json``).
        meta: how far it got: iteration, draws, seconds, gradients, status.
    """

    def __init__(self, root: Any, settings: dict[str, Any], meta: dict[str, Any], summary: Mapping[str, np.ndarray]):
        self._root, self.settings, self.meta, self._moments = root, settings, meta, summary

    @classmethod
    def open(cls, path: str | os.PathLike) -> "Result":
        """Read a run directory, also while it is being written."""
        path = Path(path)
        settings = read_settings(path)
        checkpoint = read_checkpoint(path)
        if checkpoint is None:
            raise RunError(f"{path} has no draws yet: its first checkpoint is still to come")
        require(settings, path / "run.json", KINDS)
        require(checkpoint.meta, path / "checkpoint", {"status": str, "draws": int, "iteration": int})
        arrays = [Array(**a) for a in settings["arrays"]]
        root = open_store(path / "draws.zarr", arrays, checkpoint.meta["draws"], "r")
        return cls(root, settings, checkpoint.meta, moments.summary(checkpoint.arrays))

    @property
    def draws(self) -> int:
        """Stored draws per chain."""
        return int(self.meta["draws"])

    def _group(self, group: str) -> dict[str, np.ndarray]:
        names = [a["name"] for a in self.settings["arrays"] if a["group"] == group]
        return {n: self.read(f"{group}/{n}", 0, self.draws) for n in names}

    def read(self, key: str, start: int, stop: int) -> np.ndarray:
        """Draws start … stop−1 of ``group/name``, (chain, draw, …)."""
        with reading(f"{key} in {getattr(self._root.store, 'root', 'memory')}"):
            found = np.asarray(self._root[key][:, start:stop])
            if key.startswith("posterior/") and not np.isfinite(found).all():
                raise ValueError(f"there are none for some of {start} … {stop - 1}")  # a run stores no others
        return found

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
        """Stochastic gradients at the draws, where they were stored."""
        return self._group("gradients")

    @property
    def weights(self) -> np.ndarray:
        """ε of each draw, an array (draw,); the estimator is Σ ε h(θ) / Σ ε."""
        return self.read("sample_stats/step_size", 0, self.draws)[0]

    @property
    def mean(self) -> dict[str, np.ndarray]:
        """Σ ε θ / Σ ε over **all** iterations after warm-up, not only stored ones; over all chains.

        NaN before the first of them. A run that failed counts those up to the last visit that was good.
        """
        return {n: self._moments[f"mean.{n}"].mean(0) for n in self._names()}

    @property
    def variance(self) -> dict[str, np.ndarray]:
        """The weighted variance over all iterations after warm-up and all chains."""
        means, variances = ({n: self._moments[f"{m}.{n}"] for n in self._names()} for m in ("mean", "variance"))
        return {n: variances[n].mean(0) + means[n].var(0) for n in self._names()}

    def _names(self) -> list[str]:
        return [a["name"] for a in self.settings["arrays"] if a["group"] == "posterior"]

    def to_arviz(self):
        """An ArviZ InferenceData with the groups ``posterior`` and ``sample_stats``.

        HAMCMC's draws are those of M interleaved chains; they come as chains of their own, or ArviZ would take
        successive draws for nearly independent ones and its ESS would be far too large.
        """
        apart = interleaved(self.settings)
        groups = ({n: part(x, apart) for n, x in group.items()} for group in (self.posterior, self.sample_stats))
        posterior, sample_stats = groups
        attributes = {"inference_library": "hamcmc", "interleaved": apart}
        return arviz().from_dict(posterior=posterior, sample_stats=sample_stats, attrs=attributes)

    def summary(self):
        """Weighted means, sds and quantiles, ESS and R-hat: see :func:`hamcmc.diagnostics.summary`."""
        from hamcmc.diagnostics.summaries import summary

        return summary(self)


def interleaved(settings: Mapping[str, Any]) -> int:
    """How many chains take turns in the stored draws of each chain: draws this far apart are of the same one."""
    sampler = settings["sampler"]
    memory = sampler["memory"] if sampler.get("sampler") == "hamcmc" else 1
    return memory // math.gcd(memory, settings["thin"])


def part(x: np.ndarray, apart: int) -> np.ndarray:
    """Draws (chain, draw, …) as (chain · apart, draw / apart, …); the first few that make no full round are dropped."""
    rounds = x.shape[1] // apart
    whole = x[:, x.shape[1] - rounds * apart :].reshape(len(x), rounds, apart, *x.shape[2:])
    return np.moveaxis(whole, 2, 1).reshape(len(x) * apart, rounds, *x.shape[2:])


def arviz():
    """ArviZ, imported late (it takes seconds) and without its daily announcement."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="\\s*ArviZ is undergoing", category=FutureWarning)
        import arviz
    return arviz
