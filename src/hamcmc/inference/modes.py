"""Whether a mode is the only one: descents from elsewhere, on a part of the data.

A run on minibatches stays around one mode, and no diagnostic sees a mass that no replica visits. So we look for other
modes before it begins.
"""

import numpy as np
from jax.tree_util import tree_leaves_with_path

from hamcmc.inference.starts import FEW, MINOR, Place, apart, around, arrive, convex, tame
from hamcmc.target.hessian import subsample
from hamcmc.target.mode import Laplace, approximated
from hamcmc.target.newton import Objective
from hamcmc.target.passes import Passes
from hamcmc.target.posterior import name_of

DISTANCES = (60.0, 200.0, 200.0)  # of places on both sides of the mode, in standard deviations of the part's posterior
AROUND = 4, 24  # places around `init`, and around the mode: the least and the most
ON_A_LINE = 8  # gradients
SEARCHED = 200  # the number of places times that of parameters, between them


def surveyed(passes: Passes, found: Laplace, init: np.ndarray, seed: int) -> Laplace:
    """The mode with the most mass; not `converged` if another one has a share of it.

    Args:
        passes: sums over the data.
        found: the mode that the search came upon.
        init: where that search began, as a flat position.
        seed: of the rows, and of the places where descents begin.

    Returns:
        `found`, or the Laplace approximation at a mode with more mass. Above FEW parameters nothing is looked for.
    """
    if not found.converged or found.dimension > FEW:
        return found
    best, shared = found, ""
    for place in elsewhere(passes, found, init, np.random.default_rng(seed)):
        other = approximated(passes, passes.position(place.x), seed=seed)
        if not other.converged or not apart(_place(passes, other), _place(passes, best)):
            continue
        ahead = _place(passes, other).mass - _place(passes, best).mass
        if abs(ahead) < MINOR:
            shared = _difference(best, other, ahead)
        elif ahead > 0:  # whatever the modes before it share is hardly any mass
            shared = ""
        best = other if ahead > 0 else best
    best = best._replace(gradients=passes.spent)
    return best._replace(converged=False, reason=shared) if shared else best


def elsewhere(passes: Passes, found: Laplace, init: np.ndarray, rng: np.random.Generator) -> list[Place]:
    """Modes of a part of the data, apart from the one that was found, that all data may have, too."""
    size = passes.posterior.size
    count = min(passes.part, size)
    part, whole = Objective(passes, subsample(rng, size, count)), Objective(passes)
    wide = found.root * np.sqrt(size / count)
    places = int(np.clip(SEARCHED // len(init), *AROUND))
    begins = [around(part, centre, rng) for centre in (init, found.flat) for _ in range(places)]
    for away in (distance * wide @ rng.standard_normal(len(init)) for distance in DISTANCES):
        begins += [passes.rounded(found.flat + away), passes.rounded(found.flat - away)]
    known = [arrive(part, found.flat).place]
    for x in begins:
        if not tame(part, x) or any(convex(part, k.x, x, ON_A_LINE) for k in known):
            continue
        end = arrive(part, x)
        if end.proper and all(apart(end.place, k) for k in known):
            known.append(end.place)
    if len(known) == 1:
        return []
    # The mode of n of N rows lies about D (N/n − 1) / 2 nats below that of all of them.
    lowest = whole.value_and_grad(found.flat)[0] + MINOR + len(init) * size / count
    return [place for place in known[1:] if whole.value_and_grad(place.x)[0] <= lowest]


def _place(passes: Passes, found: Laplace) -> Place:
    value = Objective(passes).value_and_grad(found.flat)[0]
    return Place(found.flat, found.root, -value + np.linalg.slogdet(found.root)[1], 0)


def _difference(one: Laplace, other: Laplace, ahead: float) -> str:
    """One line on two modes."""
    names = [name_of(path) for path, leaf in tree_leaves_with_path(one.position) for _ in range(leaf.size)]
    farthest = int(np.argmax(np.abs(other.flat - one.flat) * np.sqrt(np.diag(one.precision))))
    share = 1 / (1 + np.exp(-ahead))
    return (
        f"there is a second mode with about {share:.1%} of the mass, apart from the first one most in "
        f"{names[farthest]} (unconstrained {one.flat[farthest]:.3g} and {other.flat[farthest]:.3g})"
    )
