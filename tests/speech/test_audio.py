"""Audio files come in whole or with a clear message, and go out whole or not at all."""

import os
import resource
import struct
import subprocess
import sys

import numpy as np
import pytest
import soundfile as sf

from hamcmc.speech import audio
from hamcmc.store.errors import RunError

RATE = 8000


def tone(frames=4000, channels=1, level=0.5):
    """A tone with a little noise, (frames, channels)."""
    rng = np.random.default_rng(0)
    x = np.sin(0.3 * np.arange(frames))[:, None] + 0.05 * rng.standard_normal((frames, channels))
    return (level * x / np.abs(x).max()).astype(np.float32)


@pytest.fixture
def wav(tmp_path):
    sf.write(tmp_path / "in.wav", tone(), RATE)
    return tmp_path / "in.wav"


def names(folder):
    return sorted(f.name for f in folder.iterdir())


def copy(source, target, gain=1.0):
    """Read a file and write another; returns the writer."""
    source = audio.info(source)
    with audio.Writer(target, source) as writer:
        for block in audio.blocks(source, 0.1):
            writer.write(gain * block)
    return writer


@pytest.mark.parametrize(
    ("suffix", "subtype", "channels", "rate", "atol"),
    [
        ("wav", "PCM_16", 1, 8000, 0),
        ("wav", "PCM_24", 5, 96000, 0),
        ("wav", "FLOAT", 2, 44100, 0),
        ("flac", "PCM_16", 2, 48000, 0),
        ("flac", "PCM_24", 5, 96000, 0),
        ("ogg", "VORBIS", 5, 96000, 0.1),
    ],
)
def test_what_is_read_is_written_again(tmp_path, suffix, subtype, channels, rate, atol):
    source, target = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    sf.write(source, tone(9001, channels), rate, subtype=subtype)
    assert copy(source, target).gain == 1
    found = audio.info(target)
    assert found[1:6] == (rate, channels, 9001, suffix.upper(), subtype)
    before, after = (audio.read(audio.info(f)) for f in (source, target))
    np.testing.assert_allclose(after, before, atol=atol)
    assert np.ptp(before) > 0.9
    assert names(tmp_path) == sorted([source.name, target.name])


@pytest.mark.parametrize(
    ("subtype", "suffix", "expected"),
    [("PCM_24", "flac", "PCM_24"), ("FLOAT", "flac", "PCM_24"), ("PCM_U8", "wav", "PCM_16"), ("ULAW", "wav", "PCM_16")],
)
def test_encodings_that_cannot_or_should_not_be_kept(tmp_path, subtype, suffix, expected):
    sf.write(tmp_path / "in.wav", tone(), RATE, subtype=subtype)
    copy(tmp_path / "in.wav", tmp_path / f"out.{suffix}")
    assert audio.info(tmp_path / f"out.{suffix}").subtype == expected


def test_the_layout_of_surround_sound_is_kept(tmp_path):
    sf.write(tmp_path / "in.wav", tone(channels=5), RATE, subtype="PCM_24", format="WAVEX")
    copy(tmp_path / "in.wav", tmp_path / "out.wav")
    assert audio.info(tmp_path / "out.wav").format == "WAVEX"


def test_blocks_are_the_file_in_pieces(wav):
    pieces = list(audio.blocks(audio.info(wav), 0.3))
    assert [len(p) for p in pieces] == [2400, 1600]
    assert pieces[0].dtype == np.float32
    np.testing.assert_array_equal(np.concatenate(pieces), sf.read(wav, dtype="float32", always_2d=True)[0])


def test_a_loud_output_is_turned_down_as_a_whole_and_a_quiet_one_is_left_alone(wav, tmp_path):
    writer = copy(wav, tmp_path / "out.wav", gain=4.0)
    assert writer.gain == pytest.approx(0.5, rel=1e-3)
    loud, before = audio.read(audio.info(tmp_path / "out.wav")), audio.read(audio.info(wav))
    np.testing.assert_allclose(loud, before * 4 * writer.gain, atol=1e-4)
    assert not audio.info(tmp_path / "out.wav").clipped
    copy(wav, tmp_path / "out.wav", gain=0.25)
    np.testing.assert_allclose(audio.read(audio.info(tmp_path / "out.wav")), before / 4, atol=1e-4)


def test_floats_may_be_as_loud_as_they_were(tmp_path):
    sf.write(tmp_path / "in.wav", tone(level=3.0), RATE, subtype="FLOAT")
    assert copy(tmp_path / "in.wav", tmp_path / "same.wav").gain == 1
    assert copy(tmp_path / "in.wav", tmp_path / "louder.wav", gain=2.0).gain == pytest.approx(0.5)
    assert copy(tmp_path / "in.wav", tmp_path / "out.flac").gain == pytest.approx(1 / 3)


def test_a_single_sample(tmp_path):
    sf.write(tmp_path / "in.wav", tone()[:1], RATE)
    copy(tmp_path / "in.wav", tmp_path / "out.flac")
    assert audio.info(tmp_path / "out.flac").frames == 1


# --- what is wrong with an input ---


def fault(path):
    with pytest.raises(audio.AudioError) as caught:
        audio.info(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_what_is_no_audio(tmp_path):
    file = tmp_path / "x.wav"
    assert "there is no file" in fault(file)
    assert "is not a file" in fault(tmp_path)
    file.write_bytes(b"")
    assert "is empty" in fault(file)
    file.write_text("Once upon a time\n" * 100)
    assert "is not an audio file" in fault(file)
    sf.write(file, tone()[:0], RATE)
    assert "has no samples" in fault(file)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers(tmp_path, value):
    x = tone(5000, 2)
    x[4400, 1] = value
    sf.write(tmp_path / "x.wav", x, RATE, subtype="FLOAT")
    assert "sample 4,400 of channel 2 (0.550 s) is not a finite number" in fault(tmp_path / "x.wav")


@pytest.mark.parametrize("suffix", ["wav", "flac", "mp3", "aiff"])
def test_a_truncated_file_is_used_as_far_as_it_goes(tmp_path, suffix):
    file = tmp_path / f"x.{suffix}"
    sf.write(file, tone(80_000), 16000)
    whole = audio.info(file)
    assert not whole.truncated
    before = audio.read(whole)
    os.truncate(file, file.stat().st_size // 2)
    half = audio.info(file)
    assert half.truncated
    assert 0.35 * whole.frames < half.frames < 0.55 * whole.frames
    assert f"only its first {half.seconds:.2f} s" in next(half.warnings())
    np.testing.assert_array_equal(audio.read(half)[:20_000], before[:20_000])


def test_a_file_cut_off_in_its_header(wav):
    os.truncate(wav, 44)
    assert "has no samples: it is truncated" in fault(wav)
    os.truncate(wav, 30)
    fault(wav)


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF])
def test_a_length_that_was_not_known_is_no_truncation(wav, length):
    content = bytearray(wav.read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = struct.pack("<I", length)
    wav.write_bytes(content)
    found = audio.info(wav)
    assert (found.frames, found.truncated) == (4000, False)


def test_a_flac_file_of_unknown_length_is_read_to_its_end(tmp_path):
    file = tmp_path / "x.flac"
    sf.write(file, tone(10_001), RATE)
    whole = audio.read(audio.info(file))
    content = bytearray(file.read_bytes())
    content[21] &= 0xF0  # 36 bits of the header are the number of samples; 0 stands for unknown
    content[22:26] = bytes(4)
    file.write_bytes(content)
    assert not audio.info(file).truncated
    np.testing.assert_array_equal(audio.read(audio.info(file)), whole)


def test_clipped_and_silent_inputs_are_told(tmp_path):
    file = tmp_path / "x.wav"
    sf.write(file, tone(level=1.0), RATE)
    assert list(audio.info(file).warnings()) == []
    sf.write(file, np.clip(tone(level=2.0), -1, 1), RATE)
    assert "is clipped" in next(audio.info(file).warnings())
    sf.write(file, 0 * tone(), RATE)
    assert "is silent" in next(audio.info(file).warnings())


# --- what is wrong with an output ---


def test_an_input_is_never_overwritten(wav, tmp_path):
    (tmp_path / "link.wav").symlink_to(wav)
    os.link(wav, tmp_path / "hard.wav")
    content = wav.read_bytes()
    for name in ("in.wav", "link.wav", "hard.wav", "../" + tmp_path.name + "/in.wav"):
        with pytest.raises(audio.AudioError, match=r"is an input"):
            copy(wav, tmp_path / name)
    assert wav.read_bytes() == content
    assert names(tmp_path) == ["hard.wav", "in.wav", "link.wav"]


def test_a_link_as_target_stays_a_link(wav, tmp_path):
    (tmp_path / "else").mkdir()
    (tmp_path / "link.wav").symlink_to(tmp_path / "else" / "out.wav")
    copy(wav, tmp_path / "link.wav")
    assert (tmp_path / "link.wav").is_symlink()
    assert names(tmp_path / "else") == ["out.wav"]


def test_places_that_cannot_be_written(wav, tmp_path, monkeypatch):
    source = audio.info(wav)
    (tmp_path / "folder.wav").mkdir()
    for name, message in (
        ("none/out.wav", "there is no directory"),
        ("folder.wav", "is a directory: name a file, such as .*folder.wav/clean.wav"),
        ("in.wav/out.wav", "there is no directory"),
        ("out.xyz", "suffix must be one of .wav, .flac, .ogg"),
        ("out", "suffix must be one of"),
    ):
        with pytest.raises(audio.AudioError, match=message):
            audio.Writer(tmp_path / name, source)
    with pytest.raises(audio.AudioError, match=r"FLAC has at most 8 channels, the recording has 9"):
        audio.Writer(tmp_path / "out.flac", source._replace(channels=9))
    monkeypatch.setattr(os, "access", lambda *_: False)  # a read-only directory is none for root
    with pytest.raises(audio.AudioError, match=r"no permission to write"):
        audio.Writer(tmp_path / "out.wav", source)


@pytest.mark.parametrize("name", ["out.wav", "out.flac", "out.ogg"])
@pytest.mark.parametrize("room", [0, 1000, 20_000, 64_000 + 2000])
def test_a_full_disk_leaves_nothing_behind(tmp_path, name, room):
    sf.write(tmp_path / "in.wav", tone(16_000, level=0.9), RATE, subtype="FLOAT")
    (tmp_path / name).write_text("what was there")
    before, limits = names(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    source = audio.info(tmp_path / "in.wav")
    noise = np.random.default_rng(0).uniform(-1, 1, (32_000 if room > 64_000 else 16_000, 1))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        with pytest.raises(RunError, match=r"no room left|cannot write"), audio.Writer(tmp_path / name, source) as w:
            for piece in np.split(noise, 10):
                w.write(piece)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == before
    assert (tmp_path / name).read_text() == "what was there"


def test_no_room_for_the_encoded_file_only(wav, tmp_path, monkeypatch):
    source, written = audio.info(wav), sf.SoundFile.write
    monkeypatch.setattr(sf.SoundFile, "write", lambda self, x: written(self, x[: len(x) // 2]))
    with pytest.raises(RunError, match=r"no room left"), audio.Writer(tmp_path / "out.wav", source) as writer:
        writer.write(tone())
    assert names(tmp_path) == ["in.wav"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_leaves_nothing_behind(wav, tmp_path, error):
    with pytest.raises(error), audio.Writer(tmp_path / "out.wav", audio.info(wav)) as writer:
        writer.write(tone())
        raise error
    assert names(tmp_path) == ["in.wav"]


@pytest.mark.parametrize(
    ("bad", "error"),
    [(tone(channels=2), ValueError), (tone()[:, 0], ValueError), (np.full((3, 1), np.nan), RunError)],
)
def test_bad_samples_are_refused(wav, tmp_path, bad, error):
    with pytest.raises(error, match=r"samples"), audio.Writer(tmp_path / "out.wav", audio.info(wav)) as writer:
        writer.write(bad)


def test_two_writers_of_one_file(wav, tmp_path):
    with audio.Writer(tmp_path / "out.wav", audio.info(wav)) as first:
        with pytest.raises(audio.AudioError, match=r"being written by another"):
            copy(wav, tmp_path / "out.wav")
        first.write(tone())
    assert names(tmp_path) == ["in.wav", "out.wav"]


def test_what_a_killed_run_leaves_is_removed_by_the_next(wav, tmp_path):
    program = (
        "import os, signal, sys; from hamcmc.speech import audio\n"
        "w = audio.Writer(sys.argv[2], audio.info(sys.argv[1])).__enter__()\n"
        "w.write(next(audio.blocks(w.like, 0.2))); w._handle.flush(); w._partial.touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, wav, tmp_path / "out.wav"], timeout=60, check=False)
    assert names(tmp_path) == [".out.wav.floats", ".out.wav.partial", "in.wav"]
    copy(wav, tmp_path / "out.wav")
    assert names(tmp_path) == ["in.wav", "out.wav"]
    np.testing.assert_array_equal(audio.read(audio.info(tmp_path / "out.wav")), audio.read(audio.info(wav)))
