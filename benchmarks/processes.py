"""One process against two on a synthetic set like MovieLens 1M: steps per second, and the share of communication."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import Table, require_kernels
from hamcmc.factorization import run as runs
from hamcmc.factorization.problem import Request
from hamcmc.factorization.synthetic import movielens_like
from hamcmc.inference.launch import launch

STEPS = 20  # in a sweep
WAYS = {"1 process, 1 thread": (1, 1), "1 process, 2 threads": (1, 2), "2 processes": (2, 1)}


def run(quick: bool) -> list[Table]:
    """Medians over interleaved rounds."""
    require_kernels()
    ratings = movielens_like(ratings=200_000 if quick else 1_000_209).ratings
    rounds, rows = (1, []) if quick else (2, [])
    with tempfile.TemporaryDirectory() as folder:
        for sampler, rank in (("sghmc", 10), ("sghmc", 50), ("hamcmc", 50)):
            found = {name: [] for name in WAYS}
            share = 0.0
            for _ in range(rounds):
                for name, (processes, threads) in WAYS.items():
                    path = Path(folder) / "run"
                    shutil.rmtree(path, ignore_errors=True)
                    options = {"rank": rank, "sampler": sampler, "blocks": 2, "threads": threads}
                    runs.prepare(
                        ratings, path, Request(num_samples=1, thin=8 if quick else 15, warmup=4, steps=STEPS, **options)
                    )
                    work(path, processes)
                    sweeps = progress(path)
                    found[name].append(STEPS / statistics.median(b - a for a, b in pairwise(sweeps)))
                    if processes > 1:
                        share = last(path).get("communication_share", 0.0)
            base = statistics.median(found["1 process, 1 thread"])
            for name, rates in found.items():
                rows.append(
                    {
                        "sampler": sampler,
                        "K": rank,
                        "": name,
                        "steps/s": f"{statistics.median(rates):.0f}",
                        "spread": f"{min(rates):.0f}–{max(rates):.0f}",
                        "against one": f"{statistics.median(rates) / base:.2f}",
                        "in messages": f"{share:.0%}" if name == "2 processes" else "",
                    }
                )
    return [Table("Processes: 2 blocks, half of the ratings a step", rows)]


def work(path: Path, processes: int) -> None:
    """In processes of its own."""
    if processes > 1:
        launch(path, processes, runs.WORKER, (str(path), "--quiet"))
        return
    code = f"from hamcmc.factorization.run import run_here; run_here({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def events(path: Path) -> list[dict]:
    """The lines of progress."""
    lines = map(json.loads, (path / "events.jsonl").read_text().splitlines())
    return [e for e in lines if e["event"] == "progress"]


def progress(path: Path) -> list[float]:
    """Seconds at the end of each sweep after the burn-in."""
    return [e["seconds"] for e in events(path)[4:]]


def last(path: Path) -> dict:
    """The last line of progress."""
    return events(path)[-1]
