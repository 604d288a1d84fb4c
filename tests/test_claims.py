"""The table of the paper's items: all of them are there, with files and commands that exist, judged by rules that can
say no."""

import shlex

import pytest
from benchmarks import claims, page
from benchmarks.__main__ import NAMES

from hamcmc.paper import REPRODUCTIONS

PAPER = {
    *(f"Section {n}" for n in ("1", "2", "2.1", "2.2", "3", "3.1", "3.2", "3.3", "4", "4.1", "4.2", "4.3", "5")),
    *(f"Equation {n}" for n in range(1, 16)),
    *(f"Figure {n}" for n in range(1, 6)),
    *("Proposition 1", "Theorem 1 (a)", "Theorem 1 (b)", "Algorithm 1"),
}
ROOT = page.ROOT


def test_every_item_of_the_paper_is_in_the_table():
    named = [item.paper for item in claims.ITEMS]
    assert len(named) == len(set(named))
    assert set(named) == PAPER
    assert "<!-- kept: claims -->" in (ROOT / "docs" / "reproductions.md").read_text()


@pytest.mark.parametrize("item", claims.ITEMS, ids=lambda i: i.paper)
def test_files_and_commands_exist(item):
    assert item.files
    for file in item.files:
        assert (ROOT / file).is_file(), file
    program, *words = shlex.split(item.command)
    if program == "pytest":
        assert all((ROOT / w).is_file() for w in words)
    elif program == "hamcmc":
        assert words[0] == "reproduce"
        assert words[1] in REPRODUCTIONS
    else:
        assert [program, *words[:2]] == ["python", "-m", "benchmarks"]
        assert words[2] in NAMES


@pytest.mark.parametrize("item", claims.ITEMS, ids=lambda i: i.paper)
def test_outcomes_are_measured_or_say_that_they_are_not(item):
    assert (item.judge is None) == bool(item.result and item.came) == (not item.kept)
    kept = page.full(item.kept) if item.kept else None
    result, came = claims.outcome(item, kept)
    if item.judge is not None:
        assert (result == came == claims.NOT_YET) == (kept is None)
    assert claims.UNREADABLE not in (result, came), f"the table of {item.kept} has changed: mend its rule"
    assert result
    assert came
    assert "|" not in f"{item.what}{result}{came}", "it would end a cell of the table"


def changed(rows, **cells):
    return [dict(r) | cells for r in rows]


BIASED = [{"sampler": "naive M=2", "ε = 0.02": "+63.0 ± 0.2 %", "ε = 0.001": "+59.0 ± 0.2 %"}]
THEOREM = [
    *(
        {
            "target": "Gaussian",
            "sampler": "HAMCMC M=2",
            "b": b,
            "bias slope": "-0.52 ± 0.03",
            "MSE slope": "-0.60 ± 0.02",
        }
        | {"bias bound's slope": "-0.50 (-0.49)", "MSE bound's slope": "-0.55 (-0.49)", "bias at T = 24000": "–"}
        for b in ("0.33", "0.51")
    ),
    {"target": "varying curvature", "sampler": "HAMCMC M=2", "b": "0.51", "bias at T = 24000": "-1.90 ± 0.20 %"},
]
RIDGE = [{"method": m, "sd along": v} for m, v in zip(claims.METHODS[:4], ("0.50", "0.70", "1.00", "0.95"))]
MEANS = [
    {"D": d, "method": m, "at 5000": "1 ± 0", "at 40000": f"{e} ± 0.01"}
    for d in (10, 100)
    for m, e in zip(claims.METHODS, (0.7, 0.5, 0.05, 0.06, 0.04))
]
SDR = [
    {"method": m, "mean SDR": v} for m, v in (("noisy", "4.6"), ("SGLD", "5.0"), ("pSGLD", "5.1"), ("HAMCMC", "5.6"))
]
RATINGS = [
    {"method": m, "at 10": early, "at 600": late, "ms": ms}
    for m, early, late, ms in (
        ("DSGLD", "1.1", "0.93", "2.0"),
        ("pSGLD", "1.2", "0.92", "2.1"),
        ("HAMCMC", "1.0", "0.94", "4.2"),
    )
]
PARTS = [{"column blocks on devices 1 … 4": c, "ratings": "9"} for c in ("1 2 3 4", "2 3 4 1", "3 4 1 2", "4 1 2 3")]
COSTS = [{"D": 2, "M": 2, "SGLD (goal)": "1.84 (1.67–2.14)"}, {"D": 100000, "M": 2, "SGLD (goal)": "1.46 (1.4–1.5)"}]


@pytest.mark.parametrize(
    ("judge", "rows", "came"),
    [
        (claims.naive_is_biased, BIASED, "yes"),
        (claims.naive_is_biased, [BIASED[0] | {"ε = 0.001": "+0.4 ± 0.2 %"}], "no"),
        (claims.hamcmc_is_unbiased, changed(BIASED, sampler="HAMCMC M=2", **{"ε = 0.001": "-0.3 ± 0.2 %"}), "yes"),
        (claims.hamcmc_is_unbiased, changed(BIASED, sampler="HAMCMC M=2", **{"ε = 0.001": "−2.0 ± 0.2 %"}), "no"),
        (claims.bias_vanishes, THEOREM, "Gaussian: yes; varying curvature: no, the bias stays"),
        (
            claims.bias_vanishes,
            [*THEOREM[:2], THEOREM[2] | {"bias at T = 24000": "-0.1 ± 0.2 %"}],
            "varying curvature: yes",
        ),
        (claims.bias_vanishes, [THEOREM[0] | {"bias slope": "-0.30 ± 0.03"}, *THEOREM[1:]], "for 1 of 2 exponents"),
        (claims.mse_vanishes, THEOREM, "Gaussian: yes"),
        (claims.mse_vanishes, [THEOREM[0] | {"MSE slope": "-0.30 ± 0.02"}, *THEOREM[1:]], "for 1 of 2"),
        (
            claims.ridge_is_covered,
            RIDGE,
            "stuck: yes; pSGLD gets further than SGLD: yes; HAMCMC is as good as SGRLD: yes",
        ),
        (claims.ridge_is_covered, [*RIDGE[:3], RIDGE[3] | {"sd along": "0.80"}], "HAMCMC is as good as SGRLD: no"),
        (claims.mean_is_found, MEANS, "in 2 of 2; M=3 within twice SGRLD's error: in 2 of 2"),
        (claims.mean_is_found, [*MEANS[:8], MEANS[8] | {"at 40000": "0.8 ± 0.1"}, MEANS[9]], "pSGLD: in 1 of 2"),
        (claims.speech_is_cleaner, SDR, "HAMCMC above both: yes; pSGLD not below SGLD: yes"),
        (claims.speech_is_cleaner, [*SDR[:3], SDR[3] | {"mean SDR": "5.05"}], "both: no; pSGLD not below SGLD: yes"),
        (
            claims.speech_is_cleaner,
            [*SDR[:2], SDR[2] | {"mean SDR": "4.9"}, SDR[3]],
            "both: yes; pSGLD not below SGLD: no",
        ),
        (claims.ratings_are_predicted, RATINGS, "ahead at 10; an iteration takes 2.1 times DSGLD's"),
        (claims.parts_are_diagonals, PARTS, "yes"),
        (claims.parts_are_diagonals, changed(PARTS, **{"column blocks on devices 1 … 4": "1 2 3 4"}), "no"),
        (claims.costs_like_sgld, COSTS, "yes"),
        (claims.costs_nearly_the_same, COSTS, "no: 1.5 to 1.8 times SGLD's"),
        (claims.costs_nearly_the_same, changed(COSTS, **{"SGLD (goal)": "1.10 (1.0–1.2)"}), "yes"),
        (claims.costs_like_sgld, [COSTS[0], COSTS[1] | {"SGLD (goal)": "31.0 (29–33)"}], "no"),
    ],
)
def test_rules_can_say_yes_and_no(judge, rows, came):
    assert came in judge(rows)[1]


def test_a_table_that_has_changed_does_not_break_the_page():
    item = next(i for i in claims.ITEMS if i.paper == "Figure 1")
    assert claims.outcome(item, {"tables": [{"rows": [{"method": "SGLD"}]}]}) == (claims.UNREADABLE,) * 2
