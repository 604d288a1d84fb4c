"""Types that many modules name."""

from collections.abc import Mapping
from typing import Any

from jax import Array

PyTree = Any  # nested containers of arrays, as ``jax.tree`` takes them
Scalar = float | Array  # a number, or one that JAX traces
Record = dict[str, Any]  # a JSON object that is being made: settings, counters, facts
Facts = Mapping[str, Any]  # a JSON object, or keyword arguments, that is only read
