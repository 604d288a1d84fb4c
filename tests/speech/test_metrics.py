"""The scores of enhanced speech have known answers."""

import numpy as np
import pytest
from scipy.signal import lfilter

from hamcmc.speech import metrics
from tests.mutation import mutant

RATE = 10_000


@pytest.fixture(scope="module")
def speech():
    """Noise that comes and goes like syllables."""
    rng = np.random.default_rng(0)
    t = np.arange(2 * RATE) / RATE
    return lfilter([1], [1, -0.9], rng.standard_normal(len(t))) * (1.1 + np.sin(2 * np.pi * 4 * t))


def orthogonal(x, to, seed=1):
    """Noise without mean, and without any part of the columns of `to`; as strong as `x`."""
    n = np.random.default_rng(seed).standard_normal(len(x))
    basis = np.column_stack([np.ones(len(x)), to])
    n -= basis @ np.linalg.lstsq(basis, n, rcond=None)[0]
    return n * np.linalg.norm(x) / np.linalg.norm(n)


def delays(s, taps):
    """The signal and its delays, in columns, with zeros before and after."""
    return np.column_stack([np.concatenate([np.zeros(k), s, np.zeros(taps - 1 - k)]) for k in range(taps)])


@pytest.mark.parametrize("level", [0.001, 0.1, 2.0])
def test_known_ratios(speech, level):
    s = speech - speech.mean()
    e = 3 * (s + level * orthogonal(s, s))
    expected = -20 * np.log10(level)
    assert metrics.si_sdr(s, e) == pytest.approx(expected, abs=1e-6)
    assert metrics.si_sdr(s + 5, e - 7) == pytest.approx(expected, abs=1e-6)
    assert metrics.sdr(s, e, taps=1) == pytest.approx(expected, abs=1e-3)


def check_projection(sdr, speech):
    s = speech[:300]
    e = lfilter([0.2, 0, -0.5, 0.1], [1], s) + 0.3 * orthogonal(s, s)
    for taps in (1, 2, 8, 64):
        basis, padded = delays(s, taps), np.concatenate([e, np.zeros(taps - 1)])
        target = basis @ np.linalg.lstsq(basis, padded, rcond=None)[0]
        expected = 10 * np.log10(np.sum(target**2) / np.sum((padded - target) ** 2))
        assert sdr(s, e, taps=taps) == pytest.approx(expected, abs=1e-5)


def test_sdr_is_a_projection_on_the_delays(speech):
    check_projection(metrics.sdr, speech)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("np.conj(spectrum) * rfft(e, size)", "spectrum * np.conj(rfft(e, size))"),  # advances, not delays
        ("len(s) + taps, real", "len(s), real"),  # delays go round
        ("_ratio(np.dot(cross, solve", "_ratio(2 * np.dot(cross, solve"),
    ],
)
def test_a_wrong_sdr_is_noticed(speech, old, new):
    with mutant("speech/metrics.py", old, new):
        from hamcmc.speech.metrics import sdr as wrong

        with pytest.raises(AssertionError):
            check_projection(wrong, speech)


def test_sdr_forgives_a_filter_but_si_sdr_does_not(speech):
    s = np.concatenate([speech, np.zeros(512)])
    e = lfilter(np.random.default_rng(1).standard_normal(500), [1], s)
    assert metrics.sdr(s, e) > 80
    assert metrics.si_sdr(s, e) < 0
    assert metrics.sdr(s, np.roll(s, 100)) > 80
    assert metrics.sdr(s, s) > 99


def test_stoi_falls_with_noise(speech):
    noise = orthogonal(speech, speech)
    found = [metrics.stoi(speech, speech + level * noise, RATE) for level in (0, 0.3, 1, 3)]
    assert found[0] == pytest.approx(1, abs=1e-6)
    assert np.all(np.diff(found) < -0.05)


@pytest.mark.parametrize("frames", [1, 100, 3000])
def test_too_short_or_silent_for_a_score(speech, frames):
    s = speech[:frames]
    assert np.isnan(metrics.stoi(s, s, RATE))
    for score in (metrics.sdr, metrics.si_sdr, lambda s, e: metrics.stoi(s, e, RATE)):
        assert np.isnan(score(0 * s, s))
        assert np.isnan(score(s, 0 * s))


def test_scores_are_averages_over_channels(speech):
    s = np.column_stack([speech, speech[::-1]])
    e = s + np.column_stack([0.1 * orthogonal(s[:, 0], s[:, 0]), orthogonal(s[:, 1], s[:, 1])])
    found = metrics.scores(s, e, RATE)
    assert found.si_sdr == pytest.approx(10, abs=0.05)
    for name, value in (
        ("sdr", [metrics.sdr(*x) for x in zip(s.T, e.T)]),
        ("stoi", [metrics.stoi(*x, RATE) for x in zip(s.T, e.T)]),
    ):
        assert getattr(found, name) == pytest.approx(np.mean(value))


def test_shapes_must_agree(speech):
    for other in (speech[:-1], speech[:, None]):
        with pytest.raises(ValueError, match=r"shapes must be equal"):
            metrics.scores(speech, other, RATE)
    with pytest.raises(ValueError, match=r"not empty"):
        metrics.sdr(speech[:0], speech[:0])
