# %% [markdown]
# # Regression with columns in any units
#
# House prices from area, age and distance to the centre. The columns differ by orders of magnitude, and nothing is
# scaled: the run finds the scales from the Hessian at the mode. Only the prior needs thought. It is stated for the
# effect of one standard deviation of a column, so that it means the same in every unit.

# %%
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import hamcmc

rng = np.random.default_rng(0)
rows = 5_000
area, age, metres = rng.gamma(8, 12, rows), rng.uniform(0, 100, rows), rng.gamma(2, 3_000, rows)
x = np.column_stack([np.ones(rows), area, age, metres])
truth = np.array([50_000.0, 3_000.0, -400.0, -8.0])
price = x @ truth + 40_000 * rng.standard_normal(rows)
unit = np.array([price.std(), *(price.std() / x[:, 1:].std(0))])  # of each coefficient


def log_prior(p):
    return -0.5 * jnp.sum((p["effect"] / 3) ** 2) - p["noise"]


def log_likelihood(p, row):
    mean = row["x"] @ (p["effect"] * unit)
    return -0.5 * ((row["y"] - mean) / (p["noise"] * price.std())) ** 2 - jnp.log(p["noise"])


posterior = hamcmc.Posterior(
    log_prior,
    log_likelihood,
    {"x": x.astype(np.float32), "y": price.astype(np.float32)},
    support={"noise": hamcmc.positive()},
    init={"effect": jnp.zeros(4), "noise": jnp.ones(())},
)
result = hamcmc.sample(posterior, progress=False)
print(result.check().headline)

# %%
draws = result.posterior["effect"].reshape(-1, 4) * unit
names = ("constant", "a square metre", "a year", "a metre away")
for name, value, low, high in zip(names, truth, *np.quantile(draws, [0.05, 0.95], axis=0)):
    print(f"{name}: {low:,.1f} to {high:,.1f} (true: {value:,.1f})")

# %%
figure = Figure(figsize=(8, 2.4), layout="constrained")
for ax, name, value, own in zip(figure.subplots(1, 4), names, truth, draws.T):
    ax.hist(own, bins=50, density=True)
    ax.axvline(value, color="C1", linestyle="dashed")
    ax.set(xlabel=name, yticks=[])
