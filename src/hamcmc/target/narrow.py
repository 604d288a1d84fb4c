"""Likelihoods in lower precision than positions: how to compute them, and whether that does harm."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from hamcmc import _check
from hamcmc._compile import jit, put
from hamcmc._types import PyTree

if TYPE_CHECKING:
    from hamcmc.target.posterior import Posterior

KINDS = ("bfloat16", "float16", "float32")
TRIALS = 8  # minibatches on which both precisions are compared
USUAL = 256  # rows of one where the run has no minibatches
HARMLESS = 0.1  # change of the gradient, in units of its minibatch noise


def narrowed(log_likelihood: Callable[[PyTree, PyTree], Array], precision: str) -> Callable[[PyTree, PyTree], Array]:
    """A log-likelihood that computes with fewer digits, and returns its values with those of the parameters.

    What is added up over rows therefore has all digits, and so do gradients with respect to the parameters.
    """
    kind = jnp.dtype(_check.one_of("precision", precision, KINDS))

    def fewer(x: Any) -> Any:
        """A floating-point array with fewer digits; anything else as it is."""
        known = getattr(x, "dtype", None)
        wider = known is not None and jnp.issubdtype(known, jnp.floating) and jnp.dtype(known).itemsize > kind.itemsize
        return x.astype(kind) if wider else x

    def likelihood(parameters: PyTree, rows: PyTree) -> Array:
        """The user's, in lower precision."""
        kinds = (getattr(x, "dtype", jnp.dtype(bool)) for x in jax.tree.leaves(parameters))
        floats = [k for k in kinds if jnp.issubdtype(k, jnp.floating)]
        found = log_likelihood(jax.tree.map(fewer, parameters), jax.tree.map(fewer, rows))
        return found.astype(jnp.result_type(*floats))

    return likelihood


def require_harmless(posterior: "Posterior", position: PyTree, batch_size: int | None) -> None:
    """Raise if lower precision changes the gradient where chains start, by more than a tenth of its noise.

    Gradients on a few minibatches are computed in both precisions. Their mean difference is a bias, and the spread
    between minibatches is the noise that a sampler has anyway.
    """
    if getattr(posterior, "precision", None) is None:
        return
    plain = posterior
    while "plain" in vars(plain):
        plain = vars(plain)["plain"]
    count = min(batch_size or USUAL, max(1, plain.size // TRIALS))
    theta = posterior.constrain(position)
    start = plain.unconstrain_unchecked(theta)
    rows = np.random.default_rng(0).permutation(plain.size)[: count * TRIALS].reshape(-1, count)
    wide = plain.wide()

    @jit
    def both(u: PyTree, part: PyTree) -> tuple[Array, Array]:
        """The gradient in both precisions."""
        low, high = (posterior.mean_likelihood_grad(u, part) for posterior in (plain, wide))
        return ravel_pytree(low)[0], ravel_pytree(high)[0]

    found = [both(start, jax.tree.map(lambda x, r=r: put(np.asarray(x[np.sort(r)])), plain.data)) for r in rows]
    low, high = (np.array([np.asarray(pair[k], np.float64) for pair in found]) for k in (0, 1))
    change = float(np.linalg.norm((low - high).mean(0)))
    noise = float(np.sqrt(((high - high.mean(0)) ** 2).sum() / max(1, len(high) - 1)))
    if not change <= HARMLESS * noise:
        raise ValueError(
            f"precision={plain.precision!r} changes the gradient of the likelihood by "
            f"{change / max(noise, 1e-300):.2g} of its noise on minibatches of {count:,} rows; up to {HARMLESS} would "
            "be harmless. Scale the data, take smaller minibatches, or leave precision out"
        )
