"""Find, check and register the compiled library."""

import ctypes
import functools
import os
import re
from pathlib import Path
from typing import NamedTuple

import jax

from hamcmc.factorization.native import build

TARGETS = ("hamcmc_gradient", "hamcmc_squared_error", "hamcmc_predict", "hamcmc_normal")


class Available(NamedTuple):
    """Whether the C++ kernels are used on a CPU. It is true or false itself."""

    there: bool
    why_not: str  # empty if they are

    def __bool__(self) -> bool:
        return self.there


def available() -> Available:
    """Whether the C++ kernels are there, and if not, why. Without them, XLA compiles the same functions."""
    if os.environ.get("HAMCMC_NATIVE", "") == "0":
        return Available(False, "HAMCMC_NATIVE=0 is set")
    return load()


@functools.cache
def load() -> Available:
    """Open the library and register its functions, once."""
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
        built_for = library.hamcmc_ffi_major(), library.hamcmc_ffi_minor()
        if built_for != ffi_version():
            theirs, ours = (".".join(map(str, version)) for version in (built_for, ffi_version()))
            message = f"was built for version {theirs} of XLA's interface, and jaxlib has {ours}"
            return Available(False, f"{build.LIBRARY.name} {message}: {again}")
        capsules = {name: jax.ffi.pycapsule(getattr(library, name)) for name in TARGETS}
        for name, capsule in capsules.items():
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    except Exception as error:  # a foreign binary can fail in many ways, and XLA's form always works
        return Available(False, f"{build.LIBRARY.name} does not load ({error}): {again}")
    return Available(True, "")


def ffi_version() -> tuple[int, int]:
    """The version of XLA's foreign function interface in this jaxlib.

    JAX itself checks it only when the CPU's backend starts, and that then fails as a whole.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    major, minor = (re.search(rf"#define XLA_FFI_API_{name} (\d+)", header) for name in ("MAJOR", "MINOR"))
    if not (major and minor):
        raise OSError("the version of XLA's interface is not in jaxlib's header")
    return int(major[1]), int(minor[1])
