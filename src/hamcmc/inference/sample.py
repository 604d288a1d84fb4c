"""The run loop on the host: visits to the compiled loop, recording, checkpoints, signals, resume."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check, samplers
from hamcmc.inference import compiled as loop
from hamcmc.inference import schedules
from hamcmc.inference.job import Job, batch_size_of, checksum, prepare, recorded_schedule, storable, x64
from hamcmc.inference.progress import Progress, Status, shown
from hamcmc.inference.stream import Batches
from hamcmc.inference.tune import budget_for, tune
from hamcmc.samplers.base import Sampler
from hamcmc.store import moments, record, result
from hamcmc.store.errors import Interrupted, NonFinite
from hamcmc.store.moments import RunningMoments
from hamcmc.store.record import Checkpoint, Directory, Draws, RunError, guard_disk
from hamcmc.store.result import Result
from hamcmc.target.posterior import Posterior, name_of

PyTree = Any
KINDS = result.KINDS | {  # what run.json must have for a run to go on
    **dict.fromkeys(("seed", "ensembles", "visit"), int),
    **dict.fromkeys(("x64", "replace", "store_gradients"), bool),
    "batch_size": (int, type(None)),
    "step_size": dict,
    "options": (dict, type(None)),
    "data_checksum": (str, type(None)),
}


def sample(
    posterior: Posterior,
    sampler: Sampler | str,
    init: PyTree | Callable[[jax.Array], PyTree],
    *,
    step_size: float | Callable | str = "auto",
    num_samples: int = 1000,
    warmup: int | None = None,
    thin: int = 1,
    batch_size: int | None = None,
    replace: bool = True,
    chains: int = 1,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    store_gradients: bool = False,
    checkpoint_seconds: float = 30.0,
    progress: bool | Progress | None = None,
    notes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Draw posterior samples: the whole job in one call.

    Iteration t = 0, 1, … takes a minibatch and the step size ε_t; after `warmup` iterations every `thin`-th position is
    stored, until there are `num_samples` per chain. ε is the factor of the drift and 2ε that of the noise variance.

    Args:
        posterior: log-prior, log-likelihood and data.
        sampler: a :class:`~hamcmc.Sampler`, or a name (``"hamcmc"``, ``"sgld"``, …) with `options` for it.
        init: parameters to start from (a pytree of floats), or a function of a key that draws them for each chain.
        step_size: a number, or a function of t such as :class:`hamcmc.Polynomial` or any optax schedule, or ``"auto"``:
            :func:`hamcmc.tune` then finds it first, and with a name those options that matter and are not given. That
            takes about a fifth of the run's gradients (at least 50 000, at most a million); ``settings["tuning"]`` has
            what was found and spent.
        num_samples: stored draws per chain.
        warmup: iterations before the first stored draw, which enter no average either; by default, and at least, those
            in which the sampler learns a metric.
        thin: iterations per stored draw. Running moments see every iteration.
        batch_size: data per minibatch; None for all data at every step.
        replace: draw minibatches with replacement (the paper's) or walk through random permutations.
        chains: independent chains, vmapped. For an ensemble sampler, ensembles; each replica is stored as a chain.
        seed: everything random follows from it.
        out: directory for draws and checkpoints; None keeps them in memory.
        overwrite: replace an existing run in `out`.
        store_gradients: store a stochastic gradient at each draw, for the kernel Stein discrepancy.
        checkpoint_seconds: time between checkpoints.
        progress: show a bar (default: if stderr is a terminal), or call a function with each
            :class:`~hamcmc.inference.progress.Status`.
        notes: anything to keep in ``run.json``.
        **options: hyper-parameters of a sampler given by name.

    Returns:
        A :class:`~hamcmc.store.result.Result`.

    Raises:
        ValueError: bad input, with the name of the argument.
        NonFinite: the state turned non-finite; `.result` has the draws before that.
        Interrupted: SIGINT or SIGTERM; with `out`, :func:`resume` continues.
    """
    settings = {
        "num_samples": _check.at_least("num_samples", num_samples, 1),
        "warmup": _check.at_least("warmup", 0 if warmup is None else warmup, 0),
        "thin": _check.at_least("thin", thin, 1),
        "batch_size": batch_size_of(batch_size, posterior),
        "replace": bool(replace),
        "ensembles": _check.at_least("chains", chains, 1),
        "seed": _check.at_least("seed", seed, 0),
        "store_gradients": bool(store_gradients),
        "options": storable(options) if isinstance(sampler, str) else None,
        "notes": dict(notes or {}),
    }
    _check.non_negative("checkpoint_seconds", checkpoint_seconds)
    if seed >= 2**32:  # JAX would cut it to 32 bits
        raise ValueError(f"seed must be below 2**32, got {seed}")
    if store_gradients and posterior.streamed:
        raise ValueError("store_gradients is not available for streamed (memory-mapped) data")
    if isinstance(step_size, str):
        _check.one_of("step_size", step_size, ("auto",))
    name = sampler if isinstance(sampler, str) else None
    if isinstance(sampler, str):
        sampler = samplers.build(sampler, posterior, **options)
    elif not isinstance(sampler, Sampler):
        raise ValueError(f"sampler must be a name or a hamcmc.Sampler, got {sampler!r}")
    elif options:
        raise ValueError(f"{', '.join(options)}: options go with a sampler given by name, not with one made by hand")
    settings["warmup"] = warmup_of(sampler, warmup)
    if sampler.settings.get("adjusted") and settings["batch_size"] is not None:
        raise ValueError("batch_size must be None for an adjusted sampler: the Metropolis test takes all data")
    if out is not None:
        record.check_free(Path(out), overwrite=overwrite)  # before a search that may take a while
    if isinstance(step_size, str):
        total = (settings["warmup"] + num_samples * thin) * chains * sampler.gradients_per_step
        found = tune(
            posterior,
            name or sampler,
            init,
            budget=budget_for(total),
            batch_size=batch_size,
            seed=seed,
            **options,
        )
        step_size, settings["tuning"] = found.step_size, found.account
        if name:
            settings["options"] = storable(found.options)
            sampler = samplers.build(name, posterior, **found.options)
    job = prepare(posterior, sampler, init, schedules.as_schedule(step_size), settings)
    if out is None:
        return _Run(job, None, None).to_the_end(checkpoint_seconds, progress)
    with Directory.create(out, job.settings, overwrite=overwrite) as directory:
        return _Run(job, directory, None).to_the_end(checkpoint_seconds, progress)


def warmup_of(sampler: Sampler, asked: int | None) -> int:
    """The iterations in which the sampler learns, or those asked for, which must not be fewer."""
    if asked is not None and asked < sampler.warmup:
        raise ValueError(
            f"warmup must be at least {sampler.warmup}, the steps in which the sampler learns its metric (adapt), "
            f"got {asked}"
        )
    return sampler.warmup if asked is None else asked


def resume(
    out: str | Path,
    posterior: Posterior,
    init: PyTree | Callable[[jax.Array], PyTree],
    *,
    sampler: Sampler | None = None,
    step_size: float | Callable | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | Progress | None = None,
) -> Result:
    """Continue a run in its directory to the draws that it would have had uninterrupted, bit by bit.

    Args:
        out: the run's directory.
        posterior: the same posterior as before; its data are compared by checksum.
        init: as before; it gives the structure of a position, and the start if no checkpoint was written yet.
        sampler: the same sampler, if :func:`sample` was given one instead of a name.
        step_size: the same schedule, if it was neither a number nor one of :mod:`hamcmc.inference.schedules`.
        checkpoint_seconds: time between checkpoints.
        progress: as in :func:`sample`.
    """
    _check.non_negative("checkpoint_seconds", checkpoint_seconds)
    path = Path(out)
    with Directory.open(path) as directory:
        asked, checkpoint = record.read_settings(path), record.read_checkpoint(path)
        record.require(asked, path / "run.json", KINDS)
        if checkpoint:
            record.require(checkpoint.meta, path / "checkpoint", {"status": str, "iteration": int, "draws": int})
        if checkpoint and checkpoint.meta["status"] == "complete":
            return Result.open(path)
        if checkpoint and checkpoint.meta["status"] == "failed":
            raise RunError(f"{path} cannot be resumed: {checkpoint.meta['message']}")
        if asked["x64"] != x64():
            raise RunError(f"{path} was run with jax_enable_x64={asked['x64']}: set it likewise to resume")
        if checksum(posterior) != asked["data_checksum"]:
            raise RunError(f"{path} was run on other data or with another control variate: the checksum differs")
        if sampler is None:
            if asked["options"] is None:
                raise RunError(f"{path} was run with a sampler that run.json cannot hold: give it to resume")
            with record.reading(path / "run.json"):
                sampler = samplers.build(asked["sampler"]["sampler"], posterior, **asked["options"])
        with record.reading(path / "run.json"):
            schedule = recorded_schedule(asked["step_size"], step_size, path)
        job = prepare(posterior, sampler, init, schedule, asked)
        for key, what in (("sampler", "sampler"), ("step_sizes", "step_size"), ("arrays", "model")):
            if job.settings[key] != asked[key]:
                raise RunError(f"{path} was run with another {what}: {asked[key]} then, {job.settings[key]} now")
        with guard_disk(path):
            record.remove_partial_writes(path)
        return _Run(job._replace(settings=asked), directory, checkpoint).to_the_end(checkpoint_seconds, progress)


class _Run:
    """A run at iteration `t`: what the host knows and keeps between visits to the compiled loop."""

    def __init__(self, job: Job, directory: Directory | None, checkpoint: Checkpoint | None):
        self.job, self.directory = job, directory
        s = job.settings
        self.t, self.seconds, self.state = 0, 0.0, jax.tree.map(jnp.array, job.state)
        variables = [a for a in job.arrays if a.group == "posterior"]
        self.moments = RunningMoments([a.name for a in variables], [(s["chains"], *a.shape) for a in variables])
        if checkpoint is not None:
            self.t, self.seconds = checkpoint.meta["iteration"], checkpoint.meta["seconds"]
            self.state = jax.tree.map(jnp.array, record.unpack(checkpoint.arrays, "state", job.state))
            self.moments.unpack(checkpoint.arrays)
        self.draws = Draws.open(
            None if directory is None else directory.path / "draws.zarr",
            job.arrays,
            s["chains"],
            s["num_samples"],
            written=None if checkpoint is None else checkpoint.meta["draws"],
        )
        self.slots = min(self.draws.chunk, max(1, s["visit"] // s["thin"]))
        self.visit = loop.build(
            job.posterior,
            job.sampler,
            job.schedule,
            batch_size=s["batch_size"],
            replace=s["replace"],
            chains=s["ensembles"],
            thin=s["thin"],
            slots=self.slots,
        )
        self.compiled = None  # ahead of the first visit, so that no visit's time includes it
        self.gradients = (
            loop.build_gradients(job.posterior, batch_size=s["batch_size"]) if s["store_gradients"] else None
        )

    def to_the_end(self, checkpoint_seconds: float, progress: bool | Progress | None) -> Result:
        """Visit after visit until all draws are there."""
        s, total = self.job.settings, self.job.total
        batches = Batches(
            self.job.posterior,
            self.job.keys,
            batch_size=s["batch_size"],
            replace=s["replace"],
            length=s["visit"],
        )
        with signals() as received, shown(progress, s["sampler"].get("sampler", "sampling")) as show, batches:
            if self.t == 0:
                self.save("running")
            self.log("start", iteration=self.t)
            saved = time.monotonic()
            while self.t < total and not received:
                show(self.advance(batches))
                if self.t < total and time.monotonic() - saved >= checkpoint_seconds:
                    self.save("running")
                    saved = time.monotonic()
            if self.t == total:
                self.draws.flush()
                self.draws.put_moments(moments.summary(self.moments.pack()))
                self.save("complete")
                self.log("complete", iteration=self.t, seconds=round(self.seconds, 3))
            else:
                self.save("running")
            if received:
                raise self.interrupted(received[0])
        return self.result("complete")

    def next_visit(self, t: int) -> tuple[int, int]:
        """(end, origin) of the visit that begins at iteration t; draws go to slots counted from iteration origin.

        A function of the settings alone, because moments are summed visit by visit. Visits end on stored draws where
        they can and never hold more draws than there are slots.
        """
        s = self.job.settings
        warmup, thin, most = s["warmup"], s["thin"], s["visit"]
        if t < warmup:
            return min(t + most, warmup), t
        origin = t - (t - warmup) % thin
        if thin > most:
            return min(t + most, origin + thin), origin
        return min(origin + min(most // thin, self.slots) * thin, self.job.total), origin

    def advance(self, batches: Batches) -> Status:
        """One visit, recorded."""
        s, begin = self.job.settings, self.t
        end, origin = self.next_visit(begin)
        data = batches.of(begin, end if end < self.job.total else None)
        recording = begin >= s["warmup"]
        arguments = (data, self.state, self.job.keys, begin, end, origin, recording)
        if self.compiled is None:
            self.compiled = self.visit.lower(*arguments).compile()
        began = time.perf_counter()
        v = self.compiled(*arguments)
        bad = np.asarray(v.bad_since)  # waits for the visit
        lasted = time.perf_counter() - began
        self.seconds += lasted
        if (bad >= 0).any():
            raise self.non_finite(v, bad, origin)
        self.state, self.t = v.state, end
        done = (end - origin) // s["thin"] if recording else 0
        if done:
            self.draws.append(self.named(v, origin, done))
        if recording:
            self.moments.add(v.moments)
        accepted = getattr(v.infos, "pairs_accepted", None)
        return Status(
            iteration=end,
            total=self.job.total,
            warmup=s["warmup"],
            draws=self.draws.written + self.draws.pending,
            seconds=self.seconds,
            rate=(end - begin) / lasted,
            step_size=float(self.job.schedule(jnp.int32(end - 1))),
            acceptance=None
            if accepted is None
            else float(accepted[: max(done, 1)].mean()) / (s["sampler"].get("pairs") or s["sampler"]["memory"] - 1),
        )

    def named(self, v: loop.Visit, origin: int, done: int) -> dict[str, np.ndarray]:
        """The first `done` draws of a visit with their step sizes, infos and gradients, by ``group/name``."""
        s = self.job.settings
        trees = {"posterior": v.draws, "sample_stats": v.infos}
        if self.gradients is not None:
            numbers = (origin - s["warmup"]) // s["thin"] + jnp.arange(self.slots)
            trees["gradients"] = self.gradients(self.job.posterior.data, v.draws, self.job.keys, numbers)
        # The replicas of an ensemble share its infos.
        chains = lambda x: x if x.shape[1] == s["chains"] else np.repeat(x, s["chains"] // x.shape[1], axis=1)
        out = {
            f"{group}/{name_of(path)}": chains(np.asarray(x)[:done])
            for group, tree in trees.items()
            for path, x in tree_leaves_with_path(tree)
        }
        last = origin + s["thin"] * (1 + jnp.arange(self.slots)) - 1  # the iteration of each draw
        step_size = np.asarray(jax.vmap(self.job.schedule)(last))[:done, None]
        out["sample_stats/step_size"] = np.broadcast_to(step_size, (done, s["chains"]))
        return out

    def meta(self, status: str, **more: Any) -> dict[str, Any]:
        """Counters of the run."""
        s, sampler, posterior = self.job.settings, self.job.sampler, self.job.posterior
        pass_ = posterior.size / s["batch_size"] if s["batch_size"] else 1
        per_step = sampler.gradients_per_step + posterior.extra_gradients + sampler.passes_per_step * pass_
        counters = {
            "iteration": self.t,
            "draws": self.draws.written,
            "seconds": self.seconds,
            "gradients": round(self.t * s["ensembles"] * per_step),
        }
        return {"status": status, **counters, **more}

    def save(self, status: str, **more: Any) -> None:
        """Write all draws, then the checkpoint that counts them."""
        self.draws.flush()
        if self.directory:
            arrays = record.pack(self.state, "state") if status == "running" else {}
            self.directory.save(Checkpoint(self.meta(status, **more), arrays | self.moments.pack()))

    def log(self, event: str, **facts: Any) -> None:
        """Note an event in the run's directory."""
        if self.directory:
            self.directory.log(event, **facts)

    def result(self, status: str, **more: Any) -> Result:
        """The draws so far."""
        summary = moments.summary(self.moments.pack())
        return Result(self.draws.root, self.job.settings, self.meta(status, **more), summary)

    def interrupted(self, number: int) -> Interrupted:
        """What to raise on a signal."""
        name = signal.Signals(number).name
        self.log("interrupted", signal=name, iteration=self.t)
        if self.t == self.job.total:
            then = ", which was the last"
        elif self.directory is None:
            then = "; give out= to be able to resume"
        else:
            then = f", all saved: 'hamcmc resume {self.directory.path}' continues"
        message = f"stopped by {name} at iteration {self.t:,} of {self.job.total:,}{then}"
        return Interrupted(message, number, self.result("interrupted"))

    def non_finite(self, v: loop.Visit, bad: np.ndarray, origin: int) -> NonFinite:
        """Keep the good draws of a visit that went bad, and say when, where and what to try."""
        s = self.job.settings
        iteration = int(bad[bad >= 0].min())
        chain, leaf = (int(i[0]) for i in np.nonzero(bad == iteration))
        recording = iteration >= s["warmup"] and self.t >= s["warmup"]
        if recording:
            self.draws.append(self.named(v, origin, (iteration - origin) // s["thin"]))
        self.draws.flush()
        self.draws.cut()
        self.t = iteration
        name = [a.name for a in self.job.arrays if a.group == "posterior"][leaf]
        epsilon = float(self.job.schedule(jnp.int32(iteration)))
        found = ", found by tuning" if "tuning" in s else ""
        tries = [f"a smaller step size (it was {epsilon:.3g}{found}; try {epsilon / 3:.1g}, and a larger thin)"]
        if "memory" in s["sampler"]:  # whose pairs are of noisy gradients
            tries.append(
                f"a larger cosine or damping (they were {s['sampler']['cosine']} and {s['sampler']['damping']})"
            )
        tries.append("a start nearer to the mode (find_mode)")
        message = (
            f"chain {chain} turned non-finite at iteration {iteration:,} in parameter {name}; "
            f"the {self.draws.written:,} draws per chain before that are kept. Try " + ", or ".join(tries)
        )
        self.log("failed", iteration=iteration, parameter=name, chain=chain)
        self.save("failed", message=message)
        return NonFinite(message, self.result("failed", message=message))


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM for the loop to act on between visits; the second one acts at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    old = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def note(number, _frame):
        received.append(number)
        for n, handler in old.items():
            signal.signal(n, handler)

    for n in old:
        signal.signal(n, note)
    try:
        yield received
    finally:
        for n, handler in old.items():
            signal.signal(n, handler)
