"""The posterior mode and the Laplace approximation around it, with the reason to trust them or not."""

import time
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.target import minibatch
from hamcmc.target.frozen import is_function
from hamcmc.target.passes import Passes, plain
from hamcmc.target.posterior import Posterior
from hamcmc.target.search import Found, Search

DENSE = 1024  # parameters up to which the Hessian is computed


class Laplace(NamedTuple):
    r"""The normal approximation of a posterior at its mode, as :func:`hamcmc.laplace` returns it.

    Flat vectors are in the order of ``jax.flatten_util.ravel_pytree(position)``, and in double precision on the host.

    Attributes:
        mode: the parameters θ̂, in their support.
        position: the unconstrained position of the mode, in the precision of the session.
        precision: the Hessian of U there, (D, D), or its diagonal (D,) where D is large.
        root: L with :math:`L L^T` = precision⁻¹, (D, D) or (D,). Where the Hessian is not positive definite, L belongs
            to its absolute eigenvalues.
        inverse_root: L⁻¹, which whitens positions: L⁻¹(θ − θ̂) is about standard normal.
        converged: whether the position is a mode with a positive definite Hessian, to the tolerance.
        reason: one sentence that says how we know, or what is missing.
        decrement: the Newton decrement ½ gᵀH⁻¹g in nats. The position is √(2 · decrement) posterior standard deviations
            from the mode.
        mean_grad: ḡ(θ̂) (D,), the mean over all data of the likelihood's gradient; zero without data.
        mean_hessian: H̄(θ̂) (D, D), the mean over all data of ∇² of the log-likelihood; None where D is large,
            and where it is not finite.
        gradients: the work, in gradients on all data. A Hessian counts as D of them.
        seconds: the time that it took.
    """

    mode: PyTree
    position: PyTree
    precision: np.ndarray
    root: np.ndarray
    inverse_root: np.ndarray
    converged: bool
    reason: str
    decrement: float
    mean_grad: np.ndarray
    mean_hessian: np.ndarray | None
    gradients: float
    seconds: float

    @property
    def dimension(self) -> int:
        """D."""
        return len(self.precision)

    @property
    def flat(self) -> np.ndarray:
        """The position as one vector in double precision."""
        return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(self.position)])

    def spread(self, white: np.ndarray) -> np.ndarray:
        """θ̂ + L z for each row z of `white` (K, D): flat positions."""
        return self.flat + (white * self.root if self.root.ndim == 1 else white @ self.root.T)

    def whiten(self, positions: np.ndarray) -> np.ndarray:
        """L⁻¹(θ − θ̂) for each row of flat positions (K, D)."""
        away = positions - self.flat
        return away * self.inverse_root if self.inverse_root.ndim == 1 else away @ self.inverse_root.T

    def triangular(self) -> "Laplace":
        """The same with a lower triangular L, which is unique: eigenvectors may turn their signs with a last digit."""
        if self.root.ndim == 1:
            return self
        turn, upper = np.linalg.qr(self.root.T)
        turn = turn * np.where(np.diag(upper) < 0, -1.0, 1.0)
        return self._replace(root=np.tril(self.root @ turn), inverse_root=turn.T @ self.inverse_root)

    def draw(self, count: int, seed: int = 0) -> PyTree:
        """Draws of the normal approximation: unconstrained positions with a leading axis of length `count`."""
        flat = self.spread(np.random.default_rng(seed).standard_normal((count, self.dimension)))
        return self.unravel(flat)

    def unravel(self, flat: np.ndarray) -> PyTree:
        """Flat positions (…, D) as a pytree with leaves (…, shape of the leaf), in the precision of the session."""
        leaves, tree = jax.tree.flatten(self.position)
        pieces = np.split(flat, np.cumsum([x.size for x in leaves])[:-1], axis=-1)
        shaped = (p.reshape((*flat.shape[:-1], *x.shape)) for p, x in zip(pieces, leaves))
        return jax.tree.unflatten(tree, [jnp.asarray(p, x.dtype) for p, x in zip(shaped, leaves)])


def laplace(
    posterior: Posterior,
    init: PyTree = None,
    *,
    seed: int = 0,
    iterations: int = 100,
    tolerance: float = 1e-3,
    dense: int = DENSE,
) -> Laplace:
    """The mode of a posterior, the Hessian there, and whether they can be trusted.

    The search begins on a random part of the data, goes on to larger parts, and ends with Newton steps on all data,
    which are read in chunks and may be streamed. Steps are taken in coordinates that the Hessian's diagonal scales, so
    columns may be in any units. Where D is too large for a Hessian, the steps are those of L-BFGS in coordinates scaled
    by its diagonal, and conjugate gradients on all data finish the search and measure how far it is from the mode.

    Convergence is judged by the Newton decrement ½ gᵀH⁻¹g, the nats that are still to be gained, and by whether the
    Hessian is positive definite. A density may have no mode, as that of a centred hierarchical model, or a mode with
    little of the mass around it: `converged` speaks of the first alone.

    Args:
        posterior: the density.
        init: where to start, as parameters in their support, or a function of a key that returns them. By default it is
            the posterior's own ``init``.
        seed: for `init`, and for the parts of the data.
        iterations: the most Newton steps on each part of the data; five times as many of L-BFGS.
        tolerance: the decrement in nats at which to end. At 1e-3 the position is within 0.05 standard deviations.
        dense: compute the Hessian for up to so many parameters.

    Returns:
        A :class:`~hamcmc.Laplace`. For parameters that are sampled by a bijection the mode is that of the
        unconstrained density, in which samplers move.

    Raises:
        ValueError: the log-density, or its derivatives, are not finite at the start, or there is none.
    """
    begin = time.perf_counter()
    passes, position = prepared(posterior, init, seed)
    found = approximated(passes, position, seed=seed, iterations=iterations, tolerance=tolerance, dense=dense)
    return found._replace(seconds=time.perf_counter() - begin)


def approximated(
    passes: Passes,
    position: PyTree,
    *,
    seed: int = 0,
    iterations: int = 100,
    tolerance: float = 1e-3,
    dense: int = DENSE,
    patient: bool = True,
) -> Laplace:
    """What :func:`laplace` returns, from programs that are compiled and an unconstrained position to start from.

    Somebody who is not `patient` does not look for a mode on all data where a part of them has none.
    """
    begin = time.perf_counter()
    found = _search(passes, position, None, seed, iterations, tolerance, dense, patient)
    size = max(1, passes.posterior.size)
    if found.model is not None and found.hessian is not None:
        precision = -found.hessian.total
        mean_hessian = None if found.stale else found.hessian.likelihood / size
        root = found.model.vectors / np.sqrt(found.model.lifted) / found.model.scale[:, None]
        inverse = (found.model.vectors * np.sqrt(found.model.lifted) * found.model.scale[:, None]).T
    else:
        precision, mean_hessian = np.asarray(found.diagonal), None
        root, inverse = 1 / np.sqrt(precision), np.sqrt(precision)
    at = passes.position(found.x)
    return Laplace(
        mode=passes.posterior.constrain(at),
        position=at,
        precision=precision,
        root=root,
        inverse_root=inverse,
        converged=found.converged,
        reason=found.reason,
        decrement=found.decrement,
        mean_grad=np.broadcast_to(found.grad.likelihood / size, found.x.shape),
        mean_hessian=mean_hessian,
        gradients=passes.spent,
        seconds=time.perf_counter() - begin,
    )


def find_mode(
    posterior: Posterior,
    parameters: PyTree = None,
    *,
    batch_size: int | None = None,
    iterations: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> PyTree:
    """The maximum a-posteriori parameters, by the search of :func:`laplace`.

    Args:
        posterior: the density. Its data may be streamed.
        parameters: where to start, in the support, or a function of a key. By default it is the posterior's ``init``.
        batch_size: use one fixed minibatch of this size, with the weight N/n; None for all data.
        iterations: the most Newton steps on each part of the data.
        tolerance: end when the Newton decrement is below so many nats. At 1e-3 the parameters are within 0.05 posterior
            standard deviations of the mode.
        seed: for `parameters`, and for the rows.

    Returns:
        Parameters at the mode. For parameters that are sampled by a bijection this is the mode of the *unconstrained*
        density, in which the sampler moves.

    Warns:
        UserWarning: the search did not converge, with the reason. :func:`laplace` returns it as a value.
    """
    passes, position = prepared(posterior, parameters, seed)
    rows = None
    if batch_size is not None:
        n = _check.at_least("batch_size", batch_size, 1)
        if n > posterior.size:
            raise ValueError(f"batch_size {n} is larger than the data: {posterior.size} rows")
        rows = np.asarray(minibatch.draw(jax.random.key(seed), jnp.int32(0), posterior.size, n, replace=False))
    found = _search(passes, position, rows, seed, iterations, tolerance, DENSE)
    if found.infinite is not None:
        raise ValueError(f"find_mode left the finite numbers in parameter {found.infinite}: start elsewhere")
    if not (found.converged or found.edge):
        warnings.warn(f"find_mode did not converge: {found.reason}", UserWarning, stacklevel=2)
    return passes.posterior.constrain(passes.position(found.x))


def prepared(posterior: Posterior, init: PyTree, seed: int) -> tuple[Passes, PyTree]:
    """The sums over the data of a posterior, and the unconstrained position of `init`."""
    posterior = plain(posterior)
    given: Any = getattr(posterior, "init", None) if init is None else init
    if given is None:
        raise ValueError("init is missing: give parameters to start from, here or to the posterior")
    parameters = given(jax.random.key(seed)) if is_function(given) else given
    position = posterior.unconstrain(jax.tree.map(_floating, parameters))
    return Passes(posterior, position), position


def _floating(x: Any) -> jax.Array:
    """The array in floating point, not weakly typed."""
    array = np.asarray(x)
    return jnp.asarray(array if array.dtype.kind == "f" else array.astype(float))


def _search(
    passes: Passes,
    position: PyTree,
    rows: Any,
    seed: int,
    iterations: int,
    tolerance: float,
    dense: int,
    patient: bool = True,
) -> Found:
    _check.at_least("iterations", iterations, 1)
    _check.positive("tolerance", tolerance)
    search = Search(passes, position, tolerance=tolerance, iterations=iterations, seed=seed)
    return search.run(rows, _check.at_least("dense", dense, 0), patient)
