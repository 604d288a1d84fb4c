"""Gradients on all data at a few hundred draws, as the verdict on a run needs them."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc._compile import jit, put
from hamcmc._types import PyTree
from hamcmc.target import minibatch
from hamcmc.target.estimators import ControlVariate, control_variate
from hamcmc.target.frozen import is_function
from hamcmc.target.landscape import in_memory
from hamcmc.target.posterior import Posterior
from hamcmc.target.sharded import shards_of

AFFORDABLE = 2**31  # data values that may be looked at, over all draws; beyond it random rows stand for all
SUBSAMPLED = 2**29  # data values that are looked at then
POOL = 2**26  # bytes of streamed rows from which these are drawn
BESIDE = 64  # rows beside each other that are drawn together: single ones all over the memory take far longer
PLACES = 256  # at least so many such places, because rows beside each other may be alike
PART = 2**22  # data values in one pass
TOGETHER = 8  # positions whose gradients are computed side by side
SOME = 8192  # rows on which log-densities are compared


class Unconfronted(ValueError):
    """Draws of a run cannot be confronted with gradients, for a reason that lies in the run and not in the code."""


def plain(posterior: Posterior) -> Posterior:
    """The posterior without the estimators of its gradient around it, in full precision: they may be what is wrong."""
    while "plain" in vars(posterior):
        posterior = vars(posterior)["plain"]
    return posterior.wide() if isinstance(posterior, Posterior) else posterior


def structure(posterior: Posterior, leaves: dict[str, np.ndarray]) -> Any:
    """The tree structure of a position, from the posterior's ``init`` or from the names of its leaves.

    Raises:
        Unconfronted: the names do not tell.
    """
    names = list(leaves)
    init = getattr(posterior, "init", None)
    if init is not None:
        found = jax.tree.structure(jax.eval_shape(init, jax.random.key(0)) if is_function(init) else init)
        if found.num_leaves == len(names):
            return found
    one = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in leaves.items()}
    if names == ["theta"]:  # a bare array is called so, and so may be a key
        try:
            jax.eval_shape(posterior.log_prior, one["theta"])
        except Exception:
            return jax.tree.structure(one)
        return jax.tree.structure(one["theta"])
    nested: dict = {}
    for n, leaf in one.items():
        *outer, last = n.split(".")
        inner = nested
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = leaf
    unknown = f"the names of the parameters ({', '.join(names)}) do not show the structure of a position"
    if [id(leaf) for leaf in jax.tree.leaves(nested)] != [id(leaf) for leaf in one.values()]:
        raise Unconfronted(unknown)
    try:
        jax.eval_shape(posterior.log_prior, nested)
    except Exception as error:  # whatever a function says to a dict that should have been something else
        said = str(error).partition("\n")[0]
        raise Unconfronted(f"{unknown}; as a dict it gives {type(error).__name__}: {said}") from error
    return jax.tree.structure(nested)


def parameters_of(posterior: Posterior) -> PyTree:
    """Shapes and types of all sampled parameters, from the posterior's ``init``."""
    init: Any = posterior.init
    return jax.eval_shape((lambda: init(jax.random.key(0))) if is_function(init) else lambda: init)


def at(posterior: Posterior, positions: PyTree, seed: int = 0, halves: np.ndarray | None = None) -> PyTree:
    """Gradients of the log-density at each position (leading axis), on all data if that is affordable.

    Otherwise each position sees random rows of its own, with a control variate at the mean of the positions, for which
    one pass over all data is enough. Its noise is independent between positions and becomes part of the standard
    errors. In units of the posterior its variance is about D/n for n rows, however many data there are.

    Rows of streamed data are drawn from a pool in memory, and what it has too much of is common to all positions. So
    each half of the positions has a pool of its own.

    Args:
        posterior: without estimators.
        positions: with a leading axis.
        seed: chooses rows.
        halves: 0 or 1 for each position; by default all are in one.
    """
    if posterior.size == 0:
        return _mapped(posterior.grad)(positions)
    if shards_of(posterior) is not None and not posterior.streamed:
        return _mapped(posterior.grad)(positions, posterior.data)
    count = len(jax.tree.leaves(positions)[0])
    per_row = max(1, sum(int(np.prod(x.shape[1:])) for x in jax.tree.leaves(posterior.data)))
    if posterior.streamed or posterior.size * per_row * count > AFFORDABLE:
        halves = np.zeros(count, int) if halves is None or not posterior.streamed else halves
        return _on_some_rows(posterior, positions, max(1000, SUBSAMPLED // (count * per_row)), seed, halves)
    parts = -(-posterior.size * per_row // PART)
    if parts == 1:
        return _mapped(posterior.grad)(positions, posterior.data)
    rows = -(-posterior.size // parts)
    mean = jax.tree.map(jnp.zeros_like, positions)
    of_part = _mapped(posterior.mean_likelihood_grad)
    for start in range(0, posterior.size, rows):
        part = jax.tree.map(lambda a, start=start: a[start : start + rows], posterior.data)
        share = min(rows, posterior.size - start) / posterior.size
        mean = jax.tree.map(lambda m, g, share=share: m + share * g, mean, of_part(positions, part))
    return jit(jax.vmap(posterior.combine))(positions, mean)


def _mapped(grad: Any) -> Any:
    """A compiled function of many positions, a few of them side by side."""

    def of_all(positions: PyTree, *data: PyTree) -> PyTree:
        """The gradient at each position."""
        return lax.map(lambda p: grad(p, *data), positions, batch_size=TOGETHER)

    return jit(of_all)


def _on_some_rows(posterior: Posterior, positions: PyTree, rows: int, seed: int, halves: np.ndarray) -> PyTree:
    """Gradients on `rows` random rows at each position, with a control variate at the mean of the positions."""
    centre = posterior.constrain(jax.tree.map(lambda x: jnp.mean(x, axis=0), positions))
    around = control_variate(posterior, centre)
    shards = shards_of(posterior)
    if isinstance(around, ControlVariate) and shards is not None and shards.on_disk is not None:
        # Processes share the pass. Of some rows each process takes all.
        around, posterior = around.over(shards.on_disk), shards.on_disk
    keys = jax.random.split(jax.random.key(seed), len(halves))

    @jit
    def of_all(positions: PyTree, keys: Array, pool: PyTree) -> PyTree:
        """The gradient at each position, on rows that a key of its own chooses."""
        size = len(jax.tree.leaves(pool)[0])
        taken = min(rows, size)
        beside = int(np.clip(taken // PLACES, 1, BESIDE))

        def one(both: tuple[PyTree, Array]) -> PyTree:
            position, key = both
            first = jax.random.randint(key, (-(-taken // beside),), 0, size)
            chosen = (first[:, None] + jnp.arange(beside)) % size  # so that every row is equally likely
            return around.grad(position, minibatch.gather(pool, chosen.ravel()))

        return lax.map(one, (positions, keys))

    found = jax.tree.map(np.zeros_like, positions)
    for k in np.unique(halves):
        pool, inside = in_memory(posterior, seed + int(k), POOL), halves == k
        part = of_all(jax.tree.map(lambda x, inside=inside: x[inside], positions), keys[inside], pool)
        for whole, some in zip(jax.tree.leaves(found), jax.tree.leaves(part)):
            whole[inside] = some  # which waits for it: the pool is needed no more
    return found


def log_densities(posterior: Posterior, positions: PyTree) -> np.ndarray:
    """The log-density at each position, on the first rows and scaled to all data."""
    if posterior.size == 0:
        return np.asarray(jit(jax.vmap(posterior.log_density))(positions), np.float64)
    if (shards := shards_of(posterior)) is not None:
        if shards.on_disk is None:
            return np.asarray(_mapped(posterior.log_density)(positions, posterior.data), np.float64)
        posterior = shards.on_disk
    rows = jax.tree.map(lambda x: put(x[:SOME]), posterior.data) if posterior.streamed else posterior.data
    found = jit(partial(_densities, posterior))(positions, rows)
    return np.asarray(found, np.float64)


def _densities(posterior: Posterior, positions: PyTree, rows: PyTree) -> Array:
    rows = jax.tree.map(lambda x: x[:SOME], rows)
    return lax.map(lambda p: posterior.log_density(p, rows), positions, batch_size=TOGETHER)
