"""Running moments against those of all values at once."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hamcmc.store.moments import Moments, RunningMoments, summary


def segments(rng, offset, lengths, dtype):
    """(values, weights) of each segment, 2 chains of 3 numbers, and their sums about a shift as the loop makes them."""
    for n in lengths:
        x = (offset + rng.standard_normal((n, 2, 3))).astype(dtype)
        w = rng.uniform(0.1, 1, n).astype(dtype)
        shift = x[0]
        d = x - shift
        yield x, w, Moments(shift, w.sum(), np.einsum("t,tcd->cd", w, d), np.einsum("t,tcd->cd", w, d**2))


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_merged_sums_are_weighted_moments(dtype, rtol):
    """Far from zero, where the difference of two large sums would lose every digit in single precision."""
    running = RunningMoments(["x"], [(2, 3)])
    found = list(segments(np.random.default_rng(0), 1e4, [50, 1, 30, 200], dtype))
    for _, _, sums in found:
        running.add(sums)
    x = np.concatenate([v[0] for v in found]).astype(np.float64)
    w = np.concatenate([v[1] for v in found]).astype(np.float64)
    mean = np.einsum("t,tcd->cd", w, x) / w.sum()
    variance = np.einsum("t,tcd->cd", w, (x - mean) ** 2) / w.sum()
    told = summary(running.pack())
    assert_allclose(told["mean.x"], mean, rtol=rtol * 1e-3 if dtype == np.float32 else rtol)
    assert_allclose(told["variance.x"], variance, rtol=rtol)


def test_a_checkpoint_keeps_every_bit():
    a, b = RunningMoments(["x"], [(2, 3)]), RunningMoments(["x"], [(2, 3)])
    sums = [v[2] for v in segments(np.random.default_rng(1), 3.0, [7, 9], np.float32)]
    a.add(sums[0])
    b.unpack(a.pack())
    a.add(sums[1])
    b.add(sums[1])
    for name, value in a.pack().items():
        assert_array_equal(b.pack()[name], value)


def test_nothing_added_is_not_a_mean_of_zero():
    told = summary(RunningMoments(["x"], [(2, 3)]).pack())
    assert np.isnan(told["mean.x"]).all()
    assert np.isnan(told["variance.x"]).all()
