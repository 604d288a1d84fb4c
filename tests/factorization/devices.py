"""Run the same small factorization on 1, 2 and 4 devices of this process, and print what differs as JSON."""

import json
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from hamcmc.factorization import cost, run
from tests.factorization.sparse import low_rank, ratings_of


def draws(sampler, devices, reduction="psum"):
    options = {
        "rank": 3,
        "sampler": sampler,
        "samples": 2,
        "burn_in": 2,
        "steps": 5,
        "blocks": 4,
        "reduction": reduction,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = run.prepare(ratings_of(*low_rank(30, 26, 300)), Path(folder) / "run", **options)
        work = run.Work(path, jax.devices()[:devices])
        carry, traces = work.begin(), []
        for _ in range(4):
            carry, trace = work.advance(carry)
            traces.append(float(trace.rmse))
        found = work.draw(carry) | {"trace": np.array(traces)}
        text = work.visit.as_text() if devices == 4 else ""
    return found, text


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    report = {}
    for sampler in sys.argv[1:]:
        one, _ = draws(sampler, 1)
        two, _ = draws(sampler, 2)
        four, text = draws(sampler, 4)
        others = [draws(sampler, 4, how)[0] for how in ("ordered", "butterfly")] if sampler == "sgld" else []
        worst = lambda a, b: max(float(np.abs(a[k] - b[k]).max()) for k in a)
        found = cost.collectives(text)
        report[sampler] = {
            "two": worst(one, two),
            "four": worst(one, four),
            "reductions": [worst(one, other) for other in others],
            "moved": float(np.abs(one["posterior/W"]).max()),
            "collectives": [list(c) for c in found],
            "text": len(text),
        }
    print(json.dumps(report))
