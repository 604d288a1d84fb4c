"""Alpha-stable factorizations: draws of heavy-tailed sources that add up to a matrix."""

from hamcmc.stable.model import Prior, Source, estimate_alpha
from hamcmc.stable.separation import AlphaStableMF, Factors, alpha_stable_mf, separate

__all__ = ["AlphaStableMF", "Factors", "Prior", "Source", "alpha_stable_mf", "estimate_alpha", "separate"]
