"""The part of what a verdict is based on that needs the posterior: draws confronted with gradients."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hamcmc._compile import put, x64
from hamcmc._types import PyTree
from hamcmc.diagnostics import gradients
from hamcmc.diagnostics.combinations import combinations, half_of
from hamcmc.diagnostics.identities import Confronted, Draws, Statistic, confront
from hamcmc.diagnostics.stein import spread
from hamcmc.store.result import StoredRun
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support, of_leaves

RUN = 5000  # draws of the run that the gradients are compared with
MEMORY = 2**25  # numbers that these may be
PUSHED = 16  # parameters that are tried for a hard boundary at a time
TRIALS = 4  # times, at most
AT_EDGE = 4  # draws on each side that are pushed outwards for that
USELESS = 0.1  # share of draws without a finite gradient, beyond which the gradients are not used


def confronted(result: StoredRun, posterior: Posterior, draws: int, seed: int, replicas: int) -> dict[str, Any]:
    """The part of :class:`~hamcmc.diagnostics.measured.Measured` that needs the posterior.

    Raises:
        Unconfronted: for a reason that lies in the run.
    """
    if result.draws < 4:
        raise gradients.Unconfronted("there are too few draws")
    chains = result.settings["chains"]
    scalars = sum(int(np.prod(s)) for s in result.shapes.values())
    rows, replicas = chains_of(chains, replicas, max(1, draws))
    when = spread(result.draws, -(-draws // len(rows)))
    more = spread(result.draws, max(len(when), min(RUN, MEMORY // max(1, scalars)) // len(rows)))
    leaves = {n: result.read_at(f"posterior/{n}", more)[rows] for n in result.shapes}
    tree = gradients.structure(posterior, {n: x[0, 0] for n, x in leaves.items()})
    positions = posterior.unconstrain_unchecked(tree.unflatten([put(x) for x in leaves.values()]))
    chosen = np.searchsorted(more, when).clip(0, len(more) - 1)
    some = jax.tree.map(lambda a: np.asarray(a)[:, chosen].reshape(-1, *a.shape[2:]), positions)
    weights = np.asarray(result.weights, np.float64)[more]
    everywhere, run_kept = _finite(_matrix(positions, 2), weights, replicas)
    here, kept = _finite(_matrix(some, 1).reshape(len(rows), len(when), -1), weights[chosen], replicas)
    slopes = gradients.at(posterior, some, seed, half_of(here).ravel())
    g = _matrix(slopes, 1).reshape(here.x.shape)
    here, known = _without(here, np.asarray(np.isfinite(g).all(axis=2)))
    if min(known * kept, run_kept) < 1 - USELESS:
        raise gradients.Unconfronted(f"{1 - min(known * kept, run_kept):.0%} of the draws have no finite gradient")
    faced = ~_mirrored(posterior, positions)
    if not faced.any():
        raise gradients.Unconfronted("all parameters are mirrored at a boundary, where Stein's identities do not hold")
    g = np.where(np.isfinite(g), g, 0.0)
    stein, density, ends = _inside(posterior, some, np.flatnonzero(faced), here, g, everywhere)
    single = not x64()
    lost = float(np.nanmedian(np.abs(density))) * np.finfo(np.float32).eps / 2 if single else 0.0
    bounded = np.zeros(faced.size, bool)
    bounded[faced] = ends
    left = f"{faced.size - faced.sum():,} parameters are mirrored at a boundary" if not faced.all() else ""
    # Heavy tails have no covariance, and at a hard boundary the identities do not hold.
    sound = np.flatnonzero(faced)[~(ends | stein.heavy)]
    combined = combinations(_of(here, sound), g[..., sound], _of(everywhere, sound))
    return {
        "stein": stein,
        "confronted": faced,
        "bounded": bounded,
        "unconfronted": left,
        "lost": lost,
        "ended": _ended(posterior, tree, leaves),
        "combinations": tuple(combined),
        "combined": sound,
    }


def chains_of(chains: int, replicas: int, most: int) -> tuple[np.ndarray, int]:
    """Chains to look at, no more than `most`, and how many of them in succession form an ensemble.

    Ensembles are taken whole where that is possible, because their replicas may move together.
    """
    ensembles = spread(chains // replicas, max(1, most // replicas))
    kept = spread(replicas, max(1, most // len(ensembles)))
    return (ensembles[:, None] * replicas + kept).ravel(), len(kept)


def _of(draws: Draws, columns: np.ndarray) -> Draws:
    """Some of the parameters."""
    return draws._replace(x=draws.x[..., columns])


def _inside(
    posterior: Posterior, some: PyTree, columns: np.ndarray, here: Draws, g: np.ndarray, everywhere: Draws
) -> tuple[Confronted, np.ndarray, np.ndarray]:
    """What the gradients say of the parameters `columns`, log-densities, and which of the parameters end where the
    density is not small.

    Of those Stein's identities do not hold, and products of them with other gradients have not the mean 0: the others
    are confronted again, by themselves.
    """
    ends = np.zeros(len(columns), bool)
    stein = confront(_of(here, columns), g[..., columns], _of(everywhere, columns))
    density = np.zeros(0)
    for _ in range(TRIALS):
        density, found = _densities(posterior, some, columns, stein, everywhere)
        if not (found & ~ends).any():
            break
        ends |= found
        if ends.all():
            break
        rest = columns[~ends]
        stein = _spread_out(confront(_of(here, rest), g[..., rest], _of(everywhere, rest)), ~ends)
    return stein, density, ends


def _spread_out(found: Confronted, known: np.ndarray) -> Confronted:
    """What is said of some parameters as what is said of all of them: NaN for the others."""

    def scattered(values: np.ndarray, empty: Any) -> np.ndarray:
        full = np.full(known.size, empty, values.dtype)
        full[known] = values
        return full

    mean, sd, tail = (Statistic(*(scattered(v, np.nan) for v in s)) for s in found[:3])
    return found._replace(mean=mean, sd=sd, tail=tail, heavy=scattered(found.heavy, False))


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
    posterior: Posterior, some: PyTree, columns: np.ndarray, stein: Confronted, run: Draws
) -> tuple[np.ndarray, np.ndarray]:
    """Log-densities of some draws, and which of the parameters `columns` end where the density is not small.

    A prior that is cut off by hand has such an end. The most suspicious parameters are tried: the outermost draws are
    pushed a little further out. If the density is zero there, it has a boundary.
    """
    worst = np.fmax(np.fmax(np.abs(stein.mean.t), np.abs(stein.sd.t)), np.abs(stein.tail.t))
    tried = np.argsort(-np.nan_to_num(worst))[:PUSHED]
    flat, shapes = _matrix(some, 1), jax.tree.structure(some)
    scale = run.flat[:, columns].std(0)
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
