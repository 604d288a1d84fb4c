"""The support of a parameter, and the two ways to keep the parameter in it.

* **Bijection**: sample an unconstrained variable and map it into the support; the density gets the log-Jacobian.
* **Mirror** (as in the paper): sample the parameter itself and fold it back after each step, ``θ ← |θ|``.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc._types import Facts, PyTree


class Support(NamedTuple):
    """The maps of one parameter, all of them elementwise.

    Attributes:
        forward: unconstrained value → parameter.
        inverse: parameter → unconstrained value.
        log_jacobian: ``log |d forward / du|`` at an unconstrained value.
        mirror: fold a value back into the support, or None.
        contains: whether a parameter value is inside.
        text: for messages.
        at_end: whether a parameter value is the last number before the end of the support, beyond which the precision
            knows none; None if there is no such end.
    """

    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    log_jacobian: Callable[[Array], Array]
    mirror: Callable[[Array], Array] | None
    contains: Callable[[Array], Array]
    text: str
    at_end: Callable[[Array], Array] | None = None


def _same(x: Array) -> Array:
    return x


real = Support(_same, _same, jnp.zeros_like, None, jnp.isfinite, "real")


def positive(by: Literal["bijection", "mirror"] = "bijection") -> Support:
    """θ > 0: sampled as log θ (bijection), or folded by ``θ ← |θ|`` (mirror).

    Use the mirror only if the gradient of the log-density stays finite at 0. A gradient that grows like 1/θ, as that of
    a Gamma density with a shape above 1 does, throws a draw near 0 far away at any step size.
    """

    def inside(x: Array) -> Array:
        return x > 0

    if _way(by) == "mirror":
        return real._replace(mirror=jnp.abs, contains=inside, text="positive (mirror)")

    def tiny(x: Array) -> float:
        return float(jnp.finfo(jnp.result_type(x, float)).tiny)

    return Support(
        lambda u: jnp.maximum(jnp.exp(u), tiny(u)),
        jnp.log,
        _same,
        None,
        inside,
        "positive (log)",
        lambda x: x <= tiny(x),
    )


def bounded(low: float, high: float, by: Literal["bijection", "mirror"] = "bijection") -> Support:
    """low < θ < high: sampled as a logit (bijection), or folded at both ends (mirror)."""
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(f"bounded needs finite low < high, got {low!r} and {high!r}")
    width = high - low

    def inside(x: Array) -> Array:
        return (x > low) & (x < high)

    def fold(x: Array) -> Array:
        u = jnp.mod(x - low, 2 * width)
        return low + jnp.minimum(u, 2 * width - u)

    if _way(by) == "mirror":
        return real._replace(mirror=fold, contains=inside, text=f"in ({low}, {high}) (mirror)")

    def ends(x: Array) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last number inside, so that a density which is infinite at an end is not asked there."""
        kind = jnp.result_type(x, float)
        first, last = (np.nextafter(kind.type(a), kind.type(b)) for a, b in ((low, high), (high, low)))
        tiny = jnp.finfo(kind).tiny
        return max(first, tiny) if low == 0 else first, min(last, -tiny) if high == 0 else last

    return Support(
        lambda u: jnp.clip(low + width * jax.nn.sigmoid(u), *ends(u)),
        lambda x: jnp.log(x - low) - jnp.log(high - x),
        lambda u: jnp.log(width) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u),
        None,
        inside,
        f"in ({low}, {high}) (logit)",
        lambda x: (x <= ends(x)[0]) | (x >= ends(x)[1]),
    )


def _way(by: str) -> str:
    if by not in ("bijection", "mirror"):
        raise ValueError(f"by must be 'bijection' or 'mirror', got {by!r}")
    return by


def of_leaves(support: Support | Facts | None, position: PyTree) -> PyTree:
    """A pytree like `position` with the Support of each leaf. A leaf that `support` does not name is real."""
    if support is None or isinstance(support, Support):
        return jax.tree.map(lambda _: support or real, position)
    if not isinstance(position, Mapping):
        raise ValueError("support by name needs a position that is a dict")
    unknown = set(support) - set(position)
    if unknown:
        raise ValueError(f"support names {sorted(unknown)}, which the position does not have: {sorted(position)}")
    return {k: of_leaves(support.get(k), v) for k, v in position.items()}


def tree_map(f: Callable, supports: PyTree, *trees: PyTree) -> PyTree:
    """`jax.tree.map` with a Support as the first argument of `f` at each leaf."""
    return jax.tree.map(f, supports, *trees, is_leaf=lambda x: isinstance(x, Support))
