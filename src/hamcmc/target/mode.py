"""The posterior mode by L-BFGS, a good place to start."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import tree_leaves_with_path

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior, name_of

STALLED = 10  # iterations without a decrease of U after which the search ends


def find_mode(
    posterior: Posterior,
    parameters: PyTree,
    *,
    batch_size: int | None = None,
    iterations: int = 200,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> PyTree:
    """The maximum a-posteriori parameters by L-BFGS with line search (optax), inside one compiled loop.

    Args:
        posterior: the density.
        parameters: where to start, in the support.
        batch_size: use one fixed minibatch of this size; None for all data.
        iterations: at most this many.
        tolerance: stop when ‖∇U‖ ≤ tolerance, or when U has not decreased for ten iterations, which is where its digits
            end. ‖∇U‖ at the start plays no part: with much data, the gradient of a hyper-parameter is small there.
        seed: draws the minibatch.

    Returns:
        Parameters at the mode. For parameters that are sampled by a bijection this is the mode of the *unconstrained*
        density, in which the sampler moves.
    """
    _check.at_least("iterations", iterations, 1)
    _check.positive("tolerance", tolerance)
    data = posterior.data
    if batch_size is not None:
        n = _check.at_least("batch_size", batch_size, 1)
        if n > posterior.size:
            raise ValueError(f"batch_size {n} is larger than the data: {posterior.size} rows")
        rows = minibatch.draw(jax.random.key(seed), jnp.int32(0), posterior.size, n, replace=False)
        data = minibatch.gather(data, jax.device_get(rows) if posterior.streamed else rows)
    elif posterior.streamed:
        raise ValueError("find_mode on streamed data needs batch_size: the data may not fit in memory")

    import optax  # here, because it takes time to import and few programs need it

    solver = optax.lbfgs()
    fold = posterior.mirror or _same  # a mirrored density is symmetric: L-BFGS may cross the edge

    @jax.jit
    def solve(position, data):
        def potential(x):
            return -posterior.log_density(fold(x), data)

        value_and_grad = optax.value_and_grad_from_state(potential)

        def step(carry):
            position, state, best, count, _, stalled = carry
            value, grad = value_and_grad(position, state=state)
            better = value < best[0]
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), (value, position), best)
            updates, state = solver.update(grad, state, position, value=value, grad=grad, value_fn=potential)
            position = optax.apply_updates(position, updates)
            return position, state, best, count + 1, optax.tree.norm(grad), jnp.where(better, 0, stalled + 1)

        def more(carry):
            _, _, _, count, norm, stalled = carry
            return (count < iterations) & ~(norm <= tolerance) & (stalled < STALLED)

        best = jnp.full_like(potential(position), jnp.inf), position
        # Return the best position seen: where digits end, a line search may lead anywhere.
        last, _, best, *_ = lax.while_loop(more, step, (position, solver.init(position), best, 0, jnp.inf, 0))
        return best[1], last

    start = posterior.unconstrain(jax.tree.map(jnp.asarray, parameters))
    found, last = solve(start, data)
    for path, leaf in tree_leaves_with_path(last):
        if not bool(jnp.isfinite(leaf).all()):
            raise ValueError(f"find_mode left the finite numbers in parameter {name_of(path)}: start elsewhere")
    return posterior.constrain(fold(found))


def _same(x: PyTree) -> PyTree:
    return x
