"""Exact draws of densities with known gradients, and what can go wrong with draws."""

from collections.abc import Callable

import numpy as np

Draws = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]  # draws (n, D), and the gradient of the log-density


def gaussian(rng: np.random.Generator, n: int, d: int = 10, rho: float = 0.9) -> Draws:
    """N(0, Σ) with Σ_jk = ρ^|j−k|."""
    sigma = rho ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    precision = np.linalg.inv(sigma)
    return rng.standard_normal((n, d)) @ np.linalg.cholesky(sigma).T, lambda x: -x @ precision


def student(nu: float) -> Callable[..., Draws]:
    """Independent Student-t."""

    def draw(rng: np.random.Generator, n: int, d: int = 8) -> Draws:
        return rng.standard_t(nu, (n, d)), lambda x: -(nu + 1) * x / (nu + x**2)

    return draw


def funnel(rng: np.random.Generator, n: int, d: int = 5) -> Draws:
    """Neal's: v ~ N(0, 9), x_k ~ N(0, exp v)."""
    v = 3 * rng.standard_normal((n, 1))

    def grad(q: np.ndarray) -> np.ndarray:
        v, x = q[:, :1], q[:, 1:]
        return np.hstack([-v / 9 + 0.5 * (x**2 * np.exp(-v) - 1).sum(1, keepdims=True), -x * np.exp(-v)])

    return np.hstack([v, np.exp(v / 2) * rng.standard_normal((n, d))]), grad


def mixture(rng: np.random.Generator, n: int) -> Draws:
    """0.3 N(4, 1) + 0.7 N(−4, 1) in one of three coordinates."""
    x = rng.standard_normal((n, 3))
    x[:, 0] += np.where(rng.random(n) < 0.3, 4.0, -4.0)

    def grad(x: np.ndarray) -> np.ndarray:
        first = 1 / (1 + 0.7 / 0.3 * np.exp(np.clip(-8 * x[:, 0], -700, 700)))
        return np.column_stack([8 * first - 4 - x[:, 0], -x[:, 1:]])

    return x, grad


def log_gamma(rng: np.random.Generator, n: int) -> Draws:
    """The logarithm of Gamma(0.7): one tail is much heavier than the other."""
    return np.log(rng.gamma(0.7, size=(n, 5))), lambda u: 0.7 - np.exp(u)


def slow(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> np.ndarray:
    """AR(1) draws (chain, draw, D) of a standard Gaussian."""
    x = rng.standard_normal(shape)
    for t in range(1, shape[1]):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * x[:, t]
    return x
