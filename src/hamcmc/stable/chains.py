r"""Chains over all unknowns of alpha-stable factorizations: impulses, W and H.

W and H follow from any gradient sampler on a random block of rows and columns, or from Gibbs draws: the component k of
a sum of stable components is stable, too, so give each its own impulses, :math:`s_k ∼ N(0, Φ_k ω_i η_j)` with
:math:`ω = w_{ik}^{2/α}` and :math:`η = h_{kj}^{2/α}`. A priori ω is inverse gamma, IG(a_w, b_w^{2/α}), hence

.. math:: ω_i ∣ s, Φ, η ∼ IG\Big(a_w + \frac{d}{2} J, \; b_w^{2/α} + \sum_j \frac{|s_{kij}|²}{2 Φ_{kij} η_j}\Big)

with d = 2 for complex and 1 for real entries, and η likewise. The impulses are drawn given X alone, then the Gaussian
components given them and X, then W and H.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp

from hamcmc import samplers
from hamcmc.samplers.base import Sampler
from hamcmc.stable.impulses import Metropolis
from hamcmc.stable.model import Block, Model, Prior, Target, factors, log_gamma, log_normal, log_variances

PyTree = Any


class Look(NamedTuple):
    """A draw: (W, H) and the gain of each source, the potential, and the acceptance of impulses."""

    factors: list[tuple[Array, Array]]
    gains: Array
    potential: Array
    acceptance: Array


class Chain(NamedTuple):
    """A sampler of all unknowns: ``init(key)``, ``step(key, state)``, and ``look(state, t)`` at draw t."""

    init: Callable[[Array], Any]
    step: Callable[[Array, Any], Any]
    look: Callable[[Any, Array], Look]


def gradient_chain(
    model: Model,
    metropolis: Metropolis,
    name: str,
    options: dict[str, Any],
    step_size: float,
    batch: tuple[int, int],
    clip: Any = math.inf,
) -> Chain:
    """Metropolis steps for the impulses of a random block, then a step of a gradient sampler on it.

    The impulses of all chains are one array (chains, rows, sources, 3, columns): a block of rows is contiguous in it.
    """
    shape = model.log_power.shape
    fold = (lambda p: jax.tree.map(jnp.abs, p)) if model.form.mirror else None
    begin = model.start if model.form.mirror else jax.tree.map(jnp.log, model.start)

    def build(near: PyTree | None = None) -> Sampler:
        """A sampler that stays near a position."""

        def bounded(position):
            position = jax.tree.map(lambda x, old: old + jnp.clip(x - old, -clip, clip), position, near)
            return position if fold is None else fold(position)

        with jax.ensure_compile_time_eval():  # samplers look at the numbers of a metric
            own = {"metric": _count_metric(begin, shape)} if "hamcmc" in name else {}
            return samplers.build(name, Target(model, fold if near is None else bounded), **own | options)

    general = build()
    replicas = general.replicas
    copies = general.interleaved * replicas
    at_rest = max(replicas // 2, 1)  # how many positions a step takes gradients at

    def init(key):
        spread = lambda x: x + 0.1 * jax.random.normal(key, (replicas, *x.shape))
        position = begin if replicas == 1 else jax.tree.map(spread, begin)
        phi = jnp.moveaxis(metropolis.start(log_variances(model, factors(model, begin)), model.log_power), 2, 0)
        return general.init(position), jnp.broadcast_to(phi, (copies, *phi.shape)), jnp.zeros(len(model.form.alphas))

    def now(inner) -> tuple[Array, PyTree]:
        """The chains whose impulses are due, and where they are."""
        if replicas > 1:
            first = jnp.where(inner.step % 2 == 0, at_rest, 0)
            return first + jnp.arange(at_rest), jax.tree.map(
                lambda x: lax.dynamic_slice_in_dim(x, first, at_rest), inner.position
            )
        c = inner.step % copies
        position = inner.position if copies == 1 else jax.tree.map(lambda x: x[c], inner.chains)
        return c[None], jax.tree.map(lambda x: x[None], position)

    def impulses(key, state, position, rows, columns, log_power, observed):
        """Metropolis steps on (rows, sources, 3, columns)."""
        parts = [(W[rows], _columns(H, columns)) for W, H in factors(model, position)]
        block = jnp.moveaxis(_columns(state, columns), 0, 2)
        block, accepted = metropolis(key, block, log_variances(model, parts), log_power, observed)
        log_phi, block = block[:, 2], jnp.moveaxis(block, 2, 0)
        return (block if columns is None else state.at[..., columns].set(block)), log_phi, accepted

    def step(key, state):
        inner, latent, _ = state
        key_rows, key_columns, key_phi, key_step = jax.random.split(key, 4)
        rows = jax.random.permutation(key_rows, shape[0])[: batch[0]]
        columns = None if batch[1] == shape[1] else jax.random.permutation(key_columns, shape[1])[: batch[1]]
        log_power = _columns(model.log_power[rows], columns)
        observed = None if model.observed is None else _columns(model.observed[rows], columns)
        chains, position = now(inner)
        new, log_phi, accepted = jax.vmap(lambda k, s, p: impulses(k, s, p, rows, columns, log_power, observed))(
            jax.random.split(key_phi, at_rest), latent[chains[:, None], rows], position
        )
        near = None
        if replicas == 1:
            log_phi, near = log_phi[0], jax.tree.map(lambda x: x[0], position)
        block = Block(rows, columns, log_power, observed, log_phi)
        inner, _ = build(near).step(key_step, inner, block, step_size)
        return inner, latent.at[chains[:, None], rows].set(new), accepted.mean(0)

    def look(state, t):
        """At the chain that moved last; at one replica after the other."""
        inner, latent, accepted = state
        c = t % copies if replicas > 1 else (inner.step - 1) % copies
        position = inner.position if replicas == 1 else jax.tree.map(lambda x: x[c], inner.position)
        parts, log_phi = factors(model, position), jnp.moveaxis(latent[c][:, :, 2], 0, 1)
        gains = jax.nn.softmax(log_phi + log_variances(model, parts), 0)
        block = Block(jnp.arange(shape[0]), None, model.log_power, model.observed, log_phi)
        return Look(parts, gains, -Target(model).log_density(position, block), accepted)

    return Chain(init, step, look)


def _columns(x: Array, columns: Array | None) -> Array:
    return x if columns is None else x[..., columns]


def _count_metric(position: PyTree, shape: tuple[int, ...]) -> PyTree:
    """1 over the number of entries that a number has a part in."""
    counts = {"W": shape[1], "H": shape[0]}
    return tuple({k: jnp.full_like(x, 1 / counts[k]) for k, x in p.items()} for p in position)


def gibbs_chain(model: Model, metropolis: Metropolis) -> Chain:
    """Conditionally conjugate Gibbs sampling, on components with impulses of their own.

    State: log ω (components × rows), log η (components × columns), the impulses, and their acceptance.
    """
    shape, dof = model.log_power.shape, model.form.dof
    alphas = jnp.asarray(metropolis.alphas, float)[:, None]
    ranks = [p["H"].shape[0] for p in model.start]
    source, ends = np.repeat(np.arange(len(ranks)), ranks), np.cumsum(ranks)[:-1]
    by_source = lambda x: jax.ops.segment_sum(x, source, len(ranks))
    free = np.repeat([W is None for W in model.fixed], ranks)[:, None]
    observed = jnp.ones(shape) if model.observed is None else model.observed
    wide = {
        "W": lambda x, rank: jnp.broadcast_to(x, (shape[0], rank)).T,
        "H": lambda x, rank: jnp.broadcast_to(x, (rank, shape[1])),
    }
    prior_w, prior_h = (
        Prior(*(jnp.concatenate([wide[s](p[n][f], rank) for p, rank in zip(model.priors, ranks)]) for f in (0, 1)))
        for n, s in enumerate("WH")
    )

    def init(key):
        W = jnp.concatenate([p["W"].T if W is None else W.T for W, p in zip(model.fixed, model.start)])
        H = jnp.concatenate([p["H"] for p in model.start])
        log = lambda x: 2 / alphas * jnp.log(x)
        log_w, log_h = log(W), log(H)
        log_v = log_w[:, :, None] + log_h[:, None, :]
        return log_w, log_h, metropolis.start(log_v, model.log_power), jnp.zeros(len(ranks))

    def conjugate(key, prior, log_old, square, axis):
        """The inverse gamma (b^(2/α) + old Σ|r|²/2) / Gamma(a + d/2 n), in logarithms."""
        rate = jnp.logaddexp(2 / alphas * jnp.log(prior.b), log_old + jnp.log(square.sum(axis) / 2))
        return rate - jax.random.loggamma(key, prior.a + dof / 2 * observed.sum(axis - 1))

    def step(key, state):
        log_w, log_h, latent, _ = state
        key_phi, key_z, key_w, key_h = jax.random.split(key, 4)
        log_v = log_w[:, :, None] + log_h[:, None, :]
        latent, accepted = metropolis(key_phi, latent, log_v, model.log_power, model.observed)
        # Components √(Φ ω η) r given their sum, with the phase of x turned away.
        terms = latent[:, 2] + log_v
        total = logsumexp(terms, 0)
        root = jnp.exp(0.5 * (terms - total))
        z = jax.random.normal(key_z, (dof, *terms.shape))
        x = jnp.zeros((dof, *shape)).at[0].set(jnp.exp(0.5 * (model.log_power - total)))
        r = z + root * (x - jnp.sum(root * z, 1))[:, None]
        square = observed * jnp.sum(r * r, 0)
        new_w = jnp.where(free, conjugate(key_w, prior_w, log_w, square, 2), log_w)
        square = square * jnp.exp(log_w - new_w)[:, :, None]
        new_h = conjugate(key_h, prior_h, log_h, square, 1)
        return new_w, new_h, latent, by_source(accepted) / jnp.asarray(ranks)

    def look(state, _t):
        log_w, log_h, latent, accepted = state
        terms = latent[:, 2] + log_w[:, :, None] + log_h[:, None, :]
        logs = [alphas / 2 * x for x in (log_w, log_h)]
        W, H = (jnp.split(jnp.exp(x), ends) for x in logs)
        density = jnp.sum(free * log_gamma(logs[0], prior_w, alphas)) + jnp.sum(log_gamma(logs[1], prior_h, alphas))
        density += jnp.sum(observed * log_normal(model.log_power, logsumexp(terms, 0), dof))
        gains = by_source(jax.nn.softmax(terms, 0))
        return Look([(w.T, h) for w, h in zip(W, H)], gains, -density, accepted)

    return Chain(init, step, look)
