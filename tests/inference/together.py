"""A small logistic regression that several processes sample together: ``python -m tests.inference.together FOLDER``."""

import json
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import hamcmc
from hamcmc.inference import launch
from hamcmc.target import sharded
from hamcmc.target.noise import gradient_noise
from hamcmc.target.sharded import Sharded

ROWS = 1001


def arrays(rows: int = ROWS, kind: str = "float64") -> dict[str, np.ndarray]:
    """Data with two covariates of so little effect that the posterior is nearly normal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2)).astype(kind)
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-x @ [0.2, -0.2]))).astype(int)
    return {"x": x[:rows], "y": y[:rows]}


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


def log_likelihood(theta, datum):
    return datum["y"] * (datum["x"] @ theta) - jnp.logaddexp(0, datum["x"] @ theta)


def impossible(theta, datum):
    """A likelihood that is zero for rows with y = 9."""
    return jnp.where(datum["y"] == 9, -jnp.inf, log_likelihood(theta, datum))


def posterior(data) -> hamcmc.Posterior:
    """Of some rows."""
    return hamcmc.Posterior(log_prior, log_likelihood, data, init=np.zeros(2))


def on_disk(data: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """The same arrays as memory maps, of which each process has its own here."""
    paths = {name: folder / f"{name}{jax.process_index()}.npy" for name in data}
    for name, path in paths.items():
        np.save(path, data[name])
    return {name: np.load(path, mmap_mode="r") for name, path in paths.items()}


def runs(folder: Path, automatic: bool) -> dict[str, np.ndarray]:
    """The draws of runs on all data and on minibatches, and those of an automatic run, which takes a while."""
    model = posterior(arrays())
    how = {"step_size": 1e-4, "num_samples": 30, "warmup": 10, "progress": False}
    reduced = hamcmc.control_variate(model, np.array([0.2, -0.2]))
    quiet = {"progress": False, "num_samples": 20, "warmup": 20}
    made = {
        "all data": hamcmc.sample(model, "sgld", chains=2, **how),
        "minibatches": hamcmc.sample(reduced, "sgld", model.init, batch_size=50, store_gradients=True, **how),
    }
    shared = Sharded(model)  # also in one process, which otherwise would not draw its rows uniformly
    made["automatic minibatches"] = hamcmc.sample(shared, batch_size=100, thin=1, **quiet)
    sharded.IN_MEMORY, held = 0.0, sharded.IN_MEMORY
    model = posterior(on_disk(arrays(), folder))
    made["streamed"] = hamcmc.sample(model, "sgld", batch_size=50, **how)
    made["automatic, streamed"] = hamcmc.sample(Sharded(model), thin=1, **quiet)
    sharded.IN_MEMORY = held
    assert made["automatic, streamed"].settings["plan"]["regime"] == "minibatches"
    model = posterior(arrays())
    if automatic:
        made["automatic"] = hamcmc.sample(model, out=folder / "run", progress=False)
    found = {name: result.posterior["theta"] for name, result in made.items()}
    around = hamcmc.laplace(shared).triangular()
    found["noise"] = gradient_noise(hamcmc.control_variate(shared, around, order=2), around).covariance
    found["gradients"] = made["minibatches"].gradients["theta"]
    return found


def refused() -> list[str]:
    """What is said when process 1 was given other data than process 0, and when one process alone meets an error."""
    first, said = jax.process_index() == 0, []
    for data in (arrays(ROWS if first else ROWS - 1), arrays(kind="float64" if first else "float32")):
        said.append(message(partial(hamcmc.sample, posterior(data), "sgld", step_size=1e-3, progress=False)))
    other = arrays()
    other["y"][3] = 1 - other["y"][3] if first else other["y"][3]
    said.append(message(partial(hamcmc.sample, posterior(other), "sgld", step_size=1e-3, progress=False)))
    marked = arrays()
    marked["y"][-1] = 9  # a row of the last process
    broken = hamcmc.Posterior(log_prior, impossible, marked, init=np.zeros(2))
    said.append(message(partial(hamcmc.sample, broken, "sgld", step_size=1e-3, progress=False)))
    return said


def message(work) -> str:
    """What the error says that it raises."""
    try:
        work()
    except ValueError as error:
        return str(error)
    return "nothing"


def main(folder: str, automatic: str = "") -> None:
    """Write the draws, and what each process says about bad input."""
    jax.config.update("jax_enable_x64", True)
    path, number = Path(folder), jax.process_index()
    (path / f"refused{number}.json").write_text(json.dumps(refused()))
    np.savez(path / f"draws{number}.npz", **runs(path, bool(automatic)))


if __name__ == "__main__":
    launch.leave(launch.together(partial(main, *sys.argv[1:])))
