"""Every reproduction writes its figures and its numbers; all methods get the same budget."""

import json
import xml.etree.ElementTree as ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

from hamcmc.paper import REPRODUCTIONS, bias, fig1, fig2, proposition, theorem, tuning
from hamcmc.paper.clock import each_time
from hamcmc.paper.common import Reproduction, finish
from hamcmc.target import linear_gaussian as model

TINY = {
    fig1: {"iterations": 200, "candidates": 4, "repeats": 1, "chains": 2},
    fig2: {
        "kinds": ["correlated"],
        "dimensions": [3],
        "iterations": 100,
        "candidates": 4,
        "repeats": 1,
        "runs": 2,
        "timed_iterations": 10,
        "timings": 1,
    },
    theorem: {"runs": 8, "iterations": 200},
    proposition: {"runs": 8, "time": 0.5, "burn_in": 0.1},
    bias: {  # one target: compiling is what takes time
        "step_sizes": [0.02],
        "budget": {"minibatches, control variate": {"positions": 12, "times": [0.4], "burn_in": 0.1}},
    },
}


TAKES_LONG = [
    pytest.param(m, marks=pytest.mark.slow) if m in (fig1, fig2, bias, proposition, theorem) else m for m in TINY
]


@pytest.fixture(scope="module", params=TAKES_LONG, ids=lambda m: m.__name__.split(".")[-1])
def tiny(request, tmp_path_factory):
    """The reproduction with settings that are smaller still than the quick ones."""
    module, patch = request.param, pytest.MonkeyPatch()
    quick = module.settings
    patch.setattr(module, "settings", lambda quick_run: quick(quick_run) | TINY[module])
    said = []
    out = tmp_path_factory.mktemp(module.__name__)
    found = module.reproduce(out, quick=True, seed=3, progress=said.append)
    patch.undo()
    return found, out, said


def test_files(tiny):
    found, out, _ = tiny
    assert {f.name for f in found.files} == {f.name for f in out.iterdir()} - {"runs.json"}  # finished pieces
    assert {f.name for f in found.files} == {f"{found.name}.png", f"{found.name}.svg", "results.json"}
    assert (out / f"{found.name}.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(out / f"{found.name}.svg").getroot().tag.endswith("svg")


def test_numbers(tiny):
    found, out, _ = tiny
    results = json.loads((out / "results.json").read_text())
    assert results["name"] in REPRODUCTIONS
    assert results["seed"] == 3
    assert results["quick"] is True
    assert {"jax", "numpy", "hamcmc", "python"} <= results["versions"].keys()
    assert results["rows"] == [list(row) for row in found.rows]
    assert all(len(row) == len(found.columns) for row in found.rows)


def test_quick_runs_say_so(tiny):
    found, out, _ = tiny
    assert "(quick)" in found.title
    assert found.notes[0].startswith("Quick")
    assert "(quick)" in (out / f"{found.name}.svg").read_text()


def test_progress(tiny):
    _, _, said = tiny
    parts = [status.done for status in said]
    assert parts == sorted(parts)
    assert parts[0] == 0
    assert parts[-1] < 1


def test_same_budget_for_all_methods(tiny):
    found, _, _ = tiny
    searches = [found.results.get("tuned")] + [f["tuned"] for f in found.results.get("found", {}).values()]
    for tuned in filter(None, searches):
        assert len(tuned) >= 4
        assert {len(t["tried"]) for t in tuned.values()} == {found.results["settings"]["candidates"]}
        for t in tuned.values():
            scores = [c["score"] for c in t["tried"] if c["score"] is not None]
            assert t["score"] == min(scores)


def test_search_finds_the_step_size():
    """On a round posterior the score is best for steps near 1/curvature; far too small a step stays at the start."""
    data = model.simulate(np.random.default_rng(0), 200, 2 * np.eye(2), 10.0)
    exact, posterior = model.exact(data, 10.0), model.linear_gaussian(data, 10.0)
    mean = jnp.asarray(exact.mean, jnp.float32)
    method = tuning.methods(exact.precision, 200, 20, memories=(2,))["SGLD"]
    tuned = tuning.search(
        method,
        posterior,
        exact.precision,
        mean + 5,
        statistic=lambda theta: theta,
        score=lambda average: jnp.sum((average - mean) ** 2),
        exponent=0.51,
        iterations=300,
        burn_in=150,
        batch_size=20,
        candidates=16,
        repeats=1,
        seed=0,
    )
    assert tuned.score < 0.1 < max(c["score"] for c in tuned.tried)
    assert 0.05 < tuned.schedule(0) / method.step < 30


@pytest.mark.slow
def test_sgrld_by_inversion_is_sgrld():
    """The footnote's way and the library's give the same law: mean drift and noise covariance of one step."""
    data, exact = fig2.simulated(fig2.Case("correlated", 4), seed=0)
    posterior = model.linear_gaussian(data, fig2.NOISE_VARIANCE)
    theta = jnp.asarray(exact.mean + 0.3, jnp.float32)
    import jax

    keys = jax.random.split(jax.random.key(0), 20_000)
    moved = []
    for invert in (True, False):
        sampler = each_time(posterior, exact.precision, invert=invert)
        state = sampler.init(theta)
        step = lambda key, sampler=sampler, state=state: sampler.step(key, state, posterior.data, 0.1)[0].position
        moved.append(np.asarray(jax.vmap(step)(keys), np.float64))
    scale = np.sqrt(0.2 * np.diag(exact.covariance))
    for draws in moved:
        expected = theta - 0.1 * (np.asarray(theta) - exact.mean)
        np.testing.assert_allclose((draws.mean(0) - expected) / scale, 0, atol=4 / np.sqrt(20_000))
        correlation = np.cov(draws.T) / (0.2 * exact.covariance)
        np.testing.assert_allclose(np.diag(correlation), 1, atol=4 * np.sqrt(2 / 20_000))


@pytest.mark.parametrize("dimension", [2, 10])
def test_the_spectra_of_figure_2(dimension):
    """Sample eigenvalues are within √(D/N) of those that the page states, give or take four standard errors."""
    slack = np.sqrt(dimension / fig2.SIZE) + 4 * np.sqrt(2 / fig2.SIZE)
    small, large = fig1.CURVATURES
    expected = {
        "independent": np.full(dimension, fig2.SIZE / fig2.NOISE_VARIANCE),
        "correlated": np.r_[np.full(dimension - 1, small), large],
    }
    for kind, curvatures in expected.items():
        _, exact = fig2.simulated(fig2.Case(kind, dimension), seed=0)
        values, axes = np.linalg.eigh(exact.precision)
        np.testing.assert_allclose((values - 1) / curvatures, 1, atol=3 * slack)
        if kind == "correlated":
            assert abs(axes[:, -1].sum()) / np.sqrt(dimension) > 0.999  # along (1, …, 1)


def test_the_correlated_data_are_those_of_figure_1():
    b = fig2.mixing(fig2.Case("correlated", 2))
    rotated = np.array([[1, 1], [-1, 1]]) / np.sqrt(2)
    figure_1 = rotated * np.sqrt(np.array(fig1.CURVATURES) * fig2.NOISE_VARIANCE / fig2.SIZE)
    np.testing.assert_allclose(b @ b.T, figure_1 @ figure_1.T)


def test_divergence_is_zero_at_the_posterior():
    _, exact = fig1.ridge(0)
    assert fig1.divergence(jnp.asarray(exact.mean), jnp.asarray(exact.covariance), exact) == pytest.approx(0, abs=1e-3)
    assert fig1.divergence(jnp.asarray(exact.mean), 4 * jnp.asarray(exact.covariance), exact) == pytest.approx(
        0.5 * (8 - 2 - 2 * np.log(4)), rel=1e-3
    )


def test_bounds_of_the_theorem():
    """b = 1/2: L ~ √T and Y ~ log T, so the bias bound falls nearly like T^(−1/2); b = 1/3: MSE like T^(−2/3)."""
    times = np.geomspace(10**5, 10**7, 9).astype(int) // 2 * 2
    assert theorem.slope(times, theorem.bounds(times, 1.0, 0.5, 2)[0]) == pytest.approx(-0.45, abs=0.06)
    assert theorem.slope(times, theorem.bounds(times, 1.0, 1 / 3, 2)[1]) == pytest.approx(-2 / 3, abs=0.02)


def test_results_hold_no_nan(tmp_path):
    found = finish(
        tmp_path, "x", "X", quick=False, seed=0, settings={}, columns=["a"], rows=[[float("nan")]], figures={}
    )
    assert isinstance(found, Reproduction)
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == [[None]]
