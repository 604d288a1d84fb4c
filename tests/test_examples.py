"""The scripts in examples/ run as they are, and say what they promise."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAID = {
    "clean_a_recording": "SI-SDR before",
    "compare_models": "probabilities:",
    "first_posterior": "theta[2]",
    "ratings_to_predictions": "best items for user",
    "run_on_disk": "after resume: 200000 draws",
    "your_own_loop": "exact mean",
}


LONG = ("run_on_disk", "your_own_loop")  # runs that repay the time to optimise their programs


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name, request, tmp_path, monkeypatch, capsys):
    if name in LONG:
        request.getfixturevalue("optimised")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAID[name] in capsys.readouterr().out


def test_every_example_is_short_and_tested():
    scripts = {f.stem: f.read_text() for f in EXAMPLES.glob("*.py")}
    assert set(scripts) == set(SAID)
    assert all(len(text.splitlines()) < 40 for text in scripts.values())
