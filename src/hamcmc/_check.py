"""Argument checks that name the culprit. A traced value has no number yet, so it passes unchecked."""

import difflib
import math
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from hamcmc._types import PyTree


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool | np.complexfloating)


def positive(name: str, value: Any) -> float:
    """A finite number above zero, as a float."""
    if isinstance(value, Tracer):
        return value  # type: ignore[return-value]
    if not (_is_number(value) and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return float(value)


def non_negative(name: str, value: Any) -> float:
    """A finite number that is not below zero, as a float."""
    if isinstance(value, Tracer):
        return value  # type: ignore[return-value]
    if not (_is_number(value) and math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number, 0 or more, got {value!r}")
    return float(value)


def fraction(name: str, value: Any) -> float:
    """A number in [0, 1), as a float."""
    if isinstance(value, Tracer):
        return value  # type: ignore[return-value]
    if not (_is_number(value) and 0 <= value < 1):
        raise ValueError(f"{name} must be a number in [0, 1), got {value!r}")
    return float(value)


def open_fraction(name: str, value: Any) -> float:
    """A number in (0, 1), as a float."""
    return fraction(name, positive(name, value))


def at_least(name: str, value: Any, least: int) -> int:
    """A whole number that is not below `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}")
    return int(value)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of the given words."""
    if value not in choices:
        wanted = " or ".join(map(repr, choices))
        raise ValueError(f"{name} must be {wanted}, got {value!r}{nearest(value, choices)}")
    return value


def nearest(word: Any, choices: Iterable[str]) -> str:
    """The end of a message about an unknown word: which of the known ones may have been meant."""
    found = difflib.get_close_matches(str(word), list(choices), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def entries(name: str, tree: PyTree, *, zero: bool = False) -> None:
    """A pytree of arrays with finite entries above zero, or not below zero if `zero` is allowed."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, Tracer):
            continue
        leaf = np.asarray(leaf)
        if not (np.isfinite(leaf) & ((leaf >= 0) if zero else (leaf > 0))).all():
            raise ValueError(f"{name} must have finite entries{', 0 or more' if zero else ' above 0'}")


def gradient(grad: Any) -> Callable:
    """A function, and not the posterior itself."""
    if not callable(grad):
        raise ValueError(
            f"grad must be a function of (position, minibatch), such as posterior.grad, got {type(grad).__name__}"
        )
    return grad
