"""Time per iteration of an automatic run on minibatches, against the matrix products of its gradients.

The iteration is what `hamcmc.sample` compiles when it decides on minibatches: two ensembles of replicas in white
coordinates, gradients with a second-order control variate, rows drawn by importance, draws, infos, moments and the
guard against NaN. Here both ensembles are batched in one program; `hamcmc.sample` runs them side by side. The posterior
is a logistic regression. A run of 30,000 iterations or more ("in a long run") gets all optimisations of the compiler.

The peer is a compiled loop with nothing but the matrix products that the estimator consists of, on rows that are
already in place: for all replicas θ = θ̂ + S z; for the gradient there X θ and Xᵀ times n numbers; for the control
variate X (θ − θ̂) and Xᵀ times n numbers, and both at θ̂ for one vector; and Sᵀ times the sum. Not in it: the gather of
rows, random numbers, the likelihood between X and Xᵀ, and the sampler.

The column "gradient" is a loop with the gradients of the same replicas by `posterior.grad`, on rows in place: what is
between it and the peer is the user's likelihood, and what is between it and the iteration is the sampler's and the
gather's. It has X θ̂ only once, because that does not change from turn to turn. "Rows" is a loop that draws the rows of
the minibatches, gathers them and adds them up, lest the compiler leave the gather out. "Noise" is one that draws the
normal numbers of a step. No sampler on minibatches can do without these three, so their sum over the products bounds
the ratio of any iteration that is made of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.measure import Burst, Table, interleave, microseconds, ratio
from hamcmc.inference import auto, schedules
from hamcmc.inference import compiled as loop
from hamcmc.samplers.noise import standard_normal
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

SIZES = {10: (100_000, 1000), 100: (100_000, 300), 1000: (20_000, 40)}  # D: N and iterations of a burst
BATCHES = (50, 500)
ENSEMBLES = 2
TINY = 1e-20  # ties a result to the next turn of a loop, and changes nothing


def run(quick: bool) -> list[Table]:
    """Every dimension with every size of minibatches."""
    rows = []
    for dimension in [10, 100] if quick else SIZES:
        prepared = prepare(dimension, BATCHES[0])
        for batch_size in BATCHES:
            iterations = SIZES[dimension][1]
            bursts = {
                "short": iteration(prepared, batch_size, iterations, 2000),
                "long": iteration(prepared, batch_size, iterations, loop.MANY),
                "gradient": gradients(prepared, batch_size, iterations),
                "products": products(prepared, batch_size, iterations),
                "rows": drawn_rows(prepared, batch_size, iterations),
                "noise": noise(prepared, iterations),
            }
            t = interleave(bursts, 5 if quick else 15)
            parts = t["gradient"] + t["rows"] + t["noise"]
            rows.append(
                {
                    "D": dimension,
                    "n": batch_size,
                    "iteration, µs": microseconds(t["short"], iterations),
                    "in a long run, µs": microseconds(t["long"], iterations),
                    "gradient, µs": microseconds(t["gradient"], iterations),
                    "rows, µs": microseconds(t["rows"], iterations),
                    "noise, µs": microseconds(t["noise"], iterations),
                    "products, µs": microseconds(t["products"], iterations),
                    "iteration / products (goal ≤ 1.5)": ratio(t["short"], t["products"]),
                    "in a long run / products": ratio(t["long"], t["products"]),
                    "gradient / products": ratio(t["gradient"], t["products"]),
                    "(gradient + rows + noise) / products": ratio(parts, t["products"]),
                }
            )
    return [Table("An iteration of the automatic sampler on minibatches against its matrix products", rows)]


def prepare(dimension: int, batch_size: int) -> auto.Prepared:
    """Mode, Hessian, rows and sampler as an automatic run has them. Other minibatches would change only its ε."""
    asked = {"iterations": 2000, "counted": True, "ensembles": ENSEMBLES, "batch_size": batch_size, "seed": 0}
    return auto.prepare(logistic(dimension, SIZES[dimension][0]), None, **asked, options={})


def logistic(dimension: int, size: int) -> Posterior:
    """Logistic regression on independent columns."""
    rng = np.random.default_rng(dimension)
    x = rng.standard_normal((size, dimension), np.float32)
    truth = rng.standard_normal(dimension, np.float32) / np.sqrt(dimension)
    y = np.where(x @ truth + rng.logistic(size=size) > 0, 1, -1).astype(np.float32)

    def log_prior(w: Array) -> Array:
        return -0.5 * jnp.sum(w**2)

    def log_likelihood(w: Array, datum: dict[str, Array]) -> Array:
        return jax.nn.log_sigmoid(datum["y"] * (datum["x"] @ w))

    return Posterior(log_prior, log_likelihood, {"x": x, "y": y}, init=np.zeros(dimension, np.float32))


def iteration(p: auto.Prepared, batch_size: int, iterations: int, planned: int) -> Burst:
    """The compiled loop that `hamcmc.sample` runs, for a run of so many planned iterations."""
    schedule, thin = schedules.Constant(p.plan.step_size), 2
    slots = -(-iterations // thin)
    settings = {"batch_size": batch_size, "replace": True, "chains": ENSEMBLES, "thin": thin, "slots": slots}
    segment = loop.build(p.posterior, p.sampler, schedule, **settings)
    keys = loop.keys(0, ENSEMBLES, p.sampler.replicas)
    carried = [jax.vmap(p.sampler.init)(p.starts.reshape(ENSEMBLES, p.sampler.replicas, -1))]

    given = (p.posterior.data, carried[0], keys, 0, iterations, 0, True)
    program = loop.Traced(segment, given, planned).program

    def burst() -> Array:
        result = program(p.posterior.data, carried[0], keys, 0, iterations, 0, True)
        carried[0] = result.state  # the loop takes its state's memory over
        return result.draws

    return burst


def positions(p: auto.Prepared) -> Array:
    """The positions of the replicas, at which an iteration takes gradients."""
    return jnp.asarray(p.starts.reshape(ENSEMBLES, p.sampler.replicas, -1))


def rows_of(p: auto.Prepared, batch_size: int) -> dict:
    """A minibatch for each ensemble."""
    rows = np.random.default_rng(0).integers(0, p.posterior.size, (ENSEMBLES, batch_size))
    return minibatch.gather(p.posterior.data, jnp.asarray(rows))


def repeated(turn: Callable, start: Array, iterations: int, *given: Array) -> Burst:
    """A compiled loop of ``z <- start + TINY turn(z, …)``."""

    @jax.jit
    def run(start, *given):
        return lax.fori_loop(0, iterations, lambda _, z: start + TINY * turn(z, *given), start)

    return lambda: run(start, *given)


def gradients(p: auto.Prepared, batch_size: int, iterations: int) -> Burst:
    """Nothing but the gradients of an iteration, by the posterior's own estimator."""
    each = jax.vmap(jax.vmap(p.posterior.grad, (0, None)))

    def turn(z: Array, rows: dict) -> Array:
        tied = jax.tree.map(lambda x: x + (TINY * z[0, 0, 0]).astype(x.dtype), rows.row["y"])  # what is at θ̂ stays
        return each(z, rows._replace(row=rows.row | {"y": tied}))

    return repeated(turn, positions(p), iterations, rows_of(p, batch_size))


def products(p: auto.Prepared, batch_size: int, iterations: int) -> Burst:
    """Nothing but the matrix products of these gradients."""
    white = p.posterior
    root, centre = white.root, white.centre

    def turn(z: Array, x: Array, root: Array, centre: Array) -> Array:
        def one(z: Array, x: Array) -> Array:
            theta = centre + z @ root.T
            anchor = centre + TINY * z[0]  # tied to the turn: its products are needed for every minibatch
            away = theta - 1.001 * anchor
            there = (x @ anchor) @ x
            return ((theta @ x.T) @ x + (away @ x.T) @ x + there) @ root

        return jax.vmap(one)(z, x)

    return repeated(turn, positions(p), iterations, rows_of(p, batch_size).row["x"], root, centre)


def drawn_rows(p: auto.Prepared, batch_size: int, iterations: int) -> Burst:
    """Nothing but drawing the rows of minibatches, many iterations at once, and gathering them."""
    keys = loop.keys(0, ENSEMBLES).batch

    @jax.jit
    def run(data: dict, keys: Array) -> Array:
        def at(t: Array) -> Array:
            return jax.vmap(lambda key: p.posterior.minibatch_indices(key, t, batch_size, True))(keys)

        indices = jax.vmap(at)(jnp.arange(iterations))

        def turn(t: Array, total: Array) -> Array:
            leaves = jax.tree.leaves(minibatch.gather(data, indices[t]))
            return total + sum(x.astype(total.dtype).sum() for x in leaves)

        return lax.fori_loop(0, iterations, turn, jnp.zeros(()))

    return lambda: run(p.posterior.data, keys)


def noise(p: auto.Prepared, iterations: int) -> Burst:
    """Nothing but the normal numbers of the steps."""
    start, keys = positions(p), loop.keys(0, ENSEMBLES).step

    @jax.jit
    def run(z: Array, keys: Array) -> Array:
        of_step = jax.vmap(lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys, t))(jnp.arange(iterations))
        return lax.fori_loop(0, iterations, lambda t, z: z + jax.vmap(standard_normal)(of_step[t], z), z)

    return lambda: run(start, keys)
