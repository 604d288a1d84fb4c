r"""Factorization of a matrix whose entries are heavy-tailed: the alpha-stable model.

Sources add up, :math:`X = \sum_s X^s`, and each has independent symmetric α-stable entries, complex isotropic or real,

.. math:: X^s_{ij} ∼ SαS(σ_{ij}), \quad σ_{ij}^{α} = [WH]_{ij}, \qquad
    W_{ik} ∼ GG(a_w, b_w, -2/α), \quad H_{kj} ∼ GG(a_h, b_h, -2/α)

with an α, a W and an H of its own. Given impulses :math:`Φ_{ij}`, twice a positive stable variable of index α/2, all
is Gaussian: :math:`X_{ij} ∼ N(0, V_{ij})` with :math:`V = \sum_s Φ^s [W^s H^s]^{2/α_s}`, the variance of the real part,
and of the imaginary part where there is one. The mean of a source is then the gain :math:`Φ^s [W^s H^s]^{2/α_s} / V`
times X: a Wiener filter, which averages over all that is not known. :mod:`hamcmc.stable` samples it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from hamcmc import _check

PyTree = Any


class Prior(NamedTuple):
    """Generalized gamma prior GG(a, b, −2/α) of W or H: x^(2/α) is inverse gamma with shape a and scale b^(2/α).

    Numbers, or arrays that go with W (rows × rank) or H (rank × columns). Without b the scale is taken from the data.
    """

    a: Any = 1.0
    b: Any = None


class Source(NamedTuple):
    """One of the sources that add up.

    Attributes:
        rank: K, the number of components.
        alpha: index of the stable law in (0, 2]; 2 is Gaussian.
        W: rows × rank, where it is known; None where it is sampled.
        prior_W: of a W that is sampled.
        prior_H: of H.
    """

    rank: int
    alpha: float
    W: Any = None
    prior_W: Prior = Prior()
    prior_H: Prior = Prior()


def estimate_alpha(X: Any) -> float:
    """α from the spread of log|x| about its row and column means, so for scales of rank one; less where they are not.

    Var log|x| is π²/6α² for complex entries and π²/6 (1/α² + 1/2) for real ones.
    """
    X = checked(X)
    logs = np.log(np.abs(np.where(X == 0, np.nan, X)))
    rows, columns = X.shape
    if min(rows, columns) < 2:
        raise ValueError("an estimate of alpha needs two rows and two columns or more")
    seen = np.isfinite(logs)
    if not (seen.any(0).all() and seen.any(1).all()):
        raise ValueError("an estimate of alpha needs an entry in every row and column")
    for _ in range(20):  # of a complete matrix the first turn is exact
        logs = logs - np.nanmean(logs, 1, keepdims=True)
        logs = logs - np.nanmean(logs, 0, keepdims=True)
    free = max(seen.sum() - rows - columns + 1, 1)
    spread = 6 / np.pi**2 * np.nansum(logs**2) / free - (0 if np.iscomplexobj(X) else 0.5)
    return float(min(2.0, 1 / np.sqrt(max(spread, 0.25))))


class Model(NamedTuple):
    """A checked model: arrays, and :class:`Form`, which compiled programs are made for.

    Attributes:
        log_power: log |x|², of missing entries any number.
        observed: 1 where there is an entry, 0 where not; None where there are no missing ones.
        size: how many entries there are.
        fixed: W of the sources that have one, else None.
        priors: (W, H) of each source, b in our units.
        start: W and H of each source.
        form: the rest.
    """

    log_power: Array
    observed: Array | None
    size: Array
    fixed: tuple[Array | None, ...]
    priors: tuple[tuple[Prior, Prior], ...]
    start: tuple[dict[str, Array], ...]
    form: Any


class Form(NamedTuple):
    """The indices of the sources, 2 for complex or 1 for real entries, and whether W and H are sampled themselves, and
    folded back, instead of their logarithms."""

    alphas: tuple[float, ...]
    dof: int
    mirror: bool


def checked(X: Any) -> np.ndarray:
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
    """The model in its units, and what the unit is."""
    sources = list(sources)
    if not sources or not all(isinstance(s, Source) for s in sources):
        raise ValueError("sources must be a list of one Source or more")
    magnitude, shape = np.abs(X), X.shape
    seen = ~np.isnan(magnitude)
    unit = float(np.exp(np.mean(np.log(magnitude[seen & (magnitude > 0)]))))
    rng = np.random.default_rng(0)  # components that start alike would stay alike for long
    fixed, priors, start = [], [], []
    for n, s in enumerate(sources):
        alpha, rank = _index(s.alpha, n), _check.at_least(f"rank of source {n}", s.rank, 1)
        W = _dictionary(s.W, (shape[0], rank), n)
        size_W = 1.0 if W is None else float(W.mean())
        share = 1 / (rank * len(sources) * size_W)  # what H then is in our units, of a source with its share of X
        prior_W = _prior(s.prior_W, "W", n, (shape[0], rank), 1.0, 1.0)
        prior_H = _prior(s.prior_H, "H", n, (rank, shape[1]), share, unit**alpha)
        jitter = lambda *shape: jnp.asarray(np.exp(0.3 * rng.standard_normal(shape)), float)
        # Where W is free, H starts where its prior has most of its mass, and W makes up for it.
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
    """With arrays as numbers, and b in our units."""
    found = Prior(np.asarray(prior.a, float), np.asarray(b if prior.b is None else np.asarray(prior.b, float) / unit))
    for what, value in found._asdict().items():
        if not (np.isfinite(value) & (value > 0)).all():
            raise ValueError(f"{what} of the prior of {name} in source {n} must be finite numbers above 0")
        try:
            np.broadcast_to(value, shape)
        except ValueError:
            raise ValueError(f"{what} of the prior of {name} in source {n} does not go with shape {shape}") from None
    return Prior(*(jnp.asarray(v, float) for v in found))


def factors(model: Model, position: PyTree) -> list[tuple[Array, Array]]:
    """(W, H) of each source from an unconstrained position."""
    positive = (lambda x: x) if model.form.mirror else jnp.exp
    return [
        (positive(p["W"]) if W is None else W, positive(p["H"])) for W, p in zip(model.fixed, position, strict=True)
    ]


def log_prior(model: Model, position: PyTree) -> Array:
    """log p(W) + log p(H), of logarithms with their Jacobian."""
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
    """What a step sees: its rows, its columns (None: all), log |x|², which are observed, and log Φ of each source."""

    rows: Array
    columns: Array | None
    log_power: Array
    observed: Array | None
    log_phi: Array


class Target:
    """−∇Ũ of W and H given the impulses on a block, as the samplers want it."""

    def __init__(self, model: Model, mirror: Callable[[PyTree], PyTree] | None = None):
        self.model, self.mirror, self.size = model, mirror, model.size
        # An ensemble takes gradients of several replicas at once: each of them with its own impulses.
        self.grad = jax.custom_batching.custom_vmap(self._grad)

        @self.grad.def_vmap
        def each(_n, batched, position, block):
            axes = jax.tree.map(lambda _: None, block)._replace(log_phi=0)
            return jax.vmap(self._grad, (0, axes))(position, block), jax.tree.map(lambda _: True, position)

    def log_likelihood(self, position: PyTree, block: Block) -> Array:
        """Σ over the block of log p(x | W, H, Φ), times entries of X over entries of the block."""
        parts = [
            (W[block.rows], H if block.columns is None else H[:, block.columns])
            for W, H in factors(self.model, position)
        ]
        total = logsumexp(block.log_phi + log_variances(self.model, parts), 0)
        each = log_normal(block.log_power, total, self.model.form.dof)
        seen = each if block.observed is None else each * block.observed
        return jnp.sum(seen) * (self.model.log_power.size / block.log_power.size)

    def log_density(self, position: PyTree, block: Block) -> Array:
        """−Ũ."""
        return log_prior(self.model, position) + self.log_likelihood(position, block)

    def _grad(self, position: PyTree, block: Block) -> PyTree:
        return jax.grad(self.log_density)(position, block)

    def mean_likelihood_grad(self, position: PyTree, block: Block) -> PyTree:
        """The likelihood's gradient for one entry, on average."""
        return jax.tree.map(lambda g: g / self.size, jax.grad(self.log_likelihood)(position, block))

    def combine(self, position: PyTree, g_bar: PyTree) -> PyTree:
        """With the prior's gradient, for all entries."""
        prior = jax.grad(lambda p: log_prior(self.model, p))(position)
        return jax.tree.map(lambda p, g: p + self.size * g, prior, g_bar)
