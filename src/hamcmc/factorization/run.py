"""A factorization run: from ratings to a model that predicts, in memory or in a directory, on one device or many.

The directory is that of any run, with two more folders: ``ratings/`` has the ratings by id, and ``blocks/`` has the
same ratings by block, which processes map into memory. Every process calls ``run_here``. The first one writes.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from hamcmc import _check
from hamcmc._processes import agreed
from hamcmc._renamed import renamed
from hamcmc._types import Facts, Record
from hamcmc.factorization import partition
from hamcmc.factorization import ratings as files
from hamcmc.factorization.exchange import Devices
from hamcmc.factorization.predict import Factorization, load
from hamcmc.factorization.problem import NOTHING, Problem, Request, blocks_for, pose
from hamcmc.factorization.program import FactorizationProgram
from hamcmc.factorization.ratings import Ratings
from hamcmc.inference import launch
from hamcmc.inference.driver import drive
from hamcmc.inference.progress import Progress
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.draws import Array, Draws
from hamcmc.store.errors import Interrupted, NonFinite, RunError
from hamcmc.store.files import reading
from hamcmc.store.recorder import Recorder
from hamcmc.store.settings import read_settings

WORKER = "hamcmc.factorization.worker"  # the module that processes run


@renamed(samples="num_samples", burn_in="warmup")
def factorize(
    ratings: Ratings,
    out: str | os.PathLike | None = None,
    *,
    rank: int = 10,
    model: str = "full",
    sampler: str = "sghmc",
    options: Facts | None = None,
    step_size: float | None = None,
    metric: bool | None = None,
    order: str = "epochs",
    reduction: str = "auto",
    blocks: int | None = None,
    num_samples: int = 200,
    warmup: int = 20,
    thin: int = 2,
    steps: int = 10,
    test: float = 0.1,
    seed: int = 0,
    threads: int | None = None,
    processes: int = 1,
    restarts: int = 0,
    overwrite: bool = False,
    notes: Facts | None = None,
    progress: bool | Progress | None = None,
    checkpoint_seconds: float = 30.0,
) -> Factorization:
    """Factorize a matrix of ratings: draw the factors from their posterior.

    A sweep is `steps` gradient steps, each on one part of the matrix, and then a draw of the hyper-parameters.

    Args:
        ratings: from :func:`hamcmc.factorization.ratings.read`.
        out: directory for the run; None keeps everything in memory, on one process.
        rank: K, the number of factors.
        model: ``"full"``, or ``"paper"`` for the paper's model without biases and with unit variances.
        sampler: ``sghmc``, ``sgld``, ``psgld``, ``hamcmc`` or ``ensemble_hamcmc``.
        options: options of the sampler; they replace those of its recipe.
        step_size: ε, constant; by default the recipe's.
        metric: whether to step in the row-count metric; by default as the recipe says.
        order: ``"epochs"`` takes each part once in every B steps, ``"random"`` draws parts as in the paper.
        reduction: how several devices add up: ``"psum"``, ``"butterfly"`` or ``"ordered"``. ``"auto"`` is a butterfly
            between processes on CPUs, where the runtime's own sums are slow, and psum elsewhere.
        blocks: B. The matrix is cut into B × B blocks, and a step sees one part of B of them. By default one for each
            process, or on a single process one for each core, at least 2.
        num_samples: stored draws per chain.
        warmup: sweeps before the first stored draw.
        thin: sweeps per stored draw.
        steps: gradient steps in a sweep.
        test: share of the ratings held out.
        seed: everything random follows from it.
        threads: threads of a device; by default one for each core. A step uses at most one for each block.
        processes: processes on this machine, which divide the blocks. Under ``mpirun`` or Slurm it is their number that
            counts.
        restarts: how many times several processes start again from the last checkpoint after one of them died.
        overwrite: replace an existing run in `out`.
        notes: anything to keep in ``run.json``.
        progress: show a bar (None: if stderr is a terminal), or call a function with each
            :class:`~hamcmc.inference.progress.Status`.
        checkpoint_seconds: time between checkpoints.

    Returns:
        The model, which predicts and recommends.

    Raises:
        ValueError: bad input, with the name of the argument.
        NonFinite: the factors became non-finite; `.result` has the draws before that, if there are any.
        Interrupted: SIGINT or SIGTERM. With `out`, ``hamcmc resume`` continues, or
            :func:`~hamcmc.factorization.run.proceed`.
    """
    together = _join()
    processes = jax.process_count() if together else _check.at_least("processes", processes, 1)
    _check.at_least("restarts", restarts, 0)
    if blocks is None:
        blocks = blocks_for(processes, (len(ratings.users), len(ratings.items)))
    _check_divides(processes, blocks)
    request = Request(
        rank=rank,
        model=model,
        sampler=sampler,
        options=options or NOTHING,
        step_size=step_size,
        metric=metric,
        order=order,
        reduction=reduction,
        blocks=blocks,
        num_samples=num_samples,
        warmup=warmup,
        thin=thin,
        steps=steps,
        test=test,
        seed=seed,
        threads=threads,
        notes=notes or NOTHING,
    )
    if out is None:
        if processes > 1:
            raise ValueError(f"out must be given for {processes} processes: they share the ratings in that directory")
        return _in_memory(pose(ratings, request), progress)
    failure: Exception | None = None
    if not together or jax.process_index() == 0:
        try:
            prepare(ratings, out, request, overwrite=overwrite)
        except (RunError, ValueError) as error:
            failure = error
    if agreed(failure is not None):  # otherwise the others would wait for the first one
        raise failure or RunError("the first process could not begin")
    how: Record = {"progress": progress, "checkpoint_seconds": checkpoint_seconds}
    return proceed(out, processes=processes, restarts=restarts, **how)


def prepare(ratings: Ratings, out: str | os.PathLike, request: Request = Request(), *, overwrite: bool = False) -> Path:
    """Write the directory of a run that :func:`~hamcmc.factorization.run.proceed` then works in."""
    problem = pose(ratings, request)
    with Directory.create(out, problem.settings, overwrite=overwrite) as directory:
        files.save(problem.ratings, directory.path / "ratings")
        partition.save(directory.path / "blocks", problem.partition, problem.train, problem.test)
    return Path(out)


def proceed(
    path: str | os.PathLike,
    *,
    processes: int = 1,
    restarts: int = 0,
    progress: bool | Progress | None = None,
    checkpoint_seconds: float = 30.0,
) -> Factorization:
    """Work on a prepared or interrupted run until it is complete, with arguments as in :func:`hamcmc.factorize`."""
    path = Path(path)
    if _join() or processes == 1:
        run_here(path, progress=progress, checkpoint_seconds=checkpoint_seconds)
        return load(path)
    if callable(progress):
        raise ValueError("progress must be True, False or None: several processes cannot call a function of this one")
    _check_divides(processes, read_settings(path).get("blocks", 1))
    quiet = ("--quiet",) if progress is False else ()
    arguments = (str(path), f"--checkpoint-seconds={checkpoint_seconds}", *quiet)
    launch.launch(path, processes, WORKER, arguments, restarts=restarts)
    return load(path)


def run_here(
    path: str | os.PathLike,
    *,
    devices: Devices | None = None,
    progress: bool | Progress | None = None,
    checkpoint_seconds: float = 30.0,
) -> None:
    """Do this process's share of a prepared run, from its last checkpoint on. Every process of the run calls this."""
    path = Path(path)
    settings = read_settings(path)
    if settings.get("kind") != "factorization":
        raise RunError(f"{path} is not a factorization run")
    with reading(path / "blocks", "is missing or damaged"):
        p, train, test = partition.load(path / "blocks")
    checkpoint = read_checkpoint(path)
    if checkpoint is not None and checkpoint.meta["status"] == "failed":
        raise RunError(f"{path} cannot be resumed: {checkpoint.meta['message']}")
    if checkpoint is not None and checkpoint.meta["status"] != "running":
        return
    program = FactorizationProgram(settings, p, train, test, devices=devices)
    written = None
    if checkpoint is not None:
        program.unpack(checkpoint.arrays, checkpoint.meta)
        written = checkpoint.meta["draws"]
    with contextlib.ExitStack() as stack:
        recorder = Recorder(None)
        if jax.process_index() == 0:
            directory = stack.enter_context(Directory.open(path))
            recorder = Recorder(_draws(path / "draws.zarr", settings, written), directory)
        _drive(
            program,
            recorder,
            lambda: load(path),
            resumed=checkpoint is not None,
            progress=progress,
            checkpoint_seconds=checkpoint_seconds,
            resume_with=f"hamcmc resume {path}",
        )
    agreed(False)  # others may read only when the first process has written everything


def _in_memory(problem: Problem, progress: bool | Progress | None) -> Factorization:
    """Run a factorization that leaves nothing on disk."""
    program = FactorizationProgram(problem.settings, problem.partition, problem.train, problem.test)
    draws = _draws(None, problem.settings, None)
    recorder = Recorder(draws)

    def model() -> Factorization:
        """The draws so far."""
        return Factorization(problem.settings, recorder.meta, problem.ratings, draws.root)

    _drive(program, recorder, model, progress=progress)
    return model()


def _drive(
    program: FactorizationProgram,
    recorder: Recorder,
    model: Callable[[], Factorization],
    *,
    progress: bool | Progress | None,
    **how: Any,
) -> None:
    """Drive a program, and attach the draws so far to what ends it early."""
    about = {"devices": len(program.devices), "processes": jax.process_count()}
    shown = progress if jax.process_index() == 0 else False
    try:
        drive(program, recorder, progress=shown, about=about, **how)
    except (NonFinite, Interrupted) as stop:
        if recorder.written:
            stop.result = model()
        raise


def _draws(path: Path | None, settings: Facts, written: int | None) -> Draws:
    """The store of draws of a run, a new one where nothing is `written` yet."""
    arrays = [Array(**(a | {"shape": tuple(a["shape"])})) for a in settings["arrays"]]
    return Draws.open(path, arrays, settings["chains"], settings["num_samples"], written=written)


def _check_divides(processes: int, blocks: int) -> None:
    if blocks % processes:
        raise ValueError(f"processes must divide blocks: {processes} processes, {blocks} blocks")


def _join() -> bool:
    """Whether mpirun or Slurm started this process; it has then joined the others."""
    together = launch.started_by() in ("mpirun", "Slurm")
    if together and not jax.distributed.is_initialized():
        launch.join()
    return together
