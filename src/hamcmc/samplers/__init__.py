"""One file for each sampler, all with the same interface. The functions themselves are names of ``hamcmc``."""

from hamcmc.samplers.base import Sampler
from hamcmc.samplers.factory import build, maker
from hamcmc.samplers.registry import NAMES

__all__ = ["NAMES", "Sampler", "build", "maker"]
