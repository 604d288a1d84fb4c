"""The shell's commands on ratings: parses, calls, prints."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a factorization run.", show_default=False)]
Level = Annotated[float, typer.Option(help="Probability of the intervals.")]
Clip = Annotated[bool, typer.Option("--clip", help="Cut means and intervals to the range of the ratings.")]
COLUMNS = ("mean", "sd", "low", "high")


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command(
        epilog="""[bold]Examples[/bold]

hamcmc predict run pairs.csv -o predictions.csv

hamcmc predict run pairs.parquet --user customer --item product --level 0.5"""
    )(predict)
    app.command(
        epilog="""[bold]Examples[/bold]

hamcmc recommend run --user 17

hamcmc recommend run --user 17 --top 100 --csv > best.csv"""
    )(recommend)


def predict(
    run: Run,
    pairs: Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with columns user and item.", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV to write; else it is printed.")] = None,
    user: Annotated[str | None, typer.Option(help="Name of the column of users.")] = None,
    item: Annotated[str | None, typer.Option(help="Name of the column of items.")] = None,
    level: Level = 0.9,
    clip: Clip = False,
) -> None:
    """Predict ratings of pairs of users and items: mean, sd and an interval for a new rating of each.

    Users and items that the run has not seen fall back to the prior; their intervals are wide, and [bold]known[/bold]
    is false.
    """
    from hamcmc.cli import reporting
    from hamcmc.factorization import predict as predictions
    from hamcmc.factorization.ratings import read_pairs
    from hamcmc.record import guard_disk

    with reporting():
        model = predictions.load(run)
        users, items = read_pairs(pairs, user=user, item=item)
        found = model.predict(users, items, level=level, clip=clip)
        rows = ([*row, "true" if known else "false"] for row, known in zip(_rows(found, users, items), found.known))
        head = ("user", "item", *COLUMNS, "known")
        if out is None:
            _write_csv(sys.stdout, head, rows)
            return
        temporary = out.with_name(out.name + ".partial")
        with guard_disk(out):
            with open(temporary, "w", newline="") as f:
                _write_csv(f, head, rows)
            temporary.replace(out)
        typer.echo(f"Wrote {out}: {len(users):,} predictions, {int((~found.known).sum()):,} of unseen users or items")


def recommend(
    run: Run,
    user: Annotated[str, typer.Option(help="Id of a user; one that is not known gets what suits the average user.")],
    top: Annotated[int, typer.Option(help="How many items.")] = 10,
    include_rated: Annotated[bool, typer.Option("--include-rated", help="Also those that the user has rated.")] = False,
    level: Level = 0.9,
    clip: Clip = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """The items that a user is expected to rate highest, best first, with intervals."""
    from hamcmc.cli import errors, reporting, screen
    from hamcmc.factorization import predict as predictions

    with reporting():
        if as_json and as_csv:
            raise ValueError("choose --json or --csv, not both")
        model = predictions.load(run)
        known = user in model.ratings.users
        items, found = model.recommend(user, top, include_rated=include_rated, level=level, clip=clip)
        rows, head = _rows(found, items), ("item", *COLUMNS)
        if as_json:
            listed = [dict(zip(head, (name, *map(float, numbers)))) for name, *numbers in rows]
            typer.echo(json.dumps({"user": user, "known": known, "level": level, "items": listed}))
        elif as_csv:
            _write_csv(sys.stdout, head, rows)
        else:
            ends = [f"{100 * p:.3g} %" for p in ((1 - level) / 2, (1 + level) / 2)]
            table = Table("item")
            for name in ("mean", "sd", *ends):
                table.add_column(name, justify="right")
            for name, *numbers in rows:
                table.add_row(escape(name), *(f"{float(x):.2f}" for x in numbers))
            screen.print(table)
        if not known:
            errors.print(
                f"[yellow]user {escape(user)} is not in the ratings: this is for the average user[/yellow]",
                highlight=False,
            )


def _rows(found: Any, *ids: np.ndarray) -> Iterator[list[str]]:
    """Ids and numbers of each prediction as text."""
    numbers = ([f"{x:.6g}" for x in getattr(found, c)] for c in COLUMNS)
    return map(list, zip(*(x.tolist() for x in ids), *numbers))


def _write_csv(file: TextIO, head: tuple[str, ...], rows: Iterator[list[str]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
