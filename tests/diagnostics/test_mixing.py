"""R-hat and ESS of many scalars at once, against ArviZ and against known values."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hamcmc.diagnostics import cost, ess
from hamcmc.diagnostics.mixing import mixing
from hamcmc.diagnostics.tails import tail_index
from tests.diagnostics.broken import slow
from tests.report.results import make_result

RNG = np.random.default_rng


@pytest.mark.parametrize(
    ("chains", "draws", "rho"),
    [(4, 301, 0.5), (1, 100, 0.9), (3, 57, -0.6), (8, 400, 0.99), (2, 9, 0.2), (2, 4, 0.0), (16, 100, 0.0)],
)
def test_arvizs_values(chains, draws, rho):
    az = ess.arviz()
    x = slow(RNG(0), (chains, draws, 3), rho)
    x[..., 1] = np.round(x[..., 1], 1)  # ties
    if draws > 20:
        x[..., 2] += np.arange(chains)[:, None]  # chains that disagree
    found = mixing(x)
    for k in range(3):
        assert_allclose(found.ess_bulk[k], az.ess(x[..., k], method="bulk"), rtol=1e-8)
        assert_allclose(found.ess_tail[k], az.ess(x[..., k], method="tail"), rtol=1e-8)
        assert_allclose(found.r_hat[k], az.rhat(x[..., k]) if chains > 1 else np.nan, rtol=1e-8)
        assert_allclose(ess.r_hat(x[..., k]), found.r_hat[k])
        for method in ("bulk", "tail", "mean"):
            alone = ess.effective_size(x[..., k], np.ones(1), method)
            assert_allclose(alone, az.ess(x[..., k], method=method), rtol=1e-8)


def test_blocks_do_not_matter(monkeypatch):
    x = slow(RNG(0), (4, 50, 7), 0.5)
    whole = mixing(x)
    monkeypatch.setattr("hamcmc.diagnostics.mixing.BLOCK", 400)
    for a, b in zip(whole, mixing(x)):
        assert_allclose(a, b)


def test_ensembles_are_compared_as_wholes():
    # Two ensembles of 16 replicas, one of which misses a mode with a fifth of the mass. Half a chain of 25 draws has an
    # R-hat of 1.02 by chance alone; ensembles are compared by 800 draws each.
    rng = RNG(0)
    x = rng.standard_normal((32, 50, 2))
    x[..., 0] += np.where((rng.random((32, 50)) < 0.2) & (np.arange(32) < 16)[:, None], 5, 0)
    found = mixing(x, replicas=16)
    assert found.r_hat_ensembles[0] > 1.02 > 1.005 > found.r_hat_ensembles[1]
    assert np.isnan(mixing(x, replicas=32).r_hat_ensembles).all()


def test_chains_in_two_modes_mix_on_their_own():
    x = RNG(0).standard_normal((8, 200, 1)) + np.where(np.arange(8) < 4, -5, 5)[:, None, None]
    found = mixing(x)
    assert found.ess_bulk[0] < 20
    assert found.own[0] > 60  # of 100 draws


def test_replicas_that_move_together_count_once():
    rng = RNG(0)
    common = rng.standard_normal((1, 400, 1))
    x = np.sqrt(0.5) * (common + rng.standard_normal((10, 400, 1)))  # the mean of ten has the variance 0.55
    assert mixing(x, replicas=10).ess_bulk[0] == pytest.approx(400 / 0.55, rel=0.3)
    assert mixing(x).ess_bulk[0] > 3000


def test_what_cannot_be_told():
    x = RNG(0).standard_normal((2, 30, 3))
    x[0, :, 0] = 1.0
    x[0, 0, 1] = np.nan
    found = mixing(x)
    assert np.isnan([found.ess_bulk[:2], found.r_hat[:2]]).all()
    assert np.isfinite([found.ess_bulk[2], found.r_hat[2]]).all()
    assert all(np.isnan(v).all() for v in mixing(x[:, :3]))


def test_tail_index():
    rng = RNG(0)
    x = np.column_stack([rng.standard_cauchy(5000), rng.standard_t(3, 5000), rng.standard_normal(5000), np.ones(5000)])
    found = tail_index(x)
    assert_allclose(found[:2], [1.0, 1 / 3], atol=0.25)  # Hill's estimate from 100 draws: a tenth, and its bias
    assert found[2] < 0.25
    assert np.isnan(found[3])
    assert np.isnan(tail_index(x[:900])).all()


def test_all_costs_are_counted():
    x = RNG(0).standard_normal((2, 400))
    costs = {"compile": 3.5, "trace": 0.5, "mode": 3.0, "adaptation": 1.0, "sampling": 2.0}
    meta = {"gradients": 1000, "seconds": 3.0, "costs": costs}
    c = cost(make_result({"x": x}, meta=meta, tuning={"seconds": 10.0, "gradients": 500}))
    assert (c.gradients, c.seconds) == (1500, 20.0)
    assert list(c.parts) == ["tuning", "mode", "trace", "compile", "adaptation", "sampling"]
    assert c.seconds_per_effective_sample == 20.0 / c.ess
    parts = "tuning 10.00 s, preparing 3.00 s, tracing 0.50 s, compiling 3.50 s, adaptation 1.00 s, sampling 2.00 s"
    assert f"({parts})" in str(c)
    assert "per effective sample of x, all included: " in str(c)
    noted = cost(make_result({"x": x}, meta={"seconds": 3.0}, notes={"tuning": {"seconds": 10.0, "gradients": 5}}))
    assert noted.parts == {"tuning": 10.0, "sampling": 3.0}


def test_replicas_that_share_nothing_are_worth_as_much_as_chains():
    """Where they do share something, what they share counts once."""
    rng = np.random.default_rng(0)
    own, common = rng.normal(size=(32, 125, 6)), rng.normal(size=(2, 1, 125, 6))
    alone = mixing(own).ess_bulk
    np.testing.assert_array_equal(mixing(own, 16, coupled=False).ess_bulk, alone)
    shared = (own.reshape(2, 16, 125, 6) + common).reshape(own.shape)
    assert (mixing(shared, 16).ess_bulk < 0.3 * alone).all()
