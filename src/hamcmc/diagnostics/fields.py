"""Along which directions Stein's identities look at each parameter: fields that come near to Σ g for a Gaussian.

See :mod:`hamcmc.diagnostics.identities` for what they are needed for. The field of parameter j is

.. math:: φ_j(x) = a_j + B_j x,

with coefficients from the regression of x_j on g and on the products x_k g_l + δ_kl, all of which have the mean 0 if
the draws are right. The products matter where the curvature depends on the position. In a funnel, where x_k has the
scale exp(v/2), the field that moves v and stretches all x_k with it turns the gradient into a function of v alone.
Without the stretching, the gradient says next to nothing about the mean of v.
"""

from typing import NamedTuple

import numpy as np

CLIP = 4.0  # standard deviations beyond which a parameter counts as this far away
TAIL = 1.645  # where the tails begin: 5 % of a Gaussian lie beyond it, on each side
FOLDS = 4  # parts of the draws: coefficients for one come from the others
CLUSTERS = 20  # that a standard error needs at least, to be worth its name
PER_FEATURE = 4  # draws for each coefficient of a regression
DEPENDENT = 1e-12  # of the largest eigenvalue: features along directions below it are functions of each other


class Draws(NamedTuple):
    """Unconstrained draws.

    Attributes:
        x: (chain, draw, D).
        weights: (chain, draw), with the sum 1.
        replicas: how many chains in succession form an ensemble.
    """

    x: np.ndarray
    weights: np.ndarray
    replicas: int

    @property
    def flat(self) -> np.ndarray:
        """(chain · draw, D)."""
        return self.x.reshape(-1, self.x.shape[2])

    @property
    def flat_weights(self) -> np.ndarray:
        """(chain · draw,)."""
        return self.weights.ravel()


class Fields(NamedTuple):
    """The fields at each of n draws, for each of D parameters.

    Attributes:
        along: (n, D) φ_jᵀg + div φ_j, which has the mean 0 if the draws are right.
        own: (n, D) the component of φ_j along x_j. Its mean is 1.
        factor: (D,) by what the mean of `along` is to be divided to get the error of the mean.
    """

    along: np.ndarray
    own: np.ndarray
    factor: np.ndarray


def directions(here: Draws, slopes: np.ndarray, everywhere: Draws) -> Fields:
    """Fields for standardized draws `here` with gradients `slopes` (n, D); no fold uses its own draws for them.

    With fewer than four draws for each parameter, B is 0 and a comes from the correlations of all draws of the run.
    """
    z, w = np.clip(here.flat, -CLIP, CLIP), here.flat_weights
    folds, all_folds = clusters(here) % FOLDS, clusters(everywhere) % FOLDS
    along, own = np.empty_like(z), np.ones_like(z)
    if len(z) < PER_FEATURE * z.shape[1]:
        everything = np.clip(everywhere.flat, -CLIP, CLIP)
        for fold in range(FOLDS):
            inside, kept = folds == fold, all_folds != fold
            along[inside] = _correlated(slopes[inside], everything[kept], everywhere.flat_weights[kept])
        spread = np.average(along**2, axis=0, weights=w) - np.average(along, axis=0, weights=w) ** 2
        return Fields(along, own, np.where(spread > 0, spread, 1.0))
    pairs = _pairs(len(z), z.shape[1])
    same = pairs[0] == pairs[1]
    moved = np.where(same, here.flat[:, pairs[0]], z[:, pairs[0]])  # x_k g_k is bounded for heavy tails, x_k g_l is not
    features = np.concatenate([slopes, moved * slopes[:, pairs[1]] + same], axis=1)
    for fold in range(FOLDS):
        inside, others = folds == fold, folds != fold
        coefficients = _regression(z[others], features[others], w[others])
        along[inside] = features[inside] @ coefficients.T
        own[inside] = _components(coefficients, moved[inside], pairs)
    size = np.average(own, axis=0, weights=w)
    size = np.where(size > 1e-6, size, 1.0)
    return Fields(along / size, own / size, 1 / size)


def _pairs(n: int, d: int) -> np.ndarray:
    """The pairs (k, l) of the products x_k g_l: all of them, those with k = l, or none, as the draws allow."""
    if n >= 2 * PER_FEATURE * (d + d * d):  # products of different parameters have heavier tails
        return np.indices((d, d)).reshape(2, -1)
    return np.tile(np.arange(d), (2, 1)) if n >= PER_FEATURE * 2 * d else np.zeros((2, 0), int)


def _components(coefficients: np.ndarray, moved: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The component of each field along its own parameter, (n, D)."""
    d = len(coefficients)
    mine = pairs[1] == np.arange(d)[:, None]
    return np.diag(coefficients[:, :d]) + moved @ np.where(mine, coefficients[:, d:], 0.0).T


def _correlated(slopes: np.ndarray, z: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The slopes along the directions Cov(z)/Var(z_j), as far as the correlations are more than chance.

    If there are fewer than two draws for each parameter, that is nobody's guess, and each direction is an axis.
    """
    n, d = z.shape
    if n < 2 * d:
        return slopes
    z = z - np.average(z, axis=0, weights=w)
    deviation = np.sqrt(np.average(z**2, axis=0, weights=w))
    deviation = np.where(deviation > 0, deviation, 1.0)
    z = z / deviation
    correlation = z.T @ (z * (w / w.sum())[:, None])
    np.fill_diagonal(correlation, 0.0)
    trust = np.clip(1 - 2 * (d - 1) / n / np.maximum((correlation**2).sum(1), 1e-300), 0, 1)
    return slopes + trust * ((slopes * deviation) @ correlation) / deviation


def _regression(z: np.ndarray, features: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Minus the coefficients of the regression of each z_j on the features, (D, features).

    Three regressions are nested: on the parameter's own gradient, on all gradients, on all features. A larger one
    counts as far as it explains more than chance does (the shrinkage of James and Stein). Otherwise, as for independent
    parameters, the noise of its coefficients would enter u, and twice, because a pair of draws enters from either side.
    """
    n, d = z.shape
    w = w * n / w.sum()
    left = features - np.average(features, axis=0, weights=w)
    right = z - np.average(z, axis=0, weights=w)
    size = np.sqrt((w[:, None] * left**2).sum(0))
    size = np.where(size > 0, size, 1.0)
    left = left / size
    gram, moment = left.T @ (w[:, None] * left), -left.T @ (w[:, None] * right)
    total = (w[:, None] * right**2).sum(0)

    def unexplained(of: np.ndarray) -> np.ndarray:
        """The sum of squares that coefficients leave."""
        return np.maximum(total - 2 * (of * moment).sum(0) + (of * (gram @ of)).sum(0), 0.0)

    found = np.zeros_like(moment)
    found[np.arange(d), np.arange(d)] = np.maximum(np.diag(moment[:d]), 1e-9)
    for first, last in ((1, d), (d, len(gram))):
        if last > first:
            larger = np.zeros_like(found)
            larger[:last] = _solve(gram[:last, :last], moment[:last])
            rest = unexplained(larger)
            chance = 2 * (last - first) * rest / max(n - last - 1, 1)
            trust = np.clip(1 - chance / np.maximum(unexplained(found) - rest, 1e-300), 0, 1)
            found = trust * larger + (1 - trust) * found
    return (found / size[:, None]).T


def _solve(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """The solution of least norm of the normal equations, for features that may depend on each other."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > DEPENDENT * values[-1]
    return vectors[:, kept] @ ((vectors[:, kept].T @ moment) / values[kept, None])


# --- clusters of correlated draws ---


def clusters(draws: Draws) -> np.ndarray:
    """A number for each draw: its chain, or if there are few chains, its stretch of a chain."""
    chains, n, _ = draws.x.shape
    stretches = min(n, -(-CLUSTERS // chains))
    return (np.arange(chains)[:, None] * stretches + part(n, stretches)).ravel()


def part(n: int, stretches: int) -> np.ndarray:
    """The stretch of each of n successive draws."""
    return np.arange(n) * stretches // n
