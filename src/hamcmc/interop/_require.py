"""The message for a package that is not there."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Around the import of an optional package: say which extra of ours has it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'hamcmc[{extra}]'") from error
