"""Figure 5 of the paper: matrix factorization of ratings by DSGLD, distributed pSGLD and distributed HAMCMC.

The curves show the root mean squared error on held-out ratings: during burn-in that of the newest draw, and then that
of the mean prediction of all draws since. One process searches the step sizes. Then each of the three methods runs on
1, 2 and 4 processes, and a cost model says what the paper's 16 cores would give: see :mod:`hamcmc.paper.speedup`.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc import _check
from hamcmc._types import Record
from hamcmc.factorization import ratings as files
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper.common import Reproduction, finish
from hamcmc.paper.factorizing import (
    ABOVE,
    CLAIM,
    GAMMA,
    METHODS,
    RATIO,
    Runner,
    Split,
    search,
    seconds_per_iteration,
    split,
)
from hamcmc.paper.fig5_figure import as_record, compare, draw, notes, rows_of
from hamcmc.paper.journal import Journal
from hamcmc.paper.ratings import load
from hamcmc.paper.speedup import CORES, Cost, Study

TITLE = "Figure 5: RMSE on held-out ratings"
START = 15.0  # seconds that processes take to start and to compile, for the estimate of the time


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "rank": 10,
        "test": 0.1,
        "validation": 0.1,
        "burn_in": 50,
        "iterations": 300 if quick else 600,
        "marks": [10, 50, 100, 300] if quick else [10, 50, 100, 300, 600],  # iterations that the table shows
        "trials": 11,
        "every": 10 if quick else 5,  # iterations between two looks in the search
        "timed_iterations": 50 if quick else 100,
        "timings": 3 if quick else 7,
        "most": 100_000 if quick else None,  # ratings
        "processes": [1, 2] if quick else [1, 2, 4],
    }


def chosen_processes(text: str | None, default: list[int], blocks: int) -> list[int]:
    """The numbers of processes of a list like ``1,2``, or none; by default those that divide the blocks."""
    if text is None:
        return [n for n in default if blocks % n == 0]
    if text == "none":
        return []
    try:
        counts = sorted({int(n) for n in text.split(",")})
    except ValueError:
        raise ValueError(f"processes must be a list of numbers like 1,2,4, or none; got {text!r}") from None
    for n in counts:
        if n < 1 or blocks % n:
            raise ValueError(f"processes must divide blocks: {n} processes, {blocks} blocks")
    return counts


def reproduce(
    out: Path,
    quick: bool = False,
    seed: int = 0,
    progress: Progress = silent,
    *,
    ratings: Path | None = None,
    blocks: int = 4,
    processes: str | None = None,
) -> Reproduction:
    """Tune every method by the same search over step sizes, then plot the RMSE by iterations and by the clock.

    A run that was interrupted goes on where it was. Finished searches and curves are in ``runs.json``, and times are in
    ``times.json``: without that file, the same command measures the times again and nothing else.

    Args:
        out: where to write.
        quick: fewer ratings and iterations.
        seed: everything random follows from it.
        progress: called with each status.
        ratings: a file of ratings, such as MovieLens 1M, which the paper has; without one, synthetic ratings are used.
        blocks: B.
        processes: numbers of processes to run the paper's three methods on, such as ``"1,2,4"``, or ``"none"``.
    """
    blocks = _check.at_least("blocks", blocks, 1)
    asked: Record = settings(quick)
    asked |= {
        "blocks": blocks,
        "file": None if ratings is None else ratings.name,
        "processes": chosen_processes(processes, asked["processes"], blocks),
        "seed": seed,
    }
    progress(Status(0.0, "ratings"))
    loaded, name = load(ratings, asked["most"], seed)
    held_out = files.hold_out(loaded, asked["test"], seed)
    work = Tuning(Path(out), held_out, asked, progress)
    tuned, curves = work.tune(blocks, list(METHODS))
    costs = work.seconds(tuned)
    claims = {"threads": compare(curves, costs, asked["marks"])}
    rows = rows_of(f"1 × {work.threads} threads", asked, tuned, curves, costs, {}, claims["threads"])
    by_blocks, found = {blocks: tuned}, None
    if asked["processes"]:
        for_cores = {}
        if blocks < CORES and max(asked["processes"]) > 1:
            by_blocks[CORES], for_cores[CORES] = work.tune(CORES, list(CLAIM))
        steps = {b: {m: each[m]["step_size"] for m in CLAIM} for b, each in by_blocks.items()}
        found = Study(held_out, work.splits, steps, asked, work.runs, work.times, work.about).run(work.begin)
        found.curves.update(for_cores)
        for n, each in found.curves.items():
            measured, estimated = found.costs.get(n, {}), found.estimated.get(n, {})
            claims[str(n)] = compare(each, measured or estimated, asked["marks"])
            label, of = (str(n), blocks) if measured else (f"{n}, estimated", CORES)
            rows += rows_of(label, asked, by_blocks[of], each, measured, estimated, claims[str(n)])
    return finish(
        out,
        "fig5",
        f"{TITLE}\n{name}",
        quick=quick,
        seed=seed,
        settings=asked,
        columns=[
            *("method", "processes", "ε", *(f"at {mark}" for mark in asked["marks"]), "ms", "in messages"),
            *("model ms", "of that messages", "same time", "load"),
        ],
        rows=rows,
        figures={"fig5": draw(curves, costs, found, asked)},
        notes=notes(name, asked, claims, found, work.threads, os.cpu_count() or 1),
        more={
            "data": name,
            "curvature": work.splits[blocks].curvature,
            "imbalance": {b: s.p.imbalance for b, s in work.splits.items()},
            "tuned": tuned,
            "tuned_for_more_blocks": by_blocks.get(CORES) if blocks != CORES else None,
            "rmse": curves,
            "seconds_per_iteration": {m: c.seconds for m, c in costs.items()},
            "claim": claims["threads"],
            "claims": claims,
            "processes": None if found is None else as_record(found),
        },
    )


class Tuning:
    """The searches, curves and times on one process, kept as they are finished.

    Args:
        out: where they are kept.
        ratings: with the held-out ones marked.
        asked: the settings.
        progress: called with each status.
    """

    def __init__(self, out: Path, ratings: files.Ratings, asked: Record, progress: Progress):
        self.ratings, self.asked, self.progress = ratings, asked, progress
        self.runs, self.times = Journal(out / "runs.json"), Journal(out / "times.json")
        names = ("rank", "test", "validation", "seed")
        self.about = {"data": files.checksum(ratings)} | {k: asked[k] for k in names}
        self.splits: dict[int, Split] = {}
        self.runners: dict[tuple[int, str], Runner] = {}
        self.threads = min(os.cpu_count() or 1, asked["blocks"])
        self.expected, self.done = {}, 0.0

    def split(self, blocks: int) -> Split:
        """The ratings in so many blocks."""
        if blocks not in self.splits:
            how = {k: self.asked[k] for k in ("rank", "validation", "seed")}
            self.splits[blocks] = split(self.ratings, blocks=blocks, **how)
        return self.splits[blocks]

    def runner(self, blocks: int, method: str) -> Runner:
        """A method, compiled when it is first needed."""
        place = blocks, method
        if place not in self.runners:
            self.runners[place] = Runner(self.split(blocks), METHODS[method])
        return self.runners[place]

    def tune(self, blocks: int, methods: list[str]) -> tuple[dict[str, Record], dict[str, np.ndarray]]:
        """Search the step size of each method, then run it."""
        tuned, curves = {}, {}
        names = ("iterations", "burn_in", "trials", "every")
        s = self.split(blocks)
        for m in methods:
            fixed = {"blocks": blocks, "method": METHODS[m]._asdict(), "grid": [RATIO, ABOVE], "gamma": GAMMA}
            what = self.about | {k: self.asked[k] for k in names} | fixed
            kept = self.runs.get(what)
            if kept is None:
                self.begin(f"{m}, {blocks} blocks")
                runner = self.runner(blocks, m)
                found = search(runner, self.asked, self.asked["seed"] + 1_000_000)
                budget = self.asked["iterations"], self.asked["burn_in"]
                curve = runner.curve(s.data, found["step_size"], *budget, seed=self.asked["seed"])
                kept = _finite([found, curve.tolist()])
                self.runs.put(what, kept)
            tuned[m] = kept[0]
            curves[m] = np.array([np.inf if x is None else x for x in kept[1]])
        return tuned, curves

    def seconds(self, tuned: dict[str, Record]) -> dict[str, Cost]:
        """Seconds per iteration of every method on one process, with threads."""
        steps = {m: t["step_size"] for m, t in tuned.items()}
        how = {"iterations": self.asked["timed_iterations"], "repeats": self.asked["timings"]}
        what = self.about | how | {"kind": "threads", "steps": steps, "blocks": self.asked["blocks"]}
        kept = self.times.get(what)
        if kept is None:
            self.begin("clock")
            runners = {m: self.runner(self.asked["blocks"], m) for m in tuned}
            kept = {"seconds": seconds_per_iteration(runners, steps, **how), "load": round(os.getloadavg()[0], 1)}
            self.times.put(what, kept)
        return {m: Cost(kept["seconds"][m], 0.0, kept["load"]) for m in tuned}

    def begin(self, stage: str) -> None:
        """Report a stage that begins, and about how long it and all later ones take."""
        if not self.expected:
            self.expected = self._expect()
        left = list(self.expected.values())[list(self.expected).index(stage) :] if stage in self.expected else [0.0]
        total = sum(self.expected.values())
        self.done = max(self.done, 0.05 + 0.9 * (1 - sum(left) / total))
        note = f"about {sum(left) / 60:.0f} min left" if sum(left) >= 90 else f"about {sum(left):.0f} s left"
        self.progress(Status(self.done, stage, note=note))

    def _expect(self) -> dict[str, float]:
        """Seconds of each stage, from the time of a few iterations of the first method."""
        asked, blocks = self.asked, self.asked["blocks"]
        first = self.runner(blocks, next(iter(METHODS)))
        first.seconds(first.unit, 1)  # which compiles
        look, some = (first.seconds(first.unit, n) for n in (0, 20))
        step, n = max(some - look, 0.0) / 20, asked["iterations"]

        def one(method: str, looks: int) -> float:
            """Seconds of a run."""
            return n * step * (2 if METHODS[method].sampler == "hamcmc" else 1) + looks * look

        def tuning(method: str) -> float:
            """Seconds of a search and a run."""
            return asked["trials"] * one(method, n // asked["every"]) + one(method, n)

        expected = {f"{m}, {blocks} blocks": tuning(m) for m in METHODS} | {"clock": 5 * START}
        if asked["processes"]:
            expected |= {f"{m}, {CORES} blocks": tuning(m) for m in CLAIM}
            runs = sum(one(m, n) for m in CLAIM) * self.threads
            expected |= {f"{n} process{'es' * (n > 1)}": 3 * START + runs for n in (1, *asked["processes"])}
        return expected


def _finite(value: Any) -> Any:
    """A value for JSON, with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
