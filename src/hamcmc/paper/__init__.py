"""The paper's figures and theory as commands: ``REPRODUCTIONS["fig1"].run(out, quick=True)``.

A reproduction's module is imported when it runs, so that this list costs nothing.
"""

import json
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hamcmc.inference.display import shown
from hamcmc.inference.progress import Progress

if TYPE_CHECKING:
    from hamcmc.paper.common import Reproduction


class Entry(NamedTuple):
    """A reproduction.

    Attributes:
        name: of the reproduction and of its module.
        help: one line that says what it shows.
        minutes: that the kept full run took on two cores, about.
        options: the names of arguments that only this reproduction takes.
    """

    name: str
    help: str
    minutes: float
    options: tuple[str, ...] = ()

    def run(
        self,
        out: Path,
        *,
        quick: bool = False,
        seed: int = 0,
        progress: bool | Progress | None = None,
        **options: Any,
    ) -> "Reproduction":
        """Run it and write its files.

        Args:
            out: the directory for figures and results.
            quick: the same structure with fewer iterations and runs.
            seed: everything random follows from it.
            progress: True for a progress bar, None for one if stderr is a terminal, or a function that is called with a
                :class:`~hamcmc.inference.progress.Status`.
            **options: those that this reproduction takes.
        """
        module = import_module(f"hamcmc.paper.{self.name}")
        began = time.perf_counter()
        with shown(progress, self.name) as show:
            found = module.reproduce(Path(out), quick=quick, seed=seed, progress=show, **options)
        record = import_module("hamcmc.paper.common").record
        return record(found, self.command(quick, seed, options), time.perf_counter() - began)

    def finished(self, out: Path, *, quick: bool, seed: int, **options: Any) -> bool:
        """Whether a directory has the results of the same run, of the same version."""
        try:
            found = json.loads((Path(out) / "results.json").read_text())
            return (
                found["command"] == self.command(quick, seed, options)
                and found["versions"]["hamcmc"] == import_module("hamcmc").__version__
            )
        except (OSError, ValueError, KeyError):
            return False

    def command(self, quick: bool, seed: int, options: dict[str, Any]) -> str:
        """The command that repeats a run; paths are the reader's own."""
        own = [f"--{k} {'PATH' if isinstance(v, Path) else v}" for k, v in options.items()]
        return " ".join(["hamcmc reproduce", self.name, *["--quick"] * quick, f"--seed {seed}", *own])


REPRODUCTIONS = {
    entry.name: entry
    for entry in (
        Entry("fig1", "Four tuned samplers on a thin two-dimensional ridge.", 1),
        Entry("fig2", "Error of the posterior mean by iterations and by the clock, D = 10 and 100.", 3),
        Entry("where", "Who samples best, by condition number, stiff directions and dimension.", 7),
        Entry("fig3", "Speech cleaned from noise by four samplers, compared by SDR.", 30, ("corpus", "changes")),
        Entry("fig4", "The partition of a matrix into blocks and parts.", 0.1),
        Entry(
            "fig5",
            "Held-out error of matrix factorization by iterations and by the clock.",
            4,
            ("ratings", "blocks", "processes"),
        ),
        Entry("scale", "The cost of a step at 10⁹ ratings on 64 to 1024 hosts.", 1),
        Entry("theorem", "Bias and mean squared error against T beside the theorem's rates.", 4),
        Entry("proposition", "Bias of the naive sampler next to HAMCMC's as the step shrinks.", 3),
        Entry("bias", "Bias of the published samplers next to the ensemble's on four targets.", 4),
    )
}
