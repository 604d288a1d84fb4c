"""The target of the proposition: its moments, and what the samplers make of it."""

import jax
import pytest

from hamcmc.paper import proposition


def test_moments_by_quadrature():
    expected = {"(x+y)²": 0.63108, "(x−y)²": 0.23972, "x²": 0.21203, "(x+y)⁴": 0.89041}
    assert proposition.exact_moments() == pytest.approx(expected, abs=5e-6)


@pytest.fixture(scope="module")
def bias():
    """At ε = 0.01, where the discretisation's own bias is about half a per cent; standard error about 0.7 %."""
    budget = {"runs": 1024, "time": 8.0, "burn_in": 3.0}
    samplers = proposition.samplers()
    return {
        name: proposition.relative_bias(samplers[name], 0.01, key=jax.random.key(1), **budget)
        for name in ("SGLD", "naive M=2", "HAMCMC M=2")
    }


def test_sgld_is_unbiased(bias):
    value, error, lost = bias["SGLD"]
    assert lost == 0
    assert error < 0.01
    assert abs(value) < 3 * error + 0.006


def test_naive_sampler_is_not(bias):
    assert bias["naive M=2"][0] > 0.3


def test_hamcmc_is_nearly_unbiased(bias):
    value, error, _ = bias["HAMCMC M=2"]
    assert abs(value) < 3 * error + 0.03
