"""Bad input is refused before the first step, with a message that names the culprit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.samplers import build

EVERY = np.zeros((100, 3), np.float32)
FINE = {"step_size": 1e-3, "num_samples": 4, "batch_size": 50, "progress": False}


def posterior(log_prior=lambda t: -0.5 * jnp.sum(t**2), log_likelihood=lambda t, x: -0.5 * jnp.sum((x - t) ** 2)):
    return hamcmc.Posterior(log_prior, log_likelihood, np.zeros((100, 3), np.float32))


def sample(model=None, sampler="sgld", init=None, **changes):
    init = jnp.zeros(3) if init is None else init
    return hamcmc.sample(model or posterior(), sampler, init, **(FINE | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "hamcmc", "memory": 1}, "memory must be a whole number, 2 or more, got 1"),
        ({"sampler": "naive", "memory": 1}, "memory must be a whole number, 2 or more, got 1"),
        ({"sampler": "hamcmc", "memory": 2.5}, "memory must be a whole number"),
        ({"sampler": "hamcmc", "damping": -0.1}, "damping must be a finite number, 0 or more, got -0.1"),
        ({"sampler": "hamcmc", "gamma": 0}, "gamma must be a finite number above 0, got 0"),
        ({"sampler": "hamcmc", "cosine": 1.5}, r"cosine must be a number in \[0, 1\), got 1.5"),
        ({"step_size": 0.0}, "step_size must be a finite number above 0, got 0.0"),
        ({"step_size": -1e-3}, "step_size must be a finite number above 0, got -0.001"),
        ({"step_size": np.nan}, "step_size must be a finite number above 0, got nan"),
        ({"step_size": np.inf}, "step_size must be a finite number above 0, got inf"),
        ({"step_size": lambda t: 1e-3 - 1e-3 * t}, "step_size must be .*; at iteration 1 it is 0"),
        ({"step_size": lambda t: jnp.where(t == 3, jnp.nan, 1.0)}, "step_size must be .*; at iteration 3 it is nan"),
        ({"batch_size": 101}, "batch_size 101 is larger than the data: 100 rows"),
        ({"batch_size": 0}, "batch_size must be a whole number, 1 or more, got 0"),
        ({"batch_size": -5}, "batch_size must be a whole number, 1 or more, got -5"),
        ({"batch_size": 2.0}, "batch_size must be a whole number, 1 or more, got 2.0"),
        ({"num_samples": 0}, "num_samples must be"),
        ({"warmup": -1}, "warmup must be"),
        ({"thin": 0}, "thin must be"),
        ({"chains": 0}, "chains must be"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**32}, "seed must be"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds must be"),
        ({"num_samples": 2**20, "thin": 2**11}, r"must stay below 2\*\*31 iterations"),
        ({"sampler": "nuts"}, "sampler must be one of .*, hamcmc, independence, .*, naive, .*, got 'nuts'"),
        ({"sampler": "sgld", "memory": 3}, "sampler sgld: .*unexpected keyword argument 'memory'"),
        ({"sampler": lambda target: None}, "sampler must make a hamcmc.Sampler from the posterior, got None"),
        ({"sampler": 3}, "sampler must be a name, a hamcmc.Sampler or a function .*, got 3"),
        ({"sampler": build("sgld", posterior()), "memory": 3}, "memory: options need a sampler that is given by name"),
        ({"init": jnp.zeros(3, int)}, "parameter theta must be floating point, got int32 in init"),
        ({"init": {"a": jnp.ones(3), "k": 2}}, "parameter k must be floating point, got int64 in init"),
        ({"init": jnp.zeros(3, complex)}, "parameter theta must be floating point, got complex64"),
        ({"init": jnp.zeros(3, jnp.bfloat16)}, "parameter theta must be floating point, got bfloat16"),
        ({"init": jnp.array([0.0, jnp.nan, 0.0])}, "parameter theta is not finite in init"),
        ({"init": {"a": jnp.zeros((0, 2))}}, "parameter a is empty in init"),
        ({"init": {}}, "init has no parameters"),
        ({"init": {"a/b": jnp.zeros(3)}}, "parameter a/b must have a unique name"),
        ({"init": {"draw": jnp.zeros(3)}}, "parameter draw must have a unique name"),
        ({"init": {"a": {"b": jnp.zeros(3)}, "a.b": jnp.zeros(3)}}, "parameter a.b must have a unique name"),
    ],
)
def test_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        sample(**changes)


def test_no_data_no_batch():
    with pytest.raises(ValueError, match="batch_size was given, but this posterior has no data"):
        sample(hamcmc.Posterior(lambda t: -jnp.sum(t**2)))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (posterior(log_prior=lambda t: -(t**2)), r"log_prior must return a scalar, got shape \(3,\)"),
        (
            posterior(log_likelihood=lambda t, x: -((x - t) ** 2)),
            r"log_likelihood must return a scalar of one datum, got shape \(3,\)",
        ),
        (
            posterior(log_likelihood=lambda t, x: -0.5 * jnp.sum((EVERY - t) ** 2)),
            "log_likelihood does not depend on the row in its second argument",
        ),
        (
            posterior(log_likelihood=jax.jit(lambda t, x: -0.5 * jnp.sum((EVERY - t) ** 2) + 0 * len(x))),
            "a sum over all data would be counted once for every row",
        ),
        (posterior(log_prior=lambda t: jnp.sum(t) * jnp.nan), "log_prior is nan at the start of chain 0"),
        (posterior(log_prior=lambda t: jnp.log(jnp.sum(t))), "log_prior is -inf at the start of chain 0"),
        (
            posterior(log_likelihood=lambda t, x: jnp.where(x[0] < 1, jnp.nan, 0.0)),
            "log_likelihood is nan at the start of chain 0",
        ),
        (
            posterior(log_prior=lambda t: jnp.sum(jnp.sqrt(jnp.abs(t)))),
            "gradient in parameter theta is not finite at the start of chain 0",
        ),
    ],
)
def test_densities(model, message):
    with pytest.raises(ValueError, match=message):
        sample(model)


def test_the_chain_at_fault_is_named():
    model = posterior(log_prior=lambda t: jnp.where(t[0] > 0, 0.0, jnp.nan))
    starts = iter([1.0, 1.0, -1.0])
    with pytest.raises(ValueError, match="log_prior is nan at the start of chain 2"):
        sample(model, init=lambda key: jnp.full(3, next(starts)), chains=3)


def test_a_start_outside_of_the_support():
    model = hamcmc.Posterior(lambda t: -jnp.sum(t), support=hamcmc.positive())
    with pytest.raises(ValueError, match=r"parameter theta starts outside of its support \(positive \(log\)\)"):
        sample(model, init=-jnp.ones(3), batch_size=None)


class Mistake(Exception):
    pass


def raising(error):
    def log_likelihood(theta, x):
        raise error

    return posterior(log_likelihood=log_likelihood)


@pytest.mark.parametrize("error", [Mistake("in my model"), OSError("in my model"), TypeError("in my model")])
def test_an_error_of_the_model_stays_itself(error, tmp_path):
    with pytest.raises(type(error), match="in my model"):
        sample(raising(error), out=tmp_path / "run")


def test_an_error_of_the_progress_function_stays_itself(tmp_path):
    """An OSError, which is not one of the run's own disk."""

    def progress(status):
        raise BrokenPipeError("the reader went away")

    with pytest.raises(BrokenPipeError, match="the reader went away"):
        sample(out=tmp_path / "run", progress=progress)
    assert hamcmc.resume(tmp_path / "run", posterior(), jnp.zeros(3), progress=False).draws == 4  # and it lets go


def test_a_run_directory_that_exists(tmp_path):
    result = sample(out=tmp_path / "run", notes={"by": "me", "n": np.int64(3), "where": tmp_path})
    first = result.posterior["theta"]
    with pytest.raises(hamcmc.RunError, match=f"{tmp_path / 'run'} exists already"):
        sample(out=tmp_path / "run")
    again = sample(out=tmp_path / "run", overwrite=True, seed=1)
    assert (again.posterior["theta"] != first).all()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(hamcmc.RunError, match="exists and is not a run"):
        sample(out=tmp_path / "other", overwrite=True)
    assert result.settings["notes"] == {"by": "me", "n": 3, "where": str(tmp_path)}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["seed"] == 1
