"""Dictionaries: training finds planted spectra; files that are none are refused."""

import numpy as np
import pytest
import soundfile as sf

from hamcmc.speech import dictionary, guess


@pytest.fixture
def clean(tmp_path):
    """Two files, each with tones of one of two kinds at a time."""
    g = np.random.default_rng(0)
    paths = []
    for i in range(2):
        t = np.arange(16000) / 8000
        low, high = np.sin(2 * np.pi * 500 * t), np.sin(2 * np.pi * 2500 * t)
        kind = np.repeat(g.integers(0, 2, 8), 2000)
        paths.append(tmp_path / f"{i}.wav")
        sf.write(paths[-1], 0.3 * np.where(kind == 1, low, high), 8000)
    return paths


def test_training_finds_planted_spectra(clean, tmp_path):
    said = []
    found = dictionary.train(clean, rank=4, updates=100, progress=said.append)
    told = [status.done for status in said]
    assert set(found.W.argmax(0)) == {16, 80}  # 500 and 2500 Hz in bins of 31.25 Hz
    np.testing.assert_allclose(found.W.sum(0), 1, rtol=1e-4)
    assert told == sorted(told)
    assert told[-1] == 1
    dictionary.save(found, tmp_path / "d.npz")
    again = dictionary.load(tmp_path / "d.npz")
    np.testing.assert_allclose(again.W, found.W, atol=1e-3)
    assert again.alpha == dictionary.ALPHA
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_memory_does_not_grow_with_the_speech(clean, monkeypatch):
    monkeypatch.setattr(dictionary, "FRAMES", 40)
    found = dictionary.train(clean, rank=4, updates=100)
    assert set(found.W.argmax(0)) == {16, 80}


def test_too_little_speech(tmp_path):
    sf.write(tmp_path / "silence.wav", np.zeros(8000), 8000)
    with pytest.raises(ValueError, match="these files have only 0 frames of speech: too few for 10 components"):
        dictionary.train([tmp_path / "silence.wav"], rank=10)


def test_the_shipped_dictionary():
    found = dictionary.load()
    assert found.W.shape == (dictionary.BINS, 100)
    np.testing.assert_allclose(found.W.sum(0), 1, rtol=2e-3)


def test_what_is_no_dictionary_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no dictionary at .*nothing\.npz"):
        dictionary.load(tmp_path / "nothing.npz")
    path = tmp_path / "d.npz"
    good = {"W": np.ones((4, 2)), "alpha": 1.2, "bin_hertz": 31.25, "source": ""}
    for changed, message in [
        ({"W": np.full((4, 2), np.nan)}, "finite non-negative"),
        ({"alpha": 3.0}, "0 < alpha <= 2"),
        ({"bin_hertz": 62.5}, "has bins of 62.5 Hz, but spectra here have bins of 31.25 Hz"),
        ({"W": np.array([{}])}, "is not a dictionary"),  # would have to be unpickled
    ]:
        np.savez(path, **(good | changed))
        with pytest.raises(ValueError, match=message):
            dictionary.load(path)
    for content in (b"", b"RIFF....", b"PK\x03\x04 and no more"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a dictionary"):
            dictionary.load(path)


def test_noise_is_tracked():
    """Steady noise to its level, and a rise of it within two seconds."""
    power = np.random.default_rng(0).exponential(size=(20, 750))
    power[:, 250:] *= 10
    tracked = guess.presence_noise(power)
    np.testing.assert_allclose(tracked[:, 100:250].mean(), 1, rtol=0.4)
    np.testing.assert_allclose(tracked[:, 600:].mean(), 10, rtol=0.4)


def test_the_first_guess_knows_noise_from_speech():
    from hamcmc.speech import spectrum
    from tests.speech.test_denoise import voice

    g = np.random.default_rng(0)
    noise = np.abs(spectrum.analyse(g.normal(size=12000), 8000)) ** 2
    speech = np.abs(spectrum.analyse(voice(1.5)[:, 0], 8000)) ** 2
    share = lambda power: np.average(1 / (1 + np.exp(np.subtract(*guess.guess(power)[::-1]))), weights=power)
    assert share(noise + 1e-6) < 0.3
    assert share(speech + 1e-6) > 0.8
    louder = [a - b for a, b in zip(guess.guess(100 * (noise + 1e-6)), guess.guess(noise + 1e-6))]
    np.testing.assert_allclose(np.stack(louder), np.log(100), atol=0.05)
