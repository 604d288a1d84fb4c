"""The search for a mode: on growing parts of the data first, on all of them last, and one sentence on how it ended."""

from typing import NamedTuple

import numpy as np
from jax.tree_util import tree_leaves_with_path

from hamcmc._types import PyTree
from hamcmc.target import lbfgs, newton
from hamcmc.target.hessian import diagonal, subsample
from hamcmc.target.passes import Parts, Passes
from hamcmc.target.posterior import name_of

FIRST, PER_PARAMETER = 2000, 10  # rows of the first part of the data: at least the one, the other for each parameter
FEW, FEWER_STEPS = 300, 25  # parameters above which a hurried search has fewer Newton steps, and how many
GROWTH = 8  # from one part of the data to the next; the last part is at most a half of the data
RENEWED = 4.0  # gradients on all data that a better Hessian may cost before the steps on all data, at most
EXACT = 2**13  # parameters up to which a diagonal is computed by basis vectors, beyond it by random ones
EXACT_WORK = 2**33  # rows · parameters² for it
PROBES = 128
PROBED_ROWS = 20_000


class Found(NamedTuple):
    """The end of a search.

    Attributes:
        x: the flat position.
        grad: ∇ of the log-density there, in two parts.
        hessian: ∇² of it in two parts; None where it is too large.
        model: the quadratic model that belongs to it.
        stale: whether the Hessian is of another position, because it is not finite at this one.
        diagonal: of the Hessian of U, where it is too large as a whole.
        decrement: in nats.
        converged: whether x is a mode with a positive definite Hessian.
        edge: whether x is a mode at the edge of a mirrored support.
        infinite: the name of the parameter along which the density became infinite.
        reason: how we know.
    """

    x: np.ndarray
    grad: Parts
    hessian: Parts | None
    model: newton.Model | None
    stale: bool
    diagonal: np.ndarray | None
    decrement: float
    converged: bool
    edge: bool
    infinite: str | None
    reason: str


class Search:
    """The search for the mode of a posterior from one start."""

    def __init__(self, passes: Passes, position: PyTree, *, tolerance: float, iterations: int, seed: int):
        self.passes, self.tolerance, self.iterations = passes, tolerance, iterations
        self.names = [name_of(path) for path, leaf in tree_leaves_with_path(position) for _ in range(leaf.size)]
        self.rng = np.random.default_rng(seed)
        self.start = passes.rounded(passes.flat(position))

    def run(self, rows: np.ndarray | None, dense: int, patient: bool = True) -> Found:
        """Search on all data, or on given rows in random order; with the Hessian up to `dense` parameters.

        A search that is not patient ends where a part of the data has no mode: all data will hardly have one, and each
        Newton step on them costs as much as a gradient for each parameter.
        """
        return self._newton(rows, patient) if self.passes.dimension <= dense else self._lbfgs(rows)

    def _parts(self, rows: np.ndarray | None) -> list[tuple[np.ndarray, float]]:
        """Growing parts of the data, and the decrement at which to go on from each.

        The mode of n of N rows is about D (N/n − 1) / 2 nats from that of all rows, so nearly as much is near enough.
        """
        count = self.passes.posterior.size if rows is None else len(rows)
        size, sizes = max(FIRST, PER_PARAMETER * self.passes.dimension), []
        while size <= count // 2:
            sizes.append(size)
            size *= GROWTH
        if not sizes:
            return []
        order = subsample(self.rng, count, sizes[-1]) if rows is None else rows
        return [(order[:n], max(self.tolerance, 0.02 * self.passes.dimension * (count / n - 1))) for n in sizes]

    # --- with the Hessian ---

    def _newton(self, rows: np.ndarray | None, patient: bool) -> Found:
        x, hessian, known = self.start, None, 0
        limit = self.iterations if patient or self.passes.dimension <= FEW else min(FEWER_STEPS, self.iterations)
        for part, tolerance in self._parts(rows):
            objective = newton.Objective(self.passes, part)
            steps = {"tolerance": tolerance, "limit": limit, "hessian": hessian, "verify": False, "patient": patient}
            try:
                end = newton.descend(objective, x, **steps)
            except ValueError:  # these rows do not suffice for finite numbers; all data may
                continue
            if end.ended == "converged":
                known = known if end.hessian is hessian else len(part)
                x, hessian = end.x, end.hessian
                if (better := self._renewed(x, part, known)) is not None:
                    hessian, known = better, len(part)
            elif not patient and not end.model.positive:
                return self._found(end, part)
        objective = newton.Objective(self.passes, rows)
        steps = {"tolerance": self.tolerance, "limit": limit, "hessian": hessian, "patient": patient}
        end = newton.descend(objective, x, **steps)
        return self._found(end, rows)

    def _found(self, end: newton.Outcome, rows: np.ndarray | None) -> Found:
        done, edge = end.ended == "converged", not end.free.all()
        return Found(
            x=end.x,
            grad=end.grad,
            hessian=end.hessian,
            model=end.model,
            stale=end.stale,
            diagonal=None,
            decrement=end.decrement,
            converged=done and not edge,
            edge=done and edge,
            infinite=self.names[end.along] if end.ended == "infinite" else None,
            reason=self._newton_reason(end, rows),
        )

    def _renewed(self, x: np.ndarray, part: np.ndarray, known: int) -> Parts | None:
        """The Hessian on more than the `known` rows that the last one is of, if that is affordable; None if not.

        A step with the Hessian of n rows leaves about D/n of the decrement. So this one spares steps on all data.
        """
        most = int(RENEWED * self.passes.posterior.size / self.passes.dimension)
        if min(len(part), most) < GROWTH * known:
            return None
        found = self.passes.hessian(x, part[:most])
        return found if np.isfinite(found.total).all() else None

    def _newton_reason(self, end: newton.Outcome, rows: np.ndarray | None) -> str:
        reached = f"Newton decrement {end.decrement:.1g} nats after {end.steps} Newton steps{self._of(rows)}"
        along = self.names[end.along]
        if end.ended == "converged" and not end.free.all():
            held = sorted({name for name, free in zip(self.names, end.free) if not free})
            return f"{reached}, with {', '.join(held)} at the edge of a mirrored support, where a density has no mode"
        if end.ended == "converged":
            condition = f"condition number {end.model.condition:.0e} in units of its diagonal"
            return f"{reached}; the Hessian is positive definite ({condition}){self._digits()}"
        if end.ended in ("infinite", "curved"):
            what = "density" if end.ended == "infinite" else "density's curvature"
            return f"no mode: after {end.steps} Newton steps{self._of(rows)} the {what} is infinite along {along}"
        if end.ended == "steps":
            return (
                f"no mode after {end.steps} Newton steps{self._of(rows)}: U still fell by {end.fall:.1g} nats in the "
                f"last one, most of it along {along}; the density may be unbounded, as that of a centred hierarchy is"
            )
        if end.ended == "narrow":
            return (
                f"no mode: after {end.steps} Newton steps{self._of(rows)} U falls only because places become narrower, "
                f"along {along}; the density is unbounded, as that of a centred hierarchy is"
            )
        if end.ended == "endless":
            return f"no mode{self._of(rows)}: U does not rise along {along}, which only tends to infinity"
        if end.ended == "flat":
            weakest = self.names[int(np.argmax(np.abs(end.model.vectors[:, 0])))]
            return f"no single mode: the density is flat in a direction in which {weakest} changes most{self._digits()}"
        if not end.model.positive:
            return (
                f"no mode: after {end.steps} Newton steps{self._of(rows)} no step lowers U, and the Hessian is not "
                f"positive definite there (along {along}); the density is unbounded or not smooth"
            )
        if end.ended == "rounded":
            return f"{reached}: the session's {self._digits_of_session()} precision has no position nearer to the mode"
        return f"{reached}: no step lowers U any more; the density is unbounded or not smooth along {along}"

    # --- without it ---

    def _lbfgs(self, rows: np.ndarray | None) -> Found:
        x, limit = self.start, 5 * self.iterations
        for part, tolerance in self._parts(rows):
            try:
                scale = np.sqrt(self._diagonal(x, part))
                end = lbfgs.descend(newton.Objective(self.passes, part), x, scale, tolerance=tolerance, limit=limit)
            except ValueError:
                continue
            x = end.x if end.ended == "converged" else x
        objective, scale = newton.Objective(self.passes, rows), np.sqrt(self._diagonal(x, rows))
        end = lbfgs.descend(objective, x, scale, tolerance=self.tolerance / 10, limit=limit)
        if np.isfinite(end.value):
            scale = np.sqrt(self._diagonal(end.x, rows))
            end = lbfgs.polish(objective, end, scale, tolerance=self.tolerance, limit=10)
        infinite = self.names[int(np.argmax(np.abs(end.grad.total) / scale))] if end.ended == "infinite" else None
        return Found(
            x=end.x,
            grad=end.grad,
            hessian=None,
            model=None,
            stale=False,
            diagonal=scale**2,
            decrement=end.decrement,
            converged=end.ended == "converged",
            edge=False,
            infinite=infinite,
            reason=self._lbfgs_reason(end, rows),
        )

    def _lbfgs_reason(self, end: lbfgs.Reached, rows: np.ndarray | None) -> str:
        reached = f"Newton decrement {end.decrement:.1g} nats after {end.steps} steps{self._of(rows)}"
        way = f"by {end.products} products with the Hessian in conjugate gradients"
        if end.ended == "converged":
            return f"{reached}, measured {way}; the curvature was positive along all of them{self._digits()}"
        if end.ended == "infinite":
            return f"no mode: the density becomes infinite after {end.steps} steps{self._of(rows)}"
        if end.ended == "negative":
            return f"no mode: the Hessian is not positive definite after {end.steps} steps{self._of(rows)} ({way})"
        why = "U is still falling" if end.ended == "steps" else "no step lowers U any more"
        return f"{reached}: {why}; the density may be unbounded, or hard to descend"

    def _diagonal(self, x: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """The Hessian's diagonal, above zero, from as many rows as can be afforded."""
        count, exact = self.passes.posterior.size if rows is None else len(rows), x.size <= EXACT
        most = max(256, EXACT_WORK // x.size**2) if exact else PROBED_ROWS
        if count > most:
            rows = subsample(self.rng, count, most) if rows is None else rows[:most]
        found = np.abs(diagonal(self.passes, x, rows, None if exact else PROBES, self.rng))
        if not np.isfinite(found).all():
            raise ValueError("the log-density has no finite second derivatives near its mode: choose another init")
        return np.where(found > 0, found, 1.0)

    # --- words ---

    def _of(self, rows: np.ndarray | None) -> str:
        size = self.passes.posterior.size
        if size == 0:
            return ""
        return " on all data" if rows is None else f" on {len(rows):,} of {size:,} rows"

    def _digits(self) -> str:
        return "" if self.passes.double else "; the model was computed in single precision"

    def _digits_of_session(self) -> str:
        return "double" if self.passes.kind == np.float64 else "single"
