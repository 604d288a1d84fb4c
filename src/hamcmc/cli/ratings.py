"""The shell's commands on ratings: parses, calls, prints."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from hamcmc.cli.shell import errors, reporting, screen
from hamcmc.cli.shell import setting as parse_setting

if TYPE_CHECKING:
    from hamcmc.factorization.predict import Factorization

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a factorization run.", show_default=False)]
Level = Annotated[float, typer.Option(help="Probability of the intervals.")]
Clip = Annotated[bool, typer.Option("--clip", help="Cut means and intervals to the range of the ratings.")]
COLUMNS = ("mean", "sd", "low", "high")


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command(
        epilog="""[bold]Examples[/bold]

hamcmc factorize ratings.csv -o run

hamcmc factorize ratings.dat --rank 50 --processes 2 --restarts 3

mpirun -n 16 hamcmc factorize ratings.parquet --user customer --item product --rating stars"""
    )(factorize)
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


def factorize(
    ratings: Annotated[
        Path, typer.Argument(help="CSV, TSV, Parquet, or MovieLens' format with '::'.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the run.")] = Path("run"),
    rank: Annotated[int, typer.Option(help="Number of factors.")] = 10,
    model: Annotated[str, typer.Option(help="full (biases, learned precisions), or paper (unit variances).")] = "full",
    sampler: Annotated[str, typer.Option(help="sghmc, sgld, psgld, hamcmc or ensemble_hamcmc.")] = "sghmc",
    step_size: Annotated[float | None, typer.Option(help="ε, constant; by default the sampler's own.")] = None,
    samples: Annotated[int, typer.Option(help="Stored draws.")] = 200,
    burn_in: Annotated[int, typer.Option(help="Sweeps before the first stored draw.")] = 20,
    thin: Annotated[int, typer.Option(help="Sweeps per stored draw.")] = 1,
    steps: Annotated[int, typer.Option(help="Gradient steps in a sweep.")] = 20,
    blocks: Annotated[int | None, typer.Option(help="Cut the matrix in B × B blocks; by default B = cores.")] = None,
    processes: Annotated[int, typer.Option(help="Processes on this machine; they divide the blocks.")] = 1,
    restarts: Annotated[int, typer.Option(help="Start again so many times if a process dies.")] = 0,
    test: Annotated[float, typer.Option(help="Share of the ratings held out.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    user: Annotated[str | None, typer.Option(help="Name of the column of users.")] = None,
    item: Annotated[str | None, typer.Option(help="Name of the column of items.")] = None,
    rating: Annotated[str | None, typer.Option(help="Name of the column of ratings.")] = None,
    duplicates: Annotated[str, typer.Option(help="Of a pair rated again: last line, mean or error.")] = "last",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the sampler; may be repeated."),
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints.")] = 30.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Factorize a table of ratings, and get predictions with honest intervals.

    Rows are users, columns are items; each gets a vector of factors, and each rating is their product plus noise. Draws
    of all of them from the posterior go to a directory, which [bold]hamcmc predict[/bold], [bold]recommend[/bold] and
    [bold]report[/bold] read. Ctrl-C saves and stops; [bold]hamcmc resume[/bold] goes on, on any number of processes.
    """
    from hamcmc.factorization import launch
    from hamcmc.factorization import ratings as files
    from hamcmc.factorization import run as runs
    from hamcmc.store.record import check_free

    with reporting():
        if launch.started_by() is None:  # among several, the first process checks, before it writes
            check_free(out, overwrite=overwrite)
        table = files.read(ratings, user=user, item=item, rating=rating, duplicates=duplicates)
        if table.duplicates_dropped and not launch.rank():
            counts = {"last": "the last one counts", "mean": "the mean counts"}[duplicates]
            errors.print(
                f"{table.duplicates_dropped:,} lines rate a pair again: {counts} (--duplicates)", style="yellow"
            )
        if not launch.rank():
            errors.print(
                f"{table.size:,} ratings by {len(table.users):,} users of {len(table.items):,} items", highlight=False
            )
        fitted = runs.factorize(
            table,
            out,
            rank=rank,
            model=model,
            sampler=sampler,
            options=dict(parse_setting(s) for s in setting or []),
            step_size=step_size,
            num_samples=samples,
            warmup=burn_in,
            thin=thin,
            steps=steps,
            blocks=blocks,
            processes=processes,
            restarts=restarts,
            test=test,
            seed=seed,
            progress=not quiet and None,
            checkpoint_seconds=checkpoint_seconds,
            overwrite=overwrite,
            notes={"source": str(ratings.resolve())},
        )
        _print_end(fitted, out)


def proceed(run: Path, processes: int, quiet: bool, checkpoint_seconds: float) -> None:
    """Continue a factorization, for ``hamcmc resume``."""
    from hamcmc.factorization import run as runs

    fitted = runs.proceed(run, processes=processes, progress=not quiet and None, checkpoint_seconds=checkpoint_seconds)
    _print_end(fitted, run)


def _print_end(model: "Factorization", run: Path) -> None:
    """How good it is, and what to do next."""
    import jax

    if jax.process_index():
        return
    if held_out := model.settings["held_out"]:
        covered = float(model.coverage((0.9,))[0])
        screen.print(
            f"test RMSE {model.rmse():.4f} on {held_out:,} held-out ratings, of which 90 % intervals cover "
            f"{covered:.1%}; {model.samples:,} draws in {model.meta['seconds']:.1f} s",
            highlight=False,
        )
    screen.print(f"Next: hamcmc recommend {run} --user ID, or hamcmc report {run}", highlight=False, soft_wrap=True)


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
    from hamcmc.factorization import predict as predictions
    from hamcmc.factorization.ratings import read_pairs
    from hamcmc.store.record import guard_disk

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
