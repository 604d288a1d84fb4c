"""The Gram-space algebra against dense matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hamcmc.samplers import curvature
from hamcmc.samplers.hamcmc import quasi_newton
from tests.mutation import mutant


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def random_memory(seed, pairs, dimension, flipped=0.2):
    """Displacements s and y = A s of a random quadratic, some with y flipped, which must be rejected."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dimension, dimension))
    s = rng.normal(size=(pairs, dimension)) * np.exp(rng.normal(size=(pairs, 1)))
    y = s @ (root @ root.T / dimension + 0.1 * np.eye(dimension))
    y[rng.random(pairs) < flipped] *= -1
    return s, y


def dense_bfgs(s, y, accepted, gamma):
    """The inverse Hessian by the textbook update, on top of γI, and what rounding may cost on the way to it.

    Each update cancels what it replaces, so the loss is the ratio of the largest to the smallest eigenvalue of *any* of
    the matrices from γI to H: in one dimension H has condition number 1, whatever multiple of it γ was.
    """
    h = gamma * np.eye(s.shape[1])
    eigenvalues = [gamma]
    for s_k, y_k, ok in zip(s, y, accepted):
        if ok:
            v = np.eye(len(h)) - np.outer(s_k, y_k) / (s_k @ y_k)
            h = v @ h @ v.T + np.outer(s_k, s_k) / (s_k @ y_k)
            eigenvalues.extend(np.linalg.eigvalsh(h))
    return h, max(eigenvalues) / min(eigenvalues)


def dense_root(factor, s, y):
    """S itself, by applying the formula to the identity."""
    w = np.asarray(factor.weights) @ np.concatenate([s, y])
    return np.sqrt(float(factor.gamma)) * (np.eye(s.shape[1]) - s.T @ w)


@functools.cache
def compiled(module):
    """Everything that curvature computes from Gram products, in one compiled function."""

    @functools.partial(jax.jit, static_argnames="cosine")
    def all_of_it(gram, along_g, along_z, gamma, *, cosine):
        accepted = module.acceptable(gram, cosine)
        f = module.factor(gram, accepted, gamma)
        return accepted, f, module.direction(f, gram, along_g, along_z), module.eigenvalue_bound(f, gram)

    return all_of_it


def check_against_dense(module, seed, pairs, dimension, gamma, cosine=0.0, tolerance=1e-10):
    """S Sᵀ, H g and S z, each within `tolerance` of the dense matrices; returns H and the eigenvalue bound.

    A tolerance of None is what rounding does to an ill-conditioned H.
    """
    s, y = random_memory(seed, pairs, dimension)
    g, z = np.random.default_rng(seed + 1).normal(size=(2, dimension))
    basis = np.concatenate([s, y])
    accepted, f, d, bound = compiled(module)(basis @ basis.T, basis @ g, basis @ z, gamma, cosine=cosine)
    h, loss = dense_bfgs(s, y, np.asarray(accepted), gamma)
    root = dense_root(f, s, y)
    tolerance = tolerance or 1e-13 * loss
    scale = np.abs(h).max()
    assert np.abs(root @ root.T - h).max() <= tolerance * scale, "S Sᵀ is not H"
    h_g = gamma * g + np.asarray(d.drift) @ basis
    s_z = np.sqrt(gamma) * z + np.asarray(d.noise) @ basis
    assert np.abs(h_g - h @ g).max() <= tolerance * scale * np.abs(g).max(), "H g is not that of dense BFGS"
    assert np.abs(s_z - root @ z).max() <= tolerance * np.abs(root).max() * np.abs(z).max(), "S z is not S times z"
    return h, float(bound)


USUAL = (2, 3, 5, 20)  # the ends, the default and the paper's largest


@pytest.mark.parametrize("memory", [m if m in USUAL else pytest.param(m, marks=pytest.mark.slow) for m in range(2, 21)])
def test_h_g_and_root_are_those_of_dense_bfgs(memory):
    for seed in range(3):
        check_against_dense(curvature, seed, memory - 1, 30, 0.7)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    pairs=st.sampled_from([1, 2, 4]),
    dimension=st.integers(1, 12),
    gamma=st.floats(1e-3, 1e3),
    cosine=st.sampled_from([0.0, 0.3]),
)
def test_random_memories(seed, pairs, dimension, gamma, cosine):
    """Also with more pairs than dimensions, where the Gram matrix is singular."""
    h, bound = check_against_dense(curvature, seed, pairs, dimension, gamma, cosine, tolerance=None)
    largest = np.linalg.eigvalsh(h)[-1]
    assert largest * (1 - 1e-8) <= bound <= 2 * pairs * max(largest, gamma) * (1 + 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("q = jnp.sqrt(s_y / s_b) * b + y", "q = jnp.sqrt(s_y / s_b) * b - y"),  # the sign as printed in the paper
        ("q = jnp.sqrt(s_y / s_b) * b + y", "q = jnp.sqrt(s_y / (b @ gram[m + k])) * b + y"),  # s'By as printed
        ("weights)) / s_y", "weights)) / s_b"),
        ("q - times(times(gram", "q + times(times(gram"),
        ("jnp.stack([-1 / s_b, 1 / s_y])", "jnp.stack([1 / s_b, 1 / s_y])"),
        ("accepted[k] & (s_b > 0)", "(s_b > 0)"),
    ],
)
def test_broken_algebra_is_noticed(old, new):
    with mutant("samplers/curvature.py", old, new) as package, pytest.raises(AssertionError):
        for seed in range(3):
            check_against_dense(package.samplers.curvature, seed, 4, 30, 0.7)


def test_acceptance_rule():
    s = np.array([[1.0, 0], [1, 0], [1, 0], [1, 0]])
    y = np.array([[1.0, 0], [-1, 0], [0.2, 1.0], [0.0, 0.0]])  # cosines 1, −1, 0.196, none
    basis = np.concatenate([s, y])
    gram = jnp.asarray(basis @ basis.T)
    assert curvature.acceptable(gram, 0.0).tolist() == [True, False, True, False]
    assert curvature.acceptable(gram, 0.3).tolist() == [True, False, False, False]


def test_newest_pair_scale():
    s, y = random_memory(0, 3, 5, flipped=0)
    basis = np.concatenate([s, y])
    gram = jnp.asarray(basis @ basis.T)
    scale = lambda accepted: float(curvature.newest_pair_scale(gram, jnp.asarray(accepted), 7.0))
    assert scale([True, True, True]) == pytest.approx(s[2] @ y[2] / (y[2] @ y[2]))
    assert scale([True, True, False]) == pytest.approx(s[1] @ y[1] / (y[1] @ y[1]))
    assert scale([False, False, False]) == 7.0


def quadratic(dimension=6, seed=3):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dimension, dimension))
    return root @ root.T / dimension + 0.2 * np.eye(dimension)


@pytest.mark.parametrize(("metric", "gamma"), [(None, "newest"), (np.array([0.5, 2.0, 1.0, 3.0, 0.1, 1.5]), 0.3)])
def test_incremental_gram_over_many_moves(metric, gamma):
    """Twenty moves of one chain on a pytree: each displacement is that of a dense H on a base γ diag(d)."""
    a, slots, damping, cosine = quadratic(), 3, 0.05, 0.2
    as_tree = lambda v: {"u": jnp.asarray(v[:2]).reshape(1, 2), "v": jnp.asarray(v[2:])}
    as_flat = lambda t: np.concatenate([np.ravel(t["u"]), np.ravel(t["v"])])
    grad = lambda theta, _: as_tree(-a @ jnp.concatenate([theta["u"].ravel(), theta["v"]]))
    any_move = quasi_newton(
        gamma=gamma,
        metric=None if metric is None else as_tree(metric),
        damping=damping,
        cosine=cosine,
        mirror=None,
    )
    move = jax.jit(lambda key, theta, memory, slot, order: any_move(grad, key, theta, memory, slot, order, None, 0.1))
    d = np.ones(6) if metric is None else metric
    theta = as_tree(np.ones(6))
    memory, pairs, step_size = curvature.empty_memory(theta, slots), [], 0.1
    for t in range(20):
        slot = t % slots
        order = (slot + jnp.arange(slots)) % slots
        key = jax.random.key(t)
        new, memory, info = move(key, theta, memory, jnp.asarray(slot), order)

        scaled = [(s / np.sqrt(d), np.sqrt(d) * y) for s, y in pairs[-slots:]]
        ok = [s @ y > 0 and s @ y >= cosine * np.linalg.norm(s) * np.linalg.norm(y) for s, y in scaled]
        base = gamma
        if gamma == "newest":
            good = [p for p, o in zip(scaled, ok) if o]
            base = good[-1][0] @ good[-1][1] / (good[-1][1] @ good[-1][1]) if good else 1.0
        h, _ = dense_bfgs(np.array([s for s, _ in scaled]).reshape(-1, 6), np.array([y for _, y in scaled]), ok, base)
        h = np.sqrt(d)[:, None] * h * np.sqrt(d)
        x = as_flat(theta)
        moved = as_flat(new) - x
        noise = moved - step_size * h @ (-a @ x)  # what is not drift is √(2ε) S z, so that S⁻¹ of it is z
        assert int(info.pairs_accepted) == sum(ok)
        assert float(info.noise_norm) == pytest.approx(np.linalg.norm(noise / np.sqrt(d)), rel=1e-8)
        assert float(info.drift_norm) == pytest.approx(np.linalg.norm(step_size * h @ (-a @ x) / np.sqrt(d)), rel=1e-8)
        z_z = noise @ np.linalg.solve(h, noise) / (2 * step_size)
        z = [jax.random.normal(k, v.shape) for k, v in zip(jax.random.split(key, 2), jax.tree.leaves(theta))]
        assert z_z == pytest.approx(sum(float(jnp.sum(v**2)) for v in z), rel=1e-8)
        pairs.append((moved, a @ moved + damping * moved))
        theta = new


class TestBlock:
    """The block update against dense matrices."""

    @staticmethod
    def dense(module, seed, pairs=4, dimension=9, gamma=0.05, bend=0.0, scale=2.0):
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(dimension, dimension))
        a = root @ root.T / dimension + 0.1 * np.eye(dimension)
        s = rng.normal(size=(pairs, dimension)) @ np.linalg.inv(np.linalg.cholesky(a)) * scale
        y = s @ a + bend * s**3
        basis = np.concatenate([s, y])
        gram = jnp.asarray(basis @ basis.T)
        f = module.block_factor(gram, gamma, 0.0)
        v, u = np.asarray(f.weights).T @ s, np.asarray(f.dual).T @ y
        p = np.eye(dimension) - v.T @ u
        return a, s, y, basis, gram, f, v, p, v.T @ v + gamma * p @ p.T

    def check(self, module):
        for seed, scale in enumerate([2.0, 2.0, 0.7, 0.5]):  # the last ones too close for their curvature
            _, s, _, basis, gram, f, v, p, h = self.dense(module, seed, bend=0.05, scale=scale)
            g, z = np.random.default_rng(seed + 9).normal(size=(2, 9))
            extra = np.random.default_rng(seed + 99).normal(size=4)
            d = module.block_direction(f, gram, *map(jnp.asarray, (basis @ g, basis @ z, extra)))
            np.testing.assert_allclose(0.05 * g + np.asarray(d.drift) @ basis, h @ g, atol=1e-10, err_msg="H g")
            noise = np.sqrt(0.05) * z + np.asarray(d.noise) @ basis
            np.testing.assert_allclose(noise, extra @ v + np.sqrt(0.05) * p @ z, atol=1e-10, err_msg="V z' + √γ P z")
            wide = s.T @ s / 4 - v.T @ v
            assert np.linalg.eigvalsh(wide).min() > -1e-10, "V Vᵀ exceeds the covariance of the positions"
            assert np.linalg.eigvalsh(h)[-1] <= module.block_eigenvalue_bound(f, gram) * (1 + 1e-10)
            assert int(f.accepted.sum()) >= 3
            np.testing.assert_allclose(p @ p, p, atol=1e-10, err_msg="P is no projection")
            root = np.sqrt(0.05) * p + v.T @ np.asarray(module.block_root(f, gram)) @ v
            np.testing.assert_allclose(root @ root.T, h, atol=1e-10, err_msg="S Sᵀ is not H")

    def test_against_dense_matrices(self):
        self.check(curvature)

    def test_all_secant_equations_hold(self):
        """On a quadratic H y = s for every pair at once, where a sequence of updates keeps only the last."""
        for seed in range(4):
            _, s, y, _, _, f, _, _, h = self.dense(curvature, seed)
            full = np.asarray(f.newton) == 1
            assert full.sum() >= 3  # an eigenvalue raised to m is held back
            q = np.asarray(f.weights)[:, full].T
            np.testing.assert_allclose((q @ y) @ h, q @ s, atol=1e-9)

    def test_newton_is_the_curvature_along_v(self):
        for seed in range(4):
            a, _, _, _, _, f, v, _, _ = self.dense(curvature, seed)
            np.testing.assert_allclose(v @ a @ v.T, np.diag(f.newton), atol=1e-9)

    def test_the_order_of_pairs_does_not_matter(self):
        _, s, y, _, _, _, _, _, h = self.dense(curvature, 0, bend=0.05)
        basis = np.concatenate([s[::-1], y[::-1]])
        f = curvature.block_factor(jnp.asarray(basis @ basis.T), 0.05, 0.0)
        v, u = np.asarray(f.weights).T @ s[::-1], np.asarray(f.dual).T @ y[::-1]
        p = np.eye(9) - v.T @ u
        np.testing.assert_allclose(v.T @ v + 0.05 * p @ p.T, h, atol=1e-10)

    def test_what_is_rejected(self):
        """Pairs without curvature, at one place, or steeper than the base can bear leave the base alone."""
        rng = np.random.default_rng(0)
        s = rng.normal(size=(3, 5))
        for y, gamma in ((-s, 0.1), (0 * s, 0.1), (50 * s, 0.1)):
            basis = np.concatenate([s, y])
            f = curvature.block_factor(jnp.asarray(basis @ basis.T), gamma, 0.0)
            assert not f.accepted.any()
            assert not np.asarray(f.weights).any()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("a - f.gamma * b,", "a + f.gamma * b,"),
            ("- u_a @ gram[m:, m:]", "+ u_a @ gram[m:, m:]"),
            ("z - jnp.sqrt(f.gamma)", "z + jnp.sqrt(f.gamma)"),
            ("u_a = a @ u.T", "u_a = a @ u"),
            ("dual = weights @ inverse(crossed)", "dual = weights"),
            ("1 / jnp.sqrt(jnp.where(kept, values, 1))", "1 / jnp.where(kept, values, 1)"),
            ("jnp.maximum(values, m)", "jnp.abs(values) / 2"),
        ],
    )
    def test_broken_algebra_is_noticed(self, old, new):
        with mutant("samplers/curvature.py", old, new) as package, pytest.raises(AssertionError):
            self.check(package.samplers.curvature)
