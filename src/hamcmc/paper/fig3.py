"""Figure 3 of the paper: speech in noise at 5 dB, cleaned with SGLD, pSGLD, HAMCMC and Gibbs draws on one model.

The algorithm is the paper's: W and H are folded back at 0, and Φ moves by one Metropolis step with the prior as its
proposal. A run takes 2500 steps on a tenth of the entries each and averages the filter over the last 200. The paper
does not print step sizes and priors. One search, with the same budget for every sampler, chooses steps on development
sentences. A second table shows what our changes do, one by one. See :mod:`hamcmc.paper.denoising` for a single run.

Gibbs draws are not in the paper's figure. They need impulses for each of the 105 components and see all entries at
each step, so they get a tenth of the steps.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, silent
from hamcmc.paper.bench import Bench, Work
from hamcmc.paper.common import COLOURS, Reproduction, Table, finish, styled
from hamcmc.paper.corpus import make_corpus
from hamcmc.paper.denoising import CHANGES, Outcome, Recording, fingerprint, read_corpus, samples, train
from hamcmc.paper.journal import Journal
from hamcmc.speech import metrics

TITLE = "Figure 3: SDR of speech cleaned from noise at 5 dB"
PAPER = {"SGLD": 4.53, "pSGLD": 4.58, "HAMCMC": 5.07}
Ranges = dict[str, tuple[float, float]]


class Method(NamedTuple):
    """A sampler, its fixed options, what is searched for W and H themselves and for their logarithms, and a colour."""

    sampler: str
    options: Record
    mirrored: Ranges
    logs: Ranges
    colour: str


METHODS = {
    "SGLD": Method("sgld", {}, {"step_size": (1e-7, 1e-3)}, {"step_size": (1e-5, 1e-2)}, COLOURS["SGLD"]),
    "pSGLD": Method(
        "psgld",
        {},
        {"step_size": (1e-9, 1e-5), "regularizer": (1e-5, 1e-1)},
        {"step_size": (1e-8, 1e-4), "regularizer": (1e-5, 1e-1)},
        COLOURS["pSGLD"],
    ),
    # As printed: the base is γI, and every pair with sᵀy > 0 counts.
    "HAMCMC": Method(
        "hamcmc",
        {"memory": 5, "metric": None, "cosine": 0.0},
        {"step_size": (1e-3, 1.0), "gamma": (1e-6, 1e-2), "damping": (1.0, 1e5)},
        {"step_size": (1e-3, 1.0), "gamma": (1e-4, 1e-1), "damping": (1e-2, 1e3)},
        COLOURS["HAMCMC M=2"],
    ),
    "Gibbs": Method("gibbs", {}, {}, {}, COLOURS["ensemble"]),
}


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "speech_alpha": 1.2,
        "noise_alpha": 1.89,
        "speech_rank": 10 if quick else 100,
        "noise_rank": 5,
        "iterations": 200 if quick else 2500,
        "averaged": 50 if quick else 200,
        "candidates": 0 if quick else 12,  # 0: the middle of the ranges
        "test": 1 if quick else 10,  # sentences to test on: the last ones of the corpus
        "development": 1 if quick else 2,  # before those, to search on; the rest trains the dictionary
        "development_noises": 1 if quick else 2,
        "noises": 1 if quick else None,  # None: all
        "changed": 1 if quick else 2,  # test sentences on which changes are measured
        "gibbs": 1,  # test sentences for Gibbs draws, which take a hundred times as long
        "gibbs_noises": 1 if quick else 2,
    }


def chosen_changes(text: str | None) -> list[tuple[str, ...]]:
    """The rows of the second table: each change alone, then all; or those of a list like ``log,clip`` or ``none``."""
    if text is None:
        return [*((c,) for c in CHANGES), tuple(CHANGES)]
    if text == "none":
        return []
    names = text.split(",")
    for name in names:
        if name not in (*CHANGES, "all"):
            raise ValueError(f"changes must be a list of {', '.join(CHANGES)} and all, or none; got {name!r}")
    return [tuple(CHANGES) if name == "all" else (name,) for name in names]


def reproduce(
    out: Path,
    quick: bool = False,
    seed: int = 0,
    progress: Progress = silent,
    *,
    corpus: Path | None = None,
    changes: str | None = None,
) -> Reproduction:
    """Choose every method's parameters on development files, then compare on the test files.

    A run that was interrupted goes on where it was: finished files are in ``runs.json``.

    Args:
        out: where to write.
        quick: fewer files and iterations.
        seed: everything random follows from it.
        progress: called with each status.
        corpus: a directory with NOIZEUS; without one, synthetic mixtures are used.
        changes: which changes to measure, such as ``"log,clip"`` or ``"none"``; by default each, and all together
            (none in a quick run).
    """
    asked: Record = settings(quick) | {"corpus": None if corpus is None else corpus.name, "changes": changes}
    tables = chosen_changes("none" if quick and changes is None else changes)
    with tempfile.TemporaryDirectory() as folder:
        if corpus is None:
            make_corpus(Path(folder), asked["test"] + asked["development"] + (4 if quick else 18), seed)
        name = (
            "mixtures made here, of synthetic voices and noises"
            if corpus is None
            else f"files of the corpus {corpus.name}"
        )
        return _reproduce(Path(out), quick, seed, progress, asked, corpus or Path(folder), name, tables)


def _reproduce(
    out: Path,
    quick: bool,
    seed: int,
    progress: Progress,
    asked: Record,
    corpus: Path,
    name: str,
    tables: list[tuple[str, ...]],
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
    training = [f for n, f in clean.items() if n not in (*test, *aside)]
    W = train(training, asked["speech_rank"], asked["speech_alpha"], seed)

    def first(count: str) -> list[Recording]:
        """The test files of the first so many test sentences."""
        return [r for r in tested if r.sentence in test[: asked[count]]]

    work = []
    for label, method in METHODS.items():
        few = [r for r in first("gibbs") if r.noise in noises[: asked["gibbs_noises"]]]
        work.append(Work(label, method, (), tested if method.mirrored else few))
        work += [Work(label, method, c, first("changed")) for c in tables if method.mirrored]
    bench = Bench(
        W, asked, seed, tuning, Journal(out / "runs.json"), fingerprint([*training, *(r.noisy for r in recordings)])
    )
    done = bench.run(work, progress)
    noisy = [metrics.sdr(*_pair(r)) for r in tested]
    main = {w.label: done[w] for w in work if not w.changes}
    found = {label: [o.sdr for o in each.outcomes] for label, each in main.items()}
    claim = ordering(found)
    rows = [["noisy", *_means(noisy, tested, noises), "", "", "", "", ""]]
    for w in work:
        if not w.changes:
            each = done[w]
            covered = [f"{x:.2f}" for x in shares(each.outcomes)]
            sdrs = [o.sdr for o in each.outcomes]
            means = ["–" if np.isnan(m) else m for m in _means(sdrs, w.files, noises)]
            rows.append([w.label, *means, *covered, seconds(each.outcomes), PAPER.get(w.label, "")])
    second = []
    for w in work:
        if w.changes:
            pairs = list(zip((o.sdr for o in done[w].outcomes), _same_files(main[w.label].outcomes, tested, w.files)))
            gain = np.array([a - b for a, b in pairs])
            sdrs, good = np.array([a for a, _ in pairs]), np.isfinite(gain)
            second.append(
                {
                    "method": w.label,
                    "changes": list(w.changes),
                    "sdr": float(np.mean(sdrs[np.isfinite(sdrs)])) if np.isfinite(sdrs).any() else np.nan,
                    "gain": float(np.mean(gain[good])) if good.any() else np.nan,
                    "error": float(np.std(gain[good], ddof=1) / np.sqrt(good.sum())) if good.sum() > 1 else np.nan,
                    "covered": shares(done[w].outcomes),
                    "lost": int((~np.isfinite(sdrs)).sum()),
                    "seconds": seconds(done[w].outcomes),
                    "parameters": done[w].parameters,
                }
            )
    few = next(w.files for w in work if not w.method.mirrored)
    beside = {label: _same_files(main[label].outcomes, tested, few) for label in PAPER}
    beside |= {label: values for label, values in found.items() if label not in PAPER}
    lost = {label: int(np.isnan(values).sum()) for label, values in found.items()}
    chosen = (
        f"by the mean SDR on {len(tuning)} files of sentences in neither" if asked["candidates"] else "not searched for"
    )
    return finish(
        out,
        "fig3",
        f"{TITLE}\n{name}",
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["method", *noises, "mean SDR", "sd", "in 50 %", "in 90 %", "in 99 %", "s/file", "paper"],
        rows=rows,
        figures={
            "fig3": _draw(found, {w.label: w.files for w in work if not w.changes}, noises, float(np.mean(noisy)))
        },
        notes=[
            f"Data: {name}. {len(tested)} files, sentences {test[0]} to {test[-1]}; dictionary from {len(training)} "
            f"other sentences; parameters {chosen}. SDR in dB as in BSS-eval, with filters of 512 taps.",
            f"The paper's ordering at equal iterations, HAMCMC > pSGLD ≥ SGLD: {said(claim)}. Chains that were lost: "
            + ", ".join(f"{label} {n}" for label, n in lost.items())
            + ".",
            f"Gibbs draws take so long that they were made on {len(few)} of the files. The mean SDR on these: "
            + ", ".join(f"{label} {_means(sdrs, few, noises)[-2]:.2f} dB" for label, sdrs in beside.items())
            + ".",
        ],
        tables=[_of_changes(second, len(first("changed")))] * bool(second),
        more={
            "command": " ".join(
                [f"hamcmc reproduce fig3 --seed {seed}"]
                + ["--quick"] * quick
                + ["--corpus PATH"] * (asked["corpus"] is not None)
                + [f"--changes {asked['changes']}"] * (asked["changes"] is not None)
            ),
            "seconds": bench.spent,
            "tuned": {
                w.label: {"parameters": done[w].parameters, "tried": done[w].tried} for w in work if not w.changes
            },
            "sdr": found,
            "covered": {label: [o.covered for o in each.outcomes] for label, each in main.items()},
            "noisy_sdr": noisy,
            "files": [[r.sentence, r.noise] for r in tested],
            "changes": second,
            "claim": claim,
            "lost": lost,
        },
    )


def _of_changes(found: list[Record], files: int) -> Table:
    """What each of our changes does: one row for each method and change."""
    columns = ["method", "with", "mean SDR", "over the paper's", "in 50 %", "in 90 %", "in 99 %", "lost", "s/file"]
    rows = []
    for r in found:
        covered = [f"{x:.2f}" for x in r["covered"]]
        gain = f"{r['gain']:+.2f} ± {r['error']:.2f}"
        rows.append([r["method"], " + ".join(r["changes"]), f"{r['sdr']:.2f}", gain, *covered, r["lost"], r["seconds"]])
    return Table(f"Our changes to the paper's algorithm, on {files} of the files", columns, rows)


def shares(outcomes: Sequence[Outcome]) -> list[float]:
    """Mean shares of true spectra in the sets, over files whose chain was not lost."""
    kept = [o.covered for o in outcomes if np.isfinite(o.sdr)]
    return np.mean(kept, 0).tolist() if kept else [float("nan")] * 3


def seconds(outcomes: Sequence[Outcome]) -> float:
    """The median over files; compilation counts in the first of a length only."""
    return float(np.median([o.seconds for o in outcomes]))


def _pair(r: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Clean and noisy samples of the same number."""
    s, x = samples(r.clean), samples(r.noisy)
    n = min(len(s), len(x))
    return s[:n], x[:n]


def _means(values: Sequence[float], files: Sequence[Recording], noises: list[str]) -> list[float]:
    """Means for each noise, then mean and standard deviation of all, without lost chains."""
    groups = [
        [v for v, r in zip(values, files) if r.noise in ns and np.isfinite(v)]
        for ns in (*([n] for n in noises), noises)
    ]
    means = [float(np.mean(g)) if g else np.nan for g in groups]
    return [*means, float(np.std(groups[-1])) if groups[-1] else np.nan]


def _same_files(outcomes: Sequence[Outcome], files: list[Recording], some: list[Recording]) -> list[float]:
    """The SDR on some of the files."""
    by_file = {r.noisy: o.sdr for r, o in zip(files, outcomes)}
    return [by_file[r.noisy] for r in some]


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
def _draw(found: dict[str, list[float]], files: dict[str, list[Recording]], noises: list[str], noisy: float) -> Figure:
    fig = Figure(layout="constrained", figsize=(9, 4.6))
    axes = fig.subplots()
    width = 0.8 / len(found)
    for i, (label, values) in enumerate(found.items()):
        tested = files[label]
        groups = [np.array([v for v, r in zip(values, tested) if r.noise == n]) for n in noises]
        groups.append(np.array(values if all(len(g) for g in groups) else []))  # the mean over all noises, or none
        groups = [g[np.isfinite(g)] for g in groups]
        place = np.arange(len(groups)) + (i - (len(found) - 1) / 2) * width
        mean, spread = (np.array([f(g) if len(g) else np.nan for g in groups]) for f in (np.mean, np.std))
        colour = METHODS[label].colour
        axes.bar(place, mean, 0.9 * width, yerr=spread, color=colour, label=label, error_kw={"lw": 0.8})
        if label in PAPER:
            axes.hlines(PAPER[label], place[-1] - width / 2, place[-1] + width / 2, color="black", ls=":", lw=1.8)
    axes.axhline(noisy, color="0.4", lw=0.8, ls="--", label="noisy")
    axes.set_xticks(np.arange(len(noises) + 1), [*noises, "all"])
    axes.set(ylabel="SDR (dB)")
    axes.set_title("whiskers: sd over files; dotted: the paper's mean", fontsize=8)
    fig.legend(loc="outside lower center", fontsize=8, ncols=5)
    return fig
