"""Argument checks that name the culprit. A traced value, whose number is not known yet, passes unchecked."""

import math
from numbers import Integral
from typing import Any

import numpy as np
from jax.core import Tracer


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
    """A finite number not below zero, as a float."""
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


def at_least(name: str, value: Any, least: int) -> int:
    """A whole number not below `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {value!r}")
    return int(value)


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of the given words."""
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")
    return value
