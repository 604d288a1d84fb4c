"""``python tools/check_release.py [PYTHON…]``: build the sdist and, from it, wheels with and without a C++ compiler;
install each in an empty environment of each Python, away from the repository, and run ``hamcmc demo`` there.

Without arguments it takes the Python that runs it. Wheels stay in ``dist/``.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PROBE = """
import importlib.metadata, sys, time
began = time.perf_counter()
import hamcmc
took = time.perf_counter() - began
import jax._src.xla_bridge as bridge
assert not bridge._backends, "the import touched a device"
assert hamcmc.__version__ == importlib.metadata.version("hamcmc")
from hamcmc import native
from importlib.resources import files
assert files("hamcmc").joinpath("py.typed").is_file()
print(f"import {took:.2f} s, {'with' if native.available() else 'without'} kernels")
"""


def run(*command: str | Path, **options) -> str:
    """Output of a command; where it fails, what it said."""
    ran = subprocess.run([str(c) for c in command], text=True, capture_output=True, **options)
    if ran.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ran.stdout}\n{ran.stderr}")
    return ran.stdout


def build(python: str) -> list[Path]:
    """The sdist, and two wheels from it."""
    with tempfile.TemporaryDirectory() as room:
        run(python, "-m", "venv", room)
        tool = Path(room) / "bin" / "python"
        run(tool, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "hatchling")
        run(tool, "-m", "hatchling", "build", "-t", "sdist", "-d", DIST, cwd=ROOT)
        sdist = max(DIST.glob("*.tar.gz"), key=lambda p: p.stat().st_mtime)
        for extra in ({}, {"CXX": "no-such-compiler"}):
            run(tool, "-m", "pip", "wheel", "-q", "--no-deps", "-w", DIST, sdist, env=os.environ | extra)
    return sorted(DIST.glob("*.whl"), key=lambda p: "any" in p.name)


def try_out(python: str, wheel: Path) -> str:
    """What an empty environment with the wheel says, from the import to the demo."""
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        clean = {"HOME": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        run(python, "-m", "venv", room / "env")
        binaries = room / "env" / "bin"
        run(binaries / "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=room)
        run(binaries / "python", "-c", PROBE, cwd=room, env=clean)  # the second time, files are in the cache
        said = run(binaries / "python", "-c", PROBE, cwd=room, env=clean).strip()
        began = time.perf_counter()
        run(binaries / "hamcmc", "demo", "--out", "demo", cwd=room, env=clean)
        assert (room / "demo" / "demo.png").is_file(), "the demo drew nothing"
        assert any((room / "demo").rglob("*.html")), "the demo wrote no report"
        return f"{said}, demo {time.perf_counter() - began:.0f} s"


def main() -> None:
    """Print a line for each Python and wheel."""
    pythons = sys.argv[1:] or [sys.executable]
    for wheel in build(pythons[0]):
        for python in pythons:
            version = run(python, "-c", "import platform; print(platform.python_version())").strip()
            print(f"Python {version}, {wheel.name}: {try_out(python, wheel)}", flush=True)


if __name__ == "__main__":
    main()
