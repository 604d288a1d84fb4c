"""The factorization as a scikit-learn estimator: predictions, scikit-learn's own checks, its model selection."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator

from hamcmc.factorization import predict
from hamcmc.interop import MatrixFactorization
from hamcmc.interop.sklearn import _ids

USERS, ITEMS, NOISE = 40, 30, 0.3
TINY = {"rank": 1, "num_samples": 2, "warmup": 1, "steps": 1, "blocks": 1}
MORE = "its X has more columns than user and item"
NOT_APPLICABLE = dict.fromkeys(
    [
        "check_dict_unchanged",
        "check_dont_overwrite_parameters",
        "check_dtype_object",
        "check_estimators_dtypes",
        "check_estimators_nan_inf",
        "check_estimators_pickle",
        "check_f_contiguous_array_estimator",
        "check_fit2d_1sample",
        "check_fit2d_predict1d",
        "check_fit_score_takes_y",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
        "check_n_features_in_after_fitting",
        "check_pipeline_consistency",
        "check_positive_only_tag_during_fit",
        "check_regressor_data_not_an_array",
        "check_regressors_int",
        "check_regressors_no_decision_function",
        "check_regressors_train",
        "check_supervised_y_2d",
    ],
    MORE,
)
NO_FIT = {  # quick enough for every run
    "check_complex_data",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimators_empty_data_messages",
    "check_estimators_unfitted",
    "check_fit1d",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_set_params",
    "check_supervised_y_no_nan",
    "check_valid_tag_types",
}


class FirstTwoColumns(MatrixFactorization):
    """The estimator on data with any number of columns, so that scikit-learn can try it with its own."""

    def _pairs(self, X):
        return super()._pairs(X[:, :2])


def name_of(check) -> str:
    return getattr(check.func, "func", check.func).__name__


def quick_or_slow(estimator, check):
    marks = () if name_of(check) in NO_FIT else (pytest.mark.slow,)
    return pytest.param(estimator, check, id=name_of(check), marks=marks)


@pytest.mark.parametrize(
    ("estimator", "check"), [quick_or_slow(*pair) for pair in estimator_checks_generator(FirstTwoColumns(**TINY))]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"),
    list(
        estimator_checks_generator(
            MatrixFactorization(**TINY), expected_failed_checks=NOT_APPLICABLE, mark="xfail", xfail_strict=True
        )
    ),
    ids=lambda x: name_of(x) if hasattr(x, "func") else "",
)
def test_scikit_learns_checks_on_pairs(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def ratings():
    """Pairs and their ratings by two factors and biases, half to learn from."""
    rng = np.random.default_rng(0)
    user, item = (x.ravel() for x in np.indices((USERS, ITEMS)))
    w, h = rng.normal(size=(USERS, 2)), rng.normal(size=(ITEMS, 2))
    y = 3 + rng.normal(size=USERS)[user] + (w[user] * h[item]).sum(1) + NOISE * rng.normal(size=len(user))
    X = np.stack([100 + user, item], axis=1)
    learn = rng.random(len(X)) < 0.5
    return (X[learn], y[learn]), (X[~learn], y[~learn])


@pytest.fixture(scope="module")
def fitted(ratings, tmp_path_factory):
    out = tmp_path_factory.mktemp("estimator") / "run"
    return MatrixFactorization(2, num_samples=100, warmup=30, random_state=1, out=out).fit(*ratings[0])


class TestPredictions:
    def test_are_right_and_know_how_much(self, fitted, ratings):
        X, y = ratings[1]
        assert fitted.score(X, y) > 0.9
        mean, sd = fitted.predict(X, return_std=True)
        assert 0.8 < np.sqrt(np.mean(((y - mean) / sd) ** 2)) < 1.2
        low, high = fitted.predict_interval(X, level=0.8)
        assert 0.74 < np.mean((low < y) & (y < high)) < 0.86
        swapped = X[:, ::-1] + [100, -100]
        assert fitted.score(swapped[swapped[:, 1] >= 0], y[swapped[:, 1] >= 0]) < 0.5

    def test_ids_are_numbers_or_strings(self, fitted, ratings):
        X = ratings[1][0][:20]
        mean = fitted.predict(X)
        mixed = np.array([[str(u), i] for u, i in X], object)
        for same in (X.astype(np.float32), X.astype(str), mixed, X.tolist()):
            assert_array_equal(fitted.predict(same), mean)
        assert_array_equal(
            _ids(np.array([3, 3.0, np.float32(3), "3", "a", 0.5], object)), ["3", "3", "3", "3", "a", "0.5"]
        )

    def test_strangers_get_a_wide_interval(self, fitted, ratings):
        y = ratings[0][1]
        known, new_item, new_user, both = fitted.predict([[100, 0], [100, 999], ["?", 0], ["?", "?"]], return_std=True)[
            1
        ]
        assert known < min(new_item, new_user)
        assert max(new_item, new_user) < both
        assert both == pytest.approx(y.std(), rel=0.3)

    def test_survive_pickling_and_the_loss_of_the_directory(self, fitted, ratings, tmp_path):
        X = ratings[1][0]
        there = predict.load(fitted.out).predict(X[:, 0], X[:, 1])
        assert_allclose(fitted.predict(X), there.mean, rtol=1e-6)
        again = pickle.loads(pickle.dumps(fitted))
        fitted.out.rename(tmp_path / "elsewhere")
        try:
            assert_array_equal(again.predict(X), there.mean)
            assert_array_equal(fitted.predict(X), there.mean)
        finally:
            (tmp_path / "elsewhere").rename(fitted.out)

    def test_what_cannot_be_a_pair(self, fitted):
        with pytest.raises(ValueError, match="2 columns, user and item, got 3"):
            clone(fitted).fit(np.ones((4, 3)), np.ones(4))
        with pytest.raises(ValueError, match="rank must be at most 1"):
            MatrixFactorization(2).fit([[1, 1], [1, 2]], [1.0, 2.0])


@pytest.mark.slow
def test_model_selection(ratings):
    X, y = ratings[0]
    estimator = MatrixFactorization(2, num_samples=20, warmup=20, random_state=0)
    folds = KFold(2, shuffle=True, random_state=0)  # or all ratings of a user would be in the same one
    scores = cross_val_score(estimator, X, y, cv=folds)
    assert (scores > 0.5).all()
    search = GridSearchCV(estimator, {"rank": [1, 2]}, cv=folds).fit(X, y)
    assert search.best_params_ == {"rank": 2}
    assert search.score(*ratings[1]) > 0.8
