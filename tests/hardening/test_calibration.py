"""Simulation-based calibration of every sampler with decreasing steps, and that it notices broken ones."""

import numpy as np
import pytest

import hamcmc
from hamcmc import samplers
from tests.hardening.sbc import DRAWS, MODELS, NAMES, Ranks, calibrate
from tests.mutation import mutant

TESTS = len(NAMES) * 11  # 4 quantities of one model and 7 of the other
LEAST = 1e-3 / TESTS  # p below which ranks are not uniform: one false alarm in a thousand runs of all tests

# Curvature along a chain's own past gives a bias where it varies, and now and then a step that is not finite.
BIASED = {"naive": 0.3, "hamcmc-2": 0.12, "hamcmc-3": 0.12}  # the largest deviation to be expected


def test_every_sampler_is_calibrated():
    """By its name, whatever its variant; of the ensembles each is a sampler."""
    ensembles = {"ensemble": "ensemble_hamcmc"}
    ensembles |= {f"ensemble-{kind}": f"ensemble_{kind}" for kind in ("adjusted", "hmc", "underdamped")}
    assert {ensembles.get(name, name.partition("-")[0]) for name in NAMES} == set(samplers.NAMES)


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
    least = dict(zip(found.names, found.p_values))
    if name in BIASED and model == "hierarchical":
        assert found.lost < 0.15
        assert found.deviation < BIASED[name], least
    else:
        assert min(least.values()) > LEAST, least


BROKEN = {
    "noise": ("samplers/base.py", "root = jnp.sqrt(2 * step_size)", "root = jnp.sqrt(step_size)"),
    "scaling": ("target/protocol.py", "scaled = factor * g", "scaled = factor / 2 * g"),
    "sign": ("samplers/base.py", "x + step_size * d + root * z", "x - step_size * d + root * z"),
    "jacobian": (
        "target/support.py",
        "return Support(jnp.exp, jnp.log, _same,",
        "return Support(jnp.exp, jnp.log, jnp.zeros_like,",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
def test_power(fault):
    with mutant(*BROKEN[fault]) as package:
        found = calibrate(package, "hierarchical" if fault == "jacobian" else "linear Gaussian", "sgld")
    assert found.p_values.min() < LEAST, dict(zip(found.names, found.p_values))
