# %% [markdown]
# # Outliers, by a mixture
#
# Some measurements are broken. The likelihood of a row is a mixture of a narrow normal around the line and a wide one;
# which rows are broken is summed out, so all parameters stay continuous. The posterior then says of each row how
# probably it is an outlier.

# %%
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import hamcmc

rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, 400).astype(np.float32)
broken = rng.random(400) < 0.12
y = (1 + 2 * x + 0.3 * rng.standard_normal(400) + broken * 4 * rng.standard_normal(400)).astype(np.float32)


def normal(z, scale):
    return -0.5 * (z / scale) ** 2 - jnp.log(scale)


def parts(p, row):
    residual = row["y"] - p["line"][0] - p["line"][1] * row["x"]
    wide = jnp.sqrt(p["noise"] ** 2 + 16.0)
    return jnp.log1p(-p["share"]) + normal(residual, p["noise"]), jnp.log(p["share"]) + normal(residual, wide)


def log_prior(p):
    return -0.5 * jnp.sum((p["line"] / 5) ** 2) - p["noise"] + 8 * jnp.log1p(-p["share"])


def log_likelihood(p, row):
    return jnp.logaddexp(*parts(p, row))


posterior = hamcmc.Posterior(
    log_prior,
    log_likelihood,
    {"x": x, "y": y},
    support={"noise": hamcmc.positive(), "share": hamcmc.bounded(0.0, 1.0)},
    init={"line": jnp.zeros(2), "noise": jnp.ones(()), "share": jnp.full((), 0.1)},
)
result = hamcmc.sample(posterior, progress=False)
print(result.check().headline)


# %%
def chance(p, rows):
    usual, wide = parts(p, rows)
    return jax.nn.sigmoid(wide - usual)


found = result.predict(chance, {"x": x, "y": y}).mean
print(f"{np.mean(found[broken] > 0.5):.0%} of the broken rows are found, {np.mean(found[~broken] > 0.5):.1%} of others")

# %%
figure = Figure(figsize=(7, 3.4), layout="constrained")
ax = figure.subplots()
dots = ax.scatter(x, y, c=found, cmap="coolwarm", s=14)
slope = result.posterior["line"].reshape(-1, 2)[::200]
ax.plot(np.array([-2, 2]), slope[:, :1].T + slope[:, 1:].T * np.array([[-2], [2]]), color="black", alpha=0.1)
ax.set(xlabel="x", ylabel="y")
figure.colorbar(dots, label="probability of an outlier")
