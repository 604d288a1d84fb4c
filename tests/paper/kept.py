"""The kept results of full reproductions, as numbers."""

import re

import pytest
from benchmarks import page

PERCENT = re.compile(r"([+−-]?[\d.]+) ± ([\d.]+) %")


def rows(name):
    """The rows of a kept reproduction; a test that needs one which was not run in full yet is skipped."""
    found = page.full(f"reproductions/{name}")
    if found is None:
        pytest.skip(f"`hamcmc reproduce {name}` was not run in full yet")
    return found["tables"][0]["rows"]


def biases(name, **where):
    """{ε: (relative bias, standard error)} of the only row with these cells."""
    (row,) = [r for r in rows(name) if all(r[k] == v for k, v in where.items())]
    return {float(k.removeprefix("ε = ")): percent(v) for k, v in row.items() if k.startswith("ε = ")}


def percent(cell):
    """A number and its standard error from a cell like "−2.04 ± 0.12 %"."""
    value, error = PERCENT.match(cell).groups()
    return float(value.replace("−", "-")) / 100, float(error) / 100


def agree(found, known, *, z=4.5, allowed=0.0):
    """Two numbers with standard errors, within z of their difference's and what is allowed beside that."""
    (a, s), (b, t) = found, known
    assert abs(a - b) <= z * (s**2 + t**2) ** 0.5 + allowed, f"{a:+.4f} ± {s:.4f} is not {b:+.4f} ± {t:.4f}"
