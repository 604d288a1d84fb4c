# %% [markdown]
# # A time series and its forecast
#
# An autoregression of order two with a yearly season. A row is a month with the two months before it, so the likelihood
# is a sum over rows as in any regression. The forecast runs each draw forward, with its own noise.

# %%
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import hamcmc

rng = np.random.default_rng(0)
months = 240
series = np.zeros(months)
for t in range(2, months):
    season = 1.5 * np.sin(2 * np.pi * t / 12)
    series[t] = 1.2 * series[t - 1] - 0.4 * series[t - 2] + season + 0.8 * rng.standard_normal()
y, t = series.astype(np.float32), np.arange(months)
wave = np.column_stack([np.sin(2 * np.pi * t / 12), np.cos(2 * np.pi * t / 12)]).astype(np.float32)
data = {"now": y[2:], "before": np.column_stack([y[1:-1], y[:-2]]), "wave": wave[2:]}


def log_prior(p):
    return -0.5 * jnp.sum(p["memory"] ** 2) - 0.5 * jnp.sum((p["season"] / 3) ** 2) - p["noise"]


def log_likelihood(p, row):
    mean = row["before"] @ p["memory"] + row["wave"] @ p["season"]
    return -0.5 * ((row["now"] - mean) / p["noise"]) ** 2 - jnp.log(p["noise"])


init = {"memory": jnp.zeros(2), "season": jnp.zeros(2), "noise": jnp.ones(())}
posterior = hamcmc.Posterior(log_prior, log_likelihood, data, support={"noise": hamcmc.positive()}, init=init)
result = hamcmc.sample(posterior, progress=False)
print(result.check().headline)

# %%
draws = {name: x.reshape(-1, *x.shape[2:])[::10] for name, x in result.posterior.items()}
count, ahead = len(draws["noise"]), 36
paths = np.tile(y[-2:], (count, 1))
for step in range(ahead):
    angle = 2 * np.pi * (months + step) / 12
    mean = draws["memory"][:, 0] * paths[:, -1] + draws["memory"][:, 1] * paths[:, -2]
    mean = mean + draws["season"] @ np.array([np.sin(angle), np.cos(angle)])
    paths = np.column_stack([paths, mean + draws["noise"] * rng.standard_normal(count)])
low, middle, high = np.quantile(paths[:, 2:], [0.05, 0.5, 0.95], axis=0)
print("memory:", draws["memory"].mean(0).round(2), "(true: 1.2 and -0.4)")

# %%
figure = Figure(figsize=(8, 3), layout="constrained")
ax, later = figure.subplots(), np.arange(months, months + ahead)
ax.plot(t[-96:], y[-96:], color="gray")
ax.fill_between(later, low, high, alpha=0.3, label="middle 90 %")
ax.plot(later, middle, label="median")
ax.set(xlabel="month")
ax.legend(frameon=False)
