"""Several processes: how they find each other, how they are started on one machine, and what happens when one dies.

A process is one of many if :func:`launch` started it, which says so in its environment, or if ``mpirun`` or Slurm did,
which JAX's runtime recognises. All of them run the same program.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import jax

from hamcmc import _compile
from hamcmc.inference.driver import signals
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.errors import Diverged, Interrupted, NonFinite, RunError

HEARTBEAT = 20  # seconds after which a silent process counts as dead
FAILED = 1  # exit code of a worker with an error that another start would meet again
LOST = 3  # exit code of a worker that lost another one
GRACE = 10  # seconds that processes get to save and leave
CLUSTERS = {"OMPI_COMM_WORLD_SIZE": "mpirun", "SLURM_STEP_NUM_TASKS": "Slurm"}


class Died(RunError):
    """A process died."""


def started_by(environment: Mapping[str, str] = os.environ) -> str | None:
    """Who started this process as one of many: ``"hamcmc"``, ``"mpirun"``, ``"Slurm"``; None if it is alone."""
    if "HAMCMC_PROCESSES" in environment:
        return "hamcmc"
    return next((name for variable, name in CLUSTERS.items() if int(environment.get(variable) or 1) > 1), None)


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process among those started together, also before they have joined."""
    variables = ("HAMCMC_PROCESS", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return next((int(environment[v]) for v in variables if v in environment), 0)


def join() -> None:
    """Join the other processes of a run, if ``mpirun`` or Slurm started this one as one of many.

    Call this before anything is computed. Processes that have joined share the rows of each posterior that they sample.
    """
    who = None if jax.distributed.is_initialized() else started_by()
    if who == "hamcmc":
        jax.distributed.initialize(
            os.environ["HAMCMC_COORDINATOR"],
            int(os.environ["HAMCMC_PROCESSES"]),
            int(os.environ["HAMCMC_PROCESS"]),
            coordinator_bind_address=os.environ["HAMCMC_COORDINATOR"],
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    elif who is not None:
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT)


def launch(run: Path, processes: int, module: str, arguments: tuple[str, ...], *, restarts: int = 0) -> None:
    """Work on a run with several processes on this machine, until it is complete.

    Args:
        run: the run's directory.
        processes: how many.
        module: what each process runs; it ends by :func:`leave`.
        arguments: of the module.
        restarts: how many times to start again from the last checkpoint after a process died.

    Raises:
        Died: a process died, and no restart is left.
        Interrupted: SIGINT or SIGTERM; the processes saved before they left.
        NonFinite: the state of the run became non-finite.
    """
    for left in reversed(range(restarts + 1)):
        try:
            return _once(run, processes, module, arguments)
        except Died as error:
            if not left:
                raise
            print(f"{error}; starting again from the last checkpoint", file=sys.stderr)
    return None


def _once(run: Path, processes: int, module: str, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", module, *arguments]
    address = f"127.0.0.1:{_free_port()}"
    everyone = os.environ | {"HAMCMC_COORDINATOR": address, "HAMCMC_PROCESSES": str(processes)}
    with signals() as received:
        # Workers have sessions of their own, so that Ctrl-C reaches them once, through this process.
        workers = [
            subprocess.Popen(command, env=everyone | {"HAMCMC_PROCESS": str(i)}, start_new_session=True)
            for i in range(processes)
        ]
        try:
            told = False
            while any(w.poll() is None for w in workers) and not any(w.returncode for w in workers):
                if received and not told:
                    told = True
                    for w in workers:
                        w.send_signal(signal.SIGINT)
                time.sleep(0.05)
            if received:
                _wait(workers, GRACE)
                raise _interrupted(run, received[0])
            if any(w.returncode for w in workers):
                _wait(workers, 1.0)  # the others fail as well, and need a moment to say so
                raise _failure(workers, run)
        finally:
            for w in workers:
                if w.poll() is None:
                    w.kill()
                    w.wait()


def _wait(workers: list[subprocess.Popen], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(w.poll() is None for w in workers) and time.monotonic() < end:
        time.sleep(0.02)


def _interrupted(run: Path, number: int) -> Interrupted:
    """What to raise after a signal."""
    name = signal.Signals(number).name
    return Interrupted(
        f"stopped by {name}, all saved: 'hamcmc resume {run}' continues, on any number of processes", number
    )


def _failure(workers: list[subprocess.Popen], run: Path) -> RunError:
    """What to raise after workers ended with an error."""
    # The survivors of a kill may report an error of their own, so a signal tells more.
    killed = [i for i, w in enumerate(workers) if (w.returncode or 0) < 0]
    if not killed and any(w.returncode == FAILED for w in workers):
        checkpoint = read_checkpoint(run)
        if checkpoint is not None and checkpoint.meta["status"] == "failed":
            return NonFinite(checkpoint.meta["message"])
        return RunError(f"{run} could not go on: a process said why")
    if killed:
        name = signal.Signals(-workers[killed[0]].returncode).name
        who = f"process {killed[0]} of {len(workers)} was killed by {name}"
    else:
        failed = next(i for i, w in enumerate(workers) if w.returncode)
        who = f"process {failed} of {len(workers)} failed with exit code {workers[failed].returncode}"
    return Died(f"{who}; all others were stopped. 'hamcmc resume {run}' continues from the last checkpoint")


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- in a process that was launched ---


def together(work: Callable[[], int | None]) -> int:
    """Join the other processes, do this one's share of the work, and return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the collectives' library prints to stdout
    _take_own_cores()
    _compile.keep()
    join()
    try:
        return work() or 0
    except Interrupted as stop:
        return 128 + stop.signal
    except (NonFinite, Diverged):  # the checkpoint has the message
        return FAILED
    except (RunError, ValueError) as error:
        if jax.process_index() == 0:
            print(f"error: {error}", file=sys.stderr)
        return FAILED
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0][:200]
        print(f"process {jax.process_index()} lost the others: {reason}", file=sys.stderr)
        return LOST
    except Exception as error:
        print(f"error in process {jax.process_index()}: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED


def leave(code: int, others: tuple[int, ...] = ()) -> NoReturn:
    """End this process. A regular exit would wait for processes that are gone.

    Args:
        code: the exit code.
        others: exit codes, beside those of success and of signals, with which all processes end together.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if code in (0, 128 + signal.SIGINT, 128 + signal.SIGTERM, *others) and jax.distributed.is_initialized():
        jax.distributed.shutdown()  # otherwise the others would take this one for dead
    os._exit(code)


def _take_own_cores() -> None:
    """Keep to cores of its own where there are enough for every process: threads of the others would disturb it."""
    processes, mine = int(os.environ["HAMCMC_PROCESSES"]), int(os.environ["HAMCMC_PROCESS"])
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // processes
    if each:
        os.sched_setaffinity(0, cores[mine * each : (mine + 1) * each])
