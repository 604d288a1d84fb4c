"""Views of a posterior: other estimates of the same gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc._types import PyTree
from hamcmc.target.posterior import Posterior


class View(Posterior):
    """A posterior that differs from another one, `plain`, in its gradient estimator alone.

    A subclass overrides :meth:`mean_likelihood_grad` and :meth:`per_datum_grads`. Everything that a view does not set
    itself (data, densities, support, …) is looked up in `plain`. Sums over all data are those of `plain`.
    """

    def __init__(self, plain: Posterior):
        if plain.size == 0:
            raise ValueError("variance reduction needs data: this posterior has no log_likelihood")
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not set yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self.plain, name)

    def common_grad(self, position: PyTree) -> PyTree:
        """The part of the mean likelihood gradient's estimate that is the same for all rows; zero if there is none."""
        return jax.tree.map(jnp.zeros_like, position)

    def log_likelihoods(self, parameters: PyTree, rows: PyTree) -> Array:
        """Those of `plain`."""
        return self.plain.log_likelihoods(parameters, rows)

    def _log_likelihood(self, parameters: PyTree, datum: PyTree) -> Array:
        return self.plain._log_likelihood(parameters, datum)

    def full_grad(self, position: PyTree, *, batch_size: int = 8192) -> PyTree:
        """The gradient of the log-density on all data, in passes of `batch_size`."""
        return self.plain.full_grad(position, batch_size=batch_size)

    def full_log_density(self, position: PyTree, *, batch_size: int = 8192) -> Array:
        """The log-density on all data, in passes of `batch_size`."""
        return self.plain.full_log_density(position, batch_size=batch_size)

    def minibatch_indices(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """The rows of one minibatch, as `plain` draws them."""
        return self.plain.minibatch_indices(key, iteration, batch_size, replace)

    def drawn(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """What `plain` needs to name the rows of a minibatch on the host."""
        return self.plain.drawn(key, iteration, batch_size, replace)

    def found(self, drawn: np.ndarray) -> np.ndarray:
        """The rows of minibatches, on the host, as `plain` draws them."""
        return self.plain.found(drawn)
