"""Reports: self-contained HTML pages about runs, reproductions and cleaned recordings."""

from hamcmc.report.page import write_report

__all__ = ["write_report"]
