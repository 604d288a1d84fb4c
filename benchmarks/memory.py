"""Memory: that of the process during ten million iterations of HAMCMC, and what the compiled loop holds.

Draws go to a run directory. The second table compares what XLA reports for the compiled loop with M·D numbers.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

import hamcmc
from benchmarks.measure import Table
from benchmarks.problems import STEP_SIZE, Problem, problem
from hamcmc.inference import compiled as loop
from hamcmc.inference import schedules

PAGE = 4096


def run(quick: bool) -> list[Table]:
    """Buffers by XLA's own account, and the resident memory of a long run in a process of its own."""
    iterations = 10**6 if quick else 10**7
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", str(iterations)], check=True, capture_output=True, text=True
    )
    flat = Table(f"Resident memory of {iterations:,} iterations of HAMCMC, M=3, D=2", json.loads(done.stdout))
    p = problem(100_000 if quick else 10**6)
    return [flat, Table("Buffers of the compiled loop against M·D numbers", [buffers(p, m) for m in (2, 3, 5, 10)])]


def buffers(p: Problem, memory: int) -> dict:
    """What one visit holds beside the data: its state, moments, one slot for draws and XLA's temporaries."""
    sampler = hamcmc.hamcmc(p.posterior.grad, memory=memory)
    visit = loop.build(
        p.posterior,
        sampler,
        schedules.Constant(STEP_SIZE),
        batch_size=p.batch_size,
        replace=True,
        chains=1,
        thin=100,
        slots=1,
    )
    state = jax.eval_shape(lambda x: jax.tree.map(lambda v: v[None], sampler.init(x)), p.start)
    analysis = visit.lower(p.posterior.data, state, loop.keys(0, 1), 0, 100, 0, True).compile().memory_analysis()
    held = analysis.output_size_in_bytes + analysis.temp_size_in_bytes
    return {
        "D": p.start.size,
        "M": memory,
        "outputs, MB": round(analysis.output_size_in_bytes / 1e6, 1),
        "temporaries, MB": round(analysis.temp_size_in_bytes / 1e6, 1),
        "numbers held / (M·D)": round(held / 4 / (memory * p.start.size), 2),
    }


def long_run(iterations: int) -> list[dict]:
    """Sample into a run directory, and read the process's resident memory on the way."""
    p, rows, marks = problem(2), [], [0.1, 0.5, 1.0]

    def note(status) -> None:
        while marks and status.iteration >= marks[0] * iterations:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            rows.append({"done": f"{marks.pop(0):.0%}", "draws": status.draws, "RSS, MB": round(pages * PAGE / 1e6, 1)})

    with tempfile.TemporaryDirectory() as folder:
        hamcmc.sample(
            p.posterior,
            "hamcmc",
            jnp.zeros(2),
            memory=3,
            gamma=1e-3,
            step_size=0.01,
            num_samples=iterations // 1000,
            thin=1000,
            batch_size=p.batch_size,
            out=Path(folder) / "run",
            progress=note,
        )
    return rows


if __name__ == "__main__":
    print(json.dumps(long_run(int(sys.argv[1]))))
