"""The command ``summary``, and what ``sample`` and ``resume`` print at their end."""

import csv
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hamcmc.cli.shell import Run, reporting

if TYPE_CHECKING:
    from hamcmc.diagnostics.result import Result


def register(app: typer.Typer) -> None:
    """Add the command to a program."""
    app.command(epilog="[bold]Examples[/bold]\n\nhamcmc summary run --limit 50\n\nhamcmc summary run --json")(summary)


def summary(
    run: Run,
    limit: Annotated[int, typer.Option(help="The most rows to show.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdict, all rows and counters as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all rows as CSV.")] = False,
) -> None:
    """Print the verdict on a run, means, deviations and quantiles, ESS, R-hat and cost, also while it is running.

    The exit code follows the verdict: 0 for good and usable, 3 for not converged, 4 for wrong.
    """
    from hamcmc.diagnostics.result import Result

    with reporting():
        if as_json and as_csv:
            raise ValueError("--json and --csv exclude each other")
        result = Result.open(run)
        code = write_summary(result, as_json) if as_json or as_csv else print_summary(result, limit)
    raise typer.Exit(code)


def write_summary(result: "Result", as_json: bool) -> int:
    """Print all rows for another program; returns the exit code."""
    from hamcmc.diagnostics.summaries import summary as summarize

    verdict = result.check()
    table = summarize(result, limit=None, verdict=verdict)
    cells = {c: [None if v != v else float(v) for v in values] for c, values in table.columns.items()}
    rows = [dict(zip(("name", *cells), (name, *row))) for name, row in zip(table.names, zip(*cells.values()))]
    if not as_json:
        writer = csv.DictWriter(sys.stdout, ["name", *cells])
        writer.writeheader()
        writer.writerows(rows)
        return verdict.exit_code
    counters = {k: result.meta[k] for k in ("status", "iteration", "seconds", "gradients") if k in result.meta}
    about = {"verdict": verdict.to_json(), "sampler": result.settings["sampler"], "draws": result.draws} | counters
    typer.echo(json.dumps(about | {"parameters": rows}, ensure_ascii=False))
    return verdict.exit_code


def print_summary(result: "Result", limit: int = 40) -> int:
    """Print the verdict, the summary and the cost; returns the exit code."""
    from hamcmc.diagnostics.costs import cost
    from hamcmc.diagnostics.summaries import summary as summarize

    meta, verdict = result.meta, result.check()
    typer.echo(str(verdict))
    typer.echo(f"{meta['status']}: {result.draws:,} draws per chain with {result.settings['sampler'].get('sampler')}")
    table = summarize(result, limit=limit, verdict=verdict)
    typer.echo(str(table).removeprefix(verdict.headline + "\n"))  # it is the first line already
    typer.echo(str(cost(result, table)))
    if "message" in meta:
        typer.echo(meta["message"])
    return verdict.exit_code
