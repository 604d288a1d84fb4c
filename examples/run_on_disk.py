"""A run in a directory: stop it with Ctrl-C, read what is there, and resume it to the draws that it would have had."""

import signal

import jax.numpy as jnp
import numpy as np

import hamcmc

data = np.random.default_rng(0).normal(3.0, 1.0, size=1000).astype(np.float32)
posterior = hamcmc.Posterior(lambda mean: -0.5 * mean**2, lambda mean, x: -0.5 * (x - mean) ** 2, data)
start = jnp.float32(0.0)


def press_ctrl_c(status):
    """Stand in for someone at the keyboard, half-way through the run."""
    if status.done > 0.5:
        signal.raise_signal(signal.SIGINT)


try:
    hamcmc.sample(
        posterior, "sgld", start, step_size=1e-4, batch_size=100, num_samples=200_000, out="run", overwrite=True,
        progress=press_ctrl_c,
    )  # fmt: skip
except hamcmc.Interrupted as stop:
    print(stop)

print("on disk:", hamcmc.Result.open("run").draws, "draws")
result = hamcmc.resume("run", posterior, start)
print("after resume:", result.draws, "draws with mean", float(result.mean["theta"]))
