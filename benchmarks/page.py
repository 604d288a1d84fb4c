"""Fills in the pages from kept results: ``python -m benchmarks --pages``.

A measured number on a page stands between marks that name the result that it comes from, and is written by this module:

    <!-- kept: sgld -->                                  a whole result: how it was measured, and its tables
    <!-- kept: automatic.0 -->                           one of its tables, counted from 0
    <!-- kept: automatic.0?target=10-d#runs;verdicts --> some rows and columns of it
    <!-- kept: against -->, missing, plots               of all benchmarks
    <!-- kept: race-figure -->                           README's figure, and where its lines cross
    <!-- kept: claims -->                                every item of the paper, and whether it came out

Each ends with ``<!-- /kept -->``. On one line the marks hold a single cell. The results of quick runs stay off the
pages; their places say that a full run is still to be made.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import claims
from benchmarks.measure import Table, installed
from hamcmc.paper.machine import machine

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
MARKS = re.compile(r"<!-- kept: (?P<what>[^\n]+?) -->(?P<old>.*?)<!-- /kept -->", re.DOTALL)
PART = re.compile(r"(?P<name>[\w/]+)\.(?P<table>\d+)(?:\?(?P<rows>[^#]+))?(?:#(?P<columns>.+))?")
PICTURES = {  # of reproductions, which docs/figures.py draws from what is kept
    "reproductions/where": "![The winner of each cell, and HAMCMC's score over the best other](_figures/where.png)",
}
COMMANDS = {name: f"make {name}" for name in ("calibration", "mutation", "soak")}  # keep results, are no benchmarks
Row = Mapping[str, Any]


def pages(root: Path = ROOT) -> list[Path]:
    """README and the pages of the site."""
    made = lambda p: bool({"_build", "gallery"} & {*p.parts}) or p.name == "commands.md"
    return [root / "README.md", *sorted(p for p in (root / "docs").rglob("*.md") if not made(p))]


def write(names: Mapping[str, str], root: Path = ROOT, results: Path = RESULTS) -> list[Path]:
    """Fill in all pages, and return those that have changed. `names` maps benchmarks to their modules."""
    changed = []
    for path in pages(root):
        text = path.read_text()
        if (new := filled(text, names, results)) != text:
            path.write_text(new)
            changed.append(path)
    return changed


def filled(text: str, names: Mapping[str, str], results: Path = RESULTS) -> str:
    """A page with everything between marks made anew.

    Raises:
        ValueError: a mark names something that is not there, or a sentence needs what was not measured in full.
    """

    def fill(match: re.Match[str]) -> str:
        what, block = match["what"], "\n" in match["old"]
        new = f"\n\n{of_block(what, names, results).strip()}\n\n" if block else cell(what, results)
        return f"<!-- kept: {what} -->{new}<!-- /kept -->"

    return MARKS.sub(fill, text)


# --- what is kept ---


def store(
    path: Path,
    tables: Iterable[Table],
    *,
    command: str,
    seconds: float,
    quick: bool = False,
    settings: Row | None = None,
    seeds: Any,
) -> None:
    """Keep what was measured, and with what."""
    kept = {"command": command, "date": date.today().isoformat(), "seconds": seconds, "quick": quick}
    kept |= {"settings": settings or {}, "seeds": seeds, "versions": installed(), "machine": machine()}
    kept |= {"tables": [t._asdict() for t in tables]}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def full(name: str, results: Path = RESULTS) -> dict[str, Any] | None:
    """A kept result, or None if there is none of a full run."""
    path = results / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else None
    return None if found is None or found["quick"] else found


def keep(path: Path, results: Path = RESULTS) -> Path:
    """Keep the ``results.json`` of a reproduction, without what only its figure needs.

    Raises:
        ValueError: it is of a quick run, or two of its columns have one name.
    """
    found = json.loads(path.read_text())
    if found["quick"]:
        raise ValueError(f"{path} is of a quick run: only full runs are kept")
    tables = [found, *found.get("tables", ())]
    for columns in (t["columns"] for t in tables):
        if len(set(columns)) < len(columns):
            raise ValueError(f"{path} has two columns with one name: {', '.join(columns)}")
    kept = {k: found[k] for k in ("command", "date", "seconds", "quick", "settings")}
    kept |= {"seeds": [found["seed"]], "versions": found["versions"], "machine": found["machine"]}
    rows = [[dict(zip(t["columns"], map(rounded, row))) for row in t["rows"]] for t in tables]
    kept |= {"tables": [{"title": t["title"], "rows": r, "against": []} for t, r in zip(tables, rows)]}
    kept |= {"notes": found["notes"]}
    out = results / "reproductions" / f"{found['name']}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return out


def rounded(value: Any) -> Any:
    """A number as the command prints it, with four digits."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


# --- Markdown ---


def of_block(what: str, names: Mapping[str, str], results: Path) -> str:
    """Everything between two marks that stand on lines of their own."""
    if what == "against":
        return folded("Every comparison with a peer", markdown(against(names, results)))
    if what == "missing":
        missing = [f"`{n}`" for n in names if full(n, results) is None]
        return f"Not measured in full yet: {', '.join(missing)}." if missing else "Every benchmark was run in full."
    if what == "claims":
        return markdown(claims.table(full, results))
    if what == "plots":
        from benchmarks.plots import PLOTS, available  # which need Matplotlib and know this module

        captions = {name: PLOTS[name].caption for name in available(results)}
        return "\n\n".join(f"![{c.split('. ')[0]}](_figures/{name}.png)\n\n*{c}*" for name, c in captions.items())
    if what == "race-figure":
        from benchmarks.race_figure import shown_in_readme

        return shown_in_readme(results) or absent("race")
    if match := PART.fullmatch(what):
        return markdown(chosen(match, results)) if full(match["name"], results) else absent(match["name"])
    found = full(what, results)
    about = f"{docstring(names[what])}\n\n" if what in names else ""
    if found is None:
        return about + absent(what)
    tables = [(t["title"], markdown(t["rows"])) for t in found["tables"]]
    if what in names:
        return f"{about}{run(found)}\n\n" + "\n\n".join(folded(*t) for t in tables) + f"\n\n{conditions(found)}"
    notes = "".join(f"\n\n{n}" for n in found["notes"])
    picture = f"{PICTURES[what]}\n\n" if what in PICTURES else ""
    titled = (t[1].strip() if not i else f"**{t[0]}.**\n\n{t[1].strip()}" for i, t in enumerate(tables))
    body = "\n\n".join(folded(*t) for t in tables) if picture else "\n\n".join(titled)  # a picture precedes numbers
    return f"{run(found)}\n\n{picture}{body}{notes}\n\n{conditions(found)}"


def cell(what: str, results: Path) -> str:
    """One cell of a table, for a sentence."""
    match = PART.fullmatch(what)
    if match is None or full(match["name"], results) is None:
        raise ValueError(f"{what}: a sentence can only have a number that was measured in full")
    rows = chosen(match, results)
    if len(rows) != 1 or len(rows[0]) != 1:
        raise ValueError(f"{what}: a sentence needs one cell, and this has {len(rows)} rows")
    return shown(next(iter(rows[0].values())))


def chosen(match: re.Match[str], results: Path) -> list[Row]:
    """The rows and columns that a mark asks for."""
    found = json.loads((results / f"{match['name']}.json").read_text())["tables"]
    if int(match["table"]) >= len(found):
        raise ValueError(f"{match[0]}: {match['name']} has only {len(found)} tables")
    rows = found[int(match["table"])]["rows"]
    where = dict(part.split("=", 1) for part in match["rows"].split("&")) if match["rows"] else {}
    columns = match["columns"].split(";") if match["columns"] else list(rows[0])
    if unknown := {*where, *columns} - {*rows[0]}:
        raise ValueError(f"{match[0]}: no column {', '.join(sorted(unknown))}; there are {'; '.join(rows[0])}")
    rows = [{c: r[c] for c in columns} for r in rows if all(str(r[c]) == v for c, v in where.items())]
    if not rows:
        raise ValueError(f"{match[0]}: no such row")
    return rows


def against(names: Mapping[str, str], results: Path) -> list[Row]:
    """How every full result stands against peers."""
    stored = [found for n in names if (found := full(n, results))]
    return [dict(zip(("peer", "what", "found", "ahead"), a)) for f in stored for t in f["tables"] for a in t["against"]]


def docstring(module: str) -> str:
    """What a benchmark's module says about itself. It is not imported, because that may need its peers."""
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text())
    return (ast.get_docstring(tree) or "").strip().replace("``", "`")


def absent(name: str) -> str:
    """What stands in the place of a result that was not measured in full."""
    own = name.removeprefix("reproductions/")
    command = f"hamcmc reproduce {own}" if own != name else COMMANDS.get(name, f"python -m benchmarks {name}")
    return f"*Not measured yet with this version: a full run of `{command}` will fill this place.*"


def run(found: Row) -> str:
    """How a result was measured, in one line."""
    minutes, machine, versions = found["seconds"] / 60, found["machine"], found["versions"]
    took = f"{minutes:.0f} min" if minutes >= 1 else f"{found['seconds']:.0f} s"
    where = f"{machine['cores']} core{'s' * (machine['cores'] > 1)} of {machine['cpu']}, load {machine['load']}"
    return f"`{found['command']}`, {found['date']}, hamcmc {versions['hamcmc']}, {took} on {where}."


def conditions(found: Row) -> str:
    """Settings, seeds, versions and system, folded away."""
    settings = json.dumps(found["settings"], ensure_ascii=False)
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    seeds = found["seeds"] if isinstance(found["seeds"], str) else ", ".join(map(str, found["seeds"]))
    text = f"Settings: `{settings}`.\n\nSeeds: {seeds}.\n\nVersions: {versions}; {found['machine']['platform']}."
    return folded("Settings, seeds and versions", text)


def folded(title: str, text: str) -> str:
    """Text that a click on its title shows."""
    return f"<details>\n<summary>{title}</summary>\n\n{text.strip()}\n\n</details>"


def markdown(rows: list[Row]) -> str:
    """Rows of equal keys as a Markdown table."""

    def line(cells: Iterable[Any]) -> str:
        return f"| {' | '.join(map(shown, cells))} |"

    return "\n".join([line(rows[0]), line(["---"] * len(rows[0])), *(line(r.values()) for r in rows)]) + "\n"


def shown(value: Any) -> str:
    """A value in a table or a sentence: thousands with commas, minus signs as such; but code as it is."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) >= 1000):
        return f"{value:,.0f}"
    text = str(value)
    return text if text.startswith("`") else re.sub(r"(?<![\w.])-(?=\d)", "−", text)
