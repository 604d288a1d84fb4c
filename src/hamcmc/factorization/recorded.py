"""What a factorization records at each draw."""

import numpy as np

from hamcmc.factorization.model import SIDES, Hyper, Layout
from hamcmc.store.draws import Array


def arrays(columns: Layout, shape: tuple[int, int]) -> list[Array]:
    """Group, name, shape and type of everything that is recorded."""
    K = columns.rank
    shapes: dict[str, tuple[int, ...]] = {"W": (shape[0], K), "H": (shape[1], K), "noise_precision": ()}
    shapes |= {f"{s}_{what}": (K,) for s in SIDES for what in ("mean", "precision")}
    if columns.biases:
        for name, length in (("row_bias", shape[0]), ("column_bias", shape[1])):
            shapes |= {name: (length,), f"{name}_mean": (), f"{name}_precision": ()}
    steps = Array("sample_stats", "step_size", (), "float32")
    return [*(Array("posterior", name, size, "float32") for name, size in shapes.items()), steps]


def draw(columns: Layout, theta: dict[str, np.ndarray], hyper: Hyper, step_size: float) -> dict[str, np.ndarray]:
    """One draw as it is recorded: (draw, chain, …) by ``group/name``.

    Args:
        columns: what the columns of the factors mean.
        theta: W and H in the order of the matrix, with a leading axis of chains.
        hyper: the hyper-parameters, which all chains share.
        step_size: ε.
    """
    K, chains = columns.rank, len(theta["W"])
    found = {s: theta[s][..., :K] for s in SIDES}
    shared = {"noise_precision": hyper.noise}
    priors = {"W": (hyper.W_mean, hyper.W_precision), "H": (hyper.H_mean, hyper.H_precision)}
    for s, bias, place in (("W", "row_bias", K), ("H", "column_bias", K + 1)):
        shared |= {f"{s}_{what}": value[:K] for what, value in zip(("mean", "precision"), priors[s])}
        if columns.biases:
            found[bias] = theta[s][..., place]
            shared |= {f"{bias}_{what}": value[place] for what, value in zip(("mean", "precision"), priors[s])}
    found |= {name: np.broadcast_to(value, (chains, *np.shape(value))) for name, value in shared.items()}
    recorded = {f"posterior/{name}": np.asarray(value, np.float32)[None] for name, value in found.items()}
    return recorded | {"sample_stats/step_size": np.full((1, chains), step_size, np.float32)}
