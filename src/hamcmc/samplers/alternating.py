"""Gibbs draws of some parameters beside gradient steps on the others."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc import _check
from hamcmc.samplers.base import Grad, PyTree, Sampler
from hamcmc.target.posterior import Posterior

Conditional = Callable[[Array, dict[str, Any]], dict[str, Any]]


class State(NamedTuple):
    """The newest draw of all parameters, the inner sampler's state for those that it moves, and the steps taken."""

    position: dict[str, Any]
    inner: Any
    step: Array


def alternating(
    posterior: Posterior,
    conditional: Conditional,
    sampler: Callable[[Grad], Sampler],
    *,
    drawn: tuple[str, ...],
    every: int = 1,
) -> Sampler:
    r"""Gradient steps on some parameters, and draws of the others from their full conditional, in turn.

    .. math:: θ ← \text{step of the inner sampler on } p(θ \mid φ, x), \qquad φ ∼ p(φ \mid θ, x)
        \text{ after each `every`-th step}

    Both leave the posterior of (θ, φ) as it is (the first one as ε → 0), so alternating them does. The inner sampler
    sees θ alone, with φ held; ε and the factor N/n are as it has them. Made for variances with conjugate priors, which
    gradients sample badly: ``alternating(posterior, conditional, hamcmc.sgld, drawn=("sigma",))``.

    A momentum (SGHMC) carries half a kick of the old φ into its next step. Where φ varies much, draw it seldom.

    Args:
        posterior: of all parameters, a dictionary; without mirrors.
        conditional: ``(key, parameters) -> {name: draw}`` of the parameters in `drawn`, given all. What it needs of the
            data it brings along; it is compiled.
        sampler: makes the inner sampler from a gradient estimator, such as ``hamcmc.sgld`` or
            ``lambda grad: hamcmc.hamcmc(grad, memory=2)``. Not an ensemble. The interleaved chains of HAMCMC share φ,
            which follows the newest of them.
        drawn: the names of φ.
        every: steps between two draws.

    Returns:
        A :class:`Sampler`.
    """
    _check.at_least("every", every, 1)
    if posterior.mirror is not None:
        raise ValueError("alternating goes with no mirror: give those parameters a bijection")

    def split(position: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        missing = set(drawn) - set(position)
        if missing or not set(position) - set(drawn):
            raise ValueError(f"drawn must name some of the parameters {', '.join(position)}, got {', '.join(drawn)}")
        return {k: v for k, v in position.items() if k not in drawn}, {k: position[k] for k in drawn}

    def grad(moving: dict[str, Any], minibatch: tuple[PyTree, dict[str, Any]]) -> dict[str, Any]:
        data, held = minibatch
        return split(posterior.grad(moving | held, data))[0]

    inner = sampler(grad)
    if inner.replicas > 1:
        raise ValueError("alternating goes with one chain at a time, not with an ensemble")

    def init(position: dict[str, Any]) -> State:
        return State(position, inner.init(split(position)[0]), jnp.zeros((), jnp.int32))

    def draw(key: Array, position: dict[str, Any]) -> dict[str, Any]:
        theta = posterior.constrain(position)
        new = conditional(key, theta)
        if set(new) != set(drawn):
            raise ValueError(f"the conditional must return {', '.join(drawn)}, got {', '.join(new)}")
        found = posterior.unconstrain_unchecked(theta | new)
        return position | {k: jnp.asarray(found[k], position[k].dtype).reshape(position[k].shape) for k in drawn}

    def step(key, state: State, minibatch: PyTree, step_size) -> tuple[State, Any]:
        key_step, key_draw = jax.random.split(key)
        held = split(state.position)[1]
        new, info = inner.step(key_step, state.inner, (minibatch, held), step_size)
        position = new.position | held
        due = (state.step + 1) % every == 0
        # A loop of one turn or none: under vmap a condition would compute both of its sides at every step.
        turns = 1 if every == 1 else due.astype(jnp.int32)
        position = lax.fori_loop(0, turns, lambda _, p: draw(key_draw, p), position)
        return State(position, new, state.step + 1), info

    settings = {**inner.settings, "drawn": list(drawn), "every": every}
    return inner._replace(init=init, step=step, settings=settings)
