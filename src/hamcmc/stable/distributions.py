r"""Distributions that JAX and SciPy lack: stable ones, by exact samplers, and the generalized gamma.

Conventions: :math:`N_c(0, v)` has real and imaginary parts of variance v *each*. A positive stable variable of index
a ∈ (0, 1) has Laplace transform :math:`E e^{-sX} = e^{-s^a}`. Complex isotropic SαS of scale σ has characteristic
function :math:`E e^{i \mathrm{Re}(\bar w X)} = e^{-σ^α |w|^α}`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.special import gammaln


def positive_stable(key: Array, a: Any, shape: tuple[int, ...] = (), dtype: Any = float) -> Array:
    r"""Totally skewed positive stable draws, :math:`E e^{-sX} = e^{-s^a}` for 0 < a < 1.

    .. math:: X = \frac{\sin aU}{(\sin U)^{1/a}} \left(\frac{\sin (1-a)U}{E}\right)^{(1-a)/a},
        \qquad U ∼ \mathrm{Uniform}(0, π), \; E ∼ \mathrm{Exp}(1)

    computed in logarithms, because X spans many orders of magnitude. It is infinite above the largest number of the
    type.

    References:
        Kanter, Stable densities under change of scale and total variation inequalities, 1975.
    """
    return jnp.exp(log_positive_stable(key, a, shape, dtype))


def log_positive_stable(key: Array, a: Any, shape: tuple[int, ...] = (), dtype: Any = float) -> Array:
    """The logarithm of :func:`positive_stable`: finite where the number itself is not."""
    key_angle, key_size = jax.random.split(key)
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    # The heavy tail is where U is near π, so draw the distance from π, which keeps its digits.
    rest = jnp.pi * _inside(key_angle, shape, dtype)
    angle = jnp.pi - rest
    log_e = jnp.log(-jnp.log(_inside(key_size, shape, dtype)))
    return log_sin(a * angle) - log_sin(rest) / a + (1 - a) / a * (log_sin((1 - a) * angle) - log_e)


def _inside(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Uniform numbers in (0, 1): half a unit above those of JAX, of which one in eight million is 0."""
    return jax.random.uniform(key, shape, dtype) + jnp.finfo(dtype).eps / 2


# sin x = x (1 + c₁ x² + … + c₄ x⁸) on [0, π/2], with a relative error of at most 6e-9 (a minimax fit).
SINE = (-0.16666659550762147, 0.00833306625500487, -0.00019809603572695832, 2.605782148779913e-06)
PI = 3.140625, 0.0009676535897932795  # their sum is π; the first has few digits, so that differences to it are exact


def log_sin(x: Array) -> Array:
    """log sin x for x in [0, π], finite at both ends.

    In single precision by a polynomial, which is several times faster than a sine that must be right for every x.
    """
    if x.dtype == jnp.float32:
        x = jnp.minimum(x, (PI[0] - x) + PI[1])
        square, sine = x * x, jnp.zeros_like(x)
        for c in reversed(SINE):
            sine = (sine + c) * square
        sine = x + x * sine
    else:
        sine = jnp.sin(x)
    return jnp.log(jnp.maximum(sine, jnp.finfo(x.dtype).tiny))


def impulse(key: Array, alpha: Any, shape: tuple[int, ...] = (), dtype: Any = float) -> Array:
    """Φ for which √Φ · N_c(0, σ²) is complex isotropic SαS of scale σ: twice a positive stable variable of index
    α/2."""
    return 2 * positive_stable(key, jnp.asarray(alpha) / 2, shape, dtype)


def complex_stable(key: Array, alpha: Any, scale: Any = 1.0, shape: tuple[int, ...] = (), dtype: Any = float) -> Array:
    r"""Complex isotropic SαS draws, :math:`E e^{i \mathrm{Re}(\bar w X)} = e^{-σ^α |w|^α}`, 0 < α < 2."""
    key_impulse, key_normal = jax.random.split(key)
    parts = jax.random.normal(key_normal, (2, *shape), jax.dtypes.canonicalize_dtype(dtype))
    return scale * jnp.sqrt(impulse(key_impulse, alpha, shape, dtype)) * (parts[0] + 1j * parts[1])


def stable_index(x: Array) -> Array:
    r"""α of complex isotropic SαS draws of one scale, from :math:`\mathrm{Var} \log|X| = π² / 6α²`; at most 2."""
    spread = jnp.var(jnp.log(jnp.abs(x)))
    return jnp.minimum(2.0, jnp.pi / jnp.sqrt(6 * spread))


def generalized_gamma_log_density(x: Array, a: Any, b: Any, c: Any) -> Array:
    r"""Log-density of the generalized gamma distribution (Stacy) at x > 0; c may be negative.

    .. math:: p(x) = \frac{|c|}{Γ(a)\, b^{ca}}\, x^{ca-1} e^{-(x/b)^c}
    """
    power = jnp.exp(c * (jnp.log(x) - jnp.log(b)))
    return jnp.log(jnp.abs(c)) - gammaln(a) - c * a * jnp.log(b) + (c * a - 1) * jnp.log(x) - power


def generalized_gamma(key: Array, a: Any, b: Any, c: Any, shape: tuple[int, ...] = (), dtype: Any = float) -> Array:
    """Draws of the generalized gamma distribution: b G^(1/c) with G ∼ Gamma(a)."""
    log_g = jax.random.loggamma(key, a, shape, jax.dtypes.canonicalize_dtype(dtype))
    return b * jnp.exp(log_g / c)
