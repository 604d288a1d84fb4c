"""One of several processes: ``python -m hamcmc.factorization.worker RUN``, as :func:`.run.proceed` starts it."""

import sys
from functools import partial

from hamcmc.inference import launch


def main(path: str, *options: str) -> int:
    """Join the others, do this process's share of the run, and return the exit code."""
    from hamcmc.factorization.run import run_here

    seconds = next((float(o.partition("=")[2]) for o in options if o.startswith("--checkpoint-seconds=")), 30.0)
    quiet = False if "--quiet" in options else None
    return launch.together(partial(run_here, path, progress=quiet, checkpoint_seconds=seconds))


if __name__ == "__main__":
    launch.leave(main(*sys.argv[1:]))
