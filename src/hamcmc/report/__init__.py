"""The HTML report of a run."""

from hamcmc.report.page import write_report

__all__ = ["write_report"]
