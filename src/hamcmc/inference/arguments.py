"""The arguments of a run: checked, and completed where they were left out."""

import copy
from collections.abc import Callable
from pathlib import Path

import jax

from hamcmc import _check, samplers
from hamcmc._types import Facts, PyTree
from hamcmc.inference.job import Positions
from hamcmc.samplers.base import Sampler
from hamcmc.store.errors import RunError
from hamcmc.store.files import reading
from hamcmc.target.posterior import Posterior
from hamcmc.target.protocol import Target

Init = PyTree | Callable[[jax.Array], PyTree]
SamplerOrMaker = Sampler | Callable[[Target], Sampler]
SEEDS = 2**32  # JAX would cut a larger seed to 32 bits


def init_of(posterior: Posterior, init: Init | Positions | None) -> Init | Positions:
    """Where to start: as given, or the posterior's own ``init``."""
    found = posterior.init if init is None else init
    if found is None:
        raise ValueError("init is missing: give sample(…, init=…), or Posterior(…, init=…)")
    return found


def starting_at(posterior: Posterior, init: Init | None) -> Posterior:
    """The posterior with an ``init`` that was given for this run: it shows the structure of a position."""
    if init is None:
        return posterior
    known = copy.copy(posterior)
    known.init = known.of_whole(init)
    return known


def made_by(sampler: str | SamplerOrMaker, posterior: Posterior, options: Facts) -> Sampler:
    """The sampler that was given by name, as a function of the posterior, or as it is."""
    made = samplers.maker(sampler, **options)(posterior)
    if not isinstance(made, Sampler):
        raise ValueError(f"sampler must make a hamcmc.Sampler from the posterior, got {made!r}")
    return made


def recorded_sampler(asked: Facts, posterior: Posterior, path: Path) -> Sampler:
    """The sampler that run.json names."""
    if asked["options"] is None:
        raise RunError(f"{path} was run with a sampler that run.json cannot hold: give sampler to resume")
    with reading(path / "run.json"):
        return samplers.build(asked["sampler"]["sampler"], posterior, **asked["options"])


def warmup_of(sampler: Sampler, asked: int | None) -> int:
    """The given warm-up, or the steps in which the sampler learns; it must not be shorter than these."""
    warmup = sampler.warmup if asked is None else _check.at_least("warmup", asked, 0)
    if warmup < sampler.warmup:
        raise ValueError(
            f"warmup must be at least {sampler.warmup}, the steps in which the sampler learns its metric (adapt), "
            f"got {asked}"
        )
    return warmup


def ensembles_of(sampler: Sampler, chains: int | None, ensembles: int | None, *, default: int = 1) -> int:
    """How many chains (or `default`), or ensembles for an ensemble sampler (or one), run side by side."""
    name = sampler.settings.get("sampler", "this sampler")
    if sampler.replicas > 1:
        if chains is not None:
            raise ValueError(
                f"chains: {name} is an ensemble of {sampler.replicas} chains; say with ensembles= how many ensembles"
            )
        return _check.at_least("ensembles", 1 if ensembles is None else ensembles, 1)
    if ensembles is not None:
        raise ValueError(f"ensembles: {name} is not an ensemble sampler; say with chains= how many chains")
    return _check.at_least("chains", default if chains is None else chains, 1)


def seed_of(seed: int) -> int:
    """A seed that JAX takes whole."""
    if _check.at_least("seed", seed, 0) >= SEEDS:
        raise ValueError(f"seed must be below 2**32, got {seed}")
    return int(seed)


def check_data(posterior: Posterior, sampler: Sampler, settings: Facts) -> None:
    """Raise if the data cannot be used as asked."""
    if settings["store_gradients"] and posterior.streamed:
        raise ValueError("store_gradients is not available for streamed (memory-mapped) data")
    if sampler.needs_all_data and settings["batch_size"] is not None:
        name = sampler.settings.get("sampler", "this sampler")
        raise ValueError(f"batch_size must be None for {name}: its Metropolis test needs all data")
