"""Intervals of many quantities, one below the other."""

from collections.abc import Mapping, Sequence

import numpy as np

from hamcmc._types import Record
from hamcmc.diagnostics.result import Result
from hamcmc.diagnostics.summaries import Summary, choose, format_cell, read_entries, weighted_quantiles
from hamcmc.report import frame, plots
from hamcmc.report.plots import Plot, axis

ENDS = (0.05, 0.25, 0.5, 0.75, 0.95)
ROWS = 40  # of one plot, at most
LINE = 20  # pixels


def section(result: Result, table: Summary, worst: Sequence[str]) -> str:
    """A plot for each parameter, with a row for each entry; `worst` are drawn in red."""
    picked = _picked(table)
    weights = np.asarray(result.weights, np.float64)
    groups: dict[str, list[Record]] = {}
    for i, x in zip(picked, read_entries(result, [table.entries[i] for i in picked])):
        at = weighted_quantiles(x, np.broadcast_to(weights, x.shape), ENDS)
        if not np.isfinite(at).all():
            continue
        labels = {"sd": "sd", "ess_bulk": "ESS", "r_hat": "R-hat"}
        more = {label: format_cell(column, table[column][i]) for column, label in labels.items()}
        sd = float(table["sd"][i])
        row = {"name": table.names[i], "at": at.tolist(), "more": more, "bad": table.names[i] in worst, "sd": sd}
        parameter, scalar = table.entries[i][0], table.names[i] == table.entries[i][0]
        groups.setdefault("scalars" if scalar else parameter, []).append(row)
    html = "<p class='soft'>Median, middle half and middle 90 % of each parameter. The verdict names those in red.</p>"
    if len(picked) < table.total:
        html += f"<p>{table.total - len(picked):,} entries are not drawn.</p>"
    for name, rows in groups.items():
        html += frame.figure(*drawn(name, rows))
    return html


def drawn(name: str, rows: Sequence[Record]) -> tuple[Plot, str, str]:
    """The plot, its description and its caption. Where scales differ too much for one axis, each has its own unit."""
    sds = np.array([r["sd"] for r in rows])
    far = bool(len(rows) > 1 and sds.min() > 0 and sds.max() > plots.LOG * sds.min())
    caption = name if name != "scalars" or len(rows) > 1 else rows[0]["name"]
    if far:
        rows = [r | {"at": [v / r["sd"] for v in r["at"]]} for r in rows]
        caption += ", each in units of its posterior sd"
    kept = [{k: v for k, v in r.items() if k != "sd" and not (k == "bad" and not v)} for r in rows]
    return plot(kept, zero=far), f"Intervals of {caption}", caption


def plot(rows: Sequence[Mapping[str, object]], label: str = "", **more: object) -> Plot:
    """Rows with a name, five quantiles (`at`), and if there is one, the value that was observed (`seen`)."""
    return {"rows": list(rows), "x": axis(label), "height": LINE * len(rows) + (40 if label else 28)} | more


def _picked(table: Summary) -> list[int]:
    """Rows of the summary: parameters share the room, and what small ones leave goes to large ones."""
    sizes: dict[str, list[int]] = {}
    for i, (name, _) in enumerate(table.entries):
        sizes.setdefault(name, []).append(i)
    chosen = choose({name: len(rows) for name, rows in sizes.items()}, ROWS)
    return [sizes[name][int(k)] for name, places in chosen.items() for k in places]
