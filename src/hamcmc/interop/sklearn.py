"""Bayesian matrix factorization as a scikit-learn regressor."""

import os
import tempfile
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from hamcmc._require import needs
from hamcmc.factorization.predict import Factorization
from hamcmc.factorization.ratings import Ratings
from hamcmc.factorization.run import blocks_for, factorize
from hamcmc.store.draws import Array, Draws, open_store

with needs("scikit-learn", "sklearn"):
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data


class MatrixFactorization(RegressorMixin, BaseEstimator):
    """Ratings of items by users, as products of factors that are drawn from their posterior.

    ``X`` has two columns, user and item, whose entries are ids: numbers or strings. ``y`` has the ratings. A pair may
    be rated more than once. Predictions of users and items that were not in the training data fall back to the prior
    that the others have taught, with the wide interval that goes with it.

    The draws are kept in memory, and with the estimator when it is pickled. ``hamcmc factorize`` is for more ratings
    than that, and for several processes.

    Args:
        rank: K, the number of factors; at most the number of users and of items.
        model: ``"full"``, or the paper's (``"paper"``: no biases, unit variances).
        sampler: one of ``sghmc``, ``sgld``, ``psgld``, ``hamcmc``, ``ensemble_hamcmc``.
        step_size: ε, the drift's factor (2ε is the noise's variance); by default as the sampler's recipe says.
        samples: stored draws.
        burn_in: sweeps before the first one.
        thin: sweeps per stored draw.
        steps: gradient steps in a sweep.
        blocks: the matrix is cut in B × B blocks; by default one for each core.
        clip: cut predictions to the range of the ratings.
        random_state: a seed, a ``numpy.random.RandomState``, or None for another seed at each fit.
        out: directory for the run, so that ``hamcmc report`` can show it; None leaves nothing on disk.

    Attributes:
        model_: the fitted :class:`~hamcmc.factorization.predict.Factorization`, which can also recommend.
        n_features_in_: 2.
    """

    def __init__(
        self,
        rank: int = 10,
        *,
        model: str = "full",
        sampler: str = "sghmc",
        step_size: float | None = None,
        samples: int = 200,
        burn_in: int = 20,
        thin: int = 1,
        steps: int = 20,
        blocks: int | None = None,
        clip: bool = False,
        random_state: Any = None,
        out: str | os.PathLike | None = None,
    ):
        self.rank = rank
        self.model = model
        self.sampler = sampler
        self.step_size = step_size
        self.samples = samples
        self.burn_in = burn_in
        self.thin = thin
        self.steps = steps
        self.blocks = blocks
        self.clip = clip
        self.random_state = random_state
        self.out = out

    def fit(self, X: Any, y: Any) -> "MatrixFactorization":
        """Draw factors from their posterior, given pairs (n, 2) and their ratings (n,)."""
        X, y = validate_data(self, X, y, dtype=None, y_numeric=True)
        (users, row), (items, column) = (np.unique(ids, return_inverse=True) for ids in self._pairs(X))
        places = (row.astype(np.int32), column.astype(np.int32))
        ratings = Ratings(users, items, *places, np.asarray(y, np.float32), np.zeros(len(y), bool))
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "run" if self.out is None else Path(self.out)
            fitted = factorize(
                ratings,
                path,
                rank=self.rank,
                model=self.model,
                sampler=self.sampler,
                step_size=self.step_size,
                samples=self.samples,
                burn_in=self.burn_in,
                thin=self.thin,
                steps=self.steps,
                blocks=min(blocks_for(1), len(users), len(items)) if self.blocks is None else self.blocks,
                test=0.0,
                seed=int(check_random_state(self.random_state).randint(2**31)),
                overwrite=self.out is not None,
                progress=False,
            )
            root = _in_memory(path, fitted)
        self.model_ = Factorization(fitted.settings, fitted.meta, ratings, root)
        return self

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected ratings of pairs (n, 2), and with `return_std` the sd of a new rating, its noise included."""
        found = self._predict(X, 0.9)
        return (found.mean, found.sd) if return_std else found.mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of the central interval in which a new rating lies with the probability `level`."""
        found = self._predict(X, level)
        return found.low, found.high

    def _predict(self, X: Any, level: float) -> Any:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=None, reset=False)
        return self.model_.predict(*self._pairs(X), level=level, clip=self.clip)

    def _pairs(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if X.shape[1] != 2:
            raise ValueError(f"X must have 2 columns, user and item, got {X.shape[1]} feature(s)")
        return _ids(X[:, 0]), _ids(X[:, 1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.regressor_tags.poor_score = True  # of rows that are no pairs of users and items
        return tags


def _ids(column: np.ndarray) -> np.ndarray:
    """Ids as text; 3, 3.0 and "3" are one."""
    entries = column.tolist()
    whole = lambda v: isinstance(v, float | np.floating) and v.is_integer()
    text = {v: str(int(v)) if whole(v) else str(v) for v in set(entries)}
    return np.array([text[v] for v in entries], str)


def _in_memory(path: Path, fitted: Factorization) -> Any:
    """A copy of the store of draws that needs no disk."""
    arrays = [
        Array(**(a | {"shape": tuple(a["shape"])})) for a in fitted.settings["arrays"] if a["group"] == "posterior"
    ]
    stored = open_store(path / "draws.zarr", arrays, fitted.draws, "r")
    draws = Draws.open(None, arrays, fitted.chains, fitted.draws, written=None)
    draws.append({f"posterior/{a.name}": np.moveaxis(np.asarray(stored[f"posterior/{a.name}"]), 1, 0) for a in arrays})
    draws.flush()
    return draws.root
