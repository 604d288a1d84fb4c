"""Draws of alpha-stable factorizations in one call."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc import _check
from hamcmc._renamed import renamed
from hamcmc._types import Record
from hamcmc.inference.display import shown
from hamcmc.inference.many import Turn, advance
from hamcmc.inference.progress import Progress, Status
from hamcmc.stable.calibration import ranks_of, turned
from hamcmc.stable.chains import RECIPES, Chain, Recipe, gibbs_chain, gradient_chain, unit_of_step
from hamcmc.stable.impulses import PROPOSALS, Metropolis
from hamcmc.stable.model import Form, Model, Source, build, checked, estimate_alpha
from hamcmc.store.errors import NonFinite

STRIDE = 10  # steps between two looks at a chain that warms up, if draws are closer than that
SEGMENTS = 20  # compiled pieces of a run, between which the host looks for NaN and reports progress


class Factors(NamedTuple):
    """What is known of a source.

    Attributes:
        W: draws × rows × rank; a W that was given is returned as it was.
        H: draws × rank × columns.
        gain: posterior mean of the filter. Its product with X is the posterior mean of the source.
        gain_sd: its posterior standard deviation.
        alpha: index of the stable law.
        acceptance: of the Metropolis steps of its impulses, after the warm-up.
        ranks: the posterior probability of less than the truth, if that was given, for the part along x and, of
            complex entries, the part across it: parts × rows × columns. See :mod:`hamcmc.stable.calibration`.
    """

    W: np.ndarray
    H: np.ndarray
    gain: np.ndarray
    gain_sd: np.ndarray
    alpha: float
    acceptance: float
    ranks: np.ndarray | None = None


class AlphaStableMF(NamedTuple):
    """The posterior of an alpha-stable matrix factorization.

    Attributes:
        sources: the :class:`Factors` of each.
        potential: −log p(X, W, H | Φ), up to a constant, after every `thin` steps; in the warm-up at least ten.
        settings: the arguments of the run, with the defaults filled in.
    """

    sources: tuple[Factors, ...]
    potential: np.ndarray
    settings: Record

    @property
    def W(self) -> np.ndarray:
        """Draws of the first source's W."""
        return self.sources[0].W

    @property
    def H(self) -> np.ndarray:
        """Draws of the first source's H."""
        return self.sources[0].H


@renamed(samples="num_samples", batch="block")
def alpha_stable_mf(X: Any, rank: int, alpha: float | str, **options: Any) -> AlphaStableMF:
    """Factor a complex or real matrix with heavy-tailed entries: σ^α = W H.

    Args:
        X: rows × columns; NaN where an entry is missing.
        rank: K.
        alpha: index of the stable law in (0, 2], or ``"estimate"``: see
            :func:`~hamcmc.stable.model.estimate_alpha`.
        **options: those of :func:`hamcmc.stable.separate`, and `prior_W` and `prior_H` of
            :class:`~hamcmc.stable.model.Source`.

    >>> import numpy as np, hamcmc
    >>> rng = np.random.default_rng(0)
    >>> scale = np.outer([1, 1, 5, 5], np.linspace(1, 3, 40))
    >>> X = scale * rng.standard_cauchy((4, 40))
    >>> found = hamcmc.alpha_stable_mf(X, rank=1, alpha=1.0, sampler="gibbs", warmup=100, num_samples=50)
    >>> found.W.shape, found.H.shape
    ((50, 4, 1), (50, 1, 40))
    >>> row = np.median((found.W @ found.H).mean(2), 0)
    >>> bool(row[2:].min() > 2 * row[:2].max())
    True
    """
    priors = {k: options.pop(k) for k in ("prior_W", "prior_H") if k in options}
    index = estimate_alpha(X) if alpha == "estimate" else alpha
    return separate(X, [Source(rank, index, **priors)], **options)  # type: ignore[arg-type]


@renamed(samples="num_samples", batch="block")
def separate(
    X: Any,
    sources: Sequence[Source],
    *,
    sampler: str = "hamcmc",
    options: Record | None = None,
    step_size: float | None = None,
    warmup: int = 1000,
    num_samples: int = 100,
    thin: int = 10,
    block: tuple[int, int] | None = None,
    sweeps: int = 3,
    proposal: str = "both",
    swap: bool = True,
    positivity: str = "log",
    clip: float | None = 1.0,
    truth: Sequence[Any] | None = None,
    seed: int = 0,
    progress: bool | Progress | None = None,
) -> AlphaStableMF:
    """Separate X into sources that add up to it, each an alpha-stable factorization.

    Args:
        X: rows × columns, complex or real; NaN where an entry is missing.
        sources: the :class:`~hamcmc.stable.model.Source` of each.
        sampler: of W and H: ``"sgld"``, ``"psgld"``, ``"hamcmc"``, ``"ensemble_hamcmc"``, or ``"gibbs"``. Each of
            HAMCMC's interleaved chains and each replica of an ensemble has its own impulses.
        options: options of the sampler, which replace those of its recipe.
        step_size: ε, constant.
        warmup: steps before the first draw.
        num_samples: draws that are kept and averaged over.
        thin: steps between two draws.
        block: rows and columns of the block that a step sees; by default a tenth of the rows and all columns.
        sweeps: Metropolis sweeps over the impulses of the block before each step.
        proposal: of the impulses: ``"prior"``, ``"walk"``, or ``"both"``, one after the other.
        swap: whether each sweep also proposes that two sources change roles. The paper has no such move.
        positivity: sample logarithms (``"log"``), or fold back (``"mirror"``, as in the paper).
        clip: the farthest that a step may move a coordinate, against the rare step that would throw a chain far away;
            None for no bound. Not for the ensemble.
        truth: the sources themselves, where they are known, to see how well the posterior covers them.
        seed: everything random follows from it.
        progress: True for a progress bar, None for one if stderr is a terminal, or a function that is called with a
            :class:`~hamcmc.inference.progress.Status`.

    Raises:
        NonFinite: a chain became NaN or infinite.
    """
    X = checked(X)
    model, unit = build(X, sources, positivity)
    _check.one_of("sampler", sampler, (*RECIPES, "gibbs"))
    _check.one_of("proposal", proposal, PROPOSALS)
    counts = {"warmup": (warmup, 0), "num_samples": (num_samples, 1), "thin": (thin, 1), "sweeps": (sweeps, 1)}
    for name, (value, least) in counts.items():
        _check.at_least(name, value, least)
    rows_columns = _block(block, X.shape)
    if clip is not None:
        _check.positive("clip", clip)
    recipe = RECIPES.get(sampler, Recipe({}, 1.0))
    if sampler == "gibbs" and (options or step_size or positivity != "log"):
        raise ValueError("gibbs takes neither options nor a step_size, and samples logarithms only")
    epsilon = recipe.step_size / unit_of_step(sampler, X.shape)
    if step_size is not None:
        epsilon = _check.positive("step_size", step_size)
    alphas = model.form.alphas
    if sampler == "gibbs":  # each component has its own impulses
        alphas = tuple(np.repeat(alphas, [s.rank for s in sources]).tolist())
    metropolis = Metropolis(alphas, model.form.dof, proposal, sweeps, swap)
    chosen = recipe.options | (options or {})
    numbers = {name: value for name, value in chosen.items() if isinstance(value, float)}  # one program serves for all
    others = tuple(sorted((name, value) for name, value in chosen.items() if name not in numbers))
    plan = Plan(model.form, sampler, others, rows_columns, metropolis, thin)
    jax.eval_shape(partial(_check_options, plan, numbers), model._replace(form=None))
    settings = {
        "sampler": sampler,
        "options": dict(sorted(chosen.items())),
        "step_size": epsilon,
        "warmup": warmup,
        "num_samples": num_samples,
        "thin": thin,
        "block": rows_columns,
        "sweeps": sweeps,
        "proposal": proposal,
        "swap": swap,
        "positivity": positivity,
        "clip": clip,
        "seed": _check.at_least("seed", seed, 0),
    }
    with shown(progress, "separating") as show:
        kept, (gains, squares, acceptance, ranks), trace = _run(
            plan, numbers, model, settings, turned(truth, X, unit), show
        )
    found = []
    for n, (source, draws) in enumerate(zip(sources, kept, strict=True)):
        mean = gains[n] / num_samples
        sd = np.sqrt(np.maximum(squares[n] / num_samples - mean**2, 0))
        W = draws["W"] if source.W is None else np.asarray(source.W)
        H = draws["H"] * unit**source.alpha
        rank = None if truth is None else ranks[n] / num_samples
        found.append(Factors(W, H, mean, sd, float(source.alpha), float(acceptance[n] / num_samples), rank))
    return AlphaStableMF(tuple(found), trace, settings)


def _block(block: tuple[int, int] | None, shape: tuple[int, ...]) -> tuple[int, int]:
    """The rows and columns that a step sees."""
    rows, columns = (-(-shape[0] // 10), shape[1]) if block is None else block
    for name, n, most in (("rows", rows, shape[0]), ("columns", columns, shape[1])):
        if _check.at_least(f"block {name}", n, 1) > most:
            raise ValueError(f"block has {n} {name}, X has {most}")
    return int(rows), int(columns)


class Plan(NamedTuple):
    """What a compiled program does: everything that is neither an array nor an option that is a number."""

    form: Form
    sampler: str
    options: tuple[tuple[str, Any], ...]
    block: tuple[int, int]
    metropolis: Metropolis
    thin: int


class Carry(NamedTuple):
    """What goes from one segment to the next.

    Attributes:
        state: of the chain.
        kept: the draws of W and H.
        sums: over the draws, of gains, their squares, acceptances and ranks of the truth.
        trace: the potential after every `thin` steps.
    """

    state: Any
    kept: list[dict[str, Array]]
    sums: tuple[Array, Array, Array, Array | None]
    trace: Array


def _chain(plan: Plan, numbers: Record, model: Model, clip: Any = math.inf) -> Chain:
    if plan.sampler == "gibbs":
        return gibbs_chain(model, plan.metropolis)
    return gradient_chain(model, plan.metropolis, plan.sampler, dict(plan.options) | numbers, plan.block, clip)


def _check_options(plan: Plan, numbers: Record, arrays: Model) -> None:
    """Let the sampler refuse its options while they are numbers: a program gets them as arrays, which pass."""
    _chain(plan, numbers, arrays._replace(form=plan.form))


@partial(jax.jit, static_argnames=("plan", "samples", "looks"))
def _start(
    plan: Plan, numbers: Record, arrays: Model, key: Array, truth: Array | None, samples: int, looks: int
) -> Carry:
    """The chain at its start, with room for draws and trace."""
    model = arrays._replace(form=plan.form)
    chain = _chain(plan, numbers, model)
    state = chain.sampler.init(chain.start(key))
    seen = jax.eval_shape(chain.look, state, jnp.zeros((), jnp.int32))
    kept = jax.tree.map(lambda x: jnp.zeros((samples, *x.shape), x.dtype), _free(model, seen.factors))
    gains, acceptance = (jnp.zeros(x.shape, x.dtype) for x in (seen.gains, seen.acceptance))
    return Carry(state, kept, (gains, gains, acceptance, jax.tree.map(jnp.zeros_like, truth)), jnp.zeros(looks))


@partial(jax.jit, static_argnames="plan", donate_argnames="carry")
def _segment(
    plan: Plan,
    numbers: Record,
    arrays: Model,
    key: Array,
    step_size: Array,
    clip: Array,
    truth: Array | None,
    carry: Carry,
    begin,
    end,
    before,
) -> Carry:
    """Looks begin … end−1, of which those from `before` on are draws."""
    model = arrays._replace(form=plan.form)
    chain = _chain(plan, numbers, model, clip)
    stride = max(plan.thin, STRIDE)

    def draw(t: Array, carry: Carry) -> Carry:
        def turn(i: Array) -> Turn:
            return Turn(jax.random.fold_in(key, i), None, step_size)

        def put(store: Array, x: Array) -> Array:
            return store.at[jnp.maximum(t - before, 0)].set(x)

        first = stride * jnp.minimum(t, before) + plan.thin * jnp.maximum(t - before, 0)
        state, _ = advance(chain.sampler, carry.state, turn, first, first + jnp.where(t < before, stride, plan.thin))
        seen = chain.look(state, t)
        kept = jax.tree.map(put, carry.kept, _free(model, seen.factors))
        ranks = None if truth is None else ranks_of(truth, model.log_power, seen)
        new = (seen.gains, seen.gains**2, seen.acceptance, ranks)
        sums = jax.tree.map(lambda a, b: a + jnp.where(t >= before, b, 0), carry.sums, new)
        return Carry(state, kept, sums, carry.trace.at[t].set(seen.potential))

    return lax.fori_loop(begin, end, draw, carry)


def _run(
    plan: Plan, numbers: Record, model: Model, settings: Record, truth: Array | None, show: Progress
) -> tuple[Any, Any, np.ndarray]:
    """Warm-up and draws: draws of W and H, sums over them, and the trace of the potential."""
    stride = max(plan.thin, STRIDE)
    before = -(-settings["warmup"] // stride)
    looks = before + settings["num_samples"]
    key_start, key = jax.random.split(jax.random.key(settings["seed"]))
    arrays = model._replace(form=None)
    carry = _start(plan, numbers, arrays, key_start, truth, settings["num_samples"], looks)
    step_size, clip = jnp.asarray(settings["step_size"], float), jnp.asarray(settings["clip"] or np.inf, float)

    def count(looks: int) -> int:
        """Steps up to a look."""
        return stride * min(looks, before) + plan.thin * max(looks - before, 0)

    for begin, end in pairwise(np.unique(np.linspace(0, looks, SEGMENTS + 1).astype(np.int32))):
        carry = _segment(plan, numbers, arrays, key, step_size, clip, truth, carry, begin, end, np.int32(before))
        good = np.isfinite(np.asarray(carry.trace)[:end])
        if not good.all():
            steps = count(int(np.argmin(good)) + 1)
            raise NonFinite(f"the chain became non-finite within {steps:,} steps: try a smaller step_size")
        phase = "warm-up" if end <= before else "sampling"
        done, total = count(int(end)), count(looks)
        show(Status(done / total, phase, done, total, stride * before, max(int(end) - before, 0)))
    return jax.tree.map(lambda x: np.asarray(x, float), tuple(carry[1:]))


def _free(model: Model, parts: list[tuple[Array, Array]]) -> list[dict[str, Array]]:
    """W and H, without those W that are given."""
    return [{"H": H} | ({} if fixed is not None else {"W": W}) for fixed, (W, H) in zip(model.fixed, parts)]
