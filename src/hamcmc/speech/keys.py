"""Random keys made on the host: those of ``jax.random``, bit by bit.

JAX compiles a program for each way of splitting keys. Looking these up takes longer than cleaning a second of speech.
"""

from typing import Any, NamedTuple

import numpy as np

from hamcmc._random import threefry


class Steps(NamedTuple):
    """What is random in a run, as words of keys and as numbers.

    Attributes:
        start: (2,), for the differences between replicas at the start.
        rows: (iterations,), the minibatch of each step.
        noise: (iterations, 2), for the noise of each step.
    """

    start: Any  # arrays of NumPy, and of JAX inside of a program
    rows: Any
    noise: Any


def key(seed: int) -> np.ndarray:
    """``jax.random.key(seed)`` as words (2,), for seeds of 32 bits."""
    return np.array([0, seed], np.uint32)


def split(keys: np.ndarray, count: int) -> np.ndarray:
    """``jax.random.split`` of each key (…, 2): (…, count, 2)."""
    places = np.arange(count, dtype=np.uint32)
    return np.stack(threefry(keys[..., :1], keys[..., 1:], np.zeros_like(places), places), -1)


def below(keys: np.ndarray, most: int) -> np.ndarray:
    """``jax.random.randint(key, (), 0, most)`` of each key (…, 2), for `most` of at most 16 bits."""
    high, low = np.moveaxis(np.bitwise_xor.reduce(split(split(keys, 2), 1)[..., 0, :], -1), -1, 0)
    span = np.uint32(most)
    power = np.uint32(2**32 % most)
    return ((high % span * power + low % span) % span).astype(np.int32)


def steps(own: np.ndarray, iterations: int, kept: int, every: int, batches: int) -> Steps:
    """What is random in a run.

    Args:
        own: the key of the run, as words (2,).
        iterations: steps in all.
        kept: how many of the last iterations count.
        every: one in so many of those is looked at.
        batches: how many minibatches there are.
    """
    burn, rest, start = split(own, 3)
    looks = split(split(rest, kept // every), every).reshape(-1, 2)
    rows, noise = np.moveaxis(split(np.concatenate([split(burn, iterations - kept), looks]), 2), 1, 0)
    return Steps(start, below(rows, batches), noise)
