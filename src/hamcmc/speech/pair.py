r"""Two stable sources in one complex number, with their impulses integrated out.

A bin of a noisy spectrogram is x = s + n, both isotropic SαS: :math:`s | Φ_s ∼ N_c(0, Φ_s v_s)` and likewise n, with Φ
twice a positive stable variable (:func:`hamcmc.stable.distributions.impulse`), and :math:`v = σ²`. Given the scales,

.. math:: p(x) = E\, N_c(x; 0, Φ_s v_s + Φ_n v_n), \qquad
    E[s | x] = x\, E\Big[\frac{Φ_s v_s}{Φ_s v_s + Φ_n v_n} \Big| x\Big]

depend, up to a factor :math:`1/v_n`, on two numbers alone: log v_s/v_n and log |x|²/v_n. A table of both functions
replaces the Metropolis steps on Φ. The posterior of the scales is the same, without the slow mixing of the impulses.
"""

import zlib
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc import _compile

LOWEST = -18.0, -16.0  # of log v_s/v_n and log |x|²/v_n
HIGHEST = 18.0, 20.0
POINTS = 128


class Pair(NamedTuple):
    """A table over log v_s/v_n and log |x|²/v_n: log-density, its two slopes, share of s, and log of its mean power."""

    table: Array

    def look(self, ratio: Array, power: Array) -> tuple[Array, ...]:
        """The five functions, linearly interpolated. Outside the table they have the values at its edge."""
        last = POINTS - 1

        def at(x: Array, k: int) -> Array:
            """Where x lies on axis k of the table."""
            return jnp.clip((x - LOWEST[k]) / (HIGHEST[k] - LOWEST[k]) * last, 0, last * (1 - 1e-6))

        a, b = at(ratio, 0), at(power, 1)
        i, j = a.astype(jnp.int32), b.astype(jnp.int32)
        u, v, corner = (a - i)[..., None], (b - j)[..., None], i * POINTS + j
        low = (1 - v) * self.table[corner] + v * self.table[corner + 1]
        high = (1 - v) * self.table[corner + POINTS] + v * self.table[corner + POINTS + 1]
        return tuple(jnp.moveaxis((1 - u) * low + u * high, -1, 0))

    def log_density(self, speech: Array, noise: Array, power: Array) -> Array:
        """log p(x), from log v_s, log v_n and log |x|². Its gradient comes from the table, too."""
        return _log_density(self.table, speech, noise, power)

    def share(self, speech: Array, noise: Array, power: Array) -> Array:
        """E[s | x] / x, from log v_s, log v_n and log |x|²: between 0 and 1."""
        return self.look(speech - noise, power - noise)[3]

    def share_and_power(self, speech: Array, noise: Array, power: Array) -> tuple[Array, Array]:
        """E[s | x] / x and E[|s|² | x], from log v_s, log v_n and log |x|²."""
        found = self.look(speech - noise, power - noise)
        return found[3], jnp.exp(found[4] + noise)


@jax.custom_vjp
def _log_density(table: Array, speech: Array, noise: Array, power: Array) -> Array:
    return Pair(table).look(speech - noise, power - noise)[0] - noise


def _forward(table, speech, noise, power):
    value, by_ratio, by_power, *_ = Pair(table).look(speech - noise, power - noise)
    return value - noise, (table, by_ratio, by_power)


def _backward(kept, g):
    table, by_ratio, by_power = kept
    return jnp.zeros_like(table), g * by_ratio, -g * (1 + by_ratio + by_power), g * by_power


_log_density.defvjp(_forward, _backward)


@lru_cache
def pair(speech_alpha: float, noise_alpha: float) -> Pair:
    """The table for two indices in (0, 2]. It is kept beside compiled programs: it takes a second to make."""
    code = zlib.crc32(__loader__.get_data(__file__))  # another table for other code
    name = f"speech-pair-{speech_alpha}-{noise_alpha}-{code:08x}"
    return Pair(_compile.put(_compile.kept_array(name, partial(make_table, speech_alpha, noise_alpha))))


def make_table(speech_alpha: float, noise_alpha: float) -> Array:
    """The rows of the table: points of the ratio times points of the power."""
    (phi_s, mass_s), (phi_n, mass_n) = impulse_nodes(speech_alpha), impulse_nodes(noise_alpha)
    ratio, power = (np.linspace(LOWEST[k], HIGHEST[k], POINTS, dtype=np.float32) for k in (0, 1))
    mass = np.log(np.outer(mass_s, mass_n).ravel()).astype(np.float32)

    def row(ratio: Array) -> Array:
        speech = jnp.repeat(jnp.exp(ratio) * phi_s, len(phi_n))
        variance = speech + jnp.tile(phi_n, len(phi_s))
        share = speech / variance

        def point(power: Array) -> Array:
            half = jnp.exp(power) / (2 * variance)
            terms = mass - jnp.log(2 * jnp.pi * variance) - half
            weights = jax.nn.softmax(terms)

            def mean(f: Array) -> Array:
                return jnp.dot(weights, f)

            # Given both impulses, s is normal: its mean is a share of x, its variance that share of the noise's.
            energy = mean(share**2) * jnp.exp(power) + 2 * mean(speech * (1 - share))
            slopes = mean(share * (half - 1)), -mean(half)
            return jnp.stack([jax.nn.logsumexp(terms), *slopes, mean(share), jnp.log(energy)])

        return jax.vmap(point)(jnp.asarray(power))

    table = jax.jit(lambda ratio: jax.lax.map(row, ratio))(ratio)
    return table.reshape(-1, 5)


def impulse_nodes(alpha: float, mass: float = 0.04, width: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    r"""Φ = 2X at the centres of cells of log X, and the masses of the cells, at most `mass` each and `width` wide.

    The distribution function of a positive stable X of index a is an integral over one angle (Kanter):
    :math:`P(X ≤ x) = \frac1π ∫_0^π \exp(-A(u)\, x^{-a/(1-a)})\, du`.
    """
    if not 0 < alpha <= 2:
        raise ValueError(f"alpha must be in (0, 2], got {alpha}")
    if alpha == 2:
        return np.array([2.0], np.float32), np.array([1.0])
    a = alpha / 2
    u = (np.arange(2000) + 0.5) / 2000 * np.pi
    log_a = (a * np.log(np.sin(a * u)) - np.log(np.sin(u))) / (1 - a) + np.log(np.sin((1 - a) * u))
    x = np.arange(-6, 30, 0.01)
    below = np.exp(-np.exp(np.minimum(log_a - a / (1 - a) * x[:, None], 700))).mean(1)
    edges = np.unique(np.floor(below / mass) + 1j * np.floor(x / width), return_index=True)[1]
    edges = np.append(np.sort(edges), len(x) - 1)
    masses = np.diff(below[edges])
    middle = np.diff(np.append(0, np.cumsum(np.diff(below) * (x[1:] + x[:-1]) / 2))[edges]) / np.maximum(masses, 1e-300)
    kept = masses > 1e-9
    return 2 * np.exp(middle[kept]).astype(np.float32), masses[kept] / masses[kept].sum()
