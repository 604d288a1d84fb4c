"""The draws of single parameters: traces, densities and pairs."""

from html import escape

import numpy as np

from hamcmc.diagnostics.result import Result
from hamcmc.diagnostics.summaries import Summary, format_cell, read_entries
from hamcmc.report import frame, plots
from hamcmc.report.frame import plural


def section(result: Result, table: Summary, picked: list[int]) -> str:
    """Trace and density of each of these rows of the summary."""
    chains, weights = result.settings["chains"], np.asarray(result.weights, np.float64)
    left_out, of = table.total - len(picked), plots.groups(result.settings)
    what = "ensemble" if len(of.names) < chains else "chain"
    html = (
        "<p class='soft'>Traces of the chains, and the weighted density: an area for all chains together, a line for "
        f"each {what}. The bar below marks the median and the middle 90 %.</p>"
    )
    if left_out:
        html += f"<p>The entries with the smallest ESS are shown; {left_out:,} are left out.</p>"
    drawn = plots.spread(chains, plots.CHAINS)
    if len(drawn) < chains:
        html += f"<p>{len(drawn)} of {chains:,} chains are drawn, evenly spaced.</p>"
    html += frame.key({of.names[g]: g for g in plots.shown(of)}, f"{what}s") if len(of.names) > 1 else ""
    for i, x in zip(picked, read_entries(result, [table.entries[i] for i in picked])):
        name = table.names[i]
        labels = {"mean": "mean", "sd": "sd", "ess_bulk": "ESS", "r_hat": "R-hat"}
        numbers = ", ".join(f"{label} {format_cell(column, table[column][i])}" for column, label in labels.items())
        html += (
            f'<article class="parameter"><h3>{escape(name)}</h3><p class="soft">{numbers}</p><div class="row">'
            + frame.figure(plots.trace(x, of), f"Trace of {name} in {plural(chains, 'chain')}")
            + frame.figure(plots.density(x, weights, name, of), f"Density of {name}: {numbers}")
            + "</div></article>"
        )
    return html


def pairs(result: Result, table: Summary, picked: list[int]) -> str:
    """Each of these rows of the summary against each other."""
    names = [table.names[i] for i in picked]
    draws = read_entries(result, [table.entries[i] for i in picked])
    plot = plots.pairs(draws, names, np.asarray(result.weights, np.float64), plots.groups(result.settings))
    left_out = table.total - len(picked)
    rows = [[n, *("–" if r is None else f"{r:.3f}" for r in row)] for n, row in zip(names, plot["correlations"])]
    return (
        "<p class='soft'>Draws of all chains below the diagonal, correlations above it.</p>"
        + (f"<p>{left_out:,} entries are left out.</p>" if left_out else "")
        + f'<div class="pairs" style="--k:{len(names)}">'
        + frame.figure(plot, f"Pair plot of {', '.join(names)}")
        + "</div><details><summary>Correlations as a table</summary>"
        + frame.table(["", *names], rows, "Weighted correlations over all chains")
        + "</details>"
    )
