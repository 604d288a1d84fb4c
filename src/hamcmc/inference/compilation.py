"""Compiled programs that are kept from one process to the next."""

import contextlib
import os
from pathlib import Path

import jax


def keep() -> None:
    """Keep compiled programs in the user's cache directory, if it can be written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hamcmc" / "xla"
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
