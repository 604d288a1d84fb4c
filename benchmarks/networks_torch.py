"""Peers of :mod:`benchmarks.networks` on PyTorch: laplace-torch and posteriors."""

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.network_tasks import NOISE, Task, Weights


def _library() -> tuple[Any, Any]:
    """PyTorch, and its operations for the bodies of networks."""
    import torch
    from torch.nn import functional

    def conv(x: Any, w: Any, stride: int) -> Any:
        """As JAX has it: channels last, and padding that is one-sided where the stride is 2."""
        x, w = x.movedim(-1, -3), w.movedim((-1, -2), (-4, -3))
        x = functional.pad(x, (1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1))
        return functional.conv2d(x, w, stride=stride).movedim(-3, -1)

    return torch, SimpleNamespace(relu=functional.relu, softmax=functional.softmax, conv=conv)


def laplace_last_layer(task: Task, weights: Weights, seed: int) -> np.ndarray:
    """laplace-torch on the last layer of a trained network, with the precision of its prior by the marginal likelihood.

    Returns:
        Predictions (draw, row, …): one "draw" of probabilities by its probit approximation; for regressions, means with
        the noise and the variance of the mean.
    """
    torch, _ = _library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that it uses
        from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(seed)
    features = lambda x: torch.from_numpy(np.array(_features(task, weights, x)))
    matrix, offset = (torch.from_numpy(np.array(weights[name])) for name in task.last)
    layer = torch.nn.Linear(*matrix.shape)
    layer.weight.data, layer.bias.data = matrix.T.contiguous(), offset
    y = torch.from_numpy(np.array(task.train[1]))
    rows = TensorDataset(features(task.train[0]), y.long() if task.classes else y[:, None])
    noise = {} if task.classes else {"sigma_noise": float(np.exp(weights[NOISE]))}
    kind = "classification" if task.classes else "regression"
    fitted = Laplace(layer, kind, subset_of_weights="all", hessian_structure="kron", prior_precision=1.0, **noise)
    fitted.fit(DataLoader(rows, batch_size=256))
    fitted.optimize_prior_precision(method="marglik")
    if task.classes:
        return fitted(features(task.test[0])).detach().numpy()[None]
    mean, variance = (a.detach().numpy().reshape(-1) for a in fitted(features(task.test[0])))
    return np.stack([mean, 0.5 * np.log(variance + noise["sigma_noise"] ** 2)], 1)[None]


def _features(task: Task, weights: Weights, x: np.ndarray) -> np.ndarray:
    import jax
    import jax.numpy as jnp

    from benchmarks.network_tasks import JAX

    return np.asarray(jax.jit(lambda x: task.body(weights, x, JAX))(jnp.asarray(x)))


class Chains:
    """SGHMC of posteriors: one Python loop around `update`, as in its documentation; chains are a leading axis."""

    def __init__(self, task: Task, rows: tuple[np.ndarray, np.ndarray], batch: int):
        self.torch, ops = _library()
        torch = self.torch
        torch.set_num_threads(1)  # for networks as small as these, two are slower
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import posteriors

        self.library, self.batch = posteriors, min(batch, len(rows[1]))
        self.x, self.y = (torch.from_numpy(np.array(a)) for a in rows)
        self.y = self.y.long() if task.classes else self.y
        each = torch.func.vmap(lambda w, x: task.outputs(w, x, ops), (0, None))
        size = len(self.y)

        def log_posterior(w: Weights, rows: tuple) -> tuple:
            """The sum over chains has each chain's own gradient."""
            x, y = rows
            found = each(w, x)
            if task.classes:
                fit = torch.log_softmax(found, -1).gather(-1, y.expand(found.shape[:2])[..., None]).sum()
            else:
                log_noise = w[NOISE][:, None]
                fit = (-0.5 * ((y - found[..., 0]) * torch.exp(-log_noise)) ** 2 - log_noise).sum()
            prior = -0.5 * sum((v**2).sum() for v in w.values())
            return size / len(y) * fit + prior, torch.tensor([])

        self.log_posterior = log_posterior

    def run(self, starts: Weights, step: float, count: int, thin: int) -> list[Weights]:
        """Every so many-th position of so many steps."""
        torch = self.torch
        transform = self.library.sgmcmc.sghmc.build(self.log_posterior, lr=step, alpha=0.1 / step)
        state, kept = transform.init({k: torch.from_numpy(np.array(v)) for k, v in starts.items()}), []
        for t in range(count):
            rows = torch.randint(len(self.y), (self.batch,))
            state, _ = transform.update(state, (self.x[rows], self.y[rows]))
            if (t + 1) % thin == 0:
                kept.append({k: v.detach().numpy().copy() for k, v in state.params.items()})
        return kept
