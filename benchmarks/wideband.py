"""Speech at 48 kHz in noise: ``hamcmc denoise`` against other denoisers, on speech and noises that it never saw.

``python tools/speech_data.py recordings PATH`` makes the recordings from Debian packages: descriptions of pictures in
ten languages, and ambient sounds (rain, wind, water, harbours, birds). Added to those are hiss, a fan with hum, and
babble of other speakers. Each clip gets one noise, in turn, at 0, 5 and 10 dB. All methods clean the same files at 48
kHz, the rate that RNNoise was made for. SDR and SI-SDR are of all frequencies. PESQ is that of ITU-T P.862 at 8 kHz,
and "wide" that of P.862.2 at 16 kHz. Each result is written to ``results/wideband.jsonl`` at once, and an interrupted
run continues.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
from scipy.signal import resample_poly

from benchmarks import denoisers
from benchmarks.measure import Against, Table
from hamcmc.speech import metrics

RATE, SECONDS = 48000, 4
SNRS = (0, 5, 10)
METHODS = ("noisy", "noisereduce", "noisereduce_moving", "log_mmse", "rnnoise", "first_guess", "default")
SCORES = {
    "sdr": ("SDR", 2),
    "si_sdr": ("SI-SDR", 2),
    "stoi": ("STOI", 3),
    "narrow": ("PESQ", 2),
    "wide": ("PESQ wide", 2),
}
OURS = "default"


def run(
    quick: bool, recordings: str | None = None, methods: tuple[str, ...] = (), results: Path = denoisers.RESULTS
) -> list[Table]:
    """Means of all scores by signal-to-noise ratio, and how ours stands against each of the others."""
    if recordings is None:
        return [Table("Wideband was left out", [{"reason": "it needs --recordings PATH"}])]
    files = mixtures(Path(recordings), 3 if quick else None)
    results.mkdir(exist_ok=True)
    log = results / "wideband.jsonl"
    log.touch()
    whole = log.read_text()
    log.write_text(whole[: whole.rfind("\n") + 1])  # without a line in the middle of which a run was stopped
    known = {tuple(r["key"]): r for r in map(json.loads, log.read_text().splitlines())}
    prints = {m: denoisers.fingerprint(m) for m in methods or METHODS}
    found = []
    for name, snr, clean, noisy in files:
        for method, print_ in prints.items():
            key = (name, snr, method, print_)
            if key not in known:
                estimate = denoisers.METHODS[method](noisy, RATE)
                known[key] = {"key": key, "file": name, "snr": snr, "method": method} | score(clean, estimate)
                with log.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
            found.append(known[key])
    clips = len({r["file"] for r in found})
    return [
        Table(f"At {snr} dB, {clips} clips of {SECONDS} s at 48 kHz", summary([r for r in found if r["snr"] == snr]))
        for snr in SNRS
    ] + [Table("Over all ratios: how far ours is above each of the others", standing(found), against(found))]


def mixtures(folder: Path, clips: int | None) -> Iterator[tuple[str, int, np.ndarray, np.ndarray]]:
    """Name, ratio, speech, and speech with noise."""
    speech, noise = (sorted((folder / part).glob("*.flac")) for part in ("speech", "noise"))
    if not speech or not noise:
        raise ValueError(f"{folder} has no speech or no noise: make them with tools/speech_data.py recordings {folder}")
    rng = np.random.default_rng(0)
    noise = [noise[i] for i in rng.permutation(len(noise))]
    made: list[Callable[[], np.ndarray] | Path] = [noise[0], hiss, noise[1], fan, noise[2], None, *noise[3:]]
    for i, path in enumerate(speech[:clips]):
        s = sf.read(path)[0][: SECONDS * RATE]
        others = [p for p in speech if p.stem[3:] != path.stem[3:]]
        kind = made[i % len(made)]
        n = babble(rng, others) if kind is None else sf.read(kind)[0] if isinstance(kind, Path) else kind(rng)
        start = int(rng.integers(0, len(n) - len(s) + 1))
        n = n[start : start + len(s)]
        for snr in SNRS:
            yield path.stem, snr, s, s + n * np.sqrt(np.mean(s**2) / np.mean(n**2)) * 10 ** (-snr / 20)


def hiss(rng: np.random.Generator) -> np.ndarray:
    """That of a microphone's amplifier: white, a little louder at low frequencies."""
    white = np.fft.rfft(rng.standard_normal(SECONDS * RATE))
    return np.fft.irfft(white / np.maximum(np.arange(len(white)), 200) ** 0.25, SECONDS * RATE)


def fan(rng: np.random.Generator) -> np.ndarray:
    """Pink noise whose level pulses, and hum of the mains."""
    t = np.arange(SECONDS * RATE) / RATE
    white = np.fft.rfft(rng.standard_normal(len(t)))
    pink = np.fft.irfft(white / np.maximum(np.arange(len(white)), 100) ** 0.5, len(t))
    hum = sum(np.sin(2 * np.pi * 50 * k * t + k) / k for k in (1, 2, 3, 5, 7))
    return pink / pink.std() * (1 + 0.3 * np.sin(2 * np.pi * 17 * t)) + 0.5 * hum


def babble(rng: np.random.Generator, speech: list[Path], voices: int = 6) -> np.ndarray:
    """Several of the other speakers at once."""
    chosen = [speech[i] for i in rng.choice(len(speech), voices, replace=False)]
    return sum(np.roll(sf.read(p)[0][: SECONDS * RATE], int(rng.integers(RATE))) for p in chosen)


def score(clean: np.ndarray, estimate: np.ndarray) -> dict[str, float]:
    """All scores of one estimate."""
    from pesq import PesqError, pesq

    found = {"sdr": metrics.sdr(clean, estimate), "si_sdr": metrics.si_sdr(clean, estimate)}
    found["stoi"] = metrics.stoi(clean, estimate, RATE)
    for name, rate in (("narrow", 8000), ("wide", 16000)):
        s, e = (resample_poly(x, rate, RATE).astype(np.float32) for x in (clean, estimate))
        quality = pesq(rate, s, e, name[0] + "b", on_error=PesqError.RETURN_VALUES)
        found[name] = float(quality) if quality > 0 else float("nan")
    return found


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each method: means of all scores."""
    rows = []
    for method in dict.fromkeys(r["method"] for r in found):
        own = [r for r in found if r["method"] == method]
        means = {label: f"{np.nanmean([r[k] for r in own]):.{d}f}" for k, (label, d) in SCORES.items()}
        rows.append({"method": denoisers.LABELS[method]} | means)
    return rows


def differences(found: list[dict[str, Any]], method: str, name: str) -> tuple[float, float]:
    """How far ours is above on the same files, and the standard error over clips, whose ratios are not independent."""
    by = {(r["file"], r["snr"], r["method"]): r[name] for r in found}
    clips = sorted({r["file"] for r in found})
    above = [np.nanmean([by[c, snr, OURS] - by[c, snr, method] for snr in SNRS]) for c in clips]
    return float(np.nanmean(above)), float(np.nanstd(above, ddof=1) / np.sqrt(len(above)))


def standing(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each other method: by how much ours is above it in each score."""
    rows = []
    for method in dict.fromkeys(r["method"] for r in found if r["method"] != OURS):
        above = {k: differences(found, method, k) for k in SCORES}
        shown = {label: f"{above[k][0]:.{d}f} ± {above[k][1]:.{d}f}" for k, (label, d) in SCORES.items()}
        rows.append({"method": denoisers.LABELS[method]} | shown)
    return rows


def against(found: list[dict[str, Any]]) -> list[Against]:
    """Ours beside each of the other projects: even, where the difference is within two standard errors."""
    sides = []
    for method in dict.fromkeys(r["method"] for r in found):
        if method in ("noisy", "first_guess", "default"):
            continue
        for name in ("si_sdr", "wide"):
            mean, error = differences(found, method, name)
            ahead = "even" if abs(mean) <= 2 * error else "hamcmc" if mean > 0 else "peer"
            unit = " dB" if name == "si_sdr" else ""
            what = f"{SCORES[name][0]} at 48 kHz"
            sides.append(Against(denoisers.LABELS[method], what, f"{mean:+.2f} ± {error:.2f}{unit}", ahead))
    return sides
