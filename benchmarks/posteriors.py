"""Time per iteration of SGLD, against the SGLD of posteriors, on PyTorch.

Theirs is a Python loop around ``update``, as in its documentation, in which PyTorch runs each operation separately. The
model, the data, the minibatches and the convention of ε are the same. The benchmark is skipped if PyTorch is not
installed: ``pip install torch posteriors``.
"""

import warnings
from importlib.util import find_spec

import numpy as np

import hamcmc
from benchmarks.measure import Burst, Table, by_time, interleave, microseconds, ratio
from benchmarks.problems import STEP_SIZE, Problem, ours, problem


def run(quick: bool) -> list[Table]:
    """Over dimensions; ours is the whole loop that `sample` runs."""
    if not find_spec("posteriors"):
        return [Table("posteriors was left out", [{"reason": "it is not installed"}])]
    rows, against = [], []
    for dimension in (2, 1000) if quick else (2, 100, 1000, 10**5):
        p = problem(dimension)
        shorter = p._replace(iterations=min(p.iterations, 500))
        t = interleave({"ours": ours(p, hamcmc.sgld(p.posterior.grad)), "peer": sgld(shorter)}, 5 if quick else 11)
        mine, theirs = t["ours"] / p.iterations, t["peer"] / shorter.iterations
        against.append(by_time("posteriors SGLD", f"an iteration of SGLD, D = {dimension:,}", mine, theirs))
        rows.append(
            {
                "D": dimension,
                "n": p.batch_size,
                "hamcmc, µs": microseconds(mine, 1),
                "posteriors, µs": microseconds(theirs, 1),
                "ratio": ratio(mine, theirs),
            }
        )
    return [Table("SGLD per iteration against SGLD of posteriors", rows, against)]


def sgld(p: Problem) -> Burst:
    """Minibatches with replacement, positions collected."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library that it uses
        import posteriors
    regressors, observed = (torch.from_numpy(np.array(x)) for x in p.posterior.data)
    size = len(observed)

    def log_posterior(theta, batch):  # the linear Gaussian model: noise variance 10, prior N(0, I)
        a, x = batch
        return -0.5 * (theta**2).sum() - size / len(x) * ((x - a @ theta) ** 2).sum() / 20, torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=STEP_SIZE)
    state = [transform.init(torch.zeros(regressors.shape[1]))]

    def burst() -> float:
        positions = []
        for _ in range(p.iterations):
            rows = torch.randint(size, (p.batch_size,))
            state[0], _ = transform.update(state[0], (regressors[rows], observed[rows]))
            positions.append(state[0].params)
        return float(torch.stack(positions)[-1, 0])

    return burst
