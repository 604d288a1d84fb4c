"""The shell: parses, calls, prints.

Exit codes: 0, 1 for a failed run, 2 for bad usage or input, 130 and 143 for SIGINT and SIGTERM.
"""

import contextlib
import json
import shutil
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hamcmc import __version__, cli_denoise, cli_factorization, compilation, model_file, schedules
from hamcmc.distributed.launch import Stopped
from hamcmc.record import RunError, check_free, read_settings
from hamcmc.result import Result
from hamcmc.run import Interrupted, resume, sample
from hamcmc.samplers import NAMES
from hamcmc.tune import budget_for, tune

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bayesian inference on large data with stochastic quasi-Newton Langevin dynamics.",
    epilog="Start with [bold]hamcmc demo[/bold]; then [bold]hamcmc sample --help[/bold] for a model of your own.",
)
screen, errors = Console(width=None if sys.stdout.isatty() else 120), Console(stderr=True, soft_wrap=True)
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)]
REPRODUCED = ("fig1", "fig2", "fig3", "fig4", "fig5", "scale", "theorem", "proposition", "bias")
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def main() -> None:
    """The entry point."""
    compilation.keep()
    app()


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Turn expected failures into a line on stderr and an exit code."""
    try:
        yield
    except (Interrupted, Stopped) as stop:
        errors.print(f"[yellow]{escape(str(stop))}[/yellow]", highlight=False)
        raise typer.Exit(128 + stop.signal) from None
    except RunError as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from None
    except ValueError as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        raise typer.Exit(2) from None


def version(value: bool) -> None:
    """Print the version."""
    if value:
        screen.print(f"hamcmc {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    """Options of the program itself."""


@app.command(
    name="sample",
    epilog="""[bold]Examples[/bold]

hamcmc sample model.py --data data.npz --batch-size 500 -o run

hamcmc sample model.py --data data.csv --sampler sgld --step-size 0.01 --decay 0.51 --chains 4

hamcmc sample model.py --data data.npy --batch-size 500 --control-variate --start mode --set pairs=5""",
)
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
            "options": dict(_setting(s) for s in setting or []),
            "start": start,
            "control_variate": control_variate,
        }
        loaded = _load(model, data, control_variate)
        begin, iterations = _start(loaded, start), warmup + samples * thin
        check_free(out, overwrite=overwrite)  # before a search that may take a while
        if epsilon is None:
            work = iterations * chains * loaded.sampler(sampler, asked["options"]).gradients_per_step
            own = loaded.own_options(sampler)
            with _bar("tuning") as progress:
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


@app.command(name="resume", epilog="[bold]Example[/bold]\n\nhamcmc resume run")
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
            cli_factorization.proceed(run, processes, quiet, checkpoint_seconds)
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


@app.command(epilog="[bold]Example[/bold]\n\nhamcmc summary run --limit 50")
def summary(run: Run, limit: Annotated[int, typer.Option(help="The most rows to show.")] = 40) -> None:
    """Weighted means, deviations and quantiles, ESS, R-hat and cost of a run; also while it goes on."""
    with reporting():
        _print_summary(Result.open(run), limit)


@app.command(epilog="[bold]Example[/bold]\n\nhamcmc report run -o report.html")
def report(
    run: Run,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page (default: RUN/report.html).")] = None,
) -> None:
    """One self-contained HTML page about a run: traces, densities, pairs, diagnostics, cost, settings."""
    from hamcmc.report import factorization, write_report

    with reporting():
        write = factorization.write if read_settings(run).get("kind") == "factorization" else write_report
        screen.print(f"Wrote {write(run, out)}", highlight=False, soft_wrap=True)


@app.command(epilog="[bold]Example[/bold]\n\nhamcmc watch run --port 9000")
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


@app.command(epilog="[bold]Example[/bold]\n\nhamcmc demo --out demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
) -> None:
    """Sample a strongly correlated posterior with every sampler, compare them, and write a picture and a report."""
    from hamcmc.demo import CHAINS, ITERATIONS, demo
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


@app.command(
    epilog="""[bold]Examples[/bold]

hamcmc reproduce fig1 --quick

hamcmc reproduce proposition --out here"""
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
            with _bar(each) as progress:
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


@contextlib.contextmanager
def _bar(name: str) -> Iterator[Any]:
    """A bar for work that reports (what, fraction done)."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, disable=not sys.stderr.isatty()) as display:
        task = display.add_task(name, total=1.0)
        yield lambda what, done: display.update(task, description=f"{name}: {what}", completed=done)


def _print_summary(result: Result, limit: int = 40) -> None:
    from hamcmc.diagnostics import cost
    from hamcmc.diagnostics import summary as summarize

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


def _setting(text: str) -> tuple[str, Any]:
    """``name=value``; the value as JSON where it is some, else as text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"--set wants NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _load(model: Path, data: Path | None, control_variate: bool) -> model_file.Model:
    from hamcmc.variance import control_variate as around

    loaded = model_file.load(model, data)
    return loaded._replace(posterior=around(loaded.posterior, _start(loaded, "mode"))) if control_variate else loaded


def _start(loaded: model_file.Model, start: str) -> Any:
    if start == "init":
        return loaded.init
    from hamcmc.mode import find_mode

    init = loaded.init(jax.random.key(0)) if callable(loaded.init) else loaded.init
    size = 10_000 if loaded.posterior.streamed else None
    return find_mode(loaded.posterior, init, batch_size=size)


cli_factorization.register(app)
cli_denoise.register(app)

if __name__ == "__main__":
    main()
