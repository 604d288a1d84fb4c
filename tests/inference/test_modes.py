"""Other modes are looked for before a run on minibatches begins."""

import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc.inference import modes, starts
from hamcmc.inference.modes import surveyed
from hamcmc.inference.starts import arrive, convex
from hamcmc.target.mode import Laplace, approximated, prepared
from hamcmc.target.newton import Objective


def mixture(share: float, rows: int = 20_000) -> hamcmc.Posterior:
    """Two normal components at −1 and 1.5, of which the first has a known share of the rows."""
    rng = np.random.default_rng(0)
    first = rng.random(rows) < share
    y = np.where(first, rng.normal(-1, 1, rows), rng.normal(1.5, 1, rows))

    def log_likelihood(means, y):
        terms = jnp.log(jnp.array([share, 1 - share])) - 0.5 * (y - means) ** 2
        return jnp.logaddexp(terms[0], terms[1])

    return hamcmc.Posterior(lambda means: -0.02 * jnp.sum(means**2), log_likelihood, y, init=jnp.array([1.0, -1.0]))


def search(posterior: hamcmc.Posterior) -> tuple[Laplace, Laplace]:
    """The first mode, and the one after the survey."""
    passes, position = prepared(posterior, None, 0)
    first = approximated(passes, position)
    return first, surveyed(passes, first, passes.flat(position), 0)


@pytest.mark.slow
def test_two_modes_are_no_mode():
    """Components that may change places have two modes with one half of the mass each, and the reason says so."""
    first, found = search(mixture(0.5))
    assert first.converged
    assert not found.converged
    assert "second mode with about 50.0% of the mass" in found.reason


@pytest.mark.slow
def test_the_best_mode_is_taken():
    """From a start on the wrong side the search ends at a poor mode; the survey comes upon the other."""
    first, found = search(mixture(0.3))
    assert first.flat[0] > first.flat[1]
    assert found.converged
    np.testing.assert_allclose(found.flat, [-1, 1.5], atol=0.1)


@pytest.mark.parametrize(
    ("masses", "best", "single"), [((0, 1, 40), 2, True), ((0, 40, 1), 1, True), ((0, 1), 1, False)]
)
def test_modes_are_compared_with_the_best(monkeypatch, masses, best, single):
    """Two modes that share what is hardly any mass do not matter beside a third one."""
    passes, position = prepared(mixture(0.3), None, 0)
    found = approximated(passes, position)
    places = [starts.Place(found.flat + 10 * i, found.root, float(mass), 0) for i, mass in enumerate(masses)]
    of = {float(p.x[0]): p for p in map(lambda p: p._replace(x=passes.rounded(p.x)), places)}
    monkeypatch.setattr(modes, "elsewhere", lambda *_: list(of.values())[1:])
    monkeypatch.setattr(modes, "approximated", lambda _, x, seed: found._replace(position=x))
    monkeypatch.setattr(modes, "_place", lambda _, other: of[float(other.flat[0])])
    chosen = surveyed(passes, found, found.flat, 0)
    assert chosen.flat[0] == pytest.approx(places[best].x[0])
    assert chosen.converged == single


def test_one_mode_is_kept(monkeypatch):
    """A log-concave posterior costs the survey gradients on one part of the data, and no descent from elsewhere."""
    descents = []
    monkeypatch.setattr(modes, "arrive", lambda *given: descents.append(given) or arrive(*given))
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30_000, 5)) * np.geomspace(1, 1000, 5)
    y = rng.random(30_000) < 1 / (1 + np.exp(-x[:, 0]))

    def log_likelihood(theta, row):
        x, y = row
        return y * (x @ theta) - jnp.logaddexp(0.0, x @ theta)

    posterior = hamcmc.Posterior(lambda theta: -0.5 * theta @ theta, log_likelihood, (x, y), init=jnp.zeros(5))
    first, found = search(posterior)
    assert found.converged
    assert (found.flat == first.flat).all()
    assert len(descents) == 1  # that from the mode of all data to the mode of the part


def test_a_line_across_a_barrier_is_not_convex():
    """Between two modes U falls again; within one it does not."""
    passes, _ = prepared(mixture(0.5), None, 0)
    objective = Objective(passes)
    one, other = np.array([-1.0, 1.5]), np.array([1.5, -1.0])
    assert not convex(objective, one, other, 8)
    assert convex(objective, one, one + 0.3, 8)


@pytest.mark.slow
def test_minibatches_are_refused():
    """A run that would see one of two modes does not begin, and the message says what to do."""
    with pytest.raises(ValueError, match=r"second mode with about 50.*Leave batch_size out"):
        hamcmc.sample(mixture(0.5), num_samples=10, batch_size=100, progress=False)
