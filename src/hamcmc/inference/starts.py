"""Where an automatic run starts: points at the edge of the posterior's bulk, found from places that are far apart.

A mode is no good place to start: a hierarchical density may be highest where hardly any of its mass is, or have no mode
at all. Newton steps from a random place first come to where a typical draw lies, and there we stop them.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from hamcmc._types import PyTree
from hamcmc.inference.nearness import FAR, Nearness, nearness
from hamcmc.target.newton import Model, Objective, model_of
from hamcmc.target.passes import Passes
from hamcmc.target.posterior import Posterior

BULK = 10.0  # times D is gᵀ|H|⁻¹g at the edge of the bulk; at a typical draw of a normal density it is about D
RADIUS = 2.0  # starts are uniform in init ± this, unconstrained
MOST_STEPS = 60  # Newton steps
LOST = 30.0  # nats of estimated mass below the best point of a path, after which it is left
DEPTH = 2.0  # nats for each parameter that a start may lie below its place; half a nat is usual
TAME = 1e15  # a gradient above this is no place to start
DENSE = 400  # parameters up to which Hessians are computed
FEW = 100  # parameters up to which other modes are looked for
SCOUTED = (8.0, 8.0, 8.0, 20.0, 20.0, 20.0, 60.0, 60.0)  # distances on both sides, in standard deviations
SMALL, SCOUT_STEPS = 20, 25  # parameters above which such descents have fewer steps, and how many
ON_A_LINE = 32  # gradients on the way to such a place
ROUNDING = 1e-6  # of a slope
ARRIVED = 0.1  # gᵀ|H|⁻¹g at a mode
MINOR = 12.0  # nats of mass below which a mode does not matter
SHALLOW = 10.0  # nats, with one for each parameter, that a typical draw may lie below the mode
APART = 4.0  # standard deviations, times √D, between two modes that are not one
DESCENTS = {100: 4, DENSE: 2}  # for each ensemble, up to so many parameters


class Place(NamedTuple):
    """A point at the edge of the bulk.

    Attributes:
        x: the flat position.
        root: S with S Sᵀ = |H|⁻¹ there, or None without a Hessian.
        mass: log-density plus log |S|, an estimate of the log-mass around it.
        steps: Newton steps that led there.
    """

    x: np.ndarray
    root: np.ndarray | None
    mass: float
    steps: int


class End(NamedTuple):
    """Where a path of Newton steps ends.

    Attributes:
        place: the mode; or, where none was reached, the place with the most mass on the path.
        value: U at the mode.
        proper: whether it is a mode with a positive definite Hessian.
        path: all steps.
    """

    place: Place
    value: float
    proper: bool
    path: list["Step"]


class Starts(NamedTuple):
    """Starts of all replicas, and coordinates in which the posterior's scales are alike.

    Attributes:
        centre: c (D,).
        root: S (D, D), or ones (D,) where nothing is known.
        white: z (ensemble, replica, D) of each replica, whose position is c + S z.
        like: an unconstrained position, for its structure.
        gradients: the work, in gradients on all data.
        left_out: whether descents also came upon modes with hardly any mass, at which no replica starts.
        nearness: how near the density is to its Laplace approximation; far where that is not known, or where it has
            several modes.
    """

    centre: np.ndarray
    root: np.ndarray
    white: np.ndarray
    like: PyTree
    gradients: float
    left_out: bool
    nearness: Nearness


class Search:
    """The search for starts around given parameters.

    Attributes:
        nearness: how near the density is to its Laplace approximation at the mode that the parameters lead to. It is
            known before the search, for a fraction of its costs.
    """

    def __init__(self, posterior: Posterior, parameters: PyTree, seed: int):
        self.like, self.seed = posterior.unconstrain(parameters), seed
        self.passes = Passes(posterior, self.like)
        self.objective, self.first = Objective(self.passes), self.passes.flat(self.like)
        self.nearness, self._mode = FAR, Place(self.first, None, -np.inf, 0)  # no mode is known yet
        if self.first.size <= FEW:
            end = arrive(self.objective, self.first)
            if end.proper and end.place.root is not None:
                self._mode = end.place
                self.nearness = nearness(self.objective, end.place.x, end.place.root, np.random.default_rng((seed, 1)))

    def starts(self, ensembles: int, replicas: int) -> Starts:
        """Starts for each replica of each ensemble, from descents that begin at the parameters and around them.

        Raises:
            ValueError: no place with a finite density and gradient was found.
        """
        objective, first, rng = self.objective, self.first, np.random.default_rng(self.seed)
        dimension = first.size
        count = next((n for most, n in DESCENTS.items() if dimension <= most), 1)
        found: list[list[Place]] = []
        for ensemble in range(ensembles):
            begins = [first if ensemble == 0 and i == 0 else around(objective, first, rng) for i in range(count)]
            found.append([descend(objective, x) if dimension <= DENSE else Place(x, None, 0.0, 0) for x in begins])
        found, mode, top = settled(objective, found) if dimension <= DENSE else (found, None, None)
        best = max((p for places in found for p in places), key=lambda p: p.mass)
        near = FAR
        if dimension <= FEW:
            others = scout(objective, best, rng)
            found = [[*places, *others] for places in found]
            best = max(best, *others, key=lambda p: p.mass) if others else best
            if mode is not None and not others and self._mode.root is not None and not apart(mode, self._mode):
                near = self.nearness
        if near is not FAR:  # where the density was compared with its approximation, coordinates are those of the mode
            best = self._mode
        root = np.ones(dimension) if best.root is None else best.root
        white = np.empty((ensembles, replicas, dimension))
        for e, places in enumerate(found):
            for r in range(replicas):
                x = spread(objective, places[r % len(places)], first, rng)
                if top is not None:
                    inside = top.inside(arrive(objective, x))
                    x = inside.x if inside is not None else spread(objective, top.place, first, rng)
                white[e, r] = x - best.x if best.root is None else np.linalg.solve(root, x - best.x)
        return Starts(best.x, root, white, self.like, self.passes.spent, top is not None, near)


def spread_starts(posterior: Posterior, parameters: PyTree, ensembles: int, replicas: int, seed: int) -> Starts:
    """The whole search: see :meth:`Search.starts`."""
    return Search(posterior, parameters, seed).starts(ensembles, replicas)


class Summit(NamedTuple):
    """The proper mode with the most mass, and U of the highest typical draws around it."""

    place: Place
    depth: float

    def major(self, end: End) -> bool:
        """Whether there is a share of the mass where a path ends."""
        return end.place.mass >= self.place.mass - MINOR

    def inside(self, end: End) -> Place | None:
        """The place at which a path reaches typical draws, unless it leads to a mode with hardly any mass."""
        typical = (step.place for step in end.path if step.value <= self.depth)
        return next(typical, None) if self.major(end) else None


def settled(objective: Objective, found: list[list[Place]]) -> tuple[list[list[Place]], Place | None, Summit | None]:
    """Places among typical draws in place of those far below; the mode, if all paths lead to it; and the summit, if
    paths also lead to minor modes.

    From far below, replicas might fall into a mode with hardly any mass, and never leave it. Where no path arrives at a
    proper mode there is nothing to compare with, and all places are kept.
    """
    ends = [[arrive(objective, p.x) for p in places] for places in found]
    every = [e for of_ensemble in ends for e in of_ensemble]
    highest = max((e for e in every if e.proper), key=lambda e: e.place.mass, default=None)
    if highest is None:
        return found, None, None
    top = Summit(highest.place, highest.value + highest.place.x.size + SHALLOW)
    places = [[top.inside(e) or top.place for e in of_ensemble] for of_ensemble in ends]
    alone = all(e.proper and not apart(e.place, top.place) for e in every)
    return places, top.place if alone else None, None if all(map(top.major, every)) else top


def scout(objective: Objective, best: Place, rng: np.random.Generator) -> list[Place]:
    """Other modes with a share of the mass, as far as descents from far away come upon them.

    A mode that no replica starts at is one that no diagnostic will ever see. Half of the space lies on the other side
    of a barrier, so descents begin on both sides of the best place. Only proper modes count: where a density merely
    grows into a corner, nothing is to be found.
    """
    found: list[Place] = []
    if best.root is None:
        return found
    many = best.x.size > SMALL  # parameters: then descents take long, and are worth avoiding
    for away in [distance * best.root @ rng.standard_normal(best.x.size) for distance in SCOUTED]:
        for x in (objective.passes.rounded(best.x + side * away) for side in (1, -1)):
            if not tame(objective, x) or (many and convex(objective, best.x, x, ON_A_LINE)):
                continue
            place, _, proper, _ = arrive(objective, x, SCOUT_STEPS if many else MOST_STEPS)
            if proper and place.mass > best.mass - MINOR and all(apart(place, k) for k in [best, *found]):
                found.append(place)
    return found


def convex(objective: Objective, centre: np.ndarray, x: np.ndarray, points: int) -> bool:
    """Whether the slope of U only grows on the line from a mode to x: then x belongs to the mode, and no more is asked.

    That is so everywhere around the only mode of a log-concave density, for the price of a few gradients.
    """
    line = np.linspace(0.0, 1.0, points + 1)
    slopes = np.array([objective.value_and_grad(centre + t * (x - centre))[1] @ (x - centre) for t in line])
    return bool(np.isfinite(slopes).all() and np.diff(slopes).min() >= -ROUNDING * np.abs(slopes).max())


def apart(one: Place, other: Place) -> bool:
    """Whether two places are far from each other by the measures of both."""
    away, far = one.x - other.x, APART * np.sqrt(one.x.size)
    roots = [p.root for p in (one, other) if p.root is not None]
    return all(np.linalg.norm(np.linalg.solve(root, away)) > far for root in roots)


def around(objective: Objective, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random place around x, nearer and nearer to it until density and gradient there are finite."""
    away = rng.uniform(-RADIUS, RADIUS, x.size)
    for _ in range(80):
        if tame(objective, x + away):
            return objective.passes.rounded(x + away)
        away /= 2
    return x


def spread(objective: Objective, place: Place, first: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw of the normal approximation at a place, drawn nearer until density and gradient are finite."""
    if place.root is None:
        return around(objective, first, rng)
    away = place.root @ rng.standard_normal(place.x.size)
    lowest = objective.value_and_grad(place.x)[0] + DEPTH * place.x.size + LOST
    for _ in range(40):
        if tame(objective, place.x + away, lowest):
            return place.x + away
        away /= 2
    return place.x


def tame(objective: Objective, x: np.ndarray, most: float = np.inf) -> bool:
    """Whether density and gradient are finite, the gradient is not beyond reason, and U is not above `most`."""
    value, grad, _ = objective.value_and_grad(objective.passes.rounded(x))
    return bool(np.isfinite(value) and value <= most and np.abs(grad).max() < TAME)


class Step(NamedTuple):
    """A point on the path of Newton steps.

    Attributes:
        place: the point.
        value: U there.
        left: gᵀ|H|⁻¹g there.
        positive: whether the Hessian is positive definite there.
    """

    place: Place
    value: float
    left: float
    positive: bool


def path(objective: Objective, x: np.ndarray) -> Iterator[Step]:
    """The points of damped Newton steps that lower U, beginning with x, as far as Hessians are finite."""
    value, grad, _ = objective.value_and_grad(x)
    if not np.isfinite(value):
        raise ValueError("the log-density or its gradient is not finite at init: choose another init")
    damping = 1e-3
    for step in range(MOST_STEPS + 1):
        hessian = -objective.hessian(x).total
        if not np.isfinite(hessian).all():
            return
        model = model_of(hessian, objective.passes.precision)
        place = Place(x, root_of(model), -value + model.log_volume, step)
        yield Step(place, value, decrement(model, grad), model.positive)
        moved = improved(objective, x, value, grad, model, damping)
        if moved is None:
            return
        x, value, grad, damping = moved


def descend(objective: Objective, x: np.ndarray) -> Place:
    """The place with the most mass around it on the path from x to the edge of the bulk.

    Where a density has no mode, the path leads into ever narrower places with ever less mass, and ends there.
    """
    best = Place(x, None, -np.inf, 0)
    for step in path(objective, x):
        best = max(best, step.place, key=lambda p: p.mass)
        if step.left <= BULK * x.size or step.place.mass < best.mass - LOST:
            break
    return best if best.root is not None else best._replace(root=np.eye(x.size) * 1e-3)


def arrive(objective: Objective, x: np.ndarray, most: int = MOST_STEPS) -> End:
    """Where the path from x ends."""
    best, steps = Place(x, None, -np.inf, 0), []
    for step in islice(path(objective, x), most + 1):
        steps.append(step)
        best = max(best, step.place, key=lambda p: p.mass)
        if step.left <= ARRIVED:
            return End(step.place, step.value, step.positive, steps)
        if step.place.mass < best.mass - LOST:
            break
    return End(best, np.inf, False, steps)


def improved(
    objective: Objective, x: np.ndarray, value: float, grad: np.ndarray, model: Model, damping: float
) -> tuple[np.ndarray, float, np.ndarray, float] | None:
    """A damped Newton step that lowers U, with U and its gradient there and the next damping; None if there is none."""
    slope = model.vectors.T @ (grad / model.scale)
    for _ in range(40):
        step = -(model.vectors @ (slope / (model.floored(1e-8) + damping))) / model.scale
        there = objective.passes.rounded(x + step)
        new, new_grad, _ = objective.value_and_grad(there)
        if np.isfinite(new) and new < value:
            return there, new, new_grad, damping / 8
        damping *= 4
    return None


def root_of(model: Model) -> np.ndarray:
    """S with S Sᵀ = |H|⁻¹."""
    return model.vectors / np.sqrt(model.floored(1e-8)) / model.scale[:, None]


def decrement(model: Model, grad: np.ndarray) -> float:
    """gᵀ|H|⁻¹g."""
    return float(np.sum((model.vectors.T @ (grad / model.scale)) ** 2 / model.floored(1e-8)))
