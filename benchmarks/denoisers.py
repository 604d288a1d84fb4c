"""Signal-to-distortion ratio and time: ``hamcmc denoise`` against other denoisers, on noisy sentences of known speech.

The corpus is laid out like NOIZEUS: ``clean/sp01.wav`` and ``noisy/babble_5dB/sp01_babble_sn5.wav``. All methods clean
the same files, taking turns on each file in an order that rotates from file to file. Each result is written to
``results/denoisers.jsonl`` at once, and an interrupted run continues where it stopped. A stored result is used as long
as the code and the data that it came from are unchanged.
"""

import ast
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import resample_poly
from scipy.special import exp1, expit

import hamcmc.samplers
import hamcmc.speech
from benchmarks.measure import Against, Table
from hamcmc.speech import audio, metrics, spectrum
from hamcmc.speech.denoise import DEFAULT, denoise
from hamcmc.speech.dictionary import load
from hamcmc.speech.guess import guess, presence_noise

NOISES = ("airport", "babble", "car", "exhibition", "restaurant", "station", "street", "train")
TUNED_ON = (1, 6, 11, 16, 21, 26)  # sentences that were looked at while the model was made
RESULTS = Path(__file__).parent / "results"

Method = Callable[[np.ndarray, int], np.ndarray]  # from a noisy signal and its sample rate to a clean one


def run(
    quick: bool,
    corpus: str | None = None,
    sentences: Iterable[int] = (),
    snr: Iterable[int] = (5,),
    only: Iterable[str] = (),
    results: Path = RESULTS,
) -> list[Table]:
    """For each `snr` SDR by noise and all scores with times; then what was left out. Scores are kept in `results`."""
    if corpus is None:
        return [Table("Denoisers were left out", [{"reason": "they need --corpus PATH, laid out as NOIZEUS is"}])]
    if unknown := set(only) - set(METHODS):
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(METHODS)}")
    sentences = tuple(sentences) or tuple(i for i in range(1, 31) if i not in TUNED_ON)[: 2 if quick else None]
    files = {level: {(n, i): paths(Path(corpus), n, i, level) for i in sentences for n in NOISES} for level in snr}
    if missing := [p for some in files.values() for pair in some.values() for p in pair if not p.exists()]:
        raise ValueError(f"{corpus} is not laid out as NOIZEUS is: there is no {missing[0]}")
    prints, left_out = {}, {}
    for name in only or METHODS:
        try:
            prints[name] = fingerprint(name)
        except (ImportError, OSError) as error:  # a library that does not load
            left_out[name] = str(error)
    results.mkdir(exist_ok=True)
    tables = []
    for level, some in files.items():
        found = measure(some, level, prints, results / "denoisers.jsonl")
        title = f"{len(some)} files at {level} dB, sentences {', '.join(map(str, sentences))}"
        means = summary(found)
        tables += [
            Table(f"SDR in dB (BSS-eval, 512 taps): {title}", by_noise(found), standing(means, level)),
            Table(f"Means over all of them: {title}", means),
        ]
    tables += [Table("Left out", [{"method": m, "reason": why} for m, why in left_out.items()])] * bool(left_out)
    return tables


def standing(rows: list[dict[str, Any]], snr: int) -> list[Against]:
    """Our default against each of the others: even, where the difference is within two standard errors."""
    by = {r["method"]: r for r in rows}
    if LABELS["default"] not in by:
        return []
    found = []
    for method in (m for m in by if not m.startswith(("ours", "our ", "noisy"))):
        above, _, error = by[method]["ours is above"].partition(" ± ")
        sure = error and abs(float(above)) > 2 * float(error)
        ahead = "even" if not sure else "hamcmc" if float(above) > 0 else "peer"
        both = f"{by[LABELS['default']]['SDR']} dB; {by[method]['SDR']} dB"
        found.append(Against(method, f"mean SDR on NOIZEUS at {snr} dB", both, ahead))
    return found


def paths(corpus: Path, noise: str, sentence: int, snr: int) -> tuple[Path, Path]:
    """The clean and the noisy file."""
    name = f"sp{sentence:02d}"
    return corpus / "clean" / f"{name}.wav", corpus / "noisy" / f"{noise}_{snr}dB" / f"{name}_{noise}_sn{snr}.wav"


def measure(
    files: dict[tuple[str, int], tuple[Path, Path]], snr: int, prints: dict[str, str], log: Path
) -> list[dict[str, Any]]:
    """A result for each file and method: from the log, or new and then in the log."""
    log.touch()
    text = log.read_text()
    log.write_text(text[: text.rfind("\n") + 1])  # without a line in the middle of which a run was stopped
    rows = map(json.loads, log.read_text().splitlines())
    known = {(r["noise"], r["sentence"], r["snr"], r["method"], r["print"]): r for r in rows}
    found, warm = [], set()
    for number, ((noise, sentence), (clean, noisy)) in enumerate(files.items()):
        s, x = (audio.read(source := audio.info(p))[:, 0].astype(float) for p in (clean, noisy))
        s, x, rate = s[: len(x)], x[: len(s)], source.rate
        for method in list(prints)[:: -1 if number % 2 else 1]:
            key = noise, sentence, snr, method, prints[method]
            if key not in known:
                shape = method, -(-len(x) // rate)
                if shape not in warm:  # compiled for each padded length
                    METHODS[method](x, rate)
                    warm.add(shape)
                began = time.perf_counter(), time.process_time()
                y = METHODS[method](x, rate)
                times = time.perf_counter() - began[0], time.process_time() - began[1]
                known[key] = dict(zip(("noise", "sentence", "snr", "method", "print"), key)) | score(s, y, rate)
                known[key] |= {"real_time": times[0] * rate / len(x), "cpu": times[1] * rate / len(x)}
                with log.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
            found.append(known[key])
    return found


def score(clean: np.ndarray, estimate: np.ndarray, rate: int) -> dict[str, float]:
    """All scores of one file; the SNR is that of the estimate, and forgives nothing."""
    snr = 10 * np.log10(np.sum(clean**2) / max(np.sum((clean - estimate) ** 2), 1e-15 * np.sum(clean**2)))
    return metrics.scores(clean, estimate, rate)._asdict() | {"snr_out": float(snr)}


def by_noise(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each method: the mean SDR in each noise, and over all files."""
    rows = []
    for method in methods_of(found):
        own = [r for r in found if r["method"] == method]
        means = {n: np.mean([r["sdr"] for r in own if r["noise"] == n]) for n in NOISES}
        means["mean"] = np.mean([r["sdr"] for r in own])
        rows.append({"method": LABELS[method]} | {n: f"{m:.2f}" for n, m in means.items()})
    return rows


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each method: means of all scores, median and quartiles of the times.

    "ours is above": the mean difference of SDR between our default and the method, with its standard error over
    sentences, whose eight noises are not independent. "CPU": seconds of all cores per second of sound, which a busy
    machine makes longer, too, but less.
    """
    sdr = {(r["method"], r["sentence"], r["noise"]): r["sdr"] for r in found}
    sentences = sorted({r["sentence"] for r in found})
    rows = []
    for method in methods_of(found):
        values = {name: [r[name] for r in found if r["method"] == method] for name in SCORES}
        row = {"method": LABELS[method]} | {label: f"{np.mean(values[k]):.{d}f}" for k, (label, d) in SCORES.items()}
        if ("default", sentences[0], NOISES[0]) in sdr:
            above = [np.mean([sdr["default", i, n] - sdr[method, i, n] for n in NOISES]) for i in sentences]
            error = f" ± {np.std(above, ddof=1) / np.sqrt(len(above)):.2f}" if len(above) > 1 else ""
            row["ours is above"] = "–" if method == "default" else f"{np.mean(above):.2f}{error}"
        times = {k: [r[k] for r in found if r["method"] == method] for k in ("real_time", "cpu")}
        low, median, high = np.quantile(times["real_time"], [0.25, 0.5, 0.75])
        row |= {"× real time": f"{median:.2f} ({low:.2f}–{high:.2f})", "CPU": f"{np.median(times['cpu']):.2f}"}
        rows.append(row)
    return rows


SCORES = {"sdr": ("SDR", 2), "si_sdr": ("SI-SDR", 2), "snr_out": ("SNR", 2), "stoi": ("STOI", 3)}


def methods_of(found: list[dict[str, Any]]) -> list[str]:
    """Those that were measured, in their order."""
    return [m for m in METHODS if any(r["method"] == m for r in found)]


def fingerprint(method: str) -> str:
    """What a result depends on: a hash of the code (but for comments), with a peer's version or our model and data."""
    code = hashlib.sha256(ast.dump(ast.parse(Path(__file__).read_text())).encode())
    if method in PEERS:
        METHODS[method](np.sin(np.arange(8000.0)), 8000)  # does it load, and run?
        return f"{version(PEERS[method])}-{code.hexdigest()[:12]}"
    folders = [Path(m.__file__ or "").parent for m in (hamcmc.speech, hamcmc.samplers)]
    for path in sorted(p for f in folders for p in f.rglob("*.py")):
        code.update(ast.dump(ast.parse(path.read_text())).encode())
    for path in sorted((folders[0] / "data").glob("*.npz")):
        code.update(path.read_bytes())
    return code.hexdigest()[:12]


def noisereduce(x: np.ndarray, rate: int, stationary: bool = True) -> np.ndarray:
    """Spectral gating with its defaults; it takes the whole recording for noise to find its threshold."""
    from noisereduce import reduce_noise

    return reduce_noise(y=x, sr=rate, stationary=stationary)


def rnnoise(x: np.ndarray, rate: int) -> np.ndarray:
    """The recurrent network, at 48 kHz as it wants it; without the delay of its output."""
    from pyrnnoise.rnnoise import FRAME_SIZE, SAMPLE_RATE, create, destroy, process_mono_frame

    up = resample_poly(x, SAMPLE_RATE, rate)
    frames = np.pad(up, (0, -len(up) % FRAME_SIZE + DELAY)).clip(-1, 1)
    frames = np.round(32767 * frames).astype(np.int16).reshape(-1, FRAME_SIZE)
    state = create()
    try:
        y = np.concatenate([process_mono_frame(state, frame)[0] for frame in frames])[DELAY:]
    finally:
        destroy(state)
    return resample_poly(y / 32767, rate, SAMPLE_RATE)[: len(x)]


DELAY = 960  # samples at 48 kHz, where the output for clean speech is most like its input


def filtered(gain: Callable[[np.ndarray], np.ndarray]) -> Method:
    """A method that multiplies each bin by a gain, which follows from the powers."""

    def clean(x: np.ndarray, rate: int) -> np.ndarray:
        X = spectrum.analyse(x, rate)
        return spectrum.synthesise(gain(np.abs(X) ** 2) * X, rate, len(x))

    return clean


def decision_directed(
    power: np.ndarray, log_spectral: bool, memory: float = 0.98, floor: float = 10**-2.5
) -> np.ndarray:
    """Gains of the Wiener filter or of log-MMSE, with Ephraim and Malah's estimate of the SNR (1984, 1985)."""
    noise, gains = presence_noise(power), np.empty_like(power)
    before = None  # clean power of the frame before
    for t in range(power.shape[1]):
        seen = np.minimum(power[:, t] / noise[:, t], 1e3)
        last = 1.0 if before is None else before / noise[:, t]
        prior = np.maximum(memory * last + (1 - memory) * np.maximum(seen - 1, 0), floor)
        gain = prior / (1 + prior)
        if log_spectral:
            gain = gain * np.exp(0.5 * exp1(np.maximum(gain * seen, 1e-8)))
        gains[:, t] = np.minimum(gain, 1)
        before = gains[:, t] ** 2 * power[:, t]
    return gains


def is_nmf(power: np.ndarray, components: int = 5, updates: int = 200) -> np.ndarray:
    """Wiener gains of a factorization by the Itakura–Saito divergence: W of speech is given, that of the noise is free.

    Speech has the spectra of the dictionary that comes with the package, as powers; the noise begins with those of the
    quietest fifth of the frames. Updates are Févotte, Bertin and Durrieu's (2009). Start and updates are the best of
    nine tried, by SDR, on four files that are not in the table.
    """
    generator = np.random.default_rng(0)
    V, dictionary = power / power.mean() + 1e-8, load()
    speech = dictionary.rows(len(V)).astype(float) ** (2 / dictionary.alpha) + 1e-12
    quiet = np.sort(V, 1)[:, : max(1, V.shape[1] // 5)].mean(1, keepdims=True)
    noise = quiet * generator.uniform(0.5, 1.5, (len(V), components))
    W, rank = np.hstack([speech / speech.sum(0), noise / noise.sum(0)]), speech.shape[1]
    H = generator.uniform(0.5, 1.5, (W.shape[1], V.shape[1])) * V.sum(0) / W.shape[1]
    H[:rank] *= 0.1
    for _ in range(updates):
        fit = W @ H
        H = np.maximum(H * (W.T @ (V / fit**2)) / (W.T @ (1 / fit)), 1e-9)
        fit, loud = W @ H, H[rank:]
        W[:, rank:] = np.maximum(W[:, rank:] * ((V / fit**2) @ loud.T) / ((1 / fit) @ loud.T), 1e-12)
    return (W[:, :rank] @ H[:rank]) / (W @ H)


def first_guess(power: np.ndarray) -> np.ndarray:
    """The Wiener filter by what our sampler begins with: what sampling adds is the difference to it."""
    speech, noise = guess(power / power.mean() + 1e-8)
    return expit(speech - noise)


def ours(**options: Any) -> Method:
    """Ours."""
    return lambda x, rate: np.concatenate([c.audio for c in denoise([x[:, None]], rate, **options)])[:, 0]


SAMPLERS = {"sgld": "SGLD", "psgld": "pSGLD", "hamcmc": "HAMCMC", "ensemble_hamcmc": "ensemble HAMCMC"}
LONGER = 200  # iterations, where samplers are compared with each other
METHODS: dict[str, Method] = {
    "noisy": lambda x, rate: x,
    "noisereduce": noisereduce,
    "noisereduce_moving": lambda x, rate: noisereduce(x, rate, stationary=False),
    "wiener": filtered(lambda power: decision_directed(power, False)),
    "log_mmse": filtered(lambda power: decision_directed(power, True)),
    "is_nmf": filtered(is_nmf),
    "rnnoise": rnnoise,
    "first_guess": filtered(first_guess),
    **{s: ours(sampler=s, iterations=LONGER) for s in SAMPLERS},
    "default": ours(),
}
PEERS = {"noisereduce": "noisereduce", "noisereduce_moving": "noisereduce", "rnnoise": "pyrnnoise"}
LABELS = {
    "noisy": "noisy",
    "noisereduce": "noisereduce, stationary",
    "noisereduce_moving": "noisereduce, non-stationary",
    "wiener": "Wiener, decision-directed",
    "log_mmse": "log-MMSE",
    "is_nmf": "IS-NMF, 5 components of noise",
    "rnnoise": "RNNoise",
    "first_guess": "our first guess, no sampling",
    **{s: f"ours, {name}, {LONGER}" for s, name in SAMPLERS.items()},
    "default": f"ours, the default: {SAMPLERS[DEFAULT.sampler]}, {DEFAULT.iterations}",
}
