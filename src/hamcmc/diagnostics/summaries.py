"""Weighted summaries of draws: every estimate is ``Σ ε h(θ) / Σ ε``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hamcmc import _check
from hamcmc.diagnostics.ess import LEAST, effective_size, independent_share, interleaved, kish, part, r_hat
from hamcmc.diagnostics.mixing import in_threads
from hamcmc.diagnostics.names import label
from hamcmc.diagnostics.tails import NO_VARIANCE, tail_index
from hamcmc.diagnostics.verdict import Verdict, stored_verdict
from hamcmc.store.result import StoredRun

if TYPE_CHECKING:
    import pandas as pd

LIMIT = 200  # rows of a summary unless asked otherwise: more than that nobody reads
QUANTILES = {"q5": 0.05, "q50": 0.5, "q95": 0.95}


@dataclass(frozen=True)
class Summary:
    """A table with one row for each scalar parameter.

    Attributes:
        names: names of the rows, such as ``theta[0]``.
        entries: the parameter and the flat index of each row.
        columns: name → values: mean, sd, mcse (of the mean), q5, q50, q95, ess_bulk, ess_tail, r_hat.
        total: how many scalars the parameters have; more than there are rows if the table was cut.
        notes: what a reader should know about the numbers.
        verdict: whether to trust them; None if the run was not checked.
    """

    names: tuple[str, ...]
    entries: tuple[tuple[str, int], ...]
    columns: Mapping[str, np.ndarray]
    total: int
    notes: tuple[str, ...]
    verdict: Verdict | None = None

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def slowest(self) -> int | None:
        """The row with the smallest bulk ESS; None if no row has one."""
        ess = self["ess_bulk"]
        return int(np.nanargmin(ess)) if np.isfinite(ess).any() else None

    def rows(self) -> Iterator[list[str]]:
        """The cells of each row, as text."""
        for i, name in enumerate(self.names):
            yield [name, *(format_cell(column, values[i]) for column, values in self.columns.items())]

    def __str__(self) -> str:
        table = [["", *self.columns], *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = ["  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) for r in table]
        judged = [] if self.verdict is None else [self.verdict.headline]
        return "\n".join([*judged, *lines, *self.notes])

    def to_pandas(self) -> "pd.DataFrame":
        """The table as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(dict(self.columns), index=list(self.names))


def summary(
    result: StoredRun,
    names: Sequence[str] | None = None,
    *,
    limit: int | None = LIMIT,
    verdict: Verdict | None = None,
) -> Summary:
    """Weighted mean, sd and quantiles of each scalar parameter, with ESS and R-hat over all chains.

    Args:
        result: a run, complete or not.
        names: parameters to show; None for all.
        limit: the most rows to show; None for no limit. If there are more scalars than that, small parameters show all
            of their entries, large ones show evenly spaced entries, and a note says how many were left out. The worst
            parameters of the verdict are always shown.
        verdict: the verdict on the run, if it is not stored with it.
    """
    shapes = _shapes(result, names)
    verdict = verdict or stored_verdict(result)
    entries = _entries(shapes, limit, verdict)
    weights = np.asarray(result.weights, np.float64)
    apart = interleaved(result.settings)
    replicas = result.settings.get("replicas", 1) if result.settings.get("coupled", True) else 1
    draws = read_entries(result, entries)
    rows = in_threads(lambda x: _row(x, weights, apart, replicas), draws)
    total = sum(int(np.prod(s)) for s in shapes.values())
    columns = {c: np.array([r[c] for r in rows]) for c in rows[0]}
    labels = tuple(label(name, shapes[name], i) for name, i in entries)
    notes = (*_notes(result, columns, total, verdict), *_moments(labels, draws))
    return Summary(labels, entries, columns, total, notes, verdict)


def _entries(
    shapes: Mapping[str, tuple[int, ...]], limit: int | None, verdict: Verdict | None
) -> tuple[tuple[str, int], ...]:
    """The rows of a table: evenly spaced if there are too many, and always those of the worst parameters."""
    sizes = {n: int(np.prod(s)) for n, s in shapes.items()}
    chosen = {name: {int(i) for i in numbers} for name, numbers in choose(sizes, limit).items()}
    if verdict is not None and sum(map(len, chosen.values())) < sum(sizes.values()):
        named = {row.name for row in verdict.worst}
        for name, kept in chosen.items():
            worst = {i for i in range(sizes[name]) if label(name, shapes[name], i) in named}
            for i in sorted(worst - kept):
                if kept - worst:  # its nearest neighbour makes room
                    kept.remove(min(kept - worst, key=lambda k, i=i: abs(k - i)))
                kept.add(i)
    return tuple((name, i) for name, kept in chosen.items() for i in sorted(kept))


def _moments(labels: Sequence[str], draws: Sequence[np.ndarray]) -> Iterator[str]:
    """Parameters whose mean and standard deviation may not exist."""
    heavy = [n for n, x in zip(labels, draws) if tail_index(x.reshape(-1, 1))[0] > NO_VARIANCE]
    if heavy:
        who = ", ".join(heavy[:3]) + (f" and {len(heavy) - 3} more" if len(heavy) > 3 else "")
        yield f"Mean and sd of {who} may not exist: their tails are too heavy. Use the quantiles."


def _row(x: np.ndarray, weights: np.ndarray, apart: int, replicas: int) -> dict[str, float]:
    """The summary of one scalar from its draws (chain, draw).

    Each chain consists of `apart` interleaved chains, and every `replicas` chains form an ensemble of coupled ones.
    """
    w = np.broadcast_to(weights, x.shape)
    mean, sd = weighted_moments(x, w)
    quantiles = weighted_quantiles(x, w, list(QUANTILES.values()))
    chains = part(x, apart)
    share = independent_share(x, replicas)

    def ess(method: Literal["bulk", "tail", "mean"]) -> float:
        """The effective sample size of the whole."""
        return share * effective_size(chains, weights, method)

    return {
        "mean": mean,
        "sd": sd,
        "mcse": sd / np.sqrt(ess("mean")),
        **dict(zip(QUANTILES, quantiles)),
        "ess_bulk": ess("bulk"),
        "ess_tail": ess("tail"),
        "r_hat": r_hat(chains) if len(x) > 1 else np.nan,  # interleaved chains start together
    }


def weighted_moments(x: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """Σwx / Σw and the square root of Σw(x − mean)² / Σw; NaN without draws."""
    if x.size == 0:
        return np.nan, np.nan
    mean = float(np.average(x, weights=w))
    return mean, float(np.sqrt(np.average((x - mean) ** 2, weights=w)))


def weighted_quantiles(x: np.ndarray, w: np.ndarray, q: Sequence[float]) -> np.ndarray:
    """Quantiles by linear interpolation; a draw stands at the middle of its weight (Hazen's, for equal weights)."""
    if x.size == 0:
        return np.full(len(q), np.nan)
    if (w == w.flat[0]).all():
        n = x.size
        return np.interp(q, (np.arange(n) + 0.5) / n, np.sort(x, axis=None))
    # Among equal draws the lighter ones come first, so that the order of the chains does not matter.
    order = np.lexsort((w.ravel(), x.ravel()))
    x, w = x.ravel()[order], w.ravel()[order]
    return np.interp(q, (np.cumsum(w) - w / 2) / np.sum(w), x)


def _notes(result: StoredRun, columns: Mapping[str, np.ndarray], total: int, verdict: Verdict | None) -> Iterator[str]:
    """What a reader should know about the numbers of a summary."""
    shown = len(columns["mean"])
    if shown < total:
        which = "evenly spaced" if verdict is None else "evenly spaced, and the worst"
        yield f"{shown:,} of {total:,} entries are shown, {which}; {total - shown:,} are left out."
    apart = interleaved(result.settings)
    if result.draws < LEAST * apart:
        yield f"ESS and R-hat need {LEAST * apart} draws per chain; there are {result.draws}."
        return
    if result.settings["chains"] == 1:
        yield "R-hat needs at least 2 chains; there is one."
    stuck = int(np.isnan(columns["ess_bulk"]).sum())
    if stuck:
        yield f"{stuck:,} entries have no ESS: in one of their chains they never moved."
    if (replicas := result.settings.get("replicas", 1)) > 1 and result.settings.get("coupled", True):
        yield f"{replicas} replicas make an ensemble; ESS counts what they share once."
    if apart > 1:
        yield f"Each chain consists of {apart} interleaved chains, which ESS and R-hat see apart."
    factor = kish(np.asarray(result.weights, np.float64))
    if factor < 0.995:
        yield f"Draws are weighted by their step sizes, and ESS by Kish's factor {factor:.2f}."


def format_cell(column: str, value: float) -> str:
    """A number, rounded for reading; a dash for NaN."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else str(value)
    if column.startswith("ess"):
        return f"{value:,.0f}"
    return f"{value:.3f}" if column == "r_hat" else f"{value:.4g}"


def _shapes(result: StoredRun, names: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Name → shape of the chosen parameters, or of all."""
    shapes = result.shapes
    if names is None:
        return shapes
    unknown = [n for n in names if n not in shapes]
    if unknown or not names:
        raise ValueError(f"names has {', '.join(unknown) or 'nothing'}; the parameters are {', '.join(shapes)}")
    return {n: shapes[n] for n in names}


def choose(sizes: Mapping[str, int], limit: int | None) -> dict[str, np.ndarray]:
    """Flat indices of at most `limit` entries. Parameters share the limit; what small ones leave goes to large ones."""
    left = sum(sizes.values()) if limit is None else max(_check.at_least("limit", limit, 1), len(sizes))
    chosen = {}
    for waiting, name in zip(range(len(sizes), 0, -1), sorted(sizes, key=lambda n: sizes[n])):
        take = min(sizes[name], left // waiting)
        chosen[name] = np.linspace(0, sizes[name] - 1, take).astype(int)
        left -= take
    return {name: chosen[name] for name in sizes}


def read_entries(result: StoredRun, entries: Sequence[tuple[str, int]]) -> list[np.ndarray]:
    """Draws (chain, draw), in double precision, of entries (parameter, flat index).

    It reads a chunk at a time: memory holds the entries and one chunk, however large the parameters are.
    """
    found: dict[tuple[str, int], np.ndarray] = {}
    for name in dict.fromkeys(n for n, _ in entries):
        key, flat = f"posterior/{name}", [i for n, i in entries if n == name]
        draws = np.empty((len(result.read(key, 0, 0)), result.draws, len(flat)))
        step = result.chunk(key)
        for t in range(0, result.draws, step):
            block = result.read(key, t, min(t + step, result.draws))
            draws[:, t : t + step] = block.reshape(*block.shape[:2], -1)[:, :, flat]
        found |= {(name, i): draws[..., k] for k, i in enumerate(flat)}
    return [found[e] for e in entries]
