"""Makes the figures and example reports of the site: ``python -m docs.figures``, before Sphinx.

They go to docs/_figures and docs/_extra, which git ignores, and are made again when the code or their page has changed.
docs/images/demo.png, which the README shows, is a copy of docs/_figures/demo.png.
"""

import contextlib
import functools
import multiprocessing
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import page, plots
from benchmarks.race_figure import COLORS, GREY, plain
from docs import gallery
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import hamcmc
from hamcmc import _compile
from hamcmc.paper import REPRODUCTIONS
from hamcmc.paper.demo import demo
from hamcmc.report.reproduction import write_demo

DOCS = Path(__file__).parent
FIGURES, EXTRA = DOCS / "_figures", DOCS / "_extra"


def samples(page: str) -> dict:
    """Run the Python samples of a page, and return the variables that they define."""
    names = {"__name__": "sample"}
    with contextlib.redirect_stdout(None):
        for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
            exec(compile(code, page, "exec"), names)
    return names


def first_posterior() -> None:
    """Draw the marginal posteriors of the run on the page."""
    names = samples("first-posterior.md")
    theta = names["result"].posterior["theta"].reshape(-1, 3)
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots(1, 3)
    for ax, draws, truth, label in zip(axes, theta.T, (-0.5, 1.0, -0.3), ("intercept", "dose", "age")):
        ax.hist(draws, bins=60, density=True, color="#0072B2", alpha=0.75)
        ax.axvline(truth, color="#D55E00", linestyle="dashed")
        ax.set(xlabel=label, yticks=[])
        ax.spines[["left", "right", "top"]].set_visible(False)
    figure.savefig(FIGURES / "first-posterior.png", dpi=150)


def demonstration() -> None:
    """Make the figures of ``make demo`` and its report."""
    with tempfile.TemporaryDirectory() as folder:
        found = demo(Path(folder))
        shutil.copy(found.picture, FIGURES / "demo.png")
        shutil.copy(found.samplers, FIGURES / "samplers.png")
        write_demo(found, EXTRA / "example-report.html")


def reproduction(name: str) -> Callable[[], None]:
    """A function that makes the quick version of a figure of the paper."""

    def reproduce() -> None:
        with tempfile.TemporaryDirectory() as folder:
            REPRODUCTIONS[name].run(Path(folder), quick=True)
            shutil.copy(Path(folder) / f"{name}.png", FIGURES / f"{name}.png")

    return reproduce


def bias() -> None:
    """Draw the bias of all samplers on all targets, from the kept run."""
    from hamcmc.paper.bias import draw, read

    draw(read(_rows("bias"))).savefig(FIGURES / "bias.png", dpi=150)


def proposition() -> None:
    """Draw the bias on one target, from the kept run."""
    from hamcmc.paper.bias import read
    from hamcmc.paper.proposition import draw

    (measured,) = read(_rows("proposition")).values()
    draw({name: [b._asdict() for b in found] for name, found in measured.items()}).savefig(
        FIGURES / "proposition.png", dpi=150
    )


def _rows(name: str) -> list:
    """The first table of a kept reproduction."""
    kept = page.full(f"reproductions/{name}")
    assert kept is not None, f"no full run of {name} is kept"
    return kept["tables"][0]["rows"]


def fig2() -> None:
    """Draw the errors of figure 2 after all iterations, from the kept run."""
    rows = [r for r in _rows("fig2") if "factoring only" not in r["method"]]
    panels = list(dict.fromkeys((r["a_n"], r["D"]) for r in rows))
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for ax, (kind, dimension) in zip(figure.subplots(2, 2).ravel(), panels):
        plain(ax)
        found = [r for r in rows if (r["a_n"], r["D"]) == (kind, dimension)]
        for place, row in enumerate(found):
            mean, spread = plots.numbers(row["at 40000"])
            color = COLORS[0] if row["method"].startswith("HAMCMC") else GREY
            ax.errorbar(mean, place, xerr=spread, marker="o", capsize=3, color=color)
            ax.plot(float(row["same time"]), place, marker="D", fillstyle="none", color=color, linestyle="none")
        ax.set_yticks(range(len(found)), [r["method"] for r in found])
        ax.invert_yaxis()
        ax.set(xscale="log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_title(f"{kind} data, D = {dimension}", color=GREY, fontsize="medium")
    figure.supxlabel("error of the posterior mean; dot: at equal iterations, diamond: in equal time", color=GREY)
    figure.savefig(FIGURES / "fig2.png", dpi=150, transparent=True)


def fig3() -> None:
    """Draw what each method adds to the SDR on each noise of figure 3, from the kept run."""
    rows = {r["method"]: r for r in _rows("fig3")}
    noises = [k for k in rows["noisy"] if k not in ("method", "sd", "s/file", "paper") and not k.startswith("in ")]
    colors = {"SGLD": COLORS[1], "pSGLD": COLORS[2], "HAMCMC": COLORS[0]}
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    ax = figure.subplots()
    plain(ax)
    for place, (method, color) in enumerate(colors.items()):
        at = [i + 0.25 * (place - 1) for i in range(len(noises))]
        ax.bar(at, [rows[method][n] - rows["noisy"][n] for n in noises], 0.24, color=color, label=method)
    ax.axhline(0, color=GREY, linewidth=1)
    ax.set_xticks(range(len(noises)), [n.replace(" ", "\n") for n in noises])
    ax.set_ylabel("SDR above the noisy file's, dB", color=GREY)
    ax.legend(frameon=False, labelcolor=GREY, ncols=3)
    figure.savefig(FIGURES / "fig3.png", dpi=150, transparent=True)


def where() -> None:
    """Draw the map of where HAMCMC wins, from the kept run."""
    from hamcmc.paper.where_figure import draw, read

    kept = page.full("reproductions/where")
    assert kept is not None
    figure = draw(read(_rows("where")), kept["settings"]["gradients"])
    figure.savefig(FIGURES / "where.png", dpi=150)


MAKERS = {  # the slowest first
    "demo.png": demonstration,
    **{f"gallery-{name}.png": functools.partial(gallery.make, name) for name in gallery.ORDER},
    "bias.png": bias,
    "proposition.png": proposition,
    "first-posterior.png": first_posterior,
    "fig2.png": fig2,
    "fig3.png": fig3,
    "fig4.png": reproduction("fig4"),
    **({"where.png": where} if page.full("reproductions/where") else {}),
} | {f"{name}.png": functools.partial(plots.draw, name, FIGURES / f"{name}.png") for name in plots.available()}


def make(name: str) -> str:
    """Make one figure, and say how long it took."""
    _compile.keep()
    start = time.perf_counter()
    MAKERS[name]()
    return f"{name}: {time.perf_counter() - start:.0f} s"


def main() -> None:
    """Make the figures that are missing or older than the code, two at a time."""
    FIGURES.mkdir(exist_ok=True)
    EXTRA.mkdir(exist_ok=True)
    gallery.write_index()
    sources = [
        *Path(hamcmc.__file__).parent.rglob("*.py"),
        Path(__file__),
        DOCS / "first-posterior.md",
        Path(gallery.__file__),
    ]
    sources += gallery.SOURCES.glob("*.py")
    sources += [Path(plots.__file__), Path(plots.race_figure.__file__), *page.RESULTS.rglob("*.json")]
    newest = max(p.stat().st_mtime for p in sources)
    made = {name for name in MAKERS if (FIGURES / name).exists() and (FIGURES / name).stat().st_mtime > newest}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for line in pool.imap_unordered(make, [name for name in MAKERS if name not in made]):
            print(line, flush=True)


if __name__ == "__main__":
    main()
