"""The section of a report about predictions of rows that were observed: scores, reliability, intervals, coverage."""

from typing import Any, NamedTuple

import numpy as np

from hamcmc.diagnostics import scores
from hamcmc.report import frame, plots
from hamcmc.report.frame import number, plural
from hamcmc.report.plots import Plot, axis, named, pack

LEVELS = np.linspace(0.05, 0.95, 19)
SHOWN = 200  # rows whose intervals are drawn
INTERVAL = 0.9


class Classes(NamedTuple):
    """Predicted probabilities of classes, for the report of a run.

    Attributes:
        probabilities: (row, class), such as ``result.predict(probabilities, x).mean``.
        labels: the classes that were observed.
        outside: probabilities (row, class) of rows of another kind, of which the model should be less sure.
    """

    probabilities: Any
    labels: Any
    outside: Any = None


class Numbers(NamedTuple):
    """Predicted numbers with normal noise, for the report of a run.

    Attributes:
        draws: (draw, row) of the mean of each row, such as ``result.predict(function, x).draws``.
        observed: a number for each row.
        noise: the standard deviation of the noise: a number, one for each draw, or (draw, row).
    """

    draws: Any
    observed: Any
    noise: Any


def section(of: Classes | Numbers) -> str:
    """The HTML of the section.

    Raises:
        ValueError: predictions that do not fit to what was observed.
    """
    if isinstance(of, Classes):
        return _of_classes(of)
    if isinstance(of, Numbers):
        return _of_numbers(of)
    raise ValueError(f"predictions must be hamcmc.report.Classes or Numbers, got {type(of).__name__}")


def _of_classes(of: Classes) -> str:
    found = scores.classification(of.probabilities, of.labels)
    bins = scores.reliability(of.probabilities, of.labels)
    rows = [
        ["negative log-likelihood", f"{found.nll:.3f}", "nats for each row; smaller is better"],
        ["accuracy", f"{found.accuracy:.1%}", "rows whose most probable class is right"],
        ["expected calibration error", f"{found.calibration_error:.3f}", "confidence against accuracy; 0 is best"],
        ["Brier score", f"{found.brier:.3f}", "smaller is better"],
        ["entropy", f"{found.entropy:.3f}", "nats; how unsure the predictions are"],
    ]
    if of.outside is not None:
        other = scores.out_of_distribution(of.probabilities, of.outside)
        rows += [
            ["entropy on other rows", f"{other.entropy_outside:.3f}", "nats; should be larger"],
            ["area under the curve", f"{other.auroc:.3f}", "how well entropy tells other rows; 0.5 is chance"],
        ]
    table = [
        [f"{c:.2f}", f"{a:.2f}", f"{int(n):,}"]
        for c, a, n in zip(bins.confidence, bins.accuracy, bins.rows)
        if n  # an empty bin says nothing
    ]
    return (
        f"<p class='soft'>{plural(len(np.asarray(of.labels)), 'row')} with classes that were observed. A point on the "
        "diagonal says that predictions with this confidence are right as often as they claim.</p>"
        + frame.table(["", "value", "meaning"], rows, "Scores", kind="wrap")
        + '<div class="row">'
        + frame.figure(
            reliability_plot(bins),
            f"Reliability diagram: accuracy against confidence; calibration error {found.calibration_error:.3f}",
            "Accuracy against confidence",
        )
        + "</div><details><summary>The diagram as a table</summary>"
        + frame.table(["confidence", "accuracy", "rows"], table, "Accuracy in bins of confidence")
        + "</details>"
    )


def _of_numbers(of: Numbers) -> str:
    found = scores.regression(of.draws, of.observed, of.noise)
    below = scores.probability_below(of.draws, of.observed, of.noise)
    covered = np.array(list(scores.coverage(below, LEVELS.tolist()).values()))
    rows = [
        ["negative log-likelihood", f"{found.nll:.3f}", "nats for each row; smaller is better"],
        ["root mean squared error", number(found.rmse), "of the mean"],
        *(
            [f"inside the {level:.0%} interval", f"{share:.1%}", f"of the rows; should be {level:.0%}"]
            for level, share in found.coverage.items()
        ),
    ]
    gap = float(np.abs(covered - LEVELS).max())
    return (
        f"<p class='soft'>{plural(len(below), 'row')} with numbers that were observed. Intervals contain the noise. "
        "Coverage below the diagonal says that intervals are too narrow.</p>"
        + frame.table(["", "value", "meaning"], rows, "Scores", kind="wrap")
        + '<div class="row">'
        + frame.figure(
            coverage_plot(covered),
            f"Share of rows inside central intervals against their probability; largest difference {gap:.2f}",
            "Coverage of central intervals",
        )
        + frame.figure(
            intervals_plot(of),
            f"Predictive intervals of {INTERVAL:.0%} and what was observed, by the predicted mean",
            "Predicted and observed, in the order of the predicted mean",
        )
        + "</div><details><summary>Coverage as a table</summary>"
        + frame.table(
            ["probability", "share of rows"],
            [[f"{level:.0%}", f"{share:.1%}"] for level, share in zip(LEVELS, covered)],
            "Coverage of central intervals",
        )
        + "</details>"
    )


def reliability_plot(bins: scores.Reliability) -> Plot:
    """Accuracy against confidence, and the diagonal."""
    known = bins.rows > 0
    at = bins.confidence[known].tolist()
    return _against_the_diagonal(at, bins.accuracy[known], "accuracy", axis("confidence", range=[0, 1]))


def coverage_plot(covered: np.ndarray) -> Plot:
    """Shares of rows inside intervals against the intervals' probabilities, and the diagonal."""
    return _against_the_diagonal(LEVELS.tolist(), covered, "share of rows", axis("probability", range=[0, 1]))


def intervals_plot(of: Numbers) -> Plot:
    """Central predictive intervals of some rows, and what was observed."""
    x, sd = np.asarray(of.draws, np.float64), np.asarray(of.noise, np.float64)
    mean, y = x.mean(0), np.asarray(of.observed, np.float64)
    order = np.argsort(mean, kind="stable")
    order = order[plots.spread(len(order), SHOWN)]
    rng = np.random.default_rng(0)
    noisy = x[:, order] + scores.spread_over(sd, x.shape)[:, order] * rng.standard_normal((len(x), len(order)))
    low, high = np.quantile(noisy, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0)
    at = list(range(len(order)))
    series = [
        {"kind": "band", "x": at, "y": pack(low), "y2": pack(high), **named(f"middle {INTERVAL:.0%}", 0, "")},
        {"kind": "line", "x": at, "y": pack(mean[order]), **named("predicted mean", 0, "")},
        {"kind": "line", "x": at, "y": pack(y[order]), **named("observed", 1, "")},
    ]
    return {"x": axis("row", integer=True), "y": axis(), "series": series, "height": 240}


def _against_the_diagonal(at: list[float], values: np.ndarray, name: str, x: Any) -> Plot:
    ends = [0.0, 1.0]
    series = [
        {"kind": "line", "x": ends, "y": pack(np.array(ends)), **named("as it should be", 5, "")},
        {"kind": "line", "x": at, "y": pack(values), **named(name, 0, "")},
    ]
    return {"x": x, "y": axis(name, range=[0, 1]), "series": series, "height": 240}
