"""The inner loops of matrix factorization: C++ on a CPU, XLA's own operations elsewhere, with the same results.

X ≈ W Hᵀ is cut into blocks, and a call works on one part: q row blocks, each with the column block paired to it. They
have no row or column in common, so `threads` can work on them at once. All functions work under ``jit``, ``vmap``
(replicas share the ratings), loops and ``shard_map(check_vma=False)``. None can be differentiated.

The form is chosen when a program is traced: see `available`. HAMCMC_NATIVE=0 forces XLA's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from hamcmc.factorization.native import twin
from hamcmc.factorization.native.blocks import Blocks
from hamcmc.factorization.native.library import Available, available

__all__ = ["Available", "Blocks", "available", "gradient", "normal", "predict", "squared_error"]

LANES = 8  # the width of the kernel's vectors


def gradient(W: Array, H: Array, blocks: Blocks, part: Any, *, threads: int = 1) -> tuple[Array, Array, Array]:
    """Gradients of −½ Σ e² in W and H, and Σ e², over the ratings of a part, where e = x − w_i·h_j.

    Args:
        W: (q, I, K), K a multiple of 8.
        H: (q, J, K); slot b holds the column block that `part` pairs with row block b.
        blocks: the ratings.
        part: which of the B parts.
        threads: threads that work on the q blocks (times replicas).

    Returns:
        Σ_j e h_j for each row (q, I, K), Σ_i e w_i for each column (q, J, K), and Σ e² for each block (q,).
    """
    check(W, H, blocks)
    out = (W, H, jax.ShapeDtypeStruct(W.shape[:1], W.dtype))
    return choose("gradient", twin.gradient, out, W, H, blocks, part, threads)


def squared_error(W: Array, H: Array, blocks: Blocks, part: Any, *, threads: int = 1) -> tuple[Array, Array]:
    """Σ e and Σ e² for each block (q,), without gradients. Arguments as in `gradient`."""
    check(W, H, blocks)
    out = (jax.ShapeDtypeStruct(W.shape[:1], W.dtype),) * 2
    return choose("squared_error", twin.squared_error, out, W, H, blocks, part, threads)


def predict(W: Array, H: Array, blocks: Blocks, part: Any, *, threads: int = 1) -> Array:
    """w_i·h_j at the places of the part's ratings and 0 elsewhere, (q, n). ``blocks.values`` is not used."""
    check(W, H, blocks)
    out = jax.ShapeDtypeStruct(blocks.columns.shape, W.dtype)
    return choose("predict", twin.predict, out, W, H, blocks, part, threads)


def normal(words: Array, rows: Array, columns: int, *, threads: int = 1) -> Array:
    """Independent N(0, 1) draws for each row. They depend on the row's number alone, not on the device that holds it.

    Threefry-2x32 with the key `words` on the counter (row, c) gives columns 2c and 2c + 1.

    Args:
        words: uint32[2], the key.
        rows: global row numbers, uint32 of any shape.
        columns: draws per row, even.
        threads: threads that work on it.

    Returns:
        ``float32[*rows.shape, columns]``.
    """
    if columns % 2:
        raise ValueError(f"the number of columns must be even: {columns}")
    words, rows = jnp.asarray(words, jnp.uint32), jnp.asarray(rows, jnp.uint32)
    flat, default = rows.reshape(-1), partial(twin.normal, columns=columns)
    out = jax.ShapeDtypeStruct((rows.size, columns), jnp.float32)
    kernel = jax.ffi.ffi_call("hamcmc_normal", out, vmap_method="expand_dims")
    if not available():
        return default(words, rows)
    draws = lax.platform_dependent(words, flat, cpu=partial(kernel, threads=threads), default=default)
    return draws.reshape(*rows.shape, columns)


def choose(name: str, default: Callable, out: Any, W, H, blocks: Blocks, part: Any, threads: int) -> Any:
    """Call the compiled form of a function if it exists, else XLA's."""
    part = jnp.asarray(part, jnp.int32)
    if W.dtype != jnp.float32 or not available():
        return default(W, H, blocks, part)
    kernel = jax.ffi.ffi_call(f"hamcmc_{name}", out, vmap_method="expand_dims")

    def compiled(W, H, blocks, part):
        data = blocks if name != "predict" else blocks[:2]
        return kernel(W, H, *data, part, threads=threads)

    return lax.platform_dependent(W, H, blocks, part, cpu=compiled, default=default)


def check(W: Array, H: Array, blocks: Blocks) -> None:
    """Raise ValueError if shapes or types do not fit."""
    shapes = f"W {W.shape}, H {H.shape}, indptr {blocks.indptr.shape}, columns {blocks.columns.shape}"
    if W.ndim != 3 or H.ndim != 3 or blocks.indptr.ndim != 3 or blocks.columns.ndim != 2:
        raise ValueError(f"expected W (q, I, K), H (q, J, K), indptr (q, B, I + 1), columns (q, n), not {shapes}")
    (q, rows, rank), ratings = W.shape, blocks.columns.shape
    if rank % LANES or not rank:
        raise ValueError(f"the number of factors must be a multiple of {LANES}, not {rank}: pad W and H with zeros")
    if {q} != {len(H), len(blocks.indptr), len(blocks.columns)} or H.shape[2] != rank:
        raise ValueError(f"the numbers of blocks or factors differ: {shapes}")
    if blocks.indptr.shape[2] != rows + 1:
        raise ValueError(f"indptr must have one offset more than W has rows: {shapes}")
    if blocks.values is not None and blocks.values.shape != ratings:
        raise ValueError(f"columns {ratings} and values {blocks.values.shape} differ in shape")
    types = [str(x.dtype) for x in (W, H, blocks.indptr, blocks.columns)]
    if types[0] != types[1] or types[0] not in ("float32", "float64") or types[2:] != ["int32", "int32"]:
        raise ValueError(f"W and H must be float32 (or both float64), indptr and columns int32, not {', '.join(types)}")
