"""The impulses Φ of alpha-stable entries, by Metropolis steps.

Kanter's representation makes Φ a function of an angle and an exponential variable. Their densities are simple, while
that of Φ is not. A step proposes both from the prior (``"prior"``, as in the paper; hardly ever accepted where |x|² is
far above V), or by a random walk on the logit of the angle and the logarithm of the exponential (``"walk"``).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp

from hamcmc._random import threefry
from hamcmc.stable.distributions import log_sin
from hamcmc.stable.model import log_normal

PROPOSALS = ("prior", "walk", "both")
WALK = 2.0  # longest step of the random walk in the angle's logit and the exponential's logarithm


def log_impulse(logit: Array, log_e: Array, alpha: Any) -> Array:
    """log Φ from the logit of the angle and the logarithm of the exponential variable (Kanter)."""
    a = jnp.asarray(alpha, logit.dtype) / 2
    angle, rest = jnp.pi * jax.nn.sigmoid(logit), jnp.pi * jax.nn.sigmoid(-logit)

    # sin U equals sin(π − U): take the smaller of the two, which has all its digits.
    log_sin_u = log_sin(jnp.minimum(angle, rest))
    found = log_sin(a * angle) - log_sin_u / a + (1 - a) / a * (log_sin((1 - a) * angle) - log_e)
    return math.log(2) + jnp.where(a < 1, found, 0.0)  # Φ of a Gaussian source is 2, whatever the two variables are


def log_latent_density(logit: Array, log_e: Array) -> Array:
    """The log-density of the logit of a uniform angle and the logarithm of an exponential variable."""
    return jax.nn.log_sigmoid(logit) + jax.nn.log_sigmoid(-logit) + log_e - jnp.exp(log_e)


def draw_latent(u: Array, v: Array) -> tuple[Array, Array]:
    """Both variables from their prior, by two uniform numbers. Small u are large angles, which keep their digits."""
    return jnp.log1p(-u) - jnp.log(u), jnp.log(-jnp.log(v))


def uniforms(key: Array, number: int, shape: tuple[int, ...]) -> Array:
    """Uniform numbers in (0, 1), of shape (number, *shape), drawn as in ``hamcmc._random``."""
    dtype = jax.dtypes.canonicalize_dtype(float)
    words, count = jax.random.key_data(key), lax.iota(jnp.uint32, math.prod(shape))
    if words.shape != (2,):  # another generator
        words = jax.random.bits(key, (2,), jnp.uint32)
    bits = 23 if dtype == jnp.float32 else 32  # half a unit more must be representable, too

    def pair(i):
        both = threefry(words[0], words[1], jnp.full_like(count, i), count)
        return tuple(((x >> np.uint32(32 - bits)).astype(dtype) + 0.5) * dtype.type(2.0**-bits) for x in both)

    # A loop keeps the compiler from drawing them anew at each place of use.
    pairs = lax.map(pair, jnp.arange(-(-number // 2), dtype=jnp.uint32))
    return jnp.concatenate(pairs)[:number].reshape(number, *shape)


class Impulses(NamedTuple):
    """The two variables of Kanter's representation, and log Φ: apart, because loops over parts of one array are not
    vectors."""

    logit: Array
    log_e: Array
    log_phi: Array


class Metropolis(NamedTuple):
    """Metropolis steps for impulses, one source after the other.

    The state is an array (sources, 3, rows, columns) of the two variables of Kanter's representation, and log Φ.

    Attributes:
        alphas: the indices of the sources.
        dof: 2 for complex entries, 1 for real ones.
        proposal: one of :data:`PROPOSALS`.
        sweeps: how often a call goes over all sources.
        swap: whether two sources may change roles after each sweep.
    """

    alphas: Any
    dof: int
    proposal: str
    sweeps: int
    swap: bool = True

    def start(self, log_v: Array, log_power: Array) -> Array:
        """Impulses to start from, as large as the data require: with smaller ones, large entries throw W and H far
        off."""
        wanted = log_power - logsumexp(log_v, 0)
        grid, zero = jnp.linspace(0, 40, 400), jnp.zeros_like(wanted)  # above the median angle, log Φ increases

        def source(alpha):
            logit = jnp.interp(wanted, log_impulse(grid, jnp.zeros(400), alpha), grid)
            logit = jnp.where(alpha < 2, logit, 0.0)  # that of a Gaussian source changes nothing
            return jnp.stack([logit, zero, log_impulse(logit, zero, alpha)])

        return lax.map(source, jnp.asarray(self.alphas, log_v.dtype))

    def __call__(
        self, key: Array, state: Array, log_v: Array, log_power: Array, observed: Array | None
    ) -> tuple[Array, Array]:
        """All sweeps: the new state, and the fraction of accepted proposals of each source."""
        kinds = ("prior", "walk") if self.proposal == "both" else (self.proposal,)

        def source(below, parts):
            key, old, log_v, above, alpha = parts
            others = jnp.logaddexp(below, above)

            def density(log_phi: Array) -> Array:
                """Of the entries, given log Φ of this source."""
                return (1.0 if observed is None else observed) * log_normal(
                    log_power, jnp.logaddexp(others, log_phi + log_v), self.dof
                )

            accepted = jnp.zeros(())
            u = uniforms(key, 3 * len(kinds), log_power.shape)
            for n, kind in enumerate(kinds):
                old, yes = _metropolis_step(u[3 * n : 3 * n + 3], kind, old, density, alpha)
                accepted += jnp.mean(yes) / len(kinds)
            return jnp.logaddexp(below, old.log_phi + log_v), (old, accepted)

        def sweep(i, carry):
            state, accepted = carry
            # Sums of the sources above (still old) and below (already new) are kept, so that nothing is subtracted.
            terms = state.log_phi + log_v
            nothing = jnp.full_like(log_power, -jnp.inf)
            # Not cumlogsumexp, which takes many times as long on a CPU.
            _, above = lax.scan(lambda sum, term: (jnp.logaddexp(sum, term), sum), nothing, terms, reverse=True)
            *keys, key_swap = jax.random.split(jax.random.fold_in(key, i), len(self.alphas) + 1)
            keys = jnp.stack(keys)
            alphas = jnp.asarray(self.alphas, log_v.dtype)
            _, (state, new) = lax.scan(source, nothing, (keys, state, log_v, above, alphas))
            if len(self.alphas) > 1 and self.swap:
                state = _swap(key_swap, state, log_v, log_power, observed, alphas, self.dof)
            return state, accepted + new / self.sweeps

        apart = Impulses(*jnp.moveaxis(state, 1, 0))
        new, accepted = lax.fori_loop(0, self.sweeps, sweep, (apart, jnp.zeros(len(self.alphas))))
        return jnp.stack(new, 1), accepted


def _metropolis_step(u: Array, kind: str, old: Impulses, density: Callable, alpha: Array) -> tuple[Impulses, Array]:
    if kind == "prior":
        (logit, log_e), ratio = draw_latent(u[0], u[1]), 0.0
    else:
        logit, log_e = old.logit + WALK * (2 * u[0] - 1), old.log_e + WALK * (2 * u[1] - 1)
        ratio = log_latent_density(logit, log_e) - log_latent_density(old.logit, old.log_e)
    new = Impulses(logit, log_e, log_impulse(logit, log_e, alpha))
    new = lax.optimization_barrier(new)
    yes = lax.optimization_barrier(jnp.log(u[2]) < ratio + density(new.log_phi) - density(old.log_phi))
    return jax.tree.map(lambda x, y: jnp.where(yes, x, y), new, old), yes


def _swap(
    key: Array, state: Impulses, log_v: Array, log_power: Array, observed: Array | None, alphas: Array, dof: int
) -> Impulses:
    """Let two random sources change roles. A large entry is due to one of them, and single steps never swap them.

    Large Φ have log Φ ≈ logit/a + c − (1−a)/a log E. The proposal chooses new logits that swap this approximation of
    Φ [WH]^(2/α) between the two sources. It is its own inverse and preserves volumes.
    """
    key_one, key_other, key_accept = jax.random.split(key, 3)
    sources, a = len(alphas), alphas / 2
    one = jax.random.randint(key_one, (), 0, sources)
    other = (one + jax.random.randint(key_other, (), 1, sources)) % sources
    c = jnp.log(jnp.sin(jnp.pi * a)) - jnp.log(jnp.pi) / a + (1 - a) / a * jnp.log(jnp.sin(jnp.pi * (1 - a)))

    def rest(s: Array) -> Array:
        """What log Φ [WH]^(2/α) of source s is about, less its logit's part."""
        return c[s] - (1 - a[s]) / a[s] * state.log_e[s] + log_v[s]

    def size(s: Array) -> Array:
        """About log Φ [WH]^(2/α) of source s."""
        return state.logit[s] / a[s] + rest(s)

    def moved(s, r):
        logit = a[s] * (size(r) - rest(s))
        return logit, log_impulse(logit, state.log_e[s], alphas[s])

    places = jnp.stack([one, other])
    logits, log_phis = map(jnp.stack, zip(moved(one, other), moved(other, one)))
    logit, log_phi = state.logit.at[places].set(logits), state.log_phi.at[places].set(log_phis)
    new = lax.optimization_barrier(Impulses(logit, state.log_e, log_phi))

    def density(x: Impulses) -> Array:
        """Of the entries and of the latent variables."""
        together = logsumexp(x.log_phi + log_v, 0)
        entries = (1.0 if observed is None else observed) * log_normal(log_power, together, dof)
        return entries + jnp.sum(log_latent_density(x.logit, x.log_e), 0)

    yes = lax.optimization_barrier(jnp.log(uniforms(key_accept, 1, log_power.shape)[0]) < density(new) - density(state))
    return jax.tree.map(lambda x, y: jnp.where(yes, x, y), new, state)
