# %% [markdown]
# # Logistic regression on 100 000 rows, and whether its probabilities hold
#
# Which customers leave? The posterior gives each customer a probability with an interval. On rows that were held out,
# the shares that left should lie on the diagonal.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import hamcmc

rng = np.random.default_rng(0)
x = np.column_stack([np.ones(110_000), rng.standard_normal((110_000, 9))]).astype(np.float32)
left = rng.random(110_000) < 1 / (1 + np.exp(-x @ (0.8 * rng.standard_normal(10))))
seen, new = slice(0, 100_000), slice(100_000, None)


def log_prior(theta):
    return -0.5 * jnp.sum((theta / 2) ** 2)


def log_likelihood(theta, row):
    x, left = row
    return -jnp.logaddexp(0.0, jnp.where(left, -1.0, 1.0) * (x @ theta))


posterior = hamcmc.Posterior(log_prior, log_likelihood, (x[seen], left[seen]), init=jnp.zeros(10))
result = hamcmc.sample(posterior, progress=False)
print(result.check().headline)

# %%
found = result.predict(lambda theta, x: jax.nn.sigmoid(x @ theta), x[new], draws=200)
groups = np.array_split(np.argsort(found.mean), 20)
predicted, happened = (np.array([v[g].mean() for g in groups]) for v in (found.mean, left[new]))
print(f"largest difference between prediction and share: {np.abs(predicted - happened).max():.3f}")

# %%
figure = Figure(figsize=(4, 4), layout="constrained")
ax = figure.subplots()
chance = 1.96 * np.sqrt(predicted * (1 - predicted) / len(groups[0]))
ax.errorbar(predicted, happened, chance, fmt="o", capsize=2)
ax.plot([0, 1], [0, 1], color="gray", linewidth=1)
ax.set(xlabel="predicted probability", ylabel="share that left", aspect="equal")
