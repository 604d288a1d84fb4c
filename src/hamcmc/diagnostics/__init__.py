"""How good the draws are: the verdict, summaries, effective sample sizes, R-hat, Stein discrepancies, and the cost."""

from hamcmc._renamed import moved
from hamcmc.diagnostics.costs import Cost, cost
from hamcmc.diagnostics.scores import (
    Classification,
    Loo,
    Outside,
    Regression,
    Reliability,
    classification,
    coverage,
    entropy,
    loo,
    out_of_distribution,
    probability_below,
    regression,
    reliability,
)
from hamcmc.diagnostics.stein import Discrepancy, ksd, ksd_of
from hamcmc.diagnostics.summaries import Summary, summary
from hamcmc.diagnostics.verdict import Verdict, check, stored_verdict

__all__ = [
    "Classification",
    "Cost",
    "Discrepancy",
    "Loo",
    "Outside",
    "Regression",
    "Reliability",
    "Summary",
    "Verdict",
    "check",
    "classification",
    "cost",
    "coverage",
    "entropy",
    "ksd",
    "ksd_of",
    "loo",
    "out_of_distribution",
    "probability_below",
    "regression",
    "reliability",
    "stored_verdict",
    "summary",
]

_ESS, _SUMMARIES = "hamcmc.diagnostics.ess", "hamcmc.diagnostics.summaries"
__getattr__ = moved(
    __name__,
    choose=_SUMMARIES,
    effective_size=_ESS,
    format_cell=_SUMMARIES,
    independent_share=_ESS,
    kish=_ESS,
    label="hamcmc.diagnostics.names",
    r_hat=_ESS,
    read_entries=_SUMMARIES,
    weighted_moments=_SUMMARIES,
    weighted_quantiles=_SUMMARIES,
)
