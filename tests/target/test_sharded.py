"""Rows that several devices share: the same sums as in one piece. In a process of its own, for its devices."""

import json
import os
import re
import subprocess
import sys

import pytest

REFUSED = (
    "finite weights: False",
    "finite weights from disk: False",
    "data has 3 rows, fewer than the 4 devices that share them: use fewer processes",
    "this posterior has no data that several processes could share",
    "this sampler needs the gradient of each row",
    "svrg needs all data in one process",
    "step_size must be given where several processes share the data",
    "automatic runs of several processes are not made for networks; give sampler=",
)


@pytest.fixture(scope="module")
def report():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.target.shards"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_sums_are_those_of_rows_in_one_piece(report):
    assert len(report["differences"]) == 15
    for what, difference in report["differences"].items():
        assert difference < 1e-12, what


def test_rows_that_stay_on_disk_give_the_same_sums(report):
    assert len(report["streamed"]) == 11
    for what, difference in report["streamed"].items():
        assert difference < 1e-12, what


def test_what_cannot_be_shared_is_refused(report):
    assert len(report["refused"]) == len(REFUSED)
    for said, expected in zip(report["refused"], REFUSED):
        assert re.search(re.escape(expected), said), said
