"""How near a density is to its Laplace approximation."""

from typing import NamedTuple

import numpy as np

from hamcmc.target.newton import Objective
from hamcmc.target.passes import quiet

RADII, PROBES = (1.0, 2.0, 3.0), 8  # standard deviations at which densities are compared, and draws


class Nearness(NamedTuple):
    """How much a density differs from its Laplace approximation; zeros for a normal one.

    Attributes:
        bend: by gradients, at one to three standard deviations. With z ~ N(0, I), the root S of the mode and a radius
            r, the gradient of U at mode + r S z is r S⁻ᵀ z if the density is normal. This is the largest root mean
            square, over r, of Sᵀ∇U / r − z. A narrow mode within a wide one and heavy tails are seen at larger radii.
        uneven: the standard deviation of the log-weights of draws of the approximation.
    """

    bend: float
    uneven: float


FAR = Nearness(np.inf, np.inf)  # or not known


def nearness(objective: Objective, mode: np.ndarray, root: np.ndarray, rng: np.random.Generator) -> Nearness:
    """Compare a density with its Laplace approximation, at a few draws of it and further out."""
    white = rng.standard_normal((PROBES, mode.size))
    bends, uneven = [], np.inf
    for r in RADII:
        values, grads, _ = zip(*(objective.value_and_grad(mode + r * root @ z) for z in white))
        with quiet():
            bends.append(np.sqrt(np.mean((np.stack(grads) @ root / r - white) ** 2)))
            if r == 1:
                uneven = np.std(0.5 * (white**2).sum(1) - np.array(values), ddof=1)
    return Nearness(*(float(np.nan_to_num(x, nan=np.inf)) for x in (max(bends), uneven)))
