"""The commands on speech: ``denoise`` and ``denoise train``."""

import math
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hamcmc._types import Record
from hamcmc.cli.shell import (
    AsCsv,
    AsJson,
    Quiet,
    Seed,
    chosen,
    flowing,
    reporting,
    say,
    screen,
    stoppable,
    warn,
    write_table,
    wrote,
)

if TYPE_CHECKING:
    from rich.table import Table

    from hamcmc.speech.audio import Info
    from hamcmc.speech.dictionary import Dictionary
    from hamcmc.speech.file import Done
    from hamcmc.speech.metrics import Scores

OTHER = 0.5  # seconds by which a reference may be longer or shorter
SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff")


class _Group(TyperGroup):
    """``denoise train …`` is a command of its own; ``denoise`` with anything else cleans a recording."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] == ["train"] else ["recording", *args])


class _Recording(TyperCommand):
    """Takes the group's name, so that its help and its errors do not mention ``recording``, which nobody types."""

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
        help=flowing(denoise.__doc__),
        epilog="""[bold]Examples[/bold]

hamcmc denoise noisy.wav -o clean.wav

hamcmc denoise interview.flac -o clean.flac --report clean.html

hamcmc denoise noisy.wav -o clean.wav --reference studio.wav --draws 3 --uncertainty sd.png

hamcmc denoise train recordings/ -o mine.npz

hamcmc denoise noisy.wav -o clean.wav --dictionary mine.npz""",
    )(denoise)
    group.command(
        "train",
        context_settings=names,
        help=flowing(train.__doc__),
        epilog="""[bold]Example[/bold]

hamcmc denoise train recordings/ -o mine.npz --rank 100""",
    )(train)
    app.add_typer(group, name="denoise", help="Clean speech from a noisy recording.")


def denoise(
    recording: Annotated[
        Path, typer.Argument(metavar="IN", help="The noisy recording: WAV, FLAC, OGG, MP3 or AIFF.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The clean recording: .wav, .flac or .ogg. An old one is replaced.")
    ],
    dictionary: Annotated[
        Path | None, typer.Option(help="A dictionary made by hamcmc denoise train; by default the built-in one.")
    ] = None,
    quality: Annotated[str | None, typer.Option(hidden=True, help="Deprecated.")] = None,
    sampler: Annotated[str | None, typer.Option(help="sgld (default), psgld, hamcmc or ensemble_hamcmc.")] = None,
    iterations: Annotated[int | None, typer.Option(help="By default 150; 10 or more.")] = None,
    seed: Seed = 0,
    reference: Annotated[
        Path | None, typer.Option(help="The true clean recording, to print SDR, SI-SDR and STOI.")
    ] = None,
    draws: Annotated[
        int, typer.Option(metavar="N", help="Also write N posterior draws: OUT-draw1.wav, OUT-draw2.wav, …")
    ] = 0,
    uncertainty: Annotated[
        Path | None, typer.Option(metavar="PNG", help="A picture of the uncertainty at each time and frequency.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="HTML", help="A page to compare before and after by ear and by eye.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Clean speech from a noisy recording.

    Speech is modelled as a sum of spectra from a dictionary, and noise as a level at each frequency that changes
    slowly; their loudness is learned from the recording. OUT is the mean of the speech over posterior draws. The
    recording may have any sample rate from 8 kHz up, any number of channels and any length. OUT appears when it is
    complete; Ctrl-C leaves nothing behind.

    [bold]hamcmc denoise train[/bold] makes a dictionary from clean speech of your own. (Write ./train for a recording
    that is called train.)
    """
    from hamcmc._check import at_least, one_of

    with reporting():
        from hamcmc.report.frame import pace
        from hamcmc.speech import audio, file
        from hamcmc.speech.denoise import LEAST

        form = chosen(as_json, as_csv)
        quiet = quiet or form is not None
        if quality is not None:
            one_of("--quality", quality, ("fast", "best"))
            instead = "--sampler ensemble_hamcmc --iterations 200" if quality == "best" else "the default"
            warn(f"--quality {quality} is deprecated: it is {instead} now")
            if quality == "best":
                sampler, iterations = sampler or "ensemble_hamcmc", iterations or 200
        at_least("--draws", draws, 0)
        if iterations is not None:
            at_least("--iterations", iterations, LEAST)
        inputs = [p for p in (recording, reference, dictionary) if p is not None]
        source = audio.info(recording)
        _check_targets(out, draws, uncertainty, report, inputs, source)
        truth = None if reference is None else _reference(reference, source)
        options = {
            "dictionary": _dictionary(dictionary),
            "sampler": sampler,
            "iterations": iterations,
            "seed": seed,
        }
        pictured = uncertainty is not None or report is not None
        if pictured:
            import_module("hamcmc.report.denoise")  # so that a missing package is told before the work
        for warning in source.warnings():
            warn(warning)
        with stoppable(f"{out} was not written"):
            done = file.denoise_file(
                source, out, draws=draws, uncertainty=pictured, progress=not quiet and None, **options
            )
        for name, gain in zip(done.files, done.gains):
            if gain < 1:
                warn(f"{name} would have clipped, so all of it was turned down by {-20 * math.log10(gain):.1f} dB")
        if form is None:
            say(f"{source.seconds:.1f} s of sound in {done.seconds:.1f} s: {pace(source.seconds, done.seconds)}")
            wrote(*done.files)
        asked = {"recording": recording, "out": out, "draws": draws, "reference": reference}
        with stoppable(f"{out} is complete; scores, picture or report may be missing"):
            _show(done, truth, uncertainty, report, asked | options | {"dictionary": dictionary}, form)


def _show(
    done: "Done", truth: "Info | None", uncertainty: Path | None, report: Path | None, asked: Record, form: str | None
) -> None:
    """Print the scores against the reference, and write the picture and the page."""
    scores = None if truth is None else _scores(done.source, truth, done.files[0])
    if form is not None:
        _write_scores(form, done, scores)
    elif scores is not None:
        screen.print(_score_table(*scores))
    if uncertainty is not None or report is not None:
        from hamcmc.report import denoise as page

        written = [] if uncertainty is None else [page.write_uncertainty(uncertainty, done)]
        if report is not None:
            written.append(page.write(report, done, asked, truth, scores))
        if form is None:
            wrote(*written)


def train(
    clean: Annotated[
        Path, typer.Argument(metavar="CLEAN_DIR", help="A directory of clean speech, or one file.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The dictionary: a .npz file.")],
    rank: Annotated[int, typer.Option(help="Number of spectra.")] = 100,
    quiet: Quiet = False,
) -> None:
    """Make a dictionary from clean speech, for [bold]hamcmc denoise --dictionary[/bold].

    All WAV, FLAC, OGG, MP3 and AIFF files in the directory and below it are used. A few minutes of several speakers
    without noise are enough. Speech similar to what you want to clean works best.
    """
    from hamcmc._check import at_least

    with reporting():
        from hamcmc.speech import audio, dictionary

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
        with stoppable(f"{out} was not written"):
            dictionary.save(dictionary.train(files, rank=rank, progress=not quiet and None), out)
        say(
            f"Wrote {out}: {rank} spectra from {len(files):,} files. "
            f"To use it: hamcmc denoise IN -o OUT --dictionary {out}"
        )


def _check_targets(
    out: Path, draws: int, uncertainty: Path | None, report: Path | None, inputs: list[Path], source: "Info"
) -> None:
    """Refuse before the work begins what could not be written at its end."""
    from hamcmc.speech import audio, file

    audio.check_format(out, source)
    for path, suffixes in ((uncertainty, (".png",)), (report, (".html", ".htm"))):
        if path is not None and path.suffix.lower() not in suffixes:
            raise ValueError(f"{path}: its suffix must be {suffixes[0]}")
    targets = [out, *file.draw_files(out, draws), *(p for p in (uncertainty, report) if p is not None)]
    for target in targets:
        audio.check_target(target, inputs)


def _reference(path: Path, source: "Info") -> "Info":
    """The reference recording; it must have the rate and the channels of the noisy one."""
    from hamcmc.speech import audio

    found = audio.info(path)
    for name in ("rate", "channels"):
        a, b = getattr(found, name), getattr(source, name)
        if a != b:
            raise ValueError(f"{path} does not fit {source.path}: {name} {a:,} and {b:,}")
    if abs(found.seconds - source.seconds) > OTHER:
        raise ValueError(
            f"{path} is no reference for {source.path}: it has {found.seconds:.2f} s, not {source.seconds:.2f} s"
        )
    if found.frames != source.frames:
        shorter = min(found.seconds, source.seconds)
        warn(f"{path} and {source.path} differ in length: the first {shorter:.2f} s are compared")
    return found


def _dictionary(path: Path | None) -> "Dictionary":
    """The dictionary in a file, or the built-in one."""
    from hamcmc.speech import dictionary

    try:
        return dictionary.load(path)
    except OSError as error:
        raise ValueError(f"cannot read the dictionary: {error.args[-1]}") from None


def _scores(source: "Info", truth: "Info", out: Path) -> tuple["Scores", "Scores"]:
    """Scores of the noisy and of the cleaned recording."""
    from hamcmc.speech import audio, metrics

    frames = min(source.frames, truth.frames)
    clean, noisy, cleaned = (audio.read(i)[:frames] for i in (truth, source, audio.info(out)))
    return metrics.scores(clean, noisy, source.rate), metrics.scores(clean, cleaned, source.rate)


def _write_scores(form: str, done: "Done", scores: "tuple[Scores, Scores] | None") -> None:
    """Print the scores for another program."""
    from hamcmc.speech.metrics import LABELS

    pairs = zip(LABELS, *scores) if scores else ()
    rows = [[name, float(before), float(after), float(after - before)] for (name, _), before, after in pairs]
    about = {"files": list(map(str, done.files)), "seconds": done.seconds, "recording_seconds": done.source.seconds}
    write_table(form, ("score", "before", "after", "gain"), rows, about, "scores")


def _score_table(before: "Scores", after: "Scores") -> "Table":
    """A row for each score; a dash stands for one that is not defined."""
    from rich.table import Table

    from hamcmc.speech.metrics import LABELS

    table = Table("")
    for name in ("before", "after", "gain"):
        table.add_column(name, justify="right")
    for (name, digits), b, a in zip(LABELS, before, after):
        table.add_row(name, *("–" if math.isnan(x) else f"{x:.{digits}f}" for x in (b, a, a - b)))
    return table
