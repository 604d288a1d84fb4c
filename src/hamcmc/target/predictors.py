"""Which linear predictors a likelihood sees of its parameters, found in the likelihood's own operations.

Most regressions see θ only through a few numbers for each row, u = a + A θ, such as the linear predictor x·θ of a
logistic regression. With A known, gradients and second derivatives of a row cost no more than those with respect to u.

JAX traces a function to a list of operations. They are followed from θ on, with the degree of each value as a
polynomial in θ. Values of degree 1 that something not linear takes are the predictors.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

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
ELEMENTWISE = {"mul", "div", "add", "sub", "neg", "select_n"}
ELEMENTWISE |= {"reshape", "squeeze", "broadcast_in_dim", "convert_element_type"}


Root = tuple[int, int]  # the number of an operation, and of one of its outcomes


def degree(operation: Any, degrees: list[float]) -> float:
    """The degree of an operation's outcome as a polynomial in θ, from those of its operands; infinite if unknown."""
    if operation.effects:  # a reference may hold θ, of which no operand tells
        return math.inf
    if max(degrees, default=0) == 0:
        return 0
    if not all(_exact(v.aval.dtype) for v in operation.outvars):
        return math.inf
    return _degree(operation.primitive.name, operation.params, degrees)


def _degree(name: str, params: dict[str, Any], degrees: list[float]) -> float:
    highest = max(degrees)
    if name in SUMS:
        return highest
    if name in SHAPES or name == "div":
        return degrees[0] if max(degrees[1:], default=0) == 0 else math.inf
    if name == "select_n":
        return highest if degrees[0] == 0 else math.inf
    if name in PRODUCTS:
        usual = isinstance(params.get("precision"), (tuple, jax.lax.Precision, type(None)))
        return sum(degrees) if usual else math.inf
    if name == "convert_element_type":
        return highest
    if name == "square":
        return 2 * highest
    if name == "integer_pow" and params["y"] > 0:
        return params["y"] * highest
    return math.inf


def _exact(kind: Any) -> bool:
    """Whether numbers of this type have the digits of single precision."""
    return jnp.issubdtype(kind, jnp.floating) and jnp.dtype(kind).itemsize >= 4


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
    roots: frozenset[Root] = frozenset()
    while True:
        walk = _Walk(roots)
        try:
            jax.eval_shape(partial(walk.through, traced), theta, row)
        except _TooMany:
            return None
        # One number on which several predictors depend, each by a factor and a summand, is a better one than they are.
        times = Counter(cut.root for cut in walk.cuts)
        again = roots | {root for root, many in times.items() if many > 1 and root is not None}
        if again == roots:
            break
        roots = again
    for cut in walk.cuts:
        cut.value = None  # which was only traced
    count = sum(math.prod(cut.shape) for cut in walk.cuts)
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
    """Something that is not linear takes all of the parameters, or nobody knows what it takes."""


class _Linear:
    """A value of degree 1.

    Attributes:
        value: None where only its shape is known.
        root: which outcome of which operation this value is, or the one that it follows from elementwise; None for θ.
    """

    def __init__(self, value: Any, shape: tuple[int, ...], dtype: Any, root: Root | None):
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

    def __init__(self, roots: frozenset[Root], given: list[Array] | None = None):
        self.roots, self.given = roots, given
        self.cuts: list[_Linear] = []
        self.number = 0
        self.seen: dict[tuple, tuple[list, list]] = {}  # linear operations, lest one that is written twice counts twice

    def through(self, traced: ClosedJaxpr, theta: Any, row: PyTree) -> Any:
        """The log-likelihood."""
        known = theta if self.given is None else None
        start = _Linear(known, theta.shape, theta.dtype, None)
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
                made = self.outcome(partial(_made, jaxpr, operation), operation, given)
            known |= zip(operation.outvars, made)
        return [of(v) for v in jaxpr.outvars]

    def outcome(self, make: Callable[[list], list], operation: Any, given: list) -> list:
        """The outcomes of one operation, which `make` makes of values."""
        self.number += 1
        if operation.effects:
            raise _TooMany
        linear = [g for g in given if isinstance(g, _Linear)]
        other = any(isinstance(g, _Other) for g in given)
        if not linear and not other:
            return make(given)
        if other or degree(operation, [float(isinstance(g, _Linear)) for g in given]) > 1:
            values = [self.plain(g) for g in given]
            bent = [isinstance(g, (_Linear, _Other)) for g in given]
            if sum(bent) == 1 and _is_logaddexp(operation, make):
                x, fixed = values if bent[0] else values[::-1]
                return [_Other(_log_of_sum(x, fixed))]
            return [_Other(m) for m in make(values)]
        known = (operation.primitive, str(operation.params), *map(id, given))
        if known not in self.seen:
            self.seen[known] = given, self.linear(make, operation, given, linear)  # with what keeps these identities
        return self.seen[known][1]

    def linear(self, make: Callable[[list], list], operation: Any, given: list, linear: list[_Linear]) -> list:
        """The outcomes of an operation that is linear in θ."""
        outs = [v.aval for v in operation.outvars]
        values: list = [None] * len(outs)
        if self.given is None:
            values = make([g.value if isinstance(g, _Linear) else g for g in given])
        one = len(linear) == 1 and math.prod(linear[0].shape) == math.prod(outs[0].shape) == 1
        if one and operation.primitive.name in ELEMENTWISE and linear[0].root is not None:
            return [_Linear(values[0], outs[0].shape, outs[0].dtype, linear[0].root)]
        found = [_Linear(v, x.shape, x.dtype, (self.number, i)) for i, (v, x) in enumerate(zip(values, outs))]
        return [_Other(self.plain(f)) if f.root in self.roots else f for f in found]

    def plain(self, value: Any) -> Any:
        """A value for an operation that is not linear: that of a predictor, if it is linear in θ."""
        if isinstance(value, _Other):
            return value.value
        if not isinstance(value, _Linear):
            return value
        if value.root is None:
            raise _TooMany
        if not any(value is cut for cut in self.cuts):
            self.cuts.append(value)
        if self.given is None:
            return value.value
        return self.given[next(i for i, cut in enumerate(self.cuts) if cut is value)]


def _inner(operation: Any) -> ClosedJaxpr:
    """The operations that a call groups."""
    return operation.params.get("jaxpr") or operation.params["call_jaxpr"]


def _made(jaxpr: Any, operation: Any, values: list) -> list:
    """What one of the operations of a list makes of values."""
    named = {v: x for v, x in zip(operation.invars, values) if not isinstance(v, Literal)}
    alone = {"constvars": [], "invars": list(named), "outvars": operation.outvars, "eqns": [operation]}
    return jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(**alone, effects=operation.effects), []))(*named.values())


def _is_logaddexp(operation: Any, make: Callable[[list], list]) -> bool:
    """Whether an operation and its derivative do step by step what `jnp.logaddexp` and its derivative do."""
    if operation.primitive.name != "custom_jvp_call" or len(operation.invars) != 2:
        return False
    free = tuple(not isinstance(v, Literal) for v in operation.invars)
    like = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v, f in zip(operation.invars, free) if f]

    def written(f: Callable) -> str:
        """The derivative, as a list of operations."""

        def of_free(*x: Array) -> Array:
            rest = iter(x)
            return f(*(next(rest) if is_free else v.val for v, is_free in zip(operation.invars, free)))

        return str(jax.make_jaxpr(lambda x, along: jax.jvp(of_free, x, along))(tuple(like), tuple(like)))

    return written(lambda *values: make(list(values))[0]) == written(jnp.logaddexp)


@jax.custom_jvp
def _log_of_sum(x: Array, fixed: Array) -> Array:
    """`jnp.logaddexp` with a derivative that costs one exponential, where JAX's takes six times as long."""
    return jnp.logaddexp(x, fixed)


@_log_of_sum.defjvp
def _log_of_sum_derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    x, fixed = primals
    return _log_of_sum(x, fixed), jax.nn.sigmoid(x - fixed) * tangents[0]  # `fixed` does not depend on θ
