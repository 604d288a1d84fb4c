"""The tempered posteriors p(θ) p(x|θ)^β that :func:`hamcmc.evidence` samples, and the anchors of their rungs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from hamcmc import _check
from hamcmc._random import below
from hamcmc._types import PyTree
from hamcmc.inference.many import Axes, Turn, advance
from hamcmc.samplers.base import Sampler
from hamcmc.target import minibatch
from hamcmc.target.estimators import Anchor, Anchored, View
from hamcmc.target.posterior import Posterior
from hamcmc.target.protocol import unbiased

ROWS = 8192  # data per piece of a full pass, so that the pieces fit in memory
POWER = 5  # rungs at (k/K)⁵, as Friel, Hurn and Wyse recommend: E_β varies most near β = 0
POWER_ITERATIONS = 30  # of the power method; a curvature known to a factor of 2 is enough for a step size
IMPROPER = 1e-6  # a prior less curved than this, relative to the likelihood, counts as improper


class Rungs(NamedTuple):
    """β and ε of each rung."""

    beta: Array
    step_size: Array


class Tempered(View):
    """p(θ) p(x|θ)^β: each log-likelihood, and each estimate of its gradient, times β."""

    def __init__(self, plain: Posterior, beta: Any):
        super().__init__(plain)
        self.beta = beta

        def log_likelihood(theta: PyTree, datum: PyTree) -> Array:
            """β times that of the posterior."""
            return beta * plain.log_likelihood(theta, datum)  # type: ignore[misc]

        self.log_likelihood = log_likelihood

    def log_likelihoods(self, parameters: PyTree, rows: PyTree) -> Array:
        """β times those of the posterior."""
        return self.beta * self.plain.log_likelihoods(parameters, rows)

    def _log_likelihood(self, parameters: PyTree, datum: PyTree) -> Array:
        return self.beta * self.plain._log_likelihood(parameters, datum)

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """β times that of the posterior."""
        return jax.tree.map(lambda g: self.beta * g, self.plain.mean_likelihood_grad(position, minibatch))

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """β times those of the posterior."""
        return jax.tree.map(lambda g: self.beta * g, self.plain.per_datum_grads(position, minibatch))


class Ladder:
    """All rungs of the ladder in one compiled program.

    ``advance(data, rungs, states, anchors, key, begin, end)`` returns new states and sums (2, rung) over the steps
    begin … end−1: of the estimates of log p(x|θ) − log p(x|θ̂), and of the product of those of the two halves of the
    minibatch. Both are means over chains. An ensemble's replicas count as chains.
    """

    def __init__(
        self,
        posterior: Posterior,
        view: Posterior,
        make: Callable[[Posterior], Sampler],
        batch_size: int | None,
        prior_sample: Callable[[Array], PyTree] | None,
        replicas: int,
    ):
        self.posterior, self.view, self.make, self.batch_size = posterior, view, make, batch_size
        self.prior_sample, self.replicas = prior_sample, replicas
        self.advance = jax.jit(self._advance)

    def begin(self, example: Sampler, starts: list[PyTree], rungs: int) -> Any:
        """The states (rung, run) of all rungs, which start alike."""
        stacked = jax.tree.map(lambda *x: jnp.broadcast_to(jnp.stack(x), (rungs, len(x), *x[0].shape)), *starts)
        if self.replicas > 1:
            stacked = jax.tree.map(lambda x: x.reshape(rungs, -1, self.replicas, *x.shape[2:]), stacked)
        return jax.jit(jax.vmap(jax.vmap(example.init)))(stacked)

    def positions(self, states: Any) -> PyTree:
        """The positions (rung, chain, …)."""
        if self.replicas == 1:
            return states.position
        return jax.tree.map(lambda x: x.reshape(len(x), -1, *x.shape[3:]), states.position)

    def _advance(self, data, rungs: Rungs, states, anchors: Anchor, key: Array, begin, end) -> tuple[Any, Array]:
        n, posterior = self.batch_size, self.posterior

        def keys(t: Array) -> Array:
            """For the minibatch, the steps and the draws of the prior."""
            return jax.random.split(jax.random.fold_in(key, t), 3)

        def batch_at(t: Array) -> PyTree:
            if n is None:
                return data
            return minibatch.gather(data, below(keys(t)[0], n, posterior.size))

        def turn(t: Array) -> Turn:
            """One minibatch for all, with the anchor of each rung; keys (rung, run)."""
            runs = jax.tree.leaves(states)[0].shape[1]
            step_keys = jax.vmap(lambda k: jax.random.split(k, runs))(jax.random.split(keys(t)[1], len(rungs.beta)))
            return Turn(step_keys, data if n is None else Anchored(batch_at(t), anchors), rungs.step_size)

        def accumulate(sums: Array, t: Array, _turn: Turn, before: Any, _after: Any) -> Array:
            positions = self._with_prior_draws(self.positions(before), keys(t)[2])
            d = jax.vmap(self._differences, (0, 0, None))(positions, anchors.position, batch_at(t))
            d = unbiased(jnp.zeros_like(d), d, posterior.size)
            half = d.shape[-1] // 2
            first, second = (d.mean(-1),) * 2 if n is None else (d[..., :half].mean(-1), d[..., half:].mean(-1))
            return sums + jnp.stack([d.mean((1, 2)), (first * second).mean(1)])

        return advance(
            lambda beta: self.make(Tempered(self.view, beta)),
            states,
            turn,
            begin,
            end,
            settings=rungs.beta,
            axes=(Axes(setting=0, minibatch=None if n is None else Anchored(None, Anchor(0, 0)), step_size=0), Axes()),
            accumulate=accumulate,
            total=jnp.zeros((2, len(rungs.beta))),
        )

    def _with_prior_draws(self, positions: PyTree, key: Array) -> PyTree:
        """The positions, with exact draws at β = 0 if the prior can be drawn from."""
        if self.prior_sample is None:
            return positions
        prior_sample, chains = self.prior_sample, jax.tree.leaves(positions)[0].shape[1]
        drawn = jax.vmap(lambda k: self.posterior.unconstrain_unchecked(prior_sample(k)))(jax.random.split(key, chains))
        return jax.tree.map(lambda x, p: x.at[0].set(p.astype(x.dtype)), positions, drawn)

    def _differences(self, positions: PyTree, anchor: PyTree, batch: PyTree) -> Array:
        """log p(x_i|θ) − log p(x_i|θ̂) of one rung: (chain, datum)."""

        def each(position: PyTree) -> Array:
            return self.posterior.log_likelihoods(self.posterior.constrain(position), batch)

        return jax.vmap(each)(positions) - each(anchor)


def checked_betas(temperatures: int | Sequence[float] | np.ndarray) -> np.ndarray:
    """The values of β, from 0 to 1."""
    if np.ndim(temperatures) == 0:
        temperatures = np.linspace(0, 1, _check.at_least("temperatures", temperatures, 5)) ** POWER
    betas = np.asarray(temperatures, float)
    if betas.ndim != 1 or len(betas) < 5 or len(betas) % 2 == 0:
        raise ValueError(f"temperatures must be an odd number of rungs, 5 or more, got {betas.shape}")
    if not (betas[0] == 0 and betas[-1] == 1 and (np.diff(betas) > 0).all()):
        raise ValueError("temperatures must rise from 0 to 1")
    return betas


def step_sizes(
    step_size: float | Callable[[float], float], betas: np.ndarray, posterior: Posterior, position: PyTree
) -> Array:
    """ε of each rung: what the user's function says, or ε at β = 1 scaled by the curvature at `position`."""
    if callable(step_size):
        return jnp.asarray([_check.positive(f"step_size at β = {b:.3g}", step_size(b)) for b in betas])
    epsilon = _check.positive("step_size", step_size)
    part = jax.tree.map(lambda x: x[:ROWS], posterior.data)

    @jax.jit
    def curvatures(position, part):
        nothing = jax.tree.map(jnp.zeros_like, position)
        prior = _largest_curvature(lambda x: posterior.combine(x, nothing), position)
        return prior, _largest_curvature(lambda x: posterior.mean_likelihood_grad(x, part), position)

    prior, mean = (float(c) for c in curvatures(position, part))
    likelihood = unbiased(0.0, abs(mean), posterior.size)
    if not prior > IMPROPER * likelihood:
        raise ValueError(
            f"log_prior has the curvature {prior:.2g} at the start, the likelihood {likelihood:.2g}: an improper prior "
            "has no evidence. If it is proper, give step_size as a function of β"
        )
    return jnp.asarray(epsilon * (prior + likelihood) / (prior + betas * likelihood))


def _largest_curvature(grad: Callable[[PyTree], PyTree], position: PyTree) -> Array:
    """The downward curvature of a log-density that is largest in size, by the power method.

    It is negative where the log-density curves up along that direction.
    """
    flat, unravel = ravel_pytree(position)

    def product(v: Array) -> Array:
        """−∇² log p times v."""
        return -jax.jvp(lambda x: ravel_pytree(grad(unravel(x)))[0], (flat,), (v,))[1]

    def unit(v: Array) -> Array:
        """A vector of length 1."""
        return v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)

    start = unit(jax.random.normal(jax.random.key(0), flat.shape, flat.dtype))
    last = lax.fori_loop(0, POWER_ITERATIONS, lambda _, v: unit(product(v)), start)
    return last @ product(last)


def anchoring(posterior: Posterior) -> Callable[[PyTree], tuple[Anchor, np.ndarray]]:
    """``renew(positions) -> (anchors, log-likelihoods there)``, by a full pass at each rung's mean over chains.

    Sums are in double precision: log p(x|θ̂) is large, and the evidence must be right to a fraction of 1.
    """

    def at(position: PyTree, part: PyTree) -> tuple[Array, PyTree]:
        """The log-likelihood of each datum, and the mean gradient."""
        values = posterior.log_likelihoods(posterior.constrain(position), part)  # type: ignore
        return values, posterior.mean_likelihood_grad(position, part)

    on_part = jax.jit(jax.vmap(at, (0, None)))

    def renew(positions: PyTree) -> tuple[Anchor, np.ndarray]:
        centre = jax.tree.map(lambda x: x.mean(1), positions)
        total, grads = 0.0, jax.tree.map(lambda x: np.zeros(x.shape), centre)
        for start in range(0, posterior.size, ROWS):
            part = jax.tree.map(lambda x, start=start: x[start : start + ROWS], posterior.data)
            values, mean = on_part(centre, part)
            total = total + np.sum(np.asarray(values, np.float64), 1)
            grads = jax.tree.map(
                lambda a, g, m=values.shape[1]: a + m / posterior.size * np.asarray(g, float), grads, mean
            )
        return Anchor(centre, jax.tree.map(lambda g, x: jnp.asarray(g, x.dtype), grads, centre)), np.asarray(total)

    return renew
