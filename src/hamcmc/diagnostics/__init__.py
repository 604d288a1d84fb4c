"""How good the draws are: summaries, effective sample sizes, R-hat, the kernel Stein discrepancy, and the cost."""

from hamcmc.diagnostics.stein import Discrepancy, ksd
from hamcmc.diagnostics.summaries import Cost, Summary, cost, ksd_of, summary

__all__ = ["Cost", "Discrepancy", "Summary", "cost", "ksd", "ksd_of", "summary"]
