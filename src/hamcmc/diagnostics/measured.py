"""What the verdict on a run is based on: everything that is measured, before it is judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import tree_leaves_with_path

from hamcmc._compile import jit, put
from hamcmc.diagnostics import gradients
from hamcmc.diagnostics.combinations import Combination
from hamcmc.diagnostics.confronted import confronted
from hamcmc.diagnostics.ess import interleaved, kish, part
from hamcmc.diagnostics.identities import Confronted
from hamcmc.diagnostics.mixing import Mixing, mixing
from hamcmc.diagnostics.names import label
from hamcmc.diagnostics.stein import spread
from hamcmc.diagnostics.tails import in_blocks, range_error, tail_index, weight_apart
from hamcmc.store.result import StoredRun
from hamcmc.target.frozen import name_of
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support, of_leaves

VALUES = 5 * 10**7  # numbers of which ESS and R-hat are computed; of a larger run some chains are left out


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
        return Measured(**measured, **confronted(result, gradients.plain(posterior), draws, seed, replicas))
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
