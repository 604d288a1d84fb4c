"""The same draws on 1, 2 and 4 devices, and what a step sends. In a process of its own, for its devices."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from hamcmc.factorization import inspect

UNIT = 7 * 8 * 4  # bytes of a block of H: 26 columns in 4 blocks, 3 factors and two biases padded to 8, float32


def report(sampler):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.factorization.devices", sampler]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[sampler]


def check(found, reductions, units):
    assert found["moved"] > 0.3
    assert found["two"] < 1e-4 * found["moved"]
    assert found["four"] < 1e-4 * found["moved"]
    assert all(difference < 1e-4 * found["moved"] for difference in found["reductions"])
    by_function = {}
    for kind, size, function in found["collectives"]:
        by_function.setdefault(function, Counter())[kind, size] += 1
    loop = [c for c in by_function.values() if all(kind == "all-reduce" for kind, _ in c)]
    sums = {f: c for f, c in by_function.items() if c in loop}
    assert sum(c.total() for f, c in sums.items() if not f.startswith("main")) == reductions
    # Once a sweep: errors and moments of the columns, and diagnostics that steps did not sum.
    per_sweep = sum(size * n for f, c in sums.items() if f.startswith("main") for (_, size), n in c.items())
    assert per_sweep == 4 * (4 + 4 * 8) + (0 if reductions else 12)
    moves = [c for c in by_function.values() if c not in loop]
    # One for each way round the ring, of which a step takes one: to the next part, and back home after a sweep. Then H
    # passes by for predictions.
    expected = [units * UNIT] * 6 + [UNIT]
    assert sorted([*c.elements()] for c in moves) == sorted([("collective-permute", size)] for size in expected)
    assert {kind for kind, *_ in found["collectives"]} == {"all-reduce", "collective-permute"}


@pytest.mark.slow
def test_a_step_of_hamcmc_sends_one_message_and_sums_once():
    """The three chains, their last moves and gradients, and the newest draw travel."""
    unit = 6 * 8 * 4  # bytes of 6 columns of H, 6 factors and two biases
    sent = inspect.compiled_messages("hamcmc")
    in_steps = [(kind, size) for kind, size, function in sent if not function.startswith("main")]
    moves = Counter(size for kind, size in in_steps if kind == "collective-permute")
    assert moves == {(3 + 3 + 3 + 1) * unit: 6, unit: 1}  # as in check
    assert [(kind, size) for kind, size in in_steps if kind != "collective-permute"] == [("all-reduce", 4 * 26)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "reductions", "units"),
    [("hamcmc", 1, 10), ("sgld", 0, 1), ("psgld", 0, 3), ("sghmc", 0, 2), ("ensemble_hamcmc", 2, 9)],
)
def test_draws_and_messages(sampler, reductions, units):
    check(report(sampler), reductions, units)
