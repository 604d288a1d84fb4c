"""Parameters of which only a part is sampled: modules of Equinox, other pytrees with functions in them, frozen layers.

The sampled part has the structure of the whole, with None in the place of everything else. So it is a pytree of
floating-point arrays, as samplers need it, and :func:`whole` puts it together again with the rest.
"""

from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path

from hamcmc._types import PyTree

Choice = Sequence[str] | Callable[[str, Any], bool]
LEAF = jax.tree.structure(0)


def is_function(init: Any) -> bool:
    """Whether an `init` is a function of a key, and not parameters. A module of Equinox can be called, too."""
    return callable(init) and jax.tree.structure(init) == LEAF


def is_module(tree: PyTree) -> bool:
    """Whether a pytree has leaves that are no numbers, such as the activation functions of a network."""
    return not all(hasattr(leaf, "dtype") or isinstance(leaf, Number) for leaf in jax.tree.leaves(tree))


def name_of(path: tuple, bare: str = "theta") -> str:
    """The name of a pytree leaf: its keys joined by dots; `bare` for a pytree that is one array."""
    return ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path) or bare


def divided(tree: PyTree, sampled: Choice | None) -> tuple[PyTree, PyTree]:
    """The sampled part of parameters and the rest, each with None in the place of the other.

    Args:
        tree: all parameters.
        sampled: names of leaves or of branches, such as ``["layers.2"]``; or a function of name and leaf; or None for
            all floating-point arrays.

    Raises:
        ValueError: a name that is not there, an array of integers among what is sampled, or nothing to sample.
    """
    names = {name_of(path): leaf for path, leaf in tree_leaves_with_path(tree)}
    chosen = {n for n, leaf in names.items() if _is_chosen(n, leaf, sampled)}
    if sampled is not None and not callable(sampled):
        for name in sampled:
            if not any(inside(n, name) for n in names):
                raise ValueError(f"sampled: there is no parameter {name!r}; there are {', '.join(names)}")
    for name in names:
        kind = np.dtype(getattr(names[name], "dtype", object)).kind
        if name in chosen and kind != "f":
            what = f"an array of {names[name].dtype}" if kind != "O" else f"of type {type(names[name]).__name__}"
            raise ValueError(
                f"parameter {name} cannot be sampled, because it is {what}: "
                "name with sampled=[…] the parameters that are to be sampled"
            )
    if not chosen:
        raise ValueError("there is nothing to sample: no parameter is a floating-point array that was chosen")
    part = tree_map_with_path(lambda path, leaf: leaf if name_of(path) in chosen else None, tree)
    rest = tree_map_with_path(lambda path, leaf: None if name_of(path) in chosen else leaf, tree)
    return part, rest


def whole(part: PyTree, rest: PyTree) -> PyTree:
    """All parameters, from the sampled part and the rest.

    Raises:
        ValueError: the part is of other parameters.
    """
    try:
        return jax.tree.map(lambda a, b: b if a is None else a, part, rest, is_leaf=lambda x: x is None)
    except ValueError as error:
        found, wanted = (
            ", ".join(keystr(p) for p, _ in tree_leaves_with_path(t, is_leaf=lambda x: x is None)) for t in (part, rest)
        )
        raise ValueError(f"these parameters have another structure: {found} and not {wanted}") from error


def _is_chosen(name: str, leaf: Any, sampled: Choice | None) -> bool:
    """Whether a leaf is to be sampled. Without a choice these are all arrays, so that one of integers is an error.

    Of a branch it is all arrays, too: a network's activation is a leaf that nobody means.
    """
    if sampled is None:
        return hasattr(leaf, "dtype")
    if callable(sampled):
        return bool(sampled(name, leaf))
    return name in sampled or (hasattr(leaf, "dtype") and any(inside(name, branch) for branch in sampled))


def inside(name: str, branch: str) -> bool:
    """Whether a leaf is the named one, or belongs to the named branch."""
    return name == branch or name.startswith(f"{branch}.")
