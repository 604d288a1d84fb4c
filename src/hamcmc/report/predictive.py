"""Predictive checks: data beside data that the posterior generates."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hamcmc.report import frame, plots
from hamcmc.report.plots import Plot, axis, named, pack

LINES = 40  # generated data sets that are drawn
FEW = 30  # distinct values up to which data count as discrete
THIN, HEAVY = {"plain": True, "faint": True}, {"plain": True, "heavy": True}  # lines without dots
STATISTICS = {"mean": np.mean, "sd": np.std, "smallest": np.min, "largest": np.max}


def section(checks: Mapping[str, tuple[Any, Any]]) -> str:
    """A plot and a table for each variable: name → (observed data, generated data (draw, …))."""
    html = (
        "<p class='soft'>The distribution of the data (heavy line) beside those of data sets that draws of the "
        "posterior generate (thin lines). The table compares statistics; a share near 0 or 1 says that the model "
        "hardly ever generates such data.</p>"
    )
    for name, (observed, generated) in checks.items():
        seen, made = _checked(name, observed, generated)
        rows = []
        for label, statistic in STATISTICS.items():
            values = statistic(made, axis=1)
            low, high = np.quantile(values, [0.05, 0.95])
            share = np.mean(values > statistic(seen)) + 0.5 * np.mean(values == statistic(seen))
            rows.append([label, f"{statistic(seen):.4g}", f"{low:.4g} to {high:.4g}", f"{share:.2f}"])
        head = ["", "observed", "generated, middle 90 %", "share above"]
        html += (
            '<div class="row">'
            + frame.figure(plot(seen, made, name), f"Distribution of {name}, observed and generated", name)
            + frame.table(head, rows, f"{name}: {len(made):,} generated data sets", kind="wrap")
            + "</div>"
        )
    return html


def _checked(name: str, observed: Any, generated: Any) -> tuple[np.ndarray, np.ndarray]:
    seen = np.asarray(observed, np.float64)
    made = np.asarray(generated, np.float64)
    if made.ndim != seen.ndim + 1 or made.shape[1:] != seen.shape or not seen.size or not len(made):
        raise ValueError(
            f"predictive[{name!r}] must be (observed, generated) with shapes (…) and (draws, …); "
            f"got {seen.shape} and {made.shape}"
        )
    if not (np.isfinite(seen).all() and np.isfinite(made).all()):
        raise ValueError(f"predictive[{name!r}] has values that are not finite")
    return seen.ravel(), made.reshape(len(made), -1)


def plot(observed: np.ndarray, generated: np.ndarray, name: str) -> Plot:
    """Frequencies of discrete data, densities of others."""
    picked = generated[plots.spread(len(generated), LINES)]
    values = np.unique(observed)
    if len(values) <= FEW:
        at, curve = values, _frequencies
    else:
        low, high = np.quantile(np.concatenate([observed, picked.ravel()]), [0.002, 0.998])
        at, curve = np.linspace(low, high, plots.GRID), _density
    x = at.tolist()
    series = [{"kind": "line", "x": x, "y": pack(curve(y, at)), **named("generated", 5, ""), **THIN} for y in picked]
    series.append(
        {
            "kind": "line",
            "x": x,
            "y": pack(curve(observed, at)),
            **named("observed", 1, ""),
            "heavy": True,
            "plain": True,
        }
    )
    return {"x": axis(name), "y": axis("", hidden=True, zero=True), "series": series, "height": 240}


def _frequencies(y: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The share of data nearest to each value."""
    middle = (values[1:] + values[:-1]) / 2
    return np.bincount(np.searchsorted(middle, y), minlength=len(values)) / len(y)


def _density(y: np.ndarray, at: np.ndarray) -> np.ndarray:
    return plots.kde(y, np.ones(len(y)), at)[1]
