"""Recordings above 8 kHz: noise goes down and speech stays at every frequency, whatever the rate."""

from importlib import resources

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.signal import butter, sosfilt

from hamcmc.speech import guess, spectrum
from hamcmc.speech.denoise import denoise
from hamcmc.speech.model import Prior
from tests.mutation import mutant
from tests.speech.test_denoise import voice

SETTINGS = {"iterations": 20, "sampler": "sgld", "prior": Prior(noise_alpha=2.0)}  # a table that is made in no time
SECONDS = 1.9  # as many padded frames at every rate


def speech(rate):
    """Vowels below 4 kHz and, in their pauses, an s of 120 ms, from 4 kHz up; and where the s is.

    From 4 to 8 kHz, the s is 14 dB above :func:`hiss`.
    """
    vowels = voice(SECONDS, rate)[:, 0]
    g, t = np.random.default_rng(5), np.arange(len(vowels)) / rate
    top = 0.95 * min(rate / 2, 11_000)
    s = sosfilt(butter(4, [4000, top], "bandpass", fs=rate, output="sos"), g.normal(size=len(t)))
    on = (np.sin(2 * np.pi * 1.3 * t) < -0.3) & (np.sin(2 * np.pi * 1.3 * t - 0.45) > -0.6)
    level = np.convolve(on, np.hanning(rate // 50) / np.hanning(rate // 50).sum(), "same")
    return vowels / vowels.std() + 0.35 * np.sqrt((top - 4000) / 3600) * level * s / s.std(), on


def hiss(rate, samples):
    """White, and as loud in each bin at every rate."""
    return 0.1 * np.sqrt(rate / 16_000) * np.random.default_rng(6).normal(size=samples)


def decibels(x, rate, low, high, frames):
    """Mean power between two frequencies in some of the frames."""
    power = np.abs(spectrum.analyse(x, rate)) ** 2
    rows = slice(round(low / spectrum.BIN_HERTZ), round(high / spectrum.BIN_HERTZ))
    return 10 * np.log10(power[rows][:, frames[: power.shape[1]]].mean())


def clean(noisy, rate):
    return np.concatenate([c.audio for c in denoise([noisy], rate, **SETTINGS)])


def above_4_khz(rate, denoise=denoise):
    """By how many decibels an s becomes softer, and by how many the hiss in pauses: from 4 to 8 kHz, and above."""
    said, s_on = speech(rate)
    noise = hiss(rate, len(said))
    out = np.concatenate([c.audio for c in denoise([(said + noise)[:, None]], rate, **SETTINGS)])[:, 0]
    at = np.clip((spectrum.transform(rate).times(len(said)) * rate).astype(int), 0, len(said) - 1)
    near = np.convolve(np.abs(said), np.ones(rate // 10), "same")[at]
    pause, s_frames = near < 1e-3 * near.max(), (np.convolve(s_on, np.ones(rate // 25), "same") > rate // 26)[at]
    assert pause.sum() > 10
    assert s_frames.sum() > 10
    wide = rate > 40_000
    lost = [decibels(said, rate, *b, s_frames) - decibels(out, rate, *b, s_frames) for b in BANDS[: 1 + wide]]
    down = [decibels(noise, rate, *b, pause) - decibels(out, rate, *b, pause) for b in BANDS[: 1 + wide]]
    return lost, down


BANDS = (4200, 7800), (8300, 10_000)
LOST, DOWN, SEAM = 1.0, 15.0, 4.0  # decibels


@pytest.mark.parametrize("rate", [16_000, 48_000])
def test_speech_above_4_khz_stays_and_hiss_goes_down(rate):
    """Of a soft s, at most 1 dB is lost; of the hiss in pauses, at least 15 dB go, as many below and above 8 kHz.

    A Wiener filter that knows all levels takes 0.2 dB of such an s away.
    """
    lost, down = above_4_khz(rate)
    assert max(lost) < LOST
    assert min(down) > DOWN
    assert max(down) - min(down) < SEAM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s.T[: bins - BINS] + LOUDER", "s.T[: bins - BINS] - 2"),  # speech that is too soft
        ("s.T[: bins - BINS] + LOUDER", "s.T[: bins - BINS] + 4"),  # or too loud
        ("speech[TOP:], noise[TOP:] = above(", "noise[TOP:], speech[TOP:] = above("),
        ("MORE * ratio", "1e9 * ratio"),  # a seam at 8 kHz
        ("seen * (0.3 * (x - floor) - 0.5)", "0 * x"),  # blind to what rises above the floor
    ],
)
def test_a_broken_guess_is_noticed(old, new):
    with mutant("speech/guess.py", old, new):
        from hamcmc.speech.denoise import denoise as broken

        lost, down = above_4_khz(48_000, broken)
    assert max(lost) > LOST or min(down) < DOWN or max(down) - min(down) > SEAM


@pytest.mark.parametrize("rate", [11_025, 22_050, 44_100])
def test_odd_rates_in_stereo(rate):
    """Each channel by itself: the left one has noise in it, the right one has nothing."""
    said, _ = speech(rate)
    noisy = said + 0.2 * np.random.default_rng(7).normal(size=len(said))
    out = clean(np.stack([noisy, np.zeros(len(said))], 1), rate)
    assert out.shape == (len(said), 2)
    assert not out[:, 1].any()
    before, after = (np.mean((x - said) ** 2) for x in (noisy, out[:, 0]))
    assert after < before


def test_clipped_speech_stays_in_range():
    said, _ = speech(16_000)
    loud = np.clip(2 * said / np.abs(said).max(), -1, 1)[:, None]
    out = clean(loud, 16_000)
    assert np.all(np.isfinite(out))
    assert np.abs(out).max() < 1.5
    assert np.mean((out - loud) ** 2) < 0.1 * np.mean(loud**2)  # without noise there is little to take away


def test_above_the_network_bursts_are_speech_and_hiss_is_not():
    """A burst of 20 dB in many bins passes; of the hiss around it, nearly nothing does, even without other bounds."""
    share_of_bursts_and_hiss(guess.above)


@pytest.mark.slow
def test_bins_one_by_one_are_noticed():
    with mutant("speech/guess.py", "_moving_mean(power, band).T, 3).T,", "power.T, 1).T,"):
        from hamcmc.speech.guess import above

        with pytest.raises(AssertionError):
            share_of_bursts_and_hiss(above)


def share_of_bursts_and_hiss(above):
    power = np.random.default_rng(8).exponential(size=(128, 120))
    power[:, 60:70] *= 100
    found, tracked = above(power, np.full(120, np.inf))
    assert np.mean(found[:, 62:68] - tracked[:, 62:68]) > np.log(20)
    hiss = np.r_[20:55, 80:120]
    share = np.exp(found - np.logaddexp(found, tracked))[:, hiss]
    assert 10 * np.log10(np.mean(share**2 * power[:, hiss]) / np.mean(power[:, hiss])) < -15


def test_above_the_network_there_is_no_speech_where_the_network_found_none():
    power = np.random.default_rng(8).exponential(size=(128, 120))
    power[:, 60:70] *= 100  # what is loud there is no speech
    found, tracked = guess.above(power, np.where(np.arange(120) < 100, 1e-3, np.inf))
    assert np.all((found - tracked)[:, :98] < np.log(4e-3))  # a bin's own noise may be below the mean of its band
    assert np.all((found - tracked)[:, 102:] > np.log(4e-3))


def test_numpy_and_jax_apply_the_same_network():
    """A recording is cleaned by NumPy, and JAX trains."""
    power = np.random.default_rng(9).exponential(size=(60, guess.TOP)).astype(np.float32)
    below = guess.network(guess.weights("guess.npz"), jnp.asarray(power[:, : guess.BINS]), jnp.ones(60, bool))
    network = guess.weights("guess-upper.npz")
    for bins in (guess.TOP, 180):
        view = guess.upper_view(power, *map(np.asarray, below), np.ones(60, bool), bins)
        traced = guess.upper_view(jnp.asarray(power), *below, jnp.ones(60, bool), bins)
        for ours, theirs in zip(guess.upper_network(network, view), guess.upper_network(network, traced)):
            assert isinstance(ours, np.ndarray)
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_weights_are_small_and_plain():
    """Numbers only, no pickles, and all files in 2 MB."""
    files = list((resources.files("hamcmc.speech") / "data").iterdir())
    sizes = [len(f.read_bytes()) for f in files if f.name.endswith(".npz")]
    assert len(sizes) == 3
    assert sum(sizes) < 2e6
    for name in guess.FILES:
        assert all(x.dtype == np.float32 and np.all(np.isfinite(x)) for x in guess.weights(name).values())


def test_damaged_weights_are_refused(monkeypatch):
    monkeypatch.setitem(guess.FILES, "guess.npz", "0" * 64)
    with pytest.raises(guess.DamagedWeights, match=r"guess\.npz of hamcmc\.speech is damaged .* install hamcmc again"):
        guess.weights.__wrapped__("guess.npz")
