"""A run about to start: its input is checked, its settings are complete, its chains are at their start."""

import json
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check
from hamcmc._compile import jit, put, x64
from hamcmc._types import PyTree, Record
from hamcmc._work import operations
from hamcmc.inference import compiled as loop
from hamcmc.inference import schedules, stream
from hamcmc.inference.checks import check_shapes, check_start, rows_seen
from hamcmc.inference.stored import RESERVED, Store, Stored, stored
from hamcmc.samplers.base import Sampler
from hamcmc.store.draws import Array
from hamcmc.store.errors import RunError
from hamcmc.target.frozen import is_function, name_of
from hamcmc.target.posterior import Posterior
from hamcmc.target.sharded import shards_of

SEGMENT_FLOPS = 2e9  # work of a segment: about a tenth of a second
STEP_FLOPS = 5e3  # what the smallest step costs, in time
MESSAGE_FLOPS = 5e5  # what a message between processes costs, in time: some tenths of a millisecond
MOST_IN_SEGMENT = 10**5  # iterations


class Positions(NamedTuple):
    """Unconstrained positions to start from, one for each chain, along a leading axis."""

    stacked: PyTree


class Job(NamedTuple):
    """Checked input, and the states of the sampler at the start (with a leading chain axis).

    `kept` are arrays that a checkpoint carries along, because the run could not be prepared again without them,
    `traced` is the run's program, if it is already being compiled, and `stored` says what is written of a draw, if that
    is not all of it.
    """

    posterior: Posterior
    sampler: Sampler
    schedule: Callable
    state: Any
    keys: loop.Keys
    settings: Record
    kept: Mapping[str, np.ndarray] = MappingProxyType({})
    traced: loop.Traced | None = None
    stored: Stored | None = None

    @property
    def arrays(self) -> list[Array]:
        """What is recorded at each draw."""
        return [Array(a["group"], a["name"], tuple(a["shape"]), a["dtype"]) for a in self.settings["arrays"]]

    @property
    def parameters(self) -> list[Array]:
        """All sampled parameters, whether they are recorded or not."""
        if self.stored is None:
            return [a for a in self.arrays if a.group == "posterior"]
        axes = 2 if self.sampler.replicas > 1 else 1
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[axes:], x.dtype), self.state.position)
        shapes = tree_leaves_with_path(jax.eval_shape(self.posterior.constrain, like))
        return [Array("posterior", name_of(path), x.shape, str(x.dtype)) for path, x in shapes]

    @property
    def total(self) -> int:
        """Iterations of the whole run."""
        return self.settings["warmup"] + self.settings["num_samples"] * self.settings["thin"]


def prepare(
    posterior: Posterior,
    sampler: Sampler,
    init: Any,
    schedule: Callable,
    settings: Record,
    store: Store | None = None,
) -> Job:
    """Check everything that can be checked before the first step, and complete the settings.

    Settings that are given for ``segment`` and ``data_checksum`` are kept: a run that is resumed has them.
    """
    keys = loop.keys(settings["seed"], settings["ensembles"], sampler.replicas)
    positions = starts_of(posterior, init, keys.start)
    draft = drafted(posterior, sampler, positions[0], schedule, settings, keys, store)
    return started(draft, draft.sampler, positions, settings)


def drafted(
    posterior: Posterior,
    sampler: Sampler,
    like: PyTree,
    schedule: Callable,
    settings: Record,
    keys: loop.Keys,
    store: Store | None = None,
) -> Job:
    """A job with all that follows from the shape of a position: of its states it has only shapes and types."""
    check_shapes(posterior, like, settings["batch_size"])
    sampler = sampler._replace(step=jax.jit(sampler.step, inline=True))  # traced once, for its shapes and for the loop
    ensembles, replicas = settings["ensembles"], sampler.replicas
    leading = (ensembles, replicas) if replicas > 1 else (ensembles,)
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), like)
    arrays, theta = recorded(posterior, sampler, like, settings), jax.eval_shape(posterior.constrain, like)
    if (part := stored(store, posterior, theta)) is not None:
        if settings["store_gradients"]:
            raise ValueError("store_gradients needs whole draws: leave store out")
        arrays = [*part.arrays(theta), *(a for a in arrays if a["group"] != "posterior")]
    found = {
        "chains": ensembles * replicas,
        "replicas": replicas,
        "coupled": sampler.coupled and replicas > 1,
        "interleaved": sampler.interleaved,
        "pairs": sampler.pairs,
        "gradient": dict(posterior.settings),
        "step_size": describe(schedule),
        "arrays": arrays,
        "segment": settings.get("segment") or segment_length(posterior, sampler, like, settings),
        "data_size": posterior.size,
        "x64": x64(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in ("hamcmc", "jax", "numpy", "zarr")},
    }
    state = jax.eval_shape(jax.vmap(sampler.init), stacked)
    return Job(posterior, sampler, schedule, state, keys, settings | found, stored=part)


def started(draft: Job, sampler: Sampler, positions: list[PyTree], settings: Record) -> Job:
    """A drafted job at its start.

    Args:
        draft: by :func:`drafted`.
        sampler: that of the draft, or one that steps likewise and learns for another time.
        positions: the start of each chain, or a single one for all of them.
        settings: those of the draft, or others where that does not matter to its compiled program.
    """
    posterior, keys = draft.posterior, draft.keys
    check_start(posterior, positions, settings["batch_size"])
    positions = positions * (len(keys.start) if len(positions) == 1 else 1)
    ensembles, replicas = settings["ensembles"], sampler.replicas
    leading = (ensembles, replicas) if replicas > 1 else (ensembles,)
    # On the host, where nothing is compiled.
    stacked = jax.tree.map(lambda *x: np.stack(x).reshape(*leading, *x[0].shape), *positions)
    state = jit(jax.vmap(sampler.init))(stacked)
    total = settings["warmup"] + settings["num_samples"] * settings["thin"]
    if total >= 2**31:
        raise ValueError(f"warmup + num_samples * thin must stay below 2**31 iterations, got {total}")
    found = draft.settings | settings | {k: draft.settings[k] for k in ("segment", "arrays")}
    found |= {
        "sampler": dict(sampler.settings),
        "step_sizes": schedules.fingerprint(draft.schedule, total),
        "data_checksum": settings.get("data_checksum") or checksum(posterior),
    }
    if draft.stored is not None:
        found["store"] = draft.stored.record(posterior.constrain(positions[0]))
    return draft._replace(sampler=sampler, state=state, settings=json.loads(json.dumps(found, default=plain)))


def starts_of(posterior: Posterior, init: Any, keys: jax.Array) -> list[PyTree]:
    """Unconstrained positions of all chains, or a single one for all of them."""
    if isinstance(init, Positions):
        stacked = jax.tree.map(np.asarray, init.stacked)
        return [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(len(keys))]
    return [posterior.unconstrain(parameters(init, key)) for key in (keys if is_function(init) else keys[:1])]


def parameters(init: Any, key: jax.Array) -> PyTree:
    """The start of one chain, as floating-point arrays; an error names the leaf at fault."""
    given = init(key) if is_function(init) else init
    names = set()
    for path, leaf in tree_leaves_with_path(given):
        name, array = name_of(path), np.asarray(leaf)
        if name in names or name in RESERVED or "/" in name or not name.isprintable():  # files get these names
            taken = ", ".join(n for n in RESERVED if n)
            raise ValueError(f"parameter {name} must have a unique name without '/', other than {taken}")
        names.add(name)
        if array.dtype.kind != "f":
            raise ValueError(
                f"parameter {name} must be floating point, got {array.dtype} in init; to keep it as it is, name with "
                "Posterior(…, sampled=[…]) the parameters that are to be sampled"
            )
        if array.size == 0:
            raise ValueError(f"parameter {name} is empty in init")
        if not np.isfinite(array).all():
            raise ValueError(f"parameter {name} is not finite in init")
    if not names:
        raise ValueError("init has no parameters")
    return jax.tree.map(put, given)


def batch_size_of(value: Any, posterior: Posterior) -> int | None:
    """The batch size, checked against the data."""
    if value is None or posterior.data is None:
        if posterior.streamed:
            raise ValueError("batch_size must be given for streamed (memory-mapped) data")
        if value is not None:
            raise ValueError("batch_size was given, but this posterior has no data")
        return None
    n = _check.at_least("batch_size", value, 1)
    if n > posterior.size:
        raise ValueError(f"batch_size {n} is larger than the data: {posterior.size} rows")
    return n


def recorded(posterior: Posterior, sampler: Sampler, position: PyTree, settings: dict) -> list[Record]:
    """Group, name, shape and type of every array recorded at each draw."""
    _, info = jax.eval_shape(sampler.step, *step_shapes(posterior, sampler, position, settings))
    theta = jax.eval_shape(posterior.constrain, position)
    groups = [("posterior", theta), ("sample_stats", info)]
    if settings["store_gradients"]:
        for (path, x), y in zip(tree_leaves_with_path(theta), jax.tree.leaves(position)):
            if x.shape != y.shape:
                shapes = f"{name_of(path)} has shape {x.shape} but is sampled in shape {y.shape}"
                raise ValueError(f"store_gradients is not available: {shapes}")
        groups.append(("gradients", theta))
    found = [
        {"group": group, "name": name_of(path), "shape": list(x.shape), "dtype": str(x.dtype)}
        for group, tree in groups
        for path, x in tree_leaves_with_path(tree)
    ]
    kind = str(jnp.result_type(*(x.dtype for x in jax.tree.leaves(theta))))
    return [*found, {"group": "sample_stats", "name": "step_size", "shape": [], "dtype": kind}]


def step_shapes(posterior: Posterior, sampler: Sampler, position: PyTree, settings: dict) -> tuple:
    """Shapes and types of what a step takes: key, state, minibatch and step size, as the compiled loop has them."""
    rows = rows_seen(posterior, settings["batch_size"])
    leading = (sampler.replicas,) if sampler.replicas > 1 else ()
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), position)
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype)), posterior.data
    )
    kind = jax.tree.leaves(jax.eval_shape(posterior.constrain, position))[0].dtype
    key = jax.eval_shape(lambda: jax.random.key(0))
    return key, jax.eval_shape(sampler.init, like), batch, jax.ShapeDtypeStruct((), kind)


def segment_length(posterior: Posterior, sampler: Sampler, position: PyTree, settings: dict) -> int:
    """Iterations between two looks of the host, by the work of a step."""
    key, state, batch, step_size = step_shapes(posterior, sampler, position, settings)
    if sampler.replicas > 1:  # gradients are nearly all that an ensemble computes, and soon looked at
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), position)
        many = {"times": sampler.gradients_per_step, "together": sampler.replicas}
        once = operations(posterior.grad, like, batch, **many)
    else:
        once = operations(sampler.step, key, state, batch, step_size)
    work = settings["ensembles"] * once + STEP_FLOPS
    if shards_of(posterior) is not None:
        work += MESSAGE_FLOPS * sampler.gradients_per_step / sampler.replicas
    length = int(np.clip(SEGMENT_FLOPS / work, 1, MOST_IN_SEGMENT))
    if posterior.streamed:
        length = min(length, stream.iterations_held(posterior, settings["ensembles"], settings["batch_size"]))
    return length


def checksum(posterior: Posterior) -> str | None:
    """The checksum of the posterior's data; None without data."""
    return None if posterior.data is None and posterior.constants is None else posterior.checksum()


def plain(value: Any) -> Any:
    """A value for JSON: array scalars become numbers, anything else becomes text."""
    return value.item() if getattr(value, "ndim", None) == 0 else str(value)


def storable(options: Record) -> Record | None:
    """A sampler's options as JSON returns them; None if one is an array or a function, which JSON cannot hold."""

    def number(value: Any) -> Any:
        """An array scalar as a number."""
        if getattr(value, "ndim", None) != 0:
            raise TypeError
        return value.item()

    try:
        return json.loads(json.dumps(options, default=number))
    except TypeError:
        return None


def describe(schedule: Callable) -> Record:
    """A schedule for run.json: ours by name and parameters, any other as ``custom``."""
    for name, kind in schedules.NAMED.items():
        if isinstance(schedule, kind):
            return {"schedule": name, **vars(schedule)}
    return {"schedule": "custom"}


def recorded_schedule(spec: Record, given: Any, path: Any) -> Callable:
    """The inverse of :func:`describe`; a custom schedule must be given again."""
    if given is not None:
        return schedules.as_schedule(given)
    parameters = {k: v for k, v in spec.items() if k != "schedule"}
    if spec["schedule"] == "custom":
        raise RunError(f"{path} was run with a step-size schedule that run.json cannot hold: give step_size to resume")
    return schedules.NAMED[spec["schedule"]](**parameters)
