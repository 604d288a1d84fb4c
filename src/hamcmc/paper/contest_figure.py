"""The figure of the demonstration's first part: seconds, effective draws per second, and the posterior of both."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hamcmc.paper.contest import Contest, Side, number

COLOURS = {"hamcmc": "#D55E00", "NUTS": "#0072B2"}
PARTS = {  # from light to dark, so that the parts can be told apart without colours
    "mode": "#DDDDDD",
    "compiling": "#BBBBBB",
    "warm-up": "#888888",
    "sampling": "#222222",
    "verdict": "#C9B8D6",
}
COEFFICIENTS = 20  # that are shown at most


def draw(found: Contest) -> Figure:
    """Left: where the seconds went. Middle: what they were worth. Right: that both have found the same posterior."""
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.5, 0.7, 1.3])
    sides = [found.ours] + ([found.nuts] if found.nuts else [])
    _seconds(left, sides)
    _rates(middle, sides)
    _posterior(right, found, sides)
    beside = " beside NumPyro's NUTS" if found.nuts else ""
    what = f"logistic regression, {found.rows:,} rows, {len(found.truth)} correlated columns in all units"
    figure.suptitle(f"hamcmc.sample(posterior){beside}: {what}")
    return figure


def _seconds(ax: Axes, sides: list[Side]) -> None:
    """A bar for each, from the call to the answer."""
    for row, one in enumerate(sides):
        begin = 0.0
        for part, seconds in one.seconds.items():
            ax.barh(row, seconds, left=begin, height=0.5, color=PARTS[part], label="_" if row else part)
            begin += seconds
        ax.text(
            0, row - 0.31, f"{one.name}: {number(one.ess)} effective draws in {begin:.0f} s",
            color=COLOURS[one.name], weight="bold",
        )  # fmt: skip
        ax.text(0, row + 0.28, one.how, fontsize=8, color="#444444", va="top", in_layout=False)
    ax.set_ylim(len(sides) - 0.5, -0.6)
    ax.set_yticks([])
    ax.set_xlabel("seconds since the call")
    ax.set_title("Where the time goes")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=5, frameon=False, fontsize=8, handlelength=1)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _rates(ax: Axes, sides: list[Side]) -> None:
    """Effective draws per second."""
    known = [s for s in sides if np.isfinite(s.rate)]
    bars = ax.bar([s.name for s in known], [s.rate for s in known], 0.55, color=[COLOURS[s.name] for s in known])
    ax.bar_label(bars, [number(s.rate) for s in known], weight="bold", padding=2)
    ax.margins(y=0.12)
    ax.set_title("Effective draws per second,\nall included")
    ax.spines[["top", "right"]].set_visible(False)


def _posterior(ax: Axes, found: Contest, sides: list[Side]) -> None:
    """95 % intervals of some coefficients, less the true value, in posterior standard deviations."""
    shown = np.linspace(0, len(found.truth) - 1, min(COEFFICIENTS, len(found.truth))).round().astype(int)
    sd = found.ours.sd[shown]
    for offset, one in zip((-0.15, 0.15) if len(sides) == 2 else (0.0,), sides):
        low, mean, high = ((v[shown] - found.truth[shown]) / sd for v in (one.low, one.mean, one.high))
        bars = np.stack([mean - low, high - mean])
        where = np.arange(len(shown)) + offset
        ax.errorbar(where, mean, bars, fmt="o", ms=3, lw=1.5, color=COLOURS[one.name], label=one.name)
    ax.axhline(0, color="#222222", lw=1, ls="--", label="true value")
    ax.set_xticks(np.arange(len(shown)), [f"{i}" for i in shown], fontsize=8)
    ax.set_xlabel("coefficient")
    ax.set_ylabel("distance from the true value, in sd")
    ax.set_title("The posterior: means and 95 % intervals,\nof which one in twenty should miss the true value")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
