"""A run for processes that are killed; they are forked from one that has imported this, and then start quickly."""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import zarr  # noqa: F401 before the fork, for it takes long

import hamcmc
import hamcmc.inference.job
from hamcmc.target import linear_gaussian as lg


def job(out, pause, cache, said):
    """Start or resume the run in `out`; programs go to the directory `cache`, messages to the file `said`."""
    with open(said, "w") as file:
        os.dup2(file.fileno(), sys.__stderr__.fileno())
    sys.stderr = sys.__stderr__
    jax.config.update("jax_compilation_cache_dir", str(cache))
    hamcmc.inference.job.segment_length = lambda *_: 50
    posterior = lg.linear_gaussian(lg.simulate(np.random.default_rng(0), 200, np.eye(3), 10.0), 10.0)
    how = {"checkpoint_seconds": 0.02, "progress": lambda status: time.sleep(pause)}
    run = {"num_samples": 1500, "warmup": 100, "thin": 2, "batch_size": 20, "chains": 2}
    try:
        if (out / "run.json").exists():
            hamcmc.resume(out, posterior, jnp.zeros(3), **how)
        else:
            schedule = hamcmc.Polynomial(1e-4)
            hamcmc.sample(posterior, "hamcmc", jnp.zeros(3), step_size=schedule, out=out, **run, **how)
    except hamcmc.Interrupted as stop:
        print(stop, file=sys.stderr)
        sys.exit(128 + stop.signal)
