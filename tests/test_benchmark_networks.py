"""The networks of the benchmark: their rows, and scores in the units of the data."""

import numpy as np
import pytest
from benchmarks import network_tasks as of

SINGULAR = {"a", "one", "this", "every"}


def test_verbs_of_the_made_up_text_agree_with_their_subjects():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        words = of.sentence(rng).rstrip(".").split()
        verb = next(w for w in words if w.rstrip("s") in {"see", "hear", "follow", "know", "find", "greet"})
        subject = words[words.index(verb) - 1]
        assert verb.endswith("s") != subject.endswith("s")
        if words[0] in SINGULAR:
            assert verb.endswith("s")
        seen.add(verb)
    assert len(seen) > 6


def test_no_letter_of_the_text_is_both_learned_and_scored():
    task = of.text(0)
    (x, y), (unseen, _) = task.train, task.test
    assert x.shape[1] == unseen.shape[1] == of.CONTEXT
    assert np.array_equal(x[1:, -1], y[:-1])  # the letter after a context ends the next one
    learned = len(y) + of.CONTEXT  # the first so many letters
    rng = np.random.default_rng(1000)
    letters = " ".join(of.sentence(rng) for _ in range(170))
    codes = {c: i for i, c in enumerate(" abcdefghijklmnopqrstuvwxyz.")}
    assert [codes[c] for c in letters[learned : learned + of.CONTEXT]] == unseen[0].tolist()


@pytest.fixture
def folder(tmp_path):
    """A set in the layout of the usual splits, y = 1000 + 50 x + noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (60, 2))
    y = 1000 + 50 * x[:, 0] + rng.normal(size=60)
    np.savetxt(tmp_path / "data.txt", np.column_stack([x, y]))
    for name, rows in {"features": [0, 1], "target": [2], "train_0": range(50), "test_0": range(50, 60)}.items():
        np.savetxt(tmp_path / f"index_{name}.txt", list(rows))
    return tmp_path


def test_rows_are_freed_of_units_and_scores_are_in_units(folder):
    task = of.regression_set(folder, "made", 0)
    x, y = task.train
    assert np.allclose(x.mean(0), 0, atol=1e-6)
    assert np.allclose([y.mean(), y.std()], [0, 1], atol=1e-6)
    assert (len(y), len(task.test[1])) == (50, 10)
    log_noise = np.log(1 / task.scale)
    exact = np.stack([task.test[1], np.full(10, log_noise)], 1)[None]
    found = task.scores(exact)
    assert found["NLL"] == pytest.approx(0.5 * np.log(2 * np.pi), abs=1e-5)
    assert found["RMSE"] == pytest.approx(0, abs=1e-5)
    off = exact.copy()
    off[..., 0] += 2 / task.scale
    assert task.scores(off)["RMSE"] == pytest.approx(2, rel=1e-4)
    assert task.scores(off)["NLL"] == pytest.approx(found["NLL"] + 2, rel=1e-4)


def test_bodies_give_features_and_predictions_are_probabilities(folder):
    for task in [*of.tasks(0, None), of.regression_set(folder, "made", 0)]:
        w, x = task.start(0), task.test[0][:5]
        assert task.body(w, x, of.JAX).shape == (5, w[task.last[0]].shape[0])
        found = np.asarray(task.predict(w, x))
        if task.classes:
            assert np.allclose(found.sum(1), 1, atol=1e-5)
            assert np.allclose(
                np.log(found[np.arange(5), task.test[1][:5]]), task.log_likelihood(w, (x, task.test[1][:5])), atol=1e-5
            )
        else:
            assert found.shape == (5, 2)
