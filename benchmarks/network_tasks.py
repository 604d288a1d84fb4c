"""Networks and the rows that they learn from, for :mod:`benchmarks.networks`.

Every network ends with one linear layer on features, so that methods for the last layer have something to hold on to.
Its body is written once and runs on JAX and on PyTorch, which bring their own `Ops`.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import hamcmc
from hamcmc.diagnostics import classification, regression

Weights = dict[str, Any]
Rows = tuple[np.ndarray, np.ndarray]
Ops = Any  # relu, softmax and conv of a library
UCI = ("bostonHousing", "concrete", "energy", "wine-quality-red", "yacht")
CONTEXT, WIDTH, HEADS = 12, 24, 2  # of the transformer
NOISE = "log_noise"  # the parameter of regressions that is no part of the network


def _conv(x: Array, w: Array, stride: int) -> Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


JAX = SimpleNamespace(relu=jax.nn.relu, softmax=jax.nn.softmax, conv=_conv)


class Task(NamedTuple):
    """A network and its data.

    Attributes:
        name: for the table.
        train: rows (x, y) to learn from.
        test: rows that nobody learns from.
        start: ``start(seed)`` draws weights.
        body: ``body(weights, x, ops)``: features, (row, feature).
        last: the names of matrix and offset of the last layer.
        classes: whether it predicts classes; otherwise numbers with normal noise of unknown size.
        scale: the unit of y, of which the rows have been freed.
    """

    name: str
    train: Rows
    test: Rows
    start: Callable[[int], Weights]
    body: Callable[[Weights, Any, Ops], Any]
    last: tuple[str, str]
    classes: bool
    scale: float = 1.0

    def outputs(self, w: Weights, x: Any, ops: Ops = JAX) -> Any:
        """What the last layer gives: (row, class), or means (row, 1)."""
        return self.body(w, x, ops) @ w[self.last[0]] + w[self.last[1]]

    def posterior(self, **options: Any) -> hamcmc.Posterior:
        """With independent standard normal priors."""
        prior = lambda w: -0.5 * sum(jnp.sum(v**2) for v in jax.tree.leaves(w))
        return hamcmc.Posterior(prior, self.log_likelihood, self.train, batched=True, **options)

    def log_likelihood(self, w: Weights, rows: tuple[Array, Array]) -> Array:
        """Of each row."""
        x, y = rows
        found = self.outputs(w, x)
        if self.classes:
            return jnp.take_along_axis(jax.nn.log_softmax(found), y[:, None], 1)[:, 0]
        log_noise = w[NOISE]
        return -0.5 * ((y - found[:, 0]) * jnp.exp(-log_noise)) ** 2 - log_noise - 0.5 * jnp.log(2 * jnp.pi)

    def predict(self, w: Weights, x: Array) -> Array:
        """Probabilities, or means beside the logarithm of the noise."""
        found = self.outputs(w, x)
        if self.classes:
            return jax.nn.softmax(found)
        return jnp.stack([found[:, 0], jnp.full(len(found), w[NOISE])], 1)

    def scores(self, draws: np.ndarray) -> dict[str, float]:
        """Of predictions (draw, row, …) on the rows that nobody saw, in the units of the data."""
        draws = np.asarray(draws, np.float64)
        if self.classes:
            found = classification(draws.mean(0), self.test[1])
            return {"NLL": found.nll, "accuracy": found.accuracy, "calibration error": found.calibration_error}
        found = regression(draws[..., 0], self.test[1], np.exp(draws[..., 1]))
        scores = {"NLL": found.nll + np.log(self.scale), "RMSE": found.rmse * self.scale}
        return scores | {"in 90 %": found.coverage[0.9]}


# --- networks ---


def he(shapes: dict[str, tuple[int, ...]], **others: float) -> Callable[[int], Weights]:
    """Starts by He's rule for matrices and kernels, zeros for offsets, and given numbers for scalars."""

    def start(seed: int) -> Weights:
        rng = np.random.default_rng(seed)
        made = {}
        for name, shape in shapes.items():
            fan = np.prod(shape[:-1]) if len(shape) > 1 else np.inf
            made[name] = (rng.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)
        return made | {k: np.float32(v) for k, v in others.items()}

    return start


def layers(*sizes: int) -> dict[str, tuple[int, ...]]:
    """The shapes of fully connected layers."""
    pairs = list(enumerate(itertools.pairwise(sizes)))
    return {f"W{k}": pair for k, pair in pairs} | {f"b{k}": (pair[1],) for k, pair in pairs}


def dense(w: Weights, x: Any, ops: Ops) -> Any:
    """All fully connected layers but the last."""
    for k in range(sum(name.startswith("W") for name in w) - 1):
        x = ops.relu(x @ w[f"W{k}"] + w[f"b{k}"])
    return x


def convolved(w: Weights, x: Any, ops: Ops) -> Any:
    """Two convolutions with 3 × 3 windows on 8 × 8 pixels."""
    x = x.reshape(-1, 8, 8, 1)
    for k in range(2):
        x = ops.relu(ops.conv(x, w[f"W{k}"], k + 1) + w[f"b{k}"])
    return x.reshape(len(x), -1)


def attended(w: Weights, x: Any, ops: Ops) -> Any:
    """A transformer of one block, at the last letter of its context."""
    h = w["letters"][x] + w["places"]
    heads = lambda a: a.reshape(*a.shape[:-1], HEADS, WIDTH // HEADS)
    q, k, v = heads(h[:, -1] @ w["Q"]), heads(h @ w["K"]), heads(h @ w["V"])
    share = ops.softmax((q[:, None] * k).sum(-1).swapaxes(-1, -2) / np.sqrt(WIDTH / HEADS), -1)
    h = h[:, -1] + (share[..., None] * v.swapaxes(-2, -3)).sum(-2).reshape(-1, WIDTH) @ w["O"]
    return h + ops.relu(h @ w["W0"] + w["b0"]) @ w["W1"] + w["b1"]


# --- rows ---


def tasks(seed: int, uci: str | None) -> Iterator[Task]:
    """Digits of scikit-learn, a made-up text, and the sets of the UCI repository if the reader has them."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    digits = split((x / 16).astype(np.float32), y.astype(np.int32), seed)
    shapes = layers(64, 256, 110, 10)
    yield Task("digits, 46 020 parameters", *digits, he(shapes), dense, ("W2", "b2"), True)
    shapes = {"W0": (3, 3, 1, 16), "W1": (3, 3, 16, 32), "W2": (512, 10), "b0": (16,), "b1": (32,), "b2": (10,)}
    yield Task("digits, convolutions, 9 930 parameters", *digits, he(shapes), convolved, ("W2", "b2"), True)
    yield text(seed)
    for name in UCI if uci else ():
        yield regression_set(Path(uci or "") / name / "data", name, seed)


def split(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[Rows, Rows]:
    """Four fifths of the rows, and the others."""
    order = np.random.default_rng(seed).permutation(len(x))
    cut = len(x) * 4 // 5
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


def text(seed: int) -> Task:
    """The next letter of sentences that a small grammar makes, from the letters before."""
    rng = np.random.default_rng(1000 + seed)
    alphabet = " abcdefghijklmnopqrstuvwxyz."
    letters = " ".join(sentence(rng) for _ in range(170))
    codes = np.array([alphabet.index(c) for c in letters], np.int32)
    x = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT)[:-1].copy()
    y = codes[CONTEXT:]
    cut = len(x) * 4 // 5
    rows = (x[: cut - CONTEXT], y[: cut - CONTEXT]), (x[cut:], y[cut:])  # no letter is in both
    square = {name: (WIDTH, WIDTH) for name in "QKVO"}
    tables = {"letters": (len(alphabet), WIDTH), "places": (CONTEXT, WIDTH)}
    shapes = tables | square | layers(WIDTH, 2 * WIDTH, WIDTH, len(alphabet))
    count = sum(int(np.prod(s)) for s in shapes.values())
    return Task(f"text, transformer, {count:,} parameters", *rows, he(shapes), attended, ("W2", "b2"), True)


def sentence(rng: np.random.Generator) -> str:
    """Such as "two old dogs see the grey cat by night.": verbs agree with their subjects."""
    pick = lambda words: words.split()[rng.integers(len(words.split()))]

    def noun(many: bool) -> str:
        of = pick("the two three many some") if many else pick("the a one this every")
        which = pick("old grey small loud quick sleepy") + " " if rng.random() < 0.5 else ""
        return f"{of} {which}{pick('dog cat bird boy sailor king river')}{'s' * many}"

    many = rng.random() < 0.5
    verb = pick("see hear follow know find greet") + "s" * (not many)
    when = " by " + pick("night day train chance") if rng.random() < 0.4 else ""
    return f"{noun(many)} {verb} {noun(rng.random() < 0.5)}{when}."


def regression_set(folder: Path, name: str, seed: int) -> Task:
    """A set of the UCI repository with its usual splits: ``data.txt`` and ``index_….txt`` of one folder."""
    read = lambda file, **options: np.loadtxt(folder / file, **options)
    table, at = read("data.txt"), lambda file: read(file, ndmin=1).astype(int)
    x, y = table[:, at("index_features.txt")], table[:, at("index_target.txt")[0]]
    train, test = at(f"index_train_{seed}.txt"), at(f"index_test_{seed}.txt")
    x = (x - x[train].mean(0)) / np.where(x[train].std(0) > 0, x[train].std(0), 1)
    scale = float(y[train].std())
    y = (y - y[train].mean()) / scale
    rows = [(x[i].astype(np.float32), y[i].astype(np.float32)) for i in (train, test)]
    start = he(layers(x.shape[1], 50, 1), **{NOISE: -1.0})
    return Task(f"UCI {name}, {len(train):,} rows", rows[0], rows[1], start, dense, ("W1", "b1"), False, scale)
