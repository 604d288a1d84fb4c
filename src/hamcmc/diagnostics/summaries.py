"""How good are the draws: weighted summaries, ESS and R-hat, the kernel Stein discrepancy, and what a draw cost.

Draws of a run with decreasing steps carry weights, their ε: every estimate is ``Σ ε h(θ) / Σ ε``. ArviZ's effective
sample sizes do not know weights; they are multiplied by Kish's factor ``(Σw)² / (n Σw²)``, which is 1 for equal ones.

A chain of HAMCMC is M interleaved ones, of which a different one moves at each iteration. Successive draws are then
nearly independent and draws M apart are not, which ArviZ, who looks no further than the first small autocorrelations,
takes for fast mixing: at M = 3 its ESS came out 9 times too large. So ESS and R-hat see the interleaved chains apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hamcmc import _check
from hamcmc.diagnostics.stein import Discrepancy as Discrepancy
from hamcmc.diagnostics.stein import ksd as ksd
from hamcmc.diagnostics.stein import spread as spread
from hamcmc.store.result import Result, arviz, interleaved, part
from hamcmc.target.posterior import Posterior

PyTree = Any
LIMIT = 200  # entries in a summary
QUANTILES = {"q5": 0.05, "q50": 0.5, "q95": 0.95}
LEAST = 4  # draws per chain below which ArviZ knows no ESS


# --- summaries ---


@dataclass(frozen=True)
class Summary:
    """A table with one row for each scalar parameter.

    Attributes:
        names: of the rows, such as ``theta[0]``.
        entries: the parameter and the flat index of each row.
        columns: name → values: mean, sd, mcse (of the mean), q5, q50, q95, ess_bulk, ess_tail, r_hat.
        total: how many scalars the parameters have; more than there are rows if the table was cut.
        notes: what a reader should know about the numbers.
    """

    names: tuple[str, ...]
    entries: tuple[tuple[str, int], ...]
    columns: Mapping[str, np.ndarray]
    total: int
    notes: tuple[str, ...]

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
        return "\n".join([*lines, *self.notes])

    def to_pandas(self):
        """The table as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(dict(self.columns), index=list(self.names))


def summary(result: Result, names: Sequence[str] | None = None, *, limit: int | None = LIMIT) -> Summary:
    """Weighted mean, sd and quantiles of each scalar parameter, with ESS and R-hat over all chains.

    Args:
        result: a run, complete or not.
        names: parameters to show; None for all.
        limit: the most rows to show; None for no limit. Beyond it each parameter shows evenly spaced entries, small
            parameters all of theirs, and a note says how many there are.
    """
    shapes = _shapes(result, names)
    chosen = choose({n: int(np.prod(s)) for n, s in shapes.items()}, limit)
    weights = np.asarray(result.weights, np.float64)
    entries = tuple((name, int(i)) for name, found in chosen.items() for i in found)
    apart = interleaved(result.settings)
    replicas = replicas_of(result)
    rows = [_row(x, weights, apart, replicas) for x in read_entries(result, entries)]
    total = sum(int(np.prod(s)) for s in shapes.values())
    columns = {c: np.array([r[c] for r in rows]) for c in rows[0]}
    labels = tuple(label(name, shapes[name], i) for name, i in entries)
    return Summary(labels, entries, columns, total, tuple(_notes(result, columns, total)))


def _row(x: np.ndarray, weights: np.ndarray, apart: int, replicas: int) -> dict[str, float]:
    """The summary of one scalar from its draws (chain, draw).

    Each chain is `apart` interleaved ones, and each `replicas` of them are an ensemble.
    """
    w = np.broadcast_to(weights, x.shape)
    mean, sd = weighted_moments(x, w)
    quantiles = weighted_quantiles(x, w, list(QUANTILES.values()))
    chains = part(x, apart)
    share = independent_share(x, replicas)
    ess = lambda method: share * effective_size(chains, weights, method)
    return {
        "mean": mean,
        "sd": sd,
        "mcse": sd / np.sqrt(ess("mean")),
        **dict(zip(QUANTILES, quantiles)),
        "ess_bulk": ess("bulk"),
        "ess_tail": ess("tail"),
        "r_hat": r_hat(chains) if len(x) > 1 else np.nan,  # the interleaved ones start together
    }


def weighted_moments(x: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """Σwx / Σw and the square root of Σw(x − mean)² / Σw; NaN without draws."""
    if x.size == 0:
        return np.nan, np.nan
    mean = float(np.average(x, weights=w))
    return mean, float(np.sqrt(np.average((x - mean) ** 2, weights=w)))


def weighted_quantiles(x: np.ndarray, w: np.ndarray, q: Sequence[float]) -> np.ndarray:
    """Quantiles by linear interpolation; a draw stands at the middle of its weight (equal weights: Hazen's)."""
    if x.size == 0:
        return np.full(len(q), np.nan)
    order = np.lexsort((w.ravel(), x.ravel()))  # of equal draws the lighter first: in whichever order chains come
    x, w = x.ravel()[order], w.ravel()[order]
    return np.interp(q, (np.cumsum(w) - w / 2) / np.sum(w), x)


def kish(weights: np.ndarray) -> float:
    """(Σw)² / (n Σw²), the share of n equally weighted draws that weighted ones are worth."""
    return float(np.sum(weights) ** 2 / (len(weights) * np.sum(weights**2)))


def effective_size(x: np.ndarray, weights: np.ndarray, method: Literal["bulk", "tail", "mean"]) -> float:
    """ArviZ's ESS of draws (chain, draw) times Kish's factor; NaN for too few draws and for ones that never move."""
    if not _can_tell(x):
        return np.nan
    return float(arviz().ess(x, method=method)) * kish(weights)


def independent_share(x: np.ndarray, replicas: int) -> float:
    """What an ensemble's replicas are worth, as a share of as many independent chains (1 for no ensemble).

    They share minibatches, whose noise moves them together, and with them their mean: the mean over replicas has then
    more variance than one over independent chains, which is what its ESS shows.
    """
    if replicas == 1 or not _can_tell(x):
        return 1.0
    together = x.reshape(-1, replicas, x.shape[1]).mean(1)
    if not _can_tell(together):
        return 1.0
    size = lambda v: float(arviz().ess(v, method="mean"))
    return min(1.0, size(together) * x.var() / together.var() / size(x))


def replicas_of(result: Result) -> int:
    """How many chains make an ensemble."""
    return result.settings["chains"] // result.settings.get("ensembles", result.settings["chains"])


def r_hat(x: np.ndarray) -> float:
    """ArviZ's rank-normalized split R-hat of draws (chain, draw); NaN for a single chain."""
    return float(arviz().rhat(x)) if x.shape[0] > 1 and _can_tell(x) else np.nan


def _can_tell(x: np.ndarray) -> bool:
    """Whether ESS and R-hat are defined: enough finite draws, and at least two different ones in each chain."""
    return x.shape[1] >= LEAST and bool(np.isfinite(x).all()) and bool((np.ptp(x, axis=1) > 0).all())


def _notes(result: Result, columns: Mapping[str, np.ndarray], total: int) -> Iterator[str]:
    shown = len(columns["mean"])
    if shown < total:
        yield f"{shown:,} of {total:,} entries are shown, evenly spaced; {total - shown:,} are left out."
    apart = interleaved(result.settings)
    if result.draws < LEAST * apart:
        yield f"ESS and R-hat need {LEAST * apart} draws per chain; there are {result.draws}."
        return
    if result.settings["chains"] == 1:
        yield "R-hat needs at least 2 chains; there is one."
    stuck = int(np.isnan(columns["ess_bulk"]).sum())
    if stuck:
        yield f"{stuck:,} entries have no ESS: a chain of theirs never moved."
    if replicas_of(result) > 1:
        yield f"{replicas_of(result)} replicas make an ensemble; ESS counts what they share once."
    if apart > 1:
        yield f"ESS and R-hat take each chain for the {apart} interleaved ones that it is."
    factor = kish(np.asarray(result.weights, np.float64))
    if factor < 0.995:
        yield f"Draws are weighted by their step sizes, and ESS by Kish's factor {factor:.2f}."


def format_cell(column: str, value: float) -> str:
    """A number as people like to read it; a dash for none."""
    if not np.isfinite(value):
        return "–" if np.isnan(value) else str(value)
    if column.startswith("ess"):
        return f"{value:,.0f}"
    return f"{value:.3f}" if column == "r_hat" else f"{value:.4g}"


# --- reading scalars out of a run ---


def _shapes(result: Result, names: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Name → shape of the asked parameters."""
    shapes = {a["name"]: tuple(a["shape"]) for a in result.settings["arrays"] if a["group"] == "posterior"}
    if names is None:
        return shapes
    unknown = [n for n in names if n not in shapes]
    if unknown or not names:
        raise ValueError(f"names has {', '.join(unknown) or 'nothing'}; the parameters are {', '.join(shapes)}")
    return {n: shapes[n] for n in names}


def choose(sizes: Mapping[str, int], limit: int | None) -> dict[str, np.ndarray]:
    """Flat indices of at most `limit` entries, shared fairly: a parameter needs its own before others get more."""
    left = sum(sizes.values()) if limit is None else max(_check.at_least("limit", limit, 1), len(sizes))
    chosen = {}
    for waiting, name in zip(range(len(sizes), 0, -1), sorted(sizes, key=lambda n: sizes[n])):
        take = min(sizes[name], left // waiting)
        chosen[name] = np.linspace(0, sizes[name] - 1, take).astype(int)
        left -= take
    return {name: chosen[name] for name in sizes}


def read_entries(result: Result, entries: Sequence[tuple[str, int]]) -> list[np.ndarray]:
    """Draws (chain, draw) in double precision of entries (parameter, flat index), however large the parameters are."""
    found: dict[tuple[str, int], np.ndarray] = {}
    for name in dict.fromkeys(n for n, _ in entries):
        array, flat = result._root[f"posterior/{name}"], [i for n, i in entries if n == name]
        draws = np.empty((array.shape[0], result.draws, len(flat)))
        step = array.chunks[1]  # a chunk at a time, so that memory holds what was asked for and one chunk
        for t in range(0, result.draws, step):
            block = result.read(f"posterior/{name}", t, min(t + step, result.draws))
            draws[:, t : t + step] = block.reshape(*block.shape[:2], -1)[:, :, flat]
        found |= {(name, i): draws[..., k] for k, i in enumerate(flat)}
    return [found[e] for e in entries]


def label(name: str, shape: tuple[int, ...], index: int) -> str:
    """The name of one entry, such as ``W[2, 0]``."""
    return f"{name}[{', '.join(str(i) for i in np.unravel_index(index, shape))}]" if shape else name


# --- cost ---


class Cost(NamedTuple):
    """What a run cost, warm-up included, over all chains.

    Attributes:
        gradients: minibatch gradients.
        seconds: in the compiled loop; neither compilation nor writing.
        draws: stored draws.
        ess: the smallest bulk ESS; NaN if unknown.
        slowest: the name of the entry that has it; None if unknown.
    """

    gradients: int
    seconds: float
    draws: int
    ess: float
    slowest: str | None

    @property
    def gradients_per_draw(self) -> float:
        """NaN before the first draw."""
        return self.gradients / self.draws if self.draws else np.nan

    @property
    def seconds_per_draw(self) -> float:
        """NaN before the first draw."""
        return self.seconds / self.draws if self.draws else np.nan

    @property
    def gradients_per_effective_sample(self) -> float:
        """Of the slowest entry."""
        return self.gradients / self.ess

    @property
    def seconds_per_effective_sample(self) -> float:
        """Of the slowest entry."""
        return self.seconds / self.ess


def cost(result: Result, table: Summary | None = None) -> Cost:
    """Gradients and seconds of a run, with the smallest ESS among the rows of its summary (`table`, if at hand)."""
    table = summary(result) if table is None else table
    row, meta = table.slowest, result.meta
    ess, name = (np.nan, None) if row is None else (float(table["ess_bulk"][row]), table.names[row])
    return Cost(int(meta["gradients"]), float(meta["seconds"]), result.draws * result.settings["chains"], ess, name)


# --- kernel Stein discrepancy of a run ---


def ksd_of(
    result: Result,
    posterior: Posterior | None = None,
    *,
    init: PyTree | Callable[[jax.Array], PyTree] | None = None,
    scale: bool = True,
    max_draws: int = 2000,
    **options: Any,
) -> Discrepancy:
    """Kernel Stein discrepancy of a run, pooled over chains and weighted by step sizes.

    Gradients are the stored ones (``store_gradients=True`` in :func:`hamcmc.sample`), or, for a run without them, full
    gradients computed by the posterior at the (at most `max_draws`) draws used.

    It lives in the unconstrained space, where the samplers and their gradients do. Mirrored parameters are taken as
    they are, which is right only if their density vanishes at the boundary.

    Args:
        result: a run.
        posterior: needed if gradients were not stored, or if parameters have a support by bijection.
        init: as given to :func:`hamcmc.sample`; needed if a position is neither an array nor a flat dict of arrays.
        scale: divide each coordinate by the sd of its draws (and multiply its gradient by it), so that the kernel sees
            all coordinates alike and the value does not depend on units.
        max_draws: of more draws than these, evenly spaced ones are taken.
        **options: `c`, `beta` and `statistic` of :func:`hamcmc.diagnostics.stein.ksd`.
    """
    stored = bool(result.settings["store_gradients"])
    if not stored and posterior is None:
        raise ValueError("the run has no stored gradients: give its posterior, or sample with store_gradients=True")
    chains, names = result.settings["chains"], list(_shapes(result, None))
    when = spread(result.draws, max(_check.at_least("max_draws", max_draws, 2) // chains, 1))

    def read(group: str) -> list[np.ndarray]:
        arrays = [np.asarray(result._root[f"{group}/{n}"].oindex[:, when]) for n in names]
        return [a.reshape(-1, *a.shape[2:]) for a in arrays]

    positions: PyTree = read("posterior")
    if posterior is not None:
        tree = _structure(posterior, names, positions, init).unflatten(positions)
        positions = jax.vmap(posterior.unconstrain_unchecked)(tree)
    gradients = read("gradients") if stored or posterior is None else _full_gradients(posterior, positions)
    flat = lambda tree: np.concatenate(
        [np.asarray(a, np.float64).reshape(len(a), -1) for a in jax.tree.leaves(tree)], 1
    )
    x, g = flat(positions), flat(gradients)
    if scale and len(x):
        sd = x.std(0)
        sd[sd == 0] = 1.0
        x, g = x / sd, g * sd
    return ksd(x, g, np.tile(result.weights[when], chains), max_draws=max(max_draws, len(x)), **options)


def _structure(posterior: Posterior, names: list[str], leaves: list[np.ndarray], init: Any):
    """The tree structure of a position, which a run does not record."""
    if init is not None:
        return jax.tree.structure(init(jax.random.key(0)) if callable(init) else init)
    one = dict(zip(names, (jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in leaves)))
    if names == ["theta"]:  # the name of a bare array, and maybe a key
        try:
            jax.eval_shape(posterior.log_prior, one["theta"])
        except Exception:
            return jax.tree.structure(one)
        return jax.tree.structure(one["theta"])
    if any("." in n for n in names) or names != sorted(names):
        raise ValueError(f"the position is no flat dict ({', '.join(names)}): give init, which shows its structure")
    return jax.tree.structure(one)


def _full_gradients(posterior: Posterior, positions: PyTree, rows: int = 8192) -> PyTree:
    """Gradients of the log-density on all data at each of the positions (leading axis)."""
    if posterior.log_likelihood is None:
        return jax.jit(partial(lax.map, posterior.grad))(positions)
    one_part = jax.jit(lambda x, part: lax.map(lambda p: posterior.mean_likelihood_grad(p, part), x))
    mean = jax.tree.map(jnp.zeros_like, positions)
    for start in range(0, posterior.size, rows):
        part = jax.tree.map(lambda a, start=start: jnp.asarray(a[start : start + rows]), posterior.data)
        share = min(rows, posterior.size - start) / posterior.size
        mean = jax.tree.map(lambda m, g, share=share: m + share * g, mean, one_part(positions, part))
    return jax.vmap(posterior.combine)(positions, mean)
