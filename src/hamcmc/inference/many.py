"""Many short runs side by side, in one compiled loop that stores no draws.

Tuning, evidence, calibration, separation, denoising and the paper's studies step their samplers here. They differ in
where keys, minibatches and step sizes come from and in what they measure, so the caller says that as functions of the
iteration. Long runs whose draws are kept are the business of ``hamcmc.inference.compiled``.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import Array, lax

from hamcmc._types import PyTree, Scalar
from hamcmc.samplers.base import Sampler

Accumulate = Callable[[Any, Array, "Turn", Any, Any], Any]


class Turn(NamedTuple):
    """What an iteration gives to the steps that it takes.

    Attributes:
        key: the key of the step, or an array of keys for many runs.
        minibatch: what the gradient takes besides a position.
        step_size: ε.
    """

    key: Array
    minibatch: PyTree
    step_size: Scalar


class Axes(NamedTuple):
    """Where one axis of runs stands in each argument of a step, as in ``jax.vmap``: 0, None for shared, or a prefix.

    Attributes:
        setting: in the settings from which samplers are made.
        key: in the keys.
        minibatch: in the minibatch.
        step_size: in the step size.
        state: in the states, before and after the step.
    """

    setting: Any = None
    key: Any = 0
    minibatch: Any = None
    step_size: int | None = None
    state: Any = 0


def advance(
    sampler: Sampler | Callable[[Any], Sampler],
    states: Any,
    turn: Callable[[Array], Turn],
    begin: Any,
    end: Any,
    *,
    settings: PyTree = None,
    axes: Sequence[Axes] = (),
    accumulate: Accumulate | None = None,
    total: Any = None,
) -> tuple[Any, Any]:
    """Take the steps of iterations begin … end−1.

    It may be traced with `begin` and `end` as arguments, so that one compiled program serves runs of any length.

    Args:
        sampler: a sampler, or a function that makes one from a setting, whose numbers may be traced.
        states: the states of all runs.
        turn: the :class:`Turn` of an iteration.
        begin: the first iteration.
        end: the iteration after the last.
        settings: what `sampler` is called with if it is a function.
        axes: one :class:`Axes` for each axis of runs, the outermost first; none for a single run.
        accumulate: ``accumulate(total, t, turn, before, after)`` returns the new total, given the states before and
            after the step of iteration t.
        total: what `accumulate` starts from.

    Returns:
        The new states and the new total.
    """

    def step(setting, key, state, minibatch, step_size):
        chosen = sampler(setting) if callable(sampler) else sampler
        return chosen.step(key, state, minibatch, step_size)[0]

    for a in reversed(axes):
        step = jax.vmap(step, (a.setting, a.key, a.state, a.minibatch, a.step_size), a.state)

    def iteration(t, carry):
        before, total = carry
        now = turn(t)
        after = step(settings, now.key, before, now.minibatch, now.step_size)
        return after, total if accumulate is None else accumulate(total, t, now, before, after)

    return lax.fori_loop(begin, end, iteration, (states, total))
