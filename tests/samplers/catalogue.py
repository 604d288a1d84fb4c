"""Every sampler once, built for a posterior: what the protocol and the exactness tests go through."""

import jax.numpy as jnp


def catalogue(package, posterior, precision):
    """Name → (sampler, arguments for Gaussian.check). ε·(stiffest direction) is about 0.02 throughout."""
    stiff, soft = float(precision.max()), float(precision.min())
    matrix = lambda: jnp.asarray(posterior.fisher, jnp.float32)
    small = 0.02 / stiff
    quasi_newton = {"gamma": 1 / stiff}
    return {
        "sgld": (lambda: package.sgld(posterior.grad), {"step_size": small}),
        "psgld": (  # a large λ keeps the metric nearly constant, and so the missing Γ small
            lambda: package.psgld(posterior, decay=0.9, regularizer=20.0),
            {"step_size": 20 * small, "slowest": soft / 20.4},
        ),
        "psgld-corrected": (
            lambda: package.psgld(posterior, decay=0.9, regularizer=1.0, correction=True),
            {"step_size": small, "batch_size": None, "slowest": soft / 1.5},
        ),
        "sgrld": (lambda: package.sgrld(posterior.grad, matrix()), {"step_size": 0.01, "slowest": 1.0}),
        "sgrld-function": (
            lambda: package.sgrld(posterior.grad, lambda theta: matrix() + 0 * theta["c"]),
            {"step_size": 0.02, "slowest": 1.0},
        ),
        "sghmc": (
            lambda: package.sghmc(posterior.grad),  # on a Gaussian exact at any step
            {"step_size": 5 * small, "batch_size": None},
        ),
        "sgnht": (  # noisy enough to need its thermostats
            lambda: package.sgnht(posterior.grad, multivariate=True),
            {"step_size": 1.5 * small, "slowest": 5 * soft},
        ),
        "ccadl": (lambda: package.ccadl(posterior, full=True), {"step_size": 1.5 * small, "slowest": 5 * soft}),
        "sgfs": (lambda: package.sgfs(posterior, base=stiff), {"step_size": 0.02, "slowest": soft / stiff}),
        "naive": (
            lambda: package.naive(posterior.grad, memory=3, **quasi_newton),
            {"step_size": 0.02, "slowest": soft / stiff},
        ),
        "hamcmc-2": (
            lambda: package.hamcmc(posterior.grad, memory=2, **quasi_newton),
            {"step_size": 0.02, "slowest": soft / stiff},
        ),
        "hamcmc-3": (
            lambda: package.hamcmc(posterior.grad, memory=3, **quasi_newton),
            {"step_size": 0.02, "slowest": soft / stiff},
        ),
        "hamcmc-diagonal": (
            lambda: package.hamcmc(
                posterior.grad,
                memory=3,
                metric={"b": jnp.array([0.5, 1.0]) / stiff, "c": jnp.array(1 / stiff)},
                damping=0.1,
                cosine=0.3,
            ),
            {"step_size": 0.02, "slowest": soft / stiff},
        ),
        "hamcmc-newest": (
            lambda: package.hamcmc(posterior.grad, memory=3, gamma="newest", cosine=0.3),
            {"step_size": 0.02, "slowest": soft / stiff, "batch_size": None},
        ),
        # A step moves every second replica. With three pairs in three dimensions H is the inverse Hessian.
        "ensemble": (
            lambda: package.ensemble_hamcmc(posterior.grad, pairs=4, metric=None),
            {"step_size": 0.02, "slowest": 0.5},
        ),
        "ensemble-newton": (
            lambda: package.ensemble_hamcmc(posterior.grad, pairs=3, metric="resting"),
            {"step_size": 1.0, "slowest": 0.02, "batch_size": None},
        ),
        "ensemble-diagonal": (
            lambda: package.ensemble_hamcmc(
                posterior.grad,
                pairs=1,
                gamma=1.0,
                metric={"b": jnp.array([0.5, 1.0]) / stiff, "c": jnp.array(1 / stiff)},
                damping=0.1,
                cosine=0.05,
                fresh=True,
            ),
            {"step_size": 0.02, "slowest": 0.3, "batch_size": None},
        ),
        "ensemble-adjusted": (
            lambda: package.ensemble_adjusted(posterior, pairs=4, metric=None),
            {"step_size": 1.3, "slowest": 0.02, "batch_size": None, "bias": 0.0},
        ),
        "ensemble-hmc": (
            lambda: package.ensemble_hmc(posterior, replicas=10, adapt=20),
            {"step_size": 0.5, "slowest": 0.1, "batch_size": None, "bias": 0.0},
        ),
        "independence": (
            lambda: package.independence(posterior, replicas=10),
            {"step_size": 1.0, "slowest": 0.05, "batch_size": None, "bias": 0.0},
        ),
        "leimkuhler-matthews": (  # exact at every step, but for the noise of minibatches
            lambda: package.leimkuhler_matthews(posterior.grad, replicas=10),
            {"step_size": 1 / stiff, "batch_size": None, "bias": 0.0},
        ),
        "ensemble-underdamped": (
            lambda: package.ensemble_underdamped(posterior.grad, pairs=4, friction=0.7, metric=None),
            {"step_size": 0.02, "slowest": 0.5},
        ),
        "ensemble-neighbours": (
            lambda: package.ensemble_hamcmc(
                posterior.grad, pairs=3, metric="dense", adapt=40, update="neighbours", cosine=0.1
            ),
            {"step_size": 0.02, "slowest": 0.5},
        ),
    }


NAMES = tuple(
    [
        "sgld",
        "psgld",
        "psgld-corrected",
        "sgrld",
        "sgrld-function",
        "sghmc",
        "sgnht",
        "ccadl",
        "sgfs",
        "naive",
        "hamcmc-2",
        "hamcmc-3",
        "hamcmc-diagonal",
        "hamcmc-newest",
        "ensemble",
        "ensemble-newton",
        "ensemble-diagonal",
        "ensemble-neighbours",
        "ensemble-adjusted",
        "ensemble-hmc",
        "ensemble-underdamped",
        "independence",
        "leimkuhler-matthews",
    ]
)

# Variants of a sampler that another test of the usual run goes through: in the slow run only.
VARIANTS = ("hamcmc-2", "hamcmc-newest", "hamcmc-diagonal", "ensemble-neighbours", "ensemble-diagonal")
