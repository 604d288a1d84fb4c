"""Where the seconds of a user go: logistic regression with 5, 100 and 1000 parameters, by one automatic call.

Each run is a process of its own, from the start of Python to the printed summary. "Cold" is the first run on a machine,
"kept" a later one, with other data of the same size, which finds the compiled programs of the first. NumPyro's NUTS is
beside them as its documentation has it: 4 vectorized chains, 500 + 500 iterations. Methods take turns; seconds are
medians over rounds. "Hand-set" is hamcmc with the sampler and the mode to start from, so that little is left to decide.
"Rest" is what no other column has: checks of the input, traces for the record, and the store. With ``--before PATH``, a
checkout of version 0.1.0, one automatic run of that version is added: there "mode" has the tuning of ε, and "rest" has
tracing, compiling and warm-up.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Against, Table, ratio

SIZES = {5: 10_000, 100: 10_000, 1000: 2_000}  # parameters: rows
ROUNDS = {5: 5, 100: 3, 1000: 1}
PARTS = ("import", "data", "mode", "trace", "compile", "warm-up", "sampling", "verdict", "summary", "rest")
METHODS = ("hamcmc, cold", "hamcmc, kept", "hand-set, cold", "NUTS")
ENOUGH, OLD = 600.0, 300.0  # seconds for a process, and for one of 0.1.0


def run(quick: bool, before: str = "") -> list[Table]:
    """A table for each number of parameters."""
    sizes = {5: 1000} if quick else SIZES
    return [of_size(columns, rows, 1 if quick else ROUNDS[columns], before) for columns, rows in sizes.items()]


def of_size(columns: int, rows: int, rounds: int, before: str) -> Table:
    """All methods on one problem, interleaved."""
    found: dict[str, list[dict[str, float]]] = {m: [] for m in METHODS}
    with tempfile.TemporaryDirectory() as folder:
        process("hamcmc, kept", columns, rows, 10**6, folder)  # which fills the cache
        for r in range(rounds):
            for method in METHODS[:: 1 if r % 2 else -1]:
                found[method].append(process(method, columns, rows, r, folder))
    table = [{"method": m} | medians(found[m]) for m in METHODS]
    if before:
        table.append({"method": "hamcmc 0.1.0"} | of_old(columns, rows, before))
    totals = {m: np.array([f["total"] for f in found[m]]) for m in METHODS}
    what = f"seconds from the start of Python to the summary, {rows:,} × {columns}"
    against = [
        Against("NumPyro NUTS", f"{what}, {m}", f"takes {ratio(totals[m], totals['NUTS'])} of its time", who)
        for m in METHODS[:2]
        for who in [ahead(totals[m] / totals["NUTS"])]
    ]
    against.append(Against("hamcmc, hand-set", what, f"takes {ratio(totals[METHODS[0]], totals[METHODS[2]])}", "–"))
    return Table(f"Seconds, logistic regression, {rows:,} rows, {columns:,} parameters", table, against)


def ahead(share: np.ndarray) -> str:
    """Who took less time in all rounds, by our share of the peer's; by more than a tenth, if there was one round."""
    slack = 0.1 if len(share) == 1 else 0.0
    return "hamcmc" if (share < 1 - slack).all() else "peer" if (share > 1 + slack).all() else "even"


def medians(found: list[dict[str, float]]) -> dict[str, str]:
    """Of each part, and the range of the whole."""
    parts = {f"{p}, s": f"{np.median([f[p] for f in found]):.2f}" if p in found[0] else "–" for p in PARTS}
    totals = [f["total"] for f in found]
    return parts | {"total, s": f"{np.median(totals):.2f} ({min(totals):.2f}–{max(totals):.2f})"}


def of_old(columns: int, rows: int, before: str) -> dict[str, str]:
    """The row of version 0.1.0."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, **dict(zip("xy", made(columns, rows, 0))))
        script = Path(__file__).with_name("seconds_before.py")
        try:
            done = subprocess.run(
                [sys.executable, str(script), str(data), str(time.time())],
                env=os.environ | {"PYTHONPATH": str(Path(before).resolve() / "src")},
                capture_output=True,
                text=True,
                timeout=OLD,
                check=True,
            )
        except subprocess.TimeoutExpired:
            return {f"{p}, s": "–" for p in PARTS} | {"total, s": f"not finished after {OLD:.0f}"}
    found = medians([json.loads(done.stdout.strip().splitlines()[-1])])
    return found | {"total, s": found["total, s"].split(" ")[0]}


def process(method: str, columns: int, rows: int, seed: int, cache: str) -> dict[str, float]:
    """The seconds of one process, by its own account; the start of Python is counted to its imports."""
    environment = os.environ | {"HAMCMC_CACHE": cache if "kept" in method else "off"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is not parsed again at each start
    arguments = [method, str(columns), str(rows), str(seed)]
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.seconds", *arguments, str(began)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENOUGH,
        check=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def made(columns: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    theta = rng.standard_normal(columns) / np.sqrt(columns)
    return x, (rng.random(rows) < 1 / (1 + np.exp(-x @ theta))).astype(np.float32)


def ours(columns: int, rows: int, seed: int, began: float, automatic: bool) -> dict[str, float]:
    """One call, and its summary."""
    import jax.numpy as jnp

    import hamcmc

    imported = time.time()

    def log_prior(theta: Any) -> Any:
        return -0.5 * jnp.sum(theta**2)

    def log_likelihood(theta: Any, row: Any) -> Any:
        x, y = row
        return -jnp.logaddexp(0.0, jnp.where(y > 0, -1.0, 1.0) * (x @ theta))

    x, y = made(columns, rows, seed)
    posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, y), init=jnp.zeros(columns))
    built = time.time()
    how: dict[str, Any] = {}
    if not automatic:
        start = hamcmc.find_mode(posterior)
        how = {"sampler": "ensemble_hmc", "init": start, "adapt": 300, "num_samples": 250, "ensembles": 2}
    result = hamcmc.sample(posterior, progress=False, seed=seed, **how)
    drawn = time.time()
    str(result.check())
    str(result.summary())
    finished = time.time()
    costs = result.meta["costs"]
    found = {"import": imported - began, "data": built - imported, "mode": costs["mode"], "trace": costs["trace"]}
    found |= {"compile": costs["compile"], "warm-up": costs["adaptation"], "sampling": costs["sampling"]}
    found |= {"verdict": costs.get("verdict", 0.0), "summary": finished - drawn}
    return found | {"rest": finished - began - sum(found.values()), "total": finished - began}


def nuts(columns: int, rows: int, seed: int, began: float) -> dict[str, float]:
    """NumPyro's, as in its examples."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    imported = time.time()

    def model(x: Any, y: Any) -> None:
        theta = numpyro.sample("theta", dist.Normal(0, 1).expand([columns]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ theta), obs=y)

    x, y = map(jnp.asarray, made(columns, rows, seed))
    built = time.time()
    chains = MCMC(
        NUTS(model), num_warmup=500, num_samples=500, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    chains.run(jax.random.key(seed), x, y)
    jax.block_until_ready(chains.get_samples())
    drawn = time.time()
    chains.print_summary()
    finished = time.time()
    found = {"import": imported - began, "data": built - imported, "sampling": drawn - built}
    return found | {"summary": finished - drawn, "total": finished - began}


def main() -> None:
    """One process."""
    method, columns, rows, seed, began = sys.argv[1:]
    size = (int(columns), int(rows), int(seed), float(began))
    print(json.dumps(nuts(*size) if method == "NUTS" else ours(*size, "hand" not in method)))


if __name__ == "__main__":
    main()
