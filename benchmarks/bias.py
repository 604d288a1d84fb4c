"""The remaining bias: means and variances of a logistic regression by the ensemble, against a long run of NUTS.

The standard errors of the ensemble come from independent ensembles, those of NUTS from batches of draws. A z-score is
the difference divided by the standard error of both sides. Plain minibatches heat the draws; the last column has what
a user is told of that.
"""

import jax
import jax.numpy as jnp
import numpy as np

import hamcmc
from benchmarks.measure import Table

ENSEMBLES, PAIRS, WARMUP = 8, 10, 300
BATCH = 100
COLUMNS = ("worst z, means", "worst z, variances", "mean error of variances", "worst error of a variance")


def run(quick: bool) -> list[Table]:
    """One table: the ensemble at decreasing step sizes, on all data and on minibatches."""
    plain = logistic(2000, 10, seed=3)
    mode = hamcmc.find_mode(plain, jnp.zeros(10))
    around = hamcmc.control_variate(plain, mode)
    truth = by_nuts(plain, mode, 500 if quick else 3000)
    rows = []
    for data, posterior, batch_size in (
        ("all", plain, None),
        (f"{BATCH}, control variate", around, BATCH),
        (f"{BATCH}, plain", plain, BATCH),
    ):
        for step_size in (0.5, 0.1) if quick else (0.5, 0.2, 0.05):
            try:
                found, verdict = by_ensemble(posterior, mode, step_size, batch_size, relaxations=10 if quick else 60)
                row = compare(found, truth) | {"what hamcmc says": verdict}
            except hamcmc.Diverged as error:
                row = dict.fromkeys(COLUMNS, "–") | {"what hamcmc says": str(error).partition(":")[0]}
            rows.append({"gradients on": data, "ε": step_size, **row})
    return [Table("Logistic regression, N = 2000, D = 10: ensemble against NUTS, all means and variances", rows)]


def compare(found: np.ndarray, truth: np.ndarray) -> dict:
    """The worst z-scores and the worst relative error of a variance, from moments with an axis of independent ones."""
    (mean, se), (exact, exact_se) = ((x.mean(0), x.std(0, ddof=1) / np.sqrt(len(x))) for x in (found, truth))
    both = np.sqrt(se**2 + exact_se**2)
    z, error = (mean - exact) / both, mean / exact - 1
    worst = np.abs(error[1]).argmax()
    values = (
        round(float(z[0][np.abs(z[0]).argmax()]), 1),
        round(float(z[1][np.abs(z[1]).argmax()]), 1),
        f"{100 * error[1].mean():+.1f} %",
        f"{100 * error[1][worst]:+.1f} ± {100 * (both / exact)[1][worst]:.1f} %",
    )
    return dict(zip(COLUMNS, values))


def logistic(size: int, dimension: int, seed: int) -> hamcmc.Posterior:
    """Logistic regression with correlated features (0.9 between neighbours), prior N(0, I)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, dimension)).astype(np.float32)
    for j in range(1, dimension):
        x[:, j] = 0.9 * x[:, j - 1] + np.sqrt(1 - 0.81) * x[:, j]
    theta = rng.standard_normal(dimension).astype(np.float32) / np.sqrt(dimension)
    labels = rng.random(size) < 1 / (1 + np.exp(-x @ theta))

    def log_likelihood(theta, datum):
        return -jnp.logaddexp(0.0, jnp.where(datum["label"], -1.0, 1.0) * (datum["x"] @ theta))

    return hamcmc.Posterior(lambda theta: -0.5 * jnp.sum(theta**2), log_likelihood, {"x": x, "label": labels})


def by_nuts(posterior: hamcmc.Posterior, mode: jax.Array, draws: int) -> np.ndarray:
    """(batch, mean or variance, parameter): 40 batches of the draws of four chains."""
    from numpyro.infer import MCMC, NUTS

    potential = lambda theta: -posterior.log_density(theta, posterior.data)
    kernel = NUTS(potential_fn=potential, dense_mass=True)
    mcmc = MCMC(kernel, num_warmup=500, num_samples=draws, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.key(0), init_params=jnp.broadcast_to(mode, (4, mode.size)))
    theta = np.asarray(mcmc.get_samples(group_by_chain=True), np.float64).reshape(40, -1, mode.size)
    return moments(theta, theta.mean((0, 1)))


def by_ensemble(
    posterior, mode, step_size: float, batch_size: int | None, relaxations: float
) -> tuple[np.ndarray, str]:
    """(ensemble, mean or variance, parameter), and the word of the verdict."""
    thin = max(round(0.5 / step_size), 1)
    result = hamcmc.sample(
        posterior,
        "ensemble_hamcmc",
        mode,
        pairs=PAIRS,
        adapt=WARMUP,
        step_size=step_size,
        warmup=WARMUP + round(10 / step_size),
        num_samples=round(2 * relaxations / step_size / thin),
        thin=thin,
        batch_size=batch_size,
        ensembles=ENSEMBLES,
        progress=False,
    )
    theta = np.asarray(result.posterior["theta"], np.float64).reshape(ENSEMBLES, -1, mode.size)
    return moments(theta, theta.mean((0, 1))), result.check().word


def moments(theta: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Means, and variances around the mean of all."""
    return np.stack([theta.mean(1), ((theta - mean) ** 2).mean(1)], 1)
