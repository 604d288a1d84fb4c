"""Run the same small factorization on 1, 2 and 4 devices of this process, and print what differs as JSON."""

import json
import sys

import jax
import numpy as np

from hamcmc.factorization import cost
from hamcmc.factorization.problem import Request, pose
from hamcmc.factorization.program import FactorizationProgram
from tests.factorization.sparse import low_rank, ratings_of


def draws(sampler, devices, reduction="psum"):
    request = Request(rank=3, sampler=sampler, num_samples=2, warmup=2, steps=5, blocks=4, reduction=reduction)
    problem = pose(ratings_of(*low_rank(30, 26, 300)), request)
    program = FactorizationProgram(
        problem.settings, problem.partition, problem.train, problem.test, devices=jax.devices()[:devices]
    )
    traces = [float(program.sweep().rmse) for _ in range(4)]
    return program.draw() | {"trace": np.array(traces)}, program.segment.as_text() if devices == 4 else ""


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
