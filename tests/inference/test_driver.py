"""The driver with a program that only counts: what it records, when, and how it ends."""

import json
import os
import signal

import numpy as np
import pytest

from hamcmc.inference.driver import Broken, drive
from hamcmc.inference.progress import Status
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.directory import Directory
from hamcmc.store.draws import Array, Draws
from hamcmc.store.errors import Interrupted, NonFinite
from hamcmc.store.recorder import Recorder

ARRAYS = [Array("posterior", "x", (), "float64")]


class Counting:
    """Counts to 12 in segments of 3; each segment stores its last number."""

    name, total = "counting", 12

    def __init__(self, breaks_at=None, others=()):
        self.iteration, self.breaks_at, self.others, self.asked = 0, breaks_at, list(others), []

    def advance(self):
        self.iteration += 3
        if self.breaks_at is not None and self.iteration > self.breaks_at:
            self.iteration = self.breaks_at
            raise Broken("it {broke}", {"posterior/x": np.full((1, 2), -1.0)}, {"iteration": self.breaks_at})
        return {"posterior/x": np.full((1, 2), float(self.iteration))}

    def pack(self, going):
        return {"state": np.asarray(self.iteration)} if going else {}

    def unpack(self, arrays, meta):
        self.iteration = int(arrays["state"])

    def counters(self):
        return {"iteration": self.iteration, "seconds": 0.5 * self.iteration, "gradients": self.iteration}

    def facts(self):
        return {"iteration": self.iteration} if self.iteration % 2 else {}

    def status(self, draws):
        return Status(done=self.iteration / self.total, iteration=self.iteration, total=self.total, draws=draws)

    def agree(self, mine):
        self.asked.append(mine)
        return mine or (self.others.pop(0) if self.others else False)


@pytest.fixture
def run(tmp_path):
    """Drive a program in a directory, and read the events."""

    def begin(program, written=None, **how):
        opened = Directory.create(tmp_path / "run", {"arrays": []}) if written is None else Directory.open(path)
        with opened as directory:
            recorder = Recorder(Draws.open(path / "draws.zarr", ARRAYS, 2, 4, written=written), directory)
            drive(program, recorder, progress=how.pop("progress", False), resumed=written is not None, **how)
            return recorder

    def events():
        lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "time"} for line in lines]

    path = tmp_path / "run"
    begin.path, begin.events = path, events
    return begin


def test_a_run_to_its_end(run):
    seen = []
    recorder = run(Counting(), progress=seen.append, about={"devices": 1})
    assert [(s.iteration, s.draws) for s in seen] == [(3, 1), (6, 2), (9, 3), (12, 4)]
    assert recorder.draws.root["posterior/x"][1].tolist() == [3, 6, 9, 12]
    assert recorder.meta == {"status": "complete", "iteration": 12, "seconds": 6.0, "gradients": 12, "draws": 4}
    assert read_checkpoint(run.path).arrays == {}
    assert run.events() == [
        {"event": "start", "iteration": 0, "devices": 1},
        {"event": "progress", "iteration": 3},
        {"event": "progress", "iteration": 9},
        {"event": "complete", "iteration": 12, "seconds": 6.0},
    ]


@pytest.mark.parametrize(("seconds", "saved"), [(0.0, [0, 3, 6, 9]), (1e9, [0, 0, 0, 0])])
def test_checkpoints_between_segments(run, seconds, saved):
    """One before the first segment, then after every so many seconds."""
    found = []
    run(
        Counting(),
        checkpoint_seconds=seconds,
        progress=lambda status: found.append(read_checkpoint(run.path).meta["iteration"]),
    )
    assert found == saved


def test_a_program_that_breaks_keeps_its_good_draws(run):
    with pytest.raises(NonFinite, match=r"^it {broke}$") as failure:
        run(Counting(breaks_at=7))
    assert failure.value.__cause__ is None
    checkpoint = read_checkpoint(run.path)
    assert {k: checkpoint.meta[k] for k in ("status", "message", "iteration", "draws")} == {
        "status": "failed",
        "message": "it {broke}",
        "iteration": 7,
        "draws": 3,
    }
    assert run.events()[-1] == {"event": "failed", "iteration": 7}
    draws = Draws.open(run.path / "draws.zarr", ARRAYS, 2, 4, written=3)
    assert draws.root["posterior/x"][0].tolist() == [3, 6, -1]  # shortened to them


def test_a_signal_and_the_way_back(run):
    program = Counting()

    def stop(status):
        if status.iteration == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    message = r"^stopped by SIGTERM at iteration 6 of 12, all saved: 'go on' continues$"
    with pytest.raises(Interrupted, match=message) as stopped:
        run(program, progress=stop, resume_with="go on")
    assert (stopped.value.signal, stopped.value.result) == (signal.SIGTERM, None)
    assert run.events()[-1] == {"event": "interrupted", "signal": "SIGTERM", "iteration": 6}
    checkpoint, again = read_checkpoint(run.path), Counting()
    again.unpack(checkpoint.arrays, checkpoint.meta)
    recorder = run(again, written=checkpoint.meta["draws"])
    assert recorder.draws.root["posterior/x"][0].tolist() == [3, 6, 9, 12]
    assert run.events()[3:] == [
        {"event": "start", "iteration": 6},
        {"event": "progress", "iteration": 9},
        {"event": "complete", "iteration": 12, "seconds": 6.0},
    ]


def test_a_signal_that_another_process_received(run):
    """Every process leaves the loop at the same segment, and asks the others as often as they do."""
    program = Counting(others=[False, False, True])
    with pytest.raises(Interrupted, match="stopped by SIGTERM at iteration 3 of 12"):
        run(program)
    assert program.asked == [False] * 3  # before a segment, after it for the checkpoint, before the next


def test_a_process_that_does_not_write():
    program, recorder = Counting(), Recorder(None)
    drive(program, recorder, progress=False)
    assert program.iteration == 12
    assert recorder.total == 0
    with pytest.raises(NonFinite):
        drive(Counting(breaks_at=1), recorder, progress=False)
