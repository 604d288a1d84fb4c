"""Any run as an ArviZ InferenceData, by one call."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc._types import Facts, PyTree, Record
from hamcmc.diagnostics.ess import arviz
from hamcmc.diagnostics.result import Result
from hamcmc.interop.numpyro import NumpyroPosterior
from hamcmc.store.draws import Array, open_store
from hamcmc.store.settings import read_settings
from hamcmc.target.posterior import Posterior, name_of

DIMENSIONS = {  # of the arrays of a factorization
    "W": ["user", "factor"],
    "H": ["item", "factor"],
    "row_bias": ["user"],
    "column_bias": ["item"],
    **{name: ["factor"] for name in ("W_mean", "W_precision", "H_mean", "H_precision")},
}


def to_arviz(run: Result | str | os.PathLike, posterior: Posterior | None = None, *, log_likelihood: bool = False):
    """The draws of a run as an ArviZ ``InferenceData``, with as many groups as the arguments allow.

    A run is what :func:`hamcmc.sample` returned, or a directory that :func:`hamcmc.sample`, ``hamcmc sample`` or a
    factorization wrote. The draws of a factorization have the ids of users and items. ``arviz.summary``,
    ``arviz.plot_trace`` and ArviZ's other functions take the result.

    Args:
        run: a result or the path of a run's directory, complete or not.
        posterior: the posterior of the run. Its data become ``constant_data``. For a NumPyro model
            (:func:`hamcmc.interop.from_numpyro`), observed sites become ``observed_data``, and deterministic sites
            join the draws.
        log_likelihood: add the log-likelihood of each datum at each draw, for ``arviz.loo``. It takes memory for
            draws × data numbers.
    """
    if not isinstance(run, Result):
        path, settings = Path(run), read_settings(Path(run))
        if settings.get("kind") == "factorization":
            return _factorization(path)
        run = Result.open(path)
    data = run.to_arviz()
    if posterior is None:
        if log_likelihood:
            raise ValueError("log_likelihood needs the posterior of the run")
        return data
    groups = {}
    draws = {str(n): jnp.asarray(x.values) for n, x in data["posterior"].items()}
    if isinstance(posterior, NumpyroPosterior):
        more = arviz().from_dict(posterior=_host(posterior.deterministic(draws)) or draws)
        data["posterior"].update(more["posterior"])
        groups["observed_data"] = _host(posterior.observations())
    elif posterior.data is not None:
        groups["constant_data"] = _named(posterior.data)
    if log_likelihood:
        groups["log_likelihood"] = {"log_likelihood": np.asarray(_log_likelihood(posterior, draws))}
    data.extend(arviz().from_dict(**groups))
    return data


def _factorization(path: Path):
    from hamcmc.factorization.predict import load

    model = load(path)
    arrays = [Array(**a) for a in model.settings["arrays"] if a["group"] == "posterior"]
    root = open_store(path / "draws.zarr", arrays, model.draws, "r")
    draws = {a.name: np.asarray(root[f"posterior/{a.name}"][:, : model.draws]) for a in arrays}
    ids = {"user": np.asarray(model.ratings.users), "item": np.asarray(model.ratings.items)}
    dims = {n: d for n, d in DIMENSIONS.items() if n in draws}
    return arviz().from_dict(posterior=draws, coords=ids, dims=dims, attrs={"inference_library": "hamcmc"})


def _host(arrays: Facts) -> dict[str, np.ndarray]:
    return {n: np.asarray(x) for n, x in arrays.items()}


def _named(tree: PyTree) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path) if path else "data": np.asarray(x) for path, x in leaves}


def _log_likelihood(posterior: Posterior, draws: Record) -> Any:
    """(chain, draw, datum)."""
    if posterior.log_likelihood is None:
        raise ValueError("log_likelihood: this posterior has no data")
    data = jax.tree.map(jnp.asarray, posterior.data)
    each = posterior.log_likelihoods
    return jax.jit(jax.vmap(jax.vmap(lambda theta: each(theta, data))))(_parameters(draws))


def _parameters(draws: Record) -> PyTree:
    """Draws in the form of the parameters: dicts, nested where names have dots, or the bare array called theta."""
    if set(draws) == {"theta"}:
        return draws["theta"]
    nested: Record = {}
    for name, x in draws.items():
        *folders, last = name.split(".")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = x
    return nested
