"""Samplers as they are taken everywhere: a name with options, a sampler, or a function of the target."""

from typing import Any

from hamcmc._renamed import renamed
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.registry import MakeSampler, build_one, name_of
from hamcmc.samplers.svrg import svrg
from hamcmc.target.protocol import Target


@renamed(posterior="target")
def build(name: str, target: Target, **options: Any) -> Sampler:
    """A sampler by name, with the target's gradient and mirror; ``svrg=n`` wraps it in :func:`hamcmc.svrg`."""
    if "svrg" in options:
        return svrg(target, name, every=options.pop("svrg"), **options)  # type: ignore[arg-type]
    return build_one(name, target, **options)


def maker(sampler: str | Sampler | MakeSampler, **options: Any) -> MakeSampler:
    """A function that makes the sampler for a target.

    Args:
        sampler: a name with `options` for it; a finished :class:`~hamcmc.Sampler`, which then serves every target; or a
            function of the target. A sampler's own function, such as ``hamcmc.sgld``, counts as its name.
    """
    name = name_of(sampler)
    if name is not None:
        return lambda target: build(name, target, **options)
    if options:
        raise ValueError(f"{', '.join(options)}: options need a sampler that is given by name")
    if isinstance(sampler, Sampler):
        return lambda target: sampler
    if not callable(sampler):
        raise ValueError(
            f"sampler must be a name, a hamcmc.Sampler or a function of the target that makes one, got {sampler!r}"
        )
    return sampler
