"""Whether two checkouts of hamcmc run equally fast: a check on changes that should only move code.

    python tools/compare_speed.py OLD NEW [--rounds 15] [--only CASE ...]

Each checkout has a process of its own, which keeps its compiled programs. The two take turns, and the order of the two
changes from round to round. What is compared is the time of the compiled loop as a run itself reports it, without
compiling. The last column is the median of the ratios new/old of neighbouring runs, with their quartiles.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from compare_draws import call, find, logistic

SAMPLING = {"warmup": 100, "batch_size": 100, "progress": False, "seed": 3}
CASES = {
    "sgld": {"sampler": "sgld", "step_size": 1e-4, "num_samples": 60_000},
    "hamcmc": {"sampler": "hamcmc", "step_size": 1e-4, "num_samples": 20_000, "memory": 3, "gamma": 1e-3},
    "ensemble_hamcmc": {"sampler": "ensemble_hamcmc", "step_size": 0.1, "num_samples": 1500, "warmup": 1000},
    "factorization": {"sampler": "hamcmc", "num_samples": 60, "warmup": 20, "rank": 10, "progress": False},
}


def seconds(case: str) -> float:
    """The time of one run's loop."""
    asked = dict(CASES[case])
    if case == "factorization":
        ratings = find("hamcmc.factorization.synthetic.movielens_like")(2000, 1500, 200_000, rank=5, seed=0).ratings
        names = "hamcmc.factorize", "hamcmc.factorization.run.factorize"
        like = find("hamcmc.factorization.run.prepare", *names)
        with tempfile.TemporaryDirectory() as folder:
            found = call(find(*names), ratings, Path(folder) / "run", like=like, **asked)
        return float(found.meta["seconds"])
    posterior, init = logistic()
    sampler = asked.pop("sampler")
    found = call(find("hamcmc.sample"), posterior, sampler, init, **(SAMPLING | asked))
    return float(found.meta["seconds"])


def serve() -> None:
    """Read names of cases, write seconds."""
    for line in sys.stdin:
        print(f"seconds {seconds(line.strip())}", flush=True)


class Checkout:
    """A process that runs cases in a checkout."""

    def __init__(self, path: Path):
        python = path / ".venv" / "bin" / "python"
        self.process = subprocess.Popen(
            [str(python) if python.exists() else sys.executable, __file__, "--serve"],
            env=os.environ | {"PYTHONPATH": str(path / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, case: str) -> float:
        """Seconds of one run."""
        print(case, file=self.process.stdin, flush=True)
        for line in self.process.stdout or ():
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit(f"the process of {self.process.args} ended with code {self.process.wait()}")


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?")
    parser.add_argument("new", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    if given.old is None or given.new is None:
        parser.error("two checkouts are needed")
    both = [Checkout(given.old.resolve()), Checkout(given.new.resolve())]
    for case in given.only:
        for checkout in both:
            checkout.run(case)
        taken = np.empty((given.rounds, 2))
        for r in range(given.rounds):
            for k in (0, 1) if r % 2 else (1, 0):
                taken[r, k] = both[k].run(case)
        low, median, high = np.quantile(taken[:, 1] / taken[:, 0], [0.25, 0.5, 0.75])
        old, new = np.median(taken, 0)
        print(f"{case:<16} old {old:.3f} s  new {new:.3f} s  new/old {median:.3f} ({low:.3f}–{high:.3f})", flush=True)


if __name__ == "__main__":
    main()
