"""A NumPyro model as a posterior: its latent sites are the parameters, with their names and supports."""

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc._require import needs
from hamcmc._types import Facts, PyTree, Record
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support

if TYPE_CHECKING:
    from hamcmc.interop.sites import Trace

CHECKED_ROWS = 16  # rows on which the model is compared with the posterior that was made of it
MANY_ROWS = 10_000  # rows above which a model that cannot have minibatches is worth a warning
TOGETHER = 8  # draws at which sites are computed side by side


def from_numpyro(
    model: Callable, *args: Any, fixed: tuple[str, ...] = (), init_strategy: Callable | None = None, **kwargs: Any
) -> "NumpyroPosterior":
    """A NumPyro model with its data as a :class:`hamcmc.Posterior`.

    Give the arguments as to ``MCMC.run``, without the key. Latent sites are the parameters: draws have their names, are
    in their supports, and Jacobians of NumPyro's bijections are added. Plates name the dimensions of draws, and
    deterministic sites join them (:func:`hamcmc.interop.to_arviz`).

    Arrays among the arguments that have one row per datum are the data. Observed sites that grow with the rows are the
    likelihood, with or without a plate, and minibatches scale it by N/n. All other sites, including
    ``numpyro.factor``, are the prior. A plate with a ``subsample_size`` says which arrays these are, and our
    minibatches replace its own.

    A model whose likelihood is not a sum over rows, such as a Gaussian process, or that has a latent variable for each
    row, is sampled on all data at each step. ``posterior.all_data`` then says why.

    Args:
        model: a function with NumPyro's primitives, or such a function in NumPyro's handlers.
        *args: arguments of the model.
        fixed: names of arguments that are not data, though they are arrays of the same length.
        init_strategy: where chains start, such as ``numpyro.infer.init_to_median``; by default
            ``numpyro.infer.init_to_uniform``.
        **kwargs: arguments of the model.

    Returns:
        A posterior with a method `init` that draws a start, so that ``hamcmc.sample(posterior)`` needs nothing else.

    Raises:
        ValueError: the model is not of this form. The message names the site at fault: discrete latent variables,
            supports that depend on other sites, ``numpyro.param``, and a model without its observations.
    """
    with needs("NumPyro", "numpyro"):
        import numpyro  # noqa: F401
        from numpyro.infer import init_to_uniform
    return NumpyroPosterior(model, args, kwargs, fixed, init_strategy or init_to_uniform)


class NumpyroPosterior(Posterior):
    """The posterior that :func:`hamcmc.interop.from_numpyro` returns, which knows its sites.

    Attributes:
        latent: names of the parameters.
        observed: names of the sites that make the likelihood, with a ``numpyro.factor`` that has an entry per row.
        all_data: why there are no minibatches; None if there are.
    """

    def __init__(self, model: Callable, args: tuple, kwargs: Facts, fixed: tuple[str, ...], strategy: Callable):
        from hamcmc.interop import sites

        self._arguments = arguments = sites.Arguments(model, args, kwargs, fixed, strategy)
        full = arguments.shapes()
        sites.check_sites(full, arguments.missing)
        self.latent = tuple(name for name in full if sites.is_latent(full[name]))
        self.all_data = None
        try:
            self._by_rows(full)
        except sites.NotByRows as reason:
            self._as_a_whole(full, str(reason))
        self.dims = sites.dims_of(full)

    def _by_rows(self, full: "Trace") -> None:
        """Make the posterior of a likelihood that is a sum over rows."""
        from hamcmc.interop import sites

        arguments = self._arguments
        arguments.choose_data(full)
        one, two = (sites.on_rows(arguments, rows) for rows in (1, 2))
        if not full.keys() == one.keys() == two.keys():
            raise sites.NotByRows("the sites of the model depend on the rows that it is given")
        grows = {name for name in full if sites.shape_of(one[name]) != sites.shape_of(two[name])}
        self.observed = tuple(n for n in full if sites.is_term(full[n]) and n in grows)
        self._seen = [n for n in self.observed if sites.is_observed(full[n])]
        if local := grows.intersection(self.latent):
            raise sites.NotByRows(f"site {min(local)} has one value per datum, and minibatches need global sites")
        if not self.observed:
            raise sites.NotByRows("no observed site has one entry per datum")
        self._deterministic = [n for n in full if full[n]["type"] == "deterministic" and n not in grows]
        data = arguments.data
        self._template = _rows(data, 0, 1)
        support = self._supports_of(self._template, _rows(data, arguments.size - 1, arguments.size))
        self._axes = self._row_axes()
        likelihood = self._likelihood_of_row if self._axes is None else self._likelihood_of_rows
        super().__init__(self._prior_of_sites, likelihood, data, support=support, batched=self._axes is not None)
        self._check_sum()

    def _as_a_whole(self, full: "Trace", reason: str) -> None:
        """Make the posterior of a model that is evaluated on all data at once."""
        from hamcmc.interop import sites

        arguments = self._arguments
        rows = max((x.shape[0] for x in arguments.data.values()), default=0)
        if rows > MANY_ROWS:
            warnings.warn(
                f"no minibatches: each step takes all {rows:,} rows of this NumPyro model, because {reason}",
                stacklevel=4,
            )
        arguments.size, self.all_data = 0, reason
        self.observed = tuple(n for n in full if sites.is_observed(full[n]))
        self._seen = list(self.observed)
        self._deterministic = [n for n in full if full[n]["type"] == "deterministic"]
        self._template = {}
        super().__init__(self._density_of_sites, support=self._supports_of({}, {}))
        jax.eval_shape(lambda key: self.log_prior(self.init(key)), jax.random.key(0))  # shapes that do not fit, now
        self.constants = arguments.constants()

    def _supports_of(self, first: Record, last: Record) -> dict[str, Support]:
        """The support of each latent site.

        Raises:
            ValueError: it is not the same at other values of the sites and on other rows.
        """
        from numpyro.distributions import biject_to

        from hamcmc.interop import sites

        of = self._arguments.supports(self.latent)
        found, other = of(jax.random.key(0), first), of(jax.random.key(1), last)
        for name in self.latent:
            if not sites.same(found[name], other[name]):
                raise ValueError(f"site {name}: its support depends on other sites or data; scale a fixed one instead")
        return {n: _support(constraint, biject_to(constraint)) for n, constraint in found.items()}

    def init(self, key: Array) -> dict[str, Array]:
        """A start by NumPyro's strategy."""
        return self._start(key, self._template)

    def deterministic(self, draws: Facts) -> dict[str, Array]:
        """The deterministic sites at draws (…, shape of the site), without those that have one entry per row."""
        if not self._deterministic:
            return {}

        def one(theta: Record, data: Record) -> Record:
            """At one draw."""
            _, found = self._log_probs(theta, data)
            return {n: found[n]["value"] for n in self._deterministic}

        if not self.streamed:
            return self._at_draws(one, draws, self.data)
        first, last = (self._at_draws(one, draws, self.part(i, 1)) for i in (0, self.size - 1))
        return {n: x for n, x in first.items() if np.array_equal(x, last[n])}  # the others would need all rows

    def observations(self) -> dict[str, Array]:
        """The values at the observed sites."""

        def values(key: Array, data: Record) -> Record:
            found = self._arguments.trace(data, key)
            return {n: found[n]["value"] for n in self._seen}

        return jax.jit(values)(jax.random.key(0), self.data or {})

    def pointwise(self, draws: Facts) -> dict[str, Array]:
        """The log-likelihood of each entry of the observed sites at draws (…, shape of the site)."""

        def one(theta: Record, data: Record) -> Record:
            """At one draw."""
            found, _ = self._log_probs(theta, data, sum_log_prob=False)
            return {n: found[n] for n in self.observed}

        if self.streamed:
            raise ValueError("log-likelihoods of all rows at all draws would not fit: use hamcmc.diagnostics.loo")
        return self._at_draws(one, draws, self.data)

    def predictive(self, key: Array, parameters: Record, data: PyTree = None) -> dict[str, Array]:
        """Draw new values at the observed sites, given parameters and what else is observed."""
        rows = self.data if data is None else data
        _, found = self._log_probs(parameters, rows or {})
        keys = jax.random.split(key, len(self._seen))
        return {n: found[n]["fn"].sample(k) for n, k in zip(self._seen, keys)}

    def _at_draws(self, one: Callable[[Record, Record], Record], draws: Facts, data: PyTree) -> dict[str, Array]:
        """A function of a draw and the data at many draws, a few at a time."""
        wanted = {n: jnp.asarray(draws[n]) for n in self.latent}
        like = jax.eval_shape(self._start, jax.random.key(0), self._template)
        first = self.latent[0]
        leading = wanted[first].shape[: wanted[first].ndim - like[first].ndim]
        flat = {n: x.reshape(-1, *like[n].shape) for n, x in wanted.items()}

        def each(flat: Record, data: Record) -> Record:
            """At all draws."""
            return lax.map(lambda theta: one(theta, data), flat, batch_size=TOGETHER)

        found = jax.jit(each)(flat, data or {})
        return {n: x.reshape(*leading, *x.shape[1:]) for n, x in found.items()}

    @cached_property
    def _start(self) -> Callable:
        def start(key: Array, rows: Record) -> Record:
            """Values of the latent sites."""
            found = self._arguments.trace(rows, key)
            return {n: found[n]["value"] for n in self.latent}

        return jax.jit(start)

    def _log_probs(self, theta: Record, data: Record, **options: Any) -> "tuple[dict[str, Array], Trace]":
        from numpyro.infer.util import compute_log_probs

        args, kwargs = self._arguments.with_data(data)
        model = self._arguments.seeded(jax.random.key(0), data)
        return compute_log_probs(model, args, kwargs, theta, **options)

    def _density_of_sites(self, theta: Record) -> Array:
        found, _ = self._log_probs(theta, {})
        return sum(found.values(), jnp.zeros(()))

    def _prior_of_sites(self, theta: Record) -> Array:
        found, _ = self._log_probs(theta, self._template)
        return sum((x for n, x in found.items() if n not in self.observed), jnp.zeros(()))

    def _likelihood_of_row(self, theta: Record, datum: Record) -> Array:
        found, _ = self._log_probs(theta, {n: x[None] for n, x in datum.items()})
        return sum((found[n] for n in self.observed), jnp.zeros(()))

    def _likelihood_of_rows(self, theta: Record, rows: Record) -> Array:
        """Of each of many rows, by one evaluation of the model."""
        found, _ = self._log_probs(theta, rows, sum_log_prob=False)
        first = (jnp.moveaxis(found[n], axis, 0) for n, axis in (self._axes or {}).items())
        return sum((x.reshape(len(x), -1).sum(1) for x in first), jnp.zeros(()))

    def _row_axes(self) -> dict[str, int] | None:
        """Along which axis, from the right, the log-likelihood of each observed site has the rows; None if unknown."""
        theta = jax.eval_shape(self._start, jax.random.key(0), self._template)

        def shapes(rows: int) -> dict[str, tuple[int, ...]]:
            """Of the log-likelihoods on so many rows."""
            data = {n: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for n, x in self._template.items()}
            found = jax.eval_shape(lambda t, d: self._log_probs(t, d, sum_log_prob=False)[0], theta, data)
            return {n: found[n].shape for n in self.observed}

        axes, two, three = {}, shapes(2), shapes(3)
        for name in self.observed:
            grown = [k - len(two[name]) for k, (a, b) in enumerate(zip(two[name], three[name])) if a != b]
            if len(grown) != 1 or two[name][grown[0]] != 2 or three[name][grown[0]] != 3:
                return None
            axes[name] = grown[0]
        return axes

    def _check_sum(self) -> None:
        """Raise unless the model on some rows is the prior plus the sum of the likelihood over these rows."""
        from hamcmc.interop import sites

        def both(theta: Record, rows: Record) -> tuple:
            """Prior and likelihood, on all rows and row by row."""
            found, _ = self._log_probs(theta, rows)
            apart = jax.vmap(self._likelihood_of_row, (None, 0))(theta, rows)
            each = apart if self._axes is None else self._likelihood_of_rows(theta, rows)
            likelihood = sum(found.pop(n) for n in self.observed)
            return (sum(found.values()), likelihood), (self._prior_of_sites(theta), apart.sum()), apart, each

        rows = _rows(self.data, 0, CHECKED_ROWS)
        together, sums, apart, each = jax.jit(both)(self.init(jax.random.key(1)), rows)
        size = float(jnp.abs(apart).sum())
        for what, a, b in zip(("prior", "likelihood"), together, sums):
            if not np.allclose(a, b, rtol=1e-4, atol=1e-5 * size):
                raise sites.NotByRows(
                    f"the {what} is not that of a model with one term per datum: on the first rows together it is "
                    f"{float(a):.6g}, and row by row {float(b):.6g}. Transform the data before the model, not in it"
                )
        if not np.allclose(each, apart, rtol=1e-4, atol=1e-5 * size):
            raise sites.NotByRows("the likelihood of a row is not the same among others as it is alone")

    def _facts(self) -> dict[str, str]:
        return super()._facts() | ({"no minibatches": self.all_data} if self.all_data else {})


def _rows(data: Record, start: int, end: int) -> Record:
    """Some rows of the data, in memory."""
    return {n: jnp.asarray(x[start:end]) for n, x in data.items()}


def _support(constraint: Any, bijection: Any) -> Support:
    return Support(
        bijection,
        bijection.inv,
        lambda u: bijection.log_abs_det_jacobian(u, bijection(u)),
        None,
        constraint,
        str(constraint),
    )
