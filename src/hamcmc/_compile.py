"""How programs are compiled: soon, and once for all processes of a user."""

import contextlib
import functools
import os
import platform
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

# XLA's newer emitters of fused operations take twice as long as the older ones to compile what we have, and its last
# level of optimisation gains nothing. Only a loop of very many cheap iterations runs faster with them.
SOON = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 2}
SWITCH = "HAMCMC_CACHE"  # the environment variable that turns the cache off, or says where it is
LARGEST_CACHE = 2**30  # bytes, above which the oldest programs are deleted


def soon() -> dict[str, Any] | None:
    """Compiler options with which a program is ready soon; None where XLA does not know them, or JAX has others."""
    return SOON if not jax.config.read("jax_disable_most_optimizations") and understood() else None


@functools.cache
def understood() -> bool:
    """Whether XLA knows the options."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(_nothing, compiler_options=SOON).lower().compile()
    except RuntimeError:
        return False
    return True


def _nothing() -> int:
    return 0


def x64() -> bool:
    """Whether this thread computes in double precision."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def put(x: Any, kind: Any = None) -> jax.Array:
    """A copy of an array on the host as one of JAX. (`jnp.asarray` compiles a program for each shape.)"""
    if isinstance(x, jax.Array) and kind in (None, x.dtype):
        return x
    return jax.device_put(np.array(x, kind), may_alias=True)  # of which nobody else knows


def jit(function: Callable, **how: Any) -> Any:
    """`jax.jit` for a program that is compiled on its own, and soon."""
    return jax.jit(function, compiler_options=soon(), **how)


@functools.cache
def keep() -> None:
    """Keep compiled programs in the user's cache directory, for the next process that needs the same ones.

    A directory that JAX was already told to use stays. ``HAMCMC_CACHE=off`` turns this off, any other value is the
    directory. Where it cannot be written, nothing is kept.
    """
    given = os.environ.get(SWITCH, "")
    if given.lower() in ("off", "0", "no", "false") or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hamcmc" / "xla"
    cache = (Path(given) if given else base) / f"{jax.__version__}-{processor()}"
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        shrink(cache, LARGEST_CACHE)
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        compilation_cache.reset_cache()  # JAX asks for the directory at its first program, which may have been long ago


def kept_array(name: str, make: Callable[[], Any]) -> np.ndarray:
    """An array of finite numbers that takes long to make: from the directory of compiled programs, or made and kept.

    Args:
        name: of the file. It must change with the code that makes the array.
        make: makes the array.
    """
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    if folder is None:
        return np.asarray(make())
    path = Path(folder) / f"{name}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        found = np.load(path, allow_pickle=False)
        if np.all(np.isfinite(found)):
            return found
    made = np.asarray(make())
    with contextlib.suppress(OSError):
        partial = path.with_name(f"{name}.{os.getpid()}-{threading.get_ident()}.partial")
        with partial.open("wb") as file:
            np.save(file, made, allow_pickle=False)
        partial.replace(path)
    return made


# Operations that hand their work to XLA's threads and wait there for it. If as many programs do that at once as there
# are threads, all of them wait for ever. Of a single matrix they take care alone.
DECOMPOSITIONS = {"cholesky", "cholesky_update", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product"}
DECOMPOSITIONS |= {"lu", "ormqr", "qr", "schur", "svd", "symmetric_product", "tridiagonal"}
HANDED_OUT = DECOMPOSITIONS | {"triangular_solve", "tridiagonal_solve", "fft", "conv_general_dilated"}
FOREIGN = {"ffi_call", "custom_call", "pure_callback", "io_callback", "debug_callback"}  # whose work nobody knows
alone = threading.Lock()  # held while a program runs that must not run beside another one of its kind


def blocking(jaxpr: Any) -> bool:
    """Whether a traced program must not run beside another one of its kind, as one with many small matrices."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in FOREIGN or (name in HANDED_OUT and any(v.aval.ndim > 2 for v in equation.invars)):
            return True
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)  # of a closed one
                if hasattr(inner, "eqns") and blocking(inner):
                    return True
    return False


def may_block(program: Any, *arguments: Any) -> bool:
    """:func:`blocking` of a program of ``jax.jit`` with such arguments, of which shapes and types are enough.

    It must be the whole program that runs in threads: what one of its functions does with a single matrix, the program
    may do with many.
    """
    return blocking(program.trace(*arguments).jaxpr)


def guard(program: Any, *arguments: Any) -> contextlib.AbstractContextManager:
    """What to hold while a program of ``jax.jit`` with such arguments runs in one of several threads."""
    return alone if may_block(program, *arguments) else contextlib.nullcontext()


def processor() -> str:
    """A name for this kind of processor: what is compiled for one may not run on another that shares the directory."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{zlib.crc32(line.encode()):08x}"
    return f"{zlib.crc32(platform.processor().encode()):08x}"


def shrink(directory: Path, most: int) -> None:
    """Delete the oldest files of a directory until it has at most so many bytes."""
    files = []
    for f in directory.iterdir():
        with contextlib.suppress(OSError):  # another process may have deleted it just now
            files.append((f.stat().st_mtime, f.stat().st_size, f))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= size
