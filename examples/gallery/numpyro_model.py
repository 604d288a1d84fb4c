# %% [markdown]
# # A NumPyro model, unchanged
#
# A model that you have already. Its latent sites become parameters with the same names and supports, and
# `hamcmc.sample` plans the run as for any posterior.

# %%
import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.figure import Figure

import hamcmc
from hamcmc.interop import from_numpyro

rng = np.random.default_rng(0)
x = rng.normal(size=(3_000, 2)).astype(np.float32)
y = rng.negative_binomial(5, 5 / (5 + np.exp(0.5 + x @ [0.6, -0.4]))).astype(np.float32)


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    constant = numpyro.sample("constant", dist.Normal(0, 2))
    spread = numpyro.sample("spread", dist.Exponential(0.1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(np.e ** (constant + x @ slope), spread), obs=y)


init = {"slope": np.zeros(2, np.float32), "constant": np.float32(0), "spread": np.float32(1)}
result = hamcmc.sample(from_numpyro(model, x, y), init=init, progress=False)
print(result.check().headline)
print(result.summary())

# %%
figure = Figure(figsize=(8, 2.4), layout="constrained")
slope = result.posterior["slope"].reshape(-1, 2)
shown = {"slope[0]": (slope[:, 0], 0.6), "slope[1]": (slope[:, 1], -0.4), "spread": (result.posterior["spread"], 5)}
for ax, (name, (draws, truth)) in zip(figure.subplots(1, 3), shown.items()):
    ax.hist(np.ravel(draws), bins=50, density=True)
    ax.axvline(truth, color="C1", linestyle="dashed")
    ax.set(xlabel=name, yticks=[])
