"""The figure of the race: effective draws per second against N, from the kept results.

``python -m benchmarks race --figure`` draws it and prints where the lines cross.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import page
from benchmarks.race import LEAST, SUMMARY
from benchmarks.racers import OURS

PICTURE = page.ROOT / "docs" / "images" / "race.png"
COLORS = ("#2F8FD8", "#D55E00", "#009E73", "#CC79A7")  # seen on white and on black, and by the colour-blind
GREY = "#808080"
RIVALS = 3

Lines = dict[str, dict[int, float]]  # method → N → effective draws per second


def lines(tables: list[Mapping[str, Any]], condition: float) -> Lines:
    """Ours, then the others from the best to the worst: those measured at most sizes, by the mean of their logarithms.

    Raises:
        ValueError: there is no such table.
    """
    title = f"{SUMMARY}{condition:.0e}"
    rows = next((t["rows"] for t in tables if t["title"] == title), None)
    if rows is None:
        raise ValueError(f"no table of the race over sizes at condition number {condition:.0e}; measure it first")
    names = [n for n in rows[0] if n != "N"]
    found = {n: {r["N"]: float(r[n]) for r in rows if r[n] != "–"} for n in names}
    order = lambda n: (-len(found[n]), -float(np.mean(np.log([*found[n].values()]))))
    others = sorted((n for n in names if n != OURS and found[n]), key=order)
    return {n: found[n] for n in [OURS, *others] if n in found}


def crossing(found: Lines) -> str:
    """In words: from which N on ours is ahead of the best of all others, and by how much at the largest N."""
    mine = found[OURS]
    sizes = sorted(n for n in mine if any(n in v for k, v in found.items() if k != OURS))
    best = {n: max((v[n], k) for k, v in found.items() if k != OURS and n in v) for n in sizes}
    lead = {n: float(np.log(mine[n] / best[n][0])) for n in sizes}
    last = sizes[-1]
    at_last = f"at N = {last:,} it makes {ratio(mine[last] / best[last][0])} as the best other, {best[last][1]}"
    if beyond := [n for n in mine if n > last]:
        at_last += f", and at N = {max(beyond):,} no other had {LEAST} of them in its time"
    if lead[last] <= 0:
        return f"hamcmc is behind at the largest N: {at_last}."
    behind = [n for n in sizes if lead[n] <= 0]
    if not behind:
        return f"hamcmc is ahead at every N that was measured; {at_last}."
    low, high = behind[-1], sizes[sizes.index(behind[-1]) + 1]
    share = -lead[low] / (lead[high] - lead[low])
    n = float(np.exp(np.log(low) + share * np.log(high / low)))
    return f"hamcmc is ahead from about N = {rounded(n):,} on; {at_last}."


def ratio(r: float) -> str:
    """How many times as many."""
    return f"{r:.2g} times as many effective draws per second" if r < 10 else f"{rounded(r):,} times as many"


def rounded(x: float) -> int:
    """To two digits."""
    return int(float(f"{x:.2g}"))


def draw(condition: float = 1e5, results: Path = page.RESULTS, out: Path = PICTURE) -> str:
    """Draw ours and the best three others, write the picture, and return where they cross."""
    kept = lines(json.loads((results / "race.json").read_text())["tables"], condition)
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    plain(axes)
    curves(kept, axes)
    figure.savefig(out, dpi=150, transparent=True)
    return crossing(kept)


def shown_in_readme(results: Path, condition: float = 1e5) -> str:
    """The picture, and in words what it shows and where its lines cross; empty without a full result."""
    found = page.full("race", results)
    if found is None:
        return ""
    try:
        kept = lines(found["tables"], condition)
    except ValueError:
        return ""
    others = [n for n in kept if n != OURS][:RIVALS]
    title, seconds = f"{SUMMARY}{condition:.0e}", found["settings"].get("seconds", 120)
    count = len(next(t["rows"][0] for t in found["tables"] if t["title"] == title)) - 2  # without N and ours
    text = (
        f"Effective draws per second of a logistic regression (condition number 10{superscript(condition)}), along the "
        "poorest of all directions. Everything is counted for everybody: compiling, warm-up, and the mode where a "
        f"method needs it. Beside hamcmc stand the best {len(others)} of {count} other methods; a point is missing "
        f"where a method had fewer than {LEAST} effective draws, or wrong ones, in {seconds:.0f} seconds. "
        f"{crossing(kept)}"
    )
    place = PICTURE.relative_to(page.ROOT)
    return f"![Effective draws per second against the number of rows, of hamcmc and of others]({place})\n\n*{text}*"


def superscript(power_of_ten: float) -> str:
    """The exponent."""
    return str(round(np.log10(power_of_ten))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def curves(kept: Lines, axes: Axes) -> None:
    """Rates against N."""
    ends = []
    for (name, rates), color in zip(list(kept.items())[: RIVALS + 1], COLORS):
        n = sorted(rates)
        ours = name == OURS
        axes.loglog(n, [rates[k] for k in n], "o-", color=color, linewidth=3 if ours else 1.8, markersize=6)
        ends.append((rates[n[-1]], n[-1], name, color))
    label(axes, ends)
    axes.set_xlabel("rows of data, N")
    axes.set_title("effective draws per second, everything included", loc="left", color=GREY, fontsize=11)


def plain(axes: Axes) -> None:
    """Grey text, faint lines and no frame."""
    axes.tick_params(which="both", colors=GREY)
    axes.xaxis.label.set_color(GREY)
    axes.yaxis.label.set_color(GREY)
    axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)


def label(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write the name of each line at its end, and move names apart that would touch."""
    low, high = np.log(axes.get_ylim())
    apart, below = 0.07 * (high - low), np.inf
    for rate, n, name, color in sorted(ends, reverse=True):
        below = min(np.log(rate), below - apart)
        weight = "bold" if name == OURS else "normal"
        axes.annotate(
            name,
            (n, np.exp(below)),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=color,
            weight=weight,
            annotation_clip=False,
        )
