# %% [markdown]
# # Groups that borrow strength
#
# 40 schools with few pupils each. A school's effect is drawn towards the mean of all, the more the fewer pupils it has.
# Effects are written as mean + scale × raw with a standard normal `raw`: this form samples well where groups
# are small.

# %%
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import hamcmc

rng = np.random.default_rng(0)
pupils = rng.integers(2, 40, 40)
effect = 5 + 2 * rng.standard_normal(40)
school = np.repeat(np.arange(40), pupils)
score = (effect[school] + 6 * rng.standard_normal(len(school))).astype(np.float32)


def log_prior(p):
    return (
        -0.5 * jnp.sum(p["raw"] ** 2)
        - 0.5 * (p["mean"] / 10) ** 2
        - 0.5 * (p["scale"] / 5) ** 2
        - 0.5 * (p["noise"] / 10) ** 2
    )


def log_likelihood(p, row):
    centre = p["mean"] + p["scale"] * p["raw"][row["school"]]
    return -0.5 * ((row["score"] - centre) / p["noise"]) ** 2 - jnp.log(p["noise"])


posterior = hamcmc.Posterior(
    log_prior,
    log_likelihood,
    {"school": school, "score": score},
    support={"scale": hamcmc.positive(), "noise": hamcmc.positive()},
    init={"raw": jnp.zeros(40), "mean": jnp.zeros(()), "scale": jnp.ones(()), "noise": jnp.ones(())},
)
result = hamcmc.sample(posterior, progress=False)
print(result.check().headline)

# %%
p = {name: x.reshape(-1, *x.shape[2:]) for name, x in result.posterior.items()}
schools = p["mean"][:, None] + p["scale"][:, None] * p["raw"]
low, middle, high = np.quantile(schools, [0.05, 0.5, 0.95], axis=0)
plain = np.bincount(school, score) / pupils
for name, estimate in (("plain means", plain), ("posterior medians", middle)):
    print(f"{name}: off by {np.sqrt(np.mean((estimate - effect) ** 2)):.2f} on average")

# %%
figure = Figure(figsize=(8, 3.2), layout="constrained")
ax, order = figure.subplots(), np.argsort(pupils, kind="stable")
ax.vlines(range(40), low[order], high[order], color="C0", linewidth=3, alpha=0.5, label="middle 90 %")
ax.plot(range(40), plain[order], "x", color="gray", label="plain mean")
ax.plot(range(40), effect[order], ".", color="C1", label="truth")
ax.set(xlabel="schools, from the smallest to the largest", ylabel="effect", xticks=[])
ax.legend(frameon=False, ncols=3)
