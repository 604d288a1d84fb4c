"""Do the project's whole work over and over, and fail if memory or open files grow.

    python -m tools.soak [--minutes 60]

A round makes one automatic call, samples a posterior, stops it by a signal, resumes and summarises it, writes its
report, factorizes ratings, predicts and reports them, and denoises a recording. A line each minute says how much memory
(resident) and how many open files and threads there are after a round. The first tenth of the rounds, in which programs
are compiled and caches fill, does not count. Memory fails if a Theil–Sen line through the rest surely rises (99 %), by
more than 3 % of what there is and 20 MB; open files and threads fail if the median of the last third is above that of
the first, and threads that came late are named. What an hour or more found is kept.
"""

import argparse
import ctypes
import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import soundfile as sf
import zarr
from benchmarks import page
from benchmarks.measure import Table
from scipy.stats import theilslopes

import hamcmc
from hamcmc.factorization import run as runs
from hamcmc.factorization.synthetic import movielens_like
from hamcmc.report import factorization as factorization_report
from hamcmc.report import write_report
from hamcmc.speech.file import denoise_file

SHARE, LEAST = 0.03, 20.0  # growth of memory that is too much: of what there is, and in MB


class Course(NamedTuple):
    """How a quantity went over the rounds: at first, at last, its growth in words, and whether that is too much."""

    what: str
    first: float
    last: float
    growth: str
    grown: bool


def automatic(folder: Path, seed: int) -> None:
    """One call that leaves everything automatic."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = (rng.random(300) < 1 / (1 + np.exp(-x @ np.array([1.0, -1.0, 0.5])))).astype(np.float32)
    log_prior = lambda t: -0.5 * jnp.sum(t**2)
    log_likelihood = lambda t, row: row[1] * (row[0] @ t) - jnp.logaddexp(0.0, row[0] @ t)
    result = hamcmc.sample(hamcmc.Posterior(log_prior, log_likelihood, (x, y), init=jnp.zeros(3)), progress=False)
    assert result.check().word in ("good", "usable"), f"round {seed}: {result.check()}"


def sample(folder: Path, seed: int) -> None:
    """A run that is stopped, resumed, summarised and reported."""
    x = np.random.default_rng(seed).normal(1, 1, (500, 2)).astype(np.float32)
    log_prior, log_likelihood = lambda t: -0.5 * jnp.sum(t**2), lambda t, x: -0.5 * jnp.sum((x - t) ** 2)
    posterior = hamcmc.Posterior(log_prior, log_likelihood, x)

    def stop(status: hamcmc.inference.progress.Status) -> None:
        if status.draws:  # not while it compiles, when there is nothing to resume
            os.kill(os.getpid(), signal.SIGTERM)

    start, run = jnp.zeros(2), folder / "run"
    common = {"num_samples": 9000, "chains": 2, "batch_size": 50, "seed": seed}
    try:
        hamcmc.sample(posterior, "hamcmc", start, step_size=1e-3, out=run, progress=stop, **common)
        raise AssertionError("a signal did not stop the run")
    except hamcmc.Interrupted:
        pass
    result = hamcmc.resume(run, posterior, start, progress=False)
    error = np.abs(result.mean["theta"] - x.sum(0) / 501).max()
    assert error < 0.05, f"the posterior mean is off by {error}"
    str(result.summary())
    write_report(run)


def factorize(folder: Path, seed: int) -> None:
    """Ratings to predictions."""
    ratings = movielens_like(60, 40, 900, rank=3, seed=seed).ratings
    model = runs.factorize(ratings, folder / "ratings", rank=3, num_samples=5, warmup=2, seed=seed, progress=False)
    assert np.isfinite(model.predict(ratings.users[:5], ratings.items[:5]).mean).all()
    factorization_report.write(folder / "ratings")


def denoise(folder: Path, seed: int) -> None:
    """A noisy tone to a file."""
    t = np.arange(16_000) / 8000
    noisy = 0.2 * np.sin(2 * np.pi * 300 * t) + 0.05 * np.random.default_rng(seed).standard_normal(len(t))
    sf.write(folder / "noisy.wav", noisy, 8000)
    denoise_file(folder / "noisy.wav", folder / "clean.wav", draws=1)


def threads() -> Counter[str]:
    """The names of all threads, those of compiled code among them; Python's have the names that Python knows."""
    found = {t.native_id: t.name for t in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            found.setdefault(int(task.name), (task / "comm").read_text().strip())
    return Counter(re.sub(r"\d+", "N", name) for name in found.values())


def measure() -> dict[str, float]:
    """Resident memory in MB, open files, threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the compiler's threads have freed goes back, and does not look like a leak
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files, tasks = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))
    return {"memory": pages * os.sysconf("SC_PAGE_SIZE") / 2**20, "files": files, "threads": tasks}


def courses(rows: list[dict[str, float]]) -> list[Course]:
    """How memory, open files and threads went after the first tenth of the rounds."""
    kept = rows[len(rows) // 10 :]
    minutes, memory = (np.array([r[k] for r in kept]) for k in ("minutes", "memory"))
    slope, _, low, high = theilslopes(memory, minutes, 0.99)
    rises = bool(low > 0 and slope * np.ptp(minutes) > max(LEAST, SHARE * np.median(memory)))
    growth = f"{60 * slope:+.1f} MB/h, 99 % between {60 * low:+.1f} and {60 * high:+.1f}"
    found, third = [Course("memory, MB", memory[0], memory[-1], growth, rises)], len(kept) // 3
    for name in ("files", "threads"):
        before, after = (float(np.median([r[name] for r in part])) for part in (kept[:third], kept[-third:]))
        found.append(Course(name, before, after, f"{after - before:+.0f}", after > before))
    return found


def main() -> None:
    """Work until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    asked = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())  # as in the shell
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # zarr's pool gets a thread more, of at most six, whenever two of its short tasks happen to overlap. One is enough.
    zarr.config.set({"threading.max_workers": 1})
    began, told, rows, names = time.monotonic(), 0.0, [], []
    while time.monotonic() - began < 60 * asked.minutes:
        with tempfile.TemporaryDirectory() as folder:
            for work in (automatic, sample, factorize, denoise):
                work(Path(folder), len(rows))
        rows.append({"minutes": (time.monotonic() - began) / 60} | measure())
        names.append(threads())
        if rows[-1]["minutes"] - told >= 1:
            told, r = rows[-1]["minutes"], rows[-1]
            print(
                f"{told:5.1f} min  {len(rows):4d} rounds  {r['memory']:6.0f} MB  {r['files']} files  "
                f"{r['threads']} threads",
                flush=True,
            )
    if len(rows) < 12:
        sys.exit(f"only {len(rows)} rounds: too few to tell")
    found = courses(rows)
    for c in found:
        print(f"{c.what}: {c.first:.0f}, then {c.last:.0f} ({c.growth})")
    if late := names[-1] - names[len(names) // 10]:
        print(f"Threads that came late: {', '.join(f'{n} × {name}' for name, n in late.items())}")
    if asked.minutes >= 60:
        shown = [{"": c.what, "first": f"{c.first:.0f}", "last": f"{c.last:.0f}", "growth": c.growth} for c in found]
        page.store(
            path := page.RESULTS / "soak.json",
            [Table(f"{len(rows)} rounds in {rows[-1]['minutes']:.0f} minutes", shown)],
            command="make soak",
            seconds=60 * rows[-1]["minutes"],
            settings={"minutes": asked.minutes},
            seeds="the number of the round",
        )
        print(f"Kept in {path}; `make pages` puts it on the page.")
    if grown := "; ".join(f"{c.what} grew from {c.first:.0f} to {c.last:.0f}" for c in found if c.grown):
        sys.exit(grown)


if __name__ == "__main__":
    main()
