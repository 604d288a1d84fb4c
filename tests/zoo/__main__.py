"""The zoo in the shell: ``python -m tests.zoo list`` and ``python -m tests.zoo run``."""

import argparse
import json
import sys
from pathlib import Path

import jax

from tests import zoo
from tests.zoo import compare, posteriordb, references, runner
from tests.zoo import page as pages


def main() -> int:
    """Parse and do. The exit code is 1 if a verdict misled: a failure kept silent, or a good run called wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=zoo.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print name, dimension, rows and note of every case")
    run = commands.add_parser("run", help="sample cases wholly automatically and compare with the references")
    run.add_argument("--names", nargs="+", help="cases or families; all of them by default")
    run.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    run.add_argument("--precision", choices=["float32", "float64", "both"], default="both")
    run.add_argument("--x64", dest="precision", action="store_const", const="float64")
    run.add_argument("--x32", dest="precision", action="store_const", const="float32")
    run.add_argument("--out", type=Path, default=Path("zoo.json"))
    run.add_argument("--resume", action="store_true", help="keep the runs that are in the file of results")
    run.add_argument("--limit", type=float, default=600.0, help="seconds for one run")
    run.add_argument("--options", type=json.loads, default={}, help="further arguments of hamcmc.sample, as JSON")
    page = commands.add_parser("page", help="make docs/zoo.md from files of results, which are kept")
    page.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    if given.command == "page":
        pages.main(given.files)
        return 0
    if posteriordb.MISSING:
        print(f"Note: {posteriordb.MISSING}.", file=sys.stderr)
    if given.command == "list":
        show()
        return 0
    names = runner.choose(given.names)
    precisions = ["float32", "float64"] if given.precision == "both" else [given.precision]
    runs = runner.run(names, given.seeds, precisions, given.out, given.options, given.limit, given.resume)
    print(runner.totals(runs))
    return int(any(r["kind"] in (compare.SILENT, compare.SLANDERED) for r in runs))


def show() -> None:
    """Print what there is."""
    for name in zoo.names():
        case = zoo.case(name)
        init = case.init(jax.random.key(0)) if callable(case.init) else case.init
        size = sum(x.size for x in jax.tree.leaves(init))
        nuts = {True: "NUTS right", False: "NUTS wrong"}.get(references.nuts_right(name), "no reference")
        print(f"{case.family:<14} {name:<26} {size:>5} dims {case.posterior.size:>7} rows  {nuts:<12}  {case.note}")


if __name__ == "__main__":
    sys.exit(main())
