"""Second derivatives of U = −log p(θ|x) over all data, in flat order of the unconstrained position."""

import jax
import jax.numpy as jnp
import numpy as np

from hamcmc import _check
from hamcmc._compile import jit
from hamcmc._types import PyTree
from hamcmc.target import minibatch
from hamcmc.target.passes import Passes
from hamcmc.target.posterior import Posterior

BLOCK = 32  # vectors whose products are computed at once
SHUFFLED = 2**22  # rows up to which NumPy draws some of them, for which it may hold a number for each
ROUNDS = 6  # each halves the logarithm of the ratio between an assumed scale and the true one


def hessian(posterior: Posterior, position: PyTree) -> np.ndarray:
    """The Hessian of U at a position, by one pass over all data in chunks.

    Each chunk gives its share as matrix-matrix products: the derivative of the gradient along all basis vectors at
    once, or along blocks of them where memory would not suffice. Shares are added up in double precision. The work is
    that of about D gradients on all data.

    Args:
        posterior: the density. Its data may be streamed, or absent.
        position: an unconstrained position.

    Returns:
        (D, D) in double precision. Rows and columns are in the order of ``jax.flatten_util.ravel_pytree``.
    """
    passes = Passes(posterior, position)
    return -passes.hessian(passes.flat(position)).total


def hessian_diagonal(
    posterior: Posterior, position: PyTree, *, probes: int | None = None, rows: int | None = None, seed: int = 0
) -> np.ndarray:
    r"""The diagonal of the Hessian of U, for positions that are too long for a square matrix.

    Without `probes` it is exact, by blocks of basis vectors: the work of :func:`hessian` without its memory. With
    `probes` it is Hutchinson's estimate :math:`E[z ⊙ Hz]` by so many vectors z of random signs. Its relative error in
    entry i is :math:`(\sum_{j \ne i} H_{ij}^2 / (H_{ii} H_{jj}) / K)^{1/2}`, with K probes. That holds in
    coordinates in which the diagonal is 1. These are found in rounds: each halves the logarithm of the ratio between
    an assumed scale and the true one, so that columns in different units do no harm.

    Args:
        posterior: the density. Its data may be streamed, or absent.
        position: an unconstrained position.
        probes: the number of random vectors, or None for the exact diagonal.
        rows: use so many random rows of the data, with the weight N/n; None for all of them.
        seed: draws the probes and the rows.

    Returns:
        (D,) in double precision. An estimate by probes may have entries below zero.
    """
    passes, rng = Passes(posterior, position), np.random.default_rng(seed)
    chosen = subsample(rng, posterior.size, rows) if rows is not None and rows < posterior.size else None
    return diagonal(passes, passes.flat(position), chosen, probes, rng)


def diagonal(
    passes: Passes, x: np.ndarray, rows: np.ndarray | None, probes: int | None, rng: np.random.Generator
) -> np.ndarray:
    """:func:`hessian_diagonal` at a flat position, on given rows."""
    if probes is None:
        found = np.zeros(x.size)
        for start in range(0, x.size, BLOCK):
            places = np.arange(start, min(start + BLOCK, x.size))
            basis = np.zeros((BLOCK, x.size))
            basis[np.arange(len(places)), places] = 1
            found[places] = -passes.products(x, basis, rows).total[np.arange(len(places)), places]
        return found
    _check.at_least("probes", probes, 1)
    scale, found = np.ones(x.size), np.zeros(x.size)
    for turn in range(ROUNDS + 1):
        blocks = 1 if turn < ROUNDS else -(-probes // BLOCK)
        signs = [rng.choice([-1.0, 1.0], (BLOCK, x.size)) for _ in range(blocks)]
        found = np.mean([-(z * passes.products(x, z / scale, rows).total).mean(0) * scale for z in signs], 0)
        scale = np.sqrt(np.maximum(np.abs(found), np.finfo(np.float64).tiny)) if turn < ROUNDS else scale
    return found


def subsample(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    """Row numbers drawn without replacement, in random order, so that any first part of them is a sample, too."""
    if size <= SHUFFLED:
        return rng.choice(size, count, replace=False)
    key = jax.random.key(int(rng.integers(2**31)))
    return np.asarray(jit(minibatch.permute, static_argnums=2)(key, jnp.arange(count), size))
