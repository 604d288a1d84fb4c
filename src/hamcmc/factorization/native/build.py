"""How the C++ library is compiled and recognised. The package's build uses this file, and cannot import the package."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "_kernels.so"


def source_hash() -> str:
    """A hash of the library's source files, to recognise a library that was built from others."""
    return digest(*(part for path in sources() for part in (path.name.encode(), path.read_bytes())))


def compile_library(include: str) -> None:
    """Compile to `LIBRARY`, with the headers of ``jax.ffi.include_dir()``. Raises OSError if the compiler fails.

    CXX names the compiler. CXXFLAGS come last, so they win. To build for other machines, set for example
    ``CXXFLAGS=-march=x86-64-v2``.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or "c++"]
    command = [*compiler, "-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fvisibility-inlines-hidden"]
    command += ["-DNDEBUG", f'-DHAMCMC_SOURCE="{source_hash()}"']
    command += ["-march=x86-64-v3"] if has_avx2() else []
    command += shlex.split(os.environ.get("CXXFLAGS", ""))
    command += [str(path) for path in sources() if path.suffix == ".cc"]

    # One installation builds several times. A library made by the same command with the same headers is kept.
    headers = (path.read_bytes() for path in sorted(Path(include).glob("xla/ffi/api/*.h")))
    built = digest(shlex.join(command).encode(), *headers)
    if LIBRARY.exists() and built.encode() in LIBRARY.read_bytes():
        return
    LIBRARY.unlink(missing_ok=True)  # even if this fails, leave no library of other source
    temporary = LIBRARY.with_suffix(f".{os.getpid()}.tmp")
    command += [f'-DHAMCMC_BUILT="{built}"', "-isystem", include, "-o", str(temporary)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
        temporary.replace(LIBRARY)
    finally:
        temporary.unlink(missing_ok=True)


def sources() -> list[Path]:
    """Headers and units, in a fixed order."""
    return sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cc")])


def digest(*parts: bytes) -> str:
    """A short hash of all parts and of where they end."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()[:16]


def has_avx2() -> bool:
    """Whether this is an x86 machine of 2013 or later. Elsewhere the compiler's default applies."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"} <= words
