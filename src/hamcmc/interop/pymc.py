"""A PyMC model as a posterior, by the JAX program that PyTensor makes of its log-density."""

# PyMC is not installed where types are checked, and this file would be taken for it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc._require import needs
from hamcmc._types import Facts, PyTree, Record
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support, real

if TYPE_CHECKING:
    from pymc import Model

JITTER = 1.0  # half the width of the uniform distribution around PyMC's initial point, as its own samplers have it
TOGETHER = 8  # draws at which quantities are computed side by side


def from_pymc(model: "Model") -> "PymcPosterior":
    """A PyMC model with its data as a :class:`hamcmc.Posterior`, on all data at each step.

    Draws have the names of the free variables and are in their supports; PyMC's own transforms and Jacobians are used.
    Dimensions and coordinates are the model's, and deterministic variables join the draws
    (:func:`hamcmc.interop.to_arviz`). Chains start around PyMC's initial point.

    PyMC computes in double precision, and turns it on for all of JAX when its JAX functions are loaded, unless
    ``pytensor.config.floatX`` was set to ``"float32"`` before. For minibatches write the likelihood as a function
    of a row, for :class:`hamcmc.Posterior`.

    Args:
        model: a ``pymc.Model``.

    Raises:
        ValueError: the model has discrete free variables, none at all, or one whose transform depends on other
            variables. The message names it.
    """
    with needs("PyMC", "pymc"):
        import pymc
        import pymc.sampling.jax
    if not isinstance(model, pymc.Model):
        raise ValueError(f"model must be a pymc.Model, got {type(model).__name__}")
    return PymcPosterior(model)


class PymcPosterior(Posterior):
    """The posterior that :func:`hamcmc.interop.from_pymc` returns, which knows its variables.

    Attributes:
        latent: names of the parameters.
        observed: names of the observed variables.
        model: the PyMC model.
    """

    def __init__(self, model: "Model"):
        if not model.free_RVs:
            raise ValueError("the model has no free variables to sample")
        for rv in model.free_RVs:
            if np.dtype(rv.dtype).kind != "f":
                raise ValueError(
                    f"variable {rv.name} is discrete, and has no gradient: sum it out of the model (as pymc.Mixture "
                    "does), or sample it by other means"
                )
        self.model = model
        self.latent = tuple(str(rv.name) for rv in model.free_RVs)
        self.observed = tuple(str(rv.name) for rv in model.observed_RVs)
        self._values = [model.rvs_to_values[rv] for rv in model.free_RVs]
        start = model.initial_point()
        self._centre = {n: np.asarray(start[v.name]) for n, v in zip(self.latent, self._values)}
        self._density = _function(self._values, [model.logp()])
        support = {n: self._support(rv) for n, rv in zip(self.latent, model.free_RVs)}
        super().__init__(self._plain_density, support=support)
        self.constants = _constants(model)
        self.dims = {n: list(d) for n, d in model.named_vars_to_dims.items()}
        self.coords = {n: list(c) for n, c in model.coords.items() if c is not None}

    def init(self, key: Array) -> dict[str, Array]:
        """A start near PyMC's initial point."""
        return self._start(key)

    def _start(self, key: Array) -> dict[str, Array]:
        keys = jax.random.split(key, len(self.latent))
        moved = {
            n: u + jax.random.uniform(k, u.shape, u.dtype, -JITTER, JITTER)
            for (n, u), k in zip(((n, jnp.asarray(u)) for n, u in self._centre.items()), keys)
        }
        return self.constrain(moved)

    def deterministic(self, draws: Facts) -> dict[str, Array]:
        """The deterministic variables at draws (…, shape of the variable)."""
        found = self.model.deterministics
        if not found:
            return {}
        of = _function(*_on_inputs(self.model, found))

        def one(theta: Record) -> Record:
            """At one draw."""
            return dict(zip((str(d.name) for d in found), of(*(theta[n] for n in self.latent))))

        return self._at_draws(one, draws)

    def pointwise(self, draws: Facts) -> dict[str, Array]:
        """The log-likelihood of each entry of the observed variables at draws (…, shape of the variable)."""
        of = _function(self._values, self.model.logp(self.model.observed_RVs, sum=False))

        def one(theta: Record) -> Record:
            """At one draw."""
            position = self.unconstrain_unchecked({n: theta[n] for n in self.latent})
            return dict(zip(self.observed, of(*(position[n] for n in self.latent))))

        return self._at_draws(one, draws)

    def observations(self) -> dict[str, np.ndarray]:
        """The values of the observed variables."""
        values = (self.model.rvs_to_values[rv] for rv in self.model.observed_RVs)
        return {n: np.asarray(_function([], [v])()[0]) for n, v in zip(self.observed, values)}

    def _log_prior(self, position: PyTree) -> Array:
        """PyMC's log-density of unconstrained values, in which the Jacobians are."""
        return self._density(*(position[n] for n in self.latent))[0]

    def _plain_density(self, theta: Record) -> Array:
        """The log-density of parameters, without the Jacobians."""
        position = self.unconstrain_unchecked(theta)
        jacobians = (jnp.sum(s.log_jacobian(position[n])) for n, s in self.support.items())  # type: ignore[union-attr]
        return self._log_prior(position) - sum(jacobians)

    def _support(self, rv: Any) -> Support:
        """The transform of a variable."""
        transform, value = self.model.rvs_to_transforms[rv], self.model.rvs_to_values[rv]
        if transform is None:
            return real
        given, inputs = rv.type(), rv.owner.inputs
        graphs = [
            transform.backward(value, *inputs),
            transform.log_jac_det(value, *inputs),
            transform.forward(given, *inputs),
        ]
        _require_fixed(rv, graphs, self.model)
        forward, jacobian = (_function([value], [g]) for g in graphs[:2])
        inverse = _function([given], [graphs[2]])
        axes = value.ndim
        into = _batched(forward, axes)
        back = _batched(inverse, rv.ndim)

        def contains(x: Array) -> Array:
            """Whether the transform and its inverse lead back to the value."""
            u = back(x)
            return jnp.all(jnp.isfinite(u)) & jnp.allclose(into(u), x, rtol=1e-4, atol=1e-6)

        return Support(into, back, _batched(jacobian, axes), None, contains, type(transform).__name__)

    def _at_draws(self, one: Callable[[Record], Record], draws: Facts) -> dict[str, Array]:
        """A function of a draw at many draws, a few at a time."""
        wanted = {n: jnp.asarray(draws[n]) for n in self.latent}
        first = self.latent[0]
        like = jax.eval_shape(self._start, jax.random.key(0))
        leading = wanted[first].shape[: wanted[first].ndim - like[first].ndim]
        flat = {n: x.reshape(-1, *like[n].shape) for n, x in wanted.items()}
        found = jax.jit(lambda flat: lax.map(one, flat, batch_size=TOGETHER))(flat)
        return {n: x.reshape(*leading, *x.shape[1:]) for n, x in found.items()}

    def _facts(self) -> dict[str, str]:
        return super()._facts() | {"no minibatches": "a PyMC model is evaluated on all of its data"}


def _function(inputs: Sequence, outputs: Sequence) -> Callable[..., Sequence[Array]]:
    """A PyTensor graph as a function of JAX arrays."""
    from pymc.sampling.jax import get_jaxified_graph

    return get_jaxified_graph(inputs=list(inputs), outputs=list(outputs))  # type: ignore[return-value]


def _on_inputs(model: "Model", outputs: Sequence) -> tuple[list, list]:
    """Graphs of the free variables as graphs of inputs."""
    from pytensor.graph.replace import clone_replace

    inputs = [rv.type() for rv in model.free_RVs]
    return inputs, clone_replace(list(outputs), replace=dict(zip(model.free_RVs, inputs)))  # type: ignore[arg-type]


def _batched(function: Callable[..., Sequence[Array]], axes: int) -> Callable[[Array], Array]:
    """The first output of a function of an array with so many axes, along further leading ones."""

    def of_many(x: Array) -> Array:
        """At each of many values."""

        def mapped(x: Array) -> Array:
            """At one value."""
            return function(x)[0]

        for _ in range(jnp.ndim(x) - axes):
            mapped = jax.vmap(mapped)
        return mapped(x)

    return of_many


def _require_fixed(rv: Any, graphs: Sequence, model: "Model") -> None:
    """Raise if a transform depends on other variables."""
    from pytensor.graph.traversal import ancestors

    others = [str(o.name) for o in model.free_RVs if o in set(ancestors(graphs))]
    if others:
        raise ValueError(
            f"variable {rv.name}: its transform depends on {', '.join(others)}; scale one with fixed bounds instead"
        )


def _constants(model: "Model") -> dict[str, np.ndarray]:
    """All data in the model: a run can be resumed with the same data only."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.basic import Constant
    from pytensor.graph.traversal import ancestors

    found = {}
    for variable in ancestors([model.logp()]):
        value = variable.get_value() if isinstance(variable, SharedVariable) else getattr(variable, "data", None)
        if isinstance(variable, Constant | SharedVariable) and isinstance(value, np.ndarray) and value.ndim:
            found[f"{len(found)}"] = value
    return found
