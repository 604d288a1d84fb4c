"""Writes ``docs/benchmarks.md``: a comparison with each peer, then all tables with the commands that measured them."""

import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
TOP = """# Benchmarks

`make bench` runs all benchmarks and writes this page; `python -m benchmarks NAME` runs one and updates its section.
Where possible the contestants take turns in one process, and a ratio is the median over rounds with its quartiles in
brackets. Machines differ and are shared, so read ratios, not times. Each section states when, where and how it was
measured.

## Against peers

In each pair of numbers ours comes first. "Even" means that the quartiles lie on both sides of 1.
"""


def write(names: dict[str, str], path: Path = PAGE, results: Path = RESULTS) -> None:
    """Write the page from the stored results of the benchmarks in `names`, a map from name to module."""
    stored = {n: json.loads((results / f"{n}.json").read_text()) for n in names if (results / f"{n}.json").exists()}
    against = [a for found in stored.values() for t in found["tables"] for a in t["against"]]
    parts = [TOP, markdown([dict(zip(("peer", "what", "found", "ahead"), a)) for a in against])]
    parts += [section(name, found, names[name]) for name, found in stored.items()]
    if missing := [f"`{n}`" for n in names if n not in stored]:
        parts.append(f"Not measured yet: {', '.join(missing)}.\n")
    path.write_text("\n".join(parts))


def section(name: str, found: dict[str, Any], module: str) -> str:
    """One benchmark: the docstring of its module, how it was run, and its tables."""
    about = (import_module(f"benchmarks.{module}").__doc__ or "").strip().replace("``", "`")
    machine = ", ".join(f"{k} {v}" for k, v in found["machine"].items())
    run = f"`{found['command']}`, {found['date']}, {found['seconds'] / 60:.0f} min."
    tables = "\n".join(f"**{t['title']}**\n\n{markdown(t['rows'])}" for t in found["tables"])
    return f"## {name}\n\n{about}\n\n{run} Machine: {machine}.\n\n{tables}"


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as a Markdown table."""

    def line(cells: Iterable[Any]) -> str:
        return f"| {' | '.join(f'{c:,}' if isinstance(c, int) else str(c) for c in cells)} |"

    return "\n".join([line(rows[0]), line(["---"] * len(rows[0])), *(line(r.values()) for r in rows)]) + "\n"
