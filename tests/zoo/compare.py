"""How far draws are from a reference, and what that makes of a run."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from tests.zoo import Case
from tests.zoo.marginals import Marginals, of_draws
from tests.zoo.references import Reference

MEANS, SDS = 0.1, 0.1  # what counts as right: means within a tenth of an sd, sds within a tenth
NORMAL_IQR = 1.349  # interquartile range of a standard normal
CENTRE, WIDTHS = 2, ((1, 3), (0, 4))  # places among the quantiles: the median; quartiles, 5 and 95 %


class Errors(NamedTuple):
    """The largest errors of a run, and whose they are.

    Attributes:
        mean: of a mean in sds of the reference; by quantiles, of a median in interquartile ranges / 1.349.
        sd: relative, of an sd; by quantiles, of the distance of the quartiles, or of the 5 and 95 % quantiles.
        mean_of, sd_of: the parameters with these errors.
        right: whether both are small enough.
    """

    mean: float
    sd: float
    mean_of: str
    sd_of: str
    right: bool


def errors(draws: Mapping[str, np.ndarray], reference: Reference, measure: str) -> Errors:
    """Compare draws (draw, …) of each parameter with a reference.

    The reference has an error of its own. A run may differ by the hypotenuse of the tolerance and twice that error.
    """
    if set(draws) != set(reference.parameters):
        raise ValueError(f"the run has {sorted(draws)}, the reference {sorted(reference.parameters)}")
    differences = _by_moments if measure == "moments" else _by_quantiles
    means, sds = [], []
    for name, known in reference.parameters.items():
        mean, sd = differences(of_draws(np.asarray(draws[name], np.float64)), known)
        means.append(_worst(name, mean))
        sds.append(_worst(name, sd))
    (mean, mean_of), (sd, sd_of) = max(means), max(sds)
    right = mean <= np.hypot(MEANS, 2 * reference.mean_error) and sd <= np.hypot(SDS, 2 * reference.sd_error)
    return Errors(mean, sd, mean_of, sd_of, bool(right))


def _by_moments(found: Marginals, known: Marginals) -> tuple[np.ndarray, np.ndarray]:
    return np.abs(found.mean - known.mean) / known.sd, np.abs(found.sd / known.sd - 1)


def _by_quantiles(found: Marginals, known: Marginals) -> tuple[np.ndarray, np.ndarray]:
    f, k = found.quantiles, known.quantiles
    centre = np.abs(f[CENTRE] - k[CENTRE]) / ((k[3] - k[1]) / NORMAL_IQR)
    widths = [np.abs((f[b] - f[a]) / (k[b] - k[a]) - 1) for a, b in WIDTHS]
    return centre, np.maximum(*widths)


def _worst(name: str, errors: np.ndarray) -> tuple[float, str]:
    """The largest error and the name of its entry; one that is not finite is infinite."""
    errors = np.where(np.isfinite(errors), errors, np.inf)
    place = np.unravel_index(int(np.argmax(errors)), errors.shape)
    index = f"[{','.join(map(str, place))}]" if place else ""
    return float(errors[place]), f"{name}{index}"


# What a run can be. The verdict is the word of `result.check()`: good, usable, not converged, wrong.
RIGHT, SAID, SILENT = "right", "wrong-and-said", "SILENT FAILURE"
SLANDERED, DOUBTED, CRASHED = "good-called-wrong", "right-but-doubted", "crashed"
KINDS = (RIGHT, DOUBTED, SAID, SILENT, SLANDERED, CRASHED)


def kind(right: bool, word: str | None) -> str:
    """What a run that completed is; `word` is None if there is no verdict, which says nothing and so warns nobody."""
    if right:
        return {"wrong": SLANDERED, "not converged": DOUBTED}.get(word or "", RIGHT)
    return SAID if word in ("wrong", "not converged") else SILENT


def flatten(case: Case, parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What is compared, (draw, …), from draws (chain, draw, …) of the parameters."""
    flat = {k: np.asarray(x).reshape(-1, *np.shape(x)[2:]) for k, x in parameters.items()}
    if case.quantities is None:
        return flat
    found = jax.jit(jax.vmap(case.quantities))(flat)
    return {k: np.asarray(x) for k, x in found.items()}
