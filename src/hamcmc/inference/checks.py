"""What can be checked of a model before the first step: the shapes of its functions, and their values at the start."""

from functools import partial

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import tree_leaves_with_path

from hamcmc import _processes
from hamcmc._compile import jit, put
from hamcmc._types import PyTree
from hamcmc.target import narrow
from hamcmc.target.frozen import name_of
from hamcmc.target.posterior import Posterior
from hamcmc.target.sharded import shards_of


def densities(posterior: Posterior, position: PyTree, batch: PyTree) -> dict[str, jax.Array]:
    """The two parts of the log-density, the likelihood of each datum."""
    theta = posterior.constrain(position)
    found = {"log_prior": posterior.log_prior(theta)}
    if posterior.log_likelihood is not None:
        found["log_likelihood"] = posterior.log_likelihoods(theta, batch)
    return found


def check_shapes(posterior: Posterior, position: PyTree, batch_size: int | None) -> None:
    """Raise unless both parts of the log-density are scalars, and the likelihood looks at the rows that it gets."""
    rows = rows_seen(posterior, batch_size)
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype)), posterior.data
    )
    try:
        traced, found = jax.make_jaxpr(partial(densities, posterior), return_shape=True)(position, batch)
    except (TypeError, ValueError) as error:
        if posterior.log_likelihood is not None:
            many = f"log_likelihood was called with {rows:,} rows, because batched=True was given."
            one = "log_likelihood was called with one row. With Posterior(…, batched=True) it gets many at once."
            error.add_note(many if posterior.batched else one)
        raise
    for name, value in found.items():
        if not isinstance(value, jax.ShapeDtypeStruct):
            forgot = ": is its `return` missing?" if value is None else ""
            raise ValueError(f"{name} must return a scalar, got {type(value).__name__}{forgot}")
        if name == "log_likelihood" and posterior.batched:
            if value.shape != (rows,):
                raise ValueError(
                    f"log_likelihood must return a number for each of {rows:,} rows, because batched=True was given: "
                    f"shape ({rows},), got {value.shape}"
                )
            continue
        leading = (1,) if name == "log_likelihood" else ()
        if len(value.shape) != len(leading):
            of = " of one datum" if leading else ""
            raise ValueError(f"{name} must return a scalar{of}, got shape {value.shape[len(leading) :]}")
    if "log_likelihood" in found:
        wanted = [path[0].key == "log_likelihood" for path, _ in tree_leaves_with_path(found)]  # type: ignore[union-attr]
        _, used = dce_jaxpr(traced.jaxpr, wanted)
        if not any(used[-len(jax.tree.leaves(batch)) :]):
            what = "rows" if posterior.batched else "row"
            raise ValueError(
                f"log_likelihood does not depend on the {what} in its second argument. hamcmc evaluates it at each "
                "row and adds up, so that a sum over all data would be counted once for every row. Take the data from "
                "that argument"
            )


def rows_seen(posterior: Posterior, batch_size: int | None) -> int:
    """Rows of what a step gets: those of a minibatch or of all data, and where devices share them some to fill up."""
    shards = shards_of(posterior)
    return batch_size or posterior.size if shards is None else shards.rows_seen(batch_size)


def check_start(posterior: Posterior, positions: list[PyTree], batch_size: int | None) -> None:
    """Raise unless the log-density and its gradient are finite where each chain starts.

    It is evaluated on the first rows of the data, as many as a minibatch has, or on the first of each process.
    """
    if (shards := shards_of(posterior)) is not None:
        held = shards.share.held
        positions = [held.unconstrain_unchecked(posterior.constrain(p)) for p in positions]
        few = None if batch_size is None else min(batch_size, held.size)
        _processes.all_or_none(partial(check_start, held, positions, few), ValueError)
        return
    narrow.require_harmless(posterior, positions[0], batch_size)
    batch = jax.tree.map(lambda x: put(x[:batch_size] if batch_size else x), posterior.data)

    @jit
    def evaluate(position: PyTree, batch: PyTree) -> tuple[dict[str, jax.Array], PyTree]:
        """Both parts, and the gradient of their sum."""
        return densities(posterior, position, batch), posterior.grad(position, batch)

    for chain, position in enumerate(positions):
        found, grad = evaluate(position, batch)
        for name, value in found.items():
            bad = np.ravel(value)[~np.isfinite(np.ravel(value))]
            if bad.size:
                raise ValueError(f"{name} is {bad[0]} at the start of chain {chain}: choose another init")
        for path, leaf in tree_leaves_with_path(grad):
            if not np.isfinite(leaf).all():
                raise ValueError(
                    f"the log-density's gradient in parameter {name_of(path)} is not finite at the start of "
                    f"chain {chain}: choose another init"
                )
