"""The paper's figures and theory as commands: ``REPRODUCTIONS[name].run(out, quick=…, seed=…, progress=…)``."""

from collections.abc import Callable
from typing import NamedTuple

from hamcmc.paper import bias, fig1, fig2, fig3, fig4, fig5, proposition, scale, theorem
from hamcmc.paper.common import Reproduction


class Entry(NamedTuple):
    """A reproduction by name: ``run(out, quick=False, seed=0, progress=None) -> Reproduction`` and a line of help.

    `progress` is called with (what is being done, fraction done). `options` are keywords that only this one takes.
    """

    run: Callable[..., Reproduction]
    help: str
    options: tuple[str, ...] = ()


REPRODUCTIONS = {
    "fig1": Entry(fig1.reproduce, "Four tuned samplers on a thin two-dimensional ridge."),
    "fig2": Entry(fig2.reproduce, "Error of the posterior mean by iterations and by the clock, D = 10 and 100."),
    "fig3": Entry(fig3.reproduce, "Speech cleaned from noise by three samplers, by its SDR.", ("corpus",)),
    "fig4": Entry(fig4.reproduce, "The partition of a matrix into blocks and parts, drawn."),
    "fig5": Entry(
        fig5.reproduce, "Held-out error of matrix factorization by iterations and by the clock.", ("ratings", "blocks")
    ),
    "scale": Entry(scale.reproduce, "What a step would cost at 10⁹ ratings on 64 to 1024 hosts."),
    "theorem": Entry(theorem.reproduce, "Bias and mean squared error against T beside the theorem's rates."),
    "proposition": Entry(proposition.reproduce, "Bias of the naive sampler next to HAMCMC's as the step shrinks."),
    "bias": Entry(bias.reproduce, "Bias of the published samplers next to the ensemble's on four targets."),
}
