"""Gradient estimators around an anchor: unbiased, quiet near it, and right for every sampler."""

import json
import re
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc import samplers
from hamcmc.store.errors import RunError
from hamcmc.target import linear_gaussian as lg
from tests.mutation import mutant
from tests.samplers.targets import Gaussian, Z, final_positions

NOISE, BATCH, REPLICAS = 10.0, 20, 2000


def small(package):
    """Sixteen data, an anchor, and all minibatches of two."""
    posterior = Gaussian(package).posterior
    anchor = {"b": np.array([0.3, -0.2]), "c": np.array(0.1)}
    pairs = jnp.array(list(combinations(range(16), 2)))
    return posterior, anchor, jax.tree.map(lambda x: x[pairs], posterior.data)


def grads(posterior, position, minibatches):
    """The estimate on each minibatch, as rows."""
    each = jax.jit(jax.vmap(posterior.grad, (None, 0)))(position, minibatches)
    return np.concatenate([np.asarray(each["b"]), np.asarray(each["c"])[:, None]], 1)


def check_unbiased(package):
    """The average over all minibatches is the gradient on all data, also far from the anchor."""
    posterior, anchor, minibatches = small(package)
    reduced = package.control_variate(posterior, anchor, batch_size=5)
    position = {"b": np.array([2.0, 1.0]), "c": np.array(-3.0)}
    exact = jax.tree.map(np.asarray, posterior.full_grad(position))
    assert_allclose(grads(reduced, position, minibatches).mean(0), [*exact["b"], exact["c"]], rtol=1e-12)
    one = jax.tree.map(lambda x: x[0], minibatches)
    each, mean = jax.jit(
        lambda: (reduced.per_datum_grads(position, one), reduced.mean_likelihood_grad(position, one))
    )()
    jax.tree.map(lambda a, b: assert_allclose(a.mean(0), b, rtol=1e-12), each, mean)
    assert reduced.log_density(position, one) == posterior.log_density(position, one)


def check_variance(package):
    """None at the anchor, and growing with the squared distance from it."""
    posterior, anchor, minibatches = small(package)
    reduced = package.control_variate(posterior, anchor)
    away = lambda h: jax.tree.map(lambda x: x + h, anchor)
    variance = lambda h: grads(reduced, away(h), minibatches).var(0)
    assert_allclose(variance(0.0), 0, atol=1e-20)
    assert_allclose(variance(0.02), 4 * variance(0.01), rtol=1e-9)
    assert (variance(0.01) < 1e-3 * grads(posterior, away(0.01), minibatches).var(0)).all()


def logistic(package, size=300, seed=0):
    """A logistic regression, whose gradients are not linear, and parameters near its mode."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 3))
    label = rng.random(size) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))

    def log_likelihood(theta, d):
        return -jnp.logaddexp(0.0, jnp.where(d["label"], -1.0, 1.0) * (d["x"] @ theta))

    data = {"x": x, "label": label}
    return package.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, data), jnp.array([1.0, -1, 0.5])


def check_second_order(package):
    """None at the anchor, and growing with the fourth power of the distance from it; also that of each datum."""
    posterior, anchor = logistic(package)
    reduced = package.control_variate(posterior, anchor, order=2)
    rows = jax.tree.map(lambda x: x.reshape(60, 5, *x.shape[1:]), posterior.data)
    means = jax.jit(jax.vmap(reduced.mean_likelihood_grad, (None, 0)))
    scatter = lambda h: np.asarray(means(anchor + h, rows)).var(0)
    assert_allclose(scatter(0.0), 0, atol=1e-20)
    assert_allclose(scatter(0.002), 16 * scatter(0.001), rtol=0.02)  # the next order is 0.001 of it
    each = jax.jit(reduced.per_datum_grads)(anchor + 0.5, posterior.data)
    assert_allclose(np.asarray(each).reshape(60, 5, 3).mean(1), means(anchor + 0.5, rows), rtol=1e-9)


def check_anchor(package):
    """SVRG's is every third step the position before it, with the gradient on all data there, else the old one."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(20_001, 2))  # not a whole number of pieces
    posterior = package.Posterior(lambda m: -jnp.sum(m**2), lambda m, x: -jnp.sum((x - m) ** 4), data)
    sampler = package.svrg(posterior, lambda p: package.sgld(p.grad), every=3)
    state, step = sampler.init(jnp.zeros(2)), jax.jit(sampler.step)
    for t in range(7):
        before, (state, _) = state, step(jax.random.key(t), state, posterior.data[:10], 1e-6)
        if t % 3:
            assert_array_equal(state.anchor, before.anchor)
        else:
            assert_array_equal(state.anchor.position, before.position)
            mean = 4 * ((data - np.asarray(before.position)) ** 3).mean(0)
            assert_allclose(state.anchor.mean_grad, mean, rtol=1e-10)
    assert (sampler.gradients_per_step, sampler.passes_per_step) == (2, 1 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_unbiased, check_variance, check_second_order, check_anchor])
def test_in_double_precision(x64, check):
    check(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [
        ("target/estimators.py", "here - there + mean", "here - there - mean", check_unbiased),
        ("target/estimators.py", "here - there + mean", "here + there - mean", check_variance),  # unbiased, but noisy
        (
            "target/estimators.py",
            "here - there - bent",
            "here - there + 0 * bent",
            check_second_order,
        ),
        ("target/estimators.py", "jnp.asarray(a / posterior.size, x.dtype)", "jnp.asarray(a, x.dtype)", check_unbiased),
        ("samplers/svrg.py", "lambda x: x / posterior.size, total", "lambda x: x, total", check_anchor),
        ("samplers/svrg.py", "rows < posterior.size, each", "rows >= 0, each", check_anchor),
        ("samplers/svrg.py", "jnp.where(due, a, b), new", "jnp.where(due & (b == 0).all(), a, b), new", check_anchor),
    ],
)
def test_broken_maths_is_noticed(x64, file, old, new, check):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="Mismatch"):
        check(package)


def test_parameters_with_a_support(x64):
    """The anchor is given as parameters; the estimate is of the unconstrained gradient."""
    posterior = hamcmc.Posterior(
        lambda s: -s,
        lambda s, x: -jnp.log(s) - 0.5 * (x / s) ** 2,
        np.array([0.5, -1.0, 2.0]),
        support=hamcmc.positive(),
    )
    reduced = hamcmc.control_variate(posterior, jnp.array(1.5))
    each = jax.jit(jax.vmap(reduced.grad, (None, 0)))(jnp.array(0.2), posterior.data[:, None])
    assert_allclose(each.mean(), posterior.full_grad(jnp.array(0.2)), rtol=1e-10)
    with pytest.raises(ValueError, match="outside of its support"):
        hamcmc.control_variate(posterior, jnp.array(-1.0))


def check(package, make, step_size=0.02):
    """SGLD replicas started in the exact posterior keep it, at a step where plain minibatches would blow it up."""
    data = lg.simulate(np.random.default_rng(0), 1000, np.eye(3), NOISE)
    truth = lg.exact(data, NOISE)
    root = np.linalg.cholesky(truth.covariance)
    log_likelihood = lambda theta, d: -0.5 * (d.x - d.a @ theta) ** 2 / NOISE
    posterior = package.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, data)
    anchor = jnp.asarray(truth.mean + root @ [1.5, -1.5, 1.5], jnp.float32)  # the mode need not be exact
    starts = truth.mean + np.random.default_rng(1).standard_normal((REPLICAS, 3)) @ root.T
    epsilon = step_size / np.linalg.eigvalsh(truth.precision).max()
    end = final_positions(
        make(package, posterior, anchor),
        posterior,
        jnp.asarray(starts, jnp.float32),
        steps=int(1.5 / step_size),
        step_size=epsilon,
        batch_size=BATCH,
    )
    white = (np.asarray(end, float) - truth.mean) @ np.linalg.inv(root).T
    second = white.T @ white / REPLICAS
    error = np.sqrt((1 + np.eye(3)) / REPLICAS)
    bias = 0.05  # ε·λ/2 of the discretisation and what is left of the noise
    assert (np.abs(white.mean(0)) <= Z / np.sqrt(REPLICAS) + bias).all(), f"mean off by {white.mean(0)} sd"
    assert (np.abs(second - np.eye(3)) <= Z * error + bias).all(), f"covariance off: {second}"


PLAIN = lambda package, posterior, _: package.sgld(posterior.grad)
CONTROL = lambda package, posterior, anchor: package.sgld(package.control_variate(posterior, anchor).grad)
SVRG = lambda package, posterior, _: package.svrg(posterior, "sgld", every=10)


@pytest.mark.parametrize("make", [CONTROL, SVRG], ids=["control_variate", "svrg"])
def test_exact_posterior(make):
    check(hamcmc, make)


def test_without_it_the_bias_is_plain():
    with pytest.raises(AssertionError, match=r"covariance off: \[\[ 1\.4"):
        check(hamcmc, PLAIN)


def test_svrg_passes_over_the_data_only_when_due():
    """Under vmap, too: the pass stays a loop of its own, whose turns are not known ahead."""
    data = lg.simulate(np.random.default_rng(0), 10_000, np.eye(2), 1.0)
    posterior = lg.linear_gaussian(data, 1.0)
    sampler = hamcmc.svrg(posterior, "sgld", every=10**6)
    batch = jax.tree.map(lambda x: x[:10], posterior.data)
    states = jax.vmap(sampler.init)(jnp.zeros((8, 2)))
    keys = jax.random.split(jax.random.key(0), 8)
    step = jax.jit(jax.vmap(sampler.step, (0, 0, None, None)))
    program = step.lower(keys, states, batch, 1e-6).compile().as_text()
    loops = [line for line in program.splitlines() if re.search(r" while\(", line)]
    assert len(loops) == 1
    assert "known_trip_count" not in loops[0]


USUAL = ("psgld", "ccadl", "hamcmc", "ensemble_hamcmc")


@pytest.mark.slow
@pytest.mark.parametrize("names", [USUAL, pytest.param(samplers.NAMES, marks=pytest.mark.slow)], ids=["usual", "all"])
def test_every_sampler_by_name(names):
    """Each takes a step, and on all data, where the estimator is the gradient itself, it is the plain step."""
    target = Gaussian(hamcmc)
    start = {"b": jnp.array([0.3, -0.2], jnp.float32), "c": jnp.array(0.1, jnp.float32)}
    posterior = target.posterior
    reduced = hamcmc.control_variate(posterior, jax.tree.map(lambda x: x + 0.5, start))

    def moved(name):
        options = {"fisher": lambda _: target.precision.astype("f")} if name == "sgrld" else {}
        out = []
        for p, svrg in ((posterior, {}), (reduced, {}), (posterior, {"svrg": 5})):
            sampler = samplers.build(name, p, **options, **svrg)
            assert sampler.settings["sampler"] == name
            many = jax.tree.map(lambda x: jnp.stack([x] * r) if (r := sampler.replicas) > 1 else x, start)  # noqa: B023
            state, _ = sampler.step(jax.random.key(0), sampler.init(many), posterior.data, 1e-3)
            if svrg:
                assert jax.tree.all(jax.tree.map(lambda a, x: a.shape == x.shape, state.anchor.position, start))
            out.append(state.position)
        return out

    for name in names:
        if name in ("ensemble_adjusted", "ensemble_hmc", "independence"):  # take no minibatches
            continue
        if name not in ("psgld", "ccadl"):  # by the mean gradient and by those of each datum
            jax.eval_shape(lambda name=name: moved(name))
            continue
        plain, *others = jax.jit(lambda name=name: moved(name))()
        for other in others:
            jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-4), other, plain)


def test_replicas_that_share_a_minibatch_share_the_anchor():
    data = lg.simulate(np.random.default_rng(0), 500, np.eye(50), 1.0)
    posterior = lg.linear_gaussian(data, 1.0)
    reduced = hamcmc.control_variate(posterior, jnp.zeros(50))
    work = lambda p: jax.jit(jax.vmap(p.grad, (0, None))).lower(jnp.zeros((20, 50)), p.data).compile().cost_analysis()
    assert work(reduced)["flops"] < 1.1 * work(posterior)["flops"]


def test_the_second_order_costs_a_product_for_each_replica(x64):
    """The anchor's gradient is taken once for the minibatch, whatever the number of replicas."""
    posterior, _ = logistic(hamcmc)
    second = hamcmc.control_variate(posterior, jnp.zeros(3), order=2)
    assert (second.extra_gradients, second.extra_products) == (1, 1)

    def exponentials(replicas):
        program = jax.make_jaxpr(jax.vmap(second.grad, (0, None)))(jnp.zeros((replicas, 3)), posterior.data)
        shapes = re.findall(r"f64\[([\d,]+)\] = (?:exp|logistic|log1p)\b", str(program))
        return sorted(len(shape.split(",")) for shape in shapes)

    one_axis, two_axes = exponentials(20).count(1), exponentials(20).count(2)
    assert one_axis > 0  # of the anchor, over rows
    assert two_axes > 0  # of the positions, over replicas and rows
    assert two_axes <= len(exponentials(1)) / 2  # none of them is of the anchor


def test_the_laplace_approximation_is_an_anchor(x64):
    """It has the two means already; the prior is part of its precision and not of them."""
    posterior, start = logistic(hamcmc)
    found = hamcmc.laplace(posterior, start)
    for order in (1, 2):
        spent, given = hamcmc.control_variate(posterior, found, order=order), found.mode
        anew = hamcmc.control_variate(posterior, given, order=order)
        assert_allclose(spent.anchor.mean_grad, anew.anchor.mean_grad, rtol=1e-10, atol=1e-14)
        assert spent.checksum() == anew.checksum()
    assert_allclose(spent.mean_hessian, anew.mean_hessian, rtol=1e-10)
    assert_allclose(found.precision, np.eye(3) - 300 * np.asarray(spent.mean_hessian), rtol=1e-10)
    first = hamcmc.control_variate(posterior, found)
    assert len({posterior.checksum(), first.checksum(), spent.checksum()}) == 3
    assert spent.settings["order"] == 2
    assert spent.full_grad(start) is not None
    assert_allclose(spent.full_grad(start), posterior.full_grad(start))


def test_run_and_resume(draw, model, short_segments, tmp_path):
    """run.json tells of both; another mode is refused; all gradients are counted."""

    class Stop(BaseException):
        pass

    def stop(_):
        raise Stop

    short_segments(15)
    reduced = hamcmc.control_variate(model, jnp.array([0.1, 0.2, 0.7]))
    out = tmp_path / "run"
    with pytest.raises(Stop):
        draw(posterior=reduced, svrg=7, out=out, progress=stop)
    settings = json.loads((out / "run.json").read_text())
    assert settings["gradient"]["estimator"] == "control_variate"
    assert settings["sampler"] == {"sampler": "sgld", "svrg": 7}
    for other in (model, hamcmc.control_variate(model, jnp.array([0.1, 0.2, 0.8]))):
        with pytest.raises(RunError, match="another control variate"):
            hamcmc.resume(out, other, jnp.zeros(3), progress=False)
    resumed = hamcmc.resume(out, reduced, jnp.zeros(3), progress=False)
    iterations = 25 + 3 * 40
    # of each: the gradient, the anchor's for svrg and for the control variate, and N/n minibatches per pass
    assert resumed.meta["gradients"] == round(2 * iterations * (3 + 1000 / 50 / 7))


def test_streamed_data(data, tmp_path):
    maps = [np.memmap(tmp_path / n, x.dtype, "w+", shape=x.shape) for n, x in zip("ax", data)]
    for m, x in zip(maps, data):
        m[:] = x
    streamed, mode = lg.linear_gaussian(lg.Data(*maps), NOISE), jnp.ones(3)
    reduced = hamcmc.control_variate(streamed, mode, batch_size=300)
    assert_allclose(
        reduced.anchor.mean_grad,
        hamcmc.control_variate(lg.linear_gaussian(data, NOISE), mode).anchor.mean_grad,
        rtol=1e-5,
    )
    with pytest.raises(ValueError, match="svrg needs all data in memory"):
        hamcmc.svrg(streamed, "sgld", every=10)


def test_bad_input(model):
    no_data = hamcmc.Posterior(lambda theta: -jnp.sum(theta**2))
    for make in (lambda: hamcmc.control_variate(no_data, jnp.zeros(3)), lambda: hamcmc.svrg(no_data, "sgld", every=3)):
        with pytest.raises(ValueError, match="variance reduction needs data"):
            make()
    with pytest.raises(ValueError, match="parameter theta starts outside of its support"):
        hamcmc.control_variate(model, jnp.full(3, jnp.nan))
    with pytest.raises(ValueError, match="mode: the likelihood's gradient there is not finite in parameter theta"):
        hamcmc.control_variate(model, jnp.full(3, 1e38))
    with pytest.raises(ValueError, match="order must be 1 or 2, got 3"):
        hamcmc.control_variate(model, jnp.zeros(3), order=3)
    with pytest.raises(ValueError, match="order 2 needs a Hessian of 3² numbers"):
        hamcmc.control_variate(model, hamcmc.laplace(model, jnp.zeros(3), dense=0), order=2)
    with pytest.raises(ValueError, match="importance needs a metric: give the outcome of hamcmc.laplace"):
        hamcmc.control_variate(model, jnp.zeros(3), importance=True)
    with pytest.raises(ValueError, match="svrg must be a whole number, 1 or more, got 0"):
        samplers.build("sgld", model, svrg=0)
    with pytest.raises(ValueError, match="sampler must be one of"):
        hamcmc.svrg(model, "slgd", every=10)
