"""Differential equations: integrated with a fixed step, or solved. Data come from SciPy, in double precision."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import gammaln
from scipy.integrate import odeint

import hamcmc
from tests import zoo
from tests.zoo.densities import normal

positive = hamcmc.positive()


def integrate(slope, start, times: int, steps: int, length: float):
    """The solution after 1, 2, … `times` intervals, by `steps` Runge–Kutta steps of `length` in each."""

    def step(state, _):
        k1 = slope(state)
        k2 = slope(state + 0.5 * length * k1)
        k3 = slope(state + 0.5 * length * k2)
        k4 = slope(state + length * k3)
        return state + length / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    def interval(state, _):
        state, _ = lax.scan(step, state, length=steps)
        return state, state

    return lax.scan(interval, start, length=times)[1]


@zoo.model
def lotka_volterra() -> zoo.Case:
    """Hares and lynxes of 20 years: rates, initial populations and log-normal noise."""

    def slopes(state, rates):
        (prey, hunter), (a, b, c, d) = state, rates
        return (a - b * hunter) * prey, (-c + d * prey) * hunter

    def populations(rates, start):
        return integrate(lambda state: jnp.stack(slopes(state, rates)), start, 20, 10, 0.1)

    rng = np.random.default_rng(101)
    path = odeint(lambda s, _: slopes(s, (0.55, 0.028, 0.80, 0.024)), [34.0, 6.0], np.arange(21))
    y = np.log(path) + 0.25 * rng.normal(size=path.shape)

    def log_density(p):
        log_path = jnp.log(jnp.concatenate([p["start"][None], populations(p["rates"], p["start"])]))
        centre, width = np.array([1.0, 0.05, 1.0, 0.05]), np.array([0.5, 0.05, 0.5, 0.05])
        log_start, log_sigma = jnp.log(p["start"]), jnp.log(p["sigma"])
        prior = normal(p["rates"], centre, width) + normal(log_start, np.log(10), 1.0) + normal(log_sigma, -1.0, 1.0)
        return prior - jnp.sum(log_start) - jnp.sum(log_sigma) + normal(y, log_path, p["sigma"])

    init = {"rates": jnp.array([1.0, 0.05, 1.0, 0.05]), "start": jnp.full(2, 10.0), "sigma": jnp.ones(2)}
    return zoo.Case(hamcmc.Posterior(log_density, support=positive), init, nuts={"whiten": True})


@zoo.model
def pharmacokinetics() -> zoo.Case:
    """One compartment with absorption: 12 patients, 9 times, their log-rates around common ones, non-centred."""
    rng = np.random.default_rng(102)
    time = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 24.0])
    centre, width = np.log([1.5, 0.1, 30.0]), np.array([0.5, 0.4, 0.6])  # absorption and elimination per hour, litres

    def log_concentration(logs, xp=jnp):
        absorb, leave = xp.exp(logs[..., 0, None]), xp.exp(logs[..., 1, None])
        decay = xp.exp(-leave * time) * -xp.expm1(-(absorb - leave) * time) / (absorb - leave)
        return np.log(320.0) + xp.log(absorb) - logs[..., 2, None] + xp.log(decay)

    logs = centre + np.array([0.3, 0.2, 0.25]) * rng.normal(size=(12, 3))
    y = log_concentration(logs, np) + 0.15 * rng.normal(size=(12, 9))

    def log_density(p):
        prior = normal(p["mean"], centre, width) + normal(p["spread"], 0.0, 0.5) + normal(p["z"])
        return prior + normal(p["sigma"]) + normal(y, log_concentration(p["mean"] + p["spread"] * p["z"]), p["sigma"])

    init = {"mean": jnp.array(centre), "spread": jnp.ones(3), "z": jnp.zeros((12, 3)), "sigma": jnp.ones(())}
    return zoo.Case(hamcmc.Posterior(log_density, support={"spread": positive, "sigma": positive}), init)


@zoo.model
def epidemic() -> zoo.Case:
    """Cases of 14 days in a school of 763 (SIR): contact and recovery rates, overdispersed counts."""

    def slopes(state, rates):
        healthy, ill = state
        new = rates[0] * healthy * ill / 763
        return -new, new - rates[1] * ill

    def infected(rates):
        return integrate(lambda state: jnp.stack(slopes(state, rates)), jnp.array([762.0, 1.0]), 14, 10, 0.1)[:, 1]

    rng = np.random.default_rng(103)
    mean = odeint(lambda s, _: slopes(s, (1.75, 0.55)), [762.0, 1.0], np.arange(15))[1:, 1]
    y = rng.poisson(rng.gamma(10.0, mean / 10.0))

    def log_density(p):
        mean, size = jnp.maximum(infected(p["rates"]), 1e-6), 1 / p["dispersion"]
        counts = gammaln(y + size) - gammaln(size) + y * jnp.log(mean / (mean + size)) - size * jnp.log1p(mean / size)
        prior = normal(p["rates"], np.array([2.0, 0.4]), np.array([1.0, 0.5]))
        return prior - 5 * p["dispersion"] + jnp.sum(counts)

    init = {"rates": jnp.array([2.0, 0.4]), "dispersion": jnp.ones(())}
    return zoo.Case(hamcmc.Posterior(log_density, support=positive), init)


@zoo.model
def decay_two() -> zoo.Case:
    """A sum of two exponential decays: amplitudes and rates are strongly correlated, 40 observations."""
    rng = np.random.default_rng(104)
    time = np.linspace(0, 10, 40)
    y = 4 * np.exp(-1.5 * time) + 2 * np.exp(-0.25 * time) + 0.15 * rng.normal(size=40)

    def log_density(p):
        slow, fast = p["slow"], p["slow"] + p["faster"]
        mean = p["amplitude"][0] * jnp.exp(-fast * time) + p["amplitude"][1] * jnp.exp(-slow * time)
        prior = normal(p["amplitude"], 0.0, 5.0) + normal(slow) + normal(p["faster"], 0.0, 2.0)
        return prior + normal(p["sigma"]) + normal(y, mean, p["sigma"])

    init = {"amplitude": jnp.ones(2), "slow": jnp.ones(()), "faster": jnp.ones(()), "sigma": jnp.ones(())}
    return zoo.Case(hamcmc.Posterior(log_density, support=positive), init)
