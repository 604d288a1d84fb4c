"""Importing hamcmc is quick and touches nothing: JAX, NumPy and our own modules, and no device."""

import subprocess
import sys

import pytest

PROBE = """
import sys
{}
import jax._src.xla_bridge as bridge
print(bool(bridge._backends))
print(*sorted({{name.split(".")[0] for name in sys.modules}}))
"""


def imported(statement: str) -> tuple[str, set[str]]:
    """Whether a device was touched, and the packages that `statement` imports, in a Python of its own."""
    ran = subprocess.run([sys.executable, "-c", PROBE.format(statement)], capture_output=True, text=True, check=True)
    touched, packages = ran.stdout.splitlines()
    return touched, set(packages.split())


@pytest.fixture(scope="module")
def by_hamcmc():
    return imported("import hamcmc")


def test_no_device_is_touched(by_hamcmc):
    assert by_hamcmc[0] == "False"
    assert imported("import jax; jax.devices()")[0] == "True"  # the probe would have seen it


def test_little_is_imported(by_hamcmc):
    """What takes long to import waits for its first use; so do the packages of the extras."""
    late = {"arviz", "xarray", "zarr", "matplotlib", "optax", "polars", "pystoi", "soundfile", "typer"}
    extras = {"blackjax", "numpyro", "sklearn"}
    assert not by_hamcmc[1] & (late | extras)


def test_little_is_imported_of_scipy():
    touched = imported("import hamcmc; assert 'scipy.stats' not in sys.modules")
    assert touched[0] == "False"
