"""Simulation-based calibration: draw parameters from the prior and data from them, run a sampler on the data, and rank
the parameters among the run's draws. The ranks are uniform if the draws are from the posterior.

    python -m tests.hardening.sbc            every sampler on both models: a table
    python -m tests.hardening.sbc sgld       one of them anew

Steps decrease, ε_t ∝ (t₀ + t)^−b. A run starts at a fresh draw from the prior; draws are so far apart that each has
forgotten the one before. All simulations run side by side in one compiled loop.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks import page
from benchmarks.measure import Table
from jax import lax
from jax.flatten_util import ravel_pytree
from scipy import stats

import hamcmc
from hamcmc.inference.many import Turn, advance
from hamcmc.paper.journal import Journal
from tests.samplers.catalogue import catalogue
from tests.samplers.targets import OPTIMISED

SIMULATIONS, DRAWS = 1024, 7  # ranks are 0 … 7
APART = 3.0  # relaxation times between draws; the first comes after twice that
HEAD_START, POWER = 1000, 0.6  # t₀ and b
COARSER = 2  # the last step's size over the catalogue's: a thousand ranks show biases of some percent, but no less
ROWS, BATCH = 16, 8
NAMES = (  # of the catalogue: every sampler at least once
    "sgld",
    "psgld",
    "psgld-corrected",
    "sgrld",
    "sghmc",
    "sgnht",
    "ccadl",
    "sgfs",
    "naive",
    "hamcmc-2",
    "hamcmc-3",
    "ensemble",
    "ensemble-adjusted",
    "ensemble-hmc",
    "ensemble-underdamped",
    "independence",
    "leimkuhler-matthews",
)


class Model(NamedTuple):
    """A posterior, functions that draw parameters from its prior and data from them, and how stiff and soft it is."""

    posterior: Any
    prior: Callable[[jax.Array], Any]
    data: Callable[[jax.Array, Any], Any]
    stiffness: np.ndarray
    changes: dict[str, dict[str, float]]  # of the catalogue's settings, by sampler


def linear_gaussian(package: Any) -> Model:
    """Regression in three dimensions."""
    rng = np.random.default_rng(7)
    a = (rng.normal(size=(ROWS, 3)) @ np.array([[1.0, 0, 0], [0.8, 0.6, 0], [0.3, -0.5, 1.2]]).T).astype(np.float32)

    def predicted(theta, a):
        return a[..., :2] @ theta["b"] + a[..., 2] * theta["c"]

    posterior = package.Posterior(
        lambda theta: -0.5 * (jnp.sum(theta["b"] ** 2) + theta["c"] ** 2),
        lambda theta, d: -0.5 * (d["x"] - predicted(theta, d["a"])) ** 2,
        {"a": a, "x": np.zeros(ROWS, np.float32)},
    )
    posterior.fisher = np.eye(3) + a.T @ a

    def prior(key):
        z = jax.random.normal(key, (3,))
        return {"b": z[:2], "c": z[2]}

    data = lambda key, theta: {"a": a, "x": predicted(theta, a) + jax.random.normal(key, (ROWS,))}
    # Minibatches of 8 rows slow the mean of one down; proposals from the prior are seldom accepted.
    changes = {"ensemble-underdamped": {"slowest": 0.15}, "independence": {"slowest": 0.003}}
    stiffness = np.linalg.eigvalsh(posterior.fisher)
    changes |= {"leimkuhler-matthews": {"step_size": 0.25 / stiffness.max()}}  # twice that is still stable far out
    return Model(posterior, prior, data, stiffness, changes)


def hierarchical(package: Any) -> Model:
    """Four groups with a common mean and a common, positive spread, in the non-centred form."""
    group = np.repeat(np.arange(4), ROWS // 4)

    def predicted(theta, group):
        return theta["m"] + theta["s"] * theta["z"][group]

    posterior = package.Posterior(
        lambda t: -0.5 * (t["m"] ** 2 + jnp.sum(t["z"] ** 2)) - jnp.log(t["s"]) ** 2 / 0.18 - jnp.log(t["s"]),
        lambda t, d: -0.5 * (d["x"] - predicted(t, d["group"])) ** 2,
        {"group": group, "x": np.zeros(ROWS, np.float32)},
        support={"s": package.positive()},
    )
    # Sgrld's metric slows m down; sghmc becomes non-finite at larger steps; four pairs do not span six dimensions.
    changes = {"sgrld": {"slowest": 1 / 17}, "sghmc": {"step_size": 2e-3 / 3}}
    changes |= {"ensemble": {"slowest": 0.15}, "ensemble-underdamped": {"slowest": 0.15}}
    changes |= {"independence": {"slowest": 0.0006}, "leimkuhler-matthews": {"step_size": 0.1 / 30}}
    changes |= {"ensemble-adjusted": {"slowest": 0.004}}
    posterior.fisher = np.diag([17.0, 15.0, 5, 5, 5, 5])  # of m, log s and z where s is 1

    def prior(key):
        z = jax.random.normal(key, (6,))
        return {"m": z[0], "s": jnp.exp(0.3 * z[1]), "z": z[2:]}

    data = lambda key, theta: {"group": group, "x": predicted(theta, group) + jax.random.normal(key, (ROWS,))}
    return Model(posterior, prior, data, np.array([1.0, 30.0]), changes)


MODELS = {"linear Gaussian": linear_gaussian, "hierarchical": hierarchical}


class Ranks(NamedTuple):
    """Ranks (simulation, quantity) of 0 … DRAWS, or -1 for a run that became non-finite; and the quantities' names."""

    ranks: np.ndarray
    names: list[str]

    @property
    def p_values(self) -> np.ndarray:
        """Of χ² against equal counts, for each quantity; 0 if more than one run in a hundred became non-finite."""
        if self.lost > 0.01:
            return np.zeros(len(self.names))
        counts = np.stack([np.bincount(r, minlength=DRAWS + 1) for r in self.kept.T])
        return stats.chisquare(counts, axis=1).pvalue

    @property
    def kept(self) -> np.ndarray:
        """Ranks of the runs that stayed finite."""
        return self.ranks[(self.ranks >= 0).all(1)]

    @property
    def lost(self) -> float:
        """The share of runs that became non-finite."""
        return float((self.ranks < 0).any(1).mean())

    @property
    def deviation(self) -> float:
        """The largest distance between the distribution function of the ranks, where there are any, and the uniform."""
        below = np.stack([(self.kept <= k).mean(0) - (k + 1) / (DRAWS + 1) for k in range(DRAWS)])
        return float(np.abs(below).max())


def calibrate(package: Any, model: str, name: str, *, simulations: int = SIMULATIONS, seed: int = 0) -> Ranks:
    """Ranks of true parameters among the draws of a sampler of the catalogue."""
    m = MODELS[model](package)
    make, settings = catalogue(package, m.posterior, m.stiffness)[name]
    settings = settings | m.changes.get(name, {})
    adjusted = name in (
        "ensemble-adjusted",
        "ensemble-hmc",
        "independence",
    )  # exact at any step: a constant one will do
    sampler, finest = make(), settings["step_size"] * (1 if adjusted else COARSER)
    rate = finest * settings.get("slowest", m.stiffness.min())  # relaxations per step at the last step size
    full = settings.get("batch_size", BATCH) is None
    ends, epsilon = _times(finest, APART / rate, constant=adjusted)
    unconstrain = m.posterior.unconstrain_unchecked

    def one(key):
        k_theta, k_data, k_start, k_run = jax.random.split(key, 4)
        truth = m.prior(k_theta)
        data = m.data(k_data, truth)
        many = sampler.replicas > 1
        start = jax.vmap(m.prior)(jax.random.split(k_start, sampler.replicas)) if many else m.prior(k_start)
        state = jax.tree.map(jnp.asarray, sampler.init(jax.vmap(unconstrain)(start) if many else unconstrain(start)))

        def turn(t):
            k_batch, k_step = jax.random.split(jax.random.fold_in(k_run, t))
            rows = jax.random.randint(k_batch, (BATCH,), 0, ROWS)
            batch = data if full else jax.tree.map(lambda x: jnp.asarray(x)[rows], data)
            return Turn(k_step, batch, epsilon(t))

        def segment(state, bounds):
            state, _ = advance(sampler, state, turn, bounds[0], bounds[1])
            position = jax.tree.map(lambda x: x[0], state.position) if many else state.position
            return state, ravel_pytree(m.posterior.constrain(position))[0]

        _, draws = lax.scan(segment, state, jnp.stack([ends[:-1], ends[1:]], 1))
        truth, draws = ravel_pytree(truth)[0], draws[-DRAWS:]
        square = lambda x: jnp.sum(x**2, -1, keepdims=True)
        truth, draws = (jnp.concatenate([x, square(x)], -1) for x in (truth, draws))
        rank = jnp.sum(draws < truth, 0)
        return jnp.where(jnp.isfinite(draws).all(), rank, -1)

    keys = jax.random.split(jax.random.key(seed), simulations)
    ranks = np.asarray(jax.jit(jax.vmap(one), compiler_options=OPTIMISED)(keys))
    example = m.prior(jax.random.key(0))
    names = [f"{k}[{i}]" if np.ndim(v) else k for k, v in example.items() for i in range(np.size(v))]
    return Ranks(ranks, [*names, "‖θ‖²"])


def _times(finest: float, segment: float, *, constant: bool) -> tuple[jax.Array, Callable]:
    """Ends of the segments between draws, each `segment` steps of the finest size long in Σε; and ε."""
    shape = lambda t: (HEAD_START + t) ** (-0.0 if constant else -POWER)
    t = np.arange(10**6)
    # The last step has the finest size. The fewer steps, the larger their average, so look for the length that fits.
    for steps in (2 ** np.arange(6, 20, 0.125)).astype(int):
        scale = 1 / shape(float(steps))
        done = np.cumsum(shape(t[:steps].astype(float))) * scale
        if done[-1] >= (DRAWS + 1) * segment:
            break
    marks = np.append(2 * segment, done[-1] - segment * np.arange(DRAWS - 1, -1, -1) * (1 - 1e-9))
    ends = np.append(0, np.searchsorted(done, np.minimum(marks, done[-1]))).astype(np.int32)
    return jnp.asarray(ends), lambda t: finest * scale * shape(t.astype(float))


def measured(name: str, model: str) -> dict[str, str]:
    """A row of the table."""
    found = calibrate(hamcmc, model, name)
    worst = int(np.argmin(found.p_values))
    row = {"sampler": f"`{name}`", "model": model, "least p": f"{found.p_values[worst]:.2g}", "of": found.names[worst]}
    return row | {"largest deviation": f"{found.deviation:.3f}", "runs lost": f"{found.lost:.1%}"}


def main() -> None:
    """Print the table, and keep it. A command that was interrupted goes on where it was."""
    chosen, rows = sys.argv[1:] or NAMES, []
    settings = {"simulations": SIMULATIONS, "draws": DRAWS, "rows": ROWS, "batch": BATCH}
    journal = Journal(Path("reproduced") / "calibration" / "rows.json")
    for name in chosen:
        for model in MODELS:
            what = {"sampler": name, "model": model, "version": hamcmc.__version__} | settings
            if (known := journal.get(what)) is None:
                began = time.perf_counter()
                known = {"row": measured(name, model), "seconds": time.perf_counter() - began}
                journal.put(what, known)
            rows.append(known)
            print("  ".join(f"{k}: {v}" for k, v in known["row"].items()), f" {known['seconds']:.0f} s", flush=True)
    keep(chosen, rows, settings)


def keep(chosen: Sequence[str], rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """Keep the rows. Those of single samplers take the place of their rows in what was kept before."""
    path, took, before = page.RESULTS / "calibration.json", sum(r["seconds"] for r in rows), page.full("calibration")
    found = {(r["row"]["sampler"], r["row"]["model"]): r["row"] for r in rows}
    if chosen is not NAMES:
        if before is None:
            return
        again = before["settings"].get("measured later", {}) | dict.fromkeys(chosen, date.today().isoformat())
        found = {(r["sampler"], r["model"]): r for r in before["tables"][0]["rows"]} | found
        settings, took = settings | {"measured later": again}, took + before["seconds"]
    order = [(f"`{name}`", model) for name in NAMES for model in MODELS]
    tables = [Table("Ranks of the true parameters among the draws", [found[k] for k in order if k in found])]
    page.store(path, tables, command="make calibration", seconds=took, settings=settings, seeds=[0])
    if chosen is not NAMES and before is not None:  # most rows are still of that run
        kept = json.loads(path.read_text()) | {k: before[k] for k in ("date", "versions", "machine")}
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    print(f"Kept in {path}; `make pages` puts it on the page.")


if __name__ == "__main__":
    main()
