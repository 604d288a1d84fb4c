"""What all reproductions share: the result, its files, the colours, and many independent runs at once."""

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jax import Array, lax
from matplotlib.figure import Figure

from hamcmc.samplers.base import Sampler

PyTree = Any
Progress = Callable[[str, float], None]  # what is being done, and the fraction of the whole that is done

# The palette of Okabe and Ito, which colour-blind readers can tell apart. One colour per method in all figures.
COLOURS = {
    "SGLD": "#0072B2",
    "pSGLD": "#E69F00",
    "SGRLD": "#009E73",
    "naive M=2": "#000000",
    "HAMCMC M=2": "#D55E00",
    "HAMCMC M=3": "#CC79A7",
    "ensemble": "#56B4E9",
    "ensemble, underdamped": "#117733",
}
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 150,
    "font.size": 10,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hamcmc",
}


@dataclass(frozen=True)
class Reproduction:
    """What a reproduction found: a table to print, notes to print below it, and the files it wrote."""

    name: str
    title: str
    quick: bool
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()
    files: Sequence[Path] = ()
    results: dict[str, Any] = field(default_factory=dict)


def finish(
    out: Path,
    name: str,
    title: str,
    *,
    quick: bool,
    seed: int,
    settings: dict[str, Any],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    figures: dict[str, Figure],
    notes: Sequence[str] = (),
    more: dict[str, Any] | None = None,
) -> Reproduction:
    """Write the figures as PNG and SVG and everything else to ``results.json``; quick ones say so everywhere."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    if quick:
        title = f"{title} (quick)"
        notes = ["Quick run: same structure, fewer iterations and runs. The numbers are rough.", *notes]
    files = []
    for stem, figure in figures.items():
        figure.suptitle(title)
        for ending, metadata in (("png", {}), ("svg", {"Date": None})):
            files.append(out / f"{stem}.{ending}")
            with mpl.rc_context(STYLE):
                figure.savefig(files[-1], metadata=metadata)
    results = {
        "name": name,
        "title": title,
        "quick": quick,
        "seed": seed,
        "settings": settings,
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "notes": list(notes),
        "versions": {"python": platform.python_version()}
        | {p: version(p) for p in ("hamcmc", "jax", "numpy", "scipy", "matplotlib")},
        **(more or {}),
    }
    results = _plain(results)
    files.append(out / "results.json")
    files[-1].write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    return Reproduction(name, title, quick, columns, rows, notes, files, results)


styled = mpl.rc_context(STYLE)  # decorates the functions that draw


def _plain(value: Any) -> Any:
    """As JSON has it: lists, dicts, strings and numbers, None for what is not a finite number."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def silent(_what: str, _done: float) -> None:
    """A :data:`Progress` that shows nothing."""


class Runs(NamedTuple):
    """Independent runs and their sums since the last :meth:`Ensemble.advance`: Σ ε h(θ) of each run, Σ ε."""

    state: Any
    total: Array
    weight: Array


class Ensemble:
    """Thousands of independent runs of a sampler in one compiled loop that stores no draws.

    Args:
        sampler: the sampler; of an ensemble sampler each run is an ensemble.
        statistic: h, from a position to an array; averaged over the replicas of an ensemble.
        schedule: ``schedule(t, *parameters) -> ε``; the parameters are arguments of the compiled code.
        minibatch: ``minibatch(key) -> what the gradient takes``, drawn anew for each run and iteration.
        segment: iterations between two visits of the host, which sums in double precision.
    """

    def __init__(
        self,
        sampler: Sampler,
        statistic: Callable[[PyTree], Array],
        schedule: Callable[..., Array],
        *,
        minibatch: Callable[[Array], PyTree] | None = None,
        segment: int = 5000,
    ):
        self.sampler, self.segment = sampler, segment
        average = statistic if sampler.replicas == 1 else lambda x: jnp.mean(jax.vmap(statistic)(x), 0)

        def advance(state, key, begin, end, parameters) -> Runs:
            # All runs are at the same step, and one shared counter keeps indices into the memory out of the vmap.
            axes = state._replace(**{name: 0 for name in state._fields})._replace(step=None)

            def one(key, state, step_size):
                batch_key, step_key = jax.random.split(key)
                batch = None if minibatch is None else minibatch(batch_key)
                state, _ = sampler.step(step_key, state, batch, step_size)
                return state, step_size * average(state.position)

            step = jax.vmap(one, (0, axes, None), (axes, 0))
            runs = jax.tree.leaves(state)[0].shape[0]

            def iteration(t, sums: Runs) -> Runs:
                keys = jax.random.split(jax.random.fold_in(key, t), runs)
                step_size = jnp.asarray(schedule(t, *parameters), sums.total.dtype)
                state, h = step(keys, sums.state, step_size)
                return Runs(state, sums.total + h, sums.weight + step_size)

            shape = jax.eval_shape(step, jax.random.split(key, runs), state, 1.0)[1]
            zeros = jnp.zeros(shape.shape, shape.dtype)
            return lax.fori_loop(begin, end, iteration, Runs(state, zeros, jnp.zeros((), shape.dtype)))

        self._advance = jax.jit(advance, donate_argnums=0)

    def start(self, position: PyTree, runs: int) -> Any:
        """The state of `runs` runs that all start at one position."""
        state = self.sampler.init(position)
        many = jax.tree.map(lambda x: jnp.broadcast_to(x, (runs, *x.shape)).copy(), state)
        return many._replace(step=state.step)

    def start_each(self, positions: PyTree) -> Any:
        """The state of runs that start at positions of their own, as many for each run as it has replicas."""
        if self.sampler.replicas > 1:
            positions = jax.tree.map(lambda x: x.reshape(-1, self.sampler.replicas, *x.shape[1:]), positions)
        many = jax.tree.map(jnp.copy, jax.vmap(self.sampler.init)(positions))
        return many._replace(step=many.step[0])

    def advance(self, state: Any, key: Array, begin: int, end: int, *parameters: float) -> tuple[Any, Any, float]:
        """Iterations begin … end−1: the new state, Σ ε h of each run (float64) and Σ ε."""
        total, weight = 0.0, 0.0
        for t in range(begin, end, self.segment):
            sums = self._advance(state, key, t, min(t + self.segment, end), parameters)
            state, total = sums.state, total + np.asarray(sums.total, np.float64)
            weight += float(sums.weight)
        return state, total, weight
