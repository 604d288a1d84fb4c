"""How good predictions are on rows that the model has not seen: likelihood, calibration, coverage, and LOO."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hamcmc import _check
from hamcmc.diagnostics import gradients
from hamcmc.diagnostics.agreement import row_likelihoods, some_rows
from hamcmc.diagnostics.ess import arviz
from hamcmc.diagnostics.predictions import at_times
from hamcmc.store.result import StoredRun
from hamcmc.target.posterior import Posterior

BINS = 15  # of confidence, for the calibration error
LEVELS = (0.5, 0.9, 0.99)
UNRELIABLE = 0.7  # a Pareto k above which leaving a row out cannot be done by weights


class Classification(NamedTuple):
    """Scores of predicted probabilities.

    Attributes:
        accuracy: the share of rows whose most probable class is right.
        nll: minus the mean log-probability of the right class, in nats.
        brier: the mean squared distance of the probabilities from what happened.
        calibration_error: the mean difference of confidence and accuracy, over bins of confidence.
        entropy: the mean entropy of the predictions, in nats; it should be larger on rows of another kind.
    """

    accuracy: float
    nll: float
    brier: float
    calibration_error: float
    entropy: float


class Regression(NamedTuple):
    """Scores of predicted distributions.

    Attributes:
        rmse: of the mean.
        nll: minus the mean log-density of what was observed, in nats.
        coverage: level → the share of rows inside the central interval of that probability.
    """

    rmse: float
    nll: float
    coverage: dict[float, float]


class Loo(NamedTuple):
    """Expected log-density of a new row, by leaving each of some rows out.

    Attributes:
        elpd: the sum over all rows, estimated.
        se: its standard error, for other data of the same kind.
        subsampling_se: the part that comes from looking at some rows only; 0 if all were.
        rows: how many rows were left out, one at a time.
        unreliable: the share of them with a Pareto k above 0.7.
    """

    elpd: float
    se: float
    subsampling_se: float
    rows: int
    unreliable: float


class Reliability(NamedTuple):
    """How often predictions are right, by how sure they are.

    Attributes:
        confidence: the mean probability of the predicted class, in each bin of confidence.
        accuracy: the share of rows in the bin whose predicted class is right; NaN if it is empty.
        rows: how many the bin has.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    rows: np.ndarray

    @property
    def error(self) -> float:
        """The mean difference of confidence and accuracy over all rows, the expected calibration error."""
        gaps = np.where(self.rows > 0, self.rows * np.abs(self.confidence - self.accuracy), 0.0)
        return float(gaps.sum() / self.rows.sum())


class Outside(NamedTuple):
    """Whether predictions are less sure on rows of another kind than the model has learned from.

    Attributes:
        entropy: the mean entropy on rows of the usual kind, in nats.
        entropy_outside: that on rows of another kind.
        auroc: the probability that a row of another kind has the larger entropy; 0.5 says that entropy cannot tell.
    """

    entropy: float
    entropy_outside: float
    auroc: float


def classification(probabilities: Any, labels: Any) -> Classification:
    """Score probabilities (row, class) against the classes that were observed.

    For example ``classification(result.predict(probabilities, x).mean, y)``: the mean over draws is the prediction.
    """
    p, y = _classes(probabilities, labels)
    with np.errstate(divide="ignore"):
        nll = -np.log(p[np.arange(len(y)), y]).mean()
    brier = ((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean()
    right = (p.argmax(1) == y).mean()
    return Classification(*map(float, (right, nll, brier, reliability(p, y).error, entropy(p).mean())))


def reliability(probabilities: Any, labels: Any, *, bins: int = BINS) -> Reliability:
    """Confidence and accuracy of predicted probabilities (row, class), in bins of equal width of the confidence."""
    p, y = _classes(probabilities, labels)
    count = _check.at_least("bins", bins, 1)
    sure = p.max(1)
    place = np.minimum((sure * count).astype(int), count - 1)
    rows = np.bincount(place, minlength=count)
    with np.errstate(invalid="ignore"):
        confidence, accuracy = (np.bincount(place, v, minlength=count) / rows for v in (sure, p.argmax(1) == y))
    return Reliability(confidence, accuracy, rows)


def entropy(probabilities: Any) -> np.ndarray:
    """The entropy of predicted probabilities (row, class) in each row, in nats."""
    p = _probabilities(probabilities)
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(p > 0, p * np.log(p), 0.0).sum(1)


def out_of_distribution(probabilities: Any, outside: Any) -> Outside:
    """Compare the entropy of predictions on usual rows with that on rows of another kind, (row, class) each."""
    usual, other = entropy(probabilities), entropy(outside)
    if not len(usual) or not len(other):
        raise ValueError("there must be rows of both kinds")
    from scipy import stats  # it takes a while to import

    ranks = stats.rankdata(np.concatenate([usual, other]))[len(usual) :]
    larger = (ranks.sum() - len(other) * (len(other) + 1) / 2) / (len(usual) * len(other))
    return Outside(float(usual.mean()), float(other.mean()), float(larger))


def regression(draws: Any, observed: Any, noise: Any) -> Regression:
    """Score draws (draw, row) of the mean of each row, with normal noise around it, against what was observed.

    Args:
        draws: such as ``result.predict(network, x).draws``.
        observed: a number for each row.
        noise: the standard deviation of the noise: a number, one for each draw, or (draw, row).
    """
    x, y, sd = _numbers(draws, observed, noise)
    from scipy import special  # it takes a while to import

    log_density = -0.5 * ((y - x) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)
    nll = -(special.logsumexp(log_density, 0) - np.log(len(x))).mean()
    below = probability_below(x, y, noise)
    return Regression(float(np.sqrt(np.mean((x.mean(0) - y) ** 2))), float(nll), coverage(below, LEVELS))


def probability_below(draws: Any, observed: Any, noise: Any) -> np.ndarray:
    """The predictive distribution function at what was observed, for each row. It is uniform if predictions are right.

    The arguments are those of :func:`regression`.
    """
    x, y, sd = _numbers(draws, observed, noise)
    from scipy import special

    return special.ndtr((y - x) / sd).mean(0)


def coverage(below: Any, levels: Sequence[float] = LEVELS) -> dict[float, float]:
    """The share of rows inside the central interval of each probability, from :func:`probability_below`."""
    at = np.asarray(below, np.float64)
    return {level: float((np.abs(at - 0.5) <= _check.open_fraction("levels", level) / 2).mean()) for level in levels}


def _probabilities(given: Any) -> np.ndarray:
    p = np.asarray(given, np.float64)
    if p.ndim != 2:
        mean = ": take their mean over draws, as .mean of predictions does" if p.ndim == 3 else ""
        raise ValueError(f"probabilities must be (row, class) with a label for each row, got {p.shape}{mean}")
    if not (p >= 0).all() or not np.allclose(p.sum(1), 1, atol=1e-3):
        raise ValueError("probabilities must not be negative and must sum to 1 in each row")
    return p


def _classes(probabilities: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    p, y = _probabilities(probabilities), np.asarray(labels)
    if len(p) != len(y) or y.ndim != 1:
        raise ValueError(f"probabilities must be (row, class) with a label for each row, got {p.shape} and {y.shape}")
    if y.dtype.kind not in "iub" or (y < 0).any() or (y >= p.shape[1]).any():
        raise ValueError(f"labels must be whole numbers from 0 to {p.shape[1] - 1}")
    return p, y.astype(int)


def _numbers(draws: Any, observed: Any, noise: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = np.asarray(draws, np.float64), np.asarray(observed, np.float64)
    if x.ndim != 2 or y.shape != x.shape[1:]:
        raise ValueError(f"draws must be (draw, row) with a number observed for each row, got {x.shape} and {y.shape}")
    sd = np.asarray(noise, np.float64)
    if sd.shape not in ((), (len(x),), x.shape) or not (sd > 0).all():
        raise ValueError(f"noise must be positive: a number, one for each draw, or one for each of {x.shape}")
    return x, y, spread_over(sd, x.shape)


def spread_over(noise: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The standard deviation of the noise for each draw and row."""
    return np.broadcast_to(noise[:, None] if noise.ndim == 1 else noise, shape)


def loo(result: StoredRun, posterior: Posterior, *, rows: int = 1000, draws: int = 1000, seed: int = 0) -> Loo:
    """Leave-one-out cross-validation by Pareto-smoothed importance sampling, on a random part of many rows.

    Args:
        result: a run.
        posterior: its posterior.
        rows: the most rows to leave out, one at a time. All others are estimated by their mean.
        draws: the most draws to use.
        seed: chooses the rows.

    References:
        Vehtari, Gelman and Gabry, Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC,
        2017. Magnusson et al., Bayesian leave-one-out cross-validation for large data, 2019.
    """
    posterior = gradients.plain(posterior)
    result.require_whole("leaving rows out")
    if posterior.size == 0:
        raise ValueError("leaving rows out needs data: this posterior has no log_likelihood")
    count = min(_check.at_least("rows", rows, 10), posterior.size)
    when = at_times(
        np.asarray(result.weights, np.float64), -(-_check.at_least("draws", draws, 100) // result.settings["chains"])
    )
    leaves = {n: result.read_at(f"posterior/{n}", np.unique(when)) for n in result.shapes}
    x = row_likelihoods(posterior, leaves, some_rows(posterior, count, seed))
    flat = x.reshape(-1, x.shape[2])
    from scipy import special

    weights, k = arviz().psislw(-flat.T)
    each = np.asarray(special.logsumexp(np.asarray(weights) + flat.T, axis=1))
    total, sd = posterior.size, float(each.std(ddof=1))
    left = np.sqrt(max(0.0, 1 - count / total)) * total * sd / np.sqrt(count)
    return Loo(
        float(total * each.mean()),
        float(np.hypot(np.sqrt(total) * sd, left)),
        float(left),
        count,
        float(np.mean(np.asarray(k) > UNRELIABLE)),
    )
