"""What :func:`hamcmc.tune` searches: ranges around what theory expects, and the points that are tried in them."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hamcmc._types import Facts, Record
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.registry import takes
from hamcmc.target.landscape import Landscape

Range = tuple[float, float]
Space = Record  # a name to a range (low, high), or to a list of choices

NEWTON_STEP = 0.5
"""The largest step that is tried with a metric near the inverse Hessian. Larger ones are stable around the mode (up to
2), but diverged on a regression with an unknown scale, where that scale is small."""

CHOICES = 8
"""Candidates for the step size alone; each further option doubles them. Over a range of :data:`BELOW` × :data:`ABOVE`
= 64, eight points on a logarithmic grid are a factor of 1.8 apart, finer than the last round's ladder."""

BELOW, ABOVE = 4.0, 16.0
"""The step size is searched from a fourth of what theory expects to sixteen times it. Set by hand: there is more to
find above, because theory takes the worst direction for all of them."""

GAMMA = (0.03, 3.0)
"""The range of γ in units of 1/L. γ must not be far above 1/L, where γI alone would be unstable, and a γ a hundred
times below that slows the directions without curvature pairs a hundred times."""

FRICTION = (0.01, 0.9)
"""The range of the friction: momentum that lasts from a hundred steps to hardly one."""

LESS, MORE = 100.0, 10.0
"""pSGLD's λ is searched from √v/100, where the metric follows v, to 10√v, where it hardly varies."""


def expected_bias(setting: Facts, newton: bool, scape: Landscape) -> float | None:
    """By how much theory expects a Gaussian's variance to be too large; None where there is no theory.

    Along a direction of curvature a, where the stochastic gradient has variance V, a Langevin step leaves a variance
    too large by about ε(a + V)/2; with the metric 1/a by ε(1 + V/a)/2; with friction f by (2−f)/f · εV/2.

    Args:
        setting: the sampler's settings, including its name, and the step size.
        newton: whether the metric is about the inverse Hessian.
        scape: the posterior around its mode.
    """
    step, a, v = setting["step_size"], np.asarray(scape.curvatures, np.float64), scape.noise
    name = setting.get("sampler", "")
    if name == "sgld":
        return float(step * np.max(a + v) / 2)
    if name == "sghmc":
        return float(step * (2 / setting["friction"] - 1) * np.max(v) / 2)
    if name == "psgld":
        return float(step / (setting["regularizer"] + scape.root_square) * np.max(a + v) / 2)
    if not newton:
        return None
    base = setting["gamma"] * np.max(a + v) if isinstance(setting.get("gamma"), float) else 0.0
    return float(step * max(np.max(1 + v / a), base) / 2)


def is_newton(sampler: Sampler) -> bool:
    """Whether the metric is about the inverse Hessian, so that steps are near 1."""
    return sampler.pairs > 0 or sampler.settings.get("sampler") == "sgrld"


def default_search(sampler: Sampler, scape: Landscape, tolerance: float) -> Space:
    """Ranges around what theory expects.

    Steps above 1/L, with L the largest curvature, are not tried, nor steps above :data:`NEWTON_STEP` for samplers that
    know the curvature.
    """
    steepest, root, name = scape.steepest, scape.root_square, sampler.settings.get("sampler", "")
    a, v = np.asarray(scape.curvatures, np.float64), scape.noise
    plain, newton = (float(2 * tolerance / np.max(x)) for x in (a + v, 1 + v / a))
    if is_newton(sampler):
        space = {"step_size": _around(newton, NEWTON_STEP)}
        if takes(name, "memory"):
            space["gamma"] = (GAMMA[0] / steepest, GAMMA[1] / steepest)
    elif name == "psgld":
        space = {"step_size": _around(plain * root, np.inf)}
        space["regularizer"] = (root / LESS, root * MORE)
    elif name == "sgfs":
        space = {"step_size": (plain / BELOW, 1.0), "base": (1.0, max(steepest, 1.0))}
    else:
        space = {"step_size": _around(plain, 1 / steepest)}
    if takes(name, "friction"):
        space["friction"] = FRICTION
    return space


def _around(centre: float, most: float) -> Range:
    return min(centre, most) / BELOW, min(centre * ABOVE, most)


def checked_space(search: Facts, by_name: bool, options: Facts) -> Space:
    """The user's ranges and choices. Raises a ValueError that names the one at fault."""
    for name, values in search.items():
        if name in options:
            raise ValueError(f"search: {name} is also given as an option; remove one of the two")
        if name not in ("step_size", "cyclical") and not by_name:
            raise ValueError(f"search: {name} can be searched only for a sampler given by name")
        if isinstance(values, tuple):
            valid = len(values) == 2 and all(_is_positive(v) for v in values) and values[0] <= values[1]
        else:
            valid = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
        if not valid or (name == "step_size" and not isinstance(values, tuple)):
            raise ValueError(f"search: {name} must be a range (low, high) above 0 or a list of choices, got {values!r}")
    return dict(search)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0 < value < np.inf)


def points(space: Space, seed: int) -> list[dict[str, float]]:
    """Points of the ranges, evenly spread in logarithms: a grid for the step size alone, else a Halton sequence."""
    ranges = {k: v for k, v in space.items() if isinstance(v, tuple)}
    low, high = np.log(np.array(list(ranges.values()), float)).T
    if len(ranges) == 1:
        places = np.linspace(0, 1, CHOICES)[:, None]
    else:
        from scipy.stats import qmc  # here, because it takes longer to import than JAX

        places = qmc.Halton(len(ranges), rng=np.random.default_rng(seed)).random(CHOICES * 2 ** (len(ranges) - 1))
    return [dict(zip(ranges, map(float, np.exp(low + p * (high - low))))) for p in places]


def shapes(space: Space) -> list[Record]:
    """Every combination of choices. Each is a compiled program of its own."""
    choices = {k: v for k, v in space.items() if not isinstance(v, tuple)}
    return [dict(zip(choices, c)) for c in itertools.product(*choices.values())]
