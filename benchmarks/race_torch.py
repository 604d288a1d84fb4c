"""posteriors, the SG-MCMC library on PyTorch, in the race, if it is installed: ``pip install torch posteriors``."""

import time
import warnings
from importlib.util import find_spec

import numpy as np

from benchmarks.automatic import FREEDOM
from benchmarks.race_clock import Clock, NotForThis, Raced, at_mode, flattened, judge
from benchmarks.race_problems import Problem, Regression, Truth, watched

CHAINS = 22  # that share minibatches, as those of the other stochastic methods do


def posteriors(problem: Problem, clock: Clock, seed: int, *, tries: int = 5) -> Raced:
    """Its SGHMC on minibatches: one Python loop around `update`, as in its documentation, from the mode.

    Of a few learning rates, a pilot run finds the one with the most effective draws among those whose variances agree
    with the Hessian's. Chains are a leading axis of the parameters. The library has no control variates.
    """
    if not find_spec("posteriors"):
        raise NotForThis("PyTorch is not among the packages that make bench installs: pip install torch posteriors")
    if not isinstance(problem, Regression):
        raise NotForThis("not written for PyTorch")
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library that it uses
        import posteriors as library
    torch.manual_seed(seed)
    flat = flattened(problem)
    around = at_mode(flat, clock)
    curvatures = np.linalg.eigvalsh(around.precision)
    x, y, prior = (torch.from_numpy(np.array(a, np.float32)) for a in (problem.x, problem.y, problem.prior))
    size, batch = len(y), min(1000, len(y) // 10)
    likelihood = {
        "logistic": lambda a, y: torch.nn.functional.logsigmoid((2 * y - 1) * a),
        "poisson": lambda a, y: y * a - torch.exp(a),
        "normal": lambda a, y: -0.5 * (y - a) ** 2,
        "student": lambda a, y: -0.5 * (FREEDOM + 1) * torch.log1p((y - a) ** 2 / FREEDOM),
    }[problem.family]

    def log_posterior(theta, rows):  # (chain, D): the sum over chains has each chain's own gradient
        x, y = rows
        return (
            size / len(y) * likelihood(theta @ x.T, y).sum() - 0.5 * ((theta / prior) ** 2).sum(),
            torch.tensor([]),
        )

    start = torch.from_numpy(np.tile(around.flat, (CHAINS, 1)).astype(np.float32))
    axes = watched(around.precision)[:, : len(curvatures)]
    normal = Truth(axes, around.flat @ axes, 1 / curvatures, 0.0)

    def run(step: float, seconds: float, draws: int) -> np.ndarray:
        """About so many draws in so many seconds, after a fifth of them."""
        transform = library.sgmcmc.sghmc.build(log_posterior, lr=step, alpha=0.1 / step)
        state, began, kept, made, thin = transform.init(start), time.perf_counter(), [], 0, 0
        while (spent := time.perf_counter() - began) < seconds:
            rows = torch.randint(size, (batch,))
            state, _ = transform.update(state, (x[rows], y[rows]))
            made += 1
            if not thin and spent > 0.05 * seconds:
                thin = max(1, int(made / spent * seconds / (1.25 * draws)))
            if thin and spent > 0.2 * seconds and made % thin == 0:
                kept.append(state.params.detach().numpy().copy())
        return (
            np.moveaxis(np.array(kept, np.float64), 1, 0) if len(kept) > 4 else np.full((CHAINS, 5, len(prior)), np.nan)
        )

    grid = np.sqrt(0.5 / curvatures[-1] * 0.25 ** np.arange(tries))
    with clock.part("preparation"):
        found = [judge(run(e, 0.25 * clock.seconds / tries, 200), normal, CHAINS) for e in grid]
        best = max(range(tries), key=lambda i: (found[i].right, found[i].ess if found[i].right else -found[i].error))
    with clock.part("sampling"):
        draws = run(float(grid[best]), clock.left, 1000)
    words = f"SGHMC, lr = {grid[best]:.2g}, the best of {tries}, {CHAINS} chains share minibatches of {batch:,}"
    return Raced(draws, CHAINS, words)
