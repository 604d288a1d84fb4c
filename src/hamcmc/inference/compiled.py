"""The compiled loop: one segment of a run, which is many iterations of many chains between two looks of the host.

One program serves warm-up and sampling of any length, because trip counts are arguments. Random numbers are functions
of (seed, chain, iteration), so draws do not depend on where a run was cut. Keys and minibatch indices are drawn for
a block of iterations at once; for small models they are most of the cost of an iteration.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc.samplers.base import Sampler
from hamcmc.store.moments import Moments
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

PyTree = Any


class Keys(NamedTuple):
    """Keys for each use of randomness, by :func:`keys`."""

    batch: Array
    step: Array
    start: Array
    gradient: Array


class Segment(NamedTuple):
    """The outcome of a segment. Leaves have a leading chain axis; the buffers `draws` and `infos` are (slot, chain, …).

    In `draws` and `moments` each replica of an ensemble is a chain; `state`, `infos` and `bad_since` have one entry for
    the whole ensemble.
    """

    state: Any
    draws: PyTree
    infos: PyTree
    moments: Moments
    bad_since: Array  # (chain, leaf): the iteration at which a parameter became non-finite, or −1


def keys(seed: int, chains: int, replicas: int = 1) -> Keys:
    """The keys of a run: one per chain for minibatches and steps, one per replica for starts and stored gradients."""

    def many(key: Array, n: int) -> Array:
        """n keys from one."""
        return jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(n))

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
    """Build the compiled ``segment(data, state, keys, begin, end, origin, collect) -> Segment``.

    It runs iterations begin … end−1. The draw of iteration t goes to slot ``(t − origin) // thin``, and later
    iterations overwrite it; `collect` switches the moments on. For a streamed posterior `data` holds the minibatches of
    the segment, (iteration, chain, n, …). The arrays of `state` are donated.
    """
    sharing = None if batch_size is None else 0  # whether chains share the minibatch: all of the data
    block = 128 if batch_size is None else max(1, min(256, 2**20 // (chains * batch_size)))

    ensemble = sampler.replicas > 1
    constrain = jax.vmap(posterior.constrain) if ensemble else posterior.constrain

    def one(key, state, batch, step_size):
        """A step of one chain, or of one ensemble."""
        state, info = sampler.step(key, state, batch, step_size)
        theta = constrain(state.position)  # exp(u) may overflow before u does
        return state, info, theta, finite_leaves(state.position) & finite_leaves(theta)

    def merged(theta):
        """Replicas as chains."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), theta) if ensemble else theta

    each = over_chains(one, (0, 0, sharing, None), chains)
    at = over_chains(lambda state: constrain(state.position), (0,), chains)

    def step(*args):
        """A step of all chains."""
        state, info, theta, finite = each(*args)
        return state, info, merged(theta), finite

    def fetch(data, indices, i, t, begin):
        """The minibatches of iteration t, the i-th of its block."""
        if batch_size is None:
            return data
        if posterior.streamed:
            return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t - begin, 0, keepdims=False), data)
        return minibatch.gather(data, indices[i])

    def segment(data, state, keys: Keys, begin, end, origin, collect) -> Segment:
        shift = merged(at(state))
        zeros = jax.tree.map(jnp.zeros_like, shift)
        weight = jnp.asarray(collect, jax.tree.leaves(zeros)[0].dtype)
        shapes = jax.eval_shape(
            step,
            keys.step,
            state,
            jax.eval_shape(fetch, data, jnp.zeros((block, chains, batch_size or 0), int), 0, 0, 0),
            1.0,
        )

        def buffer(shape):
            """Room for what is recorded at each draw."""
            return jnp.zeros((slots, *shape.shape), shape.dtype)

        start = (
            jnp.asarray(begin, jnp.int32),
            Segment(
                state,
                jax.tree.map(buffer, shapes[2]),
                jax.tree.map(buffer, shapes[1]),
                Moments(shift, jnp.zeros_like(weight), zeros, zeros),
                jnp.full(shapes[3].shape, -1, jnp.int32),
            ),
        )

        def run_block(carry):
            """The iterations for which keys and indices are drawn at once."""
            t0, s = carry
            times = t0 + jnp.arange(block)
            step_keys = jax.vmap(lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys.step, t))(times)
            epsilons = jax.vmap(schedule)(times).astype(weight.dtype)
            indices = jax.vmap(lambda t: draw(keys.batch, t))(times) if batch_size and not posterior.streamed else None

            def iteration(i, s: Segment) -> Segment:
                """One iteration of all chains."""
                t, epsilon = t0 + i, epsilons[i]
                batch = fetch(data, indices, i, t, begin)
                state, info, theta, finite = step(step_keys[i], s.state, batch, epsilon)

                def put(old, new):
                    """Record in the slot of this iteration."""
                    return lax.dynamic_update_index_in_dim(old, new, (t - origin) // thin, 0)

                m, w = s.moments, weight * epsilon
                offset = jax.tree.map(jnp.subtract, theta, m.shift)
                moments = Moments(
                    m.shift,
                    m.weight + w,
                    jax.tree.map(lambda a, x: a + w * x, m.first, offset),
                    jax.tree.map(lambda a, x: a + w * x * x, m.second, offset),
                )
                return Segment(
                    state,
                    jax.tree.map(put, s.draws, theta),
                    jax.tree.map(put, s.infos, info),
                    moments,
                    jnp.where((s.bad_since < 0) & ~finite, t, s.bad_since),
                )

            n = jnp.minimum(block, end - t0)
            return t0 + n, lax.fori_loop(0, n, iteration, s)

        def going(carry):
            """Whether iterations are left and all chains are finite."""
            return (carry[0] < end) & jnp.all(carry[1].bad_since < 0)

        return lax.while_loop(going, run_block, start)[1]

    def draw(batch_keys, t):
        """Each chain's minibatch of iteration t, by indices."""
        return jax.vmap(lambda key: minibatch.draw(key, t, posterior.size, batch_size or 0, replace))(batch_keys)

    return jax.jit(segment, donate_argnames=("state",))


def build_gradients(posterior: Posterior, *, batch_size: int | None) -> Callable:
    """Build the compiled ``gradients(data, draws, keys, numbers)``: the stochastic gradient at each stored draw.

    Each takes a fresh minibatch, so its noise is independent of the draw, as the kernel Stein discrepancy needs it.
    """

    def at(data, theta, key, number):
        """The gradient at one draw of one chain."""
        position = posterior.unconstrain_unchecked(theta)
        if batch_size is None:
            return posterior.grad(position, data)
        rows = minibatch.draw(key, number, posterior.size, batch_size, True)
        return posterior.grad(position, minibatch.gather(data, rows))

    each = jax.vmap(at, (None, 0, 0, None))

    @jax.jit
    def gradients(data, draws, keys: Keys, numbers: Array):
        return lax.map(lambda slot: each(data, slot[0], keys.gradient, slot[1]), (draws, numbers))

    return gradients


def over_chains(f: Callable, axes: tuple, chains: int) -> Callable:
    """`jax.vmap` over the chain axis; a single chain avoids the batched form of every operation, which is slower."""
    if chains > 1:
        return jax.vmap(f, axes)

    def alone(*args):
        """The single chain, without its axis."""
        args = (a if axis is None else jax.tree.map(lambda x: x[0], a) for a, axis in zip(args, axes))
        return jax.tree.map(lambda x: jnp.asarray(x)[None], f(*args))

    return alone


def finite_leaves(position: PyTree) -> Array:
    """Whether each leaf is finite in all of its entries, by one sum."""
    return jnp.stack([jnp.isfinite(jnp.sum(x)) for x in jax.tree.leaves(position)])
