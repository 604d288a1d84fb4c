"""Bayesian matrix factorization as a scikit-learn regressor."""

import os
from typing import Any, Literal, overload

import numpy as np

from hamcmc._renamed import renamed
from hamcmc._require import needs
from hamcmc.factorization.predict import Predictions
from hamcmc.factorization.ratings import Ratings
from hamcmc.factorization.run import factorize

with needs("scikit-learn", "sklearn"):
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data


class MatrixFactorization(RegressorMixin, BaseEstimator):
    """Bayesian matrix factorization of ratings.

    ``X`` has two columns, user and item, whose entries are ids: numbers or strings. ``y`` has the ratings. A pair may
    be rated more than once. Users and items that were not in the training data fall back to the prior that the others
    have taught, and get wide intervals.

    The draws are kept in memory, and are pickled with the estimator. For more ratings than fit into memory, and for
    several processes, use :func:`hamcmc.factorize` or ``hamcmc factorize``.

    Args:
        rank: K, the number of factors; at most the number of users and of items.
        model: ``"full"``, or ``"paper"`` for the paper's model without biases and with unit variances.
        sampler: ``sghmc``, ``sgld``, ``psgld``, ``hamcmc`` or ``ensemble_hamcmc``.
        step_size: ε, the factor of the drift (2ε is the variance of the noise); by default the sampler's recipe's.
        num_samples: stored draws per chain.
        warmup: sweeps before the first stored draw.
        thin: sweeps per stored draw.
        steps: gradient steps in a sweep.
        blocks: B. The matrix is cut into B × B blocks; by default one for each core.
        clip: cut predictions to the range of the ratings.
        random_state: a seed, a ``numpy.random.RandomState``, or None for a different seed at each fit.
        out: directory for the run, which ``hamcmc report`` can show. It is replaced at each fit. None writes nothing.

    Attributes:
        model_: the fitted :class:`~hamcmc.factorization.predict.Factorization`, which can also recommend.
        n_features_in_: 2.
    """

    @renamed(samples="num_samples", burn_in="warmup")
    def __init__(
        self,
        rank: int = 10,
        *,
        model: str = "full",
        sampler: str = "sghmc",
        step_size: float | None = None,
        num_samples: int = 200,
        warmup: int = 20,
        thin: int = 2,
        steps: int = 10,
        blocks: int | None = None,
        clip: bool = False,
        random_state: Any = None,
        out: str | os.PathLike | None = None,
    ):
        self.rank = rank
        self.model = model
        self.sampler = sampler
        self.step_size = step_size
        self.num_samples = num_samples
        self.warmup = warmup
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
        fitted = factorize(
            ratings,
            self.out,
            rank=self.rank,
            model=self.model,
            sampler=self.sampler,
            step_size=self.step_size,
            num_samples=self.num_samples,
            warmup=self.warmup,
            thin=self.thin,
            steps=self.steps,
            blocks=self.blocks,
            test=0.0,
            seed=int(check_random_state(self.random_state).randint(2**31)),
            overwrite=self.out is not None,
            progress=False,
        )
        self.model_ = fitted if self.out is None else fitted.in_memory()
        return self

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> np.ndarray: ...

    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean ratings of pairs (n, 2). With `return_std` also the sd of new ratings, noise included."""
        found = self._predict(X, 0.9)
        return (found.mean, found.sd) if return_std else found.mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Both ends of the central interval that contains a new rating with probability `level`."""
        found = self._predict(X, level)
        return found.low, found.high

    def _predict(self, X: Any, level: float) -> Predictions:
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
        tags.regressor_tags.poor_score = True  # on rows that are not pairs of users and items
        return tags


def _ids(column: np.ndarray) -> np.ndarray:
    """Ids as text; 3, 3.0 and "3" are the same id."""

    def text(value: Any) -> str:
        """One id."""
        whole = isinstance(value, float | np.floating) and value.is_integer()
        return str(int(value)) if whole else str(value)

    entries = column.tolist()
    names = {value: text(value) for value in set(entries)}
    return np.array([names[value] for value in entries], str)
