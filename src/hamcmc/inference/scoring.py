"""How :func:`hamcmc.tune` scores a setting: the bias of its variances and its speed, from positions and gradients."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

LOOKS = 12
"""Looks at a candidate per spacing, geometric and even, in a round. Twelve resolve autocorrelations to a factor of 2 in
lag over runs of up to 4000 iterations; more looks cost gradients and add little, as neighbouring looks are alike."""

MOST_BANDS = 12
"""Bands of directions. Each spans a factor of 2 in curvature, so twelve cover condition numbers up to 4096; beyond that
the bands become wider."""

RUNAWAY = 25.0
"""A candidate is out if its mean square along a direction exceeds 25 times the variance that the curvature suggests, as
if it sat five standard deviations away. An unstable step grows exponentially and is soon beyond any such bound."""

RELAXED = 0.5
"""A band is judged only if 1 − ρ² with the start is above one half on average. Before that, the draws still show the
starting points, which have the right variance whatever the step."""

UNCORRELATED = 0.05
"""Averages of autocorrelations below this are taken for noise. Set by hand."""


class Measured(NamedTuple):
    """What a candidate's run has shown.

    Attributes:
        bias: the Stein discrepancy of the worst band.
        error: its standard error, infinite if no band was run for long enough.
        speed: effective samples of the slowest band per 1000 gradients.
        out: why the candidate is out of the search; empty if it is not.
    """

    bias: float
    error: float
    speed: float
    out: str = ""


UNSEEN = Measured(np.inf, np.inf, 0.0)


def judge(
    lags: Int[np.ndarray, " time"],
    x: Float[np.ndarray, "time run replica direction"],
    g: Float[np.ndarray, "time run replica direction"],
    curvatures: Float[np.ndarray, " direction"],
    cost: float,
    copies: int,
) -> Measured:
    """Score a candidate.

    Args:
        lags: iterations since the warm-up at which the candidate was looked at.
        x: whitened positions then.
        g: whitened gradients there, on fresh minibatches.
        curvatures: of the directions, rising.
        cost: gradients per iteration.
        copies: chains among which the iterations are shared: an ensemble's replicas, or HAMCMC's interleaved chains.
    """
    if not (np.isfinite(x).all() and np.isfinite(g).all()):
        return UNSEEN._replace(out="not finite")
    if np.mean(x[-LOOKS:] ** 2, (0, 1, 2)).max() > RUNAWAY:
        return UNSEEN._replace(out="ran away")
    bias, error, slowest = 0.0, np.inf, 0.0
    for band in spectral_bands(curvatures):
        time, relaxed = autocorrelation(lags, x[..., band])
        slowest = max(slowest, time)
        if relaxed > RELAXED:
            b, e = (v / relaxed for v in variance_bias(x[1:, ..., band], g[1:, ..., band]))
            if not np.isfinite(error) or abs(b) - e > bias - error:  # the maximum of noisy numbers is too large
                bias, error = abs(b), e
    return Measured(bias, error, 1000 * copies / (cost * slowest))


def variance_bias(
    x: Float[np.ndarray, "time run replica direction"], g: Float[np.ndarray, "time run replica direction"]
) -> tuple[float, float]:
    """−E[xᵀg]/d − 1, and its standard error from the scatter over the runs."""
    each = -np.mean(x * g, axis=(0, 2, 3)) - 1
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))


def spectral_bands(curvatures: Float[np.ndarray, " direction"]) -> list[np.ndarray]:
    """Group directions whose curvatures agree within a factor of about 2: averages over a group have less noise."""
    place = np.log2(curvatures / curvatures[0])
    count = int(np.clip(np.ceil(place[-1]), 1, MOST_BANDS))
    band = np.minimum((count * place / max(place[-1], 1e-9)).astype(int), count - 1)
    return [np.flatnonzero(band == b) for b in range(count) if (band == b).any()]


def autocorrelation(times: Int[np.ndarray, " time"], x: Float[np.ndarray, "time *rest"]) -> tuple[float, float]:
    """The integrated autocorrelation time of positions, and the mean of 1 − ρ² with ρ their correlation with the first.

    Correlations of all pairs of times are averaged over octaves of the lag and integrated up to the first octave below
    :data:`UNCORRELATED`; the tail is taken for an exponential.
    """
    x = x.reshape(len(times), -1)
    x = x / np.sqrt(np.mean(x**2, 1, keepdims=True))
    first, second = np.triu_indices(len(times), 1)
    rho, lags = (x @ x.T / x.shape[1])[first, second], (times[second] - times[first]).astype(float)
    octave = np.floor(np.log2(lags))

    def by_octave(values: np.ndarray) -> np.ndarray:
        """Means over the pairs of each octave."""
        return np.array([values[octave == o].mean() for o in np.unique(octave)])

    lag, curve = np.r_[0.0, by_octave(lags)], np.r_[1.0, by_octave(rho)]
    small = np.flatnonzero(curve < UNCORRELATED)
    end = small[0] if small.size else len(lag) - 1
    total = np.sum(np.diff(lag[: end + 1]) * (curve[:end] + curve[1 : end + 1]) / 2)
    left = np.clip(curve[end], 0.0, 1 - 1e-9)
    tail = left * lag[end] / -np.log(left) if left > 0 else 0.0
    return max(1.0, 2 * (total + tail)), float(1 - np.mean(rho[first == 0] ** 2))
