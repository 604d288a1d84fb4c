"""A factorization run: from ratings to draws on disk, on one device or many.

The directory is that of any run with two folders more: ``ratings/``, the ratings by id, and
``blocks/``, the same ratings by block, which processes map into memory. Every process runs ``work``; the first one
writes.
"""

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from hamcmc import _check, samplers
from hamcmc.factorization import launch, partition
from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import ratings as files
from hamcmc.factorization import sharded as factorization
from hamcmc.factorization.predict import Factorization, load
from hamcmc.factorization.ratings import Ratings
from hamcmc.factorization.sharded import AXIS, SIDES, Carry, Data, Program
from hamcmc.inference.driver import signals
from hamcmc.inference.progress import Progress, Status, shown
from hamcmc.samplers.base import WHOLE
from hamcmc.store.checkpoint import Checkpoint, pack, read_checkpoint, unpack
from hamcmc.store.directory import Directory
from hamcmc.store.draws import Array, Draws
from hamcmc.store.errors import Interrupted, RunError
from hamcmc.store.files import reading
from hamcmc.store.settings import read_settings

PyTree = Any


class Recipe(NamedTuple):
    """How a sampler is run on factorizations: its options, ε, and whether in the row-count metric."""

    options: dict[str, Any]
    step_size: float
    metric: bool = True


RECIPES = {
    "sghmc": Recipe({"friction": 0.2}, 0.05),
    "sgld": Recipe({}, 0.05),
    "hamcmc": Recipe({"memory": 3, "cosine": 0.3}, 0.1),
    "psgld": Recipe({"regularizer": 1e-5}, 5e-7, metric=False),
    "ensemble_hamcmc": Recipe({"pairs": 2, "gamma": 0.25, "metric": None, "cosine": 0.3}, 0.2),
}


def prepare(
    ratings: Ratings,
    out: str | os.PathLike,
    *,
    rank: int = 10,
    model: str = "full",
    sampler: str = "sghmc",
    options: dict[str, Any] | None = None,
    step_size: float | None = None,
    metric: bool | None = None,
    order: str = "epochs",
    reduction: str = "auto",
    blocks: int | None = None,
    samples: int = 200,
    burn_in: int = 20,
    thin: int = 1,
    steps: int = 20,
    test: float = 0.1,
    seed: int = 0,
    threads: int | None = None,
    overwrite: bool = False,
    notes: dict[str, Any] | None = None,
) -> Path:
    """Check all that can be checked, and write the directory that :func:`proceed` works in.

    Args:
        ratings: from :func:`hamcmc.factorization.ratings.read`.
        out: directory for the run.
        rank: K, the number of factors.
        model: ``"full"``, or the paper's (``"paper"``: no biases, unit variances).
        sampler: one of `RECIPES`.
        options: of the sampler, in place of the recipe's.
        step_size: ε, constant; by default the recipe's.
        metric: take steps in the row-count metric; by default as the recipe says.
        order: of the parts: each once in every B steps (``"epochs"``), or ``"random"`` as in the paper.
        reduction: how several devices add up: ``"psum"``, ``"butterfly"`` or ``"ordered"``; ``"auto"`` is a butterfly
            between processes on CPUs, whose own sums are slow, and psum elsewhere.
        blocks: B; the matrix is cut in B × B blocks, and a step sees one part of B of them. By default one for each
            core, at least 2.
        samples: stored draws.
        burn_in: sweeps before the first one.
        thin: sweeps per stored draw.
        steps: gradient steps in a sweep, which ends with a draw of the hyper-parameters.
        test: share of the ratings held out.
        seed: everything random follows from it.
        threads: of a device; by default as many as there are cores, and at most one for each block.
        overwrite: replace an existing run.
        notes: more for run.json.
    """
    recipe = RECIPES[_check.one_of("sampler", sampler, tuple(RECIPES))]
    _check.fraction("test", test)
    _check.at_least("seed", seed, 0)
    blocks = _check.at_least("blocks", blocks_for(1) if blocks is None else blocks, 1)
    columns = gaussian_mf.layout(model, rank)
    shape = (len(ratings.users), len(ratings.items))
    if rank > min(shape):
        raise ValueError(f"rank must be at most {min(shape)}, for a matrix of {shape[0]} × {shape[1]}; got {rank}")
    for name, value, least in (
        ("samples", samples, 1),
        ("thin", thin, 1),
        ("steps", steps, 1),
        ("burn_in", burn_in, 0),
    ):
        _check.at_least(name, value, least)
    ratings = files.hold_out(ratings, test, seed)
    held_out = np.asarray(ratings.test)
    row, column, value = (np.asarray(x) for x in (ratings.row, ratings.column, ratings.value))
    learn = ~held_out
    if not learn.any():
        raise ValueError("no ratings are left to learn from: hold out fewer of them")
    p = partition.partition(row[learn], column[learn], shape, blocks, seed)
    mean = float(value[learn].mean()) if model == "full" else 0.0
    arrange = lambda chosen: partition.arrange(p, row[chosen], column[chosen], value[chosen] - np.float32(mean))

    chosen = recipe.options | (options or {})
    step_size = _check.positive("step_size", recipe.step_size if step_size is None else step_size)
    replicas = make_sampler(sampler, chosen)(_Nothing(), WHOLE).replicas
    settings = {
        "kind": "factorization",
        "model": model,
        "rank": rank,
        "shape": list(shape),
        "ratings": ratings.size,
        "held_out": int(held_out.sum()),
        "global_mean": mean,
        "variance": float(value[learn].var()) or 1.0,  # of ratings that are all the same, any scale will do
        "rating_range": list(ratings.range),
        "sampler": {"sampler": sampler, **chosen},
        "step_size": step_size,
        "metric": recipe.metric if metric is None else metric,
        "order": _check.one_of("order", order, ("epochs", "random")),
        "reduction": _check.one_of("reduction", reduction, ("auto", *factorization.REDUCTIONS)),
        "blocks": blocks,
        "imbalance": p.imbalance,
        "num_samples": samples,
        "warmup": burn_in,
        "thin": thin,
        "steps": steps,
        "test": test,
        "seed": seed,
        "threads": threads or os.cpu_count() or 1,
        "chains": replicas,
        "ensembles": 1,
        "arrays": [a._asdict() | {"shape": list(a.shape)} for a in arrays(columns, shape)],
        "data_checksum": files.checksum(ratings),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in ("hamcmc", "jax", "numpy", "zarr")},
        "notes": notes or {},
    }
    with Directory.create(out, settings, overwrite=overwrite) as directory:
        files.save(ratings, directory.path / "ratings")
        partition.save(directory.path / "blocks", p, arrange(learn), arrange(held_out))
    return Path(out)


def factorize(
    ratings: Ratings,
    out: str | os.PathLike,
    *,
    processes: int = 1,
    restarts: int = 0,
    progress: bool | Progress | None = None,
    checkpoint_seconds: float = 30.0,
    **options: Any,
) -> Factorization:
    """From ratings to a model that predicts: :func:`prepare`, then :func:`proceed` in one or several processes.

    Args:
        ratings: from :func:`hamcmc.factorization.ratings.read`.
        out: directory for the run.
        processes: how many, on this machine. Started by ``mpirun`` or Slurm, it is their number that counts.
        restarts: how many times several processes start anew from the last checkpoint after one of them died.
        progress: whether to show a bar (None: if stderr is a terminal).
        checkpoint_seconds: time between checkpoints.
        **options: of :func:`prepare`.
    """
    together = _join()
    if together:
        processes = jax.process_count()
    if options.get("blocks") is None:
        options["blocks"] = blocks_for(processes)
    _check.at_least("restarts", restarts, 0)
    if options["blocks"] % _check.at_least("processes", processes, 1):
        raise ValueError(f"processes must divide blocks: {processes} processes, {options['blocks']} blocks")
    failure: Exception | None = None
    if not together or jax.process_index() == 0:
        try:
            prepare(ratings, out, **options)
        except (RunError, ValueError) as error:
            failure = error
    if agreed(failure is not None):  # else the others would wait for the first one
        raise failure or RunError("the first process could not begin")
    proceed(out, processes=processes, restarts=restarts, progress=progress, checkpoint_seconds=checkpoint_seconds)
    return load(out)


def proceed(
    path: str | os.PathLike,
    *,
    processes: int = 1,
    restarts: int = 0,
    progress: bool | Progress | None = None,
    checkpoint_seconds: float = 30.0,
) -> None:
    """Work on a prepared or interrupted run until it is complete; arguments as of :func:`factorize`."""
    if _join() or processes == 1:
        work(path, progress=progress, checkpoint_seconds=checkpoint_seconds)
        return
    blocks = read_settings(Path(path)).get("blocks", 1)
    if blocks % processes:
        raise ValueError(f"processes must divide blocks: {processes} processes, {blocks} blocks")
    quiet = () if progress is None or progress else ("--quiet",)
    arguments = (f"--checkpoint-seconds={checkpoint_seconds}", *quiet)
    launch.launch(Path(path), processes, arguments=arguments, restarts=restarts)


def _join() -> bool:
    """Whether mpirun or Slurm started this process; it then has joined the others."""
    together = launch.started_by() in ("mpirun", "Slurm")
    if together and not jax.distributed.is_initialized():
        launch.join()
    return together


def blocks_for(processes: int) -> int:
    """B where none is given: one for each process, or on a single one for each core; at least 2."""
    return max(processes if processes > 1 else os.cpu_count() or 1, 2)


class _Nothing:
    """Stands for a posterior where only the form of a sampler is asked for."""

    size, mirror = 1, None

    def grad(self, position: PyTree, minibatch: Any) -> PyTree:
        """Never called."""


def make_sampler(name: str, options: dict[str, Any]) -> factorization.MakeSampler:
    """``(posterior, space) -> sampler``; raises ValueError on options that the sampler does not have."""

    def make(posterior, space):
        return samplers.build(name, posterior, space=space, **options)

    return make


def arrays(columns: gaussian_mf.Layout, shape: tuple[int, int]) -> list[Array]:
    """What is recorded at each draw."""
    K = columns.rank
    found = {"W": (shape[0], K), "H": (shape[1], K), "noise_precision": ()}
    found |= {f"{s}_{what}": (K,) for s in SIDES for what in ("mean", "precision")}
    if columns.biases:
        for name, length in (("row_bias", shape[0]), ("column_bias", shape[1])):
            found |= {name: (length,), f"{name}_mean": (), f"{name}_precision": ()}
    steps = Array("sample_stats", "step_size", (), "float32")
    return [*(Array("posterior", name, size, "float32") for name, size in found.items()), steps]


def named(columns: gaussian_mf.Layout, theta: dict[str, np.ndarray], hyper: gaussian_mf.Hyper) -> dict[str, np.ndarray]:
    """A draw (W and H with a leading axis of chains) as recorded: (draw, chain, …) by ``group/name``."""
    K, chains = columns.rank, len(theta["W"])
    found = {s: theta[s][..., :K] for s in SIDES}
    constant = {"noise_precision": hyper.noise}
    priors = {"W": (hyper.W_mean, hyper.W_precision), "H": (hyper.H_mean, hyper.H_precision)}
    for s, bias, place in (("W", "row_bias", K), ("H", "column_bias", K + 1)):
        constant |= {f"{s}_{what}": value[:K] for what, value in zip(("mean", "precision"), priors[s])}
        if columns.biases:
            found[bias] = theta[s][..., place]
            constant |= {f"{bias}_{what}": value[place] for what, value in zip(("mean", "precision"), priors[s])}
    found |= {name: np.broadcast_to(value, (chains, *np.shape(value))) for name, value in constant.items()}
    return {f"posterior/{name}": np.asarray(value, np.float32)[None] for name, value in found.items()}


def start(settings: dict[str, Any], p: partition.Partition, columns: gaussian_mf.Layout) -> tuple[PyTree, Any]:
    """Position and hyper-parameters to begin with: factors small around 0, or such that W H is near the mean rating."""
    rng = np.random.default_rng(settings["seed"])
    centre = 0.0 if columns.biases else np.sqrt(max(np.mean(settings["rating_range"]), 0.0) / columns.rank)
    hyper = gaussian_mf.start(columns, settings["variance"])
    leading = (settings["chains"],) if settings["chains"] > 1 else ()
    small = 0.1 * scales(columns, settings["variance"])

    def side(s, of: partition.Side):
        z = centre + small * rng.standard_normal((*leading, *of.counts.shape, columns.width), np.float32)
        there = np.arange(of.counts.shape[1]) < of.sizes[:, None]
        return (z * there[..., None] * columns.free(s) + columns.constant(s)).astype(np.float32)

    return {"W": side("W", p.rows), "H": side("H", p.columns)}, jax.tree.map(np.asarray, hyper)


def scales(columns: gaussian_mf.Layout, variance: float) -> np.ndarray:
    """The sizes that go with ratings of such a variance: their sd for biases, and its root for factors."""
    sd = np.sqrt(variance) if columns.biases else 1.0
    return np.where(np.arange(columns.width) < columns.rank, np.sqrt(sd), sd).astype(np.float32)


def reduction_for(devices: Any) -> str:
    """The sum over devices that was the fastest where we measured."""
    between = jax.process_count() > 1 and devices[0].platform == "cpu"
    return "butterfly" if between and len(devices) & (len(devices) - 1) == 0 else "psum"


class Work:
    """A run in progress, in one of its processes."""

    def __init__(self, path: Path, devices: Any = None):
        self.path, self.settings = path, read_settings(path)
        s = self.settings
        if s.get("kind") != "factorization":
            raise RunError(f"{path} is not a factorization run")
        self.columns = gaussian_mf.layout(s["model"], s["rank"])
        with reading(path / "blocks", "is missing or damaged"):
            self.p, train, test = partition.load(path / "blocks")
        self.devices = jax.devices() if devices is None else devices
        self.make = make_sampler(s["sampler"]["sampler"], {k: v for k, v in s["sampler"].items() if k != "sampler"})
        unit = gaussian_mf.Prior()
        rate: Any = unit.rate * scales(self.columns, s["variance"]) ** 2  # of each column
        prior = unit._replace(noise_rate=unit.noise_rate * s["variance"], rate=rate)
        self.program: Program = factorization.build(
            self.p,
            self.columns,
            self.make,
            s["step_size"],
            devices=self.devices,
            sample_hyper=s["model"] == "full",
            order=s["order"],
            prior=prior,
            reduction=reduction_for(self.devices) if s["reduction"] == "auto" else s["reduction"],
            threads=max(1, s["threads"] // max(1, len(jax.local_devices()))) if jax.process_count() == 1 else 1,
        )
        self.gradients_per_step = self.make(_Nothing(), WHOLE).gradients_per_step
        data = Data(train, test, self.p.rows.counts, self.p.columns.counts)  # type: ignore[arg-type]
        self.data: Data = factorization.shard(self.program.mesh, data, factorization.data_specs())
        self.keys = factorization.keys(s["seed"])
        self.sweep, self.seconds = 0, 0.0
        self.visit: Any = None  # compiled ahead of the first sweep, so that no sweep's time includes it

    @property
    def writes(self) -> bool:
        """Whether this process writes."""
        return jax.process_index() == 0

    @property
    def total(self) -> int:
        """Sweeps of the whole run."""
        return self.settings["warmup"] + self.settings["num_samples"] * self.settings["thin"]

    def metric(self, hyper: gaussian_mf.Hyper) -> factorization.Metric:
        """The base metric that goes with hyper-parameters."""
        if not self.settings["metric"]:
            return jax.tree.map(np.asarray, factorization.plain_metric(self.columns))
        return jax.tree.map(np.asarray, factorization.row_count_metric(self.columns, hyper))

    def begin(self) -> Carry:
        """The state before the first sweep."""
        position, hyper = start(self.settings, self.p, self.columns)
        position = factorization.shard(self.program.mesh, position, factorization.specs(position))
        zeros = np.zeros(self.data.test.columns.shape, np.float32)
        predicted = factorization.shard(self.program.mesh, zeros, PartitionSpec(AXIS))
        return self.program.begin(position, self.metric(hyper), hyper, predicted, self.data)

    def restore(self, checkpoint: Checkpoint) -> Carry:
        """The state of a checkpoint, spread over the devices of today."""
        like = self.begin()
        carry = unpack(checkpoint.arrays, "carry", like)
        self.sweep, self.seconds = checkpoint.meta["iteration"], checkpoint.meta["seconds"]
        return factorization.shard(self.program.mesh, carry, factorization.carry_specs(carry))

    def learn_metric(self, carry: Carry) -> Carry:
        """A new base metric from the hyper-parameters at hand; the sampler starts anew where it is."""
        hyper = jax.tree.map(np.asarray, carry.hyper)
        position = self.program.position(carry, self.data)
        new = self.program.begin(position, self.metric(hyper), hyper, carry.predicted, self.data)
        return new._replace(draws=carry.draws, iteration=carry.iteration)

    def whole(self, tree: PyTree) -> PyTree:
        """Host arrays of what may be spread over processes; a collective."""
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, tree)
        gather = lambda x: np.asarray(x if x.is_fully_replicated else multihost_utils.process_allgather(x, tiled=True))
        return jax.tree.map(gather, tree)

    def advance(self, carry: Carry) -> tuple[Carry, factorization.Trace]:
        """One sweep."""
        s = self.settings
        if s["metric"] and s["model"] == "full" and learns(self.sweep, s["warmup"]):
            carry = self.learn_metric(carry)
        arguments = (carry, self.data, self.keys, np.int32(s["steps"]), np.int32(self.sweep >= s["warmup"]))
        if self.visit is None:
            self.visit = self.program.visit.lower(*arguments).compile()
        began = time.perf_counter()
        carry, trace = self.visit(*arguments)
        trace = jax.tree.map(lambda x: np.asarray(x)[0], trace)  # waits
        self.seconds += time.perf_counter() - began
        self.sweep += 1
        return carry, trace

    def communication_share(self, carry: Carry, sweep_seconds: float) -> float:
        """The time that the messages of a sweep take by themselves, over that of a sweep."""
        arguments = (carry, self.keys, np.int32(self.settings["steps"]))
        send = self.program.messages.lower(*arguments).compile()
        send(*arguments).block_until_ready()
        began = time.perf_counter()
        send(*arguments).block_until_ready()
        return (time.perf_counter() - began) / sweep_seconds

    def draw(self, carry: Carry) -> dict[str, np.ndarray]:
        """The newest draw as recorded; a collective."""
        theta, hyper = self.whole(self.program.position(carry, self.data)), jax.tree.map(np.asarray, carry.hyper)
        sides = {"W": self.p.rows, "H": self.p.columns}
        chains = lambda x: x if x.ndim == 4 else x[None]
        found = named(self.columns, {s: sides[s].gather(chains(theta[s])) for s in SIDES}, hyper)
        epsilon = np.full((1, self.settings["chains"]), self.settings["step_size"], np.float32)
        return found | {"sample_stats/step_size": epsilon}


def learns(sweep: int, burn_in: int) -> bool:
    """Whether the base metric is learned anew before a sweep: ever more seldom, and last at the end of the burn-in."""
    return 0 < sweep <= burn_in and (sweep & (sweep - 1) == 0 or sweep == burn_in)


def work(
    path: str | os.PathLike,
    *,
    devices: Any = None,
    progress: bool | Progress | None = None,
    checkpoint_seconds: float = 30.0,
) -> dict[str, Any]:
    """Sample until all draws of a prepared run are there, from its last checkpoint on; every process calls it.

    Returns:
        The last figures: iterations, seconds, test RMSE.
    """
    w = Work(Path(path), devices)
    s = w.settings
    checkpoint = read_checkpoint(w.path)
    if checkpoint is not None and checkpoint.meta["status"] == "failed":
        raise RunError(f"{w.path} cannot be resumed: {checkpoint.meta['message']}")
    if checkpoint is not None and checkpoint.meta["status"] != "running":
        return checkpoint.meta
    carry = w.begin() if checkpoint is None else w.restore(checkpoint)
    directory = Directory.open(w.path) if w.writes else None
    draws = None
    if directory is not None:
        written = None if checkpoint is None else checkpoint.meta["draws"]
        kinds = [Array(**(a | {"shape": tuple(a["shape"])})) for a in s["arrays"]]
        draws = Draws.open(w.path / "draws.zarr", kinds, s["chains"], s["num_samples"], written=written)
    figures: dict[str, Any] = {}
    shares: dict[str, Any] = {}

    def save(status: str, **more) -> None:
        arrays = pack(w.whole(carry), "carry") if status == "running" else {}
        if directory is not None and draws is not None:
            draws.flush()
            counters = {"iteration": w.sweep, "draws": draws.written, "seconds": w.seconds} | figures
            gradients = w.sweep * s["steps"] * w.gradients_per_step
            directory.save(Checkpoint({"status": status, **counters, "gradients": gradients, **more}, arrays))

    log = directory.log if directory is not None else lambda *_, **__: None
    show_nothing = False if not w.writes else progress
    try:
        with signals() as received, shown(show_nothing, s["sampler"]["sampler"]) as show:
            if checkpoint is None:
                save("running")
            log("start", iteration=w.sweep, devices=len(w.devices), processes=jax.process_count())
            saved = time.monotonic()
            while w.sweep < w.total and not agreed(bool(received)):
                before = w.seconds
                carry, trace = w.advance(carry)
                if not np.isfinite(trace.train_rmse):
                    message = non_finite(w)
                    save("failed", message=message)
                    log("failed", iteration=w.sweep)
                    raise RunError(message)
                figures = shares | facts(w, trace, w.seconds - before)
                if len(w.devices) > 1 and w.sweep == min(s["warmup"] + 1, w.total):
                    shares = {"communication_share": w.communication_share(carry, w.seconds - before)}
                log("progress", **figures)
                kept = w.sweep - s["warmup"]
                if kept > 0 and kept % s["thin"] == 0:
                    draw = w.draw(carry)
                    if draws is not None:
                        draws.append(draw)
                show(status_of(w, figures, 0 if draws is None else draws.written + draws.pending))
                if agreed(time.monotonic() - saved >= checkpoint_seconds) and w.sweep < w.total:
                    save("running")
                    saved = time.monotonic()
            if w.sweep == w.total:
                save("complete")
                log("complete", iteration=w.sweep, seconds=round(w.seconds, 3))
            else:
                save("running")
                log("interrupted", iteration=w.sweep)
                raise interrupted(w, received[0] if received else 15)
    finally:
        if directory is not None:
            directory.__exit__()
    return {"iteration": w.sweep, "seconds": w.seconds, **figures}


def agreed(mine: bool) -> bool:
    """Whether any process says so: all must leave a loop at the same sweep."""
    if jax.process_count() == 1:
        return mine
    return bool(np.any(multihost_utils.process_allgather(np.asarray(mine))))


def facts(w: Work, trace: factorization.Trace, seconds: float) -> dict[str, Any]:
    """What a sweep tells, for the log."""
    s = w.settings
    seen = s["steps"] * w.gradients_per_step * (s["ratings"] - s["held_out"]) / s["blocks"]
    return {
        "iteration": w.sweep,
        "steps": w.sweep * s["steps"],
        "seconds": round(w.seconds, 4),
        "rmse": float(trace.rmse),
        "rmse_draw": float(trace.rmse_draw),
        "train_rmse": float(trace.train_rmse),
        "noise": float(trace.hyper.noise) ** -0.5,
        "ratings_per_second": seen / max(seconds, 1e-9),
    }


def status_of(w: Work, figures: dict[str, Any], draws: int) -> Status:
    """For the progress bar."""
    s, n = w.settings, len(w.devices)
    on = f"{n} device{'s' * (n > 1)}"
    if "communication_share" in figures:
        on += f", {figures['communication_share']:.0%} of the time in messages"
    note = f"test RMSE {figures['rmse']:.4f} · {figures['ratings_per_second'] / 1e6:.0f} M ratings/s · {on}"
    rate = w.sweep * s["steps"] / max(w.seconds, 1e-9)
    return Status(
        iteration=w.sweep * s["steps"],
        total=w.total * s["steps"],
        warmup=s["warmup"] * s["steps"],
        draws=draws,
        seconds=w.seconds,
        rate=rate,
        step_size=s["step_size"],
        acceptance=None,
        note=note,
    )


def non_finite(w: Work) -> str:
    """What to say where a chain left the numbers."""
    epsilon, options = w.settings["step_size"], w.settings["sampler"]
    cosine = f", or a larger cosine (it was {options['cosine']})" if "cosine" in options else ""
    return (
        f"the factors turned non-finite in sweep {w.sweep}, by step {w.sweep * w.settings['steps']:,}; draws before it "
        f"are kept. Try a smaller step size (it was {epsilon:.3g}; try {epsilon / 3:.1g}){cosine}"
    )


def interrupted(w: Work, number: int) -> Interrupted:
    """What to raise on a signal."""
    message = f"stopped at sweep {w.sweep} of {w.total}, all saved: 'hamcmc resume {w.path}' continues"
    return Interrupted(message, number, None)  # type: ignore[arg-type]
