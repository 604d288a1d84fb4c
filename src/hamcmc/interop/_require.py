"""The message for an optional package that is not installed."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Around the import of an optional package: if it fails, name the extra that installs the package."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"this needs {package}: pip install 'hamcmc[{extra}]'") from error
