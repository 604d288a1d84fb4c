"""The pages of a reproduction of the paper and of the demonstration: results, figures and settings."""

import base64
import os
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamcmc.diagnostics.result import Result
from hamcmc.report import frame, page
from hamcmc.report.frame import flatten, number, value

if TYPE_CHECKING:
    from hamcmc.paper.common import Reproduction
    from hamcmc.paper.demo import Demo


def write(found: "Reproduction", out: str | os.PathLike) -> Path:
    """Write the page of a reproduction."""
    results = found.results
    pictures = "".join(picture(f, f"{found.title}: {f.stem}") for f in found.files if f.suffix == ".png")
    settings = {k: v for k, v in results.items() if k in ("seed", "settings", "versions")}
    sections = {
        "Results": "".join(
            frame.table([str(c) for c in t.columns], [[_cell(v) for v in row] for row in t.rows], t.title)
            for t in found.tables
        ),
        "Figures": pictures,
        "Settings": frame.table(
            ["setting", "value"], [[k, value(v)] for k, v in flatten(settings)], "From results.json", kind="words"
        ),
    }
    top = frame.status("quick", "warn", "A smaller version of the experiment.") if found.quick else ""
    glance = frame.at_a_glance([], found.notes)
    return frame.save(frame.document(found.title, top, glance, sections, version("hamcmc")), Path(out))


def write_demo(found: "Demo", out: str | os.PathLike) -> Path:
    """Write the page of the demonstration: the automatic run beside NUTS, all samplers on a ridge, then that run."""
    first = {"Beside NUTS": _contest(found), "Every sampler on a ridge": _gallery(found)}
    run = found.contest.run
    return frame.save(page.page(Result.open(run), run, before=first, title="One automatic call"), Path(out))


def _contest(found: "Demo") -> str:
    both = found.contest
    rows = [[words.strip(), *values] for words, values in both.table()]
    return (
        f"<p class='soft'>Logistic regression with {both.rows:,} rows and {len(both.truth)} coefficients. The columns "
        "are correlated and in units that differ by orders of magnitude. Times are those of everything from the call "
        "to the answer, and effective draws are those of the poorest coefficient.</p>"
        + frame.table(["", *(s.name for s in both.sides)], rows, "Both on this machine")
        + picture(found.picture, "Where the time goes, effective draws per second, and the posterior of both")
        + "".join(f"<p>{escape(line)}</p>" for line in both.notes())
    )


def _gallery(found: "Demo") -> str:
    head = ["", "ε", "mean error", "sd along", "sd across", "ESS", "gradients per ESS"]
    rows = [
        [
            r.sampler,
            f"{r.step_size:.1e}",
            f"{r.mean_error:.2f} sd",
            f"{r.length:.2f}",
            f"{r.width:.2f}",
            f"{r.ess:,.0f}",
            number(r.per_effective_sample),
        ]
        for r in found.rows
    ]
    return (
        "<p class='soft'>The posterior is a thin ridge. The recommended sampler, ensemble_hamcmc, runs as "
        "hamcmc.sample sets it. Every other one has the step size that suits its stiffest direction. Standard "
        "deviations along and across the ridge are estimated over exact: 1.00 is right. ESS is that of the slowest "
        "parameter.</p>"
        + frame.table(head, rows, "All chains of each sampler")
        + picture(found.samplers, "One chain of each sampler on the contours of the exact posterior")
        + "<p>The following sections describe the automatic run of the first part.</p>"
    )


def picture(file: Path, alt: str) -> str:
    """A PNG inside the page."""
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<figure class="still"><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></figure>'


def _cell(of: Any) -> str:
    return "–" if of is None else f"{of:.4g}" if isinstance(of, float) else str(of)
