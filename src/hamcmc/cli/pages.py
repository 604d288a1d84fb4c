"""The commands that show something: ``report``, ``watch``, ``demo`` and ``reproduce``."""

import contextlib
import shutil
import sys
import webbrowser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hamcmc._check import nearest
from hamcmc._require import needs
from hamcmc.cli.shell import AsCsv, AsJson, Quiet, Run, Seed, chosen, reporting, say, screen, write_table, wrote

if TYPE_CHECKING:
    from hamcmc._types import Record
    from hamcmc.paper.common import Reproduction
    from hamcmc.paper.contest import Contest
    from hamcmc.paper.demo import Demo

REPRODUCED = ("fig1", "fig2", "where", "fig3", "fig4", "fig5", "scale", "theorem", "proposition", "bias")


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command(epilog="[bold]Example[/bold]\n\nhamcmc report run -o report.html")(report)
    app.command(epilog="[bold]Example[/bold]\n\nhamcmc watch run --port 9000")(watch)
    app.command(epilog="[bold]Example[/bold]\n\nhamcmc demo --out demo")(demo)
    app.command(
        epilog="""[bold]Examples[/bold]

hamcmc reproduce fig1 --quick

hamcmc reproduce proposition --out here"""
    )(reproduce)


def report(
    run: Run,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page (default: RUN/report.html).")] = None,
) -> None:
    """Write one self-contained HTML page about a run: traces, densities, pairs, diagnostics, cost, settings."""
    from hamcmc.report import factorization, write_report
    from hamcmc.store.settings import read_settings

    with reporting():
        write = factorization.write if read_settings(run).get("kind") == "factorization" else write_report
        wrote(write(run, out))


def watch(
    run: Run,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve at; 0 for any that is free.")] = 8765,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
) -> None:
    """Show the report of a run in a browser on this machine, and renew it while the run goes on.

    Nothing is written.
    """
    from hamcmc.report.watch import Server

    with reporting(), Server(run, port) as server:
        say(f"{run} is at {server.url} until Ctrl-C")
        if browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
        say("Stopped watching. The run itself is not affected.")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to write to.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and less time.")] = False,
    seed: Seed = 0,
) -> None:
    """Sample a regression on many rows by one automatic call, beside NUTS; then a thin ridge with every sampler.

    Under two minutes. Writes figures and a report.
    """
    with reporting():
        with needs("matplotlib", "report"):
            import_module("matplotlib")
        from hamcmc.paper import demo as paper
        from hamcmc.report.reproduction import write_demo

        out.mkdir(parents=True, exist_ok=True)
        found = paper.demo(out, quick=quick, seed=seed, tell=say, show=_print_contest)
        _print_comparison(found)
        program = "hamcmc" if shutil.which("hamcmc") else sys.argv[0]
        say(
            "sd along/across: estimated over exact standard deviation along and across the ridge (right: 1.00);\n"
            "ESS: effective draws of the slowest parameter, all chains.\n\n"
            f"Look at    {found.picture}\n"
            f"           {found.samplers}\n"
            f"and at     {write_demo(found, out / 'report.html')}\n"
            f"Then try   {program} summary {found.contest.run}\n"
            f"           {program} reproduce fig1 --quick\n"
            f"           {program} sample --help"
        )


def _print_contest(found: "Contest") -> None:
    """A table with a column for each of the two, and whether they agree."""
    from rich.table import Table

    table = Table("", *(s.name for s in found.sides), title="From the call to the answer")
    for words, values in found.table():
        table.add_row(words, *values)
    screen.print(table)
    for line in found.notes():
        say(line)
    say("")


def _print_comparison(found: "Demo") -> None:
    """A table with a row for each sampler."""
    from rich.table import Table

    table = Table("sampler", "ε", "mean error", "sd along", "sd across", "ESS", "gradients/ESS")
    for r in found.rows:
        table.add_row(
            r.sampler,
            f"{r.step_size:.1e}",
            f"{r.mean_error:.2f} sd",
            f"{r.length:.2f}",
            f"{r.width:.2f}",
            f"{r.ess:,.0f}",
            f"{r.per_effective_sample:,.0f}",
        )
    screen.print(table)


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(REPRODUCED)}, or all.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Directory to write to (default: reproduced/NAME).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version, well under a minute.")] = False,
    seed: Seed = 0,
    ratings: Annotated[Path | None, typer.Option(help="fig5: your copy of MovieLens 1M, or other ratings.")] = None,
    blocks: Annotated[int | None, typer.Option(metavar="B", help="fig5: cut the matrix into B × B blocks.")] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="fig5: numbers of processes to run on, such as 1,2,4 (the default), or none."
        ),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="fig3: your copy of NOIZEUS, or files laid out like it.")] = None,
    changes: Annotated[
        str | None,
        typer.Option(help="fig3: our changes to measure: some of log,impulses,clip,all (default: each), or none."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Reproduce a figure or theorem of the paper: figures (PNG, SVG), results.json, report.html, and a table."""
    with reporting():
        with needs("matplotlib", "report"):
            import_module("matplotlib")
        from hamcmc.paper import REPRODUCTIONS
        from hamcmc.report.reproduction import write

        form = chosen(as_json, as_csv)
        if form and name == "all":
            raise ValueError("--json and --csv print one table: name one reproduction instead of all")
        if name not in (*REPRODUCTIONS, "all"):
            near = nearest(name, REPRODUCTIONS)
            raise ValueError(f"name must be one of {', '.join(REPRODUCTIONS)}, all; got {name!r}{near}")
        given = {"ratings": ratings, "blocks": blocks, "processes": processes, "corpus": corpus, "changes": changes}
        for option, value in given.items():
            if value is not None and name != "all" and option not in REPRODUCTIONS[name].options:
                raise ValueError(f"{name} takes no --{option}")
        targets = {name: out or Path("reproduced") / name}
        if name == "all":
            targets = _remaining(out or Path("reproduced"), quick, seed, given)
        for each, target in targets.items():
            own = {k: given[k] for k in REPRODUCTIONS[each].options if given[k] is not None}
            silent = quiet or form is not None
            found = REPRODUCTIONS[each].run(target, quick=quick, seed=seed, progress=not silent and None, **own)
            files = (*found.files, write(found, target / "report.html"))
            if form is not None:
                about = {"title": found.title, "quick": found.quick, "notes": list(found.notes)}
                rows = [list(row) for row in found.rows]
                write_table(form, list(map(str, found.columns)), rows, about | {"files": list(map(str, files))})
                continue
            _print_reproduction(found)
            wrote(*files)


def _remaining(out: Path, quick: bool, seed: int, given: "Record") -> "dict[str, Path]":
    """The reproductions that are still to be made, and where; says which these are, and how long they take."""
    from hamcmc.paper import REPRODUCTIONS

    targets, done = {}, []
    for name, entry in REPRODUCTIONS.items():
        own = {k: given[k] for k in entry.options if given[k] is not None}
        if entry.finished(out / name, quick=quick, seed=seed, **own):
            done.append(name)
        else:
            targets[name] = out / name
    if done:
        say(f"Finished before, and kept: {', '.join(done)}. Delete {out}/NAME/results.json to run NAME again.")
    minutes = sum(REPRODUCTIONS[name].minutes for name in targets)
    each = ", ".join(f"{name} {REPRODUCTIONS[name].minutes:.0f}" for name in targets)
    if targets and not quick:
        say(f"About {minutes / 60:.1f} hours on two cores; in minutes: {each}. The same command goes on after Ctrl-C.")
    return targets


def _print_reproduction(found: "Reproduction") -> None:
    """Tables of results, and what to know about them."""
    from rich.table import Table

    for title, columns, rows in found.tables:
        table = Table(*map(str, columns), title=title)
        for row in rows:
            table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
        screen.print(table)
    for note in found.notes:
        screen.print(note, highlight=False)
