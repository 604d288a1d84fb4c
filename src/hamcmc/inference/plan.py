"""What an automatic run does: a pure function of measured facts.

:func:`decide` either returns a :class:`Plan`, or names the fact that it needs next. Facts cost time (a mode, the noise
of a gradient), so they are measured only where they matter.
"""

from typing import Any, Literal, NamedTuple

from hamcmc._types import Record

ENSEMBLES = 2  # independent ones, so that R-hat compares what is independent
LEAPFROGS = 4  # of a typical transition, for predictions of time
PATIENCE = 120.0  # seconds of sampling on all data, above which minibatches are considered
NOISE = 0.01  # share of a variance that the gradient's noise may add
BATCHES = tuple(2**k for k in range(5, 15))  # the batch sizes that are considered

Missing = Literal["seconds", "mode", "noise"]


class Measured(NamedTuple):
    """What is known about a posterior and about what was asked. None: not measured yet.

    Attributes:
        rows: N; 0 without data.
        dimension: D.
        streamed: whether the data stay on disk.
        iterations: of the run on all data, warm-up included.
        replicas: replicas of all ensembles on all data.
        quick: whether a rough count of operations already says that all data are affordable.
        seconds: one gradient on all data for all replicas.
        mode: whether a mode with a positive definite Hessian was found.
        why: the reason that the search for it gave.
        noise: the largest share of a variance that the noise of the gradient adds at ε = 1, for a batch of one row drawn
            as the plan draws it, with second-order control variates.
    """

    rows: int
    dimension: int
    streamed: bool
    iterations: int
    replicas: int
    quick: bool
    seconds: float | None = None
    mode: bool | None = None
    why: str = ""
    noise: float | None = None


class Plan(NamedTuple):
    """What an automatic run does.

    Attributes:
        regime: ``"all data"`` or ``"minibatches"``.
        sampler: its name.
        options: of the sampler.
        step_size: ε; where the search begins for a sampler that adapts it.
        batch_size: rows per minibatch; None for all data.
        ensembles: how many.
        warmup: iterations before the first draw, or None for what the sampler needs.
        thin: iterations per draw.
        reason: one line for the user.
    """

    regime: Literal["all data", "minibatches"]
    sampler: str
    options: Record
    step_size: float
    batch_size: int | None
    ensembles: int
    warmup: int | None
    thin: int
    reason: str


def decide(facts: Measured) -> Plan | Missing:
    """The plan, or the fact that is needed to make one."""
    what = f"{facts.rows:,} rows, {facts.dimension:,} parameters" if facts.rows else f"{facts.dimension:,} parameters"
    if not facts.rows or (facts.quick and not facts.streamed):
        return on_all_data(f"{what}: all data at every step, because they are few enough" if facts.rows else what)
    if not facts.streamed:
        if facts.seconds is None:
            return "seconds"
        predicted = facts.seconds * LEAPFROGS * facts.iterations
        if predicted <= PATIENCE:
            return on_all_data(f"{what}: all data at every step, because that takes about {duration(predicted)}")
        slow = f"all data at every step would take {duration(predicted)}"
    else:
        slow = "the data are streamed"
    if facts.mode is None:
        return "mode"
    if not facts.mode:
        if facts.streamed:
            raise ValueError(
                f"{what}: minibatches need a mode to reduce their noise around, and there is none: {facts.why}. "
                "Load the data into memory, or give sampler=, step_size= and batch_size="
            )
        return on_all_data(f"{what}: all data at every step although {slow}, because {facts.why}")
    if facts.noise is None:
        return "noise"
    return on_minibatches(facts, what, slow)


def on_all_data(reason: str) -> Plan:
    """Trajectories with a Metropolis test."""
    return Plan(
        "all data", "ensemble_hmc", {}, 0.5, None, ENSEMBLES, None, 1, f"{reason}; ensemble_hmc adapts its step"
    )


def on_minibatches(facts: Measured, what: str, slow: str) -> Plan:
    """The ensemble in whitened coordinates, with a batch that is large enough for its noise."""
    noise = facts.noise or 0.0
    most = max(32, facts.rows // 4)
    size = next((n for n in BATCHES if n <= most and noise / n <= NOISE), min(BATCHES[-1], most))
    share = noise / size
    step = 1.0 if share <= NOISE else max(0.05, NOISE / share)
    reason = (
        f"{what}: minibatches of {size:,} with second-order control variates in coordinates whitened at the mode, "
        f"ε {step:.2g}, because {slow} and the gradient's noise adds {share * step:.1%} to a variance at most"
    )
    options: dict[str, Any] = {"metric": None, "gamma": 1.0}
    return Plan("minibatches", "ensemble_hamcmc", options, step, size, ENSEMBLES, 100, max(1, round(1 / step)), reason)


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
