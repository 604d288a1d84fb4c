"""R-hat and effective sample sizes of many scalars at once.

The definitions are ArviZ's (Vehtari et al., Rank-normalization, folding, and localization, Bayesian Analysis 2021), and
a test compares them. ArviZ takes one scalar at a time; here the autocovariances of a whole block of scalars come from
one Fourier transform, which ten thousand scalars need.

A run of coupled replicas also gets an R-hat **between ensembles**. The replicas of an ensemble are pooled, and each
half of each ensemble counts as one chain. Ensembles are independent of each other, and each one has many draws, so this
R-hat has little noise: it shows a mode that one ensemble has missed, where the R-hat of many short chains is lost in
their own noise (the nested R-hat of Margossian et al., Bayesian Analysis 2024, is of this kind).
"""

import functools
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

LEAST = 4  # draws per chain below which ESS and R-hat say nothing
BLOCK = 2**20  # numbers that are looked at together: it bounds the memory
T = TypeVar("T")
U = TypeVar("U")


class Mixing(NamedTuple):
    """How well chains mix, for each of K scalars.

    Attributes:
        r_hat: rank-normalized split R-hat over all chains; NaN for a single chain.
        r_hat_ensembles: the same between independent ensembles; NaN for a single one.
        ess_bulk: effective draws in the bulk, over all chains.
        ess_tail: effective draws in the tails.
        own: effective draws of half a chain, from its own autocorrelation alone. Chains that sit in different modes,
            and mix there, have many.
    """

    r_hat: np.ndarray
    r_hat_ensembles: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    own: np.ndarray


def mixing(x: np.ndarray, replicas: int = 1, apart: int = 1, *, coupled: bool = True) -> Mixing:
    """R-hat and ESS of draws (chain, draw, K).

    Args:
        x: the draws. Where a chain never moved, or a value is not finite, ESS and R-hat are NaN.
        replicas: how many chains in succession form an ensemble.
        apart: how many chains in succession come from one chain of interleaved chains.
        coupled: whether the replicas of an ensemble may have something in common; otherwise each is a chain of its own.
    """
    chains, draws, scalars = x.shape
    if draws < LEAST:
        return Mixing(*[np.full(scalars, np.nan)] * 5)
    step = max(1, BLOCK // (chains * draws))
    blocks = in_threads(lambda k: _mixing(x[..., k : k + step], replicas, apart, coupled), range(0, scalars, step))
    return Mixing(*(np.concatenate(parts, axis=-1) for parts in zip(*blocks)))


def in_threads(work: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """What `work` makes of each item, side by side: sorting and Fourier transforms leave the interpreter to others."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))


def _mixing(x: np.ndarray, replicas: int, apart: int, coupled: bool) -> Mixing:
    """:func:`mixing` of one block."""
    together = replicas * apart
    known = np.isfinite(x).all((0, 1)) & (np.ptp(x, axis=1) > 0).all(0)
    x = np.where(np.isfinite(x), x, 0.0)
    halves = split(x)
    scores = normal_scores(halves)
    folded = folded_scores(halves)
    several, independent = len(x) > apart, len(x) > together

    def largest(groups: int) -> np.ndarray:
        """The larger R-hat of bulk and tails, where so many half-chains are pooled."""
        return np.fmax(r_hat(pooled(scores, groups)), r_hat(pooled(folded, groups)))

    bulk, own = effective(scores)
    tail = effective_in_tails(x)
    share = _share(scores, bulk, replicas) if replicas > 1 and coupled else 1.0
    nan = np.full(x.shape[2], np.nan)
    found = (largest(1) if several else nan, largest(together) if independent else nan, share * bulk, share * tail, own)
    return Mixing(*(np.where(known, v, np.nan) for v in found))


def split(x: np.ndarray) -> np.ndarray:
    """The first halves of all chains, then the second halves; a draw in the middle is left out."""
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, x.shape[1] - half :]])


def pooled(halves: np.ndarray, together: int) -> np.ndarray:
    """Half-chains as one longer chain for each group of so many chains."""
    groups = len(halves) // together
    return halves.reshape(groups, together * halves.shape[1], halves.shape[2])


def normal_scores(x: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks among all chains, separately for each scalar; equal values share a mean rank."""
    flat = np.ascontiguousarray(x.reshape(-1, x.shape[2]).T)
    order = np.argsort(flat, axis=1)
    ordered = np.take_along_axis(flat, order, axis=1)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    table, scores = quantiles_of_half_ranks(flat.shape[1]), np.empty(flat.shape)
    np.put_along_axis(scores, order, table[None, 2::2], axis=1)
    for row in np.flatnonzero(tied):
        scores[row, order[row]] = table[twice_the_mean_rank(ordered[row])]
    return scores.T.reshape(x.shape)


@functools.lru_cache(maxsize=4)
def quantiles_of_half_ranks(size: int) -> np.ndarray:
    """The normal quantile of rank r among so many, at 2 r; mean ranks are multiples of a half."""
    from scipy import special  # it takes a while to import

    with np.errstate(invalid="ignore"):
        return special.ndtri((np.arange(2 * size + 1) / 2 - 3 / 8) / (size + 1 / 4))


def twice_the_mean_rank(ordered: np.ndarray) -> np.ndarray:
    """Of values in ascending order: equal ones share the mean of their ranks."""
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(begins[1:], len(ordered))
    return np.repeat(begins + 1 + ends, ends - begins)  # first rank and last rank


def folded_scores(halves: np.ndarray) -> np.ndarray:
    """Normal scores of the distances from the median."""
    return normal_scores(np.abs(halves - np.median(halves, axis=(0, 1))))


def r_hat(x: np.ndarray) -> np.ndarray:
    """The R-hat of chains as they are, (chain, draw, K) → (K,)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        n = x.shape[1]
        within = x.var(1, ddof=1).mean(0)
        return np.sqrt((n - 1) / n + x.mean(1).var(0, ddof=1) / within)


def effective(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ESS of all chains together, and that of one chain from its own autocorrelation, (chain, draw, K) → (K,).

    The first one counts the variance between chains as autocorrelation, the second one does not.
    """
    chains, n, _ = x.shape
    means = x.mean(1)
    covariance = autocovariance(x - means[:, None])
    inside = covariance[0] * n / (n - 1)
    between = means.var(0, ddof=1) if chains > 1 else 0.0
    constant = np.ptp(x, axis=(0, 1)) < 1e-15
    total = _total(covariance, inside, covariance[0] + between, chains * n)
    own = _total(covariance, inside, covariance[0], chains * n) / chains
    return np.where(constant, chains * n, total), np.where(constant, n, own)


def effective_in_tails(x: np.ndarray) -> np.ndarray:
    """The ESS of the poorer of the 5 % and 95 % quantiles, (chain, draw, K) → (K,)."""
    tail = np.full(x.shape[2], np.inf)
    for q in (0.05, 0.95):
        below = (x <= np.quantile(x, q, axis=(0, 1))).astype(np.float64)
        tail = np.fmin(tail, effective(split(below))[0])
    return tail


def autocovariance(centred: np.ndarray) -> np.ndarray:
    """The mean over chains of the autocovariance at each lag, (chain, draw, K) → (draw, K)."""
    n = centred.shape[1]
    length = 2 ** (2 * n - 1).bit_length()
    power = (np.abs(np.fft.rfft(centred, length, axis=1)) ** 2).mean(0)
    return np.fft.irfft(power, length, axis=0)[:n] / n


def _total(covariance: np.ndarray, inside: np.ndarray, variance: np.ndarray, draws: int) -> np.ndarray:
    """ESS from autocovariances by Geyer's initial monotone sequence, as ArviZ computes it."""
    n, scalars = covariance.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (inside - covariance) / variance
    rho[0] = 1.0
    pairs = rho[: n // 2 * 2].reshape(-1, 2, scalars).sum(1)
    most = max(0, -(-(n - 2) // 2) - 1)  # the last pair that is looked at
    stop = pairs[: most + 1] <= 0
    last = np.where(stop.any(0), stop.argmax(0), most)
    number = np.arange(len(pairs))[:, None]
    monotone = np.where(number < last, np.minimum.accumulate(pairs, axis=0), 0.0).sum(0)
    edge = np.take_along_axis(rho, 2 * last[None], axis=0)[0]
    positive = np.take_along_axis(pairs, last[None], axis=0)[0] >= 0
    edge = np.where(positive, edge, np.maximum(edge, 0.0))
    tau = np.maximum(-1 + 2 * monotone + edge, 1 / np.log10(draws))
    return np.where(np.isnan(rho).any(0), np.nan, draws / tau)


def _share(scores: np.ndarray, bulk: np.ndarray, replicas: int) -> np.ndarray:
    """What the replicas of an ensemble are worth, as a share of as many independent chains.

    Replicas share minibatches, whose noise moves all of them together: then their mean varies more.
    """
    mean = scores.reshape(-1, replicas, *scores.shape[1:]).mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = effective(mean)[0] * scores.var((0, 1)) / mean.var((0, 1)) / bulk
    return np.fmin(1.0, worth)
