"""Sums over rows that 4 devices of this process share, and what differs from rows in one piece, as JSON."""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import hamcmc
from hamcmc.diagnostics import gradients
from hamcmc.target import minibatch, sharded
from hamcmc.target.importance import Weighted
from hamcmc.target.noise import gradient_noise
from hamcmc.target.passes import Passes
from hamcmc.target.sharded import Sharded, spread
from hamcmc.target.whitened import WhiteAtAnchor

ROWS, BATCH = 203, 40  # 4 does not divide the rows


def model(rows: int = ROWS) -> hamcmc.Posterior:
    """A logistic regression with a positive scale."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3))
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))).astype(int)

    def log_prior(theta):
        return -0.5 * jnp.sum((theta["b"] / theta["s"]) ** 2) - 3 * jnp.log(theta["s"]) - theta["s"]

    def log_likelihood(theta, datum):
        return datum["y"] * (datum["x"] @ theta["b"]) - jnp.logaddexp(0, datum["x"] @ theta["b"])

    data = {"x": x[:rows], "y": y[:rows]}
    support = {"s": hamcmc.positive()}
    return hamcmc.Posterior(log_prior, log_likelihood, data, support=support, init={"b": np.zeros(3), "s": np.ones(())})


def network() -> hamcmc.Posterior:
    """Two layers without a sense."""
    init = {"a": np.zeros((2, 100)), "b": np.zeros((100, 3))}
    log_prior = lambda w: -0.5 * (jnp.sum(w["a"] ** 2) + jnp.sum(w["b"] ** 2))
    return hamcmc.Posterior(
        log_prior, lambda w, x: -jnp.sum((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2), np.ones((50, 2)), init=init
    )


def largest(a, b) -> float:
    """The largest difference between two trees, over the largest number."""
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    worst = max(float(np.abs(np.asarray(x, float) - np.asarray(y, float)).max()) for x, y in pairs)
    return worst / max(float(np.abs(np.asarray(x, float)).max()) for x, _ in pairs)


def compare(count: int) -> dict[str, float]:
    """What differs between rows in one piece and rows that so many devices share."""
    plain, devices = model(), jax.devices()[:count]
    shared, found = Sharded(plain, devices), {}
    position = jax.tree.map(lambda x: jnp.asarray(x) + 0.3, plain.init)
    many = jax.tree.map(lambda x: x + 0.1 * jnp.arange(5.0).reshape(5, *[1] * x.ndim), position)
    both = [jax.jit(jax.vmap(jax.value_and_grad(p.log_density), (0, None)))(many, p.data) for p in (plain, shared)]
    found["value and gradient"] = largest(*both)
    found["gradient"] = largest(*(jax.jit(p.grad)(position, p.data) for p in (plain, shared)))
    rows = np.asarray(minibatch.draw(jax.random.key(1), 0, ROWS, BATCH, True))
    around = hamcmc.laplace(plain, seed=1)
    views = {
        "minibatch": (plain, shared),
        "first order": [hamcmc.control_variate(p, around) for p in (plain, shared)],
        "second order": [hamcmc.control_variate(p, around, order=2) for p in (plain, shared)],
    }
    important = hamcmc.control_variate(plain, around, order=2, importance=True)
    views["importance"] = (important, Sharded(important, devices))
    for name, (one, other) in views.items():
        other = spread(other)
        shards = other.shards
        here = jax.jit(one.grad)(position, minibatch.gather(one.data, jnp.asarray(rows)))
        there = jax.jit(lambda x, d, s=shards, o=other: o.grad(x, s.gathered(d, rows)))(position, shards.data)
        found[name] = largest(here, there)
        found[f"checksum, {name}"] = float(one.checksum() != other.checksum())
    white = [WhiteAtAnchor(spread(v), position, around.root) for v in views["second order"]]
    z, shards = jnp.asarray([1.0, -2.0, 0.5, 1.5]), white[1].shards
    here = jax.jit(white[0].grad)(z, minibatch.gather(plain.data, jnp.asarray(rows)))
    there = jax.jit(lambda z, d: white[1].grad(z, shards.gathered(d, rows)))(z, shards.data)
    found["white at the anchor"] = largest(here, there)
    found["noise"] = largest(*(gradient_noise(v, around)[:2] for v in views["second order"]))
    sums = [Passes(p, position) for p in (plain, shared)]
    x = sums[0].flat(position)
    for name, chosen in (("all rows", None), ("some rows", np.sort(rows)), ("rows of one device", np.arange(3))):
        found[f"sums over {name}"] = largest(*([*p.value_and_grad(x, chosen), p.hessian(x, chosen)] for p in sums))
    return found


def on_disk(data: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """The same arrays as memory maps."""
    for name, x in data.items():
        np.save(folder / f"{name}.npy", x)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in data}


def streamed(count: int, folder: Path) -> dict[str, float]:
    """What differs between rows in memory and rows that so many devices read from disk."""
    plain, found = model(), {}
    maps = on_disk({k: np.asarray(x) for k, x in plain.data.items()}, folder)
    there = hamcmc.Posterior(plain.log_prior, plain.log_likelihood, maps, support=plain.support, init=plain.init)
    held, sharded.IN_MEMORY = sharded.IN_MEMORY, 0.0
    shared = Sharded(there, jax.devices()[:count])
    sharded.IN_MEMORY = held
    found["not on disk"] = float(not shared.streamed or Sharded(there, jax.devices()[:count]).streamed)
    found["rows held"] = float(isinstance(shared.data.row["x"], jax.Array))
    position = jax.tree.map(lambda x: jnp.asarray(x) + 0.3, plain.init)
    rows = np.asarray(minibatch.draw(jax.random.key(1), 0, ROWS, 2 * BATCH, True)).reshape(2, BATCH)
    around = hamcmc.laplace(plain, seed=1)
    for order in (0, 1, 2):
        views = [hamcmc.control_variate(p, around, order=order) if order else p for p in (plain, shared)]
        views[1] = spread(views[1])
        both = [
            jax.jit(jax.vmap(v.grad, (None, 0)))(position, rows)
            for v, rows in zip(views, (minibatch.gather(plain.data, jnp.asarray(rows)), shared.read(rows)))
        ]
        found[f"minibatches, order {order}"] = largest(*both)
    # No anchor's gradient is known: passes over all rows, each device's on its own.
    mode = plain.constrain(around.position)
    anchors = [hamcmc.control_variate(p, mode, order=2) for p in (plain, shared)]
    found["anchor"] = largest(*([v.anchor.mean_grad, v.mean_hessian] for v in anchors))
    found["noise"] = largest(*(gradient_noise(v, around)[:2] for v in anchors))
    found["full gradient"] = largest(*(p.full_grad(position, batch_size=30) for p in (plain, shared)))
    found["full density"] = largest(*(p.full_log_density(position, batch_size=30) for p in (plain, shared)))
    many = jax.tree.map(lambda x: x + 0.1 * jnp.arange(5.0).reshape(5, *[1] * x.ndim), position)
    found["verdict's gradients"] = largest(*(gradients.at(p, many) for p in (there, shared)))
    found["verdict's densities"] = largest(*(gradients.log_densities(p, many) for p in (there, shared)))
    return found


def refused(count: int) -> list[str]:
    """What is said about data and samplers that cannot be used."""
    said = []
    shared = Sharded(model(), jax.devices()[:count])
    shared.room = lambda n: 3  # far too little
    lost = jax.jit(lambda d: shared.gathered(d, np.zeros(BATCH, np.int32)))(shared.data)
    said.append(f"finite weights: {bool(np.isfinite(np.asarray(lost.weight)).all())}")
    shared.data = Weighted({k: np.asarray(x)[:ROWS] for k, x in shared.data.row.items()}, shared.data.weight)
    lost = shared.read(np.zeros((2, BATCH), int))
    said.append(f"finite weights from disk: {bool(np.isfinite(np.asarray(lost.weight)).all())}")
    shared = Sharded(model(), jax.devices()[:count])
    for work in (
        lambda: Sharded(model(rows=count - 1), jax.devices()[:count]),
        lambda: Sharded(hamcmc.Posterior(lambda x: -(x**2)), jax.devices()[:count]),
        lambda: hamcmc.sample(shared, "sgfs", step_size=1e-3, num_samples=2, progress=False),
        lambda: hamcmc.svrg(shared, "sgld", every=5),
        lambda: hamcmc.sample(shared, "sgld", num_samples=2, progress=False),
        lambda: hamcmc.sample(Sharded(network(), jax.devices()[:count]), progress=False),
    ):
        try:
            work()
        except ValueError as error:
            said.append(str(error))
    return said


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    with tempfile.TemporaryDirectory() as scratch:
        of_disk = streamed(4, Path(scratch))
    print(json.dumps({"differences": compare(4), "streamed": of_disk, "refused": refused(4)}))
