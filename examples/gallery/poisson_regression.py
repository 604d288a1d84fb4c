# %% [markdown]
# # Counts, and a model that does not fit them
#
# A Poisson regression of counts. The predictive check compares the data with data that draws of the posterior generate:
# here the data have more zeros than the model ever makes, which no look at the coefficients would show.

# %%
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import hamcmc
from hamcmc.report import write_report

rng = np.random.default_rng(0)
x = np.column_stack([np.ones(2_000), rng.standard_normal((2_000, 2))]).astype(np.float32)
mean = np.exp(x @ np.array([0.7, 0.4, -0.3]))
counts = (rng.poisson(mean) * (rng.random(2_000) > 0.15)).astype(np.float32)  # some counters were broken


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, row):
    x, count = row
    return count * (x @ theta) - jnp.exp(x @ theta)


result = hamcmc.sample(hamcmc.Posterior(log_prior, log_likelihood, (x, counts), init=jnp.zeros(3)), progress=False)
print(result.check().headline)

# %%
rate = result.predict(lambda theta, x: jnp.exp(x @ theta), x, draws=200).draws
made = rng.poisson(rate)
write_report(result, "report.html", predictive={"count": (counts, made)})
zeros = (made == 0).mean(1)
print(f"zeros: {(counts == 0).mean():.3f} of the data; {zeros.min():.3f} to {zeros.max():.3f} in generated data")

# %%
figure = Figure(figsize=(6, 3), layout="constrained")
ax, values = figure.subplots(), np.arange(9)
shares = np.array([[np.mean(row == v) for v in values] for row in made])
ax.fill_between(values, *np.quantile(shares, [0.025, 0.975], axis=0), alpha=0.4, label="generated, middle 95 %")
ax.plot(values, [np.mean(counts == v) for v in values], "o-", color="C1", label="observed")
ax.set(xlabel="count", ylabel="share")
ax.legend(frameon=False)
