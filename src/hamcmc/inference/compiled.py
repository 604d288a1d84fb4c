"""The compiled part of a run: many iterations of many chains between two visits of the host.

One program serves warm-up and sampling, whatever their lengths: trip counts are arguments. Random numbers are functions
of (seed, chain, iteration), so draws do not depend on where a run was cut. Keys and minibatch indices are drawn for
a block of iterations at once, which for small models is most of the cost of an iteration.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc.samplers.base import Sampler
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

PyTree = Any


class Keys(NamedTuple):
    """Keys for each use of randomness, by :func:`keys`."""

    batch: Array
    step: Array
    start: Array
    gradient: Array


class Moments(NamedTuple):
    """Weighted sums over a visit, of parameters less `shift`: Σw, Σw(x−c), Σw(x−c)²."""

    shift: PyTree
    weight: Array
    first: PyTree
    second: PyTree


class Visit(NamedTuple):
    """What a visit leaves behind. Leaves have a leading chain axis; buffers (slot, chain, …).

    The replicas of an ensemble count as chains in draws and moments; state, infos and bad_since have the ensemble.
    """

    state: Any
    draws: PyTree
    infos: PyTree
    moments: Moments
    bad_since: Array  # (chain, leaf): iteration at which a parameter turned non-finite, or −1


def keys(seed: int, chains: int, replicas: int = 1) -> Keys:
    """The keys of a run: one for each chain; to start and to take gradients at draws, one for each of its replicas."""
    many = lambda key, n: jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(n))
    batch, step, start, gradient = jax.random.split(jax.random.key(seed), len(Keys._fields))
    return Keys(
        many(batch, chains), many(step, chains), many(start, chains * replicas), many(gradient, chains * replicas)
    )


def build(
    posterior: Posterior,
    sampler: Sampler,
    schedule: Callable,
    *,
    batch_size: int | None,
    replace: bool,
    chains: int,
    thin: int,
    slots: int,
) -> Any:
    """Compile ``visit(data, state, keys, begin, end, origin, collect)``.

    It runs iterations begin … end−1. The draw of iteration t goes to slot ``(t − origin) // thin``, where the last
    one written stays; `collect` switches the moments on. For a streamed posterior `data` holds the visit's minibatches,
    (iteration, chain, n, …).
    """
    sharing = None if batch_size is None else 0  # whether chains share the minibatch: all of the data
    block = 128 if batch_size is None else max(1, min(256, 2**20 // (chains * batch_size)))

    ensemble = sampler.replicas > 1
    constrain = jax.vmap(posterior.constrain) if ensemble else posterior.constrain

    def one(key, state, batch, step_size):
        state, info = sampler.step(key, state, batch, step_size)
        theta = constrain(state.position)  # exp(u) may overflow before u does
        return state, info, theta, finite_leaves(state.position) & finite_leaves(theta)

    merged = lambda theta: jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), theta) if ensemble else theta
    each = over_chains(one, (0, 0, sharing, None), chains)
    at = over_chains(lambda state: constrain(state.position), (0,), chains)
    parameters = lambda state: merged(at(state))

    def step(*args):
        state, info, theta, finite = each(*args)
        return state, info, merged(theta), finite

    def fetch(data, indices, i, t, begin):
        if batch_size is None:
            return data
        if posterior.streamed:
            return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t - begin, 0, keepdims=False), data)
        return minibatch.gather(data, indices[i])

    def visit(data, state, keys: Keys, begin, end, origin, collect) -> Visit:
        shift = parameters(state)
        zeros = jax.tree.map(jnp.zeros_like, shift)
        weight = jnp.asarray(collect, jax.tree.leaves(zeros)[0].dtype)
        shapes = jax.eval_shape(
            step,
            keys.step,
            state,
            jax.eval_shape(fetch, data, jnp.zeros((block, chains, batch_size or 0), int), 0, 0, 0),
            1.0,
        )
        buffer = lambda shape: jnp.zeros((slots, *shape.shape), shape.dtype)
        start = (
            jnp.asarray(begin, jnp.int32),
            Visit(
                state,
                jax.tree.map(buffer, shapes[2]),
                jax.tree.map(buffer, shapes[1]),
                Moments(shift, jnp.zeros_like(weight), zeros, zeros),
                jnp.full(shapes[3].shape, -1, jnp.int32),
            ),
        )

        def run_block(carry):
            t0, v = carry
            times = t0 + jnp.arange(block)
            step_keys = jax.vmap(lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys.step, t))(times)
            epsilons = jax.vmap(schedule)(times).astype(weight.dtype)
            indices = jax.vmap(lambda t: draw(keys.batch, t))(times) if batch_size and not posterior.streamed else None

            def iteration(i, v: Visit) -> Visit:
                t, epsilon = t0 + i, epsilons[i]
                batch = fetch(data, indices, i, t, begin)
                state, info, theta, finite = step(step_keys[i], v.state, batch, epsilon)
                put = lambda old, new: lax.dynamic_update_index_in_dim(old, new, (t - origin) // thin, 0)
                m, w = v.moments, weight * epsilon
                offset = jax.tree.map(jnp.subtract, theta, m.shift)
                moments = Moments(
                    m.shift,
                    m.weight + w,
                    jax.tree.map(lambda a, x: a + w * x, m.first, offset),
                    jax.tree.map(lambda a, x: a + w * x * x, m.second, offset),
                )
                return Visit(
                    state,
                    jax.tree.map(put, v.draws, theta),
                    jax.tree.map(put, v.infos, info),
                    moments,
                    jnp.where((v.bad_since < 0) & ~finite, t, v.bad_since),
                )

            n = jnp.minimum(block, end - t0)
            return t0 + n, lax.fori_loop(0, n, iteration, v)

        going = lambda carry: (carry[0] < end) & jnp.all(carry[1].bad_since < 0)
        return lax.while_loop(going, run_block, start)[1]

    def draw(batch_keys, t):
        one = lambda key: minibatch.draw(key, t, posterior.size, batch_size, replace)  # type: ignore[arg-type]
        return jax.vmap(one)(batch_keys)

    return jax.jit(visit, donate_argnames=("state",))


def build_gradients(posterior: Posterior, *, batch_size: int | None) -> Callable:
    """Compile ``gradients(data, draws, keys, slot numbers)``: the stochastic gradient at each stored draw.

    The minibatch is a fresh one, so its noise is independent of the draw: what the kernel Stein discrepancy needs.
    """

    def at(data, theta, key, number):
        position = posterior.unconstrain_unchecked(theta)
        if batch_size is None:
            return posterior.grad(position, data)
        rows = minibatch.draw(key, number, posterior.size, batch_size, True)
        return posterior.grad(position, minibatch.gather(data, rows))

    each = jax.vmap(at, (None, 0, 0, None))
    return jax.jit(
        lambda data, draws, keys, numbers: lax.map(
            lambda slot: each(data, slot[0], keys.gradient, slot[1]), (draws, numbers)
        )
    )


def over_chains(f: Callable, axes: tuple, chains: int) -> Callable:
    """`jax.vmap` over the chain axis; for a single chain without the batched (slower) form of every operation."""
    if chains > 1:
        return jax.vmap(f, axes)

    def alone(*args):
        args = (a if axis is None else jax.tree.map(lambda x: x[0], a) for a, axis in zip(args, axes))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], f(*args))

    return alone


def finite_leaves(position: PyTree) -> Array:
    """For each leaf whether all of it is finite, by one sum."""
    return jnp.stack([jnp.isfinite(jnp.sum(x)) for x in jax.tree.leaves(position)])
