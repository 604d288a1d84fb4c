"""The posterior: log-prior, log-likelihood and data, and its stochastic gradient.

A likelihood enters by its mean over a minibatch, and :func:`~hamcmc.target.protocol.unbiased` gives it the weight N.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check
from hamcmc._compile import jit, may_block
from hamcmc._types import Facts, PyTree
from hamcmc.target import arrays, disk, frozen, narrow
from hamcmc.target import support as _support
from hamcmc.target.frozen import name_of as name_of
from hamcmc.target.minibatch import draw
from hamcmc.target.protocol import Chart, Target, unbiased
from hamcmc.target.support import Support


class Posterior(Target):
    """A posterior density ``p(θ|x) ∝ p(θ) Π_n p(x_n|θ)``: log-prior, log-likelihood and data.

    Args:
        log_prior: ``log_prior(position) -> scalar``, log p(θ) up to a constant.
        log_likelihood: ``log_likelihood(position, datum) -> scalar``, log p(x_n|θ) of **one** datum; it is vmapped.
            Without it, and without data, the density is that of `log_prior` alone.
        data: a pytree of arrays with one common leading length N. A ``numpy.memmap`` stays on disk and is streamed. A
            table of pandas, polars, Arrow or Zarr becomes a dict of its columns: `log_likelihood` sees ``row["age"]``.
        support: where parameters live: one :class:`~hamcmc.Support` for all of them, or a dict with the position's
            keys (nested as the position is). A parameter that the dict does not name is real. See
            :func:`hamcmc.positive` and :func:`hamcmc.bounded`.
        init: parameters in their support (a pytree of floats), or a function of a key that draws them. It says what a
            position looks like and where to begin, so that ``hamcmc.sample(posterior)`` needs nothing else. Zeros will
            do for most models. It may be a module, such as a network of Equinox: then its floating-point arrays are
            sampled, and `log_prior` and `log_likelihood` see whole modules.
        sampled: which part of `init` is sampled, if not all of it: names of leaves or branches, such as
            ``["layers.2"]``, or a function of name and leaf. The rest is frozen at its value in `init`.
        batched: `log_likelihood` takes many rows at once, and returns a number for each of them.
        precision: ``"bfloat16"``, ``"float16"`` or ``"float32"``: compute the likelihood and its gradient with
            fewer digits, while positions keep theirs. :func:`hamcmc.sample` refuses it where the gradient would change
            by more than a tenth of its minibatch noise.
        temperature: T of the density p(θ|x)^(1/T), by which log-prior and log-likelihood are divided. Below 1 the
            posterior is colder, as it is often used for networks. Predictions and their scores do not divide by T.

    Samplers see *unconstrained* positions (:meth:`unconstrain`); `log_prior` and `log_likelihood` see parameters.

    Attributes:
        size: N, the number of data; 0 without data.
        mirror: the map that folds a position back into the mirrored supports; None if no parameter is mirrored.
        streamed: whether the data stay on disk.
        settings: how the gradient is estimated, for the record.
        extra_gradients: gradients on each minibatch in addition to those at the sampler's positions, for cost accounts.
        extra_products: products with the minibatch's Hessian for each gradient at a position of the sampler. A product
            costs about as much as a gradient.
        chart: the map of the coordinates to where the density is evaluated, if a sampler should keep its images.
        dims: the names of the dimensions of parameters, for ArviZ; None for one without a name.
        coords: names along these dimensions.
        constants: arrays on which the density depends beside the data; a run is resumed only with the same ones.
    """

    init: PyTree | Callable[[Array], PyTree] | None = None
    chart: Chart | None = None

    def __init__(
        self,
        log_prior: Callable[[PyTree], Array],
        log_likelihood: Callable[[PyTree, PyTree], Array] | None = None,
        data: PyTree = None,
        *,
        support: Support | Facts | None = None,
        init: PyTree | Callable[[Array], PyTree] | None = None,
        sampled: frozen.Choice | None = None,
        batched: bool = False,
        temperature: float = 1.0,
        precision: str | None = None,
    ):
        if (log_likelihood is None) != (data is None):
            raise ValueError("log_likelihood and data belong together: give both or neither")
        if precision is not None and log_likelihood is None:
            raise ValueError("precision is that of the likelihood, which this posterior does not have")
        self.log_prior = log_prior
        self.log_likelihood, self.precision, self._given = log_likelihood, precision, log_likelihood
        if log_likelihood is not None and precision is not None:
            self.log_likelihood = narrow.narrowed(log_likelihood, precision)
        self.support, self.batched = support, bool(batched)
        self.temperature = _check.positive("temperature", temperature)
        self._sampled, self._rest, self._structure = sampled, None, None
        if init is not None:
            self._know(init)
            self.init = self.of_whole(init)
        elif sampled is not None:
            raise ValueError("sampled needs init, which has the parameters that are not sampled")
        if self.temperature != 1:
            self._cool()
        self.data, self.size = arrays.checked(data)
        self.mirror = self._fold if any(s.mirror for s in _leaves(support)) else None
        self.streamed = any(isinstance(x, np.memmap) for x in jax.tree.leaves(self.data))
        self.dims: Mapping[str, Sequence[str | None]] = {}  # not of the class, so that views have those of `plain`
        self.coords: Mapping[str, Sequence] = {}
        self.constants: PyTree = None
        self.settings: Facts = {"estimator": "minibatch"}
        self.extra_gradients = 0
        self.extra_products = 0

    # --- the density and its gradient, at unconstrained positions ---

    def log_density(self, position: PyTree, minibatch: PyTree = None) -> Array:
        """−Ũ(θ): ``log p(θ) + log |J| + (N/n) Σ_{i∈Ω} log p(x_i|θ)``, up to a constant."""
        prior = self._log_prior(position)
        return prior if self.size == 0 else unbiased(prior, self._mean(position, minibatch), self.size)

    def grad(self, position: PyTree, minibatch: PyTree = None) -> PyTree:
        """−∇Ũ(θ), the unbiased estimate of the gradient of the log-density."""
        if self.size == 0:
            return jax.grad(self._log_prior)(position)
        return self.combine(position, self.mean_likelihood_grad(position, minibatch))

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """ḡ_Ω(θ) = (1/n) Σ_{i∈Ω} ∇ log p(x_i|θ)."""
        return jax.grad(self._mean)(position, minibatch)

    def combine(self, position: PyTree, mean_grad: PyTree) -> PyTree:
        """∇ log p(θ) + N ḡ: the stochastic gradient from the mean likelihood gradient."""
        return unbiased(jax.grad(self._log_prior)(position), mean_grad, self.size)

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """∇ log p(x_i|θ) for each datum of the minibatch, along a new leading axis."""

        def one(x: PyTree, datum: PyTree) -> Array:
            return self._log_likelihood(self.constrain(x), datum)

        return jax.vmap(jax.grad(one), (None, 0))(position, minibatch)

    def minibatch_indices(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """The rows (n,) of one minibatch, by :func:`hamcmc.target.minibatch.draw`. A view may draw them otherwise."""
        return draw(key, iteration, self.size, batch_size, replace)

    def drawn(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """What :meth:`found` needs to name the rows of :meth:`minibatch_indices` on the host: here, the rows."""
        return self.minibatch_indices(key, iteration, batch_size, replace)

    def found(self, drawn: np.ndarray) -> np.ndarray:
        """The rows of minibatches, on the host, from what :meth:`drawn` says."""
        return drawn

    def some_rows(self, key: Array, count: int) -> np.ndarray:
        """The rows of one minibatch without replacement, on the host."""
        return self.found(np.asarray(jit(lambda key: self.drawn(key, jnp.int32(0), count, False))(key)))

    def full_grad(self, position: PyTree, *, batch_size: int = 8192) -> PyTree:
        """The gradient of the log-density on all data, in passes of `batch_size`."""
        return self._over_all_data(position, batch_size)[1]

    def full_log_density(self, position: PyTree, *, batch_size: int = 8192) -> Array:
        """The log-density on all data, in passes of `batch_size`."""
        return self._over_all_data(position, batch_size)[0]

    def _over_all_data(self, position: PyTree, batch_size: int) -> tuple[Array, PyTree]:
        value, grad = self._prior_value_and_grad(position)

        def work(start: int) -> tuple[int, Any]:
            part = self.part(start, batch_size)
            return len(jax.tree.leaves(part)[0]), self._mean_value_and_grad(position, part)

        alone = may_block(self._mean_value_and_grad, position, disk.shapes(self.data, min(batch_size, self.size)))
        for n, found in disk.ahead(work, range(0, self.size, batch_size), alone=alone):
            value, grad = unbiased((value, grad), found, n)  # a mean over n data counts n times
        return value, grad

    def part(self, start: int, length: int) -> PyTree:
        """So many rows of the data in succession, or as many as there are from `start` on."""
        rows = slice(start, start + length)
        return jax.tree.map(lambda x: disk.on_device(disk.rows(x, rows)) if self.streamed else x[rows], self.data)

    @cached_property
    def _prior_value_and_grad(self) -> Callable:
        return jax.jit(jax.value_and_grad(self._log_prior))

    @cached_property
    def _mean_value_and_grad(self) -> Callable:
        return jax.jit(jax.value_and_grad(self._mean))

    def _log_prior(self, position: PyTree) -> Array:
        jacobian = _support.tree_map(lambda s, u: jnp.sum(s.log_jacobian(u)), self._supports(position), position)
        return self.log_prior(self.constrain(position)) + sum(jax.tree.leaves(jacobian))

    def _mean(self, position: PyTree, minibatch: PyTree) -> Array:
        parameters = self.constrain(position)
        return jnp.mean(self.log_likelihoods(parameters, minibatch))

    def log_likelihoods(self, parameters: PyTree, rows: PyTree) -> Array:
        """log p(x_i|θ) of each of many rows, (n,)."""
        if self.batched and self.log_likelihood is not None:
            return self.log_likelihood(parameters, rows)
        return jax.vmap(self._log_likelihood, (None, 0))(parameters, rows)

    def log_predictive(self, parameters: PyTree, rows: PyTree) -> Array:
        """log p(x_i|θ) of each of many rows, (n,), whatever the temperature of the posterior."""
        return self.temperature * self.log_likelihoods(parameters, rows)

    def _log_likelihood(self, parameters: PyTree, datum: PyTree) -> Array:
        """log p(x_i|θ) of a single row."""
        if self.log_likelihood is None:
            raise ValueError("this posterior has no log_likelihood")
        if self.batched:
            return self.log_likelihood(parameters, jax.tree.map(lambda x: x[None], datum))[0]
        return self.log_likelihood(parameters, datum)

    # --- parameters and positions ---

    def constrain(self, position: PyTree) -> PyTree:
        """Unconstrained position → parameters in their support."""
        if self.support is None:
            return position
        return _support.tree_map(lambda s, u: s.forward(u), self._supports(position), position)

    def unconstrain(self, parameters: PyTree) -> PyTree:
        """Parameters → unconstrained position. Raises if a value lies outside its support."""
        supports = self._supports(parameters)
        for (path, leaf), s in zip(tree_leaves_with_path(parameters), _leaves(supports)):
            if not bool(jnp.all(s.contains(leaf))):
                raise ValueError(f"parameter {name_of(path)} starts outside of its support ({s.text})")
        return self.unconstrain_unchecked(parameters)

    def unconstrain_unchecked(self, parameters: PyTree) -> PyTree:
        """:meth:`unconstrain` for values that are known to be inside. It can be traced."""
        return _support.tree_map(lambda s, x: s.inverse(x), self._supports(parameters), parameters)

    def _fold(self, position: PyTree) -> PyTree:
        """The position, folded back into the mirrored supports."""
        return _support.tree_map(lambda s, u: s.mirror(u) if s.mirror else u, self._supports(position), position)

    def _supports(self, position: PyTree) -> PyTree:
        return _support.of_leaves(self.support, position)

    # --- parameters of which only a part is sampled ---

    def whole(self, parameters: PyTree) -> PyTree:
        """Parameters with those that are not sampled, as `log_prior` and `log_likelihood` see them."""
        return parameters if self._rest is None else frozen.whole(parameters, self._rest)

    def of_whole(self, init: Any) -> Any:
        """The sampled part of an `init`, which may be a function of a key.

        Raises:
            ValueError: it is a module, and the posterior was made for parameters without one, or the other way round.
        """
        if self._rest is not None:
            if not frozen.is_function(init):
                return self._part(init)
            return lambda key: self._part(init(key))
        if not frozen.is_function(init) and frozen.is_module(init):
            raise ValueError("init is a module, which the posterior does not know: give it as Posterior(…, init=…)")
        return init

    def _part(self, tree: PyTree) -> PyTree:
        """The sampled part of parameters, which may be this part alone."""
        if jax.tree.structure(tree) == self._structure:
            return tree
        return frozen.divided(tree, self._sampled)[0]

    def _know(self, init: Any) -> None:
        """Take what is not sampled from `init`, so that the functions of the model get whole parameters."""
        tree = init(jax.random.key(0)) if frozen.is_function(init) else init
        if self._sampled is None and not frozen.is_module(tree):
            return
        part, self._rest = frozen.divided(tree, self._sampled)
        self._structure = jax.tree.structure(part)
        log_prior, log_likelihood = self.log_prior, self.log_likelihood

        def prior(parameters: PyTree) -> Array:
            """The user's, of whole parameters."""
            return log_prior(self.whole(parameters))

        def likelihood(parameters: PyTree, datum: PyTree) -> Array:
            """The user's, of whole parameters."""
            return log_likelihood(self.whole(parameters), datum)  # type: ignore[misc]

        self.log_prior, self.log_likelihood = prior, None if log_likelihood is None else likelihood

    def _cool(self) -> None:
        """Divide log-prior and log-likelihood by the temperature."""
        log_prior, log_likelihood = self.log_prior, self.log_likelihood
        self.log_prior = lambda parameters: log_prior(parameters) / self.temperature
        if log_likelihood is not None:
            self.log_likelihood = lambda parameters, datum: log_likelihood(parameters, datum) / self.temperature

    def wide(self) -> "Posterior":
        """The same posterior with a likelihood in the precision of its parameters."""
        if self.precision is None:
            return self
        given, other = self._given, self._copied()

        def likelihood(parameters: PyTree, rows: PyTree) -> Array:
            """The user's, of whole parameters, at the temperature of the posterior."""
            return given(self.whole(parameters), rows) / self.temperature  # type: ignore[misc]

        other.log_likelihood, other.precision = likelihood, None
        return other

    def _copied(self) -> "Posterior":
        """A copy without compiled programs, which would see what this one has."""
        other = copy.copy(self)
        for program in ("_prior_value_and_grad", "_mean_value_and_grad"):
            vars(other).pop(program, None)
        return other

    def on(self, data: PyTree) -> "Posterior":
        """The same model with other data in memory."""
        other = self._copied()
        other.data, other.size = arrays.checked(data)
        other.streamed = False
        return other

    def deterministic(self, draws: Facts) -> Facts:
        """Further quantities at draws (…, shape), by name. Models of other libraries may have some."""
        return {}

    # --- identity ---

    def checksum(self) -> str:
        """SHA-256 of the data's names, shapes, types and values."""
        return arrays.checksum((self.data, self.constants) if self.constants else self.data)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'; '.join(f'{k}: {v}' for k, v in self._facts().items())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._facts().items())
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"

    def _facts(self) -> dict[str, str]:
        """What to print: the data's arrays, the supports that are not real, and how gradients are estimated."""
        arrays = [f"{name_of(p, 'data')} {x.dtype}{list(x.shape)}" for p, x in tree_leaves_with_path(self.data)]
        leaves = tree_leaves_with_path(self.support, is_leaf=lambda x: isinstance(x, Support))
        supports = [f"{name_of(path, 'all parameters')} {s.text}" for path, s in leaves]
        return {
            "data": f"{self.size:,} rows{', streamed' * self.streamed}, {', '.join(arrays)}" if arrays else "none",
            "support": ", ".join(supports) or "real",
            "gradient": str(self.settings["estimator"]),
        }


def _leaves(supports: PyTree) -> list[Support]:
    return jax.tree.leaves(supports, is_leaf=lambda x: isinstance(x, Support))
