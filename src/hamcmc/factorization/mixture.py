"""Quantiles of mixtures of normals."""

import numpy as np
from scipy.special import ndtr, ndtri

CACHED = 2**18  # entries worked on at once: what the processor's cache holds


def mixture_quantile(p: float, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """The p-quantile of mixtures of normals with equal weights, one mixture per column.

    Newton's method within a bracket.

    Args:
        p: a probability.
        mean: (component, mixture).
        sd: (component, mixture) or (component, 1).
    """
    columns = max(1, CACHED // len(mean))
    if mean.shape[1] > columns:
        parts = [slice(start, start + columns) for start in range(0, mean.shape[1], columns)]
        return np.concatenate([mixture_quantile(p, mean[:, c], sd if sd.shape[1] == 1 else sd[:, c]) for c in parts])
    ends = mean + ndtri(p).astype(mean.dtype) * sd
    # At `low` no component has reached p, and at `high` every component has.
    low, high = ends.min(0).astype(np.float64), ends.max(0).astype(np.float64)
    width = np.sqrt(mean.var(0) + (sd**2).mean(0))
    found = np.clip(mean.mean(0) + ndtri(p) * width, low, high).astype(np.float64)
    finest = np.broadcast_to(sd.min(0), low.shape)
    active = np.flatnonzero(high > low)
    for _ in range(60):
        if not len(active):
            break
        scale = sd if sd.shape[1] == 1 else sd[:, active]
        x = found[active]
        z = (x.astype(mean.dtype) - mean[:, active]) / scale
        excess = ndtr(z).mean(0, dtype=np.float64) - p
        density = (np.exp(-0.5 * z * z) / scale).mean(0, dtype=np.float64) / np.sqrt(2 * np.pi)
        low[active], high[active] = np.where(excess < 0, x, low[active]), np.where(excess > 0, x, high[active])
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = x - excess / density
        inside = (newton >= low[active]) & (newton <= high[active])
        found[active] = np.where(inside, newton, (low[active] + high[active]) / 2)
        # Newton's method doubles the digits: after a step of 1e-3 sd the rest is below single precision.
        done = inside & (np.abs(newton - x) < 1e-3 * finest[active])
        active = active[~done & (high[active] - low[active] > 1e-6 * finest[active])]
    return found
