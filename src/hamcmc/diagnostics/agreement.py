"""Whether chains agree in what they predict, for models such as networks whose parameters cannot be compared.

The units of a network can be exchanged, and chains sit in different modes. So R-hat of a parameter says nothing about
predictions. Here rows of the data stand for what may be asked of the model: for each of them, the probability that a
chain's draws give to it on average is compared between chains.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from hamcmc._compile import jit, put
from hamcmc._types import PyTree
from hamcmc.diagnostics import gradients
from hamcmc.diagnostics.mixing import mixing
from hamcmc.diagnostics.predictions import TOGETHER, at_times
from hamcmc.store.result import StoredRun
from hamcmc.target.landscape import in_memory
from hamcmc.target.posterior import Posterior

ROWS = 256  # that stand for all predictions
DRAWS = 100  # of each chain at most
SCALARS = 1000  # parameters that are compared
AGREED = 0.05  # nats of error for a row on average, up to which predictions are usable
MIXED = 1.05  # R-hat


class Agreement(NamedTuple):
    """How far predictions and parameters agree between chains.

    Attributes:
        chains: how many there are.
        rows: how many rows were looked at.
        error: the standard error of the log-probability that all chains together give to a row, on average over rows.
        worst: the same of the worst row.
        r_hat: the median over rows of R-hat of the row's log-likelihood.
        mixed: the share of the parameters with R-hat below 1.05; NaN for a single chain.
        scalars: of how many parameters.
    """

    chains: int
    rows: int
    error: float
    worst: float
    r_hat: float
    mixed: float
    scalars: int

    def of_predictions(self, agree: bool) -> str:
        """What there is to say about predictions."""
        if self.chains == 1:
            return "predictions of a single chain cannot be compared with others"
        limit = ""
        if not np.isfinite(self.error):
            return f"some rows are impossible in all draws of a chain: the {self.chains} chains cannot be compared"
        if not agree:  # the error falls with the root of the number of chains, which sit in modes of their own
            enough = math.ceil(self.chains * (self.error / AGREED) ** 2)
            limit = f" (at most {AGREED} is usable, which takes about ensembles={enough})"
        return (
            f"predictions {'agree' if agree else 'differ'} between {self.chains} chains: their average is known to "
            f"{self.error:.2g} nats for a row{limit}, {self.worst:.2g} for the worst of {self.rows:,} rows (R-hat of a "
            f"row's log-likelihood {self.r_hat:.2f})"
        )

    def of_parameters(self) -> str:
        """What there is to say about parameters."""
        mixed = "" if np.isnan(self.mixed) else f": {self.mixed:.0%} of {self.scalars:,} have R-hat below {MIXED}"
        return f"the parameters of a network mean nothing one by one, and need not mix{mixed}; use result.predict"


def agreement(result: StoredRun, posterior: Posterior, seed: int = 0) -> Agreement:
    """Compare predictions and parameters of all chains of a run."""
    when = at_times(np.asarray(result.weights, np.float64), DRAWS)
    leaves = {n: result.read_at(f"posterior/{n}", np.unique(when)) for n in result.shapes}
    chains = result.settings["chains"]
    x = row_likelihoods(posterior, leaves, some_rows(posterior, ROWS, seed))
    with np.errstate(divide="ignore"):
        of_chain = np.log(np.mean(np.exp(x - x.max(1, keepdims=True)), 1)) + x.max(1)  # (chain, row)
    error = of_chain.std(0, ddof=1) / np.sqrt(chains) if chains > 1 else np.full(x.shape[2], np.inf)
    some = sampled_scalars(leaves, seed)
    several = chains > 1
    r_hats = mixing(some).r_hat if several else np.full(some.shape[2], np.nan)
    known = r_hats[np.isfinite(r_hats)]
    return Agreement(
        chains,
        x.shape[2],
        float(np.mean(error)),
        float(np.max(error)),
        float(np.nanmedian(mixing(x).r_hat)) if several else np.nan,
        float(np.mean(known < MIXED)) if known.size else np.nan,
        some.shape[2],
    )


def some_rows(posterior: Posterior, count: int, seed: int) -> PyTree:
    """So many random rows of the data, without replacement, or all of them."""
    data = in_memory(posterior, seed)
    size = len(jax.tree.leaves(data)[0])
    rows = np.sort(np.random.default_rng(seed).permutation(size)[:count])
    return jax.tree.map(lambda a: np.asarray(a)[rows], data)


def row_likelihoods(posterior: Posterior, leaves: dict[str, np.ndarray], rows: PyTree) -> np.ndarray:
    """log p(row | draw), (chain, draw, row)."""
    rows = jax.tree.map(put, rows)
    tree = gradients.structure(posterior, {n: x[0, 0] for n, x in leaves.items()})
    first = next(iter(leaves.values()))
    flat = [put(np.asarray(x).reshape(-1, *x.shape[2:])) for x in leaves.values()]

    @jit
    def values(parameters: PyTree, rows: PyTree) -> jax.Array:
        """Log-likelihoods at each of the draws."""
        return lax.map(lambda p: posterior.log_predictive(p, rows), parameters, batch_size=TOGETHER)

    found = np.asarray(values(tree.unflatten(flat), rows), np.float64)
    return found.reshape(*first.shape[:2], -1)


def sampled_scalars(leaves: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Some of the parameters, (chain, draw, K)."""
    sizes = [int(np.prod(x.shape[2:])) for x in leaves.values()]
    chosen = np.sort(np.random.default_rng(seed).permutation(sum(sizes))[:SCALARS])
    parts, begin = [], 0
    for x, size in zip(leaves.values(), sizes):
        own = chosen[(chosen >= begin) & (chosen < begin + size)] - begin
        parts.append(np.asarray(x).reshape(*x.shape[:2], -1)[..., own])
        begin += size
    return np.concatenate(parts, -1).astype(np.float64)
