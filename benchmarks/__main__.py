"""``python -m benchmarks [NAME…] [--quick]``: measure, print tables, keep them, and fill in the pages from them."""

import argparse
import time
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import page
from benchmarks.measure import Table

NAMES = {
    "sgld": "sgld",
    "posteriors": "posteriors",
    "hamcmc": "quasi_newton",
    "throughput": "throughput",
    "memory": "memory",
    "float32": "float32",
    "mixing": "mixing",
    "race": "race",
    "bias": "bias",
    "automatic": "automatic",
    "seconds": "seconds",
    "large": "large",
    "factorization": "factorization",
    "recommenders": "recommenders",
    "sweeps": "sweeps",
    "processes": "processes",
    "scaling": "scaling",
    "networks": "networks",
    "denoisers": "denoisers",
    "coverage": "coverage",
    "wideband": "wideband",
}
OWN = {  # arguments
    "recommenders": ("ratings", "rank"),
    "denoisers": ("corpus", "sentences", "snr", "only"),
    "coverage": ("corpus", "snr"),
    "wideband": ("recordings",),
    "large": ("folder",),
    "networks": ("uci",),
    "seconds": ("before",),
    "race": ("only", "methods", "seconds", "rounds", "huge", "fresh"),
}
PATHS = ("ratings", "corpus", "recordings", "folder", "before", "uci")
# Paths without which a benchmark cannot be made
NEEDED = {"denoisers": "corpus", "coverage": "corpus", "wideband": "recordings"}


def show(console: Console, table: Table) -> None:
    """Print a table."""
    out = RichTable(title=table.title, title_justify="left")
    for column in table.rows[0]:
        out.add_column(column, justify="right")
    for row in table.rows:
        out.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    console.print(out)


def command(name: str, arguments: argparse.Namespace) -> str:
    """That runs one benchmark as it was run; paths are the reader's own."""
    options = ["--quick"] * arguments.quick
    for own in OWN.get(name, ()):
        value = getattr(arguments, own)
        if value and own in PATHS:
            options.append(" ".join([f"--{own}", *["PATH"] * (1 if isinstance(value, str) else len(value))]))
        elif value is True:
            options.append(f"--{own}")
        elif value:
            options.append(f"--{own} {','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}")
    return " ".join(["python -m benchmarks", name, *options])


def fill_in(console: Console) -> None:
    """Renew what the pages have of kept results."""
    changed = page.write(NAMES)
    console.print("\n".join(f"Wrote {p}" for p in changed) or "All pages were up to date.")


def main() -> None:
    """Run the benchmarks that were asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    of_ratings = "recommenders: files of ratings, in place of made ones"
    parser.add_argument("--ratings", nargs="+", metavar="PATH", default=(), help=of_ratings)
    parser.add_argument(
        "--corpus", metavar="PATH", help="denoisers, coverage: noisy files and their speech, like NOIZEUS"
    )
    parser.add_argument("--recordings", metavar="PATH", help="wideband: made by tools/speech_data.py recordings PATH")
    parser.add_argument("--before", metavar="PATH", default="", help="seconds: a checkout of 0.1.0 to run beside it")
    parser.add_argument("--folder", metavar="PATH", help="large: where 17 GB of data are, or are put")
    parser.add_argument("--uci", metavar="PATH", help="networks: sets of the UCI repository with their usual splits")
    numbers = lambda text: [int(i) for i in text.split(",")]
    parser.add_argument("--rank", type=numbers, default=[10], help="recommenders: numbers of factors; default: 10")
    parser.add_argument("--sentences", type=numbers, default=(), help="denoisers: 2,3,…; default: those not tuned on")
    parser.add_argument("--snr", type=numbers, default=[5], help="denoisers, coverage: 5,0,10, in dB; default: 5")
    words = lambda text: text.split(",")
    parser.add_argument("--only", type=words, default=(), help="denoisers: noisy,default,…; race: linear,student,…")
    parser.add_argument("--methods", type=words, default=(), help="race: hamcmc,nuts-white,…; default: all")
    parser.add_argument("--seconds", type=float, default=0.0, help="race: the budget of each run; default: 120")
    parser.add_argument("--rounds", type=int, default=0, help="race: runs of each method on each problem; default: 3")
    parser.add_argument("--huge", action="store_true", help="race: also ten million rows on disk")
    parser.add_argument("--fresh", action="store_true", help="race: measure again what was measured before")
    parser.add_argument("--figure", action="store_true", help="race: draw the picture from kept results, no more")
    parser.add_argument("--pages", action="store_true", help="fill in the pages from kept results, no more")
    keep = "keep the results.json of full reproductions, and fill in the pages, no more"
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FILE", default=(), help=keep)
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    for name, path in NEEDED.items():
        if name in arguments.names and getattr(arguments, path) is None:
            parser.error(f"{name} needs --{path} PATH")

    console = Console()
    if arguments.figure:
        console.print(import_module("benchmarks.race_figure").draw())
        return
    if arguments.pages or arguments.keep:
        for path in arguments.keep:
            console.print(f"Kept in {page.keep(path)}.")
        fill_in(console)
        return
    page.RESULTS.mkdir(exist_ok=True)
    for name in arguments.names or NAMES:
        if name in NEEDED and getattr(arguments, NEEDED[name]) is None:
            continue  # what was measured before stays on the page
        own = {k: getattr(arguments, k) for k in OWN.get(name, ())}
        began = time.perf_counter()
        module = import_module(f"benchmarks.{NAMES[name]}")
        tables = module.run(arguments.quick, **own)
        spent = time.perf_counter() - began
        if hasattr(module, "seconds_in_log"):  # of measurements that several calls have made
            spent = module.seconds_in_log()
        for table in tables:
            show(console, table)
        stored = page.RESULTS / f"{name}.json"
        if arguments.quick and page.full(name):
            console.print(f"{stored} is of a full run, and stays.")
            continue
        page.store(
            stored,
            tables,
            command=command(name, arguments),
            seconds=spent,
            quick=arguments.quick,
            settings={k: v for k, v in own.items() if v and k not in PATHS},
            seeds="fixed in the code of the benchmark",
        )
        console.print(f"Kept in {stored}.")
        if name == "race" and not arguments.quick:
            console.print(import_module("benchmarks.race_figure").draw())
    fill_in(console)


if __name__ == "__main__":
    main()
