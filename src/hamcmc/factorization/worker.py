"""One of several processes: ``python -m hamcmc.factorization.worker RUN``, as :mod:`.launch` starts it."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import jax

from hamcmc import _compile
from hamcmc.factorization import launch
from hamcmc.store.errors import Interrupted, NonFinite, RunError

LOST = 3  # exit code of a process that lost another one


def main(path: str, *options: str) -> int:
    """Join the others, do this process's share of the run, and return the exit code."""
    from hamcmc.factorization.run import run_here

    seconds = next((float(o.partition("=")[2]) for o in options if o.startswith("--checkpoint-seconds=")), 30.0)
    quiet = False if "--quiet" in options else None
    _take_own_cores()
    return together(partial(run_here, path, progress=quiet, checkpoint_seconds=seconds))


def together(work: Callable[[], None]) -> int:
    """Join the other processes, do this one's share of the work, and return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the collectives' library prints to stdout
    _compile.keep()
    launch.join()
    try:
        work()
    except Interrupted as stop:
        return 128 + stop.signal
    except NonFinite:  # the checkpoint has the message
        return launch.FAILED
    except (RunError, ValueError) as error:
        if jax.process_index() == 0:
            print(f"error: {error}", file=sys.stderr)
        return launch.FAILED
    except Exception as error:
        reason = str(error).splitlines()[0][:200]
        print(f"process {jax.process_index()} lost the others: {reason}", file=sys.stderr)
        return LOST
    return 0


def leave(code: int) -> NoReturn:
    """End this process. A regular exit would wait for processes that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code in (0, 130):
        jax.distributed.shutdown()
    os._exit(code)


def _take_own_cores() -> None:
    """Keep to cores of its own where there are enough for every process: threads of the others would disturb it."""
    processes, mine = int(os.environ["HAMCMC_PROCESSES"]), int(os.environ["HAMCMC_PROCESS"])
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(cores) // processes
    if each:
        os.sched_setaffinity(0, cores[mine * each : (mine + 1) * each])


if __name__ == "__main__":
    leave(main(*sys.argv[1:]))
