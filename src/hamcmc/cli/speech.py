"""The shell's commands on speech: parses, calls, prints."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from hamcmc.cli.shell import bar, errors, reporting, screen

SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff")
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


class _Group(TyperGroup):
    """``denoise train …`` is a command of its own, ``denoise`` with anything else is about a recording."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] == ["train"] else ["recording", *args])


class _Recording(TyperCommand):
    """Stands in the group's place, so that its help and its errors do not mention a name that nobody types."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


def register(app: typer.Typer) -> None:
    """Add the commands to a program."""
    names = {"help_option_names": ["-h", "--help"]}
    group = typer.Typer(cls=_Group, add_completion=False, rich_markup_mode="rich", context_settings=names)
    group.command(
        "recording",
        cls=_Recording,
        context_settings=names,
        help=_flowing(denoise),
        epilog="""[bold]Examples[/bold]

hamcmc denoise noisy.wav -o clean.wav

hamcmc denoise interview.flac -o clean.flac --quality fast --report clean.html

hamcmc denoise noisy.wav -o clean.wav --reference studio.wav --draws 3 --uncertainty sd.png

hamcmc denoise train recordings/ -o mine.npz

hamcmc denoise noisy.wav -o clean.wav --dictionary mine.npz""",
    )(denoise)
    group.command(
        "train",
        context_settings=names,
        help=_flowing(train),
        epilog="""[bold]Example[/bold]

hamcmc denoise train recordings/ -o mine.npz --rank 100""",
    )(train)
    app.add_typer(group, name="denoise", help="Clean speech from a noisy recording.")


def _flowing(command: Any) -> str:
    """A command's docstring, its paragraphs in one line each: the terminal breaks them."""
    return "\n\n".join(" ".join(p.split()) for p in command.__doc__.split("\n\n"))


def denoise(
    recording: Annotated[
        Path, typer.Argument(metavar="IN", help="The noisy recording: WAV, FLAC, OGG, MP3 or AIFF.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The clean one: .wav, .flac or .ogg. Replaced if it is there.")
    ],
    dictionary: Annotated[
        Path | None, typer.Option(help="From hamcmc denoise train; else the one that comes with the program.")
    ] = None,
    quality: Annotated[str, typer.Option(help="best, or fast: fewer iterations.")] = "best",
    sampler: Annotated[str | None, typer.Option(help="By default the one that suits the quality.")] = None,
    iterations: Annotated[int | None, typer.Option(help="By default as many as the quality asks for.")] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    reference: Annotated[
        Path | None, typer.Option(help="The true clean recording, if there is one: prints SDR, SI-SDR and STOI.")
    ] = None,
    draws: Annotated[
        int, typer.Option(metavar="N", help="Also write N posterior draws: OUT-draw1.wav, OUT-draw2.wav, …")
    ] = 0,
    uncertainty: Annotated[
        Path | None, typer.Option(metavar="PNG", help="A picture of how uncertain the result is, at each frequency.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="HTML", help="A page to listen to and look at: before and after.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Clean speech from a noisy recording.

    The speech is a sum of spectra from a dictionary, the noise a level in each frequency that moves slowly; how loud
    they are is learned from the recording. OUT is the mean of the speech over draws from the posterior. Any sample rate
    from 8 kHz up, any number of channels, any length. OUT appears when it is complete; Ctrl-C leaves nothing behind.

    [bold]hamcmc denoise train[/bold] makes a dictionary from clean speech of your own. (A recording called train is
    ./train.)
    """
    from hamcmc._check import at_least, one_of
    from hamcmc.report import denoise as page
    from hamcmc.speech import audio, file

    with reporting():
        one_of("--quality", quality, ("fast", "best"))
        at_least("--draws", draws, 0)
        if iterations is not None:
            at_least("--iterations", iterations, 1)
        inputs = [p for p in (recording, reference, dictionary) if p is not None]
        source = audio.info(recording)
        _check_targets(out, draws, uncertainty, report, inputs, source)
        truth = None if reference is None else _reference(reference, source)
        options = {
            "dictionary": _dictionary(dictionary),
            "quality": quality,
            "sampler": sampler,
            "iterations": iterations,
            "seed": seed,
        }
        for warning in source.warnings():
            _warn(warning)
        with _stoppable(f"{out} was not written"), _progress("denoising", recording, quiet) as progress:
            wanted = uncertainty is not None or report is not None
            done = file.denoise_file(source, out, draws=draws, uncertainty=wanted, progress=progress, **options)
        for name, gain in zip(done.files, done.gains):
            if gain < 1:
                _warn(f"{name} would have clipped: all of it was turned down by {-20 * np.log10(gain):.1f} dB")
        screen.print(
            f"{source.seconds:.1f} s of sound in {done.seconds:.1f} s: {done.real_time_factor:.2f} × real time",
            highlight=False,
        )
        _wrote(*done.files)
        with _stoppable(f"{out} is complete, what was to follow is not"):
            scores = None if truth is None else _scores(source, truth, out)
            if scores is not None:
                screen.print(_score_table(*scores))
            if uncertainty is not None:
                _wrote(page.write_uncertainty(uncertainty, done))
            if report is not None:
                asked = {"recording": recording, "out": out, "draws": draws, "reference": reference}
                asked |= options | {"dictionary": dictionary}
                _wrote(page.write(report, done, asked, truth, scores))


def train(
    clean: Annotated[
        Path, typer.Argument(metavar="CLEAN_DIR", help="A directory of clean speech, or one file.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The dictionary: a .npz file.")],
    rank: Annotated[int, typer.Option(help="Number of spectra.")] = 100,
    quiet: Quiet = False,
) -> None:
    """Make a dictionary from clean speech, for [bold]hamcmc denoise --dictionary[/bold].

    All WAV, FLAC, OGG, MP3 and AIFF files in the directory and below are used. A few minutes of several speakers,
    without noise, are enough; speech like that which you want to clean is best.
    """
    from hamcmc._check import at_least
    from hamcmc.speech import audio, dictionary

    with reporting():
        at_least("--rank", rank, 1)
        if out.suffix != ".npz":
            raise ValueError(f"{out}: its suffix must be .npz")
        files = [clean] if clean.is_file() else sorted(f for f in clean.rglob("*") if f.suffix.lower() in SUFFIXES)
        if not files:
            raise ValueError(
                f"{clean} has no audio files ({', '.join(SUFFIXES)})"
                if clean.is_dir()
                else f"there is nothing at {clean}"
            )
        audio.check_target(out, files)
        with _stoppable(f"{out} was not written"), _progress("training", clean, quiet) as progress:
            dictionary.save(dictionary.train(files, rank=rank, progress=progress), out)
        screen.print(
            f"Wrote {escape(str(out))}: {rank} spectra from {len(files):,} files. "
            f"Use it: hamcmc denoise IN -o OUT --dictionary {escape(str(out))}",
            highlight=False,
            soft_wrap=True,
        )


def _check_targets(
    out: Path, draws: int, uncertainty: Path | None, report: Path | None, inputs: list[Path], source: Any
) -> None:
    """Refuse, before the work begins, what could not be written at its end."""
    from hamcmc.speech import audio, file

    audio.check_format(out, source)
    for path, suffixes in ((uncertainty, (".png",)), (report, (".html", ".htm"))):
        if path is not None and path.suffix.lower() not in suffixes:
            raise ValueError(f"{path}: its suffix must be {suffixes[0]}")
    targets = [out, *file.draw_files(out, draws), *(p for p in (uncertainty, report) if p is not None)]
    for target in targets:
        audio.check_target(target, inputs)


def _reference(path: Path, source: Any) -> Any:
    """The reference, if it fits the recording."""
    from hamcmc.speech import audio

    found = audio.info(path)
    for name in ("rate", "channels"):
        a, b = getattr(found, name), getattr(source, name)
        if a != b:
            raise ValueError(f"{path} does not fit {source.path}: {name} {a:,} and {b:,}")
    if found.frames != source.frames:
        shorter = min(found.seconds, source.seconds)
        _warn(f"{path} and {source.path} differ in length: the first {shorter:.2f} s are compared")
    return found


def _dictionary(path: Path | None) -> Any:
    from hamcmc.speech import dictionary

    try:
        return dictionary.load(path)
    except OSError as error:
        raise ValueError(f"cannot read the dictionary: {error.args[-1]}") from None


def _scores(source: Any, truth: Any, out: Path) -> tuple[Any, Any]:
    """Scores of the noisy and of the clean recording."""
    from hamcmc.speech import audio, metrics

    frames = min(source.frames, truth.frames)
    clean, noisy, cleaned = (audio.read(i)[:frames] for i in (truth, source, audio.info(out)))
    return metrics.scores(clean, noisy, source.rate), metrics.scores(clean, cleaned, source.rate)


def _score_table(before: Any, after: Any) -> Table:
    from hamcmc.report.denoise import SCORES

    table = Table("")
    for name in ("before", "after", "gain"):
        table.add_column(name, justify="right")
    for (name, digits), b, a in zip(SCORES, before, after):
        table.add_row(name, *("–" if np.isnan(x) else f"{x:.{digits}f}" for x in (b, a, a - b)))
    return table


def _wrote(*files: Path) -> None:

    screen.print("Wrote " + escape(", ".join(map(str, files))), highlight=False, soft_wrap=True)


def _warn(message: str) -> None:

    errors.print(f"[yellow]{escape(message)}[/yellow]", highlight=False)


@contextlib.contextmanager
def _progress(name: str, what: Path, quiet: bool) -> Iterator[Any]:
    """What to call with the fraction done."""

    if quiet:
        yield None
        return
    with bar(name) as update:
        yield lambda done: update(what.name, done)


@contextlib.contextmanager
def _stoppable(state: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM as exceptions, so that what is half done is removed; they end in a line with the `state`."""
    from hamcmc.store.errors import Interrupted

    received, numbers = [], (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, _: Any) -> None:
        for n in numbers:
            signal.signal(n, signal.SIG_IGN)  # the tidying up is not to be interrupted
        received.append(number)
        raise KeyboardInterrupt

    old = [signal.signal(n, stop) for n in numbers]
    try:
        yield
    except KeyboardInterrupt:
        number = received[0] if received else signal.SIGINT
        raise Interrupted(f"stopped by {signal.Signals(number).name}: {state}", number) from None
    finally:
        for n, handler in zip(numbers, old):
            signal.signal(n, handler)
