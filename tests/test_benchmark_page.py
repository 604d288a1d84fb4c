"""The page of benchmarks has every stored result, who is ahead of whom, and what is missing."""

import json

import numpy as np
from benchmarks import page
from benchmarks.__main__ import NAMES
from benchmarks.measure import Table, by_time


def test_the_page_has_it_all(tmp_path):
    against = by_time("a peer", "an iteration", np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    tables = [Table("A table", [{"D": 1000, "ratio": "0.5"}], [against])]
    found = {"command": "python -m benchmarks sgld", "date": "2020-02-02", "seconds": 120.0, "quick": False}
    found |= {"machine": {"cores": 2}, "tables": [t._asdict() for t in tables]}
    (tmp_path / "sgld.json").write_text(json.dumps(found))
    page.write(NAMES, tmp_path / "page.md", tmp_path)
    text = (tmp_path / "page.md").read_text()
    assert "| a peer | an iteration | takes 0.50 (0.50–0.50) of its time | hamcmc |" in text
    assert "| 1,000 | 0.5 |" in text
    assert "`python -m benchmarks sgld`, 2020-02-02, 2 min. Machine: cores 2." in text
    assert "`peers`" in text.split("Not measured yet")[1]
    assert "`sgld`" not in text.split("Not measured yet")[1]


def test_who_is_ahead():
    ours = np.array([1.0, 1.0, 1.0])
    assert by_time("", "", ours, 2 * ours).ahead == "hamcmc"
    assert by_time("", "", 2 * ours, ours).ahead == "peer"
    assert by_time("", "", np.array([0.5, 1.0, 2.0]), ours).ahead == "even"
