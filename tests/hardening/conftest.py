"""Runs to be damaged."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.factorization import predict
from hamcmc.factorization import ratings as files
from tests.factorization.runs import make_draws, make_ratings, make_run


class ARun(NamedTuple):
    """A copy of a small run."""

    path: Path
    whole: Path

    def look(self) -> dict[str, Any]:
        """All that can be read of it."""
        result = hamcmc.Result.open(self.path)
        found = {"posterior": result.posterior, "sample_stats": result.sample_stats, "weights": result.weights}
        return found | {"mean": result.mean, "meta": result.meta, "settings": result.settings}

    def mend(self) -> None:
        """Make it whole again."""
        shutil.rmtree(self.path)
        shutil.copytree(self.whole, self.path)


class AFactorization(ARun):
    """A copy of a small factorization."""

    def look(self) -> dict[str, Any]:
        model = predict.load(self.path)
        found = model.predict(["u0", "u1", "nobody"], ["i1", "i2", "i3"])
        return {"found": found._asdict(), "rmse": model.rmse(), "best": model.recommend("u3", 3)[0]}


def standard_normal() -> hamcmc.Posterior:
    """Of two parameters."""
    return hamcmc.Posterior(lambda t: -0.5 * (jnp.sum(t["a"] ** 2) + t["b"] ** 2))


START = {"a": np.zeros(2, np.float32), "b": np.float32(0)}


def sample_standard_normal(out: Path | None = None, **changes: Any) -> hamcmc.Result:
    """A few draws."""
    settings = {"step_size": 0.1, "num_samples": 6, "chains": 2, "progress": False}
    return hamcmc.sample(standard_normal(), "sgld", START, out=out, **(settings | changes))


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    sample_standard_normal(path)
    return path


@pytest.fixture(scope="session")
def whole_factorization(tmp_path_factory):
    rng = np.random.default_rng(0)
    ratings = make_ratings(rng, 12, 9)
    meta = {"status": "complete", "draws": 3, "iteration": 3, "seconds": 0.1, "gradients": 9}
    draws, checksum = make_draws(rng, 12, 9, draws=3), files.checksum(ratings)
    return make_run(tmp_path_factory.mktemp("whole"), ratings, draws, meta=meta, data_checksum=checksum)


@pytest.fixture
def a_run(whole_run, tmp_path):
    shutil.copytree(whole_run, tmp_path / "run")
    return ARun(tmp_path / "run", whole_run)


@pytest.fixture
def a_factorization(whole_factorization, tmp_path):
    shutil.copytree(whole_factorization, tmp_path / "run")
    return AFactorization(tmp_path / "run", whole_factorization)
