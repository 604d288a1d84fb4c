"""How good the draws are: the verdict, summaries, effective sample sizes, R-hat, Stein discrepancies, and the cost."""

from hamcmc.diagnostics.costs import Cost, cost
from hamcmc.diagnostics.scores import Classification, Loo, Regression, classification, loo, regression
from hamcmc.diagnostics.stein import Discrepancy, ksd, ksd_of
from hamcmc.diagnostics.summaries import Summary, summary
from hamcmc.diagnostics.verdict import Verdict, check, stored_verdict

__all__ = [
    "Classification",
    "Cost",
    "Discrepancy",
    "Loo",
    "Regression",
    "Summary",
    "Verdict",
    "check",
    "classification",
    "cost",
    "ksd",
    "ksd_of",
    "loo",
    "regression",
    "stored_verdict",
    "summary",
]
