"""The target of the proposition: its moments, and what the samplers make of it."""

import jax
import pytest

from hamcmc.paper import proposition
from tests.paper.kept import agree, biases


def test_moments_by_quadrature():
    expected = {"(x+y)²": 0.63108, "(x−y)²": 0.23972, "x²": 0.21203, "(x+y)⁴": 0.89041}
    assert proposition.exact_moments() == pytest.approx(expected, abs=5e-6)


@pytest.fixture(scope="module")
def bias():
    """At ε = 0.02 and 0.01. Standard errors are about 0.7 %."""
    budget = {"runs": 1024, "time": 8.0, "burn_in": 3.0}
    found = {}
    for name, sampler in proposition.samplers().items():
        if name in ("SGLD", "naive M=2", "HAMCMC M=2"):
            many = proposition.measured_by(sampler)
            for epsilon in (0.02, 0.01):
                key = jax.random.key(1)
                found[name, epsilon] = proposition.relative_bias(sampler, epsilon, key=key, many=many, **budget)
    return found


@pytest.mark.slow
def test_sgld_is_unbiased(bias):
    """But for the discretisation, whose bias is about half a per cent."""
    value, error, lost = bias["SGLD", 0.01]
    assert lost == 0
    assert error < 0.01
    assert abs(value) < 3 * error + 0.006


def test_naive_sampler_is_not(bias):
    """60 % at every step size: so says a program that shares no code with this one."""
    value, error, _ = bias["naive M=2", 0.01]
    agree((value, error), (0.61, 0.0), allowed=0.02)


def test_hamcmc_is_nearly_unbiased(bias):
    value, error, _ = bias["HAMCMC M=2", 0.01]
    assert abs(value) < 3 * error + 0.03


@pytest.mark.parametrize("name", ["SGLD", "naive M=2", "HAMCMC M=2"])
def test_a_small_run_agrees_with_the_full_one(bias, name):
    value, error, lost = bias[name, 0.02]
    assert lost == 0
    agree((value, error), biases("proposition", sampler=name)[0.02])
