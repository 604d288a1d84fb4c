"""Runs that write a part of the parameters, or a function of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.diagnostics import ksd_of, loo
from hamcmc.inference.again import better_after
from hamcmc.inference.plan import Plan
from hamcmc.interop import to_arviz
from hamcmc.report import write_report
from hamcmc.store.errors import NonFinite, RunError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -1.0, 0.5]) + 0.3 + RNG.normal(size=300)).astype(np.float32)
START = {"b": np.float32(0), "layer": {"u": np.zeros(1, np.float32), "v": np.zeros(2, np.float32)}}


def log_prior(p):
    """Standard normal parameters."""
    return -0.5 * sum(jnp.sum(x**2) for x in jax.tree.leaves(p))


def predicted(p, x):
    """A linear function in three pieces."""
    return p["b"] + x[..., :1] @ p["layer"]["u"] + x[..., 1:] @ p["layer"]["v"]


def log_likelihood(p, row):
    """Normal noise."""
    return -0.5 * (row["y"] - predicted(p, row["x"])) ** 2


POSTERIOR = hamcmc.Posterior(log_prior, log_likelihood, {"x": X, "y": Y}, init=START)
HOW = {"step_size": 1e-3, "num_samples": 40, "warmup": 20, "thin": 2, "batch_size": 30, "chains": 2, "progress": False}


def squares(p):
    """A function to store, in place of the parameters."""
    return {"b": p["b"] ** 2, "norm": jnp.sum(p["layer"]["v"] ** 2)[None]}


@pytest.fixture(scope="module")
def whole():
    """The run that stores everything."""
    return hamcmc.sample(POSTERIOR, "sgld", **HOW)


@pytest.fixture(scope="module")
def part():
    """The same run, of which a layer is stored."""
    return hamcmc.sample(POSTERIOR, "sgld", store=["layer.v"], **HOW)


@pytest.fixture(scope="module")
def made():
    """The same run, of which a function is stored."""
    return hamcmc.sample(POSTERIOR, "sgld", store=squares, **HOW)


def test_the_draws_are_those_of_the_whole_run_cut_down(whole, part, made):
    assert list(part.posterior) == ["layer.v"]
    assert_array_equal(part.posterior["layer.v"], whole.posterior["layer.v"])
    assert list(made.posterior) == ["b", "norm"]
    assert_allclose(made.posterior["b"], whole.posterior["b"] ** 2, rtol=1e-6)
    norm = (whole.posterior["layer.v"] ** 2).sum(-1, keepdims=True)
    assert_allclose(made.posterior["norm"], norm, rtol=1e-6)


def test_running_moments_are_those_of_all_parameters(whole, part, made):
    for found in (part, made):
        assert list(found.mean) == list(whole.mean)
        for name in whole.mean:
            assert_array_equal(found.mean[name], whole.mean[name])
            assert_array_equal(found.variance[name], whole.variance[name])


def test_an_array_without_a_name_gets_one():
    found = hamcmc.sample(POSTERIOR, "sgld", store=lambda p: p["layer"]["v"], **HOW)
    assert found.shapes == {"stored": (2,)}


def test_all_names_are_a_whole_run(whole):
    found = hamcmc.sample(POSTERIOR, "sgld", store=["b", "layer"], **HOW)
    assert not found.partial
    assert_array_equal(found.posterior["layer.u"], whole.posterior["layer.u"])


def test_summary_report_arviz_and_verdict_are_about_what_is_stored(part, made, tmp_path):
    assert part.summary().names == ("layer.v[0]", "layer.v[1]")
    assert made.summary()["mean"][0] == pytest.approx(made.posterior["b"].mean(), rel=1e-5)
    for found, names in ((part, {"layer.v"}), (made, {"b", "norm"})):
        verdict = found.check()
        assert verdict.gradients == 0
        assert any("the run stored a part" in r for r in verdict.reasons)
        assert set(found.to_arviz()["posterior"].data_vars) == names
        write_report(found, tmp_path / "report.html")


def test_what_was_stored_is_predicted_from_and_nothing_else(whole, part, made):
    twice = part.predict(lambda p: 2 * p["layer"]["v"])
    assert_array_equal(twice.draws, whole.predict(lambda p: 2 * p["layer"]["v"]).draws)
    with pytest.raises(ValueError, match=r"needs b, layer\.u, which the run did not store.*store="):
        part.predict(lambda p, x: predicted(p, x), X[:5])
    with pytest.raises(ValueError, match=r"needs b, which"):  # though no number of the result depends on it smoothly
        part.predict(lambda p: jnp.where(p["b"] > 0, p["layer"]["v"], 0))
    with pytest.raises(ValueError, match="stored a function.*store="):
        made.predict(lambda p: p["b"])


@pytest.mark.parametrize(
    "use",
    [
        lambda r: loo(r, POSTERIOR),
        lambda r: ksd_of(r, POSTERIOR),
        lambda r: to_arviz(r, POSTERIOR, log_likelihood=True),
    ],
)
def test_what_needs_whole_draws_is_refused(part, use):
    with pytest.raises(ValueError, match="needs whole draws.*store"):
        use(part)


@pytest.mark.parametrize("store", [["layer.v"], squares])
def test_a_resumed_run_has_the_same_bits(store, part, made, tmp_path, short_segments):
    short_segments(15)

    def stop(status):
        if status.draws and status.draws >= 10:
            raise KeyboardInterrupt

    uncut = hamcmc.sample(POSTERIOR, "sgld", store=store, out=tmp_path / "uncut", **HOW)
    with pytest.raises(KeyboardInterrupt):
        hamcmc.sample(
            POSTERIOR, "sgld", store=store, out=tmp_path / "cut", checkpoint_seconds=0, **(HOW | {"progress": stop})
        )
    if store is squares:
        with pytest.raises(RunError, match="give store to resume"):
            hamcmc.resume(tmp_path / "cut", POSTERIOR, progress=False)
        with pytest.raises(RunError, match="another store"):
            hamcmc.resume(tmp_path / "cut", POSTERIOR, store=lambda p: jax.tree.map(jnp.exp, squares(p)))
        again = hamcmc.resume(tmp_path / "cut", POSTERIOR, store=squares, progress=False)
    else:
        with pytest.raises(RunError, match="another store"):
            hamcmc.resume(tmp_path / "cut", POSTERIOR, store=["layer.u"], progress=False)
        again = hamcmc.resume(tmp_path / "cut", POSTERIOR, progress=False)
    for name, x in uncut.posterior.items():
        assert_array_equal(again.posterior[name], x)
        assert_array_equal(hamcmc.Result.open(tmp_path / "cut").posterior[name], x)
    for name, x in uncut.variance.items():
        assert_array_equal(again.variance[name], x)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("layer", "list of names"),
        ([], "list of names"),
        ([1], "list of names"),
        (["layer.w"], r"no sampled parameter 'layer\.w'; there are b, layer\.u, layer\.v"),
        (lambda p: {}, "returned nothing"),
        (lambda p: jnp.int32(1), "floating-point numbers, got int32"),
        (lambda p: {"a/b": p["b"]}, "unique name without '/'"),
        (lambda p: jnp.log(p["b"] - 1), "stored is nan at the start"),
    ],
)
def test_bad_stores_are_refused(store, message):
    with pytest.raises(ValueError, match=message):
        hamcmc.sample(POSTERIOR, "sgld", store=store, **HOW)


def test_gradients_of_a_part_are_refused():
    with pytest.raises(ValueError, match="store_gradients needs whole draws"):
        hamcmc.sample(POSTERIOR, "sgld", store=["b"], store_gradients=True, **HOW)


def test_a_function_that_fails_on_the_way_ends_the_run():
    with pytest.raises(NonFinite, match=r"store: stored is not finite at iteration") as failed:
        hamcmc.sample(POSTERIOR, "sgld", store=lambda p: jnp.log(p["layer"]["v"][0] + 0.5), **HOW)
    assert np.isfinite(failed.value.result.posterior["stored"]).all()


def test_an_automatic_run_ends_without_gradients():
    """It must not be made longer for want of gradients that it cannot have."""
    found = hamcmc.sample(POSTERIOR, store=["layer"], progress=False)
    assert set(found.posterior) == {"layer.u", "layer.v"}
    assert found.check().word == "usable"
    again = hamcmc.sample(POSTERIOR, progress=False)
    assert found.draws == again.draws
    plan = Plan(**{k: found.settings["plan"][k] for k in Plan._fields})
    assert better_after(found, plan, None, searched=True) is None
