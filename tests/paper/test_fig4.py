"""The picture of the partition: parts are generalised diagonals, and the numbers are those of the ratings."""

import json

import numpy as np
import pytest

from hamcmc.paper import fig4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    patch, quick = pytest.MonkeyPatch(), fig4.settings(True)
    patch.setattr(fig4, "settings", lambda _: quick | {"users": 60, "items": 50, "ratings": 900})
    out = tmp_path_factory.mktemp("fig4")
    found = fig4.reproduce(out, quick=True, seed=3)
    patch.undo()
    return found, out


def test_no_two_blocks_of_a_part_share_a_row_or_a_column():
    parts = np.array([[fig4.part_of(b, c) for c in range(4)] for b in range(4)])
    for line in (*parts, *parts.T):
        assert sorted(line) == [0, 1, 2, 3]


def test_numbers(tiny):
    found, out = tiny
    results = json.loads((out / "results.json").read_text())
    sizes = np.array(results["sizes"])
    assert sizes.shape == (4, 4)
    assert sizes.sum() == 900
    in_parts = [sum(sizes[b, c] for b in range(4) for c in range(4) if fig4.part_of(b, c) == p) for p in range(4)]
    assert results["parts"] == in_parts
    assert results["probability"] == pytest.approx(np.array(in_parts) / 900)
    assert [row[2] for row in found.rows] == [str(n) for n in in_parts]
    assert [row[1] for row in found.rows] == ["1 2 3 4", "2 3 4 1", "3 4 1 2", "4 1 2 3"]
    assert 1 <= results["imbalance"] < 1.6


def test_the_picture_shows_every_block_and_says_that_the_ratings_are_synthetic(tiny):
    found, out = tiny
    text = (out / "fig4.svg").read_text()
    for size in np.ravel(found.results["sizes"]):
        assert f">{size}<" in text
    assert "synthetic" in text
    assert "(quick)" in text
    assert (out / "fig4.png").read_bytes().startswith(b"\x89PNG")
