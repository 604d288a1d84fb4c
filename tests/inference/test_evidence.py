"""The evidence of a linear Gaussian model against the exact one, and broken maths noticed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

import hamcmc
from hamcmc.inference.evidence import Evidence, compare
from hamcmc.store.errors import NonFinite
from hamcmc.target import linear_gaussian as lg
from tests.mutation import mutant

SIZE, NOISE = 60, 1.0
EVIDENCE, LADDER = "inference/evidence.py", "inference/tempering.py"


def simulated(seed=1, columns=2):
    """Observations that follow the first two columns."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(SIZE, columns))
    x = a[:, :2] @ [0.8, -0.6] + rng.normal(size=SIZE)
    return lg.Data(a.astype(np.float32), x.astype(np.float32))


def posterior_of(package, data):
    """The library's model, built from the package that may be broken."""
    model = lg.linear_gaussian(data, NOISE)
    return package.Posterior(model.log_prior, model.log_likelihood, data)


def moments(data, beta):
    """Exact mean and variance of log p(x|θ) at β."""
    a, x = (np.asarray(v, float) for v in data)
    f, h = a.T @ a / NOISE, a.T @ x / NOISE
    s = np.linalg.inv(np.eye(a.shape[1]) + beta * f)
    m = beta * s @ h
    r, g = x - a @ m, h - f @ m
    mean = -0.5 * (SIZE * np.log(2 * np.pi * NOISE) + r @ r / NOISE + np.trace(f @ s))
    return mean, g @ s @ g + 0.5 * np.trace(f @ s @ f @ s)


def run(package, data, **changes) -> Evidence:
    stiff = np.linalg.eigvalsh(lg.exact(data, NOISE).precision).max()
    settings = {"step_size": 0.5 / stiff, "num_samples": 3200, "warmup": 400, "temperatures": 17, "chains": 4}
    settings |= {"friction": 0.7} | changes
    return package.evidence(posterior_of(package, data), "sghmc", jnp.zeros(data.a.shape[1]), **settings)


def check_all_data(package):
    """Every mean, every variance and the evidence, with exact draws at β = 0."""
    data = simulated()
    found = run(package, data, prior_sample=lambda key: jax.random.normal(key, (2,)))
    mean, variance = np.array([moments(data, b) for b in found.temperatures]).T
    assert (np.abs(found.mean - mean) < 4 * found.error).all(), f"means off: {(found.mean - mean) / found.error}"
    assert_allclose(found.variance, variance, rtol=0.25, err_msg="variances off")
    error = found.log_evidence - lg.log_evidence(data, NOISE)
    assert abs(error) < 2 * found.standard_error < 0.1, f"evidence off by {error} ± {found.standard_error}"


def check_minibatches(package):
    """The same by minibatches of a third, whose noise is in neither mean nor variance."""
    data = simulated()
    stiff = np.linalg.eigvalsh(lg.exact(data, NOISE).precision).max()
    found = run(package, data, batch_size=20, step_size=0.05 / stiff, friction=0.9)
    mean, variance = np.array([moments(data, b) for b in found.temperatures]).T
    assert (np.abs(found.mean - mean) < 4 * found.error).all(), f"means off: {(found.mean - mean) / found.error}"
    assert abs(found.variance[-1] - variance[-1]) < 2.5, f"variance off: {found.variance[-1]}, not {variance[-1]}"
    error = found.log_evidence - lg.log_evidence(data, NOISE)
    assert abs(error) < 2 * found.standard_error < 0.3, f"evidence off by {error} ± {found.standard_error}"


def check_integration(package):
    """From exact means and variances: the rule's error is known to a factor of 2, and taken off."""
    from hamcmc.inference.evidence import _integrate  # of the package in place

    data = simulated()
    truth = lg.log_evidence(data, NOISE)
    for rungs, most in ((9, 0.02), (17, 1e-3), (33, 1e-5)):
        ladder = np.linspace(0, 1, rungs) ** 5
        mean, variance = np.array([moments(data, b) for b in ladder]).T
        anchor = mean + 3.0
        batch = np.stack([mean - anchor, variance + (mean - anchor) ** 2])
        found = _integrate(ladder, anchor, np.stack([batch] * 4))
        assert_allclose(found.variance, variance, rtol=1e-6)
        error = found.log_evidence - truth
        assert abs(error) < found.ladder_error + 1e-9, f"off by {error}, said {found.ladder_error}"
        assert abs(error) < most, f"off by {error}"
        assert found.monte_carlo_error < 1e-9


@pytest.mark.parametrize("check", [check_all_data, check_minibatches, check_integration])
def test_exact_evidence(check):
    check(hamcmc)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [
        (
            LADDER,
            "lambda g: self.beta * g, self.plain.mean",
            "lambda g: self.beta**2 * g, self.plain.mean",
            check_minibatches,
        ),
        (LADDER, "zeros_like(d), d, posterior.size)", "zeros_like(d), d, n)", check_minibatches),
        pytest.param(
            LADDER, "(first * second).mean(1)", "(first * first).mean(1)", check_minibatches, marks=pytest.mark.slow
        ),
        (EVIDENCE, "(before + after) / 2", "after", check_integration),
        (EVIDENCE, "(after**2 - before**2) / 12", "(before**2 - after**2) / 12", check_integration),
        (EVIDENCE, "(fine - coarse) / 15", "(coarse - fine) / 15", check_integration),
    ],
)
def test_broken_maths_is_noticed(file, old, new, check):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match="off"):
        check(package)


def test_exact_log_evidence():
    data = simulated()
    a = np.asarray(data.a, float)
    direct = multivariate_normal(np.zeros(SIZE), NOISE * np.eye(SIZE) + a @ a.T).logpdf(np.asarray(data.x, float))
    assert lg.log_evidence(data, NOISE) == pytest.approx(direct, rel=1e-12)


@pytest.mark.slow
def test_the_right_model_is_chosen():
    """Of the first one, two and three columns, by which two the data were made."""
    full = simulated(columns=3)
    models = {k: lg.Data(full.a * (np.arange(3) < k), full.x) for k in (1, 2, 3)}  # in one shape, one program
    said = []
    found = compare({str(k): run(hamcmc, data, num_samples=1600, progress=said.append) for k, data in models.items()})
    assert {s.phase for s in said} == {"warm-up", "sampling", "done"}
    assert said[-1].done == 1
    assert found.names[0] == "2"
    exact = {str(k): lg.log_evidence(data, NOISE) for k, data in models.items()}
    factors = np.array([exact[name] - exact["2"] for name in found.names])
    assert (np.abs(found.log_bayes_factor - factors)[1:] < 3 * found.factor_error[1:]).all()
    assert (found.factor_error[1:] < 0.2).all()
    assert_allclose(found.probability, np.exp(factors) / np.exp(factors).sum(), atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 20])
def test_standard_errors_are_honest(batch_size):
    """Over 30 seeds, the errors in standard errors have a mean square near 1."""
    data = simulated()
    stiff = np.linalg.eigvalsh(lg.exact(data, NOISE).precision).max()
    changes = {} if batch_size is None else {"batch_size": batch_size, "step_size": 0.05 / stiff, "friction": 0.9}
    truth = lg.log_evidence(data, NOISE)
    found = [run(hamcmc, data, seed=s, temperatures=33, **changes) for s in range(30)]
    z = np.array([(e.log_evidence - truth) / e.standard_error for e in found])
    assert 0.39 < np.mean(z**2) < 1.99, z  # χ² with 30 degrees of freedom, beyond 0.1 % on either side


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ccadl", "ensemble_hamcmc"])
def test_other_samplers(name):
    data = simulated()
    mode = jnp.asarray(lg.exact(data, NOISE).mean, jnp.float32)
    options = {"full": True, "friction": 0.5} if name == "ccadl" else {"pairs": 3}
    found = hamcmc.evidence(
        posterior_of(hamcmc, data),
        name,
        mode,
        step_size=0.2 / 60 if name == "ccadl" else lambda beta: 0.05,
        batch_size=20 if name == "ccadl" else None,
        num_samples=6400,
        temperatures=17,
        **options,
    )
    assert abs(found.log_evidence - lg.log_evidence(data, NOISE)) < 3 * found.standard_error < 0.3


class TestBadInput:
    def evidence(self, posterior=None, **changes):
        posterior = posterior or lg.linear_gaussian(simulated(), NOISE)
        return hamcmc.evidence(posterior, "sgld", jnp.zeros(2), **({"step_size": 1e-3, "num_samples": 32} | changes))

    def test_an_improper_prior(self):
        flat = hamcmc.Posterior(
            lambda theta: 0.0 * theta[0], lambda theta, x: -jnp.sum((x - theta) ** 2), np.ones((9, 2))
        )
        with pytest.raises(
            ValueError, match="log_prior has the curvature 0 at the start.*an improper prior has no evid"
        ):
            self.evidence(flat)

    @pytest.mark.parametrize(
        ("changes", "culprit"),
        [
            ({"temperatures": 4}, "temperatures must be a whole number, 5 or more"),
            ({"temperatures": 6}, "temperatures must be an odd number"),
            ({"temperatures": [0, 0.2, 0.1, 0.5, 1]}, "temperatures must rise from 0 to 1"),
            ({"temperatures": [0, 0.2, 0.3, 0.5, 0.9]}, "temperatures must rise from 0 to 1"),
            ({"step_size": -1.0}, "step_size must be a finite number above 0"),
            ({"step_size": lambda beta: beta}, "step_size at β = 0 must be a finite number above 0"),
            ({"num_samples": 31}, "num_samples must be a whole number, 32 or more"),
            ({"batch_size": 1}, "batch_size must be 2 or more"),
            ({"batch_size": 61}, "batch_size 61 is larger than the data"),
            ({"svrg": 5}, "svrg: evidence has anchors of its own"),
            ({"ensembles": 2}, "ensembles: sgld is not an ensemble sampler; say with chains="),
            ({"posterior": hamcmc.Posterior(lambda theta: -jnp.sum(theta**2))}, "evidence needs a log_likelihood"),
        ],
    )
    def test_the_culprit_is_named(self, changes, culprit):
        with pytest.raises(ValueError, match=culprit):
            self.evidence(**changes)

    def test_an_ensemble_takes_ensembles(self):
        posterior = lg.linear_gaussian(simulated(), NOISE)
        with pytest.raises(ValueError, match="chains: ensemble_hamcmc is an ensemble of 8 chains; say with ensembles="):
            hamcmc.evidence(posterior, "ensemble_hamcmc", jnp.zeros(2), step_size=0.1, chains=2, pairs=3)

    def test_a_finished_sampler_is_refused(self):
        posterior = lg.linear_gaussian(simulated(), NOISE)
        with pytest.raises(ValueError, match="evidence makes a target of its own for the sampler: give a name"):
            hamcmc.evidence(posterior, hamcmc.sgld(posterior.grad), jnp.zeros(2), step_size=0.1)

    def test_a_step_too_large(self):
        with pytest.raises(NonFinite, match=r"the rung β = .* became non-finite by step"):
            self.evidence(step_size=1.0, num_samples=3200, temperatures=5)

    def test_nothing_to_compare(self):
        with pytest.raises(ValueError, match="compare needs a model"):
            compare({})
