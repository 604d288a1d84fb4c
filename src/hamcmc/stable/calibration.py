r"""Does the posterior of a source cover the truth?

Given W, H and Φ, a source is normal: its mean is the gain g times x, and each of its parts has variance g (1 − g) V.
Its posterior is the average of these normal laws over the draws. The *rank* of a true value is the posterior
probability of a smaller one. If the posterior is right, ranks are uniform on (0, 1), and a central set of probability p
holds the truth in a share p of all cases.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.stats import norm

from hamcmc.stable.chains import Look

LEVELS = (0.5, 0.9, 0.99)


def turned(truth: Sequence[Any] | None, X: np.ndarray, unit: float) -> Array | None:
    """The sources in the model's units, turned so that x is real and positive: sources × parts × rows × columns."""
    if truth is None:
        return None
    each = np.stack([np.asarray(s) for s in truth])
    if each.shape[1:] != X.shape:
        raise ValueError(f"truth must have the shape of X for each source, {X.shape}, got {each.shape[1:]}")
    phase = np.exp(-1j * np.angle(np.nan_to_num(X)))
    each = np.nan_to_num(each) * phase / unit
    parts = [each.real, each.imag] if np.iscomplexobj(X) else [each.real]
    return jnp.asarray(np.stack(parts, 1), float)


def ranks_of(truth: Array, log_power: Array, seen: Look) -> Array:
    """The probability, given one draw, that a source is below its true value: sources × parts × rows × columns.

    Args:
        truth: the sources, turned so that x is real and positive, in parts along and across x.
        log_power: ``log |x|²``.
        seen: the draw.
    """
    along = jnp.arange(truth.shape[1])[:, None, None] == 0
    gain = seen.gains[:, None]
    mean = along * gain * jnp.exp(0.5 * log_power)
    variance = gain * (1 - gain) * jnp.exp(seen.log_variance)
    return norm.cdf((truth - mean) / jnp.sqrt(jnp.maximum(variance, jnp.finfo(variance.dtype).tiny)))


def coverage(ranks: np.ndarray, levels: Sequence[float] = LEVELS) -> dict[float, float]:
    """The share of true values inside the central sets of the given probabilities.

    Args:
        ranks: those of :class:`~hamcmc.stable.separation.Factors`, or some of them.
        levels: the probabilities.
    """
    return {p: float(np.mean(np.abs(2 * np.asarray(ranks) - 1) <= p)) for p in levels}
