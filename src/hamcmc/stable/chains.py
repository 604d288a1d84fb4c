r"""Samplers of all unknowns of alpha-stable factorizations: impulses, W and H.

W and H move by any gradient sampler on a random block of rows and columns, or by Gibbs draws. For the latter, note that
the component k of a sum of stable components is stable, too. Give each component its own impulses,
:math:`s_k ∼ N(0, Φ_k ω_i η_j)` with :math:`ω = w_{ik}^{2/α}` and :math:`η = h_{kj}^{2/α}`. A priori ω is inverse gamma,
IG(a_w, b_w^{2/α}), hence

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
from hamcmc._types import PyTree, Record, Scalar
from hamcmc.samplers.base import Sampler
from hamcmc.stable.impulses import Metropolis
from hamcmc.stable.model import Block, Model, Prior, StableTarget, factors, log_gamma, log_normal, log_variances

SPREAD = 0.1  # of an ensemble's replicas at the start: they learn the curvature from each other and must differ


class Recipe(NamedTuple):
    """The default options of a sampler, and its default ε in the unit that :func:`unit_of_step` gives."""

    options: Record
    step_size: float


RECIPES = {
    "sgld": Recipe({}, 0.1),
    "psgld": Recipe({"regularizer": 1e-3}, 0.03),
    "hamcmc": Recipe({"memory": 5, "cosine": 0.1}, 0.1),
    "ensemble_hamcmc": Recipe({"pairs": 5, "gamma": 1.0, "cosine": 0.3}, 0.1),
}


def unit_of_step(sampler: str, shape: tuple[int, ...]) -> int:
    """What a recipe's ε is divided by, so that it fits every matrix.

    A step of SGLD must stay below 1 over the curvature, which grows with the entries in a row or column. pSGLD's metric
    is 1 over the size of a mean gradient, about 1 whatever the matrix, so its ε goes with 1 over the number of entries.
    The metrics of the others contain the curvature.
    """
    return {"psgld": math.prod(shape), "sgld": max(shape)}.get(sampler, 1)


class Look(NamedTuple):
    """A draw: (W, H) and the gain of each source, log V, the potential, and the acceptance of impulses."""

    factors: list[tuple[Array, Array]]
    gains: Array
    log_variance: Array
    potential: Array
    acceptance: Array


class Chain(NamedTuple):
    """A sampler of all unknowns.

    Attributes:
        sampler: its step moves impulses and factors; it draws its own block and takes no minibatch.
        start: ``start(key)`` returns a position for ``sampler.init``.
        look: ``look(state, t)`` returns the :class:`Look` at draw t.
    """

    sampler: Sampler
    start: Callable[[Array], PyTree]
    look: Callable[[Any, Array], Look]


class GradientState(NamedTuple):
    """The state of the sampler of W and H, the impulses of all chains, and their acceptance in the last step.

    The impulses are one array (chains, rows, sources, 3, columns), in which a block of rows is contiguous.
    """

    inner: Any
    impulses: Array
    acceptance: Array

    @property
    def position(self) -> PyTree:
        """The newest W and H, or their logarithms."""
        return self.inner.position


def gradient_chain(
    model: Model,
    metropolis: Metropolis,
    name: str,
    options: Record,
    block: tuple[int, int],
    clip: Any = math.inf,
) -> Chain:
    """Metropolis steps for the impulses of a random block, then a step of a gradient sampler on it.

    Args:
        model: what is sampled.
        metropolis: the moves of the impulses.
        name: the gradient sampler.
        options: its options.
        block: how many rows and columns a step sees.
        clip: the farthest that a step may move a coordinate; not for an ensemble.
    """
    shape = model.log_power.shape
    begin = model.start if model.form.mirror else jax.tree.map(jnp.log, model.start)

    def fold(position: PyTree) -> PyTree:
        """Fold positions back at 0, where they are the factors themselves."""
        return jax.tree.map(jnp.abs, position) if model.form.mirror else position

    def build(near: PyTree | None = None) -> Sampler:
        """A sampler, or one that stays near a position."""

        def bounded(position: PyTree) -> PyTree:
            return fold(jax.tree.map(lambda x, old: old + jnp.clip(x - old, -clip, clip), position, near))

        mirror = bounded if near is not None else fold if model.form.mirror else None
        with jax.ensure_compile_time_eval():  # samplers look at the numbers of a metric
            own = {"metric": _count_metric(begin, shape)} if "hamcmc" in name else {}
            return samplers.build(name, StableTarget(model, mirror), **own | options)

    general = build()
    replicas = general.replicas
    copies = replicas * general.interleaved  # chains that have impulses of their own
    at_rest = max(replicas // 2, 1)  # how many positions a step takes gradients at

    def start(key: Array) -> PyTree:
        if replicas == 1:
            return begin
        return jax.tree.map(lambda x: x + SPREAD * jax.random.normal(key, (replicas, *x.shape)), begin)

    def init(position: PyTree) -> GradientState:
        phi = jnp.moveaxis(metropolis.start(log_variances(model, factors(model, begin)), model.log_power), 2, 0)
        acceptance = jnp.zeros(len(model.form.alphas))
        return GradientState(general.init(position), jnp.broadcast_to(phi, (copies, *phi.shape)), acceptance)

    def due(inner: Any) -> tuple[Array, PyTree]:
        """The chains whose impulses this step needs, and their positions."""
        if replicas > 1:
            first = jnp.where(inner.step % 2 == 0, at_rest, 0)
            return first + jnp.arange(at_rest), jax.tree.map(
                lambda x: lax.dynamic_slice_in_dim(x, first, at_rest), inner.position
            )
        c = inner.step % copies
        position = inner.position if copies == 1 else jax.tree.map(lambda x: x[c], inner.chains)
        return c[None], jax.tree.map(lambda x: x[None], position)

    def move_impulses(key, old, position, rows, columns, log_power, observed):
        """Metropolis steps on the impulses (rows, sources, 3, columns) of one chain."""
        parts = [(W[rows], _columns(H, columns)) for W, H in factors(model, position)]
        part = jnp.moveaxis(_columns(old, columns), 0, 2)
        part, accepted = metropolis(key, part, log_variances(model, parts), log_power, observed)
        log_phi, part = part[:, 2], jnp.moveaxis(part, 2, 0)
        return (part if columns is None else old.at[..., columns].set(part)), log_phi, accepted

    def step(key: Array, state: GradientState, _minibatch: PyTree, step_size: Scalar) -> tuple[GradientState, tuple]:
        inner, impulses, _ = state
        key_rows, key_columns, key_phi, key_step = jax.random.split(key, 4)
        rows = jax.random.permutation(key_rows, shape[0])[: block[0]]
        columns = None if block[1] == shape[1] else jax.random.permutation(key_columns, shape[1])[: block[1]]
        log_power = _columns(model.log_power[rows], columns)
        observed = None if model.observed is None else _columns(model.observed[rows], columns)
        chains, position = due(inner)
        new, log_phi, accepted = jax.vmap(lambda k, s, p: move_impulses(k, s, p, rows, columns, log_power, observed))(
            jax.random.split(key_phi, at_rest), impulses[chains[:, None], rows], position
        )
        near = None
        if replicas == 1:
            log_phi, near = log_phi[0], jax.tree.map(lambda x: x[0], position)
        minibatch = Block(rows, columns, log_power, observed, log_phi)
        inner, _ = build(near).step(key_step, inner, minibatch, step_size)
        return GradientState(inner, impulses.at[chains[:, None], rows].set(new), accepted.mean(0)), ()

    def look(state: GradientState, t: Array) -> Look:
        """Look at the chain that moved last, or at one replica after the other."""
        inner, impulses, accepted = state
        c = t % copies if replicas > 1 else (inner.step - 1) % copies
        position = inner.position if replicas == 1 else jax.tree.map(lambda x: x[c], inner.position)
        parts, log_phi = factors(model, position), jnp.moveaxis(impulses[c][:, :, 2], 0, 1)
        terms = log_phi + log_variances(model, parts)
        whole = Block(jnp.arange(shape[0]), None, model.log_power, model.observed, log_phi)
        density = StableTarget(model).log_density(position, whole)
        return Look(parts, jax.nn.softmax(terms, 0), logsumexp(terms, 0), -density, accepted)

    return Chain(general._replace(init=init, step=step), start, look)


def _columns(x: Array, columns: Array | None) -> Array:
    return x if columns is None else x[..., columns]


def _count_metric(position: PyTree, shape: tuple[int, ...]) -> PyTree:
    """1 over the number of entries that each coordinate takes part in."""
    counts = {"W": shape[1], "H": shape[0]}
    return tuple({k: jnp.full_like(x, 1 / counts[k]) for k, x in p.items()} for p in position)


class GibbsState(NamedTuple):
    """log ω (components × rows), log η (components × columns), the impulses of each component, their acceptance."""

    log_w: Array
    log_h: Array
    impulses: Array
    acceptance: Array

    @property
    def position(self) -> tuple[Array, Array]:
        """(log ω, log η)."""
        return self.log_w, self.log_h


def gibbs_chain(model: Model, metropolis: Metropolis) -> Chain:
    """Conditionally conjugate Gibbs sampling, on components with impulses of their own. It has no step size."""
    shape, dof = model.log_power.shape, model.form.dof
    alphas = jnp.asarray(metropolis.alphas, float)[:, None]
    ranks = [p["H"].shape[0] for p in model.start]
    source, ends = np.repeat(np.arange(len(ranks)), ranks), np.cumsum(ranks)[:-1]
    free = np.repeat([W is None for W in model.fixed], ranks)[:, None]
    observed = jnp.ones(shape) if model.observed is None else model.observed
    prior_w, prior_h = _component_priors(model, ranks)

    def by_source(x: Array) -> Array:
        """Sums over the components of each source."""
        return jax.ops.segment_sum(x, source, len(ranks))

    def start(_key: Array) -> tuple[Array, Array]:
        W = jnp.concatenate([p["W"].T if W is None else W.T for W, p in zip(model.fixed, model.start)])
        H = jnp.concatenate([p["H"] for p in model.start])
        return 2 / alphas * jnp.log(W), 2 / alphas * jnp.log(H)

    def init(position: tuple[Array, Array]) -> GibbsState:
        log_w, log_h = position
        log_v = log_w[:, :, None] + log_h[:, None, :]
        return GibbsState(log_w, log_h, metropolis.start(log_v, model.log_power), jnp.zeros(len(ranks)))

    def conjugate(key, prior, log_old, square, axis):
        """The inverse gamma (b^(2/α) + old Σ|r|²/2) / Gamma(a + d/2 n), in logarithms."""
        rate = jnp.logaddexp(2 / alphas * jnp.log(prior.b), log_old + jnp.log(square.sum(axis) / 2))
        return rate - jax.random.loggamma(key, prior.a + dof / 2 * observed.sum(axis - 1))

    def step(key: Array, state: GibbsState, _minibatch: PyTree, _step_size: Any) -> tuple[GibbsState, tuple]:
        log_w, log_h, impulses, _ = state
        key_phi, key_z, key_w, key_h = jax.random.split(key, 4)
        log_v = log_w[:, :, None] + log_h[:, None, :]
        impulses, accepted = metropolis(key_phi, impulses, log_v, model.log_power, model.observed)
        # The components √(Φ ω η) r given their sum, in units in which x is real and positive.
        terms = impulses[:, 2] + log_v
        total = logsumexp(terms, 0)
        root = jnp.exp(0.5 * (terms - total))
        z = jax.random.normal(key_z, (dof, *terms.shape))
        x = jnp.zeros((dof, *shape)).at[0].set(jnp.exp(0.5 * (model.log_power - total)))
        r = z + root * (x - jnp.sum(root * z, 1))[:, None]
        square = observed * jnp.sum(r * r, 0)
        new_w = jnp.where(free, conjugate(key_w, prior_w, log_w, square, 2), log_w)
        square = square * jnp.exp(log_w - new_w)[:, :, None]
        new_h = conjugate(key_h, prior_h, log_h, square, 1)
        return GibbsState(new_w, new_h, impulses, by_source(accepted) / jnp.asarray(ranks)), ()

    def look(state: GibbsState, _t: Array) -> Look:
        log_w, log_h, impulses, accepted = state
        terms = impulses[:, 2] + log_w[:, :, None] + log_h[:, None, :]
        logs = [alphas / 2 * x for x in (log_w, log_h)]
        W, H = (jnp.split(jnp.exp(x), ends) for x in logs)
        density = jnp.sum(free * log_gamma(logs[0], prior_w, alphas)) + jnp.sum(log_gamma(logs[1], prior_h, alphas))
        total = logsumexp(terms, 0)
        density += jnp.sum(observed * log_normal(model.log_power, total, dof))
        gains = by_source(jax.nn.softmax(terms, 0))
        return Look([(w.T, h) for w, h in zip(W, H)], gains, total, -density, accepted)

    return Chain(Sampler(init=init, step=step, settings={"sampler": "gibbs"}, gradients_per_step=0), start, look)


def _component_priors(model: Model, ranks: list[int]) -> tuple[Prior, Prior]:
    """The priors of W (components × rows) and H (components × columns) over all sources."""
    rows, columns = model.log_power.shape
    priors = list(zip(model.priors, ranks))
    of_w = ([jnp.broadcast_to(p[0][field], (rows, rank)).T for p, rank in priors] for field in (0, 1))
    of_h = ([jnp.broadcast_to(p[1][field], (rank, columns)) for p, rank in priors] for field in (0, 1))
    return Prior(*map(jnp.concatenate, of_w)), Prior(*map(jnp.concatenate, of_h))
