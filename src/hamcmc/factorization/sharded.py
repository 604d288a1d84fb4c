"""The compiled sweeps: gradient steps on parts of the matrix, each sweep closed by Gibbs draws and predictions.

A device keeps its row blocks of W and their ratings for good. A step on part p needs, for each of these row blocks b,
the column block (b + p) mod B of H. Those blocks travel, together with everything that the sampler remembers of them.
Whatever else a step needs to know about the whole position is one sum over the devices.

The noise depends on the number of a row, and the parts on the seed. So the draws do not depend on the number of
devices, up to the rounding of sums.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from hamcmc import _check
from hamcmc.factorization import native
from hamcmc.factorization.exchange import AXIS, REDUCTIONS, Devices, replicated, ring_shift, shardings, specs, travel
from hamcmc.factorization.metric import Metric, roots
from hamcmc.factorization.model import SIDES, Hyper, Layout, Prior, Sums, gibbs
from hamcmc.factorization.native import Blocks
from hamcmc.factorization.part import ORDERS, Factors, Part, Parts, PartTarget, Slots, gradient_of_part
from hamcmc.factorization.partition import Partition
from hamcmc.samplers.base import Info, Sampler, Space
from hamcmc.target.protocol import Target

MakeSampler = Callable[[Target, Space], Sampler]


class Data(NamedTuple):
    """Ratings by row block, less their mean: for training and held out. And how many each row and each column has."""

    train: Blocks
    test: Blocks
    row_counts: Array
    column_counts: Array  # of all column blocks, on every device


class Carry(NamedTuple):
    """Everything that goes from one sweep to the next.

    Attributes:
        state: the sampler's state, in the coordinates θ/√d of the base metric.
        metric: the base metric d.
        hyper: the hyper-parameters.
        predicted: the sum over draws of the predictions of held-out ratings, (B, n).
        draws: how many predictions the sum has.
        iteration: steps taken.
    """

    state: Any
    metric: Metric
    hyper: Hyper
    predicted: Array
    draws: Array
    iteration: Array


class Trace(NamedTuple):
    """The test errors of a sweep's own draw and of the mean over draws, the training error, the hyper-parameters, and
    the sampler's Info at the last step."""

    rmse_draw: Array
    rmse: Array
    train_rmse: Array
    hyper: Hyper
    info: Any


class Keys(NamedTuple):
    """Keys for each use of randomness."""

    part: Array
    step: Array
    gibbs: Array


class Sweeps(NamedTuple):
    """The compiled functions of a run.

    Attributes:
        begin: ``(position, metric, hyper, zeros for predictions, data) -> carry``.
        segment: ``(carry, data, keys, steps, collect) -> (carry, traces)``, a fixed number of sweeps.
        position: ``(carry, data) -> {"W": (…, B, rows, width), "H": …}`` in the coordinates of the model.
        messages: ``(carry, keys, steps) -> scalar``, which sends what so many steps send and does nothing else.
        mesh: the devices.
        sampler: the sampler on a target without a part, for its fields.
    """

    begin: Callable[..., Carry]
    segment: Any
    position: Callable[[Carry, Data], Factors]
    messages: Any
    mesh: Mesh
    sampler: Sampler


def keys(seed: int) -> Keys:
    """The keys of a run."""
    return Keys(*jax.random.split(jax.random.key(seed), len(Keys._fields)))


def carry_specs(carry: Carry) -> Carry:
    """How a :class:`Carry` is sharded."""
    return specs(carry)._replace(predicted=PartitionSpec(AXIS))


def data_specs() -> Data:
    """How :class:`Data` is sharded."""
    by_block: Any = PartitionSpec(AXIS)
    blocks, everywhere = Blocks(*[by_block] * 3), PartitionSpec()
    return Data(blocks, blocks, by_block, everywhere)  # type: ignore[arg-type]


def build(
    p: Partition,
    columns: Layout,
    make: MakeSampler,
    step_size: float | Array,
    *,
    devices: Devices,
    sample_hyper: bool,
    order: str = "random",
    reduction: str = "psum",
    prior: Prior = Prior(),
    sweeps: int = 1,
    threads: int = 1,
) -> Sweeps:
    """Build the functions for one partition and one number of devices.

    Args:
        p: the partition of the training ratings.
        columns: what the columns of the factors mean.
        make: ``(target, space) -> sampler``.
        step_size: ε, constant.
        devices: the mesh. Their number divides the number of blocks.
        sample_hyper: whether sweeps end with a draw of the hyper-parameters.
        order: ``"random"``, as in the paper, draws each part with probability |Ω|/N. ``"epochs"`` takes each part once
            in every B steps, in random order, which removes most of the gradients' noise.
        reduction: how sums over devices are made, one of `REDUCTIONS`.
        prior: the prior of the hyper-parameters.
        sweeps: sweeps in a segment.
        threads: threads of the kernel, for each device.
    """
    B, P = p.blocks, len(devices)
    _check.one_of("order", order, ORDERS)
    if B % P:
        raise ValueError(f"the number of devices must divide the number of blocks: {B} blocks on {P} devices")
    reduce = REDUCTIONS[_check.one_of("reduction", reduction, tuple(REDUCTIONS))]
    total = partial(reduce, P=P) if P > 1 else Space().total
    model = _Model(columns, prior, sample_hyper, int(p.parts.sum()), (len(p.rows.block), len(p.columns.block)))
    parts = Parts.of(p, order, model.size)
    s = _Sweeper(model, Slots(p, columns, P), parts, make, step_size, total, threads)
    mesh = Mesh(np.asarray(devices), (AXIS,))

    def segment(carry, data, keys, steps, collect):
        run = partial(s.segment, sweeps=sweeps)
        if P == 1:
            return run(carry, data, keys, steps, collect)
        carries, everywhere = carry_specs(carry), PartitionSpec()
        places = (carries, data_specs(), replicated(keys), everywhere, everywhere)
        run = jax.shard_map(run, mesh=mesh, in_specs=places, out_specs=(carries, everywhere), check_vma=False)
        return run(carry, data, keys, steps, collect)

    def begin(*args) -> Carry:
        if P == 1:
            return jax.jit(s.begin)(*args)
        shapes = jax.eval_shape(s.begin, *args)
        return jax.jit(s.begin, out_shardings=shardings(mesh, carry_specs(shapes)))(*args)

    def messages(carry, keys, steps):
        places = specs(carry.state), PartitionSpec()
        send = partial(s.messages, steps=steps)
        send = jax.shard_map(send, mesh=mesh, in_specs=places, out_specs=PartitionSpec(), check_vma=False)
        return send(carry.state, keys.part)

    return Sweeps(
        begin=begin,
        segment=jax.jit(segment, donate_argnums=0),
        position=jax.jit(s.position),
        messages=jax.jit(messages),
        mesh=mesh,
        sampler=s.sampler,
    )


class _Model(NamedTuple):
    """The columns of the factors, the prior of the hyper-parameters, and the training ratings' number and shape."""

    columns: Layout
    prior: Prior
    sample_hyper: bool
    size: int
    shape: tuple[int, int]


class _Sweeper:
    """The functions of a run as each device runs them, before they are compiled."""

    def __init__(
        self,
        model: _Model,
        slots: Slots,
        parts: Parts,
        make: MakeSampler,
        step_size: float | Array,
        total: Callable[[Array], Array],
        threads: int,
    ):
        self.model, self.slots, self.parts, self.make = model, slots, parts, make
        self.step_size, self.total, self.threads = step_size, total, threads
        self.sampler = make(PartTarget(model.size), Space(total))

    def begin(self, position: Factors, metric: Metric, hyper: Hyper, predicted: Array, data: Data) -> Carry:
        """The carry at a position; the sampler starts there."""
        root = roots(metric, self.slots.free, data.row_counts, data.column_counts)
        state = self.sampler.init(jax.tree.map(jnp.divide, position, root))
        return Carry(state, metric, hyper, predicted, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def position(self, carry: Carry, data: Data) -> Factors:
        """W and H in the coordinates of the model."""
        root = roots(carry.metric, self.slots.free, data.row_counts, data.column_counts)
        return jax.tree.map(jnp.multiply, carry.state.position, root)

    def segment(self, carry: Carry, data: Data, keys: Keys, steps: Array, collect: Array, *, sweeps: int):
        """A number of sweeps, and the trace of each."""

        def sweep(carry, _):
            carry, info = self.steps(carry, data, keys, steps)
            return self.close(carry, data, keys, collect, info)

        return lax.scan(sweep, carry, length=sweeps)

    def steps(self, carry: Carry, data: Data, keys: Keys, steps: Array) -> tuple[Carry, Any]:
        """The gradient steps of a sweep, after which all blocks of H are back home."""
        B, P = self.slots.B, self.slots.P
        still = self.around(carry, data, 0) if P == 1 else None  # nothing travels, so that this is done once

        def one(moving):
            t, shift, state = moving
            part = self.parts.at(keys.part, t)
            if P > 1:
                state, shift = travel(state, (part - shift) % B, B, P), part
            key, around = jax.random.fold_in(keys.step, t), still or self.around(carry, data, shift)
            state, info = self.step(carry, data, key, state, part, shift, around)
            return (t + 1, shift, state), info

        start = carry.iteration, jnp.zeros((), jnp.int32), carry.state
        info = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(one, start)[1])
        moving, first = start, jnp.zeros((), jnp.int32)
        if P == 1:  # infos are three sums over all parameters, and only the last step's are looked at
            moving = lax.fori_loop(1, steps, lambda _, moving: one(moving)[0], start)
            first = jnp.maximum(steps - 1, 0)  # with no steps at all there is no last one
        (t, shift, state), info = lax.fori_loop(first, steps, lambda _, last: one(last[0]), (moving, info))
        if P > 1:
            state = travel(state, (-shift) % B, B, P)
        return carry._replace(state=state, iteration=t), info

    def around(self, carry: Carry, data: Data, shift: Any) -> tuple[Factors, Factors]:
        """√d of the base metric and the mask, with the blocks of H where `shift` says."""
        slots = self.slots
        counts = data.row_counts, data.column_counts[slots.blocks_at("H", shift)]
        return roots(carry.metric, slots.free, *counts), {s: slots.mask(s, shift) for s in SIDES}

    def step(
        self,
        carry: Carry,
        data: Data,
        key: Array,
        state: Any,
        part: Array,
        shift: Any,
        around: tuple[Factors, Factors],
    ) -> tuple[Any, Any]:
        """One step of the sampler on a part, with the blocks of H where `shift` says and what is `around` them."""
        slots, resting = self.slots, self.slots.P == 1

        def likelihood(W: Array, H: Array) -> tuple[Array, Array]:
            """The sums over the part's ratings."""
            return gradient_of_part(data.train, W, H, part, resting=resting, threads=self.threads)

        root, mask = around
        target = PartTarget(self.model.size, Part(likelihood, root, carry.hyper, mask, self.parts.counts[part]))
        space = Space(self.total, partial(slots.normal, shift=shift, threads=self.threads))
        return self.make(target, space).step(key, state, None, self.step_size)

    def look(self, position: Factors, data: Data) -> tuple[Array, Array]:
        """Σe² of the device's training ratings and predictions of its held-out ones, while H goes around once."""
        B, P = self.slots.B, self.slots.P

        def one(part, so_far):
            H, error, predicted = so_far
            here = jnp.roll(H, -part, 0) if P == 1 else H
            error += native.squared_error(position["W"], here, data.train, part, threads=self.threads)[1].sum()
            predicted += native.predict(position["W"], here, data.test, part, threads=self.threads)
            return H if P == 1 else ring_shift(H, 1, B, P), error, predicted

        dtype = position["W"].dtype
        start = position["H"], jnp.zeros((), dtype), jnp.zeros(data.test.columns.shape, dtype)
        return lax.fori_loop(0, B, one, start)[1:]

    def close(self, carry: Carry, data: Data, keys: Keys, collect: Array, info: Any) -> tuple[Carry, Trace]:
        """Draw the hyper-parameters, and measure how well the draw predicts."""
        model, slots = self.model, self.slots
        root = roots(carry.metric, slots.free, data.row_counts, data.column_counts[slots.blocks_at("H", 0)])
        theta = jax.tree.map(jnp.multiply, carry.state.position, root)
        if theta["W"].ndim == 3:
            one, (error, predicted) = theta, self.look(theta, data)
        else:  # the hyper-parameters follow one replica after the other
            errors, predictions = lax.map(lambda replica: self.look(replica, data), theta)
            replica = carry.draws % len(errors)
            one = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, replica, keepdims=False), theta)
            error, predicted = errors[replica], predictions.mean(0)
        there = jnp.arange(data.test.columns.shape[1]) < data.test.indptr[:, -1, -1:]
        summed = carry.predicted + collect * predicted
        draws = carry.draws + collect
        mean = jnp.where(draws > 0, summed / jnp.maximum(draws, 1), predicted)
        moments = [f(one[s] * slots.mask(s, 0)) for s in SIDES for f in (_column_sum, _column_sum_of_squares)]
        # One message, which waits for all earlier ones. Processes match messages by their order alone: two that do not
        # depend on each other may be sent in either order, and would then meet the wrong receivers.
        norms = jnp.square(jnp.stack(info)) if slots.P > 1 and isinstance(info, Info) else jnp.zeros(0, error.dtype)
        of_draw, of_mean = (jnp.sum(there * (data.test.values - x) ** 2) for x in (predicted, mean))
        figures = jnp.stack([error, of_draw, of_mean, there.sum()])
        fused = self.total(jnp.concatenate([norms, figures, *moments]))
        norms, (error, of_draw, of_mean, held_out), moments = jnp.split(fused, [len(norms), len(norms) + 4])
        moments = jnp.split(moments, 4)
        if len(norms):  # until now those of each shard
            info = Info(*jnp.sqrt(norms))
        hyper = carry.hyper
        if model.sample_hyper:
            sums, key = Sums(error, *moments), jax.random.fold_in(keys.gibbs, carry.iteration)
            hyper = gibbs(key, sums, model.size, model.shape, model.columns, model.prior)
        carry = carry._replace(hyper=hyper, predicted=summed, draws=draws)
        return carry, Trace(_rmse(of_draw, held_out), _rmse(of_mean, held_out), _rmse(error, model.size), hyper, info)

    def messages(self, state: Any, key: Array, *, steps: Array) -> Array:
        """Send what so many steps send. Samplers with curvature pairs also sum over the devices at every step."""
        B, P = self.slots.B, self.slots.P

        def one(i, moving):
            shift, state, summed = moving
            part = self.parts.at(key, i)
            state = travel(state, (part - shift) % B, B, P)
            return part, state, self.total(summed + 1) / P if self.sampler.pairs else summed

        _, state, summed = lax.fori_loop(0, steps, one, (jnp.zeros((), jnp.int32), state, jnp.zeros(16)))
        return self.total(sum(jnp.sum(x) for x in jax.tree.leaves(state)) * 0 + summed[0])


def _column_sum(x: Array) -> Array:
    """Σx over blocks and places."""
    return x.sum((0, 1))


def _column_sum_of_squares(x: Array) -> Array:
    """Σx² over blocks and places."""
    return (x * x).sum((0, 1))


def _rmse(squared: Array, n: Any) -> Array:
    """√(Σe² / n)."""
    return jnp.sqrt(squared / jnp.maximum(n, 1))
