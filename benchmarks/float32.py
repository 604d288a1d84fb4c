"""The cost of single precision: Gram-space ``H g`` and ``S z`` in float32 against dense BFGS in float64.

The targets are Gaussian with log-spaced eigenvalues, with moves of the posterior's size, γ from the newest pair, and
every pair used. The error grows with the condition number and with M, and most where there are at least as many pairs
as dimensions: with few dimensions, many pairs and a stiff target, enable float64. Drift and noise are computed from the
same factor, so they belong to the same H regardless of rounding.
"""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import Table
from hamcmc.samplers import curvature


def run(quick: bool) -> list[Table]:
    """Over the memory, the target's condition number and the dimension."""
    rows = []
    for dimension in (10, 100) if quick else (10, 100, 1000):
        for condition in (1e1, 1e3, 1e5):
            for memory in (2, 3, 5, 10, 20):
                trials = [errors(seed, memory - 1, dimension, condition) for seed in range(5 if quick else 15)]
                drift, noise = np.transpose(trials)
                rows.append(
                    {
                        "D": dimension,
                        "condition": f"{condition:.0e}",
                        "M": memory,
                        "H g, median": f"{np.median(drift):.1e}",
                        "H g, worst": f"{np.max(drift):.1e}",
                        "S z, median": f"{np.median(noise):.1e}",
                        "S z, worst": f"{np.max(noise):.1e}",
                    }
                )
    return [Table("Relative error in float32", rows)]


def errors(seed: int, pairs: int, dimension: int, condition: float) -> tuple[float, float]:
    """The errors of H g and S z, for moves of the posterior's size on a Gaussian target."""
    rng = np.random.default_rng(seed)
    eigenvalues = np.geomspace(1, condition, dimension)
    s = rng.standard_normal((pairs, dimension)) / np.sqrt(eigenvalues)
    s, y, g, z = (
        x.astype(np.float32) for x in (s, s * eigenvalues, *rng.standard_normal((2, dimension)) * eigenvalues**0.5)
    )
    accepted, gamma, drift, noise = jax.device_get(in_gram_space(s, y, g, z))
    h_g, s_z = dense(*(x.astype(np.float64) for x in (s, y, g, z)), accepted, float(gamma))
    error = lambda a, b: np.linalg.norm(a - b) / np.linalg.norm(b)
    return error(drift, h_g), error(noise, s_z)


def in_gram_space(s, y, g, z):
    """As the sampler does it, γ from the newest pair."""
    basis = jnp.concatenate([s, y])
    accepted, d = algebra(curvature.inner(basis, basis), basis @ g, basis @ z)
    return accepted, d.gamma, d.gamma * g + d.drift @ basis, jnp.sqrt(d.gamma) * z + d.noise @ basis


@jax.jit
def algebra(gram, along_g, along_z):
    """What does not know the dimension."""
    accepted = curvature.acceptable(gram, 0.0)  # every pair, also those that the sampler would reject
    f = curvature.factor(gram, accepted, curvature.newest_pair_scale(gram, accepted, 1.0))
    return f.accepted, curvature.direction(f, gram, along_g, along_z)


def dense(s, y, g, z, accepted, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """H g and S z from D×D matrices: H, B = H⁻¹ and the product form of S."""
    size = len(g)
    h, b, root = gamma * np.eye(size), np.eye(size) / gamma, np.sqrt(gamma) * np.eye(size)
    for s_k, y_k in zip(s[accepted], y[accepted]):
        s_y, b_s = s_k @ y_k, b @ s_k
        q = np.sqrt(s_y / (s_k @ b_s)) * b_s + y_k
        root = root - np.outer(s_k, q @ root) / s_y
        h_y = h @ y_k
        h = h - (np.outer(s_k, h_y) + np.outer(h_y, s_k)) / s_y + np.outer(s_k, s_k) * (1 + y_k @ h_y / s_y) / s_y
        b = b - np.outer(b_s, b_s) / (s_k @ b_s) + np.outer(y_k, y_k) / s_y
    return h @ g, root @ z
