"""How well chains mix, as plots: ranks in each group of chains, autocorrelation, and the growth of the ESS."""

from html import escape

import numpy as np

from hamcmc._types import Facts
from hamcmc.diagnostics import mixing
from hamcmc.diagnostics.ess import can_tell, effective_size, independent_share, interleaved, kish, part
from hamcmc.diagnostics.result import Result
from hamcmc.diagnostics.summaries import Summary, read_entries, weighted_quantiles
from hamcmc.report import frame, plots
from hamcmc.report.plots import Groups, Plot, axis, named, pack

BINS = 20  # of ranks
LAGS = 100  # at most
STAGES = 12  # points of the ESS's growth
HEIGHT = 190


def section(result: Result, table: Summary, picked: list[int], good_ess: float) -> str:
    """Three plots for each of the worst parameters."""
    of, settings = plots.groups(result.settings), result.settings
    weights = np.asarray(result.weights, np.float64)
    html = (
        "<p class='soft'>The parameters with the smallest ESS. <b>Ranks</b>: how the draws of each group are spread "
        "over the twentieths of all draws; at 1 everywhere all groups sample the same law, and the band holds 95 % of "
        "what chance alone gives. <b>Autocorrelation</b> should fall to 0. The <b>ESS</b> should grow in proportion "
        f"to the draws; the dotted line is at {good_ess:g}.</p>"
    )
    for i, x in zip(picked, read_entries(result, [table.entries[i] for i in picked])):
        name = table.names[i]
        lagged, grown = autocorrelation(x, of, interleaved(settings)), growth(x, weights, settings, good_ess)
        figures = frame.figure(lagged, f"Autocorrelation of {name}", "Autocorrelation")
        figures += frame.figure(grown, f"Growth of the ESS of {name}", "ESS of the first draws")
        if len(of.names) > 1:
            drawn = ranks(x, weights, of, settings)
            figures = frame.figure(drawn, f"Ranks of {name} in each group", "Ranks") + figures
        html += f'<article class="parameter"><h3>{escape(name)}</h3><div class="row three">{figures}</div></article>'
    return html


def ranks(x: np.ndarray, weights: np.ndarray, of: Groups, settings: Facts) -> Plot:
    """The share of each group's draws (chain, draw) in each of 20 parts with equal shares of all draws, times 20."""
    w = np.broadcast_to(weights, x.shape)
    bins = max(2, min(BINS, x.size // 10))
    edges = weighted_quantiles(x, w, [k / bins for k in range(1, bins)])
    place = np.searchsorted(edges, x)
    at = ((np.arange(bins) + 0.5) / bins * 100).tolist()
    series = []
    ess = _own_sizes(place, bins, weights, settings) * len(x) / len(of.names)
    if np.isfinite(ess).all() and (ess > 0).all():
        chance = 1.96 * np.sqrt((bins - 1) / ess)
        ends = [pack(np.maximum(0.0, 1 - chance)), pack(1 + chance)]
        series.append({"kind": "band", "x": at, "y": ends[0], "y2": ends[1], **named("chance alone", 5, "")})
    for g in plots.shown(of):
        rows = of.rows(g)
        share = np.bincount(place[rows].ravel(), w[rows].ravel(), bins) / w[rows].sum() * bins
        series.append({"kind": "line", "x": at, "y": pack(share), **named(of.names[g], g), "plain": True})
    return {
        "x": axis("rank among all draws, %", range=[0, 100]),
        "y": axis("", zero=True),
        "series": series,
        "guides": [[0, 1, 100, 1]],
        "height": HEIGHT,
    }


def _own_sizes(place: np.ndarray, bins: int, weights: np.ndarray, settings: Facts) -> np.ndarray:
    """The ESS of one chain for the share of its draws in each bin, by its own autocorrelation: chains that disagree do
    not lower it. NaN if it is unknown. `place` is the bin of each draw (chain, draw)."""
    chains = part(place, interleaved(settings))
    if chains.shape[1] < mixing.LEAST:
        return np.full(bins, np.nan)
    inside = (chains[..., None] == np.arange(bins)).astype(np.float64)
    own = mixing.effective(inside)[1] * len(chains) / len(place) * kish(weights)
    return own * independent_share(place.astype(float), _coupled(settings))


def _coupled(settings: Facts) -> int:
    return settings.get("replicas", 1) if settings.get("coupled", True) else 1


def autocorrelation(x: np.ndarray, of: Groups, apart: int = 1) -> Plot:
    """The autocorrelation of draws (chain, draw), averaged over the chains of each group.

    Draws of M interleaved chains are M draws apart: their lags count rounds of these chains.
    """
    draws = x.shape[1] // apart
    lags = max(1, min(LAGS, draws // 3))
    at, series = {"start": 0, "step": 1}, []
    for g in plots.shown(of):
        own = part(x[of.rows(g)], apart)
        covariance = mixing.autocovariance((own - own.mean(1, keepdims=True))[..., None])[: lags + 1, 0]
        if not np.isfinite(covariance).all() or covariance[0] <= 0:
            continue
        series.append(
            {"kind": "line", "x": at, "y": pack(covariance / covariance[0]), **named(of.names[g], g), "plain": True}
        )
    return {
        "x": axis("lag, draws" if apart == 1 else f"lag, rounds of {apart} interleaved chains", range=[0, lags]),
        "y": axis("", range=[-0.25, 1.05]),
        "series": series,
        "guides": [[0, 0, lags, 0]],
        "height": HEIGHT,
    }


def growth(x: np.ndarray, weights: np.ndarray, settings: Facts, good: float) -> Plot:
    """The ESS in the bulk and in the tails of the first draws (chain, draw), against their number."""
    apart = interleaved(settings)
    replicas = _coupled(settings)
    ends = np.unique(np.linspace(0, x.shape[1], STAGES + 1).astype(int)[1:])
    found: dict[str, list[float]] = {"bulk": [], "tail": []}
    for end in ends:
        first = part(x[:, :end], apart)
        share = independent_share(x[:, :end], replicas) if can_tell(first) else np.nan
        for method in ("bulk", "tail"):
            found[method].append(share * effective_size(first, weights[:end], method))
    at = ends.astype(float).tolist()
    series = [
        {"kind": "line", "x": at, "y": pack(np.array(values)), **named(f"ESS {method}", 2 + k, ""), "tag": method}
        for k, (method, values) in enumerate(found.items())
    ]
    return {
        "x": axis("draws of each chain", range=[0, float(ends[-1]) if len(ends) else 1.0]),
        "y": axis("", zero=True),
        "series": series,
        "guides": [[0, good, float(x.shape[1]), good]],
        "height": HEIGHT,
    }
