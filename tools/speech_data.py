"""Make the recordings that train the first guess and those that test it, from Debian packages.

    python tools/speech_data.py voices DIR        # 0.2 GB to download: clean speech at 16 kHz, one file for each voice
    python tools/speech_data.py recordings DIR    # 1.5 GB to download: speech and noises at 48 kHz, never trained on

It downloads the packages with ``apt-get download`` to DIR/packages, unless they are there already, and unpacks them
with ``dpkg-deb``; it installs nothing. G.722 is decoded by PyAV (``pip install av``).
"""

import argparse
import io
import subprocess
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile as sf
from scipy.signal import resample_poly

VOICES = {f"asterisk-core-sounds-{language}-g722": ".g722" for language in ("en", "es", "fr", "it", "ru")}
VOICES |= {"festvox-ru": ".wav", "pocketsphinx-testdata": ".wav"}
SOUNDS = ("beep", "tone", "silence", "ascending", "confbridge-join", "confbridge-leave")  # prompts that are no speech
SHORT = 0.7  # seconds: shorter prompts are single syllables
LONGEST = 1800  # seconds of a voice
AMBIENCES = ("weather", "water", "building", "dayscape")  # folders of 0 A.D.'s ambient sounds
CLIPS, SECONDS = 24, 5.0  # test recordings of speech, and how long each is


def package(name: str, folder: Path) -> Path:
    """A Debian package, downloaded unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (there := sorted(folder.glob(f"{name}_*.deb"))):
        subprocess.run(["apt-get", "download", "-q", name], cwd=folder, check=True)
        there = sorted(folder.glob(f"{name}_*.deb"))
    return there[-1]


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of those files of a package, in the order of their names."""
    unpack = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=io.BytesIO(unpack.stdout)) as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if member.isfile() and wanted(member.name) and (file := archive.extractfile(member)):
                yield member.name, file.read()


def decode(name: str, content: bytes, rate: int) -> np.ndarray:
    """The first channel at the given rate."""
    if name.endswith(".g722"):
        import av

        with av.open(io.BytesIO(content), format="g722") as container:
            frames = [f.to_ndarray()[0] for f in container.decode(audio=0)]
            x = np.concatenate([np.zeros(0), *frames]) / 32768  # one prompt is empty
        own = 16000
    else:
        x, own = sf.read(io.BytesIO(content), always_2d=True)
        x = x[:, 0]
    return resample_poly(x, rate, own) if own != rate else x


def trimmed(x: np.ndarray, rate: int) -> np.ndarray:
    """Without silence at the ends: 20 ms blocks that are 40 dB below the loudest."""
    blocks = np.sqrt(np.mean(x[: len(x) // (rate // 50) * (rate // 50)].reshape(-1, rate // 50) ** 2, 1))
    if not blocks.size or not blocks.max():
        return x[:0]
    loud = np.flatnonzero(blocks > 0.01 * blocks.max())
    return x[max(0, loud[0] - 2) * (rate // 50) : (loud[-1] + 3) * (rate // 50)]


def level(x: np.ndarray) -> np.ndarray:
    """At a root mean square of 0.05 over the loud samples."""
    return 0.05 * x / np.sqrt(np.mean(x[np.abs(x) > 0.01 * np.abs(x).max()] ** 2))


def voices(folder: Path, rate: int = 16000) -> None:
    """One file for each voice."""
    for name, suffix in VOICES.items():
        parts, seconds = [], 0.0
        for path, content in members(package(name, folder / "packages"), lambda n, s=suffix: n.endswith(s)):
            if any(s in path for s in SOUNDS) or seconds > LONGEST:
                continue
            x = trimmed(decode(path, content, rate), rate)
            if len(x) > SHORT * rate:
                parts += [level(x), np.zeros(rate // 5)]
                seconds += len(x) / rate
        sf.write(folder / f"{name}.flac", np.clip(np.concatenate(parts), -1, 1), rate)
        print(f"{name}: {seconds / 60:.1f} minutes", flush=True)


def recordings(folder: Path, rate: int = 48000) -> None:
    """Clips of speech, from descriptions of pictures in eleven languages, and of ambient sounds."""
    own = lambda name: "_desc" in name and name.endswith(".ogg")
    spoken = defaultdict(list)
    for path, content in members(package("tuxpaint-stamps-default", folder / "packages"), own):
        language = path.rpartition("_desc")[2].strip("_.").partition(".ogg")[0].replace("ogg", "en")
        with sf.SoundFile(io.BytesIO(content)) as file:
            full = file.samplerate >= 44100
        if full and len(spoken[language]) < 80:
            x = trimmed(decode(path, content, rate), rate)
            if len(x) > SHORT * rate:
                spoken[language].append(level(x))
    languages = sorted(k for k, v in spoken.items() if sum(map(len, v)) > 4 * SECONDS * rate)
    (folder / "speech").mkdir(exist_ok=True)
    (folder / "noise").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(CLIPS):
        language, clip = languages[i % len(languages)], [np.zeros(int(0.3 * rate))]
        while sum(map(len, clip)) < SECONDS * rate:
            clip += [spoken[language].pop(int(rng.integers(len(spoken[language])))), np.zeros(int(0.25 * rate))]
        sf.write(folder / "speech" / f"{i:02d}-{language}.flac", np.concatenate(clip)[: int(SECONDS * rate)], rate)
    inside = dict(members(package("0ad-data", folder / "packages"), lambda n: n.endswith("public.zip")))
    with zipfile.ZipFile(io.BytesIO(inside.popitem()[1])) as archive:
        for kind in AMBIENCES:
            names = [
                n for n in sorted(archive.namelist()) if n.startswith(f"audio/ambient/{kind}/") and n[-4:] == ".ogg"
            ]
            for n in names:
                x = decode(n, archive.read(n), rate)
                if len(x) >= SECONDS * rate and np.mean(x**2) > 1e-8:
                    x = 0.05 * x / np.sqrt(np.mean(x**2))
                    sf.write(folder / "noise" / f"{kind}-{Path(n).stem}.flac", np.clip(x[: 20 * rate], -1, 1), rate)
    for part in ("speech", "noise"):
        print(part, *(p.stem for p in sorted((folder / part).glob("*.flac"))))


def main() -> None:
    """Make what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("voices", "recordings"))
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    {"voices": voices, "recordings": recordings}[asked.what](asked.folder)


if __name__ == "__main__":
    main()
