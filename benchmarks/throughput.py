"""Time per iteration of an automatic run on minibatches, against the matrix products of its gradients.

The iteration is what `hamcmc.sample` compiles when it decides on minibatches: two ensembles of replicas in white
coordinates, gradients with a second-order control variate, rows drawn by importance, draws, infos, moments and the
guard against NaN. The two ensembles run side by side, each in a thread of its own, as `hamcmc.sample` runs them, and so
do the two loops of everything that is measured here. The posterior is a logistic regression. "In a short run" it has
gradients as they are for any likelihood. "In a long run" it has gradients by the linear predictor, whose table takes a
second or two to prepare, and all optimisations of the compiler.

The peer, "products", is a compiled loop with nothing but the matrix products that the estimator consists of as it is
written for any likelihood, on rows that are already in place: for all replicas θ = θ̂ + S z; for the gradient there X θ
and Xᵀ times n numbers; for the control variate X (θ − θ̂) and Xᵀ times n numbers, and both at θ̂ for one vector; and Sᵀ
times the sum. Not in it: the gather of rows, random numbers, the likelihood between X and Xᵀ, and the sampler.

A long run needs fewer of them, because X S and all that is at θ̂ are computed once for each row. "Own products" is a
loop with those that it has left: (X S) z and (X S)ᵀ times n numbers, and θ̂ + S z for the draws.

The column "gradient" is a loop with the gradients of a long run by `posterior.grad`, on rows in place. "Rows" is a loop
that draws the rows of its minibatches, gathers them and adds them up, lest the compiler leave the gather out. "Noise"
is one that draws the normal numbers of a step. No sampler on minibatches can do without these three.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.measure import Burst, Table, interleave, microseconds, ratio
from hamcmc._types import PyTree
from hamcmc.inference import auto, schedules
from hamcmc.inference import compiled as loop
from hamcmc.samplers.noise import standard_normal
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

# D: N and iterations of a burst, of which starting two threads must be a small part
SIZES = {10: (100_000, 10_000), 100: (100_000, 3000), 1000: (20_000, 200)}
BATCHES = (50, 500)
ENSEMBLES = 2
TINY = 1e-20  # ties a result to the next turn of a loop, and changes nothing


def run(quick: bool) -> list[Table]:
    """Every dimension with every size of minibatches."""
    rows = []
    for dimension in [10, 100] if quick else SIZES:
        general, prepared = (prepare(dimension, BATCHES[0], planned) for planned in (2000, 10**7))
        for batch_size in BATCHES:
            iterations = SIZES[dimension][1]
            bursts = {
                "short": iteration(general, batch_size, iterations, 2000),
                "long": iteration(prepared, batch_size, iterations, loop.MANY),
                "gradient": gradients(prepared, batch_size, iterations),
                "products": products(prepared, batch_size, iterations),
                "own": own_products(prepared, batch_size, iterations),
                "rows": drawn_rows(prepared, batch_size, iterations),
                "noise": noise(prepared, iterations),
            }
            t = interleave(bursts, 5 if quick else 15)
            parts = t["gradient"] + t["rows"] + t["noise"]
            rows.append(
                {
                    "D": dimension,
                    "n": batch_size,
                    "in a short run, µs": microseconds(t["short"], iterations),
                    "in a long run, µs": microseconds(t["long"], iterations),
                    "gradient, µs": microseconds(t["gradient"], iterations),
                    "rows, µs": microseconds(t["rows"], iterations),
                    "noise, µs": microseconds(t["noise"], iterations),
                    "products, µs": microseconds(t["products"], iterations),
                    "own products, µs": microseconds(t["own"], iterations),
                    "short run / products": ratio(t["short"], t["products"]),
                    "long run / products (goal ≤ 1.5)": ratio(t["long"], t["products"]),
                    "gradient / products": ratio(t["gradient"], t["products"]),
                    "(gradient + rows + noise) / products": ratio(parts, t["products"]),
                    "long run / own products": ratio(t["long"], t["own"]),
                }
            )
    return [Table("An iteration of the automatic sampler on minibatches against its matrix products", rows)]


def prepare(dimension: int, batch_size: int, iterations: int) -> auto.Prepared:
    """Mode, Hessian, rows and sampler as an automatic run has them. Other minibatches would change only its ε."""
    asked = {"iterations": iterations, "counted": True, "ensembles": ENSEMBLES, "batch_size": batch_size, "seed": 0}
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


def side_by_side(run: Callable[[int], Any]) -> Burst:
    """Run something for each ensemble in a thread of its own."""
    threads = ThreadPoolExecutor(ENSEMBLES)
    return lambda: list(threads.map(lambda e: jax.block_until_ready(run(e)), range(ENSEMBLES)))


def iteration(p: auto.Prepared, batch_size: int, iterations: int, planned: int) -> Burst:
    """The compiled loop that `hamcmc.sample` runs, for a run of so many planned iterations."""
    schedule, thin = schedules.Constant(p.plan.step_size), 2
    slots = -(-iterations // thin)
    settings = {"batch_size": batch_size, "replace": True, "chains": 1, "thin": thin, "slots": slots}
    segment = loop.build(p.posterior, p.sampler, schedule, **settings)
    keys = loop.split_keys(loop.keys(0, ENSEMBLES, p.sampler.replicas), ENSEMBLES)
    states = [jax.vmap(p.sampler.init)(z[None]) for z in positions(p)]
    program = loop.Traced(segment, (p.posterior.data, states[0], keys[0], 0, iterations, 0, True), planned).program

    def run(e: int) -> Array:
        result = program(p.posterior.data, states[e], keys[e], 0, iterations, 0, True)
        states[e] = result.state  # the loop takes its state's memory over
        return result.draws

    return side_by_side(run)


def positions(p: auto.Prepared) -> Array:
    """The positions of the replicas, at which an iteration takes gradients."""
    return jnp.asarray(p.starts.reshape(ENSEMBLES, p.sampler.replicas, -1))


def rows_of(p: auto.Prepared, data: PyTree, batch_size: int) -> Any:
    """A minibatch for each ensemble."""
    rows = np.random.default_rng(0).integers(0, p.posterior.size, (ENSEMBLES, batch_size))
    return minibatch.gather(data, jnp.asarray(rows))


def repeated(turn: Callable, starts: Array, iterations: int, each: PyTree, *given: Array) -> Burst:
    """Compiled loops of ``z <- start + TINY turn(z, …)``, with arrays of each ensemble and with given ones of all."""

    @jax.jit
    def run(start, own, *given):
        return lax.fori_loop(0, iterations, lambda _, z: start + TINY * turn(z, own, *given), start)

    own = [jax.tree.map(lambda x, e=e: x[e], each) for e in range(ENSEMBLES)]
    return side_by_side(lambda e: run(starts[e], own[e], *given))


def gradients(p: auto.Prepared, batch_size: int, iterations: int) -> Burst:
    """Nothing but the gradients of an iteration, by the posterior's own estimator."""

    def turn(z: Array, rows: Any) -> Array:
        return jax.vmap(p.posterior.grad, (0, None))(z, rows)

    return repeated(turn, positions(p), iterations, rows_of(p, p.posterior.data, batch_size))


def products(p: auto.Prepared, batch_size: int, iterations: int) -> Burst:
    """Nothing but the matrix products of these gradients, as they are for any likelihood."""

    def turn(z: Array, x: Array, root: Array, centre: Array) -> Array:
        theta = centre + z @ root.T
        anchor = centre + TINY * z[0]  # tied to the turn: its products are needed for every minibatch
        away = theta - 1.001 * anchor
        there = (x @ anchor) @ x
        return ((theta @ x.T) @ x + (away @ x.T) @ x + there) @ root

    x = rows_of(p, p.posterior.plain.data, batch_size).row["x"]
    return repeated(turn, positions(p), iterations, x, p.posterior.root, p.posterior.centre)


def own_products(p: auto.Prepared, batch_size: int, iterations: int) -> Burst:
    """Nothing but the matrix products that are left where X S is known, and those for the draws."""

    def turn(z: Array, white: Array, root: Array, centre: Array) -> Array:
        return (z @ white.T) @ white + centre + z @ root.T

    white = rows_of(p, p.posterior.data, batch_size).table[..., 0, : p.posterior.centre.size]
    return repeated(turn, positions(p), iterations, white, p.posterior.root, p.posterior.centre)


def drawn_rows(p: auto.Prepared, batch_size: int, iterations: int) -> Burst:
    """Nothing but drawing the rows of minibatches, many iterations at once, and gathering them."""
    keys = loop.keys(0, ENSEMBLES).batch

    @jax.jit
    def run(data: dict, key: Array) -> Array:
        at = lambda t: p.posterior.minibatch_indices(key, t, batch_size, True)
        indices = jax.vmap(at)(jnp.arange(iterations))

        def turn(t: Array, total: Array) -> Array:
            leaves = jax.tree.leaves(minibatch.gather(data, indices[t]))
            return total + sum(x.astype(total.dtype).sum() for x in leaves)

        return lax.fori_loop(0, iterations, turn, jnp.zeros(()))

    return side_by_side(lambda e: run(p.posterior.data, keys[e]))


def noise(p: auto.Prepared, iterations: int) -> Burst:
    """Nothing but the normal numbers of the steps."""
    starts, keys = positions(p), loop.keys(0, ENSEMBLES).step

    @jax.jit
    def run(z: Array, key: Array) -> Array:
        of_step = jax.vmap(lambda t: jax.random.fold_in(key, t))(jnp.arange(iterations))
        return lax.fori_loop(0, iterations, lambda t, z: z + standard_normal(of_step[t], z), z)

    return side_by_side(lambda e: run(starts[e], keys[e]))
