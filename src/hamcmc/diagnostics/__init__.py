"""How good the draws are: summaries, effective sample sizes, R-hat, the kernel Stein discrepancy, and the cost."""

from hamcmc.diagnostics.costs import Cost, cost
from hamcmc.diagnostics.stein import Discrepancy, ksd, ksd_of
from hamcmc.diagnostics.summaries import Summary, summary

__all__ = ["Cost", "Discrepancy", "Summary", "cost", "ksd", "ksd_of", "summary"]
