"""Autocorrelation time of the slowest direction on two ill-conditioned Gaussians, in gradients per replica."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.measure import Table
from hamcmc import ensemble_hamcmc, ensemble_underdamped
from hamcmc.samplers import Sampler

DIMENSION, CONDITION, COPIES = 100, 10**3.5, 6
TARGETS = {
    "5 slow directions, 95 fast": np.where(np.arange(DIMENSION) < 5, 1.0, CONDITION),
    "log-spaced": np.geomspace(1.0, CONDITION, DIMENSION),
}


def run(quick: bool) -> list[Table]:
    """γ from the replicas, no base metric: only the pairs know the target. Full gradients, exact start."""
    sweeps = 500 if quick else 5000
    rows = []
    for name, curvatures in TARGETS.items():
        grad = lambda x, _, a=curvatures: -jnp.asarray(a, x.dtype) * x
        for label, sampler, step_size in contenders(grad):
            time, low, high = measure(sampler, step_size, curvatures, sweeps)
            rows.append(
                {
                    "target": name,
                    "sampler": label,
                    "ε": step_size,
                    "gradients per replica": round(time),
                    "variances": f"{low:.2f} … {high:.2f}",
                    "SGLD (theory, ε L = 0.2)": round(2 * CONDITION / 0.2),
                }
            )
    return [Table("Autocorrelation time of the slowest direction, m = 10, D = 100, condition number 3162", rows)]


def contenders(grad) -> list[tuple[str, Sampler, float]]:
    """The published update on neighbours' pairs and the block update, each with its step sizes."""
    options = {"pairs": 10, "metric": None}
    return [
        ("neighbours", ensemble_hamcmc(grad, update="neighbours", gamma=1 / CONDITION, **options), 0.2),
        ("block", ensemble_hamcmc(grad, **options), 0.2),
        ("block", ensemble_hamcmc(grad, **options), 1.0),
        ("block, underdamped", ensemble_underdamped(grad, friction=0.3, **options), 0.2),
    ]


def measure(sampler: Sampler, step_size: float, curvatures: np.ndarray, sweeps: int) -> tuple[float, float, float]:
    """The slowest direction's autocorrelation time in moves of a replica, and the range of scaled variances."""
    shape = (COPIES, sampler.replicas, DIMENSION)
    start = jax.random.normal(jax.random.key(0), shape) / jnp.sqrt(jnp.asarray(curvatures, jnp.float32))

    def sweep(state, key):
        for k in jax.random.split(key):  # a half-move each
            step = lambda k, s: sampler.step(k, s, None, step_size)[0]
            state = jax.vmap(step)(jax.random.split(k, COPIES), state)
        x = state.position
        return state, (x[..., 0].reshape(-1), jnp.mean(x**2, (0, 1)))

    keys = jax.random.split(jax.random.key(1), sweeps)
    _, (slowest, squares) = jax.jit(lambda s: lax.scan(sweep, s, keys))(jax.vmap(sampler.init)(start))
    scaled = np.asarray(squares, np.float64).mean(0) * curvatures
    return autocorrelation_time(np.asarray(slowest, np.float64)), scaled.min(), scaled.max()


def autocorrelation_time(x: np.ndarray) -> float:
    """Integrated, of (time, replica) with known mean 0, cut at five times itself."""
    n = len(x)
    spectrum = np.abs(np.fft.rfft(x, 2 * n, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum, axis=0)[:n].mean(1) / np.arange(n, 0, -1)
    total = 2 * np.cumsum(covariance / covariance[0]) - 1
    enough = np.arange(n) >= 5 * total
    return float(total[np.argmax(enough)] if enough.any() else total[-1])
