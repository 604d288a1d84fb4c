"""Figure 1 of the paper: the draws of four samplers on a two-dimensional posterior that is a thin ridge."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.figure import Figure

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.inference.sample import sample
from hamcmc.paper import tuning
from hamcmc.paper.common import COLOURS, Reproduction, finish, styled
from hamcmc.target import linear_gaussian as model

TITLE = "Figure 1: linear Gaussian model, D = 2"
SIZE, NOISE_VARIANCE, EXPONENT = 1000, 10.0, 0.51
CURVATURES = (1.8, 600.0)  # of the data along (1, −1) and (1, 1); sd 0.6 and 0.04 make a ridge like the paper's


def ridge(seed: int) -> tuple[model.Data, model.Exact]:
    """Data with regressors a_n that vary much along (1, 1) and little along (1, −1), and the exact posterior."""
    axes = np.array([[1, 1], [-1, 1]]) / np.sqrt(2)
    mixing = axes * np.sqrt(np.array(CURVATURES) * NOISE_VARIANCE / SIZE)
    data = model.simulate(np.random.default_rng(seed), SIZE, mixing, NOISE_VARIANCE)
    return data, model.exact(data, NOISE_VARIANCE)


def divergence(mean: Array, covariance: Array, exact: model.Exact) -> Array:
    """KL(N(mean, covariance) ‖ posterior)."""
    precision = jnp.asarray(exact.precision, jnp.float32)
    product, offset = precision @ covariance, mean - jnp.asarray(exact.mean, jnp.float32)
    log_det = jnp.linalg.slogdet(product)[1]
    return 0.5 * (jnp.trace(product) + offset @ precision @ offset - mean.size - log_det)


def settings(quick: bool) -> Record:
    """The settings of a full or a quick run."""
    return {
        "size": SIZE,
        "noise_variance": NOISE_VARIANCE,
        "batch_size": SIZE // 100,
        "exponent": EXPONENT,
        "iterations": 4000 if quick else 20000,
        "candidates": 16 if quick else 96,
        "repeats": 2 if quick else 4,
        "chains": 4 if quick else 16,
    }


def reproduce(out: Path, quick: bool = False, seed: int = 0, progress: Progress = silent) -> Reproduction:
    """Tune SGLD, pSGLD, SGRLD and HAMCMC (M=2) by the same search, and plot their draws on the posterior's contours."""
    asked = settings(quick)
    data, exact = ridge(seed)
    posterior = model.linear_gaussian(data, NOISE_VARIANCE)
    half = asked["iterations"] // 2
    centre = jnp.asarray(exact.mean, jnp.float32)  # moments are about it: else float32 loses the thin direction

    def score(average: tuple[Array, Array]) -> Array:
        """The divergence of the Gaussian with the run's moments."""
        mean, second = average
        return divergence(centre + mean, second - jnp.outer(mean, mean), exact)

    found, draws, results = {}, {}, {}
    methods = tuning.methods(exact.precision, SIZE, asked["batch_size"], memories=(2,))
    for i, (name, method) in enumerate(methods.items()):
        progress(Status(i / len(methods), f"{name}: search"))
        tuned = found[name] = tuning.search(
            method,
            posterior,
            exact.precision,
            jnp.zeros(2),
            statistic=lambda x: (x - centre, jnp.outer(x - centre, x - centre)),
            score=score,
            exponent=EXPONENT,
            iterations=asked["iterations"],
            burn_in=half,
            batch_size=asked["batch_size"],
            candidates=asked["candidates"],
            repeats=asked["repeats"],
            seed=seed + 1_000_000,
        )
        progress(Status((i + 0.7) / len(methods), f"{name}: run"))
        result = sample(
            posterior,
            method.build(posterior, exact.precision, **tuned.parameters),
            jnp.zeros(2),
            step_size=tuned.schedule,
            num_samples=half,
            warmup=half,
            batch_size=asked["batch_size"],
            chains=asked["chains"],
            seed=seed,
            progress=False,
        )
        draws[name] = np.asarray(result.posterior["theta"], np.float64)
        results[name] = quality(draws[name], np.asarray(result.weights), exact)

    rows = []
    for name, tuned in found.items():
        q = results[name]
        own = ", ".join(f"{k} {v:.2g}" for k, v in tuned.parameters.items())
        rows.append(
            [name, f"{tuned.schedule.a:.2g}", own or "–"]
            + [f"{np.median(q[k]):.2f}" for k in ("along", "across", "mean_error", "kl")]
        )
    return finish(
        out,
        "fig1",
        TITLE,
        quick=quick,
        seed=seed,
        settings=asked,
        columns=["method", "a", "own parameters", "sd along", "sd across", "mean error", "KL"],
        rows=rows,
        figures={"fig1": _draw(draws, exact)},
        notes=[
            "sd along, across: estimated over true standard deviation on the ridge's two axes; mean error in true "
            "standard deviations (Mahalanobis); KL of the fitted Gaussian from the posterior. Medians of "
            f"{asked['chains']} chains with ε-weighted moments; the figure shows the first.",
            f"Each method: {asked['candidates']} candidates × {asked['repeats']} runs of "
            f"{asked['iterations']} iterations, least mean KL.",
        ],
        more={
            "exact": {"mean": exact.mean, "covariance": exact.covariance},
            "tuned": {
                n: {"a": t.schedule.a, **t.parameters, "score": t.score, "tried": t.tried} for n, t in found.items()
            },
            "quality": results,
        },
    )


def quality(draws: np.ndarray, weights: np.ndarray, exact: model.Exact) -> dict[str, np.ndarray]:
    """A comparison of each chain's weighted moments with the posterior's."""
    variances, axes = np.linalg.eigh(exact.covariance)  # across, along
    found: dict[str, list[float]] = {"along": [], "across": [], "mean_error": [], "kl": []}
    for theta, w in zip(draws, np.broadcast_to(weights, draws.shape[:2])):
        mean = np.average(theta, axis=0, weights=w)
        covariance = np.cov(theta.T, aweights=w, ddof=0)
        across, along = np.sqrt(np.diag(axes.T @ covariance @ axes) / variances)
        offset = mean - exact.mean
        product = exact.precision @ covariance
        kl = np.trace(product) + offset @ exact.precision @ offset - 2 - np.linalg.slogdet(product)[1]
        for key, value in zip(found, (along, across, np.sqrt(offset @ exact.precision @ offset), kl / 2)):
            found[key].append(float(value))
    return {k: np.array(v) for k, v in found.items()}


@styled
def _draw(draws: dict[str, np.ndarray], exact: model.Exact) -> Figure:
    fig = Figure(layout="constrained", figsize=(7.5, 7.2))
    width = 3.6 * np.sqrt(np.diag(exact.covariance).max())
    angle = np.linspace(0, 2 * np.pi, 400)
    ellipse = np.linalg.cholesky(exact.covariance) @ np.stack([np.cos(angle), np.sin(angle)])
    for axes, (name, theta) in zip(fig.subplots(2, 2, sharex=True, sharey=True).flat, draws.items()):
        axes.scatter(*theta[0, ::4].T, s=3, alpha=0.35, color=COLOURS[name], linewidths=0, rasterized=True)
        for deviations in (1, 2, 3):
            axes.plot(*(exact.mean[:, None] + deviations * ellipse), "--", color="0.25", lw=0.9)
        (x, y), w = exact.mean, width
        axes.set(title=name, xlim=(x - w, x + w), ylim=(y - w, y + w), aspect="equal")
    for axes in fig.axes[2:]:
        axes.set_xlabel("θ₁")
    for axes in fig.axes[::2]:
        axes.set_ylabel("θ₂")
    return fig
