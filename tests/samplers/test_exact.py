"""Every sampler on posteriors known exactly, and proof that these tests notice broken maths."""

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.target import linear_gaussian
from tests.mutation import mutant
from tests.samplers.catalogue import NAMES, VARIANTS, catalogue
from tests.samplers.targets import Gaussian, Quartic, Z, final_positions


def check_gaussian(package, name, part=1.0):
    """Replicas started in the exact posterior of a linear Gaussian model still have it at the end.

    A run may be cut to the given part of its length: what is broken shows before the end.
    """
    target = Gaussian(package)
    target.posterior.fisher = target.precision
    make, arguments = catalogue(package, target.posterior, target.stiffness)[name]
    target.check(make(), relaxations=1.25 * part, **arguments)


# Those that another law test of the usual run goes through, here or on the quartic target.
IN_THE_SLOW_RUN = (*VARIANTS, "naive", "sgfs", "psgld", "ensemble-adjusted")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in IN_THE_SLOW_RUN else n for n in NAMES]
)
def test_gaussian_posterior(name):
    check_gaussian(hamcmc, name)


ON_QUARTIC = {
    "sgld": lambda p, q: p.sgld(q.posterior.grad),
    "psgld": lambda p, q: p.psgld(q.posterior, decay=0.5, regularizer=0.5),
    "psgld-corrected": lambda p, q: p.psgld(q.posterior, decay=0.5, regularizer=0.5, correction=True),
    "sgrld-function": lambda p, q: p.sgrld(q.posterior.grad, metric),
    "naive": lambda p, q: p.naive(q.posterior.grad, memory=2, cosine=0.0),
    "ensemble": lambda p, q: p.ensemble_hamcmc(q.posterior.grad, pairs=2, metric=None),
    "ensemble-adjusted": lambda p, q: p.ensemble_adjusted(q.posterior, pairs=2, metric=None),
    "ensemble-hmc": lambda p, q: p.ensemble_hmc(q.posterior, replicas=10, adapt=20),
    "ensemble-underdamped": lambda p, q: p.ensemble_underdamped(q.posterior.grad, pairs=2, metric=None),
    "independence": lambda p, q: p.independence(q.posterior, replicas=10, heavy=0.7),
}
# ε, steps and the bias to be expected of a larger step than the default one.
RUNS = {
    "ensemble": {"step_size": 0.04, "steps": 150, "bias": 0.03},
    "ensemble-adjusted": {"step_size": 0.8, "steps": 60, "bias": 0.0},
    "ensemble-hmc": {"step_size": 0.5, "steps": 50, "bias": 0.0},
    "ensemble-underdamped": {"step_size": 0.05, "steps": 100, "bias": 0.02},
    "independence": {"step_size": 1.0, "steps": 40, "bias": 0.0},
}


def metric(theta):
    """Some positive definite matrix that depends on both coordinates."""
    x, y = theta
    return jnp.array([[1 + 3 * x**2, 0.5 * jnp.tanh(x * y)], [0.5 * jnp.tanh(x * y), 1 + y**2]])


def check_quartic(package, name, part=1.0):
    """The same on a target whose curvature varies, where a missing or wrong Γ shows."""
    target = Quartic(package)
    run = RUNS.get(name) or {"step_size": 0.004, "steps": 750, "bias": 0.03}
    run = run | {"steps": int(run["steps"] * part)}
    target.check(ON_QUARTIC[name](package, target), **run, replicas=6000)


def check_fisher_scoring(package):
    """SGFS with steps so large that minibatch noise does the sampling: on a Gaussian it is exact at any ε."""
    rng = np.random.default_rng(2)
    a = rng.normal(size=(4000, 2)) @ np.array([[1.0, 0.0], [0.9, 0.4]]).T
    data = linear_gaussian.Data(a.astype(np.float32), (a @ [1.0, -1.0] + rng.normal(size=4000)).astype(np.float32))
    truth = linear_gaussian.exact(data, 1.0)
    log_likelihood = lambda theta, d: -0.5 * (d.x - d.a @ theta) ** 2
    posterior = package.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, data)
    sampler = package.sgfs(posterior, base=float(np.trace(truth.precision)) / 50, decay=0.9)
    starts = jnp.broadcast_to(jnp.asarray(truth.mean, jnp.float32), (500, 2))
    end = final_positions(sampler, posterior, starts, steps=400, step_size=0.5, batch_size=40)
    white = (np.asarray(end, float) - truth.mean) @ np.linalg.cholesky(truth.precision)
    second = white.T @ white / 500
    error = np.sqrt((1 + np.eye(2)) / 500)
    assert (np.abs(second - np.eye(2)) <= Z * error + 0.1).all(), f"covariance off: {second}"


def test_fisher_scoring_at_large_steps():
    check_fisher_scoring(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [("(n + N) / n * N * fisher", "N * fisher"), ("/ max(n - 1, 1)", "/ max(n - 1, 1) * 3")],
)
def test_broken_fisher_scoring_is_noticed(old, new):
    with mutant("samplers/sgfs.py", old, new) as package, pytest.raises(AssertionError, match="off"):
        check_fisher_scoring(package)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in ("sgrld-function", "ensemble-underdamped") else n
        for n in ("sgld", "psgld-corrected", "sgrld-function", *RUNS)
    ],
)
def test_varying_curvature(name):
    check_quartic(hamcmc, name)


@pytest.mark.parametrize("name", ["psgld", pytest.param("naive", marks=pytest.mark.slow)])
def test_without_gamma_a_bias_remains(name):
    """The paper's proposition: a preconditioner that follows the position needs Γ."""
    with pytest.raises(AssertionError, match="off by"):
        check_quartic(hamcmc, name)


BASE, PSGLD, SGRLD, SGFS = (f"samplers/{f}.py" for f in ("base", "psgld", "sgrld", "sgfs"))
SGHMC, SGNHT, CCADL = (f"samplers/{f}.py" for f in ("sghmc", "sgnht", "ccadl"))
INDEPENDENCE = "samplers/independence.py"
RESTING, LANGEVIN, ADJUSTED, HAMILTONIAN, UNDERDAMPED = (
    f"samplers/ensemble/{f}.py" for f in ("resting", "langevin", "adjusted", "hamiltonian", "underdamped")
)
MUTATIONS = [
    # (file, text, broken text, check, sampler)
    (RESTING, "jnp.sqrt(2 * step_size)", "jnp.sqrt(step_size)", check_gaussian, "ensemble-newton"),
    (
        RESTING,
        "drift, own = step_size * d.drift",
        "drift, own = -step_size * d.drift",
        check_gaussian,
        "ensemble-newton",
    ),
    (RESTING, "1 - step_size * factor.newton / 2", "1 - 0 * factor.newton", check_gaussian, "ensemble-newton"),
    (  # H from the half that moves
        LANGEVIN,
        "make(resting, at_rest, state.spread)",
        "make(moving, g, state.spread)",
        check_quartic,
        "ensemble",
    ),
    (ADJUSTED, "step_size * of_h / 4", "step_size * of_h / 2", check_quartic, "ensemble-adjusted"),
    (ADJUSTED, "-of_noise / 2", "of_noise / 2", check_quartic, "ensemble-adjusted"),
    (ADJUSTED, "(1 / span_noise(f, step_size) - 1 / k)", "0", check_quartic, "ensemble-adjusted"),
    (HAMILTONIAN, "(jnp.sum(p**2, 1) - jnp.sum(p_new**2, 1)) / 2", "0", check_quartic, "ensemble-hmc"),
    (HAMILTONIAN, "value - log_density +", "0.5 * (value - log_density) +", check_quartic, "ensemble-hmc"),
    (
        HAMILTONIAN,
        "return x, p + h / 2 * mass.pull(g)",
        "return x, p + h * mass.pull(g)",
        check_quartic,
        "ensemble-hmc",
    ),
    (INDEPENDENCE, "minibatch) - log_proposal(proposed, share)", "minibatch)", check_quartic, "independence"),
    (INDEPENDENCE, "jnp.sqrt(FREEDOM / chi_squared)", "2.0", check_quartic, "independence"),
    (INDEPENDENCE, "squared / FREEDOM)", "squared)", check_quartic, "independence"),
    (UNDERDAMPED, "jnp.sqrt(1 - kept**2) * z", "jnp.sqrt(1 - kept) * z", check_quartic, "ensemble-underdamped"),
    (
        UNDERDAMPED,
        "kick(p, slowed(tamed(force(s, g), step_size), s.slow), h / 2)",
        "kick(p, slowed(tamed(force(s, g), step_size), s.slow), h)",
        check_quartic,
        "ensemble-underdamped",
    ),
    (BASE, "root = jnp.sqrt(2 * step_size)", "root = jnp.sqrt(step_size)", check_gaussian, "sgld"),
    (BASE, "x + step_size * d", "x - step_size * d", check_gaussian, "sgld"),
    ("target/protocol.py", "scaled = factor * g", "scaled = factor / 2 * g", check_gaussian, "sgld"),
    (
        "samplers/curvature.py",
        "root = jnp.sqrt(2 * jnp.asarray(step_size))",
        "root = jnp.sqrt(jnp.asarray(step_size))",
        check_gaussian,
        "hamcmc-3",
    ),
    (
        PSGLD,
        "noise = jax.tree.map(lambda h, z: jnp.sqrt(h) * z, h, z)",
        "noise = jax.tree.map(lambda h, z: h * z, h, z)",
        check_gaussian,
        "psgld-corrected",
    ),
    (PSGLD, "d + _gamma(h, v, dv)", "d - _gamma(h, v, dv)", check_quartic, "psgld-corrected"),
    (PSGLD, "lambda g, h: 2 * g * h,", "lambda g, h: 2 * g * h * (1 - alpha),", check_quartic, "psgld-corrected"),
    (SGRLD, "ravel_pytree(g)[0]) + gamma", "ravel_pytree(g)[0]) - gamma", check_quartic, "sgrld-function"),
    (SGRLD, "lambda z: r.T @ z", "lambda z: r @ z", check_gaussian, "sgrld"),
    (SGHMC, "1 - (1 - a) ** 2 -", "a - a**2 / 2 -", check_gaussian, "sghmc"),
    (SGNHT, "xi = state.xi + r *", "xi = state.xi + 0 *", check_gaussian, "sgnht"),
    (CCADL, "state.xi + step_size * values", "state.xi - step_size * values", check_gaussian, "ccadl"),
    (SGFS, "xi = jnp.sqrt(2 * b / step_size)", "xi = jnp.sqrt(b / step_size)", check_gaussian, "sgfs"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "old", "new", "check", "name"), MUTATIONS)
def test_broken_maths_is_noticed(file, old, new, check, name):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="off|finite"):
        check(package, name, part=0.4)
