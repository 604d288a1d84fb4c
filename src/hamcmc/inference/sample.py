"""Sampling in one call, and continuing a run from its directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamcmc import _check, _compile
from hamcmc._compile import x64
from hamcmc._renamed import moved
from hamcmc._types import Facts, Record
from hamcmc.diagnostics.result import Result
from hamcmc.inference import schedules
from hamcmc.inference.again import asking, until_good
from hamcmc.inference.ahead import compiled_ahead, continued
from hamcmc.inference.arguments import (
    Init,
    SamplerOrMaker,
    check_data,
    ensembles_of,
    init_of,
    made_by,
    recorded_sampler,
    seed_of,
    starting_at,
    warmup_of,
)
from hamcmc.inference.auto import Prepared, planned, planned_before, say_plan
from hamcmc.inference.auto import prepare as automatic
from hamcmc.inference.display import displayed
from hamcmc.inference.job import (
    Positions,
    batch_size_of,
    checksum,
    prepare,
    recorded_schedule,
    storable,
)
from hamcmc.inference.plan import DRAWS, FIRST_DRAWS
from hamcmc.inference.progress import Progress
from hamcmc.inference.running import begin, opened, require_free, run
from hamcmc.inference.stored import Store, given_again, require_same
from hamcmc.inference.tune import tuned
from hamcmc.samplers.registry import name_of
from hamcmc.store import result
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.errors import RunError
from hamcmc.store.files import guard_disk, reading, remove_partial_writes, require
from hamcmc.store.settings import read_settings
from hamcmc.target.posterior import Posterior
from hamcmc.target.sharded import shards_of, spread

FIRST_STEP = 0.5  # ε where a sampler that adapts its step begins: a leapfrog step of 1 in its metric
KINDS = result.KINDS | {  # what run.json must say for a run to continue
    **dict.fromkeys(("seed", "ensembles", "segment"), int),
    **dict.fromkeys(("x64", "replace", "store_gradients"), bool),
    "batch_size": (int, type(None)),
    "step_size": dict,
    "options": (dict, type(None)),
    "data_checksum": (str, type(None)),
}
CYCLICAL = "cyclical"  # a step size of automatic runs on networks


@displayed("sampling")
def sample(
    posterior: Posterior,
    sampler: str | SamplerOrMaker = "auto",
    init: Init | None = None,
    *,
    step_size: float | Callable | str = "auto",
    num_samples: int | None = None,
    warmup: int | None = None,
    thin: int | None = None,
    batch_size: int | None = None,
    replace: bool = True,
    chains: int | None = None,
    ensembles: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    store: Store | None = None,
    store_gradients: bool = False,
    checkpoint_seconds: float = 30.0,
    progress: bool | Progress | None = None,
    notes: Facts | None = None,
    **options: Any,
) -> Result:
    """Draw posterior samples: the whole job in one call.

    ``sample(posterior)`` is wholly automatic. It measures the posterior and decides by :mod:`hamcmc.inference.plan`,
    says in one line what it chose and why, and ends with a verdict (:meth:`hamcmc.Result.check`). Where all data are
    affordable at every step it runs ``ensemble_hmc``, which adapts its metric, step and path in warm-up and is exact.
    Every argument overrides a part of the plan.

    Iteration t = 0, 1, … takes a minibatch and the step size ε_t. After `warmup` iterations every `thin`-th position is
    stored, until there are `num_samples` per chain. ε is the factor of the drift and 2ε that of the noise variance.

    Args:
        posterior: log-prior, log-likelihood and data.
        sampler: ``"auto"``, a name (``"hamcmc"``, ``"sgld"``, …) with `options` for it, a :class:`~hamcmc.Sampler`, or
            a function that makes one from the posterior.
        init: parameters to start from (a pytree of floats), or a function of a key that draws them for each chain; by
            default the posterior's own ``init``. An automatic run looks for starts of its own around it.
        step_size: a number, a function of t such as :class:`hamcmc.Polynomial` or any optax schedule, or ``"auto"``.
            :func:`hamcmc.tune` then finds the step size first and, for a sampler given by name, those options that
            matter and are not given. That takes about a fifth of the run's gradients (at least 50 000, at most
            a million); ``settings["tuning"]`` says what was found and spent. ``"cyclical"`` makes an automatic run on
            a network with steps that fall in cycles, which it otherwise does if held-out rows are predicted better.
        num_samples: stored draws per chain, 1000 by default; 250 of each replica in an automatic run on all data.
        warmup: iterations before the first stored draw, which enter no average either. The default, and the least, is
            the number of steps in which the sampler learns a metric.
        thin: iterations per stored draw, 1 by default. Running moments see every iteration. An automatic run that was
            not good, and took seconds, is made again with a larger one.
        batch_size: data per minibatch; None for all data at every step.
        replace: draw minibatches with replacement (as in the paper), or walk through random permutations.
        chains: independent chains, vmapped; 1 by default. For samplers that are no ensembles.
        ensembles: independent ensembles of an ensemble sampler; 1 by default, 2 in an automatic run. Each replica is
            stored as a chain.
        seed: everything random follows from it.
        out: directory for draws and checkpoints; None keeps them in memory.
        overwrite: replace an existing run in `out`.
        store: what is written of each draw, if not all parameters: names such as ``["layers.2"]``, or a function of the
            parameters that returns an array or a dict of arrays. The run is the same, and running moments know all
            parameters; but gradients cannot be confronted with the draws, so that the verdict is "usable" at best.
        store_gradients: store a stochastic gradient at each draw, for the kernel Stein discrepancy.
        checkpoint_seconds: time between checkpoints.
        progress: show a bar from the beginning of the call to its end (None: if stderr is a terminal), or call a
            function with each :class:`~hamcmc.inference.progress.Status`.
        notes: anything to keep in ``run.json``.
        **options: hyper-parameters of a sampler given by name.

    Returns:
        A :class:`~hamcmc.Result`.

    Raises:
        ValueError: an argument is wrong; the message names it.
        NonFinite: the state became non-finite; `.result` has the draws before that.
        Diverged: the draws left the posterior; `.result` has them, and the message says from where on.
        Interrupted: SIGINT or SIGTERM arrived; with `out`, :func:`resume` continues.
        Unchecked: an automatic run is complete, but the check of its draws failed; `.result` has them.
    """
    _compile.keep()
    posterior = spread(starting_at(posterior, init))
    prepared: Prepared | None = None
    given_thin, thin = thin, 1 if thin is None else thin
    if isinstance(step_size, str):
        _check.one_of("step_size", step_size, ("auto", CYCLICAL))
    count = DRAWS if num_samples is None else _check.at_least("num_samples", num_samples, 1)
    searched = isinstance(step_size, str)
    if isinstance(sampler, str) and sampler == "auto":
        asked = {"ensembles": ensembles, "batch_size": batch_size, "seed": seed_of(seed)}
        require_free(out, overwrite)
        counted = num_samples is not None or warmup is not None
        asked |= {"iterations": (count if counted else FIRST_DRAWS) * thin, "counted": counted, "progress": progress}
        asked |= {"cyclical": isinstance(step_size, str) and step_size == CYCLICAL}
        prepared = automatic(posterior, init, options=options, **asked)
        if prepared.search is None:  # otherwise the plan is not complete
            say_plan(prepared.plan, progress)
        posterior, sampler, options = prepared.posterior, prepared.plan.sampler, prepared.plan.options
        init, batch_size = Positions(prepared.starts), prepared.plan.batch_size
        if prepared.sampler.replicas > 1:
            ensembles = prepared.plan.ensembles
        else:
            chains, ensembles = prepared.plan.ensembles, None
        count = prepared.plan.num_samples if num_samples is None else count
        thin = thin * prepared.plan.thin
        if searched:
            epsilon, cycle = prepared.plan.step_size, prepared.plan.cycle
            step_size = schedules.Cyclical(epsilon, cycle) if cycle else epsilon
    init = init_of(posterior, init)
    name, made = name_of(sampler), made_by(sampler, posterior, options)
    settings = {
        "num_samples": count,
        "warmup": warmup_of(made, prepared.plan.warmup if prepared and warmup is None else warmup),
        "thin": _check.at_least("thin", thin, 1),
        "batch_size": batch_size_of(batch_size, posterior),
        "replace": bool(replace),
        "ensembles": ensembles_of(made, chains, ensembles),
        "seed": seed_of(seed),
        "store_gradients": bool(store_gradients),
        "options": None if name is None else storable(options),
        "notes": dict(notes or {}),
    }
    about: Record = {"asked": asking(num_samples, warmup, given_thin, searched), "runs": 1}
    if prepared is not None:
        settings["plan"] = prepared.plan._asdict() | prepared.account | about
    if isinstance(step_size, str) and step_size == "auto" and made.adapts_step:
        step_size = FIRST_STEP
    _check.non_negative("checkpoint_seconds", checkpoint_seconds)
    check_data(posterior, made, settings)
    if isinstance(step_size, str) and step_size == CYCLICAL:
        raise ValueError(f'step_size="{CYCLICAL}" is for automatic runs: give hamcmc.Cyclical(step_size, period)')
    require_free(out, overwrite)  # before tuning, which may take a while
    if isinstance(step_size, str):
        if shards_of(posterior) is not None:
            raise ValueError(
                "step_size must be given where several processes share the data: they cannot search for it"
            )
        made, step_size, settings = tuned(posterior, made, name, init, settings, options, progress)
    schedule = schedules.as_schedule(step_size)
    if prepared is not None and prepared.search is not None:
        draft, traced = compiled_ahead(prepared.posterior, made, prepared.starts[0], schedule, settings, store)
        prepared = prepared.search()
        say_plan(prepared.plan, progress)
        settings |= planned(prepared.plan, prepared.sampler, warmup, num_samples)
        settings["plan"] |= prepared.account | about
        posterior, init = prepared.posterior, Positions(prepared.starts)
        if prepared.plan.sampler == name:
            job = continued(draft, traced, posterior, prepared.sampler, init, settings)
        else:  # the search came upon something that changed the plan
            job = prepare(posterior, prepared.sampler, init, schedule, settings, store)
    else:
        job = prepare(posterior, made, init, schedule, settings, store)
    job = job._replace(kept=prepared.arrays if prepared else {})
    ended = begin(job, out, overwrite, checkpoint_seconds, progress)
    if prepared is None:
        return ended.result
    how: Record = {"store": store, "checkpoint_seconds": checkpoint_seconds, "progress": progress}
    return until_good(ended, prepared, init, schedule, settings, out, **how)


@displayed("sampling")
def resume(
    out: str | Path,
    posterior: Posterior,
    init: Init | None = None,
    *,
    sampler: SamplerOrMaker | None = None,
    step_size: float | Callable | None = None,
    store: Store | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | Progress | None = None,
) -> Result:
    """Continue a run in its directory. It gets the draws that it would have had uninterrupted, bit by bit.

    An automatic run that is not good enough is made longer, as :func:`sample` would have done.

    Args:
        out: the run's directory.
        posterior: the same posterior as before; its data are compared by checksum.
        init: as before; it shows the structure of a position, and is the start if no checkpoint was written yet. By
            default it is the posterior's own ``init``.
        sampler: the same sampler, if :func:`sample` was not given a name, or was given options that JSON cannot hold.
        step_size: the same schedule, if it was neither a number nor one of :mod:`hamcmc.inference.schedules`.
        store: the same function of the parameters, if :func:`sample` was given one.
        checkpoint_seconds: time between checkpoints.
        progress: show a bar (None: if stderr is a terminal), or call a function with each
            :class:`~hamcmc.inference.progress.Status`.
    """
    _compile.keep()
    _check.non_negative("checkpoint_seconds", checkpoint_seconds)
    path, posterior = Path(out), spread(posterior)
    with opened(lambda: Directory.open(path)) as directory:
        asked, checkpoint = read_settings(path), read_checkpoint(path)
        require(asked, path / "run.json", KINDS)
        if checkpoint is not None:
            require(checkpoint.meta, path / "checkpoint", result.COUNTERS)
            if checkpoint.meta["status"] == "complete":
                return Result.open(path)
            if checkpoint.meta["status"] == "failed":
                raise RunError(f"{path} cannot be resumed: {checkpoint.meta['message']}")
        if asked["x64"] != x64():
            raise RunError(f"{path} was run with jax_enable_x64={asked['x64']}: set it likewise to resume")
        prepared: Prepared | None = None
        if "plan" in asked:
            prepared = planned_before(posterior, init, asked, checkpoint, path)
            posterior, init = prepared.posterior, Positions(prepared.starts)
        init = init_of(posterior, init)
        if checksum(posterior) != asked["data_checksum"]:
            raise RunError(f"{path} was run on other data or with another control variate: the checksum differs")
        made = recorded_sampler(asked, posterior, path) if sampler is None else made_by(sampler, posterior, {})
        with reading(path / "run.json"):
            schedule = recorded_schedule(asked["step_size"], step_size, path)
            store = given_again(store, asked, path)
        job = prepare(posterior, made, init, schedule, asked, store)
        require_same(asked, {} if job.stored is None else job.settings, path)
        for key, what in (("sampler", "sampler"), ("step_sizes", "step_size"), ("arrays", "model")):
            if job.settings[key] != asked[key]:
                raise RunError(f"{path} was run with another {what}: {asked[key]} then, {job.settings[key]} now")
        if directory is not None:
            with guard_disk(path):
                remove_partial_writes(path)
        job = job._replace(settings=asked, kept=prepared.arrays if prepared else {})
        ended = run(job, path, directory, checkpoint, checkpoint_seconds, progress)
    if prepared is None:
        return ended.result
    how: Record = {"store": store, "checkpoint_seconds": checkpoint_seconds, "progress": progress}
    return until_good(ended, prepared, init, schedule, asked, path, **how)


__getattr__ = moved(__name__, Interrupted="hamcmc.store.errors", NonFinite="hamcmc.store.errors")
