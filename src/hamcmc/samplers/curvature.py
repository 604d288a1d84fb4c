"""Quasi-Newton curvature in the space of 2m inner products.

L-BFGS turns m pairs ``(s_k, y_k)``, a displacement and the change of ∇U along it, into an approximation H of
the inverse Hessian. A Langevin sampler needs ``H g`` for the drift and ``S z`` with ``S Sᵀ = H`` for the noise.
Both are linear combinations of ``{s_k, y_k, g, z}``, with coefficients that depend only on inner products.
:func:`factor` computes them from the Gram matrix of the memory. It knows neither the dimension of the parameter
nor whether it is a pytree, vmapped or spread over devices.

This is the product form of the BFGS update, in the paper's symbols (two misprints in its eq. for S are corrected)::

    S_k = (I − p_k q_kᵀ) S_{k−1},   p_k = s_k / s_kᵀy_k,   q_k = √(s_kᵀy_k / s_kᵀB_{k−1}s_k) B_{k−1}s_k + y_k

The product telescopes to a single sum over the memory::

    S = √γ (I − Σ_k s_k w_kᵀ),      w_k = (q_k − Σ_{j<k} (q_kᵀs_j) w_j) / s_kᵀy_k

Therefore ``H g`` and ``S z`` each take one pass over the memory, and ``trace H`` comes for free.

Pairs that are differences of one set of positions have no order. :func:`block_factor` takes them all at once. With
conjugate combinations V of the s and U of the y, ``VᵀU = I``, all secant equations hold together in

    H = V Vᵀ + γ P Pᵀ,      P = I − V Uᵀ,

and ``V z' + √γ P z`` with two independent noises is a draw of N(0, H).

A static diagonal base ``H⁰ = γ diag(d)`` needs no formula of its own: in the coordinates ``s/√d``, ``√d·y``,
``√d·g`` the base is γI again, and the result is multiplied by √d.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from hamcmc._types import PyTree, Scalar
from hamcmc.samplers.small import SMALL, diagonal, inverse, times

UNROLLED = 4  # pairs up to which the recursion is unrolled: few run faster that way, many would take long to compile


class Factor(NamedTuple):
    """``S = √γ (I − Σ_k s_k w_kᵀ)``, with w_k given by its coefficients over (s_1 … s_m, y_1 … y_m)."""

    gamma: Float[Array, ""]
    weights: Float[Array, "m n"]
    accepted: Bool[Array, " m"]


class Direction(NamedTuple):
    """Coefficients of ``H g`` and ``S z`` over (s_1 … s_m, y_1 … y_m), and γ for their part along g and z."""

    drift: Float[Array, "*k n"]
    noise: Float[Array, "*k n"]
    gamma: Float[Array, ""]


class Memory(NamedTuple):
    """Curvature pairs in slots, and their Gram matrix over (s_1 … s_m, y_1 … y_m).

    The next :func:`precondition` fills in the rows of the pair that was written last. It passes over the memory in any
    case, so that one pass serves the new pair, the gradient and the noise.
    """

    s: PyTree
    y: PyTree
    gram: Float[Array, "n n"]


def acceptable(gram: Float[Array, "n n"], cosine: Scalar) -> Bool[Array, " m"]:
    """Which pairs may enter H: ``sᵀy > 0`` and ``sᵀy ≥ c ‖s‖ ‖y‖``.

    ‖H‖ grows like (‖s‖‖y‖ / sᵀy)², so the angle bounds the effect of one pair. The rule sees only the memory, so it
    does not change the correction term Γ.
    """
    m = gram.shape[0] // 2
    s_s, y_y, s_y = map(diagonal, (gram[:m, :m], gram[m:, m:], gram[:m, m:]))
    return (s_y > 0) & (s_y >= cosine * jnp.sqrt(s_s) * jnp.sqrt(y_y))


def newest_pair_scale(gram: Float[Array, "n n"], accepted: Bool[Array, " m"], gamma: float | Array) -> Float[Array, ""]:
    """γ = sᵀy / yᵀy of the newest accepted pair; the given γ while there is none."""
    m = gram.shape[0] // 2
    newest = m - 1 - jnp.argmax(accepted[::-1])
    scale = gram[newest, m + newest] / jnp.where(accepted.any(), gram[m + newest, m + newest], 1)
    return jnp.where(accepted.any(), scale, jnp.asarray(gamma, gram.dtype))


def factor(gram: Float[Array, "n n"], accepted: Bool[Array, " m"], gamma: float | Float[Array, ""]) -> Factor:
    """Factor the L-BFGS inverse Hessian of the accepted pairs, oldest first, on top of γI."""
    m = gram.shape[0] // 2
    gamma = jnp.asarray(gamma, gram.dtype)
    basis = jnp.eye(2 * m, dtype=gram.dtype)

    def pair(k, weights, terms, scales):
        """Pair k on B_{k−1} = I/γ + Σ_i scales_i terms_i terms_iᵀ: w_k, its terms and scales, whether it was taken."""
        s, y = basis[k], basis[m + k]
        along_s = gram[k]  # the inner product of every basis vector with s_k
        b = s / gamma + times(scales * times(terms, along_s), terms)  # B_{k−1} s_k
        s_y, s_b = along_s[m + k], times(b, along_s)
        ok = accepted[k] & (s_b > 0)
        s_y, s_b = jnp.where(ok, s_y, 1), jnp.where(ok, s_b, 1)
        q = jnp.sqrt(s_y / s_b) * b + y
        w = (q - times(times(gram[: len(weights)], q), weights)) / s_y
        on = ok.astype(gram.dtype)
        return on * w, jnp.stack([b, y]), on * jnp.stack([-1 / s_b, 1 / s_y]), ok

    empty = jnp.zeros((2 * m, 2 * m), gram.dtype)
    if m <= UNROLLED:
        weights, terms, scales, taken = empty[:0], empty[:0], empty[0, :0], []
        for k in range(m):
            w, new_terms, new_scales, ok = pair(k, weights, terms, scales)
            weights = jnp.concatenate([weights, w[None]])
            terms, scales = jnp.concatenate([terms, new_terms]), jnp.concatenate([scales, new_scales])
            taken.append(ok)
        return Factor(gamma, weights, jnp.stack(taken))

    def put(k, so_far):
        weights, terms, scales, taken = so_far  # later rows are 0
        w, new_terms, new_scales, ok = pair(k, weights, terms, scales)
        both = 2 * k + jnp.arange(2)
        return weights.at[k].set(w), terms.at[both].set(new_terms), scales.at[both].set(new_scales), taken.at[k].set(ok)

    weights, _, _, taken = lax.fori_loop(0, m, put, (empty[:m], empty, empty[0], jnp.zeros(m, bool)))
    return Factor(gamma, weights, taken)


def direction(
    f: Factor, gram: Float[Array, "n n"], along_g: Float[Array, " n"], along_z: Float[Array, " n"]
) -> Direction:
    """``H g = S Sᵀ g`` and ``S z`` from the products of the memory with g and with z.

    In full: ``H g = γ g + Σ drift_i v_i`` and ``S z = √γ z + Σ noise_i v_i`` over the basis v = (s, y).
    """
    m = f.weights.shape[0]

    def only_s(c):
        return jnp.concatenate([c, jnp.zeros_like(c)])

    minus_w = -times(along_g[:m], f.weights)  # Sᵀg/√γ = g − Σ_k w_k (s_kᵀg)
    drift = minus_w - only_s(times(f.weights, along_g + times(gram, minus_w)))
    noise = -only_s(times(f.weights, along_z))
    return Direction(f.gamma * drift, jnp.sqrt(f.gamma) * noise, f.gamma)


def eigenvalue_bound(f: Factor, gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """An upper bound on the largest eigenvalue of H: its trace on the span of the memory.

    ``trace H − γD = γ Σ_kl (s_kᵀs_l)(w_kᵀw_l) − 2γ Σ_k s_kᵀw_k``; at most 2m eigenvalues differ from γ and none is
    negative, so the bound is less than 2m times too large.
    """
    m = f.weights.shape[0]
    w_dot = times(f.weights, gram)
    excess = jnp.sum(gram[:m, :m] * times(w_dot, f.weights.T)) - 2 * jnp.trace(w_dot[:, :m])
    return f.gamma * jnp.maximum(1, jnp.where(f.accepted.any(), 2 * jnp.sum(f.accepted), 1) + excess)


class Block(NamedTuple):
    """``H = V Vᵀ + γ P Pᵀ`` with ``P = I − V Uᵀ`` and ``VᵀU = I`` on the accepted pairs.

    Attributes:
        gamma: γ.
        weights: coefficients of V's columns over the s.
        dual: coefficients of U's columns over the y.
        newton: the curvature along each column of V: 1 where H is Newton's, less where it was held back.
        accepted: which columns are not zero.
    """

    gamma: Float[Array, ""]
    weights: Float[Array, "m m"]
    dual: Float[Array, "m m"]
    newton: Float[Array, " m"]
    accepted: Bool[Array, " m"]


def block_factor(
    gram: Float[Array, "n n"], gamma: float | Float[Array, ""], cosine: Scalar, widest: float | Array = jnp.inf
) -> Block:
    """The inverse Hessian of all pairs together, on top of γI, with no column of V longer than `widest`.

    The eigenvectors of the symmetric part of ``sᵀy`` make the pairs conjugate. An eigenvalue below m is raised to m,
    which keeps ``V Vᵀ ⪯ Σ s sᵀ / m``, the covariance of the positions. Differences across a flat region therefore do
    not make a step longer than the posterior is wide. A column of V has the length ``|sq|/√raised``, so an eigenvalue
    raised to ``|sq|²/widest²`` keeps it within `widest`. A pair enters H by the rule of :func:`acceptable`, and only if
    γ|u|² ≤ 4, which bounds what P does to the base's noise. For a quadratic γ|u|² is at most γ times its largest
    curvature.
    """
    m = gram.shape[0] // 2
    gamma = jnp.asarray(gamma, gram.dtype)
    s_y = gram[:m, m:]
    values, q = jnp.linalg.eigh((s_y + s_y.T) / 2)
    s_s, y_y = jnp.sum(q * (gram[:m, :m] @ q), 0), jnp.sum(q * (gram[m:, m:] @ q), 0)
    raised = jnp.maximum(jnp.maximum(values, m), s_s / widest**2)
    bounded = 4 * values**2 >= gamma * y_y * raised
    rounded = 100 * jnp.finfo(gram.dtype).eps * jnp.maximum(values[-1], 0)  # more pairs than dimensions leave this
    accepted = (values > rounded) & (values >= cosine * jnp.sqrt(s_s) * jnp.sqrt(y_y)) & bounded
    weights = q * jnp.where(accepted, 1 / jnp.sqrt(raised), 0)
    crossed = weights.T @ s_y @ weights + jnp.diag(jnp.where(accepted, 0, 1).astype(gram.dtype))
    dual = weights @ inverse(crossed)
    return Block(gamma, weights, dual, jnp.where(accepted, values / raised, 0), accepted)


def block_direction(
    f: Block,
    gram: Float[Array, "n n"],
    along_g: Float[Array, "*k n"],
    along_z: Float[Array, "*k n"],
    z: Float[Array, "*k m"],
) -> Direction:
    """``H g`` and ``V z' + √γ P z``, as :func:`direction` gives them; `z` is z'. Many vectors may stand in rows."""
    v, u, m = f.weights, f.dual, len(f.weights)
    a = along_g[..., :m] @ v  # Vᵀg
    u_a = a @ u.T
    b, of_z = jnp.stack([along_g[..., m:] - u_a @ gram[m:, m:], along_z[..., m:]]) @ u  # Uᵀ Pᵀg and Uᵀz
    drift, noise = jnp.stack([a - f.gamma * b, z - jnp.sqrt(f.gamma) * of_z]) @ v.T
    drift = jnp.concatenate([drift, -f.gamma * u_a], -1)
    return Direction(drift, jnp.concatenate([noise, jnp.zeros_like(noise)], -1), f.gamma)


def block_root(f: Block, gram: Float[Array, "n n"]) -> Float[Array, "m m"]:
    """G with ``S = √γ P + V G Vᵀ`` and ``S Sᵀ = H``: the inverse square root of VᵀV.

    P V = 0, so the two parts of S Sᵀ do not mix, and S is a continuous function of the pairs in any order.
    """
    m = f.weights.shape[0]
    values, q = jnp.linalg.eigh(f.weights.T @ gram[:m, :m] @ f.weights)
    kept = values > 4 * m * jnp.finfo(gram.dtype).eps * values[-1]  # others belong to rejected pairs
    return (q * jnp.where(kept, 1 / jnp.sqrt(jnp.where(kept, values, 1)), 0)) @ q.T


def block_eigenvalue_bound(f: Block, gram: Float[Array, "n n"]) -> Float[Array, ""]:
    """An upper bound on H's largest eigenvalue: ``trace V Vᵀ``, and γ times the trace of P Pᵀ on the pairs' span."""
    m = f.weights.shape[0]
    v_v, u_u = f.weights.T @ gram[:m, :m] @ f.weights, f.dual.T @ gram[m:, m:] @ f.dual
    return jnp.trace(v_v) + f.gamma * jnp.maximum(1, jnp.sum(v_v * u_u))


def inner(a: PyTree, b: PyTree) -> Float[Array, "k l"]:
    """Inner products of k stacked vectors with l stacked vectors, summed over all leaves of the pytrees."""

    def leaf(x, y):
        x = x.reshape(x.shape[0], -1)
        if x.size <= SMALL:
            return times(x, y.reshape(len(y), -1).T)
        if len(y) > 4:
            return jnp.matmul(x, y.reshape(len(y), -1).T, precision=lax.Precision.HIGHEST)
        # With few columns, one matrix-vector product for each is faster than one product with a thin matrix.
        return jnp.stack([jnp.dot(x, v.ravel(), precision=lax.Precision.HIGHEST) for v in y], axis=1)

    return sum(jax.tree.leaves(jax.tree.map(leaf, a, b)))  # type: ignore[return-value]


def empty_memory(position: PyTree, slots: int) -> Memory:
    """A memory of zeros: ``sᵀy = 0`` is never accepted, so H starts as γI."""
    zeros = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), position)
    dtype = jnp.result_type(*jax.tree.leaves(position))
    return Memory(zeros, zeros, jnp.zeros((2 * slots, 2 * slots), dtype))


def remember(memory: Memory, slot: Int[Array, ""], s: PyTree, y: PyTree) -> Memory:
    """Write a pair into a slot."""

    def put(old, new):
        return lax.dynamic_update_index_in_dim(old, new, slot, 0)

    return memory._replace(s=jax.tree.map(put, memory.s, s), y=jax.tree.map(put, memory.y, y))


class Preconditioned(NamedTuple):
    """The result of one pass over the memory: the completed memory, the move, and its sizes."""

    memory: Memory
    displacement: PyTree
    drift_norm: Float[Array, ""]
    noise_norm: Float[Array, ""]
    grad_norm: Float[Array, ""]
    pairs_accepted: Int[Array, ""]
    eigenvalue_bound: Float[Array, ""]


def precondition(
    memory: Memory,
    newest: Int[Array, ""],
    order: Int[Array, " m"],
    g: PyTree,
    z: PyTree,
    step_size: float | Array,
    *,
    gamma: float | str | Array,
    cosine: Scalar,
    total: Callable[[Array], Array] = lambda x: x,
) -> Preconditioned:
    """The preconditioned Langevin move ``ε H g + √(2ε) S z``, with H from the slots in `order`, oldest first.

    Args:
        memory: the pairs; the Gram rows of slot `newest` are stale and are brought up to date here.
        newest: the slot written last.
        order: the slots that make H.
        g: gradient of the log-density (that is, −∇Ũ), z: standard normal noise; pytrees like a position.
        gamma: scale of the base γI, or ``"newest"`` for sᵀy / yᵀy of the newest accepted pair.
        cosine: the acceptance rule's c.
        total: sums over the devices that share the pytrees; called once.
    """
    slots = memory.gram.shape[0] // 2

    def take(tree):
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, newest, 0, keepdims=False), tree)

    columns = jax.tree.map(lambda *x: jnp.stack(x), take(memory.s), take(memory.y), g, z)
    squares = jnp.stack([sum(jnp.vdot(x, x) for x in jax.tree.leaves(v)) for v in (g, z)])
    fused = total(jnp.concatenate([*map(jnp.ravel, (inner(memory.s, columns), inner(memory.y, columns))), squares]))
    products, (g_g, z_z) = fused[:-2].reshape(2 * slots, 4), fused[-2:]
    gram, place = memory.gram, jnp.arange(2 * slots)
    for column, row in ((0, newest), (1, slots + newest)):  # by selection, which the compiler fuses
        gram = jnp.where(place[:, None] == row, products[:, column], gram)
        gram = jnp.where(place == row, products[:, column, None], gram)
    both = jnp.concatenate([order, slots + order])
    local = gram[both[:, None], both]

    accepted = acceptable(local, cosine)
    scale = newest_pair_scale(local, accepted, 1.0) if gamma == "newest" else gamma
    f = factor(local, accepted, scale)  # type: ignore[arg-type]
    along_g, along_z = products[both].T[2:]
    d = direction(f, local, along_g, along_z)

    root = jnp.sqrt(2 * jnp.asarray(step_size))
    in_slots = place[:, None] == both  # a scatter is slower for so few
    coefficients = jnp.sum(jnp.where(in_slots, step_size * d.drift + root * d.noise, 0), 1)
    base_g, base_z = step_size * d.gamma, root * jnp.sqrt(d.gamma)

    def move(s, y, g, z):
        past = jnp.tensordot(coefficients[:slots], s, 1) + jnp.tensordot(coefficients[slots:], y, 1)
        return (base_g * g + base_z * z + past).astype(g.dtype)

    def size(c, along, own, square):
        """The norm of ``Σ c_i v_i + own · x``, where `along` is x's products with the basis and `square` is ‖x‖²."""
        return jnp.sqrt(jnp.maximum(times(times(c, local), c) + 2 * own * times(c, along) + own**2 * square, 0))

    return Preconditioned(
        memory._replace(gram=gram),
        jax.tree.map(move, memory.s, memory.y, g, z),
        step_size * size(d.drift, along_g, d.gamma, g_g),
        root * size(d.noise, along_z, jnp.sqrt(d.gamma), z_z),
        jnp.sqrt(g_g),
        jnp.sum(f.accepted),
        eigenvalue_bound(f, local),
    )
