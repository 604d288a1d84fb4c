"""The page of a cleaned recording, to listen to and to look at, and the picture of the uncertainty."""

import base64
import io
import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hamcmc._require import needs
from hamcmc._types import Facts
from hamcmc.report import frame, plots
from hamcmc.report.frame import duration, pace, plural
from hamcmc.speech import audio
from hamcmc.speech.denoise import DEFAULT
from hamcmc.speech.file import Done, Pooled
from hamcmc.speech.metrics import LABELS, Scores

with needs("soundfile", "audio"):
    import soundfile as sf
with needs("matplotlib", "report"):
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
with needs("pillow", "report"):
    from PIL import Image

TALL = 300  # pixels of a spectrogram
LISTEN = 4_000_000  # samples of each recording in the page, which take about 10 MB
RANGE = 70.0  # dB from the brightest colour to the darkest
WINDOW = 0.032  # seconds
SILENCE = 1e-20  # power that counts as none


def write(
    out: str | os.PathLike,
    done: Done,
    asked: Facts,
    truth: audio.Info | None = None,
    scores: tuple[Scores, Scores] | None = None,
) -> Path:
    """Write the page.

    Args:
        out: the file to write.
        done: the cleaned recording.
        asked: the options of the command.
        truth: the clean reference, if there is one.
        scores: those of the noisy and of the cleaned recording against the reference.
    """
    return audio.write_file(out, page(done, asked, truth, scores).encode())


def write_uncertainty(out: str | os.PathLike, done: Done) -> Path:
    """Write the picture of the posterior standard deviation, as PNG."""
    fig = Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
    _picture(fig.subplots(), *_in_db(done.uncertainty), label="posterior sd (dB)")
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    return audio.write_file(out, buffer.getvalue())


def page(
    done: Done,
    asked: Facts,
    truth: audio.Info | None = None,
    scores: tuple[Scores, Scores] | None = None,
) -> str:
    """The HTML of the page."""
    recordings = {"Before": done.source, "After": audio.info(done.files[0])}
    if truth is not None:
        recordings["Reference"] = truth
    spectra = {name: spectrogram(of) for name, of in recordings.items()}
    draws = {f"Draw {i}": audio.info(f) for i, f in enumerate(done.files[1:], 1)}
    sections = {
        "Listen": _listen(recordings | draws),
        "Spectrograms": _spectrograms(spectra),
        "Level": _levels(spectra),
    }
    if done.uncertainty is not None and done.uncertainty.rms.size:
        sections["Uncertainty"] = _uncertainty(done)
    if scores is not None:
        sections["Scores"] = _scores(*scores)
    sections["Repeat"] = _repeat(asked)
    return frame.document(
        done.source.path.name,
        _facts(done, asked),
        _glance(done, spectra, scores),
        sections,
        version("hamcmc"),
    )


def spectrogram(source: audio.Info) -> Pooled:
    """Power at each time and frequency; a column adds up to the mean square of its samples."""
    size = max(2 * round(WINDOW * source.rate / 2), 2)
    window = np.hanning(size + 1)[:-1]
    sides = np.full(size // 2 + 1, 2.0)
    sides[[0, -1]] = 1
    weights = sides / (size * np.sum(window**2))
    pooled, frequencies = Pooled(source.seconds), np.fft.rfftfreq(size, 1 / source.rate)
    for x in _with_halves(source, size):
        frames = np.lib.stride_tricks.sliding_window_view(x, size, axis=0)[:: size // 2]  # (frames, channels, size)
        power = np.mean(np.abs(np.fft.rfft(frames * window)) ** 2, axis=1) * weights
        pooled.add(power.T, frequencies, size // 2 / source.rate)
    return pooled


def _with_halves(source: audio.Info, size: int) -> Iterator[np.ndarray]:
    """Stretches of the recording that overlap, so that frames of `size` at distances of half of it cover all of it."""
    rest = np.zeros((size // 2, source.channels), np.float32)
    for block in audio.blocks(source):
        rest = np.concatenate([rest, block])
        whole = (len(rest) - size) // (size // 2) + 1
        if whole > 0:
            yield rest[: (whole + 1) * (size // 2)]
            rest = rest[whole * (size // 2) :]
    yield np.concatenate([rest, np.zeros((size, source.channels), np.float32)])[:size]


# --- the top of the page ---


def _facts(done: Done, asked: Facts) -> str:
    s = done.source
    return frame.facts(
        {
            "Recording": f"{s.seconds:.2f} s, {s.rate:,} Hz, {plural(s.channels, 'channel')}, {s.format} {s.subtype}",
            "Result": ", ".join(map(str, done.files)),
            "Sampler": asked.get("sampler") or DEFAULT.sampler,
            "Iterations": asked.get("iterations") or DEFAULT.iterations,
            "Dictionary": asked.get("dictionary") or "the built-in one",
            "Seed": asked.get("seed"),
        }
    )


def _glance(done: Done, spectra: Mapping[str, Pooled], scores: tuple[Scores, Scores] | None) -> str:
    cards = []
    for (name, digits), before, after in zip(LABELS, *(scores or ((), ()))):
        grade = "good" if after > before else "warn" if after < before else ""
        cards.append((name, _shown(after, digits), f"{_shown(before, digits)} before", grade))
    before, after = (10 * np.log10(np.mean(_level(spectra[n]))) for n in ("Before", "After"))
    cards.append(("Level", f"{after:.1f} dB", f"{before:.1f} dB before; full scale is 0 dB", ""))
    cards.append(("Time", duration(done.seconds), pace(done.source.seconds, done.seconds), ""))
    checks = [*done.source.warnings()]
    for name, gain in zip(done.files, done.gains):
        if gain < 1:
            checks.append(
                f"{name.name} would have clipped, so all of it was turned down by {-20 * np.log10(gain):.1f} dB."
            )
    return frame.at_a_glance(cards, checks)


def _shown(score: float, digits: int) -> str:
    return "–" if np.isnan(score) else f"{score:.{digits}f}"


# --- sections ---


def _listen(recordings: Mapping[str, audio.Info]) -> str:
    longest = max(recordings.values(), key=lambda r: r.seconds)
    share = min(LISTEN, 3 * LISTEN // len(recordings))
    seconds = share / (longest.rate * min(longest.channels, 2))
    full = max(1.0, *(r.peak for r in recordings.values()))  # one gain for all, so that they can be compared
    figures = "".join(
        f'<figure><figcaption>{name}</figcaption><audio controls preload="auto" aria-label="{name}" '
        f'src="data:audio/flac;base64,{_encoded(of, seconds, full)}"></audio></figure>'
        for name, of in recordings.items()
    )
    notes = "You can switch while it plays: the position stays, and a line in the plots below marks it. "
    if seconds < longest.seconds:
        notes += f"The first {seconds:.3g} s are here; the files have the rest. "
    if longest.channels > 2:
        notes += f"This is the mean of all {longest.channels} channels. "
    return f'<p class="soft">{notes}</p><div class="player">{figures}</div>'


def _encoded(source: audio.Info, seconds: float, full: float) -> str:
    """The beginning of a recording as FLAC, in base64; all browsers play it."""
    x = next(audio.blocks(source, seconds)) / full
    buffer = io.BytesIO()
    sf.write(buffer, x if source.channels <= 2 else x.mean(1), source.rate, format="FLAC", subtype="PCM_16")
    return base64.b64encode(buffer.getvalue()).decode()


def _spectrograms(spectra: Mapping[str, Pooled]) -> str:
    """One below the other, with the same colours and the same axes: what changes between them is what was removed."""
    pictures = {name: _in_db(of) for name, of in spectra.items()}
    top = max(float(p[0].max()) for p in pictures.values())
    reach = (max(p[2] for p in pictures.values()), max(float(p[1][-1]) for p in pictures.values()) / 1000)
    *_, last = pictures
    return (
        '<p class="soft">Power at each time and frequency in dB. All have the same colours and the same axes, and '
        'what you point at in one is marked in the others.</p><div class="stack">'
        + "".join(
            _drawn(*p, f"Spectrogram: {name.lower()}", name, top, Shared(reach, name == last))
            for name, p in pictures.items()
        )
        + "</div>"
    )


def _uncertainty(done: Done) -> str:
    return (
        "<p class='soft'>The posterior standard deviation of the clean speech at each time and frequency, in dB. The "
        "draws disagree most where it is bright.</p><div class='single'>"
        + _drawn(*_in_db(done.uncertainty), "Posterior sd")
        + "</div>"
    )


def _level(of: Pooled) -> np.ndarray:
    """Mean square against time; digital silence, which is -∞ dB, counts as -100 dB."""
    return np.maximum(np.sum(of.rms**2, axis=0), 1e-10)


def _levels(spectra: Mapping[str, Pooled]) -> str:
    names = {name.lower(): i for i, name in enumerate(spectra)}
    series = []
    for name, of in zip(names, spectra.values()):
        level = 10 * np.log10(_level(of))
        series.append(
            {
                "kind": "line",
                "x": np.linspace(0, of.seconds, len(level)).tolist(),
                "y": plots.pack(level),
                **plots.named(name, names[name]),
            }
        )
    plot = {"x": plots.axis("seconds"), "y": plots.axis("dB"), "series": series, "height": 220}
    return frame.key(names, "curves") + frame.figure(plot, "Level against time, in dB")


def _scores(before: Scores, after: Scores) -> str:
    rows = [
        [name, _shown(b, digits), _shown(a, digits), _shown(a - b, digits)]
        for (name, digits), b, a in zip(LABELS, before, after)
    ]
    return (
        frame.table(["", "before", "after", "gain"], rows, "Against the reference, mean over channels")
        + "<p class='soft'>SDR is the signal-to-distortion ratio, in which a filter of 512 taps does not count as "
        "distortion; in SI-SDR only a change of level does not. STOI is intelligibility from 0 to 1. In all of them, "
        "more is better.</p>"
    )


def command(asked: Facts) -> str:
    """The command that gives the same result again."""
    words = ["hamcmc", "denoise", _path(asked["recording"]), "-o", _path(asked["out"])]
    for name in ("dictionary", "sampler", "iterations", "seed", "reference", "draws"):
        if asked.get(name) not in (None, 0) or name == "seed":
            words += [f"--{name}", str(asked.get(name, 0))]
    return shlex.join(words)


def _path(name: Any) -> str:
    """A file name that the command cannot mistake for an option or for ``train``."""
    return f"./{name}" if str(name) == "train" or str(name).startswith("-") else str(name)


def _repeat(asked: Facts) -> str:
    versions = {name: version(name) for name in ("hamcmc", "jax", "numpy", "scipy", "soundfile")}
    rows = [[k, v] for k, v in ({"python": platform.python_version()} | versions).items()]
    return (
        f"<p>This command gives the same result again:</p><p><code>{escape(command(asked))}</code></p>"
        f"{frame.table(['program', 'version'], rows, 'With these versions', kind='words')}"
    )


# --- pictures ---


def _in_db(of: Pooled | None) -> tuple[np.ndarray, np.ndarray, float]:
    """A picture in dB, the frequencies of its rows, and its length in seconds."""
    if of is None or not of.rms.size:
        return np.full((2, 1), 10 * np.log10(SILENCE)), np.array([0.0, 1.0]), 1.0
    return 10 * np.log10(of.rms**2 + SILENCE), of.frequencies, of.seconds


class Shared(NamedTuple):
    """The axes that pictures have in common.

    Attributes:
        reach: the ends of the axes, in seconds and kHz.
        last: whether this is the picture at the bottom, which has the numbers of the axis of time.
    """

    reach: tuple[float, float]
    last: bool


def _drawn(
    db: np.ndarray,
    frequencies: np.ndarray,
    seconds: float,
    alt: str,
    caption: str = "",
    top: float | None = None,
    shared: Shared | None = None,
) -> str:
    """A picture whose colours encode its values: the page's script adds the axes and reads the values back."""
    top = float(db.max()) if top is None else top
    steps = np.rint((db - top + RANGE) / RANGE * 255).clip(0, 255).astype(np.uint8)
    palette = mpl.colormaps["magma"](np.arange(256), bytes=True)[:, :3].tobytes()
    picture = Image.fromarray(steps[::-1]).convert("P")
    picture.putpalette(palette)
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    reach = max(float(frequencies[-1]), 1.0) / 1000
    plot = {
        "x": plots.axis("seconds", range=[0, seconds]),
        "y": plots.axis("kHz", range=[0, reach], width=24),
        "image": {"low": top - RANGE, "high": top, "label": "dB", "palette": base64.b64encode(palette).decode()},
        "height": TALL,
    }
    if shared is not None:
        plot["x"] |= {"shown": [0, shared.reach[0]]} | ({} if shared.last else {"hidden": True})
        plot["y"]["shown"] = [0, shared.reach[1]]
        plot |= {"shared": "spectrograms", "height": TALL + (28 if shared.last else 0)}
    source = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    image = f'<img alt="{escape(alt)}, 0 to {seconds:.3g} s, 0 to {reach:.3g} kHz" src="{source}">'
    return frame.figure(plot, alt, caption, image)


def _picture(
    ax: Axes, db: np.ndarray, frequencies: np.ndarray, seconds: float, label: str, top: float | None = None
) -> None:
    top = float(db.max()) if top is None else top
    extent = (0, seconds, 0, max(float(frequencies[-1]), 1.0) / 1000)
    colours: Any = {"cmap": "magma", "vmin": top - RANGE, "vmax": top}
    drawn = ax.imshow(db, origin="lower", aspect="auto", extent=extent, **colours)
    ax.set(xlabel="seconds", ylabel="kHz")
    bar = ax.figure.colorbar(drawn, ax=ax, label=label)
    bar.outline.set_visible(False)  # type: ignore[operator]
