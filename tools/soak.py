"""Do the project's whole work over and over, and fail if memory or open files grow.

    python tools/soak.py [--minutes 60] [--out soak.json]

A round samples a posterior, stops it by a signal, resumes and summarises it, writes its report, factorizes ratings,
predicts and reports them, and denoises a recording. A line each minute says how much memory (resident) and how many
open files and threads there are after a round. The first tenth of the rounds, in which programs are compiled and caches
fill, does not count. Memory fails if a Theil–Sen line through the rest surely rises (99 %), by more than 3 % of what
there is and 20 MB; open files and threads fail if the median of the last third is above that of the first.
"""

import argparse
import ctypes
import gc
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import soundfile as sf
from scipy.stats import theilslopes

import hamcmc
from hamcmc.factorization import run as runs
from hamcmc.factorization.synthetic import movielens_like
from hamcmc.report import factorization as factorization_report
from hamcmc.report import write_report
from hamcmc.speech.file import denoise_file

SHARE, LEAST = 0.03, 20.0  # growth of memory that is too much: of what there is, and in MB


def sample(folder: Path, seed: int) -> None:
    """A run that is stopped, resumed, summarised and reported."""
    x = np.random.default_rng(seed).normal(1, 1, (500, 2)).astype(np.float32)
    log_prior, log_likelihood = lambda t: -0.5 * jnp.sum(t**2), lambda t, x: -0.5 * jnp.sum((x - t) ** 2)
    posterior = hamcmc.Posterior(log_prior, log_likelihood, x)

    def stop(status: hamcmc.inference.progress.Status) -> None:
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


def measure() -> dict[str, float]:
    """Resident memory in MB, open files, threads."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what the compiler's threads have freed goes back, and does not look like a leak
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files, threads = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))
    return {"memory": pages * os.sysconf("SC_PAGE_SIZE") / 2**20, "files": files, "threads": threads}


def verdict(rows: list[dict[str, float]]) -> list[str]:
    """What grew, in words."""
    kept = rows[len(rows) // 10 :]
    if len(kept) < 10:
        return [f"only {len(rows)} rounds: too few to tell"]
    minutes, memory = (np.array([r[k] for r in kept]) for k in ("minutes", "memory"))
    slope, _, low, high = theilslopes(memory, minutes, 0.99)
    span = minutes[-1] - minutes[0]
    print(f"memory: {60 * slope:+.1f} MB/h, 99 % between {60 * low:+.1f} and {60 * high:+.1f}; {memory[-1]:.0f} MB")
    grown = []
    if low > 0 and slope * span > max(LEAST, SHARE * np.median(memory)):
        grown.append(f"memory grew by {slope * span:.0f} MB in {span:.0f} minutes")
    third = len(kept) // 3
    for what in ("files", "threads"):
        before, after = (np.median([r[what] for r in part]) for part in (kept[:third], kept[-third:]))
        print(f"{what}: {before:.0f}, then {after:.0f}")
        if after > before:
            grown.append(f"{what} grew from {before:.0f} to {after:.0f}")
    return grown


def main() -> None:
    """Work until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="write every measurement as JSON")
    asked = parser.parse_args()
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())  # as in the shell
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    began, told, rows = time.monotonic(), 0.0, []
    while time.monotonic() - began < 60 * asked.minutes:
        with tempfile.TemporaryDirectory() as folder:
            for work in (sample, factorize, denoise):
                work(Path(folder), len(rows))
        rows.append({"minutes": (time.monotonic() - began) / 60} | measure())
        if rows[-1]["minutes"] - told >= 1:
            told, r = rows[-1]["minutes"], rows[-1]
            print(
                f"{told:5.1f} min  {len(rows):4d} rounds  {r['memory']:6.0f} MB  {r['files']} files  "
                f"{r['threads']} threads",
                flush=True,
            )
    grown = verdict(rows)
    if asked.out:
        asked.out.write_text(json.dumps(rows))
    sys.exit("; ".join(grown))


if __name__ == "__main__":
    main()
