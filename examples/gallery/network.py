# %% [markdown]
# # A network with intervals
#
# A network of Equinox is trained as usual. Then its last layer is sampled, given the others: the intervals widen where
# there are no data. [Predictions of a network](../networks.md) shows the posterior of all layers.

# %%
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import hamcmc

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -1, 150), rng.uniform(1, 3, 150)]).astype(np.float32)[:, None]
y = (np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(300)).astype(np.float32)


def log_prior(network):
    return -0.5 * sum(jnp.sum(w**2) for w in jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array)))


def log_likelihood(network, rows):  # of many rows at once: batched=True
    return -0.5 * ((rows[1] - jax.vmap(network)(rows[0])) / 0.1) ** 2


network = eqx.nn.MLP(1, "scalar", width_size=24, depth=2, activation=jnp.tanh, key=jax.random.key(0))
weights, rest = eqx.partition(network, eqx.is_inexact_array)
adam = optax.adam(1e-2)


def loss(weights):
    network = eqx.combine(weights, rest)
    return -(log_prior(network) + jnp.sum(log_likelihood(network, (x, y)))) / len(x)


def step(both, _):
    updates, state = adam.update(jax.grad(loss)(both[0]), both[1])
    return (optax.apply_updates(both[0], updates), state), None


(weights, _), _ = jax.jit(lambda both: jax.lax.scan(step, both, length=800))((weights, adam.init(weights)))

# %%
network = eqx.combine(weights, rest)
posterior = hamcmc.Posterior(log_prior, log_likelihood, (x, y), init=network, sampled=["layers.2"], batched=True)
result = hamcmc.sample(posterior, progress=False)
print(result.check().headline)
new = np.linspace(-4, 4, 200, dtype=np.float32)[:, None]
found = result.predict(lambda network, x: jax.vmap(network)(x), new)
print(f"width of the interval: {(found.high - found.low)[100]:.2f} at 0, {(found.high - found.low)[150]:.2f} at 2")

# %%
figure = Figure(figsize=(7, 3), layout="constrained")
ax = figure.subplots()
ax.plot(x[:, 0], y, ".", color="gray", markersize=3)
ax.fill_between(new[:, 0], found.low, found.high, alpha=0.4, label="middle 90 %")
ax.plot(new[:, 0], found.mean, label="mean")
ax.set(xlabel="x", ylabel="y", ylim=(-3, 3))
ax.legend(frameon=False)
