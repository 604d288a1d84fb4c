"""The compiled kernels and XLA's form of them find what a loop over the ratings finds."""

import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from hamcmc.factorization import native
from hamcmc.factorization.native import twin
from tests.factorization.native.reference import agree, case, expected, needs_kernel

NAMES = ("gradient", "squared_error", "predict")
PARTS = 4
COMPILED = {name: jax.jit(getattr(native, name)) for name in NAMES}
BY_XLA = {name: jax.jit(getattr(twin, name)) for name in NAMES}


def test_the_kernel_is_there_where_a_compiler_is():
    if os.environ.get("HAMCMC_NATIVE") == "0" or not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("switched off, or no compiler")
    assert native.available(), native.available().why_not


@needs_kernel
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), part=st.integers(0, PARTS - 1), name=st.sampled_from(NAMES))
def test_kernel_is_the_loop_over_ratings(seed, part, name):
    args = case(seed)
    agree(COMPILED[name](*args, part), expected(*args, part)[name])


@needs_kernel
@pytest.mark.parametrize("rank", range(8, 73, 8))
def test_kernel_at_every_rank(rank):
    args = case(1, rank)
    agree(COMPILED["gradient"](*args, 2), expected(*args, 2)["gradient"])


@needs_kernel
@pytest.mark.parametrize("shape", [{"rows": 1, "most": 1}, {"q": 1, "parts": 1, "width": 1}, {"most": 0}])
def test_kernel_at_the_edges(shape):
    args = case(4, 8, **shape)
    agree(COMPILED["gradient"](*args, 0), expected(*args, 0)["gradient"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shortest", [8, 1024])
def test_twin_is_the_loop_over_ratings(monkeypatch, name, shortest):
    monkeypatch.setattr(twin, "SHORTEST", shortest)  # chunks that end within a part, or one that holds all
    by_xla = jax.jit(lambda *args: getattr(twin, name)(*args))
    for seed in range(5):
        args = case(seed, 8)
        for part in range(PARTS):
            agree(by_xla(*args, part), expected(*args, part)[name])


def test_twin_without_ratings():
    args = case(0, 8, most=0)
    agree(BY_XLA["gradient"](*args, 0), expected(*args, 0)["gradient"])


def test_double_precision_is_kept(x64):
    W, H, blocks = case(2, 8)
    args = W.astype(np.float64), H.astype(np.float64), blocks
    found = jax.jit(native.gradient)(*args, 1)
    assert found[0].dtype == jnp.float64
    agree(found, expected(*args, 1)["gradient"], 1e-13)


@needs_kernel
@pytest.mark.parametrize("name", NAMES)
def test_threads_change_nothing(name):
    args = case(3, most=200, parts=1)
    with_two = jax.jit(lambda *args: getattr(native, name)(*args, 0, threads=2))
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, with_two(*args), COMPILED[name](*args, 0))


@needs_kernel
@pytest.mark.parametrize("name", NAMES)
def test_replicas_share_the_ratings(name):
    args = case(5)
    one = lambda scale, part: getattr(native, name)(args.W * scale, args.H, args.blocks, part, threads=2)
    scale, part = jnp.arange(6.0).reshape(3, 2), jnp.array([0, 3])
    # The outer axis is W's alone, the inner one W's and the part's; H and the ratings have neither.
    found = jax.jit(jax.vmap(jax.vmap(one), (0, None)))(scale, part)
    for r in np.ndindex(3, 2):
        slot = jax.tree.map(lambda x, r=r: x[r], found)
        wanted = expected(args.W * float(scale[r]), args.H, args.blocks, int(part[r[1]]))[name]
        agree(slot if isinstance(slot, tuple) else (slot,), wanted)


@needs_kernel
def test_a_loop_over_mapped_ratings_makes_no_copy(tmp_path):
    args = case(6, most=500)
    for name in ("columns", "values"):
        np.save(tmp_path / f"{name}.npy", getattr(args.blocks, name))
    mapped = {n: np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("columns", "values")}
    blocks = args.blocks._replace(**{n: jax.device_put(x) for n, x in mapped.items()})
    for n, x in mapped.items():
        assert getattr(blocks, n).unsafe_buffer_pointer() == x.ctypes.data

    @jax.jit
    def loop(W, H, blocks):
        def body(t, state):
            W, H, total = state
            of_W, of_H, square = native.gradient(W, H, blocks, t % PARTS)
            return W + 1e-5 * of_W, H + 1e-5 * of_H, total + square

        return lax.fori_loop(0, 6, body, (W, H, jnp.zeros(len(W))))

    arguments = (args.W, args.H, blocks)
    memory = loop.lower(*arguments).compile().memory_analysis()
    assert memory.temp_size_in_bytes < mapped["values"].nbytes / 5

    W, H, total = args.W, args.H, 0.0
    for t in range(6):
        of_W, of_H, square = expected(W, H, args.blocks, t % PARTS)["gradient"]
        W, H, total = W + 1e-5 * of_W, H + 1e-5 * of_H, total + square
    agree(loop(*arguments), (W, H, total), 1e-4)


@pytest.mark.slow
@needs_kernel
def test_on_two_devices():
    """In a process of its own, since the number of devices is fixed when JAX starts."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-m", "tests.factorization.native.two_devices"]
    subprocess.run(command, check=True, env=environment, timeout=120)


@needs_kernel
@pytest.mark.parametrize("what", ["column", "negative", "offset", "part"])
def test_ratings_outside_their_block_are_an_error(what):
    args, part = case(7, most=9), 0
    blocks = args.blocks._replace(**{n: getattr(args.blocks, n).copy() for n in ("indptr", "columns")})
    b = int(np.argmax(blocks.indptr[:, 0, -1] - blocks.indptr[:, 0, 0]))
    first = blocks.indptr[b, 0, 0]
    if what == "offset":
        blocks.indptr[b, 0, -1] = blocks.columns.shape[1] + 1
    elif what == "part":
        part = PARTS
    else:
        blocks.columns[b, first] = {"column": args.H.shape[1], "negative": -1}[what]
    for name in NAMES:
        with pytest.raises(Exception, match="outside their block"):
            jax.block_until_ready(COMPILED[name](args.W, args.H, blocks, part))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda W, H, b: (W[..., :12], H[..., :12], b), "multiple of 8, not 12: pad"),
        (lambda W, H, b: (W[0], H, b), "expected W"),
        (lambda W, H, b: (W, H[:2], b), "numbers of blocks"),
        (lambda W, H, b: (W[:, 1:], H, b), "one offset more"),
        (lambda W, H, b: (W, H, b._replace(values=b.values[:, 1:])), "differ in shape"),
        (lambda W, H, b: (W, H, b._replace(columns=b.columns.astype(np.int64))), "int32"),
        (lambda W, H, b: (W.astype(np.float16), H, b), "float32"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    for name in NAMES:
        with pytest.raises(ValueError, match=message):
            getattr(native, name)(*change(*case()), 0)
