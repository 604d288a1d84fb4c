"""Log-densities up to a constant, summed over all entries; and what simulated data share."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln


def normal(x: Array, mean: Array | float = 0.0, sd: Array | float = 1.0) -> Array:
    """N(mean, sd²)."""
    return jnp.sum(-0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd))


def student_t(x: Array, freedom: Array | float, mean: Array | float = 0.0, sd: Array | float = 1.0) -> Array:
    """Student's t with location and scale, its constant included, because `freedom` may be a parameter."""
    constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - 0.5 * jnp.log(freedom)
    return jnp.sum(constant - jnp.log(sd) - (freedom + 1) / 2 * jnp.log1p(((x - mean) / sd) ** 2 / freedom))


def cauchy(x: Array, scale: Array | float = 1.0) -> Array:
    """Cauchy around zero; on x > 0 the half-Cauchy."""
    return jnp.sum(-jnp.log1p((x / scale) ** 2) - jnp.log(scale))


def gamma(x: Array, shape: Array | float, rate: Array | float) -> Array:
    """Gamma, its constant included, because shape and rate may be parameters."""
    return jnp.sum((shape - 1) * jnp.log(x) - rate * x + shape * jnp.log(rate) - gammaln(shape))


def inverse_gamma(x: Array, shape: float, scale: float) -> Array:
    """Inverse gamma."""
    return jnp.sum(-(shape + 1) * jnp.log(x) - scale / x)


def beta(x: Array, a: float, b: float) -> Array:
    """Beta on (0, 1)."""
    return jnp.sum((a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x))


def bernoulli_logit(y: Array, eta: Array) -> Array:
    """Log-probability of the labels `y` (0 or 1) at log-odds `eta`."""
    return jnp.sum(y * eta - jnp.logaddexp(0.0, eta))


def binomial_logit(successes: Array, trials: Array, eta: Array) -> Array:
    """Log-probability of successes at log-odds `eta`."""
    return jnp.sum(successes * eta - trials * jnp.logaddexp(0.0, eta))


def poisson_log(y: Array, eta: Array) -> Array:
    """Log-probability of counts at log-rate `eta`."""
    return jnp.sum(y * eta - jnp.exp(eta))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function, for simulation."""
    return 1 / (1 + np.exp(-x))


def design(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A column of ones and standard normal columns."""
    return np.column_stack([np.ones(rows), rng.normal(size=(rows, columns - 1))])
