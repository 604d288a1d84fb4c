"""The commands that sample: ``sample``, ``resume`` and ``summary``."""

from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from hamcmc.cli import model_file, ratings
from hamcmc.cli.shell import Quiet, Run, bar, reporting, screen
from hamcmc.cli.shell import setting as parse_setting
from hamcmc.diagnostics.result import Result
from hamcmc.inference import schedules
from hamcmc.inference.sample import resume, sample
from hamcmc.inference.tune import budget_for, tune
from hamcmc.samplers import NAMES
from hamcmc.store.directory import check_free
from hamcmc.store.errors import RunError
from hamcmc.store.settings import read_settings


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    app.command(
        name="sample",
        epilog="""[bold]Examples[/bold]

hamcmc sample model.py --data data.npz --batch-size 500 -o run

hamcmc sample model.py --data data.csv --sampler sgld --step-size 0.01 --decay 0.51 --chains 4

hamcmc sample model.py --data data.npy --batch-size 500 --control-variate --start mode --set pairs=5""",
    )(sample_command)
    app.command(name="resume", epilog="[bold]Example[/bold]\n\nhamcmc resume run")(resume_command)
    app.command(epilog="[bold]Example[/bold]\n\nhamcmc summary run --limit 50")(summary)


def sample_command(
    model: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python file (see above).")],
    data: Annotated[
        Path | None, typer.Option(exists=True, help=".npy, .npz, .csv, .tsv, or a folder of .npy files.")
    ] = None,
    sampler: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "ensemble_hamcmc",
    step_size: Annotated[
        str, typer.Option(help="ε, the factor of the drift; the noise has variance 2ε. Or auto: it is found first.")
    ] = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the run.")] = Path("run"),
    decay: Annotated[
        float | None, typer.Option(help="With it, ε_t = (step-size / t)^decay, as in the paper (0.51 there).")
    ] = None,
    cycles: Annotated[
        int | None, typer.Option(help="With it, ε falls from step-size to 0 in so many cosine cycles over the run.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Stored draws per chain.")] = 1000,
    warmup: Annotated[int, typer.Option(help="Iterations before the first stored draw.")] = 1000,
    thin: Annotated[int, typer.Option(help="Iterations per stored draw.")] = 1,
    batch_size: Annotated[int | None, typer.Option(help="Data per minibatch; all data if not given.")] = None,
    replacement: Annotated[bool, typer.Option(help="Draw minibatches with replacement, or by epochs.")] = True,
    chains: Annotated[int, typer.Option(help="Independent chains.")] = 1,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter of the sampler; may be repeated."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            help="Start at the model's init, or at the mode found from there; with --control-variate at the mode, else "
            "at init, if not given.",
            show_default=False,
        ),
    ] = None,
    control_variate: Annotated[
        bool, typer.Option("--control-variate", help="Gradients of less noise around the mode, found from init first.")
    ] = False,
    gradients: Annotated[bool, typer.Option("--gradients", help="Store gradients, for the Stein discrepancy.")] = False,
    x64: Annotated[bool, typer.Option("--x64", help="Compute in double precision.")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints.")] = 30.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    quiet: Quiet = False,
) -> None:
    """Draw posterior samples of a model in a Python file.

    The file defines [bold]posterior(data)[/bold], which returns a hamcmc.Posterior, and [bold]init[/bold]: parameters
    to start from, or a function of a JAX key that draws them. It may define [bold]fisher[/bold] (for sgrld) and
    [bold]metric[/bold] (for the quasi-Newton samplers). Ctrl-C saves and stops; [bold]hamcmc resume[/bold] goes on.
    """
    with reporting():
        jax.config.update("jax_enable_x64", x64)
        start = start or ("mode" if control_variate else "init")
        if start not in ("init", "mode"):
            raise ValueError(f"--start must be init or mode, got {start!r}")
        if cycles is not None and (decay is not None or cycles < 1):
            raise ValueError(f"--cycles must be 1 or more, and goes without --decay; got {cycles}")
        if step_size == "auto" and decay is not None:
            raise ValueError("--decay wants a number for --step-size, not auto")
        epsilon = None if step_size == "auto" else _number("--step-size", step_size)
        asked = {
            "model": str(model.resolve()),
            "model_checksum": model_file.checksum(model),
            "data": str(data.resolve()) if data else None,
            "sampler": sampler,
            "options": dict(parse_setting(s) for s in setting or []),
            "start": start,
            "control_variate": control_variate,
        }
        loaded = _load(model, data, control_variate)
        begin, iterations = _start(loaded, start), warmup + samples * thin
        check_free(out, overwrite=overwrite)  # before a search that may take a while
        if epsilon is None:
            work = iterations * chains * loaded.sampler(sampler, asked["options"]).gradients_per_step
            own = loaded.own_options(sampler)
            with bar("tuning") as progress:
                found = tune(
                    loaded.posterior,
                    sampler,
                    begin,
                    budget=budget_for(work),
                    batch_size=batch_size,
                    seed=seed,
                    progress=None if quiet else progress,
                    **asked["options"],
                    **own,
                )
            epsilon, asked["tuning"] = found.account["step_size"], found.account
            asked["options"] = {k: v for k, v in found.options.items() if k not in own}
            chosen = ", ".join(f"{k}={v:.3g}" for k, v in {"step size": epsilon, **found.account["options"]}.items())
            typer.echo(f"tuned: {chosen} ({found.gradients:,} minibatch gradients, {found.seconds:.1f} s)")
        schedule = schedules.Constant(epsilon) if decay is None else schedules.Polynomial(epsilon, decay)
        if cycles is not None:
            schedule = schedules.Cyclical(epsilon, -(-iterations // cycles))
        result = sample(
            loaded.posterior,
            loaded.sampler(sampler, asked["options"]),
            begin,
            step_size=schedule,
            num_samples=samples,
            warmup=warmup,
            thin=thin,
            batch_size=batch_size,
            replace=replacement,
            chains=chains,
            seed=seed,
            out=out,
            overwrite=overwrite,
            store_gradients=gradients,
            checkpoint_seconds=checkpoint_seconds,
            progress=not quiet and None,
            notes=asked,
        )
        _print_summary(result)
        screen.print(f"Draws are in {out}. Look at them: hamcmc report {out}", highlight=False)


def resume_command(
    run: Run,
    data: Annotated[Path | None, typer.Option(exists=True, help="The data, if they moved.")] = None,
    model: Annotated[Path | None, typer.Option(exists=True, help="The model file, if it moved.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints.")] = 30.0,
    processes: Annotated[int, typer.Option(help="For a factorization: how many, also another number.")] = 1,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped or killed, to the very draws that it would have had."""
    with reporting():
        settings = read_settings(run)
        if settings.get("kind") == "factorization":
            ratings.proceed(run, processes, quiet, checkpoint_seconds)
            return
        notes = settings["notes"]
        if "model" not in notes:
            raise RunError(f"{run} was not made by 'hamcmc sample': continue it with hamcmc.resume in Python")
        jax.config.update("jax_enable_x64", settings["x64"])
        model = model or Path(notes["model"])
        if not model.is_file():
            raise RunError(f"the model file {model} is gone: say with --model where it is")
        if model_file.checksum(model) != notes["model_checksum"]:
            raise RunError(f"the model file {model} has changed since the run began: it cannot be continued with it")
        data = data or (Path(notes["data"]) if notes["data"] else None)
        if data is not None and not data.exists():
            raise RunError(f"the data {data} are gone: say with --data where they are")
        loaded = _load(model, data, notes.get("control_variate", False))
        result = resume(
            run,
            loaded.posterior,
            _start(loaded, notes["start"]),
            sampler=loaded.sampler(notes["sampler"], notes["options"]),
            checkpoint_seconds=checkpoint_seconds,
            progress=not quiet and None,
        )
        _print_summary(result)


def summary(run: Run, limit: Annotated[int, typer.Option(help="The most rows to show.")] = 40) -> None:
    """Weighted means, deviations and quantiles, ESS, R-hat and cost of a run; also while it goes on."""
    with reporting():
        _print_summary(Result.open(run), limit)


def _print_summary(result: Result, limit: int = 40) -> None:
    from hamcmc.diagnostics.costs import cost
    from hamcmc.diagnostics.summaries import summary as summarize

    meta = result.meta
    found = summarize(result, limit=limit)
    typer.echo(f"{meta['status']}: {result.draws:,} draws per chain with {result.settings['sampler'].get('sampler')}")
    typer.echo(str(found))
    spent = cost(result, found)
    line = f"{spent.gradients:,} minibatch gradients in {spent.seconds:.2f} s"
    if spent.slowest is not None:
        line += (
            f"; per effective sample of {spent.slowest}: {spent.gradients_per_effective_sample:,.0f} gradients, "
            f"{spent.seconds_per_effective_sample:.2g} s"
        )
    typer.echo(line)
    if "message" in meta:
        typer.echo(meta["message"])


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number or auto, got {text!r}") from None


def _load(model: Path, data: Path | None, control_variate: bool) -> model_file.Model:
    from hamcmc.target.estimators import control_variate as around

    loaded = model_file.load(model, data)
    return loaded._replace(posterior=around(loaded.posterior, _start(loaded, "mode"))) if control_variate else loaded


def _start(loaded: model_file.Model, start: str) -> Any:
    if start == "init":
        return loaded.init
    from hamcmc.target.mode import find_mode

    init = loaded.init(jax.random.key(0)) if callable(loaded.init) else loaded.init
    size = 10_000 if loaded.posterior.streamed else None
    return find_mode(loaded.posterior, init, batch_size=size)
