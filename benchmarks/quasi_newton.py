"""Time per iteration of HAMCMC, against two gradients on a minibatch and against SGLD.

"Two gradients" is a compiled scan that draws one minibatch and evaluates two gradients on it, and does nothing else.
SGLD is ours, in our loop. The model is that of the benchmark ``sgld``; in the last rows a minibatch has as many rows as
there are dimensions, so that gradients dominate. The minibatches of the two largest problems have only a few rows: the
noise and the passes over M pairs are then the cost, not the gradient.
"""

import hamcmc
from benchmarks.measure import Table, interleave, microseconds, ratio
from benchmarks.problems import SIZES, ours, problem, two_gradients


def run(quick: bool) -> list[Table]:
    """Every memory size in the loop that `sample` runs."""
    rows = []
    cases = [(dimension, None) for dimension in ([2, 100, 1000] if quick else SIZES)]
    for dimension, batch_size in [*cases, (1000, 1000)]:  # the last so that gradients dominate
        p = problem(dimension, batch_size)
        samplers = {m: hamcmc.hamcmc(p.posterior.grad, memory=m) for m in (2, 3, 5)}
        bursts = {"gradients": two_gradients(p), "sgld": ours(p, hamcmc.sgld(p.posterior.grad))}
        bursts |= {f"M={m}": ours(p, sampler) for m, sampler in samplers.items()}
        t = interleave(bursts, 5 if quick else 11)
        rows += [
            {
                "D": dimension,
                "n": p.batch_size,
                "M": m,
                "hamcmc, µs": microseconds(t[f"M={m}"], p.iterations),
                "two gradients (goal ≤ 1.1)": ratio(t[f"M={m}"], t["gradients"]),
                "SGLD (goal ≤ 2.1, D ≥ 100)": ratio(t[f"M={m}"], t["sgld"]),
            }
            for m in samplers
        ]
    return [Table("HAMCMC per iteration against two gradients and against SGLD", rows)]
