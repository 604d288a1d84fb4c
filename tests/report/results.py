"""Results with draws chosen by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc.diagnostics.result import Result
from hamcmc.store.checkpoint import Checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.draws import Array, Draws


def make_result(
    posterior: Mapping[str, np.ndarray],
    step_size: np.ndarray | None = None,
    *,
    stats: Mapping[str, np.ndarray] | None = None,
    gradients: Mapping[str, np.ndarray] | None = None,
    meta: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """A Result in memory from draws (chain, draw, …)."""
    chains, draws = next(iter(posterior.values())).shape[:2]
    step_size = np.ones(draws) if step_size is None else step_size
    groups = {
        "posterior": dict(posterior),
        "sample_stats": {**(stats or {}), "step_size": np.broadcast_to(step_size, (chains, draws))},
        "gradients": dict(gradients or {}),
    }
    values = {(g, n): np.asarray(x) for g, named in groups.items() for n, x in named.items()}
    arrays = [Array(g, n, x.shape[2:], str(x.dtype)) for (g, n), x in values.items()]
    store = Draws.open(None, arrays, chains, max(draws, 1), written=None)
    store.append({f"{g}/{n}": np.moveaxis(x, 1, 0) for (g, n), x in values.items()})
    store.flush()
    asked = settings_of(arrays, chains, max(draws, 1)) | {"store_gradients": gradients is not None}
    counters = {"status": "complete", "iteration": draws, "draws": draws, "seconds": 2.0, "gradients": chains * draws}
    return Result(store.root, asked | settings, counters | dict(meta or {}), {})


def settings_of(arrays: list[Array], chains: int, draws: int) -> dict[str, Any]:
    """What a plain run has in its run.json."""
    return {
        "num_samples": draws,
        "warmup": 0,
        "thin": 1,
        "batch_size": None,
        "replace": True,
        "chains": chains,
        "seed": 0,
        "store_gradients": False,
        "options": None,
        "notes": {},
        "sampler": {"sampler": "sgld"},
        "replicas": 1,
        "interleaved": 1,
        "pairs": 0,
        "step_size": {"schedule": "constant", "step_size": 1.0},
        "arrays": [a._asdict() for a in arrays],
        "data_checksum": None,
        "data_size": 0,
        "x64": False,
        "versions": {"python": "3", "hamcmc": "0", "jax": "0"},
    }


class Growing:
    """A run's directory, held and written as a run that goes on does it, as far as a test wants."""

    def __init__(self, path: Path, chains: int = 2, draws: int = 400):
        arrays = [Array("posterior", "theta", (2,), "float64"), Array("sample_stats", "step_size", (), "float64")]
        self.path, self.chains, self.rng = path, chains, np.random.default_rng(0)
        self.directory = Directory.create(path, settings_of(arrays, chains, draws))
        self.store = Draws.open(path / "draws.zarr", arrays, chains, draws, written=None)
        self.directory.log("start", iteration=0)

    def grow(self, draws: int, status: str = "running", **more: Any) -> None:
        """Write so many draws, and the checkpoint."""
        theta = self.rng.standard_normal((draws, self.chains, 2))
        self.store.append({"posterior/theta": theta, "sample_stats/step_size": np.ones(theta.shape[:2])})
        self.store.flush()
        done = self.store.written
        counters = {"iteration": done, "draws": done, "seconds": 0.1 * done, "gradients": done}
        self.directory.save(Checkpoint({"status": status} | counters | more, {}))

    def let_go(self) -> None:
        """As a process that ends."""
        self.directory.__exit__()
