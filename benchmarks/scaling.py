"""Any posterior on several processes: gradients per second of a logistic regression on all data and on minibatches.

Processes share the rows, talk over loopback, and have one core each. The last table extrapolates: a gradient takes the
time of its rows on one core, and the ring of an all-gather over P hosts takes P − 1 times what a message between two
processes took here. A host is one core of this machine.
"""

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

import hamcmc
from benchmarks.measure import Table
from hamcmc.inference import launch
from hamcmc.target.sharded import Sharded

REPLICAS, BATCH, COLUMNS = 16, 20_000, 50
WAYS = {"1 process, 1 core": (1, 1), "1 process, 2 cores": (1, 2), "2 processes, 1 core each": (2, 2)}
HOSTS, LARGE = (1, 2, 4, 16, 64), (10**6, 10**9)  # rows


def run(quick: bool) -> list[Table]:
    """Time each way in processes of its own."""
    rows, found = 10**5 if quick else 10**6, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((rows, COLUMNS), np.float32)
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", (rng.random(rows) < 1 / (1 + np.exp(-x[:, 0]))).astype(np.float32))
        del x
        for _ in range(1 if quick else 2):
            for way, (processes, cores) in WAYS.items():
                launch.launch(folder, processes, "benchmarks.scaling", (name, str(cores), "1" if quick else "2"))
                once = json.loads((folder / "times.json").read_text())
                found[way] = {k: min(v, found.get(way, once)[k]) for k, v in once.items()}
    base, pair = found["1 process, 1 core"], found["2 processes, 1 core each"]
    throughput = [
        {
            "a gradient on": what,
            "": way,
            "gradients/s": f"{REPLICAS / times[key]:.3g}",
            "rows/s": f"{REPLICAS * count / times[key]:.2g}",
            "against one core": f"{base[key] / times[key]:.2f}",
            "in messages": f"{times['message'] / times[key]:.1%}" if way.startswith("2") else "",
        }
        for what, key, count in (
            (f"all {rows:,} rows", "all", rows),
            (f"minibatches of {BATCH:,}", "minibatch", BATCH),
        )
        for way, times in found.items()
    ]
    each, latency = base["all"] / rows, pair["message"]
    hosts = [
        {
            "rows": f"{n:.0e}".replace("e+0", "e"),
            "hosts": str(p),
            "compute, ms": f"{1e3 * each * n / p:.3g}",
            "message, ms": f"{1e3 * latency * (p - 1):.3g}",
            "gradients/s": f"{REPLICAS / (each * n / p + latency * (p - 1)):.3g}",
            "efficiency": f"{each * n / p / (each * n / p + latency * (p - 1)):.0%}",
        }
        for n in LARGE
        for p in HOSTS
    ]
    title = f"{REPLICAS} replicas, {COLUMNS} parameters"
    return [Table(f"Throughput: {title}", throughput), Table(f"On paper: all data on 1 to 64 hosts, {title}", hosts)]


# --- in each process ---


def log_prior(theta: jax.Array) -> jax.Array:
    """Standard normal."""
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta: jax.Array, datum: Any) -> jax.Array:
    """Of one row."""
    eta = datum["x"] @ theta
    return datum["y"] * eta - jnp.logaddexp(0, eta)


def measure(folder: Path, seconds: float) -> None:
    """Seconds of a gradient of all replicas on all data and on a minibatch, and of its message alone."""
    data = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y")}
    posterior = Sharded(hamcmc.Posterior(log_prior, log_likelihood, data, init=np.zeros(COLUMNS)))
    theta = posterior.place(np.zeros((REPLICAS, COLUMNS), np.float32))
    each = jax.vmap(posterior.grad, (0, None))

    @jax.jit
    def on_all(data: Any, theta: jax.Array, count: int) -> jax.Array:
        return lax.fori_loop(0, count, lambda _, x: x + 1e-9 * each(x, data), theta)

    @jax.jit
    def on_minibatches(data: Any, theta: jax.Array, count: int) -> jax.Array:
        def step(t: jax.Array, x: jax.Array) -> jax.Array:
            rows = posterior.minibatch_indices(jax.random.key(0), t, BATCH, True)
            return x + 1e-9 * each(x, posterior.gathered(data, rows))

        return lax.fori_loop(0, count, step, theta)

    @jax.jit
    def messages(data: Any, theta: jax.Array, count: int) -> jax.Array:
        empty = jax.vmap(posterior._total(lambda x, _: ravel_pytree(x)[0]), (0, None))
        return lax.fori_loop(0, count, lambda _, x: empty(x, data.weight), theta)

    work = {"all": on_all, "minibatch": on_minibatches, "message": messages}
    found = {name: timed(partial(f, posterior.data, theta), seconds) for name, f in work.items()}
    if jax.process_index() == 0:
        (folder / "times.json").write_text(json.dumps(found))


def timed(burst: Any, seconds: float) -> float:
    """Seconds of one iteration, in the best of three bursts, whose length the first process chooses."""
    from hamcmc._processes import told

    jax.block_until_ready(burst(2))
    began = time.perf_counter()
    jax.block_until_ready(burst(2))
    count = int(np.clip(told(seconds / 3 * 2 / (time.perf_counter() - began)), 3, 10_000))
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(burst(count))
        taken.append((time.perf_counter() - began) / count)
    return told(min(taken))


if __name__ == "__main__":
    if hasattr(os, "sched_getaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])
    launch.leave(launch.together(partial(measure, Path(sys.argv[1]), float(sys.argv[3]))))
