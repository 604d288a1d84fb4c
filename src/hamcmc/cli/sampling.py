"""The commands that sample: ``sample`` and ``resume``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hamcmc.cli import options, ratings
from hamcmc.cli.shell import (
    AsCsv,
    AsJson,
    CheckpointSeconds,
    Command,
    Overwrite,
    Processes,
    Quiet,
    Run,
    RunOut,
    Seed,
    Settings,
    chosen,
    flowing,
    reporting,
    say,
)
from hamcmc.cli.shell import setting as parse_setting
from hamcmc.cli.summaries import print_end
from hamcmc.samplers import NAMES
from hamcmc.store.errors import RunError

if TYPE_CHECKING:
    from hamcmc.diagnostics.result import Result

DEFAULT, WARMUP = "ensemble_hamcmc", 1000  # where something is chosen by hand and these are not


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command(
        name="sample",
        cls=Command,
        help=flowing(sample_command.__doc__),
        epilog="""[bold]Examples[/bold]

hamcmc sample model.py --data data.npz -o run

hamcmc sample model.py --data table.parquet --columns x=age,income --columns y=paid

hamcmc sample model.py --data data.csv --sampler sgld --step-size 0.01 --decay 0.51 --chains 4

hamcmc sample model.py --data data.npy --batch-size 500 --control-variate --start mode --set pairs=5""",
    )(sample_command)
    app.command(name="resume", cls=Command, epilog="[bold]Example[/bold]\n\nhamcmc resume run")(resume_command)


def sample_command(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python file (see above).")],
    data: Annotated[
        Path | None, typer.Option(exists=True, help=".npy, .npz, .csv, .tsv, .parquet, or a folder of .npy files.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN,…",
            help="An array of the data from columns of the file, (N,) or (N, K); may be repeated. By default each "
            "column is an array.",
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help=f"auto plans the whole run from what it measures; or one of {', '.join(NAMES)}.")
    ] = "auto",
    step_size: Annotated[
        str,
        typer.Option(
            help="ε, the factor of the drift; the noise has variance 2ε. With auto, it is adapted or searched for."
        ),
    ] = "auto",
    out: RunOut = Path("run"),
    decay: Annotated[
        float | None, typer.Option(help="Let ε fall: ε_t = (step-size / t)^decay, as in the paper (0.51 there).")
    ] = None,
    cycles: Annotated[
        int | None, typer.Option(help="Let ε fall from step-size to 0 in this many cosine cycles over the run.")
    ] = None,
    num_samples: Annotated[
        int | None, typer.Option(help="Stored draws per chain: 1000, or fewer if an automatic run would take long.")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(help="Iterations before the first stored draw; 1000, or what an automatic run needs.")
    ] = None,
    thin: Annotated[
        int | None, typer.Option(help="Iterations per stored draw; 1, or what an automatic run needs.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per minibatch; all data by default, or what an automatic run decides.")
    ] = None,
    replacement: Annotated[bool, typer.Option(help="Draw minibatches with replacement, or by epochs.")] = True,
    chains: Annotated[int | None, typer.Option(help="Independent chains; 1 by default.")] = None,
    ensembles: Annotated[
        int | None, typer.Option(help="Independent ensembles, for an ensemble sampler; 2 in an automatic run, else 1.")
    ] = None,
    seed: Seed = 0,
    setting: Settings = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Where to start: at the model's init, or at the mode, which is searched for from init. "
            "By default init, and mode with --control-variate.",
            show_default=False,
        ),
    ] = None,
    control_variate: Annotated[
        bool, typer.Option("--control-variate", help="Reduce the gradients' noise around the mode.")
    ] = False,
    store: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Store this parameter at each draw, and no other; may be repeated."),
    ] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="Store gradients, for the Stein discrepancy.")] = False,
    x64: Annotated[bool, typer.Option("--x64", help="Compute in double precision.")] = False,
    processes: Processes = 1,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Draw posterior samples of a model in a Python file.

    Without further options everything is automatic: the run measures the posterior, prints in one line what it will do
    and why, and ends with a verdict. Options change a part of that. A step size, a start, a control variate or a number
    of chains leave the choice of all the rest to you.

    The file defines [bold]posterior(data)[/bold], which returns a hamcmc.Posterior, and [bold]init[/bold]: parameters
    to start from, or a function of a JAX key that draws them. It may define [bold]fisher[/bold] (for sgrld) and
    [bold]metric[/bold] (for the quasi-Newton samplers). Ctrl-C saves and stops; [bold]hamcmc resume[/bold] continues.

    The first line is the verdict on the run, and the exit code follows it: 0 for good and usable, 3 for not converged,
    4 for wrong. (1 is a run that failed, 2 bad input.)
    """
    import jax

    from hamcmc import _processes
    from hamcmc.cli import model_file
    from hamcmc.inference.plan import DRAWS
    from hamcmc.inference.running import require_free
    from hamcmc.inference.sample import sample

    with reporting():
        form = chosen(as_json, as_csv)
        quiet = quiet or form is not None
        if (code := _launched(ctx, out, processes, form, overwrite)) is not None:
            raise typer.Exit(code)
        jax.config.update("jax_enable_x64", x64)
        given_start, start = start, start or ("mode" if control_variate else "init")
        if start not in ("init", "mode"):
            raise ValueError(f"--start must be init or mode, got {start!r}")
        if cycles is not None and (decay is not None or cycles < 1):
            raise ValueError(f"--cycles must be 1 or more, and cannot be combined with --decay; got {cycles}")
        if step_size == "auto" and decay is not None:
            raise ValueError("--decay needs a number for --step-size, not auto")
        epsilon = None if step_size == "auto" else options.number("--step-size", step_size)
        notes = {
            "model": str(model.resolve()),
            "model_checksum": model_file.checksum(model),
            "data": str(data.resolve()) if data else None,
            "columns": model_file.parse_columns(columns or []),
            "sampler": sampler,
            "options": dict(parse_setting(s) for s in setting or []),
            "start": start,
            "control_variate": control_variate,
        }
        several = {"chains": chains, "ensembles": ensembles}
        how: dict[str, Any] = {
            "num_samples": num_samples,
            "thin": thin,
            "batch_size": batch_size,
            "replace": replacement,
            "seed": seed,
            "out": out,
            "overwrite": overwrite,
            "store": store or None,
            "store_gradients": gradients,
            "checkpoint_seconds": checkpoint_seconds,
            "progress": not quiet and None,
        } | {name: number for name, number in several.items() if number is not None}
        by_hand = epsilon is not None or control_variate or given_start is not None or cycles or chains
        require_free(out, overwrite)  # before a search that may take a while
        with model_file.blamed(model):
            if sampler == "auto" and not by_hand:
                loaded = options.load(model, data, notes["columns"], False)
                result = sample(
                    loaded.posterior, init=loaded.init, warmup=warmup, notes=notes, **how, **notes["options"]
                )
            else:
                notes["sampler"] = DEFAULT if sampler == "auto" else sampler
                warmup = WARMUP if warmup is None else warmup
                loaded = options.load(model, data, notes["columns"], control_variate)
                begin, iterations = options.start(loaded, start), warmup + (num_samples or DRAWS) * (thin or 1)
                made = loaded.sampler(notes["sampler"], notes["options"])
                if epsilon is None and not (made.adapts_step or _processes.several()):
                    work = iterations * (chains or ensembles or 1)
                    epsilon, found = options.tune(loaded, notes, begin, work, quiet, batch_size=batch_size, seed=seed)
                    notes |= found
                result = sample(
                    loaded.posterior,
                    loaded.sampler(notes["sampler"], notes["options"]),
                    begin,
                    step_size="auto" if epsilon is None else options.schedule(epsilon, decay, cycles, iterations),
                    warmup=warmup,
                    notes=notes,
                    **how,
                )
        code = _ended(result, out, form)
        if form is None and _processes.writes():
            say(f"The draws are in {out}. To look at them: hamcmc report {out}")
    raise typer.Exit(code)


def resume_command(
    ctx: typer.Context,
    run: Run,
    data: Annotated[Path | None, typer.Option(exists=True, help="The data, if they have moved.")] = None,
    model: Annotated[Path | None, typer.Option(exists=True, help="The model file, if it has moved.")] = None,
    checkpoint_seconds: CheckpointSeconds = 30.0,
    processes: Annotated[int, typer.Option(help="The number of processes, which may be another than before.")] = 1,
    quiet: Quiet = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Continue a run that was stopped or killed. Its draws are those that it would have had without the stop,
    and an automatic run that is not good enough is made longer, as it would have been.

    The exit code follows the verdict: 0 for good and usable, 3 for not converged, 4 for wrong.
    """
    import jax

    from hamcmc.cli import model_file
    from hamcmc.inference.sample import resume
    from hamcmc.store.settings import read_settings

    with reporting():
        form, settings = chosen(as_json, as_csv), read_settings(run)
        quiet = quiet or form is not None
        if settings.get("kind") == "factorization":
            ratings.proceed(run, processes, quiet, checkpoint_seconds, form)
            return
        if (code := _launched(ctx, run, processes, form)) is not None:
            raise typer.Exit(code)
        notes = settings["notes"]
        if "model" not in notes:
            raise RunError(f"{run} was not made by 'hamcmc sample': continue it with hamcmc.resume in Python")
        jax.config.update("jax_enable_x64", settings["x64"])
        sources = options.sources(notes, model, data)
        with model_file.blamed(sources[0]):
            loaded = options.load(*sources, notes.get("columns", {}), notes.get("control_variate", False))
            automatic = notes["sampler"] == "auto"
            result = resume(
                run,
                loaded.posterior,
                loaded.init if automatic else options.start(loaded, notes["start"]),
                sampler=None if automatic else loaded.sampler(notes["sampler"], notes["options"]),
                checkpoint_seconds=checkpoint_seconds,
                progress=not quiet and None,
            )
        code = _ended(result, run, form)
    raise typer.Exit(code)


def _ended(result: "Result", run: Path, form: str | None) -> int:
    """Print the end of a run, where several processes made it in the first of them; returns the exit code."""
    from hamcmc import _processes

    return print_end(result, run, form) if _processes.writes() else result.check().exit_code


def _launched(
    ctx: typer.Context, run: Path, processes: int, form: str | None, overwrite: bool | None = None
) -> int | None:
    """Let several processes run the command, and return the exit code; None in a process that runs it itself."""
    from hamcmc import _check
    from hamcmc.diagnostics.result import Result
    from hamcmc.inference import launch
    from hamcmc.store.directory import check_free

    launch.join()
    if launch.started_by() is not None or _check.at_least("processes", processes, 1) == 1:
        return None
    if overwrite is not None:
        check_free(run, overwrite=overwrite)
    launch.launch(run, processes, "hamcmc.cli.worker", ctx.meta["hamcmc.arguments"])
    return print_end(Result.open(run), run, form)
