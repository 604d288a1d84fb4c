"""Model evidence by stochastic thermodynamic integration, and the comparison of models by it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from hamcmc import _check, samplers
from hamcmc.inference import job
from hamcmc.samplers.base import Sampler
from hamcmc.store.errors import RunError
from hamcmc.target import minibatch
from hamcmc.target.estimators import Anchor, Anchored, AnchoredPosterior, View
from hamcmc.target.posterior import Posterior

PyTree = Any
BATCHES = 32  # of which the Monte Carlo error is the scatter
ROUNDS = 4  # anchors taken anew in warm-up
ROWS = 8192  # data per piece of a full pass


class Evidence(NamedTuple):
    """An estimate of log p(x), and what it was made of.

    Attributes:
        log_evidence: log ∫ p(θ) Π_n p(x_n|θ) dθ.
        standard_error: of both parts below. The sampler's own bias is not in it: that shows when ε is halved.
        monte_carlo_error: by batch means of the whole integral.
        ladder_error: of the integration over β.
        temperatures: the ladder of β.
        mean: E_β[log p(x|θ)] at each rung.
        variance: Var_β[log p(x|θ)] at each rung, without the minibatches' share.
        error: Monte Carlo error of each mean.
    """

    log_evidence: float
    standard_error: float
    monte_carlo_error: float
    ladder_error: float
    temperatures: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    error: np.ndarray


class Tempered(View):
    """p(θ) p(x|θ)^β: each log-likelihood, and each estimate of its gradient, times β."""

    def __init__(self, plain: Posterior, beta: Any):
        super().__init__(plain)
        self.beta = beta
        self.log_likelihood = lambda theta, datum: beta * plain.log_likelihood(theta, datum)  # type: ignore[misc]

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """β times that of the posterior."""
        return jax.tree.map(lambda g: self.beta * g, self.plain.mean_likelihood_grad(position, minibatch))

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """β times those of the posterior."""
        return jax.tree.map(lambda g: self.beta * g, self.plain.per_datum_grads(position, minibatch))


def evidence(
    posterior: Posterior,
    sampler: str | Callable[[Posterior], Sampler],
    init: PyTree | Callable[[Array], PyTree],
    *,
    step_size: float | Callable[[float], float],
    num_samples: int = 10_000,
    warmup: int = 2000,
    batch_size: int | None = None,
    temperatures: int | Sequence[float] | np.ndarray = 33,
    chains: int = 4,
    seed: int = 0,
    prior_sample: Callable[[Array], PyTree] | None = None,
    **options: Any,
) -> Evidence:
    r"""The log evidence log p(x) with its standard error, by thermodynamic integration.

    .. math:: \log p(x) = ∫_0^1 E_β[\log p(x|θ)]\, dβ, \qquad θ ∼ p(θ)\, p(x|θ)^β / Z_β

    All rungs of a ladder of β are sampled at once, in one compiled loop. log p(x|θ) is estimated on each minibatch,
    with the factor N/n, at the position before its step: unbiased. For less noise both it and the gradient are taken
    relative to an anchor of each rung (see :func:`hamcmc.control_variate`), the chains' mean, renewed in warm-up.

    The integral is taken by the trapezoidal rule with the second-order correction, which needs Var_β[log p(x|θ)], the
    derivative of the mean; two halves of each minibatch give it free of the minibatch's noise. Leaving out every second
    rung gives the error of the rule, of fourth order, which is taken off and also reported.

    **Normalised densities.** Constants matter here: ``log_prior`` must integrate to 1 over the support, and
    ``log_likelihood`` over x_n. A constant left out of one moves the result by as much.

    Args:
        posterior: normalised log-prior and log-likelihood, and data in memory.
        sampler: a name with `options` for it, or a function that makes a sampler for the posterior that it is given.
            On all data ``"sghmc"`` has no bias from its steps where the posterior is Gaussian. With minibatches
            ``"ccadl"`` with ``full=True``, started at the mode, takes their heat out again; ``"sghmc"`` then needs
            small steps and a friction near 1.
        init: parameters to start from, or a function of a key that draws them for each chain.
        step_size: ε at β = 1, in the sampler's convention; at other β it is ε (c₀ + c₁) / (c₀ + β c₁), where c₀ and c₁
            are the largest curvatures of prior and likelihood at the start. Or a function of β, as samplers that
            scale their steps by curvature need it: ``lambda beta: 0.1``.
        num_samples: steps after warm-up.
        warmup: steps before.
        batch_size: data per minibatch, at least 2, drawn with replacement and shared by all rungs; None for all data.
        temperatures: how many rungs, at (k/K)⁵, or all of them, from 0 to 1. An odd number.
        chains: chains per rung.
        seed: everything random follows from it.
        prior_sample: draws parameters from the prior by a key; then β = 0 is drawn exactly.
        **options: hyper-parameters of a sampler given by name.

    Returns:
        An :class:`Evidence`.

    References:
        Friel, Hurn and Wyse, Improving power posterior estimation of statistical evidence, Stat. Comput. 2014.
        Şimşekli, Badeau, Richard and Cemgil, Stochastic thermodynamic integration: efficient Bayesian model selection
        via stochastic gradient MCMC, ICASSP 2016.
    """
    length = -(-_check.at_least("num_samples", num_samples, BATCHES) // BATCHES)
    _check.at_least("warmup", warmup, 0)
    ladder = _ladder(temperatures)
    if posterior.log_likelihood is None:
        raise ValueError("evidence needs a log_likelihood and data: the evidence of a density alone is its integral")
    if posterior.streamed:
        raise ValueError("evidence needs all data in memory, got a memory map")
    if "svrg" in options:
        raise ValueError("svrg: evidence has anchors of its own")
    n = job.batch_size_of(batch_size, posterior)
    if n == 1:
        raise ValueError("batch_size must be 2 or more, for two halves")
    key, start_key = jax.random.split(jax.random.key(_check.at_least("seed", seed, 0)))
    view = posterior if n is None else AnchoredPosterior(posterior)
    make = lambda p: samplers.build(sampler, p, **options) if isinstance(sampler, str) else sampler(p)
    replicas = make(Tempered(view, 1.0)).replicas
    starts = [
        posterior.unconstrain(job.parameters(init, k))
        for k in jax.random.split(start_key, _check.at_least("chains", chains, 1) * replicas)
    ]
    job.check_start(posterior, starts, n)
    epsilons = _step_sizes(step_size, ladder, posterior, starts[0])

    stacked = jax.tree.map(lambda *x: jnp.broadcast_to(jnp.stack(x), (len(ladder), len(x), *x[0].shape)), *starts)
    apart = lambda tree: jax.tree.map(lambda x: x.reshape(len(ladder), -1, *x.shape[3:]) if replicas > 1 else x, tree)
    together = lambda tree: jax.tree.map(
        lambda x: x.reshape(len(ladder), -1, replicas, *x.shape[2:]) if replicas > 1 else x, tree
    )
    states = jax.jit(jax.vmap(jax.vmap(make(Tempered(view, 1.0)).init)))(together(stacked))
    rungs = Rungs(jnp.asarray(ladder), epsilons)
    advance = _advance(posterior, view, make, n, prior_sample, apart)
    refresh = _refresh(posterior)

    anchors, values = refresh(apart(states.position))
    t = 0
    for round_ in range(1, ROUNDS + 1):
        end = warmup * round_ // ROUNDS
        states, _ = advance(posterior.data, rungs, states, anchors, key, t, end)
        t = end
        anchors, values = refresh(apart(states.position))
    found = []
    for _ in range(BATCHES):
        states, sums = advance(posterior.data, rungs, states, anchors, key, t, t + length)
        t += length
        found.append(np.asarray(sums, np.float64) / length)
        if not np.isfinite(found[-1]).all():
            bad = ladder[~np.isfinite(found[-1]).all(0)]
            raise RunError(f"the rung β = {bad[0]:.3g} turned non-finite by step {t:,}: try a smaller step size")
    return _integrate(ladder, values, np.stack(found))


class Rungs(NamedTuple):
    """β and ε of each."""

    beta: Array
    step_size: Array


def _advance(posterior, view, make, n, prior_sample, apart) -> Callable:
    """Compile ``advance(data, rungs, states, anchors, key, begin, end) -> (states, sums)``.

    The sums, (2, rung), are over steps begin … end−1 of the estimates of log p(x|θ) − log p(x|θ̂), and of the product of
    those of the two halves of the minibatch; means over chains.
    """
    one_datum = lambda position, datum: posterior.log_likelihood(posterior.constrain(position), datum)
    each = jax.vmap(jax.vmap(one_datum, (None, 0)), (0, None))  # (position, datum)

    def differences(positions, anchor, batch) -> Array:
        """Of one rung, (chain, datum)."""
        return each(positions, batch) - each(jax.tree.map(lambda x: x[None], anchor), batch)

    def step(rung: Rungs, key, states, anchor, batch):
        one = make(Tempered(view, rung.beta)).step
        keys = jax.random.split(key, len(states.step))
        batch = batch if n is None else Anchored(batch, anchor)
        return jax.vmap(one, (0, 0, None, None))(keys, states, batch, rung.step_size)[0]

    @jax.jit
    def advance(data, rungs: Rungs, states, anchors: Anchor, key, begin, end):
        def iteration(t, carry):
            states, sums = carry
            k_batch, k_step, k_prior = jax.random.split(jax.random.fold_in(key, t), 3)
            batch = data
            if n is not None:
                batch = minibatch.gather(data, jax.random.randint(k_batch, (n,), 0, posterior.size))
            positions = apart(states.position)
            if prior_sample is not None:
                many = jax.random.split(k_prior, jax.tree.leaves(positions)[0].shape[1])
                drawn = jax.vmap(lambda k: posterior.unconstrain_unchecked(prior_sample(k)))(many)
                positions = jax.tree.map(lambda x, p: x.at[0].set(p.astype(x.dtype)), positions, drawn)
            d = posterior.size * jax.vmap(differences, (0, 0, None))(positions, anchors.position, batch)
            half = d.shape[-1] // 2
            first, second = (d.mean(-1),) * 2 if n is None else (d[..., :half].mean(-1), d[..., half:].mean(-1))
            sums = sums + jnp.stack([d.mean((1, 2)), (first * second).mean(1)])
            keys = jax.random.split(k_step, len(rungs.beta))
            return jax.vmap(step, (0, 0, 0, 0, None))(rungs, keys, states, anchors, batch), sums

        return lax.fori_loop(begin, end, iteration, (states, jnp.zeros((2, len(rungs.beta)))))

    return advance


def _refresh(posterior: Posterior) -> Callable:
    """``refresh(positions) -> (anchors, log-likelihoods there)``: at each rung's mean over chains, by a full pass.

    Sums are in double precision: log p(x|θ̂) is large, and an evidence is wanted to a fraction of 1.
    """

    def at(position: PyTree, part: PyTree) -> tuple[Array, PyTree]:
        values = jax.vmap(posterior.log_likelihood, (None, 0))(posterior.constrain(position), part)  # type: ignore
        return values, posterior.mean_likelihood_grad(position, part)

    on_part = jax.jit(jax.vmap(at, (0, None)))

    def refresh(positions: PyTree) -> tuple[Anchor, np.ndarray]:
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

    return refresh


def _ladder(temperatures: Any) -> np.ndarray:
    if np.ndim(temperatures) == 0:
        temperatures = np.linspace(0, 1, _check.at_least("temperatures", temperatures, 5)) ** 5
    ladder = np.asarray(temperatures, float)
    if ladder.ndim != 1 or len(ladder) < 5 or len(ladder) % 2 == 0:
        raise ValueError(f"temperatures must be an odd number of rungs, 5 or more, got {ladder.shape}")
    if not (ladder[0] == 0 and ladder[-1] == 1 and (np.diff(ladder) > 0).all()):
        raise ValueError("temperatures must rise from 0 to 1")
    return ladder


def _step_sizes(step_size: float | Callable, ladder: np.ndarray, posterior: Posterior, position: PyTree) -> Array:
    if callable(step_size):
        return jnp.asarray([_check.positive(f"step_size at β = {b:.3g}", step_size(b)) for b in ladder])
    epsilon = _check.positive("step_size", step_size)
    part = jax.tree.map(lambda x: x[:ROWS], posterior.data)

    @jax.jit
    def curvatures(position, part):
        nothing = jax.tree.map(jnp.zeros_like, position)
        prior = _largest_curvature(lambda x: posterior.combine(x, nothing), position)
        return prior, _largest_curvature(lambda x: posterior.mean_likelihood_grad(x, part), position)

    prior, likelihood = (float(c) for c in curvatures(position, part))
    likelihood = posterior.size * abs(likelihood)
    if not prior > 1e-6 * likelihood:
        raise ValueError(
            f"log_prior has the curvature {prior:.2g} at the start, the likelihood {likelihood:.2g}: an improper prior "
            "has no evidence. If it is proper, give step_size as a function of β"
        )
    return jnp.asarray(epsilon * (prior + likelihood) / (prior + ladder * likelihood))


def _largest_curvature(grad: Callable[[PyTree], PyTree], position: PyTree) -> Array:
    """Of a log-density, downwards, by the power method; the direction may also be one in which it curves up."""
    flat, unravel = ravel_pytree(position)
    product = lambda v: -jax.jvp(lambda x: ravel_pytree(grad(unravel(x)))[0], (flat,), (v,))[1]
    unit = lambda v: v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)
    start = unit(jax.random.normal(jax.random.key(0), flat.shape, flat.dtype))
    last = lax.fori_loop(0, 30, lambda _, v: unit(product(v)), start)
    return last @ product(last)


def _integrate(ladder: np.ndarray, values: np.ndarray, found: np.ndarray) -> Evidence:
    """From log p(x|θ̂) of each rung and the batches' mean differences and mean products of halves."""
    d, product = found[:, 0], found[:, 1]  # (batch, rung)
    centre = d.mean(0)
    mean = values + d
    variance = product - 2 * centre * d + centre**2

    fine, coarse = _weights(ladder), np.zeros((2, len(ladder)))
    coarse[:, ::2] = _weights(ladder[::2])
    over = lambda weights: mean @ weights[0] + variance @ weights[1]
    integrals = over(fine + (fine - coarse) / 15)  # the rule's error falls by 16 as rungs are doubled
    ladder_error = float(abs(np.mean(over(fine - coarse))) / 15)
    root = np.sqrt(len(found))
    monte_carlo = float(integrals.std(ddof=1) / root)
    return Evidence(
        float(integrals.mean()),
        float(np.hypot(monte_carlo, ladder_error)),
        monte_carlo,
        ladder_error,
        ladder,
        mean.mean(0),
        variance.mean(0),
        mean.std(0, ddof=1) / root,
    )


def _weights(ladder: np.ndarray) -> np.ndarray:
    """Of the means and of the variances in ``Σ_k Δ_k (E_k + E_{k+1})/2 − Δ_k² (V_{k+1} − V_k)/12``."""
    before, after = np.diff(ladder, prepend=ladder[0]), np.diff(ladder, append=ladder[-1])
    return np.stack([(before + after) / 2, (after**2 - before**2) / 12])


class Comparison(NamedTuple):
    """Models from best to worst.

    Attributes:
        names: of the models.
        log_evidence: of each.
        standard_error: of each.
        log_bayes_factor: of each against the best, 0 or less.
        factor_error: its standard error.
        probability: of each among them, if all were as likely before.
    """

    names: tuple[str, ...]
    log_evidence: np.ndarray
    standard_error: np.ndarray
    log_bayes_factor: np.ndarray
    factor_error: np.ndarray
    probability: np.ndarray


def compare(models: Mapping[str, Evidence]) -> Comparison:
    """Models of the same data by their evidence, estimated in runs of their own."""
    names = tuple(sorted(models, key=lambda name: -models[name].log_evidence))
    if not names:
        raise ValueError("compare needs a model")
    value, error = np.array([models[name][:2] for name in names]).T
    factor = value - value[0]
    factor_error = np.where(np.arange(len(names)) > 0, np.hypot(error, error[0]), 0.0)
    return Comparison(names, value, error, factor, factor_error, np.exp(factor) / np.exp(factor).sum())
