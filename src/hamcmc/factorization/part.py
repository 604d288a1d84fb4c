"""The parts of the matrix as a sampler sees them: blocks on devices and their noise, the order of parts, the target."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc.factorization import native
from hamcmc.factorization.exchange import AXIS
from hamcmc.factorization.model import SIDES, Hyper, Layout
from hamcmc.factorization.native import Blocks
from hamcmc.factorization.partition import Partition
from hamcmc.target.protocol import Target, unbiased

ORDERS = ("epochs", "random")
Factors = dict[str, Array]  # W (…, q, rows, width) and H (…, q, columns, width)


class Slots:
    """The blocks that each of P devices holds.

    A device has q = B/P slots. The slots for W hold its row blocks for good. The slots for H hold, at shift p, the
    column blocks that part p pairs with those row blocks.
    """

    def __init__(self, p: Partition, columns: Layout, devices: int):
        self.B, self.P, self.q = p.blocks, devices, p.blocks // devices
        self.sides = {"W": p.rows, "H": p.columns}
        self.free = {s: jnp.asarray(columns.free(s)) for s in SIDES}

    def blocks_at(self, side: str, shift: Any) -> Array:
        """The numbers of the blocks in the device's slots."""
        first = lax.axis_index(AXIS) * self.q if self.P > 1 else 0
        slots = first + jnp.arange(self.q)
        return (slots + shift) % self.B if side == "H" else slots

    def mask(self, side: str, shift: Any) -> Array:
        """1 where a number is a parameter, 0 where it is padding or a constant."""
        rows = self.sides[side]
        there = jnp.arange(rows.counts.shape[1]) < jnp.asarray(rows.sizes)[self.blocks_at(side, shift)][:, None]
        return there[..., None] * self.free[side]

    def normal(self, key: Array, like: Factors, *, shift: Any, threads: int) -> Factors:
        """N(0, 1) noise for all parameters. It depends on the number of a row, not on the device that holds it."""

        def side(s: str, key: Array, x: Array) -> Array:
            """The noise of one side, in each replica."""
            places = x.shape[-2]
            numbers = (self.blocks_at(s, shift)[:, None] * places + jnp.arange(places)).astype(jnp.uint32)

            def draw(key: Array) -> Array:
                """The noise of one replica."""
                return native.normal(jax.random.key_data(key), numbers, x.shape[-1], threads=threads)

            z = draw(key) if x.ndim == 3 else jax.vmap(draw)(jax.random.split(key, x.shape[0]))
            return (z * self.mask(s, shift)).astype(x.dtype)

        return {s: side(s, key, like[s]) for s, key in zip(SIDES, jax.random.split(key))}


class Parts(NamedTuple):
    """Which part a step works on.

    Attributes:
        order: ``"epochs"`` or ``"random"``.
        blocks: B.
        counts: n of each part: gradients are weighted by N/n, the inverse of the part's probability.
        bounds: cumulated shares |Ω|/N of the ratings.
    """

    order: str
    blocks: int
    counts: Array
    bounds: Array

    @classmethod
    def of(cls, p: Partition, order: str, size: int) -> "Parts":
        """The parts of a partition."""
        B = p.blocks
        counts = jnp.asarray(p.parts if order == "random" else np.full(B, size / B), jnp.float32)
        return cls(order, B, counts, jnp.asarray(np.cumsum(p.parts) / max(size, 1), jnp.float32))

    def at(self, key: Array, t: Array) -> Array:
        """The part of step t."""
        if self.order == "random":
            place = jnp.searchsorted(self.bounds, jax.random.uniform(jax.random.fold_in(key, t)), side="right")
            return jnp.minimum(place, self.blocks - 1).astype(jnp.int32)
        epoch = jax.random.permutation(jax.random.fold_in(key, t // self.blocks), self.blocks)
        return epoch[t % self.blocks].astype(jnp.int32)


class Part(NamedTuple):
    """What a step sees of the ratings and the prior.

    Attributes:
        likelihood: ``(W, H) -> (Σ e h, Σ e w)``, sums over the part's ratings.
        root: √d of the base metric.
        hyper: the hyper-parameters.
        mask: 1 where a number is a parameter.
        count: n, where n/N is the probability of the part. In the paper n = |Ω|.
    """

    likelihood: Callable[[Array, Array], tuple[Array, Array]]
    root: Factors
    hyper: Hyper
    mask: Factors
    count: Any


class PartTarget(Target):
    """The posterior of W and H through one part, in the coordinates θ/√d of the base metric.

    Args:
        size: N, the number of training ratings.
        part: what the step sees. Without it the target has no gradients yet, but a sampler can be built on it and
            started: only steps take gradients.
    """

    def __init__(self, size: int, part: Part | None = None):
        self.size, self.mirror, self._part = size, None, part

    @property
    def part(self) -> Part:
        """What the step sees."""
        if self._part is None:
            raise ValueError("this target has no part yet: it can start a sampler, but takes no step")
        return self._part

    def grad(self, position: Factors, minibatch: Any = None) -> Factors:
        """An unbiased estimate of the gradient of the log-density."""
        return self.combine(position, self.mean_likelihood_grad(position, minibatch))

    def mean_likelihood_grad(self, position: Factors, minibatch: Any = None) -> Factors:
        """The gradient of the log-likelihood, a mean over the n ratings that a part is expected to have."""
        p = self.part
        gradients = p.likelihood(*(position[s] * p.root[s] for s in SIDES))
        weight = p.hyper.noise / jnp.maximum(p.count, 1)
        return {s: weight * g * p.mask[s] * p.root[s] for s, g in zip(SIDES, gradients)}

    def combine(self, position: Factors, mean_grad: Factors) -> Factors:
        """The gradient of the log-density, from that of the mean log-likelihood."""
        p, h = self.part, self.part.hyper
        prior = {"W": (h.W_precision, h.W_mean), "H": (h.H_precision, h.H_mean)}

        def side(s: str) -> Array:
            """The gradient on one side."""
            precision, centre = prior[s]
            pull = precision * (centre - position[s] * p.root[s]) * p.mask[s] * p.root[s]
            return unbiased(pull, mean_grad[s], self.size, likelihood_first=True).astype(position[s].dtype)

        return {s: side(s) for s in SIDES}

    def constrain(self, position: Factors) -> Factors:
        """W and H in the model's own coordinates."""
        return {s: position[s] * self.part.root[s] for s in SIDES}


def gradient_of_part(
    train: Blocks, W: Array, H: Array, part: Array, *, resting: bool, threads: int
) -> tuple[Array, Array]:
    """Σ e h and Σ e w over a part. On one device H stays in place (`resting`) and is turned for the kernel only."""
    here = jnp.roll(H, -part, 0) if resting else H
    of_W, of_H, _ = native.gradient(W, here, train, part, threads=threads)
    return of_W, jnp.roll(of_H, part, 0) if resting else of_H
