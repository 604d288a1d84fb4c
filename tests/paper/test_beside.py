"""Pieces of work side by side: they overlap, all results come, and a failure ends the others."""

from threading import Barrier, Event

import pytest

from hamcmc.inference.progress import Status
from hamcmc.paper import beside


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(beside, "cores", lambda: 2)


def test_pieces_overlap_and_all_results_come():
    meeting = Barrier(2, timeout=20)  # which a piece alone would not pass

    def piece(i):
        return lambda _look: (meeting.wait(), i * i)[1]

    found = dict(beside.side_by_side([piece(i) for i in range(6)]))
    assert found == {i: i * i for i in range(6)}


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_ends_the_others(failure):
    """Those that run at their next report, and those that wait at once."""
    running, ended, begun = Event(), Event(), []

    def fails(_look):
        assert running.wait(20)
        raise failure

    def reports(look):
        running.set()
        try:
            while True:
                look(Status(0.5, "still here"))
        finally:
            ended.set()

    with pytest.raises(failure):
        list(beside.side_by_side([fails, reports, *[begun.append] * 5]))
    assert ended.is_set()
    assert not begun
