"""The comparison of denoisers measures each method once per file, uses what is stored, and prints means."""

import json

import numpy as np
import pytest
import soundfile as sf
from benchmarks import denoisers
from scipy.integrate import quad

from hamcmc.speech import denoise as speech
from hamcmc.speech.dictionary import Dictionary

RATE = 8000


@pytest.fixture
def corpus(tmp_path):
    """Two sentences in all noises; noise number k is k times as loud as the first."""
    generator = np.random.default_rng(0)
    for i in (2, 3):
        s = 0.1 * np.sin(np.cumsum(0.3 + 0.2 * np.sin(np.arange(RATE) / 500))) * np.sin(np.arange(RATE) / 900) ** 2
        for k, noise in enumerate(denoisers.NOISES):
            n = 0.002 * (k + 1) * generator.normal(size=RATE)
            for snr, louder in ((5, 1.0), (0, 10**0.25)):
                clean, noisy = denoisers.paths(tmp_path, noise, i, snr)
                for path, x in ((clean, s), (noisy, s + louder * n)):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    sf.write(path, x, RATE, subtype="FLOAT")
    return tmp_path


@pytest.fixture
def methods(monkeypatch):
    """Cheap ones in place of the real ones; they count their calls."""
    calls = dict.fromkeys(("noisy", "default", "rnnoise"), 0)

    def made(name):
        def method(x, rate):
            calls[name] += 1
            if name == "rnnoise":
                raise ImportError("no such library")
            return x if name == "noisy" else np.convolve(x, [0.25, 0.5, 0.25], "same")

        return method

    monkeypatch.setattr(denoisers, "METHODS", {name: made(name) for name in calls})
    return calls


def go(corpus, snr=(5,), **options):
    return denoisers.run(False, str(corpus), (2, 3), snr, (), corpus / "results", **options)


def test_tables_are_means_over_files(corpus, methods):
    first, second, left_out = go(corpus)
    stored = [json.loads(line) for line in (corpus / "results" / "denoisers.jsonl").read_text().splitlines()]
    assert len(stored) == 2 * 2 * len(denoisers.NOISES)
    noisy, ours = first.rows
    of = lambda method, *noises: np.mean([r["sdr"] for r in stored if r["method"] == method and r["noise"] in noises])
    assert ours["car"] == f"{of('default', 'car'):.2f}"
    assert noisy["mean"] == f"{of('noisy', *denoisers.NOISES):.2f}"
    assert float(noisy["airport"]) > float(noisy["train"]) + 15  # eight times as loud: 18 dB
    above = float(second.rows[0]["ours is above"].split()[0])
    assert above == pytest.approx(float(ours["mean"]) - float(noisy["mean"]), abs=0.02)
    assert left_out.rows == [{"method": "rnnoise", "reason": "no such library"}]


def test_each_level_has_its_tables(corpus, methods):
    """Of its own files: noise that is louder by 5 dB lowers the SDR by as much."""
    louder, _, softer, means, _ = go(corpus, snr=(0, 5))
    for table, level in ((louder, 0), (softer, 5), (means, 5)):
        assert f"16 files at {level} dB" in table.title
    assert float(softer.rows[0]["mean"]) - float(louder.rows[0]["mean"]) == pytest.approx(5, abs=0.1)


def test_goes_on_where_it_was_stopped(corpus, methods, monkeypatch):
    whole = go(corpus)
    log, made = corpus / "results" / "denoisers.jsonl", methods["default"]
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[:-3]) + "\n" + lines[-3][:50])
    again = go(corpus)
    assert again[0] == whole[0]
    assert methods["default"] + methods["noisy"] == 2 * made + 3 + 2  # three files, and one warm-up for each method
    assert go(corpus)[0] == whole[0]
    done = dict(methods)
    monkeypatch.setattr(denoisers, "fingerprint", lambda method: "another version")
    monkeypatch.setattr(denoisers, "METHODS", {k: v for k, v in denoisers.METHODS.items() if k != "rnnoise"})
    go(corpus)
    assert methods["default"] == done["default"] + 1 + 2 * len(denoisers.NOISES)


def test_says_what_is_wrong(corpus, methods):
    with pytest.raises(ValueError, match="there is no .*sp09"):
        denoisers.run(False, str(corpus), (9,))
    with pytest.raises(ValueError, match="unknown: magic; there are noisy, default"):
        denoisers.run(False, str(corpus), (2,), only=["magic"])


@pytest.mark.parametrize("log_spectral", [False, True])
def test_decision_directed_gains(log_spectral):
    """Noise alone nearly vanishes; tones far above it, which come and go, pass."""
    generator, t = np.random.default_rng(1), np.arange(2 * RATE)
    noise, tone = generator.normal(size=len(t)), 20 * np.sin(2 * np.pi * 1000 / RATE * t)
    tone *= (t > RATE) & (t % 2000 < 1000)
    clean = denoisers.filtered(lambda power: denoisers.decision_directed(power, log_spectral))
    y = clean(noise + tone, RATE)
    assert np.std(y[RATE // 4 : RATE * 3 // 4]) < 0.2
    assert np.std((y - tone)[RATE:]) < 0.6


def test_log_mmse_gain_of_the_first_frame():
    """Power as large as the noise's: the SNR is taken for 0.98, and the gain is an integral."""
    wiener, log_mmse = (denoisers.decision_directed(np.ones((1, 3)), log)[0, 0] for log in (False, True))
    assert wiener == pytest.approx(0.98 / 1.98, rel=1e-4)
    integral, _ = quad(lambda t: np.exp(-t) / t, wiener, np.inf)
    assert log_mmse == pytest.approx(wiener * np.exp(integral / 2), rel=1e-4)


def test_is_nmf_tells_dictionary_from_noise(monkeypatch):
    """Speech of two given spectra that comes and goes, beside steady noise in some of the frequencies."""
    generator = np.random.default_rng(2)
    W = generator.gamma(0.3, size=(129, 2)) + 1e-4
    speech = W @ (20 * generator.random((2, 200)) * (generator.random(200) < 0.4))
    steady = np.repeat(generator.gamma(2.0, size=(129, 1)) * (np.arange(129) > 40)[:, None] + 1e-3, 200, 1)
    monkeypatch.setattr(denoisers, "load", lambda: Dictionary((W / W.sum(0)) ** 0.6))
    found = denoisers.is_nmf(speech + steady, components=1) * (speech + steady)
    assert np.sum((found - speech) ** 2) < 1e-5 * np.sum(speech**2)


def test_every_sampler_has_a_row():
    """All run for as many iterations, beside the default."""
    rows = [m for m in denoisers.METHODS if m in speech.RECIPES]
    assert sorted(rows) == sorted(speech.RECIPES)
    assert all(str(denoisers.LONGER) in denoisers.LABELS[m] for m in rows)
    assert list(denoisers.LABELS) == list(denoisers.METHODS)
