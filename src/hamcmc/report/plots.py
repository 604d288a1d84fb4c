"""What the plots of a page show, as numbers; ``plots.js`` draws them on canvases.

A plot is a dict with its axes and its series. Each number takes 16 bits. Of a long series, the page holds the smallest
and the largest value of every few draws: a screen cannot show more, and the page of 10⁶ draws stays small.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hamcmc._types import Facts, Record
from hamcmc.diagnostics.stein import spread
from hamcmc.diagnostics.summaries import weighted_moments, weighted_quantiles

Plot = Record
COLOURS = 6  # --chain-0 to --chain-5 of the style sheet
DASHES = 4  # kinds of lines in each colour
BINS = 500  # points of a line, which is about what a screen can show
CHAINS = 40  # lines in a plot, at most
DENSITY_DRAWS = 4000  # draws that a density is estimated from, at most
GRID = 120  # points of a density
CLOUD = 1500  # points of a pair plot
GAP = 65535  # the code of a number that is not finite
LOG = 30  # an axis is logarithmic if its largest value is more than this many times its smallest


def pack(x: np.ndarray) -> Record:
    """Encode numbers with 16 bits each, between the smallest and the largest of them; NaN and ±∞ become gaps."""
    x = np.asarray(x, np.float64)
    finite = np.isfinite(x)
    low, high = (float(x[finite].min()), float(x[finite].max())) if finite.any() else (0.0, 0.0)
    share = (np.where(finite, x, low) - low) / ((high - low) or 1.0)
    words = np.where(finite, np.rint(share * (GAP - 1)), GAP).astype("<u2")
    return {"low": low, "high": high, "words": base64.b64encode(words.tobytes()).decode()}


def axis(label: str = "", **more: Any) -> Record:
    """An axis with a label, and more: `range` in place of the series' own, `log`, `hidden`, `integer`, `zero`."""
    return {"label": label, **more}


def chain(c: int) -> str:
    """The name of a chain, on its button and its line."""
    return f"chain {c}"


class Groups(NamedTuple):
    """Which chains have the same colour and the same switch.

    Attributes:
        names: of the groups: ensembles, or single chains.
        of: the number of each chain's group.
    """

    names: list[str]
    of: np.ndarray

    def rows(self, group: int) -> np.ndarray:
        """The chains of a group."""
        return np.flatnonzero(self.of == group)


def groups(settings: Facts) -> Groups:
    """Ensembles, if there are several; otherwise each chain is a group."""
    chains, replicas = settings["chains"], settings.get("replicas", 1)
    if 1 < replicas < chains:
        return Groups([f"ensemble {e}" for e in range(chains // replicas)], np.arange(chains) // replicas)
    return single(chains)


def single(chains: int) -> Groups:
    """Each chain is a group of its own."""
    return Groups([chain(c) for c in range(chains)], np.arange(chains))


def shown(of: Groups) -> list[int]:
    """The groups whose lines are drawn."""
    return [int(g) for g in spread(len(of.names), CHAINS)]


def trace(x: np.ndarray, of: Groups | None = None) -> Plot:
    """Draws (chain, draw) against the number of the draw."""
    of = of or single(len(x))
    series = [
        against_draws(x[c]) | named(chain(c), int(of.of[c]), of.names[of.of[c]]) for c in spread(len(x), CHAINS)
    ]  # fmt: skip
    return {"x": draws_axis(x.shape[1]), "y": axis(), "series": series, "height": 170}


def against_draws(x: np.ndarray) -> Record:
    """A series over the draws: each value, or the range of every few."""
    few = -(-len(x) // BINS)
    if few <= 1:
        return {"kind": "line", "x": {"start": 0, "step": 1}, "y": pack(x)}
    whole = np.append(x, np.full(-len(x) % few, np.nan)).reshape(-1, few)
    whole = np.where(np.isfinite(whole), whole, np.nan)
    low, high = np.fmin.reduce(whole, axis=1), np.fmax.reduce(whole, axis=1)
    return {"kind": "range", "x": {"start": (few - 1) / 2, "step": few}, "y": pack(low), "y2": pack(high)}


def named(name: str, colour: int, key: str | None = None) -> Record:
    """The name of a series, its colour and dashes, and the button that hides it."""
    dash = int(colour) // COLOURS % DASHES
    found = {"name": name, "colour": int(colour) % COLOURS, "key": name if key is None else key}
    return found | ({"dash": dash} if dash else {})


def draws_axis(draws: int) -> Record:
    """The axis of the draws' numbers."""
    margin = max(0.01 * draws, 0.5)
    return axis("draw", range=[-margin, draws - 1 + margin], integer=True)


def density(x: np.ndarray, weights: np.ndarray, name: str = "", of: Groups | None = None) -> Plot:
    """Weighted density of draws (chain, draw): an area for all, a line for each group, a bar for median and 5–95 %."""
    of = of or single(len(x))
    w = np.broadcast_to(weights, x.shape)
    grid, pooled = kde(x, w)
    at = grid.tolist()
    series = [{"kind": "area", "x": at, "y": pack(pooled), **named("all chains", 0, "")}]
    for g in shown(of):
        own, weight = x[of.rows(g)], w[of.rows(g)]
        if len(of.names) > 1 and np.ptp(own) > 0:
            series.append({"kind": "line", "x": at, "y": pack(kde(own, weight, grid)[1]), **named(of.names[g], g)})
    low, median, high = (float(q) for q in weighted_quantiles(x, w, [0.05, 0.5, 0.95]))
    return {
        "x": axis(name, range=[at[0], at[-1]]),
        "y": axis("density", hidden=True, zero=True),
        "series": series,
        "bar": [low, median, high],
        "height": 170,
    }


def pairs(draws: Sequence[np.ndarray], names: Sequence[str], weights: np.ndarray, of: Groups | None = None) -> Plot:
    """All pairs of parameters: draws below the diagonal, densities on it, weighted correlations above it."""
    of = of or single(len(draws[0]))
    w = np.broadcast_to(weights, draws[0].shape).ravel()
    flat = np.array([x.ravel() for x in draws])
    # The points are evenly spaced in weight, so that the cloud is as dense as the posterior.
    reach = np.cumsum(w)
    count = min(len(w), CLOUD)
    picked = np.searchsorted(reach, reach[-1] * (np.arange(count) + 0.5) / count).clip(max=len(w) - 1)
    r = correlation(flat, w)
    return {
        "names": list(names),
        "columns": [pack(x[picked]) for x in flat],
        "groups": of.of[picked // draws[0].shape[1]].tolist(),
        "keys": of.names,
        "densities": [{"x": grid.tolist(), "y": pack(p)} for grid, p in (kde(x, w) for x in flat)],
        "correlations": [[None if np.isnan(v) else round(float(v), 3) for v in row] for row in r],
        "aspect": 1,
    }


def series(x: np.ndarray, most: float | None = None) -> Plot:
    """A statistic (chain, draw) against the draw: mean and 5–95 % range over all chains in up to 150 bins of draws."""
    bins = np.array_split(np.arange(x.shape[1]), min(x.shape[1], 150))
    finite = [(float(b.mean()), x[:, b][np.isfinite(x[:, b])]) for b in bins]
    when, values = zip(*([pair for pair in finite if pair[1].size] or [(0.0, np.zeros(1))]))
    low, high = (np.array([np.quantile(v, q) for v in values]) for q in (0.05, 0.95))
    mean = np.array([v.mean() for v in values])
    y = axis()
    if most is not None:
        y["range"] = [-0.04 * most, 1.04 * most]
    elif low.min() > 0 and high.max() > LOG * low.min():
        y["log"] = True
        low, mean, high = np.log10(low), np.log10(mean), np.log10(high)
    elif low.min() >= 0 and high.max() > 0:
        y["zero"] = True
    curves = [
        {"kind": "band", "x": list(when), "y": pack(low), "y2": pack(high), **named("middle 90 %", 0, "")},
        {"kind": "line", "x": list(when), "y": pack(mean), **named("mean", 0, "")},
    ]
    return {"x": draws_axis(x.shape[1]), "y": y, "series": curves, "height": 150}


def curves(x: np.ndarray, named_values: Mapping[str, np.ndarray], colours: Sequence[int] | None = None) -> list[Any]:
    """Series of values at the same places, thinned to at most `BINS`; each has a button."""
    rows = spread(len(x), BINS)
    at = np.asarray(x, np.float64)[rows].tolist()
    return [
        {"kind": "line", "x": at, "y": pack(y[rows]), **named(name, i if colours is None else colours[i])}
        for i, (name, y) in enumerate(named_values.items())
    ]


def correlation(flat: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Weighted correlations of rows; NaN for a constant row."""
    centred = flat - np.average(flat, axis=1, weights=w)[:, None]
    covariance = (centred * w) @ centred.T
    sd = np.sqrt(np.diag(covariance))
    sd[np.ptp(flat, axis=1) == 0] = np.nan
    return covariance / np.outer(sd, sd)


def kde(x: np.ndarray, w: np.ndarray, grid: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A grid and a weighted Gaussian kernel density on it; a spike for draws that are all equal."""
    from scipy.stats import gaussian_kde

    rows = spread(x.size, DENSITY_DRAWS)
    x, w = x.ravel()[rows], w.ravel()[rows]
    mean, sd = weighted_moments(x, w)
    if not (np.isfinite(sd) and sd > 1e-12 * abs(mean)) or len(x) < 2:
        if grid is not None:
            return grid, np.zeros(len(grid))
        width = abs(mean) * 1e-2 or 1.0
        return mean + width * np.array([-1, -0.01, 0, 0.01, 1]), np.array([0.0, 0, 1, 0, 0])
    at = grid
    if at is None:
        low, high = weighted_quantiles(x, w, [0.001, 0.999])  # far outliers would squeeze the rest
        margin = 0.05 * (high - low)
        at = np.linspace(max(low - margin, x.min()), min(high + margin, x.max()), GRID)
    return at, gaussian_kde((x - mean) / sd, weights=w)((at - mean) / sd) / sd
