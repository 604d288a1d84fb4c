"""Impulses and factors against quadrature, the stochastic gradient against the full one, calibration, and bad input."""

import doctest
import importlib
import itertools
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import logsumexp, psi

import hamcmc
from hamcmc import stable
from hamcmc.inference.many import Turn, advance
from hamcmc.stable import Prior, Source, alpha_stable_mf, distributions, estimate_alpha, separate
from hamcmc.stable.chains import gibbs_chain, gradient_chain
from hamcmc.stable.impulses import Metropolis, log_impulse
from hamcmc.stable.model import Block, StableTarget, build
from hamcmc.store.errors import NonFinite
from tests.mutation import mutant

MODEL, IMPULSES, CHAINS = "stable/model.py", "stable/impulses.py", "stable/chains.py"


def z_of(values, exact):
    """z-score of the mean of independent values."""
    return abs(float((np.mean(values) - exact) / (np.std(values) / np.sqrt(len(values)))))


# --- impulses ---


def conditional(alpha, power, dof):
    """log Φ on a grid of the angle's logit and the logarithm of E, and its probabilities given |x|² and a variance of
    1."""
    logit, log_e = np.meshgrid(np.linspace(-25, 45, 1401), np.linspace(-25, 5, 601), indexing="ij")
    a, rest = alpha / 2, np.pi / (1 + np.exp(logit))
    u = np.pi / (1 + np.exp(-logit))
    sin_u = np.sin(np.minimum(u, rest))
    log_phi = np.log(2 * np.sin(a * u)) - np.log(sin_u) / a + (1 - a) / a * (np.log(np.sin((1 - a) * u)) - log_e)
    log_density = logit - 2 * np.logaddexp(0, logit) + log_e - np.exp(log_e)
    log_density += -dof / 2 * log_phi - power / 2 * np.exp(-log_phi)
    return log_phi, np.exp(log_density - logsumexp(log_density))


def mean_log_impulse(alpha, power, dof):
    """E log Φ given |x|² and a variance of 1, by quadrature."""
    log_phi, p = conditional(alpha, power, dof)
    return float(np.sum(log_phi * p))


def uneven(log_phi, alpha, power, dof, bins=10):
    """χ² of draws of log Φ over bins of equal probability under its law given |x|²; 9 degrees of freedom."""
    values, p = (v.ravel() for v in conditional(alpha, power, dof))
    order = np.argsort(values)
    ranks = np.interp(log_phi, values[order], np.cumsum(p[order]))
    counts = np.bincount(np.minimum(ranks * bins, bins - 1).astype(int), minlength=bins)
    return float(np.sum((counts - len(ranks) / bins) ** 2) / (len(ranks) / bins))


def impulses(metropolis, alphas, variances, power, dof, proposal, n=1500):
    """log Φ of each source for n entries of the same power."""
    log_v = jnp.log(jnp.asarray(variances))[:, None, None] * jnp.ones((1, 1, n))
    return np.asarray(
        run_impulses(metropolis, jnp.asarray(alphas), log_v, jnp.full((1, n), np.log(power)), dof, proposal)
    )


@partial(jax.jit, static_argnums=(0, 4, 5))
def run_impulses(metropolis, alphas, log_v, log_power, dof, proposal):
    step = metropolis(alphas, dof, proposal, 60)
    return step(jax.random.key(0), step.start(log_v, log_power), log_v, log_power, None)[0][:, 2, 0]


@pytest.mark.parametrize(
    ("alpha", "power", "dof", "proposal"),
    [pytest.param(1.2, 1.0, 2, "prior", marks=pytest.mark.slow), (1.89, 1e4, 2, "walk"), (0.6, 10.0, 2, "walk")],
)
def test_impulses_follow_their_posterior(alpha, power, dof, proposal):
    found = impulses(Metropolis, [alpha], [1.0], power, dof, proposal)[0]
    assert z_of(found, mean_log_impulse(alpha, power, dof)) < 4


PAPERS = [(1.2, 10.0), pytest.param(1.2, 1.0, marks=pytest.mark.slow), pytest.param(1.89, 30.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("alpha", "power"), PAPERS)
def test_the_papers_moves_keep_the_law_of_an_impulse(alpha, power):
    """All of it, and not its mean alone: proposals from the prior, as in figure 3. A chance of 1e-5 at χ² = 40."""
    assert uneven(impulses(Metropolis, [alpha], [1.0], power, 2, "prior")[0], alpha, power, 2) < 40


RULE = "ratio + density(new.log_phi) - density(old.log_phi)"


@pytest.mark.slow
@pytest.mark.parametrize(
    "new",
    [
        "ratio + 0.5 * (density(new.log_phi) - density(old.log_phi))",
        "ratio + 2 * (density(new.log_phi) - density(old.log_phi))",
        "ratio + 0 * density(new.log_phi)",
    ],
)
def test_a_wrong_acceptance_of_the_papers_moves_is_noticed(new):
    """χ² is about 200 if the logarithm of the ratio is halved or doubled, and 2000 if everything is accepted."""
    with mutant(IMPULSES, RULE, new):
        broken = importlib.import_module("hamcmc.stable.impulses").Metropolis
        assert uneven(impulses(broken, [1.2], [1.0], 10.0, 2, "prior")[0], 1.2, 10.0, 2) > 100


def test_the_quadrature_knows_the_levy_law():
    """At α = 1, Φ/2 given x is inverse gamma with shape (1 + d)/2 and scale (1 + x²)/4."""
    for power, dof in ((1.0, 2), (100.0, 1)):
        exact = np.log(2) + np.log((1 + power) / 4) - psi((1 + dof) / 2)
        assert mean_log_impulse(1.0, power, dof) == pytest.approx(exact, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (IMPULSES, "+ log_e - jnp.exp(log_e)", "- jnp.exp(log_e)"),
        (
            IMPULSES,
            "ratio = log_latent_density(logit, log_e) - log_latent_density(old.logit, old.log_e)",
            "ratio = 0.0",
        ),
        (MODEL, "-dof / 2 * log_variance", "-dof * log_variance"),
    ],
)
def test_power_of_the_impulses(file, old, new):
    with mutant(file, old, new):
        found = impulses(importlib.import_module("hamcmc.stable.impulses").Metropolis, [1.2], [1.0], 100.0, 2, "walk")[
            0
        ]
    assert z_of(found, mean_log_impulse(1.2, 100.0, 2)) > 8


def shared_by_quadrature(variances, power):
    """E of the first of two gains, and of log V, at α = 1, where Φ/2 has a Lévy law."""
    t = np.linspace(-6, 18, 1201)
    log_prior = -0.5 * t - np.exp(-t) / 4  # of log Φ/2
    first, second = (np.log(2 * v) + t for v in variances)
    total = np.logaddexp(first[:, None], second[None])
    weight = log_prior[:, None] + log_prior[None] - total - power / 2 * np.exp(-total)
    p = np.exp(weight - logsumexp(weight))
    return float(np.sum(np.exp(first[:, None] - total) * p)), float(np.sum(total * p))


def shared_z(metropolis, proposal):
    variances, power = (1.0, 3.0), 30.0
    log_phi = impulses(metropolis, [1.0, 1.0], variances, power, 2, proposal)
    terms = log_phi + np.log(variances)[:, None]
    total = np.logaddexp(*terms)
    return max(map(z_of, (np.exp(terms[0] - total), total), shared_by_quadrature(variances, power)))


def test_two_sources_share_an_entry():
    assert shared_z(Metropolis, "walk") < 4


def test_so_they_do_with_the_papers_moves():
    assert shared_z(partial(Metropolis, swap=False), "prior") < 4


@pytest.mark.slow
def test_a_wrong_share_is_noticed():
    with mutant(MODEL, "-dof / 2 * log_variance", "-dof * log_variance"):
        broken = importlib.import_module("hamcmc.stable.impulses").Metropolis
        assert shared_z(partial(broken, swap=False), "prior") > 8


# --- priors of factors that are folded back at 0 ---


def prior_slopes(module):
    """The gradient of the prior of mirrored H, and the generalized gamma's (ca − 1)/x − (c/x)(x/b)^c."""
    alpha, a, b, c = 1.2, 0.6, 0.5, -2 / 1.2
    source = module.Source(1, alpha, np.ones((2, 1)), prior_H=module.Prior(a, b))
    model, unit = module.build(np.full((2, 30), 1.0 + 0j), [source], "mirror")
    x = np.geomspace(0.2, 5, 30)[None]
    position = ({"H": jnp.asarray(x)},)
    slope = jax.grad(lambda p: module.log_prior(model, p))(position)[0]["H"]
    return np.asarray(slope), (c * a - 1) / x - c / x * (x * unit**alpha / b) ** c


def test_the_prior_of_mirrored_factors():
    np.testing.assert_allclose(*prior_slopes(importlib.import_module("hamcmc.stable.model")), rtol=1e-4)


@pytest.mark.slow
def test_a_wrong_prior_of_mirrored_factors_is_noticed():
    with mutant(MODEL, "- model.form.mirror * logs", "+ 0 * logs"):
        found, exact = prior_slopes(importlib.import_module("hamcmc.stable.model"))
    assert np.abs(found / exact - 1).max() > 0.1


def test_mirrored_factors_stay_positive():
    """With steps far longer than the factors."""
    options = {"sampler": "sgld", "step_size": 1e-2, "warmup": 20, "num_samples": 5, "thin": 1, "clip": 0.1}
    X = np.exp(np.random.default_rng(0).standard_normal((3, 8))) + 0j
    found = separate(X, [Source(2, 1.2)], positivity="mirror", **options)
    assert found.W.min() > 0
    assert found.H.min() > 0


# --- does the posterior cover the truth? ---


def covered(module, columns=400):
    """The shares of a simulated source in its 50 and 90 % sets; W is known."""
    alphas, rows = (1.2, 1.8), 3
    W = [np.array([[0.5], [1.0], [3.0]]), np.array([[2.0], [1.0], [0.7]])]
    keys = jax.random.split(jax.random.key(2), 4)
    H = [distributions.generalized_gamma(k, 2.0, 1.0, -2 / al, (1, columns)) for k, al in zip(keys, alphas)]
    parts = [
        np.asarray(distributions.complex_stable(k, al, (w @ h) ** (1 / al), (rows, columns)), complex)
        for k, al, w, h in zip(keys[2:], alphas, W, H)
    ]
    sources = [module.Source(1, al, w, prior_H=module.Prior(2.0, 1.0)) for al, w in zip(alphas, W)]
    found = module.separate(sum(parts), sources, truth=parts, sampler="gibbs", warmup=100, num_samples=60, thin=3)
    ranks = found.sources[0].ranks
    assert ranks.shape == (2, rows, columns)
    calibration = importlib.import_module("hamcmc.stable.calibration")
    return np.array(list(calibration.coverage(ranks, (0.5, 0.9)).values()))


def test_the_posterior_covers_the_truth():
    """Within three standard errors of 2400 parts, which are nearly independent."""
    error = np.sqrt(np.array([0.5 * 0.5, 0.9 * 0.1]) / 1200)
    assert (np.abs(covered(stable) - [0.5, 0.9]) < 3 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gain * (1 - gain) *", "0.5 * gain * (1 - gain) *"),
        ("mean = along * gain", "mean = 0 * along * gain"),
    ],
)
def test_power_of_the_coverage(old, new):
    with mutant("stable/calibration.py", old, new):
        found = covered(importlib.import_module("hamcmc.stable"))
    assert np.abs(found - [0.5, 0.9]).max() > 0.06


def test_truth_of_another_shape():
    with pytest.raises(ValueError, match="truth must have the shape of X"):
        separate(X, [Source(1, 1.5)], truth=[np.ones((2, 2))])


# --- factors: many columns (or rows) of one entry each are as many independent chains ---


def log_factor(x, dof, a, b):
    """E log h of h ∼ GG(a, b, −2) given an entry of a stable law with α = 1 and scale h."""
    t = np.linspace(-15, 25, 20_001)
    weight = -2 * a * t - np.exp(-2 * (t - np.log(b)))
    weight += t - (1 + dof) / 2 * np.logaddexp(2 * t, 2 * np.log(abs(x)))  # Cauchy, or its isotropic form in the plane
    return float(np.sum(t * np.exp(weight - logsumexp(weight))))


CASES = {
    "gibbs": {"sampler": "gibbs", "warmup": 40, "num_samples": 8, "thin": 5},
    "sgld": {"sampler": "sgld", "step_size": 0.01, "warmup": 1500, "num_samples": 8, "thin": 80},
    "psgld": {"sampler": "psgld", "step_size": 3e-6, "warmup": 3000, "num_samples": 8, "thin": 100},
    "hamcmc": {"sampler": "hamcmc", "step_size": 0.01, "warmup": 7500, "num_samples": 8, "thin": 400},
    "ensemble": {"sampler": "ensemble_hamcmc", "step_size": 0.01, "warmup": 3000, "num_samples": 12, "thin": 160},
    "mirror": {
        "sampler": "sgld",
        "step_size": 1e-4,
        "warmup": 4000,
        "thin": 400,
        "num_samples": 8,
        "positivity": "mirror",
    },
}
SLOW = [pytest.param(k, marks=pytest.mark.slow) for k in ("sgld", "hamcmc", "psgld", "ensemble", "mirror")]


def factor_z(module, how, side, n=1500):
    x, a, b = (3 + 4j, 2.0, 1.5) if side == "H" else (-5.0, 2.0, 1.5)
    options = CASES[how] | {"block": (1, n) if side == "H" else (n, 1), "sweeps": 1, "proposal": "walk"}
    if side == "H":
        source = module.Source(1, 1.0, np.ones((1, 1)), prior_H=module.Prior(a, b))
        found = module.separate(np.full((1, n), x), [source], **options).H[:, 0]
    else:  # H is all but known: 1
        sure = module.Prior(1e7, np.sqrt(1e7))
        source = module.Source(1, 1.0, prior_W=module.Prior(a, b), prior_H=sure)
        found = module.separate(np.full((n, 1), x), [source], **options).W[:, :, 0]
    return z_of(np.log(found).mean(0), log_factor(x, 2 if side == "H" else 1, a, b))


@pytest.mark.parametrize("how", ["gibbs", *SLOW])
def test_factors_follow_their_posterior(how):
    assert factor_z(stable, how, "H") < 4.5


@pytest.mark.slow
def test_so_does_the_other_factor():
    """Real entries, and W that is sampled."""
    assert factor_z(stable, "gibbs", "W") < 4.5


@pytest.mark.parametrize(
    ("how", "file", "old", "new"),
    [
        ("gibbs", CHAINS, "prior.a + dof / 2 *", "prior.a + dof *"),
        ("gibbs", CHAINS, "jnp.exp(0.5 * (model.log_power - total))", "jnp.exp(model.log_power - total)"),
        ("sgld", MODEL, "return c * prior.a * logs - jnp", "return (c * prior.a - 1) * logs - jnp"),
    ],
)
@pytest.mark.slow
def test_power_of_the_factors(how, file, old, new):
    with mutant(file, old, new):
        assert factor_z(importlib.import_module("hamcmc.stable"), how, "H", 600) > 6


@pytest.mark.slow
def test_missing_entries_leave_the_prior():
    X = np.full((1, 1500), np.nan, complex)
    X[0, 0] = 2.0
    a, b = 3.0, 0.7
    found = alpha_stable_mf(X, 1, 1.4, prior_H=Prior(a, b), sampler="gibbs", warmup=20, num_samples=10, thin=2)
    assert z_of(np.log(found.H[:, 0, 1:]).mean(0), np.log(b) - 0.7 * psi(a)) < 4


# --- minibatches ---


def test_the_stochastic_gradient_is_unbiased():
    """Its mean over all blocks of 2 × 2 is the full gradient."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))
    X[1, 2] = np.nan
    model, _ = build(X, [Source(2, 1.2, rng.random((3, 2)) + 0.1), Source(1, 1.9)], "log")
    target = StableTarget(model)
    position = jax.tree.map(jnp.log, model.start)
    log_phi = jnp.asarray(rng.standard_normal((2, 3, 4)))

    @jax.jit
    def gradients(rows, columns):
        cut = lambda x: x[..., rows, :][..., columns]
        block = Block(rows, columns, cut(model.log_power), cut(model.observed), cut(log_phi))
        likelihood = target.combine(position, target.mean_likelihood_grad(position, block))
        return target.grad(position, block), likelihood

    pairs = lambda n: list(itertools.combinations(range(n), 2))
    each = [gradients(jnp.array(r), jnp.array(c)) for r in pairs(3) for c in pairs(4)]
    full = gradients(jnp.arange(3), jnp.arange(4))
    for kind in (0, 1):
        mean = jax.tree.map(lambda *g: np.mean(g, 0), *[g[kind] for g in each])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), mean, full[0])
        assert not np.allclose(each[0][kind][0]["H"], full[0][0]["H"], rtol=0.1)

    whole = Block(jnp.arange(3), None, model.log_power, model.observed, log_phi)
    density, start = jax.jit(lambda p: target.log_density(p, whole)), jax.tree.map(np.asarray, position)
    for seed in range(3):  # and that is the gradient of the log-density, by finite differences
        g = np.random.default_rng(seed)
        v = jax.tree.map(lambda x, g=g: g.standard_normal(x.shape).astype(np.float32), position)
        at = lambda e, v=v: float(density(jax.tree.map(lambda x, d: x + np.float32(e) * d, start, v)))
        slope = sum(float(np.vdot(a, b)) for a, b in zip(jax.tree.leaves(full[0]), jax.tree.leaves(v)))
        assert (at(0.01) - at(-0.01)) / 0.02 == pytest.approx(slope, rel=0.01, abs=0.01)


# --- calibration: each column is a data set of its own ---


def ranks(sampler, columns, draws=19, **options):
    """Of the true H and of the true log Φ among their draws; W is known."""
    rng = np.random.default_rng(1)
    alphas, rows = (1.2, 1.8), 3
    W = [rng.gamma(2.0, size=(rows, 1)) for _ in alphas]
    keys = jax.random.split(jax.random.key(2), 6)
    H = [distributions.generalized_gamma(k, 2.0, 1.0, -2 / al, (1, columns)) for k, al in zip(keys, alphas)]
    phi = [distributions.impulse(k, al, (rows, columns)) for k, al in zip(keys[2:], alphas)]
    z = jax.random.normal(keys[4], (2, 2, rows, columns))
    parts = [np.sqrt(p) * (w @ h) ** (1 / al) * (x[0] + 1j * x[1]) for p, w, h, al, x in zip(phi, W, H, alphas, z)]
    X = np.asarray(sum(parts), complex)
    model, unit = build(X, [Source(1, al, w, prior_H=Prior(2.0, 1.0)) for al, w in zip(alphas, W)], "log")
    step = Metropolis(alphas, 2, "walk", 2)
    thin, before = options.pop("thin"), options.pop("before")
    if sampler == "gibbs":
        chain, latent = gibbs_chain(model, step), lambda s: s.impulses[:, 2]
    else:
        chain = gradient_chain(model, step, sampler, {}, X.shape)
        latent = lambda s: jnp.moveaxis(s.impulses[0, :, :, 2], 0, 1)

    @jax.jit
    def run(key):
        def some(state, t, n):
            turn = lambda i: Turn(jax.random.fold_in(jax.random.fold_in(key, t), i), None, options.get("step_size"))
            return advance(chain.sampler, state, turn, 0, n)[0]

        def draw(state, t):
            state = some(state, t, thin)
            parts = chain.look(state, t).factors
            return state, (jnp.stack([h[0] for _, h in parts]), latent(state))

        return jax.lax.scan(draw, some(chain.sampler.init(chain.start(key)), 1000, before), jnp.arange(draws))[1]

    h, log_phi = run(jax.random.key(3))
    true_h = np.log(np.stack([np.asarray(x)[0] for x in H])) - np.array(alphas)[:, None] * np.log(unit)
    true_phi = np.log(np.stack(phi))
    count = lambda draws, truth: np.sum(np.asarray(draws, float) < np.asarray(truth), 0).ravel()
    return count(np.log(h), true_h), count(log_phi[:, :, 0], true_phi[:, 0])


def chi_square(ranks, draws=19, bins=5):
    """Over bins of equal probability; of 4 degrees of freedom."""
    counts = np.bincount(ranks * bins // (draws + 1), minlength=bins)
    return float(np.sum((counts - len(ranks) / bins) ** 2) / (len(ranks) / bins))


@pytest.mark.slow
def test_gibbs_is_calibrated():
    for found in ranks("gibbs", 500, thin=10, before=100):
        assert chi_square(found) < 25  # a chance of 5e-5


@pytest.mark.slow
@pytest.mark.parametrize("how", [("gibbs", {"thin": 30, "before": 300}), ("sgld", {"thin": 200, "before": 2000})])
def test_calibration_in_full(how, optimised):
    sampler, options = how
    for found in ranks(sampler, 3000, **options, step_size=0.01):
        assert chi_square(found) < 25
        assert chi_square(np.minimum(found + 3, 19)) > 100  # a shift would show


# --- the whole ---


FILTER = {
    "sampler": "sgld",
    "warmup": 200,
    "num_samples": 60,
    "thin": 3,
    "sweeps": 1,
    "block": (30, 40),
    "proposal": "prior",
}


def two_sources(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    alphas = (1.2, 1.89)
    W = [rng.gamma(0.5, size=(rows, 2)) + 0.02 for _ in alphas]
    H = [rng.gamma(0.5, size=(2, columns)) + 0.02 for _ in alphas]
    keys = jax.random.split(jax.random.key(seed), 2)
    draw = lambda k, al, w, h: distributions.complex_stable(k, al, (w @ h) ** (1 / al), (rows, columns))
    parts = [np.asarray(draw(*each), complex) for each in zip(keys, alphas, W, H)]
    return alphas, W, H, parts


@pytest.mark.slow
def beside_wieners(seed):
    """The sum of errors over that of Wiener's filter, and the gain over it in dB."""
    alphas, W, H, parts = two_sources(30, 40, seed)
    X = sum(parts)
    said, sources = [], [Source(2, al, w) for al, w in zip(alphas, W)]
    found = separate(X, sources, **FILTER, step_size=0.01, progress=said.append)
    variance = [(w @ h) ** (2 / al) for w, h, al in zip(W, H, alphas)]
    error = lambda gain: np.abs(gain * X - parts[0])
    ours, wiener = error(found.sources[0].gain), error(variance[0] / sum(variance))
    np.testing.assert_allclose(sum(s.gain for s in found.sources), 1, atol=1e-4)
    assert all(0.05 < s.acceptance < 0.95 for s in found.sources)
    assert {s.phase for s in said} == {"warm-up", "sampling"}
    assert said[-1].done == 1
    return ours.sum() / wiener.sum(), 10 * np.log10(np.sum(wiener**2) / np.sum(ours**2))


def test_the_filter_beats_wieners_with_true_parameters():
    """Wiener's knows W and H, ours only W; but it knows nothing of impulses."""
    ratio, gain = beside_wieners(2)
    assert ratio < 1
    assert gain > 1


@pytest.mark.slow
def test_the_filter_beats_wieners_more_often_than_chance():
    """On a single one of these small spectra it may lose by chance."""
    ratios, gains = np.transpose([beside_wieners(seed) for seed in range(8)])
    assert stats.wilcoxon(np.log(ratios), alternative="less").pvalue < 0.01
    assert min(gains) > 1


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sgld", "psgld", "hamcmc", "ensemble_hamcmc"])
def test_gradient_samplers_agree_with_gibbs(sampler, optimised):
    """Posterior mean and spread of log WH, with W free; tenths of the rows at a step."""
    rng = np.random.default_rng(0)
    scale = (rng.gamma(1.0, size=(20, 2)) + 0.1) @ (rng.gamma(1.0, size=(2, 30)) + 0.1)
    X = np.asarray(distributions.complex_stable(jax.random.key(0), 1.4, scale ** (1 / 1.4), scale.shape), complex)
    logs = lambda found: np.log(found.W @ found.H)
    exact = logs(alpha_stable_mf(X, 2, 1.4, sampler="gibbs", warmup=2000, num_samples=600, thin=10))
    step_size = {"hamcmc": 0.03}.get(sampler)  # its pairs amplify the noise of small blocks
    options = {"sampler": sampler, "step_size": step_size, "warmup": 6000, "num_samples": 600, "thin": 40}
    found = logs(alpha_stable_mf(X, 2, 1.4, seed=1, **options))
    spread = exact.std(0)
    assert np.sqrt(np.mean(((found.mean(0) - exact.mean(0)) / spread) ** 2)) < 0.35
    assert 0.8 < np.mean(found.std(0)) / spread.mean() < 1.35


@pytest.mark.slow
def test_the_unit_does_not_matter():
    """The compiled program is that of the example."""
    values = np.random.default_rng(0).standard_cauchy((4, 40))
    run = lambda x: alpha_stable_mf(x, 1, 1.0, sampler="gibbs", warmup=100, num_samples=50)
    one, other = run(values), run(values * 2.0**-60)
    np.testing.assert_allclose(other.H[:3] * 2.0**60, one.H[:3], rtol=1e-3)


def test_alpha_is_estimated():
    """Of complex and of real entries, with scales of rank one."""
    rng, alpha, shape = np.random.default_rng(0), 1.0, (60, 300)
    scale = np.exp(np.add.outer(np.linspace(-2, 2, shape[0]), np.linspace(0, 3, shape[1])))
    normal = lambda: scale * rng.standard_normal(shape)
    X = (normal() + 1j * normal()) / np.abs(rng.standard_normal(shape))  # 1/N² has the Lévy law
    X[3, 5] = np.nan
    assert estimate_alpha(X) == pytest.approx(alpha, abs=0.05)
    assert estimate_alpha(X.real) == pytest.approx(alpha, abs=0.05)
    assert estimate_alpha(normal()) == pytest.approx(2, abs=0.1)


X = np.arange(1.0, 13.0).reshape(3, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.zeros((3, 4))}, "all entries of X are 0"),
        ({"X": np.full((3, 4), np.nan)}, "X has no entry that is a number"),
        ({"X": np.array([[1.0, np.inf]])}, "X has 1 infinite entries"),
        ({"X": np.ones(3)}, "X must be a matrix with rows and columns, got shape \\(3,\\)"),
        ({"X": np.ones((0, 3))}, "got shape \\(0, 3\\)"),
        ({"X": [["a"]]}, "X must be a matrix of real or complex numbers"),
        ({"rank": 0}, "rank of source 0 must be a whole number, 1 or more, got 0"),
        ({"alpha": 2.1}, "alpha of source 0 must be in \\(0, 2\\], got 2.1"),
        ({"alpha": 0}, "alpha of source 0 must be a finite number above 0"),
        ({"alpha": "guess"}, "alpha of source 0 must be a finite number above 0, got 'guess'"),
        ({"sampler": "nuts"}, "sampler must be 'sgld' or"),
        ({"proposal": "best"}, "proposal must be 'prior' or 'walk' or 'both'"),
        ({"block": (4, 4)}, "block has 4 rows, X has 3"),
        ({"num_samples": 0}, "num_samples must be"),
        ({"prior_H": Prior(-1.0)}, "a of the prior of H in source 0 must be finite numbers above 0"),
        ({"prior_W": Prior(1.0, np.ones(5))}, "b of the prior of W in source 0 does not fit the shape \\(3, 2\\)"),
        ({"sampler": "gibbs", "step_size": 0.1}, "gibbs takes neither"),
        ({"sampler": "hamcmc", "options": {"depth": 3}}, "sampler hamcmc: .*depth"),
        ({"sampler": "hamcmc", "options": {"gamma": -1.0}}, "gamma must be a finite number above 0, got -1.0"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        hamcmc.alpha_stable_mf(**({"X": X, "rank": 2, "alpha": 1.5} | change))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([], "sources must be a list of one Source or more"),
        ([Source(2, 1.5, np.ones((2, 2)))], "W of source 0 must be 3 × 2, rows × rank, got shape \\(2, 2\\)"),
        ([Source(2, 1.5), Source(1, 1.5, -np.ones((3, 1)))], "W of source 1 must have finite entries, none below 0"),
    ],
)
def test_bad_sources(sources, message):
    with pytest.raises(ValueError, match=message):
        separate(X, sources)


def test_old_names_still_work():
    with pytest.warns(DeprecationWarning, match="num_samples"), pytest.raises(ValueError, match="num_samples must be"):
        separate(X, [Source(1, 1.5)], samples=0)
    with pytest.warns(DeprecationWarning, match="block"), pytest.raises(ValueError, match="block has 4 rows, X has 3"):
        hamcmc.alpha_stable_mf(X, 1, 1.5, batch=(4, 4))


def test_a_run_that_turns_to_nan_says_so():
    """With the compiled program of the filter's test."""
    alphas, W, _, parts = two_sources(30, 40)
    sources = [Source(2, al, w) for al, w in zip(alphas, W)]
    with pytest.raises(NonFinite, match="the chain became non-finite within"):
        separate(sum(parts), sources, **FILTER, step_size=1e6, clip=None)


@pytest.mark.slow
def test_example():
    assert doctest.testmod(sys.modules["hamcmc.stable.separation"]) == (0, 8)


def test_options_that_are_numbers_need_no_program_of_their_own():
    """So that a search, which tries many of them, compiles once."""
    from hamcmc.stable import separation

    def draws(damping):
        X = np.linspace(1, 3, 24).reshape(4, 6) * 1j
        options = {"memory": 2, "damping": damping}
        return alpha_stable_mf(X, 2, 1.4, sampler="hamcmc", options=options, warmup=10, num_samples=4, thin=1).H

    first, programs = draws(1.0), separation._segment._cache_size()
    assert not np.array_equal(draws(3.0), first)
    assert separation._segment._cache_size() == programs


@pytest.mark.parametrize(
    ("sampler", "options"), [("sgld", {}), ("psgld", {}), ("hamcmc", {"metric": None, "cosine": 0.0}), ("gibbs", None)]
)
def test_files_of_figure_3_may_run_side_by_side(monkeypatch, sampler, options):
    """No operation of theirs waits in one of XLA's threads for another one of them."""
    from hamcmc import _compile
    from hamcmc.stable import separation

    real, seen = separation._segment, []

    def segment(*arguments):
        seen.append(_compile.blocking(real.trace(*arguments).jaxpr))
        return real(*arguments)

    monkeypatch.setattr(separation, "_segment", segment)
    own = {"positivity": "mirror"} if options is not None else {}
    alpha_stable_mf(X + 1j, 2, 1.4, sampler=sampler, options=options, warmup=10, num_samples=2, thin=1, **own)
    assert not any(seen)
    assert seen


def test_impulses_of_a_gaussian_source_are_2():
    """Also where rounding would make the angle larger than π, and at the start."""
    logit = jnp.linspace(-50, 50, 101)
    assert_allclose(log_impulse(logit, jnp.zeros(101), 2.0), np.log(2), rtol=1e-6)
    assert_allclose(log_impulse(jnp.array([2.0]), jnp.zeros(1), 1.999), np.log(2), atol=0.02)
    start = Metropolis((1.5, 2.0), 2, "walk", 1).start(jnp.zeros((2, 3, 4)), jnp.full((3, 4), 8.0))
    assert_allclose(start[1], np.stack([np.zeros((3, 4)), np.zeros((3, 4)), np.full((3, 4), np.log(2))]), rtol=1e-6)
