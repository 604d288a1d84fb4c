r"""Stein's identities: how far draws are from a density, parameter by parameter, from its gradients at the draws.

Let :math:`g = ∇\log p`. For every smooth f and every fixed direction a, if the draws x are from p, then

.. math:: E[\,u\,] = 0, \qquad u = f(x_j)\, a^⊤ g(x) + a_j f'(x_j),

because u is the divergence of f a p, divided by p. This needs neither the normalizing constant nor a second sampler. It
is also a score: −u is the derivative of the log-density of the draws, if each x moves along a by the amount f(x_j).

**What the mean of u says if the draws are wrong.** Take p = N(μ, Σ) and draws from N(m, S), so :math:`g = -Σ^{-1}(x-μ)`.
With a = Σ e_j, aᵀg = −(x_j − μ_j), and

* f = 1: E u = −(m_j − μ_j), the error of the mean;
* f = x_j − m_j: E u = Σ_jj − S_jj, the error of the variance; and, for any odd f, E u = (Σ_jj − S_jj) E f', so f that is
  zero outside the tails shows their error alone. With :math:`R = 1 - E u / (Σ_{jj} E f')`, the variance of the draws is
  R times that of p, and √R − 1 is the relative error of the standard deviation.

**The direction.** Σ is not known. The regression of x on g has the coefficients Cov(x, g) Cov(g)⁻¹, which are −Σ for a
Gaussian p, whatever S is. For any p, if the draws are right, Cov(x, g) = −I and the coefficients are the inverse Fisher
information of a shift, so E u is again the shift to first order. The coefficients are computed from other chains than
those that they are used on: they are then fixed, and E u = 0 exactly. If there are fewer than four draws for each
parameter, the covariance of all draws of the run takes their place, and the error is divided by
Var(aᵀg)/a_j, which is 1 for a Gaussian.

**The scale of an error.** A relative change η of the scale of x_j has Fisher information I = Var(u)/(E f' R)², which is
2 for a Gaussian and less for heavy tails. The relative error of the standard deviation is exp(log R / I) − 1.

**Noise.** u is known at a few hundred draws only, but functions y of x_j are known at all draws of the run. The mean of u
is therefore adjusted by regression: mean(u) − βᵀ(mean(y) − mean of y over the run). For a Gaussian u is a function of x_j,
and the estimate has hardly more noise than the mean of the whole run. Standard errors come from sums over clusters
(chains, or stretches of a chain, or stretches of an ensemble), because draws of one chain are correlated.

**Heavy tails.** f is constant beyond 4 standard deviations, which are a tenth of the way from the 5 % to the 95 % quantile
in a Gaussian's units: then u is bounded wherever g is, and E u = 0 needs no moments. The statistic of the tails grows
with x, because far away a heavy-tailed density has hardly any gradient that a bounded f could see.
"""

from typing import NamedTuple

import numpy as np

CLIP = 4.0  # standard deviations beyond which f is constant
TAIL = 1.645  # where the tails begin: 5 % of a Gaussian lie beyond it, on each side
FAR = 8.0  # draws beyond this many standard deviations show heavy tails
EDGE = 0.98  # the share of draws within which functions of the parameter are fitted
FOLDS = 4
CLUSTERS = 20  # that a standard error needs at least, to be worth its name
PER_PARAMETER = 4  # draws per parameter that the regression on gradients needs
INFORMATION = (0.25, 4.0)  # of a change of scale; it is 2 for a Gaussian, 1/2 for a Cauchy distribution
LEAST_RATIO = 1e-3  # of variances that is told apart from 0
LARGEST = 50.0  # logarithm of the largest relative error that is told apart from infinity
COLUMNS = 256  # parameters that are looked at together: it bounds the memory


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


class Statistic(NamedTuple):
    """An error of each parameter.

    Attributes:
        error: the estimate.
        se: its standard error.
        t: the mean of u divided by its standard error, which has no noisy denominator.
        steady: the share of the mean that does not come from its two largest clusters.
    """

    error: np.ndarray
    se: np.ndarray
    t: np.ndarray
    steady: np.ndarray


class Confronted(NamedTuple):
    """What the gradients say about each of D parameters.

    Attributes:
        mean: error of the mean, in standard deviations.
        sd: relative error of the standard deviation.
        tail: relative error of the standard deviation as the tails show it.
        heavy: whether the draws have heavy tails.
        clusters: how many clusters the standard errors come from.
    """

    mean: Statistic
    sd: Statistic
    tail: Statistic
    heavy: np.ndarray
    clusters: int


def confront(some: Draws, gradients: np.ndarray, run: Draws) -> Confronted:
    """The errors of means, standard deviations and tails.

    Args:
        some: draws at which the gradient is known.
        gradients: (chain, draw, D) of the log-density at these draws.
        run: many more draws of the run, or the same.
    """
    low, centre, high = np.quantile(run.flat, (0.05, 0.5, 0.95), axis=0)
    scale = (high - low) / (2 * TAIL)
    scale = np.where(scale > 0, scale, run.flat.std(0))
    scale = np.where(scale > 0, scale, 1.0)
    here = some._replace(x=(some.x - centre) / scale)
    everywhere = run._replace(x=(run.x - centre) / scale)
    slopes = gradients.reshape(-1, gradients.shape[2]) * scale
    along, factor = directions(here, slopes, everywhere)
    parts = []
    for k in range(0, len(scale), COLUMNS):
        columns = slice(k, k + COLUMNS)
        adjusted = Adjusted(here, everywhere, columns)
        parts.append(_errors(adjusted, along[:, columns], slopes[:, columns], factor[columns]))
    mean, sd, tail, heavy = zip(*parts)
    join = [Statistic(*(np.concatenate(v) for v in zip(*found))) for found in (mean, sd, tail)]
    return Confronted(*join, np.concatenate(heavy), _clusters(here).max() + 1)


def directions(here: Draws, slopes: np.ndarray, everywhere: Draws) -> tuple[np.ndarray, np.ndarray]:
    """aᵀg at each draw for each parameter, (n, D), and by what to divide the error of the mean, (D,).

    Every a has the entry 1 for its own parameter.
    """
    z, w = np.clip(here.flat, -CLIP, CLIP), here.flat_weights
    along, unit = np.empty_like(z), np.empty_like(z)
    folds, all_folds = _clusters(here) % FOLDS, _clusters(everywhere) % FOLDS
    by_regression = len(z) >= PER_PARAMETER * z.shape[1]
    everything = None if by_regression else np.clip(everywhere.flat, -CLIP, CLIP)
    for fold in range(FOLDS):
        inside, others = folds == fold, folds != fold
        if everything is None:
            matrix, unit[inside] = _regression(z[others], slopes[others], w[others])
            along[inside] = slopes[inside] @ matrix.T
        else:
            kept = all_folds != fold
            along[inside] = _covariance(slopes[inside], everything[kept], everywhere.flat_weights[kept])
    if everything is None:
        return along, 1 / np.average(unit, axis=0, weights=w)
    information = np.average(along**2, axis=0, weights=w) - np.average(along, axis=0, weights=w) ** 2
    return along, np.where(information > 0, information, 1.0)


def _covariance(slopes: np.ndarray, z: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The slopes along the directions Cov(z)/Var(z_j), without the matrix itself."""
    z = z - np.average(z, axis=0, weights=w)
    variance = np.average(z**2, axis=0, weights=w)
    return (slopes @ z.T) @ (z * (w / w.sum())[:, None]) / np.where(variance > 0, variance, 1.0)


def _regression(z: np.ndarray, slopes: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Directions (D, D) with ones on the diagonal, and the coefficients (D,) that they were divided by.

    The coefficients of other parameters are shrunk by the factor of James and Stein: if they explain no more than
    chance does, as for independent parameters, the direction is the parameter's own axis. Otherwise their noise would
    enter u, and twice, because the pair of two draws enters from either side.
    """
    root, d = np.sqrt(w * len(w) / w.sum())[:, None], z.shape[1]
    left = root * (slopes - np.average(slopes, axis=0, weights=w))
    right = root * (z - np.average(z, axis=0, weights=w))
    size = np.sqrt((left**2).sum(0))
    size = np.where(size > 0, size, 1.0)
    matrix = -np.linalg.lstsq(left / size, right, rcond=1e-7)[0].T / size
    alone = -(left * right).sum(0) / size**2  # the regression on its own gradient
    rest = ((right + left @ matrix.T) ** 2).sum(0)
    explained = ((right + left * alone) ** 2).sum(0) - rest
    chance = 2 * (d - 1) * rest / max(len(z) - d - 1, 1)
    own = np.diag(matrix)
    trust = np.where(own > 1e-6, np.clip(1 - chance / np.maximum(explained, 1e-300), 0, 1), 0.0)
    own = trust * own + (1 - trust) * np.maximum(alone, 1e-6)
    matrix = trust[:, None] * matrix / np.where(trust > 0, np.diag(matrix), 1.0)[:, None]
    np.fill_diagonal(matrix, 1.0)
    return matrix, own


class Adjusted:
    """Means of u, adjusted to the whole run by regression on functions of the parameter itself."""

    def __init__(self, here: Draws, everywhere: Draws, columns: slice):
        self.z, self.w = here.flat[:, columns], here.flat_weights
        self.all, self.all_w = everywhere.flat[:, columns], everywhere.flat_weights
        self.labels = _clusters(here)
        self.all_labels = [_clusters(everywhere), _stretches(everywhere)]
        edge = np.minimum(np.quantile(np.abs(self.z), EDGE, axis=0), CLIP)
        y, everything = basis(self.z, edge), basis(self.all, edge)
        self.means = np.einsum("i,kij->kj", self.all_w, everything)
        self.y, self.everything = y - self.means[:, None], everything - self.means[:, None]

    def mean(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The adjusted mean of u (n, d), its standard error, and the share that does not come from two clusters."""
        centred = self.y - np.einsum("i,kij->kj", self.w, self.y)[:, None]
        gram = np.einsum("i,kij,lij->jkl", self.w, centred, centred, optimize=True)
        size = 1e-9 * np.trace(gram, axis1=1, axis2=2) + 1e-30  # a basis of which two functions agree is no trouble
        ridge = size[:, None, None] * np.eye(len(self.y))
        moment = np.einsum("i,kij,ij->jk", self.w, centred, u, optimize=True)
        beta = np.linalg.solve(gram + ridge, moment[..., None])[..., 0]
        rest = u - np.einsum("jk,kij->ij", beta, self.y)
        mean = self.w @ rest
        sums = cluster_sums(self.labels, self.w, rest - mean)
        fitted = np.einsum("jk,kij->ij", beta, self.everything)
        parts = [_variance(cluster_sums(labels, self.all_w, fitted)) for labels in self.all_labels]
        se = np.sqrt(_variance(sums) + np.maximum(*parts))
        share = cluster_sums(self.labels, self.w, rest) * np.sign(mean)
        largest = np.sort(share, axis=0)[-2:].sum(0)
        steady = 1 - largest / np.maximum(np.abs(mean), 1e-300)
        return mean, se, steady


def basis(z: np.ndarray, edge: np.ndarray) -> np.ndarray:
    """Functions of a standardized parameter that together come near to u for light and for heavy tails, (k, n, d).

    Beyond `edge` there are hardly any draws to fit: there the growing ones are constant, since a fit must not be
    continued to where it knows nothing.
    """
    near = np.clip(z, -edge, edge)
    inner, outer = near**2 / (near**2 + TAIL**2), z**2 / (z**2 + TAIL**2)
    return np.stack([near, near**2, near * inner, near**2 * inner, outer, z / (z**2 + TAIL**2)])


def outward(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """f for the tails, and f': like z³ near the middle, like z far away."""
    square = z**2 + TAIL**2
    return z**3 / square, z**2 * (z**2 + 3 * TAIL**2) / square**2


def _errors(adjusted: Adjusted, along: np.ndarray, slopes: np.ndarray, factor: np.ndarray) -> tuple:
    """The three statistics of a block of parameters, and whether their tails are heavy."""
    z, w_all = adjusted.z, adjusted.all_w
    shift, se, steady = adjusted.mean(along)
    mean = Statistic(-shift / factor, se / factor, -shift / se, steady)
    inside = (np.abs(z) < CLIP).astype(float)
    u = np.clip(z, -CLIP, CLIP) * along + inside
    slope = w_all @ (np.abs(adjusted.all) < CLIP)
    sd = _scale(adjusted, u, slope, None)
    heavy = (np.abs(adjusted.all) > FAR).any(0)
    value, derivative = outward(z)
    bounded = np.clip(value, -FAR, FAR)
    far = np.where(heavy, value * slopes, bounded * along) + np.where(heavy | (bounded == value), derivative, 0.0)
    tail = _scale(adjusted, far, w_all @ outward(adjusted.all)[1], 2.0)
    return mean, sd, tail, heavy


def _scale(adjusted: Adjusted, u: np.ndarray, slope: np.ndarray, information: float | None) -> Statistic:
    """The relative error of the scale from u, with E f' and the Fisher information, which is estimated if None."""
    slope = np.where(slope > 0.01, slope, np.nan)
    mean, se, steady = adjusted.mean(u)
    ratio = np.maximum(1 - mean / slope, LEAST_RATIO)
    if information is None:
        variance = adjusted.w @ u**2 - (adjusted.w @ u) ** 2
        known = np.clip(variance / (slope * ratio) ** 2, *INFORMATION)
    else:
        known = np.full_like(slope, information)
    relative = np.expm1(np.minimum(np.log(ratio) / known, LARGEST))
    return Statistic(relative, (1 + relative) * se / (slope * ratio * known), -mean / se, steady)


# --- clusters of correlated draws ---


def cluster_sums(labels: np.ndarray, w: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ w v over each cluster, (cluster, d)."""
    member = (labels[None] == np.arange(labels.max() + 1)[:, None]).astype(np.float64)
    return (member * w) @ values


def _variance(sums: np.ndarray) -> np.ndarray:
    """The variance of a total from the sums of independent clusters, whose mean is 0."""
    return (sums**2).sum(0) * len(sums) / max(len(sums) - 1, 1)


def _clusters(draws: Draws) -> np.ndarray:
    """A number for each draw: its chain, or if there are few chains, its stretch of a chain."""
    chains, n, _ = draws.x.shape
    stretches = min(n, -(-CLUSTERS // chains))
    return (np.arange(chains)[:, None] * stretches + _part(n, stretches)).ravel()


def _stretches(draws: Draws) -> np.ndarray:
    """A number for each draw: its ensemble and its stretch of time, since replicas may move together."""
    chains, n, _ = draws.x.shape
    ensembles = max(1, chains // draws.replicas)
    stretches = min(n, max(2, -(-CLUSTERS // ensembles)))
    return (np.arange(chains)[:, None] // draws.replicas * stretches + _part(n, stretches)).ravel()


def _part(n: int, stretches: int) -> np.ndarray:
    """The stretch of each of n successive draws."""
    return np.arange(n) * stretches // n
