"""A factorization as a program of the driver: each segment is one sweep."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec

from hamcmc._processes import agreed
from hamcmc._types import Facts, PyTree, Record
from hamcmc.factorization import model as gaussian_mf
from hamcmc.factorization import recorded, sharded
from hamcmc.factorization.exchange import AXIS, Devices, fastest_reduction, shard, specs
from hamcmc.factorization.metric import Metric, plain_metric, row_count_metric
from hamcmc.factorization.model import SIDES, Hyper, Layout
from hamcmc.factorization.native import Blocks
from hamcmc.factorization.partition import Partition, Side
from hamcmc.factorization.recipes import make_sampler
from hamcmc.factorization.sharded import Carry, Data, Trace
from hamcmc.inference.driver import Broken
from hamcmc.inference.progress import Status
from hamcmc.store.checkpoint import pack, unpack


class FactorizationProgram:
    """A factorization in progress, in one of its processes. It implements :class:`hamcmc.inference.driver.Program`.

    Args:
        settings: what ``run.json`` says.
        p: the partition of the training ratings.
        train: the training ratings by block.
        test: the held-out ones.
        devices: the devices to run on; by default all, those of other processes included.

    Attributes:
        iteration: sweeps done, of `total`.
        carry: everything that goes from one sweep to the next.
        segment: the compiled sweep; None before the first one.
    """

    def __init__(
        self,
        settings: Facts,
        p: Partition,
        train: Blocks,
        test: Blocks,
        *,
        devices: Devices | None = None,
    ):
        self.settings, self.p = settings, p
        self.devices = jax.devices() if devices is None else list(devices)
        self.columns = gaussian_mf.layout(settings["model"], settings["rank"])
        self.sweeps = _compile(settings, p, self.columns, self.devices)
        data = Data(train, test, p.rows.counts, p.columns.counts)  # type: ignore[arg-type]
        self.data: Data = shard(self.sweeps.mesh, data, sharded.data_specs())
        self.keys = sharded.keys(settings["seed"])
        self.name: str = settings["sampler"]["sampler"]
        self.iteration, self.total = 0, settings["warmup"] + settings["num_samples"] * settings["thin"]
        self.seconds = 0.0
        self.segment: Any = None
        self._figures: Record = {}  # of the newest good sweep
        self._share: dict[str, float] = {}  # of the time that goes to messages, once it was measured
        self.carry = self._start()

    # --- the driver's protocol ---

    def advance(self) -> dict[str, np.ndarray]:
        """Run one sweep. Return its draw if it is one that is stored."""
        s, before = self.settings, self.seconds
        trace = self.sweep()
        if not np.isfinite(trace.train_rmse):
            raise Broken(self._what_happened(), {}, {"iteration": self.iteration})
        lasted = self.seconds - before
        self._figures = self._share | self._measured(trace, lasted)
        if len(self.devices) > 1 and self.iteration == min(s["warmup"] + 1, self.total):
            self._share = {"communication_share": self._communication_share(lasted)}
        kept = self.iteration - s["warmup"]
        return self.draw() if kept > 0 and kept % s["thin"] == 0 else {}

    def pack(self, going: bool) -> dict[str, np.ndarray]:
        """The carry, where the run goes on. All processes must call this together."""
        return pack(self._whole(self.carry), "carry") if going else {}

    def unpack(self, arrays: Mapping[str, np.ndarray], meta: Facts) -> None:
        """Continue from a checkpoint, on the devices of today."""
        carry = unpack(arrays, "carry", self.carry)
        self.carry = shard(self.sweeps.mesh, carry, sharded.carry_specs(carry))
        self.iteration, self.seconds = meta["iteration"], meta["seconds"]

    def counters(self) -> Record:
        """Sweeps, seconds, gradients and the figures of the newest sweep."""
        gradients = self.iteration * self.settings["steps"] * self.sweeps.sampler.gradients_per_step
        return {**self._figures, "iteration": self.iteration, "seconds": self.seconds, "gradients": gradients}

    def facts(self) -> Record:
        """The figures of the newest sweep."""
        return self._figures

    def status(self, draws: int) -> Status:
        """Progress in steps, with the newest test error and the speed."""
        s, figures, n = self.settings, self._figures, len(self.devices)
        on = f"{n} device{'s' * (n > 1)}"
        if "communication_share" in figures:
            on += f", {figures['communication_share']:.0%} of the time in messages"
        return Status(
            done=self.iteration / self.total,
            phase="warm-up" if self.iteration < s["warmup"] else f"{draws:,} draws",
            iteration=self.iteration * s["steps"],
            total=self.total * s["steps"],
            warmup=s["warmup"] * s["steps"],
            draws=draws,
            seconds=self.seconds,
            rate=self.iteration * s["steps"] / max(self.seconds, 1e-9),
            step_size=s["step_size"],
            note=f"test RMSE {figures['rmse']:.4f} · {figures['ratings_per_second'] / 1e6:.0f} M ratings/s · {on}",
        )

    def agree(self, mine: bool) -> bool:
        """Whether any process says so."""
        return agreed(mine)

    # --- sweeps and draws ---

    def sweep(self) -> Trace:
        """Run one sweep, in the metric that is due."""
        s = self.settings
        if s["metric"] and s["model"] == "full" and learns(self.iteration, s["warmup"]):
            self._learn_metric()
        arguments = (self.carry, self.data, self.keys, np.int32(s["steps"]), np.int32(self.iteration >= s["warmup"]))
        if self.segment is None:  # compiled ahead, so that no sweep's time includes it
            self.segment = self.sweeps.segment.lower(*arguments).compile()
        began = time.perf_counter()
        self.carry, traces = self.segment(*arguments)
        trace = jax.tree.map(lambda x: np.asarray(x)[0], traces)  # waits
        self.seconds += time.perf_counter() - began
        self.iteration += 1
        return trace

    def draw(self) -> dict[str, np.ndarray]:
        """The newest draw as it is recorded. All processes must call this together."""
        theta = self._whole(self.sweeps.position(self.carry, self.data))
        sides: dict[str, Side] = {"W": self.p.rows, "H": self.p.columns}
        theta = {s: sides[s].gather(theta[s] if theta[s].ndim == 4 else theta[s][None]) for s in SIDES}
        hyper = jax.tree.map(np.asarray, self.carry.hyper)
        return recorded.draw(self.columns, theta, hyper, self.settings["step_size"])

    def _start(self) -> Carry:
        """The carry before the first sweep."""
        position, hyper = start(self.settings, self.p, self.columns)
        position = shard(self.sweeps.mesh, position, specs(position))
        zeros = np.zeros(self.data.test.columns.shape, np.float32)
        predicted = shard(self.sweeps.mesh, zeros, PartitionSpec(AXIS))
        return self.sweeps.begin(position, self._metric(hyper), hyper, predicted, self.data)

    def _metric(self, hyper: Hyper) -> Metric:
        """The base metric for these hyper-parameters."""
        metric = row_count_metric(self.columns, hyper) if self.settings["metric"] else plain_metric(self.columns)
        return jax.tree.map(np.asarray, metric)

    def _learn_metric(self) -> None:
        """Take the base metric of the current hyper-parameters. The sampler starts anew where it is."""
        carry, hyper = self.carry, jax.tree.map(np.asarray, self.carry.hyper)
        position = self.sweeps.position(carry, self.data)
        new = self.sweeps.begin(position, self._metric(hyper), hyper, carry.predicted, self.data)
        self.carry = new._replace(draws=carry.draws, iteration=carry.iteration)

    def _whole(self, tree: PyTree) -> PyTree:
        """Host arrays of what may be sharded over processes, which must all call this together."""

        def gather(x: jax.Array) -> np.ndarray:
            """All shards of an array."""
            return np.asarray(x if x.is_fully_replicated else multihost_utils.process_allgather(x, tiled=True))

        return jax.tree.map(np.asarray if jax.process_count() == 1 else gather, tree)

    # --- what is said about them ---

    def _measured(self, trace: Trace, seconds: float) -> Record:
        """The figures of a sweep, for the log."""
        s = self.settings
        gradients = s["steps"] * self.sweeps.sampler.gradients_per_step
        return {
            "iteration": self.iteration,
            "steps": self.iteration * s["steps"],
            "seconds": round(self.seconds, 4),
            "rmse": float(trace.rmse),
            "rmse_draw": float(trace.rmse_draw),
            "train_rmse": float(trace.train_rmse),
            "noise": float(trace.hyper.noise) ** -0.5,
            "ratings_per_second": gradients * (s["ratings"] - s["held_out"]) / s["blocks"] / max(seconds, 1e-9),
        }

    def _communication_share(self, sweep_seconds: float) -> float:
        """The time that a sweep's messages take by themselves, over that of the sweep."""
        arguments = (self.carry, self.keys, np.int32(self.settings["steps"]))
        send = self.sweeps.messages.lower(*arguments).compile()
        send(*arguments).block_until_ready()
        began = time.perf_counter()
        send(*arguments).block_until_ready()
        return (time.perf_counter() - began) / sweep_seconds

    def _what_happened(self) -> str:
        """The message for factors that became non-finite: when, and what to try."""
        s = self.settings
        kept = max(self.iteration - 1 - s["warmup"], 0) // s["thin"]
        epsilon, options = s["step_size"], s["sampler"]
        cosine = f", or a larger cosine (it was {options['cosine']})" if "cosine" in options else ""
        return (
            f"the factors became non-finite in sweep {self.iteration}, by step {self.iteration * s['steps']:,}; "
            f"the {kept:,} draws per chain before that are kept. "
            f"Try a smaller step_size (it was {epsilon:.3g}; try {epsilon / 3:.1g}){cosine}"
        )


def _compile(settings: Facts, p: Partition, columns: Layout, devices: Devices) -> sharded.Sweeps:
    """The functions of a run with these settings."""
    options = {k: v for k, v in settings["sampler"].items() if k != "sampler"}
    unit = gaussian_mf.Prior()
    rate: Any = unit.rate * scales(columns, settings["variance"]) ** 2  # of each column
    alone = jax.process_count() == 1
    return sharded.build(
        p,
        columns,
        make_sampler(settings["sampler"]["sampler"], options),
        settings["step_size"],
        devices=devices,
        sample_hyper=settings["model"] == "full",
        order=settings["order"],
        prior=unit._replace(noise_rate=unit.noise_rate * settings["variance"], rate=rate),
        reduction=fastest_reduction(devices) if settings["reduction"] == "auto" else settings["reduction"],
        threads=max(1, settings["threads"] // max(1, len(jax.local_devices()))) if alone else 1,
    )


def start(settings: Facts, p: Partition, columns: Layout) -> tuple[dict[str, np.ndarray], Hyper]:
    """Position and hyper-parameters at the start: small factors around 0, or such that W H is near the mean rating."""
    rng = np.random.default_rng(settings["seed"])
    centre = 0.0 if columns.biases else np.sqrt(max(np.mean(settings["rating_range"]), 0.0) / columns.rank)
    hyper = gaussian_mf.start(columns, settings["variance"])
    leading = (settings["chains"],) if settings["chains"] > 1 else ()
    small = 0.1 * scales(columns, settings["variance"])

    def side(s: str, of: Side) -> np.ndarray:
        """The start of W or of H."""
        z = centre + small * rng.standard_normal((*leading, *of.counts.shape, columns.width), np.float32)
        there = np.arange(of.counts.shape[1]) < of.sizes[:, None]
        return (z * there[..., None] * columns.free(s) + columns.constant(s)).astype(np.float32)

    return {"W": side("W", p.rows), "H": side("H", p.columns)}, jax.tree.map(np.asarray, hyper)


def scales(columns: Layout, variance: float) -> np.ndarray:
    """The size of each column for ratings of this variance: their sd for biases, and its root for factors."""
    sd = np.sqrt(variance) if columns.biases else 1.0
    return np.where(np.arange(columns.width) < columns.rank, np.sqrt(sd), sd).astype(np.float32)


def learns(sweep: int, warmup: int) -> bool:
    """Whether the base metric is learned before a sweep: at powers of 2, and last at the end of the warm-up."""
    return 0 < sweep <= warmup and (sweep & (sweep - 1) == 0 or sweep == warmup)
