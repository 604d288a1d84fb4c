"""From the draws of a factorization to predictions of ratings, with intervals.

Given a draw, the rating of user i and item j is normal with mean ``g + b_i + c_j + w_i·h_j`` and variance ``1/τ``. A
prediction is the mixture of these normals over all draws, so its interval covers both the spread of the
posterior and the noise of a new rating. A row that the run has not seen is integrated over its prior in each draw.
"""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from hamcmc import _check
from hamcmc._types import Facts, Record
from hamcmc.factorization import ratings as ratings_files
from hamcmc.factorization.mixture import mixture_quantile
from hamcmc.factorization.ratings import Ratings, RatingsError
from hamcmc.store.checkpoint import read_checkpoint
from hamcmc.store.draws import Array, Draws, open_store
from hamcmc.store.errors import RunError
from hamcmc.store.files import reading, require
from hamcmc.store.settings import read_settings

ENTRIES = 2**24  # draws × pairs held at once
SMALL = ("W_mean", "W_precision", "H_mean", "H_precision", "noise_precision")
BIASES = ("row_bias", "column_bias")
MODELS = ("paper", "full")
KINDS = {"rank": int, "global_mean": (int, float), "rating_range": list}


class Predictions(NamedTuple):
    """Predictive distributions of the ratings of some pairs.

    Attributes:
        mean: their means.
        sd: their standard deviations, noise included.
        low: lower ends of the central intervals.
        high: upper ends.
        known: whether the run has seen both the user and the item.
    """

    mean: np.ndarray
    sd: np.ndarray
    low: np.ndarray
    high: np.ndarray
    known: np.ndarray


class Factorization:
    """The draws of a factorization, which predict and recommend.

    :func:`hamcmc.factorize` returns one, and :func:`load` opens the directory of a run. Draws stay
    where they are stored, and are read as they are needed.

    Attributes:
        settings: what was asked (``run.json``).
        ratings: the ratings of the run, training and test.
        meta: how far it got, by its last checkpoint.
        chains: chains, such as the replicas of an ensemble.
        draws: stored draws of each chain.
        hyper: precisions and means of the priors and of the noise, (draw · chain, …) each.
    """

    def __init__(self, settings: Record, meta: Facts, ratings: Ratings, root: Any):
        self.settings, self.meta, self.ratings = settings, dict(meta), ratings
        where = getattr(root.store, "root", "memory")
        noise = np.asarray(root["posterior/noise_precision"][:, : meta.get("draws")])
        self.chains = len(noise)
        self.draws = int(np.argmin(np.append(np.isfinite(noise).all(axis=0), False)))  # the others are still to come
        if self.draws < meta.get("draws", 0):
            raise RunError(f"{where} is damaged: it has {self.draws} draws of {meta['draws']}")
        if not self.draws:
            raise RunError(f"{where} has no draws yet: they come after the warm-up")
        self._biases = BIASES if settings["model"] == "full" else ()
        names = [*SMALL, *(f"{b}_{p}" for b in self._biases for p in ("mean", "precision"))]
        self.hyper = {n: self._flat(there(root[f"posterior/{n}"][:, : self.draws])) for n in names}
        # Looking an array up takes a while.
        self._arrays = {n: root[f"posterior/{n}"] for n in ("W", "H", *self._biases, *names)}

    def __repr__(self) -> str:
        s, chains = self.settings, f"{self.chains} chain{'s' * (self.chains > 1)}"
        shape = f"{len(self.ratings.users):,} users × {len(self.ratings.items):,} items"
        status = self.meta.get("status", "complete")
        status = "" if status == "complete" else f", {'not finished' if status == 'running' else status}"
        drawn = f"{chains} of {self.draws:,} draws{status}"
        return f"<Factorization of {shape}: {s['model']} model, rank {s['rank']}, {drawn}>"

    @property
    def samples(self) -> int:
        """Draws of all chains."""
        return self.chains * self.draws

    def predict(self, users: Any, items: Any, *, level: float = 0.9, clip: bool = False) -> Predictions:
        """Predict the rating of each user for the item beside it.

        Args:
            users: ids, as in the file of ratings. An id that is not there falls back to the prior of the rows.
            items: as many ids of items.
            level: probability of the central interval between `low` and `high`.
            clip: cut mean and interval to the range of the ratings.
        """
        users, items = (np.atleast_1d(np.asarray(x)).astype(str) for x in (users, items))
        if users.shape != items.shape or users.ndim != 1:
            raise ValueError(f"users and items must be lists of one length, got {users.shape} and {items.shape}")
        return self._predict(_places(self.ratings.users, users), _places(self.ratings.items, items), level, clip)

    def recommend(
        self, user: Any, top: int = 10, *, include_rated: bool = False, level: float = 0.9, clip: bool = False
    ) -> tuple[np.ndarray, Predictions]:
        """The items with the largest expected ratings of a user, best first, and their predictions.

        Args:
            user: an id. An unknown user gets what suits the average user.
            top: how many items.
            include_rated: whether to include items that the user has rated, in training or test.
            level: probability of the intervals.
            clip: cut mean and interval to the range of the ratings.
        """
        _check.at_least("top", top, 1)
        (row,) = _places(self.ratings.users, np.array([str(user)]))
        candidates = np.ones(len(self.ratings.items), bool)
        if row >= 0 and not include_rated:
            candidates[self.ratings.column[self.ratings.row == row]] = False
        items = np.flatnonzero(candidates)
        mean = np.concatenate(
            [m.mean(0) for _, m, _ in self._normals(np.full(len(items), row), items)] or [np.empty(0)]
        )
        best = items[np.argsort(-mean, kind="stable")[:top]]
        return np.asarray(self.ratings.items)[best], self._predict(np.full(len(best), row), best, level, clip)

    def rmse(self, *, clip: bool = False) -> float:
        """Root mean square error of the expected ratings on the test set."""
        mean, _, value = self._held_out
        return float(np.sqrt(np.mean((self._clip(mean, clip) - value) ** 2)))

    def coverage(self, levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95)) -> np.ndarray:
        """The share of test ratings inside their central interval, for each nominal level."""
        _, rank, _ = self._held_out
        return np.array([np.mean(np.abs(rank - 0.5) <= level / 2) for level in levels])

    def generated(self, pairs: int = 2000, draws: int = 50, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Held-out ratings, and what draws of the posterior generate for the same pairs: (pair,) and (draw, pair).

        Args:
            pairs: the most ratings to take, evenly spaced.
            draws: the most draws to use.
            seed: of the noise.
        """
        test = np.flatnonzero(self.ratings.test)
        test = test[np.unique(np.linspace(0, len(test) - 1, pairs).astype(int))] if len(test) else test
        row, column, value = (np.asarray(x)[test] for x in (self.ratings.row, self.ratings.column, self.ratings.value))
        when = np.unique(np.linspace(0, self.samples - 1, draws).astype(int))
        rng, parts = np.random.default_rng(seed), []
        for _, centre, variance in self._normals(row, column):
            centre, sd = centre[when], np.sqrt(variance[when])
            parts.append(centre + sd * rng.standard_normal(centre.shape))
        made = np.concatenate(parts, axis=1) if parts else np.empty((len(when), 0))
        return value, self._clip(made, True)

    @cached_property
    def _held_out(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Expectation of each test rating, its rank (the predictive distribution function at its value), its value."""
        test = np.flatnonzero(self.ratings.test)
        if not len(test):
            raise RunError("the run holds out no ratings: give test= to measure its predictions")
        row, column, value = (np.asarray(x[test]) for x in (self.ratings.row, self.ratings.column, self.ratings.value))
        mean, rank = np.empty(len(test)), np.empty(len(test))
        for part, centre, variance in self._normals(row, column):
            mean[part] = centre.mean(0)
            rank[part] = ndtr((value[part] - centre) / np.sqrt(variance)).mean(0)
        return mean, rank, value

    def in_memory(self) -> "Factorization":
        """The same model with its draws and ratings in memory. It no longer needs the run's directory."""
        arrays = [Array("posterior", n, x.shape[2:], str(x.dtype)) for n, x in self._arrays.items()]
        copy = Draws.open(None, arrays, self.chains, self.draws, written=None)
        stored = {n: there(x[:, : self.draws]) for n, x in self._arrays.items()}
        copy.append({f"posterior/{n}": np.moveaxis(x, 1, 0) for n, x in stored.items()})
        copy.flush()
        ratings = self.ratings._replace(**{n: np.array(x) for n, x in zip(Ratings._fields[:6], self.ratings)})
        return Factorization(self.settings, self.meta | {"draws": self.draws}, ratings, copy.root)

    def _predict(self, row: np.ndarray, column: np.ndarray, level: float, clip: bool) -> Predictions:
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}")
        known = (row >= 0) & (column >= 0)
        mean, sd, low, high = np.empty((4, len(row)))
        for group in (known, ~known):
            pairs = np.flatnonzero(group)
            for part, centre, variance in self._normals(row[pairs], column[pairs]):
                here = pairs[part]
                mean[here] = centre.mean(0, dtype=np.float64)
                sd[here] = np.sqrt(centre.var(0, dtype=np.float64) + variance.mean(0, dtype=np.float64))
                for end, p in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
                    end[here] = mixture_quantile(p, centre, np.sqrt(variance))
        mean, low, high = (self._clip(x, clip) for x in (mean, low, high))
        return Predictions(mean, sd, low, high, known)

    def _clip(self, x: np.ndarray, clip: bool) -> np.ndarray:
        return np.clip(x, *self.settings["rating_range"]) if clip else x

    def _normals(self, row: np.ndarray, column: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Parts of the pairs, with the mean and the variance of each pair's rating in each draw: (draw, pair).

        The variance is (draw, 1) if all rows and columns are known. A place of -1 means unknown.
        """
        most = max(1, ENTRIES // self.samples)
        for start in range(0, len(row), most):
            part = slice(start, min(start + most, len(row)))
            yield part, *self._part(row[part], column[part])

    def _part(self, row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        new_row, new_column = row < 0, column < 0
        new = bool(new_row.any() or new_column.any())
        mean = np.empty((self.samples, len(row)), np.float32)
        variance = np.empty((self.samples, len(row) if new else 1), np.float32)
        small = {n: iter(x) for n, x in self.hyper.items()}
        rows, columns = self._blocks("W", "row_bias", row), self._blocks("H", "column_bias", column)
        # Chain by chain would read each chunk of the store once per chain: the order is (draw, chain).
        for s, ((w, b), (h, c)) in enumerate(zip(rows, columns)):
            at = {n: next(x) for n, x in small.items()}
            variance[s] = 1 / at["noise_precision"]
            if new:
                w[new_row], h[new_column] = at["W_mean"], at["H_mean"]
                v, u = (np.outer(n, 1 / at[p]) for n, p in ((new_row, "W_precision"), (new_column, "H_precision")))
                variance[s] += (v * h**2 + u * w**2 + u * v).sum(1)
            mean[s] = self.settings["global_mean"] + np.einsum("pk,pk->p", w, h)
            for name, bias, unseen in zip(self._biases, (b, c), (new_row, new_column)):
                if new:
                    bias[unseen] = at[f"{name}_mean"]
                    variance[s] += unseen / at[f"{name}_precision"]
                mean[s] += bias
        return mean, variance

    def _blocks(self, factor: str, bias: str, places: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        """For each draw, the factors and biases at the places. Those at unknown places are arbitrary."""
        wanted, back = np.unique(np.maximum(places, 0), return_inverse=True)
        step = self._arrays[factor].chunks[1]
        for start in range(0, self.draws, step):
            stop = min(start + step, self.draws)
            w, b = (self._read(n, start, stop, wanted) for n in (factor, bias if self._biases else None))
            for s in range(self.chains * (stop - start)):
                yield w[s][back], None if b is None else b[s][back]

    def _read(self, name: str | None, start: int, stop: int, wanted: np.ndarray) -> Any:
        if name is None:
            return None
        array = self._arrays[name]
        with reading(f"{name} in {getattr(array.store, 'root', 'memory')}"):
            if 4 * len(wanted) > array.shape[2]:  # picking from the store is slower than from memory
                return self._flat(there(array[:, start:stop]))[:, wanted]
            return self._flat(there(array.oindex[slice(None), slice(start, stop), wanted]))

    def _flat(self, x: np.ndarray) -> np.ndarray:
        """(chain, draw, …) as (draw · chain, …)."""
        return np.moveaxis(x, 0, 1).reshape(-1, *x.shape[2:])


def there(x: Any) -> np.ndarray:
    """Draws that were read from a store. Raises if some are missing, which read as NaN."""
    found = np.asarray(x)
    if not np.isfinite(found).all():
        raise ValueError("some draws are missing")
    return found


def load(run: str | os.PathLike) -> Factorization:
    """Open the directory of a factorization run, complete or not."""
    run = Path(run)
    settings, checkpoint = read_settings(run), read_checkpoint(run)
    if settings.get("model") not in MODELS:
        raise RunError(f"{run} is not a factorization: 'hamcmc factorize' did not write it")
    if not (run / "draws.zarr").exists():
        raise RunError(f"{run} has no draws yet")
    require(settings, run / "run.json", KINDS)
    numbers = [settings["global_mean"], *settings["rating_range"]]
    if len(numbers) != 3 or not all(isinstance(n, int | float) and abs(n) < 1e18 for n in numbers):
        raise RunError(f"{run / 'run.json'} is damaged: ratings from {settings['rating_range']}")
    try:
        ratings = ratings_files.load(run / "ratings")
    except RatingsError as error:
        raise RunError(str(error)) from error
    if settings.get("data_checksum", "") not in ("", ratings_files.checksum(ratings)):
        raise RunError(f"{run / 'ratings'} is damaged: its checksum is not the one in run.json")
    biases = BIASES if settings["model"] == "full" else ()
    names = ("W", "H", *SMALL, *biases, *(f"{b}_{p}" for b in biases for p in ("mean", "precision")))
    written = checkpoint.meta.get("draws", 0) if checkpoint else 0
    root = open_store(run / "draws.zarr", [Array("posterior", n, (), "") for n in names], written, "r")
    for name, ids in (("W", ratings.users), ("H", ratings.items)):
        shape = root[f"posterior/{name}"].shape[2:]
        if shape != (len(ids), settings["rank"]):
            raise RunError(f"{run} is damaged: {name} is {shape}, and should be {(len(ids), settings['rank'])}")
    with reading(run / "draws.zarr"):
        return Factorization(settings, checkpoint.meta if checkpoint else {}, ratings, root)


def _places(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The place of each wanted id among the ids, -1 if it is not there."""
    ids = np.asarray(ids)
    order = np.argsort(ids)
    at = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return np.where(ids[at] == wanted, at, -1)
