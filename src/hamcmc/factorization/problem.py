"""What a factorization is asked to do: arguments checked, settings completed, ratings split and cut into blocks."""

import math
import os
import platform
from importlib.metadata import version
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from hamcmc import _check
from hamcmc._types import Facts, Record
from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import ratings as files
from hamcmc.factorization import recorded
from hamcmc.factorization.exchange import REDUCTIONS
from hamcmc.factorization.native import Blocks
from hamcmc.factorization.part import ORDERS, PartTarget
from hamcmc.factorization.partition import Partition, arrange, partition
from hamcmc.factorization.ratings import Ratings
from hamcmc.factorization.recipes import RECIPES, make_sampler
from hamcmc.samplers.base import WHOLE
from hamcmc.store.settings import FORMAT

NOTHING: Facts = MappingProxyType({})


class Request(NamedTuple):
    """The arguments of :func:`hamcmc.factorization.run.factorize` that decide the draws; they are explained there."""

    rank: int = 10
    model: str = "full"
    sampler: str = "sghmc"
    options: Facts = NOTHING
    step_size: float | None = None
    metric: bool | None = None
    order: str = "epochs"
    reduction: str = "auto"
    blocks: int | None = None
    num_samples: int = 200
    warmup: int = 20
    thin: int = 2
    steps: int = 10
    test: float = 0.1
    seed: int = 0
    threads: int | None = None
    notes: Facts = NOTHING


class Problem(NamedTuple):
    """A factorization about to start.

    Attributes:
        settings: what ``run.json`` keeps.
        ratings: all ratings, with those held out marked.
        partition: the partition of the training ratings.
        train: the training ratings by block, less their mean.
        test: the held-out ones.
    """

    settings: Record
    ratings: Ratings
    partition: Partition
    train: Blocks
    test: Blocks


def blocks_for(processes: int, shape: tuple[int, int]) -> int:
    """B where none is given: one for each process; on a single process one for each core, at least 2 if they fit."""
    return processes if processes > 1 else min(max(os.cpu_count() or 1, 2), *shape)


def pose(ratings: Ratings, request: Request) -> Problem:
    """Check everything that can be checked before the first step, split the ratings and cut the matrix into blocks."""
    r = request
    recipe = RECIPES[_check.one_of("sampler", r.sampler, tuple(RECIPES))]
    columns = gaussian_mf.layout(r.model, r.rank)
    shape = (len(ratings.users), len(ratings.items))
    _check.fraction("test", r.test)
    _check.at_least("seed", r.seed, 0)
    blocks = _check.at_least("blocks", blocks_for(1, shape) if r.blocks is None else r.blocks, 1)
    if r.rank > min(shape):
        raise ValueError(f"rank must be at most {min(shape)}, for a matrix of {shape[0]} × {shape[1]}; got {r.rank}")
    for name, least in (("num_samples", 1), ("thin", 1), ("steps", 1), ("warmup", 0)):
        _check.at_least(name, getattr(r, name), least)
    options = recipe.options | dict(r.options)
    step_size = _check.positive("step_size", recipe.step_size if r.step_size is None else r.step_size)
    _check.one_of("order", r.order, ORDERS)
    _check.one_of("reduction", r.reduction, ("auto", *REDUCTIONS))

    ratings = files.hold_out(ratings, r.test, r.seed)
    held_out = np.asarray(ratings.test)
    row, column, value = (np.asarray(x) for x in (ratings.row, ratings.column, ratings.value))
    learn = ~held_out
    if not learn.any():
        raise ValueError("no ratings are left to learn from: hold out fewer of them")
    sampler = make_sampler(r.sampler, options)(PartTarget(int(learn.sum())), WHOLE)
    p = partition(row[learn], column[learn], shape, blocks, r.seed)
    mean = float(value[learn].mean()) if columns.biases else 0.0
    train, test = (arrange(p, row[x], column[x], value[x] - np.float32(mean)) for x in (learn, held_out))
    settings = {
        "format": FORMAT,
        "kind": "factorization",
        "model": r.model,
        "rank": r.rank,
        "shape": list(shape),
        "ratings": ratings.size,
        "held_out": int(held_out.sum()),
        "global_mean": mean,
        "variance": float(value[learn].var()) or 1.0,  # any scale will do for ratings that are all the same
        "rating_range": list(ratings.range),
        "sampler": {"sampler": r.sampler, **options},
        "step_size": step_size,
        "metric": recipe.metric if r.metric is None else r.metric,
        "order": r.order,
        "reduction": r.reduction,
        "blocks": blocks,
        "imbalance": p.imbalance,
        "num_samples": r.num_samples,
        "warmup": r.warmup,
        "thin": r.thin,
        "steps": r.steps,
        "test": r.test,
        "seed": r.seed,
        "threads": r.threads or os.cpu_count() or 1,
        "chains": sampler.replicas,
        "ensembles": 1,
        "replicas": sampler.replicas,
        "interleaved": sampler.interleaved // math.gcd(sampler.interleaved, r.steps),  # draws are whole sweeps apart
        "pairs": sampler.pairs,
        "arrays": [a._asdict() | {"shape": list(a.shape)} for a in recorded.arrays(columns, shape)],
        "data_checksum": files.checksum(ratings),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in ("hamcmc", "jax", "numpy", "zarr")},
        "notes": dict(r.notes),
    }
    return Problem(settings, ratings, p, train, test)
