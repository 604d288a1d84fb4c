"""The gallery: scripts in ``examples/gallery`` with cells, which the build runs and turns into pages and notebooks.

A line ``# %%`` begins a cell of code, ``# %% [markdown]`` one of text. A script leaves its plot in ``figure``, and the
page begins with it. Pages go to docs/gallery, plots to docs/_figures and notebooks to docs/_extra/gallery, which git
ignores.
"""

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

DOCS = Path(__file__).parent
SOURCES = DOCS.parent / "examples" / "gallery"
ORDER = (
    *("linear_regression", "logistic_regression", "poisson_regression", "hierarchical", "time_series"),
    *("robust_regression", "network", "ratings", "speech", "numpyro_model", "streaming", "cluster"),
)


class Cell(NamedTuple):
    """A piece of a script: text, or code with what it printed."""

    code: bool
    source: str
    printed: str = ""


def cells(script: str) -> list[Cell]:
    """The cells of a script."""
    parts = re.split(r"^# %%(.*)\n", script, flags=re.MULTILINE)
    if parts[0].strip() or len(parts) < 3:
        raise ValueError("a script of the gallery begins with a line '# %%'")
    found = []
    for kind, source in zip(parts[1::2], parts[2::2]):
        if "[markdown]" in kind:
            lines = [line.removeprefix("#").removeprefix(" ") for line in source.strip().splitlines()]
            found.append(Cell(False, "\n".join(lines)))
        else:
            found.append(Cell(True, source.strip()))
    return found


def run(name: str) -> tuple[list[Cell], Figure]:
    """Run a script in an empty folder: its cells with what they print, and its plot."""
    names: dict[str, Any] = {"__name__": f"gallery.{name}"}
    done = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in cells((SOURCES / f"{name}.py").read_text()):
                said = io.StringIO()
                if cell.code:
                    with contextlib.redirect_stdout(said):
                        exec(compile(cell.source, f"{name}.py", "exec"), names)
                done.append(cell._replace(printed=said.getvalue()))
        finally:
            os.chdir(before)
    return done, names["figure"]


def make(name: str) -> None:
    """Run a script, and write its plot, its page and its notebook."""
    done, figure = run(name)
    picture = DOCS / "_figures" / f"gallery-{name}.png"
    figure.savefig(picture, dpi=130)
    (DOCS / "gallery").mkdir(exist_ok=True)
    (DOCS / "gallery" / f"{name}.md").write_text(page(name, done))
    notebooks = DOCS / "_extra" / "gallery"
    notebooks.mkdir(parents=True, exist_ok=True)
    (notebooks / f"{name}.ipynb").write_text(json.dumps(notebook(done), indent=1) + "\n")


def page(name: str, done: list[Cell]) -> str:
    """The page: title, plot, then text, code and what it printed. The code that draws the plot is folded."""
    first, *rest = done
    title, _, text = first.source.partition("\n")
    plot = f"![The plot that this example makes](../_figures/gallery-{name}.png)"
    blocks = [title, plot, text.strip(), f'<a href="{name}.ipynb">Download as a notebook</a>']
    for cell in rest:
        if not cell.code:
            blocks.append(cell.source)
        elif "Figure(" in cell.source:
            folded = f"```python\n{cell.source}\n```"
            blocks.append(f":::{{admonition}} The plot\n:class: dropdown\n\n{folded}\n:::")
        else:
            blocks.append(f"```python\n{cell.source}\n```")
            if cell.printed:
                blocks.append(f"```text\n{cell.printed.rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


def notebook(done: list[Cell]) -> dict[str, Any]:
    """The same as a Jupyter notebook, with its output."""
    found = []
    for i, cell in enumerate(done):
        lines = cell.source.splitlines(keepends=True)
        if not cell.code:
            found.append({"cell_type": "markdown", "id": f"cell-{i}", "metadata": {}, "source": lines})
            continue
        if "Figure(" in cell.source:
            lines = [*lines, "\nfigure"]  # shows it
        printed = {"output_type": "stream", "name": "stdout", "text": cell.printed.splitlines(keepends=True)}
        found.append(
            {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "source": lines, "execution_count": None}
            | {"outputs": [printed] if cell.printed else []}
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def titles() -> Iterator[tuple[str, str]]:
    """Name and title of each example."""
    for name in ORDER:
        yield name, cells((SOURCES / f"{name}.py").read_text())[0].source.partition("\n")[0].removeprefix("# ")


def write_index() -> None:
    """Write the first page of the gallery: a plot and a title for each example."""
    (DOCS / "gallery").mkdir(exist_ok=True)
    shown = [
        f'<a class="example" href="{name}.html"><img alt="" src="../_images/gallery-{name}.png">{title}</a>'
        for name, title in titles()
    ]
    tree = "\n".join(f"{title} <{name}>" for name, title in titles())
    (DOCS / "gallery" / "index.md").write_text(
        "# Gallery\n\nWorked examples. The build runs each of them, and each can be downloaded as a notebook.\n\n"
        f'<div class="examples">{"".join(shown)}</div>\n\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n'
    )
