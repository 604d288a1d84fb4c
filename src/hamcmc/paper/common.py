"""What all reproductions share: the result, its files, and the style of the figures."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.paper.machine import machine, versions

# The palette of Okabe and Ito, which colour-blind readers can tell apart. A method has one colour in all figures.
COLOURS = {
    "SGLD": "#0072B2",
    "pSGLD": "#E69F00",
    "SGRLD": "#009E73",
    "naive M=2": "#000000",
    "HAMCMC M=2": "#D55E00",
    "HAMCMC M=3": "#CC79A7",
    "ensemble": "#56B4E9",
    "ensemble, underdamped": "#117733",
}
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 150,
    "font.size": 10,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hamcmc",
}


class Table(NamedTuple):
    """A table of a reproduction."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Reproduction:
    """The outcome of a reproduction: tables to print, notes to print below them, and the files that it wrote."""

    name: str
    title: str
    quick: bool
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    files: Sequence[Path] = ()
    results: Record = field(default_factory=dict)
    further: Sequence[Table] = ()

    @property
    def tables(self) -> list[Table]:
        """All tables, the main one first."""
        return [Table(self.title, self.columns, self.rows), *self.further]


def finish(
    out: Path,
    name: str,
    title: str,
    *,
    quick: bool,
    seed: int,
    settings: Record,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    figures: dict[str, Figure],
    notes: Sequence[str] = (),
    tables: Sequence[Table] = (),
    more: Record | None = None,
) -> Reproduction:
    """Write the figures as PNG and SVG and everything else to ``results.json``. A quick run says so everywhere."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    if quick:
        title = f"{title} (quick)"
        notes = ["Quick run: same structure, fewer iterations and runs. The numbers are rough.", *notes]
    files = []
    for stem, figure in figures.items():
        figure.suptitle(title)
        for ending, metadata in (("png", {}), ("svg", {"Date": None})):
            files.append(out / f"{stem}.{ending}")
            with mpl.rc_context(STYLE):
                figure.savefig(files[-1], metadata=metadata)
    results = {
        "name": name,
        "title": title,
        "quick": quick,
        "seed": seed,
        "settings": settings,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "notes": list(notes),
        "tables": [t._asdict() for t in tables],
        "versions": versions("hamcmc", "jax", "jaxlib", "numpy", "scipy", "matplotlib"),
        "machine": machine(),
        "date": date.today().isoformat(),
        **(more or {}),
    }
    files.append(out / "results.json")
    return _write(Reproduction(name, title, quick, columns, rows, notes, files, results, tables))


def record(found: Reproduction, command: str, seconds: float) -> Reproduction:
    """Add to ``results.json`` by which command it was made, and how long that took.

    A run that went on where it had been stopped may know itself how long all of it took.
    """
    seconds = max(seconds, found.results.get("seconds", 0.0))
    return _write(replace(found, results=found.results | {"command": command, "seconds": seconds}))


def _write(found: Reproduction) -> Reproduction:
    """Write ``results.json``."""
    found = replace(found, results=_plain(found.results))
    path = next(f for f in found.files if f.name == "results.json")
    path.write_text(json.dumps(found.results, indent=1, allow_nan=False) + "\n")
    return found


styled = mpl.rc_context(STYLE)  # a decorator for functions that draw


def _plain(value: Any) -> Any:
    """A value that JSON can hold: lists, dicts, strings and numbers, and None for a number that is not finite."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
