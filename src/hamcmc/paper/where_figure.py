"""The picture of the map: one panel for each budget and dimension."""

from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.paper.cells import BUDGETS, Cell, verdict
from hamcmc.paper.common import COLOURS, styled

LETTERS = 15  # of the caption to an inch
WIDEST = 8.0  # ratios beyond it have the last colour
CERTAIN = 3.0  # standard errors, within which two methods count as even: they come from few seeds
MAP = LinearSegmentedColormap.from_list("ahead", [COLOURS["HAMCMC M=2"], "#FFFFFF", COLOURS["SGLD"]])


def even(ratio: float, log_error: float) -> bool:
    """Whether a ratio of scores may be 1."""
    return bool(abs(np.log(ratio)) < CERTAIN * log_error) if 0 < ratio < np.inf else False


def read(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[Cell, Record]]:
    """The verdicts again, by budget and cell, from the rows of the table."""
    found: dict[str, dict[Cell, Record]] = {budget: {} for budget in BUDGETS}
    for row in rows:
        scores = {}
        for name in ("HAMCMC", "SGLD", "pSGLD", "SGRLD", "ensemble"):
            score, error = map(float, row[name].split(" ± "))
            own = f"HAMCMC M={row['M']}" if name == "HAMCMC" else name
            scores[own] = {row["equal"]: {"searched": score, "score": score, "error": error}}
        found[row["equal"]][Cell(row["D"], row["κ"], row["stiff"])] = verdict(scores, row["equal"])
    return found


@styled
def draw(verdicts: Mapping[str, Mapping[Any, Record]], gradients: int) -> Figure:
    """A figure from verdicts by budget and cell; a cell is (D, κ, k)."""
    dimensions = sorted({cell[0] for cells in verdicts.values() for cell in cells})
    fig = Figure(layout="constrained", figsize=(1.2 + 3.6 * len(dimensions), 7.6))
    panels = fig.subplots(len(verdicts), len(dimensions), squeeze=False)
    norm = LogNorm(1 / WIDEST, WIDEST)
    for line, (budget, cells) in zip(panels, verdicts.items()):
        for axes, dimension in zip(line, dimensions):
            here = {cell: v for cell, v in cells.items() if cell[0] == dimension}
            _panel(axes, here, norm)
            axes.set_title(f"D = {dimension}, equal {budget}", fontsize=10)
        line[0].set_ylabel("stiff directions k")
    for axes in panels[-1]:
        axes.set_xlabel("condition number κ")
    bar = fig.colorbar(ScalarMappable(norm, MAP), ax=panels.ravel().tolist(), shrink=0.6, pad=0.01)
    ticks = [1 / WIDEST, 0.5, 1, 2, WIDEST]
    bar.set_ticks(ticks, labels=["1/8 or less", "1/2", "1", "2", "8 or more"])
    bar.minorticks_off()
    bar.set_label("HAMCMC's score / best other score\n← HAMCMC better     another better →")
    words = (
        "In a cell: the method with the least score, and HAMCMC's score over that of the best other. M: by the search.",
        f"Budget: {gradients:,} gradients, or SGLD's time for them. ≈: even within {CERTAIN:g} standard errors.",
        "◆: HAMCMC is ahead of SGLD and pSGLD, which need no Fisher matrix and no ensemble.",
    )
    fig.supxlabel(
        "\n".join(part for line in words for part in wrap(line, int(LETTERS * fig.get_figwidth()))), fontsize=8.5
    )
    return fig


def _panel(axes: Any, cells: Mapping[Any, Record], norm: LogNorm) -> None:
    """One panel: condition numbers from left to right, stiff directions from bottom to top."""
    conditions = sorted({cell[1] for cell in cells})
    stiff = sorted({cell[2] for cell in cells})
    ratios = np.ones((len(stiff), len(conditions)))
    for cell, v in cells.items():
        i, j = stiff.index(cell[2]), conditions.index(cell[1])
        ratio = v["ratio"]
        ratios[i, j] = np.clip(ratio, 1 / WIDEST, WIDEST)
        name = f"HAMCMC\nM = {v['memory']}" if v["winner"] == "HAMCMC" else v["winner"]
        mark = "≈ " if even(ratio, v["log_error"]) else ""
        simple = v["ratio_simple"] < 1 and not even(v["ratio_simple"], v["log_error_simple"])
        shade = "white" if abs(np.log(ratios[i, j])) > 0.75 * np.log(WIDEST) else "black"
        text = f"{name}\n{mark}{shown(ratio)}"
        axes.text(j, i, text, ha="center", va="center", fontsize=8.5, color=shade, linespacing=1.25)
        if simple:
            axes.text(j + 0.45, i + 0.45, "◆", ha="right", va="top", fontsize=7, color=shade)
    axes.imshow(ratios, cmap=MAP, norm=norm, origin="lower", aspect="auto")
    axes.set_xticks(range(len(conditions)), [f"{c:g}" for c in conditions])
    axes.set_yticks(range(len(stiff)), [str(k) for k in stiff])
    axes.grid(False)
    for edge in np.arange(len(conditions) - 1) + 0.5:
        axes.axvline(edge, color="0.6", lw=0.6)
    for edge in np.arange(len(stiff) - 1) + 0.5:
        axes.axhline(edge, color="0.6", lw=0.6)


def shown(ratio: float) -> str:
    """A ratio with two digits."""
    if not np.isfinite(ratio):
        return "∞"
    return f"{ratio:.2f}" if ratio < 1 else f"{ratio:.1f}" if ratio < 99.5 else f"{ratio:.0f}"
