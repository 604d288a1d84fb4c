"""The error of a factorization on held-out ratings while it runs, beside simple predictions."""

from collections.abc import Mapping, Sequence

import numpy as np

from hamcmc._types import Facts
from hamcmc.factorization.baselines import Baselines
from hamcmc.report import frame, plots
from hamcmc.report.frame import duration, plural

ERRORS = {"rmse": "of the mean of all draws so far", "rmse_draw": "of each draw"}


def section(lines: Sequence[Facts], settings: Facts, simple: Baselines | None = None) -> str:
    """Curves against iterations and time, and a table beside simple predictions."""
    curves = {name: _curve(lines, k) for k, name in ERRORS.items()}
    curves = {name: x for name, x in curves.items() if np.isfinite(x).any()}
    if not curves:
        return "<p>No test error was logged.</p>"
    warmup = settings.get("warmup", 0)
    html = "<p class='soft'>Root mean square error on the held-out ratings. "
    if warmup:
        html += f"The dotted line marks the end of the warm-up, after {plural(warmup, 'iteration')}. "
    if simple:
        html += f"The level dotted line is the error of biases only, {simple.biases:.4f}."
    html += "</p>"
    html += frame.key({name: i for i, name in enumerate(curves)}, "curves") + '<div class="row">'
    last = ", ".join(f"{x[np.isfinite(x)][-1]:.4f} {name}" for name, x in curves.items())
    iterations, seconds = _curve(lines, "iteration"), _curve(lines, "seconds")
    after = seconds[iterations >= warmup]
    for name, when, mark in (
        ("iteration", iterations, warmup),
        ("seconds", seconds, after[0] if warmup and len(after) else 0),
    ):
        html += frame.figure(_plot(when, curves, name, mark, simple), f"Test RMSE against {name}; at the end {last}")
    rows = [
        [f"{iterations[i]:,.0f}", duration(float(seconds[i])), *(f"{x[i]:.4f}" for x in curves.values())]
        for i in np.unique(np.linspace(0, len(lines) - 1, 12).astype(int))
    ]
    table = frame.table(["iteration", "time", *curves], rows, "Test RMSE")
    if simple:
        last_of = [[name, f"{x[np.isfinite(x)][-1]:.4f}"] for name, x in curves.items()]
        rows = [*last_of, ["biases only", f"{simple.biases:.4f}"], ["the mean rating", f"{simple.mean:.4f}"]]
        html += "</div>" + frame.table(["", "RMSE"], rows, "Beside simple predictions", kind="wrap") + "<div>"
    return f"{html}</div><details><summary>Errors as a table</summary>{table}</details>"


def _curve(lines: Sequence[Facts], name: str) -> np.ndarray:
    return np.array([np.nan if e.get(name) is None else e[name] for e in lines], float)


def _plot(
    when: np.ndarray, curves: Mapping[str, np.ndarray], name: str, mark: float, simple: Baselines | None
) -> plots.Plot:
    late = np.concatenate([x[len(x) // 10 :] for x in curves.values()])
    late = late[np.isfinite(late)]
    y = plots.axis("test RMSE")
    if len(late):  # the first errors are large, and would flatten all others
        margin = 0.05 * np.ptp(late) + 1e-3
        y["range"] = [float(late.min() - margin), float(np.quantile(late, 0.99) + margin)]
    guides: list[list[float | None]] = [[float(mark), None, float(mark), None]] if mark else []
    if simple and "range" in y:
        y["range"][1] = max(y["range"][1], 1.02 * simple.biases)
        guides.append([float(when[0]), simple.biases, float(when[-1]), simple.biases])
    return {"x": plots.axis(name), "y": y, "series": plots.curves(when, curves), "guides": guides, "height": 240}
