"""What the verdict on a run is based on: everything that is measured, before it is judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import tree_leaves_with_path

from hamcmc._compile import jit, put, x64
from hamcmc._types import PyTree
from hamcmc.diagnostics import gradients
from hamcmc.diagnostics.combinations import Combination, combinations
from hamcmc.diagnostics.ess import interleaved, kish, part
from hamcmc.diagnostics.identities import Confronted, Draws, confront
from hamcmc.diagnostics.mixing import Mixing, mixing
from hamcmc.diagnostics.names import label
from hamcmc.diagnostics.stein import spread
from hamcmc.diagnostics.tails import in_blocks, range_error, tail_index, weight_apart
from hamcmc.store.result import StoredRun
from hamcmc.target.frozen import name_of
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support, of_leaves

VALUES = 5 * 10**7  # numbers of which ESS and R-hat are computed; of a larger run some chains are left out
RUN = 5000  # draws of the run that the gradients are compared with
MEMORY = 2**25  # numbers that these may be
PUSHED = 16  # parameters that are tried for a hard boundary
AT_EDGE = 4  # draws on each side that are pushed outwards for that
USELESS = 0.1  # share of draws without a finite gradient, beyond which the gradients are not used


@dataclass(frozen=True)
class Measured:
    """Measurements on a run; arrays have one entry for each scalar parameter.

    Attributes:
        names: of the scalars.
        mixing: R-hat and ESS.
        half_chains: how many half-chains R-hat compares.
        ensembles: how many independent ensembles or chains there are.
        digits: standard deviations in units of the last digit of the largest values.
        tails: the tail index of the draws: a variance exists below 1/2, a mean below 1.
        ranges: relative standard errors of the ranges from 5 to 95 %.
        apart: by how much a few draws far from all others raise the standard deviations.
        stuck: chain → what is wrong with it.
        acceptance: the mean share of accepted proposals; None if there was no Metropolis test.
        stein: what the gradients say; None if they were not confronted.
        confronted: which scalars `stein` knows.
        bounded: which scalars end at a hard boundary, where Stein's identities do not hold.
        unconfronted: why gradients were not confronted, or not for all parameters.
        lost: nats of the log-density that single precision cannot resolve.
        ended: the share of draws of each scalar of the posterior at the last number before the end of its support, and
            what these scalars are called.
        combinations: what the gradients say along the worst directions, made of the scalars of `combined`.
        combined: the numbers of those scalars.
    """

    names: tuple[str, ...]
    mixing: Mixing
    half_chains: int
    ensembles: int
    digits: np.ndarray
    tails: np.ndarray
    ranges: np.ndarray
    apart: np.ndarray
    stuck: dict[int, str]
    acceptance: float | None
    stein: Confronted | None = None
    confronted: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    bounded: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    unconfronted: str = ""
    lost: float = 0.0
    ended: tuple[tuple[str, float], ...] = ()
    combinations: tuple[Combination, ...] = ()
    combined: np.ndarray = field(default_factory=lambda: np.zeros(0, int))


def measure(result: StoredRun, posterior: Posterior | None, draws: int, seed: int) -> Measured:
    """Everything that the verdict needs to know about a run.

    Gradients stay unconfronted if the run itself is the reason (:class:`~hamcmc.diagnostics.gradients.Unconfronted`).
    Any other error comes from the posterior or from this code. It is raised, because a run whose check has failed must
    not pass for one that was checked.
    """
    free = {} if posterior is None else _free(result, gradients.plain(posterior))
    shapes = {n: free[n].shape if n in free else shape for n, shape in result.shapes.items()}
    called = {n: f"{n} (unconstrained)" if n in free else n for n in shapes}
    names = tuple(label(called[n], shape, i) for n, shape in shapes.items() for i in range(int(np.prod(shape))))
    replicas, apart = int(result.settings.get("replicas", 1)), interleaved(result.settings)
    x, kept = _values(result, replicas, free)
    chains, weights = x.shape[0], np.asarray(result.weights, np.float64)
    as_stored = np.result_type(*(a["dtype"] for a in result.settings["arrays"] if a["group"] == "posterior"))
    coupled = bool(result.settings.get("coupled", True))
    quicker = part(x.astype(as_stored, copy=False), apart)  # ranks of fewer digits are
    found = mixing(quicker, kept, apart, coupled=coupled)
    factor = kish(weights) * result.settings["chains"] / chains if result.draws else np.nan
    found = found._replace(ess_bulk=found.ess_bulk * factor, ess_tail=found.ess_tail * factor)
    flat = x.reshape(-1, x.shape[2])
    measured = {
        "names": names,
        "mixing": found,
        "half_chains": 2 * chains * apart,
        "ensembles": result.settings["chains"] // replicas,
        "digits": _digits(result, shapes, flat),
        "tails": in_blocks(tail_index, flat),
        "ranges": range_error(flat, found.ess_tail),
        "apart": in_blocks(weight_apart, flat),
        "stuck": stuck_chains(x, found, apart),
        "acceptance": _acceptance(result),
    }
    if posterior is None:
        return Measured(**measured, unconfronted="the run's posterior is not at hand")
    if result.partial:
        return Measured(**measured, unconfronted="they need all parameters, and the run stored a part (store=…)")
    try:
        return Measured(**measured, **_confronted(result, gradients.plain(posterior), draws, seed, replicas))
    except gradients.Unconfronted as error:
        return Measured(**measured, unconfronted=str(error))


class Free(NamedTuple):
    """The unconstrained form of a parameter that has more numbers than freedom, such as a simplex."""

    shape: tuple[int, ...]
    inverse: Callable[[Any], Any]


def _inverse(free: Free, x: Any) -> Any:
    """The unconstrained values. (A bijection of NumPyro cannot be compiled itself: it has no hash.)"""
    return free.inverse(x)


def _free(result: StoredRun, posterior: Posterior) -> dict[str, Free]:
    """Parameters that are sampled in another shape than they have. They are judged where they are sampled.

    A Cholesky factor has entries that never move, and the numbers of a simplex sum to 1: for neither is each number a
    parameter.
    """
    if posterior.support is None or not result.shapes:
        return {}
    kinds = {a["name"]: a["dtype"] for a in result.settings["arrays"] if a["group"] == "posterior"}
    like = {n: jax.ShapeDtypeStruct(shape, kinds[n]) for n, shape in result.shapes.items()}
    if result.partial:
        if "names" not in result.settings["store"] or posterior.init is None:
            return {}
        tree = gradients.parameters_of(posterior)
    else:
        try:
            tree = gradients.structure(posterior, like).unflatten(list(like.values()))  # type: ignore[arg-type]
        except gradients.Unconfronted:
            return {}
    supports = jax.tree.leaves(of_leaves(posterior.support, tree), is_leaf=lambda s: isinstance(s, Support))
    by_name = dict(zip((name_of(path) for path, _ in tree_leaves_with_path(tree)), supports))
    found = {}
    for n, x in like.items():
        support = by_name[n]
        shape = jax.eval_shape(support.inverse, x).shape
        if shape != x.shape:
            found[n] = Free(shape, support.inverse)
    return found


def _values(result: StoredRun, replicas: int, free: Mapping[str, Free]) -> tuple[np.ndarray, int]:
    """All scalars (chain, draw, D) in double precision, and how many replicas of each ensemble there are."""
    chains = result.settings["chains"]
    scalars = sum(int(np.prod(s)) for s in result.shapes.values())
    most = max(1, VALUES // max(1, scalars * result.draws))
    kept = spread(replicas, max(2, most // max(1, chains // replicas)))
    rows = (np.arange(chains // replicas)[:, None] * replicas + kept).ravel()
    if replicas == 1:
        rows = spread(chains, max(4, most))
    shape, joined = (len(rows), result.draws), []
    for n, of_draw in result.shapes.items():
        array = np.asarray(result.read(f"posterior/{n}", 0, result.draws)[rows])
        if n in free:
            array, of_draw = np.asarray(jit(partial(_inverse, free[n]))(put(array))), free[n].shape
        joined.append(array.astype(np.float64).reshape(*shape, int(np.prod(of_draw))))
    return np.concatenate(joined, axis=2), len(kept)


def _digits(result: StoredRun, shapes: Mapping[str, tuple[int, ...]], flat: np.ndarray) -> np.ndarray:
    """Standard deviations in units of the last digit of the values."""
    if not len(flat):
        return np.full(flat.shape[1], np.nan)
    types = {a["name"]: a["dtype"] for a in result.settings["arrays"] if a["group"] == "posterior"}
    eps = [np.full(int(np.prod(s)), np.finfo(types[n]).eps) for n, s in shapes.items()]
    size = np.abs(flat).max(0)
    return flat.std(0) / np.where(size > 0, size * np.concatenate(eps), 1.0)


def _acceptance(result: StoredRun) -> float | None:
    """The mean share of accepted proposals, if the sampler reports one."""
    known = any(a["group"] == "sample_stats" and a["name"] == "acceptance" for a in result.settings["arrays"])
    if not known or not result.draws:
        return None
    return float(np.mean(result.read("sample_stats/acceptance", 0, result.draws)))


def stuck_chains(x: np.ndarray, found: Mixing, apart: int = 1) -> dict[int, str]:
    """Chains that hardly move, or that sit apart from all others, with what is wrong with each."""
    chains, draws, _ = x.shape
    if draws < 2:
        return {}
    said = {c: "never moves" for c in np.nonzero((np.ptp(x, axis=1) == 0).any(1))[0].tolist()}
    if chains < 4 or draws < 20:
        return said
    middles, low, high = np.median(x, axis=1), *np.quantile(x, (0.1, 0.9), axis=1)
    width = np.median(high - low, axis=0)
    width = np.where(width > 0, width, np.inf)
    known = found.own[np.isfinite(found.own)]
    if len(known) and np.median(known) * 2 * apart >= 10:  # otherwise all are slow, and which one is slowest is chance
        moving = np.median((high - low) / width, axis=1)
        away = (np.abs(middles - np.median(middles, axis=0)) / width).max(1)
        for c in range(chains):
            if moving[c] < 0.2:
                said.setdefault(c, f"hardly moves: it covers {moving[c]:.0%} of the range of the others")
            elif away[c] > 2:
                said.setdefault(c, "sits apart from the others")
    return dict(sorted(said.items()))


# --- gradients ---


def _confronted(result: StoredRun, posterior: Posterior, draws: int, seed: int, replicas: int) -> dict[str, Any]:
    """The part of the measurements that needs the posterior."""
    if result.draws < 4:
        raise gradients.Unconfronted("there are too few draws")
    chains = result.settings["chains"]
    scalars = sum(int(np.prod(s)) for s in result.shapes.values())
    rows = spread(chains, max(1, draws))
    when = spread(result.draws, -(-draws // len(rows)))
    more = spread(result.draws, max(len(when), min(RUN, MEMORY // max(1, scalars)) // len(rows)))
    leaves = {n: result.read_at(f"posterior/{n}", more)[rows] for n in result.shapes}
    tree = gradients.structure(posterior, {n: x[0, 0] for n, x in leaves.items()})
    positions = posterior.unconstrain_unchecked(tree.unflatten([put(x) for x in leaves.values()]))
    chosen = np.searchsorted(more, when).clip(0, len(more) - 1)
    some = jax.tree.map(lambda a: np.asarray(a)[:, chosen].reshape(-1, *a.shape[2:]), positions)
    slopes = gradients.at(posterior, some, seed)
    weights = np.asarray(result.weights, np.float64)[more]
    replicas = replicas if len(rows) == chains else 1
    everywhere, run_kept = _finite(_matrix(positions, 2), weights, replicas)
    here, kept = _finite(_matrix(some, 1).reshape(len(rows), len(when), -1), weights[chosen], replicas)
    g = _matrix(slopes, 1).reshape(here.x.shape)
    here, known = _without(here, np.asarray(np.isfinite(g).all(axis=2)))
    if min(known * kept, run_kept) < 1 - USELESS:
        raise gradients.Unconfronted(f"{1 - min(known * kept, run_kept):.0%} of the draws have no finite gradient")
    confronted = ~_mirrored(posterior, positions)
    if not confronted.any():
        raise gradients.Unconfronted("all parameters are mirrored at a boundary, where Stein's identities do not hold")
    only = tuple(d._replace(x=d.x[..., confronted]) for d in (here, everywhere))
    stein = confront(only[0], np.where(np.isfinite(g), g, 0.0)[..., confronted], only[1])
    density, ends = _densities(posterior, some, confronted, stein, only[1])
    single = not x64()
    lost = float(np.nanmedian(np.abs(density))) * np.finfo(np.float32).eps / 2 if single else 0.0
    bounded = np.zeros(confronted.size, bool)
    bounded[confronted] = ends
    left = (
        f"{confronted.size - confronted.sum():,} parameters are mirrored at a boundary" if not confronted.all() else ""
    )
    # Heavy tails have no covariance, and at a hard boundary the identities do not hold.
    sound = np.flatnonzero(confronted)[~(ends | stein.heavy)]
    parts = (d._replace(x=d.x[..., sound]) for d in (here, everywhere))
    combined = combinations(next(parts), np.where(np.isfinite(g), g, 0.0)[..., sound], next(parts))
    return {
        "stein": stein,
        "confronted": confronted,
        "bounded": bounded,
        "unconfronted": left,
        "lost": lost,
        "ended": _ended(posterior, tree, leaves),
        "combinations": tuple(combined),
        "combined": sound,
    }


def _ended(posterior: Posterior, tree: Any, leaves: Mapping[str, np.ndarray]) -> tuple[tuple[str, float], ...]:
    """Parameters with draws that have come to the end of their support, with the largest share of one of their
    scalars."""
    like = tree.unflatten([x[0, 0] for x in leaves.values()])
    supports = jax.tree.leaves(of_leaves(posterior.support, like), is_leaf=lambda s: isinstance(s, Support))
    shares = (
        (name, float(np.max(np.mean(np.asarray(s.at_end(x)), axis=(0, 1)))))
        for s, (name, x) in zip(supports, leaves.items())
        if s.at_end is not None
    )
    return tuple((name, share) for name, share in shares if share > 0)


def _matrix(tree: PyTree, leading: int) -> np.ndarray:
    """Leaves with leading axes as one array (…, D), in double precision."""
    leaves = [np.asarray(a, np.float64) for a in jax.tree.leaves(tree)]
    return np.concatenate([a.reshape(*a.shape[:leading], -1) for a in leaves], axis=-1)


def _finite(x: np.ndarray, weights: np.ndarray, replicas: int) -> tuple[Draws, float]:
    """Draws (chain, draw, D) with weights (draw,), of which those that are not finite have no weight."""
    return _without(Draws(x, np.broadcast_to(weights, x.shape[:2]), replicas), np.asarray(np.isfinite(x).all(axis=2)))


def _without(draws: Draws, known: np.ndarray) -> tuple[Draws, float]:
    """The draws, of which only those that are `known` (chain, draw) have weight, and the share of these."""
    weights = np.where(known, draws.weights, 0.0)
    typical = np.median(draws.x[known], axis=0) if known.any() else 0.0
    x = np.where(known[..., None], draws.x, typical)
    return draws._replace(x=x, weights=weights / max(weights.sum(), 1e-300)), float(known.mean())


def _mirrored(posterior: Posterior, positions: PyTree) -> np.ndarray:
    """Which scalars are folded back at a boundary: there the density does not vanish."""
    supports = jax.tree.leaves(of_leaves(posterior.support, positions), is_leaf=lambda s: isinstance(s, Support))
    leaves = jax.tree.leaves(positions)
    return np.concatenate([np.full(int(np.prod(x.shape[2:])), s.mirror is not None) for s, x in zip(supports, leaves)])


def _densities(
    posterior: Posterior, some: PyTree, confronted: np.ndarray, stein: Confronted, run: Draws
) -> tuple[np.ndarray, np.ndarray]:
    """Log-densities of some draws, and which confronted scalars end where the density is not small.

    A prior that is cut off by hand has such an end. The most suspicious scalars are tried: the outermost draws are
    pushed a little further out. If the density is zero there, it has a boundary.
    """
    worst = np.fmax(np.fmax(np.abs(stein.mean.t), np.abs(stein.sd.t)), np.abs(stein.tail.t))
    tried = np.argsort(-np.nan_to_num(worst))[:PUSHED]
    flat, shapes = _matrix(some, 1), jax.tree.structure(some)
    columns = np.nonzero(confronted)[0]
    scale = run.flat.std(0)
    pushed = [flat[:PUSHED]]
    for j in tried:
        order = np.argsort(flat[:, columns[j]])
        for rows, sign in ((order[:AT_EDGE], -1), (order[-AT_EDGE:], 1)):
            moved = flat[rows].copy()
            moved[:, columns[j]] += sign * 0.5 * min(scale[j], np.ptp(flat[:, columns[j]]))
            pushed.append(moved)
    rows = np.concatenate(pushed)
    leaves, at = [], 0
    for leaf in jax.tree.leaves(some):
        width = int(np.prod(leaf.shape[1:]))
        leaves.append(put(rows[:, at : at + width].reshape(-1, *leaf.shape[1:]), leaf.dtype))
        at += width
    density = gradients.log_densities(posterior, shapes.unflatten(leaves))
    inside = len(pushed[0])
    ends = np.zeros(len(worst), bool)
    ends[tried] = ~np.isfinite(density[inside:].reshape(len(tried), -1)).all(1)
    return density[:inside], ends
