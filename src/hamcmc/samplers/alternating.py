"""Gibbs draws of some parameters, in turn with gradient steps on the others."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc import _check
from hamcmc._types import PyTree, Record
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.registry import maker_for
from hamcmc.target.posterior import Posterior
from hamcmc.target.protocol import Target

Position = Record
Conditional = Callable[[Array, Record], Record]


class AlternatingState(NamedTuple):
    """The newest draw of all parameters, the inner sampler's state for those that it moves, and the steps taken."""

    position: Position
    inner: Any
    step: Array


class ConditionalTarget(Target):
    """p(θ | φ, x): a posterior of both, as a function of θ alone.

    Attributes:
        held: φ, at its unconstrained position.
    """

    mirror = None

    def __init__(self, posterior: Posterior, held: Position):
        self.posterior, self.held, self.size = posterior, held, posterior.size

    def log_density(self, position: Position, minibatch: PyTree) -> Array:
        """−Ũ(θ), up to a constant."""
        return self.posterior.log_density(position | self.held, minibatch)

    def grad(self, position: Position, minibatch: PyTree) -> Position:
        """−∇Ũ(θ)."""
        return self._moving(self.posterior.grad(position | self.held, minibatch))

    def mean_likelihood_grad(self, position: Position, minibatch: PyTree) -> Position:
        """ḡ_Ω(θ)."""
        return self._moving(self.posterior.mean_likelihood_grad(position | self.held, minibatch))

    def per_datum_grads(self, position: Position, minibatch: PyTree) -> Position:
        """∇ log p(x_i|θ, φ) for each datum of the minibatch, along a new leading axis."""
        return self._moving(self.posterior.per_datum_grads(position | self.held, minibatch))

    def combine(self, position: Position, mean_grad: Position) -> Position:
        """∇ log p(θ) + N ḡ."""
        nothing = jax.tree.map(jnp.zeros_like, self.held)
        return self._moving(self.posterior.combine(position | self.held, mean_grad | nothing))

    def constrain(self, position: Position) -> Position:
        """The parameters θ."""
        return self._moving(self.posterior.constrain(position | self.held))

    def _moving(self, whole: Position) -> Position:
        return {k: v for k, v in whole.items() if k not in self.held}


def alternating(
    posterior: Posterior,
    conditional: Conditional,
    sampler: str | Callable[[ConditionalTarget], Sampler],
    *,
    drawn: tuple[str, ...],
    every: int = 1,
    **options: Any,
) -> Sampler:
    r"""Gradient steps on some parameters, and draws of the others from their full conditional, in turn.

    .. math:: θ ← \text{step of the inner sampler on } p(θ \mid φ, x), \qquad φ ∼ p(φ \mid θ, x)
        \text{ after each `every`-th step}

    Both leave the posterior of (θ, φ) as it is (the first one as ε → 0), and so does their alternation. The inner
    sampler sees θ alone, with φ held; ε and the factor N/n are as for that sampler. This is made for variances with
    conjugate priors, which gradients sample badly: ``alternating(posterior, conditional, "sgld", drawn=("sigma",))``.

    A momentum (SGHMC) carries half a kick of the old φ into its next step. If φ varies much, draw it seldom.

    Args:
        posterior: the posterior of all parameters, which are a dictionary; without mirrors.
        conditional: ``(key, parameters) -> {name: draw}`` for the parameters in `drawn`, given all. It holds what it
            needs of the data, and it is compiled.
        sampler: a name with `options` for it, or a function that makes the inner sampler for p(θ | φ, x), such as
            ``lambda target: hamcmc.hamcmc(target.grad, memory=2)``. A sampler's own function, such as ``hamcmc.sgld``,
            counts as its name. Ensembles cannot be used. The interleaved chains of HAMCMC share φ, which follows the
            newest of them.
        drawn: the names of φ.
        every: steps between two draws.

    Returns:
        A :class:`Sampler`.
    """
    _check.at_least("every", every, 1)
    if posterior.mirror is not None:
        raise ValueError("alternating cannot use a mirror: give the parameters a bijection instead")
    make = maker_for("alternating", sampler, options)

    def inner(held: Position) -> Sampler:
        """The inner sampler while φ is held."""
        with jax.ensure_compile_time_eval():  # a sampler may compute with its own options, which are constants
            return make(ConditionalTarget(posterior, held))

    general = inner(dict.fromkeys(drawn))
    if general.replicas > 1 or general.needs_all_data:
        raise ValueError("alternating works with one chain at a time, not with an ensemble")

    def split(position: Position) -> tuple[Position, Position]:
        missing = set(drawn) - set(position)
        if missing or not set(position) - set(drawn):
            raise ValueError(f"drawn must name some of the parameters {', '.join(position)}, got {', '.join(drawn)}")
        return {k: v for k, v in position.items() if k not in drawn}, {k: position[k] for k in drawn}

    def init(position: Position) -> AlternatingState:
        moving, held = split(position)
        return AlternatingState(position, inner(held).init(moving), jnp.zeros((), jnp.int32))

    def draw(key: Array, position: Position) -> Position:
        """The position with new φ."""
        theta = posterior.constrain(position)
        new = conditional(key, theta)
        if set(new) != set(drawn):
            raise ValueError(f"the conditional must return {', '.join(drawn)}, got {', '.join(new)}")
        found = posterior.unconstrain_unchecked(theta | new)
        return position | {k: jnp.asarray(found[k], position[k].dtype).reshape(position[k].shape) for k in drawn}

    def step(key, state: AlternatingState, minibatch: PyTree, step_size) -> tuple[AlternatingState, Any]:
        key_step, key_draw = jax.random.split(key)
        held = split(state.position)[1]
        new, info = inner(held).step(key_step, state.inner, minibatch, step_size)
        position = new.position | held
        due = (state.step + 1) % every == 0
        # A loop of one turn or none: under vmap a condition would compute both of its sides at every step.
        turns = 1 if every == 1 else due.astype(jnp.int32)
        position = lax.fori_loop(0, turns, lambda _, p: draw(key_draw, p), position)
        return AlternatingState(position, new, state.step + 1), info

    settings = {**general.settings, "drawn": list(drawn), "every": every}
    return general._replace(init=init, step=step, settings=settings)
