"""The samplers that factorizations run with: options and step sizes that work without tuning."""

from typing import NamedTuple

from hamcmc import samplers
from hamcmc._types import Facts, Record
from hamcmc.factorization.sharded import MakeSampler
from hamcmc.samplers.base import Sampler, Space
from hamcmc.target.protocol import Target

NOT_OPTIONS = ("mirror", "space", "svrg")  # arguments of a sampler that the factorization itself decides on


class Recipe(NamedTuple):
    """How a sampler runs on factorizations: its options, ε, and whether it steps in the row-count metric."""

    options: Record
    step_size: float
    metric: bool = True


RECIPES = {
    "sghmc": Recipe({"friction": 0.2}, 0.05),
    "sgld": Recipe({}, 0.05),
    "hamcmc": Recipe({"memory": 3, "cosine": 0.3}, 0.1),
    "psgld": Recipe({"regularizer": 1e-5}, 5e-7, metric=False),
    "ensemble_hamcmc": Recipe({"pairs": 2, "gamma": 0.25, "metric": None, "cosine": 0.3}, 0.2),
}


def make_sampler(name: str, options: Facts) -> MakeSampler:
    """``(target, space) -> sampler``, which raises ValueError on options that the sampler does not have."""
    for option in NOT_OPTIONS:
        if option in options:
            raise ValueError(f"sampler {name}: {option!r} is not an option of factorizations")

    def make(target: Target, space: Space) -> Sampler:
        """The sampler on a target."""
        return samplers.build(name, target, space=space, **options)

    return make
