"""Factorization runs with draws chosen by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc.factorization import ratings as files
from hamcmc.factorization.ratings import Ratings
from hamcmc.store.checkpoint import Checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.draws import Array, Draws

GLOBAL_MEAN = 3.0


def make_run(
    path: Path,
    ratings: Ratings,
    draws: Mapping[str, np.ndarray],
    *,
    room: int | None = None,
    meta: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write a run from draws (chain, draw, …); `room` is for draws that are still to come, `meta` for a checkpoint."""
    chains, written = draws["W"].shape[:2]
    arrays = [Array("posterior", n, x.shape[2:], "float32") for n, x in draws.items()]
    files.save(ratings, path / "ratings")
    store = Draws.open(path / "draws.zarr", arrays, chains, room or written, written=None)
    store.append({f"posterior/{n}": np.moveaxis(x, 1, 0) for n, x in draws.items()})
    store.flush()
    full = "row_bias" in draws
    asked = {
        "kind": "factorization",
        "model": "full" if full else "paper",
        "rank": draws["W"].shape[-1],
        "global_mean": GLOBAL_MEAN if full else 0.0,
        "rating_range": list(ratings.range),
        "arrays": [a._asdict() for a in arrays],
    }
    (path / "run.json").write_text(json.dumps(asked | settings))
    if meta is not None:
        with Directory.open(path) as directory:
            directory.save(Checkpoint(meta, {}))
    return path


def make_draws(
    rng: np.random.Generator, users: int, items: int, rank: int = 3, chains: int = 2, draws: int = 40, full: bool = True
) -> dict[str, np.ndarray]:
    """Draws of every parameter, each from its own prior, so that they differ widely."""
    shape = (chains, draws)
    normal = lambda *more, size=1.0: (size * rng.standard_normal((*shape, *more))).astype(np.float32)
    positive = lambda *more, mean: (mean * rng.gamma(20.0, 1 / 20, (*shape, *more))).astype(np.float32)
    found = {
        "W_mean": normal(rank, size=0.5),
        "W_precision": positive(rank, mean=3.0),
        "H_mean": normal(rank, size=0.5),
        "H_precision": positive(rank, mean=2.0),
        "noise_precision": positive(mean=1.5),
    }
    sides = (("W", "row_bias", users), ("H", "column_bias", items))
    for factor, bias, n in sides:
        sd = found[f"{factor}_precision"][:, :, None] ** -0.5
        found[factor] = found[f"{factor}_mean"][:, :, None] + sd * normal(n, rank)
        if full:
            found |= {f"{bias}_mean": normal(size=0.2), f"{bias}_precision": positive(mean=4.0)}
            found[bias] = found[f"{bias}_mean"][..., None] + found[f"{bias}_precision"][..., None] ** -0.5 * normal(n)
    return found


def make_ratings(rng: np.random.Generator, users: int, items: int, share: float = 0.4) -> Ratings:
    """Random ratings of a share of all pairs, a fifth of them held out; users are ``u0`` …, items ``i0`` …."""
    row, column = np.nonzero(rng.random((users, items)) < share)
    ids = [np.array(sorted(f"{letter}{i}" for i in range(n))) for letter, n in (("u", users), ("i", items))]
    value = rng.integers(1, 6, len(row)).astype(np.float32)
    found = Ratings(ids[0], ids[1], row.astype(np.int32), column.astype(np.int32), value, np.zeros(len(row), bool))
    return files.hold_out(found, 0.2, 0)
