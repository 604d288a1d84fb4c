"""NumPyro's NUTS as a peer: in coordinates that are white at the mode, and for a given time."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hamcmc.diagnostics.ess import effective_size
from hamcmc.inference.progress import Progress, Status, silent, tell
from hamcmc.target.mode import laplace
from hamcmc.target.posterior import Posterior

CHAINS, WARMUP, DRAWS = 4, 500, 1000  # what NumPyro's examples do with four chains
SHARE = WARMUP / (WARMUP + DRAWS)  # of the time for warm-up, if the time is short
LEAPFROGS = 15  # of a transition: in white coordinates 7 are usual, and more while the step size is still sought
FEWEST = 50  # iterations of warm-up: white coordinates need no metric, and a step size is found in so many
LEAST = 50  # draws of each chain, however long they take: with fewer there is nothing to compare
BLOCK = 10  # iterations between two looks at the clock


class Peer(NamedTuple):
    """A run of NUTS.

    Attributes:
        how: its settings, and what was cut short.
        seconds: of each part.
        ess: effective draws of the poorest parameter; NaN if there are too few draws to tell.
        draws: (chain, draw, D).
    """

    how: str
    seconds: dict[str, float]
    ess: float
    draws: np.ndarray


class Clock:
    """The seconds of each part so far."""

    def __init__(self):
        self.parts: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, part: str) -> None:
        """The time since the last call went into this part."""
        now = time.perf_counter()
        self.parts[part] = self.parts.get(part, 0.0) + now - self.last
        self.last = now

    def skip(self) -> None:
        """The time since the last call is not counted."""
        self.last = time.perf_counter()

    @property
    def total(self) -> float:
        """Seconds in all."""
        return sum(self.parts.values())


def nuts(posterior: Posterior, seconds: float, seed: int = 0, progress: Progress = silent) -> Peer:
    """Sample for a given time.

    If 500 iterations of warm-up and 1000 draws do not fit into the time, then warm-up gets about a third of it, and
    draws are made until it is over. There are at least 50 of each, which may take longer.

    Args:
        posterior: of one vector of parameters.
        seconds: for warm-up and draws; the mode and compiling come on top.
        seed: everything random follows from it.
        progress: called with each status.
    """
    clock = Clock()
    tell(progress, "looking for the mode")
    found = laplace(posterior, seed=seed)
    centre, root = jnp.asarray(found.flat, jnp.float32), jnp.asarray(found.root, jnp.float32)
    clock.lap("mode")
    tell(progress, "compiling")
    each = LEAPFROGS * gradient_seconds(posterior, centre)
    warmup = int(np.clip(SHARE * seconds / each, FEWEST, WARMUP))
    clock.skip()  # a user would not need to know
    state, advance = compiled(posterior, centre, root, warmup, seed)
    clock.lap("compiling")
    until = clock.total + seconds
    for done in range(0, warmup, BLOCK):
        state, _ = jax.block_until_ready(advance(state, min(BLOCK, warmup - done), posterior.data))
        clock.lap("warm-up")
        progress(Status(min(1.0, 1 - (until - clock.total) / seconds), "warm-up"))
    kept: list[np.ndarray] = []
    while (made := len(kept) * BLOCK) < DRAWS and (made < LEAST or clock.total < until):
        state, z = jax.block_until_ready(advance(state, BLOCK, posterior.data))
        kept.append(np.asarray(z, np.float64))
        clock.lap("sampling")
        progress(Status(min(1.0, 1 - (until - clock.total) / seconds), f"{len(kept) * BLOCK} draws"))
    draws = found.flat + np.moveaxis(np.concatenate(kept), 1, 0) @ found.root.T
    ess = min(effective_size(x, np.ones(made), "bulk") for x in np.moveaxis(draws, 2, 0))
    how = f"{CHAINS} chains, whitened at the mode; {warmup}" + f" of {WARMUP}" * (warmup < WARMUP) + " warm-up"
    how += f" iterations, {made}" + f" of {DRAWS}" * (made < DRAWS) + " draws"
    return Peer(how, clock.parts, ess, draws)


def gradient_seconds(posterior: Posterior, centre: jax.Array) -> float:
    """The time of one gradient on all data for all chains."""
    evaluate = jax.jit(jax.vmap(jax.value_and_grad(posterior.log_density), (0, None)))
    positions = jnp.broadcast_to(centre, (CHAINS, len(centre)))
    jax.block_until_ready(evaluate(positions, posterior.data))
    began = time.perf_counter()
    jax.block_until_ready(evaluate(positions, posterior.data))
    return time.perf_counter() - began


def compiled(
    posterior: Posterior, centre: jax.Array, root: jax.Array, warmup: int, seed: int
) -> tuple[Any, Callable[..., Any]]:
    """The states of all chains at the mode, and a program that makes up to BLOCK iterations of them."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS

    def model(data):
        """The posterior in white coordinates."""
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), centre.shape))
        numpyro.factor("log_density", posterior.log_density(centre + root @ z, data))

    def block(state, count, data):
        """So many iterations, and where they led."""

        def step(i, carry):
            """One of them."""
            state, kept = carry
            state = kernel.sample(state, (data,), {})
            return state, kept.at[i].set(state.z["z"])

        return lax.fori_loop(0, count, step, (state, jnp.zeros((BLOCK, CHAINS, len(centre)))))

    kernel, keys = NUTS(model), jax.random.split(jax.random.key(seed), CHAINS)
    state = kernel.init(keys, warmup, {"z": jnp.zeros((CHAINS, len(centre)))}, (posterior.data,), {})
    return state, jax.jit(block).lower(state, 0, posterior.data).compile()
