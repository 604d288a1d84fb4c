"""What a run cost, and what an effective sample of it cost."""

from typing import NamedTuple

import numpy as np

from hamcmc.diagnostics.summaries import Summary, summary
from hamcmc.store.result import StoredRun


class Cost(NamedTuple):
    """What a run cost, warm-up included, over all chains.

    Attributes:
        gradients: minibatch gradients that were evaluated.
        seconds: time in the compiled loop, without compilation and writing.
        draws: stored draws.
        ess: the smallest bulk ESS; NaN if unknown.
        slowest: the name of the entry that has it; None if unknown.
    """

    gradients: int
    seconds: float
    draws: int
    ess: float
    slowest: str | None

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
        """Seconds for each effective sample of the slowest entry."""
        return self.seconds / self.ess


def cost(result: StoredRun, table: Summary | None = None) -> Cost:
    """Gradients and seconds of a run, with the smallest ESS among the rows of its summary.

    Args:
        result: a run, complete or not.
        table: its summary, if it was computed already.
    """
    table = summary(result) if table is None else table
    row, meta = table.slowest, result.meta
    ess, name = (np.nan, None) if row is None else (float(table["ess_bulk"][row]), table.names[row])
    return Cost(int(meta["gradients"]), float(meta["seconds"]), result.draws * result.settings["chains"], ess, name)
