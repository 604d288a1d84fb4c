"""Our samplers in BlackJAX's loop and BlackJAX's in ours, with the real package, on posteriors known exactly."""

import os
import signal

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hamcmc
from hamcmc.interop import from_blackjax, to_blackjax
from hamcmc.interop.blackjax import _hyper_parameters, _name
from hamcmc.store.errors import RunError
from hamcmc.target import linear_gaussian
from tests.mutation import mutant
from tests.samplers.targets import Gaussian, Z, final_positions


@pytest.fixture(scope="module")
def target():
    return Gaussian(hamcmc)


def check_law(target: Gaussian, end, bias=0.03):
    """Mean and covariance of independent draws (replica, …) are the posterior's."""
    theta = np.concatenate([np.asarray(end["b"]), np.asarray(end["c"])[:, None]], axis=1).astype(float)
    white = (theta - target.mean) @ np.linalg.inv(np.linalg.cholesky(target.covariance)).T
    second = white.T @ white / len(white)
    assert (np.abs(white.mean(0)) <= Z / np.sqrt(len(white)) + bias).all(), f"mean off by {white.mean(0)} sd"
    assert (np.abs(second - np.eye(3)) <= Z * np.sqrt((1 + np.eye(3)) / len(white)) + bias).all(), f"{second}"


class TestOursInTheirLoop:
    def draws(self, package, target, step_size, replicas=1000):
        """Where `run_inference_algorithm` ends from exact draws after the slowest direction has forgotten them."""
        posterior = Gaussian(package).posterior
        algorithm = package.interop.to_blackjax(
            package.sgld(posterior.grad), posterior, step_size=step_size, batch_size=target.batch
        )
        steps = int(np.ceil(1.25 / (step_size * target.stiffness[0])))

        def run(key, start):
            last, _ = blackjax.util.run_inference_algorithm(
                key, algorithm, steps, initial_position=start, transform=lambda state, info: None
            )
            return last.position

        starts = jax.tree.map(lambda x: x[:replicas], target.starts())
        return jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(3), replicas), starts)

    def test_the_posterior_comes_out(self, target, optimised):
        check_law(target, self.draws(hamcmc, target, 0.03 / target.stiffness[-1]), bias=0.06)

    @pytest.mark.slow
    def test_a_minibatch_that_stays_the_same_is_seen(self, target, optimised):
        with mutant("interop/blackjax.py", "_indices(key, state.step,", "_indices(walk, 0,") as package:
            import hamcmc.interop  # noqa: F401 (of the mutant)

            with pytest.raises(AssertionError, match="off|\\["):
                check_law(target, self.draws(package, target, 0.03 / target.stiffness[-1]), bias=0.06)

    def test_plain_steps_are_those_of_their_sgld(self, model):
        ours, theirs = to_blackjax(hamcmc.sgld(model.grad)), blackjax.sgld(model.grad)
        batch = jax.tree.map(lambda x: x[:50], model.data)
        state, position = ours.init(jnp.zeros(3), None), theirs.init(jnp.zeros(3), None)
        our_step, their_step = jax.jit(ours.step), jax.jit(theirs.step)
        for t in range(3):
            state = our_step(jax.random.key(t), state, batch, 1e-3)
            position = their_step(jax.random.key(t), position, batch, 1e-3)
        assert_allclose(state.position, position, rtol=1e-5)

    def test_schedules_and_permutations(self, model):
        seen = []
        probe = hamcmc.Sampler(
            init=lambda position: hamcmc.sgld(model.grad).init(position),
            step=lambda key, state, batch, step_size: (state._replace(step=state.step + 1), (batch, step_size)),
            settings={},
        )
        schedule = hamcmc.Polynomial(0.1, 0.5)
        algorithm = to_blackjax(probe, model, step_size=schedule, batch_size=250, replace=False)
        state, step = algorithm.init(jnp.zeros(3), None), jax.jit(algorithm.step)
        for t in range(4):
            state, (batch, step_size) = step(jax.random.key(t), state)
            assert step_size == pytest.approx(float(schedule(t)))
            seen.append(np.asarray(jax.tree.leaves(batch)[-1]))
        everything = np.asarray(jax.tree.leaves(model.data)[-1])
        assert_array_equal(np.sort(np.concatenate(seen), axis=0), np.sort(everything, axis=0))

    def test_what_does_not_go_together(self, model):
        with pytest.raises(ValueError, match="step_size must be given"):
            to_blackjax(hamcmc.sgld(model.grad), model)
        with pytest.raises(ValueError, match="go with a posterior"):
            to_blackjax(hamcmc.sgld(model.grad), batch_size=10)
        with pytest.raises(ValueError, match="batch_size 2000 is larger"):
            to_blackjax(hamcmc.sgld(model.grad), model, step_size=0.1, batch_size=2000)


class TestTheirsInOurLoop:
    def test_draws_are_those_of_our_sgld(self, draw, model):
        ours, theirs = draw("sgld"), draw(from_blackjax(blackjax.sgld(model.grad)))
        assert_allclose(theirs.posterior["theta"], ours.posterior["theta"], rtol=1e-5, atol=1e-6)
        assert theirs.settings["sampler"]["sampler"] == "blackjax.sgld"
        data = theirs.to_arviz()
        assert data.posterior["theta"].shape == (2, 40, 3)
        assert set(data.sample_stats) == {"move_norm", "step_size"}

    @pytest.mark.slow
    def test_the_posterior_of_sgnht(self, target, optimised):
        epsilon = 0.02 / target.stiffness[-1]
        h = np.sqrt(2 * epsilon)
        sampler = from_blackjax(blackjax.sgnht(target.posterior.grad, alpha=1 / h**0.5))
        end = final_positions(
            sampler, target.posterior, target.starts(), steps=int(10 / h), step_size=h, batch_size=None
        )
        check_law(target, end, bias=0.06)

    @pytest.mark.slow
    def test_the_posterior_of_nuts(self, model, data, draw):
        algorithm = blackjax.nuts(lambda x: model.log_density(x, model.data), 0.09, jnp.ones(3))
        result = draw(from_blackjax(algorithm), step_size=1.0, batch_size=None, num_samples=300, thin=1, chains=4)
        theta = result.posterior["theta"].reshape(-1, 3)
        exact = linear_gaussian.exact(data, 10.0)
        n = len(theta) / 3  # at least that many are effective
        assert_allclose(theta.mean(0), exact.mean, atol=Z * np.sqrt(exact.covariance.diagonal().max() / n))
        assert_allclose(np.cov(theta.T), exact.covariance, atol=Z * exact.covariance.max() * np.sqrt(2 / n))
        stats = result.to_arviz().sample_stats
        assert not stats["diverging"].any()
        assert stats["acceptance_rate"].mean() > 0.5
        with pytest.raises(ValueError, match="batch_size must be None"):
            draw(from_blackjax(algorithm), step_size=1.0)

    @pytest.mark.parametrize("name", ["sghmc", "sgnht"])
    def test_their_leapfrog_step_is_the_root_of_two_epsilon(self, model, name):
        """The first move is h·p with p ~ N(0, 1): the variance 2ε of SGLD's noise, and another p in each chain."""
        options = {"num_integration_steps": 1} if name == "sghmc" else {}
        sampler = from_blackjax(getattr(blackjax, name)(model.grad, **options))
        epsilon, state = 1e-3, sampler.init(jnp.zeros(3))
        step = jax.vmap(lambda key: sampler.step(key, state, model.data, np.sqrt(2 * epsilon))[0].position)
        moves = np.asarray(jax.jit(step)(jax.random.split(jax.random.key(0), 2000)))
        assert moves.var() == pytest.approx(2 * epsilon, rel=Z * np.sqrt(2 / moves.size))

    def test_contour_sgld_takes_its_second_step_size(self, model, draw):
        algorithm = blackjax.csgld(model.log_density, model.grad, energy_gap=10.0)
        sampler = from_blackjax(algorithm, step_size_stoch=1e-2)
        assert sampler.settings["step_size_stoch"] == 1e-2
        assert sampler.settings["hyper_parameters"]["energy_gap"] == 10.0
        state, _ = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3)), model.data, 1e-3)
        assert state.inner.energy_pdf.sum() == pytest.approx(1, abs=1e-3)
        with pytest.raises(ValueError, match="takes a key and a state alone"):
            from_blackjax(blackjax.mala(lambda x: -jnp.sum(x**2), 0.1), temperature=2.0)


class TestResume:
    @pytest.mark.slow
    def test_to_the_same_draws(self, draw, model, short_segments, tmp_path):
        sampler = lambda alpha: from_blackjax(blackjax.sgnht(model.grad, alpha=alpha))
        short_segments(20)
        settings = {"step_size": 1e-2, "num_samples": 30}
        whole = draw(sampler(1.0), **settings)
        stop = lambda status: os.kill(os.getpid(), signal.SIGINT) if status.iteration >= 60 else None
        with pytest.raises(hamcmc.Interrupted):
            draw(sampler(1.0), out=tmp_path, progress=stop, **settings)
        start = jnp.zeros(3)
        with pytest.raises(RunError, match="give sampler to resume"):
            hamcmc.resume(tmp_path, model, start)
        with pytest.raises(RunError, match="another sampler"):
            hamcmc.resume(tmp_path, model, start, sampler=sampler(2.0))
        resumed = hamcmc.resume(tmp_path, model, start, sampler=sampler(1.0), progress=False)
        assert_array_equal(resumed.posterior["theta"], whole.posterior["theta"])

    def test_what_is_seen_of_hyper_parameters(self):
        density = lambda x: -jnp.sum(x**2)
        nuts = lambda scale: blackjax.nuts(density, 0.1, scale * jnp.ones(3))
        seen = [_hyper_parameters(nuts(s).step) for s in (1.0, 1.0, 2.0)]
        assert seen[0] == seen[1] != seen[2]
        assert _name(nuts(1.0)) == "blackjax.nuts"
        assert _hyper_parameters(blackjax.sghmc(None, 7, alpha=0.3).step) == {
            "alpha": 0.3,
            "beta": 0,
            "num_integration_steps": 7,
        }

    def test_a_key_in_the_state_is_refused(self, model):
        algorithm = blackjax.dynamic_hmc(lambda x: model.log_density(x, model.data), 0.1, jnp.ones(3))
        with pytest.raises(ValueError, match="keeps a random key"):
            from_blackjax(algorithm).init(jnp.zeros(3))
