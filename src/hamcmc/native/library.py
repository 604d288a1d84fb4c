"""Find, check and register the compiled library."""

import ctypes
import functools
import os
from typing import NamedTuple

import jax

from hamcmc.native import build

TARGETS = ("hamcmc_gradient", "hamcmc_squared_error", "hamcmc_predict", "hamcmc_normal")


class Available(NamedTuple):
    """Whether the C++ kernels are used on a CPU; true or false itself."""

    there: bool
    why_not: str  # empty when they are

    def __bool__(self) -> bool:
        return self.there


def available() -> Available:
    """Whether the C++ kernels are there, and why not. Without them the same functions run as compiled by XLA."""
    if os.environ.get("HAMCMC_NATIVE", "") == "0":
        return Available(False, "HAMCMC_NATIVE=0 is set")
    return load()


@functools.cache
def load() -> Available:
    """Open the library and register what is in it, once."""
    again = "reinstall hamcmc (pip install -e . in a checkout) on a machine with a C++ compiler"
    if not build.LIBRARY.exists():
        return Available(False, f"{build.LIBRARY.name} was not built: {again}")
    try:
        library = ctypes.CDLL(str(build.LIBRARY))
        library.hamcmc_source.restype = ctypes.c_char_p
        if library.hamcmc_source().decode() != build.source_hash():
            return Available(False, f"{build.LIBRARY.name} was built from other source files: {again}")
        if not library.hamcmc_supported():
            return Available(False, f"{build.LIBRARY.name} was built for a newer processor than this one: {again}")
        capsules = {name: jax.ffi.pycapsule(getattr(library, name)) for name in TARGETS}
        for name, capsule in capsules.items():
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    except Exception as error:  # a foreign binary can fail in many ways, and there is always the other form
        return Available(False, f"{build.LIBRARY.name} does not load ({error}): {again}")
    return Available(True, "")
