"""Posteriors known exactly, many short independent runs on them, and how far off their draws are.

Each check takes the package as an argument, so that it can be run on one that is broken on purpose.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

OPTIMISED = {"xla_backend_optimization_level": 2}  # for long runs, some of what conftest.py has switched off
REPLICAS = 4000
Z = 4.5  # of about 100 numbers compared in the suite, one beyond 4.5 standard errors has a chance below 1e-3


def final_positions(sampler, posterior, starts, *, steps, step_size, batch_size=None, seed=1):
    """The position of each replica after `steps` steps, started at `starts` (a pytree with a replica axis).

    Replicas are independent; of an ensemble sampler its own ones are coupled, which keeps independent ones independent.
    """
    together = sampler.replicas
    if together > 1:
        starts = jax.tree.map(lambda x: x.reshape(-1, together, *x.shape[1:]), starts)
    replicas = jax.tree.leaves(starts)[0].shape[0]

    def one(start, key):
        def step(t, state):
            k_batch, k_step = jax.random.split(jax.random.fold_in(key, t))
            batch = posterior.data
            if batch_size is not None:
                rows = jax.random.bits(k_batch, (batch_size,)) % posterior.size  # as even as 2³² is large
                batch = jax.tree.map(lambda x: x[rows], batch)
            return sampler.step(k_step, state, batch, step_size)[0]

        state = jax.tree.map(jnp.asarray, sampler.init(start))
        return lax.fori_loop(0, steps, step, state).position

    work = steps * replicas * together * max(batch_size or posterior.size, 8)
    long = work > (1.6e7 if together > 1 else 3e6)  # about where running faster makes up for compiling longer
    end = jax.jit(jax.vmap(one), compiler_options=OPTIMISED if long else None)(
        starts, jax.random.split(jax.random.key(seed), replicas)
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), end) if together > 1 else end


class Gaussian:
    """A linear Gaussian model, as a pytree of two leaves: 3 correlated parameters, 16 data, known posterior."""

    size, batch = 16, 8

    def __init__(self, package):
        rng = np.random.default_rng(7)
        a = rng.normal(size=(self.size, 3)) @ np.array([[1.0, 0, 0], [0.8, 0.6, 0], [0.3, -0.5, 1.2]]).T
        x = a @ rng.normal(size=3) + rng.normal(size=self.size)
        self.precision = np.eye(3) + a.T @ a
        self.mean = np.linalg.solve(self.precision, a.T @ x)
        self.covariance = np.linalg.inv(self.precision)
        self.stiffness = np.linalg.eigvalsh(self.precision)

        def log_prior(theta):
            return -0.5 * (jnp.sum(theta["b"] ** 2) + theta["c"] ** 2)

        def log_likelihood(theta, datum):
            return -0.5 * (datum["x"] - datum["a"][:2] @ theta["b"] - datum["a"][2] * theta["c"]) ** 2

        data = {"a": a.astype(np.float32), "x": x.astype(np.float32)}
        self.posterior = package.Posterior(log_prior, log_likelihood, data)

    def starts(self, seed=0):
        """Exact draws of the posterior: a right sampler keeps their law, a wrong one does not."""
        z = np.random.default_rng(seed).standard_normal((REPLICAS, 3))
        theta = (self.mean + z @ np.linalg.cholesky(self.covariance).T).astype(np.float32)
        return {"b": jnp.asarray(theta[:, :2]), "c": jnp.asarray(theta[:, 2])}

    def check(self, sampler, *, step_size, relaxations=1.25, batch_size=batch, bias=0.03, slowest=None):
        """Mean and covariance of the replicas, within Z standard errors and a bias of the given relative size.

        The run is `relaxations` times as long as the slowest direction remembers.
        """
        steps = int(np.ceil(relaxations / (step_size * (slowest or self.stiffness[0]))))
        end = final_positions(
            sampler, self.posterior, self.starts(), steps=steps, step_size=step_size, batch_size=batch_size
        )
        theta = np.concatenate([np.asarray(end["b"]), np.asarray(end["c"])[:, None]], axis=1).astype(float)
        white = (theta - self.mean) @ np.linalg.inv(np.linalg.cholesky(self.covariance)).T
        assert np.isfinite(white).all(), "not finite"
        mean, second = white.mean(0), white.T @ white / REPLICAS
        error = np.sqrt((1 + np.eye(3)) / REPLICAS)  # of a sample covariance of N(0, I)
        assert (np.abs(mean) <= Z / np.sqrt(REPLICAS) + bias).all(), f"mean off by {mean} sd"
        assert (np.abs(second - np.eye(3)) <= Z * error + bias).all(), f"covariance off: {second}"


class Quartic:
    """U = (x+y)⁴/4 + 2(x−y)² + x²/4 + y²/10: curvature that varies. Moments by quadrature."""

    grid = np.linspace(-5, 5, 1601)

    def __init__(self, package):
        self.posterior = package.Posterior(
            lambda theta: jnp.zeros(()),
            lambda theta, datum: -self.potential(theta[0], theta[1]) + 0 * datum,
            np.zeros(1, np.float32),
        )

    @classmethod
    @functools.cache
    def quadrature(cls):
        """The moments, and the cumulative probability of the cells of the grid."""
        x, y = np.meshgrid(cls.grid, cls.grid, indexing="ij")
        density = np.exp(-cls.potential(x, y))
        density /= density.sum()
        exact = {k: float((density * f(x, y)).sum()) for k, f in cls.functions().items()}
        return exact, np.cumsum(density.ravel())

    @staticmethod
    def potential(x, y):
        return (x + y) ** 4 / 4 + 2 * (x - y) ** 2 + x**2 / 4 + y**2 / 10

    @staticmethod
    def functions():
        return {
            "(x+y)²": lambda x, y: (x + y) ** 2,
            "(x−y)²": lambda x, y: (x - y) ** 2,
            "x²": lambda x, y: x**2,
            "(x+y)⁴": lambda x, y: (x + y) ** 4,
        }

    def starts(self, replicas, seed=0):
        """Exact draws, uniform within the cells of the quadrature grid."""
        rng = np.random.default_rng(seed)
        cell = np.searchsorted(self.quadrature()[1], rng.random(replicas))
        i, j = np.unravel_index(cell, 2 * self.grid.shape)
        h = self.grid[1] - self.grid[0]
        theta = np.stack([self.grid[i], self.grid[j]], 1) + h * (rng.random((replicas, 2)) - 0.5)
        return jnp.asarray(theta, jnp.float32)

    def errors(self, sampler, *, step_size, steps, replicas=20000, seed=1):
        """Relative error of each moment and its standard error."""
        end = np.asarray(
            final_positions(
                sampler, self.posterior, self.starts(replicas), steps=steps, step_size=step_size, seed=seed
            ),
            float,
        )
        exact, out = self.quadrature()[0], {}
        for name, f in self.functions().items():
            values = f(end[:, 0], end[:, 1])
            out[name] = (
                values.mean() / exact[name] - 1,
                values.std() / np.sqrt(replicas) / exact[name],
            )
        return out

    def check(self, sampler, *, bias=0.01, **run):
        """Every moment within Z standard errors and a discretisation bias of the given relative size."""
        for name, (error, se) in self.errors(sampler, **run).items():
            assert abs(error) <= Z * se + bias, f"E{name} off by {error:+.1%} ± {se:.1%}"
