"""Draws of alpha-stable factorizations in one call."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc import _check
from hamcmc.stable.chains import Chain, gibbs_chain, gradient_chain
from hamcmc.stable.impulses import PROPOSALS, Metropolis
from hamcmc.stable.model import Form, Model, Source, build, checked, estimate_alpha


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
    """How a sampler is run on these models: its options, and ε (:func:`separate` has its unit)."""

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
        alpha: index of the stable law in (0, 2], or ``"estimate"``: see
            :func:`~hamcmc.stable.model.estimate_alpha`.
        **options: of :func:`hamcmc.stable.separate`; `prior_W` and `prior_H` of
            :class:`~hamcmc.stable.model.Source`.

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
        sources: the :class:`~hamcmc.stable.model.Source` of each.
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
    X = checked(X)
    model, unit = build(X, sources, positivity)
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


def _batch(batch: tuple[int, int] | None, shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = (-(-shape[0] // 10), shape[1]) if batch is None else batch
    for name, n, most in (("rows", rows, shape[0]), ("columns", columns, shape[1])):
        if _check.at_least(f"batch {name}", n, 1) > most:
            raise ValueError(f"batch has {n} {name}, X has {most}")
    return int(rows), int(columns)


class Plan(NamedTuple):
    """What a compiled program does: all that is not an array."""

    form: Form
    sampler: str
    options: tuple[tuple[str, Any], ...]
    batch: tuple[int, int]
    metropolis: Metropolis
    thin: int


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
