"""Samplers against plain programs of their formulas: HAMCMC's has a list of all samples and dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.samplers.ensemble.resting import rms_norms


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
            assert info.drift_norm == pytest.approx(np.linalg.norm(epsilon * root @ root.T @ g))
            assert info.noise_norm == pytest.approx(np.linalg.norm(np.sqrt(2 * epsilon) * root @ z))
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


@pytest.mark.parametrize("memory", [2, 4])
def test_naive_is_its_formula(memory):
    """θ_t from θ_{t−1}, with the M−1 newest pairs of its own past, oldest first."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        a, x = rng.normal(size=(40, 3)), rng.normal(size=40)
        log_likelihood = lambda theta, d: -0.5 * (d[1] - d[0] @ theta) ** 2
        posterior = hamcmc.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, (a, x))
        sampler = hamcmc.naive(posterior.grad, memory=memory, gamma=0.02, damping=0.3, cosine=0.0)
        assert sampler.settings["memory"] == memory
        step, grad, theta = jax.jit(sampler.step), jax.jit(posterior.grad), np.full(3, 0.2)
        state, pairs = sampler.init(jnp.asarray(theta)), []
        for t in range(12):
            rows, key = rng.integers(0, 40, 20), jax.random.key(t)
            batch = (a[rows], x[rows])
            state, _ = step(key, state, batch, 0.05)
            root = product_root([(s, y) for s, y in pairs[-(memory - 1) :] if s @ y > 0], 0.02, 3)
            g = np.asarray(grad(theta, batch))
            new = theta + 0.05 * root @ root.T @ g + np.sqrt(0.1) * root @ np.asarray(jax.random.normal(key, (3,)))
            np.testing.assert_allclose(state.position, new, rtol=1e-8)
            pairs.append((new - theta, g - np.asarray(grad(new, batch)) + 0.3 * (new - theta)))
            theta = new


@pytest.mark.parametrize("correction", [False, True])
def test_sgrld_is_its_formula(correction):
    """H = F(θ)⁻¹, and Γ_i = Σ_j ∂H_ij/∂θ_j by differences."""
    fisher = lambda theta: jnp.diag(2 + jnp.sin(theta)) + 0.3 * jnp.outer(jnp.cos(theta), jnp.cos(theta))
    with jax.enable_x64(True):
        theta, key, epsilon, tiny = np.array([0.3, -1.0, 2.0]), jax.random.key(3), 0.04, 1e-6
        sampler = hamcmc.sgrld(lambda theta, _: -(theta**3), fisher, correction=correction)
        state, _ = sampler.step(key, sampler.init(jnp.asarray(theta)), None, epsilon)

        h = lambda theta: np.linalg.inv(np.asarray(fisher(theta)))
        gamma = sum((h(theta + tiny * e) - h(theta - tiny * e))[:, j] / (2 * tiny) for j, e in enumerate(np.eye(3)))
        noise = np.linalg.solve(
            np.linalg.cholesky(np.asarray(fisher(theta))).T, np.asarray(jax.random.normal(key, (3,)))
        )
        new = theta + epsilon * (h(theta) @ -(theta**3) + correction * gamma) + np.sqrt(2 * epsilon) * noise
        np.testing.assert_allclose(state.position, new, rtol=1e-8)


@pytest.mark.parametrize("name", ["sghmc", "sgnht"])
def test_what_a_step_tells_of_itself(name):
    """The sizes of drift and noise are those by which the position moved; the momentum kept a share of 1 − a."""
    a, epsilon, x = 0.3, 0.02, jnp.array([1.0, -2.0, 0.5])
    sampler = getattr(hamcmc, name)(lambda theta, _: -theta, friction=a)
    state, _ = sampler.step(jax.random.key(0), sampler.init(x), None, epsilon)
    after, info = sampler.step(jax.random.key(1), state, None, epsilon)
    kept = jnp.exp(-state.xi) if name == "sgnht" else 1 - a
    drift = jnp.sqrt(epsilon / 2) * (1 + kept) * state.momentum
    assert info.drift_norm == pytest.approx(float(jnp.linalg.norm(drift)), rel=1e-5)
    noise = float(jnp.linalg.norm(after.position - state.position - drift))
    assert info.noise_norm == pytest.approx(noise, rel=1e-4)
    assert info.grad_norm == pytest.approx(float(jnp.linalg.norm(after.position)), rel=1e-5)


@pytest.mark.parametrize("mirror", [None, jnp.abs])
def test_sgld_is_its_formula(mirror):
    """And it tells the sizes of drift and noise."""
    x, epsilon = jnp.array([1.0, 2.0, 0.01]), 0.02
    sampler = hamcmc.sgld(lambda theta, _: -theta, mirror=mirror)
    state, info = sampler.step(jax.random.key(1), sampler.init(x), None, epsilon)
    noise = np.sqrt(2 * epsilon) * np.asarray(jax.random.normal(jax.random.key(1), (3,)))
    new = (1 - epsilon) * np.asarray(x) + noise
    np.testing.assert_allclose(state.position, new if mirror is None else np.abs(new), rtol=1e-5)
    assert info.drift_norm == pytest.approx(epsilon * np.linalg.norm(x), rel=1e-5)
    assert info.noise_norm == pytest.approx(np.linalg.norm(noise), rel=1e-5)


def test_sizes_of_a_half_move_are_means_over_its_replicas():
    trees = ({"x": jnp.ones((4, 3)), "y": jnp.zeros(4)}, {"x": jnp.zeros((4, 3)), "y": jnp.array([2.0, 0, 0, 0])})
    np.testing.assert_allclose(rms_norms(trees), [np.sqrt(3), 1])
