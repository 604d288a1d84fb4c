"""Any run as an ArviZ InferenceData, by one call."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hamcmc._types import Facts, PyTree, Record
from hamcmc.diagnostics.ess import arviz
from hamcmc.diagnostics.gradients import plain, structure
from hamcmc.diagnostics.result import Result
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

MOST = 2**32  # bytes that log-likelihoods or predictions of all rows at all draws may take
TOGETHER = 8  # draws that are evaluated side by side


def to_arviz(
    run: Result | str | os.PathLike,
    posterior: Posterior | None = None,
    *,
    log_likelihood: bool = False,
    predictive: Predictive | bool | None = None,
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
        posterior: the posterior of the run. Its data become ``constant_data``. For a model of NumPyro or PyMC
            (:func:`hamcmc.interop.from_numpyro`, :func:`hamcmc.interop.from_pymc`), observations become
            ``observed_data``, deterministic quantities join the draws, and dimensions have the model's names.
        log_likelihood: add the log-likelihood of each datum at each draw, for ``arviz.loo``. It takes memory for
            draws × data numbers; :func:`hamcmc.diagnostics.loo` does without.
        predictive: ``(key, parameters, data) -> array``, or a dict of arrays, draws data from the model; True for the
            observed sites of a NumPyro model. What it returns becomes ``posterior_predictive``, for
            ``arviz.plot_ppc``. Data with the same names become ``observed_data``.
        coords: names along dimensions, as in ArviZ.
        dims: the dimensions of parameters and predictions, as in ArviZ.
        seed: of the key that `predictive` gets.
    """
    if not isinstance(run, Result):
        path, settings = Path(run), read_settings(Path(run))
        if settings.get("kind") == "factorization":
            return _factorization(path)
        run = Result.open(path)
    data = run.to_arviz(posterior)
    known = None if posterior is None else plain(posterior)
    named: Record = {
        "coords": dict(getattr(known, "coords", {})) | dict(coords or {}),
        "dims": {n: list(d) for n, d in [*getattr(known, "dims", {}).items(), *(dims or {}).items()]},
    }
    if coords or dims:
        data = _with_names(data, named)
    if known is None:
        for name, asked in (("log_likelihood", log_likelihood), ("predictive", bool(predictive))):
            if asked:
                raise ValueError(f"{name} needs the posterior of the run")
        return data
    if log_likelihood or predictive:
        run.require_whole("log_likelihood" if log_likelihood else "predictive")
    groups: dict[str, dict[str, np.ndarray]] = {}
    draws = {str(n): jnp.asarray(x.values) for n, x in data["posterior"].items() if str(n) in run.shapes}
    observed = getattr(known, "observations", None)
    if observed is not None:
        groups["observed_data"] = _host(observed())
    elif known.data is not None:
        groups["constant_data"] = _named(known.data)
    if log_likelihood:
        groups["log_likelihood"] = _log_likelihood(known, draws)
    if predictive:
        made = _predicted(known, draws, predictive, seed)
        groups["posterior_predictive"] = made
        seen = {n: x for n, x in groups.get("constant_data", {}).items() if n in made}
        if seen:
            groups["observed_data"] = seen
            groups["constant_data"] = {n: x for n, x in groups["constant_data"].items() if n not in seen}
    names = {n for group in groups.values() for n in group}
    named["dims"] = {n: d for n, d in named["dims"].items() if n in names}
    data.extend(arviz().from_dict(**{k: v for k, v in groups.items() if v}, **_used(named)))
    return data


def _used(named: Record) -> Record:
    """Dimensions, and the names along those of them that are used."""
    used = {c for d in named["dims"].values() for c in d}
    return named | {"coords": {c: v for c, v in named["coords"].items() if c in used}}


def _with_names(data: Any, named: Record) -> Any:
    """The same draws with named dimensions."""
    groups = {g: {str(n): x.values for n, x in data[g].items()} for g in ("posterior", "sample_stats")}
    own = {n: d for n, d in named["dims"].items() if n in groups["posterior"]}
    return arviz().from_dict(**groups, **_used(named | {"dims": own}), attrs=dict(data["posterior"].attrs))


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


def _log_likelihood(posterior: Posterior, draws: Record) -> dict[str, np.ndarray]:
    """(chain, draw, datum), by the names of observed sites if the model has them."""
    pointwise = getattr(posterior, "pointwise", None)
    count = int(np.prod(next(iter(draws.values())).shape[:2]))
    if posterior.size * count * 4 > MOST:
        raise ValueError(
            f"log_likelihood: {posterior.size:,} rows at {count:,} draws would take "
            f"{posterior.size * count * 4 / 2**30:.0f} GiB; hamcmc.diagnostics.loo takes some of the rows"
        )
    if pointwise is not None:
        return _host(pointwise(draws))
    if posterior.log_likelihood is None:
        raise ValueError("log_likelihood: this posterior has no data")
    data = jax.tree.map(jnp.asarray, posterior.data)

    def each(theta: PyTree) -> jax.Array:
        """Of all data at one draw."""
        return posterior.log_predictive(theta, data)

    return {"log_likelihood": np.asarray(_mapped(each, _parameters(posterior, draws)))}


def _predicted(posterior: Posterior, draws: Record, predictive: Predictive | bool, seed: int) -> dict[str, np.ndarray]:
    """Data drawn from the model at each draw, (chain, draw, …), by name."""
    draw = getattr(posterior, "predictive", None) if predictive is True else predictive
    if not callable(draw):
        raise ValueError("predictive=True is for NumPyro models; give a function (key, parameters, data) -> array")
    parameters = _parameters(posterior, draws)
    leading = jax.tree.leaves(parameters)[0].shape[:2]
    keys = jax.random.split(jax.random.key(seed), leading)
    data = None if posterior.data is None else jax.tree.map(jnp.asarray, posterior.data)

    def one(both: tuple[jax.Array, PyTree]) -> Any:
        """At one draw."""
        key, theta = both
        return draw(key, posterior.whole(theta), data)

    shapes = jax.eval_shape(one, jax.tree.map(lambda x: x[0, 0], (keys, parameters)))
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes)) * int(np.prod(leading))
    if size > MOST:
        raise ValueError(f"predictive: predictions at all draws would take {size / 2**30:.0f} GiB; use result.predict")
    found = _mapped(one, (keys, parameters))
    return _host(found) if isinstance(found, Mapping) else {"prediction": np.asarray(found)}


def _mapped(function: Callable[[Any], Any], arguments: Any) -> Any:
    """A function at each (chain, draw), a few at a time, so that memory holds the values and little more."""

    def of_all(arguments: Any) -> Any:
        """At all chains and draws."""
        return lax.map(lambda chain: lax.map(function, chain, batch_size=TOGETHER), arguments)

    return jax.jit(of_all)(arguments)


def _parameters(posterior: Posterior, draws: Record) -> PyTree:
    """Draws in the form of the parameters."""
    tree = structure(posterior, {n: np.empty(x.shape[2:], x.dtype) for n, x in draws.items()})
    return tree.unflatten(list(draws.values()))
