"""The report of a factorization run: errors over time, calibration of the intervals, precisions, cost."""

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from hamcmc._types import Facts, Record
from hamcmc.factorization import predict
from hamcmc.factorization.baselines import Baselines, baselines
from hamcmc.factorization.predict import Factorization
from hamcmc.report import error, forest, frame, plots, predictive
from hamcmc.report.frame import duration, flatten, number, plural, value
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.directory import state
from hamcmc.store.settings import read_settings

LEVELS = [*(n / 20 for n in range(1, 20)), 0.99]
TABLED = (0.5, 0.8, 0.9, 0.95, 0.99)
GOOD_COVERAGE = 0.02  # the largest distance from 90 % that counts as calibrated
EXAMPLES = 20  # held-out ratings that are drawn with their intervals


def write(run: str | os.PathLike, out: str | os.PathLike | None = None) -> Path:
    """Write the report of a factorization run, complete or not.

    Args:
        run: the run's directory.
        out: the file to write; by default ``report.html`` in the run's directory.

    Returns:
        The file's path.
    """
    run = Path(run)
    return frame.save(page(run), run / "report.html" if out is None else Path(out))


def events(run: Path) -> list[Record]:
    """The log of a run, without a line that is still being written."""
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


def progress(log: Sequence[Facts]) -> list[Facts]:
    """One line per iteration, in order. If a resumed run repeated an iteration, its last line counts."""
    lines = {e["iteration"]: e for e in log if e.get("event") == "progress" and "seconds" in e}
    return [lines[i] for i in sorted(lines)]


def page(run: Path, progress_html: str | None = None) -> str:
    """The HTML of the report. With `progress_html`, which replaces the status, the page asks its server for news."""
    live = progress_html is not None
    if live and not draws_so_far(run):
        return _early(run, progress_html)
    model, log = predict.load(run), events(run)
    settings, lines = model.settings, progress(log)
    tested = bool(np.any(model.ratings.test))
    simple = baselines(model.ratings) if tested and not np.all(model.ratings.test) else None
    sections = {}
    if lines:
        sections["Error"] = error.section(lines, settings, simple)
    if tested:
        sections["Calibration"] = _calibration(model)
        sections["Predictions"] = _predictions(model)
    sections["Precisions"] = _precisions(model)
    sections["Cost"] = _cost(model, log, lines)
    sections["Settings"] = _settings(settings)
    version = str(settings.get("versions", {}).get("hamcmc", ""))
    top = (_status(model, run) if progress_html is None else progress_html) + _facts(model)
    return frame.document(run.resolve().name, top, _glance(model, lines, simple, tested), sections, version, live=live)


def draws_so_far(run: Path) -> int:
    """Stored draws of each chain, by the last checkpoint."""
    checkpoint = read_checkpoint(run)
    return 0 if checkpoint is None else int(checkpoint.meta.get("draws", 0))


def _early(run: Path, progress_html: str) -> str:
    """The page of a run in its warm-up."""
    settings, lines = read_settings(run), progress(events(run))
    sections = {"Error": error.section(lines, settings)} if lines else {}
    sections["Settings"] = _settings(settings)
    glance = frame.at_a_glance([], ["No draws are stored yet: they come after the warm-up, with the checkpoints."])
    version = str(settings.get("versions", {}).get("hamcmc", ""))
    return frame.document(run.resolve().name, progress_html, glance, sections, version, live=True)


# --- the top of the page ---


def _status(model: Factorization, run: Path) -> str:
    status = model.meta.get("status")
    if status == "complete":
        return frame.status("complete", "good")
    if status == "failed":
        return frame.status("failed", "bad", "", escape(str(model.meta.get("message", "no message"))))
    return frame.ongoing(state(str(status or "running"), run), "", run)


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


def _glance(model: Factorization, lines: Sequence[Facts], simple: Baselines | None, tested: bool) -> str:
    """The most important numbers, and what they mean."""
    cards, checks = [], []
    if tested:
        (covered,) = model.coverage([0.9])
        good, found = abs(covered - 0.9) <= GOOD_COVERAGE, model.rmse()
        beside = f"; {simple.biases:.4f} with biases only, {simple.mean:.4f} with the mean rating" if simple else ""
        cards += [
            ("Test RMSE", f"{found:.4f}", f"mean of {model.samples:,} draws{beside}", ""),
            ("Coverage of 90 % intervals", f"{100 * covered:.1f} %", "of the held-out ratings", _grade(good)),
        ]
        if simple and found >= simple.biases:
            checks.append(
                "Biases of users and items alone predict as well as the factors do: the ratings may be too few for "
                "factors, the rank too large, or the run too short."
            )
        if good:
            checks.append("The intervals cover as many held-out ratings as they promise.")
        else:
            kind = "too narrow" if covered < 0.9 else "too wide"
            checks.append(
                f"The intervals are {kind}: those of 90 % cover {100 * covered:.1f} % of the held-out ratings."
            )
    else:
        checks.append("No ratings were held out, so neither the error nor the intervals can be checked.")
    if lines:
        rates = [e["ratings_per_second"] for e in lines if "ratings_per_second" in e]
        cards.append(("Time", duration(lines[-1]["seconds"]), "in the compiled loop", ""))
        if rates:
            cards.append(("Ratings per second", number(float(np.median(rates))), "median", ""))
    return frame.at_a_glance(cards, checks)


def _grade(good: bool) -> str:
    return "good" if good else "warn"


# --- sections ---


def _calibration(model: Factorization) -> str:
    observed, n = model.coverage(LEVELS), int(np.sum(model.ratings.test))
    rows = [
        [f"{100 * level:.3g} %", f"{100 * share:.1f} %", f"± {196 * np.sqrt(level * (1 - level) / n):.1f} %"]
        for level, share in zip(TABLED, model.coverage(TABLED))
    ]
    return (
        "<p class='soft'>The share of held-out ratings inside their central interval, for each nominal level. On the "
        "diagonal the intervals are calibrated. Below it they are too narrow, above it too wide.</p>"
        '<div class="row">'
        + '<div class="square">'
        + frame.figure(_plot_calibration(observed, n), f"Observed against nominal coverage of {n:,} held-out ratings")
        + "</div>"
        + frame.table(
            ["nominal", "observed", "chance alone (95 %)"], rows, f"Coverage of {n:,} held-out ratings", kind="numbers"
        )
        + "</div>"
    )


def _plot_calibration(observed: np.ndarray, n: int) -> plots.Plot:
    level = np.array(LEVELS)
    chance = 1.96 * np.sqrt(level * (1 - level) / n)
    band = {"kind": "band", "x": LEVELS, "y": plots.pack(level - chance), "y2": plots.pack(level + chance)}
    series = [band | plots.named("chance alone", 5, ""), *plots.curves(level, {"observed": observed})]
    ends = [0.0, 1.01]
    return {
        "x": plots.axis("nominal coverage", range=ends),
        "y": plots.axis("observed coverage", range=ends),
        "series": series,
        "guides": [[0.0, 0.0, 1.0, 1.0]],
        "aspect": 1,
    }


def _predictions(model: Factorization) -> str:
    """What was held out beside what is predicted: single ratings with their intervals, and the distribution of all."""
    ratings = model.ratings
    test = np.flatnonzero(ratings.test)
    picked = test[np.unique(np.linspace(0, len(test) - 1, EXAMPLES).astype(int))]
    users, items = (
        np.asarray(ids)[np.asarray(at)[picked]]
        for ids, at in ((ratings.users, ratings.row), (ratings.items, ratings.column))
    )
    half, most = (model.predict(users, items, level=level, clip=True) for level in (0.5, 0.9))
    rows = [
        {
            "name": f"{users[i]}, {items[i]}",
            "at": [float(v[i]) for v in (most.low, half.low, most.mean, half.high, most.high)],
            "seen": float(ratings.value[picked[i]]),
        }
        for i in np.argsort(-most.mean, kind="stable")
    ]
    drawn = forest.plot(rows, "rating")
    return (
        "<p class='soft'>Held-out ratings (crosses) of a user for an item, with the predicted mean, the middle half "
        "and the middle 90 %, inside the scale of the ratings. Sorted by the mean.</p>"
        + frame.figure(drawn, "Held-out ratings with their predicted intervals")
        + predictive.section({"rating": model.generated()})
    )


def _precisions(model: Factorization) -> str:
    html = "<p class='soft'>The draws of each chain. A factor with a large precision is hardly used.</p>"
    shown = {
        "noise_precision": "Precision of the noise",
        "W_precision": "Precisions of users' factors",
        "H_precision": "Precisions of items' factors",
        "row_bias_precision": "Precision of users' biases",
        "column_bias_precision": "Precision of items' biases",
    }
    constant, figures = [], ""
    for name, caption in shown.items():
        if name not in model.hyper:
            continue
        x = model.hyper[name].reshape(model.draws, model.chains, -1)
        if np.ptp(x, axis=(0, 1)).max() == 0:
            constant.append(f"{caption.lower()} {value(float(x.mean()))}")
            continue
        figures += frame.figure(_plot_precisions(x), f"{caption} against the draw; mean {x.mean():.3g}", caption)
    if figures:
        if model.chains > 1:
            html += frame.key({plots.chain(c): c for c in plots.spread(model.chains, plots.CHAINS)}, "chains")
        html += f'<div class="row">{figures}</div>'
    return html + (f"<p>Fixed: {escape(', '.join(constant))}.</p>" if constant else "")


def _plot_precisions(x: np.ndarray) -> plots.Plot:
    """Precisions (draw, chain, factor) with a line for each. If there is one chain, each factor has its colour."""
    y = plots.axis()
    if x.min() > 0 and x.max() > plots.LOG * x.min():
        x, y["log"] = np.log10(x), True
    draws, chains, factors = x.shape
    lines = []
    for c in plots.spread(chains, max(1, plots.CHAINS // factors)):
        for k in range(factors):
            chain, factor = plots.chain(c), f"factor {k}"
            name = ", ".join([chain] * (chains > 1) + [factor] * (factors > 1)) or "precision"
            lines.append(
                plots.against_draws(x[:, c, k]) | plots.named(name, c if chains > 1 else k, chain if chains > 1 else "")
            )
    return {"x": plots.draws_axis(draws), "y": y, "series": lines, "height": 170}


def _cost(model: Factorization, log: Sequence[Facts], lines: Sequence[Facts]) -> str:
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
        frame.table(["", "amount"], rows, "Devices and processes are those of the last start", kind="wrap")
        if rows
        else "<p>–</p>"
    )


def _settings(settings: Facts) -> str:
    rows = [[k, value(v)] for k, v in flatten({k: v for k, v in settings.items() if k != "arrays"})]
    return frame.table(["setting", "value"], rows, "What was asked, and with which versions (run.json)", kind="words")
