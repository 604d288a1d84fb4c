"""A posterior in white coordinates is the same posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.target.whitened import Whitened
from tests.mutation import mutant

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 2)).astype(np.float32), RNG.normal(size=40).astype(np.float32)
LIKE = {"b": jnp.zeros(2), "s": jnp.zeros(())}
CENTRE, ROOT = np.array([0.5, -1.0, 0.2]), np.array([[1.0, 0.3, 0.0], [0.0, 2.0, 0.1], [0.2, 0.0, 0.5]])


def plain(package=hamcmc):
    def log_likelihood(p, datum):
        return -0.5 * ((datum["y"] - datum["x"] @ p["b"]) / p["s"]) ** 2 - jnp.log(p["s"])

    return package.Posterior(
        lambda p: -0.5 * jnp.sum(p["b"] ** 2) - p["s"],
        log_likelihood,
        {"x": X, "y": Y},
        support={"s": package.positive()},
    )


@pytest.mark.parametrize("root", [ROOT, np.diag(ROOT)], ids=["dense", "diagonal"])
def test_density_and_gradients_are_those_of_the_plain_posterior(root):
    posterior = plain()
    white = Whitened(posterior, LIKE, CENTRE, root)
    square = root if root.ndim == 2 else np.diag(root)
    z = jnp.array([0.3, -0.7, 1.1])
    flat = CENTRE + square @ np.asarray(z)
    at = {"b": jnp.asarray(flat[:2], jnp.float32), "s": jnp.asarray(flat[2], jnp.float32)}
    batch = jax.tree.map(lambda x: x[:10], posterior.data)
    back = lambda g: square.T @ np.append(np.asarray(g["b"]), np.asarray(g["s"]))
    assert float(white.log_density(z, batch)) == pytest.approx(float(posterior.log_density(at, batch)), rel=1e-5)
    np.testing.assert_allclose(white.grad(z, batch), back(posterior.grad(at, batch)), rtol=1e-4)
    np.testing.assert_allclose(white.full_grad(z), back(posterior.full_grad(at)), rtol=1e-4)
    assert float(white.full_log_density(z)) == pytest.approx(float(posterior.full_log_density(at)), rel=1e-5)
    mean = white.mean_likelihood_grad(z, batch)
    np.testing.assert_allclose(white.combine(z, mean), white.grad(z, batch), rtol=1e-4)
    np.testing.assert_allclose(white.per_datum_grads(z, batch).mean(0), mean, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(white.grad(z, batch), jax.grad(white.log_density)(z, batch), rtol=1e-4)


@pytest.mark.parametrize("root", [ROOT, np.diag(ROOT)], ids=["dense", "diagonal"])
def test_parameters_go_there_and_back(root):
    white = Whitened(plain(), LIKE, CENTRE, root)
    z = jnp.array([0.3, -0.7, 1.1])
    parameters = white.constrain(z)
    assert set(parameters) == {"b", "s"}
    assert float(parameters["s"]) > 0
    np.testing.assert_allclose(white.unconstrain(parameters), z, atol=1e-5)
    np.testing.assert_allclose(white.unconstrain_unchecked(parameters), z, atol=1e-5)


def test_checksum_knows_data_and_map():
    sums = {
        Whitened(plain(), LIKE, centre, root).checksum()
        for centre, root in ((CENTRE, ROOT), (CENTRE + 1, ROOT), (CENTRE, 2 * ROOT))
    }
    assert len(sums) == 3


def test_rows_are_drawn_as_the_plain_posterior_draws_them():
    posterior = plain()
    posterior.minibatch_indices = lambda key, iteration, batch_size, replace: jnp.full(batch_size, 7)
    white = Whitened(posterior, LIKE, CENTRE, ROOT)
    assert white.minibatch_indices(jax.random.key(0), 0, 3, True).tolist() == [7, 7, 7]


def test_a_mirror_is_refused():
    posterior = hamcmc.Posterior(lambda x: -jnp.sum(x), support=hamcmc.positive("mirror"))
    with pytest.raises(ValueError, match="mirrored"):
        Whitened(posterior, jnp.zeros(2), np.zeros(2), np.ones(2))


def at_anchor(package):
    """A mode of the posterior, its control variate, and the posterior in coordinates that are white there."""
    posterior = plain(package)
    found = package.laplace(posterior, {"b": np.zeros(2), "s": np.array(1.0)})
    reduced = package.control_variate(posterior, found, order=2)
    return found, reduced, package.target.whitened.WhiteAtAnchor(reduced, found.position, found.root)


def check_at_anchor(package):
    """The estimator is that of the control variate on every minibatch, though −z stands for a product with H̄."""
    found, reduced, white = at_anchor(package)
    other = package.target.whitened.Whitened(reduced, found.position, found.flat, found.root)
    for start, z in ((0, [0.3, -0.7, 1.1]), (10, [-2.0, 0.1, 0.5]), (25, [0.0, 0.0, 0.0])):
        batch = jax.tree.map(lambda x, i=start: x[i : i + 10], reduced.data)
        here, there = white.grad(jnp.array(z), batch), other.grad(jnp.array(z), batch)
        np.testing.assert_allclose(here, there, rtol=2e-3, atol=2e-3)


def test_at_the_anchor_the_estimator_is_that_of_the_control_variate():
    check_at_anchor(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("image, minibatch), size)) - position", "image, minibatch), size)) + position"),
        ("jnp.subtract, prior(image), curved(away)", "lambda a, b: a, prior(image), curved(away)"),
        ("unbiased(straight, anchor.mean_grad, size)", "straight"),
    ],
)
def test_a_wrong_expansion_is_noticed(old, new):
    with mutant("target/whitened.py", old, new) as package, pytest.raises(AssertionError, match="equal to"):
        check_at_anchor(package)


def walk(package, kept):
    """All replicas after some steps in white coordinates, and what is recorded of their parameters."""
    from hamcmc.inference import compiled, schedules

    posterior = plain()
    white = package.target.whitened.Whitened(posterior, LIKE, CENTRE, 0.3 * ROOT)
    options = {} if kept else {"chart": None}
    sampler = package.samplers.build("leimkuhler_matthews", white, replicas=6, **options)
    starts = 0.1 * np.random.default_rng(1).standard_normal((2, 6, 3)).astype(np.float32)
    settings = {"batch_size": 10, "replace": True, "chains": 2, "thin": 1, "slots": 6}
    segment = compiled.build(white, sampler, schedules.Constant(0.01), **settings)
    state = jax.vmap(sampler.init)(jnp.asarray(starts))
    assert (state.image is not None) == kept
    found = segment(posterior.data, state, compiled.keys(0, 2, 6), 0, 6, 0, True)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves((found.state.position, found.draws))])


def test_replicas_that_keep_their_images_draw_the_same():
    np.testing.assert_allclose(walk(hamcmc, True), walk(hamcmc, False), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [("state.step + 1, images(position)", "state.step + 1, state.image")])
def test_stale_images_are_noticed(old, new):
    changed = mutant("samplers/leimkuhler_matthews.py", old, new)
    with changed as package, pytest.raises(AssertionError, match="equal to"):
        np.testing.assert_allclose(walk(package, True), walk(hamcmc, False), rtol=1e-4, atol=1e-5)
