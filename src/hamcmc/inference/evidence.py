"""Model evidence by stochastic thermodynamic integration, and the comparison of models by it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hamcmc import _check
from hamcmc._types import PyTree
from hamcmc.inference import job
from hamcmc.inference.arguments import ensembles_of
from hamcmc.inference.checks import check_start
from hamcmc.inference.display import shown
from hamcmc.inference.progress import Progress, Status
from hamcmc.inference.tempering import Ladder, Rungs, Tempered, anchoring, checked_betas, step_sizes
from hamcmc.samplers.registry import MakeSampler, maker_for
from hamcmc.store.errors import NonFinite
from hamcmc.target.estimators import AnchoredPosterior
from hamcmc.target.posterior import Posterior

BATCHES = 32  # batches of steps whose scatter is the Monte Carlo error: it is then known to 13 %
ROUNDS = 4  # times that the anchors are renewed in the warm-up, each from where the last one led
CHAINS = 4  # the default number of chains per rung


class Evidence(NamedTuple):
    """An estimate of log p(x), and what it was made of.

    Attributes:
        log_evidence: log ∫ p(θ) Π_n p(x_n|θ) dθ.
        standard_error: of both parts below. It does not contain the sampler's own bias, which shows when ε is halved.
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


def evidence(
    posterior: Posterior,
    sampler: str | MakeSampler,
    init: PyTree | Callable[[Array], PyTree],
    *,
    step_size: float | Callable[[float], float],
    num_samples: int = 10_000,
    warmup: int = 2000,
    batch_size: int | None = None,
    temperatures: int | Sequence[float] | np.ndarray = 33,
    chains: int | None = None,
    ensembles: int | None = None,
    seed: int = 0,
    prior_sample: Callable[[Array], PyTree] | None = None,
    progress: bool | Progress | None = None,
    **options: Any,
) -> Evidence:
    r"""Estimate the log evidence log p(x), with its standard error, by thermodynamic integration.

    .. math:: \log p(x) = ∫_0^1 E_β[\log p(x|θ)]\, dβ, \qquad θ ∼ p(θ)\, p(x|θ)^β / Z_β

    All rungs of a ladder of β are sampled at once, in one compiled loop. log p(x|θ) is estimated on each minibatch,
    with the factor N/n, at the position before the minibatch's step, which makes the estimate unbiased. To reduce the
    noise, both the estimate and the gradient are taken relative to an anchor of each rung (see
    :func:`hamcmc.control_variate`): the mean of its chains, renewed during warm-up.

    The integral is taken by the trapezoidal rule with the second-order correction. The correction needs
    Var_β[log p(x|θ)], the derivative of the mean; two halves of each minibatch give it free of the minibatch's noise.
    The rule without every second rung gives the error of the rule, of fourth order, which is subtracted and reported.

    **Normalised densities.** Constants matter here: ``log_prior`` must integrate to 1 over the support, and
    ``log_likelihood`` over x_n. A constant that is missing in one of them moves the result by as much.

    Args:
        posterior: normalised log-prior and log-likelihood, and data in memory.
        sampler: a name with `options` for it, or a function that makes a sampler for the target that it is given, such
            as ``lambda target: hamcmc.sgld(target.grad)``. On all data, ``"sghmc"`` has no bias from its steps where
            the posterior is Gaussian. With minibatches, ``"ccadl"`` with ``full=True``, started at the mode, removes
            their heat; ``"sghmc"`` then needs small steps and a friction near 1.
        init: parameters to start from, or a function of a key that draws them for each chain.
        step_size: ε at β = 1, in the sampler's convention; at other β it is ε (c₀ + c₁) / (c₀ + β c₁), where c₀ and c₁
            are the largest curvatures of prior and likelihood at the start. Or a function of β, as samplers that
            scale their steps by curvature need it: ``lambda beta: 0.1``.
        num_samples: steps after warm-up.
        warmup: steps before.
        batch_size: data per minibatch, at least 2, drawn with replacement and shared by all rungs; None for all data.
        temperatures: how many rungs, at (k/K)⁵, or all of them, from 0 to 1. An odd number.
        chains: chains per rung, 4 by default; not for an ensemble sampler.
        ensembles: ensembles per rung for an ensemble sampler, 1 by default.
        seed: everything random follows from it.
        prior_sample: draws parameters from the prior by a key; then β = 0 is drawn exactly.
        progress: True for a progress bar, None for one if stderr is a terminal, or a function that is called with a
            :class:`~hamcmc.inference.progress.Status`.
        **options: hyper-parameters of a sampler given by name.

    Returns:
        An :class:`Evidence`.

    Raises:
        NonFinite: a rung became NaN or infinite.

    References:
        Friel, Hurn and Wyse, Improving power posterior estimation of statistical evidence, Stat. Comput. 2014.
        Şimşekli, Badeau, Richard and Cemgil, Stochastic thermodynamic integration: efficient Bayesian model selection
        via stochastic gradient MCMC, ICASSP 2016.
    """
    length = -(-_check.at_least("num_samples", num_samples, BATCHES) // BATCHES)
    _check.at_least("warmup", warmup, 0)
    betas = checked_betas(temperatures)
    n = _checked_batch(posterior, batch_size)
    if "svrg" in options:
        raise ValueError("svrg: evidence has anchors of its own")
    key, start_key = jax.random.split(jax.random.key(_check.at_least("seed", seed, 0)))
    view = posterior if n is None else AnchoredPosterior(posterior)
    make = maker_for("evidence", sampler, options)
    example = make(Tempered(view, 1.0))
    runs = ensembles_of(example, chains, ensembles, default=CHAINS)
    starts = [
        posterior.unconstrain(job.parameters(init, k)) for k in jax.random.split(start_key, runs * example.replicas)
    ]
    check_start(posterior, starts, n)
    rungs = Rungs(jnp.asarray(betas), step_sizes(step_size, betas, posterior, starts[0]))
    ladder = Ladder(posterior, view, make, n, prior_sample, example.replicas)
    states = ladder.begin(example, starts, len(betas))
    renew = anchoring(posterior)
    total = warmup + BATCHES * length
    with shown(progress, "evidence") as show:
        anchors, values = renew(ladder.positions(states))
        t = 0
        for round_ in range(1, ROUNDS + 1):
            show(Status(t / total, "warm-up", t, total, warmup))
            end = warmup * round_ // ROUNDS
            states, _ = ladder.advance(posterior.data, rungs, states, anchors, key, t, end)
            t = end
            anchors, values = renew(ladder.positions(states))
        found = []
        for _ in range(BATCHES):
            show(Status(t / total, "sampling", t, total, warmup))
            states, sums = ladder.advance(posterior.data, rungs, states, anchors, key, t, t + length)
            t += length
            found.append(np.asarray(sums, np.float64) / length)
            if not np.isfinite(found[-1]).all():
                bad = betas[~np.isfinite(found[-1]).all(0)]
                raise NonFinite(f"the rung β = {bad[0]:.3g} became non-finite by step {t:,}: try a smaller step size")
        show(Status(1.0, "done", t, total, warmup))
    return _integrate(betas, values, np.stack(found))


def _checked_batch(posterior: Posterior, batch_size: int | None) -> int | None:
    if posterior.size == 0:
        raise ValueError("evidence needs a log_likelihood and data: the evidence of a density alone is its integral")
    if posterior.streamed:
        raise ValueError("evidence needs all data in memory, got a memory map")
    n = job.batch_size_of(batch_size, posterior)
    if n == 1:
        raise ValueError("batch_size must be 2 or more, for two halves")
    return n


def _integrate(ladder: np.ndarray, values: np.ndarray, found: np.ndarray) -> Evidence:
    """Integrate over β.

    Args:
        ladder: β.
        values: log p(x|θ̂) of each rung.
        found: (batch, 2, rung), mean differences from those and mean products of halves.
    """
    d, product = found[:, 0], found[:, 1]  # (batch, rung)
    centre = d.mean(0)
    mean = values + d
    variance = product - 2 * centre * d + centre**2

    fine, coarse = _weights(ladder), np.zeros((2, len(ladder)))
    coarse[:, ::2] = _weights(ladder[::2])

    def over(weights: np.ndarray) -> np.ndarray:
        """The integral of each batch."""
        return mean @ weights[0] + variance @ weights[1]

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
    """The weights of the means and of the variances in ``Σ_k Δ_k (E_k + E_{k+1})/2 − Δ_k² (V_{k+1} − V_k)/12``."""
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
        probability: of each among them, if all were equally likely before.
    """

    names: tuple[str, ...]
    log_evidence: np.ndarray
    standard_error: np.ndarray
    log_bayes_factor: np.ndarray
    factor_error: np.ndarray
    probability: np.ndarray


def compare(models: Mapping[str, Evidence]) -> Comparison:
    """Rank models of the same data by their evidence, estimated in separate runs."""
    names = tuple(sorted(models, key=lambda name: -models[name].log_evidence))
    if not names:
        raise ValueError("compare needs a model")
    value, error = np.array([models[name][:2] for name in names]).T
    factor = value - value[0]
    factor_error = np.where(np.arange(len(names)) > 0, np.hypot(error, error[0]), 0.0)
    return Comparison(names, value, error, factor, factor_error, np.exp(factor) / np.exp(factor).sum())
