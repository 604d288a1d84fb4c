"""The minimum of U without its Hessian, for long positions: L-BFGS, then Newton steps by conjugate gradients.

Both run on the host in double precision, in coordinates scaled by an estimate of the Hessian's diagonal. Conjugate
gradients take products with the Hessian on all data, which also measure the Newton decrement.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from hamcmc.target.newton import NOISE, Objective
from hamcmc.target.passes import Parts

PAIRS = 20  # of steps and changes of the gradient that L-BFGS remembers
HALVED = 30  # times that a step is shortened
PRODUCTS = 60  # with the Hessian for one Newton step, at most
SETTLED = 8  # products in which the decrement must not grow by more than a hundredth


class Reached(NamedTuple):
    """Where a search ended: position, U, the gradient of the log-density in two parts, steps, and why it ended.

    `ended` is one of those of :class:`hamcmc.target.newton.Outcome`, or "negative" where conjugate gradients met a
    direction without positive curvature.
    """

    x: np.ndarray
    value: float
    grad: Parts
    decrement: float
    steps: int
    ended: str
    products: int = 0


def descend(objective: Objective, x: np.ndarray, scale: np.ndarray, *, tolerance: float, limit: int) -> Reached:
    """L-BFGS steps until the decrement that its own curvature pairs suggest is below the tolerance."""
    value, grad, parts = objective.value_and_grad(x)
    if not np.isfinite(value):
        raise ValueError("the log-density or its gradient is not finite at the start: choose another init")
    pairs: deque = deque(maxlen=PAIRS)
    below, estimate = 0, np.inf
    for step in range(limit):
        slope = grad / scale
        direction = -_inverse(pairs, slope)
        estimate = -0.5 * float(slope @ direction)
        below = below + 1 if estimate < tolerance else 0
        if below >= 3:
            return Reached(x, value, parts, estimate, step, "converged")
        taken = _searched(objective, x, direction / scale, value, float(slope @ direction))
        if taken is None and not pairs:
            return Reached(x, value, parts, estimate, step, "refused")
        if taken is None:
            pairs.clear()  # begin anew along the gradient
            continue
        new, value, new_grad, parts = taken
        if value == -np.inf:
            return Reached(x, value, parts, estimate, step, "infinite")
        moved, change = (new - x) * scale, (new_grad - grad) / scale
        if moved @ change > 1e-10 * np.linalg.norm(moved) * np.linalg.norm(change):
            pairs.append((moved, change))
        x, grad = new, new_grad
    return Reached(x, value, parts, estimate, limit, "steps")


def polish(objective: Objective, reached: Reached, scale: np.ndarray, *, tolerance: float, limit: int) -> Reached:
    """Newton steps by conjugate gradients until the decrement that they measure is below the tolerance."""
    x, value, parts, products = reached.x, reached.value, reached.grad, 0
    grad, decrement = -parts.total, np.inf
    for step in range(limit):
        newton, decrement, curved, used = _newton_step(objective, x, grad, scale)
        products += used
        if not curved:
            return Reached(x, value, parts, decrement, reached.steps + step, "negative", products)
        if decrement < tolerance:
            return Reached(x, value, parts, decrement, reached.steps + step, "converged", products)
        taken = _searched(objective, x, newton, value, -2 * decrement)
        if taken is None:
            return Reached(x, value, parts, decrement, reached.steps + step, "refused", products)
        x, value, grad, parts = taken
    return Reached(x, value, parts, decrement, reached.steps + limit, "steps", products)


def _searched(objective: Objective, x: np.ndarray, step: np.ndarray, value: float, slope: float):
    """The first position along the step that lowers U enough, with U and its gradient there; None if there is none."""
    factor = 1.0
    for _ in range(HALVED):
        new = objective.moved(x, factor * step)
        if (new == x).all():
            return None
        found, grad, parts = objective.value_and_grad(new)
        fall = value - found
        quiet = fall > -NOISE * (1 + abs(value)) and abs(grad @ step) < 0.5 * abs(slope)
        if (np.isfinite(found) and (fall > -1e-4 * factor * slope or quiet)) or found == -np.inf:
            return new, found, grad, parts
        best = -slope * factor / (2 * max(-fall / factor - slope, 1e-300)) if np.isfinite(found) else 0.0
        factor = float(np.clip(best, 0.1 * factor, 0.5 * factor))
    return None


def _inverse(pairs: deque, grad: np.ndarray) -> np.ndarray:
    """L-BFGS' approximation of H⁻¹ g by the two loops; g itself without pairs."""
    q, kept = grad.copy(), []
    for moved, change in reversed(pairs):
        weight = (moved @ q) / (moved @ change)
        q -= weight * change
        kept.append(weight)
    if pairs:
        moved, change = pairs[-1]
        q *= (moved @ change) / (change @ change)
    for (moved, change), weight in zip(pairs, reversed(kept)):
        q += (weight - (change @ q) / (moved @ change)) * moved
    return q


def _newton_step(objective: Objective, x: np.ndarray, grad: np.ndarray, scale: np.ndarray):
    """−H⁻¹g by conjugate gradients, the decrement, whether all curvatures were positive, and how many products."""
    residual = grad / scale
    step, direction = np.zeros_like(residual), -residual
    history, count = [0.0], 0
    while count < PRODUCTS:
        count += 1
        image = -objective.passes.products(x, (direction / scale)[None], objective.rows).total[0] / scale
        curvature, square = float(direction @ image), float(residual @ residual)
        if not curvature > 0:
            return step / scale, history[-1], square == 0, count
        step = step + square / curvature * direction
        residual = residual + square / curvature * image
        direction = -residual + float(residual @ residual) / square * direction
        history.append(-0.5 * float(grad / scale @ step))
        if count > SETTLED and history[-1] - history[-1 - SETTLED] < 0.01 * history[-1]:
            break
    return step / scale, history[-1], True, count
