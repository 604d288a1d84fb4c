"""Optional packages: where one is missing, the error says which extra of hamcmc installs it."""

import contextlib
from collections.abc import Iterator


class MissingPackage(ImportError):
    """An optional package that is not installed. The message has the command that installs it."""


@contextlib.contextmanager
def needs(package: str, extra: str) -> Iterator[None]:
    """Wrap the import of an optional package.

    Args:
        package: its name on PyPI.
        extra: the extra of hamcmc that installs it.

    Raises:
        MissingPackage: the package cannot be imported.
    """
    try:
        yield
    except MissingPackage:  # another one, which a module in between needs
        raise
    except ImportError as error:
        raise MissingPackage(f"this needs {package}: pip install 'hamcmc[{extra}]'") from error
