"""Everything that ends a run: one family of exceptions for sampling, factorization, separation and evidence."""

from typing import Any


class RunError(RuntimeError):
    """A run that cannot start, continue or be read. The message is written for people."""


class DamagedRun(RunError):
    """A file of a run that is missing, truncated, edited or from another run."""


class NonFinite(RunError):
    """A run whose state became NaN or infinite.

    Attributes:
        result: the draws before that, where the run keeps draws; else None.
    """

    def __init__(self, message: str, result: Any = None):
        super().__init__(message)
        self.result = result


class Diverged(RunError):
    """A run whose draws left the posterior although every number stayed finite.

    Attributes:
        result: the draws before that, where the run keeps draws; else None.
    """

    def __init__(self, message: str, result: Any = None):
        super().__init__(message)
        self.result = result


class Unchecked(RunError):
    """A complete run whose draws could not be checked, because the posterior or the check itself failed there.

    Attributes:
        result: the draws.
    """

    def __init__(self, message: str, result: Any = None):
        super().__init__(message)
        self.result = result


class Interrupted(RunError, KeyboardInterrupt):
    """A run that SIGINT or SIGTERM stopped after it had saved its state.

    It is a ``KeyboardInterrupt`` too, so that code which handles Ctrl-C handles it.

    Attributes:
        signal: the number of the signal; a shell expects the exit code 128 + signal.
        result: the draws so far, where they are at hand; else None.
    """

    def __init__(self, message: str, signal: int, result: Any = None):
        super().__init__(message)
        self.signal, self.result = signal, result
