"""What a step of distributed factorization would cost at 10⁹ ratings, on clusters that we do not have.

Speeds are measured on this machine. Loads come from a simulated partition with heavy-tailed rows and columns. The bytes
of the formula are compared with those that the compiled program sends on four devices.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.factorization import cost, inspect, native, partition
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.paper.common import Reproduction, finish, styled

RATINGS, ROWS, COLUMNS, RANK = 10**9, 10**7, 10**6, 50
SAMPLERS = ("sgld", "hamcmc")
TITLE = "One step at 10⁹ ratings, 10⁷ users × 10⁶ items, rank 50"


def measure(rank: int) -> cost.Machine:
    """Seconds per rating and factor, per normal draw and per number read or written, on one core of this machine."""
    rng = np.random.default_rng(0)
    rows, columns, n = 2000, 1500, 100_000
    row, column = rng.integers(0, rows, n), rng.integers(0, columns, n)
    p = partition.partition(row, column, (rows, columns), 1)
    blocks = native.Blocks(*map(jnp.asarray, partition.arrange(p, row, column, np.ones(n, np.float32))))
    width = -(-(rank + 2) // 8) * 8
    W, H = jnp.ones((1, rows, width)), jnp.ones((1, columns, width))
    numbers = jnp.ones((rows + columns, width))
    gradient = best(jax.jit(lambda W, H: native.gradient(W, H, blocks, 0)), W, H)
    words, places = jnp.array([1, 2], jnp.uint32), jnp.arange(rows, dtype=jnp.uint32)
    draw = best(jax.jit(lambda words, places: native.normal(words, places, width)), words, places)
    add = best(jax.jit(lambda a, b: a + 0.5 * b), numbers, numbers)
    return cost.Machine(gradient / n / rank, draw / rows / width, add / 3 / numbers.size)


def best(f: Callable[..., Any], *arguments: Any, rounds: int = 15) -> float:
    """The shortest of several timings, without compilation."""
    jax.block_until_ready(f(*arguments))
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(f(*arguments))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def simulated_imbalance(hosts: int, rows: int, columns: int, ratings: int, seed: int) -> dict[str, float]:
    """The imbalance of a partition of a matrix with heavy-tailed counts.

    By Zipf and Mandelbrot, the k-th row has a share of about 1/(k + q). With q = 50 the most popular of 10⁶ items has
    0.2 % of all ratings. The ratings of a block are Poisson, given those of its rows and columns.

    Returns:
        The busiest block over the mean of its part, averaged over parts; and the same for row and column blocks.
    """
    rng = np.random.default_rng(seed)

    def loads(n: int, q: float) -> np.ndarray:
        """The ratings of each block of rows or columns."""
        weights = 1 / (np.arange(n) + q)
        counts = np.maximum(1, weights / weights.sum() * ratings).astype(np.int64)
        side = partition.deal(counts, hosts, rng)
        return np.bincount(side.block, weights=counts, minlength=hosts)

    of_rows, of_columns = loads(rows, 1000), loads(columns, 50)
    blocks = rng.poisson(np.outer(of_rows, of_columns) / of_columns.sum())
    b = np.arange(hosts)
    parts = np.stack([blocks[b, (b + p) % hosts] for p in range(hosts)])
    return {
        "block": float(np.mean(parts.max(1) / parts.mean(1))),
        "rows": float(of_rows.max() / of_rows.mean()),
        "columns": float(of_columns.max() / of_columns.mean()),
    }


def check_formula() -> list[Record]:
    """The bytes of a step by the formula and as compiled on four devices, for each sampler."""
    found = []
    for sampler in SAMPLERS:
        sent = inspect.compiled_messages(sampler)
        by_formula = cost.step_cost(
            cost.Machine(0, 0, 0),
            inspect.DEVICES,
            ratings=1,
            rows=inspect.SHAPE[0],
            columns=inspect.SHAPE[1],
            rank=inspect.RANK,
            sampler=sampler,
        )
        steps = [(kind, size) for kind, size, function in sent if not function.startswith("main")]
        reduced = [size for kind, size in steps if kind == "all-reduce"]
        moved = max(size for kind, size in steps if kind == "collective-permute")
        found.append(
            {
                "sampler": sampler,
                "formula": by_formula.bytes,
                "compiled": moved,
                "reductions": len(reduced),
                "reduced": sum(reduced),
                "reduced by formula": 4 * cost.reduced(sampler, 3),
            }
        )
    return found


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Simulate the loads of 64 to 1024 hosts and add up their costs."""
    progress(Status(0.0, "what the compiled program sends"))
    checked = check_formula()
    progress(Status(0.4, "speeds of this machine"))
    machine = measure(RANK)
    share = 10 if quick else 1  # a quick run simulates a matrix so many times smaller, with as many hosts
    rows, costs, balance = [], {}, {}
    for hosts in (64, 256, 1024):
        progress(Status(0.5 + hosts / 2500, f"partition for {hosts} hosts"))
        balance[hosts] = simulated_imbalance(hosts, ROWS // share, COLUMNS // share, RATINGS, seed)
        for sampler in SAMPLERS:
            step = cost.step_cost(
                machine,
                hosts,
                ratings=RATINGS,
                rows=ROWS,
                columns=COLUMNS,
                rank=RANK,
                sampler=sampler,
                imbalance=balance[hosts]["block"],
            )
            costs[f"{sampler}, {hosts} hosts"] = step._asdict() | {"seconds": step.seconds}
            rows.append(
                [
                    hosts,
                    sampler,
                    RATINGS // hosts**2,
                    *(round(1e3 * x, 2) for x in step[:5]),
                    round(1e3 * step.seconds, 2),
                    round(step.bytes / 1e6, 2),
                    round(balance[hosts]["block"], 2),
                    f"{(step.gradient + step.noise) / step.seconds:.0%}",
                ]
            )
    notes = [
        f"Compiled on {inspect.DEVICES} devices, {c['sampler']} sends {c['compiled']} bytes a step in one message "
        f"(formula: {c['formula']}) and has {c['reductions']} reduction(s) of {c['reduced']} bytes "
        f"(formula: {c['reduced by formula']})."
        for c in checked
    ]
    notes.append(
        f"This machine: {machine.rating_factor * 1e9:.2f} ns per rating and factor, {machine.draw * 1e9:.1f} ns per "
        f"draw, {machine.number * 1e9:.2f} ns per number. Assumed network: {machine.latency * 1e6:.0f} µs, 10 Gbit/s."
    )
    head = ["hosts", "sampler", "ratings/host", "gradient ms", "moves ms", "message ms", "reduction ms", "waiting ms"]
    return finish(
        out,
        "scale",
        TITLE,
        quick=quick,
        seed=seed,
        settings={"ratings": RATINGS, "rows": ROWS, "columns": COLUMNS, "rank": RANK, "machine": machine._asdict()},
        columns=[*head, "step ms", "MB sent", "busiest/mean", "computing"],
        rows=rows,
        figures={"scale": draw(costs)},
        notes=notes,
        more={"costs": costs, "balance": balance, "compiled": checked},
    )


@styled
def draw(costs: dict[str, dict[str, float]]) -> Figure:
    """A bar for each number of hosts and sampler, in pieces."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(costs))
    for part in ("gradient", "noise", "message", "reduction", "waiting"):
        widths = np.array([1e3 * c[part] for c in costs.values()])
        axes.barh(list(costs), widths, left=left, label="noise, moves" if part == "noise" else part)
        left += widths
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per step on each host")
    axes.legend(ncols=5, loc="lower right")
    return figure
