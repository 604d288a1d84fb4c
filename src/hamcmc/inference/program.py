"""Sampling as a program that the driver runs: segments of the compiled loop, their draws and moments."""

import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves_with_path

from hamcmc import _processes
from hamcmc._compile import alone, put
from hamcmc._types import Facts, Record
from hamcmc.diagnostics.result import Result
from hamcmc.inference import compiled as loop
from hamcmc.inference import schedules
from hamcmc.inference.ahead import parts_of, segment_of, slots_of
from hamcmc.inference.divergence import Alarm, Watch
from hamcmc.inference.driver import Broken, Draws
from hamcmc.inference.job import Job
from hamcmc.inference.progress import Progress, Status, silent
from hamcmc.inference.stored import named
from hamcmc.inference.stream import Batches
from hamcmc.store import checkpoint, moments
from hamcmc.store.errors import Diverged, RunError
from hamcmc.store.moments import RunningMoments
from hamcmc.store.recorder import Recorder
from hamcmc.target.passes import plain
from hamcmc.target.posterior import name_of
from hamcmc.target.sharded import shards_of


class SamplingProgram:
    """A sampling run, as a :class:`~hamcmc.inference.driver.Program`; use it as a context.

    Args:
        job: the run, at its start.
    """

    def __init__(self, job: Job):
        self.job, s = job, job.settings
        self.name, self.iteration, self.total = s["sampler"].get("sampler", "sampling"), 0, job.total
        self.seconds, self.rate = 0.0, 0.0
        planning = s.get("plan", {}).get("seconds", 0.0) + s.get("tuning", {}).get("seconds", 0.0)
        shorter = s.get("plan", {}).get("shorter", 0.0)  # a run that turned out to have too few effective draws
        self.costs = {"mode": planning, "trace": 0.0, "compile": 0.0, "adaptation": shorter, "sampling": 0.0}
        self.acceptance: float | None = None
        self.parts, self.shards = parts_of(job), shards_of(job.posterior)
        self.threads = ThreadPoolExecutor(self.parts)
        self.keys = loop.split_keys(job.keys, self.parts)
        self.states = self._split(job.state)
        self.names = [a.name for a in job.parameters]
        self.moments = RunningMoments(self.names, [(s["chains"], *a.shape) for a in job.parameters])
        self.slots = slots_of(job)
        self.watch = Watch(job)
        self.show: Progress = silent  # told about compiling, which the driver cannot see
        self.compiled: Any = None  # made before the first segment, so that no segment's time includes it
        self.alone: AbstractContextManager = nullcontext()
        self.gradients = (
            loop.build_gradients(job.posterior, batch_size=s["batch_size"]) if s["store_gradients"] else None
        )
        self.batches = Batches(
            job.posterior, job.keys, batch_size=s["batch_size"], replace=s["replace"], length=s["segment"]
        )

    def __enter__(self) -> Self:
        self.batches.__enter__()
        return self

    def __exit__(self, *what: object) -> None:
        self.threads.shutdown()
        self.batches.__exit__(*what)

    @property
    def state(self) -> Any:
        """The state of the sampler, with a leading axis of ensembles or chains."""
        if self.parts == 1:
            return self.states[0]
        return jax.tree.map(lambda *x: np.concatenate(x), *self.states)

    def _split(self, state: Any) -> list[Any]:
        """The states of the parts that run side by side, in buffers that the compiled loop may take over."""
        if self.shards is not None:
            return [self.shards.place(state)]
        if self.parts == 1:
            return [jax.tree.map(jnp.array, state)]
        host = jax.tree.map(np.asarray, state)  # where nothing is compiled to cut it
        return [jax.tree.map(lambda x, i=i: put(x[i : i + 1]), host) for i in range(self.parts)]

    def bounds(self, t: int) -> tuple[int, int]:
        """(end, origin) of the segment that begins at iteration t; its draws go to slots counted from origin.

        This depends on the settings alone, because moments are summed segment by segment. Where possible, a segment
        ends on a stored draw. It never makes more draws than there are slots.
        """
        s = self.job.settings
        warmup, thin, most = s["warmup"], s["thin"], s["segment"]
        if t < warmup:
            return min(t + most, warmup), t
        origin = t - (t - warmup) % thin
        if thin > most:
            return min(t + most, origin + thin), origin
        return min(origin + min(most // thin, self.slots) * thin, self.total), origin

    def advance(self) -> Draws:
        """Run one segment and return its draws."""
        s, begin = self.job.settings, self.iteration
        end, origin = self.bounds(begin)
        data = self.batches.of(begin, end if end < self.total else None)
        recording = begin >= s["warmup"]
        arguments = (begin, end, origin, recording)
        if self.compiled is None:
            self.show(Status(self.iteration / self.total, "compiling"))
            given = (data, self.states[0], self.keys[0], *arguments)
            traced = self.job.traced or loop.Traced(segment_of(self.job), given, self.total)
            ready = time.perf_counter()
            self.compiled, self.alone = traced.program, alone if traced.blocking else nullcontext()
            self.costs["trace"] += traced.seconds
            self.costs["compile"] += time.perf_counter() - ready
            self.show(self.status())
        began = time.perf_counter()

        def run(part: int) -> loop.Segment:
            """The segment of one part, when it is finished."""
            with self.alone, jax.enable_x64(s["x64"]):  # which is a setting of the thread
                return jax.block_until_ready(self.compiled(data, self.states[part], self.keys[part], *arguments))

        segments = list(self.threads.map(run, range(self.parts)))
        lasted = self._alike(segments, time.perf_counter() - began)
        self.seconds += lasted
        self.costs["sampling" if recording else "adaptation"] += lasted
        self.rate = (end - begin) / lasted
        self.states, made = [x.state for x in segments], loop.joined(segments)
        bad = np.asarray(made.bad_since)
        if (bad >= 0).any():
            raise self._broken(made, bad, origin, recording)
        self.iteration = end
        done = (end - origin) // s["thin"] if recording else 0
        if recording:
            self.moments.add(made.moments)
        accepted, pairs = getattr(made.infos, "pairs_accepted", None), self.job.sampler.pairs
        self.acceptance = None
        if accepted is not None and pairs:
            self.acceptance = float(np.asarray(accepted)[: max(done, 1)].mean()) / pairs
        draws = self._named(made, origin, done) if done else {}
        if done:
            alarm = self.watch.look(made.draws, (origin - s["warmup"]) // s["thin"], done, self.seconds)
            if alarm is not None:
                raise self._diverged(alarm, draws)
        return draws

    def _alike(self, segments: list[loop.Segment], lasted: float) -> float:
        """The seconds that a segment took, as the first process measured them, where all processes made the same."""
        if not _processes.several():
            return lasted
        digest = zlib.crc32(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(segments[0].state.position)))
        found = _processes.gathered(np.array([lasted, digest], np.float64))
        if (found[:, 1] != found[0, 1]).any():
            who = int(np.argmax(found[:, 1] != found[0, 1]))
            raise RunError(
                f"process {who} and process 0 came to different numbers: use machines of one kind, with the same "
                "versions. The run can be resumed there from its last checkpoint"
            )
        return float(found[0, 0])

    def _named(self, made: loop.Segment, origin: int, done: int) -> dict[str, np.ndarray]:
        """The first `done` draws of a segment with step sizes, infos and gradients, by ``group/name``."""
        s = self.job.settings
        part = self.job.stored
        trees = {"posterior": made.draws if part is None else part.cut(made.draws), "sample_stats": made.infos}
        if self.gradients is not None:
            numbers = (origin - s["warmup"]) // s["thin"] + jnp.arange(self.slots)
            trees["gradients"] = self.gradients(self.job.posterior.data, made.draws, self.job.keys, numbers)

        def of_chains(x: np.ndarray) -> np.ndarray:
            """One entry per chain: the replicas of an ensemble share its infos."""
            return x if x.shape[1] == s["chains"] else np.repeat(x, s["chains"] // x.shape[1], axis=1)

        found = {
            f"{group}/{name_of(path) if part is None else named(path)}": of_chains(np.asarray(x)[:done])
            for group, tree in trees.items()
            for path, x in tree_leaves_with_path(tree)
        }
        if part is not None and (bad := part.not_finite(found)) is not None:
            good, name = bad
            iteration = origin + s["thin"] * (good + 1) - 1
            raise Broken(
                f"store: {name} is not finite at iteration {iteration:,}; the draws before that are kept. Let the "
                "function return finite numbers for all parameters, or store the parameters themselves",
                self._named(made, origin, good) if good else {},
                {"iteration": iteration, "parameter": name},
            )
        last = origin + s["thin"] * (1 + np.arange(self.slots)) - 1  # the iteration of each draw
        step_size = schedules.values(self.job.schedule, last)[:done, None]
        found["sample_stats/step_size"] = np.broadcast_to(step_size, (done, s["chains"]))
        return found

    def _broken(self, made: loop.Segment, bad: np.ndarray, origin: int, recording: bool) -> Broken:
        """The good draws of a segment that became non-finite, and a message: when, where, and what to try."""
        s = self.job.settings
        self.iteration = iteration = int(bad[bad >= 0].min())
        chain, leaf = (int(i[0]) for i in np.nonzero(bad == iteration))
        draws = self._named(made, origin, (iteration - origin) // s["thin"]) if recording else {}
        kept = (iteration - s["warmup"]) // s["thin"] if recording else 0
        epsilon = self._epsilon(iteration)
        found = ", found by tuning" if "tuning" in s else ""
        tries = [f"a smaller step size (it was {epsilon:.3g}{found}; try {epsilon / 3:.1g}, and a larger thin)"]
        options = self.job.sampler.settings
        if self.job.sampler.pairs and {"cosine", "damping"} <= options.keys():  # pairs of noisy gradients can mislead
            tries.append(f"a larger cosine or damping (they were {options['cosine']} and {options['damping']})")
        tries.append("a start nearer to the mode (find_mode)")
        message = (
            f"chain {chain} turned non-finite at iteration {iteration:,} in parameter {self.names[leaf]}; "
            f"the {kept:,} draws per chain before that are kept. Try " + ", or ".join(tries)
        )
        return Broken(message, draws, {"iteration": iteration, "parameter": self.names[leaf], "chain": chain})

    def _diverged(self, alarm: Alarm, draws: Draws) -> Broken:
        """A message: since when, where, by how much, and what to try."""
        s = self.job.settings
        ends = np.cumsum([x.size // s["chains"] for x in jax.tree.leaves(self.state.position)])
        name = self.names[int(np.searchsorted(ends, alarm.entry, side="right"))]
        since = s["warmup"] + s["thin"] * alarm.draw
        epsilon = self._epsilon(since)
        message = (
            f"the draws left the posterior by iteration {since:,}, the most in parameter {name}: {alarm.sign}. The run "
            f"was stopped at iteration {self.iteration:,}, and its draws are kept. Try a smaller step size (it was "
            f'{epsilon:.3g}; try {alarm.shrink * epsilon:.1g}, and a larger thin), sampler="auto" '
            "without a step size, or a start nearer to the mode (find_mode)"
        )
        return Broken(message, draws, {"iteration": since, "parameter": name}, Diverged)

    def pack(self, going: bool) -> dict[str, np.ndarray]:
        """The moments, and the state of a run that is going on."""
        kept = {f"kept.{name}": array for name, array in self.job.kept.items()}
        return (checkpoint.pack(self.state, "state") | kept if going else {}) | self.moments.pack()

    def unpack(self, arrays: Mapping[str, np.ndarray], meta: Facts) -> None:
        """Continue from a checkpoint."""
        self.iteration, self.seconds = meta["iteration"], meta["seconds"]
        self.costs |= meta.get("costs", {})
        self.states = self._split(checkpoint.unpack(arrays, "state", self.job.state))
        self.moments.unpack(arrays)

    def counters(self) -> Record:
        """Iteration, seconds and gradients so far."""
        s, sampler, posterior = self.job.settings, self.job.sampler, self.job.posterior
        batches = posterior.size / s["batch_size"] if s["batch_size"] else 1  # that a pass over all data is worth
        own = sampler.gradients_per_step * (1 + posterior.extra_products)  # a product costs about a gradient
        per_step = own + posterior.extra_gradients + sampler.passes_per_step * batches
        gradients = round(self.iteration * s["ensembles"] * per_step)
        if (leapfrogs := getattr(self.state, "leapfrogs", None)) is not None:  # as many as there were, not as planned
            gradients = int(np.asarray(leapfrogs).sum(dtype=np.int64)) * sampler.replicas
        return {"iteration": self.iteration, "seconds": self.seconds, "gradients": gradients, "costs": self.costs}

    def facts(self) -> Record:
        """Nothing: the checkpoint has all that the log could say about a segment."""
        return {}

    def status(self, draws: int | None = None) -> Status:
        """Where the run is after a segment."""
        s, warmup = self.job.settings, self.job.settings["warmup"]
        stored = max(0, self.iteration - warmup) // s["thin"] if draws is None else draws
        before = "adaptation" if self.job.sampler.warmup else "warm-up"
        return Status(
            done=self.iteration / self.total,
            phase=before if self.iteration < warmup else f"{stored:,} draws",
            iteration=self.iteration,
            total=self.total,
            warmup=warmup,
            draws=stored,
            seconds=self.seconds,
            rate=self.rate or None,
            step_size=None if self.job.sampler.adapts_step else self._epsilon(max(0, self.iteration - 1)),
            acceptance=self.acceptance,
            note="longer run" if "shorter" in s.get("plan", {}) else "",
        )

    def _epsilon(self, iteration: int) -> float:
        return float(self.job.schedule(jnp.int32(iteration)))

    def agree(self, mine: bool) -> bool:
        """Whether any process says so."""
        return _processes.agreed(mine)

    def result(self, recorder: Recorder, **more: Any) -> Result:
        """The draws so far, with the counters of the last checkpoint."""
        if recorder.draws is None:
            raise ValueError("the recorder keeps no draws")
        summary = moments.summary(self.moments.pack())
        return Result(recorder.draws.root, self.job.settings, recorder.meta | more, summary, plain(self.job.posterior))
