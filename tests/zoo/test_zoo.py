"""The zoo itself: cases build and have references, the references are right, and runs are judged as they should."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves_with_path
from scipy import stats

from hamcmc.target.posterior import name_of
from tests import zoo
from tests.zoo import compare, marginals, page, posteriordb, references, runner
from tests.zoo.hierarchical import EFFECTS, ERRORS


def test_there_are_enough():
    assert len([n for n in zoo.names() if zoo.family(n) != "posteriordb"]) >= 50


FIRST = {zoo.family(n): n for n in reversed(zoo.names())}.values()  # of each family


@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in zoo.names()])
def test_density(name):
    """It and its gradient are finite at the start in single precision."""
    case = zoo.case(name)
    target, position = case.posterior, case.posterior.unconstrain(case.init)
    value, grad = jax.jit(jax.value_and_grad(target.log_density))(position, target.data)
    assert value.dtype == jnp.float32
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((value, grad)))
    assert all(bool(jnp.any(x != 0)) for x in jax.tree.leaves(target.data))


@pytest.mark.parametrize("name", zoo.names())
def test_the_reference_fits_the_case(name):
    case = zoo.case(name)
    compared = jax.eval_shape(case.quantities, case.init) if case.quantities else case.init
    shapes = {name_of(path): x.shape for path, x in tree_leaves_with_path(compared)}
    try:
        reference = references.load(case)
    except FileNotFoundError:
        pytest.skip(f"no reference yet: python -m tests.zoo.references {name}")
    assert {k: m.mean.shape for k, m in reference.parameters.items()} == shapes
    for m in reference.parameters.values():
        assert m.quantiles.shape == (len(marginals.LEVELS), *m.mean.shape)
        assert (np.diff(m.quantiles, axis=0) > 0).all()
        if case.measure == "moments":
            assert np.isfinite(m.mean).all()
            assert (m.sd > 0).all()
    assert reference.mean_error < 0.03
    right = reference.nuts.get("right")  # None where a short run of NUTS was not tried
    assert right is None or isinstance(right, bool)
    assert reference.how["method"] == "exact" or case.exact is None


def test_posteriordb():
    """Only posteriors whose names begin with a to h may be looked at."""
    if posteriordb.MISSING:
        pytest.skip(posteriordb.MISSING)
    mine = [n for n in zoo.names() if zoo.family(n) == "posteriordb"]
    assert len(mine) == 18
    assert all("a" <= n[0].lower() <= "h" for n in mine)


# --- exact references against another computation ---


def some(first, *others):
    """The first in the usual run, all in the slow one: references are kept, and change only if made anew."""
    return [first, *(pytest.param(n, marks=pytest.mark.slow) for n in others)]


def close(found, known, tolerance):
    """Means within a share of an sd, sds within the same share."""
    assert np.max(np.abs(found.mean - known.mean) / known.sd) < tolerance
    assert np.max(np.abs(found.sd / known.sd - 1)) < tolerance


@pytest.mark.parametrize("name", some("linear", "linear_condition", "gaussian_stiff"))
def test_gaussian_references(name, x64):
    """The gradient vanishes at the reference's mean, and the Hessian's inverse has its variances."""
    case = zoo.case(name)
    known = references.load(case).parameters["theta"]

    def energy(x):
        return -case.posterior.log_density(x, case.posterior.data)

    hessian = np.asarray(jax.jit(jax.hessian(energy))(case.init))
    covariance = np.linalg.inv(hessian)
    mean = case.init - covariance @ np.asarray(jax.jit(jax.grad(energy))(case.init))
    close(marginals.of_gaussian(mean, covariance), known, 1e-4)


@pytest.mark.parametrize("name", some("quartic_ridge", "ring", "mixture_grid"))
def test_references_in_the_plane(name, x64):
    """Quadrature of the posterior's own density."""
    case = zoo.case(name)
    side = np.linspace(-13, 13, 651)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    log_density = np.asarray(jax.jit(jax.vmap(jax.vmap(case.posterior.log_density)))(jnp.asarray(grid)))
    weights = np.exp(log_density - log_density.max())
    mass = [weights.sum(axis=1), weights.sum(axis=0)]
    found = marginals.stack([marginals.of_grid(side, np.log(np.maximum(m, 1e-300))) for m in mass])
    known = references.load(case).parameters["theta"]
    close(found, known, 1e-3)
    assert np.max(np.abs(found.quantiles - known.quantiles) / known.sd) < 0.02  # a cell of the grid


def test_the_ridge_has_the_moments_of_the_erratum():
    known = references.load(zoo.case("quartic_ridge")).parameters["theta"]
    assert known.sd[0] ** 2 == pytest.approx(0.21203, abs=2e-5)


@pytest.mark.parametrize("name", some("double_well", "student_t3", "student_t1", "laplace", "bounds", "simplex"))
def test_independent_coordinates(name, x64):
    """Along one unconstrained coordinate the density is its marginal's, except in the simplex, which is a Dirichlet."""
    case = zoo.case(name)
    known = references.load(case).parameters
    if name == "simplex":
        shares = np.random.default_rng(0).dirichlet([120.5, 60.5, 30.5, 12.5, 5.5, 2.5, 0.5, 40.5], size=200_000)
        close(marginals.of_draws(np.log(shares[:, :-1] / shares[:, -1:])), known["theta"], 0.01)
        return
    position = case.posterior.unconstrain(case.init)
    for key, m in known.items():
        leaf = position if key == "theta" else position[key]
        flat, last = leaf.reshape(-1), leaf.size - 1
        u = jnp.linspace(-3000, 3000, 600_001) if name == "student_t1" else jnp.linspace(-120, 120, 48_001)

        def along(value, key=key, flat=flat, last=last, leaf=leaf):
            moved = flat.at[last].set(value).reshape(leaf.shape)
            return moved if key == "theta" else {**position, key: moved}

        log_density = jax.jit(jax.vmap(lambda v, along=along: case.posterior.log_density(along(v))))(u)
        found = marginals.of_grid(np.asarray(u), np.asarray(log_density)).quantiles
        constrained = [case.posterior.constrain(along(q)) for q in found]
        values = [np.ravel(c if key == "theta" else c[key])[last] for c in constrained]
        quantiles = m.quantiles.reshape(len(found), -1)[:, last]
        # Of a Cauchy's mass 0.02 % is beyond the grid; elsewhere only the spacing counts.
        assert np.allclose(values, quantiles, rtol=5e-3, atol=3e-3), (key, values, quantiles)


@pytest.mark.parametrize("name", some("funnel", "banana", "multivariate_t", "mixture_close"))
def test_references_against_draws(name):
    """Quantiles of direct draws; the tolerance is four standard errors of a quantile's level."""
    rng, size = np.random.default_rng(1), 100_000
    if name == "funnel":
        v = 3 * rng.normal(size=size)
        draws = {"v": v, "x": np.exp(v / 2)[:, None] * rng.normal(size=(size, 9))}
    elif name == "banana":
        x = 10 * rng.normal(size=size)
        draws = {"x": x, "y": 0.03 * (x**2 - 100) + rng.normal(size=size), "z": rng.normal(size=(size, 3))}
    elif name == "multivariate_t":
        root = np.linalg.qr(np.random.default_rng(32).normal(size=(10, 10)))[0] * np.geomspace(0.1, 10, 10)
        radius = np.sqrt(4 / rng.chisquare(4, size=(size, 1)))
        draws = {"theta": radius * rng.normal(size=(size, 10)) @ root.T}
    else:
        centre = np.where(rng.random(size) < 0.4, -1.5, 1.5)
        draws = {"theta": rng.normal(size=(size, 5)) + np.outer(centre, [1, 0, 0, 0, 0])}
    for key, m in references.load(zoo.case(name)).parameters.items():
        levels = np.array(marginals.LEVELS).reshape(-1, *[1] * m.mean.ndim)
        below = np.stack([np.mean(draws[key] <= q, axis=0) for q in m.quantiles])
        assert np.max(np.abs(below - levels) / np.sqrt(levels * (1 - levels) / size)) < 4


@pytest.mark.slow
def test_eight_schools_reference_against_the_prior():
    """Draws of μ and τ from the prior, weighted by the likelihood in which the schools' effects are summed out."""
    rng, size = np.random.default_rng(2), 400_000
    mu, tau = 5 * rng.normal(size=size), np.abs(5 * rng.standard_cauchy(size=size))
    log_weight = stats.norm.logpdf(EFFECTS, mu[:, None], np.hypot(tau[:, None], ERRORS)).sum(axis=1)
    chosen = rng.choice(size, size=100_000, p=np.exp(log_weight) / np.exp(log_weight).sum())
    mu, tau = mu[chosen], tau[chosen]
    variance = 1 / (1 / ERRORS**2 + 1 / tau[:, None] ** 2)
    mean = variance * (EFFECTS / ERRORS**2 + mu[:, None] / tau[:, None] ** 2)
    theta = mean + np.sqrt(variance) * rng.normal(size=mean.shape)
    draws = {"mu": mu, "tau": tau, "theta": theta, "z": (theta - mu[:, None]) / tau[:, None]}
    for name in ("eight_schools_centred", "eight_schools_noncentred"):
        for key, m in references.load(zoo.case(name)).parameters.items():
            close(marginals.of_draws(draws[key]), m, 0.03)


# --- how runs are judged ---

STANDARD = references.Reference({"x": marginals.of_distribution(stats.norm(), (3,))}, {})


@pytest.mark.parametrize("measure", ["moments", "quantiles"])
@pytest.mark.parametrize(
    ("shift", "scale", "right"), [(0.0, 1.0, True), (0.15, 1.0, False), (0.0, 1.15, False), (0.0, 0.85, False)]
)
def test_errors(measure, shift, scale, right):
    draws = np.random.default_rng(3).normal(size=(20_000, 3))
    draws[:, 1] = shift + scale * draws[:, 1]
    found = compare.errors({"x": draws}, STANDARD, measure)
    assert found.right is right
    if not right:
        assert (found.mean_of if shift else found.sd_of) == "x[1]"


def test_errors_of_broken_draws_are_infinite():
    draws = np.random.default_rng(4).normal(size=(1000, 3))
    draws[7, 2] = np.nan
    assert compare.errors({"x": draws}, STANDARD, "moments")[:3] == (np.inf, np.inf, "x[2]")


def test_kinds():
    words = (None, "good", "usable", "not converged", "wrong")
    assert [compare.kind(False, w) for w in words] == [compare.SILENT] * 3 + [compare.SAID] * 2
    assert [compare.kind(True, w) for w in words] == [compare.RIGHT] * 3 + [compare.DOUBTED, compare.SLANDERED]


WORKER = """
import json, sys, time
for name, seed in json.load(sys.stdin)["jobs"]:
    if name == "dies":
        sys.exit(3)
    if name == "hangs":
        time.sleep(60)
    print(json.dumps({"case": name, "seed": seed, "kind": "right", "right": True}), flush=True)
"""


def test_runner_survives_its_workers(tmp_path, monkeypatch, capsys):
    """A run that dies or takes too long is recorded, the others go on, and a second call has nothing left to do."""
    monkeypatch.setattr(runner, "WORKER", [sys.executable, "-c", WORKER])
    out = tmp_path / "zoo.json"
    asked = (["first", "dies", "hangs", "last"], [0, 1], ["float32"], out, {}, 2.0)
    runs = runner.run(*asked, resume=False)
    kinds = {(r["case"], r["seed"]): r["kind"] for r in runs}
    assert kinds == {
        (n, s): compare.RIGHT if n in ("first", "last") else compare.CRASHED for n in asked[0] for s in (0, 1)
    }
    assert "code 3" in next(r["reason"] for r in runs if r["case"] == "dies")
    assert "2 s" in next(r["reason"] for r in runs if r["case"] == "hangs")
    assert "4 of 8 runs right (50%)" in runner.totals(runs)
    assert "crashed: dies, hangs" in runner.totals(runs)
    monkeypatch.setattr(runner, "WORKER", [sys.executable, "-c", "raise SystemExit('nothing to do')"])
    assert runner.run(*asked, resume=True) == runs


def test_the_page_is_as_the_kept_runs_say():
    kept = json.loads(page.KEPT.read_text())
    assert page.text(kept) == page.PAGE.read_text(), "run `python -m tests.zoo page`"
    kept["runs"][0]["mean"] = 0.987  # a number that the page does not have
    assert page.text(kept) != page.PAGE.read_text()


@pytest.mark.slow
def test_sizes_are_those_of_the_cases():
    kept = json.loads(page.KEPT.read_text())
    names = {"linear", "gaussian_stiff", "poisson_rows"}
    assert page.sizes(names) == {n: kept["sizes"][n] for n in sorted(names)}
