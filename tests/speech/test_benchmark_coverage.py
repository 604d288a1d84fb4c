"""Shares of true values inside central sets of draws, where the posterior is known exactly."""

import numpy as np
import pytest
from benchmarks import coverage

from hamcmc.stable.calibration import LEVELS

RATE = 8000


def found(scale: float) -> coverage.Shares:
    """Normal speech of variance 1 in noise of variance 1/4; draws have so many times the right deviation."""
    rng = np.random.default_rng(0)
    s = rng.normal(size=2 * RATE)
    x = s + 0.5 * rng.normal(size=len(s))
    draws = 0.8 * x + scale * np.sqrt(0.2) * rng.normal(size=(coverage.DRAWS, len(s)))
    return coverage.shares(s, x, draws, RATE)


def test_the_right_posterior_covers():
    """Four frames overlap, and loud bins were chosen by the truth: so the samples of the sound are judged."""
    error = 4 * np.sqrt(np.array(LEVELS) * (1 - np.array(LEVELS)) / (2 * RATE))
    right = found(1.0)["samples of the sound"]
    assert np.all(np.abs(right - LEVELS) < error + 0.5 / coverage.DRAWS)  # ranks are as fine as that
    assert np.all(found(0.8)["samples of the sound"] < right - error)
    assert np.all(found(1.25)["samples of the sound"][:2] > (right + error)[:2])


def test_spectra_cover_too():
    """Nearly all bins of white noise are loud."""
    assert found(1.0)["loud bins"] == pytest.approx(LEVELS, abs=0.02)
    assert found(0.5)["loud bins"][1] < 0.7


def test_says_what_it_needs():
    (table,) = coverage.run(False)
    assert "--corpus" in table.rows[0]["reason"]
