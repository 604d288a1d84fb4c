"""Figure 3 of the paper: speech in noise at 5 dB, cleaned with SGLD, pSGLD and HAMCMC on one model.

Speech is a source of α = 1.2 with 100 components. Its W is learned from clean speech and then held fixed. Noise is a
source of α = 1.89 with 5 components, all of them free. A run takes 2500 steps on a tenth of the entries each, and
averages the filter over the last 200 steps (every tenth).
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper.common import COLOURS, Reproduction, finish, styled
from hamcmc.paper.corpus import make_corpus
from hamcmc.speech import audio, dictionary, metrics, spectrum
from hamcmc.stable import Prior, Source, separate
from hamcmc.store.errors import NonFinite

TITLE = "Figure 3: SDR of speech cleaned from noise at 5 dB"
PAPER = {"SGLD": 4.53, "pSGLD": 4.58, "HAMCMC": 5.07}
PADDED = 64  # recordings are padded to a multiple of so many frames, so that they share compiled programs


class Method(NamedTuple):
    """A sampler, its options, the step sizes that are tried on the development files, and the colour of its bars."""

    sampler: str
    options: Record
    steps: tuple[float, ...]
    colour: str


METHODS = {
    "SGLD": Method("sgld", {}, (3e-3, 1e-3, 3e-4), COLOURS["SGLD"]),
    "pSGLD": Method("psgld", {"regularizer": 1e-3}, (5e-6, 2e-6, 5e-7), COLOURS["pSGLD"]),
    "HAMCMC": Method("hamcmc", {"memory": 5}, (1.0, 0.3, 0.1), COLOURS["HAMCMC M=2"]),
}


class Recording(NamedTuple):
    """A noisy file, the clean file, the number of the sentence, and the name of the noise."""

    noisy: Path
    clean: Path
    sentence: int
    noise: str


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "speech_alpha": 1.2,
        "noise_alpha": 1.89,
        "speech_rank": 20 if quick else 100,
        "noise_rank": 5,
        "memory": 5,
        "iterations": 300 if quick else 2500,
        "averaged": 100 if quick else 200,
        "sweeps": 1 if quick else 3,
        "test": 1 if quick else 10,  # sentences to test on: the last ones of the corpus
        "development": 1 if quick else 2,  # before those, to choose step sizes on; the rest trains the dictionary
        "development_noises": 1 if quick else 2,
        "noises": 2 if quick else None,  # None: all
        "search": not quick,  # a quick run takes the middle one of the step sizes
    }


def read_corpus(path: Path) -> tuple[list[Recording], dict[int, Path]]:
    """Noisy files ``spNN_NOISE_sn5.wav`` and clean ones ``spNN.wav`` anywhere in a directory, as NOIZEUS has them."""
    if not path.is_dir():
        raise ValueError(f"no directory at {path}")
    files = sorted(path.rglob("*.wav"))
    clean = {int(m[1]): f for f in files if (m := re.fullmatch(r"sp(\d+)\.wav", f.name))}
    found = [(f, m) for f in files if (m := re.fullmatch(r"sp(\d+)_(\w+)_sn5\.wav", f.name))]
    noisy = [Recording(f, clean[int(m[1])], int(m[1]), m[2]) for f, m in found if int(m[1]) in clean]
    if not noisy:
        raise ValueError(f"{path} has no files spNN_NOISE_sn5.wav with clean ones spNN.wav, as NOIZEUS has them")
    return noisy, clean


def spectra(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Samples at unit power, spectra padded with missing frames, and the sample rate."""
    source = audio.info(path)
    x = audio.read(source)[:, 0].astype(np.float64)
    x = x / np.sqrt(np.mean(x**2))
    X = spectrum.analyse(x, source.rate)
    return x, np.pad(X, ((0, 0), (0, -X.shape[1] % PADDED)), constant_values=np.nan), source.rate


def cleaned(noisy: Path, W: np.ndarray, method: Method, step_size: float, asked: Record, seed: int) -> np.ndarray:
    """The posterior mean of the speech in a file."""
    x, X, rate = spectra(noisy)
    # H of the noise is nearly constant, so that its components do not follow the speech; W holds the spectrum.
    speech = Source(W.shape[1], asked["speech_alpha"], W[: len(X)], prior_H=Prior(0.6, 1e-5))
    noise = Source(asked["noise_rank"], asked["noise_alpha"], prior_W=Prior(0.1), prior_H=Prior(20.0))
    found = separate(
        X,
        [speech, noise],
        sampler=method.sampler,
        options=method.options,
        step_size=step_size,
        warmup=asked["iterations"] - asked["averaged"],
        num_samples=asked["averaged"] // 10,
        sweeps=asked["sweeps"],
        seed=seed,
        progress=False,
    )
    bins = np.nan_to_num(found.sources[0].gain * X)
    return spectrum.synthesise(bins, rate, len(x))


def score(recording: Recording, estimate: np.ndarray) -> float:
    """SDR against the clean file."""
    reference = audio.read(audio.info(recording.clean))[:, 0].astype(np.float64)
    n = min(len(reference), len(estimate))
    return metrics.sdr(reference[:n], estimate[:n])


def try_score(recording: Recording, run: Callable[[], np.ndarray]) -> float:
    """SDR, or nan if the chain became non-finite."""
    try:
        return score(recording, run())
    except NonFinite:
        return float("nan")


def reproduce(
    out: Path,
    quick: bool = False,
    seed: int = 0,
    progress: Progress = silent,
    *,
    corpus: Path | None = None,
) -> Reproduction:
    """Choose every method's step on development files, then compare on the test files.

    Args:
        out: where to write.
        quick: fewer files and iterations.
        seed: everything random follows from it.
        progress: called with each status.
        corpus: a directory with NOIZEUS; without one, synthetic mixtures are used.
    """
    asked: Record = settings(quick) | {"corpus": None if corpus is None else str(corpus)}
    with tempfile.TemporaryDirectory() as folder:
        progress(Status(0.0, "corpus"))
        if corpus is None:
            make_corpus(Path(folder), asked["test"] + asked["development"] + (4 if quick else 18), seed)
        name = "mixtures made here, of synthetic voices and noises" if corpus is None else f"files of {corpus}"
        return _reproduce(Path(out), quick, seed, progress, asked, Path(folder) if corpus is None else corpus, name)


def _reproduce(
    out: Path, quick: bool, seed: int, progress: Progress, asked: Record, corpus: Path, name: str
) -> Reproduction:
    recordings, clean = read_corpus(corpus)
    sentences = sorted({r.sentence for r in recordings})
    kept = asked["test"] + asked["development"]
    if len(sentences) <= kept:
        raise ValueError(f"{len(sentences)} sentences are too few: {kept} of them are not for training")
    test, aside = sentences[-asked["test"] :], sentences[-kept : -asked["test"]]
    noises = sorted({r.noise for r in recordings})[: asked["noises"]]
    tested = [r for r in recordings if r.sentence in test and r.noise in noises]
    tuning = [r for r in recordings if r.sentence in aside and r.noise in noises[: asked["development_noises"]]]
    progress(Status(0.02, "dictionary"))
    training = [f for n, f in clean.items() if n not in (*test, *aside)]
    W = dictionary.train(training, rank=asked["speech_rank"], alpha=asked["speech_alpha"], seed=seed, progress=False).W
    W = W.astype(float) + 1e-7

    trials = max(len(m.steps) for m in METHODS.values()) if asked["search"] else 0
    runs, done = len(METHODS) * (trials * len(tuning) + len(tested)), 0
    tuned: Record = {}
    found: dict[str, list[float]] = {}

    def sdr_of(label: str, method: Method, r: Recording, step_size: float, number: int) -> float:
        nonlocal done
        progress(Status(0.05 + 0.95 * done / runs, label))
        done += 1
        return try_score(r, lambda: cleaned(r.noisy, W, method, step_size, asked, number))

    for label, method in METHODS.items():
        tried = []
        for step_size in method.steps if asked["search"] else ():
            each = [sdr_of(f"{label}: search", method, r, step_size, seed + 1_000_000) for r in tuning]
            tried.append({"step_size": step_size, "score": float(np.nan_to_num(np.mean(each), nan=-np.inf))})
        middle = {"step_size": method.steps[len(method.steps) // 2], "score": None}
        best = max(tried, key=lambda t: t["score"], default=middle)
        tuned[label] = best | {"tried": tried}
        found[label] = [sdr_of(f"{label}: {r.noise}", method, r, best["step_size"], seed) for r in tested]
    noisy = [score(r, spectra(r.noisy)[0]) for r in tested]
    claim = ordering(found)

    def row(values: list[float]) -> list[float]:
        """Means for each noise, then mean and standard deviation of all, without lost chains."""
        kept = [
            [v for v, r in zip(values, tested) if r.noise in ns and np.isfinite(v)]
            for ns in (*([n] for n in noises), noises)
        ]
        return [float(np.mean(k)) if k else np.nan for k in kept] + [float(np.std(kept[-1])) if kept[-1] else np.nan]

    rows = [["noisy", "", *row(noisy), ""]]
    for label, values in found.items():
        rows.append([label, f"{tuned[label]['step_size']:.1g}", *row(values), PAPER[label]])
    chosen = f"by the mean SDR on {len(tuning)} files of sentences in neither" if trials else "not searched for"
    lost = {label: int(np.isnan(values).sum()) for label, values in found.items()}
    return finish(
        out,
        "fig3",
        f"{TITLE}\n{name}",
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["method", "ε", *noises, "mean SDR", "sd", "paper"],
        rows=rows,
        figures={"fig3": _draw(found, tested, noises, float(np.mean(noisy)))},
        notes=[
            f"Data: {name}. {len(tested)} files, sentences {test[0]} to {test[-1]}; dictionary from {len(training)} "
            f"other sentences; steps {chosen}. SDR in dB as in BSS-eval, with filters of 512 taps.",
            f"The paper's ordering at equal iterations, HAMCMC > pSGLD ≥ SGLD: {said(claim)}. Chains that were lost: "
            + ", ".join(f"{label} {n}" for label, n in lost.items())
            + ".",
        ],
        more={
            "tuned": tuned,
            "sdr": found,
            "noisy_sdr": noisy,
            "files": [[r.sentence, r.noise] for r in tested],
            "claim": claim,
            "lost": lost,
        },
    )


def ordering(found: dict[str, list[float]]) -> Record:
    """Mean differences of SDR over the files that neither method lost, with standard errors, and whether they hold."""
    differences = {}
    for better, worse in (("HAMCMC", "pSGLD"), ("pSGLD", "SGLD")):
        d = np.asarray(found[better]) - np.asarray(found[worse])
        d = d[np.isfinite(d)]
        error = float(np.std(d, ddof=1) / np.sqrt(len(d))) if len(d) > 1 else float("nan")
        mean = float(np.mean(d)) if len(d) else float("nan")
        differences[f"{better} − {worse}"] = {"mean": mean, "error": error}
    first, second = (d["mean"] for d in differences.values())
    return {"holds": bool(first > 0 and second >= 0), "differences": differences}


def said(claim: Record) -> str:
    """The claim in words."""
    parts = (f"{k} = {d['mean']:+.2f} ± {d['error']:.2f} dB" for k, d in claim["differences"].items())
    return ("true here" if claim["holds"] else "not so here") + " (" + ", ".join(parts) + ")"


@styled
def _draw(found: dict[str, list[float]], tested: list[Recording], noises: list[str], noisy: float) -> Figure:
    fig = Figure(layout="constrained", figsize=(9, 4.6))
    axes = fig.subplots()
    width = 0.8 / len(found)
    for i, (label, values) in enumerate(found.items()):
        groups = [np.array([v for v, r in zip(values, tested) if r.noise == n]) for n in noises] + [np.array(values)]
        groups = [g[np.isfinite(g)] for g in groups]
        place = np.arange(len(groups)) + (i - (len(found) - 1) / 2) * width
        mean, spread = (np.array([f(g) if len(g) else np.nan for g in groups]) for f in (np.mean, np.std))
        colour = METHODS[label].colour
        axes.bar(place, mean, 0.9 * width, yerr=spread, color=colour, label=label, error_kw={"lw": 0.8})
        axes.hlines(PAPER[label], place[-1] - width / 2, place[-1] + width / 2, color="black", ls=":", lw=1.8)
    axes.axhline(noisy, color="0.4", lw=0.8, ls="--", label="noisy")
    axes.set_xticks(np.arange(len(noises) + 1), [*noises, "all"])
    axes.set(ylabel="SDR (dB); bars: sd over files; dotted: the paper's mean")
    axes.legend(fontsize=8, ncols=4)
    return fig
