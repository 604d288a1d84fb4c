"""The plots of the page of benchmarks, from kept results: ``docs/figures.py`` draws them when the site is built."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import page, race_figure
from benchmarks.race import SUMMARY
from benchmarks.race_figure import COLORS, GREY

Tables = list[dict[str, Any]]


class Plot(NamedTuple):
    """A plot of one result: its name, what to read from the plot, and the function that draws it."""

    name: str
    caption: str
    draw: Callable[[Tables, Axes], None]
    height: float = 3.4
    table: str = ""  # the title of a table that it needs, where a result may lack it


def numbers(text: str) -> list[float]:
    """All numbers in a cell: a median and its quartiles, or the ends of a range."""
    return [float(x) for x in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", str(text))]


def iterations(tables: Tables, axes: Axes) -> None:
    """The share of BlackJAX's time that an iteration of SGLD takes, over dimensions."""
    sizes = [r["D"] for r in tables[0]["rows"]]
    for column, label, color in (
        ("ratio (goal ≤ 1.0)", "whole loop", COLORS[0]),
        ("kernel alone", "kernel", COLORS[2]),
    ):
        middle, low, high = zip(*(numbers(r[column]) for r in tables[0]["rows"]))
        bars = [[m - a for m, a in zip(middle, low)], [b - m for m, b in zip(middle, high)]]
        axes.errorbar(sizes, middle, bars, marker="o", capsize=3, color=color, label=label)
    axes.axhline(1, color=GREY, linestyle="dashed", linewidth=1)
    axes.set(xscale="log", xlabel="dimensions", ylabel="share of BlackJAX's time", ylim=(0, None))
    axes.legend(frameon=False, labelcolor=GREY)


def seconds(tables: Tables, axes: Axes) -> None:
    """Seconds from the start of Python to the summary."""
    labels = {"hamcmc, cold": "hamcmc, first run", "hamcmc, kept": "hamcmc, later run", "NUTS": "NumPyro's NUTS"}
    colors = (COLORS[0], "#8CC4EE", COLORS[1])
    for i, (method, color) in enumerate(zip(labels, colors)):
        totals = [numbers(next(r for r in t["rows"] if r["method"] == method)["total, s"]) for t in tables]
        middle = [t[0] for t in totals]
        bars = [[t[0] - t[1] for t in totals], [t[2] - t[0] for t in totals]]
        where = [j + 0.27 * (i - 1) for j in range(len(tables))]
        axes.bar(where, middle, 0.25, yerr=bars, color=color, ecolor=GREY, capsize=3, label=labels[method])
    axes.set_xticks(range(len(tables)), [t["title"].split("regression, ")[1].replace(", ", ",\n") for t in tables])
    axes.set_ylabel("seconds", color=GREY)
    axes.legend(frameon=False, labelcolor=GREY)


def learning(tables: Tables, axes: Axes) -> None:
    """Test error of recommenders against seconds of learning."""
    names = {"hamcmc": "hamcmc", "smurff": "SMURFF", "myfm": "myFM"}
    for (column, label), color in zip(names.items(), COLORS):
        points = [(r["seconds"], float(r[column])) for r in tables[1]["rows"] if r[column] != "–"]
        axes.plot(*zip(*points), "o-", color=color, linewidth=3 if label == "hamcmc" else 1.8, label=label)
    axes.set(xscale="log", xlabel="seconds of learning", ylabel="test RMSE")
    axes.set_title(tables[0]["title"].split(": ")[0], color=GREY)
    axes.legend(frameon=False, labelcolor=GREY)


def speech(tables: Tables, axes: Axes) -> None:
    """Signal-to-distortion ratio of cleaned speech."""
    means = {r["method"]: float(r["mean"]) for r in tables[0]["rows"]}
    names = sorted(means, key=lambda m: means[m])
    colors = [COLORS[0] if n.startswith("our") else GREY for n in names]
    bars = axes.barh(names, [means[n] for n in names], color=colors)
    axes.bar_label(bars, [f" {means[n]:.1f}" for n in names], color=GREY)
    axes.grid(visible=False)
    axes.set_xlabel(f"mean SDR, dB, of {tables[0]['title'].split(': ')[1]}")


def variances(tables: Tables, axes: Axes) -> None:
    """From the smallest to the largest ratio of a variance to the exact one."""
    rows = tables[1]["rows"]
    for i, row in enumerate(reversed(rows)):
        low, high = numbers(row["variances"])
        axes.plot([low, high], [i, i], color=COLORS[0], linewidth=6, solid_capstyle="butt")
    axes.axvline(1, color=GREY, linestyle="dashed", linewidth=1)
    axes.set_yticks(range(len(rows)), [r["problem"] for r in reversed(rows)])
    axes.set(xlabel="variance of the draws / exact variance", xlim=(0.9, 1.1), ylim=(-0.6, len(rows) - 0.4))


PLOTS = {
    "race": Plot(
        "race",
        "Effective draws per second against the number of rows, everything included: one automatic call of hamcmc and "
        "the best of its rivals. Higher is better.",
        lambda tables, axes: race_figure.curves(race_figure.lines(tables, 1e5), axes),
        4.2,
        f"{SUMMARY}1e+05",
    ),
    "bench-seconds": Plot(
        "seconds",
        "From the start of Python to the printed summary of a logistic regression: seconds of one automatic call and "
        "of NumPyro's NUTS. Lower is better; whiskers show the range over rounds.",
        seconds,
    ),
    "bench-variances": Plot(
        "automatic",
        "Are the draws right? For each regression the bar spans all variances of an automatic run on minibatches, as "
        "multiples of the exact ones.",
        variances,
        2.4,
    ),
    "bench-sgld": Plot(
        "sgld",
        "Time of an iteration of SGLD as a share of BlackJAX's. Below the dashed line hamcmc is faster; whiskers show "
        "quartiles.",
        iterations,
    ),
    "bench-recommenders": Plot(
        "recommenders",
        "Test error of Bayesian matrix factorization against seconds of learning, on the set of ratings in its title. "
        "Lower and further left is better.",
        learning,
    ),
    "bench-denoisers": Plot(
        "denoisers",
        "Speech cleaned from noise: mean signal-to-distortion ratio. Higher is better; ours are blue. The "
        "table below has the standard error of each difference.",
        speech,
        4.4,
    ),
}


def available(results: Path = page.RESULTS) -> list[str]:
    """The plots whose results were measured in full."""
    kept = {name: page.full(plot.name, results) for name, plot in PLOTS.items()}
    has = lambda found, title: not title or any(t["title"] == title for t in found["tables"])
    return [name for name, found in kept.items() if found and has(found, PLOTS[name].table)]


def draw(name: str, out: Path) -> None:
    """Draw one plot in colours that can be seen on white and on black."""
    plot = PLOTS[name]
    found = page.full(plot.name)
    if found is None:
        raise ValueError(f"{plot.name} was not measured in full")
    figure = Figure(figsize=(8, plot.height), layout="constrained")
    axes = figure.subplots()
    race_figure.plain(axes)
    plot.draw(found["tables"], axes)
    figure.savefig(out, dpi=150, transparent=True)
