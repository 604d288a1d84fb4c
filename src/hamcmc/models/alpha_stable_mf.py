r"""Factorization of a matrix whose entries are heavy-tailed: alpha-stable matrix factorization.

Sources add up, :math:`X = \sum_s X^s`, and each has independent symmetric α-stable entries, complex isotropic or real,

.. math:: X^s_{ij} ∼ SαS(σ_{ij}), \quad σ_{ij}^{α} = [WH]_{ij}, \qquad
    W_{ik} ∼ GG(a_w, b_w, -2/α), \quad H_{kj} ∼ GG(a_h, b_h, -2/α)

with an α, a W and an H of its own. Given impulses :math:`Φ_{ij}`, twice a positive stable variable of index α/2, all
is Gaussian: :math:`X_{ij} ∼ N(0, V_{ij})` with :math:`V = \sum_s Φ^s [W^s H^s]^{2/α_s}`, the variance of the real part,
and of the imaginary part where there is one. The mean of a source is then the gain :math:`Φ^s [W^s H^s]^{2/α_s} / V`
times X: a Wiener filter, which averages over all that is not known.

**Impulses** are drawn by Metropolis steps. Kanter's representation makes Φ a function of an angle and an exponential
variable, whose densities are simple, while that of Φ is not. A step proposes both from the prior (``"prior"``, the
paper's way, hardly ever accepted where |x|² is far above V), or by a random walk on the logit of the angle and the
logarithm of the exponential (``"walk"``).

**W and H** follow from any gradient sampler on a random block of rows and columns, or from ``"gibbs"``: the component k
of a sum of stable components is stable, too, so give each its own impulses, :math:`s_k ∼ N(0, Φ_k ω_i η_j)` with
:math:`ω = w_{ik}^{2/α}` and :math:`η = h_{kj}^{2/α}`. A priori ω is inverse gamma, IG(a_w, b_w^{2/α}), hence

.. math:: ω_i ∣ s, Φ, η ∼ IG\Big(a_w + \frac{d}{2} J, \; b_w^{2/α} + \sum_j \frac{|s_{kij}|²}{2 Φ_{kij} η_j}\Big)

with d = 2 for complex and 1 for real entries, and η likewise. The impulses are drawn given X alone, then the Gaussian
components given them and X, then W and H.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp

from hamcmc import _check, samplers
from hamcmc.noise import threefry
from hamcmc.samplers.base import Sampler

PyTree = Any
PROPOSALS = ("prior", "walk", "both")
WALK = 2.0  # longest step of the random walk in the angle's logit and the exponential's logarithm


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


class Factors(NamedTuple):
    """What is known of a source.

    Attributes:
        W: draws × rows × rank; a W that was given is as it was.
        H: draws × rank × columns.
        gain: posterior mean of the filter; times X, it is the posterior mean of the source.
        gain_sd: its posterior standard deviation.
        alpha: index of the stable law.
        acceptance: of the Metropolis steps of its impulses, after the warm-up.
    """

    W: np.ndarray
    H: np.ndarray
    gain: np.ndarray
    gain_sd: np.ndarray
    alpha: float
    acceptance: float


class AlphaStableMF(NamedTuple):
    """The posterior of an alpha-stable matrix factorization.

    Attributes:
        sources: the :class:`Factors` of each.
        potential: −log p(X, W, H | Φ), up to a constant, after every `thin` steps from the very first on.
        settings: what was asked for.
    """

    sources: tuple[Factors, ...]
    potential: np.ndarray
    settings: dict[str, Any]

    @property
    def W(self) -> np.ndarray:
        """Draws of the first source's W."""
        return self.sources[0].W

    @property
    def H(self) -> np.ndarray:
        """Draws of the first source's H."""
        return self.sources[0].H


class Recipe(NamedTuple):
    """How a sampler is run on these models: its options, and ε (see :func:`separate` for its unit)."""

    options: dict[str, Any]
    step_size: float


RECIPES = {
    "sgld": Recipe({}, 0.1),
    "psgld": Recipe({"regularizer": 1e-3}, 0.03),
    "hamcmc": Recipe({"memory": 5, "cosine": 0.1}, 0.1),
    "ensemble_hamcmc": Recipe({"pairs": 5, "gamma": 1.0, "cosine": 0.3}, 0.1),
}


def alpha_stable_mf(X: Any, rank: int, alpha: float | str, **options: Any) -> AlphaStableMF:
    """Factor a complex or real matrix with heavy-tailed entries: σ^α = W H.

    Args:
        X: rows × columns; NaN where an entry is missing.
        rank: K.
        alpha: index of the stable law in (0, 2], or ``"estimate"``: see :func:`estimate_alpha`.
        **options: of :func:`separate`; `prior_W` and `prior_H` of :class:`Source`.

    >>> import numpy as np, hamcmc
    >>> rng = np.random.default_rng(0)
    >>> scale = np.outer([1, 1, 5, 5], np.linspace(1, 3, 40))
    >>> X = scale * rng.standard_cauchy((4, 40))
    >>> found = hamcmc.alpha_stable_mf(X, rank=1, alpha=1.0, sampler="gibbs", warmup=100, samples=50)
    >>> found.W.shape, found.H.shape
    ((50, 4, 1), (50, 1, 40))
    >>> row = np.median((found.W @ found.H).mean(2), 0)
    >>> bool(row[2:].min() > 2 * row[:2].max())
    True
    """
    priors = {k: options.pop(k) for k in ("prior_W", "prior_H") if k in options}
    index = estimate_alpha(X) if alpha == "estimate" else alpha
    return separate(X, [Source(rank, index, **priors)], **options)  # type: ignore[arg-type]


def estimate_alpha(X: Any) -> float:
    """α from the spread of log|x| about its row and column means, so for scales of rank one; less where they are not.

    Var log|x| is π²/6α² for complex entries and π²/6 (1/α² + 1/2) for real ones.
    """
    X = _checked(X)
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


def separate(
    X: Any,
    sources: Sequence[Source],
    *,
    sampler: str = "hamcmc",
    options: dict[str, Any] | None = None,
    step_size: float | None = None,
    warmup: int = 1000,
    samples: int = 100,
    thin: int = 10,
    batch: tuple[int, int] | None = None,
    sweeps: int = 3,
    proposal: str = "both",
    positivity: str = "log",
    clip: float | None = 1.0,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> AlphaStableMF:
    """Sources that add up to X, each an alpha-stable factorization.

    Args:
        X: rows × columns, complex or real; NaN where an entry is missing.
        sources: the :class:`Source` of each.
        sampler: of W and H: ``"sgld"``, ``"psgld"``, ``"hamcmc"``, ``"ensemble_hamcmc"``, or ``"gibbs"``. Of HAMCMC's
            interleaved chains and of an ensemble's replicas each has its own impulses.
        options: of the sampler, in place of the recipe's.
        step_size: ε, constant.
        warmup: steps before the first draw.
        samples: draws that are kept and averaged over.
        thin: steps between two draws.
        batch: rows and columns of the block that a step sees; by default a tenth of the rows and all columns.
        sweeps: Metropolis sweeps over the impulses of the block before each step.
        proposal: of the impulses: ``"prior"``, ``"walk"``, or ``"both"``, one after the other.
        positivity: sample logarithms (``"log"``), or fold back (``"mirror"``, the paper's way).
        clip: the farthest that a step may move a coordinate, against the rare step that would throw a chain far away;
            None for no bound. Not for the ensemble.
        seed: everything random follows from it.
        progress: called with the fraction done.
    """
    X = _checked(X)
    model, unit = _model(X, sources, positivity)
    _check.one_of("sampler", sampler, (*RECIPES, "gibbs"))
    _check.one_of("proposal", proposal, PROPOSALS)
    for name, value, least in (
        ("warmup", warmup, 0),
        ("samples", samples, 1),
        ("thin", thin, 1),
        ("sweeps", sweeps, 1),
    ):
        _check.at_least(name, value, least)
    block = _batch(batch, X.shape)
    if clip is not None:
        _check.positive("clip", clip)
    recipe = RECIPES.get(sampler, Recipe({}, 1.0))
    if sampler == "gibbs" and (options or step_size or positivity != "log"):
        raise ValueError("gibbs takes neither options nor a step_size, and needs no mirror")
    over = {"psgld": X.size, "sgld": max(X.shape)}.get(sampler, 1)
    epsilon = recipe.step_size / over if step_size is None else _check.positive("step_size", step_size)
    alphas = model.form.alphas
    if sampler == "gibbs":  # each component has its impulses
        alphas = tuple(np.repeat(alphas, [s.rank for s in sources]).tolist())
    metropolis = Metropolis(alphas, model.form.dof, proposal, sweeps)
    chosen = tuple(sorted((recipe.options | (options or {})).items()))
    plan = Plan(model.form, sampler, chosen, block, metropolis, thin)
    settings = {
        "sampler": sampler,
        "options": dict(chosen),
        "step_size": epsilon,
        "warmup": warmup,
        "samples": samples,
        "thin": thin,
        "batch": block,
        "sweeps": sweeps,
        "proposal": proposal,
        "positivity": positivity,
        "clip": clip,
        "seed": _check.at_least("seed", seed, 0),
    }
    kept, (gains, squares, acceptance), trace = _run(plan, model, settings, progress)
    found = []
    for n, (source, draws) in enumerate(zip(sources, kept, strict=True)):
        mean = gains[n] / samples
        sd = np.sqrt(np.maximum(squares[n] / samples - mean**2, 0))
        W = draws["W"] if source.W is None else np.asarray(source.W)
        H = draws["H"] * unit**source.alpha
        found.append(Factors(W, H, mean, sd, float(source.alpha), float(acceptance[n] / samples)))
    return AlphaStableMF(tuple(found), trace, settings)


# --- the model, in units in which entries are about 1 ---


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


class Plan(NamedTuple):
    """What a compiled program does: all that is not an array."""

    form: Form
    sampler: str
    options: tuple[tuple[str, Any], ...]
    batch: tuple[int, int]
    metropolis: "Metropolis"
    thin: int


def _checked(X: Any) -> np.ndarray:
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


def _batch(batch: tuple[int, int] | None, shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = (-(-shape[0] // 10), shape[1]) if batch is None else batch
    for name, n, most in (("rows", rows, shape[0]), ("columns", columns, shape[1])):
        if _check.at_least(f"batch {name}", n, 1) > most:
            raise ValueError(f"batch has {n} {name}, X has {most}")
    return int(rows), int(columns)


def _model(X: np.ndarray, sources: Sequence[Source], positivity: str) -> tuple[Model, float]:
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


# --- impulses ---


def log_impulse(latent: Array, alpha: Any) -> Array:
    """log Φ from the logit of the angle and the logarithm of the exponential variable (Kanter)."""
    a = jnp.asarray(alpha, latent.dtype) / 2
    angle, rest = jnp.pi * jax.nn.sigmoid(latent[0]), jnp.pi * jax.nn.sigmoid(-latent[0])
    log_sin = lambda x: jnp.log(jnp.maximum(jnp.sin(x), jnp.finfo(latent.dtype).tiny))
    # sin U is sin(π − U): of the smaller of the two, which has its digits.
    log_sin_u = log_sin(jnp.minimum(angle, rest))
    return math.log(2) + log_sin(a * angle) - log_sin_u / a + (1 - a) / a * (log_sin((1 - a) * angle) - latent[1])


def log_latent_density(latent: Array) -> Array:
    """Of the logit of a uniform angle and the logarithm of an exponential variable."""
    return jax.nn.log_sigmoid(latent[0]) + jax.nn.log_sigmoid(-latent[0]) + latent[1] - jnp.exp(latent[1])


def draw_latent(u: Array, v: Array) -> Array:
    """From their prior by two uniform numbers; small u are large angles, and they keep their digits."""
    return jnp.stack([jnp.log1p(-u) - jnp.log(u), jnp.log(-jnp.log(v))])


def uniforms(key: Array, number: int, shape: tuple[int, ...]) -> Array:
    """Uniform numbers in (0, 1), (number, *shape): as :mod:`hamcmc.noise`, four times faster than JAX's on a CPU."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    words, count = jax.random.key_data(key), lax.iota(jnp.uint32, math.prod(shape))
    if words.shape != (2,):  # another generator
        words = jax.random.bits(key, (2,), jnp.uint32)
    bits = 23 if dtype == jnp.float32 else 32  # so that half a unit more is a number, too

    def pair(i):
        both = threefry(words[0], words[1], jnp.full_like(count, i), count)
        return tuple(((x >> np.uint32(32 - bits)).astype(dtype) + 0.5) * dtype.type(2.0**-bits) for x in both)

    # Through a loop, or the compiler would draw them anew at each place of use.
    pairs = lax.map(pair, jnp.arange(-(-number // 2), dtype=jnp.uint32))
    return jnp.concatenate(pairs)[:number].reshape(number, *shape)


class Metropolis(NamedTuple):
    """Metropolis steps for impulses, one source after the other.

    State: an array (sources, 3, rows, columns) of the two variables of Kanter's representation, and log Φ.
    """

    alphas: Any
    dof: int
    proposal: str
    sweeps: int

    def start(self, log_v: Array, log_power: Array) -> Array:
        """Impulses to start from, as large as the data ask for: else large entries throw W and H far away."""
        wanted = log_power - logsumexp(log_v, 0)
        grid = jnp.stack([jnp.linspace(0, 40, 400), jnp.zeros(400)])  # from the median angle on, where log Φ increases

        def source(alpha):
            latent = jnp.stack([jnp.interp(wanted, log_impulse(grid, alpha), grid[0]), jnp.zeros_like(wanted)])
            return jnp.concatenate([latent, log_impulse(latent, alpha)[None]])

        return lax.map(source, jnp.asarray(self.alphas, log_v.dtype))

    def __call__(
        self, key: Array, state: Array, log_v: Array, log_power: Array, observed: Array | None
    ) -> tuple[Array, Array]:
        """All sweeps; the new state, and of each source the part of the proposals that was accepted."""
        kinds = ("prior", "walk") if self.proposal == "both" else (self.proposal,)

        def source(below, parts):
            key, old, log_v, above, alpha = parts
            others = jnp.logaddexp(below, above)
            density = lambda log_phi: (
                (1.0 if observed is None else observed)
                * log_normal(log_power, jnp.logaddexp(others, log_phi + log_v), self.dof)
            )
            accepted = jnp.zeros(())
            u = uniforms(key, 3 * len(kinds), log_power.shape)
            for n, kind in enumerate(kinds):
                old, yes = _metropolis_step(u[3 * n : 3 * n + 3], kind, old, density, alpha)
                accepted += jnp.mean(yes) / len(kinds)
            return jnp.logaddexp(below, old[2] + log_v), (old, accepted)

        def sweep(i, carry):
            state, accepted = carry
            # Sources above are as they were, those below as they are now: no sum ever has a term taken away.
            terms = state[:, 2] + log_v
            nothing = jnp.full_like(log_power, -jnp.inf)
            above = jnp.concatenate([lax.cumlogsumexp(terms, 0, reverse=True)[1:], nothing[None]])
            keys = jax.random.split(jax.random.fold_in(key, i), len(self.alphas))
            alphas = jnp.asarray(self.alphas, log_v.dtype)
            _, (state, new) = lax.scan(source, nothing, (keys, state, log_v, above, alphas))
            if len(self.alphas) > 1:
                state = _swap(jax.random.fold_in(keys[0], 1), state, log_v, log_power, observed, alphas, self.dof)
            return state, accepted + new / self.sweeps

        return lax.fori_loop(0, self.sweeps, sweep, (state, jnp.zeros(len(self.alphas))))


def _metropolis_step(u: Array, kind: str, old: Array, density: Callable, alpha: Array) -> tuple[Array, Array]:
    if kind == "prior":
        latent, ratio = draw_latent(u[0], u[1]), 0.0
    else:
        latent = old[:2] + WALK * (2 * u[:2] - 1)
        ratio = log_latent_density(latent) - log_latent_density(old[:2])
    new = jnp.concatenate([latent, log_impulse(latent, alpha)[None]])
    yes = jnp.log(u[2]) < ratio + density(new[2]) - density(old[2])
    return jnp.where(yes, new, old), yes


def _swap(
    key: Array, state: Array, log_v: Array, log_power: Array, observed: Array | None, alphas: Array, dof: int
) -> Array:
    """Let two random sources change roles: a large entry is due to one of them, and single steps never swap them.

    Large Φ have log Φ ≈ logit/a + c − (1−a)/a log E. The proposal swaps what that makes of Φ [WH]^(2/α), by new logits:
    it is its own inverse, and keeps volumes.
    """
    key_one, key_other, key_accept = jax.random.split(key, 3)
    sources, a = len(alphas), alphas / 2
    one = jax.random.randint(key_one, (), 0, sources)
    other = (one + jax.random.randint(key_other, (), 1, sources)) % sources
    c = jnp.log(jnp.sin(jnp.pi * a)) - jnp.log(jnp.pi) / a + (1 - a) / a * jnp.log(jnp.sin(jnp.pi * (1 - a)))
    rest = lambda s: c[s] - (1 - a[s]) / a[s] * state[s, 1] + log_v[s]
    size = lambda s: state[s, 0] / a[s] + rest(s)

    def moved(s, r):
        latent = jnp.stack([a[s] * (size(r) - rest(s)), state[s, 1]])
        return jnp.concatenate([latent, log_impulse(latent, alphas[s])[None]])

    new = state.at[one].set(moved(one, other)).at[other].set(moved(other, one))
    density = lambda x: (
        (1.0 if observed is None else observed) * log_normal(log_power, logsumexp(x[:, 2] + log_v, 0), dof)
        + jnp.sum(jax.vmap(log_latent_density)(x[:, :2]), 0)
    )
    yes = jnp.log(uniforms(key_accept, 1, log_power.shape)[0]) < density(new) - density(state)
    return jnp.where(yes, new, state)


# --- chains ---


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
    copies = general.settings["memory"] if name == "hamcmc" else replicas
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


def _chain(plan: Plan, model: Model, step_size: Any = 1.0, clip: Any = math.inf) -> Chain:
    if plan.sampler == "gibbs":
        return gibbs_chain(model, plan.metropolis)
    return gradient_chain(model, plan.metropolis, plan.sampler, dict(plan.options), step_size, plan.batch, clip)


@partial(jax.jit, static_argnames=("plan", "samples", "looks"))
def _start(plan: Plan, arrays: Model, key: Array, samples: int, looks: int) -> tuple:
    """State, draws, sums of gains, their squares and acceptances, and the trace of the potential."""
    model = arrays._replace(form=plan.form)
    chain = _chain(plan, model)
    state = chain.init(key)
    seen = jax.eval_shape(chain.look, state, jnp.zeros((), jnp.int32))
    zeros = lambda x: jnp.zeros(x.shape, x.dtype)
    kept = jax.tree.map(lambda x: jnp.zeros((samples, *x.shape), x.dtype), _free(model, seen.factors))
    return state, kept, (zeros(seen.gains), zeros(seen.gains), zeros(seen.acceptance)), jnp.zeros(looks)


@partial(jax.jit, static_argnames="plan", donate_argnames="carry")
def _visit(
    plan: Plan, arrays: Model, key: Array, step_size: Array, clip: Array, carry: tuple, begin, end, before
) -> tuple:
    """Draws begin … end−1, of which those from `before` on count."""
    model = arrays._replace(form=plan.form)
    chain = _chain(plan, model, step_size, clip)

    def draw(t, carry):
        state, kept, sums, trace = carry
        number = lambda i: jax.random.fold_in(key, t * plan.thin + i)
        state = lax.fori_loop(0, plan.thin, lambda i, s: chain.step(number(i), s), state)
        seen = chain.look(state, t)
        put = lambda store, x: store.at[jnp.maximum(t - before, 0)].set(x)
        kept = jax.tree.map(put, kept, _free(model, seen.factors))
        new = (seen.gains, seen.gains**2, seen.acceptance)
        sums = jax.tree.map(lambda a, b: a + jnp.where(t >= before, b, 0), sums, new)
        return state, kept, sums, trace.at[t].set(seen.potential)

    return lax.fori_loop(begin, end, draw, carry)


def _run(plan: Plan, model: Model, settings: dict[str, Any], progress: Callable | None) -> tuple:
    """Warm-up and draws in one compiled loop, which the host visits to say how far it is."""
    before = -(-settings["warmup"] // plan.thin)
    looks = before + settings["samples"]
    key_start, key = jax.random.split(jax.random.key(settings["seed"]))
    carry = _start(plan, model._replace(form=None), key_start, settings["samples"], looks)
    bounds = (jnp.asarray(settings["step_size"], float), jnp.asarray(settings["clip"] or np.inf, float))
    fixed = (plan, model._replace(form=None), key, *bounds)
    for begin, end in pairwise(np.unique(np.linspace(0, looks, 21).astype(np.int32))):
        carry = _visit(*fixed, carry, begin, end, np.int32(before))
        good = np.isfinite(np.asarray(carry[3])[:end])
        if not good.all():
            steps = plan.thin * (int(np.argmin(good)) + 1)
            raise FloatingPointError(f"no longer finite after {steps} steps: try a smaller step_size")
        if progress:
            progress(end / looks)
    return jax.tree.map(lambda x: np.asarray(x, float), carry[1:])


def _free(model: Model, parts: list[tuple[Array, Array]]) -> list[dict[str, Array]]:
    """W and H, without those W that are given."""
    return [{"H": H} | ({} if fixed is not None else {"W": W}) for fixed, (W, H) in zip(model.fixed, parts)]
