"""What a run cost, all included, and what an effective sample of it cost."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hamcmc.diagnostics.summaries import Summary, summary
from hamcmc.store.result import StoredRun

PARTS = {  # name → what it is called
    "tuning": "tuning",
    "mode": "preparing",
    "trace": "tracing",
    "compile": "compiling",
    "adaptation": "adaptation",
    "sampling": "sampling",
}


class Cost(NamedTuple):
    """What a run cost over all chains, all included.

    Attributes:
        gradients: minibatch gradients that were evaluated in the run and in the tuning before it.
        seconds: time for all parts together.
        draws: stored draws.
        ess: the smallest bulk ESS; NaN if unknown.
        slowest: the name of the entry that has it; None if unknown.
        parts: seconds of each part: ``tuning``, ``mode`` (all that precedes an automatic run: mode, Hessian, noise of
            gradients), ``trace``, ``compile``, ``adaptation`` (the warm-up) and ``sampling``.
            An older run knows only how long warm-up and sampling took together, which then count as ``sampling``.
    """

    gradients: int
    seconds: float
    draws: int
    ess: float
    slowest: str | None
    parts: Mapping[str, float]

    @property
    def gradients_per_draw(self) -> float:
        """Gradients for each stored draw; NaN before the first draw."""
        return self.gradients / self.draws if self.draws else np.nan

    @property
    def seconds_per_draw(self) -> float:
        """Seconds for each stored draw; NaN before the first draw."""
        return self.seconds / self.draws if self.draws else np.nan

    @property
    def gradients_per_effective_sample(self) -> float:
        """Gradients for each effective sample of the slowest entry."""
        return self.gradients / self.ess

    @property
    def seconds_per_effective_sample(self) -> float:
        """Seconds for each effective sample of the slowest entry, all included."""
        return self.seconds / self.ess

    def __str__(self) -> str:
        parts = ", ".join(f"{PARTS.get(k, k)} {v:.2f} s" for k, v in self.parts.items())
        line = f"{self.gradients:,} minibatch gradients in {self.seconds:.2f} s ({parts})"
        if self.slowest is None:
            return line
        return line + (
            f"; per effective sample of {self.slowest}, all included: {self.gradients_per_effective_sample:,.0f} "
            f"gradients, {self.seconds_per_effective_sample:.2g} s"
        )


def cost(result: StoredRun, table: Summary | None = None) -> Cost:
    """Gradients and seconds of a run, with the smallest ESS among the rows of its summary.

    Args:
        result: a run, complete or not.
        table: its summary, if it was computed already.
    """
    table = summary(result) if table is None else table
    row, meta, settings = table.slowest, result.meta, result.settings
    ess, name = (np.nan, None) if row is None else (float(table["ess_bulk"][row]), table.names[row])
    tuning = settings.get("tuning") or settings.get("notes", {}).get("tuning") or {}
    parts = _parts(meta.get("costs"), float(meta["seconds"]), float(tuning.get("seconds", 0.0)))
    gradients = int(meta["gradients"]) + int(tuning.get("gradients", 0))
    return Cost(gradients, sum(parts.values()), result.draws * settings["chains"], ess, name, parts)


def _parts(recorded: object, loop: float, tuning: float) -> dict[str, float]:
    """Seconds of each part that took any, in the order in which they came."""
    known = recorded if isinstance(recorded, Mapping) else {}
    found = {k: float(v) for k, v in known.items() if isinstance(v, int | float)}
    if not {"adaptation", "sampling"} & found.keys():
        found["sampling"] = loop
    found.setdefault("tuning", tuning)
    order = [*PARTS, *(k for k in found if k not in PARTS)]
    return {k: found[k] for k in order if k in found and (found[k] > 0 or k == "sampling")}
