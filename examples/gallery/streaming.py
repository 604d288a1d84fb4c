# %% [markdown]
# # Data that stay on disk
#
# Arrays that are memory-mapped are streamed: minibatches are read as they are needed, so the data may be larger than
# memory. For a Parquet file, `hamcmc.columns` makes such arrays once.

# %%
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import hamcmc

rng = np.random.default_rng(0)
rows, truth = 200_000, np.array([0.5, -1.0, 0.3, 0.8])
x = np.lib.format.open_memmap("x.npy", "w+", np.float32, (rows, 4))
y = np.lib.format.open_memmap("y.npy", "w+", np.float32, (rows,))
for start in range(0, rows, 50_000):  # as a file that does not fit in memory would be written
    part = slice(start, start + 50_000)
    x[part] = rng.standard_normal((50_000, 4))
    y[part] = x[part] @ truth + rng.standard_normal(50_000)
x.flush(), y.flush()


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, row):
    return -0.5 * (row["y"] - row["x"] @ theta) ** 2


data = {"x": np.load("x.npy", mmap_mode="r"), "y": np.load("y.npy", mmap_mode="r")}
result = hamcmc.sample(hamcmc.Posterior(log_prior, log_likelihood, data, init=jnp.zeros(4)), progress=False)
print(result.check().headline)
print(f"minibatches of {result.settings['batch_size']:,} rows")

# %%
draws = result.posterior["theta"].reshape(-1, 4)
exact = np.linalg.solve(np.eye(4) + data["x"].T @ data["x"], data["x"].T @ data["y"])
print("off by", ((draws.mean(0) - exact) / draws.std(0)).round(2), "standard deviations from the exact mean")

# %%
figure = Figure(figsize=(8, 2.4), layout="constrained")
for i, ax in enumerate(figure.subplots(1, 4)):
    ax.hist(draws[:, i], bins=50, density=True)
    ax.axvline(exact[i], color="C1", linestyle="dashed")
    ax.set(xlabel=f"theta[{i}]", yticks=[])
