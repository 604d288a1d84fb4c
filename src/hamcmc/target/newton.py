"""The minimum of U by Newton steps in a trust region, on the host in double precision.

All lengths are in coordinates in which the Hessian's diagonal is 1, so columns in different units do no harm. A Hessian
is kept as long as steps with it gain enough, because it costs more than many gradients.
"""

from typing import NamedTuple

import numpy as np

from hamcmc.target.passes import Parts, Passes

GAIN = 3.0  # the decrease of the decrement that a step must bring for its Hessian to be kept
LEAST = 0.02  # nats that U must rise within a standard deviation; that of a normal density rises by 0.5
REJECTED = 30  # steps refused in succession after which the search ends
SURE = 0.1  # share of the tolerance that the decrement by an old Hessian must reach before a new one is computed
NARROWER = 4  # Hessians in succession that must show that places only become narrower
WORTH = 0.25  # the share of a fall of U by which the mass around a place must grow with it
EDGE = 1e-3  # in standard deviations; a parameter so near to the edge of its mirrored support is on it
NOISE = 1e-6  # share of |U| below which its changes may be rounding errors of a model that works in single precision


class Objective:
    """U = −log p(θ|x) on all data, or on given rows with the weight N/n, at flat positions."""

    def __init__(self, passes: Passes, rows: np.ndarray | None = None):
        self.passes, self.rows = passes, rows

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray, Parts]:
        """U, ∇U, and the gradient of the log-density in two parts.

        U is infinite where it or its gradient is not a number, and −∞ where the session has no number for it.
        """
        value, grad = self.passes.value_and_grad(x, self.rows)
        total = -float(value.total)
        if total < -float(np.finfo(self.passes.kind).max):
            return -np.inf, -grad.total, grad
        finite = not np.isnan(total) and np.isfinite(grad.total).all()
        return (total if finite else np.inf), -grad.total, grad

    def hessian(self, x: np.ndarray) -> Parts:
        """∇² of the log-density in two parts."""
        return self.passes.hessian(x, self.rows)

    def moved(self, x: np.ndarray, step: np.ndarray) -> np.ndarray:
        """x + step, stopped short of the edges of mirrored supports."""
        target = self.passes.rounded(x + step)
        if not self.crossing(target).any():
            return target
        inside, outside = np.zeros_like(x), np.ones_like(x)
        for _ in range(40):
            middle = (inside + outside) / 2
            crossed = self.crossing(x + middle * step)
            inside, outside = np.where(crossed, inside, middle), np.where(crossed, middle, outside)
        short = self.passes.fold(x + 0.9999 * inside * step)
        return np.where(self.crossing(target), self.passes.rounded(short), target)

    def crossing(self, x: np.ndarray) -> np.ndarray:
        """Which coordinates lie outside of their mirrored support."""
        if self.passes.posterior.mirror is None:
            return np.zeros(x.shape, bool)
        return np.abs(self.passes.fold(x) - x) > 16 * self.passes.precision * (1 + np.abs(x))


class Model(NamedTuple):
    """The quadratic model of U around a position, in coordinates that its diagonal scales."""

    scale: np.ndarray
    values: np.ndarray
    vectors: np.ndarray
    smallest: float  # an eigenvalue below it may be zero

    @property
    def positive(self) -> bool:
        """Whether the Hessian is positive definite to the digits that it has."""
        return bool(self.values[0] > self.smallest)

    @property
    def condition(self) -> float:
        """The condition number in scaled coordinates."""
        return float(self.values[-1] / self.values[0]) if self.positive else np.inf

    def decrement(self, grad: np.ndarray) -> float:
        """½ gᵀH⁻¹g, by how many nats the model's minimum is below."""
        return float(0.5 * np.sum((self.vectors.T @ (grad / self.scale)) ** 2 / self.lifted))

    @property
    def lifted(self) -> np.ndarray:
        """The absolute eigenvalues, none of them zero."""
        return np.maximum(np.abs(self.values), self.smallest)

    def floored(self, share: float) -> np.ndarray:
        """The absolute eigenvalues, none below a share of the largest; ones where there is no curvature at all."""
        largest = self.lifted.max()
        return np.maximum(self.lifted, share * largest) if largest > 0 else np.ones_like(self.lifted)

    @property
    def log_volume(self) -> float:
        """log |H|^(−½), in which flat directions count no more than as ten times as long as the steepest."""
        return float(-np.sum(np.log(self.scale)) - 0.5 * np.sum(np.log(self.floored(1e-2))))

    def step(self, grad: np.ndarray, radius: float) -> tuple[np.ndarray, float, float]:
        """A step, its length, and the decrease of U that the model predicts.

        It is the Newton step, with absolute eigenvalues, where that is no longer than the radius. A longer one is
        damped, ``−(|H| + μ)⁻¹ g``.
        """
        g = self.vectors.T @ (grad / self.scale)
        if not self.positive and self.values[0] < 0 and 0.5 * np.sum(g**2 / self.lifted) < 1e-6:
            g[0] += np.sqrt(-self.values[0] * 1e-2)  # at a saddle: leave it

        def at(mu: float) -> np.ndarray:
            return -g / (self.lifted + mu)

        p = at(0.0)
        if np.linalg.norm(p) > radius:
            low, high = 0.0, float(np.linalg.norm(g)) / radius
            for _ in range(60):
                mu = (low * high) ** 0.5 if low else high * 1e-12
                low, high = (mu, high) if np.linalg.norm(at(mu)) > radius else (low, mu)
                if low > 0.9 * high:
                    break
            p = at(high)
        predicted = -(g @ p) - 0.5 * np.sum(self.values * p**2)
        return self.vectors @ p / self.scale, float(np.linalg.norm(p)), float(predicted)


def model_of(hessian: np.ndarray, precision: float, free: np.ndarray | None = None) -> Model:
    """The quadratic model with a Hessian of U. Along coordinates that are not free its curvature is 1.

    Args:
        hessian: (D, D).
        precision: the relative error of its entries.
    """
    diagonal = np.abs(np.diag(hessian))
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = hessian / np.outer(scale, scale)
    if free is not None:
        scaled = np.where(np.outer(free, free), scaled, np.eye(len(scale)))
    values, vectors = np.linalg.eigh(scaled)
    return Model(scale, values, vectors, 4 * len(scale) * precision * float(np.abs(values).max()))


class Outcome(NamedTuple):
    """Where a search ended.

    Attributes:
        x: the position.
        value: U there.
        grad: ∇ of the log-density there, in two parts.
        hessian: ∇² of the log-density in two parts.
        model: the quadratic model there, of the coordinates in `free`.
        free: which coordinates are not held at the edge of a mirrored support.
        decrement: in nats.
        steps: how many were taken.
        ended: "converged", "steps" (none are left), "refused" (no step decreases U), "rounded" (the next position is
            this one to the digits of the session), "flat" (some direction has no curvature), "endless" (a standard
            deviation away along the last slope U is no higher), "curved" (the curvature is not finite), "infinite"
            (the density is) or "narrow" (U falls only because places become narrower).
        fall: by how many nats U fell in the last step that was taken.
        along: the coordinate that moved most in it, in its standard deviations.
        stale: whether the Hessian is of another position.
    """

    x: np.ndarray
    value: float
    grad: Parts
    hessian: Parts
    model: Model
    free: np.ndarray
    decrement: float
    steps: int
    ended: str
    fall: float = 0.0
    along: int = 0
    stale: bool = False


def descend(
    objective: Objective,
    x: np.ndarray,
    *,
    tolerance: float,
    limit: int,
    hessian: Parts | None = None,
    verify: bool = True,
    patient: bool = True,
) -> Outcome:
    """Newton steps from x until the decrement is below the tolerance.

    Args:
        objective: U.
        x: where to start, finite.
        tolerance: in nats.
        limit: the most steps.
        hessian: of the log-density near x, to begin with; computed if it is not given.
        verify: whether the Hessian must be that of the last position, and U rise beyond it.
        patient: whether to go on where U falls only because places become narrower: towards no mode, most likely.
    """
    search = _Search(objective, x, hessian)
    ended, rejected = "steps", 0
    while True:
        decrement = search.model.decrement(search.slope)
        sure = tolerance if not (search.stale and verify) else SURE * tolerance
        if search.model.positive and decrement < sure:
            if not (search.stale and verify):
                ended = "converged" if not verify or search.rises() else "endless"
                break
            if not search.renew():
                ended = "curved"
                break
            continue
        if not search.stale and not search.model.positive and search.flat and decrement < tolerance:
            ended = "flat"
            break
        if search.steps >= limit:
            break
        verdict = search.attempt()
        rejected = rejected + 1 if verdict == "refused" else 0
        if verdict in ("infinite", "curved", "rounded") or rejected > REJECTED:
            ended = verdict
            break
        if not patient and search.narrowing:
            ended = "narrow"
            break
    if verify and search.stale:
        search.renew()
    return search.outcome(ended)


class _Search:
    """The state of :func:`descend`."""

    def __init__(self, objective: Objective, x: np.ndarray, hessian: Parts | None):
        self.objective, self.x, self.radius, self.steps = objective, x, np.inf, 0
        self.fall, self.along = 0.0, 0
        self.value, self.total, self.parts = objective.value_and_grad(x)
        if not np.isfinite(self.value):
            raise ValueError("the log-density or its gradient is not finite at the start: choose another init")
        self.hessian, self.stale = hessian or objective.hessian(x), hessian is not None
        if not np.isfinite(self.hessian.total).all():
            raise ValueError("the log-density has no finite second derivatives at the start: choose another init")
        self.free = self._free()
        self.model = self._model()
        self.saddles: list[tuple[float, float]] = []  # U and mass where Hessians in succession were not positive

    @property
    def slope(self) -> np.ndarray:
        """∇U along the coordinates that are free."""
        return np.where(self.free, self.total, 0.0)

    @property
    def flat(self) -> bool:
        """Whether no direction has a negative curvature."""
        return bool(self.model.values[0] > -self.model.smallest)

    def renew(self) -> bool:
        """Compute the Hessian where we are, and say whether it is finite."""
        found = self.objective.hessian(self.x)
        if not np.isfinite(found.total).all():
            return False
        self.hessian, self.stale = found, False
        self.free = self._free()
        self.model = self._model()
        mass = self.model.log_volume - self.value
        self.saddles = [] if self.model.positive else [*self.saddles, (self.value, mass)]
        return True

    @property
    def narrowing(self) -> bool:
        """Whether U falls and there is hardly more mass: what places gain in height they lose in width.

        So it is on the way to where all effects of a centred hierarchy are equal and their deviation is zero.
        """
        if len(self.saddles) <= NARROWER:
            return False
        (value, mass), (last, around) = self.saddles[-NARROWER - 1], self.saddles[-1]
        return around - mass < WORTH * (value - last)

    def _free(self) -> np.ndarray:
        """The coordinates that are not held at an edge, against a slope that leads across it."""
        scale = np.sqrt(np.maximum(np.abs(np.diag(self.hessian.total)), 1e-300))
        return ~self.objective.crossing(self.x - EDGE * np.sign(self.total) / scale)

    def _model(self) -> Model:
        return model_of(-self.hessian.total, self.objective.passes.precision, None if self.free.all() else self.free)

    def attempt(self) -> str:
        """Try one step: "taken", "refused", "rounded", "curved" or "infinite"."""
        step, length, predicted = self.model.step(self.slope, self.radius)
        x = self.objective.moved(self.x, step)
        if (x == self.x).all():
            return "rounded"
        value, grad, parts = self.objective.value_and_grad(x)
        if value == -np.inf:
            self.along = self.longest(step)
            return "infinite"
        fall, before, after = self.value - value, self.model.decrement(self.slope), np.inf
        if np.isfinite(value):
            after = self.model.decrement(np.where(self.free, grad, 0.0))
        quiet = self.model.positive and fall > -NOISE * (1 + abs(self.value)) and after < 0.5 * before
        if not np.isfinite(value) or not (fall > 0.05 * predicted or quiet):
            if not self.stale:
                self.radius = length * self.shorter(step, value)
            elif not self.renew():
                return "curved"
            return "refused"
        self.along, self.fall, self.steps = self.longest(step), fall, self.steps + 1
        self.x, self.value, self.total, self.parts, self.stale = x, value, grad, parts, True
        self.radius = self.wider(fall / predicted, length)
        keep = self.model.positive and after < before / GAIN and (self._free() == self.free).all()
        return "taken" if keep or self.renew() else "curved"

    def rises(self) -> bool:
        """Whether U is higher a standard deviation away in the direction of descent, as it is beyond a minimum.

        Where U only tends to a limit, as for a logistic regression of separable data without a prior, it is lower.
        """
        step, length, _ = self.model.step(self.slope, np.inf)
        if not length or not self.objective.passes.double:
            return True
        step = step / np.sqrt(2 * self.model.decrement(self.slope))
        self.along = self.longest(step)
        return self.objective.value_and_grad(self.objective.moved(self.x, step))[0] > self.value + LEAST

    def wider(self, ratio: float, length: float) -> float:
        """The radius after a step that was taken."""
        if ratio < 0.25:
            return 0.5 * length
        return max(self.radius, 4 * length) if ratio > 0.75 else self.radius

    def shorter(self, step: np.ndarray, value: float) -> float:
        """The factor of a step that was refused: the minimum of a parabola through both values of U."""
        if not np.isfinite(value):
            return 0.1
        slope = float(self.slope @ step)
        return float(np.clip(-slope / (2 * max(value - self.value - slope, 1e-300)), 0.02, 0.5))

    def longest(self, step: np.ndarray) -> int:
        """The coordinate that moves most."""
        return int(np.argmax(np.abs(step * self.model.scale)))

    def outcome(self, ended: str) -> Outcome:
        """Where the search ended."""
        decrement = self.model.decrement(self.slope)
        return Outcome(
            *(self.x, self.value, self.parts, self.hessian, self.model, self.free, decrement),
            *(self.steps, ended, self.fall, self.along, self.stale),
        )
