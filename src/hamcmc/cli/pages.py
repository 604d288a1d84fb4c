"""The commands that show: ``report``, ``watch``, ``demo`` and ``reproduce``."""

import contextlib
import shutil
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hamcmc.cli.shell import Run, bar, reporting, screen
from hamcmc.store.settings import read_settings

REPRODUCED = ("fig1", "fig2", "fig3", "fig4", "fig5", "scale", "theorem", "proposition", "bias")


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
    """One self-contained HTML page about a run: traces, densities, pairs, diagnostics, cost, settings."""
    from hamcmc.report import factorization, write_report

    with reporting():
        write = factorization.write if read_settings(run).get("kind") == "factorization" else write_report
        screen.print(f"Wrote {write(run, out)}", highlight=False, soft_wrap=True)


def watch(
    run: Run,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8765,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
) -> None:
    """Show the report of a run in a browser on this machine, live while the run goes on. Nothing is written."""
    from hamcmc.report.watch import Server

    with reporting(), Server(run, port) as server:
        screen.print(f"{run} is at {server.url} until Ctrl-C", highlight=False, soft_wrap=True)
        if browser:
            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
        screen.print("Stopped watching; the run is not touched.", highlight=False)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
) -> None:
    """Sample a strongly correlated posterior with every sampler, compare them, and write a picture and a report."""
    from hamcmc.paper.demo import CHAINS, ITERATIONS, demo
    from hamcmc.report.reproduction import write_demo

    program = "hamcmc" if shutil.which("hamcmc") else sys.argv[0]
    with reporting():
        out.mkdir(parents=True, exist_ok=True)
        screen.print(f"A ridge of a posterior, {CHAINS} chains of {ITERATIONS:,} iterations with each sampler:")
        found = demo(out, seed=seed, tell=lambda name: screen.print(f"  {name} …", highlight=False))
        table = Table("sampler", "ε", "mean error", "sd along", "sd across", "ESS", "gradients/ESS", "seconds")
        for r in found.rows:
            table.add_row(
                r.sampler,
                f"{r.step_size:.1e}",
                f"{r.mean_error:.2f} sd",
                f"{r.length:.2f}",
                f"{r.width:.2f}",
                f"{r.ess:,.0f}",
                f"{r.per_effective_sample:,.0f}",
                f"{r.seconds:.2f}",
            )
        screen.print(table)
        screen.print(
            "sd along/across: estimated over exact standard deviation along and across the ridge (right: 1.00);\n"
            "ESS: effective samples of the slowest parameter, all chains.\n\n"
            f"Look at    {found.picture}\n"
            f"and at     {write_demo(found, out / 'report.html')}\n"
            f"Then try   {program} summary {found.run}\n"
            f"           {program} reproduce fig1 --quick\n"
            f"           {program} sample --help",
            highlight=False,
            soft_wrap=True,
        )


def reproduce(
    name: Annotated[str, typer.Argument(help=f"{', '.join(REPRODUCED)}, or all.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write (default: reproduced/NAME).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Same structure, less of it: well under a minute.")] = False,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    ratings: Annotated[Path | None, typer.Option(help="fig5: your copy of MovieLens 1M, or other ratings.")] = None,
    blocks: Annotated[int | None, typer.Option(help="fig5: cut the matrix in so many × so many.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="fig3: your copy of NOIZEUS, or files laid out like it.")] = None,
) -> None:
    """Reproduce a figure or theorem of the paper: figures (PNG, SVG), results.json, report.html, and a table."""
    from hamcmc.paper import REPRODUCTIONS
    from hamcmc.report.reproduction import write

    with reporting():
        if name not in (*REPRODUCTIONS, "all"):
            raise ValueError(f"name must be one of {', '.join(REPRODUCTIONS)}, all; got {name!r}")
        given = {"ratings": ratings, "blocks": blocks, "corpus": corpus}
        for option, value in given.items():
            if value is not None and name != "all" and option not in REPRODUCTIONS[name].options:
                raise ValueError(f"{name} takes no --{option}")
        for each in REPRODUCTIONS if name == "all" else [name]:
            target = Path("reproduced") / each if out is None else out / each if name == "all" else out
            with bar(each) as progress:
                own = {k: given[k] for k in REPRODUCTIONS[each].options if given[k] is not None}
                found = REPRODUCTIONS[each].run(target, quick=quick, seed=seed, progress=progress, **own)
            table = Table(*map(str, found.columns), title=found.title)
            for row in found.rows:
                table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row))
            screen.print(table)
            for note in found.notes:
                screen.print(note, highlight=False)
            files = [*found.files, write(found, target / "report.html")]
            screen.print("Wrote " + ", ".join(map(str, files)), highlight=False, soft_wrap=True)
