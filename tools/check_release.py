"""``python tools/check_release.py [PYTHON…]``: build the sdist, and from it wheels with and without a C++ compiler.

Each wheel is installed in an empty environment of each Python, away from the repository: first without extras, where
sampling must work, then with the extra that ``hamcmc demo`` needs. Without arguments, the Python that runs this program
is used. Wheels stay in ``dist/``.
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
import importlib.metadata, importlib.util, sys, time
began = time.perf_counter()
import hamcmc
took = time.perf_counter() - began
import jax._src.xla_bridge as bridge
assert not bridge._backends, "the import touched a device"
assert hamcmc.__version__ == importlib.metadata.version("hamcmc")
from importlib.resources import files
assert files("hamcmc").joinpath("py.typed").is_file()
extras = [p for p in ("polars", "soundfile", "pystoi", "blackjax", "numpyro", "sklearn") if importlib.util.find_spec(p)]
assert not extras, f"a sampler's user gets {extras}"
import jax.numpy as jnp
target = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2))
print(hamcmc.sample(target, "sgld", jnp.zeros(2), step_size=0.1, num_samples=100).summary(), file=sys.stderr)
from hamcmc.factorization import native
print(f"import {took:.2f} s, {'with' if native.available() else 'without'} kernels")
"""


def run(*command: str | Path, **options) -> str:
    """The output of a command. If it fails, end with what it said."""
    ran = subprocess.run([str(c) for c in command], text=True, capture_output=True, **options)
    if ran.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{ran.stdout}\n{ran.stderr}")
    return ran.stdout


def build(python: str) -> list[Path]:
    """Build the sdist, and two wheels from it."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", folder)
        tool = Path(folder) / "bin" / "python"
        run(tool, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "hatchling")
        run(tool, "-m", "hatchling", "build", "-t", "sdist", "-d", DIST, cwd=ROOT)
        sdist = max(DIST.glob("*.tar.gz"), key=lambda p: p.stat().st_mtime)
        for extra in ({}, {"CXX": "no-such-compiler"}):
            run(tool, "-m", "pip", "wheel", "-q", "--no-deps", "-w", DIST, sdist, env=os.environ | extra)
    return sorted(DIST.glob("*.whl"), key=lambda p: "any" in p.name)


def try_out(python: str, wheel: Path) -> str:
    """What an empty environment with the wheel says, from the import to the demo."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        clean = {"HOME": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        run(python, "-m", "venv", here / "env")
        binaries = here / "env" / "bin"
        install = (binaries / "pip", "install", "-q", "-c", ROOT / "constraints.txt")
        run(*install, wheel, cwd=here)
        run(binaries / "python", "-c", PROBE, cwd=here, env=clean)  # the second time, the files are in the cache
        said = run(binaries / "python", "-c", PROBE, cwd=here, env=clean).strip()
        run(*install, f"{wheel}[report]", cwd=here)
        began = time.perf_counter()
        run(binaries / "hamcmc", "demo", "--quick", "--out", "demo", cwd=here, env=clean)
        assert (here / "demo" / "demo.png").is_file(), "the demo drew nothing"
        assert any((here / "demo").rglob("*.html")), "the demo wrote no report"
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
