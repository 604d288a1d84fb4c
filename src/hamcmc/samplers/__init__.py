"""One file per sampler, all with the same interface."""

from hamcmc.samplers.alternating import alternating
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.ccadl import ccadl
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

__all__ = [
    "NAMES",
    "Sampler",
    "alternating",
    "build",
    "ccadl",
    "ensemble_hamcmc",
    "ensemble_underdamped",
    "hamcmc",
    "naive",
    "psgld",
    "sgfs",
    "sghmc",
    "sgld",
    "sgnht",
    "sgrld",
    "svrg",
]

FROM_GRADIENT = {
    "ensemble_hamcmc": ensemble_hamcmc,
    "ensemble_underdamped": ensemble_underdamped,
    "hamcmc": hamcmc,
    "naive": naive,
    "sghmc": sghmc,
    "sgld": sgld,
    "sgnht": sgnht,
    "sgrld": sgrld,
}
FROM_POSTERIOR = {"ccadl": ccadl, "psgld": psgld, "sgfs": sgfs}
NAMES = tuple(sorted(FROM_GRADIENT | FROM_POSTERIOR))


def build(name: str, posterior, **options) -> Sampler:
    """A sampler by name, with the posterior's gradient and mirror; ``svrg=n`` wraps it in :func:`hamcmc.svrg`."""
    if "svrg" in options:
        return svrg(posterior, name, every=options.pop("svrg"), **options)
    if name not in NAMES:
        raise ValueError(f"sampler must be one of {', '.join(NAMES)}, got {name!r}")
    factory = FROM_POSTERIOR.get(name) or FROM_GRADIENT[name]
    first = posterior if name in FROM_POSTERIOR else posterior.grad
    if options.get("adjusted"):
        options = options | {"log_density": posterior.log_density}
    try:
        return factory(first, mirror=posterior.mirror, **options)
    except TypeError as error:
        raise ValueError(f"sampler {name}: {error}") from error
