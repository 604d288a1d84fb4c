"""The samplers by name: how each of them is built for a target, and which options it takes."""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from hamcmc._check import nearest
from hamcmc._types import Facts
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
from hamcmc.target.protocol import Target

FROM_GRADIENT = (ensemble_hamcmc, ensemble_underdamped, hamcmc, leimkuhler_matthews, naive, sghmc, sgld, sgnht, sgrld)
FROM_TARGET = (ccadl, ensemble_adjusted, ensemble_hmc, independence, psgld, sgfs)
FUNCTIONS: dict[str, Callable[..., Sampler]] = {f.__name__: f for f in (*FROM_GRADIENT, *FROM_TARGET)}
NAMES = tuple(sorted(FUNCTIONS))

MakeSampler = Callable[[Any], Sampler]  # makes a sampler for the target that it is given


def build_one(name: str, target: Target, **options: Any) -> Sampler:
    """A sampler by name, with the target's gradient and mirror."""
    if name not in FUNCTIONS:
        raise ValueError(f"sampler must be one of {', '.join(NAMES)}, got {name!r}{nearest(name, NAMES)}")
    function = FUNCTIONS[name]
    first = target if function in FROM_TARGET else target.grad
    if takes(name, "mirror"):
        options = {"mirror": target.mirror} | options
    if takes(name, "chart"):
        options = {"chart": getattr(target, "chart", None)} | options
    try:
        made = function(first, **options)
    except TypeError as error:
        unknown = next((o for o in options if not takes(name, o)), "")
        raise ValueError(f"sampler {name}: {error}{nearest(unknown, _options(name))}") from error
    return made._replace(step=jax.jit(made.step, inline=True))  # traced once, for what it costs and for the loop


def takes(name: str, option: str) -> bool:
    """Whether a sampler has an option; False for a name that is not in NAMES."""
    return option in _options(name)


def requires(name: str, option: str) -> bool:
    """Whether a sampler cannot be built without an option."""
    return takes(name, option) and _options(name)[option].default is inspect.Parameter.empty


def _options(name: str) -> dict[str, inspect.Parameter]:
    """All arguments but the first, which is the gradient or the target."""
    if name not in FUNCTIONS:
        return {}
    return dict(list(inspect.signature(FUNCTIONS[name]).parameters.items())[1:])


def name_of(sampler: Any) -> str | None:
    """The name of a sampler that is given by its name or by its function, such as ``hamcmc.sgld``; otherwise None."""
    if isinstance(sampler, str):
        return sampler
    return next((name for name, function in FUNCTIONS.items() if function is sampler), None)


def maker_for(caller: str, sampler: str | Sampler | MakeSampler, options: Facts) -> MakeSampler:
    """How to make a sampler for a target of the caller's own, from a name with options or a function of the target."""
    name = name_of(sampler)
    if name is not None:
        return lambda target: build_one(name, target, **options)
    if isinstance(sampler, Sampler) or not callable(sampler):
        raise ValueError(
            f"{caller} makes a target of its own for the sampler: give a name, or a function of the target such as "
            f"lambda target: hamcmc.sgld(target.grad), got {sampler!r}"
        )
    if options:
        raise ValueError(f"{', '.join(options)}: options need a sampler that is given by name")
    return sampler
