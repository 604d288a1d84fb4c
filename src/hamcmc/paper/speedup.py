"""What processes gain on figure 5: curves and times on this machine, and a cost model for more cores than it has.

The time of a step on P hosts is the computing of the busiest one plus the messages. Both are measured here. One process
on one core runs a problem that has just the rows, columns and ratings of one host's share. The times of messages
between processes give the latency and the bandwidth of loopback, by least squares.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from hamcmc._types import Record
from hamcmc.factorization import cost
from hamcmc.factorization.ratings import Ratings
from hamcmc.paper import processes
from hamcmc.paper.factorizing import METHODS, Split, sampler_options
from hamcmc.paper.journal import Journal

CORES = 16  # that the paper had


class Network(NamedTuple):
    """Seconds for each message, and bytes per second."""

    latency: float
    bandwidth: float


class Cost(NamedTuple):
    """Seconds of an iteration, those of its messages, and the load of the machine while they were measured."""

    seconds: float
    messages: float
    load: float


class Found(NamedTuple):
    """What was measured on processes, and estimated.

    Attributes:
        curves: the RMSE after each iteration, by number of processes and method.
        costs: likewise, as measured.
        estimated: likewise by the model, with the paper's number of cores in addition; empty without a network.
        network: of loopback; None if no two processes were measured.
    """

    curves: dict[int, dict[str, np.ndarray]]
    costs: dict[int, dict[str, Cost]]
    estimated: dict[int, dict[str, Cost]]
    network: Network | None


def fit_network(measured: Sequence[tuple[cost.Sent, float]]) -> Network:
    """The latency and the bandwidth that explain seconds of messages, by least squares of relative errors."""
    A = np.array([[s.messages + s.rounds, s.bytes + s.summed] for s, _ in measured])
    seconds = np.array([t for _, t in measured])
    scale = A.max(0)
    latency, per_byte = nnls(A / scale / seconds[:, None], np.ones(len(seconds)))[0] / scale
    return Network(float(latency), float(1 / per_byte) if per_byte else np.inf)


class Study:
    """Curves and times of tuned methods on processes, kept as they are finished.

    Args:
        ratings: with the held-out ones marked.
        splits: the ratings cut into blocks, for this machine's processes and for the paper's cores.
        steps: the tuned step sizes, likewise.
        asked: the settings of the reproduction, with `seed` and `processes`.
        runs: where curves are kept.
        times: where times are kept.
        about: what all results depend on.
    """

    def __init__(
        self,
        ratings: Ratings,
        splits: dict[int, Split],
        steps: dict[int, dict[str, float]],
        asked: Record,
        runs: Journal,
        times: Journal,
        about: Record,
    ):
        self.ratings, self.splits, self.steps, self.asked = ratings, splits, steps, asked
        self.journals, self.about = {"curve": runs, "times": times}, about
        self.blocks = min(splits)
        self.methods = list(steps[self.blocks])

    def run(self, begin: Callable[[str], None]) -> Found:
        """Measure what is not kept yet, then estimate. `begin` is called with the name of each stage that begins."""
        counts = self.asked["processes"]
        with tempfile.TemporaryDirectory() as folder:
            for n in sorted({1, *counts}):
                tasks = [t for t in self._tasks(n) if self._kept(t) is None]
                if tasks:
                    begin(f"{n} process{'es' * (n > 1)}")
                    self._perform(Path(folder), n, tasks)
        curves: dict[int, dict[str, np.ndarray]] = {n: {} for n in counts}
        costs: dict[int, dict[str, Cost]] = {n: {} for n in counts}
        for n in counts:
            for m in self.methods:
                rmse = self._kept(self._task("curve", n, m))["rmse"]
                curves[n][m] = np.array([np.inf if x is None else x for x in rmse])
                times = self._kept(self._task("times", n, m))
                costs[n][m] = Cost(*processes.per_step(times), times["load"])
        return Found(curves, costs, *self._estimate(costs))

    def sent(self, method: str, hosts: int, blocks: int) -> cost.Sent:
        """What a host sends in a mean step of a method."""
        s = self.splits[blocks]
        options = METHODS[method].options
        return cost.sent(
            METHODS[method].sampler,
            hosts,
            blocks,
            columns=len(s.p.columns.block),
            width=s.columns.width,
            memory=options.get("memory", 0),
        )

    def _estimate(self, costs: dict[int, dict[str, Cost]]) -> tuple[dict[int, dict[str, Cost]], Network | None]:
        """The costs by the model for every number of processes and for the paper's cores; and the network."""
        several = [n for n in costs if n > 1]
        # Where processes share cores, a message also waits for a core.
        fitting = [n for n in several if n <= (os.cpu_count() or 1)] or several
        if not fitting:
            return {}, None
        network = fit_network(
            [(self.sent(m, n, self.blocks), c.messages) for n in fitting for m, c in costs[n].items()]
        )
        estimated: dict[int, dict[str, Cost]] = {}
        for hosts, blocks in self._shares():
            estimated[hosts] = {}
            for m in self.methods:
                times = self._kept(self._share_task(m, hosts, blocks))
                messages = self.sent(m, hosts, blocks).seconds(*network)
                estimated[hosts][m] = Cost(processes.per_step(times)[0] + messages, messages, times["load"])
        return estimated, network

    def _shares(self) -> list[tuple[int, int]]:
        """The numbers of hosts for which one host's share is timed, and their numbers of blocks."""
        return [*((n, self.blocks) for n in self.asked["processes"]), *((b, b) for b in self.splits if b > self.blocks)]

    def _tasks(self, n: int) -> list[Record]:
        """What is to be done on n processes."""
        asked = n in self.asked["processes"]
        own = [self._task(kind, n, m) for kind in ("curve", "times") for m in self.methods if asked]
        shares = [self._share_task(m, *each) for each in self._shares() for m in self.methods]
        return own + (shares if n == 1 and self.asked["processes"] != [1] else [])

    def _task(self, kind: str, n: int, method: str, hosts: int = 0, blocks: int = 0) -> Record:
        """A task as the journal knows it: all that its result depends on. `hosts` is 0 for the whole problem."""
        blocks = blocks or self.blocks
        names = ("iterations", "burn_in") if kind == "curve" else ("timed_iterations", "timings")
        return (
            self.about
            | {k: self.asked[k] for k in names}
            | {
                "kind": kind,
                "processes": n,
                "method": method,
                "hosts": hosts,
                "blocks": blocks,
                "step_size": self.steps[blocks][method],
                "options": sampler_options(METHODS[method], self.splits[blocks].curvature),
            }
        )

    def _share_task(self, method: str, hosts: int, blocks: int) -> Record:
        """The time of one host's share, on one process."""
        return self._task("times", 1, method, hosts, blocks)

    def _kept(self, task: Record) -> Record:
        return self.journals[task["kind"]].get(task)  # type: ignore[return-value]

    def _keep(self, tasks: list[Record], name: str, result: Record) -> None:
        task = tasks[int(name)]
        self.journals[task["kind"]].put(task, result)

    def _perform(self, folder: Path, n: int, tasks: list[Record]) -> None:
        """Do tasks on n processes, and keep what they find."""
        orders = []
        for i, task in enumerate(tasks):
            blocks, hosts = task["blocks"], task["hosts"]
            s = self.splits[blocks]
            ratings, asked = self.ratings, self.asked
            if hosts:
                ratings, asked = processes.share(ratings, s.p, hosts), asked | {"test": 0.0}
            made = processes.problem(
                ratings, METHODS[task["method"]], task["step_size"], s.curvature, 1 if hosts else blocks, asked
            )
            where = f"ratings-{blocks}-{hosts}"
            processes.save(folder, where, made)
            orders.append(
                {
                    "name": str(i),
                    "kind": task["kind"],
                    "ratings": where,
                    "settings": made.settings,
                    "steps": self.asked["timed_iterations"],
                    "repeats": self.asked["timings"],
                }
            )
        processes.perform(folder, n, orders, partial(self._keep, tasks))
