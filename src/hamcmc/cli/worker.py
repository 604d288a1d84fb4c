"""One of several processes that run a command together: ``python -m hamcmc.cli.worker sample …``.

The process that started them prints what there is to see at the end.
"""

import sys
from functools import partial

from hamcmc.inference import launch


def main(arguments: list[str]) -> int:
    """Join the others, do this process's share of the command, and return the exit code."""
    from hamcmc.cli.app import app

    return launch.together(partial(app, arguments, standalone_mode=False))


if __name__ == "__main__":
    launch.leave(main(sys.argv[1:]))
