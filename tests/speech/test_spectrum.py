"""Short-time spectra are those of SciPy, bit by bit, without its import."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.signal import ShortTimeFFT
from scipy.signal.windows import hann

from hamcmc.speech import spectrum


@pytest.mark.parametrize("rate", [8000, 11025, 48000])
def test_spectra_are_those_of_scipy(rate):
    hop = round(rate * spectrum.HOP_SECONDS)
    window = np.sqrt(hann(4 * hop, sym=False))
    scipy, ours = ShortTimeFFT(window / np.linalg.norm(window), hop, rate), spectrum.transform(rate)
    g = np.random.default_rng(0)
    for samples in (4 * hop, 4 * hop + 1, 5 * hop - 1, 7 * hop + hop // 2, 40 * hop + 2):
        x = g.normal(size=samples)
        X = scipy.stft(x)
        np.testing.assert_array_equal(ours.forward(x), X)
        np.testing.assert_allclose(ours.frequencies, scipy.f)
        np.testing.assert_allclose(ours.times(samples), scipy.t(samples), atol=1e-12)
        X *= g.uniform(size=X.shape)  # no longer the spectra of a signal
        for wanted in (samples, samples - hop - 3):
            np.testing.assert_array_equal(ours.backward(X, wanted), scipy.istft(X, k1=wanted))


def test_denoising_needs_no_slow_imports():
    """SciPy's signal package takes longer to import than three seconds of speech take to clean."""
    code = "import sys, hamcmc.speech.file; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "hamcmc.speech.denoise" in found
    assert not {"scipy.signal", "scipy.stats", "scipy.ndimage", "matplotlib", "pystoi"} & set(found)


@pytest.mark.parametrize("rate", [8000, 44_100])
def test_hum_is_taken_away_and_voices_are_not(rate):
    t = np.arange(2 * rate) / rate
    middle = slice(rate // 4, -rate // 4)

    def gain(hertz):
        x = np.sin(2 * np.pi * hertz * t + 1)
        y = spectrum.above_hum(x, rate)
        assert len(y) == len(x)
        return 20 * np.log10(np.std(y[middle]) / np.std(x[middle]))

    assert gain(50) < -30
    assert gain(60) == pytest.approx(-12, abs=1)
    for hertz in (85, 300, 3500):
        assert gain(hertz) == pytest.approx(0, abs=0.1)
    click = np.zeros(rate)
    click[rate // 2] = 1
    assert np.argmax(spectrum.above_hum(click, rate)) == rate // 2  # nothing is delayed
    offset = spectrum.above_hum(click + 0.5, rate)
    np.testing.assert_allclose(offset, spectrum.above_hum(click, rate), atol=1e-9)  # nothing is left at the ends either


def test_nothing_stays_nothing():
    assert spectrum.above_hum(np.zeros(0), 8000).size == 0
