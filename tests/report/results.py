"""Results with draws chosen by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hamcmc.record import Array, Draws
from hamcmc.result import Result


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
    asked = {
        "num_samples": max(draws, 1),
        "warmup": 0,
        "thin": 1,
        "batch_size": None,
        "replace": True,
        "chains": chains,
        "seed": 0,
        "store_gradients": gradients is not None,
        "options": None,
        "notes": {},
        "sampler": {"sampler": "sgld"},
        "step_size": {"schedule": "constant", "step_size": 1.0},
        "arrays": [a._asdict() for a in arrays],
        "data_checksum": None,
        "data_size": 0,
        "x64": False,
        "versions": {"python": "3", "hamcmc": "0", "jax": "0"},
    }
    counters = {"status": "complete", "iteration": draws, "draws": draws, "seconds": 2.0, "gradients": chains * draws}
    return Result(store.root, asked | settings, counters | dict(meta or {}), {})
