"""What a run writes at each draw: all parameters, some of them by name, or a function of them.

The compiled loop records whole draws. They are cut down between two segments, before they are written, so that the
chains, the running moments and the watch over the run are those of a run that writes everything.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import tree_leaves_with_path, tree_map_with_path

from hamcmc._compile import jit
from hamcmc._types import Facts, PyTree, Record
from hamcmc.store.errors import RunError
from hamcmc.target.frozen import inside, name_of
from hamcmc.target.passes import plain
from hamcmc.target.posterior import Posterior

Store = Sequence[str] | Callable[[PyTree], PyTree]
RESERVED = ("", ".", "..", "zarr.json", "chain", "draw")
BARE = "stored"  # the name of what a function returns, if it is one array
ALIKE = 1e-3  # relative difference up to which two functions return the same at the start


class Stored(NamedTuple):
    """What is written of each draw.

    Attributes:
        of: the parameters of one draw → what is written of them.
        cut: the same for draws with leading axes (draw, chain).
        names: of the parameters that are written; None for a function.
    """

    of: Callable[[PyTree], PyTree]
    cut: Callable[[PyTree], PyTree]
    names: list[str] | None

    def arrays(self, theta: PyTree) -> list[Record]:
        """Group, name, shape and type of what is written, from shapes and types of the parameters."""
        return [
            {"group": "posterior", "name": named(path), "shape": list(x.shape), "dtype": str(x.dtype)}
            for path, x in tree_leaves_with_path(jax.eval_shape(self.of, theta))
        ]

    def record(self, start: PyTree) -> Record:
        """For run.json: the names, or of a function what it returns at the start, by which it is known again."""
        if self.names is not None:
            return {"names": self.names}
        found = {named(path): float(np.mean(x)) for path, x in tree_leaves_with_path(jit(self.of)(start))}
        for name, value in found.items():
            if not np.isfinite(value):
                raise ValueError(f"store: {name} is {value} at the start of the first chain")
        return {"function": found}

    def not_finite(self, found: Mapping[str, np.ndarray]) -> tuple[int, str] | None:
        """The first of draws (draw, chain, …), by ``group/name``, that a function made not finite, and its name."""
        names = [] if self.names is not None else [key for key in found if key.startswith("posterior/")]
        finite = [np.isfinite(found[key]).reshape(len(found[key]), -1).all(1) for key in names]
        bad = [(int(np.argmin(x)), key.removeprefix("posterior/")) for x, key in zip(finite, names) if not x.all()]
        return min(bad) if bad else None


def named(path: tuple) -> str:
    """The name under which a leaf is written."""
    return name_of(path, BARE)


def stored(store: Store | None, posterior: Posterior, theta: PyTree) -> Stored | None:
    """What is written of each draw; None for all of it.

    Args:
        store: names of parameters or of branches, or a function of the parameters.
        posterior: knows the parameters that are not sampled.
        theta: shapes and types of the sampled parameters.

    Raises:
        ValueError: a name that is not there, or a function that does not return floating-point arrays with names.
    """
    if store is None:
        return None
    if callable(store):
        return _function(store, posterior, theta)
    names = [name_of(path) for path, _ in tree_leaves_with_path(theta)]
    if isinstance(store, str) or not all(isinstance(s, str) for s in store) or not len(store):
        raise ValueError(f"store must be a list of names or a function of the parameters, got {store!r}")
    for branch in store:
        if not any(inside(n, branch) for n in names):
            raise ValueError(f"store: there is no sampled parameter {branch!r}; there are {', '.join(names)}")
    kept = [n for n in names if any(inside(n, branch) for branch in store)]
    if kept == names:
        return None

    def of(tree: PyTree) -> PyTree:
        """The parameters that are written, with None in the place of the others."""
        return tree_map_with_path(lambda path, x: x if name_of(path) in kept else None, tree)

    return Stored(of, of, kept)


def _function(function: Callable[[PyTree], PyTree], posterior: Posterior, theta: PyTree) -> Stored:
    """What a function of the parameters returns; it gets them as `log_likelihood` does."""
    model = plain(posterior)

    def of(tree: PyTree) -> PyTree:
        """At one draw."""
        return jax.tree.map(jnp.asarray, function(model.whole(tree)))

    names: set[str] = set()
    for path, x in tree_leaves_with_path(jax.eval_shape(of, theta)):
        name = named(path)
        if name in names or name in RESERVED or "/" in name or not name.isprintable():
            raise ValueError(f"store: {name!r} must be a unique name without '/', other than chain and draw")
        if x.dtype.kind != "f" or 0 in x.shape:
            raise ValueError(f"store: {name} must be an array of floating-point numbers, got {x.dtype}{list(x.shape)}")
        names.add(name)
    if not names:
        raise ValueError("store: the function must return an array, or arrays with names, and returned nothing")
    each = jit(lambda draws: lax.map(jax.vmap(of), draws))
    return Stored(of, lambda draws: each(jax.tree.map(np.asarray, draws)), None)


def given_again(store: Store | None, asked: Facts, path: Path) -> Store | None:
    """What a run that is resumed writes: the names in run.json, or the function that must be given again."""
    known = asked.get("store")
    if known is None or store is not None:
        return store
    if "names" not in known:
        raise RunError(f"{path} stores a function of the parameters, which run.json cannot hold: give store to resume")
    return known["names"]


def require_same(then: Facts, now: Facts, path: Path) -> None:
    """Raise unless a run that is resumed writes what it wrote before."""
    old, new = then.get("store"), now.get("store")
    if old is not None and new is not None and "function" in old and "function" in new:
        a, b = old["function"], new["function"]
        if a.keys() == b.keys() and np.allclose(list(a.values()), [b[k] for k in a], ALIKE, 1e-12):
            return
    elif old == new:
        return
    raise RunError(f"{path} was run with another store: {old} then, {new} now")
