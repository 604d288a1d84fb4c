"""The linear predictors of a likelihood are found in its operations, and gradients by them are the plain ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import stats

import hamcmc
from hamcmc.target.minibatch import gather
from hamcmc.target.predictors import find, is_quadratic
from tests.mutation import mutant

RNG = np.random.default_rng(0)
SIZE, WIDTH = 60, 4
X = RNG.normal(size=(SIZE, WIDTH)).astype(np.float32)
TRUTH = np.array([0.5, -1.0, 0.3, 0.0])
ROW = (jnp.asarray(X[0]), jnp.float32(2.0))


@jax.custom_jvp
def logaddexp(a, b):
    """Not what its name says: the derivative is twice as large."""
    return jnp.log(jnp.exp(a) + jnp.exp(b))


logaddexp.defjvp(lambda x, dx: (logaddexp(*x), 2 * jax.nn.sigmoid(x[0] - x[1]) * dx[0]))


@jax.custom_jvp
def same_steps(a, b):
    """What `jnp.logaddexp` does, but its derivative is another one."""
    largest, delta = lax.max(a, b), lax.sub(a, b)
    return lax.select(delta != delta, lax.add(a, b), lax.add(largest, lax.log1p(lax.exp(lax.neg(lax.abs(delta))))))


same_steps.defjvp(lambda x, dx: (same_steps(*x), 0.1 * dx[0]))


def in_a_reference(t, r):
    """A reference holds a function of the parameters, which no operand of what reads it tells."""
    held = jax.new_ref(jnp.float32(0))
    held[...] = jnp.tanh(r[0] @ t)
    return -((r[1] - held[...] * (1 + r[0][::-1] @ t)) ** 2)


def written_twice(t, r):
    return r[1] * (r[0] @ t) - jnp.exp(r[0] @ t)


FEW = {  # likelihood and its number of predictors
    "logistic": (lambda t, r: jax.nn.log_sigmoid((2 * r[1] - 3) * (r[0] @ t)), 1),
    "logistic, data first": (lambda t, r: -jnp.logaddexp(0.0, jnp.where(r[1] > 1, -1.0, 1.0) * (r[0] @ t)), 1),
    "both branches": (lambda t, r: jnp.where(r[1] > 1, jax.nn.log_sigmoid(r[0] @ t), jax.nn.log_sigmoid(-r[0] @ t)), 2),
    "one predictor, two signs": (lambda t, r: (lambda u: jnp.exp(-u) + jnp.tanh(u))(r[0] @ t), 1),
    "Poisson": (written_twice, 1),
    "offset and intercept": (lambda t, r: -jnp.exp(t[0] + jnp.sum(r[0][1:] * t[1:]) + r[1]), 1),
    "normal": (lambda t, r: -0.5 * (r[1] - r[0] @ t) ** 2, 1),
    "normal with its scale": (lambda t, r: stats.norm.logpdf(r[1], r[0][:3] @ t[:3], jnp.exp(t[3])), 2),
    "Student": (lambda t, r: stats.t.logpdf(r[1], 4.0, r[0][:3] @ t[:3], jnp.exp(t[3])), 2),
    "one of several groups": (lambda t, r: -((r[1] - t[jnp.int32(r[1])]) ** 4), 1),
    "inside of a call": (lambda t, r: jax.jit(jnp.tanh)(jax.jit(jnp.vdot)(r[0], t)), 1),
    "a derivative of its own": (lambda t, r: logaddexp(r[0] @ t, 0.3), 1),
    "another derivative of the same": (lambda t, r: same_steps(r[0] @ t, 0.3), 1),
    "a branch with data": (lambda t, r: (lambda u: jnp.where(r[1] > 0, r[1] * u, 0.0) - jnp.exp(u))(r[0] @ t), 1),
    "leaves of a tree": (
        lambda t, r: (lambda b, s: -((r[1] - r[0][:3] @ b) ** 2) * jnp.exp(-s[0]) - s[0])(*jnp.split(t, [3])),
        2,
    ),
}
MANY = {
    "a network": lambda t, r: jnp.tanh(t) @ r[0],
    "all of the parameters": lambda t, r: -jnp.sum((t - r[0]) ** 2),
    "a softmax": lambda t, r: jax.nn.log_softmax(jnp.outer(t, r[0])[0])[1],
    "fewer digits": lambda t, r: (r[0].astype(jnp.bfloat16) @ t.astype(jnp.bfloat16)).astype(jnp.float32) ** 2,
    "fewer digits of a product": lambda t, r: (
        lax.dot(r[0], t, preferred_element_type=jnp.bfloat16).astype(jnp.float32) ** 2
    ),
    "in a reference": in_a_reference,
    "no parameters": lambda t, r: r[1] ** 2,
}


@pytest.mark.parametrize("name", FEW)
def test_a_likelihood_is_a_function_of_its_predictors(name):
    likelihood, count = FEW[name]
    found = find(likelihood, jnp.zeros(WIDTH), ROW, 2)
    assert found is not None
    assert found.number == count
    for theta in jnp.asarray(RNG.normal(size=(3, WIDTH)), jnp.float32):
        u, a = found.values(theta, ROW), found.matrix(theta, ROW)
        assert float(found.likelihood(u, ROW)) == pytest.approx(float(likelihood(theta, ROW)), rel=1e-5)
        expected = jax.grad(likelihood)(theta, ROW)
        np.testing.assert_allclose(a.T @ jax.grad(found.likelihood)(u, ROW), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.values(jnp.zeros(WIDTH), ROW) + a @ theta, u, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MANY)
def test_a_likelihood_without_few_predictors_is_known(name):
    assert find(MANY[name], jnp.zeros(WIDTH), ROW, 2) is None


def test_columns_that_are_in_the_predictors_are_not_needed():
    needed = {name: find(FEW[name][0], jnp.zeros(WIDTH), ROW, 2).columns(ROW) for name in ("logistic", "Poisson")}
    assert needed == {"logistic": [False, False], "Poisson": [False, True]}


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda t: -0.5 * jnp.sum(t**2) + 3 * t[0], True),
        (lambda t: stats.norm.logpdf(t, 1.0, 2.0).sum(), True),
        (lambda t: -t @ jnp.eye(WIDTH) @ t, True),
        (lambda t: -(jnp.sum(t) ** 2) / 5, True),
        (lambda t: -jnp.sum(t**3), False),
        (lambda t: -jnp.sum(t**2) * t[0], False),
        (lambda t: -jnp.sum(jnp.abs(t)), False),
        (lambda t: -jnp.sum(t**2 / (1 + t[0])), False),
        (lambda t: jnp.where(t[0] > 0, -(t @ t), -2 * (t @ t)), False),
        (lambda t: -jnp.exp(t[0]), False),
    ],
)
def test_quadratic_functions_are_known(f, expected):
    assert is_quadratic(f, jnp.ones(WIDTH)) is expected


def posteriors(package):
    """Regressions with one and two predictors, and with normal and other priors."""
    wide, narrow = {"init": jnp.zeros(WIDTH)}, np.random.default_rng(1)
    yes = narrow.random(SIZE) < 1 / (1 + np.exp(-X @ TRUTH))
    counts = narrow.poisson(np.exp(X @ TRUTH)).astype(np.int32)
    real = (X @ TRUTH + narrow.standard_t(5, SIZE)).astype(np.float32)
    sign = lambda y: jnp.where(y, 1.0, -1.0)
    return {
        "logistic": package.Posterior(
            lambda t: -0.5 * jnp.sum(t**2), lambda t, r: jax.nn.log_sigmoid(sign(r[1]) * (r[0] @ t)), (X, yes), **wide
        ),
        "Poisson": package.Posterior(lambda t: -30 * jnp.sum(jnp.cosh(t)), written_twice, (X, counts), **wide),
        "Student": package.Posterior(
            lambda p: -0.5 * jnp.sum(p["b"] ** 2) - p["s"],
            lambda p, r: stats.t.logpdf(r["y"], 4.0, r["x"] @ p["b"], p["s"]),
            {"x": X, "y": real},
            support={"s": package.positive()},
            init={"b": jnp.zeros(WIDTH), "s": jnp.ones(())},
        ),
    }


def check_estimator(package, name, importance, narrow=64):
    """On every minibatch the estimator by predictors is the one that is written for any likelihood.

    Columns are taken out of the table by a product, or by slices from `narrow` on.
    """
    package.target.predicted.NARROW = narrow
    posterior = posteriors(package)[name]
    found = package.laplace(posterior, posterior.init)
    reduced = package.control_variate(posterior, found, order=2, importance=importance)
    plain = package.target.whitened.WhiteAtAnchor(reduced, found.position, found.root)
    predicted = package.target.predicted
    predictors = predicted.predictors_of(posterior, found.position)
    assert predictors is not None
    quick = predicted.Predicted(reduced, found.position, found.root, predictors)
    assert quick.data.table.shape[-1] % 16 == 0
    for t, z in enumerate(np.random.default_rng(2).normal(size=(4, found.dimension))):
        z = jnp.asarray(1.5 * z, jnp.float32)
        rows = reduced.minibatch_indices(jax.random.key(0), t, 7, True)
        of_plain, of_quick = gather(plain.data, rows), gather(quick.data, rows)
        close = partial(np.testing.assert_allclose, rtol=2e-3, atol=1e-3)
        close(quick.grad(z, of_quick), plain.grad(z, of_plain))
        close(quick.log_density(z, of_quick), plain.log_density(z, of_plain))
        mean = quick.mean_likelihood_grad(z, of_quick)
        close(mean, plain.mean_likelihood_grad(z, of_plain))
        close(quick.per_datum_grads(z, of_quick).mean(0), mean)


@pytest.mark.parametrize("importance", [False, True], ids=["uniform", "importance"])
@pytest.mark.parametrize("name", ["logistic", "Poisson", "Student"])
def test_the_estimator_by_predictors_is_the_plain_one(name, importance, monkeypatch):
    monkeypatch.setattr(hamcmc.target.predicted, "NARROW", 64)  # set back after each of the two
    check_estimator(hamcmc, name, importance)
    check_estimator(hamcmc, name, importance, narrow=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("predicted", "left = weight * (slopes", "left = (slopes"),
        ("predicted", "(slopes - slope - straight)", "(slopes - slope)"),
        ("predicted", "(slopes - slope - straight)", "(slopes - straight)"),
        ("predicted", "/ len(table)", "* 1.0"),
        (
            "predicted",
            "self._remainder(position, minibatch), self.size) - position",
            "self._remainder(position, minibatch), self.size)",
        ),
        ("predicted", "return self._slope + self._back(left)", "return self._slope"),
        ("predicted", "bend[j] * away", "slope * away"),
        ("predicted", "self._width, d, dtype", "self._width, d - 1, dtype"),
        ("predicted", "d : d + 3 + k]", "d - 1 : d + 2 + k]"),
        ("predictors", "jax.nn.sigmoid(x - fixed)", "jax.nn.sigmoid(fixed - x)"),
    ],
)
def test_a_wrong_estimator_is_noticed(file, old, new):
    with mutant(f"target/{file}.py", old, new) as package, pytest.raises(AssertionError):
        for name in ("logistic", "Poisson", "Student"):
            check_estimator(package, name, True)
            check_estimator(package, name, True, narrow=0)


def test_a_row_without_any_chance_of_an_event_does_no_harm():
    """Its predictor is −∞, and the general estimator is finite there."""
    x, exposure = X, np.ones(SIZE, np.float32)
    exposure[3] = 0
    counts = np.where(exposure, 2.0, 0.0).astype(np.float32)

    def log_likelihood(t, r):
        u = r[0] @ t + jnp.log(r[2])
        return jnp.where(r[1] > 0, r[1] * u, 0.0) - jnp.exp(u)

    posterior = hamcmc.Posterior(
        lambda t: -0.5 * jnp.sum(t**2), log_likelihood, (x, counts, exposure), init=jnp.zeros(WIDTH)
    )
    found = hamcmc.laplace(posterior, posterior.init)
    reduced = hamcmc.control_variate(posterior, found, order=2)
    plain = hamcmc.target.whitened.WhiteAtAnchor(reduced, found.position, found.root)
    predictors = hamcmc.target.predicted.predictors_of(posterior, found.position)
    quick = hamcmc.target.predicted.Predicted(reduced, found.position, found.root, predictors)
    z, rows = jnp.ones(WIDTH), jnp.arange(7)
    expected = plain.grad(z, gather(plain.data, rows))
    np.testing.assert_allclose(quick.grad(z, gather(quick.data, rows)), expected, rtol=1e-3, atol=1e-3)


def test_all_rows_by_importance_are_refused():
    posterior = posteriors(hamcmc)["logistic"]
    found = hamcmc.laplace(posterior, posterior.init)
    reduced = hamcmc.control_variate(posterior, found, order=2, importance=True)
    predictors = hamcmc.target.predicted.predictors_of(posterior, found.position)
    quick = hamcmc.target.predicted.Predicted(reduced, found.position, found.root, predictors)
    with pytest.raises(ValueError, match="fewer rows than the data"):
        quick.grad(jnp.zeros(WIDTH), quick.data)


def test_predictors_that_differ_from_the_likelihood_are_not_used(monkeypatch):
    posterior, predicted = posteriors(hamcmc)["logistic"], hamcmc.target.predicted
    off = find(
        lambda t, r: 1.01 * jax.nn.log_sigmoid(r[0] @ t),
        posterior.init,
        jax.tree.map(lambda x: x[0], posterior.data),
        2,
    )
    monkeypatch.setattr(predicted, "find", lambda *_: off)
    assert predicted.predictors_of(posterior, posterior.init) is None
    bent = off._replace(values=lambda t, r: (r[0] @ t)[None] ** 3)
    monkeypatch.setattr(predicted, "find", lambda *_: bent)
    assert predicted.predictors_of(posterior, posterior.init) is None


def test_no_table_is_made_where_there_is_no_room(monkeypatch):
    posterior = posteriors(hamcmc)["logistic"]
    predicted = hamcmc.target.predicted
    monkeypatch.setattr(predicted.disk, "memory", lambda: 4 * SIZE * 16)
    assert predicted.predictors_of(posterior, posterior.init) is None
    assert predicted.predictors_of(posterior, posterior.init, crowded=True) is not None
    monkeypatch.setattr(predicted.disk, "memory", lambda: 4 * 4 * SIZE * 16)
    assert predicted.predictors_of(posterior, posterior.init) is not None
