"""Bayesian inference on large data with stochastic quasi-Newton Langevin dynamics."""

from hamcmc.evidence import Comparison, Evidence, compare, evidence
from hamcmc.mode import find_mode
from hamcmc.potential import Posterior
from hamcmc.record import RunError
from hamcmc.result import Result
from hamcmc.run import Interrupted, NonFinite, resume, sample
from hamcmc.samplers import (
    Sampler,
    alternating,
    ccadl,
    ensemble_hamcmc,
    ensemble_underdamped,
    hamcmc,
    naive,
    psgld,
    sgfs,
    sghmc,
    sgld,
    sgnht,
    sgrld,
    svrg,
)
from hamcmc.schedules import Constant, Cyclical, Polynomial
from hamcmc.separation import alpha_stable_mf
from hamcmc.support import Support, bounded, positive, real
from hamcmc.tune import Tuned, tune
from hamcmc.variance import control_variate

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Constant",
    "Cyclical",
    "Evidence",
    "Interrupted",
    "NonFinite",
    "Polynomial",
    "Posterior",
    "Result",
    "RunError",
    "Sampler",
    "Support",
    "Tuned",
    "alpha_stable_mf",
    "alternating",
    "bounded",
    "ccadl",
    "compare",
    "control_variate",
    "ensemble_hamcmc",
    "ensemble_underdamped",
    "evidence",
    "find_mode",
    "hamcmc",
    "naive",
    "positive",
    "psgld",
    "real",
    "resume",
    "sample",
    "sgfs",
    "sghmc",
    "sgld",
    "sgnht",
    "sgrld",
    "svrg",
    "tune",
]
