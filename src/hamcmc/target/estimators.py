"""Variance reduction: gradient estimators around an anchor θ̂, in place of the plain minibatch gradient.

.. math:: ḡ(θ) ≈ ḡ_Ω(θ) - ḡ_Ω(θ̂) + ḡ(θ̂)

Here ḡ is the mean likelihood gradient over all data, and ḡ_Ω is the mean over the minibatch. The estimator is unbiased,
and its variance falls with ‖θ − θ̂‖², at second order with ‖θ − θ̂‖⁴. Each estimator is a view of a
:class:`~hamcmc.Posterior`: every sampler takes it.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check
from hamcmc._compile import jit, may_block
from hamcmc._types import PyTree
from hamcmc.target import disk
from hamcmc.target.importance import Importance, probabilities, require_uniform, scores
from hamcmc.target.mode import Laplace
from hamcmc.target.passes import Passes, linearized
from hamcmc.target.posterior import Posterior, name_of
from hamcmc.target.view import View


class Anchor(NamedTuple):
    """An unconstrained position θ̂ and ḡ(θ̂), the mean likelihood gradient over all data there."""

    position: PyTree
    mean_grad: PyTree


class Anchored(NamedTuple):
    """A minibatch with its anchor. :class:`AnchoredPosterior` takes it in place of a minibatch."""

    minibatch: PyTree
    anchor: Anchor


class AnchoredPosterior(View):
    """A posterior whose minibatches come with an anchor (:class:`Anchored`). Their rows are drawn uniformly."""

    def __init__(self, plain: Posterior):
        require_uniform(plain, "svrg and evidence")
        super().__init__(plain)

    def log_density(self, position: PyTree, minibatch: Anchored) -> Array:  # type: ignore[override]
        """−Ũ(θ) on the minibatch. The anchor changes gradients alone."""
        return self.plain.log_density(position, minibatch.minibatch)

    def mean_likelihood_grad(self, position: PyTree, minibatch: Anchored) -> PyTree:
        """ḡ_Ω(θ) − ḡ_Ω(θ̂) + ḡ(θ̂)."""
        return _reduced(self.plain.mean_likelihood_grad, position, *minibatch)

    def per_datum_grads(self, position: PyTree, minibatch: Anchored) -> PyTree:
        """∇ log p(x_i|θ) − ∇ log p(x_i|θ̂) + ḡ(θ̂): their mean is the estimator, their scatter its noise."""
        return _reduced(self.plain.per_datum_grads, position, *minibatch)


class ControlVariate(View):
    """What :func:`control_variate` returns at first order."""

    def __init__(self, plain: Posterior, anchor: Anchor):
        super().__init__(plain)
        self.anchor = anchor
        self.settings = {**plain.settings, "estimator": "control_variate", "anchor": _digest(anchor.position)}
        self.extra_gradients = 1

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """ḡ_Ω(θ) − ḡ_Ω(θ̂) + ḡ(θ̂)."""
        return _reduced(self.plain.mean_likelihood_grad, position, minibatch, self.anchor)

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """∇ log p(x_i|θ) − ∇ log p(x_i|θ̂) + ḡ(θ̂): their mean is the estimator, their scatter its noise."""
        return _reduced(self.plain.per_datum_grads, position, minibatch, self.anchor)

    def common_grad(self, position: PyTree) -> PyTree:
        """ḡ(θ̂)."""
        return self.anchor.mean_grad

    def over(self, plain: Posterior) -> "ControlVariate":
        """The same control variate of another view of the posterior."""
        return type(self)(plain, self.anchor)

    def checksum(self) -> str:
        """SHA-256 of data and anchor: a run cannot be resumed with another anchor."""
        return hashlib.sha256((self.plain.checksum() + self.settings["anchor"]).encode()).hexdigest()


class SecondOrder(ControlVariate):
    """What :func:`control_variate` returns at second order.

    Attributes:
        mean_hessian: H̄(θ̂) (D, D), the mean over all data of ∇² log p(x_i|θ̂), in flat order.
    """

    def __init__(self, plain: Posterior, anchor: Anchor, mean_hessian: Array):
        super().__init__(plain, anchor)
        self.mean_hessian = mean_hessian
        self.settings = {**self.settings, "order": 2}
        self.extra_products = 1

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """ḡ_Ω(θ) − ḡ_Ω(θ̂) − H_Ω(θ̂)(θ−θ̂) + ḡ(θ̂) + H̄(θ̂)(θ−θ̂)."""
        return jax.tree.map(jnp.add, self.remainder(position, minibatch), self.common_grad(position))

    def remainder(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """ḡ_Ω(θ) − ḡ_Ω(θ̂) − H_Ω(θ̂)(θ−θ̂), which is of second order in θ − θ̂.

        ḡ_Ω(θ̂) and H_Ω(θ̂) are functions of the minibatch alone, so replicas that share it share them.
        """

        def grad(x: PyTree) -> PyTree:
            return self.plain.mean_likelihood_grad(x, minibatch)

        away = jax.tree.map(jnp.subtract, position, self.anchor.position)
        there, product = linearized(grad, self.anchor.position)
        return jax.tree.map(
            lambda here, there, bent: (here - there - bent).astype(here.dtype), grad(position), there, product(away)
        )

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """The estimator on each datum alone: their mean is the estimator, their scatter its noise."""

        def one(datum: PyTree) -> PyTree:
            return self.mean_likelihood_grad(position, jax.tree.map(lambda x: x[None], datum))

        return jax.vmap(one)(minibatch)

    def common_grad(self, position: PyTree) -> PyTree:
        """ḡ(θ̂) + H̄(θ̂)(θ−θ̂)."""
        flat, unravel = ravel_pytree(jax.tree.map(jnp.subtract, position, self.anchor.position))
        return jax.tree.map(jnp.add, self.anchor.mean_grad, unravel(self.mean_hessian @ flat))

    def over(self, plain: Posterior) -> "SecondOrder":
        """The same control variate of another view of the posterior."""
        return SecondOrder(plain, self.anchor, self.mean_hessian)

    def checksum(self) -> str:
        """SHA-256 of data, anchor and order."""
        return hashlib.sha256((super().checksum() + " order 2").encode()).hexdigest()


def control_variate(
    posterior: Posterior,
    mode: PyTree | Laplace,
    *,
    order: int = 1,
    importance: bool = False,
    batch_size: int = 8192,
    seed: int = 0,
) -> Posterior:
    r"""The posterior with a gradient estimator of low variance near its mode.

    At first order it is

    .. math:: -∇Ũ(θ) = ∇\log p(θ) + N\,[ḡ_Ω(θ) - ḡ_Ω(θ̂) + ḡ(θ̂)],

    and the second order adds the change of the gradients by their Hessians,

    .. math:: -∇Ũ(θ) = ∇\log p(θ) + N\,[ḡ_Ω(θ) - ḡ_Ω(θ̂) - H_Ω(θ̂)(θ-θ̂) + ḡ(θ̂) + H̄(θ̂)(θ-θ̂)].

    Here ḡ_Ω and H_Ω are the means of the likelihood's gradients and Hessians in the minibatch, and ḡ and H̄ are their
    means over all data, which are computed once. Both estimators are unbiased for every θ̂. For θ̂ near the mode their
    variances are of the order ‖θ − θ̂‖² and ‖θ − θ̂‖⁴; in the bulk of a posterior of N data that is about N and N² times
    less than the plain gradient's. A step costs one more gradient on the same minibatch, which replicas share, and at
    second order one product with the minibatch's Hessian for each replica. The estimators do harm where θ is far from
    θ̂, as in a second mode.

    A sampler that estimates the gradient's noise from the gradients of each datum sees the noise of this estimator.
    ``sgfs`` also estimates the Fisher information from them, which is then far too small: it becomes SGLD with small
    steps.

    Args:
        posterior: log-prior, log-likelihood and data, which may be streamed.
        mode: parameters θ̂ in their support, such as :func:`hamcmc.find_mode` returns, or what :func:`hamcmc.laplace`
            returns, which has ḡ(θ̂) and H̄(θ̂) already.
        order: 1 or 2. The second needs a Hessian, so no more than a few thousand parameters.
        importance: draw rows by how much they add to the noise of this estimator, with weights that keep it unbiased.
            Rows with rare features are then seen often enough. It needs the outcome of :func:`hamcmc.laplace`.
        batch_size: data per pass for ḡ(θ̂).
        seed: for the draws at which rows are compared.

    Returns:
        A :class:`~hamcmc.Posterior` for any sampler and for :func:`hamcmc.sample`. Its log-density is unchanged.

    References:
        Baker, Fearnhead, Fox and Nemeth, Control variates for stochastic gradient MCMC, Statistics and Computing 2019.
    """
    if _check.at_least("order", order, 1) > 2:
        raise ValueError(f"order must be 1 or 2, got {order!r}")
    view = _view(posterior, mode, order, _check.at_least("batch_size", batch_size, 1))
    if not importance:
        return view
    if not isinstance(mode, Laplace):
        raise ValueError("importance needs a metric: give the outcome of hamcmc.laplace as the mode")
    drawn = Importance(posterior, probabilities(scores(view, mode, seed=seed)))
    return view.over(drawn)


def _view(posterior: Posterior, mode: PyTree | Laplace, order: int, batch_size: int) -> ControlVariate:
    """The control variate on uniform minibatches."""
    if posterior.size == 0:
        return ControlVariate(posterior, Anchor(None, None))  # which says what is wrong
    if isinstance(mode, Laplace):
        position, mean_grad, hessian = mode.position, mode.unravel(mode.mean_grad), mode.mean_hessian
    else:
        position = posterior.unconstrain(jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), mode))  # not weakly typed
        mean_grad = _full_mean_grad(posterior, position, batch_size)
        hessian = None
    for path, leaf in tree_leaves_with_path(mean_grad):
        if not bool(jnp.isfinite(leaf).all()):
            raise ValueError(f"mode: the likelihood's gradient there is not finite in parameter {name_of(path)}")
    anchor = Anchor(position, mean_grad)
    if order == 1:
        return ControlVariate(posterior, anchor)
    if isinstance(mode, Laplace) and mode.precision.ndim == 1:
        raise ValueError(
            f"order 2 needs a Hessian of {mode.dimension}² numbers: see dense in hamcmc.laplace, or order 1"
        )
    if hessian is None:
        passes = Passes(posterior, position)
        hessian = passes.hessian(passes.flat(position)).likelihood / posterior.size
    if not np.isfinite(hessian).all():
        raise ValueError("mode: the likelihood's second derivatives there are not finite")
    return SecondOrder(posterior, anchor, jnp.asarray(hessian, ravel_pytree(position)[0].dtype))


def _reduced(grads: Callable[[PyTree, PyTree], PyTree], position: PyTree, minibatch: PyTree, anchor: Anchor) -> PyTree:
    return jax.tree.map(
        lambda here, there, mean: (here - there + mean).astype(here.dtype),
        grads(position, minibatch),
        grads(anchor.position, minibatch),
        anchor.mean_grad,
    )


def _full_mean_grad(posterior: Posterior, position: PyTree, batch_size: int) -> PyTree:
    """ḡ(θ) over all data in passes of `batch_size`, summed in double precision; in one where devices hold the rows."""
    if (share := vars(posterior).get("share")) is not None:
        if not posterior.streamed:
            return jit(posterior.mean_likelihood_grad)(position, posterior.data)
        flat, restore = ravel_pytree(_full_mean_grad(share.held, position, batch_size))
        (total,) = share.total([share.held.size * np.asarray(flat, np.float64)])
        return restore(jnp.asarray(total / posterior.size, flat.dtype))
    grad = jit(posterior.mean_likelihood_grad)
    total = jax.tree.map(lambda x: np.zeros(x.shape), position)

    def work(start: int) -> PyTree:
        n = min(batch_size, posterior.size - start)
        found = grad(position, posterior.part(start, batch_size))
        return jax.tree.map(lambda g: n * np.asarray(g, np.float64), found)

    alone = may_block(grad, position, disk.shapes(posterior.data, min(batch_size, posterior.size)))
    for found in disk.ahead(work, range(0, posterior.size, batch_size), alone=alone):
        total = jax.tree.map(np.add, total, found)
    return jax.tree.map(lambda a, x: jnp.asarray(a / posterior.size, x.dtype), total, position)


def _digest(position: PyTree) -> str:
    digest = hashlib.sha256()
    for path, leaf in tree_leaves_with_path(position):
        digest.update(f"{name_of(path)} {leaf.dtype} {leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()
