"""The report of a sampling run: one self-contained HTML page, which never uses the network."""

import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc._types import Facts
from hamcmc.diagnostics.costs import PARTS, Cost, cost
from hamcmc.diagnostics.result import Result
from hamcmc.diagnostics.summaries import Summary, format_cell, summary
from hamcmc.diagnostics.verdict import HEADS, Verdict
from hamcmc.report import forest, frame, mixing, parameters, plots
from hamcmc.report import predictive as checks
from hamcmc.report.frame import duration, flatten, number, plural, value
from hamcmc.report.predictions import Classes, Numbers, section
from hamcmc.store.directory import state

ROWS = 20  # of the table that is open at first; the rest is folded
SHOWN = 8  # parameters with trace and density
MIXED = 4  # parameters with ranks, autocorrelation and the growth of the ESS
PAIRED = 6  # parameters in the pair plot
GOOD_R_HAT = 1.01
GOOD_ESS = 400
BAD = ("not converged", "wrong")  # verdicts whose worst parameters are marked
GRADES = {"good": "good", "usable": "warn", "not converged": "bad", "wrong": "bad"}  # word of the verdict → colour
COLUMNS = {  # what says whether to trust a row comes early: a phone shows the first four
    "mean": "mean",
    "sd": "sd",
    "r_hat": "R-hat",
    "ess_bulk": "ESS bulk",
    "ess_tail": "ESS tail",
    "mcse": "MCSE",
    "q5": "5 %",
    "q50": "50 %",
    "q95": "95 %",
}
WORST = ("r_hat_ensembles", "ess_bulk", "mean_error", "sd_error", "tail_error", "r_hat", "ess_tail")  # in this order
STATS = {
    "step_size": "Step size ε",
    "grad_norm": "Gradient norm ‖∇ log p‖",
    "pairs_accepted": "Share of pairs accepted",
    "eigenvalue_bound": "Bound on the largest eigenvalue of H",
    "drift_norm": "Size of the drift",
    "noise_norm": "Size of the noise",
}


def write_report(
    run: Result | str | os.PathLike,
    out_html: str | os.PathLike | None = None,
    *,
    predictive: Mapping[str, tuple[Any, Any]] | None = None,
    predictions: Classes | Numbers | None = None,
) -> Path:
    """Write the report of a run, complete or not.

    Args:
        run: a run's directory, or a :class:`~hamcmc.Result`.
        out_html: the file to write; by default ``report.html`` in the run's directory, or here for a Result.
        predictive: for a predictive check, the name of a variable → (observed data, data that draws of the posterior
            generate), arrays of shapes (…) and (draws, …).
        predictions: for a section about predictions, :class:`~hamcmc.report.Classes` or `Numbers`.

    Returns:
        The file's path.
    """
    directory = None if isinstance(run, Result) else Path(run)
    result = run if isinstance(run, Result) else Result.open(run)
    out = (directory or Path()) / "report.html" if out_html is None else Path(out_html)
    more = {"Check": checks.section(predictive)} if predictive else {}
    if predictions is not None:
        more["Predictions"] = section(predictions)
    return frame.save(page(result, directory, after=more), out)


def page(
    result: Result,
    directory: Path | None = None,
    progress: str | None = None,
    before: Mapping[str, str] | None = None,
    title: str | None = None,
    after: Mapping[str, str] | None = None,
) -> str:
    """The HTML of the report.

    Args:
        result: the run.
        directory: where it is.
        progress: HTML that replaces the status, in a page that asks its server for news.
        before: sections to put first.
        title: the heading; by default the directory's name.
        after: sections to put before the sampler's.
    """
    sampler = result.settings["sampler"]["sampler"]
    title = title or (directory.resolve().name if directory else f"A run of {sampler}")
    verdict = result.check()
    table = summary(result, verdict=verdict)
    spent = cost(result, table)
    worst = [row.name for row in verdict.worst]
    blamed = [name for name in worst if any(name in reason for reason in verdict.reasons)]
    sections = {**(before or {}), "Verdict": _verdict(verdict)}
    if _for_predictions(result):
        sections |= after or {}
    if result.draws:
        sections["Estimates"] = forest.section(result, table, blamed if verdict.word in BAD else ())
    sections["Diagnostics"] = _diagnostics(table, worst)
    if result.draws:
        # On a page that is renewed, parameters keep their places while the reader looks at them.
        shown, mixed, paired = (
            interesting(table, most, worst) if progress is None else sorted(interesting(table, most, worst))
            for most in (SHOWN, MIXED, PAIRED)
        )
        sections["Parameters"] = parameters.section(result, table, shown)
        sections["Mixing"] = mixing.section(result, table, mixed, GOOD_ESS)
        if len(table) > 1:
            sections["Pairs"] = parameters.pairs(result, table, paired)
    sections |= after or {}
    if result.draws:
        sections["Sampler"] = _sampler(result)
    sections |= {"Cost": _cost(spent), "Settings": _settings(result)}
    top = frame.status(verdict.word, GRADES[verdict.word], verdict.reason)
    top += (_status(result, directory) if progress is None else progress) + _facts(result)
    version = str(result.settings["versions"].get("hamcmc", ""))
    return frame.document(
        title, top, _glance(result, table, spent, verdict), sections, version, live=progress is not None
    )


def interesting(table: Summary, most: int, worst: Sequence[str] = ()) -> list[int]:
    """Rows to show, the worst first: those that the verdict names, then by their ESS; rows without one come last."""
    ess = np.where(np.isfinite(table["ess_bulk"]), np.fmin(table["ess_bulk"], table["ess_tail"]), np.inf)
    named = {name: i for i, name in enumerate(worst)}
    order = sorted(range(len(table)), key=lambda i: (named.get(table.names[i], len(named)), ess[i], i))
    return order[:most]


# --- the top of the page ---


def _status(result: Result, directory: Path | None) -> str:
    meta, total = result.meta, iterations(result.settings)
    where = f"iteration {meta['iteration']:,} of {total:,}"
    if meta["status"] == "complete":
        return frame.status("complete", "good", plural(total, "iteration"))
    if meta["status"] == "failed":
        return frame.status("failed", "bad", where, escape(str(meta.get("message", "no message"))))
    return frame.ongoing(state(meta["status"], directory), where, directory)


def iterations(settings: Facts) -> int:
    """Iterations of the whole run."""
    return settings["warmup"] + settings["num_samples"] * settings["thin"]


def _facts(result: Result) -> str:
    s = result.settings
    options = ", ".join(f"{k} {value(v)}" for k, v in s["sampler"].items() if k != "sampler" and v is not None)
    asked = f" of {s['num_samples']:,}" if result.draws < s["num_samples"] else ""
    draws = f"{plural(s['chains'], 'chain')} × {plural(result.draws, 'draw')}{asked}"
    thin = f", one every {s['thin']:,} iterations" if s["thin"] > 1 else ""
    batch = "all of them at each step" if s["batch_size"] is None else f"minibatches of {s['batch_size']:,}"
    sizes = {a["name"]: a["shape"] for a in s["arrays"] if a["group"] == "posterior"}
    facts = {
        "Sampler": s["sampler"]["sampler"] + (f" ({options})" if options else ""),
        "Step size": _schedule(s["step_size"]),
        "Draws": f"{draws}{thin}, after {plural(s['warmup'], 'iteration')} of warm-up",
        "Data": f"{s['data_size']:,} rows, {batch}" if s["data_size"] else "none",
        "Parameters": ", ".join(f"{n} ({' × '.join(map(str, shape)) or 'scalar'})" for n, shape in sizes.items()),
        "Seed": s["seed"],
    }
    return frame.facts(facts)


def _schedule(spec: Facts) -> str:
    match spec:
        case {"schedule": "constant", "step_size": epsilon}:
            return f"ε = {value(epsilon)}, constant"
        case {"schedule": "polynomial", "a": a, "b": b}:
            return f"ε_t = ({value(a)} / t)^{value(b)}, t = 1, 2, …"
    return "a schedule of the user"


def _glance(result: Result, table: Summary, spent: Cost, verdict: Verdict) -> str:
    """The numbers that say whether to trust the draws, and what they mean."""
    chains = result.settings["chains"]
    worst = int(np.nanargmax(table["r_hat"])) if np.isfinite(table["r_hat"]).any() else None
    r_hat = np.nan if worst is None else table["r_hat"][worst]
    ess, poorest = smallest_ess(table)
    cards = [
        ("Smallest ESS", format_cell("ess", ess), _of(poorest), _grade(poorest is not None, ess >= GOOD_ESS)),
        (
            "Largest R-hat",
            format_cell("r_hat", r_hat),
            "needs 2 chains" if chains == 1 else _of(None if worst is None else table.names[worst]),
            _grade(worst is not None, r_hat <= GOOD_R_HAT),
        ),
        ("Gradients per effective sample", number(spent.gradients_per_effective_sample), "of the slowest entry", ""),
        ("Time per effective sample", duration(spent.seconds_per_effective_sample), "all included", ""),
    ]
    return frame.at_a_glance(cards, _checks(result, table, worst, verdict))


def _of(name: str | None) -> str:
    return f"of {name}" if name else "unknown"


def _grade(known: bool, good: bool) -> str:
    return "" if not known else "good" if good else "warn"


def smallest_ess(table: Summary) -> tuple[float, str | None]:
    """The smallest ESS, in the bulk or in the tails, and the entry that has it."""
    ess = np.fmin(table["ess_bulk"], table["ess_tail"])
    if not np.isfinite(ess).any():
        return np.nan, None
    row = int(np.nanargmin(ess))
    return float(ess[row]), f"{table.names[row]}{' (tails)' if ess[row] < table['ess_bulk'][row] else ''}"


def _for_predictions(result: Result) -> bool:
    """Whether a run is on a network, whose parameters mean nothing."""
    return result.settings.get("plan", {}).get("regime") == "predictions"


def _checks(result: Result, table: Summary, worst: int | None, verdict: Verdict) -> Iterator[str]:
    """What the numbers mean, in words."""
    chains = result.settings["chains"]
    if result.meta["status"] == "failed":
        yield "All draws before the failure are here. The last of them may already be wrong."
        return
    if _for_predictions(result):
        yield (
            "This run is for predictions, which the verdict is about. Parameters of a network do not mix, and their "
            "R-hat and ESS say nothing about predictions."
        )
        return
    ess, poorest = smallest_ess(table)
    if poorest is None:
        yield "Nothing can be said yet: there are too few draws, or they never moved."
        return
    good = True
    if worst is not None and table["r_hat"][worst] > GOOD_R_HAT:
        good = False
        yield (
            f"The chains disagree about {table.names[worst]}: R-hat is {table['r_hat'][worst]:.3f}, and should be "
            f"{GOOD_R_HAT} or less. Run longer, and check in the traces whether the warm-up was long enough."
        )
    if ess < GOOD_ESS:
        good = False
        yield (
            f"{poorest} has only {ess:,.0f} effective draws; with {GOOD_ESS}, its interval and its diagnostics are "
            "reliable. Run longer, or use a sampler that mixes faster."
        )
    if chains == 1:
        yield "A single chain cannot show that it missed a part of the posterior: run several, from different starts."
    if good:
        yield "ESS is large enough" + (" and the chains agree." if chains > 1 else ".")
    if not verdict.gradients:
        yield (
            "Neither ESS nor R-hat detects the bias of a step size that is too large: confront the draws with "
            "gradients (result.check(posterior))."
        )


# --- sections ---


def _verdict(verdict: Verdict) -> str:
    """The word, all reasons, and the worst parameters."""
    looked = (
        f"{plural(verdict.gradients, 'draw')} confronted with gradients on all data."
        if verdict.gradients
        else "The gradients were not confronted."
    )
    said = "".join(f"<li>{escape(r)}</li>" for r in verdict.reasons or (verdict.reason,))
    html = f'<ul class="checks">{said}</ul>'
    html += f"<p class='soft'>{plural(verdict.parameters, 'scalar parameter')} looked at. {looked}</p>"
    order = [list(HEADS).index(name) for name in WORST]  # row.cells() begins with the parameter's name
    rows = [[cells[0], *(cells[1 + i] for i in order)] for cells in (row.cells() for row in verdict.worst)]
    return html + (frame.table(["", *(HEADS[n] for n in WORST)], rows, "The worst parameters") if rows else "")


def _diagnostics(table: Summary, worst: Sequence[str]) -> str:
    notes = "".join(f"<p>{escape(n)}</p>" for n in table.notes)
    rows = [
        [name, *(format_cell(c, table[c][i]) for c in COLUMNS)] for i, name in enumerate(table.names)
    ]  # fmt: skip
    picked = interesting(table, ROWS, worst)
    html = (
        "<p class='soft'>Means, standard deviations and quantiles are weighted by the draws' step sizes. MCSE is the "
        "Monte Carlo standard error of the mean. ESS is the number of independent draws with the same accuracy. The "
        "worst parameters come first.</p>"
    )
    html += notes + frame.table(["", *COLUMNS.values()], [rows[i] for i in picked], "Parameters")
    if len(picked) < len(rows):
        more = frame.table(["", *COLUMNS.values()], rows, f"All {len(rows)} rows")
        shown = f"Show all {len(rows)} rows, in the order of the model"
        html += f"<details><summary>{shown}</summary>{more}</details>"
    return html


def _cost(c: Cost) -> str:
    slowest = f"of {c.slowest} (ESS {c.ess:,.0f})" if c.slowest else "(ESS unknown)"
    rows = [
        *([PARTS.get(k, k), "", duration(v)] for k, v in c.parts.items() if len(c.parts) > 1),
        ["in total", f"{c.gradients:,}", duration(c.seconds)],
        [f"per stored draw ({c.draws:,})", number(c.gradients_per_draw), duration(c.seconds_per_draw)],
        [
            f"per effective sample {slowest}",
            number(c.gradients_per_effective_sample),
            duration(c.seconds_per_effective_sample),
        ],
    ]
    return frame.table(["", "gradients", "time"], rows, "All chains, all included", kind="wrap")


def _sampler(result: Result) -> str:
    stats = {n: x for n, x in result.sample_stats.items() if x.ndim == 2}
    html = "<p class='soft'>The mean over all chains at each draw; the band holds the middle 90 %.</p><div class='row'>"
    for name in sorted(stats, key=lambda n: list(STATS).index(n) if n in STATS else len(STATS)):
        x, most = np.asarray(stats[name], np.float64), None
        if name == "pairs_accepted":
            x, most = x / result.settings["pairs"], 1.0
        caption = STATS.get(name, name)
        html += frame.figure(plots.series(x, most), f"{caption} against the draw; mean {x.mean():.3g}", caption)
    return html + "</div>"


def _settings(result: Result) -> str:
    left_out = ("arrays", "step_sizes")  # these are shown at the top, or are not for people
    asked = flatten({k: v for k, v in result.settings.items() if k not in left_out})
    rows = [[k, value(v)] for k, v in asked]
    return frame.table(
        ["setting", "value"], rows, "The settings of the run and the versions it used (run.json)", kind="words"
    )
