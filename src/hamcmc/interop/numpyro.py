"""A NumPyro model as a posterior: its latent sites are the parameters, with their names and supports."""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path

from hamcmc._require import needs
from hamcmc._types import Facts, PyTree, Record
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support

Trace = dict[str, Record]
CHECKED_ROWS = 16  # rows on which the model is compared with the posterior that was made of it


def from_numpyro(model: Callable, *args: Any, fixed: tuple[str, ...] = (), **kwargs: Any) -> "NumpyroPosterior":
    """A NumPyro model with its data as a :class:`hamcmc.Posterior`, for minibatches of any size.

    Give the arguments as to ``MCMC.run``, without the key. The arrays among them that have one row per datum are the
    data. The model is called with some of their rows, so it must take sizes from them, as in ``plate("data",
    x.shape[0])``. Observed sites that grow with the rows are the likelihood, with or without a plate, and minibatches
    scale it by N/n. All other sites, including ``numpyro.factor``, are the prior. Jacobians of NumPyro's bijections are
    added. Draws have the names of the sites, and are in their supports.

    Args:
        model: a function with NumPyro's primitives, or such a function in NumPyro's handlers.
        *args: arguments of the model.
        fixed: names of arguments that are not data, though they are arrays of the same length.
        **kwargs: arguments of the model.

    Returns:
        A posterior with a method `init` that draws a start. The mode is a better start, and large steps need it:
        ``hamcmc.find_mode(posterior, posterior.init(jax.random.key(0)))``.

    Raises:
        ValueError: the model is not of this form. The message names the site at fault: discrete or local latent
            variables (one per datum), supports that depend on other sites, ``numpyro.param``, plates with a subsample
            of their own, and likelihoods that are not a sum over data.
    """
    with needs("NumPyro", "numpyro"):
        import numpyro  # noqa: F401
    return NumpyroPosterior(model, args, kwargs, fixed)


class NumpyroPosterior(Posterior):
    """The posterior that :func:`hamcmc.interop.from_numpyro` returns, which knows its sites.

    Attributes:
        latent: names of the parameters.
        observed: names of the sites that make the likelihood.
    """

    def __init__(self, model: Callable, args: tuple, kwargs: Facts, fixed: tuple[str, ...] = ()):
        from numpyro.distributions import biject_to

        self._arguments = _Arguments(model, args, kwargs, fixed)
        full = self._arguments.shapes()
        _check_sites(full)
        data = self._arguments.choose_data(full)
        one, two = (_sizes_from_data(self._arguments.shapes, rows, self._arguments.size) for rows in (1, 2))
        grows = {name for name in full if _shape(one[name]) != _shape(two[name])}
        self.latent = tuple(name for name in full if _is_latent(full[name]))
        self.observed = tuple(n for n in full if full[n]["type"] == "sample" and n in grows and n not in self.latent)
        local = grows.intersection(self.latent)
        if local:
            raise ValueError(
                f"site {min(local)} is local, with one value per datum, and only global sites can be sampled; "
                "if it should be observed, give the model its observations"
            )
        if not self.observed:
            raise ValueError("no observed site has one entry per datum")
        _check_plates([one[n] for n in self.observed], self._arguments.size)
        self._deterministic = [n for n in full if full[n]["type"] == "deterministic" and n not in grows]

        def row(i: int) -> PyTree:
            return jax.tree.map(lambda x: jnp.asarray(x[i : i + 1]), data)

        supports = self._arguments.supports(self.latent)
        first, last = (supports(jax.random.key(k), row(i)) for k, i in enumerate((0, self._arguments.size - 1)))
        for name in self.latent:
            if not _same(first[name], last[name]):
                raise ValueError(f"site {name}: its support depends on other sites or data; scale a fixed one instead")
        self._template = row(0)
        support = {n: _support(constraint, biject_to(constraint)) for n, constraint in first.items()}
        super().__init__(self._prior_of_sites, self._likelihood_of_sites, data, support=support)
        self._check_sum()

    def init(self, key: Array) -> dict[str, Array]:
        """A start by NumPyro's ``init_to_uniform``: within 2 of 0 in the unconstrained space."""
        return self._start(key, self._template)

    def deterministic(self, draws: Facts) -> dict[str, Array]:
        """The deterministic sites at draws (…, shape of the site), without those that have one entry per datum."""
        if not self._deterministic:
            return {}
        wanted = {n: jnp.asarray(draws[n]) for n in self.latent}
        template = jax.eval_shape(self.init, jax.random.key(0))
        leading = wanted[self.latent[0]].shape[: wanted[self.latent[0]].ndim - template[self.latent[0]].ndim]
        flat = {n: x.reshape(-1, *template[n].shape) for n, x in wanted.items()}

        def one(theta, data):
            _, sites = self._log_probs(theta, data)
            return {n: sites[n]["value"] for n in self._deterministic}

        found = jax.jit(jax.vmap(one, (0, None)))(flat, self.data)
        return {n: x.reshape(*leading, *x.shape[1:]) for n, x in found.items()}

    def observations(self) -> dict[str, Array]:
        """The values at the observed sites."""

        def sites(key, data):
            found = self._arguments.trace(data, key)
            return {n: found[n]["value"] for n in self.observed}

        return jax.jit(sites)(jax.random.key(0), self.data)

    @cached_property
    def _start(self) -> Callable:
        return jax.jit(lambda key, row: {n: self._arguments.trace(row, key)[n]["value"] for n in self.latent})

    def _log_probs(self, theta: dict[str, Array], data: dict[str, Array]) -> tuple[dict[str, Array], Trace]:
        from numpyro.infer.util import compute_log_probs

        args, kwargs = self._arguments.with_data(data)
        return compute_log_probs(self._arguments.seeded(jax.random.key(0)), args, kwargs, theta)

    def _prior_of_sites(self, theta: dict[str, Array]) -> Array:
        sites, _ = self._log_probs(theta, self._template)
        return sum((x for n, x in sites.items() if n not in self.observed), jnp.zeros(()))

    def _likelihood_of_sites(self, theta: dict[str, Array], datum: dict[str, Array]) -> Array:
        sites, _ = self._log_probs(theta, {n: x[None] for n, x in datum.items()})
        return sum((sites[n] for n in self.observed), jnp.zeros(()))

    def _check_sum(self) -> None:
        """Raise unless the model on some rows is the prior plus the sum of the likelihood over these rows."""
        rows = jax.tree.map(lambda x: jnp.asarray(x[:CHECKED_ROWS]), self.data)

        def both(theta, rows):
            sites, _ = self._log_probs(theta, rows)
            apart = jax.vmap(self._likelihood_of_sites, (None, 0))(theta, rows)
            likelihood = sum(sites.pop(n) for n in self.observed)
            return (sum(sites.values()), likelihood), (self._prior_of_sites(theta), apart.sum()), jnp.abs(apart).sum()

        together, apart, size = jax.jit(both)(self.init(jax.random.key(1)), rows)
        for what, a, b in zip(("prior", "likelihood"), together, apart):
            if not np.allclose(a, b, rtol=1e-4, atol=1e-5 * float(size)):
                raise ValueError(
                    f"the {what} is not that of a model with one term per datum: on the first rows together it is "
                    f"{float(a):.6g}, and row by row {float(b):.6g}. Transform the data before the model, not in it"
                )


class _Arguments:
    """The arguments of a model, in which the rows of data can be replaced."""

    def __init__(self, model: Callable, args: tuple, kwargs: Facts, fixed: tuple[str, ...]):
        self.model = model
        leaves, self._structure = tree_flatten_with_path((args, dict(kwargs)))
        names = _positional(model)
        self._leaves = {_name(path, names): leaf for path, leaf in leaves}
        unknown = set(fixed) - {_argument(n) for n in self._leaves}
        if unknown:
            raise ValueError(f"fixed: the model is given no argument {', '.join(sorted(unknown))}")
        arrays = {n: x for n, x in self._leaves.items() if getattr(x, "ndim", 0) and _argument(n) not in fixed}
        self._data: Record = arrays  # until `choose_data`
        self.size = 0

    def choose_data(self, full: Trace) -> Record:
        """The arrays with one row per datum."""
        lengths = {x.shape[0] for x in self._data.values()}
        if len(lengths) > 1:
            sites = [site for site in full.values() if site["type"] == "sample" and site["is_observed"]]
            lengths &= {n for site in sites for n in _shape(site)}
        if len(lengths) != 1:
            found = ", ".join(f"{n}: {x.shape[0]}" for n, x in self._data.items()) or "no arrays at all"
            raise ValueError(f"which arguments have one row per datum? Lengths are {found}; name the others as fixed=")
        self.size = lengths.pop()
        self._data = {n: x for n, x in self._data.items() if x.shape[0] == self.size}
        return self._data

    def with_data(self, data: Facts) -> tuple[tuple, Record]:
        """Arguments with these rows."""
        return jax.tree.unflatten(self._structure, list((self._leaves | dict(data)).values()))

    def seeded(self, key: Array) -> Callable:
        """The model with a random key for its sites."""
        from numpyro.handlers import seed

        return seed(self.model, key)

    def trace(self, data: Facts, key: Array) -> Trace:
        """All sites, the latent ones at a random start."""
        from numpyro.handlers import substitute, trace
        from numpyro.infer import init_to_uniform

        args, kwargs = self.with_data(data)
        started = substitute(self.seeded(key), substitute_fn=init_to_uniform)
        return trace(started).get_trace(*args, **kwargs)  # type: ignore[return-value]

    def supports(self, names: tuple[str, ...]) -> Callable[[Array, Record], Record]:
        """``(key, rows of data) -> constraints``, compiled, so that nothing else is computed."""
        form: list[Any] = []

        def leaves(key, data):
            sites = self.trace(data, key)
            found, structure = jax.tree.flatten({n: sites[n]["fn"].support for n in names})
            form[:] = [structure]
            return found

        compiled = jax.jit(leaves)
        return lambda key, data: (lambda found: jax.tree.unflatten(form[0], found))(compiled(key, data))

    def shapes(self, rows: int | None = None) -> Trace:
        """The shapes of all sites on so many rows. The values are abstract."""

        def shape(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows or x.shape[0], *x.shape[1:]), jnp.asarray(x[:1]).dtype)

        found: Trace = {}
        jax.eval_shape(lambda data: found.update(self.trace(data, jax.random.key(0))), jax.tree.map(shape, self._data))
        return found


def _sizes_from_data(shapes: Callable[[int], Trace], rows: int, size: int) -> Trace:
    try:
        return shapes(rows)
    except Exception as error:
        raise ValueError(
            f"the model cannot be run on {rows} of its {size} rows of data; it must take all sizes from them, as in "
            f"numpyro.plate('data', x.shape[0]). Its error: {error}"
        ) from error


def _check_sites(trace: Trace) -> None:
    """Raise for sites that a posterior of continuous, global parameters cannot have."""
    for name, site in trace.items():
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise ValueError(f"plate {name} draws a subsample; omit subsample_size: hamcmc draws the minibatches")
        if site["type"] in ("param", "mutable"):
            raise ValueError(f"site {name} is a numpyro.{site['type']}; give it a prior, or fix its value")
        if _is_latent(site) and site["fn"].support.is_discrete:
            raise ValueError(f"site {name} is discrete; sum it out of the model, or sample it by other means")
    if not any(_is_latent(site) for site in trace.values()):
        raise ValueError("the model has no latent sites to sample")


def _check_plates(observed: list[Record], size: int) -> None:
    """Raise if a plate on one row still has the size of all data."""
    for site in observed:
        sizes = {plate.name: plate.size for plate in site["cond_indep_stack"]}
        if sizes and 1 not in sizes.values() and size in sizes.values():
            name = next(n for n in sizes if sizes[n] == size)
            raise ValueError(f"plate {name} has a size of its own; take it from the data, as in x.shape[0]")


def _is_latent(site: Record) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _shape(site: Record) -> tuple[int, ...]:
    """The lengths of a site's distribution, if any, and of its value: some grow if it has one entry per datum."""
    return (*(site["fn"].batch_shape if site["type"] == "sample" else ()), *jnp.shape(site["value"]))


def _same(a: Any, b: Any) -> bool:
    """Whether two constraints are equal."""
    x, y = jax.tree.leaves(a), jax.tree.leaves(b)
    return len(x) == len(y) and all(np.array_equal(i, j) for i, j in zip(x, y))


def _support(constraint: Any, bijection: Any) -> Support:
    return Support(
        bijection,
        bijection.inv,
        lambda u: bijection.log_abs_det_jacobian(u, bijection(u)),
        None,
        constraint,
        str(constraint),
    )


def _positional(model: Callable) -> list[str]:
    """The names of the positional arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    while not inspect.isfunction(model) and callable(getattr(model, "fn", None)):
        model = model.fn  # type: ignore[attr-defined]  # a handler around it
    return [p.name for p in inspect.signature(model).parameters.values() if p.kind in kinds]


def _name(path: tuple, names: list[str]) -> str:
    """The name of a leaf of (args, kwargs)."""
    place = path[1].key if path[0].idx else path[1].idx
    first = place if path[0].idx else names[place] if place < len(names) else f"args{place}"
    return f"{first}{keystr(path[2:])}"


def _argument(name: str) -> str:
    return name.partition("[")[0]
