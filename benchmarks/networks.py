"""Networks: what an automatic run predicts, beside what a user could do instead.

Every method has the same network, prior and rows, and is scored on rows that none of them saw. Regressions learn their
noise, too. Seconds count everything from the call to the predictions of these rows. The peers:

* **trained**: one network, trained as an automatic run trains: by Adam with a learning rate that falls to 0, stopped
  where a tenth of the rows, which it does not learn from, is predicted best;
* **ensemble of 5**: five of these from different starts, whose probabilities are averaged;
* **last layer (laplace-torch)**: its Laplace approximation of the last layer of the trained network, with a Kronecker
  factorization and the prior's precision by the marginal likelihood, as its documentation has it;
* **cyclical SGLD, SGHMC (BlackJAX)**: four chains from four trained networks, with four cycles of a step size that
  falls to 0; draws are taken in the second half of each cycle. Of five largest step sizes the one that predicts a tenth
  of the rows best is taken, after 600 gradients of each; then 2 500 more, as an automatic run takes (both up to eight
  times as many for small networks, as there). BlackJAX's SGHMC takes ten of them on each minibatch;
* **SGHMC (posteriors)**: the same four starts, trials and numbers of gradients, with a constant step size.

Methods on PyTorch take part if they are installed (``pip install laplace-torch posteriors``). Digits are those of
scikit-learn. The text is made by a grammar of the project. Sets of the UCI repository take part if the reader has them
(`--uci`), in the first of their usual splits.
"""

import json
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

import hamcmc
from benchmarks import networks_torch, page
from benchmarks.measure import Against, Table
from benchmarks.network_tasks import Task, Weights, tasks
from hamcmc.inference import network
from hamcmc.inference.auto import operations
from hamcmc.inference.plan import pace

BATCH, CHAINS, TRIAL, STEPS, THIN, CYCLES = 128, 4, 600, 2500, 20, 4
SHARES = 4.0 ** -np.arange(5)  # of the largest stable step
LEAPFROGS = 10
OURS = "hamcmc, automatic"


# --- methods: each returns predictions (draw, row, …) of the test rows ---


def trained(task: Task, seed: int, count: int = 1) -> Weights:
    """So many networks, along a leading axis, as an automatic run trains them."""
    posterior = task.posterior(init=task.start(0))
    known, held = network.divided(posterior.data, np.random.default_rng(seed))
    part = posterior.on(known)
    flat = network.flat_view(part, posterior.unconstrain(posterior.init))
    size = min(BATCH, part.size)
    ravel = jax.vmap(lambda w: ravel_pytree(w)[0])
    starts = ravel(jax.tree.map(lambda *x: jnp.stack(x), *(task.start(100 * seed + k) for k in range(count))))
    steps = network.training_steps(part.size, size, paces(task))
    ends, _, _ = network.trainer(flat, size, steps)(starts, known, jax.random.key(seed), held)
    return jax.vmap(flat.constrain)(ends)


def predicted(task: Task, weights: Weights, x: Any) -> np.ndarray:
    """Predictions of rows by each of many networks."""
    return np.asarray(jax.jit(jax.vmap(task.predict, (0, None)))(weights, jnp.asarray(x)))


def one(task: Task, seed: int) -> np.ndarray:
    """One network."""
    return predicted(task, trained(task, seed), task.test[0])


def five(task: Task, seed: int) -> np.ndarray:
    """Five of them."""
    return predicted(task, trained(task, seed, 5), task.test[0])


def last_layer(task: Task, seed: int) -> np.ndarray:
    """laplace-torch."""
    weights = jax.tree.map(lambda x: np.asarray(x[0]), trained(task, seed))
    return networks_torch.laplace_last_layer(task, weights, seed)


def ours(task: Task, seed: int) -> np.ndarray:
    """One automatic call."""
    result = hamcmc.sample(task.posterior(init=task.start(seed)), seed=seed, progress=False)
    if result.settings["plan"]["regime"] != "predictions":
        raise SystemExit(f"{task.name}: not taken for a network: {result.settings['plan']['reason']}")
    return result.predict(task.predict, task.test[0]).draws


def paces(task: Task) -> int:
    """How many times as many steps an automatic run makes on this network as on a large one."""
    posterior = task.posterior(init=task.start(0))
    return pace(operations(posterior, posterior.unconstrain(posterior.init)) / posterior.size)


def steepest(part: hamcmc.Posterior, starts: Weights, seed: int) -> float:
    """The largest curvature at the first of the trained networks, which bounds step sizes."""
    flat = network.flat_view(part, jax.tree.map(lambda x: np.asarray(x[0]), starts))
    first = ravel_pytree(jax.tree.map(lambda x: x[0], starts))[0]
    return float(jax.jit(lambda x, rows: network.largest_curvature(flat, x, rows, seed))(first, part.data))


def cyclical(task: Task, seed: int, kernel: str) -> np.ndarray:
    """Chains of BlackJAX, tuned by rows that are held out."""
    import blackjax as bj

    posterior = task.posterior(init=task.start(0))
    known, held = network.divided(posterior.data, np.random.default_rng(seed))
    part = posterior.on(known)
    starts = trained(task, seed, CHAINS)
    inner, times = LEAPFROGS if kernel == "sghmc" else 1, paces(task)
    thin = THIN * times
    largest = steepest(part, starts, seed) ** (-0.5 if kernel == "sghmc" else -1.0)

    def runner(posterior: hamcmc.Posterior, gradients: int) -> Callable:
        algorithm = bj.sghmc(posterior.grad, LEAPFROGS) if kernel == "sghmc" else bj.sgld(posterior.grad)
        size, count = min(BATCH, posterior.size), gradients // inner
        schedule = cosine(count)

        @jax.jit
        def run(starts: Weights, epsilon: Array, data: Any, x: Any, key: Array) -> tuple[Weights, Array]:
            def chain(w: Weights, key: Array) -> tuple[Weights, Array]:
                def step(w: Weights, at: tuple[Array, Array]) -> tuple[Weights, None]:
                    t, key = at
                    k_rows, k_step = jax.random.split(key)
                    rows = jax.random.randint(k_rows, (size,), 0, posterior.size)
                    batch = jax.tree.map(lambda a: a[rows], data)
                    return algorithm.step(k_step, w, batch, epsilon * schedule(t)), None

                def draw(w: Weights, at: tuple[Array, Array]) -> tuple[Weights, Array]:
                    w, _ = lax.scan(step, w, at)
                    return w, task.predict(w, x)

                every = max(1, thin // inner)
                at = jnp.arange(count // every * every).reshape(-1, every)
                keys = jax.random.split(key, at.size).reshape(at.shape)
                return lax.scan(draw, w, (at, keys))

            return jax.vmap(chain)(starts, jax.random.split(key, CHAINS))

        return run

    def kept(made: Array) -> np.ndarray:
        """Predictions in the second half of each cycle."""
        made = np.asarray(made)
        where = np.arange(made.shape[1]) * CYCLES / made.shape[1] % 1 >= 0.5
        return made[:, where].reshape(-1, *made.shape[2:])

    trial, found = runner(part, TRIAL * times), []
    for number, share in enumerate(SHARES):
        ends, made = trial(starts, largest * share, part.data, held[0], jax.random.key(seed + number))
        found.append((score(task, kept(made), held[1]), largest * share, ends))
    _, epsilon, ends = max(found, key=lambda f: f[0])
    run = runner(posterior, STEPS * times)
    return kept(run(ends, epsilon, posterior.data, jnp.asarray(task.test[0]), jax.random.key(seed))[1])


def cosine(count: int) -> Callable[[Array], Array]:
    """The factor of the step size: it falls from 1 to 0 in each cycle."""
    length = -(-count // CYCLES)
    return lambda t: 0.5 * (1 + jnp.cos(jnp.pi * (t % length) / length))


def posteriors(task: Task, seed: int) -> np.ndarray:
    """Chains of posteriors, tuned by rows that are held out."""
    posterior = task.posterior(init=task.start(0))
    known, held = network.divided(posterior.data, np.random.default_rng(seed))
    starts = trained(task, seed, CHAINS)
    largest, times = steepest(posterior.on(known), starts, seed) ** -0.5, paces(task)

    def made(rows: Any, starts: Weights, step: float, count: int, x: Any) -> tuple[Weights, np.ndarray]:
        chains = networks_torch.Chains(task, tuple(np.asarray(a) for a in rows), BATCH)
        draws = chains.run(starts, step, count * times, THIN * times)
        half = draws[len(draws) // 2 :] if count == TRIAL else draws[len(draws) // 5 :]
        stacked = jax.tree.map(lambda *x: np.concatenate(x), *half)
        return draws[-1], predicted(task, stacked, x)

    found = []
    for share in SHARES:
        ends, draws = made(known, starts, largest * share, TRIAL, held[0])
        found.append((score(task, draws, held[1]), largest * share, ends))
    _, step, ends = max(found, key=lambda f: f[0])
    return made(task.train, ends, step, STEPS, task.test[0])[1]


def score(task: Task, draws: np.ndarray, observed: Any) -> float:
    """The mean log-density of what was observed; −∞ where draws are not finite."""
    if not np.isfinite(draws).all():
        return -np.inf
    return -task._replace(test=(task.test[0], np.asarray(observed))).scores(draws)["NLL"]


METHODS: dict[str, Callable[[Task, int], np.ndarray]] = {
    OURS: ours,
    "trained": one,
    "ensemble of 5": five,
    "last layer (laplace-torch)": last_layer,
    "cyclical SGLD (BlackJAX)": lambda task, seed: cyclical(task, seed, "sgld"),
    "cyclical SGHMC (BlackJAX)": lambda task, seed: cyclical(task, seed, "sghmc"),
    "SGHMC (posteriors)": posteriors,
}


NEEDS = {"last layer (laplace-torch)": "laplace", "SGHMC (posteriors)": "posteriors"}  # which make bench lacks


# --- tables ---


def run(quick: bool, uci: str | None = None) -> list[Table]:
    """A table for each network, with means and ranges over splits. It goes on where it was interrupted."""
    log = page.RESULTS / "scratch" / f"networks{'-quick' * quick}.jsonl"
    log.parent.mkdir(exist_ok=True)
    log.touch()
    methods = {m: f for m, f in METHODS.items() if m not in NEEDS or find_spec(NEEDS[m])}
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    names = []
    for task, seed in splits(quick, uci):
        names += [task.name] * (task.name not in names)
        for name, method in methods.items():
            before = {tuple(m["key"]): m["scores"] for m in map(json.loads, log.read_text().splitlines())}
            key = (task.name, name, seed)
            if key not in before:
                before[key] = measured(task, method, seed)
                with log.open("a") as file:
                    file.write(json.dumps({"key": key, "scores": before[key]}) + "\n")
                print(*key, {k: f"{v:.3g}" for k, v in before[key].items()}, flush=True)
            found.setdefault((task.name, name), []).append(before[key])
    return [table(name, {m: found[name, m] for m in methods}) for name in names]


def splits(quick: bool, uci: str | None) -> Iterator[tuple[Task, int]]:
    """Every network with every split."""
    for seed in range(1 if quick else 3):
        for number, task in enumerate(tasks(seed, uci)):
            if not quick or number >= 2:
                yield task, seed


def measured(task: Task, method: Callable, seed: int) -> dict[str, float]:
    """The scores of one run, and its seconds."""
    jax.clear_caches()
    began = time.perf_counter()
    draws = method(task, seed)
    spent = time.perf_counter() - began
    scores = task.scores(draws) if np.isfinite(draws).all() else {"NLL": np.inf}
    return scores | {"seconds": spent}


def table(name: str, found: dict[str, list[dict[str, float]]]) -> Table:
    """All methods on one network."""
    rows = []
    for method, each in found.items():
        values = {k: [e.get(k, np.nan) for e in each] for k in found[OURS][0]}
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
