"""Large data: one automatic call on ten million rows of a hundred columns, and on a hundred million of ten, from disk.

The data, logistic regressions in single precision, have 4 GB each. They are a memory map, or a Parquet file, whose
columns are first written to a memory map. Each run is a process of its own, and the system is told to forget the files
before it. The search for the mode begins on random rows, a tenth of the data in the end, which are in most pages of a
memory map. So it is that search which waits for the disk, and passes over all data then find in the page cache what
fits there. Columns of a Parquet file are in the page cache when they have been written.

A pass looks at all rows once. Its bandwidth stands beside what NumPy needs to add up all numbers, and for a product
with a vector in single precision, in one thread; the first of its passes reads the disk, too. Gradients are in double
precision. The products of a Hessian are in single precision where a few chunks show that these are exact enough. It
needs 2 D products and sums for each number that it reads and cannot run at the bandwidth of the memory.

Memory is what the process holds besides files (RssAnon), at its peak in each phase. The responses are on disk, too, and
so is what is computed for each row: the weight and the probability with which it is drawn are in scratch files. Compare
a million with ten million rows.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

import hamcmc
from benchmarks.automatic import Regression
from benchmarks.measure import Table
from benchmarks.race_problems import SCRATCH, on_disk, truth

Row = dict[str, Any]
PART = 10**4  # rows that NumPy looks at at once
PIECE = 10**6  # rows that are written to Parquet at once
PAIRS = 100  # of draws, for exact moments
PHASES = {  # of an automatic run: where each function is
    "mode and Hessian": ("hamcmc.inference.auto", "approximated"),
    "other modes": ("hamcmc.inference.auto", "surveyed"),
    "importance of rows": ("hamcmc.target.estimators", "scores"),
    "noise": ("hamcmc.inference.auto", "gradient_noise"),
    "checks and checksum": ("hamcmc.inference.sample", "prepare"),
    "compiling and sampling": ("hamcmc.inference.running", "drive"),
    "verdict": ("hamcmc.diagnostics.verdict", "measure"),
}


def run(quick: bool, folder: str | None = None) -> list[Table]:
    """Tables of phases, of passes and of what came out."""
    rows = 20_000 if quick else 10**7
    wanted = [(rows, 1e2, "memory map"), (rows, 1e5, "memory map"), (rows, 1e5, "Parquet")]
    wanted.insert(0, (rows // 10, 1e5, "memory map"))
    wanted.append((10 * rows, 1e2, "memory map"))
    if folder is not None:
        return tables([child(_made(Path(folder)), *w) for w in wanted])
    with tempfile.TemporaryDirectory(prefix="large-", dir=_made(SCRATCH)) as scratch:
        return tables([child(Path(scratch), *w) for w in wanted])


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def columns_of(rows: int) -> int:
    """How many there are: few in a quick run, and so many in a full one that files have 4 GB."""
    return 5 if rows <= 200_000 else 10 if rows == 10**8 else 100


def child(folder: Path, rows: int, condition: float, form: str) -> Row:
    """Make data and what is known about them, unless they are there, then run in a fresh process."""
    name = f"{rows}-{condition:.0e}"
    here = [sys.executable, "-m", "benchmarks.large", str(folder), str(rows), str(condition)]
    if not (folder / f"{name}.npz").exists():
        subprocess.run([*here, "truth"], check=True)
    if form == "Parquet":
        shutil.rmtree(folder / "columns", ignore_errors=True)
        if not (folder / f"{name}.parquet").exists():
            subprocess.run([*here, "write"], check=True)
    cold = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    alone = {"OPENBLAS_NUM_THREADS": "1"}  # whose threads wait for each other where cores are busy
    found: Row = {}
    for what, environment in ((form, cold), ("plain", alone)):
        for file in folder.glob("*.*"):
            forget(file)
        done = subprocess.run(
            [*here, what], check=True, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )
        print(done.stdout, flush=True)
        found |= json.loads(done.stdout.splitlines()[-1])
    return found


def forget(file: Path) -> None:
    """Let the system drop what it holds of a file in memory."""
    handle = os.open(file, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


# --- in the child ---


def measured(problem: Regression, folder: Path, parquet: Path, form: str) -> Row:
    """One automatic run, watched."""
    began, phases, passes = time.perf_counter(), Watch(), Watch()
    found: Row = {"rows": len(problem.y), "form": form, "data": problem.name}
    with phases.phase("opening"):
        if form == "Parquet":
            names = [f"x{i}" for i in range(problem.x.shape[1])]
            data = hamcmc.columns(parquet, {"x": names, "y": "y"}, cache=folder / "columns")
            problem = problem._replace(x=data["x"], y=data["y"])
        posterior = problem.posterior()
    for name, (module, function) in PHASES.items():
        phases.watch(name, sys.modules[module], function)
    watch_passes(passes)
    result = hamcmc.sample(posterior, progress=False)
    found["total"] = time.perf_counter() - began
    found |= {"phases": phases.seconds, "memory": phases.peaks, "passes": passes.seconds}
    found |= {"costs": result.meta["costs"], "verdict": result.check().word}
    found["reason"] = result.settings["plan"]["reason"]
    ess = result.summary()
    found["ess"] = int(min(np.min(ess["ess_bulk"]), np.min(ess["ess_tail"])))
    draws = np.asarray(result.posterior["theta"], np.float64).reshape(-1, problem.x.shape[1])
    return found | {"draws": draws}


class Watch:
    """Seconds of each phase, and the peak of the memory that the process holds besides files."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.peaks: dict[str, float] = {}
        self._inside: list[str] = []
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            held = anonymous()
            for name in list(self._inside):
                self.peaks[name] = max(self.peaks.get(name, 0.0), held)
            time.sleep(0.02)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count a block towards a phase."""
        self._inside.append(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.setdefault(name, []).append(time.perf_counter() - began)
            self.peaks[name] = max(self.peaks.get(name, 0.0), anonymous())
            self._inside.remove(name)

    def watch(self, name: str, owner: Any, function: str, when: Callable[..., str | None] | None = None) -> None:
        """Count the calls of a function towards a phase, or towards the one that `when` names."""
        wrapped = getattr(owner, function)

        @wraps(wrapped)
        def watched(*args: Any, **kwargs: Any) -> Any:
            chosen = name if when is None else when(*args, **kwargs)
            if chosen is None:
                return wrapped(*args, **kwargs)
            with self.phase(chosen):
                return wrapped(*args, **kwargs)

        setattr(owner, function, watched)


def watch_passes(watch: Watch) -> None:
    """Count all that looks at every row."""
    from hamcmc.target import estimators, passes

    def of_all(self: Any, program: Any, x: Any, rows: Any, *_: Any) -> str | None:
        if rows is not None:
            return None
        return "Hessian" if program is self._second else "gradient"

    watch.watch("", passes.Passes, "_total", of_all)
    watch.watch("importance of rows", estimators, "scores")
    watch.watch("gradient of the verdict", estimators, "_full_mean_grad")


def anonymous() -> float:
    """MB that the process holds and that are no part of a file."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) * 1024 / 1e6


def plain_passes(x: np.ndarray) -> dict[str, list[float]]:
    """Seconds of NumPy's passes over a memory map: three of each."""
    theta, found = np.ones(x.shape[1], x.dtype), {}
    ways: dict[str, Callable[[np.ndarray], Any]] = {
        "NumPy's sum": lambda part: part.sum(),
        "NumPy's product with a vector": lambda part: (part @ theta).sum(),
    }
    for name, way in ways.items():
        found[name] = []
        for _ in range(3):
            began = time.perf_counter()
            sum(way(x[s : s + PART]) for s in range(0, len(x), PART))
            found[name].append(time.perf_counter() - began)
    return found


def write_parquet(problem: Regression, path: Path) -> None:
    """All columns in one Parquet file, by way of several, in flat memory."""
    import polars as pl

    names = [f"x{i}" for i in range(problem.x.shape[1])]
    with tempfile.TemporaryDirectory(dir=path.parent) as pieces:
        for i, s in enumerate(range(0, len(problem.y), PIECE)):
            frame = pl.DataFrame(np.asarray(problem.x[s : s + PIECE]), schema=names)
            frame.with_columns(y=pl.Series(problem.y[s : s + PIECE])).write_parquet(Path(pieces) / f"{i:04}.parquet")
        pl.scan_parquet(Path(pieces) / "*.parquet").sink_parquet(path)


def opened(folder: Path, rows: int, columns: int, condition: float, responses: Path) -> Regression:
    """The problem that was made before. No row of it is read: that is for the run to do."""
    x = np.load(next(folder.glob(f"race-{rows}-{columns}-{condition:.0e}.npy")), mmap_mode="r")
    name = f"logistic, {rows:,} × {columns} on disk, condition {condition:.0e}"
    return Regression(name, x, np.load(responses, mmap_mode="r"), np.full(columns, 10.0), "logistic")


def main(folder: Path, rows: int, condition: float, what: str) -> None:
    """Run a part in this process."""
    columns, known = columns_of(rows), folder / f"{rows}-{condition:.0e}.npz"
    if what == "truth":
        made = on_disk(rows, columns, condition, folder)
        np.save(known.with_suffix(".npy"), made.y)
        np.savez(known, **truth(made, PAIRS)._asdict())
        return
    problem = opened(folder, rows, columns, condition, known.with_suffix(".npy"))
    if what == "write":
        write_parquet(problem, known.with_suffix(".parquet"))
        return
    if what == "plain":
        print(json.dumps({"plain": plain_passes(problem.x), "bytes": int(problem.x.nbytes)}))
        return
    found = measured(problem, folder, known.with_suffix(".parquet"), what)
    exact = np.load(known)
    along = found.pop("draws") @ exact["directions"]
    ratio = along.var(0, ddof=1) / exact["variance"]
    found["variances"] = [float(ratio.min()), float(ratio.max())]
    found["mean"] = float((np.abs(along.mean(0) - exact["mean"]) / np.sqrt(exact["variance"])).max())
    found["reference"] = float(exact["error"])
    print(json.dumps(found))


# --- tables ---


def tables(found: list[Row]) -> list[Table]:
    """What came out, where the seconds and the memory went, and how fast the passes were."""
    return [
        Table("Automatic runs from disk", [outcome(f) for f in found]),
        Table("Seconds of each phase", [label(f) | seconds_of_phases(f) for f in found]),
        Table("MB held besides the file, at the peak of each phase", [label(f) | held(f) for f in found]),
        Table("Passes over all data", [label(f) | p for f in found for p in of_passes(f)]),
    ]


def label(f: Row) -> Row:
    """The first column of all tables."""
    return {"data": f"{f['data'].replace('on disk', f['form'])}"}


def outcome(f: Row) -> Row:
    """One run: how long, how good."""
    low, high = f["variances"]
    count = sum(map(len, f["passes"].values()))
    return label(f) | {
        "total, s": round(f["total"], 1),
        "sampling, s": round(f["costs"]["sampling"], 2),
        "passes over all data": count,
        "least ESS": f["ess"],
        "variances, all directions": f"{low:.3f} … {high:.3f}",
        "worst mean, sd": f"{f['mean']:.3f}",
        "reference ±": f"{100 * f['reference']:.2f} %",
        "verdict": f["verdict"],
    }


def seconds_of_phases(f: Row) -> Row:
    """Seconds of each phase."""
    phases = {name: sum(f["phases"].get(name, [0.0])) for name in ("opening", *PHASES)}
    return {n: round(s, 1) for n, s in phases.items()} | {"rest": round(f["total"] - sum(phases.values()), 1)}


def held(f: Row) -> Row:
    """Memory of each phase."""
    return {name: round(f["memory"].get(name, 0.0)) for name in ("opening", *PHASES)}


def of_passes(f: Row) -> list[Row]:
    """How fast each kind of pass was, beside NumPy's."""
    base = f["bytes"] / min(f["plain"]["NumPy's product with a vector"]) / 1e9
    rows = []
    for name, seconds in (f["passes"] | f["plain"]).items():
        rates = f["bytes"] / np.array(seconds) / 1e9
        rows.append(
            {
                "pass": name,
                "count": len(seconds),
                "seconds, each": ", ".join(f"{s:.1f}" for s in seconds),
                "GB/s, the first and the best": f"{rates[0]:.2f}, {rates.max():.2f}",
                "best against NumPy's product": f"{rates.max() / base:.2f}",
            }
        )
    return rows


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
