"""How the C++ library is compiled and recognised. Used by the package's build, which cannot import the package."""

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
    """Of all files that make the library, to notice one built from others."""
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cc")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compile_library(include: str) -> None:
    """Compile to `LIBRARY`, with the headers of ``jax.ffi.include_dir()``. Raises OSError when it does not work.

    CXX names the compiler. CXXFLAGS come last and so win: a distributor who builds for other machines sets
    ``CXXFLAGS=-march=x86-64-v2``, or what those have.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or "c++"]
    flags = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fvisibility-inlines-hidden", "-DNDEBUG"]
    temporary = LIBRARY.with_suffix(f".{os.getpid()}.tmp")  # a process that has the old library open keeps it
    command = [
        *compiler,
        *flags,
        *([] if not has_avx2() else ["-march=x86-64-v3"]),
        *shlex.split(os.environ.get("CXXFLAGS", "")),
        f'-DHAMCMC_SOURCE="{source_hash()}"',
        "-isystem",
        include,
        *map(str, sorted(FOLDER.glob("*.cc"))),
        "-o",
        str(temporary),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
        temporary.replace(LIBRARY)
    finally:
        temporary.unlink(missing_ok=True)


def has_avx2() -> bool:
    """Whether this is an x86 machine of 2013 or later; elsewhere the compiler's default is taken."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"} <= words
