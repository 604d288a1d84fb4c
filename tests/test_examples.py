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


RUN_BY_ITS_PAGE = "first_posterior"  # which tests/test_docs.py runs
# What these call is covered by tests/speech, tests/inference/test_resume.py and the page on ratings.
SELDOM = ("clean_a_recording", "run_on_disk", "ratings_to_predictions")
SCRIPTS = [
    pytest.param(n, marks=pytest.mark.slow) if n in SELDOM else n for n in sorted(SAID.keys() - {RUN_BY_ITS_PAGE})
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name, request, tmp_path, monkeypatch, capsys):
    if name in LONG:
        request.getfixturevalue("optimised")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert SAID[name] in capsys.readouterr().out


def test_the_first_one_is_that_of_its_page():
    page = (EXAMPLES.parent / "docs" / "first-posterior.md").read_text()
    _, _, code = (EXAMPLES / f"{RUN_BY_ITS_PAGE}.py").read_text().partition('"""\n\n')
    assert f"```python\n{code}```" in page
    assert f"    {SAID[RUN_BY_ITS_PAGE]}" in page


def test_every_example_is_short_and_tested():
    scripts = {f.stem: f.read_text() for f in EXAMPLES.glob("*.py")}
    assert set(scripts) == set(SAID)
    assert all(len(text.splitlines()) < 40 for text in scripts.values())
