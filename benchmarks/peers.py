"""Effective samples per second in the slowest direction: the ensembles against BlackJAX, NUTS and our other samplers.

Every sampler starts at the mode. Samplers with a step size try the same number of steps, for the same time each. Of the
steps whose variances are within 15 % of the reference, the one with the most effective samples is then timed again. The
reference is the inverse of the Hessian where the posterior is nearly Gaussian, and otherwise NUTS, including its own
error. The directions are ten eigenvectors of the Hessian at the mode, from the softest to the stiffest, and the slowest
one counts. SG-MCMC peers get 22 chains that share a minibatch, like the ensemble's replicas, and the same control
variate. NUTS runs on all data, and its warm-up is not counted. Effective samples are ArviZ's, minus what chains that
share minibatches have in common.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import hamcmc
from benchmarks import targets
from benchmarks.measure import Against, Table
from hamcmc.diagnostics.ess import effective_size, independent_share

CHAINS = 22
DRAWS = 400  # looked at


class Found(NamedTuple):
    """Effective samples of the poorest direction per second, the largest relative error of a variance, and settings."""

    rate: float
    error: float
    ess: float
    setting: str


Runner = Callable[[float, float], tuple[np.ndarray, float]]  # (step size, seconds) -> draws (chain, draw, D), seconds


def run(quick: bool) -> list[Table]:
    """One table for each posterior, and NUTS as the reference for variances."""
    seconds, tries = (2.0, 2) if quick else (8.0, 3)
    makers = [targets.linear] if quick else [targets.linear, targets.logistic, targets.hierarchical, targets.census]
    return [compare(make(), seconds, tries) for make in makers]


def compare(p: targets.Problem, seconds: float, tries: int) -> Table:
    """All samplers on one posterior."""
    stiff = float(p.curvatures[-1])
    reference, nuts_seconds = nuts(p, 2 * seconds)
    variances = (flat(reference) @ p.directions).reshape(-1, p.directions.shape[1]).var(0)
    if p.gaussian:
        ranks = np.unique(np.linspace(0, len(p.curvatures) - 1, p.directions.shape[1]).astype(int))
        variances = 1 / p.curvatures[ranks]
    rows = [row("NUTS (NumPyro)", judge(p, flat(reference), nuts_seconds, variances, "diagonal mass"))]
    around = control(p)
    steps = lambda top: top * 0.3 ** np.arange(tries)
    contenders: dict[str, tuple[Runner, np.ndarray]] = {
        "ensemble_hamcmc": (ours(p, around, "ensemble_hamcmc"), steps(1.0)),
        "ensemble_underdamped": (ours(p, around, "ensemble_underdamped"), steps(0.6)),
        "hamcmc, M = 5": (ours(p, around, "hamcmc", memory=5, gamma=1 / stiff), steps(0.5)),
        "psgld": (ours(p, around, "psgld"), steps(0.3 / np.sqrt(stiff) / p.posterior.size)),
        "BlackJAX SGLD": (peer(p, around, sgld), steps(0.5 / stiff)),
        "BlackJAX SGHMC": (peer(p, around, sghmc), np.sqrt(steps(0.3 / stiff))),
    }
    for name, (runner, grid) in contenders.items():
        found = [attempt(p, runner, e, seconds / tries, variances) for e in grid]
        good = [f for f in found if f.error < 0.15] or found
        best = max(good, key=lambda f: f.rate if f.error < 0.15 else -f.error)
        chosen = float(grid[found.index(best)])
        rows.append(row(name, attempt(p, runner, chosen, seconds, variances)))
    best_peer = max((r for r in rows if "ensemble" not in r["sampler"]), key=lambda r: r["ESS/s"])
    for r in rows:
        r["against the best peer"] = f"{r['ESS/s'] / max(best_peer['ESS/s'], 1e-9):.2g}"
    return Table(f"{p.name}, condition number {p.condition:,.0f}", rows, [*standing(p.name, rows)])


def standing(target: str, rows: list[dict[str, Any]]) -> Iterator[Against]:
    """Our better ensemble, among those with all variances within 15 % where there is one, against each peer."""
    right = lambda r: float(r["largest error of a variance"].rstrip("%")) < 15
    mine = [r for r in rows if "ensemble" in r["sampler"]]
    best = max([r for r in mine if right(r)] or mine, key=lambda r: r["ESS/s"])
    for r in rows:
        if r["sampler"].startswith(("NUTS", "BlackJAX")):
            both = ", ".join(f"{x['ESS/s']:.3g} (error {x['largest error of a variance']})" for x in (best, r))
            ahead = "hamcmc" if (best["ESS/s"] > r["ESS/s"]) and (right(best) or not right(r)) else "peer"
            yield Against(r["sampler"], f"ESS/s of the poorest direction, {target}", both, ahead)


def attempt(p: targets.Problem, runner: Runner, step_size: float, seconds: float, variances: np.ndarray) -> Found:
    """One run of about so many seconds."""
    draws, lasted = runner(step_size, seconds)
    return judge(p, draws, lasted, variances, f"ε = {step_size:.2g}")


def judge(p: targets.Problem, draws: np.ndarray, seconds: float, variances: np.ndarray, setting: str) -> Found:
    """The poorest direction's effective samples, and how far the variances are off."""
    x = draws @ p.directions
    if not np.isfinite(x).all():
        return Found(0.0, np.inf, 0.0, setting)
    together = CHAINS if len(x) == CHAINS else 1  # those that share minibatches
    size = lambda v: independent_share(v, together) * effective_size(v, np.ones(v.shape[1]), "mean")
    ess = min(size(x[..., i]) for i in range(x.shape[-1]))
    error = float(np.abs(x.reshape(-1, x.shape[-1]).var(0) / variances - 1).max())
    return Found(ess / seconds, error, ess, setting)


def row(name: str, f: Found) -> dict[str, Any]:
    """For the table."""
    return {
        "sampler": name,
        "ESS/s": float(f"{f.rate:.3g}"),
        "ESS": round(f.ess),
        "largest error of a variance": f"{f.error:.0%}",
        "setting": f.setting,
    }


def flat(tree: Any) -> np.ndarray:
    """Draws (chain, draw, …) of a pytree as (chain, draw, D), in the order of the directions."""
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(*x.shape[:2], -1) for x in leaves], -1)


def control(p: targets.Problem) -> hamcmc.Posterior:
    """The posterior with a control variate at the mode."""
    return hamcmc.control_variate(p.posterior, p.mode)


def ours(p: targets.Problem, posterior: hamcmc.Posterior, name: str, **options: Any) -> Runner:
    """`hamcmc.sample` by name: a short run to learn its speed, then one of the length asked for."""
    ensemble = name.startswith("ensemble")

    def runner(step_size: float, seconds: float):
        def sample(iterations: int, warmup: int):
            return hamcmc.sample(
                posterior,
                name,
                p.mode,
                step_size=step_size,
                batch_size=p.batch_size,
                num_samples=DRAWS,
                thin=max(1, iterations // DRAWS),
                warmup=warmup,
                **({"ensembles": 1} if ensemble else {"chains": 4}),  # chains of ours do not share minibatches
                progress=False,
                **options,
            )

        try:
            learning = 1000 if ensemble else 0  # the metric
            short = sample(DRAWS, learning)
            rate = short.meta["iteration"] / short.meta["seconds"]
            iterations = max(DRAWS, int(rate * seconds))
            warmup = max(learning, iterations // 10)
            result = sample(iterations, warmup)
        except hamcmc.NonFinite:
            return np.full((1, 4, p.directions.shape[0]), np.nan), 1.0
        share = 1 - warmup / result.meta["iteration"]  # NUTS's warm-up is not counted either
        tree = jax.tree.unflatten(jax.tree.structure(p.mode), list(result.posterior.values()))
        return flat(tree), result.meta["seconds"] * share

    return runner


def peer(p: targets.Problem, posterior: hamcmc.Posterior, kernel: Callable) -> Runner:
    """A BlackJAX kernel on chains that share a minibatch, in one compiled loop."""
    step = kernel(posterior)
    data = posterior.data

    @jax.jit
    def loop(data, positions, key, step_size, iterations):
        def iteration(t, x):
            k_batch, k_step = jax.random.split(jax.random.fold_in(key, t))
            batch = data
            if p.batch_size:
                rows = jax.random.randint(k_batch, (p.batch_size,), 0, posterior.size)
                batch = jax.tree.map(lambda a: a[rows], data)
            return jax.vmap(lambda k, x: step(k, x, batch, step_size))(jax.random.split(k_step, CHAINS), x)

        return lax.fori_loop(0, iterations, iteration, positions)

    def runner(step_size: float, seconds: float):
        x = jax.tree.map(lambda m: jnp.broadcast_to(m, (CHAINS, *m.shape)), p.mode)
        timed = lambda x, n, key: jax.block_until_ready(loop(data, x, jax.random.key(key), step_size, n))
        timed(x, 1, 0)
        began = time.perf_counter()
        x = timed(x, 50, 1)
        rate = 50 / (time.perf_counter() - began)
        thin = max(1, int(rate * seconds / DRAWS))
        x = timed(x, thin * DRAWS // 10, 2)
        began, draws = time.perf_counter(), []
        for t in range(DRAWS):
            x = timed(x, thin, 3 + t)
            draws.append(x)
        lasted = time.perf_counter() - began
        return flat(jax.tree.map(lambda *v: np.stack(v, 1), *draws)), lasted

    return runner


def sgld(posterior: hamcmc.Posterior) -> Callable:
    """BlackJAX's SGLD; its ε is ours."""
    kernel = blackjax.sgld(posterior.grad)
    return lambda key, x, batch, step_size: kernel.step(key, x, batch, step_size)


def sghmc(posterior: hamcmc.Posterior) -> Callable:
    """BlackJAX's SGHMC with ten inner steps and its default friction; its ε is a leapfrog step, √ of ours."""
    kernel = blackjax.sghmc(posterior.grad, num_integration_steps=10)
    return lambda key, x, batch, step_size: kernel.step(key, x, batch, step_size)


def nuts(p: targets.Problem, seconds: float) -> tuple[Any, float]:
    """NumPyro's NUTS on all data: draws with a chain axis, and the seconds that they took after warm-up."""
    from numpyro.infer import MCMC, NUTS

    data = p.posterior.data
    potential = lambda x: -p.posterior.log_density(x, data)
    kernel = NUTS(potential_fn=potential)
    mcmc = MCMC(kernel, num_warmup=150, num_samples=10, progress_bar=False)
    mcmc.warmup(jax.random.key(0), init_params=p.mode, collect_warmup=False)
    began = time.perf_counter()
    mcmc.run(jax.random.key(1))
    rate = 10 / (time.perf_counter() - began)
    draws = int(np.clip(rate * seconds, 60, 4000))
    mcmc.num_samples = draws
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(2))  # compiles for this number of draws
    mcmc.post_warmup_state = mcmc.last_state
    began = time.perf_counter()
    mcmc.run(jax.random.key(3))
    samples = jax.block_until_ready(mcmc.get_samples())
    lasted = time.perf_counter() - began
    return jax.tree.map(lambda x: np.asarray(x)[None], samples), lasted
