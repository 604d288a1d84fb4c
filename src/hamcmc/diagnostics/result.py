"""The result of a run: its draws, and what they say."""

import html
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hamcmc._types import Record
from hamcmc.diagnostics.ess import arviz, interleaved, part
from hamcmc.diagnostics.gradients import plain
from hamcmc.diagnostics.predictions import Prediction, predict
from hamcmc.diagnostics.summaries import Summary, summary
from hamcmc.diagnostics.verdict import Verdict, check, stored_verdict
from hamcmc.store.result import StoredRun
from hamcmc.target.posterior import Posterior

if TYPE_CHECKING:
    from arviz import InferenceData


class Result(StoredRun):
    """The draws of a run, from memory or from its directory, complete or still going on.

    ``Result.open(directory)`` reads a run from the disk.

    Attributes:
        settings: what was asked (``run.json``).
        meta: how far the run got: iteration, draws, seconds, gradients, status; and the verdict, if it was stored.
        target: the posterior that was sampled; None for a run that was read from the disk.
    """

    def __init__(
        self,
        root: Any,
        settings: Record,
        meta: Record,
        summary: Mapping[str, np.ndarray],
        target: Posterior | None = None,
    ):
        super().__init__(root, settings, meta, summary)
        self.target = target

    def check(self, posterior: Posterior | None = None, *, draws: int = 400, seed: int = 0) -> Verdict:
        """Whether to trust the run: good, usable, not converged or wrong, with reasons.

        Without arguments this is the verdict that is stored with the run. If there is none, it is computed with the
        gradients of the posterior that was sampled; for a run that was read from the disk, without gradients.

        Args:
            posterior: compute the verdict anew with its gradients.
            draws: how many draws to confront with gradients.
            seed: chooses rows of data, if there are too many to look at all of them.
        """
        found = stored_verdict(self) if posterior is None else None
        return found or check(self, posterior or self.target, draws=draws, seed=seed)

    def summary(self) -> Summary:
        """Weighted means, sds and quantiles, ESS and R-hat: see :func:`hamcmc.diagnostics.summary`."""
        return summary(self)

    def predict(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        posterior: Posterior | None = None,
        draws: int = 1000,
        interval: float = 0.9,
    ) -> Prediction:
        """The mean of ``function(parameters, *arguments)`` over the posterior, with standard deviation and interval.

        For example ``result.predict(lambda network, x: jax.vmap(network)(x), new_rows)``. The function gets parameters
        as `log_likelihood` does: a whole module, if the posterior was made with one.

        Args:
            function: returns an array.
            *arguments: for the function, such as rows to predict.
            posterior: the posterior of the run, for a run that was read from the disk.
            draws: the most draws to use.
            interval: the probability of the central interval.
        """
        known = posterior or self.target
        if known is None:
            raise ValueError("posterior is missing: a run that was read from the disk does not know it")
        return predict(self, plain(known), function, *arguments, draws=draws, interval=interval)

    def to_arviz(self, posterior: Posterior | None = None) -> "InferenceData":
        """An ArviZ InferenceData with the groups ``posterior`` and ``sample_stats``.

        The draws of HAMCMC come from M interleaved chains. Here each of them is a chain of its own: otherwise ArviZ
        would take successive draws for nearly independent ones, and its ESS would be far too large.

        Args:
            posterior: the posterior of the run, for a run that was read from the disk. That of a NumPyro or PyMC model
                has names of dimensions, and deterministic quantities, which join the draws if these are whole.
        """
        apart = interleaved(self.settings)
        draws, sample_stats = (
            {n: part(x, apart) for n, x in group.items()} for group in (self.posterior, self.sample_stats)
        )
        attributes = {"inference_library": "hamcmc", "interleaved": apart}
        known = posterior or self.target
        if known is None:
            return arviz().from_dict(posterior=draws, sample_stats=sample_stats, attrs=attributes)
        known = plain(known)
        if not self.partial:
            draws |= {n: np.asarray(x) for n, x in known.deterministic(draws).items()}
        dims = {n: list(d) for n, d in known.dims.items() if n in draws}
        coords = {n: c for n, c in known.coords.items() if any(n in d for d in dims.values())}
        return arviz().from_dict(posterior=draws, sample_stats=sample_stats, dims=dims, coords=coords, attrs=attributes)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n}: {shape}" for n, shape in self.shapes.items())
        return f"<Result {self._judged()}{self._headline()}; {shapes}>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(n)}</td><td>{shape}</td></tr>" for n, shape in self.shapes.items())
        head = "<tr><th>parameter</th><th>shape</th></tr>"
        found = stored_verdict(self)
        judged = "" if found is None else found._repr_html_()
        return f"{judged}<p>{html.escape(self._headline())}</p><table>{head}{rows}</table>"

    def _judged(self) -> str:
        """The stored verdict, as the beginning of a line."""
        found = stored_verdict(self)
        return "of " if found is None else f"{found.word} ({found.reason}), of "

    def _headline(self) -> str:
        """Sampler, status, chains and draws in one line."""
        sampler, chains = self.settings["sampler"].get("sampler", "a sampler"), self.settings["chains"]
        return f"{sampler}, {self.meta['status']}: {chains} chain{'s' * (chains > 1)} × {self.draws:,} draws"
