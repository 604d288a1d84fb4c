"""What all samplers share: the interface, the Euler–Langevin move, its Info.

Conventions, everywhere in this package:

* a gradient estimator ``grad(position, minibatch)`` returns the gradient of the **log**-density, −∇Ũ(θ) in the
  paper's symbols, with the N/n factor already inside (this is also BlackJAX's convention);
* ε multiplies the drift and the noise has variance **2ε** (times the preconditioner).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hamcmc.samplers.noise import standard_normal as standard_normal

PyTree = Any
Grad = Callable[[PyTree, PyTree], PyTree]
Mirror = Callable[[PyTree], PyTree]


class Sampler(NamedTuple):
    """A sampler as two pure functions.

    Attributes:
        init: ``position -> state``; a state has the attribute ``position``, the newest draw.
        step: ``(key, state, minibatch, step_size) -> (state, info)``.
        settings: name and hyper-parameters, for the record.
        gradients_per_step: minibatch gradients that one step evaluates, for cost accounts.
        replicas: how many coupled copies an ensemble has. Above 1, positions have a leading axis of that length, in
            ``init``'s argument and in the state; each copy is a draw.
        warmup: steps in which it learns something that it keeps; they belong to no average.
        passes_per_step: gradients on all data that one step evaluates besides, on average.
        pairs: curvature pairs that may make H in a step.
    """

    init: Callable[[PyTree], Any]
    step: Callable[[Array, Any, PyTree, Any], tuple[Any, Any]]
    settings: Mapping[str, Any]
    gradients_per_step: int = 1
    replicas: int = 1
    warmup: int = 0
    passes_per_step: float = 0.0
    pairs: int = 0


class Space(NamedTuple):
    """Where a position lives: how to sum over all of it, and to draw noise for it.

    The default is a position in one piece. Where each device holds a shard, ``total`` adds up over the devices, and
    ``normal`` draws the noise of the shard at hand; a step calls ``total`` at most once. Sums that are only for an
    :class:`Info` go through ``sizes``, and may be left to be added up later.

    Attributes:
        total: ``array -> array``, the sum over all shards.
        normal: ``(key, like) -> noise``, independent N(0, 1) numbers shaped like a position.
        sizes: ``array -> array``, as `total`.
    """

    total: Callable[[Array], Array] = lambda x: x
    normal: Callable[[Array, PyTree], PyTree] = standard_normal
    sizes: Callable[[Array], Array] = lambda x: x


WHOLE = Space()


class Info(NamedTuple):
    """Sizes of one step: ‖∇ log-density‖, ‖drift‖ and ‖noise‖ (the last two as they moved the position)."""

    grad_norm: Array
    drift_norm: Array
    noise_norm: Array


def norm(tree: PyTree) -> Array:
    """Euclidean norm over all leaves."""
    return jnp.sqrt(squared(tree))


def squared(tree: PyTree) -> Array:
    """Sum of squares over all leaves."""
    return sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree))  # type: ignore[return-value]


def langevin(position: PyTree, drift: PyTree, noise: PyTree, step_size: Any, mirror: Mirror | None) -> PyTree:
    """``θ + ε·drift + √(2ε)·noise``, then mirrored into the support where a mirror is given."""
    root = jnp.sqrt(2 * step_size)
    moved = jax.tree.map(lambda x, d, z: (x + step_size * d + root * z).astype(x.dtype), position, drift, noise)
    return mirror(moved) if mirror is not None else moved


def step_info(grad: PyTree, drift: PyTree, noise: PyTree, step_size: Any, space: Space = WHOLE) -> Info:
    """The :class:`Info` of a :func:`langevin` move."""
    g, d, z = jnp.sqrt(space.sizes(jnp.stack([squared(grad), squared(drift), squared(noise)])))
    return Info(g, step_size * d, jnp.sqrt(2 * step_size) * z)
