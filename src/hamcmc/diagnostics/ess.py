"""Effective sample sizes and R-hat, for weighted draws, interleaved chains and ensembles.

The definitions are ArviZ's (:mod:`hamcmc.diagnostics.mixing` has them), without the second that importing ArviZ takes.
Draws of a run with decreasing steps carry weights, their ε: every estimate is ``Σ ε h(θ) / Σ ε``. The effective sample
size ignores weights, so it is multiplied by Kish's factor ``(Σw)² / (n Σw²)``, which is 1 for equal weights.

A chain of HAMCMC is M interleaved chains, of which a different one moves at each iteration. Successive draws are then
nearly independent, and draws M apart are not. ArviZ looks no further than the first small autocorrelations and takes
this for fast mixing: at M = 3 its ESS came out 9 times too large. ESS and R-hat therefore see the interleaved chains
apart.
"""

import math
import warnings
from types import ModuleType
from typing import Literal

import numpy as np

from hamcmc._types import Facts
from hamcmc.diagnostics import mixing
from hamcmc.diagnostics.mixing import LEAST


def arviz() -> ModuleType:
    """ArviZ, imported late (it takes seconds) and without its daily announcement."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="\\s*ArviZ is undergoing", category=FutureWarning)
        import arviz
    return arviz


def interleaved(settings: Facts) -> int:
    """How many chains take turns in the stored draws of each chain: every so many draws come from the same one."""
    chains = settings.get("interleaved", 1)
    return chains // math.gcd(chains, settings["thin"])


def part(x: np.ndarray, apart: int) -> np.ndarray:
    """Draws (chain, draw, …) as (chain · apart, draw / apart, …); the first ones are dropped if they fill no round."""
    rounds = x.shape[1] // apart
    whole = x[:, x.shape[1] - rounds * apart :].reshape(len(x), rounds, apart, *x.shape[2:])
    return np.moveaxis(whole, 2, 1).reshape(len(x) * apart, rounds, *x.shape[2:])


def kish(weights: np.ndarray) -> float:
    """(Σw)² / (n Σw²), the share of n equally weighted draws that weighted ones are worth."""
    return float(np.sum(weights) ** 2 / (len(weights) * np.sum(weights**2)))


def effective_size(x: np.ndarray, weights: np.ndarray, method: Literal["bulk", "tail", "mean"]) -> float:
    """The ESS of draws (chain, draw) times Kish's factor; NaN for too few draws, and where a chain never moves."""
    if not can_tell(x):
        return np.nan
    of_all = x[..., None]
    if method == "tail":
        found = mixing.effective_in_tails(of_all)
    else:
        halves = mixing.split(of_all)
        values = mixing.normal_scores(halves) if method == "bulk" else np.asarray(halves, np.float64)
        found = mixing.effective(values)[0]
    return float(found[0]) * kish(weights)


def independent_share(x: np.ndarray, replicas: int) -> float:
    """What the replicas of an ensemble are worth, as a share of as many independent chains; 1 without an ensemble.

    Replicas share minibatches, whose noise moves all of them together. Their mean then varies more than the mean of
    independent chains, which is what its ESS shows.
    """
    if replicas == 1 or not can_tell(x):
        return 1.0
    together = x.reshape(-1, replicas, x.shape[1]).mean(1)
    if not can_tell(together):
        return 1.0
    of_mean, of_all = (effective_size(v, np.ones(1), "mean") for v in (together, x))
    return min(1.0, of_mean * x.var() / together.var() / of_all)


def r_hat(x: np.ndarray) -> float:
    """The rank-normalized split R-hat of draws (chain, draw); NaN for a single chain."""
    if x.shape[0] == 1 or not can_tell(x):
        return np.nan
    halves = mixing.split(x[..., None])
    return max(float(mixing.r_hat(f(halves))[0]) for f in (mixing.normal_scores, mixing.folded_scores))


def can_tell(x: np.ndarray) -> bool:
    """Whether ESS and R-hat are defined: enough finite draws, and at least two different ones in each chain."""
    return x.shape[1] >= LEAST and bool(np.isfinite(x).all()) and bool((np.ptp(x, axis=1) > 0).all())
