"""A posterior in the coordinates z of an affine map, θ = c + S z, in which its scales are alike."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from hamcmc._compile import put
from hamcmc._types import PyTree
from hamcmc.target.estimators import SecondOrder
from hamcmc.target.passes import linearized
from hamcmc.target.posterior import Posterior
from hamcmc.target.protocol import Chart, unbiased


class Whitened(Posterior):
    """A posterior as a density of the flat vector z, where c + S z is the unconstrained position of another one.

    With c near the middle of the posterior and S a root of its covariance, all directions of z have the same scale:
    samplers need no metric, and single precision keeps its digits for what differs from c. Draws are still parameters,
    because :meth:`constrain` leads all the way. Everything that is not set here is looked up in `plain`.

    Args:
        plain: the posterior, or a view of it with another gradient estimator.
        like: an unconstrained position of it, for its structure.
        centre: c (D,), in the order of ``jax.flatten_util.ravel_pytree``.
        root: S (D, D), or its diagonal (D,).
    """

    def __init__(self, plain: Posterior, like: PyTree, centre: np.ndarray, root: np.ndarray):
        if plain.mirror is not None:
            raise ValueError("mirrored supports cannot be whitened: give the parameters a bijection instead")
        flat, self._unravel = ravel_pytree(jax.tree.map(put, like))
        self.plain = plain
        self.centre, self.root = put(centre, flat.dtype), put(root, flat.dtype)
        if self.root.ndim == 2:  # a diagonal costs too little to keep its products
            self.chart = Chart(self.position, self.grad_at, plain.constrain)

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not set yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self.plain, name)

    def position(self, z: Array) -> PyTree:
        """c + S z, an unconstrained position of the plain posterior."""
        return self._unravel(self.centre + self._times(z))

    def log_density(self, position: Array, minibatch: PyTree = None) -> Array:
        """−Ũ at c + S z. The Jacobian of an affine map is a constant."""
        return self.plain.log_density(self.position(position), minibatch)

    def grad(self, position: Array, minibatch: PyTree = None) -> Array:
        """Sᵀ times the gradient at c + S z."""
        return self.grad_at(position, self.position(position), minibatch)

    def grad_at(self, position: Array, image: PyTree, minibatch: PyTree = None) -> Array:
        """The gradient with respect to z, given c + S z too."""
        return self._back(self.plain.grad(image, minibatch))

    def mean_likelihood_grad(self, position: Array, minibatch: PyTree) -> Array:
        """Sᵀ ḡ_Ω."""
        return self._back(self.plain.mean_likelihood_grad(self.position(position), minibatch))

    def per_datum_grads(self, position: Array, minibatch: PyTree) -> Array:
        """Sᵀ ∇ log p(x_i|θ) for each datum."""
        return jax.vmap(self._back)(self.plain.per_datum_grads(self.position(position), minibatch))

    def minibatch_indices(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """The rows of a minibatch, drawn as the plain posterior draws them."""
        return self.plain.minibatch_indices(key, iteration, batch_size, replace)

    def drawn(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """What `plain` needs to name the rows of a minibatch on the host."""
        return self.plain.drawn(key, iteration, batch_size, replace)

    def found(self, drawn: np.ndarray) -> np.ndarray:
        """The rows of minibatches, on the host, as `plain` draws them."""
        return self.plain.found(drawn)

    def full_grad(self, position: Array, *, batch_size: int = 8192) -> Array:
        """Sᵀ times the gradient on all data."""
        return self._back(self.plain.full_grad(self.position(position), batch_size=batch_size))

    def full_log_density(self, position: Array, *, batch_size: int = 8192) -> Array:
        """The log-density on all data."""
        return self.plain.full_log_density(self.position(position), batch_size=batch_size)

    def constrain(self, position: Array) -> PyTree:
        """The parameters at z."""
        return self.plain.constrain(self.position(position))

    def unconstrain(self, parameters: PyTree) -> Array:
        """Parameters → z. Raises if a value lies outside its support."""
        return self._white(self.plain.unconstrain(parameters))

    def unconstrain_unchecked(self, parameters: PyTree) -> Array:
        """:meth:`unconstrain` for values that are known to be inside. It can be traced."""
        return self._white(self.plain.unconstrain_unchecked(parameters))

    def log_likelihoods(self, parameters: PyTree, rows: PyTree) -> Array:
        """Those of `plain`."""
        return self.plain.log_likelihoods(parameters, rows)

    def _log_likelihood(self, parameters: PyTree, datum: PyTree) -> Array:
        return self.plain._log_likelihood(parameters, datum)

    def checksum(self) -> str:
        """SHA-256 of the plain posterior's checksum and of the map."""
        digest = hashlib.sha256(self.plain.checksum().encode() if self.size or self.constants else b"")
        for array in (self.centre, self.root):
            digest.update(np.asarray(array).tobytes())
        return digest.hexdigest()

    def _log_prior(self, position: Array) -> Array:
        return self.plain._log_prior(self.position(position))

    def _mean(self, position: Array, minibatch: PyTree) -> Array:
        return self.plain._mean(self.position(position), minibatch)

    def _times(self, z: Array) -> Array:
        return self.root * z if self.root.ndim == 1 else jnp.matmul(self.root, z, precision="highest")

    def _back(self, grad: PyTree) -> Array:
        g = ravel_pytree(grad)[0]
        return self.root * g if self.root.ndim == 1 else jnp.matmul(g, self.root, precision="highest")

    def _white(self, position: PyTree) -> Array:
        away = ravel_pytree(position)[0] - self.centre
        return away / self.root if self.root.ndim == 1 else jnp.linalg.solve(self.root, away)


class WhiteAtAnchor(Whitened):
    r"""A posterior with a second-order control variate, in coordinates that are white at its anchor θ̂.

    With θ = θ̂ + S z and S Sᵀ the inverse of the Hessian of U at θ̂, the quadratic part of the estimator is −z:

    .. math:: -∇_z Ũ = -z + S^⊤ [∇\log p(θ) - ∇²\log p(θ̂)(θ-θ̂)
        + N ḡ(θ̂) + N (ḡ_Ω(θ) - ḡ_Ω(θ̂) - H_Ω(θ̂)(θ-θ̂))]

    So H̄(θ̂)(θ − θ̂), one of three products with a matrix D × D, is not needed. Nor do its digits get lost where the
    curvatures of θ differ by more than single precision can hold.

    Args:
        plain: the posterior with its control variate. `root` must belong to the Hessian at its anchor.
        like, root: as for :class:`Whitened`.
    """

    def __init__(self, plain: SecondOrder, like: PyTree, root: np.ndarray):
        super().__init__(plain, like, np.asarray(ravel_pytree(plain.anchor.position)[0]), root)
        self.plain: SecondOrder

    def grad_at(self, position: Array, image: PyTree, minibatch: PyTree = None) -> Array:
        """The gradient with respect to z, given θ̂ + S z too."""
        anchor, size = self.plain.anchor, self.plain.size
        prior = jax.grad(self.plain._log_prior)
        _, curved = linearized(prior, anchor.position)
        away = jax.tree.map(jnp.subtract, image, anchor.position)
        straight = jax.tree.map(jnp.subtract, prior(image), curved(away))
        common = unbiased(straight, anchor.mean_grad, size)  # at the mode these cancel
        return self._back(unbiased(common, self.plain.remainder(image, minibatch), size)) - position
