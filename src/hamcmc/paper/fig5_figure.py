"""What figure 5 shows: the claim, the table, the notes and the curves."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hamcmc._types import Record
from hamcmc.paper.common import styled
from hamcmc.paper.factorizing import CLAIM, METHODS, RATIO
from hamcmc.paper.speedup import CORES, Cost, Found

STYLES = {1: "-", 2: "--", 4: ":", CORES: "-."}  # of the curves, by number of processes


def compare(curves: dict[str, np.ndarray], costs: dict[str, Cost], marks: list[int]) -> Record:
    """Whether HAMCMC is ahead at equal iterations, and in the time that the fastest of the three needs for them."""
    *others, ours = CLAIM
    seconds = {m: c.seconds for m, c in costs.items()}
    fastest = min(seconds[m] for m in CLAIM)

    def at(method: str, second: float) -> float:
        """The RMSE of a method at a time."""
        iterations = np.arange(1, len(curves[method]) + 1)
        return float(np.interp(second, iterations * seconds[method], curves[method]))

    by_iterations = {mark: bool(curves[ours][mark - 1] < min(curves[m][mark - 1] for m in others)) for mark in marks}
    by_seconds = {mark: at(ours, mark * fastest) < min(at(m, mark * fastest) for m in others) for mark in marks}
    return {
        "ahead_at_equal_iterations": by_iterations,
        "ahead_at_equal_seconds": by_seconds,
        "seconds": {mark: mark * fastest for mark in marks},
        "same_time": {m: at(m, max(marks) * fastest) for m in curves},
    }


def said(claim: Record) -> str:
    """The claim in words."""
    iterations = ", ".join(
        f"{mark} {'yes' if ahead else 'no'}" for mark, ahead in claim["ahead_at_equal_iterations"].items()
    )
    times = "; ".join(
        f"{second:.2g} s {'yes' if claim['ahead_at_equal_seconds'][mark] else 'no'}"
        for mark, second in claim["seconds"].items()
    )
    return f"at equal iterations: {iterations}; at equal seconds: {times}"


def rows_of(
    label: str,
    asked: Record,
    tuned: dict[str, Record],
    curves: dict[str, np.ndarray],
    costs: dict[str, Cost],
    estimated: dict[str, Cost],
    claim: Record,
) -> list[list[str]]:
    """The rows of the table for one number of processes."""

    def words(cost: Cost | None, alone: bool) -> list[str]:
        """Milliseconds, and the share of messages."""
        if cost is None:
            return ["", ""]
        return [f"{1e3 * cost.seconds:.3g}", "" if alone else f"{cost.messages / cost.seconds:.0%}"]

    rows = []
    for m, curve in curves.items():
        step_size = f"{tuned[m]['step_size']:.2g}" + " (edge)" * tuned[m]["at_the_edge"]
        alone = label.startswith("1 ") or label == "1"
        times = [*words(costs.get(m), alone), *words(estimated.get(m), alone)]
        at = [f"{curve[mark - 1]:.4f}" for mark in asked["marks"]]
        loads = (costs.get(m) or estimated[m]).load
        rows.append([m, label, step_size, *at, *times, f"{claim['same_time'][m]:.4f}", f"{loads:.1f}"])
    return rows


def as_record(found: Found) -> Record:
    """For ``results.json``."""
    tables = {
        name: {n: {m: c._asdict() for m, c in of.items()} for n, of in costs.items()}
        for name, costs in (("measured", found.costs), ("estimated", found.estimated))
    }
    return tables | {"rmse": found.curves, "network": None if found.network is None else found.network._asdict()}


def notes(
    name: str, asked: Record, claims: dict[str, Record], found: Found | None, threads: int, cores: int
) -> list[str]:
    """What to know about the table."""
    lines = [
        f"Data: {name}, 10 % held out. RMSE of the draw up to iteration {asked['burn_in']}, then of the mean over all "
        f"draws after it. Times are those of iterations alone, without evaluation. '1 × {threads} threads' is "
        "one process with threads, so without messages; other processes have one thread each. 'Same time' is the RMSE "
        "in the time that the fastest of the paper's three, on as many processes, takes for all its iterations.",
        f"Each method: {asked['trials']} step sizes, each {RATIO:g} times the next, {asked['iterations']} "
        "iterations; the best has the least RMSE at the end on a tenth of the training ratings, set aside for "
        "that. 'edge': it is the largest or the smallest one that was tried. Row-count base: not in the paper.",
        f"The paper's claim, that HAMCMC is ahead of DSGLD and pSGLD, with threads: {said(claims['threads'])}.",
    ]
    if found is None:
        return lines
    over = [n for n in found.costs if n > cores]
    if over:
        many = " and ".join(map(str, over))
        lines.append(f"This machine has {cores} cores: {many} processes share them, and wait for each other.")
    lines += [f"The claim on {_count(n)}: {said(claims[str(n)])}." for n in found.costs]
    if found.network is not None:
        latency, bandwidth = found.network
        rate = f"and {bandwidth / 1e9:.3g} GB/s" if np.isfinite(bandwidth) else "whatever its length"
        lines.append(
            "'In messages' is the time of the messages alone over that of an iteration. The cost model adds "
            "the time of one host's share of the computing, measured on one core, and its messages on a network with "
            f"{1e6 * latency:.3g} µs per message {rate}, as fitted to messages between processes of this machine."
        )
    if CORES in found.estimated:
        lines.append(
            f"{CORES} cores need {CORES} blocks, so each step sees a sixteenth of the ratings. Steps were searched for "
            "that, and the RMSE is that of one process with as many blocks, which draws the same up to rounding. Only "
            f"the clock is estimated. The claim on {CORES} cores: {said(claims[str(CORES)])}."
        )
    return lines


def _count(n: int) -> str:
    return f"{n} process{'es' * (n > 1)}"


@styled
def draw(curves: dict[str, np.ndarray], costs: dict[str, Cost], found: Found | None, asked: Record) -> Figure:
    """The RMSE by iterations and by the clock. Colours are methods, and styles are numbers of processes."""
    fig = Figure(layout="constrained", figsize=(10, 4.8))
    pair = fig.subplots(1, 2, sharey=True)
    seen = []

    def plot(method: str, curve: np.ndarray, second: float | None, style: Any, width: float) -> None:
        """A curve on the left, and on the right if it has a time."""
        iterations, how = np.arange(1, len(curve) + 1), {"color": METHODS[method].colour, "ls": style, "lw": width}
        y = np.where(np.isfinite(curve), curve, np.nan)
        seen.append(curve[-1])
        pair[0].plot(iterations, y, **how)
        if second is not None:
            pair[1].plot(iterations * second, y, **how)

    for method, curve in curves.items():
        base, second = METHODS[method].metric, costs[method].seconds if found is None else None
        if base or found is None:
            plot(method, curve, second, (0, (1, 2)) if base else "-", 1.2 if base else 1.7)
    if found is not None:
        styles = []
        for n, each in found.curves.items():
            clock, style = found.costs.get(n) or found.estimated[n], STYLES.get(n, "-")
            words = _count(n) if n in found.costs else f"{n} cores, estimated"
            styles.append(Line2D([], [], color="0.4", ls=style, lw=1.3, label=words))
            for method, curve in each.items():
                plot(method, curve, clock[method].seconds, style, 1.3)
        pair[1].legend(handles=styles, fontsize=8)
    pair[0].axvline(asked["burn_in"], color="0.4", lw=0.8, ls=":")
    final = [y for y in seen if np.isfinite(y)]
    pair[0].set(xlabel="iterations", ylabel="RMSE", xscale="log")
    pair[1].set(xlabel="seconds", xscale="log")
    if final:
        pair[0].set_ylim(min(final) - 0.01, max(max(final) + 0.1, min(final) + 0.3))
    handles = [Line2D([], [], color=METHODS[m].colour, lw=1.7, label=m) for m in CLAIM]
    handles.append(Line2D([], [], color="0.4", ls=(0, (1, 2)), lw=1.2, label="row-count base, not in the paper"))
    pair[0].legend(handles=handles, fontsize=8)
    return fig
