"""How good the draws are: the verdict, summaries, effective sample sizes, R-hat, Stein discrepancies, and the cost."""

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
