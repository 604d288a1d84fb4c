"""What all samplers share: the interface, the Euler–Langevin move and its Info.

Two conventions hold everywhere in this package:

* a gradient estimator ``grad(position, minibatch)`` returns the gradient of the **log**-density, −∇Ũ(θ) in the
  paper's symbols, with the N/n factor already inside (this is also BlackJAX's convention);
* ε multiplies the drift and the noise has variance **2ε** (times the preconditioner).
"""

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from hamcmc._types import Facts, PyTree, Record, Scalar
from hamcmc.samplers.noise import standard_normal as standard_normal
from hamcmc.target.protocol import Target

Grad = Callable[[PyTree, PyTree], PyTree]
Mirror = Callable[[PyTree], PyTree]


class Sampler(NamedTuple):
    """A sampler as two pure functions.

    Attributes:
        init: ``position -> state``; a state has the attribute ``position``, the newest draw. It may have ``image``, the
            images of its positions in the target's :class:`~hamcmc.target.protocol.Chart`.
        step: ``(key, state, minibatch, step_size) -> (state, info)``.
        settings: name and hyper-parameters, for the record alone: what a sampler can do stands in the fields below.
        gradients_per_step: minibatch gradients that one step evaluates, for cost accounts.
        passes_per_step: gradients on all data that one step evaluates in addition, on average.
        replicas: how many coupled copies an ensemble has. Above 1, positions have a leading axis of that length, in
            ``init``'s argument and in the state; each copy is a draw.
        coupled: whether the replicas of an ensemble share something after warm-up, as minibatches or curvature.
        interleaved: how many chains take turns in the sequence of draws (HAMCMC's M).
        pairs: how many curvature pairs may make H in a step; 0 for a sampler without them.
        warmup: steps in which the sampler learns something that it keeps. No average may use these draws.
        needs_all_data: whether a step is right only on all data, as a Metropolis test is.
        adapts_step: whether the warm-up finds the step size, so that none has to be given or searched for.
    """

    init: Callable[[PyTree], Any]
    step: Callable[[Array, Any, PyTree, Any], tuple[Any, Any]]
    settings: Facts
    gradients_per_step: int = 1
    passes_per_step: float = 0.0
    replicas: int = 1
    coupled: bool = True
    interleaved: int = 1
    pairs: int = 0
    warmup: int = 0
    needs_all_data: bool = False
    adapts_step: bool = False

    def __repr__(self) -> str:
        name, options = self._described()
        return f"<Sampler {name}({', '.join(f'{k}={v!r}' for k, v in options.items())})>"

    def _repr_html_(self) -> str:
        name, options = self._described()
        # The first three fields are the functions and the settings, which are shown as the options.
        facts = {k: getattr(self, k) for k in self._fields[3:] if getattr(self, k) != self._field_defaults[k]}
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in (options | facts).items())
        return f"<table><caption>Sampler {escape(name)}</caption>{rows}</table>"

    def _described(self) -> tuple[str, Record]:
        """Name and hyper-parameters."""
        options = dict(self.settings)
        return str(options.pop("sampler", "without a name")), options


def _same(x: Array) -> Array:
    return x


class Space(NamedTuple):
    """How to sum over a whole position, and how to draw noise for it.

    By default a position is in one piece. If each device holds a shard of it, ``total`` adds up over the devices, and
    ``normal`` draws the noise of the device's own shard. A step calls ``total`` at most once. Sums that serve only an
    :class:`Info` go through ``sizes``, which may leave the addition over devices for later.

    Attributes:
        total: ``array -> array``, the sum over all shards.
        normal: ``(key, like) -> noise``, independent N(0, 1) numbers shaped like a position.
        sizes: ``array -> array``, the sum over all shards or the shard's own part of it.
    """

    total: Callable[[Array], Array] = _same
    normal: Callable[[Array, PyTree], PyTree] = standard_normal
    sizes: Callable[[Array], Array] = _same


WHOLE = Space()


class Info(NamedTuple):
    """Sizes of one step: ‖∇ log-density‖, ‖drift‖ and ‖noise‖ (the last two as they moved the position)."""

    grad_norm: Array
    drift_norm: Array
    noise_norm: Array


def require_data(target: Target, reason: str) -> None:
    """Raise for a target without a likelihood, which has ``size == 0``."""
    if not isinstance(target.size, Tracer) and target.size == 0:
        raise ValueError(f"{reason}; this posterior has no log_likelihood")


def norm(tree: PyTree) -> Array:
    """Euclidean norm over all leaves."""
    return jnp.sqrt(squared(tree))


def squared(tree: PyTree) -> Array:
    """Sum of squares over all leaves."""
    return sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree))  # type: ignore[return-value]


def langevin(position: PyTree, drift: PyTree, noise: PyTree, step_size: Scalar, mirror: Mirror | None) -> PyTree:
    """``θ + ε·drift + √(2ε)·noise``, then folded into the support if a mirror is given."""
    root = jnp.sqrt(2 * step_size)
    moved = jax.tree.map(lambda x, d, z: (x + step_size * d + root * z).astype(x.dtype), position, drift, noise)
    return mirror(moved) if mirror is not None else moved


def step_info(grad: PyTree, drift: PyTree, noise: PyTree, step_size: Scalar, space: Space = WHOLE) -> Info:
    """The :class:`Info` of a :func:`langevin` move."""
    g, d, z = jnp.sqrt(space.sizes(jnp.stack([squared(grad), squared(drift), squared(noise)])))
    return Info(g, step_size * d, jnp.sqrt(2 * step_size) * z)
