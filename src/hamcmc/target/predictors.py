"""Which linear predictors a likelihood sees of its parameters, found in the likelihood's own operations.

Most regressions see θ only through a few numbers for each row, u = a + A θ, such as the linear predictor x·θ of a
logistic regression. With A known, gradients and second derivatives of a row cost no more than those with respect to u.

JAX traces a function to a list of operations. They are followed from θ on, with the degree of each value as a
polynomial in θ. Values of degree 1 that something not linear takes are the predictors.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Literal, jaxpr_as_fun

from hamcmc._types import PyTree

CALLS = ("jit", "pjit", "closed_call")  # operations that only group others

# Operations that are linear in their first operand, whatever numbers say how
SHAPES = {
    *("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "rev", "copy", "copy_p", "neg"),
    *("slice", "split", "dynamic_slice", "gather", "reduce_sum", "cumsum"),
}
SUMS = {"add", "sub", "add_any", "concatenate", "pad"}  # of operands, or of their parts
PRODUCTS = {"mul", "dot_general"}

# Operations that make one number from another one and from numbers without θ: one of both is enough to know the other
ELEMENTWISE = {"mul", "div", "add", "sub", "neg", "reshape", "squeeze", "broadcast_in_dim", "convert_element_type"}


def degree(operation: Any, degrees: list[float]) -> float:
    """The degree of an operation's outcome as a polynomial in θ, from those of its operands; infinite if unknown."""
    name, params = operation.primitive.name, operation.params
    highest = max(degrees, default=0)
    if highest == 0:
        return 0
    if name in SUMS:
        return highest
    if name in SHAPES or name == "div":
        return degrees[0] if max(degrees[1:], default=0) == 0 else math.inf
    if name == "select_n":
        return highest if degrees[0] == 0 else math.inf
    if name in PRODUCTS:
        return sum(degrees)
    if name == "convert_element_type":
        kind = jnp.dtype(params["new_dtype"])  # of fewer digits it would be rounded
        return highest if jnp.issubdtype(kind, jnp.floating) and kind.itemsize >= 4 else math.inf
    if name == "square":
        return 2 * highest
    if name == "integer_pow" and params["y"] > 0:
        return params["y"] * highest
    return math.inf


def is_quadratic(f: Callable[[PyTree], Array], x: PyTree) -> bool:
    """Whether f is seen to be a polynomial of degree 2 or less, so that its second derivatives are constant."""
    traced = jax.make_jaxpr(f)(x)

    def follow(jaxpr: Any, degrees: list[float]) -> list[float]:
        known = dict(zip(jaxpr.invars, degrees))

        def of(v: Any) -> float:
            return 0 if isinstance(v, Literal) else known.get(v, 0)

        for operation in jaxpr.eqns:
            given = [of(v) for v in operation.invars]
            if operation.primitive.name in CALLS:
                made = follow(_inner(operation).jaxpr, given)
            else:
                made = [degree(operation, given)] * len(operation.outvars)
            known |= zip(operation.outvars, made)
        return [of(v) for v in jaxpr.outvars]

    return max(follow(traced.jaxpr, [1] * len(traced.jaxpr.invars))) <= 2


class Predictors(NamedTuple):
    """A likelihood ℓ(θ, row) as a function of its linear predictors u (k,).

    Attributes:
        number: k.
        values: ``(θ, row) -> u``, affine in θ.
        likelihood: ``(u, row) -> ℓ``.
    """

    number: int
    values: Callable[[Array, PyTree], Array]
    likelihood: Callable[[Array, PyTree], Array]

    def matrix(self, theta: Array, row: PyTree) -> Array:
        """A (k, D), the derivative of the predictors, which is the same for all θ."""
        return jax.jacrev(self.values)(theta, row)

    def columns(self, row: PyTree) -> list[bool]:
        """Which leaves of a row ℓ needs beside the predictors."""
        u = jax.ShapeDtypeStruct((self.number,), jnp.result_type(float))
        jaxpr = jax.make_jaxpr(self.likelihood)(u, row).jaxpr
        needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
        for operation in reversed(jaxpr.eqns):
            if needed & set(operation.outvars):
                needed |= {v for v in operation.invars if not isinstance(v, Literal)}
        return [v in needed for v in jaxpr.invars[1:]]


def find(log_likelihood: Callable[[Array, PyTree], Array], theta: Any, row: PyTree, most: int) -> Predictors | None:
    """The predictors of a likelihood, or None if it has more than `most` of them.

    Args:
        log_likelihood: ``(θ, row) -> ℓ`` of one row, as a function of a flat θ.
        theta: θ, or its shape and type.
        row: a row, or its shapes and types.
        most: the largest k.
    """
    traced = jax.make_jaxpr(log_likelihood)(theta, row)
    roots: frozenset[int] = frozenset()
    while True:
        walk = _Walk(roots)
        try:
            jax.eval_shape(partial(walk.through, traced), theta, row)
        except _TooMany:
            return None
        # One number on which several predictors depend, each by a factor and a summand, is a better one than they are.
        again = roots | {cut.root for cut in walk.cuts if sum(other.root == cut.root for other in walk.cuts) > 1}
        if again == roots:
            break
        roots = again
    shapes = [cut.shape for cut in walk.cuts]
    count = sum(map(math.prod, shapes))
    if not 0 < count <= most:
        return None

    def values(theta: Array, row: PyTree) -> Array:
        forward = _Walk(roots)
        forward.through(traced, theta, row)
        return jnp.concatenate([jnp.ravel(cut.value).astype(theta.dtype) for cut in forward.cuts])

    def likelihood(u: Array, row: PyTree) -> Array:
        parts, begin = [], 0
        for cut in walk.cuts:
            size = math.prod(cut.shape)
            parts.append(u[begin : begin + size].reshape(cut.shape).astype(cut.dtype))
            begin += size
        return _Walk(roots, parts).through(traced, jax.ShapeDtypeStruct(theta.shape, theta.dtype), row)

    return Predictors(count, values, likelihood)


class _TooMany(Exception):
    """Something that is not linear takes all of the parameters."""


class _Linear:
    """A value of degree 1.

    Attributes:
        value: None where only its shape is known.
        root: the number of the operation that made this value, or the one that it follows from elementwise.
    """

    def __init__(self, value: Any, shape: tuple[int, ...], dtype: Any, root: int):
        self.value, self.shape, self.dtype, self.root = value, shape, dtype, root


class _Other(NamedTuple):
    """A value that depends on θ, and is not of degree 1."""

    value: Any


class _Walk:
    """A walk through the operations of a likelihood.

    Args:
        roots: operations whose outcome is a predictor at once.
        given: values of the predictors, in order; without them θ has a value, and the predictors are found.
    """

    def __init__(self, roots: frozenset[int], given: list[Array] | None = None):
        self.roots, self.given = roots, given
        self.cuts: list[_Linear] = []
        self.number = 0
        self.seen: dict[tuple, tuple[list, list]] = {}  # linear operations, lest one that is written twice counts twice

    def through(self, traced: ClosedJaxpr, theta: Any, row: PyTree) -> Any:
        """The log-likelihood."""
        known = theta if self.given is None else None
        start = _Linear(known, theta.shape, theta.dtype, -1)
        (out,) = self.follow(traced.jaxpr, traced.consts, [start, *jax.tree.leaves(row)])
        return self.plain(out)

    def follow(self, jaxpr: Any, constants: list, inputs: list) -> list:
        """The outcomes of a list of operations."""
        known = dict(zip(jaxpr.constvars, constants)) | dict(zip(jaxpr.invars, inputs))

        def of(v: Any) -> Any:
            return v.val if isinstance(v, Literal) else known[v]

        for operation in jaxpr.eqns:
            given = [of(v) for v in operation.invars]
            if operation.primitive.name in CALLS:
                inner = _inner(operation)
                made = self.follow(inner.jaxpr, inner.consts, given)
            else:
                made = self.outcome(operation, given)
            known |= zip(operation.outvars, made)
        return [of(v) for v in jaxpr.outvars]

    def outcome(self, operation: Any, given: list) -> list:
        """The outcomes of one operation."""
        self.number += 1
        linear = [g for g in given if isinstance(g, _Linear)]
        other = any(isinstance(g, _Other) for g in given)
        if not linear and not other:
            return _made(operation, given)
        if other or degree(operation, [float(isinstance(g, _Linear)) for g in given]) > 1:
            values = [self.plain(g) for g in given]
            bent = [isinstance(g, (_Linear, _Other)) for g in given]
            if sum(bent) == 1 and _is_logaddexp(operation):
                x, fixed = values if bent[0] else values[::-1]
                return [_Other(_log_of_sum(x, fixed))]
            return [_Other(m) for m in _made(operation, values)]
        known = (operation.primitive, str(operation.params), *map(id, given))
        if known not in self.seen:
            self.seen[known] = given, self.linear(operation, given, linear)  # with what keeps these identities
        return self.seen[known][1]

    def linear(self, operation: Any, given: list, linear: list[_Linear]) -> list:
        """The outcomes of an operation that is linear in θ."""
        outs = [v.aval for v in operation.outvars]
        values: list = [None] * len(outs)
        if self.given is None:
            values = _made(operation, [g.value if isinstance(g, _Linear) else g for g in given])
        follows = operation.primitive.name in ELEMENTWISE and len(linear) == 1 and linear[0].root >= 0
        follows = follows and math.prod(linear[0].shape) == math.prod(outs[0].shape) == 1
        root = linear[0].root if follows else self.number
        found = [_Linear(v, out.shape, out.dtype, root) for v, out in zip(values, outs)]
        return [_Other(self.plain(f)) for f in found] if root in self.roots and not follows else list(found)

    def plain(self, value: Any) -> Any:
        """A value for an operation that is not linear: that of a predictor, if it is linear in θ."""
        if isinstance(value, _Other):
            return value.value
        if not isinstance(value, _Linear):
            return value
        if value.root < 0:
            raise _TooMany
        if not any(value is cut for cut in self.cuts):
            self.cuts.append(value)
        if self.given is None:
            return value.value
        return self.given[next(i for i, cut in enumerate(self.cuts) if cut is value)]


def _inner(operation: Any) -> ClosedJaxpr:
    """The operations that a call groups."""
    return operation.params.get("jaxpr") or operation.params["call_jaxpr"]


def _made(operation: Any, values: list) -> list:
    """What an operation makes of values."""
    named = {v: x for v, x in zip(operation.invars, values) if not isinstance(v, Literal)}
    names = str(operation.primitive), __name__, ("",) * len(named), ("",) * len(operation.outvars)
    alone = Jaxpr((), list(named), operation.outvars, [operation], operation.effects, DebugInfo(*names))
    return jaxpr_as_fun(ClosedJaxpr(alone, ()))(*named.values())


def _is_logaddexp(operation: Any) -> bool:
    """Whether an operation does step by step what `jnp.logaddexp` does."""
    if operation.primitive.name != "custom_jvp_call" or len(operation.invars) != 2:
        return False
    like = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operation.invars]
    (known,) = jax.make_jaxpr(jnp.logaddexp)(*like).jaxpr.eqns[-1:]
    return str(operation.params["call_jaxpr"]) == str(known.params.get("call_jaxpr"))


@jax.custom_jvp
def _log_of_sum(x: Array, fixed: Array) -> Array:
    """`jnp.logaddexp` with a derivative that costs one exponential, where JAX's takes six times as long."""
    return jnp.logaddexp(x, fixed)


@_log_of_sum.defjvp
def _log_of_sum_derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, fixed = primals
    return _log_of_sum(x, fixed), jax.nn.sigmoid(x - fixed) * tangents[0]  # `fixed` does not depend on θ
