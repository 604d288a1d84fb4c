"""Pages have what the kept results say, quick results stay off them, and no measured number is typed by hand."""

import argparse
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import benchmarks.__main__ as benchmarks
import numpy as np
import pytest
from benchmarks import page, plots
from benchmarks.__main__ import NAMES
from benchmarks.measure import Table, by_time
from benchmarks.recommenders import standing

PAGES = page.pages()
KEPT = sorted(page.RESULTS.rglob("*.json"))

STRAY = re.compile(r"^[\s>*-]*<!-- kept: .*<!-- /kept -->", re.MULTILINE)  # inside a sentence, but first on its line

# --- the pages that there are ---


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(page.ROOT)))
def test_pages_are_as_the_kept_results_say(path):
    text = path.read_text()
    assert page.filled(text, NAMES) == text, "run `make pages`"
    assert text.count("<!-- kept: ") == text.count("<!-- /kept -->") == len(page.MARKS.findall(text))
    assert not STRAY.findall(text), "Markdown takes a line that begins with a comment for HTML, not for a sentence"


def test_every_benchmark_and_reproduction_has_a_place():
    from hamcmc.paper import REPRODUCTIONS

    named = {what.split(".")[0] for p in PAGES for what, _ in page.MARKS.findall(p.read_text())}
    assert {*NAMES, *(f"reproductions/{name}" for name in REPRODUCTIONS)} <= named


@pytest.mark.parametrize("path", KEPT, ids=lambda p: str(p.relative_to(page.RESULTS)))
def test_kept_results_say_how_they_were_measured(path):
    found = json.loads(path.read_text())
    assert {"command", "date", "seconds", "quick", "settings", "seeds", "versions", "machine", "tables"} <= found.keys()
    assert {"hamcmc", "python", "jax", "numpy"} <= found["versions"].keys()
    assert {"cpu", "cores", "load", "platform"} == found["machine"].keys()
    assert ("--quick" in found["command"]) == found["quick"]
    for table in found["tables"]:
        assert all(row.keys() == table["rows"][0].keys() for row in table["rows"])


# --- numbers that were typed ---

NUMBER = r"(?<![\w.^/{])[−+-]?\d[\d,]*(?:\.\d+)?(?:e[−+-]?\d+)?"
UNIT = r"(?:%|×(?! ?\d)|dB|µs|ms|ns|s|sec|seconds|min|minutes|hours|GB|MB|times|GB/s)(?![\w/])"
QUANTITY = r"RMSE|SDR|SDRs|STOI|SNR|ESS|R-hat|KL|speed-?up|bias|error|ratio|faster|slower"
MEASURED = [
    re.compile(rf"{NUMBER}\s?{UNIT}"),
    re.compile(rf"{NUMBER} ± {NUMBER}"),
    re.compile(rf"(?:{QUANTITY})s? (?:\w+ ){{0,3}}?(?:is |was |of |to |at |by ){NUMBER}(?=[\s,.;)])"),
    re.compile(rf"\b(?:took|reached|gained) (?:\w+ ){{0,3}}?{NUMBER}"),
    re.compile(r"(?<=\|) *[−+-]?(?:\d+\.\d+|\d+–\d+)(?: ?± ?[\d.]+)?(?: ?\([^|]*\))? ?%? *(?=\|)"),  # a cell of a table
]
BUDGET = "the time that the demonstration gives to NUTS, a setting"
RULE = "a limit of the verdict or of the plan, a setting"
LEVEL = "the level of an interval"
PAPER = "quoted from the paper"
FRAMES = "a size of the model of speech, a setting"
ALLOWED = {  # by page: words that stand beside a number, and why it is no measurement of ours
    "README.md": {"25 seconds for warm-up and draws": BUDGET},
    "docs/index.md": {"25 seconds for warm-up and draws": BUDGET},
    "docs/adding-a-sampler.md": {"0.0 | a step evaluates": "a default value"},
    "docs/cluster.md": {"stop within about 20 s": "a time limit, a setting"},
    "docs/first-posterior.md": {
        "with 90 % probability": LEVEL,
        "errors of 0.1 standard deviations": RULE,
        "and of 10 % of a standard deviation": RULE,
    },
    "docs/from-blackjax.md": {"an R-hat of 1.00": "says what the sample above it prints"},
    "docs/maths.md": {
        "grows by 2 % at most": RULE,
        "a mixture of 30 % uniform draws": "the definition of a distribution",
        "and 70 % in proportion": "the definition of a distribution",
        "adds no more than 1 %": RULE,
        "10 % of a standard deviation or": RULE,
        "or 20 % in the": RULE,
    },
    "docs/ratings.md": {
        "the central 90 % interval": LEVEL,
    },
    "docs/reproductions.md": {
        "80 files of NOIZEUS at 5 dB": "the name of a recording",
        "50, 90 and 99 % sets": LEVEL,
        "with 10 % held out": "a setting",
        "reaching it after 15 s": PAPER,
    },
    "docs/scale.md": {
        "the most popular item has 0.2 %": "an assumption of the simulation",
        "a network of 25 µs": "an assumption of the simulation",
    },
    "docs/speech.md": {
        "in a car at 5 dB": "the name of a recording",
        "frames are 32 ms long": FRAMES,
        "frames of 32 ms": FRAMES,
        "8 ms apart": FRAMES,
        "stretches of 8 s": FRAMES,
        "25 frames (0.2 s)": FRAMES,
        "which sees 1.3 s": FRAMES,
        "its delay of 20 ms": "a property of another program",
    },
    "docs/tutorial.md": {
        "adds no more than 1 %": RULE,
        "an error of more than 5 %": RULE,
        "+50 % means": "an example",
        "5 to 95 % range": LEVEL,
    },
}
WHOLE = ("docs/zoo.md",)  # made as a whole, and compared with its kept runs, by tests/zoo


def prose(text: str) -> str:
    """A page without what is kept and without code: samples, commands and what they print."""
    text = page.MARKS.sub("", text)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n|\n(?= {4}))+", "\n", text)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = re.sub(r"\$[^$\n]+\$|`[^`]*`", "x", text)
    return re.sub(r"(?<=\S)\n(?=[^\n|*-])", " ", text)  # sentences on one line


def typed(text: str) -> list[str]:
    """The measured numbers of a page that stand outside of marks, with the words around them."""
    text, found = prose(text), []
    for pattern in MEASURED:
        for match in pattern.finditer(text):
            found.append(" ".join(text[max(0, match.start() - 60) : match.end() + 40].split()))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(page.ROOT)))
def test_no_measured_number_is_typed(path):
    name = str(path.relative_to(page.ROOT))
    if name in WHOLE:
        pytest.skip("made as a whole")
    found, may = typed(path.read_text()), ALLOWED.get(name, {})
    assert not [f for f in found if not any(a in f for a in may)], "keep its result, and put it between marks"
    assert not [a for a in may if not any(a in f for f in found)], "nothing needs to be allowed any more"


@pytest.mark.parametrize(
    "sentence",
    [
        "It took 3.2 s on two cores.",
        "It is 1.4 dB above the others.",
        "HAMCMC keeps −2.0 ± 0.4 % on the ridge.",
        "An iteration costs 2.6 times as much.",
        "The test RMSE is 0.8473 here.",
        "The kernel draws at 2.9 ns per number.",
        "ours is 1.7 × as fast",
        "The run held 523 MB.",
        "with a KL of 0.72, which is large",
        "| SGLD | 0.54 | 1.37 |\n",
        "| SGHMC | 83–102 | a third |\n",
        "| SGLD | 0.53 (0.50–0.54) | words |\n",
    ],
)
def test_typed_numbers_are_found(sentence):
    assert typed(f"# A page\n\nSome words.\n\n{sentence}\n\nMore.\n")
    assert not typed(f"Between marks <!-- kept: a.0#b -->{sentence}<!-- /kept --> it is kept.")
    assert not typed(f"What a command prints:\n\n    $ hamcmc demo\n    {sentence}\n\nIs not.\n")


def test_settings_are_not_taken_for_measurements():
    assert not typed("With ε = 0.02, N = 1000 and 20 iterations of M = 3 in 100 × 100 blocks, 0.5 is the largest step.")


# --- how they are made ---


@pytest.fixture
def results(tmp_path):
    """A folder with one full result, of the benchmark sgld."""
    against = by_time("a peer", "an iteration", np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    rows = [{"D": 1000, "ratio": "0.5", "error": "-0.25"}, {"D": 2, "ratio": "0.7", "error": "1e-07"}]
    page.store(tmp_path / "sgld.json", [Table("A table", rows, [against])], command="x", seconds=120.0, seeds=[0])
    return tmp_path


def expanded(what: str, results: Path) -> str:
    return page.filled(f"<!-- kept: {what} -->\n<!-- /kept -->", NAMES, results)


def test_code_keeps_its_signs():
    assert page.shown("x**-0.5 of -2") == "x**−0.5 of −2"
    assert page.shown("`x**-0.5`") == "`x**-0.5`"


def test_a_whole_result(results):
    text = expanded("sgld", results)
    assert "Time per iteration of SGLD, against BlackJAX's SGLD." in text
    assert "| 1,000 | 0.5 | −0.25 |" in text
    assert "| 2 | 0.7 | 1e-07 |" in text
    assert "<summary>A table</summary>" in text
    assert re.search(r"`x`, \d{4}-\d\d-\d\d, hamcmc \S+, 2 min on \d+ cores", text)
    assert page.filled(text, NAMES, results) == text  # once more changes nothing


def test_parts_of_a_result(results):
    assert "| D | ratio |\n| --- | --- |\n| 2 | 0.7 |\n" in expanded("sgld.0?D=2#D;ratio", results)
    sentence = page.filled("It is <!-- kept: sgld.0?D=2#ratio -->9<!-- /kept --> here.", NAMES, results)
    assert sentence == "It is <!-- kept: sgld.0?D=2#ratio -->0.7<!-- /kept --> here."


@pytest.mark.parametrize("what", ["sgld.1", "sgld.0?D=3#ratio", "sgld.0#none", "sgld.0?none=3", "none.0?D=2#ratio"])
def test_what_is_not_there_cannot_be_in_a_sentence(what, results):
    with pytest.raises(ValueError, match=re.escape(what)):
        page.filled(f"It is <!-- kept: {what} -->0.7<!-- /kept -->.", NAMES, results)


def test_marks_at_the_beginning_of_a_line_are_found():
    mark = "<!-- kept: sgld.0?D=2#ratio -->0.7<!-- /kept -->"
    assert all(STRAY.search(f"It is\n{before}{mark} here.") for before in ("", "  ", "- ", "> "))
    assert not STRAY.search(f"It is {mark} here.\n\n<!-- kept: sgld -->\n\nwords\n\n<!-- /kept -->\n")


def test_a_sentence_has_one_cell(results):
    with pytest.raises(ValueError, match="one cell"):
        page.filled("It is <!-- kept: sgld.0#ratio -->0.7<!-- /kept -->.", NAMES, results)


def test_overviews(results):
    assert "| a peer | an iteration | takes 0.50 (0.50–0.50) of its time | hamcmc |" in expanded("against", results)
    assert "`bias`" in expanded("missing", results)
    assert "`sgld`" not in expanded("missing", results)
    assert re.findall(r"_figures/(\S+)\.png", expanded("plots", results)) == ["bench-sgld"]


def test_quick_results_stay_off_the_pages(results):
    path = results / "sgld.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quick": True}))
    for what in ("sgld", "sgld.0"):
        assert "`python -m benchmarks sgld` will fill this place" in expanded(what, results)
        assert "0.7" not in expanded(what, results)
    assert "`sgld`" in expanded("missing", results)
    with pytest.raises(ValueError, match="in full"):
        page.filled("It is <!-- kept: sgld.0?D=2#ratio -->0.7<!-- /kept -->.", NAMES, results)


def test_two_pages_cannot_disagree(results, tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "docs/a.md"):
        (tmp_path / name).write_text(f"{name}: <!-- kept: sgld.0?D=2#ratio -->{len(name)}<!-- /kept -->")
    assert len(page.write(NAMES, tmp_path, results)) == 2
    assert {page.MARKS.search(p.read_text())["old"] for p in page.pages(tmp_path)} == {"0.7"}
    assert page.write(NAMES, tmp_path, results) == []


def test_the_result_of_a_reproduction_is_kept_and_shown(tmp_path):
    from hamcmc.paper.common import Table, finish, record

    made = finish(
        *(tmp_path, "fig4", "A title"),
        **{"quick": False, "seed": 3, "settings": {"runs": 2}, "columns": ["a", "b"], "rows": [["x", 0.123456]]},
        figures={},
        notes=["A note."],
        tables=[Table("Second", ["c"], [[0.98765]])],
        more={"curve": [1.0, 2.0]},
    )
    record(made, "hamcmc reproduce fig4 --seed 3", 5.0)
    kept = page.keep(tmp_path / "results.json", tmp_path)
    assert "curve" not in json.loads(kept.read_text())
    text = expanded("reproductions/fig4", tmp_path)
    assert "`hamcmc reproduce fig4 --seed 3`, " in text
    assert "| x | 0.1235 |" in text
    assert "**Second.**" in text
    assert "| 0.9877 |" in text
    assert "A note." in text
    assert "Seeds: 3." in text
    assert "`hamcmc reproduce fig5` will fill this place" in expanded("reproductions/fig5", tmp_path)


def test_quick_reproductions_are_not_kept(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"name": "fig4", "quick": True}))
    with pytest.raises(ValueError, match="quick"):
        page.keep(tmp_path / "results.json", tmp_path)


def test_columns_with_one_name_are_not_kept(tmp_path):
    """A row is kept by the names of its columns, and one of the two would be lost."""
    found = {"name": "fig4", "quick": False, "columns": ["bias", "bound", "MSE", "bound"]}
    (tmp_path / "results.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="two columns with one name"):
        page.keep(tmp_path / "results.json", tmp_path)


@pytest.mark.parametrize("name", plots.available())
def test_plots_are_drawn(name, tmp_path):
    plots.draw(name, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_race_flows_into_the_page(results):
    rows = [{"N": n, "hamcmc": str(n), "NUTS": "3"} for n in (10, 100)]
    table = Table(f"{plots.SUMMARY}1e+05", rows)
    page.store(results / "race.json", [table], command="y", seconds=1.0, seeds=[0])
    assert "| 100 | 100 | 3 |" in expanded("race", results)
    shown = expanded("race-figure", results)
    assert "images/race.png" in shown
    assert "condition number 10⁵" in shown
    assert "hamcmc is ahead at every N that was measured; at N = 100 it makes 33 times as many" in shown
    assert plots.available(results) == ["race", "bench-sgld"]
    page.store(results / "race.json", [Table("of one problem", rows)], command="y", seconds=1.0, seeds=[0])
    assert plots.available(results) == ["bench-sgld"]


def test_who_is_ahead():
    ours = np.array([1.0, 1.0, 1.0])
    assert by_time("", "", ours, 2 * ours).ahead == "hamcmc"
    assert by_time("", "", 2 * ours, ours).ahead == "peer"
    assert by_time("", "", np.array([0.5, 1.0, 2.0]), ours).ahead == "even"


@pytest.mark.parametrize(("after", "said"), [("1.22", "where it ends after 1.22 s"), ("never", "never where it ends")])
def test_a_peer_that_ours_does_not_reach_is_said_in_words(after, said):
    ours, peer = {"RMSE": "0.9", "seconds": "1"}, {"method": "P", "RMSE": "0.8", "seconds": "2", "ours after": after}
    found = standing("ratings", peer, ours)
    assert found.ahead == "peer"
    assert found.found.endswith(f"ours is {said}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ratings": ["a.dat", "b.data"], "rank": [10, 50]}, "recommenders --ratings PATH PATH --rank 10,50"),
        ({"ratings": (), "rank": [10]}, "recommenders --rank 10"),
    ],
)
def test_a_kept_command_has_the_settings_and_not_the_paths_of_its_run(given, expected):
    arguments = argparse.Namespace(quick=False, **given)
    assert benchmarks.command("recommenders", arguments) == f"python -m benchmarks {expected}"


@pytest.mark.parametrize("logged", [False, True])
def test_a_run_is_kept_with_its_seconds(logged, monkeypatch, tmp_path):
    """Those of the call, or of the log that several calls have filled."""
    module = ModuleType("benchmarks.made_up")
    vars(module)["run"] = lambda quick: [Table("a title", [{"x": 1}])]
    if logged:
        vars(module)["seconds_in_log"] = lambda: 1234.5
    monkeypatch.setitem(sys.modules, "benchmarks.made_up", module)
    monkeypatch.setattr(benchmarks, "NAMES", {"made-up": "made_up"})
    monkeypatch.setattr(benchmarks, "fill_in", lambda console: None)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "made-up"])
    benchmarks.main()
    kept = json.loads((tmp_path / "made-up.json").read_text())
    assert kept["tables"][0]["rows"] == [{"x": 1}]
    assert (kept["seconds"] == 1234.5) == logged


def test_only_the_race_keeps_a_log():
    """A function of the same name with another meaning would end a benchmark after all of its work."""
    folder = Path(page.__file__).parent
    named = [p.stem for p in folder.glob("*.py") if re.search(r"^def seconds_in_log\(", p.read_text(), re.MULTILINE)]
    assert named == ["race"]
