"""The verdict on a run: one word, the reason for it, and the worst parameters."""

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from hamcmc import _check
from hamcmc._types import Record
from hamcmc.diagnostics import grading
from hamcmc.diagnostics.agreement import AGREED, agreement
from hamcmc.diagnostics.grading import WORDS
from hamcmc.diagnostics.measured import Measured, measure
from hamcmc.store.result import StoredRun
from hamcmc.target.posterior import Posterior

WORST = 8  # parameters in the table
HUGE = 10.0  # an error beyond which its digits say nothing
EXIT_CODES = {"good": 0, "usable": 0, "not converged": 3, "wrong": 4}  # of commands that show a verdict
HEADS = {
    "mean_error": "mean off by (sd)",
    "sd_error": "sd off by",
    "tail_error": "tails off by",
    "r_hat_ensembles": "R-hat ensembles",
    "r_hat": "R-hat chains",
    "ess_bulk": "ESS bulk",
    "ess_tail": "ESS tail",
}


@dataclass(frozen=True)
class Row:
    """One of the worst parameters. A number that is not known is NaN.

    Attributes:
        name: such as ``theta[3]``.
        mean_error: Stein's estimate of the error of the mean, in posterior standard deviations.
        mean_se: its standard error.
        sd_error: Stein's estimate of the relative error of the standard deviation.
        sd_se: its standard error.
        tail_error: the same as the tails show it.
        tail_se: its standard error.
        r_hat_ensembles: R-hat between independent ensembles.
        r_hat: R-hat between all chains.
        ess_bulk: effective draws in the bulk.
        ess_tail: effective draws in the tails.
    """

    name: str
    mean_error: float
    mean_se: float
    sd_error: float
    sd_se: float
    tail_error: float
    tail_se: float
    r_hat_ensembles: float
    r_hat: float
    ess_bulk: float
    ess_tail: float

    def cells(self) -> list[str]:
        """The row as text."""

        def off(error: float, se: float, form: str) -> str:
            if abs(error) > HUGE:
                return f"beyond {np.copysign(HUGE, error):{form}}"
            return "–" if np.isnan(error) else f"{error:{form}} ± {min(se, HUGE):{form[1:]}}"

        def plain(number: float, form: str) -> str:
            return "–" if np.isnan(number) else f"{number:{form}}"

        return [
            self.name,
            off(self.mean_error, self.mean_se, "+.2f"),
            off(self.sd_error, self.sd_se, "+.0%"),
            off(self.tail_error, self.tail_se, "+.0%"),
            plain(self.r_hat_ensembles, ".3f"),
            plain(self.r_hat, ".3f"),
            plain(self.ess_bulk, ",.0f"),
            plain(self.ess_tail, ",.0f"),
        ]


NUMBERS = [f.name for f in fields(Row)][1:]


@dataclass(frozen=True)
class Verdict:
    """Whether to trust a run.

    Attributes:
        word: ``"good"``, ``"usable"``, ``"not converged"`` or ``"wrong"``.
        reasons: why, the most important first. Remarks that do not change the word come last.
        worst: the worst parameters of all, the worst first.
        parameters: how many scalar parameters were looked at.
        gradients: at how many draws the gradient was confronted; 0 if it was not.
        short: how many times as many draws would make the effective sample sizes good; at most 1 if they are.
        bias: the largest error that gradients show beyond doubt, of a parameter or along a direction; 0 if there is
            none. It is that of a mean in standard deviations, or the relative one of a standard deviation. In the tails
            twice as much is taken for the same.
    """

    word: str
    reasons: tuple[str, ...]
    worst: tuple[Row, ...]
    parameters: int
    gradients: int
    short: float = 1.0
    bias: float = 0.0

    @property
    def reason(self) -> str:
        """The most important reason."""
        return self.reasons[0] if self.reasons else "chains, effective draws and gradients agree"

    @property
    def headline(self) -> str:
        """Word and reason in one line."""
        return f"{self.word}: {self.reason}"

    @property
    def exit_code(self) -> int:
        """What a command that shows this verdict returns to the shell."""
        return EXIT_CODES[self.word]

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  also: {r}" for r in self.reasons[1:]), *self._table()])

    def _table(self) -> Iterator[str]:
        """The worst parameters, in aligned columns."""
        if not self.worst:
            return
        yield f"The worst of {self.parameters:,} parameters:"
        table = [["", *HEADS.values()], *(row.cells() for row in self.worst)]
        widths = [max(map(len, column)) for column in zip(*table)]
        for r in table:
            yield "  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])])

    def __repr__(self) -> str:
        return f"<Verdict {self.headline}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(h)}</th>" for h in ("", *HEADS.values()))
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row.cells()) + "</tr>" for row in self.worst
        )
        more = "".join(f"<li>{html.escape(r)}</li>" for r in self.reasons[1:])
        said = f"<p><strong>{self.word}</strong>: {html.escape(self.reason)}</p>" + (f"<ul>{more}</ul>" if more else "")
        caption = f"<caption>The worst of {self.parameters:,} parameters</caption>"
        return said + (f"<table>{caption}<tr>{head}</tr>{rows}</table>" if rows else "")

    def to_json(self) -> Record:
        """The verdict as values that JSON can hold; numbers that are not known become None."""

        def known(value: Any) -> Any:
            return None if isinstance(value, float) and not np.isfinite(value) else value

        worst = [{k: known(v) for k, v in asdict(row).items()} for row in self.worst]
        return asdict(self) | {"reasons": list(self.reasons), "worst": worst, "short": known(self.short)}

    @classmethod
    def from_json(cls, stored: Record) -> Self:
        """The inverse of :meth:`to_json`. Raises ValueError if this is no verdict."""
        try:
            rows = (
                Row(row["name"], *(np.nan if row[k] is None else float(row[k]) for k in NUMBERS))
                for row in stored["worst"]
            )
            found = cls(
                stored["word"],
                tuple(map(str, stored["reasons"])),
                tuple(rows),
                int(stored["parameters"]),
                int(stored["gradients"]),
                float(np.inf if (short := stored.get("short", 1.0)) is None else short),
                float(stored.get("bias", 0.0)),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a verdict: {error}") from error
        if found.word not in WORDS:
            raise ValueError(f"this is not a verdict: its word is {str(found.word)[:40]!r}")
        return found


def check(result: StoredRun, posterior: Posterior | None = None, *, draws: int = 400, seed: int = 0) -> Verdict:
    """Judge a run: confront draws with gradients, and compare chains and ensembles.

    About `draws` draws, spread evenly over chains and time, are confronted with the gradient of the log-density on all
    data, by Stein's identities (:mod:`hamcmc.diagnostics.identities`). The verdict also looks at R-hat and effective
    sample sizes of **all** scalar parameters, at chains that are stuck, at the acceptance, and at the digits of single
    precision.

    * **good**: R-hat below 1.01 and at least 1000 effective draws for every parameter, and the gradients exclude errors
      of 0.1 standard deviations of a mean and of 10 % of a standard deviation. Along those linear combinations of all
      parameters that look worst (:mod:`hamcmc.diagnostics.combinations`) they show no such error; a remark says where
      they cannot exclude one. That needs about three draws with gradients for each parameter;
    * **usable**: R-hat below 1.05, at least 400 effective draws, and nothing speaks against the draws;
    * **not converged**: chains disagree, there are too few effective draws, or gradients and draws may disagree;
    * **wrong**: the draws contradict the gradients, by more than noise and by more than these errors.

    The limits of R-hat allow for its noise in many short chains. No check can see a mode that no chain has visited.

    An automatic run on a network is judged by its predictions, not by its parameters
    (:mod:`hamcmc.diagnostics.agreement`). It is **usable** at best, and **not converged** where the chains' predictions
    differ. Where a run stored a part of the parameters, or a function of them, the verdict is on what was stored.

    Args:
        result: a run, complete or not.
        posterior: its posterior. Without it the gradients are not confronted, and the best word is "usable".
        draws: how many draws to confront with gradients.
        seed: chooses rows of data, if there are too many to look at all of them.
    """
    _check.at_least("draws", draws, 40)
    network = result.settings.get("plan", {}).get("regime") == "predictions"
    if network and posterior is not None and not result.partial:
        return _of_predictions(result, posterior, seed)
    m = measure(result, posterior, draws, seed)
    found = grading.reasons(m, result.settings, result.meta, result.draws)
    word = WORDS[max((r.grade for r in found), default=0)]
    confronted = 0 if m.stein is None else min(draws, result.draws * result.settings["chains"])
    texts, worst = tuple(r.text for r in found), tuple(_worst(m))
    return Verdict(word, texts, worst, len(m.names), confronted, grading.short_of(m), grading.bias_of(m))


def _of_predictions(result: StoredRun, posterior: Posterior, seed: int) -> Verdict:
    """The verdict on a run on a network."""
    parameters = sum(int(np.prod(shape)) for shape in result.shapes.values())
    if result.draws < 4:
        few = f"there are only {result.draws} draws per chain"
        return Verdict(WORDS[grading.NOT_CONVERGED], (few,), (), parameters, 0)
    found = agreement(result, posterior, seed)
    agree = found.error <= AGREED
    word = WORDS[grading.USABLE if agree else grading.NOT_CONVERGED]
    reasons = [found.of_predictions(agree), found.of_parameters()]
    if held := result.settings["plan"].get("held_out"):
        reasons.append(
            f"rows that were held out in tuning: {held['sampled']:.3f} nats for a row; trained networks "
            f"{held['single']:.3f} one by one, {held['together']:.3f} together"
        )
    return Verdict(word, tuple(reasons), (), parameters, 0)


def stored_verdict(result: StoredRun) -> Verdict | None:
    """The verdict that is stored with a run; None if there is none."""
    stored = result.meta.get("verdict")
    if not isinstance(stored, dict):
        return None
    try:
        return Verdict.from_json(stored)
    except ValueError:  # of another version
        return None


def _worst(m: Measured) -> Iterator[Row]:
    """The worst parameters, each measured by the criterion that it fails most."""
    stein = np.full((6, len(m.names)), np.nan)
    if m.stein is not None:
        columns = [v for s in (m.stein.mean, m.stein.sd, m.stein.tail) for v in (s.error, s.se)]
        stein[:, m.confronted] = columns
    limits = [grading.MATERIAL, grading.MATERIAL, grading.MATERIAL_TAIL]
    sizes = [np.abs(stein[2 * k]) / limit for k, limit in enumerate(limits)]
    sizes += [(r - 1) / (grading.R_HAT[grading.USABLE] - 1) for r in (m.mixing.r_hat, m.mixing.r_hat_ensembles)]
    sizes += [grading.ESS[grading.USABLE] / e for e in (m.mixing.ess_bulk, m.mixing.ess_tail)]
    unknown = np.isnan(m.mixing.ess_bulk) & np.isfinite(m.mixing.ess_bulk).any()
    score = np.where(unknown, np.inf, np.nan_to_num(np.fmax.reduce(sizes)))
    mixed = (m.mixing.r_hat_ensembles, m.mixing.r_hat, m.mixing.ess_bulk, m.mixing.ess_tail)
    for j in np.argsort(-score, kind="stable")[:WORST]:
        yield Row(m.names[j], *(float(v) for v in stein[:, j]), *(float(v[j]) for v in mixed))
