"""The demonstration: the automatic call on many rows beside NUTS, then every sampler on a thin ridge."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hamcmc.paper import contest_figure
from hamcmc.paper.contest import FULL, QUICK, Contest, contest
from hamcmc.paper.gallery import Row, gallery


class Demo(NamedTuple):
    """What the demonstration produces.

    Attributes:
        contest: the automatic call, and NUTS beside it.
        picture: the figure of these two.
        rows: a row for each sampler on the ridge.
        samplers: the figure of these.
    """

    contest: Contest
    picture: Path
    rows: list[Row]
    samplers: Path


def demo(
    out: Path,
    *,
    quick: bool = False,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    show: Callable[[Contest], None] = lambda found: None,
) -> Demo:
    """Run both parts of the demonstration.

    Args:
        out: the directory for the figures, and for the automatic run.
        quick: take fewer rows and less time.
        seed: everything random follows from it.
        tell: called with a line about what comes next.
        show: called with the first part as soon as it is there.
    """
    found = contest(out, QUICK if quick else FULL, seed=seed, tell=tell)
    picture, samplers = out / "demo.png", out / "samplers.png"
    contest_figure.draw(found).savefig(picture, dpi=130)
    show(found)
    tell("Every sampler of the package on a posterior that is a thin ridge:")
    rows, figure = gallery(quick=quick, seed=seed, tell=lambda name: tell(f"  {name} …"))
    figure.savefig(samplers, dpi=130)
    return Demo(found, picture, rows, samplers)
