"""The comparison at 48 kHz mixes at the ratios that it says, and goes on where it was stopped."""

import numpy as np
import pytest
import soundfile as sf
from benchmarks import denoisers, wideband

RATE = wideband.RATE


@pytest.fixture
def recordings(tmp_path):
    """Seven speakers and three noises."""
    g = np.random.default_rng(0)
    for part, names in (("speech", [f"{i:02d}-l{i}" for i in range(7)]), ("noise", ["a", "b", "c"])):
        (tmp_path / part).mkdir()
        for name in names:
            sf.write(tmp_path / part / f"{name}.flac", 0.05 * g.normal(size=wideband.SECONDS * RATE + 100), RATE)
    return tmp_path


def test_mixtures_have_their_ratios(recordings):
    found = list(wideband.mixtures(recordings, None))
    assert [(name, snr) for name, snr, *_ in found[:4]] == [("00-l0", 0), ("00-l0", 5), ("00-l0", 10), ("01-l1", 0)]
    for _, snr, clean, noisy in found:
        assert 10 * np.log10(np.mean(clean**2) / np.mean((noisy - clean) ** 2)) == pytest.approx(snr, abs=1e-6)
    again = list(wideband.mixtures(recordings, None))
    assert all(np.array_equal(a[3], b[3]) for a, b in zip(found, again))


def test_ours_stands_where_its_differences_are(recordings, tmp_path, monkeypatch):
    calls = []

    def method(gain):
        return lambda x, rate: calls.append(1) or gain * x

    monkeypatch.setattr(wideband, "METHODS", ("noisy", "rnnoise", "default"))
    monkeypatch.setattr(denoisers, "METHODS", {m: method(1) for m in wideband.METHODS})
    monkeypatch.setattr(denoisers, "fingerprint", lambda method: "same")
    value = {"n": 0}

    def score(clean, estimate):
        value["n"] += 1
        return dict.fromkeys(wideband.SCORES, float(value["n"] % 3))  # noisy 1, rnnoise 2, default 0

    monkeypatch.setattr(wideband, "score", score)
    *tables, standing = wideband.run(True, str(recordings), (), tmp_path)
    assert [t.title[:7] for t in tables] == ["At 0 dB", "At 5 dB", "At 10 d"]
    assert [r["SI-SDR"] for r in tables[0].rows] == ["1.00", "2.00", "0.00"]
    assert [r["SI-SDR"] for r in standing.rows] == ["-1.00 ± 0.00", "-2.00 ± 0.00"]
    assert {(a.peer, a.ahead) for a in standing.against} == {("RNNoise", "peer")}
    made = len(calls)
    log = tmp_path / "wideband.jsonl"
    log.write_text(log.read_text()[:-20])  # stopped in the middle of a line
    assert wideband.run(True, str(recordings), (), tmp_path)[0] == tables[0]
    assert len(calls) == made + 1


def test_says_how_to_make_recordings(tmp_path):
    with pytest.raises(ValueError, match=r"has no speech or no noise: make them with tools/speech_data\.py recordings"):
        wideband.run(True, str(tmp_path), ("noisy",), tmp_path)
