"""What the factor N/n means, for every target of the package.

Each entry of `TARGETS` writes down the log-density on all data without the factor. Its finite differences must be the
mean over all minibatches of the target's gradients, and each gradient must be what `combine` makes of the minibatch's
mean likelihood gradient. A new target is one more entry.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hamcmc
from hamcmc.target.protocol import Target
from tests.mutation import mutant


class Case(NamedTuple):
    """A target at a position.

    Attributes:
        views: the target with each of its minibatches; together they have all data once.
        chances: the probability of each minibatch.
        position: where to look.
        log_density: on all data, up to a constant.
        tolerance: of the gradient, relative to its largest entry.
    """

    views: list[tuple[Any, Any]]
    chances: np.ndarray
    position: Any
    log_density: Callable[[Any], Any]
    tolerance: float = 1e-6


def equally_likely(target: Any, batches: list, position: Any, log_density: Callable) -> Case:
    chances = np.full(len(batches), 1 / len(batches))
    return Case([(target, batch) for batch in batches], chances, position, log_density)


# --- targets; each function imports its modules, which may belong to a package that is broken on purpose ---


def data():
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=(12, 2)), "y": rng.normal(size=12)}


def minibatches(of: Any) -> list:
    return [jax.tree.map(lambda x, i=i: x[3 * i : 3 * i + 3], of) for i in range(4)]


def log_prior(p):
    return -0.5 * jnp.sum(p["b"] ** 2) - p["s"]


def log_likelihood(p, d):
    return -jnp.log(p["s"]) - 0.5 * ((d["y"] - d["a"] @ p["b"]) / p["s"]) ** 2


POSITION = {"b": jnp.array([0.4, -0.7]), "s": jnp.array(0.3)}


def whole_log_density(position, power=1.0):
    p = {"b": position["b"], "s": jnp.exp(position["s"])}
    likelihood = jnp.sum(jax.vmap(log_likelihood, (None, 0))(p, data()))
    return log_prior(p) + position["s"] + power * likelihood


def plain(package):
    return package.Posterior(log_prior, log_likelihood, data(), support={"s": package.positive()})


def posterior(package) -> Case:
    target = plain(package)
    return equally_likely(target, minibatches(target.data), POSITION, whole_log_density)


def without_data(package) -> Case:
    density = lambda x: -jnp.sum(x**4)
    return equally_likely(package.Posterior(density), [None], jnp.array([0.5, 2.0]), density)


def control_variate(package) -> Case:
    target = package.control_variate(plain(package), {"b": np.zeros(2), "s": np.array(1.0)}, batch_size=5)
    return equally_likely(target, minibatches(target.data), POSITION, whole_log_density)


def second_order(package) -> Case:
    mode = {"b": np.zeros(2), "s": np.array(1.0)}
    target = package.control_variate(plain(package), mode, order=2)
    return equally_likely(target, minibatches(target.data), POSITION, whole_log_density)


def by_importance(package) -> Case:
    from hamcmc.target.importance import Importance

    target = Importance(plain(package), np.arange(1, 13) / 78)
    rows = [jax.tree.map(lambda x, i=i: x[i : i + 1], target.data) for i in range(12)]
    return Case([(target, row) for row in rows], target.probabilities, POSITION, whole_log_density)


def second_order_by_importance(package) -> Case:
    drawn = by_importance(package).views[0][0]
    target = second_order(package).views[0][0].over(drawn)
    rows = [jax.tree.map(lambda x, i=i: x[i : i + 1], target.data) for i in range(12)]
    return Case([(target, row) for row in rows], drawn.probabilities, POSITION, whole_log_density)


def anchored(package) -> Case:
    from hamcmc.target.estimators import Anchored, AnchoredPosterior

    anchor = control_variate(package).views[0][0].anchor
    batches = [Anchored(batch, anchor) for batch in minibatches(data())]
    return equally_likely(AnchoredPosterior(plain(package)), batches, POSITION, whole_log_density)


def conditional(package) -> Case:
    from hamcmc.samplers.alternating import ConditionalTarget

    held = {"s": POSITION["s"]}
    target = ConditionalTarget(plain(package), held)
    density = lambda p: whole_log_density(p | held)
    return equally_likely(target, minibatches(data()), {"b": POSITION["b"]}, density)


def tempered(package) -> Case:
    from hamcmc.inference.tempering import Tempered

    target = Tempered(plain(package), 0.3)
    return equally_likely(target, minibatches(data()), POSITION, lambda p: whole_log_density(p, 0.3))


def stable(package) -> Case:
    from hamcmc.stable import model

    rng = np.random.default_rng(1)
    X = rng.normal(size=(6, 4)) + 1j * rng.normal(size=(6, 4))
    built, _ = model.build(X, [model.Source(2, 1.3), model.Source(1, 1.8)], "log")
    target, position = model.StableTarget(built), jax.tree.map(jnp.log, built.start)
    log_phi = jnp.asarray(rng.normal(size=(2, 6, 4)))

    def block(first, last):
        rows = jnp.arange(first, last)
        return model.Block(rows, None, built.log_power[rows], None, log_phi[:, rows])

    def density(position):
        parts = model.factors(built, position)
        variance = jax.scipy.special.logsumexp(log_phi + model.log_variances(built, parts), 0)
        return model.log_prior(built, position) + jnp.sum(model.log_normal(built.log_power, variance, 2))

    return equally_likely(target, [block(0, 2), block(2, 4), block(4, 6)], position, density)


def speech(package) -> Case:
    from hamcmc.speech import model
    from hamcmc.speech.pair import pair

    rng = np.random.default_rng(2)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape))
    W = jnp.abs(array(10, 2)) + 0.1
    stretch = model.Stretch(array(10, 3), jnp.ones((10, 3)), array(10, 3), array(10, 3), jnp.ones(10), W / W.sum(0))
    table, prior = pair(2.0, 2.0), model.Prior()
    target = model.SpeechTarget(stretch, table, prior)
    position = jax.tree.map(lambda x: 0.3 * array(*x.shape), target.origin)

    def density(position):
        p = target.constrain(position)
        return model.log_prior(p, stretch.there, prior) + model.log_likelihood(p, stretch, table, prior)

    batches = [jnp.asarray(i) for i in range(model.EVERY)]
    # The table of the density's values and that of its derivatives are interpolated apart.
    return equally_likely(target, batches, position, density)._replace(tolerance=1e-2)


def ratings(package) -> Case:
    from hamcmc.factorization.model import Hyper
    from hamcmc.factorization.part import Part, PartTarget

    rng = np.random.default_rng(3)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape))
    shapes, X = {"W": (4, 2), "H": (3, 2)}, array(4, 3)
    position, root = ({s: f(array(*n)) for s, n in shapes.items()} for f in (lambda x: x, lambda x: 0.5 + x**2))
    hyper = Hyper(jnp.array(1.7), array(2), jnp.array([0.5, 2.0]), array(2), jnp.array([1.5, 0.3]))
    mask = {s: jnp.ones(n) for s, n in shapes.items()}
    parts = [np.zeros((4, 3)) for _ in range(3)]
    for n, place in enumerate(np.ndindex(4, 3)):
        parts[[0, 0, 1, 2, 2, 2][n % 6]][place] = 1  # 4, 2 and 6 of the 12 ratings
    counts = np.array([part.sum() for part in parts])

    def gradient(part):
        return lambda W, H: ((part * (X - W @ H.T)) @ H, (part * (X - W @ H.T)).T @ W)

    def density(position):
        W, H = (position[s] * root[s] for s in ("W", "H"))
        of_W, of_H = hyper.W_precision * (W - hyper.W_mean) ** 2, hyper.H_precision * (H - hyper.H_mean) ** 2
        return -0.5 * (jnp.sum(of_W) + jnp.sum(of_H) + hyper.noise * jnp.sum((X - W @ H.T) ** 2))

    views = [(PartTarget(12, Part(gradient(p), root, hyper, mask, n)), None) for p, n in zip(parts, counts)]
    return Case(views, counts / 12, position, density)


TARGETS = {
    "posterior": posterior,
    "without data": without_data,
    "control variate": control_variate,
    "second order": second_order,
    "by importance": by_importance,
    "second order by importance": second_order_by_importance,
    "anchored": anchored,
    "conditional": conditional,
    "tempered": tempered,
    "stable": stable,
    "speech": speech,
    "ratings": ratings,
}


# --- the two statements ---


def differences(log_density: Callable, position: Any, h: float = 1e-5) -> np.ndarray:
    """The gradient by central differences."""
    flat, unravel = ravel_pytree(position)
    values = jax.jit(jax.vmap(lambda x: log_density(unravel(x))))
    unit = np.eye(flat.size) * h
    ahead, behind = np.asarray(values(np.concatenate([flat + unit, flat - unit]))).reshape(2, -1)
    return (ahead - behind) / (2 * h)


def gradients(target: Any) -> Callable:
    """Compile the target's gradient, and what `combine` makes of its mean likelihood gradient."""

    @jax.jit
    def both(position, batch):
        grad = target.grad(position, batch)
        of_mean = target.combine(position, target.mean_likelihood_grad(position, batch)) if target.size else grad
        return ravel_pytree(grad)[0], ravel_pytree(of_mean)[0]

    return both


def check(package, make: Callable) -> None:
    case = make(package)
    exact = differences(case.log_density, case.position)
    mean = np.zeros_like(exact)
    compiled = {id(target): gradients(target) for target, _ in case.views}
    for (target, batch), chance in zip(case.views, case.chances):
        grad, combined = map(np.asarray, compiled[id(target)](case.position, batch))
        np.testing.assert_allclose(combined, grad, rtol=1e-9, atol=1e-9, err_msg="combine off")
        mean += chance * grad
    assert np.abs(mean - exact).max() <= case.tolerance * np.abs(exact).max(), f"off: {mean} for {exact}"


QUICK = ("posterior", "second order by importance", "conditional", "stable", "ratings")  # of each kind of factor one


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TARGETS])
def test_minibatches_average_to_the_gradient_of_the_log_density(name, x64):
    check(hamcmc, TARGETS[name])


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_is_openly_one(name, x64):
    target = TARGETS[name](hamcmc).views[0][0]
    assert isinstance(target, Target)


@pytest.mark.slow
def test_a_broken_factor_is_noticed(x64):
    """In the one place where it stands, for all targets that have data."""
    with mutant("target/protocol.py", "scaled = factor * g", "scaled = factor / 2 * g") as package:
        for name, make in TARGETS.items():
            if name != "without data":
                with pytest.raises(AssertionError, match="off"):
                    check(package, make)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "make"),
    [
        (
            "target/importance.py",
            "(1 / (plain.size * (ticks / TICKS)))",
            "(plain.size * (ticks / TICKS))",
            by_importance,
        ),
        ("target/estimators.py", "(here - there - bent)", "(here - there + bent)", second_order),
        ("target/estimators.py", "(here - there - bent)", "(here - bent)", second_order),
        ("target/estimators.py", "unravel(self.mean_hessian @ flat))", "unravel(flat))", second_order),
    ],
    ids=["weights", "sign of the product", "anchor", "mean Hessian"],
)
def test_a_broken_estimator_is_noticed(file, old, new, make, x64):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="off"):
        check(package, make)


@pytest.mark.slow
def test_a_sum_in_place_of_a_mean_is_noticed(x64):
    with (
        mutant("target/posterior.py", "jnp.mean(self.log_lik", "jnp.sum(self.log_lik") as package,
        pytest.raises(AssertionError, match="off"),
    ):
        check(package, posterior)
