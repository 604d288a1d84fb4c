"""The compiled loop: one segment of a run, which is many iterations of many chains between two looks of the host.

One program serves warm-up and sampling of any length, because trip counts are arguments. Random numbers are functions
of (seed, chain, iteration), so draws do not depend on where a run was cut. Keys and minibatch indices are drawn for
a block of iterations at once; for small models they are most of the cost of an iteration.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from hamcmc._compile import blocking, jit, soon
from hamcmc._types import PyTree
from hamcmc.samplers.base import Sampler
from hamcmc.store.moments import Moments
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior
from hamcmc.target.sharded import shards_of

MANY = 30_000  # iterations, from which on XLA may take its time
READY = {"xla_backend_optimization_level": 2}  # compiler options of shorter runs


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
    return jit(partial(_keys, chains=chains, replicas=chains * replicas))(jax.random.key(seed))


def _keys(key: Array, chains: int, replicas: int) -> Keys:
    def many(key: Array) -> Array:
        """Keys from one, as many as any use needs: XLA takes long to compile each place that makes keys."""
        return jax.vmap(lambda c: jax.random.fold_in(key, c))(jnp.arange(replicas))

    batch, step, start, gradient = jax.vmap(many)(jax.random.split(key, len(Keys._fields)))
    return Keys(batch[:chains], step[:chains], start, gradient)


def split_keys(keys: Keys, parts: int) -> list[Keys]:
    """The keys of parts of the chains that run side by side. Starts and stored gradients are no matter of theirs."""
    of_part = len(keys.step) // parts
    cuts = [slice(i * of_part, (i + 1) * of_part) for i in range(parts)]
    return [keys._replace(batch=keys.batch[cut], step=keys.step[cut]) for cut in cuts]


def joined(segments: list[Segment]) -> Segment:
    """The outcome of parts of the chains that ran side by side, on the host. Their states stay apart."""
    if len(segments) == 1:
        return segments[0]

    def join(axis: int, of: Callable[[Segment], PyTree]) -> PyTree:
        """Leaves of all parts, along the axis of the chains."""
        return jax.tree.map(lambda *x: np.concatenate(x, axis), *map(of, segments))

    return Segment(
        state=[s.state for s in segments],
        draws=join(1, lambda s: s.draws),
        infos=join(1, lambda s: s.infos),
        moments=Moments(
            shift=join(0, lambda s: s.moments.shift),
            weight=segments[0].moments.weight,
            first=join(0, lambda s: s.moments.first),
            second=join(0, lambda s: s.moments.second),
        ),
        bad_since=join(0, lambda s: s.bad_since),
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
    """Build the jitted ``segment(data, state, keys, begin, end, origin, collect) -> Segment``.

    It runs iterations begin … end−1. The draw of iteration t goes to slot ``(t − origin) // thin``, and later
    iterations overwrite it; `collect` switches the moments on. For a streamed posterior `data` holds the minibatches of
    the segment, (iteration, chain, n, …). The arrays of `state` are donated.
    """
    loop = _Loop(posterior, sampler, schedule, batch_size, replace, chains, thin, slots)
    return jax.jit(loop.segment, donate_argnames=("state",))


class Traced:
    """A segment that is traced for arguments like these, and compiled when it is first called, or before.

    What the model closes over becomes an argument too. So the program depends on shapes alone, and one that was kept
    serves other data.

    Args:
        segment: by :func:`build`.
        arguments: of its first call, or shapes and types like theirs.
        iterations: of the whole run. A short one is better off with a program that is ready soon.
    """

    def __init__(self, segment: Any, arguments: tuple, iterations: int):
        began = time.perf_counter()
        traced, shapes = jax.make_jaxpr(segment.__wrapped__, return_shape=True)(*arguments)
        self.constants = traced.consts
        self.blocking = blocking(traced.jaxpr)
        self._pending: Future | None = None

        def segment_of(constants: list, *given: Any) -> Segment:
            """The same as a function of the constants, too."""
            made = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr, constants))(*jax.tree.leaves(given))
            return jax.tree.unflatten(jax.tree.structure(shapes), made)

        options = READY if soon() and iterations < MANY else None
        ready = jax.jit(segment_of, donate_argnums=(2,), compiler_options=options)
        self.lowered = ready.lower(self.constants, *arguments)
        self.seconds = time.perf_counter() - began

    def begin(self) -> Self:
        """Compile in a thread from now on."""
        self._pending = ThreadPoolExecutor(1).submit(self.lowered.compile)
        return self

    def replace(self, old: Sequence[Array], new: Sequence[Array]) -> bool:
        """Put other arrays in the place of some that the model closes over. False, if it does not close over them."""
        found = {id(a): b for a, b in zip(old, new)}
        if not found.keys() <= {id(c) for c in self.constants}:
            return False
        self.constants = [found.get(id(c), c) for c in self.constants]
        return True

    @cached_property
    def program(self) -> Callable:
        """The compiled segment."""
        compiled = self.lowered.compile() if self._pending is None else self._pending.result()
        return partial(compiled, self.constants)


class _Loop:
    """The functions that :func:`build` compiles."""

    def __init__(
        self,
        posterior: Posterior,
        sampler: Sampler,
        schedule: Callable,
        batch_size: int | None,
        replace: bool,
        chains: int,
        thin: int,
        slots: int,
    ):
        self.posterior, self.sampler, self.schedule = posterior, sampler, schedule
        self.batch_size, self.replace, self.chains, self.thin, self.slots = batch_size, replace, chains, thin, slots
        # Iterations whose keys and indices are drawn at once: at most 4 MiB of indices.
        self.block = 128 if batch_size is None else max(1, min(256, 2**20 // (chains * batch_size)))
        self.ensemble = sampler.replicas > 1
        shards = shards_of(posterior)
        self.gather = minibatch.gather if shards is None else shards.gathered
        sharing = None if batch_size is None else 0  # whether chains share the minibatch: all of the data
        self.each = over_chains(self.one, (0, 0, sharing, None), chains)
        self.at = over_chains(self.parameters, (0,), chains)
        self.step = jax.jit(self.of_all, inline=True)  # traced once, for its shapes and for the loop

    def one(self, key, state, batch, step_size):
        """A step of one chain, or of one ensemble."""
        state, info = self.sampler.step(key, state, batch, step_size)
        theta = self.parameters(state)  # exp(u) may overflow before u does
        return state, info, theta, finite_leaves(state.position) & finite_leaves(theta)

    def parameters(self, state):
        """The parameters at a state, from the images of its positions if it keeps them."""
        image = getattr(state, "image", None)
        constrain = self.posterior.constrain if image is None else self.posterior.chart.constrain  # type: ignore[union-attr]
        return (jax.vmap(constrain) if self.ensemble else constrain)(state.position if image is None else image)

    def of_all(self, *args):
        """A step of all chains."""
        state, info, theta, finite = self.each(*args)
        return state, info, self.merged(theta), finite

    def merged(self, theta):
        """Replicas as chains."""
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), theta) if self.ensemble else theta

    def draw(self, batch_keys, t):
        """Each chain's minibatch of iteration t, by indices."""
        draw, rows = self.posterior.minibatch_indices, self.batch_size or 0
        return jax.vmap(lambda key: draw(key, t, rows, self.replace))(batch_keys)

    def fetch(self, data, indices, i, t, begin):
        """The minibatches of iteration t, the i-th of its block."""
        if self.batch_size is None:
            return data
        if self.posterior.streamed:
            return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t - begin, 0, keepdims=False), data)
        return self.gather(data, indices[i])

    def empty(self, data, state, keys: Keys, weight) -> Segment:
        """A segment before its first iteration. The shapes are those of the loop, so that one trace serves both."""
        shift = self.merged(self.at(state))
        zeros = jax.tree.map(jnp.zeros_like, shift)
        indices = jnp.zeros((self.block, self.chains, self.batch_size or 0), int)
        batch = jax.eval_shape(self.fetch, data, indices, 0, 0, 0)
        _, info, theta, finite = jax.eval_shape(self.step, keys.step, state, batch, jnp.ones_like(weight))

        def buffer(shape):
            """Room for what is recorded at each draw."""
            return jnp.zeros((self.slots, *shape.shape), shape.dtype)

        return Segment(
            state,
            jax.tree.map(buffer, theta),
            jax.tree.map(buffer, info),
            Moments(shift, jnp.zeros_like(weight), zeros, zeros),
            jnp.full(finite.shape, -1, jnp.int32),
        )

    def segment(self, data, state, keys: Keys, begin, end, origin, collect) -> Segment:
        """Iterations begin … end−1."""
        kind = jax.tree.leaves(jax.eval_shape(self.at, state))[0].dtype
        weight = jnp.asarray(collect, kind)

        def run_block(carry):
            """The iterations whose keys and indices are drawn at once."""
            t0, s = carry
            times = t0 + jnp.arange(self.block)
            step_keys = jax.vmap(lambda t: jax.vmap(jax.random.fold_in, (0, None))(keys.step, t))(times)
            epsilons = jax.vmap(self.schedule)(times).astype(weight.dtype)
            drawn = self.batch_size and not self.posterior.streamed
            indices = jax.vmap(lambda t: self.draw(keys.batch, t))(times) if drawn else None

            def iteration(i, s: Segment) -> Segment:
                """One iteration of all chains."""
                t, epsilon = t0 + i, epsilons[i]
                batch = self.fetch(data, indices, i, t, begin)
                state, *made = self.step(step_keys[i], self.batched(s.state), batch, epsilon)
                made = (self.carried(state), *made)
                return self.recorded(s, made, t, (t - origin) // self.thin, weight * epsilon)

            n = jnp.minimum(self.block, end - t0)
            return t0 + n, lax.fori_loop(0, n, iteration, s)

        def going(carry):
            """Whether iterations are left and all chains are finite."""
            return (carry[0] < end) & jnp.all(carry[1].bad_since < 0)

        empty = self.empty(data, state, keys, weight)
        start = (jnp.asarray(begin, jnp.int32), empty._replace(state=self.carried(state)))
        found = lax.while_loop(going, run_block, start)[1]
        return found._replace(state=self.batched(found.state))

    def carried(self, state):
        """The state as the loop carries it. That of a single chain has no axis of chains, or XLA would copy it."""
        return jax.tree.map(lambda x: x[0], state) if self.chains == 1 else state

    def batched(self, state):
        """The state of all chains."""
        return jax.tree.map(lambda x: x[None], state) if self.chains == 1 else state

    def recorded(self, s: Segment, made, t, slot, w) -> Segment:
        """The segment with the outcome of iteration t, of weight w, in a slot."""
        state, info, theta, finite = made

        def put(old, new):
            """Record in the slot."""
            return lax.dynamic_update_slice(old, new[None], (slot, *(slot.dtype.type(0),) * new.ndim))

        m = s.moments
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


def build_gradients(posterior: Posterior, *, batch_size: int | None) -> Callable:
    """Build the compiled ``gradients(data, draws, keys, numbers)``: the stochastic gradient at each stored draw.

    Each takes a fresh minibatch, so its noise is independent of the draw, as the kernel Stein discrepancy needs it.
    """

    shards = shards_of(posterior)
    gather = minibatch.gather if shards is None else shards.gathered

    def at(data, theta, key, number):
        """The gradient at one draw of one chain."""
        position = posterior.unconstrain_unchecked(theta)
        if batch_size is None:
            return posterior.grad(position, data)
        rows = posterior.minibatch_indices(key, number, batch_size, True)
        return posterior.grad(position, gather(data, rows))

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
    """Whether each leaf is finite in all of its entries, by one sum.

    Rows are added up by a product with ones, which is vectorised where XLA's own sum on a CPU is not.
    """

    def total(x):
        rows = x if x.ndim < 2 else x.reshape(x.shape[0], -1) @ jnp.ones(math.prod(x.shape[1:]), x.dtype)
        return jnp.sum(rows)

    return jnp.stack([jnp.isfinite(total(x)) for x in jax.tree.leaves(position)])
