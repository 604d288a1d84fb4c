"""Reports: self-contained HTML pages about runs, reproductions and cleaned recordings."""

from hamcmc.report.page import write_report
from hamcmc.report.predictions import Classes, Numbers

__all__ = ["Classes", "Numbers", "write_report"]
