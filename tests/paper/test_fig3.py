"""Figure 3: real samplers on a small made-up corpus, a run that goes on where it was, and claims that may be false."""

import json
import shutil

import numpy as np
import pytest

from hamcmc.paper import bench, beside, denoising, fig3
from hamcmc.paper.journal import Journal

SMALL = {"speech_rank": 4, "noise_rank": 2, "iterations": 20, "averaged": 10, "candidates": 2, "noises": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    fig3.make_corpus(folder, 4, seed=0)
    return folder


@pytest.fixture
def small(monkeypatch):
    quick = fig3.settings(True)
    monkeypatch.setattr(fig3, "settings", lambda _: quick | SMALL)


def test_the_whole(small, corpus, tmp_path, monkeypatch):
    """It is killed at the fifth run; the second attempt does the rest, and the third has nothing left to do."""
    runs, real = [], denoising.clean
    monkeypatch.setattr(beside, "cores", lambda: 1)  # so that it is the fifth

    def clean(recording, W, sampler, *more, **how):
        if len(runs) == 4 and "killed" not in runs:
            runs.append("killed")
            raise KeyboardInterrupt
        runs.append((recording.noisy.name, sampler))
        return real(recording, W, sampler, *more, **how)

    monkeypatch.setattr(bench, "clean", clean)
    out, said = tmp_path / "out", []
    with pytest.raises(KeyboardInterrupt):
        fig3.reproduce(out, quick=True, seed=3, corpus=corpus)
    assert len(json.loads((out / "runs.json").read_text())) == 4
    found = fig3.reproduce(out, quick=True, seed=3, corpus=corpus, progress=said.append)
    results = json.loads((out / "results.json").read_text())
    assert {f.name for f in found.files} == {"fig3.png", "fig3.svg", "results.json"}
    # Three searches with two candidates on one file; one file for each of four methods.
    assert len(runs) == 1 + 3 * 2 + 4
    assert {name for name, _ in (r for r in runs if r != "killed")} == {"sp03_babble_sn5.wav", "sp04_babble_sn5.wav"}
    assert [len(t["tried"]) for t in results["tuned"].values()] == [2, 2, 2, 0]
    assert list(results["sdr"]) == ["SGLD", "pSGLD", "HAMCMC", "Gibbs"]
    assert all(len(sdrs) == 1 for sdrs in results["sdr"].values())
    assert all(0 <= share <= 1 for each in results["covered"].values() for share in each[0] if share is not None)
    assert results["changes"] == []
    assert results["quick"]
    assert {"command", "date", "machine", "versions", "settings", "seed"} <= set(results)
    done = [s.done for s in said]
    assert done == sorted(done)
    assert "left" in said[-1].note
    again = fig3.reproduce(out, quick=True, seed=3, corpus=corpus)
    assert len(runs) == 11
    assert again.results["sdr"] == results["sdr"]


@pytest.mark.slow
def test_changes_are_measured_one_by_one(small, corpus, tmp_path):
    found = fig3.reproduce(tmp_path, quick=True, seed=3, corpus=corpus, changes="clip")
    results = found.results["changes"]
    assert [(r["method"], r["changes"]) for r in results] == [(m, ["clip"]) for m in fig3.PAPER]
    assert all(np.isfinite(r["gain"]) or r["lost"] for r in results)
    _, second = found.tables
    assert [row[:2] for row in second.rows] == [[m, "clip"] for m in fig3.PAPER]
    assert [row[2] for row in second.rows] == [f"{r['sdr']:.2f}" for r in results]


def test_the_sampler_cleans(corpus):
    """The model with logarithms finds speech in white noise; its sets hold about as many true spectra as they say."""
    recordings, clean = denoising.read_corpus(corpus)
    r = next(r for r in recordings if r.sentence == 4 and r.noise == "white")
    W = denoising.train([clean[n] for n in (1, 2, 3)], 10, 1.2, 0)
    asked = {"speech_alpha": 1.2, "noise_alpha": 1.89, "noise_rank": 2, "iterations": 300, "averaged": 50}
    options = denoising.PAPER | denoising.CHANGES["log"]
    found = denoising.clean(r, W, "sgld", {"step_size": 1e-3}, options, asked, 0)
    assert found.sdr > 8  # of 5.1 before
    assert 0.8 < found.covered[1] < 0.97
    lost = denoising.clean(r, W, "sgld", {"step_size": 1e6}, options, asked, 0)
    assert np.isnan(lost.sdr)


def test_changes():
    work = bench.Work("SGLD", fig3.METHODS["SGLD"], (), [])
    assert work.options == {
        "positivity": "mirror",
        "sweeps": 1,
        "proposal": "prior",
        "swap": False,
        "clip": None,
    }  # the paper's
    assert work.ranges == fig3.METHODS["SGLD"].mirrored
    every = fig3.chosen_changes(None)
    assert every == [("log",), ("impulses",), ("clip",), ("log", "impulses", "clip")]
    for changes in every[:3]:
        changed = bench.Work("SGLD", fig3.METHODS["SGLD"], changes, []).options
        assert {k for k in changed if changed[k] != work.options[k]} == set(denoising.CHANGES[changes[0]])
    assert fig3.chosen_changes("none") == []
    assert fig3.chosen_changes("clip,all") == [("clip",), ("log", "impulses", "clip")]
    with pytest.raises(ValueError, match="changes must be a list of log, impulses, clip and all, or none; got 'fast'"):
        fig3.chosen_changes("fast")


def test_spectra_have_256_bins_and_come_back():
    x = np.random.default_rng(0).standard_normal(20_000)
    x -= np.convolve(x, np.ones(512) / 512, "same")  # little at 0 Hz
    X = denoising.analyse(x)
    assert X.shape[0] == 256
    assert X.shape[1] % denoising.PADDED == 0
    back = denoising.synthesise(X, len(x))
    assert np.sum((back - x) ** 2) < 1e-3 * np.sum(x**2)


def test_journal(tmp_path):
    journal = Journal(tmp_path / "runs.json")
    journal.put({"b": 1, "a": 2}, [1.5, None])
    kept = Journal(tmp_path / "runs.json")
    assert kept.get({"a": 2, "b": 1}) == [1.5, None]
    assert kept.get({"a": 2, "b": 2}) is None


def test_the_mixtures_are_at_5_db(corpus):
    recordings, _ = denoising.read_corpus(corpus)
    assert len(recordings) == 16
    for r in recordings[:4]:
        clean, noisy = (denoising.samples(f) for f in (r.clean, r.noisy))
        ratio = 10 * np.log10(np.sum(clean**2) / np.sum((noisy - clean) ** 2))
        assert ratio == pytest.approx(5, abs=0.3)


def test_copies_of_a_file_count_once(corpus, tmp_path):
    """Collections have a file under its noise and under its ratio, too."""
    folder = tmp_path / "both"
    shutil.copytree(corpus, folder)
    shutil.copytree(next(p for p in corpus.rglob("*_sn5.wav")).parent, folder / "again")
    one, clean = denoising.read_corpus(corpus)
    two, also_clean = denoising.read_corpus(folder)
    assert sorted(r.noisy.name for r in two) == sorted(r.noisy.name for r in one)
    assert sorted(also_clean) == sorted(clean)
    other = next(p for p in folder.rglob("again/*_sn5.wav"))
    other.write_bytes(other.read_bytes()[:-2])
    with pytest.raises(ValueError, match=f"{other.name} have the same name and differ|{other.name} and .* differ"):
        denoising.read_corpus(folder)


def test_claims_may_come_out_false():
    found = {"SGLD": [5.0, 6.0], "pSGLD": [5.5, 6.5], "HAMCMC": [6.0, 6.2]}
    claim = fig3.ordering(found)
    assert claim["holds"]
    assert claim["differences"]["HAMCMC − pSGLD"]["mean"] == pytest.approx(0.1)
    assert not fig3.ordering(found | {"HAMCMC": [5.0, 6.0]})["holds"]
    lost = fig3.ordering(found | {"HAMCMC": [float("nan"), 6.0]})
    assert lost["differences"]["HAMCMC − pSGLD"]["mean"] == pytest.approx(-0.5)
    assert "not so here" in fig3.said(lost)


def test_bad_corpus(tmp_path):
    with pytest.raises(ValueError, match="no directory"):
        fig3.reproduce(tmp_path / "out", corpus=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no files spNN_NOISE_sn5.wav"):
        fig3.reproduce(tmp_path / "out", corpus=tmp_path)
