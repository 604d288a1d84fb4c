"""How much work a function is, by XLA's count of its operations."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

TURN = 5e3  # operations for which there would be time in the shortest turn of a loop


class Sizes(NamedTuple):
    """The sizes of all that a list of operations computes.

    Attributes:
        once: with each loop taken once.
        often: with each loop taken as often as it turns. Those that end on a condition are taken once.
        turns: of all loops.
    """

    once: float = 0.0
    often: float = 0.0
    turns: float = 0.0


def operations(function: Callable, *shapes: Any, times: float = 1.0, together: int = 1) -> float:
    """Floating-point operations of so many calls of a function, roughly, or those for which there would be time.

    XLA counts the operations inside a loop once, whatever the number of its turns. A recursion over a time series is
    nearly all in such a loop. Calls that are made together share its turns.
    """
    traced = jax.jit(function).trace(*shapes)
    counted = float((traced.lower().cost_analysis() or {}).get("flops", 0.0))
    found = sizes(traced.jaxpr.jaxpr)
    return times * (counted * found.often / max(found.once, 1.0) + TURN * found.turns / together)


def sizes(jaxpr: Any) -> Sizes:
    """Of a list of operations."""
    total = Sizes()
    for operation in jaxpr.eqns:
        turns = operation.params["length"] if operation.primitive.name == "scan" else 1
        inner = [sizes(within) for within in _within(operation.params.values())] or [Sizes(*(_size(operation),) * 2)]
        once, often, within = (sum(parts) for parts in zip(*inner))
        own = turns if turns > 1 else 0
        total = Sizes(total.once + once, total.often + turns * often, total.turns + own + turns * within)
    return total


def _within(values: Any) -> Iterator[Any]:
    """The lists of operations among the parameters of one."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _within(value)
        elif hasattr(inner := getattr(value, "jaxpr", value), "eqns"):
            yield inner


def _size(operation: Any) -> float:
    """Numbers that an operation computes, each as often as a product of matrices adds it up."""
    terms = 1
    if operation.primitive.name == "dot_general":
        (over, _), _ = operation.params["dimension_numbers"]
        terms = math.prod(operation.invars[0].aval.shape[axis] for axis in over)
    return float(terms * sum(math.prod(getattr(v.aval, "shape", ())) for v in operation.outvars))
