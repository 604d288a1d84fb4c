"""The pages of reproductions and of the demonstration hold their tables and pictures."""

import base64

import numpy as np
import pytest
from PIL import Image

from hamcmc.paper.common import Reproduction, Table
from hamcmc.paper.contest import Contest, Side
from hamcmc.paper.demo import Demo
from hamcmc.paper.gallery import Row
from hamcmc.report import reproduction
from tests.report.results import Growing
from tests.report.test_report import ALL, Page, sections


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (8, 4), "red").save(tmp_path / "fig.png")
    return tmp_path / "fig.png"


def shows(html: str, picture) -> bool:
    return f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}" in html


def test_a_reproduction(tmp_path, picture):
    results = {"seed": 3, "settings": {"<runs>": 7}, "versions": {"jax": "1.2"}, "curve": list(range(10_000))}
    found = Reproduction(
        "fig9", "A <title>", True, ["sampler", "bias"], [["sgld", 0.123456], ["<b>", None]], ["A & note."],
        [picture, tmp_path / "results.json"], results, [Table("Second", ["c"], [[0.98765]])],
    )  # fmt: skip
    html = reproduction.write(found, tmp_path / "new" / "page.html").read_text()
    parsed = Page(html)
    assert parsed.headings == ["A <title>", "Results", "Figures", "Settings"]
    assert "0.9877" in parsed.text
    for words in ("sgld 0.1235", "<b> –", "A & note.", "settings.<runs> 7", "versions.jax 1.2", "seed 3", "quick"):
        assert words in " ".join(parsed.text.split())
    assert shows(html, picture)
    assert len(html) < 60_000  # numbers for programs stay in results.json


def test_the_demonstration(tmp_path, picture):
    run = Growing(tmp_path / "run")
    run.grow(400, "complete")
    run.let_go()
    one = np.ones(3)
    parts = {"mode": 1.0, "compiling": 2.0, "warm-up": 0.5, "sampling": 0.5, "verdict": 1.0}
    ours = Side("hamcmc", "as <it> is", parts, 6000.0, 6000.0, 0 * one, one, -2 * one, 2 * one)
    both = Contest(1234, 0 * one, "because", "good", ours, ours._replace(name="NUTS", ess=500.0), run.path)
    Image.new("RGB", (8, 4), "blue").save(samplers := tmp_path / "samplers.png")
    found = Demo(both, picture, [Row("sgld", 1e-3, 0.5, 0.9, 1.1, 1234.0, 56.0)], samplers)
    html = reproduction.write_demo(found, tmp_path / "page.html").read_text()
    parsed = Page(html)
    text = " ".join(parsed.text.split())
    assert "sgld 1.0e-03 0.50 sd 0.90 1.10 1,234 56" in text
    assert "effective draws 6,000 500" in text
    assert "effective draws per second 1,200 100" in text
    assert "hamcmc: as <it> is." in text
    assert "The two agree" in text
    assert parsed.headings[:3] == ["One automatic call", "Beside NUTS", "Every sampler on a ridge"]
    assert sections(parsed) == ALL
    assert shows(html, picture)
    assert shows(html, samplers)
