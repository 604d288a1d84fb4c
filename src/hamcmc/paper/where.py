"""Where the paper's method wins: a map over condition number, number of stiff directions and dimension.

A cell of the map is the paper's linear Gaussian model with a posterior precision that has the curvature κl along k
random directions and l along all others. Each method goes through the same search, and the two best candidates, one at
equal gradients and one at equal time, run anew with other seeds. All candidates and seeds of a method run side by side
in one compiled program, which serves all cells of a dimension.

The score is the Kullback–Leibler divergence from the posterior, per dimension, of a Gaussian with the run's ε-weighted
means and variances along the eigenvectors of the precision. A sampler that only optimises has variances near 0, for
which the score is infinite; one that never arrives has a wrong mean. n independent draws would score about 1/n.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper import tuning
from hamcmc.paper.beside import side_by_side
from hamcmc.paper.cells import (
    BUDGETS,
    EXPONENT,
    NOISE_VARIANCE,
    ROUNDS,
    SEARCH,
    SIZE,
    SOFT,
    Cell,
    Problem,
    contest,
    problem,
    program,
    verdict,
)
from hamcmc.paper.clock import each_time, seconds_per_iteration
from hamcmc.paper.common import Reproduction, finish
from hamcmc.paper.journal import Journal
from hamcmc.paper.machine import machine
from hamcmc.paper.where_figure import draw
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.ensemble.langevin import ensemble_hamcmc
from hamcmc.target import linear_gaussian as model
from hamcmc.target.posterior import Posterior

TITLE = "Where does the paper's method win?"
MEMORIES, PAIRS = (2, 3, 4, 5), 10


def methods(p: Problem, asked: Record) -> dict[str, tuning.Method]:
    """The paper's methods, HAMCMC with several M, and the library's ensemble as it is by default.

    The ensemble learns its metric in the first quarter of its half-moves, before its draws count.
    """
    found = tuning.methods(np.asarray(p.precision), SIZE, asked["batch_size"], tuple(asked["memories"]))
    adapt = max(1, asked["gradients"] // (4 * (asked["pairs"] + 1)))
    build = partial(_ensemble, pairs=asked["pairs"], adapt=adapt)
    return found | {"ensemble": tuning.Method(build, {}, 1.0)}


def _ensemble(posterior: Posterior, _fisher: Any, *, pairs: int, adapt: int) -> Sampler:
    return ensemble_hamcmc(posterior.grad, pairs=pairs, adapt=adapt)


def middle(method: tuning.Method) -> dict[str, float]:
    """The middle of the ranges of a method's own parameters, to build it where their values do not matter."""
    return {name: float(np.sqrt(low * high)) for name, (low, high) in method.ranges.items()}


def clock(p: Problem, all_methods: Mapping[str, tuning.Method], posterior: Posterior, asked: Record) -> Record:
    """Seconds per iteration of each method, and the load of the machine before they were measured.

    SGRLD factors its matrix at each iteration, as it must where F depends on θ.
    """
    load = machine()["load"]
    timed = {n: m.build(posterior, p.precision, **middle(m)) for n, m in all_methods.items()}
    timed["SGRLD"] = each_time(posterior, p.precision, invert=False)
    seconds = seconds_per_iteration(
        timed,
        posterior,
        len(p.mean),
        batch_size=asked["batch_size"],
        iterations=asked["timed_iterations"],
        repeats=asked["timings"],
    )
    return {"seconds": seconds, "load": load}


def stiff_counts(dimension: int) -> list[int]:
    """One stiff direction, three, half of them, all but one."""
    return sorted({k for k in (1, 3, dimension // 2, dimension - 1) if k < dimension})


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "size": SIZE,
        "noise_variance": NOISE_VARIANCE,
        "batch_size": SIZE // 100,
        "exponent": EXPONENT,
        "smallest_curvature": SOFT,
        "dimensions": [10] if quick else [10, 30, 100],
        "conditions": [10.0, 1000.0] if quick else [10.0, 100.0, 1000.0],
        "memories": [2] if quick else list(MEMORIES),
        "pairs": 3 if quick else PAIRS,
        "gradients": 1000 if quick else 10_000,
        "candidates": 8 if quick else 12,  # in each round
        "rounds": ROUNDS,
        "seeds": 2 if quick else 3,
        "timed_iterations": 100 if quick else 1000,
        "timings": 2 if quick else 9,
        "search_seed_offset": SEARCH,
    }


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Tune every method in every cell of the map, and draw who wins at equal gradients and at equal time.

    All clocks come first: only they need a machine that does nothing else. A run that was interrupted goes on where it
    was: clocks and finished contests are in ``runs.json``.
    """
    asked = settings(quick)
    journal = Journal(Path(out) / "runs.json")
    cells = [Cell(d, c, k) for d in asked["dimensions"] for c, k in product(asked["conditions"], stiff_counts(d))]
    found: dict[Cell, dict[str, Record]] = {cell: {} for cell in cells}
    clocks: Record = {}
    for dimension in asked["dimensions"]:
        what = {"clock": dimension, "settings": asked}
        progress(Status(0.0, f"D = {dimension}: clock"))
        if (kept := journal.get(what)) is None:
            journal.put(what, kept := clock(*posed(cells, dimension, seed, asked), asked))
        clocks[str(dimension)] = kept
    done, work = 0, len(cells) * (len(asked["memories"]) + 4)
    for dimension in asked["dimensions"]:
        problems = {cell: problem(cell, seed) for cell in cells if cell.dimension == dimension}
        first, named, posterior = posed(cells, dimension, seed, asked)
        seconds = clocks[str(dimension)]["seconds"]
        for name, method in named.items():
            built = method.build(posterior, first.precision, **middle(method))
            ends = (
                asked["gradients"] // built.gradients_per_step,
                max(2, int(asked["gradients"] * seconds["SGLD"] / seconds[name])),
            )
            run = program(method, posterior, built.replicas, asked)
            contests = _contests(problems, name, run, ends, asked, seed, journal)
            for number, (cell, result) in enumerate(contests):
                progress(Status((done + number) / work, f"D = {dimension}: {name}"))
                found[cell][name] = result
            done += len(problems)
    return _finished(Path(out), quick, seed, asked, found, clocks)


def _contests(
    problems: Mapping[Cell, Problem],
    name: str,
    run: Callable[..., Array],
    ends: tuple[int, int],
    asked: Record,
    seed: int,
    journal: Journal,
) -> Iterator[tuple[Cell, Record]]:
    """The contests of a method in all cells of a dimension, as they are finished: kept ones first, the others side by
    side."""
    names = {
        cell: {"cell": list(cell), "method": name, "ends": ends, "seed": seed, "settings": asked} for cell in problems
    }
    new = []
    for cell in problems:
        if (kept := journal.get(names[cell])) is None:
            new.append(cell)
        else:
            yield cell, kept

    def piece(cell: Cell) -> Callable[[Progress], Record]:
        p = problems[cell]
        return lambda look: contest(run, methods(p, asked)[name], p, ends, asked, seed, look)

    for i, result in side_by_side([piece(cell) for cell in new]):
        journal.put(names[new[i]], result)
        yield new[i], result


def posed(
    cells: list[Cell], dimension: int, seed: int, asked: Record
) -> tuple[Problem, dict[str, tuning.Method], Posterior]:
    """The first problem of a dimension, the methods for it, and its posterior."""
    first = problem(next(cell for cell in cells if cell.dimension == dimension), seed)
    return first, methods(first, asked), model.linear_gaussian(first.data, NOISE_VARIANCE)


def _finished(
    out: Path, quick: bool, seed: int, asked: Record, found: dict[Cell, dict[str, Record]], clocks: Record
) -> Reproduction:
    """The table, the picture and the notes."""
    verdicts = {budget: {cell: verdict(f, budget) for cell, f in found.items()} for budget in BUDGETS}
    others = ["SGLD", "pSGLD", "SGRLD", "ensemble"]
    rows, notes = [], []
    for budget, cells in verdicts.items():
        for cell, v in cells.items():
            scores = [f"{v['scores'][n]:.3g} ± {v['errors'][n]:.1g}" for n in ("HAMCMC", *others)]
            rows.append([budget, *cell, *scores, v["memory"], v["winner"], f"{v['ratio']:.2g}"])
        best = sum(v["winner"] == "HAMCMC" for v in cells.values())
        simple = sum(v["ratio_simple"] < 1 for v in cells.values())
        notes.append(
            f"At equal {budget}, HAMCMC has the least score in {best} of {len(cells)} cells, and a smaller one than "
            f"SGLD and pSGLD in {simple}."
        )
    for dimension, c in clocks.items():
        each = ", ".join(f"{name} {1e6 * s:.3g}" for name, s in c["seconds"].items())
        notes.append(f"µs per iteration at D = {dimension}, measured at load {c['load']}: {each}.")
    return finish(
        out,
        "where",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["equal", "D", "κ", "stiff", "HAMCMC", *others, "M", "best", "HAMCMC / best other"],
        rows=rows,
        figures={"where": draw(verdicts, asked["gradients"])},
        notes=notes,
        more={
            "clocks": clocks,
            "cells": [{"cell": list(cell), "methods": f} for cell, f in found.items()],
        },
    )
