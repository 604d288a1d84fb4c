"""HAMCMC against the paper's Algorithm 1 written down as it stands: a list of all samples and dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc


def product_root(pairs, gamma, dimension):
    """S by the product form, with the mended q B being the inverse of dense H."""
    h, root = gamma * np.eye(dimension), np.sqrt(gamma) * np.eye(dimension)
    for s, y in pairs:
        b_s = np.linalg.solve(h, s)
        q = np.sqrt(s @ y / (s @ b_s)) * b_s + y
        root = (np.eye(dimension) - np.outer(s, q) / (s @ y)) @ root
        v = np.eye(dimension) - np.outer(s, y) / (s @ y)
        h = v @ h @ v.T + np.outer(s, s) / (s @ y)
    return root


@pytest.mark.parametrize("memory", [2, 3, 5])
def test_hamcmc_is_algorithm_1(memory):
    """Same noise and minibatches, step by step: θ_t from θ_{t−M}, with the M−1 newest pairs, oldest first."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        a, x = rng.normal(size=(40, 4)), rng.normal(size=40)
        posterior = hamcmc.Posterior(
            lambda theta: -0.5 * jnp.sum(theta**2),
            lambda theta, d: -0.5 * (d[1] - d[0] @ theta) ** 2 - 0.1 * (d[0] @ theta) ** 4,
            (a, x),
        )
        gamma, damping, cosine, epsilon, start = 0.02, 0.3, 0.2, 0.05, np.full(4, 0.2)
        sampler = hamcmc.hamcmc(posterior.grad, memory=memory, gamma=gamma, damping=damping, cosine=cosine)
        step, grad = jax.jit(sampler.step), jax.jit(posterior.grad)
        state = sampler.init(jnp.asarray(start))

        thetas, pairs = [start] * memory, [None] * memory  # θ_{t−M} … θ_{t−1}, and the pair that ended in each
        for t in range(40):
            rows = rng.integers(0, 40, 10)
            batch, key = (a[rows], x[rows]), jax.random.key(t)
            state, info = step(key, state, batch, epsilon)

            used = [p for p in pairs[-(memory - 1) :] if p is not None]
            used = [(s, y) for s, y in used if s @ y > 0 and s @ y >= cosine * np.linalg.norm(s) * np.linalg.norm(y)]
            root = product_root(used, gamma, 4)
            old = thetas[-memory]
            g = -np.asarray(grad(old, batch))  # ∇Ũ
            z = np.asarray(jax.random.normal(key, (4,)))
            new = old - epsilon * root @ root.T @ g + np.sqrt(2 * epsilon) * root @ z
            np.testing.assert_allclose(state.position, new, rtol=1e-8, atol=1e-10)
            assert int(info.pairs_accepted) == len(used)
            pairs.append((new - old, -np.asarray(grad(new, batch)) - g + damping * (new - old)))
            thetas.append(new)


@pytest.mark.parametrize("correction", [False, True])
def test_psgld_is_its_formula(correction):
    """H = 1/(λ + √v) with v a running average of ḡ², of which the first has all weight; Γ = ∂H/∂θ by hand."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        a, x = rng.normal(size=(40, 3)), rng.normal(size=40)
        log_likelihood = lambda theta, d: -0.5 * (d[1] - d[0] @ theta) ** 2
        posterior = hamcmc.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, (a, x))
        decay, regularizer, epsilon = 0.8, 0.1, 0.003
        sampler = hamcmc.psgld(posterior, decay=decay, regularizer=regularizer, correction=correction)
        step, state = jax.jit(sampler.step), sampler.init(jnp.full(3, 0.2))

        theta, v, dv = np.full(3, 0.2), np.zeros(3), np.zeros(3)
        for t in range(12):
            rows, key = rng.integers(0, 40, 10), jax.random.key(t)
            state, _ = step(key, state, (a[rows], x[rows]), epsilon)

            mean = np.mean(a[rows] * (x[rows] - a[rows] @ theta)[:, None], 0)
            kept = decay if t else 0.0
            v = kept * v + (1 - kept) * mean**2
            dv = kept * dv - (1 - kept) * 2 * mean * np.mean(a[rows] ** 2, 0)
            h = 1 / (regularizer + np.sqrt(v))
            drift = h * (40 * mean - theta) - correction * h**2 * dv / (2 * np.sqrt(v))
            z = np.asarray(jax.random.normal(key, (3,)))
            theta = theta + epsilon * drift + np.sqrt(2 * epsilon * h) * z
            np.testing.assert_allclose(state.position, theta, rtol=1e-9)
