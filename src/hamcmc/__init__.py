"""Bayesian inference on large data with stochastic quasi-Newton Langevin dynamics."""

from hamcmc.inference.evidence import Comparison, Evidence, compare, evidence
from hamcmc.inference.sample import Interrupted, NonFinite, resume, sample
from hamcmc.inference.schedules import Constant, Cyclical, Polynomial
from hamcmc.inference.tune import Tuned, tune
from hamcmc.samplers import Sampler
from hamcmc.samplers.alternating import alternating
from hamcmc.samplers.ccadl import ccadl
from hamcmc.samplers.ensemble.adjusted import ensemble_adjusted
from hamcmc.samplers.ensemble.langevin import ensemble_hamcmc
from hamcmc.samplers.ensemble.underdamped import ensemble_underdamped
from hamcmc.samplers.hamcmc import hamcmc
from hamcmc.samplers.naive import naive
from hamcmc.samplers.psgld import psgld
from hamcmc.samplers.sgfs import sgfs
from hamcmc.samplers.sghmc import sghmc
from hamcmc.samplers.sgld import sgld
from hamcmc.samplers.sgnht import sgnht
from hamcmc.samplers.sgrld import sgrld
from hamcmc.samplers.svrg import svrg
from hamcmc.stable import alpha_stable_mf
from hamcmc.store.record import RunError
from hamcmc.store.result import Result
from hamcmc.target.estimators import control_variate
from hamcmc.target.mode import find_mode
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support, bounded, positive, real

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
    "ensemble_adjusted",
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
