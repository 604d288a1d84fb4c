"""Networks: what an automatic run predicts, beside what a user could do instead.

Every method has the same network, prior and rows, and is scored on rows that none of them saw. Seconds count everything
from the call to the predictions of these rows. The peers:

* **trained**: one network, by Adam with the learning rate that falls to 0 of an automatic run, and as many steps;
* **ensemble of 5**: five of these from different starts, whose probabilities are averaged;
* **last layer**: the exact posterior of the last layer of the trained network (`sampled=[…]`);
* **SGLD, SGHMC (BlackJAX)**: four chains from four trained networks; of five step sizes the one that predicts a tenth
  of the rows best is taken, after 600 gradients of each; then 2 500 more, as an automatic run takes. BlackJAX's SGHMC
  takes ten of them on each minibatch.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

import hamcmc
from benchmarks.measure import Against, Table
from hamcmc.diagnostics import classification, regression
from hamcmc.inference import network

BATCH, CHAINS, TRIAL, STEPS, THIN = 128, 4, 600, 2500, 20
SHARES = 4.0 ** -np.arange(5)  # of the largest stable step
LEAPFROGS = 10
OURS = "hamcmc, automatic"
Weights = dict[str, Any]


class Task(NamedTuple):
    """A network and its data.

    Attributes:
        name: for the table.
        train: rows (x, y) to learn from.
        test: rows that nobody learns from.
        start: ``start(seed)`` draws weights.
        net: ``net(weights, x)``: log-probabilities of classes, or means.
        noise: the standard deviation around the means; 0 for classes.
        last: the leaves of the last layer.
    """

    name: str
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    start: Callable[[int], Weights]
    net: Callable[[Weights, Array], Array]
    noise: float
    last: list[str]

    def posterior(self, **options: Any) -> hamcmc.Posterior:
        """With independent standard normal priors."""
        prior = lambda w: -0.5 * sum(jnp.sum(v**2) for v in jax.tree.leaves(w))
        return hamcmc.Posterior(prior, self.log_likelihood, self.train, batched=True, **options)

    def log_likelihood(self, w: Weights, rows: tuple[Array, Array]) -> Array:
        """Of each row."""
        found = self.net(w, rows[0])
        if self.noise:
            return -0.5 * ((rows[1] - found) / self.noise) ** 2 - jnp.log(self.noise) - 0.5 * jnp.log(2 * jnp.pi)
        return jnp.take_along_axis(found, rows[1][:, None], 1)[:, 0]

    def predict(self, w: Weights, x: Array) -> Array:
        """Probabilities, or means."""
        return self.net(w, x) if self.noise else jnp.exp(self.net(w, x))

    def scores(self, draws: np.ndarray) -> dict[str, float]:
        """Of predictions (draw, row, …) on the rows that nobody saw."""
        if self.noise:
            found = regression(draws, self.test[1], self.noise)
            return {"NLL": found.nll, "RMSE": found.rmse, "in 90 %": found.coverage[0.9]}
        found = classification(draws.astype(np.float64).mean(0), self.test[1])
        return {"NLL": found.nll, "accuracy": found.accuracy, "calibration error": found.calibration_error}


def layers(*sizes: int) -> Callable[[int], Weights]:
    """Starts of a network with such layers."""

    def start(seed: int) -> Weights:
        rng = np.random.default_rng(seed)
        made: Weights = {}
        for k, (a, b) in enumerate(itertools.pairwise(sizes)):
            made[f"W{k}"] = (rng.standard_normal((a, b)) * np.sqrt(2 / a)).astype(np.float32)
            made[f"b{k}"] = np.zeros(b, np.float32)
        return made

    return start


def dense(w: Weights, x: Array) -> Array:
    """A network of fully connected layers."""
    count = len(w) // 2
    for k in range(count - 1):
        x = jax.nn.relu(x @ w[f"W{k}"] + w[f"b{k}"])
    return x @ w[f"W{count - 1}"] + w[f"b{count - 1}"]


def convolved(w: Weights, x: Array) -> Array:
    """Two convolutions with 3 × 3 windows on 8 × 8 pixels, then one layer."""
    x = x.reshape(-1, 8, 8, 1)
    for k in range(2):
        x = lax.conv_general_dilated(x, w[f"W{k}"], (k + 1,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + w[f"b{k}"])
    return jax.nn.log_softmax(x.reshape(len(x), -1) @ w["W2"] + w["b2"])


def convolutions(seed: int) -> Weights:
    """Starts of :func:`convolved`."""
    rng = np.random.default_rng(seed)
    shapes = ((3, 3, 1, 16), (3, 3, 16, 32), (512, 10))
    made: Weights = {}
    for k, shape in enumerate(shapes):
        made[f"W{k}"] = (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))).astype(np.float32)
        made[f"b{k}"] = np.zeros(shape[-1], np.float32)
    return made


def tasks(seed: int) -> list[Task]:
    """Digits and diabetes of scikit-learn, split by the seed."""
    from sklearn.datasets import load_diabetes, load_digits

    def split(x: np.ndarray, y: np.ndarray) -> tuple:
        order = np.random.default_rng(seed).permutation(len(x))
        cut = len(x) * 4 // 5
        return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])

    x, y = load_digits(return_X_y=True)
    digits = split((x / 16).astype(np.float32), y.astype(np.int32))
    x, y = load_diabetes(return_X_y=True)
    diabetes = split((x / x.std(0)).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32))
    classes = lambda w, x: jax.nn.log_softmax(dense(w, x))
    mean = lambda w, x: dense(w, x)[..., 0]
    return [
        Task("digits, 46 020 parameters", *digits, layers(64, 256, 110, 10), classes, 0.0, ["W2", "b2"]),
        Task("digits, convolutions, 9 930 parameters", *digits, convolutions, convolved, 0.0, ["W2", "b2"]),
        Task("diabetes, 601 parameters", *diabetes, layers(10, 50, 1), mean, 0.7, ["W1", "b1"]),
    ]


# --- methods: each returns predictions (draw, row, …) of the test rows ---


def trained(task: Task, seed: int, count: int = 1) -> Weights:
    """So many networks, along a leading axis, as an automatic run trains them."""
    posterior = task.posterior(init=task.start(0))
    like = posterior.unconstrain(posterior.init)
    flat = network.flat_view(posterior, like)
    size = min(BATCH, posterior.size)
    steps = int(np.clip(network.EPOCHS * posterior.size // size, network.LEAST_STEPS, network.MOST_STEPS))
    ravel = jax.vmap(lambda w: ravel_pytree(w)[0])
    starts = ravel(jax.tree.map(lambda *x: jnp.stack(x), *(task.start(100 * seed + k) for k in range(count))))
    ends, _, _ = network.trainer(flat, size, steps)(starts, posterior.data, jax.random.key(seed))
    return jax.vmap(flat.constrain)(ends)


def at_test(task: Task, weights: Weights) -> np.ndarray:
    """Predictions of the test rows by each of many networks."""
    return np.asarray(jax.jit(jax.vmap(task.predict, (0, None)))(weights, jnp.asarray(task.test[0])))


def one(task: Task, seed: int) -> np.ndarray:
    """One network."""
    return at_test(task, trained(task, seed))


def five(task: Task, seed: int) -> np.ndarray:
    """Five of them."""
    return at_test(task, trained(task, seed, 5))


def last_layer(task: Task, seed: int) -> np.ndarray:
    """The posterior of the last layer."""
    init = jax.tree.map(lambda x: np.asarray(x[0]), trained(task, seed))
    result = hamcmc.sample(task.posterior(init=init, sampled=task.last), seed=seed, progress=False)
    return result.predict(task.predict, task.test[0]).draws


def ours(task: Task, seed: int) -> np.ndarray:
    """One automatic call."""
    result = hamcmc.sample(task.posterior(init=task.start(seed)), seed=seed, progress=False)
    if result.settings["plan"]["regime"] != "predictions":
        raise SystemExit(f"{task.name}: not taken for a network: {result.settings['plan']['reason']}")
    return result.predict(task.predict, task.test[0]).draws


def blackjax(task: Task, seed: int, kernel: str) -> np.ndarray:
    """Chains of BlackJAX, tuned by rows that are held out."""
    import blackjax as bj

    posterior = task.posterior(init=task.start(0))
    known, held = network.divided(posterior.data, np.random.default_rng(seed))
    part = posterior.on(known)
    starts = trained(task, seed, CHAINS)
    inner = LEAPFROGS if kernel == "sghmc" else 1
    white = network.flat_view(part, task.start(0))
    first = ravel_pytree(jax.tree.map(lambda x: x[0], starts))[0]
    steepest = float(jax.jit(lambda x, rows: network.largest_curvature(white, x, rows, seed))(first, part.data))
    largest = np.sqrt(1 / steepest) if kernel == "sghmc" else 1 / steepest

    def runner(posterior: hamcmc.Posterior, count: int) -> Callable:
        algorithm = bj.sghmc(posterior.grad, LEAPFROGS) if kernel == "sghmc" else bj.sgld(posterior.grad)
        size = min(BATCH, posterior.size)

        @jax.jit
        def run(starts: Weights, epsilon: Array, data: Any, x: Any, key: Array) -> tuple[Weights, Array]:
            def chain(w: Weights, key: Array) -> tuple[Weights, Array]:
                def step(w: Weights, key: Array) -> tuple[Weights, None]:
                    k_rows, k_step = jax.random.split(key)
                    rows = jax.random.randint(k_rows, (size,), 0, posterior.size)
                    return algorithm.step(k_step, w, jax.tree.map(lambda a: a[rows], data), epsilon), None

                def draw(w: Weights, key: Array) -> tuple[Weights, Array]:
                    w, _ = lax.scan(step, w, jax.random.split(key, max(1, THIN // inner)))
                    return w, task.predict(w, x)

                return lax.scan(draw, w, jax.random.split(key, count // THIN))

            return jax.vmap(chain)(starts, jax.random.split(key, CHAINS))

        return run

    trial, found = runner(part, TRIAL), []
    for number, share in enumerate(SHARES):
        ends, made = trial(starts, largest * share, part.data, held[0], jax.random.key(seed + number))
        made = np.asarray(made)[:, TRIAL // THIN // 2 :]
        found.append((score(task, made.reshape(-1, *made.shape[2:]), held[1]), largest * share, ends))
    _, epsilon, ends = max(found, key=lambda f: f[0])
    _, made = runner(posterior, STEPS)(ends, epsilon, posterior.data, jnp.asarray(task.test[0]), jax.random.key(seed))
    made = np.asarray(made)[:, STEPS // THIN // 5 :]
    return made.reshape(-1, *made.shape[2:])


def score(task: Task, draws: np.ndarray, observed: Any) -> float:
    """The mean log-density of what was observed; −∞ where draws are not finite."""
    if not np.isfinite(draws).all():
        return -np.inf
    held = task._replace(test=(task.test[0], np.asarray(observed)))
    return -held.scores(draws)["NLL"]


METHODS: dict[str, Callable[[Task, int], np.ndarray]] = {
    OURS: ours,
    "trained": one,
    "ensemble of 5": five,
    "last layer": last_layer,
    "SGLD (BlackJAX)": lambda task, seed: blackjax(task, seed, "sgld"),
    "SGHMC (BlackJAX)": lambda task, seed: blackjax(task, seed, "sghmc"),
}


def run(quick: bool) -> list[Table]:
    """A table for each network, with means and ranges over splits."""
    seeds = range(1 if quick else 3)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    names = []
    for seed in seeds:
        for task in tasks(seed)[2 if quick else 0 :]:
            names += [task.name] * (task.name not in names)
            for name, method in METHODS.items():
                jax.clear_caches()
                began = time.perf_counter()
                draws = method(task, seed)
                spent = time.perf_counter() - began
                scores = task.scores(draws) if np.isfinite(draws).all() else {"NLL": np.inf}
                found.setdefault((task.name, name), []).append(scores | {"seconds": spent})
                print(task.name, name, seed, found[task.name, name][-1], flush=True)
    return [table(name, {m: found[name, m] for m in METHODS}) for name in names]


def table(name: str, found: dict[str, list[dict[str, float]]]) -> Table:
    """All methods on one network."""
    rows = []
    for method, each in found.items():
        values = {k: [e.get(k, np.nan) for e in each] for k in each[0]}
        cells = {k: f"{np.mean(v):.3g} ({min(v):.3g}–{max(v):.3g})" for k, v in values.items()}
        rows.append({"method": method} | cells)
    mine = [e["NLL"] for e in found[OURS]]
    against = []
    for method, each in found.items():
        theirs = [e["NLL"] for e in each]
        if method != OURS:
            wins = sum(a < b for a, b in zip(mine, theirs))
            ahead = "hamcmc" if wins == len(mine) else "peer" if wins == 0 else "even"
            numbers = f"{np.mean(mine):.3g}, {np.mean(theirs):.3g}"
            against.append(Against(method, f"NLL of unseen rows, {name}", numbers, ahead))
    return Table(name, rows, against)
