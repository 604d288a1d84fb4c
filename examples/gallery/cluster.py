# %% [markdown]
# # Several processes, as on a cluster
#
# The same factorization on one process and on two, as `hamcmc factorize ratings.csv --blocks 2 --processes 2` or
# `mpirun -n 2 hamcmc factorize …` makes it. Both have the same draws up to rounding. [Several processes and
# machines](../cluster.md) has the commands for Slurm and what to do when a machine fails.

# %%
import time

import numpy as np
from matplotlib.figure import Figure

import hamcmc
from hamcmc.factorization.synthetic import movielens_like

ratings = movielens_like(users=300, items=120, ratings=9_000, rank=3, seed=0).ratings
how = {"rank": 3, "num_samples": 40, "warmup": 10, "blocks": 2, "seed": 0, "progress": False}
models, seconds = {}, {}
for processes in (1, 2):
    began = time.perf_counter()
    models[processes] = hamcmc.factorize(ratings, f"run-{processes}", processes=processes, overwrite=True, **how)
    seconds[processes] = time.perf_counter() - began
print("test RMSE:", {p: round(m.rmse(), 4) for p, m in models.items()})

# %%
noise = {p: m.hyper["noise_precision"] for p, m in models.items()}
print(f"largest relative difference of a draw: {np.max(np.abs(noise[1] / noise[2] - 1)):.1e}")

# %%
figure = Figure(figsize=(7, 2.6), layout="constrained")
ax = figure.subplots()
for processes, style in ((1, "-"), (2, "--")):
    ax.plot(noise[processes], style, linewidth=3 - processes, label=f"{processes} process{'es' * (processes > 1)}")
ax.set(xlabel="draw", ylabel="precision of the noise")
ax.legend(frameon=False)
