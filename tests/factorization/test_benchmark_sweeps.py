"""The benchmark of sweeps: what its row says of a curve."""

import numpy as np
import pytest
from benchmarks import sweeps
from benchmarks.recommenders import Curve

CURVE = Curve(np.array([50.0, 70.0, 80.0, 400.0]), np.array([1.2, 1.0, 0.95, 0.9]))


def test_a_row_has_the_error_of_the_last_sweep_by_then(monkeypatch):
    monkeypatch.setattr(sweeps, "MARKS", (60, 300, 900))
    row = sweeps.of("ours", CURVE)
    assert row["sweeps"] == 4
    assert row["s per sweep"] == "20.00 (15.00–170.00)"
    assert row["RMSE after 60 s"] == "1.2000"
    assert row["RMSE after 300 s"] == "0.9500"
    assert row["RMSE after 900 s"] == "–"  # it had ended long before
    assert row["RMSE at the end"] == "0.9000 after 400 s"
    assert np.isnan(sweeps.at(CURVE, 49.0))


@pytest.mark.parametrize(("peer", "ahead"), [(0.91, "hamcmc"), (0.89, "peer")])
def test_the_smaller_error_is_ahead(peer, ahead):
    rows = [sweeps.of("ours", CURVE), sweeps.of("peer", CURVE._replace(rmse=np.full(4, peer)))]
    assert sweeps.standing(rows).ahead == ahead
