"""A run from its start or from a checkpoint to its end, in a directory or in memory, in one process or in several.

Of several processes the first one writes. The state of a run is the same in all of them, so a checkpoint is that of any
run, and another number of processes can go on from it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from hamcmc import _processes
from hamcmc.diagnostics.result import Result
from hamcmc.diagnostics.verdict import Verdict
from hamcmc.inference.driver import drive
from hamcmc.inference.job import Job
from hamcmc.inference.program import SamplingProgram
from hamcmc.inference.progress import Progress, silent
from hamcmc.store.checkpoint import Checkpoint
from hamcmc.store.directory import Directory, check_free
from hamcmc.store.draws import Draws, require_room
from hamcmc.store.errors import Diverged, Interrupted, NonFinite, RunError, Unchecked
from hamcmc.store.recorder import Elsewhere, Recorder


class Ended(NamedTuple):
    """A run that came to its end, and all that is needed to make it longer."""

    result: Result
    checkpoint: Checkpoint

    def draws(self) -> dict[str, np.ndarray]:
        """All that it recorded, (draw, chain, …) by ``group/name``."""
        s = self.result.settings
        names = [f"{a['group']}/{a['name']}" for a in s["arrays"]]
        return {n: np.moveaxis(self.result.read_at(n, np.arange(self.result.draws)), 1, 0) for n in names}


def require_free(out: str | Path | None, overwrite: bool) -> None:
    """Raise, in all processes, if a new run may not be written to a directory."""

    def check() -> None:
        """The first process looks."""
        if out is not None and _processes.writes():
            check_free(Path(out), overwrite=overwrite)

    _processes.all_or_none(check, RunError)


@contextlib.contextmanager
def opened(make: Callable[[], Directory]) -> Iterator[Directory | None]:
    """A run's directory in the process that writes to it, None in the others."""
    with _processes.all_or_none(lambda: make() if _processes.writes() else contextlib.nullcontext(), RunError) as made:
        yield made


def begin(
    job: Job,
    out: str | Path | None,
    overwrite: bool,
    checkpoint_seconds: float,
    progress: bool | Progress | None,
    earlier: Ended | None = None,
) -> Ended:
    """Run a job from its start, or from the end of a shorter one, in a directory or in memory."""
    before = None if earlier is None else (earlier.draws(), earlier.checkpoint)  # read before its directory is replaced
    if out is None:
        return run(job, None, None, None, checkpoint_seconds, progress, before)
    _processes.agreed(False)  # nobody is reading

    def create() -> Directory:
        """The run's directory, which a run that would fill the disk does not leave behind."""
        require_room(Path(out), job.arrays, job.settings["chains"], job.settings["num_samples"])
        return Directory.create(out, job.settings, overwrite=overwrite)

    with opened(create) as directory:
        return run(job, Path(out), directory, None, checkpoint_seconds, progress, before)


def run(
    job: Job,
    path: Path | None,
    directory: Directory | None,
    checkpoint: Checkpoint | None,
    checkpoint_seconds: float,
    progress: bool | Progress | None,
    before: tuple[dict[str, np.ndarray], Checkpoint] | None = None,
) -> Ended:
    """Drive a job to its end, from its start, from a checkpoint, or from the draws and the end of a shorter run.

    Args:
        job: the run at its start.
        path: where it is recorded; None for memory.
        directory: the same, in the process that writes.
        checkpoint: from which to go on.
        checkpoint_seconds: time between checkpoints.
        progress: what to call with each status.
        before: draws and end of a shorter run.
    """
    store = None if path is None else path / "draws.zarr"
    written = None if checkpoint is None else checkpoint.meta["draws"]
    if store is None or directory is not None:
        draws = Draws.open(store, job.arrays, job.settings["chains"], job.settings["num_samples"], written=written)
    else:
        draws = Elsewhere(store, job.arrays, written or 0)
    recorder = Recorder(draws, directory)
    with SamplingProgram(job) as program:

        def result(**more: Any) -> Result:
            """The draws so far, when the process that writes them has done so."""
            _processes.agreed(False)
            return program.result(recorder, **more)

        program.show = progress if callable(progress) else silent
        if checkpoint is not None:
            program.unpack(checkpoint.arrays, checkpoint.meta)
        elif before is not None:
            recorder.append(before[0])
            program.unpack(before[1].arrays, before[1].meta)
        try:
            drive(
                program,
                recorder,
                resumed=checkpoint is not None,
                progress=progress,
                checkpoint_seconds=checkpoint_seconds,
                resume_with="" if path is None else f"hamcmc resume {path}",
                about={"processes": jax.process_count()} if _processes.several() else None,
            )
        except (NonFinite, Diverged) as failure:
            failure.result = result()
            raise
        except Interrupted as stop:
            stop.result = result(status="interrupted")
            raise
        if "plan" in job.settings or _processes.several():  # whoever reads the run later has no gradients at hand
            began = time.perf_counter()
            program.show(program.status()._replace(phase="checking the draws"))
            verdict = checked(result())
            program.show(program.status())
            program.costs["verdict"] = program.costs.get("verdict", 0.0) + time.perf_counter() - began
            meta = recorder.meta | {"verdict": verdict.to_json(), "costs": program.costs}
            recorder.save(meta, program.pack(False))
            recorder.log("verdict", word=verdict.word, reason=verdict.reason)
        end = Checkpoint(dict(recorder.meta), program.pack("plan" in job.settings))
        return Ended(result(), end)


def checked(result: Result) -> Verdict:
    """The verdict on a complete run. If it fails, the draws are not lost, and nobody takes them for checked."""
    try:
        return result.check()
    except Exception as error:
        why = f"the draws are complete, but could not be checked ({type(error).__name__}: {error}); .result has them"
        raise Unchecked(why, result) from error
