"""A sampler is two pure functions, init and step: the loop around them can be yours."""

import jax
import jax.numpy as jnp
import numpy as np

import hamcmc

SIZE, BATCH = 10_000, 1000
data = np.random.default_rng(0).normal([1.0, -1.0], 2.0, size=(SIZE, 2)).astype(np.float32)
posterior = hamcmc.Posterior(
    lambda mean: -0.5 * jnp.sum(mean**2), lambda mean, row: -0.5 * jnp.sum(((row - mean) / 2.0) ** 2), data
)
sampler = hamcmc.sgld(posterior.grad)


@jax.jit
def run(key, position):
    """20,000 iterations in one compiled loop; returns the positions and the gradients' norms."""

    def iterate(state, key):
        pick, move = jax.random.split(key)
        minibatch = jnp.asarray(data)[jax.random.randint(pick, (BATCH,), 0, SIZE)]
        state, info = sampler.step(move, state, minibatch, 4e-6)
        return state, (state.position, info.grad_norm)

    return jax.lax.scan(iterate, sampler.init(position), jax.random.split(key, 20_000))[1]


positions, grad_norms = run(jax.random.key(0), jnp.zeros(2))
kept = positions[1000:]
print("mean", kept.mean(0), "and sd", kept.std(0))
print("exact mean", data.sum(0) / 4 / (1 + SIZE / 4), "and sd", (1 + SIZE / 4) ** -0.5)
print("mean gradient norm", float(grad_norms.mean()))
