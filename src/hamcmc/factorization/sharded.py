"""The sharded program: sweeps of gradient steps on parts of the matrix, each closed by Gibbs draws and predictions.

A device keeps its row blocks of W, with their ratings, for good. At each step it needs, for each of its row blocks b,
the column block (b + p) mod B of H, where p is the part drawn for the step: those blocks travel, and with them all that
the sampler remembers of them. What a step needs to know of the whole position is one sum over the devices.

Noise depends on the number of a row alone, and parts on the seed, so the draws do not depend on the number of devices,
up to the rounding of sums.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey, tree_map_with_path

from hamcmc import _check
from hamcmc.factorization import native
from hamcmc.factorization.model import Hyper, Layout, Prior, Sums, gibbs
from hamcmc.factorization.native import Blocks
from hamcmc.factorization.partition import Partition
from hamcmc.samplers.base import Info, Sampler, Space

PyTree = Any
AXIS = "blocks"
SIDES = ("W", "H")
MakeSampler = Callable[[Any, Space], Sampler]


class Data(NamedTuple):
    """Ratings by row block, less their mean, to learn from and held out; how many each row and each column has."""

    train: Blocks
    test: Blocks
    row_counts: Array
    column_counts: Array  # of all column blocks, on every device


class Metric(NamedTuple):
    """The row-count metric: d = 1 / (precision + weight · n) for each number of a row with n ratings."""

    W_precision: Array
    W_weight: Array
    H_precision: Array
    H_weight: Array


class Carry(NamedTuple):
    """All that goes from one sweep to the next.

    Attributes:
        state: of the sampler, in the coordinates θ/√d of the base metric.
        metric: the base metric d.
        hyper: hyper-parameters.
        predicted: running sum over draws of the predictions of held-out ratings, (B, n).
        draws: how many predictions it has.
        iteration: steps taken.
    """

    state: Any
    metric: Metric
    hyper: Hyper
    predicted: Array
    draws: Array
    iteration: Array


class Trace(NamedTuple):
    """What a sweep tells: test errors of its own draw and of the mean over draws, training error, hyper-parameters."""

    rmse_draw: Array
    rmse: Array
    train_rmse: Array
    hyper: Hyper
    info: Any


class Program(NamedTuple):
    """The compiled functions of a run.

    Attributes:
        begin: ``(position, metric, hyper, zeros for predictions, data) -> carry``.
        visit: ``(carry, data, keys, steps, collect) -> (carry, traces)``, a fixed number of sweeps.
        position: ``(carry, data) -> {"W": (…, B, rows, width), "H": …}`` in the coordinates of the model.
        messages: ``(carry, keys, steps) -> scalar``, sends what so many steps send and does nothing else.
        mesh: of devices.
    """

    begin: Callable
    visit: Any
    position: Callable
    messages: Any
    mesh: Mesh


class Keys(NamedTuple):
    """Keys for each use of randomness."""

    part: Array
    step: Array
    gibbs: Array


def keys(seed: int) -> Keys:
    """The keys of a run."""
    return Keys(*jax.random.split(jax.random.key(seed), len(Keys._fields)))


def build(
    p: Partition,
    columns: Layout,
    make: MakeSampler,
    step_size: float,
    *,
    devices: Any,
    sample_hyper: bool,
    order: str = "random",
    reduction: str = "psum",
    prior: Prior = Prior(),
    sweeps: int = 1,
    threads: int = 1,
) -> Program:
    """Compile the program for one partition and one number of devices.

    Args:
        p: the partition of the training ratings.
        columns: what the columns of the factors mean.
        make: ``(posterior, space) -> sampler``; the posterior has ``grad`` and what pSGLD asks of it.
        step_size: ε, constant.
        devices: the mesh; their number divides the number of blocks.
        sample_hyper: whether sweeps end with a draw of the hyper-parameters.
        order: ``"random"``, as in the paper, draws each part with probability |Ω|/N; ``"epochs"`` takes each part once
            in every B steps, in random order, which leaves little of the gradients' noise.
        reduction: how sums over devices are made, one of `REDUCTIONS`.
        prior: of the hyper-parameters.
        sweeps: how many sweeps a visit has.
        threads: of the kernel, for each device.
    """
    B, P = p.blocks, len(devices)
    _check.one_of("order", order, ("random", "epochs"))
    if B % P:
        raise ValueError(f"the number of devices must divide the number of blocks: {B} blocks on {P} devices")
    q, size = B // P, int(p.parts.sum())
    rows, shape = {"W": p.rows, "H": p.columns}, (len(p.rows.block), len(p.columns.block))
    mesh = Mesh(np.asarray(devices), (AXIS,))
    # Gradients are weighted by N over this: the inverse of the probability of the part.
    sizes = jnp.asarray(p.parts if order == "random" else np.full(B, size / B), jnp.float32)
    bounds = jnp.asarray(np.cumsum(p.parts) / max(size, 1), jnp.float32)
    free = {s: jnp.asarray(columns.free(s)) for s in SIDES}
    first = lambda: lax.axis_index(AXIS) * q if P > 1 else 0  # the number of the device's first block
    reduce = REDUCTIONS[_check.one_of("reduction", reduction, tuple(REDUCTIONS))]
    total = partial(reduce, P=P) if P > 1 else (lambda x: x)

    def blocks_at(side: str, shift: Any) -> Array:
        """The numbers of the blocks in the device's slots."""
        slots = first() + jnp.arange(q)
        return (slots + shift) % B if side == "H" else slots

    def mask(side: str, shift: Any) -> Array:
        """1 where a number is a parameter, and not padding or a constant."""
        places = rows[side].counts.shape[1]
        there = jnp.arange(places) < jnp.asarray(rows[side].sizes)[blocks_at(side, shift)][:, None]
        return there[..., None] * free[side]

    def root_of(metric: Metric, row_counts: Array, column_counts: Array) -> PyTree:
        """√d, for rows and columns with so many ratings."""
        side = lambda s, precision, weight, n: jnp.where(
            free[s] > 0, lax.rsqrt(jnp.where(free[s] > 0, precision + weight * n[..., None], 1)), 1
        )
        return {
            "W": side("W", metric.W_precision, metric.W_weight, row_counts),
            "H": side("H", metric.H_precision, metric.H_weight, column_counts),
        }

    def space_at(shift: Any) -> Space:
        def normal(key, like):
            def side(s, key, x):
                places = x.shape[-2]
                numbers = (blocks_at(s, shift)[:, None] * places + jnp.arange(places)).astype(jnp.uint32)
                draw = lambda key: native.normal(jax.random.key_data(key), numbers, x.shape[-1], threads=threads)
                z = draw(key) if x.ndim == 3 else jax.vmap(draw)(jax.random.split(key, x.shape[0]))
                return (z * mask(s, shift)).astype(x.dtype)

            return {s: side(s, key, like[s]) for s, key in zip(SIDES, jax.random.split(key))}

        return Space(total, normal)

    def iteration(carry: Carry, data: Data, key: Array, state: Any, part: Array, shift: Any):
        """One step of the sampler on a part, with H's blocks where `shift` says."""
        posterior = PartPosterior(
            lambda W, H: gradient_of_part(data.train, W, H, part, resting=P == 1, threads=threads),
            root_of(carry.metric, data.row_counts, data.column_counts[blocks_at("H", shift)]),
            carry.hyper,
            {s: mask(s, shift) for s in SIDES},
            sizes[part],
            size,
        )
        return make(posterior, space_at(shift)).step(key, state, None, step_size)

    def part_of(key: Array, t: Array) -> Array:
        if order == "random":
            place = jnp.searchsorted(bounds, jax.random.uniform(jax.random.fold_in(key, t)), side="right")
            return jnp.minimum(place, B - 1).astype(jnp.int32)
        return jax.random.permutation(jax.random.fold_in(key, t // B), B)[t % B].astype(jnp.int32)

    def steps_of_sweep(carry: Carry, data: Data, keys: Keys, steps: Array) -> tuple[Carry, Any]:
        def one(i, moving):
            t, shift, state, _ = moving
            part = part_of(keys.part, t)
            if P > 1:
                state, shift = travel(state, (part - shift) % B, B, P), part
            state, info = iteration(carry, data, jax.random.fold_in(keys.step, t), state, part, shift)
            return t + 1, shift, state, info

        start = carry.iteration, jnp.zeros((), jnp.int32), carry.state
        shapes = jax.eval_shape(lambda s: one(0, (*s, None))[-1], start)
        t, shift, state, info = lax.fori_loop(
            0, steps, one, (*start, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
        )
        if P > 1:
            state = travel(state, (-shift) % B, B, P)
        return carry._replace(state=state, iteration=t), info

    def look(position: PyTree, data: Data) -> tuple[Array, Array]:
        """Σe² of the device's training ratings and predictions of its held-out ones, as H passes by once."""

        def one(part, so_far):
            H, error, predicted = so_far
            here = jnp.roll(H, -part, 0) if P == 1 else H
            error += native.squared_error(position["W"], here, data.train, part, threads=threads)[1].sum()
            predicted += native.predict(position["W"], here, data.test, part, threads=threads)
            return H if P == 1 else ring_shift(H, 1, B, P), error, predicted

        dtype = position["W"].dtype
        start = position["H"], jnp.zeros((), dtype), jnp.zeros(data.test.columns.shape, dtype)
        return lax.fori_loop(0, B, one, start)[1:]

    def close(carry: Carry, data: Data, keys: Keys, collect: Array, info: Any) -> tuple[Carry, Trace]:
        """Draw the hyper-parameters, and see how well the draw predicts."""
        root = root_of(carry.metric, data.row_counts, data.column_counts[blocks_at("H", 0)])
        theta = jax.tree.map(jnp.multiply, carry.state.position, root)
        if theta["W"].ndim == 3:
            one, (error, predicted) = theta, look(theta, data)
        else:  # the hyper-parameters follow one replica after the other
            errors, predictions = lax.map(lambda replica: look(replica, data), theta)
            replica = carry.draws % len(errors)
            one = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, replica, keepdims=False), theta)
            error, predicted = errors[replica], predictions.mean(0)
        there = jnp.arange(data.test.columns.shape[1]) < data.test.indptr[:, -1, -1:]
        summed = carry.predicted + collect * predicted
        draws = carry.draws + collect
        mean = jnp.where(draws > 0, summed / jnp.maximum(draws, 1), predicted)
        squares = lambda x: jnp.sum(there * (data.test.values - x) ** 2)
        moments = [f(one[s] * mask(s, 0)) for s in SIDES for f in (column_sum, lambda x: column_sum(x * x))]
        # One message, which waits for all before it. Processes match messages by their order alone: two that do not
        # depend on each other may be sent in either order, and then meet the wrong receivers.
        norms = jnp.square(jnp.stack(info)) if P > 1 and isinstance(info, Info) else jnp.zeros(0, error.dtype)
        figures = jnp.stack([error, squares(predicted), squares(mean), there.sum()])
        fused = total(jnp.concatenate([norms, figures, *moments]))
        norms, (error, of_draw, of_mean, held_out), moments = jnp.split(fused, [len(norms), len(norms) + 4])
        moments = jnp.split(moments, 4)
        if len(norms):  # of shards so far
            info = Info(*jnp.sqrt(norms))
        hyper = carry.hyper
        if sample_hyper:
            sums, key = Sums(error, *moments), jax.random.fold_in(keys.gibbs, carry.iteration)
            hyper = gibbs(key, sums, size, shape, columns, prior)
        rmse = lambda squared, n: jnp.sqrt(squared / jnp.maximum(n, 1))
        carry = carry._replace(hyper=hyper, predicted=summed, draws=draws)
        return carry, Trace(rmse(of_draw, held_out), rmse(of_mean, held_out), rmse(error, size), hyper, info)

    def visit(carry: Carry, data: Data, keys: Keys, steps: Array, collect: Array) -> tuple[Carry, Trace]:
        def sweep(carry, _):
            carry, info = steps_of_sweep(carry, data, keys, steps)
            return close(carry, data, keys, collect, info)

        return lax.scan(sweep, carry, length=sweeps)

    def nothing() -> Sampler:
        """The sampler for what it needs no posterior for."""
        return make(PartPosterior(None, None, None, None, 1.0, size), Space(total))  # type: ignore[arg-type]

    def begin(position: PyTree, metric: Metric, hyper: Hyper, predicted: Array, data: Data) -> Carry:
        root = root_of(metric, data.row_counts, data.column_counts)
        state = nothing().init(jax.tree.map(jnp.divide, position, root))
        return Carry(state, metric, hyper, predicted, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def position(carry: Carry, data: Data) -> PyTree:
        root = root_of(carry.metric, data.row_counts, data.column_counts)
        return jax.tree.map(jnp.multiply, carry.state.position, root)

    def compiled(carry, data, keys, steps, collect):
        if P == 1:
            return visit(carry, data, keys, steps, collect)
        carries = carry_specs(carry)
        whole = lambda tree: jax.tree.map(lambda _: PartitionSpec(), tree)
        return jax.shard_map(
            visit,
            mesh=mesh,
            in_specs=(carries, data_specs(), whole(keys), PartitionSpec(), PartitionSpec()),
            out_specs=(carries, PartitionSpec()),
            check_vma=False,
        )(carry, data, keys, steps, collect)

    def messages(carry: Carry, keys: Keys, steps: Array) -> Array:
        reduces = "cosine" in nothing().settings  # those with a memory of curvature sum at every step

        def only(state, key):
            def one(i, moving):
                shift, state, summed = moving
                part = part_of(key, i)
                state = travel(state, (part - shift) % B, B, P)
                return part, state, total(summed + 1) / P if reduces else summed

            _, state, summed = lax.fori_loop(0, steps, one, (jnp.zeros((), jnp.int32), state, jnp.zeros(16)))
            return total(sum(jnp.sum(x) for x in jax.tree.leaves(state)) * 0 + summed[0])

        there = specs(carry.state), PartitionSpec()
        return jax.shard_map(only, mesh=mesh, in_specs=there, out_specs=PartitionSpec(), check_vma=False)(
            carry.state, keys.part
        )

    def placed_begin(*args) -> Carry:
        if P == 1:
            return jax.jit(begin)(*args)
        shapes = jax.eval_shape(begin, *args)
        return jax.jit(begin, out_shardings=shardings(mesh, carry_specs(shapes)))(*args)

    return Program(
        placed_begin,
        jax.jit(compiled, donate_argnums=0),
        jax.jit(position),
        jax.jit(messages),
        mesh,
    )


class PartPosterior:
    """The posterior of W and H as a sampler sees it through one part, in the coordinates θ/√d of the base metric.

    N/n times the gradient of a part is unbiased, where n/N is the probability of the part: n = |Ω| in the paper.
    """

    mirror = None

    def __init__(self, likelihood: Callable, root: PyTree, hyper: Hyper, mask: PyTree, part_size: Any, size: int):
        self.likelihood, self.root, self.hyper, self.mask = likelihood, root, hyper, mask
        self.part_size, self.size = part_size, size

    def mean_likelihood_grad(self, position: PyTree, _: Any = None) -> PyTree:
        """Mean over the part's ratings of the gradient of the log-likelihood."""
        gradients = self.likelihood(*(position[s] * self.root[s] for s in SIDES))
        weight = self.hyper.noise / jnp.maximum(self.part_size, 1)
        return {s: weight * g * self.mask[s] * self.root[s] for s, g in zip(SIDES, gradients)}

    def combine(self, position: PyTree, mean: PyTree) -> PyTree:
        """The gradient of the log-density from that of the mean log-likelihood."""
        h = self.hyper
        prior = {"W": (h.W_precision, h.W_mean), "H": (h.H_precision, h.H_mean)}

        def side(s):
            precision, centre = prior[s]
            pull = precision * (centre - position[s] * self.root[s]) * self.mask[s] * self.root[s]
            return (self.size * mean[s] + pull).astype(position[s].dtype)

        return {s: side(s) for s in SIDES}

    def grad(self, position: PyTree, _: Any = None) -> PyTree:
        """Unbiased estimate of the gradient of the log-density."""
        return self.combine(position, self.mean_likelihood_grad(position))


def gradient_of_part(train: Blocks, W: Array, H: Array, part: Array, *, resting: bool, threads: int):
    """Σ e h and Σ e w over a part. On one device H rests, and is turned only for the kernel."""
    here = jnp.roll(H, -part, 0) if resting else H
    of_W, of_H, _ = native.gradient(W, here, train, part, threads=threads)
    return of_W, jnp.roll(of_H, part, 0) if resting else of_H


def row_count_metric(columns: Layout, hyper: Hyper) -> Metric:
    """d = 1 / (λ + τ n E h²) for each number w of a row with n ratings, and likewise h: its expected curvature."""
    second = lambda s, mean, precision: (
        mean**2 + jnp.where(columns.free(s) > 0, 1 / jnp.maximum(precision, 1e-30), 0) + columns.constant(s)
    )
    of_W, of_H = second("W", hyper.W_mean, hyper.W_precision), second("H", hyper.H_mean, hyper.H_precision)
    return Metric(hyper.W_precision, hyper.noise * of_H, hyper.H_precision, hyper.noise * of_W)


def plain_metric(columns: Layout) -> Metric:
    """d = 1."""
    one, zero = jnp.ones(columns.width), jnp.zeros(columns.width)
    return Metric(one, zero, one, zero)


def specs(tree: PyTree) -> PyTree:
    """How leaves are spread: those of W and H by blocks, their third axis from the end; others are everywhere."""

    def spec(path, x):
        if any(isinstance(k, DictKey) and k.key in SIDES for k in path):
            return PartitionSpec(*[None] * (x.ndim - 3), AXIS)
        return PartitionSpec()

    return tree_map_with_path(spec, tree)


def carry_specs(carry: Carry) -> Carry:
    """How a :class:`Carry` is spread."""
    return specs(carry)._replace(predicted=PartitionSpec(AXIS))


def data_specs() -> Data:
    """How :class:`Data` is spread."""
    by_block = Blocks(*[PartitionSpec(AXIS)] * 3)  # type: ignore[list-item]
    return Data(by_block, by_block, PartitionSpec(AXIS), PartitionSpec())  # type: ignore[arg-type]


def shardings(mesh: Mesh, spec: PyTree) -> PyTree:
    """Specs on a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), spec, is_leaf=lambda s: isinstance(s, PartitionSpec))


def ordered_sum(x: Array, P: int) -> Array:
    """Everyone gathers all shards and adds them up in the order of the devices, which no number of processes alters."""
    return lax.all_gather(x, AXIS).sum(0)


def butterfly_sum(x: Array, P: int) -> Array:
    """log₂ P rounds in which partners at distance 1, 2, 4 … swap what they have."""
    if P & (P - 1):
        raise ValueError(f"a butterfly needs 2, 4, 8 … devices, not {P}")
    distance = 1
    while distance < P:
        x = x + lax.ppermute(x, AXIS, [(d, d ^ distance) for d in range(P)])
        distance *= 2
    return x


REDUCTIONS: dict[str, Callable] = {
    "psum": lambda x, P: lax.psum(x, AXIS),
    "ordered": ordered_sum,
    "butterfly": butterfly_sum,
}


def travel(tree: PyTree, shift: Array, B: int, P: int) -> PyTree:
    """Move all that belongs to H on by `shift` blocks, in one message."""
    leaves, structure = jax.tree.flatten_with_path(tree)
    moving = [i for i, (path, _) in enumerate(leaves) if any(isinstance(k, DictKey) and k.key == "H" for k in path)]
    by_slot = [jnp.moveaxis(leaves[i][1], -3, 0) for i in moving]
    q = by_slot[0].shape[0]
    packed = jnp.concatenate([x.reshape(q, -1) for x in by_slot], 1)
    # Who sends to whom must be known when the program is compiled: one branch for each shift.
    packed = lax.switch(shift, [partial(ring_shift, shift=s, B=B, P=P) for s in range(B)], packed)
    pieces = jnp.split(packed, np.cumsum([x.size // q for x in by_slot])[:-1], axis=1)
    new = [x for _, x in leaves]
    for i, piece, old in zip(moving, pieces, by_slot):
        new[i] = jnp.moveaxis(piece.reshape(old.shape), 0, -3)
    return structure.unflatten(new)


def ring_shift(x: Array, shift: int, B: int, P: int) -> Array:
    """Slot b gets what slot (b + shift) mod B had; each device has B/P slots, in order."""
    q = B // P
    far, near = divmod(shift % B, q)
    pull = lambda y, far: lax.ppermute(y, AXIS, [((d + far) % P, d) for d in range(P)]) if far % P else y
    if not near:
        return pull(x, far)
    return jnp.concatenate([pull(x[near:], far), pull(x[:near], far + 1)])


def column_sum(x: Array) -> Array:
    """Sum over blocks and places."""
    return x.sum((0, 1))


def shard(mesh: Mesh, tree: PyTree, spec: PyTree) -> PyTree:
    """Put host arrays on the mesh, without a copy where that is possible.

    Each process touches only what its own devices hold: memory-mapped ratings of others are never read.
    """

    def leaf(x, s):
        if mesh.size == 1:
            return jax.device_put(np.asarray(x), mesh.devices.item())
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, s), lambda index: np.asarray(x[index]))

    return jax.tree.map(leaf, tree, spec)
