"""Any run as an ArviZ InferenceData, by one call."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc._types import Facts, PyTree, Record
from hamcmc.diagnostics.ess import arviz
from hamcmc.diagnostics.gradients import plain, structure
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


Predictive = Callable[[jax.Array, PyTree, PyTree], Any]


def to_arviz(
    run: Result | str | os.PathLike,
    posterior: Posterior | None = None,
    *,
    log_likelihood: bool = False,
    predictive: Predictive | None = None,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    seed: int = 0,
):
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
        predictive: ``(key, parameters, data) -> array``, or a dict of arrays, draws data from the model. What it
            returns becomes ``posterior_predictive``, for ``arviz.plot_ppc``. Data with the same names become
            ``observed_data``.
        coords: names along dimensions, as in ArviZ.
        dims: the dimensions of parameters and predictions, as in ArviZ.
        seed: of the key that `predictive` gets.
    """
    if not isinstance(run, Result):
        path, settings = Path(run), read_settings(Path(run))
        if settings.get("kind") == "factorization":
            return _factorization(path)
        run = Result.open(path)
    named = {"coords": dict(coords or {}), "dims": {k: list(v) for k, v in (dims or {}).items()}}
    data = _with_names(run.to_arviz(), named) if coords or dims else run.to_arviz()
    if posterior is None:
        for name, asked in (("log_likelihood", log_likelihood), ("predictive", predictive is not None)):
            if asked:
                raise ValueError(f"{name} needs the posterior of the run")
        return data
    posterior = plain(posterior)
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
    if predictive is not None:
        made = _predicted(posterior, draws, predictive, seed)
        groups["posterior_predictive"] = made
        seen = {n: x for n, x in groups.get("constant_data", {}).items() if n in made}
        if seen:
            groups["observed_data"] = seen
            groups["constant_data"] = {n: x for n, x in groups["constant_data"].items() if n not in seen}
    data.extend(arviz().from_dict(**{k: v for k, v in groups.items() if v}, **named))
    return data


def _with_names(data: Any, named: Record) -> Any:
    """The same draws with named dimensions."""
    groups = {g: {str(n): x.values for n, x in data[g].items()} for g in ("posterior", "sample_stats")}
    own = {n: d for n, d in named["dims"].items() if n in groups["posterior"]}
    used = {c for d in own.values() for c in d}
    coords = {c: v for c, v in named["coords"].items() if c in used}
    return arviz().from_dict(**groups, coords=coords, dims=own, attrs=dict(data["posterior"].attrs))


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
    each = posterior.log_predictive
    return jax.jit(jax.vmap(jax.vmap(lambda theta: each(theta, data))))(_parameters(posterior, draws))


def _predicted(posterior: Posterior, draws: Record, predictive: Predictive, seed: int) -> dict[str, np.ndarray]:
    """Data drawn from the model at each draw, (chain, draw, …), by name."""
    parameters = _parameters(posterior, draws)
    leading = jax.tree.leaves(parameters)[0].shape[:2]
    keys = jax.random.split(jax.random.key(seed), leading)
    data = None if posterior.data is None else jax.tree.map(jnp.asarray, posterior.data)
    made = jax.jit(jax.vmap(jax.vmap(lambda key, theta: predictive(key, posterior.whole(theta), data))))
    found = made(keys, parameters)
    return _host(found) if isinstance(found, Mapping) else {"prediction": np.asarray(found)}


def _parameters(posterior: Posterior, draws: Record) -> PyTree:
    """Draws in the form of the parameters."""
    tree = structure(posterior, {n: np.empty(x.shape[2:], x.dtype) for n, x in draws.items()})
    return tree.unflatten(list(draws.values()))
