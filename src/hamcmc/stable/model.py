r"""Factorization of a matrix whose entries are heavy-tailed: the alpha-stable model.

Sources add up, :math:`X = \sum_s X^s`, and each has independent symmetric α-stable entries, complex isotropic or real,

.. math:: X^s_{ij} ∼ SαS(σ_{ij}), \quad σ_{ij}^{α} = [WH]_{ij}, \qquad
    W_{ik} ∼ GG(a_w, b_w, -2/α), \quad H_{kj} ∼ GG(a_h, b_h, -2/α)

with an α, a W and an H of its own. Given impulses :math:`Φ_{ij}`, twice a positive stable variable of index α/2, all
is Gaussian: :math:`X_{ij} ∼ N(0, V_{ij})` with :math:`V = \sum_s Φ^s [W^s H^s]^{2/α_s}`, the variance of the real part,
and of the imaginary part where there is one. The mean of a source is then X times the gain
:math:`Φ^s [W^s H^s]^{2/α_s} / V`, a Wiener filter. :mod:`hamcmc.stable` averages it over the posterior of all unknowns.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.target.protocol import Target, unbiased


class Prior(NamedTuple):
    """Generalized gamma prior GG(a, b, −2/α) of W or H: x^(2/α) is inverse gamma with shape a and scale b^(2/α).

    a and b are numbers, or arrays that broadcast to W (rows × rank) or H (rank × columns). Without b, the scale is
    taken from the data."""

    a: Any = 1.0
    b: Any = None


class Source(NamedTuple):
    """One of the sources that add up to X.

    Attributes:
        rank: K, the number of components.
        alpha: index of the stable law in (0, 2]; 2 is Gaussian.
        W: rows × rank, if it is known; None if it is to be sampled.
        prior_W: the prior of a W that is sampled.
        prior_H: the prior of H.
    """

    rank: int
    alpha: float
    W: Any = None
    prior_W: Prior = Prior()
    prior_H: Prior = Prior()


def estimate_alpha(X: Any) -> float:
    """Estimate α from the spread of log|x| about its row and column means.

    The estimate assumes scales of rank one, and is too small where they are not. Var log|x| is π²/6α² for complex
    entries and π²/6 (1/α² + 1/2) for real ones."""
    X = checked(X)
    logs = np.log(np.abs(np.where(X == 0, np.nan, X)))
    rows, columns = X.shape
    if min(rows, columns) < 2:
        raise ValueError("an estimate of alpha needs two rows and two columns or more")
    seen = np.isfinite(logs)
    if not (seen.any(0).all() and seen.any(1).all()):
        raise ValueError("an estimate of alpha needs an entry in every row and column")
    for _ in range(20):  # for a complete matrix, the first turn is exact
        logs = logs - np.nanmean(logs, 1, keepdims=True)
        logs = logs - np.nanmean(logs, 0, keepdims=True)
    free = max(seen.sum() - rows - columns + 1, 1)
    spread = 6 / np.pi**2 * np.nansum(logs**2) / free - (0 if np.iscomplexobj(X) else 0.5)
    return float(min(2.0, 1 / np.sqrt(max(spread, 0.25))))


class Model(NamedTuple):
    """A checked model: its arrays, and its :class:`Form`, for which programs are compiled.

    Attributes:
        log_power: log |x|²; any number for a missing entry.
        observed: 1 for an entry and 0 for a missing one; None if no entry is missing.
        size: the number of entries that are not missing, an array so that one program serves all counts.
        fixed: W of each source that has a given one, else None.
        priors: those of (W, H) of each source, with b in the model's units.
        start: the W and H of each source to start from.
        form: the rest.
    """

    log_power: Array
    observed: Array | None
    size: Any
    fixed: tuple[Array | None, ...]
    priors: tuple[tuple[Prior, Prior], ...]
    start: tuple[dict[str, Array], ...]
    form: Any


class Form(NamedTuple):
    """What a compiled program depends on besides the shapes of arrays.

    Attributes:
        alphas: the indices of the sources.
        dof: 2 for complex entries, 1 for real ones.
        mirror: whether W and H themselves are sampled and folded back at 0, instead of their logarithms.
    """

    alphas: tuple[float, ...]
    dof: int
    mirror: bool


def checked(X: Any) -> np.ndarray:
    """X in double precision. Raises a ValueError that says what is wrong with it."""
    X = np.asarray(X)
    if X.dtype.kind not in "fciu":
        raise ValueError(f"X must be a matrix of real or complex numbers, got dtype {X.dtype}")
    X = X.astype(np.complex128 if X.dtype.kind == "c" else np.float64)
    if X.ndim != 2 or X.size == 0:
        raise ValueError(f"X must be a matrix with rows and columns, got shape {X.shape}")
    if np.isinf(X).any():
        raise ValueError(f"X has {np.isinf(X).sum()} infinite entries; NaN marks a missing one")
    if np.isnan(X).all():
        raise ValueError("X has no entry that is a number")
    if not np.nan_to_num(np.abs(X)).any():
        raise ValueError("all entries of X are 0")
    return X


def build(X: np.ndarray, sources: Sequence[Source], positivity: str) -> tuple[Model, float]:
    """The model in its own units, and the unit: the geometric mean of |x|."""
    sources = list(sources)
    if not sources or not all(isinstance(s, Source) for s in sources):
        raise ValueError("sources must be a list of one Source or more")
    magnitude, shape = np.abs(X), X.shape
    seen = ~np.isnan(magnitude)
    unit = float(np.exp(np.mean(np.log(magnitude[seen & (magnitude > 0)]))))
    rng = np.random.default_rng(0)  # components that start alike would long stay alike

    def jitter(*shape: int) -> Array:
        """Random factors around 1."""
        return jnp.asarray(np.exp(0.3 * rng.standard_normal(shape)), float)

    fixed, priors, start = [], [], []
    for n, s in enumerate(sources):
        alpha, rank = _index(s.alpha, n), _check.at_least(f"rank of source {n}", s.rank, 1)
        W = _dictionary(s.W, (shape[0], rank), n)
        size_W = 1.0 if W is None else float(W.mean())
        share = 1 / (rank * len(sources) * size_W)  # H of a source that has its share of X, in the model's units
        prior_W = _prior(s.prior_W, "W", n, (shape[0], rank), 1.0, 1.0)
        prior_H = _prior(s.prior_H, "H", n, (rank, shape[1]), share, unit**alpha)
        # Where W is free, H starts where its prior has most of its mass, and W compensates for that.
        size_H = share if W is not None else float(np.mean(prior_H.b * prior_H.a ** (-alpha / 2)))
        free = {"H": size_H * jitter(rank, shape[1])}
        if W is None:
            free["W"] = share / size_H * jitter(shape[0], rank)
        fixed.append(None if W is None else jnp.asarray(W, float))
        priors.append((prior_W, prior_H))
        start.append(free)
    with np.errstate(divide="ignore"):
        log_power = jnp.asarray(np.where(seen, 2 * np.log(np.where(seen, magnitude / unit, 1)), 0), float)
    form = Form(
        tuple(float(s.alpha) for s in sources),
        2 if np.iscomplexobj(X) else 1,
        _check.one_of("positivity", positivity, ("log", "mirror")) == "mirror",
    )
    observed = None if seen.all() else jnp.asarray(seen, float)
    size = jnp.asarray(seen.sum(), float)
    return Model(log_power, observed, size, tuple(fixed), tuple(priors), tuple(start), form), unit


def _index(alpha: Any, n: int) -> float:
    if not (_check.positive(f"alpha of source {n}", alpha) <= 2):
        raise ValueError(f"alpha of source {n} must be in (0, 2], got {alpha!r}")
    return float(alpha)


def _dictionary(W: Any, shape: tuple[int, int], n: int) -> np.ndarray | None:
    if W is None:
        return None
    W = np.asarray(W, float)
    if W.shape != shape:
        raise ValueError(f"W of source {n} must be {shape[0]} × {shape[1]}, rows × rank, got shape {W.shape}")
    if not (np.isfinite(W) & (W >= 0)).all() or not W.any():
        raise ValueError(f"W of source {n} must have finite entries, none below 0 and some above")
    return np.maximum(W, 1e-30 * W.max())


def _prior(prior: Prior, name: str, n: int, shape: tuple[int, int], b: float, unit: float) -> Prior:
    """The prior with arrays for numbers, and b in the model's units."""
    found = Prior(np.asarray(prior.a, float), np.asarray(b if prior.b is None else np.asarray(prior.b, float) / unit))
    for what, value in found._asdict().items():
        if not (np.isfinite(value) & (value > 0)).all():
            raise ValueError(f"{what} of the prior of {name} in source {n} must be finite numbers above 0")
        try:
            np.broadcast_to(value, shape)
        except ValueError:
            raise ValueError(f"{what} of the prior of {name} in source {n} does not fit the shape {shape}") from None
    return Prior(*(jnp.asarray(v, float) for v in found))


def factors(model: Model, position: PyTree) -> list[tuple[Array, Array]]:
    """(W, H) of each source from an unconstrained position."""
    if not model.form.mirror:
        position = jax.tree.map(jnp.exp, position)
    return [(p["W"] if W is None else W, p["H"]) for W, p in zip(model.fixed, position, strict=True)]


def log_prior(model: Model, position: PyTree) -> Array:
    """log p(W) + log p(H), with the Jacobian where logarithms are sampled."""
    total = jnp.zeros(())
    for alpha, priors, p in zip(model.form.alphas, model.priors, position, strict=True):
        for prior, x in ((priors[0], p.get("W")), (priors[1], p["H"])):
            if x is not None:
                logs = jnp.log(x) if model.form.mirror else x
                total += jnp.sum(log_gamma(logs, prior, alpha) - model.form.mirror * logs)
    return total


def log_gamma(logs: Array, prior: Prior, alpha: Any) -> Array:
    """Log-density of log x for a generalized gamma x, up to a constant."""
    c = -2 / alpha
    return c * prior.a * logs - jnp.exp(c * (logs - jnp.log(prior.b)))


def log_variances(model: Model, parts: list[tuple[Array, Array]]) -> Array:
    """log [WH]^(2/α): sources × rows × columns."""
    return jnp.stack([2 / alpha * jnp.log(W @ H) for alpha, (W, H) in zip(model.form.alphas, parts, strict=True)])


def log_normal(log_power: Array, log_variance: Array, dof: int) -> Array:
    """Log-density of entries given their variance, up to a constant."""
    return -dof / 2 * log_variance - 0.5 * jnp.exp(log_power - log_variance)


class Block(NamedTuple):
    """The minibatch of a step: a block of rows and columns.

    Attributes:
        rows: their numbers.
        columns: their numbers; None for all columns.
        log_power: log |x|² of the block.
        observed: which of its entries are not missing; None for all.
        log_phi: log Φ of each source.
    """

    rows: Array
    columns: Array | None
    log_power: Array
    observed: Array | None
    log_phi: Array


class StableTarget(Target):
    """The density of W and H given the impulses.

    A datum is an entry of X, and a minibatch is a :class:`Block`. N, the :attr:`size`, counts the entries that are not
    missing. A block's sum is scaled by the entries of X over the entries of the block, missing ones included in both:
    blocks are drawn among all of them.

    Args:
        model: the data, the priors and the form.
        mirror: folds a position back into its support, if positions are the factors themselves.
    """

    def __init__(self, model: Model, mirror: Callable[[PyTree], PyTree] | None = None):
        self.model, self.mirror = model, mirror
        self.size = model.size  # traced inside a compiled program
        # An ensemble takes gradients of several replicas at once, each with its own impulses.
        self._grad = jax.custom_batching.custom_vmap(jax.grad(self.log_density))

        @self._grad.def_vmap
        def each(_n, _batched, position, block):
            axes = jax.tree.map(lambda _: None, block)._replace(log_phi=0)
            grads = jax.vmap(jax.grad(self.log_density), (0, axes))(position, block)
            return grads, jax.tree.map(lambda _: True, position)

    def block_log_likelihood(self, position: PyTree, block: Block) -> Array:
        """The sum over the block of log p(x | W, H, Φ)."""
        parts = [
            (W[block.rows], H if block.columns is None else H[:, block.columns]) for W, H in self.constrain(position)
        ]
        total = logsumexp(block.log_phi + log_variances(self.model, parts), 0)
        each = log_normal(block.log_power, total, self.model.form.dof)
        return jnp.sum(each if block.observed is None else each * block.observed)

    def log_density(self, position: PyTree, block: Block) -> Array:
        """−Ũ, the unbiased estimate of the log-density."""
        prior = log_prior(self.model, position)
        return unbiased(prior, self.block_log_likelihood(position, block), self._factor(block))

    def grad(self, position: PyTree, minibatch: Block) -> PyTree:
        """−∇Ũ."""
        return self._grad(position, minibatch)

    def mean_likelihood_grad(self, position: PyTree, minibatch: Block) -> PyTree:
        """ḡ, the mean over entries of the gradient of log p(x | W, H, Φ), estimated on the block."""

        def likelihood(position: PyTree) -> Array:
            """The unbiased estimate of the log-likelihood of all entries."""
            return unbiased(jnp.zeros(()), self.block_log_likelihood(position, minibatch), self._factor(minibatch))

        return jax.tree.map(lambda g: g / self.size, jax.grad(likelihood)(position))

    def combine(self, position: PyTree, mean_grad: PyTree) -> PyTree:
        """∇ log p(W, H) + N ḡ."""
        prior = jax.grad(lambda p: log_prior(self.model, p))(position)
        return unbiased(prior, mean_grad, self.size)

    def constrain(self, position: PyTree) -> list[tuple[Array, Array]]:
        """(W, H) of each source."""
        return factors(self.model, position)

    def _factor(self, block: Block) -> float:
        """Entries of X over entries of the block."""
        return self.model.log_power.size / block.log_power.size
