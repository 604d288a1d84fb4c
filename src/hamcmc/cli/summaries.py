"""The command ``summary``, and what ``sample`` and ``resume`` print at their end."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hamcmc.cli.shell import AsCsv, AsJson, Run, chosen, reporting, write_table

if TYPE_CHECKING:
    from hamcmc.diagnostics.result import Result


def register(app: typer.Typer) -> None:
    """Add the command to a program."""
    app.command(epilog="[bold]Examples[/bold]\n\nhamcmc summary run --limit 50\n\nhamcmc summary run --json")(summary)


def summary(
    run: Run,
    limit: Annotated[int, typer.Option(help="The most rows to show.")] = 40,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print the verdict on a run, means, deviations and quantiles, ESS, R-hat and cost, also while it is running.

    The exit code follows the verdict: 0 for good and usable, 3 for not converged, 4 for wrong.
    """
    from hamcmc.diagnostics.result import Result

    with reporting():
        form = chosen(as_json, as_csv)
        code = print_end(Result.open(run), run, form, limit)
    raise typer.Exit(code)


def print_end(result: "Result", run: Path, form: str | None, limit: int = 40) -> int:
    """Print the verdict and the summary, for people or for another program; returns the exit code."""
    return print_summary(result, run, limit) if form is None else write_summary(result, run, form)


def write_summary(result: "Result", run: Path, form: str) -> int:
    """Print all rows for another program; returns the exit code."""
    from hamcmc.diagnostics.summaries import summary as summarize
    from hamcmc.store.directory import state

    verdict = result.check()
    table = summarize(result, limit=None, verdict=verdict)
    rows = [[name, *map(float, row)] for name, row in zip(table.names, zip(*table.columns.values()))]
    counters = {k: result.meta[k] for k in ("iteration", "seconds", "gradients") if k in result.meta}
    about = {"verdict": verdict.to_json(), "sampler": result.settings["sampler"], "draws": result.draws}
    about |= {"status": state(result.meta["status"], run)} | counters
    write_table(form, ["name", *table.columns], rows, about, "parameters")
    return verdict.exit_code


def print_summary(result: "Result", run: Path, limit: int = 40) -> int:
    """Print the verdict, the summary and the cost; returns the exit code."""
    from hamcmc.diagnostics.costs import cost
    from hamcmc.diagnostics.summaries import summary as summarize
    from hamcmc.store.directory import state

    meta, verdict = result.meta, result.check()
    typer.echo(str(verdict))
    how = f"{result.draws:,} draws per chain with {result.settings['sampler'].get('sampler')}"
    typer.echo(f"{state(meta['status'], run)}: {how}")
    table = summarize(result, limit=limit, verdict=verdict)
    typer.echo(str(table).removeprefix(verdict.headline + "\n"))  # it is the first line already
    typer.echo(str(cost(result, table)))
    if "message" in meta:
        typer.echo(meta["message"])
    return verdict.exit_code
