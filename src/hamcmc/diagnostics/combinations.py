r"""Linear combinations of parameters: what gradients say of the draws along the worst of all directions.

Parameters can be right one by one while their dependence is wrong, or their variance along a direction in which all of
them hardly vary. Let z be the draws in coordinates in which the run's covariance is the identity, and g the gradient
there. If the draws are right, :math:`-E[g z^⊤] = I`. For a normal posterior this matrix is the ratio of the run's
covariance to the true one, and its extreme eigenvectors are the directions along which the variance is most wrong. The
mean of g points where the mean is most wrong.

A direction that was chosen because it looks bad looks worse than it is. So one half of the run chooses directions, and
the other half confronts them, by Stein's identities for :math:`y = q^⊤ z` (:mod:`hamcmc.diagnostics.identities`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hamcmc.diagnostics.fields import CLIP, TAIL, Draws, Fields, clusters
from hamcmc.diagnostics.identities import Adjusted, Statistic, errors
from hamcmc.diagnostics.mixing import Mixing, mixing

ENOUGH = 1.5  # draws in a half for each parameter: with fewer, no direction is looked for
FLAT = 1e-10  # of the largest eigenvalue of the correlations: along directions below it, draws do not vary
APART = 4  # chains from which on the halves are chains; of fewer chains they are stretches of time
LEADING = 3  # parameters that name a direction, at most
PART = 0.3  # of the largest weight, which the weight of a parameter that is named must have


class Combination(NamedTuple):
    """One direction, chosen by one half of the draws and confronted by the other.

    Attributes:
        what: ``"mean"`` or ``"sd"``.
        statistic: the error of the mean in standard deviations, or the relative error of the standard deviation; arrays
            of one entry.
        leading: the parameters with the largest weights, the largest first.
        mixing: R-hat and effective draws along the direction, of the draws that were looked at.
        clusters: how many clusters the standard error comes from.
    """

    what: str
    statistic: Statistic
    leading: tuple[int, ...]
    mixing: Mixing
    clusters: int


def combinations(some: Draws, gradients: np.ndarray, run: Draws) -> list[Combination]:
    """The worst directions of each half, confronted by the other; none where there are too few draws.

    Args:
        some: draws at which the gradient is known.
        gradients: (chain, draw, D) of the log-density at these draws.
        run: many more draws of the run, or the same.
    """
    fewest = min(int((half_of(some) == k).sum()) for k in (0, 1))
    if some.x.shape[2] < 2 or fewest < ENOUGH * some.x.shape[2]:
        return []
    halves = [Half(_half(some, k), _half(run, k), _part(gradients, half_of(some) == k)) for k in (0, 1)]
    found = []
    for chooser, other in (halves, halves[::-1]):
        for what, weights, slope in chooser.worst():
            order = np.argsort(-np.abs(weights * chooser.scale))[:LEADING]
            size = np.abs(weights * chooser.scale)[order]
            leading = tuple(int(j) for j, s in zip(order, size) if s >= PART * size[0])
            some_along, run_along = (
                Draws(h.x @ weights[:, None], h.weights, h.replicas) for h in (other.some, other.run)
            )
            statistic = _confront(what, some_along, other.slopes @ slope, run_along)
            mixed = mixing(run_along.x, run_along.replicas)
            found.append(Combination(what, statistic, leading, mixed, int(clusters(some_along).max()) + 1))
    return found


def half_of(draws: Draws) -> np.ndarray:
    """The half of each draw (chain, draw), 0 or 1: every other ensemble or chain, or if there are few, half the time.

    The replicas of an ensemble may move together, so that they are never in different halves at one time.
    """
    chains, length, _ = draws.x.shape
    independent = chains // draws.replicas
    if independent >= (2 if draws.replicas > 1 else APART):
        return np.broadcast_to((np.arange(chains) // draws.replicas % 2)[:, None], (chains, length))
    return np.broadcast_to(np.arange(length) * 2 // max(length, 1), (chains, length))


def _part(values: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """What lies in a half, (chain, draw, …): whole chains, or a stretch of all of them."""
    return values[inside.any(1)][:, inside.any(0)]


def _half(draws: Draws, k: int) -> Draws:
    inside = half_of(draws) == k
    weights = _part(draws.weights, inside)
    return Draws(_part(draws.x, inside), weights / max(weights.sum(), 1e-300), draws.replicas)


class Half:
    """One half of the draws.

    Attributes:
        some: those at which the gradient is known.
        run: those of the run.
        slopes: (n, D) the gradients.
        scale: a standard deviation of each parameter.
    """

    def __init__(self, some: Draws, run: Draws, gradients: np.ndarray):
        self.some, self.run, self.slopes = some, run, gradients.reshape(-1, gradients.shape[2])
        low, self.centre, high = np.quantile(run.flat, (0.05, 0.5, 0.95), axis=0)
        self.scale = np.where(high > low, (high - low) / (2 * TAIL), 1.0)

    def worst(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Directions that look most wrong: of what, the weights of the parameters, and what the gradient is to be
        multiplied by to get the derivative along it.

        Nothing if draws vary along a single one. The regression of g on z is −E[g zᵀ] with hardly any noise where the
        posterior is nearly normal.
        """
        white = self._whitening()
        z, w = self._standard(self.some) @ white, self.some.flat_weights
        if white.shape[1] < 2:
            return
        back = np.linalg.pinv(white)
        g = self.slopes * self.scale @ back.T
        centred, mean = z - w @ z, w @ g
        gram = centred.T @ (w[:, None] * centred)
        ridge = 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram))
        ratio = -np.linalg.solve(gram + ridge, centred.T @ (w[:, None] * (g - mean)))
        _, vectors = np.linalg.eigh((ratio + ratio.T) / 2)
        for what, q in (("mean", mean), ("sd", vectors[:, -1]), ("sd", vectors[:, 0])):
            q = q / max(np.linalg.norm(q), 1e-300)
            yield what, white @ q / self.scale, self.scale * (back.T @ q)

    def _standard(self, draws: Draws) -> np.ndarray:
        return np.clip((draws.flat - self.centre) / self.scale, -CLIP, CLIP)

    def _whitening(self) -> np.ndarray:
        """A matrix W with which the columns of x W have covariance I, without directions in which x does not vary."""
        x, w = self._standard(self.run), self.run.flat_weights
        x = x - w @ x
        values, vectors = np.linalg.eigh(x.T @ (w[:, None] * x))
        kept = values > FLAT * values[-1]
        return vectors[:, kept] / np.sqrt(values[kept])


def _confront(what: str, along: Draws, slopes: np.ndarray, whole: Draws) -> Statistic:
    """Stein's identities for one direction, whose derivative of the log-density is `slopes` (n,).

    The mean of the slopes is the Fisher information times the shift, and the information of a normal law is 1/σ². In
    units of the draws' own deviation it is at least 1 if they are right, and more where the posterior is not normal.
    """
    low, centre, high = np.quantile(whole.flat, (0.05, 0.5, 0.95))
    scale = (high - low) / (2 * TAIL) or 1.0
    here = along._replace(x=(along.x - centre) / scale)
    everywhere = whole._replace(x=(whole.x - centre) / scale)
    g = slopes[:, None] * scale
    size = np.sqrt(along.flat_weights @ (g - along.flat_weights @ g) ** 2)
    fields = Fields(g, np.ones_like(g), np.where(size > 0, np.maximum(size, size**2), 1.0))
    mean, sd, *_ = errors(Adjusted(here, everywhere, slice(None)), fields, g)
    return mean if what == "mean" else sd
