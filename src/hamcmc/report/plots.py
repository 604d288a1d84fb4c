"""Figures of the report: small inline SVGs whose colours come from the page, so that they follow light and dark mode.

matplotlib draws with stand-in colours, which :func:`svg` replaces by the page's CSS variables.
"""

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hamcmc.diagnostics import spread, weighted_moments, weighted_quantiles

INK, FAINT = "#010203", "#010204"
CHAIN = [f"#01030{i}" for i in range(6)]
VARIABLES = {INK: "--ink", FAINT: "--faint"} | {c: f"--chain-{i}" for i, c in enumerate(CHAIN)}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, and set in the page's type
    "svg.hashsalt": "hamcmc",
    "text.parse_math": False,  # names are names
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-3, 4),
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "path.simplify_threshold": 0.3,
}
POINTS = 400  # of a line: as many as the eye can tell apart
DENSITY_DRAWS = 4000
CLOUD = 300  # points; more draws than these are shown as hexagons


@mpl.rc_context(STYLE)
def trace(x: np.ndarray) -> str:
    """Draws (chain, draw) against the number of the draw."""
    fig, ax = _figure(4.6, 1.8)
    when = spread(x.shape[1], POINTS)
    for c, chain in enumerate(x):
        ax.plot(when, chain[when], ".-" if len(when) < 30 else "-", color=_colour(c), lw=0.7, alpha=0.85)
    _against_draws(ax, x.shape[1])
    return svg(fig)


@mpl.rc_context(STYLE)
def density(x: np.ndarray, weights: np.ndarray) -> str:
    """Weighted density of draws (chain, draw): of all chains as an area, of each as a line; median and 5–95 % below."""
    fig, ax = _figure(4.6, 1.8)
    w = np.broadcast_to(weights, x.shape)
    grid, pooled = kde(x, w)
    ax.fill_between(grid, pooled, color=CHAIN[0], alpha=0.25, lw=0)
    for c in range(len(x)):
        if len(x) == 1 or np.ptp(x[c]) > 0:
            ax.plot(*kde(x[c], w[c], grid), color=_colour(c), lw=0.9)
    low, median, high = weighted_quantiles(x, w, [0.05, 0.5, 0.95])
    foot = -0.08 * pooled.max()
    ax.plot([low, high], [foot, foot], color=INK, lw=2.5, solid_capstyle="butt")
    ax.plot([median], [foot], "o", color=INK, ms=5)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    return svg(fig)


@mpl.rc_context(STYLE)
def pairs(draws: Sequence[np.ndarray], names: Sequence[str], weights: np.ndarray) -> str:
    """Each parameter against each other: draws below the diagonal, densities on it, weighted correlations above."""
    k = len(draws)
    w = np.broadcast_to(weights, draws[0].shape).ravel()
    flat = np.array([x.ravel() for x in draws])
    r = correlation(flat, w)
    fig = Figure(figsize=(1.15 * k + 0.5, 1.15 * k + 0.3), layout="constrained")
    for i, row in enumerate(fig.subplots(k, k, squeeze=False)):
        for j, ax in enumerate(row):
            ax.set(xticks=[], yticks=[])
            if i == j:
                grid, p = kde(flat[i], w)
                ax.fill_between(grid, p, color=CHAIN[0], alpha=0.25, lw=0)
                ax.plot(grid, p, color=CHAIN[0], lw=0.9)
                ax.spines["left"].set_visible(False)
            elif j < i:
                _cloud(ax, flat[j], flat[i], w)
            else:
                ax.axis("off")
                value = "–" if np.isnan(r[i, j]) else f"{round(r[i, j], 2) + 0.0:.2f}".replace("-", "−")
                size = 9 + 6 * abs(np.nan_to_num(r[i, j]))
                ax.text(0.5, 0.5, value, ha="center", va="center", fontsize=size, transform=ax.transAxes)
            if j == 0:
                ax.set_ylabel(_short(names[i]))
            if i == k - 1:
                ax.set_xlabel(_short(names[j]))
    return svg(fig)


@mpl.rc_context(STYLE)
def series(x: np.ndarray, most: float | None = None) -> str:
    """A statistic (chain, draw) against the draw: mean and 5–95 % range over all chains in up to 150 bins of draws."""
    fig, ax = _figure(4.6, 1.6)
    bins = np.array_split(np.arange(x.shape[1]), min(x.shape[1], 150))
    finite = [(b.mean(), x[:, b][np.isfinite(x[:, b])]) for b in bins]
    when, values = zip(*([pair for pair in finite if pair[1].size] or [(0.0, np.zeros(1))]))
    low, high = ([np.quantile(v, q) for v in values] for q in (0.05, 0.95))
    ax.fill_between(when, low, high, color=CHAIN[0], alpha=0.25, lw=0)
    ax.plot(when, [v.mean() for v in values], "o-" if len(bins) < 30 else "-", ms=2.5, lw=1, color=CHAIN[0])
    if most is not None:
        ax.set_ylim(-0.04 * most, 1.04 * most)
    elif min(low) > 0 and max(high) > 30 * min(low):
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.minorticks_off()
    elif min(low) >= 0 and max(high) > 0:
        ax.set_ylim(0, 1.08 * max(high))
    _against_draws(ax, x.shape[1])
    return svg(fig)


def correlation(flat: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Weighted correlations of rows; NaN for a constant one."""
    centred = flat - np.average(flat, axis=1, weights=w)[:, None]
    covariance = (centred * w) @ centred.T
    sd = np.sqrt(np.diag(covariance))
    sd[np.ptp(flat, axis=1) == 0] = np.nan
    return covariance / np.outer(sd, sd)


def kde(x: np.ndarray, w: np.ndarray, grid: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """A grid and a weighted Gaussian kernel density on it; a spike for draws that are all the same."""
    from scipy.stats import gaussian_kde

    rows = spread(x.size, DENSITY_DRAWS)
    x, w = x.ravel()[rows], w.ravel()[rows]
    mean, sd = weighted_moments(x, w)
    if not (np.isfinite(sd) and sd > 1e-12 * abs(mean)) or len(x) < 2:
        width = abs(mean) * 1e-2 or 1.0
        return mean + width * np.array([-1, -0.01, 0, 0.01, 1]), np.array([0.0, 0, 1, 0, 0])
    at = grid
    if at is None:
        low, high = weighted_quantiles(x, w, [0.001, 0.999])  # far outliers would leave nothing to see
        margin = 0.05 * (high - low)
        at = np.linspace(max(low - margin, x.min()), min(high + margin, x.max()), 160)
    return at, gaussian_kde((x - mean) / sd, weights=w)((at - mean) / sd) / sd


def svg(fig: Figure) -> str:
    """The figure as SVG that stands in a page: no header, no size of its own, short, with the page's colours."""
    buffer = io.StringIO()
    fig.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace("xlink:href", "href")
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    text = re.sub(r"<[^>]+>", lambda tag: _short_tag(tag[0], used), text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return re.sub(r">\s+<", "><", text)


def _short_tag(tag: str, used: set[str]) -> str:
    """A tag without what the page does not need: namespaces, unused identifiers, fonts, digits below a pixel."""
    tag = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", tag)
    tag = re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"| (width|height)="[\d.]+pt"', "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"|font-family:[^;"]*;? ?', "", tag)
    return re.sub(r"\s+", " ", re.sub(r"(\.\d\d)\d+", r"\1", tag))


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots()


def _against_draws(ax: Axes, draws: int) -> None:
    ax.set_xlabel("draw")
    margin = max(0.01 * draws, 0.5)
    ax.set_xlim(-margin, draws - 1 + margin)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _cloud(ax: Axes, x: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
    """Draws of two parameters: as points, or as hexagons by weight if they are many."""
    if x.size <= CLOUD:
        ax.plot(x, y, ".", color=CHAIN[0], ms=4, alpha=0.5, mew=0)
        return
    r, g, b = to_rgb(CHAIN[0])
    fade = LinearSegmentedColormap.from_list("fade", [(r, g, b, 0.12), (r, g, b, 1.0)])
    ax.hexbin(x, y, C=w, reduce_C_function=np.sum, gridsize=20, cmap=fade, linewidths=0)


def _colour(chain: int) -> str:
    return CHAIN[chain % len(CHAIN)]


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
