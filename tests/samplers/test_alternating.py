"""A normal mean by gradient steps and its precision by Gibbs draws, against the exact Normal-Gamma posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from tests.mutation import mutant

X = jnp.asarray(np.random.default_rng(0).normal(1.0, 2.0, 20), jnp.float32)
A0, B0 = 2.0, 3.0  # p(τ) = Gamma(A0, B0), p(μ) flat


def posterior(package):
    log_prior = lambda p: (A0 - 1) * jnp.log(p["tau"]) - B0 * p["tau"]
    log_likelihood = lambda p, x: 0.5 * jnp.log(p["tau"]) - 0.5 * p["tau"] * (x - p["mu"]) ** 2
    return package.Posterior(log_prior, log_likelihood, X, support={"mu": package.real, "tau": package.positive()})


def conditional(key, p):
    rate = B0 + jnp.sum((X - p["mu"]) ** 2) / 2
    return {"tau": jax.random.gamma(key, A0 + len(X) / 2) / rate}


def z_scores(package, every=1, inner=None, step_size=0.002):
    """Of the means of μ, (μ−x̄)², τ against exact values; standard errors from independent chains."""
    target = posterior(package)
    sampler = package.alternating(target, conditional, inner or package.sgld, drawn=("tau",), every=every)
    start = {"mu": X.mean(), "tau": jnp.float32(0.25)}
    result = package.sample(
        target, sampler, start, step_size=step_size, num_samples=1500, warmup=200, thin=2, chains=40, progress=False
    )
    mu, tau = (np.asarray(result.posterior[k]) for k in ("mu", "tau"))
    mean, n = float(X.mean()), len(X)
    shape, rate = A0 + (n - 1) / 2, B0 + float(jnp.sum((X - mean) ** 2)) / 2
    exact = [(mu, mean), ((mu - mean) ** 2, rate / (shape - 1) / n), (tau, shape / rate)]
    return [float((x.mean() - e) / (x.mean(1).std(ddof=1) / np.sqrt(len(x)))) for x, e in exact]


def test_the_joint_law_is_exact(optimised):
    assert np.abs(z_scores(hamcmc)).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        {"every": 3},
        {"every": 10, "inner": lambda target: hamcmc.sghmc(target.grad, friction=0.5), "step_size": 0.05},
        {"inner": lambda target: hamcmc.hamcmc(target.grad, memory=2), "step_size": 0.005},
    ],
)
def test_in_other_ways(optimised, run):
    assert np.abs(z_scores(hamcmc, **run)).max() < 4


@pytest.mark.slow
def test_power(optimised):
    """Gradients that do not know the newest τ."""
    new = "posterior.grad(position | {'tau': 0.0}"
    with mutant("samplers/alternating.py", "posterior.grad(position | self.held", new) as broken:
        assert np.abs(z_scores(broken)).max() > 5


def test_names_are_checked():
    target = posterior(hamcmc)
    start = target.unconstrain({"mu": jnp.float32(1.0), "tau": jnp.float32(0.25)})
    with pytest.raises(ValueError, match="drawn must name some of the parameters mu, tau, got sigma"):
        hamcmc.alternating(target, conditional, hamcmc.sgld, drawn=("sigma",)).init(start)
    wrong = hamcmc.alternating(target, lambda key, p: {"mu": 0.0}, hamcmc.sgld, drawn=("tau",))
    with pytest.raises(ValueError, match="the conditional must return tau, got mu"):
        wrong.step(jax.random.key(0), wrong.init(start), X, 0.1)
    for ensemble in ("ensemble_adjusted", hamcmc.ensemble_hamcmc):
        with pytest.raises(ValueError, match="not with an ensemble"):
            hamcmc.alternating(target, conditional, ensemble, drawn=("tau",))


@pytest.mark.slow
def test_samplers_are_taken_in_every_way():
    """By name, by a sampler's own function and by a function of the target; not a finished sampler."""
    target = posterior(hamcmc)
    start = target.unconstrain({"mu": jnp.float32(1.0), "tau": jnp.float32(0.25)})
    ways = [("sghmc", {"friction": 0.3}), (hamcmc.sghmc, {"friction": 0.3})]
    ways.append((lambda target: hamcmc.sghmc(target.grad, friction=0.3), {}))
    made = [hamcmc.alternating(target, conditional, way, drawn=("tau",), **options) for way, options in ways]
    draws = [jax.jit(lambda s=s: s.step(jax.random.key(0), s.init(start), X, 1e-3)[0].position)() for s in made]
    assert draws[0] == draws[1] == draws[2]
    with pytest.raises(ValueError, match="alternating makes a target of its own .* give a name, or a function"):
        hamcmc.alternating(target, conditional, hamcmc.sgld(target.grad), drawn=("tau",))
    with pytest.raises(ValueError, match="friction: options need a sampler that is given by name"):
        hamcmc.alternating(target, conditional, lambda t: hamcmc.sghmc(t.grad), drawn=("tau",), friction=0.3)
    with pytest.raises(ValueError, match="grad must be a function of .* got ConditionalTarget"):
        hamcmc.alternating(target, conditional, lambda grad: hamcmc.sgld(grad), drawn=("tau",))


@pytest.mark.parametrize(
    "name", ["psgld", pytest.param("sgfs", marks=pytest.mark.slow), pytest.param("ccadl", marks=pytest.mark.slow)]
)
def test_inner_samplers_that_need_more_than_a_gradient(name):
    sampler = hamcmc.alternating(posterior(hamcmc), conditional, name, drawn=("tau",))
    state = sampler.init({"mu": X.mean(), "tau": jnp.float32(-1.0)})
    for t in range(3):
        state, _ = jax.jit(sampler.step)(jax.random.key(t), state, X[:5], 1e-3)
    assert all(bool(jnp.isfinite(x)) for x in state.position.values())


def test_draws_are_due_every_third_step():
    sampler = hamcmc.alternating(posterior(hamcmc), conditional, hamcmc.sgld, drawn=("tau",), every=3)
    state = sampler.init({"mu": X.mean(), "tau": jnp.float32(-1.0)})
    step, seen = jax.jit(sampler.step), []
    for t in range(7):
        before = state.position["tau"]
        state, _ = step(jax.random.key(t), state, X, 1e-3)
        seen.append(bool(state.position["tau"] != before))
    assert seen == [False, False, True, False, False, True, False]
    assert state.step == 7
