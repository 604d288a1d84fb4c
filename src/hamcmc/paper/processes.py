"""Methods of figure 5 on several processes of this machine, which talk over loopback.

A task is a curve (the RMSE after each iteration) or times (seconds of iterations, and of their messages alone). The
processes of a launch do one task after the other: ``python -m hamcmc.paper.processes FOLDER``. Each process has one
core of its own as long as there are enough of them.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hamcmc._types import Record
from hamcmc.factorization import partition
from hamcmc.factorization.problem import Problem, Request, pose
from hamcmc.factorization.program import FactorizationProgram
from hamcmc.factorization.ratings import Ratings
from hamcmc.inference import launch
from hamcmc.paper.factorizing import Method, sampler_options
from hamcmc.store.errors import Interrupted, RunError
from hamcmc.store.files import write_atomically


def problem(
    ratings: Ratings, method: Method, step_size: float, curvature: float, blocks: int, asked: Record
) -> Problem:
    """A method as a factorization that looks at the held-out ratings after each step, with one thread."""
    request = Request(
        rank=asked["rank"],
        model="paper",
        sampler=method.sampler,
        options=sampler_options(method, curvature),
        step_size=step_size,
        metric=method.metric,
        order="random",
        blocks=blocks,
        num_samples=1,
        warmup=asked["burn_in"],
        thin=asked["iterations"] - asked["burn_in"],
        steps=1,
        test=asked["test"],
        seed=asked["seed"],
        threads=1,
    )
    return pose(ratings, request)


def share(ratings: Ratings, p: partition.Partition, hosts: int) -> Ratings:
    """The rows, columns and training ratings that one of several hosts works on in a step.

    It is a host that has as many ratings as the busiest one has in the mean over parts: the others wait for it.
    """
    B, slots = p.blocks, p.blocks // hosts
    b = np.arange(B)
    loads = np.stack([p.sizes[b, (b + k) % B].reshape(hosts, slots).sum(1) for k in range(B)])
    busiest = p.parts / p.parts.sum() @ loads.max(1)
    k, host = np.unravel_index(np.argmin(np.abs(loads - busiest)), loads.shape)
    mine = np.arange(slots) + host * slots
    rows = np.flatnonzero(np.isin(p.rows.block, mine))
    columns = np.flatnonzero(np.isin(p.columns.block, (mine + k) % B))
    block = p.rows.block[ratings.row]
    kept = ~ratings.test & np.isin(block, mine) & (p.columns.block[ratings.column] == (block + k) % B)
    return ratings._replace(
        users=ratings.users[rows],
        items=ratings.items[columns],
        row=np.searchsorted(rows, ratings.row[kept]).astype(np.int32),
        column=np.searchsorted(columns, ratings.column[kept]).astype(np.int32),
        value=ratings.value[kept],
        test=ratings.test[kept],
    )


# --- in the process that asks ---


def perform(folder: Path, processes: int, tasks: list[Record], keep: Callable[[str, Record], None]) -> None:
    """Do tasks on so many processes. `keep` gets the name and the result of each one that was finished.

    Raises:
        Interrupted: SIGINT or SIGTERM; what was finished has been kept.
        RunError: a process failed.
    """
    (folder / "tasks.json").write_text(json.dumps(tasks))
    try:
        launch.launch(folder, processes, "hamcmc.paper.processes", (str(folder),), restarts=1)
    except Interrupted as stop:
        raise Interrupted("stopped, finished runs are kept: the same command continues", stop.signal) from None
    except launch.Died as error:
        who = str(error).partition(";")[0]
        raise RunError(f"{who}; finished runs are kept: the same command continues") from None
    finally:
        for task in tasks:
            file = _result(folder, task["name"])
            if file.exists():
                keep(task["name"], json.loads(file.read_text()))
                file.unlink()


def save(folder: Path, name: str, made: Problem) -> None:
    """Put the ratings of a problem where the processes find them."""
    if not (folder / name).exists():
        partition.save(folder / name, made.partition, made.train, made.test)


def _result(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


# --- in each of the processes ---


def work(folder: Path) -> None:
    """Do all tasks, together with the other processes. The first one writes."""
    for task in json.loads((folder / "tasks.json").read_text()):
        if _result(folder, task["name"]).exists():  # before a restart
            continue
        program = FactorizationProgram(task["settings"], *partition.load(folder / task["ratings"]))
        found = curve(program) if task["kind"] == "curve" else times(program, task["steps"], task["repeats"])
        if jax.process_index() == 0:
            write_atomically(_result(folder, task["name"]), json.dumps(found).encode())


def curve(program: FactorizationProgram) -> Record:
    """The RMSE after each iteration, None where it is not finite, and the seconds that it took, looks included."""
    rmse = [float(program.sweep().rmse) for _ in range(program.total)]
    return {"rmse": [x if np.isfinite(x) else None for x in rmse], "seconds": program.seconds, **load()}


def times(program: FactorizationProgram, steps: int, repeats: int) -> Record:
    """Seconds of several interleaved rounds: so many steps with a look, a look, and the messages of steps alone."""
    program.sweep()  # which compiles
    many, none, collect = np.int32(steps), np.int32(0), np.int32(0)
    found: dict[str, list[float]] = {"steps": [], "look": [], "messages": [], "no messages": []}
    send: Any = None
    if len(program.devices) > 1:
        send = program.sweeps.messages.lower(program.carry, program.keys, many).compile()

    def segment(n: np.int32) -> Any:
        """Take n steps and look."""
        program.carry, trace = program.segment(program.carry, program.data, program.keys, n, collect)
        return trace

    def clock(name: str, f: Callable[..., Any], *arguments: Any) -> None:
        """Time a call."""
        began = time.perf_counter()
        jax.block_until_ready(f(*arguments))
        found[name].append(time.perf_counter() - began)

    for _ in range(repeats):
        clock("look", segment, none)
        clock("steps", segment, many)
        if send is not None:
            clock("no messages", send, program.carry, program.keys, none)
            clock("messages", send, program.carry, program.keys, many)
    return {"of": steps, **found, **load()}


def load() -> Record:
    """How many processes wanted a core, on average over the last minute."""
    return {"load": round(os.getloadavg()[0], 1)}


def per_step(found: Record) -> tuple[float, float]:
    """Seconds of an iteration and of its messages alone, from the best of all rounds."""

    def best(many: str, none: str) -> float:
        """The time of a step, without what is there for no steps as well."""
        if not found[many]:
            return 0.0
        return max(min(found[many]) - min(found[none]), 1e-9) / found["of"]

    return best("steps", "look"), best("messages", "no messages")


def take_one_core(mine: int, processes: int, cores: Iterable[int]) -> None:
    """Keep to one core, if there is one for every process."""
    cores = sorted(cores)
    if processes <= len(cores):
        os.sched_setaffinity(0, cores[mine : mine + 1])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # finished tasks are on disk, so there is nothing to save
    if hasattr(os, "sched_getaffinity"):
        numbers = int(os.environ["HAMCMC_PROCESS"]), int(os.environ["HAMCMC_PROCESSES"])
        take_one_core(*numbers, os.sched_getaffinity(0))
    launch.leave(launch.together(partial(work, Path(sys.argv[1]))))
