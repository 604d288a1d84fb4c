"""The sites of a NumPyro model on some rows of its data: shapes, plates, supports and starts."""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path

from hamcmc._require import needs
from hamcmc._types import Facts, Record

with needs("NumPyro", "numpyro"):
    from numpyro.handlers import seed, substitute, trace
    from numpyro.primitives import Messenger

Trace = dict[str, Record]


class NotByRows(ValueError):
    """A model whose likelihood cannot be had row by row. The message says why."""


class Plates(Messenger):
    """Give plates another number of rows, and leave out the scale that NumPyro gives to subsamples.

    The arguments of the model have these rows only, so that a plate's indices count from 0.
    """

    def __init__(self, fn: Callable, rows: Mapping[str, int]):
        super().__init__(fn)
        self._rows, self._sizes = rows, {}

    def process_message(self, msg: Any) -> None:
        """Change plates, and what they did to a site."""
        if msg["type"] == "plate" and msg["name"] in self._rows:
            self._sizes[msg["name"]] = size = msg["args"][0]
            msg["args"], msg["value"] = (size, None), jnp.arange(self._rows[msg["name"]])
        elif msg["type"] == "sample":
            for name in (frame.name for frame in msg["cond_indep_stack"]):
                if name in self._rows and self._rows[name] != self._sizes[name]:
                    scale = msg["scale"] * self._rows[name] / self._sizes[name]
                    msg["scale"] = 1.0 if isinstance(scale, float) and abs(scale - 1) < 1e-12 else scale
        elif msg["type"] == "subsample" and self._rows:
            msg["kwargs"] = {"event_dim": None}  # the rows have been chosen


class Arguments:
    """A model with its arguments, in which the rows of the data can be replaced.

    Attributes:
        size: N, the rows of the data; 0 until they are known.
        data: the arrays with one row per datum, by name.
        subsampled: plate → size, of the plates that draw a subsample.
    """

    def __init__(self, model: Callable, args: tuple, kwargs: Facts, fixed: tuple[str, ...], strategy: Callable):
        self.model, self._strategy = model, strategy
        leaves, self._structure = tree_flatten_with_path((args, dict(kwargs)))
        names = _positional(model)
        self._leaves = {_name(path, names): leaf for path, leaf in leaves}
        unknown = set(fixed) - {_argument(n) for n in self._leaves}
        if unknown:
            raise ValueError(f"fixed: the model is given no argument {', '.join(sorted(unknown))}")
        self.missing = _missing(model, args, kwargs)
        self.data: Record = {n: x for n, x in self._leaves.items() if _is_array(x) and _argument(n) not in fixed}
        self.size = 0
        self._plates: dict[str, int] = {}
        self.subsampled: dict[str, int] = {}
        self.subsampled = {
            name: site["args"][0]
            for name, site in self.shapes().items()
            if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])
        }

    def choose_data(self, full: Trace) -> None:
        """Find the arrays with one row per datum, and the plates that have as many rows.

        Raises:
            NotByRows: no arrays have a length that the observed sites have, or several do.
        """
        sizes = set(self.subsampled.values()) or {x.shape[0] for x in self.data.values()}
        observed = [site for site in full.values() if is_term(site)]
        if len(sizes) > 1:
            sizes &= {n for site in observed for n in shape_of(site)}
        own = {n: x for n, x in self.data.items() if {x.shape[0]} == sizes}
        if len(sizes) != 1 or not own:
            found = ", ".join(f"{n}: {x.shape[0]}" for n, x in self.data.items()) or "no arrays at all"
            raise NotByRows(f"which arguments have one row per datum? Lengths are {found}; name the others as fixed=")
        self.data, self.size = own, sizes.pop()
        frames = {f.name: f.size for site in observed for f in site["cond_indep_stack"]}
        if other := [n for n, size in self.subsampled.items() if frames.get(n) != self.size]:
            raise NotByRows(f"plate {other[0]} draws a subsample of something else than the rows of observed data")
        self._plates = {n: size for n, size in frames.items() if size == self.size}

    def with_data(self, data: Facts) -> tuple[tuple, Record]:
        """Arguments with these rows, or with all of them."""
        rows = data or self._on_device
        return jax.tree.unflatten(self._structure, list((self._leaves | dict(rows)).values()))

    @cached_property
    def _on_device(self) -> Record:
        """All arrays, for models that are not evaluated row by row."""
        with jax.ensure_compile_time_eval():  # a value that is kept must not belong to whatever is being traced
            return {n: jnp.asarray(x) for n, x in self._leaves.items() if _is_array(x)}

    def seeded(self, key: Array, data: Facts) -> Callable:
        """The model with a random key for its sites, and as many rows in its plates as there are in the data."""
        rows = self.subsampled if not self.size else dict.fromkeys(self._plates, len(next(iter(data.values()))))
        return Plates(seed(self.model, key), rows)

    def trace(self, data: Facts, key: Array) -> Trace:
        """All sites, the latent ones at a start by NumPyro's strategy."""
        args, kwargs = self.with_data(data)
        started = substitute(self.seeded(key, data), substitute_fn=self._strategy)
        return trace(started).get_trace(*args, **kwargs)  # type: ignore[return-value]

    def constants(self) -> Record:
        """All arrays among the arguments."""
        return {n: np.asarray(x) for n, x in self._leaves.items() if _is_array(x)}

    def supports(self, names: tuple[str, ...]) -> Callable[[Array, Record], Record]:
        """``(key, rows of data) -> constraints``, compiled, so that nothing else is computed."""
        form: list[Any] = []

        def leaves(key: Array, data: Record) -> list[Array]:
            sites = self.trace(data, key)
            found, structure = jax.tree.flatten({n: sites[n]["fn"].support for n in names})
            form[:] = [structure]
            return found

        compiled = jax.jit(leaves)

        def constraints(key: Array, data: Record) -> Record:
            """The constraint of each site."""
            found = compiled(key, data)
            return jax.tree.unflatten(form[0], found)

        return constraints

    def shapes(self, rows: int | None = None) -> Trace:
        """The shapes of all sites on so many rows, or on all of them. The values are abstract."""

        def shape(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows or x.shape[0], *x.shape[1:]), jnp.asarray(x[:1]).dtype)

        found: Trace = {}

        def run(data: Facts) -> None:
            """Note all sites."""
            found.update(self.trace(data, jax.random.key(0)))

        if rows is None and not any(isinstance(x, np.memmap) for x in self.data.values()):
            jax.eval_shape(lambda: run({}))  # with the data at hand, which a model may look at
        else:
            jax.eval_shape(run, jax.tree.map(shape, self.data))
        return found


def on_rows(arguments: Arguments, rows: int) -> Trace:
    """The shapes of all sites on a few rows."""
    try:
        return arguments.shapes(rows)
    except Exception as error:  # whatever the model says to fewer rows
        said = str(error).partition("\n")[0]
        raise NotByRows(
            f"the model cannot be run on {rows} of its {arguments.size} rows of data; it must take all sizes from "
            f"them, as in numpyro.plate('data', x.shape[0]). Its error: {said}"
        ) from error


def check_sites(sites: Trace, missing: list[str]) -> None:
    """Raise for sites that a posterior of continuous parameters cannot have."""
    for name, site in sites.items():
        if site["type"] in ("param", "mutable"):
            raise ValueError(f"site {name} is a numpyro.{site['type']}; give it a prior, or fix its value")
        of = name.removesuffix("_unobserved")
        if of != name and is_latent(site) and f"{of}_observed" in sites:
            raise ValueError(
                f"site {of} has an obs_mask, for which NumPyro samples all of its entries, the observed ones from a "
                "flat density: give the model the observed rows only, or use numpyro.handlers.mask instead"
            )
        if is_latent(site) and site["fn"].support.is_discrete:
            raise ValueError(
                f"site {name} is discrete, and has no gradient: sum it out of the model (as "
                "numpyro.distributions.MixtureSameFamily does), or sample it by other means"
            )
    if not any(is_latent(site) for site in sites.values()):
        raise ValueError("the model has no latent sites to sample")
    if missing and not any(is_observed(site) for site in sites.values()):
        raise ValueError(f"the model observes nothing: give it its observations ({', '.join(missing)} is None)")


def dims_of(sites: Trace) -> dict[str, list[str | None]]:
    """The plates along the axes of each site's value; None for an axis that belongs to no plate."""
    found: dict[str, list[str | None]] = {}
    for name, site in sites.items():
        if site["type"] not in ("sample", "deterministic"):
            continue
        shape = np.shape(site["value"])
        batch = len(shape) - (site["fn"].event_dim if site["type"] == "sample" else 0)
        dims: list[str | None] = [None] * len(shape)
        for frame in site.get("cond_indep_stack", ()):
            place = batch + frame.dim
            if 0 <= place < batch and shape[place] == frame.size:
                dims[place] = frame.name
        if any(dims):
            found[name] = dims
    return found


def is_latent(site: Record) -> bool:
    """Whether a site is to be sampled."""
    return site["type"] == "sample" and not site["is_observed"]


def is_term(site: Record) -> bool:
    """Whether a site is a term of the density that is not sampled: observations, or a ``numpyro.factor``."""
    return site["type"] == "sample" and site["is_observed"]


def is_observed(site: Record) -> bool:
    """Whether a site has observations, and is no ``numpyro.factor``."""
    return is_term(site) and type(site["fn"]).__name__ != "Unit"


def shape_of(site: Record) -> tuple[int, ...]:
    """The lengths of a site's distribution, if any, and of its value: some grow if it has one entry per datum."""
    return (*(site["fn"].batch_shape if site["type"] == "sample" else ()), *jnp.shape(site["value"]))


def same(a: Any, b: Any) -> bool:
    """Whether two constraints are equal."""
    x, y = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(x) == len(y) and all(np.array_equal(i, j) for i, j in zip(x, y))


def _is_array(x: Any) -> bool:
    return bool(getattr(x, "ndim", 0))


def _missing(model: Callable, args: tuple, kwargs: Facts) -> list[str]:
    """Names of arguments that are None, given or by default."""
    try:
        bound = inspect.signature(_inner(model)).bind(*args, **kwargs)
    except TypeError:
        return []
    bound.apply_defaults()
    return [n for n, value in bound.arguments.items() if value is None]


def _inner(model: Callable) -> Callable:
    """The function inside handlers."""
    while not inspect.isfunction(model) and callable(getattr(model, "fn", None)):
        model = model.fn  # type: ignore[attr-defined]
    return model


def _positional(model: Callable) -> list[str]:
    """The names of the positional arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(_inner(model)).parameters.values() if p.kind in kinds]


def _name(path: tuple, names: list[str]) -> str:
    """The name of a leaf of (args, kwargs)."""
    place = path[1].key if path[0].idx else path[1].idx
    first = place if path[0].idx else names[place] if place < len(names) else f"args{place}"
    return f"{first}{keystr(path[2:])}"


def _argument(name: str) -> str:
    return name.partition("[")[0]
