"""``run.json`` of other versions: runs of 0.1.0 open and resume, and a newer format is refused."""

import json
import zipfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.diagnostics.ess import interleaved
from hamcmc.samplers import NAMES
from hamcmc.store.errors import DamagedRun, RunError
from hamcmc.store.settings import FORMAT, upgrade

DATA = Path(__file__).parent / "data" / "0.1.0"
ROWS = np.arange(40, dtype=np.float32).reshape(20, 2) / 8
# Each run of 0.1.0 was stopped after 10 of its 30 draws. Its segments ("visits") had 10 iterations.
HOW = {"step_size": 1e-3, "num_samples": 30, "warmup": 10, "seed": 7, "progress": False}
RUNS = {
    "hamcmc": {"chains": 2, "batch_size": 5, "memory": 3, "cosine": 0.2, "store_gradients": True},
    "ensemble_hamcmc": {"batch_size": 5, "pairs": 1, "adapt": 10},
    "ensemble_adjusted": {"pairs": 1, "adapt": 10},  # was ensemble_hamcmc with adjusted=True
}
CAPABILITIES = {
    "hamcmc": {"replicas": 1, "interleaved": 3, "pairs": 2},
    "ensemble_hamcmc": {"replicas": 4, "interleaved": 1, "pairs": 1},
    "ensemble_adjusted": {"replicas": 4, "interleaved": 1, "pairs": 1},
}


@pytest.fixture(params=RUNS)
def old(request, tmp_path):
    """The name of a sampler, and the directory of its run by 0.1.0."""
    with zipfile.ZipFile(DATA / f"{request.param}.zip") as files:
        files.extractall(tmp_path / "run")
    return request.param, tmp_path / "run"


def posterior():
    return hamcmc.Posterior(lambda t: -0.5 * jnp.sum(t**2), lambda t, x: -0.5 * jnp.sum((x - t) ** 2), ROWS)


def test_a_run_of_the_first_version_opens(old):
    name, path = old
    assert "format" not in json.loads((path / "run.json").read_text())
    run = hamcmc.Result.open(path)
    assert {k: run.settings[k] for k in CAPABILITIES[name]} == CAPABILITIES[name]
    assert run.settings["format"] == FORMAT
    assert run.settings["segment"] == 10
    assert run.settings["sampler"]["sampler"] == name
    assert not {"visit", "adjusted"} & (run.settings.keys() | run.settings["sampler"].keys())
    chains = run.settings["chains"]
    assert run.posterior["theta"].shape == (chains, 10, 2)
    assert interleaved(run.settings) == CAPABILITIES[name]["interleaved"]
    assert np.isfinite(run.summary()["mean"]).all()


def test_a_run_of_the_first_version_resumes(old, short_segments):
    """To the draws that it would have had: bit by bit, if the draws so far are those of this machine."""
    name, path = old
    if name not in NAMES:
        pytest.skip(f"there is no sampler {name} yet")
    cut = hamcmc.Result.open(path).posterior["theta"]
    resumed = hamcmc.resume(path, posterior(), jnp.zeros(2), progress=False)
    short_segments(10)
    whole = hamcmc.sample(posterior(), name, jnp.zeros(2), **(HOW | RUNS[name]))
    theta, expected = resumed.posterior["theta"], whole.posterior["theta"]
    assert_array_equal(theta[:, :10], cut)
    assert resumed.meta["status"] == "complete"
    if (cut == expected[:, :10]).all():
        assert_array_equal(theta, expected)
        assert_array_equal(resumed.mean["theta"], whole.mean["theta"])
    elif name in ("ensemble_hamcmc", "ensemble_adjusted"):  # their H has bounds since then, so the rest differs
        assert np.isfinite(theta).all()
        assert len(np.unique(theta[0, 10:, 0])) > 1
    else:
        assert_allclose(theta, expected, rtol=1e-3, atol=1e-4)


def test_a_newer_format_is_refused(old):
    _, path = old
    settings = json.loads((path / "run.json").read_text())
    newer = settings | {"format": FORMAT + 1, "versions": {"hamcmc": "9.9"}}
    (path / "run.json").write_text(json.dumps(newer))
    message = rf"run.json has format {FORMAT + 1}, written by hamcmc 9.9; .* up to {FORMAT}: install that version"
    with pytest.raises(RunError, match=message) as refusal:
        hamcmc.Result.open(path)
    assert not isinstance(refusal.value, DamagedRun)
    with pytest.raises(RunError, match="written by hamcmc 9.9"):
        hamcmc.resume(path, posterior(), jnp.zeros(2))


def test_notes_of_the_command_are_upgraded():
    """``hamcmc resume`` builds the sampler from them."""
    options = {"pairs": 2, "fresh": False, "adjusted": True}
    sampler = {"sampler": "ensemble_hamcmc", "gamma": "auto", "update": "block", **options}
    notes = {"model": "m.py", "sampler": "ensemble_hamcmc", "options": options}
    new = upgrade({"sampler": sampler, "options": None, "notes": notes, "chains": 12, "ensembles": 2})
    assert new["notes"] == {"model": "m.py", "sampler": "ensemble_adjusted", "options": {"pairs": 2}}
    assert new["sampler"] == {"sampler": "ensemble_adjusted", "gamma": "auto", "pairs": 2}
    assert new["options"] is None
    assert new["replicas"] == 6
    plain = upgrade({"sampler": sampler | {"adjusted": False}, "options": {"pairs": 2, "adjusted": False}})
    assert plain["sampler"] == {k: v for k, v in sampler.items() if k != "adjusted"}
    assert plain["options"] == {"pairs": 2}


def test_todays_settings_stay_as_they_are():
    settings = {"format": FORMAT, "sampler": {"sampler": "hamcmc", "memory": 3}, "interleaved": 5}
    assert upgrade(settings) == settings


@pytest.mark.parametrize("written", [0, -1, True, 1.0, "2", None])
def test_a_format_that_is_no_number(written):
    with pytest.raises(DamagedRun, match="run.json is damaged: format is"):
        upgrade({"format": written})
