"""The model of a spectrogram: its gradient, and its sampler against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hamcmc
from hamcmc.speech import keys, model
from hamcmc.speech.pair import pair
from tests.mutation import mutant


def sgld(target):
    return hamcmc.sgld(target.grad)


def stretch(F, T, K, seed=0):
    g = np.random.default_rng(seed)
    array = lambda *shape: g.normal(size=shape).astype(np.float32)
    W = np.abs(array(F, K)) + np.float32(0.1)
    arrays = array(F, T), np.ones((F, T), np.float32), array(F, T), array(F, T), np.ones(F, np.float32), W / W.sum(0)
    return model.Stretch(*map(jnp.asarray, arrays))


def test_hats_add_up_to_one():
    np.testing.assert_allclose(model.hats(60, 25).sum(0), 1, rtol=1e-6)


def a_target(model):
    """A target, a position, and the log-likelihood and log-density of all bins."""
    s, table, prior = model.Stretch(*stretch(20, 30, 3)), pair(2.0, 2.0), model.Prior()
    target = model.SpeechTarget(s, table, prior)
    g = np.random.default_rng(2)
    position = jax.tree.map(lambda x: jnp.asarray(g.normal(size=x.shape), jnp.float32), target.origin)
    likelihood = lambda p: model.log_likelihood(target.constrain(p), s, table, prior)
    return target, position, likelihood, lambda p: target.log_prior(target.constrain(p)) + likelihood(p)


def over_minibatches(f):
    """The mean over all minibatches."""
    return jax.jit(lambda i: jax.tree.map(lambda x: x.mean(0), lax.map(f, i)))(jnp.arange(model.EVERY))


def distance(one, other):
    """Relative, of the coordinate where it is largest."""
    pairs = zip(map(np.asarray, jax.tree.leaves(one)), map(np.asarray, jax.tree.leaves(other)))
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


def bias_of_minibatches(model):
    """Distance of the mean gradient over all minibatches from the full one."""
    target, position, _, density = a_target(model)
    return distance(jax.jit(jax.grad(density))(position), over_minibatches(lambda i: target.grad(position, i)))


def test_minibatches_are_unbiased():
    assert bias_of_minibatches(model) < 1e-4


def test_a_mean_is_a_mean():
    """Over the bins; N times it is the gradient of the whole log-likelihood, and with the prior that of the density."""
    target, position, likelihood, _ = a_target(model)
    assert target.size == 20 * 30
    mean = over_minibatches(lambda i: target.mean_likelihood_grad(position, i))
    whole = jax.jit(jax.grad(likelihood))(position)
    assert distance(whole, jax.tree.map(lambda g: target.size * np.asarray(g), mean)) < 1e-4

    @jax.jit
    def both(first):
        combined = target.combine(position, target.mean_likelihood_grad(position, first))
        return target.grad(position, first), combined

    assert distance(*both(jnp.asarray(3))) < 1e-4


def test_the_gradient_is_that_of_the_log_density():
    """By finite differences along random directions; the table's slopes are interpolated, too, hence 2 %."""
    target, position, _, density = a_target(model)
    grad, g = over_minibatches(lambda i: target.grad(position, i)), np.random.default_rng(3)
    value = jax.jit(density)
    for _ in range(3):
        v = jax.tree.map(lambda x: g.normal(size=x.shape).astype(np.float32), position)
        at = lambda e, v=v: float(value(jax.tree.map(lambda x, d: np.asarray(x) + np.float32(e) * d, position, v)))
        slope = sum(float(np.vdot(a, b)) for a, b in zip(jax.tree.leaves(grad), jax.tree.leaves(v)))
        assert (at(0.01) - at(-0.01)) / 0.02 == pytest.approx(slope, rel=0.02)


@pytest.mark.slow
def test_minibatches_of_the_wrong_rows_are_noticed():
    with mutant(
        "speech/model.py", "x.reshape(-1, EVERY, *x.shape[1:]), first, 1,", "x.reshape(-1, EVERY, *x.shape[1:]), 0, 1,"
    ):
        from hamcmc.speech import model as broken

        assert bias_of_minibatches(broken) > 0.01


def test_the_start_fits_the_first_guess():
    s = stretch(20, 30, 3)
    H = jnp.exp(jnp.asarray(np.random.default_rng(1).normal(size=(3, 30)), jnp.float32))
    prior = model.Prior()
    planted = s._replace(speech=2 / prior.alpha * jnp.log(s.W @ H))
    speech, noise = model.log_scales(model.start(planted, prior, 500), planted, prior)
    np.testing.assert_allclose(speech, planted.speech, atol=0.15)
    np.testing.assert_allclose(noise, planted.noise)


PRIOR = model.Prior(alpha=2.0, noise_alpha=2.0, speech_sd=1.0, noise_sd=1e-3, drift_sd=1e-3, median=1.0, spread=1.0)


def one_frame():
    """Ten bins of one frame that share a single weight; frames that are padding, as always."""
    power = jnp.log(jnp.asarray([3.0, 0.5, 8.0, 1.0, 2.0, 0.2, 5.0, 12.0, 1.5, 0.7]))[:, None]
    there = jnp.zeros((10, 4)).at[:, 0].set(1.0)
    wide = lambda x: jnp.broadcast_to(x, (10, 4))
    W = jnp.linspace(0.5, 2, 10)[:, None]
    return model.Stretch(wide(power), there, wide(0.3), wide(-0.5), jnp.zeros(10), W)


def exact_share():
    """E[s | x] / x by quadrature over the one weight."""
    s = one_frame()
    h = np.linspace(-6, 6, 2001)[:, None]
    speech, noise = h + np.log(np.asarray(s.W)[:, 0]), -0.5  # log v
    variance = 2 * (np.exp(speech) + np.exp(noise))
    x2 = np.exp(np.asarray(s.power)[:, 0])
    density = (-np.log(variance) - x2 / (2 * variance)).sum(1) - 0.5 * h[:, 0] ** 2
    weight = np.exp(density - density.max())
    share = np.exp(speech) / (np.exp(speech) + np.exp(noise))
    return (weight[:, None] * share).sum(0) / weight.sum()


def sampled_share(model, iterations=20_000):
    s = model.Stretch(*one_frame())
    random = keys.steps(keys.key(0), iterations, iterations - 1000, model.EACH, model.EVERY)
    found = model.sample(random, s, pair(2.0, 2.0), model.Prior(*PRIOR), sgld, 0.02, iterations, iterations - 1000)
    return np.asarray(found.share[:, 0])


def test_sampler_against_quadrature(optimised):
    """With both indices 2 and the noise known there is one unknown.

    The largest error of the share that 20 000 steps leave: its standard deviation is 0.15, an effective sample about
    100 steps apart gives a standard error of 0.011; four of them, and 0.01 for the table and the step size.
    """
    assert np.abs(sampled_share(model) - exact_share()).max() < 0.055


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("prior.alpha * jnp.log(stretch.W @", "prior.alpha * 2 * jnp.log(stretch.W @"),
        (
            "return unbiased(self.log_prior(unknowns), likelihood, EVERY)",
            "return unbiased(self.log_prior(unknowns), likelihood, 1)",
        ),
    ],
)
def test_a_broken_model_is_noticed(optimised, old, new):
    with mutant("speech/model.py", old, new):
        from hamcmc.speech import model as broken

        assert np.abs(sampled_share(broken) - exact_share()).max() > 0.07
