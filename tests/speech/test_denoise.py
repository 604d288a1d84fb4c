"""Denoising streams: lengths, channels, blocks, bad input; and that noise goes down."""

import numpy as np
import pytest

from hamcmc.speech import metrics, spectrum
from hamcmc.speech.denoise import RECIPES, Recipe, denoise, old_quality, stretches
from hamcmc.speech.model import Prior
from hamcmc.store.errors import NonFinite

PRIOR = Prior(noise_alpha=2.0)  # whose table is made in no time
FEW = {"iterations": 20, "prior": PRIOR, "draws": 2}  # always two draws: one program for most tests


def voice(seconds, rate=8000, seed=0):
    """Something like vowels with pauses: harmonics of a gliding pitch under moving resonances."""
    g = np.random.default_rng(seed)
    t = np.arange(round(seconds * rate)) / rate
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * t) + 10 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    x = np.zeros(len(t))
    first, second = 500 + 200 * np.sin(2 * np.pi * 1.1 * t), 1500 + 500 * np.sin(2 * np.pi * 0.8 * t + 1)
    for k in range(1, 28):
        f = k * pitch
        level = 1 / (1 + ((f - first) / 120) ** 2) + 0.5 / (1 + ((f - second) / 150) ** 2) + 0.02
        x += level * np.sin(k * phase + g.uniform(0, 6))
    return (x * (np.sin(2 * np.pi * 1.3 * t) > -0.3))[:, None]


def cleaned(x, rate=8000, **options):
    parts = list(denoise([x], rate, **(FEW | options)))
    return np.concatenate([p.audio for p in parts]), parts


@pytest.mark.parametrize("rate", [8000, 11025, 44100])
def test_spectra_reconstruct(rate):
    x = np.random.default_rng(0).normal(size=rate // 3 + 1)
    X = spectrum.analyse(x, rate)
    np.testing.assert_allclose(spectrum.synthesise(X, rate, len(x)), x, atol=1e-12)
    assert abs(spectrum.transform(rate).frequencies[1] / spectrum.BIN_HERTZ - 1) < 0.005
    assert np.mean(np.abs(X[2:-2, 4:-4]) ** 2) == pytest.approx(1, abs=0.1)


def test_noise_goes_down():
    clean = voice(1.9)
    g = np.random.default_rng(1)
    noisy = clean + 0.5 * clean.std() * g.normal(size=clean.shape)
    out, _ = cleaned(noisy)
    before, after = (metrics.si_sdr(clean[:, 0], x[:, 0]) for x in (noisy, out))
    assert before < 6.5
    assert after > before + 4


def test_loudness_does_not_matter():
    noisy = voice(1) + 0.3 * np.random.default_rng(1).normal(size=(8000, 1))
    out, quiet = cleaned(noisy)[0], cleaned(1e-4 * noisy)[0]
    np.testing.assert_allclose(1e4 * quiet, out, atol=0.02 * np.abs(out).max())


def test_blocks_and_channels_are_cleaned_each_by_itself(monkeypatch):
    """However a recording comes in, and beside whatever channel: many stretches, here of a quarter of a second."""
    monkeypatch.setattr("hamcmc.speech.denoise.STRETCH", 0.25)
    monkeypatch.setattr("hamcmc.speech.denoise.FADE", 0.05)
    noisy = np.random.default_rng(2).normal(size=(7001, 2))
    said = []
    whole, parts = cleaned(noisy, uncertainty=True, length=len(noisy), progress=said.append)
    assert len(parts) == len(said) == 3
    assert said[-1].done == 1
    assert whole.shape == noisy.shape
    assert sum(p.sd.shape[2] for p in parts) == pytest.approx(7001 / 64, abs=3)
    assert all(p.sd.shape[:2] == (2, 129) and p.draws.shape == (2, *p.audio.shape) for p in parts)
    pieces = [noisy[i : i + 613] for i in range(0, 7001, 613)]
    streamed = np.concatenate([p.audio for p in denoise(pieces, 8000, **FEW)])
    np.testing.assert_allclose(streamed, whole, atol=1e-5)
    first = np.concatenate([p.audio for p in denoise([noisy[:, :1]], 8000, **FEW)])
    np.testing.assert_allclose(first[:, 0], whole[:, 0], atol=1e-5)


def test_stretches_cover_all_and_overlap():
    x = np.arange(1000)[:, None]
    found = list(stretches([x[:333], x[333:700], x[700:]], 200, 20))
    assert np.concatenate([s[:new] for s, new in found]).ravel().tolist() == list(range(1000))
    assert all(len(s) == new + 20 for s, new in found[:-1])
    assert not list(stretches([], 200, 20))


def test_draws_differ_and_scatter_by_the_sd():
    noisy = voice(1) + 0.5 * np.random.default_rng(3).normal(size=(8000, 1))
    out, (part,) = cleaned(noisy, uncertainty=True)
    residual = part.draws[..., 0] - out[:, 0]
    assert 0.7 < np.mean(residual**2) / np.mean(part.sd**2) < 1.3


@pytest.mark.slow
def test_more_draws_than_looks():
    """Each of them sounds, and none is another."""
    noisy = voice(1) + 0.5 * np.random.default_rng(3).normal(size=(8000, 1))
    _, (part,) = cleaned(noisy, iterations=10, draws=5)
    assert np.all(part.draws.std(1) > 0.3 * part.audio.std())
    assert len({x.tobytes() for x in part.draws}) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("samples", "channels", "rate"),
    [(1, 1, 8000), pytest.param(50, 1, 8000, marks=pytest.mark.slow), (2000, 5, 96_000)],
)
def test_short_and_wide(samples, channels, rate):
    noisy = np.random.default_rng(0).normal(size=(samples, channels))
    out, _ = cleaned(noisy, rate)
    assert out.shape == noisy.shape
    assert np.all(np.isfinite(out))


def test_silence_stays_silent():
    out, (part,) = cleaned(np.zeros((3000, 1)), uncertainty=True)
    assert not out.any()
    assert not part.sd.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": "perfect"}, "quality must be one of fast, best"),
        ({"sampler": "gibbs"}, "sampler must be one of sgld"),
        ({"iterations": 3}, "iterations must be a whole number, 10 or more, got 3"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        next(denoise([np.zeros((10, 1))], 8000, **options))


def test_low_rates_are_refused():
    with pytest.raises(ValueError, match="sampled at 4000 Hz: speech needs at least 8000 Hz"):
        next(denoise([np.zeros((10, 1))], 4000))


def test_a_quality_of_0_1_is_deprecated():
    with pytest.warns(DeprecationWarning, match=r"quality='best'\) is now sampler='ensemble_hamcmc', iterations=200"):
        assert old_quality("best").sampler == "ensemble_hamcmc"
    with pytest.warns(DeprecationWarning, match=r"quality='fast'\) is the default"):
        next(denoise([np.zeros((10, 1))], 8000, quality="fast"))


def test_a_step_that_is_too_large_is_halved(monkeypatch):
    noisy = voice(1) + 0.3 * np.random.default_rng(1).normal(size=(8000, 1))
    monkeypatch.setitem(RECIPES, "sgld", Recipe({}, 0.64))
    assert np.all(np.isfinite(cleaned(noisy)[0]))
    monkeypatch.setitem(RECIPES, "sgld", Recipe({}, 1e9))
    with pytest.raises(NonFinite, match="sgld became non-finite at every step size down to"):
        cleaned(noisy)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["sgld", "psgld", "hamcmc", "ensemble_hamcmc"])
def test_all_samplers_denoise(optimised, sampler):
    clean = voice(3)
    noisy = clean + 0.5 * clean.std() * np.random.default_rng(1).normal(size=clean.shape)
    out, _ = cleaned(noisy, sampler=sampler, iterations=100)
    assert metrics.si_sdr(clean[:, 0], out[:, 0]) > metrics.si_sdr(clean[:, 0], noisy[:, 0]) + 4
