"""NumPyro's NUTS on a case, in double precision: the long run of a reference, and the short one to compare with."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import tree_leaves_with_path

from hamcmc.diagnostics.ess import arviz
from hamcmc.target.posterior import name_of
from tests import zoo

CHAINS = 4
JITTER = 1.0  # half the width of the box around the start in which chains begin, in unconstrained coordinates


def run(
    case: zoo.Case, *, warmup: int, samples: int, thin: int = 1, seed: int = 0, whiten: bool = False, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Draws (chain, draw, …) of each parameter in its support, and facts about the run.

    With `whiten`, coordinates are whitened by the Hessian at the mode, and chains start around the mode.
    """
    from numpyro.infer import MCMC, NUTS

    target, begin = case.posterior, time.process_time()
    init = case.init(jax.random.key(seed)) if callable(case.init) else case.init
    start, unravel = ravel_pytree(target.unconstrain(jax.tree.map(jnp.asarray, init)))

    def energy(x: jax.Array) -> jax.Array:
        return -target.log_density(unravel(x), target.data)

    centre, root = laplace(energy, start) if whiten else (start, None)

    def position(z: jax.Array) -> jax.Array:
        return centre + z if root is None else centre + root @ z

    def potential(z: jax.Array) -> jax.Array:
        return energy(position(z))

    kernel = NUTS(potential_fn=potential, **options)
    settings = {"num_warmup": warmup, "num_samples": samples * thin, "thinning": thin, "num_chains": CHAINS}
    mcmc = MCMC(kernel, **settings, chain_method="vectorized", progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields = ("diverging", "num_steps")
        mcmc.run(jax.random.key(seed), init_params=_starts(potential, start.size, seed), extra_fields=fields)
    positions, extra = mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()
    constrained = jax.jit(jax.vmap(jax.vmap(lambda z: target.constrain(unravel(position(z))))))(positions)
    draws = {name_of(path): np.asarray(leaf) for path, leaf in tree_leaves_with_path(constrained)}
    facts = {
        "divergences": int(np.sum(extra["diverging"])),
        "leapfrogs_per_draw": round(float(np.mean(extra["num_steps"])), 1),
        "cpu_seconds": round(time.process_time() - begin, 1),
    }
    return draws, facts


def laplace(energy: Callable, start: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mode, and a square root of the inverse Hessian there, by damped Newton steps that ignore units."""
    value, grad = jax.jit(energy), jax.jit(jax.grad(energy))
    # Forward over reverse, one column after the other: many rows times all columns would not fit in memory.
    hessian = jax.jit(lambda x: jax.lax.map(lambda v: jax.jvp(jax.grad(energy), (x,), (v,))[1], jnp.eye(x.size)))
    x, damping = start, 1e-3
    for _ in range(300):
        h, g = np.asarray(hessian(x)), np.asarray(grad(x))
        units = np.sqrt(np.maximum(np.abs(np.diag(h)), 1e-300))
        scaled = h / units / units[:, None]
        lowest = np.linalg.eigvalsh(scaled)[0]
        step = np.linalg.solve(scaled + (damping + max(0.0, -1.1 * lowest)) * np.eye(x.size), g / units) / units
        if bool(value(x - step) <= value(x)):
            x, damping = x - step, max(damping / 10, 1e-14)
        elif damping > 1e8:
            break  # rounding: nothing smaller is better
        else:
            damping *= 10
        if lowest > 0 and float(g @ step) < 1e-10:
            break
    factor = np.linalg.cholesky(np.linalg.inv(scaled))
    return x, jnp.asarray(factor / units[:, None])


def _starts(potential: Callable, size: int, seed: int) -> jax.Array:
    """Points in a box around the start, a smaller box where the density is not finite."""
    box = jax.random.uniform(jax.random.key(seed + 1), (CHAINS, size), minval=-JITTER, maxval=JITTER)
    grad = jax.jit(jax.vmap(jax.value_and_grad(potential)))
    for shrink in (1.0, 0.1, 0.0):
        if all(bool(jnp.isfinite(x).all()) for x in grad(shrink * box)):
            return shrink * box
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
