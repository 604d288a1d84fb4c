"""The kernels under ``shard_map``: run by test_kernels.py with two devices."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from hamcmc.factorization import native
from tests.factorization.native.reference import agree, case, expected

assert jax.device_count() == 2
mesh = jax.sharding.Mesh(jax.devices(), ("device",))
args = case(8, q=4)
rows = jnp.arange(4 * 7, dtype=jnp.uint32).reshape(4, 7)
words = jnp.array([1, 2], jnp.uint32)


def visit(W, H, blocks, rows):
    """A loop in which each block of H visits both devices: Σ e² over parts 0 and 1, and noise for the rows."""

    def body(part, state):
        H, total = state
        _, _, square = native.gradient(W, H, blocks, part, threads=2)
        return lax.ppermute(H, "device", [(0, 1), (1, 0)]), total + square

    start = (H, jnp.zeros(len(W)))
    return lax.fori_loop(0, 2, body, start)[1], native.normal(words, rows, 16)


split = P("device")
specs = (split, split, jax.tree.map(lambda _: split, args.blocks), split)
sharded = jax.shard_map(visit, mesh=mesh, in_specs=specs, out_specs=(split, split), check_vma=False)
total, noise = jax.jit(sharded)(*args, rows)

moved = args.H[[2, 3, 0, 1]]
parts = [expected(args.W, H, args.blocks, p)["gradient"][2] for p, H in enumerate((args.H, moved))]
agree((total, noise), (parts[0] + parts[1], native.normal(words, rows, 16)))
