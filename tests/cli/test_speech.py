"""hamcmc denoise writes what the library returns, says what it did, and fails in one line with nothing left behind."""

import base64
import hashlib
import io
import os
import re
import signal

import numpy as np
import pytest
import soundfile as sf
from typer.testing import CliRunner

from hamcmc.cli.app import app
from hamcmc.report import denoise as page
from hamcmc.speech import audio, dictionary, file, metrics
from hamcmc.speech.denoise import Cleaned
from tests.report.test_report import Page

RATE = 8000
FREQUENCIES = np.linspace(0, RATE / 2, 33)


def call(*arguments, code=0):
    """Run the program; what it printed, in one line per paragraph."""
    done = CliRunner().invoke(app, ["denoise", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def names(folder):
    return sorted(f.name for f in folder.iterdir())


@pytest.fixture
def cleaner(monkeypatch):
    """Stands for the model: it halves everything; `gain` and what is to happen in the middle can be changed."""

    class Cleaner:
        gain, asked = 0.5, None

        def happen(self):
            """Called after the first block."""

        def __call__(self, blocks, rate, *, draws, uncertainty, length, progress, **options):
            self.asked, done = options | {"rate": rate, "length": length}, 0
            for i, block in enumerate(blocks):
                if i == 1:
                    self.happen()
                x, frames = self.gain * block, len(block) * 100 // rate
                sd = np.full((block.shape[1], 33, frames), 0.1) if uncertainty else None
                done += len(block)
                yield Cleaned(
                    x, np.stack([x / (d + 2) for d in range(draws)]) if draws else None, sd, FREQUENCIES, 0.01
                )

    cleaner = Cleaner()
    monkeypatch.setattr(file, "denoise", cleaner)
    monkeypatch.setattr(file, "STRETCH", 0.5)
    monkeypatch.setattr(dictionary, "load", lambda path=None: f"dictionary {path}")
    return cleaner


@pytest.fixture
def noisy(tmp_path):
    """1.2 s of noisy speech, noisy.wav, and clean.wav."""
    rng = np.random.default_rng(0)
    t = np.arange(int(1.2 * RATE)) / RATE
    clean = 0.1 * rng.standard_normal(len(t)) * (1 + np.sin(2 * np.pi * 4 * t))
    sf.write(tmp_path / "clean.wav", clean, RATE)
    sf.write(tmp_path / "noisy.wav", clean + 0.05 * rng.standard_normal(len(t)), RATE)
    return tmp_path / "noisy.wav"


def test_a_recording_is_cleaned(noisy, tmp_path, cleaner):
    out = tmp_path / "out.flac"
    done = call(noisy, "-o", out, "--sampler", "sgld", "--iterations", 17, "--seed", 3)
    source = audio.info(noisy)
    np.testing.assert_allclose(audio.read(audio.info(out)), audio.read(source) / 2, atol=1e-4)
    options = {"dictionary": "dictionary None", "sampler": "sgld", "iterations": 17, "seed": 3}
    assert cleaner.asked == options | {"rate": RATE, "length": source.frames}
    assert "1.2 s of sound in" in done.stdout
    assert "it plays" in done.stdout
    assert f"Wrote {out}" in done.stdout
    assert names(tmp_path) == ["clean.wav", "noisy.wav", "out.flac"]


@pytest.mark.parametrize(
    ("quality", "said", "asked"),
    [("fast", "the default", (None, None)), ("best", "--sampler", ("ensemble_hamcmc", 200))],
)
def test_a_quality_of_0_1_is_deprecated(noisy, tmp_path, cleaner, quality, said, asked):
    done = call(noisy, "-o", tmp_path / "out.wav", "--quality", quality)
    assert f"--quality {quality} is deprecated: it is {said}" in " ".join(done.stderr.split())
    assert (cleaner.asked["sampler"], cleaner.asked["iterations"]) == asked


def test_options_may_come_first_and_a_file_may_be_called_train(noisy, tmp_path, cleaner, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noisy.rename("train")
    call("-q", "-o", "out.wav", "./train")
    assert "Missing option" in call("./train", code=2).stderr
    assert "Usage: hamcmc denoise [OPTIONS]" in CliRunner().invoke(app, ["denoise", "-h"], prog_name="hamcmc").stdout


def test_draws_go_beside_the_result(noisy, tmp_path, cleaner):
    call(noisy, "-o", tmp_path / "out.wav", "--draws", 2)
    source = audio.read(audio.info(noisy))
    for i in (1, 2):
        found = audio.read(audio.info(tmp_path / f"out-draw{i}.wav"))
        np.testing.assert_allclose(found, source / 2 / (i + 1), atol=1e-4)


def test_scores_against_a_reference(noisy, tmp_path, cleaner):
    done = call(noisy, "-o", tmp_path / "out.wav", "--reference", tmp_path / "clean.wav")
    clean, before, after = (audio.read(audio.info(tmp_path / f"{n}.wav")) for n in ("clean", "noisy", "out"))
    for name, digits in (("sdr", 2), ("si_sdr", 2), ("stoi", 3)):
        for x in (before, after):
            score = getattr(metrics.scores(clean, x, RATE), name)
            assert f"{score:.{digits}f}" in done.stdout, name


def test_a_reference_must_fit(noisy, tmp_path, cleaner):
    other = tmp_path / "other.wav"
    sf.write(other, np.zeros((100, 2)), RATE)
    assert "channels 2 and 1" in call(noisy, "-o", tmp_path / "o.wav", "--reference", other, code=2).stderr
    sf.write(other, np.zeros(100), 2 * RATE)
    assert "rate 16,000 and 8,000" in call(noisy, "-o", tmp_path / "o.wav", "--reference", other, code=2).stderr
    sf.write(other, np.zeros(RATE // 2), RATE)
    assert "is no reference for" in call(noisy, "-o", tmp_path / "o.wav", "--reference", other, code=2).stderr
    sf.write(other, audio.read(audio.info(tmp_path / "clean.wav"))[:RATE], RATE)
    done = call(noisy, "-o", tmp_path / "o.wav", "--reference", other)
    assert "the first 1.00 s are compared" in done.stderr


def test_a_loud_result_is_told(noisy, tmp_path, cleaner):
    cleaner.gain = 5 / audio.info(noisy).peak
    assert "turned down by 14.0 dB" in call(noisy, "-o", tmp_path / "out.wav").stderr


def test_warnings_and_silence(tmp_path, cleaner):
    sf.write(tmp_path / "in.wav", np.zeros(RATE), RATE)
    done = call(tmp_path / "in.wav", "-o", tmp_path / "out.wav", "--report", tmp_path / "r.html", "--reference",
                tmp_path / "in.wav", "--uncertainty", tmp_path / "sd.png")  # fmt: skip
    assert "is silent" in done.stderr
    assert "–" in done.stdout
    assert not audio.read(audio.info(tmp_path / "out.wav")).any()


def test_a_single_sample(tmp_path, cleaner):
    sf.write(tmp_path / "in.wav", [0.5], RATE)
    call(tmp_path / "in.wav", "-o", tmp_path / "out.wav", "--report", tmp_path / "r.html")
    assert audio.info(tmp_path / "out.wav").peak == pytest.approx(0.25)


# --- faults ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.wav", "-o", "out.wav"], "there is no file none.wav"),
        (["noisy.wav", "-o", "noisy.wav"], "noisy.wav is an input"),
        (["noisy.wav", "-o", "out.wav", "--reference", "clean.wav", "--uncertainty", "x/y.png"], "no directory x"),
        (["noisy.wav", "-o", "clean.wav", "--reference", "clean.wav"], "clean.wav is an input"),
        (["noisy.wav", "-o", "out.mp3"], "out.mp3: its suffix must be one of"),
        (["noisy.wav", "-o", "none/out.wav"], "none/out.wav cannot be written: there is no directory none"),
        (["noisy.wav", "-o", "out.wav", "--quality", "good"], "--quality must be 'fast' or 'best'"),
        (["noisy.wav", "-o", "out.wav", "--draws", "-1"], "--draws must be"),
        (["noisy.wav", "-o", "out.wav", "--iterations", "9"], "--iterations must be a whole number, 10 or more"),
        (["noisy.wav", "-o", "empty"], "empty is a directory: name a file, such as empty/clean.wav"),
        (["noisy.wav", "-o", "out.wav", "--report", "page.pdf"], "page.pdf: its suffix must be .html"),
        (["noisy.wav", "-o", "out.wav", "--uncertainty", "x.jpg"], "x.jpg: its suffix must be .png"),
        (["text.wav", "-o", "out.wav"], "text.wav is not an audio file"),
        (["train", "none", "-o", "d.npz"], "there is nothing at none"),
        (["train", "empty", "-o", "d.npz"], "empty has no audio files"),
        (["train", ".", "-o", "d.txt"], "d.txt: its suffix must be .npz"),
        (["train", ".", "-o", "d.npz", "--rank", "0"], "--rank must be"),
    ],
)
def test_faults_end_in_one_line(noisy, tmp_path, cleaner, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.wav").write_text("no sound\n" * 9)
    (tmp_path / "empty").mkdir()
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()}
    done = call(*arguments, code=2)
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert cleaner.asked is None
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()} == before


@pytest.mark.parametrize("error", [FileNotFoundError("no dictionary at x.npz"), ValueError("x.npz: not a dictionary")])
def test_a_missing_or_bad_dictionary(noisy, tmp_path, cleaner, monkeypatch, error):
    def load(path):
        raise error

    monkeypatch.setattr(dictionary, "load", load)
    assert str(error) in call(noisy, "-o", tmp_path / "out.wav", "--dictionary", "x.npz", code=2).stderr
    assert names(tmp_path) == ["clean.wav", "noisy.wav"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(noisy, tmp_path, cleaner, number):
    (tmp_path / "out.wav").write_text("what was there")
    before, handler = names(tmp_path), signal.getsignal(number)
    cleaner.happen = lambda: os.kill(os.getpid(), number)
    done = call(noisy, "-o", tmp_path / "out.wav", "--draws", 1, code=128 + number)
    assert done.stderr == f"stopped by {number.name}: {tmp_path / 'out.wav'} was not written\n"
    assert names(tmp_path) == before
    assert (tmp_path / "out.wav").read_text() == "what was there"
    assert signal.getsignal(number) is handler


def test_a_failure_in_the_middle_leaves_nothing_behind(noisy, tmp_path, cleaner):
    def fail():
        raise OSError(28, "No space left on device")

    cleaner.happen = fail
    done = CliRunner().invoke(app, ["denoise", str(noisy), "-o", str(tmp_path / "out.wav")])
    assert done.exit_code == 1
    assert names(tmp_path) == ["clean.wav", "noisy.wav"]


# --- pictures ---


def test_the_picture_of_the_uncertainty(noisy, tmp_path, cleaner):
    call(noisy, "-o", tmp_path / "out.wav", "--uncertainty", tmp_path / "sd.png")
    assert (tmp_path / "sd.png").read_bytes()[:4] == b"\x89PNG"


def test_pooling_keeps_the_power():
    rng = np.random.default_rng(0)
    power = rng.uniform(size=(4, 1000))
    pooled = file.Pooled(10.0, columns=20)
    for piece in np.array_split(power, 7, axis=1):
        pooled.add(piece, np.arange(4.0), 0.01)
    np.testing.assert_allclose(pooled.rms**2, power.reshape(4, 20, 50).mean(2))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_spectrogram_has_the_power_where_it_belongs(tmp_path, channels):
    t = np.arange(3 * RATE + 17) / RATE
    x = 0.5 * np.sin(2 * np.pi * 1000 * t) * (t > 1.5)
    sf.write(tmp_path / "x.wav", np.stack([x] * channels, 1), RATE, subtype="FLOAT")
    found = page.spectrogram(audio.info(tmp_path / "x.wav"))
    power = found.rms**2
    assert abs(found.frequencies[power.mean(1).argmax()] - 1000) < 40
    half = power.shape[1] // 2
    assert power[:, : half - 4].sum(0).max() < 1e-9
    np.testing.assert_allclose(power[:, half + 4 : -4].sum(0), 0.125, rtol=1e-3)
    sf.write(tmp_path / "constant.wav", np.full((RATE, channels), 0.5), RATE)
    power = page.spectrogram(audio.info(tmp_path / "constant.wav")).rms ** 2
    np.testing.assert_allclose(power[:, 4:-4].sum(0), 0.25, rtol=1e-3)


def test_the_page(noisy, tmp_path, cleaner, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noisy.rename("a & <b>.wav")
    done = call("a & <b>.wav", "-o", "out.wav", "--reference", "clean.wav", "--report", "page.html", "--seed", 5)
    assert "page.html" in done.stdout
    html = (tmp_path / "page.html").read_text()
    parsed = Page(html)
    sections = ["Listen", "Spectrograms", "Level", "Uncertainty", "Scores", "Repeat"]
    assert parsed.headings == ["a & <b>.wav", *sections]
    assert "hamcmc denoise 'a & <b>.wav' -o out.wav --seed 5 --reference clean.wav" in parsed.text
    assert all(u.startswith("data:") or (u.startswith("#") and u[1:] in parsed.ids) for u in parsed.urls)
    sounds = re.findall(r'src="data:audio/flac;base64,([^"]+)"', html)
    for sound, name in zip(sounds, ("a & <b>.wav", "out.wav", "clean.wav"), strict=True):
        heard, rate = sf.read(io.BytesIO(base64.b64decode(sound)))
        assert rate == RATE
        np.testing.assert_allclose(heard, sf.read(name)[0], atol=1e-4)
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)[1]
    assert f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in html
    assert "http" not in html.replace('http-equiv="Content-Security-Policy"', "")
    assert parsed.unlabelled == 0
    assert parsed.tags["audio"] == 3


def test_a_long_or_loud_recording_in_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "LISTEN", 2000)
    sf.write(tmp_path / "in.wav", np.repeat(np.linspace(0.75, 7, RATE)[:, None], 5, 1), RATE, subtype="FLOAT")
    source = audio.info(tmp_path / "in.wav")
    html = page._listen({"Before": source})
    assert "The first 0.125 s are here" in html
    assert "mean of all 5 channels" in html
    heard = sf.read(io.BytesIO(base64.b64decode(re.search(r'base64,([^"]+)"', html)[1])))[0]
    assert len(heard) == 1000
    np.testing.assert_allclose(heard[[0, -1]], np.array([0.75, 0.75 + 6.25 * 999 / 7999]) / 7, atol=1e-3)


# --- training ---


def test_training_uses_all_recordings_below(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/1.wav", "a/b/2.FLAC", "a/notes.txt"):
        (tmp_path / name).touch()
    asked = {}

    def train(files, *, rank, progress):
        asked.update(files=[f.name for f in files], rank=rank, progress=progress)
        return dictionary.Dictionary(np.ones((4, rank)) / 4)

    monkeypatch.setattr(dictionary, "train", train)
    done = call("train", tmp_path / "a", "-o", tmp_path / "d.npz", "--rank", 7)
    assert asked == {"files": ["1.wav", "2.FLAC"], "rank": 7, "progress": None}
    assert dictionary.load(tmp_path / "d.npz").W.shape == (4, 7)
    assert "7 spectra from 2 files" in done.stdout
    call("train", tmp_path / "a" / "1.wav", "-o", tmp_path / "d.npz", "-q")
    assert (asked["files"], asked["progress"]) == (["1.wav"], False)
