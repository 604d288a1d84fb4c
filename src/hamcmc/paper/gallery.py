"""The second part of the demonstration: every sampler on one strongly correlated posterior."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.diagnostics import cost
from hamcmc.diagnostics.result import Result
from hamcmc.inference.sample import sample
from hamcmc.target.linear_gaussian import Exact, exact, linear_gaussian, simulate

NOISE_VARIANCE = 10.0
SIZE, BATCH = 1000, 100
ITERATIONS, WARMUP, CHAINS, THIN = 20_000, 2000, 4, 10
AUTOMATIC = "automatic"


class Row(NamedTuple):
    """How one sampler did.

    Attributes:
        sampler: its name.
        step_size: ε.
        mean_error: distance of the estimated from the exact mean, in posterior standard deviations.
        length: estimated over exact standard deviation along the ridge.
        width: the same across it.
        ess: effective samples of the slowest parameter.
        per_effective_sample: gradients for each of them.
    """

    sampler: str
    step_size: float
    mean_error: float
    length: float
    width: float
    ess: float
    per_effective_sample: float


def gallery(
    *, quick: bool = False, seed: int = 0, tell: Callable[[str], None] = lambda name: None
) -> tuple[list[Row], Figure]:
    """Sample a two-dimensional ridge with every sampler.

    The posterior is that of a linear regression with 1000 data and two nearly equal regressors. It is 20 times as long
    as wide. Every sampler gets minibatches of 100 and the same number of iterations. The last one is what
    ``hamcmc.sample(posterior, batch_size=100)`` chooses: in coordinates that are white at the mode, with control
    variates, at the step size of the plan. All others get a step size that discretises the stiffest direction in the
    same way (about 0.03 of the largest stable one), so that the table compares how they mix.

    Args:
        quick: make a tenth of the iterations.
        seed: everything random follows from it.
        tell: called with the name of each sampler before it runs.
    """
    mixing = np.array([[1.0, 0.0], [1.0, 0.1]])
    data = simulate(np.random.default_rng(seed), SIZE, mixing, NOISE_VARIANCE)
    posterior, truth = linear_gaussian(data, NOISE_VARIANCE), exact(data, NOISE_VARIANCE)

    def run(name: str, how: Record) -> Result:
        """With one sampler."""
        tell(name)
        return sample(
            posterior,
            init=jnp.asarray(truth.mean, jnp.float32),
            num_samples=ITERATIONS // THIN // (10 if quick else 1),
            batch_size=BATCH,
            seed=seed,
            progress=False,
            **how,
        )

    asked = configurations(truth)
    with ThreadPoolExecutor(2) as pool:  # most of the time goes to XLA, which compiles beside other threads
        results = list(pool.map(run, asked, asked.values()))
    found = {_label(name, result): result for name, result in zip(asked, results)}
    rows = [_row(name, result, truth) for name, result in found.items()]
    return rows, _draw({name: result.posterior["theta"][0] for name, result in found.items()}, rows, truth)


def configurations(truth: Exact) -> dict[str, Record]:
    """The arguments for each sampler, by its name."""
    soft, stiff = (float(v) for v in np.linalg.eigvalsh(truth.precision))
    small, whitened = 0.02 / stiff, 0.02
    average_gradient = np.sqrt(stiff) / SIZE  # about √v of pSGLD, the unit of its step size
    history = {"memory": 3, "gamma": 1 / stiff, "cosine": 0.0}
    steps: dict[str, tuple[float, Record]] = {
        "sgld": (small, {"chains": CHAINS}),
        "psgld": (small * 10 * average_gradient, {"chains": CHAINS, "regularizer": 1e-3}),
        "sgfs": (whitened, {"chains": CHAINS, "base": soft}),
        "sgrld": (whitened, {"chains": CHAINS, "fisher": jnp.asarray(truth.precision, jnp.float32)}),
        "naive": (whitened, {"chains": CHAINS, **history}),
        "hamcmc": (whitened, {"chains": CHAINS, **history}),
        "ensemble_hamcmc": (whitened, {"pairs": 3, "metric": None}),  # 8 replicas, as the next one
        "ensemble_underdamped": (whitened, {"pairs": 3, "metric": None}),
    }
    common = {"thin": THIN, "warmup": WARMUP}
    given = {name: {"sampler": name, "step_size": ε, **common, **more} for name, (ε, more) in steps.items()}
    return given | {AUTOMATIC: {"thin": THIN, "ensembles": 1}}


def _label(name: str, result: Result) -> str:
    """The name of a row: with the sampler that the plan chose, if it did."""
    return f"{AUTOMATIC}: {result.settings['plan']['sampler']}" if name == AUTOMATIC else name


def _row(name: str, result: Result, truth: Exact) -> Row:
    theta = result.posterior["theta"].reshape(-1, 2).astype(float)
    values, axes = np.linalg.eigh(truth.covariance)
    along = (theta - truth.mean) @ axes / np.sqrt(values)  # in units of exact standard deviations, width first
    spent = cost(result)
    return Row(
        name,
        float(np.mean(result.sample_stats["step_size"])),
        float(np.linalg.norm(along.mean(0))),
        float(along[:, 1].std()),
        float(along[:, 0].std()),
        spent.ess,
        spent.gradients_per_effective_sample,
    )


def _draw(draws: dict[str, np.ndarray], rows: list[Row], truth: Exact) -> Figure:
    """One chain of each sampler on the contours of the exact posterior."""
    figure = Figure(figsize=(11, 8.6), layout="constrained")
    axes = figure.subplots(3, 3, sharex=True, sharey=True)
    reach = 3.3 * np.sqrt(np.diag(truth.covariance))
    x, y = (np.linspace(m - r, m + r, 200) for m, r in zip(truth.mean, reach))
    grid = np.stack(np.meshgrid(x, y), -1) - truth.mean
    distance = np.einsum("...i,ij,...j->...", grid, truth.precision, grid)
    for ax, row, (name, theta) in zip(axes.flat, rows, draws.items()):
        ax.plot(*theta.T, ".", markersize=2, color="#D55E00" if name.startswith(AUTOMATIC) else "#0072B2", alpha=0.5)
        ax.contour(x, y, distance, levels=[1, 4, 9], colors="#333333", linewidths=0.8, linestyles="dashed")
        ax.set_title(f"ESS {row.ess:,.0f}", loc="right", fontsize=8, color="#555555")
        ax.set_title(name, loc="left", fontsize=10)
        ax.grid(alpha=0.3)
    for ax in axes[-1]:
        ax.set_xlabel("θ₁")
    for ax in axes[:, 0]:
        ax.set_ylabel("θ₂")
    figure.suptitle(
        "One chain of each sampler, the ESS of all; dashed: 1, 2, 3 sd. The last is what hamcmc.sample chose"
    )
    return figure
