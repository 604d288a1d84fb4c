"""NumPyro's NUTS on a case, in double precision: the long run of a reference, and the short one to compare with."""

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_leaves_with_path

from hamcmc.diagnostics.ess import arviz
from hamcmc.target.posterior import name_of
from tests import zoo

JITTER = 1.0  # half the width of the box around the start in which chains begin, in unconstrained coordinates


def run(case: zoo.Case, *, warmup: int, samples: int, chains: int = 4, thin: int = 1, seed: int = 0, **options: Any):
    """Draws (chain, draw, …) of each parameter in its support, and facts about the run."""
    from numpyro.infer import MCMC, NUTS

    target = case.posterior
    init = case.init(jax.random.key(seed)) if callable(case.init) else case.init
    start, unravel = ravel_pytree(target.unconstrain(jax.tree.map(jnp.asarray, init)))

    def potential(x):
        return -target.log_density(unravel(x), target.data)

    kernel = NUTS(potential_fn=potential, **{"target_accept_prob": 0.8, **options})
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=samples * thin,
        thinning=thin,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields = ("diverging", "num_steps")
        mcmc.run(jax.random.key(seed), init_params=_starts(start, potential, chains, seed), extra_fields=fields)
    positions, extra = mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()
    constrained = jax.jit(jax.vmap(jax.vmap(lambda x: target.constrain(unravel(x)))))(positions)
    draws = {name_of(path): np.asarray(leaf) for path, leaf in tree_leaves_with_path(constrained)}
    facts = {
        "divergences": int(np.sum(extra["diverging"])),
        "leapfrogs_per_draw": round(float(np.mean(extra["num_steps"])), 1),
        "cpu_seconds": round(time.process_time() - begin, 1),
    }
    return draws, facts


def _starts(start: jax.Array, potential: Any, chains: int, seed: int) -> jax.Array:
    """Points in a box around the start, a smaller box where the density is not finite."""
    box = jax.random.uniform(jax.random.key(seed + 1), (chains, start.size), minval=-JITTER, maxval=JITTER)
    grad = jax.jit(jax.vmap(jax.value_and_grad(potential)))
    for shrink in (1.0, 0.1, 0.0):
        points = start + shrink * box
        if all(bool(jnp.isfinite(x).all()) for x in grad(points)):
            return points
    raise ValueError("the density is not finite at the start")


def diagnose(draws: dict[str, np.ndarray]) -> dict[str, float]:
    """The least ESS, the largest R-hat, and the largest standard errors of means and sds, over all parameters."""
    az = arviz()
    ess, rhat, means, sds = [], [], [], []
    for x in draws.values():
        sd = x.std(axis=(0, 1))
        data = az.convert_to_dataset({"x": x})
        ess += [float(az.ess(data, method=m)["x"].min()) for m in ("bulk", "tail")]
        rhat.append(float(az.rhat(data)["x"].max()))
        means.append(np.max(az.mcse(data, method="mean")["x"].values / sd))
        sds.append(np.max(az.mcse(data, method="sd")["x"].values / sd))
    return {
        "min_ess": round(min(ess)),
        "max_rhat": round(max(rhat), 4),
        "mean_error": round(float(max(means)), 4),
        "sd_error": round(float(max(sds)), 4),
    }
