"""``python -m hamcmc.factorization.inspect SAMPLER``: what the compiled program sends on four devices, as JSON.

It needs a process of its own, because the number of devices is fixed when JAX starts.
"""

import json
import os
import subprocess
import sys

import numpy as np

DEVICES = 4
SHAPE, RANK = (40, 24), 6  # 6 columns of H on each device; 6 factors and two biases make 8 numbers


def compiled_messages(sampler: str) -> list[list]:
    """(kind, bytes, function) of every collective of a sampler's program."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "hamcmc.factorization.inspect", sampler]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main(sampler: str) -> None:
    """Compile the program for a small matrix, and print its collectives."""
    import jax

    from hamcmc.factorization import cost, partition, sharded
    from hamcmc.factorization import model as gaussian_mf
    from hamcmc.factorization.exchange import shard
    from hamcmc.factorization.metric import row_count_metric
    from hamcmc.factorization.recipes import RECIPES, make_sampler

    row, column = (x.ravel() for x in np.indices(SHAPE))
    p = partition.partition(row, column, SHAPE, DEVICES)
    blocks = partition.arrange(p, row, column, np.ones(len(row), np.float32))
    columns = gaussian_mf.layout("full", RANK)
    recipe = RECIPES[sampler]
    make = make_sampler(sampler, recipe.options)
    sweeps = sharded.build(p, columns, make, recipe.step_size, devices=jax.devices()[:DEVICES], sample_hyper=True)
    data = sharded.Data(blocks, blocks, p.rows.counts, p.columns.counts)  # type: ignore[arg-type]
    data = shard(sweeps.mesh, data, sharded.data_specs())
    sides = {"W": p.rows, "H": p.columns}
    start = {s: np.zeros((*sides[s].counts.shape, columns.width), np.float32) for s in sides}
    hyper = gaussian_mf.start(columns, 1.0)
    zeros = np.zeros(blocks.columns.shape, np.float32)
    carry = sweeps.begin(start, row_count_metric(columns, hyper), hyper, zeros, data)
    segment = sweeps.segment.lower(carry, data, sharded.keys(0), np.int32(1), np.int32(0)).compile()
    print(json.dumps(cost.collectives(segment.as_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
