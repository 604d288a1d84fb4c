"""The commands on ratings: ``factorize``, ``predict`` and ``recommend``."""

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.markup import escape

from hamcmc.cli.shell import (
    AsCsv,
    AsJson,
    CheckpointSeconds,
    Command,
    Overwrite,
    Quiet,
    RunOut,
    Seed,
    Settings,
    chosen,
    errors,
    flowing,
    reporting,
    say,
    screen,
    warn,
    write_table,
)
from hamcmc.cli.shell import setting as parse_setting

if TYPE_CHECKING:
    import numpy as np

    from hamcmc.factorization.predict import Factorization, Predictions

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a factorization run.", show_default=False)]
UserColumn = Annotated[str | None, typer.Option(help="Name of the column of users.")]
ItemColumn = Annotated[str | None, typer.Option(help="Name of the column of items.")]
Level = Annotated[float, typer.Option(help="Probability of the intervals.")]
Clip = Annotated[bool, typer.Option(help="Keep means and intervals inside the range of the ratings.")]
COLUMNS = ("mean", "sd", "low", "high")


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command(
        cls=Command,
        help=flowing(factorize.__doc__),
        epilog="""[bold]Examples[/bold]

hamcmc factorize ratings.csv -o run

hamcmc factorize ratings.dat --rank 50 --processes 2 --restarts 3

mpirun -n 16 hamcmc factorize ratings.parquet --user customer --item product --rating stars""",
    )(factorize)
    app.command(
        help=flowing(predict.__doc__),
        epilog="""[bold]Examples[/bold]

hamcmc predict run pairs.csv -o predictions.csv

hamcmc predict run pairs.parquet --user customer --item product --level 0.5""",
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
    out: RunOut = Path("run"),
    rank: Annotated[int, typer.Option(help="Number of factors.")] = 10,
    model: Annotated[str, typer.Option(help="full (biases, learned precisions), or paper (unit variances).")] = "full",
    sampler: Annotated[str, typer.Option(help="sghmc, sgld, psgld, hamcmc or ensemble_hamcmc.")] = "sghmc",
    step_size: Annotated[float | None, typer.Option(help="ε, constant; by default it depends on the sampler.")] = None,
    num_samples: Annotated[int, typer.Option(help="Stored draws.")] = 200,
    warmup: Annotated[int, typer.Option(help="Sweeps before the first stored draw.")] = 20,
    thin: Annotated[int, typer.Option(help="Sweeps per stored draw.")] = 2,
    steps: Annotated[int, typer.Option(help="Gradient steps in a sweep.")] = 10,
    blocks: Annotated[
        int | None, typer.Option(metavar="B", help="Cut the matrix into B × B blocks; by default B = cores.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes on this machine; their number must divide B.")] = 1,
    restarts: Annotated[int, typer.Option(help="How often to start again if a process dies.")] = 0,
    test: Annotated[float, typer.Option(help="Share of the ratings held out.")] = 0.1,
    seed: Seed = 0,
    user: UserColumn = None,
    item: ItemColumn = None,
    rating: Annotated[str | None, typer.Option(help="Name of the column of ratings.")] = None,
    duplicates: Annotated[
        str, typer.Option(help="If a pair is rated again: last (the last line counts), mean, or error.")
    ] = "last",
    setting: Settings = None,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Factorize a table of ratings, to predict ratings with honest intervals.

    Rows are users and columns are items. Each has a vector of factors, and a rating is the product of two such vectors
    plus noise. Posterior draws of all factors go to a directory, which [bold]hamcmc predict[/bold],
    [bold]recommend[/bold] and [bold]report[/bold] read. Ctrl-C saves and stops; [bold]hamcmc resume[/bold] continues,
    on any number of processes.
    """
    from hamcmc.factorization import ratings as files
    from hamcmc.factorization import run as runs
    from hamcmc.inference import launch
    from hamcmc.store.directory import check_free

    with reporting():
        form = chosen(as_json, as_csv)
        if launch.started_by() is None:  # of several processes, the first one checks before it writes
            check_free(out, overwrite=overwrite)
        table = files.read(ratings, user=user, item=item, rating=rating, duplicates=duplicates)
        if table.duplicates_dropped and not launch.rank():
            counts = {"last": "the last one counts", "mean": "their mean counts"}[duplicates]
            warn(f"{table.duplicates_dropped:,} lines rate a pair again: {counts} (--duplicates)")
        if not launch.rank():
            errors.print(
                f"{table.size:,} ratings by {len(table.users):,} users of {len(table.items):,} items", highlight=False
            )
        found = runs.factorize(
            table,
            out,
            rank=rank,
            model=model,
            sampler=sampler,
            options=dict(parse_setting(s) for s in setting or []),
            step_size=step_size,
            num_samples=num_samples,
            warmup=warmup,
            thin=thin,
            steps=steps,
            blocks=blocks,
            processes=processes,
            restarts=restarts,
            test=test,
            seed=seed,
            progress=not (quiet or form) and None,
            checkpoint_seconds=checkpoint_seconds,
            overwrite=overwrite,
            notes={"source": str(ratings.resolve())},
        )
        _print_end(out, found, form)


def proceed(run: Path, processes: int, quiet: bool, checkpoint_seconds: float, form: str | None = None) -> None:
    """Continue a factorization, for ``hamcmc resume``."""
    from hamcmc.factorization import run as runs

    found = runs.proceed(run, processes=processes, progress=not quiet and None, checkpoint_seconds=checkpoint_seconds)
    _print_end(run, found, form)


def _print_end(run: Path, model: "Factorization", form: str | None) -> None:
    """Say how good the predictions are, and what to do next; of several processes, the first one does."""
    import jax

    if jax.process_index():
        return
    if form is not None:
        levels = (0.5, 0.8, 0.9, 0.95) if model.settings["held_out"] else ()
        covered = zip(levels, map(float, model.coverage(levels) if levels else ()))
        about = {"run": str(run), "draws": model.samples, "seconds": model.meta["seconds"]}
        about |= {"held_out": model.settings["held_out"], "rmse": model.rmse() if levels else None}
        write_table(form, ("level", "covered"), [list(row) for row in covered], about, "coverage")
        return
    if held_out := model.settings["held_out"]:
        covered = float(model.coverage((0.9,))[0])
        say(
            f"test RMSE {model.rmse():.4f} on {held_out:,} held-out ratings; the 90 % intervals cover {covered:.1%} of "
            f"them; {model.samples:,} draws in {model.meta['seconds']:.1f} s"
        )
    say(f"Next: hamcmc recommend {run} --user ID, or hamcmc report {run}")


def predict(
    run: Run,
    pairs: Annotated[Path, typer.Argument(help="CSV, TSV or Parquet with columns user and item.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file to write; without it, the CSV is printed.")
    ] = None,
    user: UserColumn = None,
    item: ItemColumn = None,
    level: Level = 0.9,
    clip: Clip = True,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, as without any of these options.")] = False,
) -> None:
    """Predict ratings for pairs of users and items: the mean, the sd and an interval of a new rating.

    For users and items that the run has not seen, the prior is used: their intervals are wide, and the column
    [bold]known[/bold] is false.
    """
    from hamcmc.factorization import predict as predictions
    from hamcmc.factorization.ratings import read_pairs
    from hamcmc.store.files import guard_disk, write_atomically

    with reporting():
        if chosen(as_json, as_csv) and out is not None:
            raise ValueError("--out writes a CSV file: leave --json and --csv out")
        model = predictions.load(run)
        users, items = read_pairs(pairs, user=user, item=item)
        found = model.predict(users, items, level=level, clip=clip)
        rows = ([*row, "true" if known else "false"] for row, known in zip(_rows(found, users, items), found.known))
        head = ("user", "item", *COLUMNS, "known")
        if as_json:
            listed = [[u, i, *map(float, numbers), known == "true"] for u, i, *numbers, known in rows]
            write_table("json", head, listed, {"level": level}, "predictions")
            return
        if out is None:
            _write_csv(sys.stdout, head, rows)
            return
        text = io.StringIO()
        _write_csv(text, head, rows)
        with guard_disk(out):
            write_atomically(out, text.getvalue().encode())
        typer.echo(f"Wrote {out}: {len(users):,} predictions, {int((~found.known).sum()):,} of unseen users or items")


def recommend(
    run: Run,
    user: Annotated[str, typer.Option(help="Id of a user; an unknown one gets what suits the average user.")],
    top: Annotated[int, typer.Option(help="How many items.")] = 10,
    include_rated: Annotated[
        bool, typer.Option("--include-rated", help="Include items that the user has rated.")
    ] = False,
    level: Level = 0.9,
    clip: Clip = True,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """List the items that a user is expected to rate highest, best first, with intervals."""
    from rich.table import Table

    from hamcmc.factorization import predict as predictions

    with reporting():
        form = chosen(as_json, as_csv)
        model = predictions.load(run)
        known = user in model.ratings.users
        items, found = model.recommend(user, top, include_rated=include_rated, level=level, clip=clip)
        rows, head = _rows(found, items), ("item", *COLUMNS)
        if form is not None:
            listed = [[name, *map(float, numbers)] for name, *numbers in rows]
            write_table(form, head, listed, {"user": user, "known": known, "level": level}, "items")
        else:
            ends = [f"{100 * p:.3g} %" for p in ((1 - level) / 2, (1 + level) / 2)]
            table = Table("item")
            for name in ("mean", "sd", *ends):
                table.add_column(name, justify="right")
            for name, *numbers in rows:
                table.add_row(escape(name), *(f"{float(x):.2f}" for x in numbers))
            screen.print(table)
        if not known:
            warn(f"user {user} is not in the ratings: these items suit the average user")


def _rows(found: "Predictions", *ids: "np.ndarray") -> Iterator[list[str]]:
    """The ids and numbers of each prediction as text."""
    numbers = ([f"{x:.6g}" for x in getattr(found, c)] for c in COLUMNS)
    return map(list, zip(*(x.tolist() for x in ids), *numbers))


def _write_csv(file: TextIO, head: tuple[str, ...], rows: Iterator[list[str]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
