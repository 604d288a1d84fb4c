"""Bayesian inference on large data with stochastic quasi-Newton Langevin dynamics."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hamcmc._renamed import accept_old_modules
from hamcmc.diagnostics.result import Result
from hamcmc.inference.evidence import Comparison, Evidence, compare, evidence
from hamcmc.inference.launch import join
from hamcmc.inference.sample import resume, sample
from hamcmc.inference.schedules import Constant, Cyclical, Polynomial
from hamcmc.inference.tune import Tuned, tune
from hamcmc.samplers.alternating import alternating
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.ccadl import ccadl
from hamcmc.samplers.ensemble.adjusted import ensemble_adjusted
from hamcmc.samplers.ensemble.hamiltonian import ensemble_hmc
from hamcmc.samplers.ensemble.langevin import ensemble_hamcmc
from hamcmc.samplers.ensemble.underdamped import ensemble_underdamped
from hamcmc.samplers.hamcmc import hamcmc
from hamcmc.samplers.independence import independence
from hamcmc.samplers.leimkuhler_matthews import leimkuhler_matthews
from hamcmc.samplers.naive import naive
from hamcmc.samplers.psgld import psgld
from hamcmc.samplers.sgfs import sgfs
from hamcmc.samplers.sghmc import sghmc
from hamcmc.samplers.sgld import sgld
from hamcmc.samplers.sgnht import sgnht
from hamcmc.samplers.sgrld import sgrld
from hamcmc.samplers.svrg import svrg
from hamcmc.store.errors import DamagedRun, Diverged, Interrupted, NonFinite, RunError, Unchecked
from hamcmc.target.estimators import control_variate
from hamcmc.target.mode import Laplace, find_mode, laplace
from hamcmc.target.noise import Noise, gradient_noise
from hamcmc.target.posterior import Posterior
from hamcmc.target.support import Support, bounded, positive, real

if TYPE_CHECKING:
    from hamcmc.factorization.run import factorize
    from hamcmc.interop.parquet import columns
    from hamcmc.interop.sklearn import MatrixFactorization
    from hamcmc.speech.denoise import denoise
    from hamcmc.stable.separation import alpha_stable_mf

__version__ = "0.2.0"

__all__ = [
    "Comparison",
    "Constant",
    "Cyclical",
    "DamagedRun",
    "Diverged",
    "Evidence",
    "Interrupted",
    "Laplace",
    "MatrixFactorization",
    "Noise",
    "NonFinite",
    "Polynomial",
    "Posterior",
    "Result",
    "RunError",
    "Sampler",
    "Support",
    "Tuned",
    "Unchecked",
    "alpha_stable_mf",
    "alternating",
    "bounded",
    "ccadl",
    "columns",
    "compare",
    "control_variate",
    "denoise",
    "ensemble_adjusted",
    "ensemble_hamcmc",
    "ensemble_hmc",
    "ensemble_underdamped",
    "evidence",
    "factorize",
    "find_mode",
    "gradient_noise",
    "hamcmc",
    "independence",
    "join",
    "laplace",
    "leimkuhler_matthews",
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

_APPLICATIONS = {  # where they are; loaded when first used, because most programs use one of them or none
    "MatrixFactorization": "hamcmc.interop.sklearn",
    "alpha_stable_mf": "hamcmc.stable.separation",
    "columns": "hamcmc.interop.parquet",
    "denoise": "hamcmc.speech.denoise",
    "factorize": "hamcmc.factorization.run",
}

accept_old_modules()


def __getattr__(name: str) -> Any:
    if name not in _APPLICATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_APPLICATIONS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
