"""Seconds per sweep and test RMSE of a factorization with 2·10⁷ ratings, beside SMURFF's (BPMF).

The ratings are synthetic, with MovieLens 20M's numbers of users, items and ratings, and a tenth of them is held out.
A sweep of ours makes 10 gradient steps on half of the ratings each, that of SMURFF's Gibbs sampler draws every factor
once. Both use all cores. SMURFF ends at the first sweep after the budget, and burns in for 20 sweeps as elsewhere, so
that its error is that of single draws until then.
"""

import os

import numpy as np

from benchmarks.measure import Against, Table, require_kernels
from benchmarks.recommenders import SEED, TEST, Curve, learn_ours, smurff
from hamcmc.factorization import ratings as files
from hamcmc.factorization.synthetic import movielens_like

SHAPE, RANK, BUDGET = (138_493, 26_744, 20_000_263), 50, 300.0  # the budget is in seconds
MARKS = (60, 150, 300)  # seconds at which the errors are printed


def run(quick: bool) -> list[Table]:
    """The two methods one after the other, on one split."""
    require_kernels()
    shape, rank, budget = ((2_000, 1_000, 100_000), 10, 3.0) if quick else (SHAPE, RANK, BUDGET)
    drawn = movielens_like(*shape)
    split = files.hold_out(drawn.ratings, TEST, SEED)
    ours = learn_ours(split, rank)
    curves = {"hamcmc": ours.curve, "SMURFF, BPMF": smurff(split, rank, 200, budget)}
    rows = [of(name, curve) for name, curve in curves.items()]
    users, items, count = shape
    size = f"{count:,} ratings, {users:,} × {items:,}"
    title = f"{size}, K = {rank}, {os.cpu_count()} cores; the truth has an RMSE of {drawn.noise_floor:.4f}"
    return [Table(title, rows, [standing(rows)])]


def of(name: str, curve: Curve) -> dict:
    """A row: how fast sweeps are, and the error after so many seconds."""
    marks = {f"RMSE after {m} s": f"{at(curve, m):.4f}" if m <= 1.5 * curve.seconds[-1] else "–" for m in MARKS}
    paces = np.diff(curve.seconds)
    low, high = np.quantile(paces, [0.25, 0.75])
    return {
        "method": name,
        "sweeps": len(curve.seconds),
        "s per sweep": f"{np.median(paces):.2f} ({low:.2f}–{high:.2f})",
        **marks,
        "RMSE at the end": f"{curve.rmse[-1]:.4f} after {curve.seconds[-1]:.0f} s",
    }


def at(curve: Curve, second: float) -> float:
    """The error at the last sweep that was finished by then."""
    done = int(np.searchsorted(curve.seconds, second, side="right"))
    return float(curve.rmse[done - 1]) if done else float("nan")


def standing(rows: list[dict]) -> Against:
    """Who ends with the smaller error."""
    ends = [r["RMSE at the end"] for r in rows]
    ahead = "hamcmc" if float(ends[0].split()[0]) <= float(ends[1].split()[0]) else "peer"
    return Against("SMURFF", "test RMSE, 2·10⁷ ratings", "; ".join(ends), ahead)
