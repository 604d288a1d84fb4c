"""The contract between a density and a sampler, and the one place where likelihood and prior are weighed.

The paper writes U(θ) = −[log p(θ) + Σ_n log p(x_n|θ)], and Ũ for its estimate on a minibatch Ω of n of the N data. This
package works with the **log-density** −Ũ and its gradient, as BlackJAX does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jax import Array

from hamcmc._types import PyTree


def unbiased(prior: PyTree, likelihood: PyTree, factor: Any, *, likelihood_first: bool = False) -> PyTree:
    """``prior + factor · likelihood``, the unbiased estimate of a sum over all data, for scalars and for pytrees.

    Every target makes its log-density and its gradient here, and nothing else in the package scales a likelihood.

    Args:
        prior: the log-prior or its gradient.
        likelihood: the same for a minibatch.
        factor: N if `likelihood` is the minibatch's mean, N/n if it is the minibatch's sum.
        likelihood_first: the order of the two in the sum. The compiler may fuse the first product with the addition,
            so the order can decide the last bit of a draw.
    """

    def add(p: Any, g: Any) -> Any:
        """The sum for one leaf."""
        scaled = factor * g
        return scaled + p if likelihood_first else p + scaled

    return jax.tree.map(add, prior, likelihood)


class Chart(NamedTuple):
    """Coordinates that a map leads from to where a density is evaluated.

    The map may cost as much as a gradient. A sampler that keeps the image of each position computes it once, and not
    again for the gradient there and for the draw.

    Attributes:
        image: ``position -> image``.
        grad: ``(position, image, minibatch) -> gradient`` with respect to the position.
        constrain: ``image -> parameters``.
    """

    image: Callable[[PyTree], PyTree]
    grad: Callable[[PyTree, PyTree, PyTree], PyTree]
    constrain: Callable[[PyTree], PyTree]


@runtime_checkable
class Target(Protocol):
    """What a sampler needs to know of a density. All positions are unconstrained.

    ``grad(position, minibatch)`` equals ``combine(position, mean_likelihood_grad(position, minibatch))``. Averaged over
    all minibatches it is the gradient of the log-density on all data.

    Attributes:
        size: N, the number of data; 0 for a target without data, which has no likelihood.
        mirror: the map that folds a position back into its support after a step, or None.
    """

    size: int
    mirror: Callable[[PyTree], PyTree] | None

    def grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """−∇Ũ(θ), the unbiased estimate of the gradient of the log-density."""
        ...

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """ḡ_Ω(θ), the **mean** over the minibatch of the gradients of log p(x_i|θ)."""
        ...

    def combine(self, position: PyTree, mean_grad: PyTree) -> PyTree:
        """∇ log p(θ) + N ḡ, by :func:`unbiased`."""
        ...

    def constrain(self, position: PyTree) -> PyTree:
        """The parameters at an unconstrained position."""
        ...


class DensityTarget(Target, Protocol):
    """A target whose log-density can be evaluated, as a Metropolis test needs it."""

    def log_density(self, position: PyTree, minibatch: PyTree) -> Array:
        """−Ũ(θ), up to a constant."""
        ...


class PerDatumTarget(Target, Protocol):
    """A target with one gradient for each datum, from which a sampler can estimate the gradient's noise."""

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """∇ log p(x_i|θ) for each datum of the minibatch, along a new leading axis."""
        ...
