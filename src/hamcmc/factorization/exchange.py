"""How devices exchange numbers: blocks of H that travel around a ring, sums over all devices, and sharded arrays."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey, tree_map_with_path

from hamcmc._types import PyTree
from hamcmc.factorization.model import SIDES

Devices = Sequence[Any]  # jax.Device, which JAX declares as a variable
AXIS = "blocks"  # the name of the mesh's only axis


# --- sums over all devices ---


def plain_sum(x: Array, P: int) -> Array:
    """The sum as the runtime makes it."""
    return lax.psum(x, AXIS)


def ordered_sum(x: Array, P: int) -> Array:
    """A sum in the order of the devices, which does not depend on the number of processes.

    Every device gathers all shards and adds them up itself.
    """
    return lax.all_gather(x, AXIS).sum(0)


def butterfly_sum(x: Array, P: int) -> Array:
    """A sum in log₂ P rounds, in which partners at distance 1, 2, 4 … swap what they have."""
    if P & (P - 1):
        raise ValueError(f"reduction='butterfly' needs 2, 4, 8 … devices, not {P}")
    distance = 1
    while distance < P:
        x = x + lax.ppermute(x, AXIS, [(d, d ^ distance) for d in range(P)])
        distance *= 2
    return x


REDUCTIONS: dict[str, Callable[..., Array]] = {
    "psum": plain_sum,
    "ordered": ordered_sum,
    "butterfly": butterfly_sum,
}


def fastest_reduction(devices: Devices) -> str:
    """The sum over devices that was the fastest where we measured: a butterfly between processes on CPUs."""
    between = jax.process_count() > 1 and devices[0].platform == "cpu"
    return "butterfly" if between and len(devices) & (len(devices) - 1) == 0 else "psum"


# --- the ring ---


def travel(tree: PyTree, shift: Array, B: int, P: int) -> PyTree:
    """Move everything that belongs to H on by `shift` blocks, in one message."""
    leaves, structure = jax.tree.flatten_with_path(tree)
    moving = [i for i, (path, _) in enumerate(leaves) if any(isinstance(k, DictKey) and k.key == "H" for k in path)]
    by_slot = [jnp.moveaxis(leaves[i][1], -3, 0) for i in moving]
    q = by_slot[0].shape[0]
    packed = jnp.concatenate([x.reshape(q, -1) for x in by_slot], 1)
    # Senders and receivers must be known when the program is compiled, so each shift has a branch of its own.
    packed = lax.switch(shift, [partial(ring_shift, shift=s, B=B, P=P) for s in range(B)], packed)
    pieces = jnp.split(packed, np.cumsum([x.size // q for x in by_slot])[:-1], axis=1)
    new = [x for _, x in leaves]
    for i, piece, old in zip(moving, pieces, by_slot):
        new[i] = jnp.moveaxis(piece.reshape(old.shape), 0, -3)
    return structure.unflatten(new)


def ring_shift(x: Array, shift: int, B: int, P: int) -> Array:
    """Slot b gets what slot (b + shift) mod B had. Each device has B/P slots, in order."""
    q = B // P
    far, near = divmod(shift % B, q)

    def pull(y: Array, far: int) -> Array:
        """What the device `far` places ahead has."""
        return lax.ppermute(y, AXIS, [((d + far) % P, d) for d in range(P)]) if far % P else y

    if not near:
        return pull(x, far)
    return jnp.concatenate([pull(x[near:], far), pull(x[:near], far + 1)])


# --- arrays on a mesh ---


def specs(tree: PyTree) -> PyTree:
    """How leaves are sharded: those of W and H by blocks, their third axis from the end. Others are replicated."""

    def spec(path, x):
        if any(isinstance(k, DictKey) and k.key in SIDES for k in path):
            return PartitionSpec(*[None] * (x.ndim - 3), AXIS)
        return PartitionSpec()

    return tree_map_with_path(spec, tree)


def replicated(tree: PyTree) -> PyTree:
    """The specs of a tree that every device has whole."""
    return jax.tree.map(lambda _: PartitionSpec(), tree)


def shardings(mesh: Mesh, spec: PyTree) -> PyTree:
    """The shardings that specs mean on a mesh."""
    return jax.tree.map(lambda s: NamedSharding(mesh, s), spec, is_leaf=lambda s: isinstance(s, PartitionSpec))


def shard(mesh: Mesh, tree: PyTree, spec: PyTree) -> PyTree:
    """Put host arrays on the mesh, without a copy where that is possible.

    Each process touches only what its own devices hold: it never reads memory-mapped ratings of the others.
    """

    def leaf(x, s):
        if mesh.size == 1:
            return jax.device_put(np.asarray(x), mesh.devices.item())
        return jax.make_array_from_callback(x.shape, NamedSharding(mesh, s), lambda index: np.asarray(x[index]))

    return jax.tree.map(leaf, tree, spec)
