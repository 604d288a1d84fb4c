"""Replicas that share minibatches are no independent chains: the ESS of a real run against the variance of its mean."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.target import linear_gaussian as lg
from tests.mutation import mutant

BLOCKS = 40  # parts of a run; each is twenty times as long as it remembers
RUN = {"pairs": 8, "metric": None, "gamma": 0.01, "step_size": 0.06, "batch_size": 50}  # much of the noise is shared
LENGTH = {"num_samples": 4000, "thin": 2, "warmup": 300}


def a_run(package, data, posterior=None):
    posterior = posterior or importlib.import_module(f"{package.__name__}.target.linear_gaussian").linear_gaussian(
        lg.Data(*data), 10.0
    )
    return package.sample(posterior, "ensemble_hamcmc", jnp.zeros(3), ensembles=1, progress=False, **RUN, **LENGTH)


@pytest.fixture(scope="module")
def run(data, model):
    return a_run(hamcmc, data, model)


def check(package, run):
    """Every ESS that a user sees, against Var θ over the variance of the pooled mean, which has seen no ESS.

    Forty blocks and three parameters know it to 13 %. Independent chains with these autocorrelations would be worth
    2.6 times as much.
    """
    x = np.asarray(run.posterior["theta"], float)
    blocks = x.mean(0).reshape(BLOCKS, -1, 3).mean(1)
    exact = x.var((0, 1)) / (blocks.var(0, ddof=1) / BLOCKS)
    table = importlib.import_module(f"{package.__name__}.diagnostics").summary(run)
    found = importlib.import_module(f"{package.__name__}.diagnostics.measured").measure(run, None, 400, 0)
    seen = {
        "ess_bulk of the summary": table["ess_bulk"],
        "mcse of the summary": (table["sd"] / table["mcse"]) ** 2,
        "ESS of the verdict": found.mixing.ess_bulk,
    }
    for what, ess in seen.items():
        off = np.exp(np.mean(np.log(ess / exact)))
        assert 0.62 < off < 1.6, f"{what} is off by {off:.2f}"


@pytest.mark.slow
def test_what_replicas_share_counts_once_in_a_run(run):
    check(hamcmc, run)


MIXING, ESS, SUMMARIES, MEASURED = (f"diagnostics/{f}.py" for f in ("mixing", "ess", "summaries", "measured"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (MIXING, "share = _share(scores, bulk, replicas) if replicas > 1 and coupled else 1.0", "share = 1.0"),
        (ESS, "return min(1.0, of_mean * x.var() / together.var() / of_all)", "return 1.0"),
        (SUMMARIES, "share = independent_share(x, replicas)", "share = 1.0"),
        (MEASURED, "mixing(quicker, kept, apart, coupled=coupled)", "mixing(quicker, 1, apart)"),
    ],
)
def test_an_ess_that_ignores_it_is_noticed(run, file, old, new):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match=r"is off by [23]\."):
        check(package, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("inference/job.py", '"coupled": sampler.coupled and replicas > 1', '"coupled": False'),
        ("samplers/base.py", "coupled: bool = True", "coupled: bool = False"),
    ],
)
def test_a_run_that_does_not_say_that_they_share_is_noticed(data, file, old, new):
    with mutant(file, old, new) as package, pytest.raises(AssertionError, match=r"is off by [23]\."):
        check(package, a_run(package, data))
