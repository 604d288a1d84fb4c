"""The compiled program of a job: how its chains and draws are divided, and how it is compiled before it is needed."""

from collections.abc import Callable
from typing import Any

import jax

from hamcmc._types import PyTree, Record
from hamcmc.inference import compiled as loop
from hamcmc.inference.job import Job, Positions, drafted, started, starts_of
from hamcmc.inference.plan import DRAWS
from hamcmc.inference.stored import Store
from hamcmc.samplers.base import Sampler
from hamcmc.store.draws import chunk_draws
from hamcmc.target.posterior import Posterior
from hamcmc.target.sharded import shards_of


def parts_of(job: Job) -> int:
    """How many parts of the chains run side by side: independent ensembles do. Other chains are batched.

    Programs that send messages must not run side by side: messages of processes are matched by their order.
    """
    together = job.sampler.replicas == 1 or job.posterior.streamed or shards_of(job.posterior) is not None
    return 1 if together else job.settings["ensembles"]


def slots_of(job: Job) -> int:
    """The most draws that a segment may make. For short runs it does not depend on how many draws there will be."""
    s = job.settings
    most = min(chunk_draws([*job.arrays, *job.parameters], s["chains"]), max(DRAWS, s["num_samples"]))
    return min(most, max(1, s["segment"] // s["thin"]))


def segment_of(job: Job) -> Any:
    """The compiled loop of a job, or of each of its parts."""
    s = job.settings
    return loop.build(
        job.posterior,
        job.sampler,
        job.schedule,
        batch_size=s["batch_size"],
        replace=s["replace"],
        chains=s["ensembles"] // parts_of(job),
        thin=s["thin"],
        slots=slots_of(job),
    )


def compiled_ahead(
    posterior: Posterior,
    sampler: Sampler,
    like: PyTree,
    schedule: Callable,
    settings: Record,
    store: Store | None = None,
) -> tuple[Job, loop.Traced]:
    """A draft of a job whose starts are still to be found, and its program, which a thread compiles from now on."""
    keys = loop.keys(settings["seed"], settings["ensembles"], sampler.replicas)
    draft = drafted(posterior, sampler, like, schedule, settings, keys, store)
    parts = parts_of(draft)
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0] // parts, *x.shape[1:]), x.dtype), draft.state)
    arguments = (posterior.data, state, loop.split_keys(keys, parts)[0], 0, 1, 0, False)
    return draft, loop.Traced(segment_of(draft), arguments, draft.total).begin()


def continued(
    draft: Job, traced: loop.Traced, posterior: Posterior, sampler: Sampler, init: Positions, settings: Record
) -> Job:
    """The job whose draft is being compiled, in other coordinates, and at starts that were found meanwhile."""
    moved = traced.replace(*((p.centre, p.root) for p in (draft.posterior, posterior)))  # type: ignore[attr-defined]
    positions = starts_of(posterior, init, draft.keys.start)
    job = started(draft._replace(posterior=posterior), sampler, positions, settings)
    return job._replace(traced=traced if moved else None)
