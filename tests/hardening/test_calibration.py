"""Simulation-based calibration of every sampler with decreasing steps, and that it notices broken ones."""

import itertools

import numpy as np
import pytest
from benchmarks import page

import hamcmc
from hamcmc import samplers
from tests.hardening.sbc import DRAWS, MODELS, NAMES, SIMULATIONS, Ranks, calibrate
from tests.mutation import mutant

TESTS = len(NAMES) * 11  # 4 quantities of one model and 7 of the other
LEAST = 1e-3 / TESTS  # p below which ranks are not uniform: one false alarm in a thousand runs of all tests

# Curvature along a chain's own past gives a bias where it varies, and now and then a step that is not finite.
BIASED = {"naive": 0.3, "hamcmc-2": 0.12, "hamcmc-3": 0.12}  # the largest deviation to be expected


def sampler_of(name):
    """The sampler of an entry of the catalogue; of the ensembles each is a sampler."""
    if name.startswith("ensemble"):
        return f"ensemble_{name.partition('-')[2] or 'hamcmc'}"
    whole = name.replace("-", "_")
    return whole if whole in samplers.NAMES else name.partition("-")[0]


def judge(name, model, p, deviation, lost):
    """What a calibrated sampler must fulfil. Those that are known to fail must do so, and no worse than is known."""
    if name in BIASED and model == "hierarchical":
        assert p < LEAST, f"{name} passes the {model} model, which was not to be expected: {p}"
        assert lost < 0.15
        assert deviation < BIASED[name]
    else:
        assert p > LEAST, f"{name} is not calibrated on the {model} model: {p}"


def check_kept(rows):
    """Every sampler was measured on every model, and passed."""
    found = {(row["sampler"].strip("`"), row["model"]): row for row in rows}
    assert found.keys() == set(itertools.product(NAMES, MODELS)), "some were not measured: run `make calibration`"
    assert {sampler_of(name) for name, _ in found} == set(samplers.NAMES)
    for (name, model), row in found.items():
        judge(
            name, model, *(float(row[c]) for c in ("least p", "largest deviation")), float(row["runs lost"][:-1]) / 100
        )


def test_every_sampler_is_calibrated():
    """In the kept run, which the page shows; `test_calibration` makes it anew."""
    kept = page.full("calibration")
    assert kept is not None, "it was not measured in full: run `make calibration`"
    assert kept["settings"]["simulations"] == SIMULATIONS
    check_kept(kept["tables"][0]["rows"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "not measured"),
        ({"least p": "2e-07"}, "not calibrated"),
        ({"sampler": "`naive`", "model": "hierarchical", "least p": "0.2"}, "not to be expected"),
    ],
)
def test_a_kept_run_that_lacks_one_is_noticed(change, message):
    rows = page.full("calibration")["tables"][0]["rows"]
    one = rows[0] | change
    others = [row for row in rows if (row["sampler"], row["model"]) != (one["sampler"], one["model"])]
    with pytest.raises(AssertionError, match=message):
        check_kept([*others, *([one] if change else [])])


def test_ranks():
    """Uniform ones pass, and others do not."""
    uniform = np.tile(np.arange(DRAWS + 1), 128)[:, None]
    assert Ranks(uniform, ["x"]).p_values[0] == 1
    assert Ranks(uniform, ["x"]).deviation == 0
    assert Ranks(uniform // 2, ["x"]).p_values[0] < 1e-9
    assert Ranks(uniform - 1, ["x"]).p_values[0] == 0  # a run that became non-finite


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_calibration(name, model):
    found = calibrate(hamcmc, model, name)
    judge(name, model, found.p_values.min(), found.deviation, found.lost)


BROKEN = {
    "noise": ("samplers/base.py", "root = jnp.sqrt(2 * step_size)", "root = jnp.sqrt(step_size)"),
    "scaling": ("target/protocol.py", "scaled = factor * g", "scaled = factor / 2 * g"),
    "sign": ("samplers/base.py", "x + step_size * d + root * z", "x - step_size * d + root * z"),
    "jacobian": (
        "target/support.py",
        "        jnp.log,\n        _same,\n",
        "        jnp.log,\n        jnp.zeros_like,\n",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_power(fault):
    with mutant(*BROKEN[fault]) as package:
        found = calibrate(package, "hierarchical" if fault == "jacobian" else "linear Gaussian", "sgld")
    assert found.p_values.min() < LEAST, dict(zip(found.names, found.p_values))
