"""Variance reduction: gradient estimators around an anchor θ̂, in place of the plain minibatch gradient.

.. math:: ḡ(θ) ≈ ḡ_Ω(θ) - ḡ_Ω(θ̂) + ḡ(θ̂)

Here ḡ is the mean likelihood gradient over all data, and ḡ_Ω is the mean over the minibatch. The estimator is unbiased,
and its variance falls with ‖θ − θ̂‖². Each estimator is a view of a :class:`~hamcmc.Posterior`: every sampler takes it.
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.target.posterior import Posterior, name_of


class Anchor(NamedTuple):
    """An unconstrained position θ̂ and ḡ(θ̂), the mean likelihood gradient over all data there."""

    position: PyTree
    mean_grad: PyTree


class Anchored(NamedTuple):
    """A minibatch with its anchor. :class:`AnchoredPosterior` takes it in place of a minibatch."""

    minibatch: PyTree
    anchor: Anchor


class View(Posterior):
    """A posterior that differs from another one, `plain`, in its gradient estimator alone.

    A subclass overrides :meth:`mean_likelihood_grad` and :meth:`per_datum_grads`. Everything that a view does not set
    itself (data, densities, support, …) is looked up in `plain`.
    """

    def __init__(self, plain: Posterior):
        _require_data(plain)
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not set yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self.plain, name)


class AnchoredPosterior(View):
    """A posterior whose minibatches come with an anchor (:class:`Anchored`)."""

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
    """What :func:`control_variate` returns."""

    def __init__(self, plain: Posterior, anchor: Anchor):
        super().__init__(plain)
        self.anchor = anchor
        self.settings = {"estimator": "control_variate", "anchor": _digest(anchor.position)}
        self.extra_gradients = 1

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """ḡ_Ω(θ) − ḡ_Ω(θ̂) + ḡ(θ̂)."""
        return _reduced(self.plain.mean_likelihood_grad, position, minibatch, self.anchor)

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """∇ log p(x_i|θ) − ∇ log p(x_i|θ̂) + ḡ(θ̂): their mean is the estimator, their scatter its noise."""
        return _reduced(self.plain.per_datum_grads, position, minibatch, self.anchor)

    def checksum(self) -> str:
        """SHA-256 of data and anchor: a run cannot be resumed with another anchor."""
        return hashlib.sha256((self.plain.checksum() + self.settings["anchor"]).encode()).hexdigest()


def control_variate(posterior: Posterior, mode: PyTree, *, batch_size: int = 8192) -> Posterior:
    r"""The posterior with a gradient estimator of low variance near its mode.

    .. math:: -∇Ũ(θ) = ∇\log p(θ) + N\,[ḡ_Ω(θ) - ḡ_Ω(θ̂) + ḡ(θ̂)]

    Here ḡ_Ω is the mean of the likelihood gradients in the minibatch, and ḡ is their mean over all data, which this
    function computes once. The estimator is unbiased for every θ̂. For θ̂ near the mode its variance is of the order
    ‖θ − θ̂‖², which in the bulk of a posterior of N data is about N times less than the plain gradient's. A step costs
    one more gradient on the same minibatch; replicas that share a minibatch share that gradient. The estimator does
    harm where θ is far from θ̂, as in a second mode.

    A sampler that estimates the gradient's noise from the gradients of each datum sees the noise of this estimator.
    ``sgfs`` also estimates the Fisher information from them, which is then far too small: it becomes SGLD with small
    steps.

    Args:
        posterior: log-prior, log-likelihood and data, which may be streamed.
        mode: parameters θ̂ in their support, such as :func:`hamcmc.find_mode` returns.
        batch_size: data per pass for ḡ(θ̂).

    Returns:
        A :class:`~hamcmc.Posterior` for any sampler and for :func:`hamcmc.sample`. Its log-density is unchanged.

    References:
        Baker, Fearnhead, Fox and Nemeth, Control variates for stochastic gradient MCMC, Statistics and Computing 2019.
    """
    _require_data(posterior)
    position = posterior.unconstrain(jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), mode))  # not weakly typed
    mean_grad = _full_mean_grad(posterior, position, _check.at_least("batch_size", batch_size, 1))
    for path, leaf in tree_leaves_with_path(mean_grad):
        if not bool(jnp.isfinite(leaf).all()):
            raise ValueError(f"mode: the likelihood's gradient there is not finite in parameter {name_of(path)}")
    return ControlVariate(posterior, Anchor(position, mean_grad))


def _reduced(grads: Callable[[PyTree, PyTree], PyTree], position: PyTree, minibatch: PyTree, anchor: Anchor) -> PyTree:
    return jax.tree.map(
        lambda here, there, mean: (here - there + mean).astype(here.dtype),
        grads(position, minibatch),
        grads(anchor.position, minibatch),
        anchor.mean_grad,
    )


def _require_data(posterior: Posterior) -> None:
    if posterior.size == 0:
        raise ValueError("variance reduction needs data: this posterior has no log_likelihood")


def _full_mean_grad(posterior: Posterior, position: PyTree, batch_size: int) -> PyTree:
    """ḡ(θ) over all data in passes of `batch_size`, summed in double precision."""
    grad = jax.jit(posterior.mean_likelihood_grad)
    total = jax.tree.map(lambda x: np.zeros(x.shape), position)
    for start in range(0, posterior.size, batch_size):
        part = jax.tree.map(lambda x, start=start: jnp.asarray(x[start : start + batch_size]), posterior.data)
        n = min(batch_size, posterior.size - start)
        total = jax.tree.map(lambda a, g, n=n: a + n * np.asarray(g, np.float64), total, grad(position, part))
    return jax.tree.map(lambda a, x: jnp.asarray(a / posterior.size, x.dtype), total, position)


def _digest(position: PyTree) -> str:
    digest = hashlib.sha256()
    for path, leaf in tree_leaves_with_path(position):
        digest.update(f"{name_of(path)} {leaf.dtype} {leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return digest.hexdigest()
