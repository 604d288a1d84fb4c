"""Read and write audio files of any length with constant memory. Inputs are never touched, outputs never half
written."""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

import numpy as np

from hamcmc._require import needs
from hamcmc._types import Record
from hamcmc.store.errors import RunError
from hamcmc.store.files import NO_ROOM, replacing

with needs("soundfile", "audio"):
    import soundfile as sf

PIECE = 4096  # frames per read or write; libsndfile overflows its stack when it writes long pieces to OGG
FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG"}
KEPT = {"WAV": ("PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"), "FLAC": ("PCM_16", "PCM_24"), "OGG": ("VORBIS",)}
DEEP = ("PCM_32", "FLOAT", "DOUBLE")  # the best that FLAC has for these is 24 bits
CHANNELS = {"WAV": 1024, "FLAC": 8, "OGG": 255}
UNKNOWN = 2**62  # libsndfile reports so many frames or more if it does not know the length
ENDLESS = 0x7FFF0000  # programs that write to a pipe do not know the length, and claim one of this size or more


class AudioError(ValueError):
    """A file that cannot be read as audio, or a place where none can be written. The message is written for people."""


class Info(NamedTuple):
    """What an audio file contains.

    Attributes:
        path: the file.
        rate: frames per second.
        frames: samples per channel that can be read.
        format: container, in libsndfile's words.
        subtype: encoding of the samples, in libsndfile's words.
        peak: largest absolute value; full scale is 1.
        clipped: how many samples are at full scale and equal to both of their neighbours.
        truncated: whether the file claims more samples than it has.
    """

    path: Path
    rate: int
    channels: int
    frames: int
    format: str
    subtype: str
    peak: float
    clipped: int
    truncated: bool

    @property
    def seconds(self) -> float:
        """The length of the recording."""
        return self.frames / self.rate

    def warnings(self) -> Iterator[str]:
        """What a listener should know."""
        if self.truncated:
            yield f"{self.path} is truncated or damaged: only its first {self.seconds:.2f} s can be read"
        if self.clipped:
            yield f"{self.path} is clipped (at {self.clipped:,} samples or more): the peaks cannot be restored"
        if not self.peak:
            yield f"{self.path} is silent: there is nothing to clean"


def info(path: str | os.PathLike) -> Info:
    """Read through a whole file, in constant memory.

    Raises:
        AudioError: if it is not an audio file, is empty, or has a sample that is not finite.
    """
    path = Path(path)
    frames, peak, clipped, broken = 0, 0.0, 0, False
    with _open(path) as file:
        try:
            while len(x := file.read(PIECE, dtype="float32", always_2d=True)):
                bad = np.argwhere(~np.isfinite(x))
                if len(bad):
                    at, channel = bad[0] + (frames, 1)
                    raise AudioError(
                        f"{path}: sample {at:,} of channel {channel} ({at / file.samplerate:.3f} s) is not a finite "
                        "number"
                    )
                frames, peak = frames + len(x), max(peak, float(np.abs(x).max()))
                clipped += int(np.sum((x[:-2] == x[1:-1]) & (x[1:-1] == x[2:]) & (np.abs(x[1:-1]) > 0.999)))
        except sf.LibsndfileError:  # the decoder cannot go on
            broken = True
        claimed = re.search(r"^ *(?:data|SSND) : (\d+) \(should be (\d+)\)", file.extra_info, re.MULTILINE)
        short = claimed is not None and int(claimed[2]) < int(claimed[1]) < ENDLESS
        truncated = broken or short or frames < file.frames < UNKNOWN
        if not frames:
            raise AudioError(f"{path} has no samples" + (": it is truncated" if truncated else ""))
        form = file.format, file.subtype
        return Info(path, file.samplerate, file.channels, frames, *form, peak, clipped, truncated)


def blocks(source: Info, seconds: float = 10.0) -> Iterator[np.ndarray]:
    """The file's samples as float32 arrays (frames, channels), `seconds` at a time; the last may be shorter."""
    size = max(int(seconds * source.rate), 1)
    with _open(source.path) as file:
        for start in range(0, source.frames, size):
            x = file.read(min(size, source.frames - start), dtype="float32", always_2d=True)
            if len(x) < min(size, source.frames - start):
                raise AudioError(f"{source.path} became shorter while it was being read")
            yield x


def read(source: Info) -> np.ndarray:
    """All samples (frames, channels) of a short file."""
    return np.concatenate(list(blocks(source)))


def check_target(path: str | os.PathLike, inputs: Sequence[str | os.PathLike] = ()) -> Path:
    """Check that a file can be written, and return its path with links resolved.

    Raises:
        AudioError: if it is one of the inputs, is not a plain file, or its directory is missing or read-only.
    """
    path = Path(path)
    for other in inputs:
        if path.exists() and Path(other).exists() and path.samefile(other):
            raise AudioError(f"{path} is an input and would be overwritten: choose another name")
    if path.exists() and not path.is_file():
        raise AudioError(f"{path} is not a file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise AudioError(f"{path} cannot be written: there is no directory {path.parent}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise AudioError(f"{path} cannot be written: no permission to write in {path.parent}")
    return path.resolve()


def check_format(path: str | os.PathLike, like: Info) -> str:
    """The container that the suffix stands for. Raises :class:`AudioError` if it cannot hold such a recording."""
    path = Path(path)
    form = FORMATS.get(path.suffix.lower())
    if path.is_dir():
        raise AudioError(f"{path} is a directory: name a file, such as {path / 'clean.wav'}")
    if form is None:
        raise AudioError(f"{path}: its suffix must be one of {', '.join(FORMATS)}")
    if like.channels > CHANNELS[form]:
        raise AudioError(f"{path}: {form} has at most {CHANNELS[form]} channels, the recording has {like.channels}")
    if not sf.check_format(form, _subtype(form, like.subtype)):
        raise AudioError(f"{path}: this libsndfile cannot write {form}")
    return form


class Writer:
    """A context that writes a recording like another one, in the format of the suffix.

    WAV and FLAC keep the encoding of the input: 24 bits stay 24 bits, but 8 bits become 16, because their noise is
    audible. The samples first go to a hidden file beside the target, as floats. When all are there, the largest is
    known, and a recording beyond full scale (or beyond the input's own peak, if the encoding allows that) is turned
    down as a whole. Only a complete file gets the target's name; otherwise an old file of that name stays. What a
    killed run leaves is hidden, and the next run to the same target removes it.

    Attributes:
        gain: the factor by which the samples were multiplied at the end, 1 unless they would have clipped.
    """

    def __init__(self, path: str | os.PathLike, like: Info):
        self.path, self.like, self.gain, self._peak = Path(path), like, 1.0, 0.0
        self._format = check_format(path, like)
        self._target = check_target(path, [like.path])
        self._floats, self._partial = (
            self._target.with_name(f".{self._target.name}.{kind}") for kind in ("floats", "partial")
        )

    def __enter__(self) -> "Writer":
        with _guarded(self.path):
            self._handle: IO[bytes] = open(self._floats, "ab+")
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._handle.close()
                raise AudioError(f"{self.path} is being written by another process") from None
            except OSError:
                pass  # a file system without locks
            self._handle.truncate(0)
            self._partial.unlink(missing_ok=True)
        return self

    def write(self, x: np.ndarray) -> None:
        """Append samples (frames, channels)."""
        x = np.asarray(x, np.float32)
        if x.ndim != 2 or x.shape[1] != self.like.channels:
            raise ValueError(f"samples must have shape (frames, {self.like.channels}), got {x.shape}")
        if not np.isfinite(x).all():
            raise RunError(f"{self.path} was not written: some of its samples are not finite")
        self._peak = max(self._peak, float(np.abs(x).max(initial=0)))
        with _guarded(self.path):
            self._handle.write(x.tobytes())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                with _guarded(self.path):
                    self._finish()
        finally:
            self._floats.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a full disk refuses the rest of the buffer
                self._handle.close()

    def _finish(self) -> None:
        """Encode the floats, and give the file its name."""
        self._handle.flush()
        self._handle.seek(0)
        subtype = _subtype(self._format, self.like.subtype)
        most = max(1.0, self.like.peak) if subtype in ("FLOAT", "DOUBLE") else 1.0
        if self._peak > most:
            self.gain = most / self._peak
        channels, frame = self.like.channels, 4 * self.like.channels
        form: Record = {"format": self._container(), "subtype": subtype}
        with replacing(self._target, self._partial) as partial:
            with (
                open(partial, "x+b") as file,
                sf.SoundFile(file.fileno(), "w", self.like.rate, channels, closefd=False, **form) as out,
            ):
                while piece := self._handle.read(PIECE * frame):
                    out.write(np.frombuffer(piece, np.float32).reshape(-1, channels) * np.float32(self.gain))
            written = sf.info(partial).frames  # libsndfile does not report a failed write of a header or a tail
            if written != self._handle.tell() // frame:
                raise OSError(errno.ENOSPC, "not everything was written")
            if self._target.exists():
                os.chmod(partial, stat.S_IMODE(self._target.stat().st_mode))

    def _container(self) -> str:
        size = self._handle.seek(0, os.SEEK_END) * 2
        self._handle.seek(0)
        if self._format == "WAV" and size > 0xFFFF0000:
            return "RF64"  # lengths in WAV have 32 bits
        return "WAVEX" if self._format == "WAV" and self.like.format == "WAVEX" else self._format


def write_file(path: str | os.PathLike, content: bytes) -> Path:
    """Write a file that accompanies a recording, whole or not at all."""
    target = check_target(path)
    with _guarded(Path(path)), replacing(target, target.with_name(f".{target.name}.partial")) as partial:
        partial.write_bytes(content)
    return Path(path)


@contextlib.contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Turn a refusal of the operating system or of libsndfile into a :class:`RunError`."""
    try:
        yield
    except (OSError, sf.LibsndfileError) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise RunError(f"no room left on the disk of {path}: it was not written") from error
        raise RunError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error


class _Stream(sf.SoundFile):
    """A file that is read from beginning to end.

    soundfile seeks after each read, which fails at the end of a FLAC file that is truncated or of unknown length.
    """

    def seekable(self) -> bool:
        return False


def _open(path: Path) -> sf.SoundFile:
    if not path.exists():
        raise AudioError(f"there is no file {path}")
    if not path.is_file():
        raise AudioError(f"{path} is not a file")
    try:
        return _Stream(path)
    except sf.LibsndfileError:
        if not path.stat().st_size:
            raise AudioError(f"{path} is empty") from None
        if not os.access(path, os.R_OK):
            raise AudioError(f"no permission to read {path}") from None
        raise AudioError(f"{path} is not an audio file that can be read (WAV, FLAC, OGG, MP3, AIFF)") from None


def _subtype(form: str, subtype: str) -> str:
    """The encoding for samples that were read as `subtype`."""
    if subtype in KEPT[form]:
        return subtype
    return "VORBIS" if form == "OGG" else "PCM_24" if subtype in DEEP else "PCM_16"
