"""The report of a factorization run: error against work, calibration of the intervals, precisions, cost."""

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from hamcmc.factorization import predict
from hamcmc.factorization.predict import Factorization
from hamcmc.record import guard_disk, write_atomically
from hamcmc.report import frame, plots
from hamcmc.report.frame import duration, flatten, number, plural, value

LEVELS = [*(n / 20 for n in range(1, 20)), 0.99]
TABLED = (0.5, 0.8, 0.9, 0.95, 0.99)
GOOD_COVERAGE = 0.02  # away from 90 %, at most
ERRORS = {"rmse": "of the mean of all draws so far", "rmse_draw": "of each draw"}


def write(run: str | os.PathLike, out: str | os.PathLike | None = None) -> Path:
    """Write the report of a factorization run, complete or not.

    Args:
        run: the run's directory.
        out: the file to write; by default ``report.html`` in the run's directory.

    Returns:
        The file's path.
    """
    run = Path(run)
    target = run / "report.html" if out is None else Path(out)
    html = page(predict.load(run), events(run), run)
    with guard_disk(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, html.encode())
    return target


def events(run: Path) -> list[dict[str, Any]]:
    """The log of a run; a line that is still being written is left out."""
    found = []
    file = run / "events.jsonl"
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def progress(log: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One line per iteration, in order: what a resumed run repeats counts as it was the last time."""
    lines = {e["iteration"]: e for e in log if e.get("event") == "progress" and "seconds" in e}
    return [lines[i] for i in sorted(lines)]


def page(model: Factorization, log: Sequence[Mapping[str, Any]], run: Path) -> str:
    """The HTML of the report."""
    settings, lines = model.settings, progress(log)
    tested = bool(np.any(model.ratings.test))
    sections = {}
    if lines:
        sections["Error"] = _errors(lines, settings)
    if tested:
        sections["Calibration"] = _calibration(model)
    sections["Precisions"] = _precisions(model)
    sections["Cost"] = _cost(model, log, lines)
    sections["Settings"] = _settings(settings)
    version = str(settings.get("versions", {}).get("hamcmc", ""))
    top, glance = _status(model, run) + _facts(model), _glance(model, lines, tested)
    return frame.document(run.resolve().name, top, glance, sections, version)


# --- the top of the page ---


def _status(model: Factorization, run: Path) -> str:
    status = model.meta.get("status")
    if status == "complete":
        return '<p><span class="status good">complete</span></p>'
    if status == "failed":
        message = escape(str(model.meta.get("message", "no message")))
        return f'<p><span class="status bad">failed</span></p><p class="message bad">{message}</p>'
    return (
        '<p><span class="status warn">not finished</span></p><p class="message warn">This page shows the draws up to '
        "the last checkpoint. The run may still be going on; if it was stopped, "
        f"<code>hamcmc resume {escape(str(run))}</code> continues it.</p>"
    )


def _facts(model: Factorization) -> str:
    s, ratings = model.settings, model.ratings
    test = int(np.sum(ratings.test))
    low, high = s["rating_range"]
    facts = {
        "Ratings": f"{ratings.size:,} from {value(low)} to {value(high)}, {test:,} of them held out",
        "Matrix": f"{len(ratings.users):,} users × {len(ratings.items):,} items",
        "Model": f"{s['model']}, rank {s['rank']}",
        "Draws": f"{plural(model.chains, 'chain')} × {plural(model.draws, 'draw')}",
    }
    sampler = s.get("sampler")
    if isinstance(sampler, Mapping):
        options = ", ".join(f"{k} {value(v)}" for k, v in sampler.items() if k != "sampler" and v is not None)
        facts["Sampler"] = str(sampler.get("sampler")) + (f" ({options})" if options else "")
    if "seed" in s:
        facts["Seed"] = s["seed"]
    return frame.facts(facts)


def _glance(model: Factorization, lines: Sequence[Mapping[str, Any]], tested: bool) -> str:
    """The numbers that matter first, and what they mean."""
    cards, checks = [], []
    if tested:
        (covered,) = model.coverage([0.9])
        good = abs(covered - 0.9) <= GOOD_COVERAGE
        cards += [
            ("Test RMSE", f"{model.rmse():.4f}", f"mean of {model.samples:,} draws", ""),
            ("Coverage of 90 % intervals", f"{100 * covered:.1f} %", "of the held-out ratings", _grade(good)),
        ]
        if good:
            checks.append("The intervals hold as many held-out ratings as they promise.")
        else:
            kind = "too narrow" if covered < 0.9 else "too wide"
            checks.append(f"The intervals are {kind}: 90 % of them should cover, and {100 * covered:.1f} % do.")
    else:
        checks.append("No ratings were held out: neither the error nor the intervals can be checked.")
    if lines:
        rates = [e["ratings_per_second"] for e in lines if "ratings_per_second" in e]
        cards.append(("Time", duration(lines[-1]["seconds"]), "in the compiled loop", ""))
        if rates:
            cards.append(("Ratings per second", number(float(np.median(rates))), "median", ""))
    return frame.at_a_glance(cards, checks)


def _grade(good: bool) -> str:
    return "good" if good else "warn"


# --- sections ---


def _errors(lines: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    curves = {k: _curve(lines, k) for k in ERRORS}
    curves = {k: x for k, x in curves.items() if np.isfinite(x).any()}
    if not curves:
        return "<p>No test error was logged.</p>"
    burn_in = settings.get("warmup", 0)
    html = "<p class='soft'>Root mean square error on the held-out ratings. "
    html += (
        f"The dotted line marks the end of the burn-in, after {plural(burn_in, 'iteration')}.</p>"
        if burn_in
        else "</p>"
    )
    key = "".join(
        f'<li><i style="background:var(--chain-{list(ERRORS).index(k)})"></i>{ERRORS[k]}</li>' for k in curves
    )
    html += f'<ul class="key" aria-label="Colours">{key}</ul><div class="row">'
    last = ", ".join(f"{x[np.isfinite(x)][-1]:.4f} {ERRORS[k]}" for k, x in curves.items())
    iterations, seconds = _curve(lines, "iteration"), _curve(lines, "seconds")
    after = seconds[iterations >= burn_in]
    for name, when, mark in (
        ("iteration", iterations, burn_in),
        ("seconds", seconds, after[0] if burn_in and len(after) else 0),
    ):
        html += frame.figure(_draw_errors(when, curves, name, mark), f"Test RMSE against {name}; at the end {last}")
    return html + "</div>"


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([np.nan if e.get(name) is None else e[name] for e in lines], float)


@mpl.rc_context(plots.STYLE)
def _draw_errors(when: np.ndarray, curves: Mapping[str, np.ndarray], name: str, mark: float) -> str:
    fig, ax = plots._figure(4.6, 2.4)
    rows = plots.spread(len(when), plots.POINTS)
    for k in reversed(list(curves)):  # the mean on top
        marker = ".-" if len(when) < 30 else "-"
        ax.plot(when[rows], curves[k][rows], marker, lw=1.2, color=plots.CHAIN[list(ERRORS).index(k)])
    if mark:
        ax.axvline(mark, color=plots.FAINT, lw=0.8, ls=":")
    late = np.concatenate([x[len(x) // 10 :] for x in curves.values()])
    late = late[np.isfinite(late)]
    if len(late):  # the first steps would leave nothing to see of the others
        margin = 0.05 * np.ptp(late) + 1e-3
        ax.set_ylim(late.min() - margin, np.quantile(late, 0.99) + margin)
    ax.set_xlabel(name)
    ax.set_ylabel("test RMSE")
    return plots.svg(fig)


def _calibration(model: Factorization) -> str:
    observed, n = model.coverage(LEVELS), int(np.sum(model.ratings.test))
    rows = [
        [f"{100 * level:.3g} %", f"{100 * share:.1f} %", f"± {196 * np.sqrt(level * (1 - level) / n):.1f} %"]
        for level, share in zip(TABLED, model.coverage(TABLED))
    ]
    return (
        "<p class='soft'>The share of held-out ratings inside their central interval, for each nominal level. On the "
        "diagonal the intervals are honest; below it they are too narrow, above it too wide.</p>"
        '<div class="row">'
        + frame.figure(_draw_calibration(observed), f"Observed against nominal coverage of {n:,} held-out ratings")
        + frame.table(
            ["nominal", "observed", "chance alone (95 %)"], rows, f"Coverage of {n:,} held-out ratings", kind="numbers"
        )
        + "</div>"
    )


@mpl.rc_context(plots.STYLE)
def _draw_calibration(observed: np.ndarray) -> str:
    fig, ax = plots._figure(4.6, 3.4)
    ax.plot([0, 1], [0, 1], color=plots.FAINT, lw=0.8, ls=":")
    ax.plot(LEVELS, observed, "o-", color=plots.CHAIN[0], ms=3, lw=1.2)
    ax.set(xlim=(0, 1), ylim=(0, 1.01), xlabel="nominal coverage", ylabel="observed coverage", aspect="equal")
    return plots.svg(fig)


def _precisions(model: Factorization) -> str:
    html = (
        "<p class='soft'>Over the draws of all chains. A factor of large precision is hardly used.</p><div class='row'>"
    )
    shown = {
        "noise_precision": "Precision of the noise",
        "W_precision": "Precisions of users' factors",
        "H_precision": "Precisions of items' factors",
        "row_bias_precision": "Precision of users' biases",
        "column_bias_precision": "Precision of items' biases",
    }
    constant = []
    for name, caption in shown.items():
        if name not in model.hyper:
            continue
        x = model.hyper[name].reshape(model.samples, -1)
        if np.ptp(x, axis=0).max() == 0:
            constant.append(f"{caption.lower()} {value(float(x.mean()))}")
            continue
        html += frame.figure(_draw_precisions(x), f"{caption} against the draw; mean {x.mean():.3g}", caption)
    html += "</div>"
    return html + (f"<p>Fixed: {escape(', '.join(constant))}.</p>" if constant else "")


@mpl.rc_context(plots.STYLE)
def _draw_precisions(x: np.ndarray) -> str:
    fig, ax = plots._figure(4.6, 1.8)
    rows = plots.spread(len(x), plots.POINTS)
    for k in range(x.shape[1]):
        ax.plot(rows, x[rows, k], ".-" if len(rows) < 30 else "-", color=plots._colour(k), lw=0.8, alpha=0.85)
    if x.min() > 0 and x.max() > 30 * x.min():
        ax.set_yscale("log")
    plots._against_draws(ax, len(x))
    return plots.svg(fig)


def _cost(model: Factorization, log: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> str:
    s, meta = model.settings, model.meta
    start = next((e for e in reversed(log) if e.get("event") == "start"), {})
    rows = []
    if lines:
        seconds = lines[-1]["seconds"]
        rows += [["time in the compiled loop", duration(seconds)], ["iterations", f"{lines[-1]['iteration']:,}"]]
        rows += [["time per stored draw", duration(seconds / model.samples)]]
        rates = [e["ratings_per_second"] for e in lines if "ratings_per_second" in e]
        if rates:
            rows.append(["ratings per second (median)", number(float(np.median(rates)))])
    if "gradients" in meta:
        rows.append(["minibatch gradients", f"{meta['gradients']:,}"])
    for name in ("devices", "processes"):
        if (n := start.get(name, s.get(name))) is not None:
            rows.append([name, value(n)])
    share = next((x["communication_share"] for x in (meta, s) if "communication_share" in x), None)
    if share is not None:
        rows.append(["share of communication", f"{100 * share:.1f} %"])
    return (
        frame.table(["", "amount"], rows, "The last start counts for devices and processes", kind="wrap")
        if rows
        else "<p>–</p>"
    )


def _settings(settings: Mapping[str, Any]) -> str:
    rows = [[k, value(v)] for k, v in flatten({k: v for k, v in settings.items() if k != "arrays"})]
    return frame.table(["setting", "value"], rows, "What was asked, and with which versions (run.json)", kind="words")
