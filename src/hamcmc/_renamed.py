"""Names that 0.1.0 had: they still work, and say what they are called now."""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old names of keyword arguments, given as ``old="new"``, with a :class:`DeprecationWarning`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def accept(*args, **options):
            for old, new in names.items():
                if old in options:
                    if new in options:
                        raise TypeError(f"{function.__name__}() got {new} twice: {old} is its old name")
                    warnings.warn(f"{function.__name__}({old}=…) is now {new}=…", DeprecationWarning, stacklevel=2)
                    options[new] = options.pop(old)
            return function(*args, **options)

        return accept  # type: ignore[return-value]

    return decorate
