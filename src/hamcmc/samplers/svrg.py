"""Stochastic variance reduced gradients, around any sampler."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.registry import maker_for
from hamcmc.target.estimators import Anchor, Anchored, AnchoredPosterior
from hamcmc.target.posterior import Posterior

ROWS = 8192  # data per piece of a full pass
LARGEST = 2**30  # bytes of data


class SVRGState(NamedTuple):
    """The newest draw, the inner sampler's state, the anchor, and the number of steps taken."""

    position: PyTree
    inner: Any
    anchor: Anchor
    step: Array


def svrg(
    posterior: Posterior, sampler: str | Callable[[AnchoredPosterior], Sampler], *, every: int, **options: Any
) -> Sampler:
    r"""A sampler with variance reduced gradients around an anchor that follows it.

    .. math:: -∇Ũ(θ) = ∇\log p(θ) + N\,[ḡ_Ω(θ) - ḡ_Ω(θ̂) + ḡ(θ̂)]

    The anchor θ̂ becomes the position (of an ensemble: the mean of its replicas) at step 0 and every `every` steps after
    it. ḡ(θ̂), the mean likelihood gradient over all data, then takes a full pass. Between two passes the variance grows
    with the distance from θ̂. ε means the same as for the inner sampler, and the factor N/n is inside the gradient.

    By name: ``sample(posterior, "sgld", init, svrg=100, …)``, in the shell ``--sampler sgld --set svrg=100``. If a mode
    can be found, :func:`hamcmc.control_variate` is cheaper; svrg needs none.

    Args:
        posterior: log-prior, log-likelihood and data. The data become part of the compiled program: compiling takes 2 s
            longer per 100 MB, and the data take twice their memory.
        sampler: a name with `options` for it, or a function that makes a sampler for the posterior that it is given,
            such as ``lambda p: hamcmc.sgld(p.grad)``. A sampler's own function, such as ``hamcmc.sgld``, counts as its
            name.
        every: steps between two full passes; with ⌈N/n⌉ they cost as much as the steps between them.

    Returns:
        A :class:`Sampler`. Its `gradients_per_step` counts gradients on minibatches, its `passes_per_step` the rest.

    References:
        Dubey, Reddi, Póczos, Smola, Xing and Williamson, Variance reduction in stochastic gradient Langevin dynamics,
        NeurIPS 2016.
    """
    _check.at_least("svrg", every, 1)
    make = maker_for("svrg", sampler, options)
    if posterior.streamed:
        raise ValueError("svrg needs all data in memory for its full passes; use control_variate for streamed data")
    if "shards" in vars(posterior):
        raise ValueError("svrg needs all data in one process; use control_variate where several processes share them")
    view = AnchoredPosterior(posterior)
    if sum(x.nbytes for x in jax.tree.leaves(posterior.data)) > LARGEST:
        raise ValueError("svrg compiles the data into the program, at most 1 GiB of them; use control_variate instead")
    inner = make(view)
    if inner.needs_all_data:
        raise ValueError("svrg reduces the noise of minibatches, and this sampler needs all data: use it without svrg")

    def centre(position: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x.mean(0), position) if inner.replicas > 1 else position

    def init(position: PyTree) -> SVRGState:
        state = inner.init(position)
        anchor = centre(state.position)
        return SVRGState(state.position, state, Anchor(anchor, jax.tree.map(jnp.zeros_like, anchor)), jnp.int32(0))

    def step(key, state: SVRGState, minibatch: PyTree, step_size) -> tuple[SVRGState, Any]:
        anchor = refreshed(state.step % every == 0, centre(state.position), state.anchor)
        new, info = inner.step(key, state.inner, Anchored(minibatch, anchor), step_size)
        return SVRGState(new.position, new, anchor, state.step + 1), info

    def refreshed(due: Array, position: PyTree, old: Anchor) -> Anchor:
        """The anchor at the position if a pass is due, and otherwise the old one."""

        def add(piece: Array, total: PyTree) -> PyTree:
            return jax.tree.map(jnp.add, total, likelihood_grad(position, piece))

        # A loop of no turns unless a pass is due: under vmap a condition would take both branches at every step.
        zeros = jax.tree.map(jnp.zeros_like, position)
        total = lax.fori_loop(0, jnp.where(due, -(-posterior.size // ROWS), 0), add, zeros)
        new = Anchor(position, jax.tree.map(lambda x: x / posterior.size, total))
        return jax.tree.map(lambda a, b: jnp.where(due, a, b), new, old)

    def likelihood_grad(position: PyTree, piece: Array) -> PyTree:
        """The sum of the likelihood gradients of one piece of the data. Rows past their end count nothing."""
        rows = piece * ROWS + jnp.arange(min(ROWS, posterior.size))
        part = jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), posterior.data)

        def total(position):
            each = posterior.log_likelihoods(posterior.constrain(position), part)
            return jnp.sum(jnp.where(rows < posterior.size, each, 0))

        return jax.grad(total)(position)

    return inner._replace(
        init=init,
        step=step,
        settings={**inner.settings, "svrg": every},
        gradients_per_step=inner.gradients_per_step + 1,  # XLA takes the anchor's gradient once for each minibatch
        passes_per_step=1 / every,
    )
