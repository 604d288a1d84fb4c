r"""Stein's identities: how far draws are from a density, parameter by parameter, from its gradients at the draws.

Let :math:`g = ∇\log p`. For every smooth f and every fixed direction a, if the draws x are from p, then

.. math:: E[\,u\,] = 0, \qquad u = f(x_j)\, a^⊤ g(x) + a_j f'(x_j),

because u is the divergence of f a p, divided by p. This needs neither the normalizing constant nor a second sampler. It
is also a score: −u is the derivative of the log-density of the draws, if each x moves along a by the amount f(x_j).

**What the mean of u says if the draws are wrong.** Take p = N(μ, Σ), whose gradient is −Σ⁻¹(x − μ), and draws from
N(m, S). With a = Σ e_j, aᵀg = −(x_j − μ_j), and

* f = 1: E u = −(m_j − μ_j), the error of the mean;
* f = x_j − m_j: E u = Σ_jj − S_jj, the error of the variance;
* any odd f: E u = (Σ_jj − S_jj) E f', so an f that is small in the middle shows the error of the tails.

With :math:`R = 1 - E u / (Σ_{jj} E f')`, the variance of the draws is R times that of p, and √R − 1 is the relative
error of the standard deviation.

**The direction.** Σ is not known. The regression of x on g has the coefficients Cov(x, g) Cov(g)⁻¹, which are −Σ for a
Gaussian p, whatever S is. For any p, if the draws are right, Cov(x, g) = −I and the coefficients are the inverse Fisher
information of a shift, so −E u is again the shift to first order. The coefficients are computed from other chains than
those that they are used on: they are then fixed, and E u = 0 exactly. Where there are draws enough, the direction also
depends on the position (``diagnostics.fields``), which hierarchical models need.

**The scale of an error.** A relative change η of the scale of x_j has Fisher information I = Var(u)/(E f' R)², which is
2 for a Gaussian and less for heavy tails. The relative error of the standard deviation is exp(log R / I) − 1.

**Noise.** u is known at a few hundred draws only, but functions y of x_j are known at all draws of the run. The mean of
u is therefore adjusted by regression: mean(u) − βᵀ(mean(y) − mean of y over the run). For a Gaussian u is a function of
x_j, and the estimate has hardly more noise than the mean of the whole run. Standard errors come from sums over clusters
(chains, or stretches of a chain, or stretches of an ensemble), because draws of one chain are correlated.

**Heavy tails.** f is constant beyond 4 standard deviations, where a standard deviation is the distance between the 5 %
and the 95 % quantile, divided by that of a standard Gaussian. Then u is bounded wherever g is, and E u = 0 needs no
moments. The statistic of the tails grows with x, because far away a heavy-tailed density has hardly any gradient that a
bounded f could see.
"""

from typing import NamedTuple

import numpy as np

from hamcmc.diagnostics.fields import CLIP, CLUSTERS, TAIL, Draws, Fields, clusters, directions, part

FAR = 8.0  # draws beyond this many standard deviations show heavy tails
EDGE = 0.98  # the share of draws within which functions of the parameter are fitted
INFORMATION = (0.25, 4.0)  # of a change of scale; it is 2 for a Gaussian, 1/2 for a Cauchy distribution
UNSURE = 0.3  # error of the logarithm of an estimated information: a smaller difference from a Gaussian's is noise
LEAST_RATIO = 1e-3  # of variances that is told apart from 0
LARGEST = 50.0  # logarithm of the largest relative error that is told apart from infinity
COLUMNS = 256  # parameters that are looked at together: it bounds the memory


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
    fields = directions(here, slopes, everywhere)
    parts = []
    for k in range(0, len(scale), COLUMNS):
        columns = slice(k, k + COLUMNS)
        adjusted = Adjusted(here, everywhere, columns)
        parts.append(errors(adjusted, Fields(*(v[..., columns] for v in fields)), slopes[:, columns]))
    mean, sd, tail, heavy = zip(*parts)
    join = [Statistic(*(np.concatenate(v) for v in zip(*found))) for found in (mean, sd, tail)]
    return Confronted(join[0], join[1], join[2], np.concatenate(heavy), int(clusters(here).max()) + 1)


class Adjusted:
    """Means of u, adjusted to the whole run by regression on functions of the parameter itself."""

    def __init__(self, here: Draws, everywhere: Draws, columns: slice):
        self.z, self.w = here.flat[:, columns], here.flat_weights
        self.all, self.all_w = everywhere.flat[:, columns], everywhere.flat_weights
        self.labels = clusters(here)
        self.all_labels = [clusters(everywhere), _stretches(everywhere)]
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
        se = np.maximum(np.sqrt(_variance(sums) + np.maximum(*parts)), 1e-300)
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
    square = z * z
    share = square / (square + TAIL**2)
    return z * share, share * (3 - 2 * share)


def errors(adjusted: Adjusted, fields: Fields, slopes: np.ndarray) -> tuple:
    """The three statistics of a block of parameters, and whether their tails are heavy."""
    z, w_all = adjusted.z, adjusted.all_w
    shift, se, steady = adjusted.mean(fields.along)
    mean = Statistic(-shift / fields.factor, se / fields.factor, -shift / se, steady)
    inside = np.abs(z) < CLIP
    u = np.clip(z, -CLIP, CLIP) * fields.along + inside * fields.own
    slope = w_all @ (np.abs(adjusted.all) < CLIP)
    sd = _scale(adjusted, u, slope, None)
    heavy = (np.abs(adjusted.all) > FAR).any(0)
    value, derivative = outward(z)
    bounded = np.clip(value, -FAR, FAR)
    light = bounded * fields.along + np.where(bounded == value, derivative * fields.own, 0.0)
    tail = _scale(adjusted, np.where(heavy, value * slopes + derivative, light), w_all @ outward(adjusted.all)[1], 2.0)
    return mean, sd, tail, heavy


def _scale(adjusted: Adjusted, u: np.ndarray, slope: np.ndarray, information: float | None) -> Statistic:
    """The relative error of the scale from u, with E f' and the Fisher information, which is estimated if None."""
    slope = np.where(slope > 0.01, slope, np.nan)
    mean, se, steady = adjusted.mean(u)
    ratio = np.maximum(1 - mean / slope, LEAST_RATIO)
    if information is None:
        variance = adjusted.w @ u**2 - (adjusted.w @ u) ** 2
        off = np.log(np.clip(variance / (slope * ratio) ** 2, *INFORMATION) / 2)
        known = 2 * np.exp(np.sign(off) * np.maximum(np.abs(off) - UNSURE, 0.0))
    else:
        known = np.full_like(slope, information)
    relative = np.expm1(np.minimum(np.log(ratio) / known, LARGEST))
    return Statistic(relative, (1 + relative) * se / (slope * ratio * known), -mean / se, steady)


# --- clusters of correlated draws ---


def cluster_sums(labels: np.ndarray, w: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Σ w v over each cluster, (cluster, d)."""
    order = np.argsort(labels, kind="stable")
    begins = np.flatnonzero(np.diff(labels[order], prepend=-1))
    sums = np.zeros((labels.max() + 1, values.shape[1]))
    sums[labels[order][begins]] = np.add.reduceat(w[order, None] * values[order], begins)
    return sums


def _variance(sums: np.ndarray) -> np.ndarray:
    """The variance of a total from the sums of independent clusters, whose mean is 0."""
    return (sums**2).sum(0) * len(sums) / max(len(sums) - 1, 1)


def _stretches(draws: Draws) -> np.ndarray:
    """A number for each draw: its ensemble and its stretch of time, since replicas may move together."""
    chains, n, _ = draws.x.shape
    ensembles = max(1, chains // draws.replicas)
    stretches = min(n, max(2, -(-CLUSTERS // ensembles)))
    return (np.arange(chains)[:, None] // draws.replicas * stretches + part(n, stretches)).ravel()
