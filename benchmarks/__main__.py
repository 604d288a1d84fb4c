"""``python -m benchmarks [NAME…] [--quick]``: measure, print tables, write ``benchmarks/results/latest.json``."""

import argparse
import json
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.measure import Table, machine

NAMES = {
    "sgld": "sgld",
    "hamcmc": "quasi_newton",
    "memory": "memory",
    "float32": "float32",
    "mixing": "mixing",
    "peers": "peers",
    "bias": "bias",
    "factorization": "factorization",
    "recommenders": "recommenders",
    "processes": "processes",
    "denoisers": "denoisers",
}
OWN = {"recommenders": ("ratings", "rank"), "denoisers": ("corpus", "sentences", "snr", "only")}  # arguments
RESULTS = Path(__file__).parent / "results" / "latest.json"


def show(console: Console, table: Table) -> None:
    """Print a table."""
    out = RichTable(title=table.title, title_justify="left")
    for column in table.rows[0]:
        out.add_column(column, justify="right")
    for row in table.rows:
        out.add_row(*(f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()))
    console.print(out)


def main() -> None:
    """Run the benchmarks that were asked for, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--ratings", metavar="PATH", help="recommenders: a file of ratings, in place of made ones")
    parser.add_argument("--rank", type=int, default=10, help="recommenders: number of factors; default: 10")
    parser.add_argument("--corpus", metavar="PATH", help="denoisers: noisy sentences and their speech, as in NOIZEUS")
    numbers = lambda text: [int(i) for i in text.split(",")]
    parser.add_argument("--sentences", type=numbers, default=(), help="denoisers: 2,3,…; default: those not tuned on")
    parser.add_argument("--snr", type=int, default=5, help="denoisers: of the noisy files, in dB; default: 5")
    parser.add_argument("--only", type=lambda text: text.split(","), default=(), help="denoisers: noisy,rnnoise,best,…")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if "denoisers" in arguments.names and arguments.corpus is None:
        parser.error("denoisers need --corpus PATH")

    console = Console()
    results = {"quick": arguments.quick, "machine": machine(), "tables": []}
    RESULTS.parent.mkdir(exist_ok=True)
    for name in arguments.names or NAMES:
        own = {k: getattr(arguments, k) for k in OWN.get(name, ())}
        for table in import_module(f"benchmarks.{NAMES[name]}").run(arguments.quick, **own):
            show(console, table)
            results["tables"].append(table._asdict())
            RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    console.print(f"Written to {RESULTS}")


if __name__ == "__main__":
    main()
