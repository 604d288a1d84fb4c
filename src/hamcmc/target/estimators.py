"""Variance reduction: gradient estimators around an anchor θ̂, in place of the plain minibatch gradient.

.. math:: ḡ(θ) ≈ ḡ_Ω(θ) - ḡ_Ω(θ̂) + ḡ(θ̂)

with ḡ the mean likelihood gradient over all data and ḡ_Ω that over the minibatch. It is unbiased, and its variance
shrinks with ‖θ − θ̂‖² instead of staying. Each is a view of a :class:`~hamcmc.Posterior`, so every sampler takes it.
"""

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check
from hamcmc.target.posterior import Posterior, name_of

PyTree = Any


class Anchor(NamedTuple):
    """An unconstrained position θ̂ and ḡ(θ̂), the mean likelihood gradient over all data there."""

    position: PyTree
    mean_grad: PyTree


class Anchored(NamedTuple):
    """A minibatch and the anchor that goes with it: what :class:`AnchoredPosterior` takes for a minibatch."""

    minibatch: PyTree
    anchor: Anchor


class View(Posterior):
    """A posterior as it is, to be given another gradient estimator."""

    def __init__(self, plain: Posterior):
        if plain.log_likelihood is None:
            raise ValueError("variance reduction needs data: this posterior has no log_likelihood")
        vars(self).update({k: v for k, v in vars(plain).items() if not k.startswith("_")})  # its data were checked once
        self.plain = plain


class AnchoredPosterior(View):
    """A posterior whose minibatches bring their anchor (:class:`Anchored`)."""

    def log_density(self, position: PyTree, minibatch: Anchored) -> Array:  # type: ignore[override]
        """−Ũ(θ) on the minibatch; the anchor changes gradients only."""
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
        """SHA-256 of data and anchor, so that a run is not resumed with another one."""
        return hashlib.sha256((self.plain.checksum() + self.settings["anchor"]).encode()).hexdigest()


def control_variate(posterior: Posterior, mode: PyTree, *, batch_size: int = 8192) -> Posterior:
    r"""The posterior with a gradient estimator of low variance near its mode.

    .. math:: -∇Ũ(θ) = ∇\log p(θ) + N\,[ḡ_Ω(θ) - ḡ_Ω(θ̂) + ḡ(θ̂)]

    where ḡ_Ω is the mean of the likelihood gradients in the minibatch and ḡ that over all data, taken once, here. It is
    unbiased for every θ̂; for θ̂ near the mode its variance is of the order ‖θ − θ̂‖², which in the bulk of a posterior
    of N data is about N times less than the plain gradient's. A step costs one gradient more, on the same minibatch,
    which replicas that share it share too. It does harm where θ is far from θ̂, as in a second mode.

    Where a sampler takes the noise from the gradients of each datum, it sees that of this estimator. ``sgfs`` takes
    the Fisher information from them, too, which is then far too small: it becomes SGLD, with small steps.

    Args:
        posterior: log-prior, log-likelihood and data (streamed data, too).
        mode: parameters θ̂ in their support, such as :func:`hamcmc.find_mode` returns.
        batch_size: data per pass for ḡ(θ̂).

    Returns:
        A :class:`~hamcmc.Posterior` for any sampler and for :func:`hamcmc.sample`. Its log-density is the old one.

    References:
        Baker, Fearnhead, Fox and Nemeth, Control variates for stochastic gradient MCMC, Statistics and Computing 2019.
    """
    view = View(posterior)
    position = posterior.unconstrain(jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), mode))  # not weakly typed
    mean_grad = _full_mean_grad(view, position, _check.at_least("batch_size", batch_size, 1))
    for path, leaf in tree_leaves_with_path(mean_grad):
        if not bool(jnp.isfinite(leaf).all()):
            raise ValueError(f"mode: the likelihood's gradient there is not finite in parameter {name_of(path)}")
    return ControlVariate(posterior, Anchor(position, mean_grad))


def _reduced(grads, position: PyTree, minibatch: PyTree, anchor: Anchor) -> PyTree:
    return jax.tree.map(
        lambda here, there, mean: (here - there + mean).astype(here.dtype),
        grads(position, minibatch),
        grads(anchor.position, minibatch),
        anchor.mean_grad,
    )


def _full_mean_grad(posterior: View, position: PyTree, batch_size: int) -> PyTree:
    """ḡ(θ) over all data in passes of `batch_size`, summed in double precision."""
    grad = jax.jit(posterior.plain.mean_likelihood_grad)
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
