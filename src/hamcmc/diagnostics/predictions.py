"""Predictions of a run: a function of the parameters at its draws, with means and intervals."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check
from hamcmc._compile import jit, put
from hamcmc._types import PyTree
from hamcmc.diagnostics import gradients
from hamcmc.store.result import StoredRun
from hamcmc.target.frozen import name_of
from hamcmc.target.posterior import Posterior

TOGETHER = 8  # draws that are evaluated side by side


class Prediction(NamedTuple):
    """What draws of the posterior say about a function of the parameters.

    Attributes:
        mean: the posterior mean of the function.
        sd: its standard deviation.
        low: the lower end of a central interval.
        high: its upper end.
        draws: the function at each draw, (draw, …).
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    draws: np.ndarray


def predict(
    result: StoredRun,
    posterior: Posterior,
    function: Callable[..., Any],
    *arguments: Any,
    draws: int = 1000,
    interval: float = 0.9,
) -> Prediction:
    """Evaluate ``function(parameters, *arguments)`` at draws of a run.

    Draws are taken evenly from all chains and times, in proportion to their weights. One compiled program evaluates
    them, a few at a time, so that memory holds the values at the draws and no more.

    Args:
        result: a run.
        posterior: its posterior, which knows the structure of the parameters and what was not sampled.
        function: returns an array.
        *arguments: for the function, such as rows to predict.
        draws: the most draws to use.
        interval: the probability of the central interval.

    Raises:
        ValueError: the run has no draws, the function does not return one array, or a value is not finite.
    """
    level = _check.open_fraction("interval", interval)
    if not result.draws:
        raise ValueError("the run has no draws yet")
    chains = result.settings["chains"]
    when = at_times(np.asarray(result.weights, np.float64), -(-_check.at_least("draws", draws, 2) // chains))
    leaves = {n: result.read_at(f"posterior/{n}", np.unique(when)) for n in result.shapes}
    place = np.searchsorted(np.unique(when), when)
    found = {n: put(np.asarray(x)[:, place].reshape(-1, *x.shape[2:])) for n, x in leaves.items()}
    if result.partial:
        taken = completed(result, posterior, function, found, arguments)
    else:
        tree = gradients.structure(posterior, {n: x[0, 0] for n, x in leaves.items()})
        taken = tree.unflatten(list(found.values()))

    @jit
    def values(parameters: PyTree, arguments: tuple) -> PyTree:
        """The function at each of the draws."""
        return lax.map(lambda p: function(posterior.whole(p), *arguments), parameters, batch_size=TOGETHER)

    made = values(taken, jax.tree.map(jnp.asarray, arguments))
    if not isinstance(made, jax.Array):
        raise ValueError(f"the function must return one array, got {jax.tree.structure(made)}")
    x = np.asarray(made)
    if not np.isfinite(x).all():
        bad = int((~np.isfinite(x.reshape(len(x), -1))).any(1).sum())
        raise ValueError(f"the function is not finite at {bad:,} of {len(x):,} draws")
    low, high = np.quantile(x, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Prediction(x.mean(0), x.std(0), low, high, x)


def completed(
    result: StoredRun, posterior: Posterior, function: Callable[..., Any], found: dict[str, Array], arguments: tuple
) -> PyTree:
    """Draws of some parameters in the form of all of them, with zeros for those that were not stored.

    Raises:
        ValueError: the function looks at a parameter that was not stored, or the run stored no parameters.
    """
    remedy = "Run it again with what you need: store the predictions themselves, as store=lambda parameters: …"
    if "names" not in result.settings["store"] or posterior.init is None:
        raise ValueError(f"the run stored a function of the parameters and no parameters to predict from. {remedy}")
    like = gradients.parameters_of(posterior)
    traced = jax.make_jaxpr(lambda p, a: function(posterior.whole(p), *a))(like, jax.tree.map(jnp.asarray, arguments))
    _, used = dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))
    names = [name_of(path) for path, _ in tree_leaves_with_path(like)]
    missing = [n for n, needed in zip(names, used) if needed and n not in found]
    if missing:
        raise ValueError(f"the function needs {', '.join(missing)}, which the run did not store. {remedy}")
    count = len(next(iter(found.values())))
    zeros = (jnp.zeros((count, *x.shape), x.dtype) for x in jax.tree.leaves(like))
    return jax.tree.unflatten(jax.tree.structure(like), [found.get(n, zero) for n, zero in zip(names, zeros)])


def at_times(weights: np.ndarray, count: int) -> np.ndarray:
    """So many numbers of draws, in proportion to their weights and as even as possible; or all, if they are few."""
    if count >= len(weights) and np.ptp(weights) == 0:
        return np.arange(len(weights))
    ends = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(ends, (np.arange(count) + 0.5) / count), len(weights) - 1)
