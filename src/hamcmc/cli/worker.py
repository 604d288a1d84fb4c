"""One of several processes that run a command together: ``python -m hamcmc.cli.worker sample …``.

The process that started them prints what there is to see at the end.
"""

import sys

from hamcmc.inference import launch


def main(arguments: list[str]) -> int:
    """Join the others, do this process's share of the command, and return the exit code."""
    from hamcmc.cli.app import VERDICTS, app

    def work() -> int:
        """The command. A verdict on the draws is no failure: it is stored, and who started the processes reads it."""
        code = app(arguments, standalone_mode=False) or 0
        return 0 if code in VERDICTS else code

    return launch.together(work)


if __name__ == "__main__":
    launch.leave(main(sys.argv[1:]))
