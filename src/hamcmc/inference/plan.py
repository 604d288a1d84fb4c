"""What an automatic run does: a pure function of measured facts.

:func:`decide` either returns a :class:`Plan`, or names the fact that it needs next. Facts cost time (a mode, the noise
of a gradient), so they are measured only where they matter.
"""

import math
from typing import Any, Literal, NamedTuple

from hamcmc._types import Record

ENSEMBLES = 2  # independent ones, so that R-hat compares what is independent
LEAPFROGS, STRAIGHTFORWARD = 4, 40  # of a typical transition, for predictions of time, and up to how many parameters
PATIENCE = 10.0  # seconds of a first run on all data, above which minibatches are considered
LONG = 600.0  # seconds above which minibatches are used also where the posterior is only roughly normal
NOISE = 0.01  # share of a variance that the gradient's noise may add
SMALLEST_BATCH, LARGEST_BATCH = 32, 2**14
MOVING, REPLICAS = 11, 16  # replicas that move in an iteration, of ensemble_hamcmc and of leimkuhler_matthews
LARGEST_STEP, DIAGONAL_STEP = 1.0, 0.2  # ε in white coordinates, and in those that only a diagonal scales
STRAIGHT = 0.1  # ε times the bend
BIASED = 0.05  # error of a standard deviation, shown by gradients, from which a run on minibatches wants a smaller step
BENT, CROOKED = 0.3, 0.7  # bends above which minibatches are not worth their bias; the second where time is long
CURVED = 4.0  # bend up to which the Hessian at the mode gives better coordinates than none
FIRST_ADAPT, FIRST_DRAWS = 300, 250  # iterations of warm-up, and draws of each replica, in a first run on all data
FEW_REPLICAS = 8  # of each ensemble, where all data at every step take long
NORMAL = 0.2  # bend up to which a first run may be shorter: its starts and coordinates are right from the beginning
NORMAL_ADAPT, NORMAL_DRAWS = 100, 125  # of such a first run
EVEN = 0.5  # sd of the log-weights of normal draws, up to which seven in ten of them would be accepted as proposals
INDEPENDENT_WARMUP = 10  # iterations, after which each replica has moved
ADAPT, DRAWS = 600, 1000  # the same in the run that follows where the first one was not good enough
AFFORDABLE = 120.0  # seconds that a longer run may take
EASY = 4.0  # times as many draws that independent proposals may still lack
PLENTY = 0.5  # of the draws are enough: then a first run that is good needs no other
KEPT = 2**24  # numbers that all draws of a longer run may have, so that it stores what it draws
MOST_LONGER = 64  # times as long as it was planned may a run become
HOPELESS = 256.0  # times as many draws: beyond that, time is not what a run lacks
SETTLING = 40  # iterations of warm-up, divided by ε
MATRICES, UNITS = 2, 400  # weight matrices, and parameters above which a model may be a network
NETWORKS = 4  # chains, each from a network of its own
NETWORK_BATCH, NETWORK_WARMUP, NETWORK_THIN, NETWORK_DRAWS = 128, 500, 10, 200  # of a run on networks
SMALL, MOST_PACES = 250_000, 8  # operations on a row; a network of fewer makes so many times as many steps, at most
FRICTION = 0.05  # of SGHMC there
STORED = 2**28  # numbers that the draws of such a run may take

# Of gradients by linear predictors, measured on two cores:
PREPARING = 1.5  # seconds in which their table is traced and compiled
SPEED = 5e10  # operations per second in matrix products
WRITING = 4e-9  # seconds to write one number of the table

TRAJECTORIES = "; ensemble_hmc adapts metric, step and path in warm-up"
PROPOSALS = "; independent proposals from the normal approximation at the mode, with a Metropolis test"

Missing = Literal["seconds", "mode", "noise", "folded"]


class Measured(NamedTuple):
    """What is known about a posterior and about what was asked. None: not measured yet.

    Attributes:
        rows: N; 0 without data.
        dimension: D.
        streamed: whether the data stay on disk.
        iterations: of the first run on all data, warm-up included.
        replicas: replicas of all ensembles on all data.
        counted: whether somebody said how many iterations there are to be.
        batch_size: the batch size that was asked for, which asks for minibatches; None if it was not.
        quick: whether a rough count of operations already says that all data are affordable.
        seconds: one gradient on all data for all replicas.
        mode: whether a mode with a positive definite Hessian was found, and no other with a share of the mass.
        why: the reason that the search for it gave.
        noise: λ, the largest eigenvalue of the gradient's covariance for a minibatch of one row, with control variates
            and rows drawn as in the run, in coordinates in which the Hessian is the identity (:class:`~hamcmc.Noise`).
        bend: how much the posterior differs from its Laplace approximation; 0 for a normal one.
        most_bent: the same of the coordinate in which it differs most.
        square: whether the Hessian is a matrix; otherwise only its diagonal is known.
        matrices: how many of the parameters are matrices.
        folded: whether units can be exchanged and the log-density bends upwards somewhere, as that of a network does.
        devices: how many share the rows of the data.
        shared: whether rows are shared out, so that minibatches draw them uniformly.
        operations: a rough count for the gradient on one row.
        predictors: how many linear predictors the likelihood sees of each row; 0 if it is not made of a few.
    """

    rows: int
    dimension: int
    streamed: bool
    iterations: int
    replicas: int
    quick: bool
    counted: bool = False
    batch_size: int | None = None
    seconds: float | None = None
    mode: bool | None = None
    why: str = ""
    noise: float | None = None
    bend: float = 0.0
    most_bent: float = 0.0
    square: bool = True
    matrices: int = 0
    folded: bool | None = None
    devices: int = 1
    shared: bool = False
    operations: float = math.inf
    predictors: int = 0

    @property
    def near(self) -> bool:
        """Whether the Laplace approximation is known to be near enough for its coordinates and for starts."""
        return bool(self.mode and self.square and self.noise is not None and self.bend <= CURVED)


class Plan(NamedTuple):
    """What an automatic run does.

    Attributes:
        regime: ``"all data"``, ``"minibatches"``, or ``"predictions"`` for a network.
        sampler: its name.
        options: of the sampler.
        step_size: ε; where the search begins for a sampler that adapts it.
        batch_size: rows per minibatch; None for all data.
        ensembles: how many.
        warmup: iterations before the first draw, or None for what the sampler needs.
        thin: iterations per draw.
        reason: one line for the user.
        num_samples: draws of each replica, if none were asked for.
        hasty: whether a longer run follows, unless the draws are good or that would take too long.
        goes_on: whether the run goes on where a shorter one ended, and keeps its draws.
        cycle: iterations in which the step falls from ε to 0, again and again; 0 for a constant step.
        importance: whether rows of minibatches are drawn by how much they add to the noise; otherwise uniformly.
        predictors: the number of linear predictors through which gradients are computed; 0 for plain gradients.
    """

    regime: Literal["all data", "minibatches", "predictions"]
    sampler: str
    options: Record
    step_size: float
    batch_size: int | None
    ensembles: int
    warmup: int | None
    thin: int
    reason: str
    num_samples: int = DRAWS
    hasty: bool = False
    goes_on: bool = False
    cycle: int = 0
    importance: bool = True
    predictors: int = 0


def decide(facts: Measured) -> Plan | Missing:
    """The plan, or the fact that is needed to make one."""
    what = f"{facts.rows:,} rows, {facts.dimension:,} parameters" if facts.rows else f"{facts.dimension:,} parameters"
    what += f" on {facts.devices} devices" if facts.devices > 1 else ""
    asked = facts.batch_size is not None
    if facts.rows and facts.matrices >= MATRICES and facts.dimension > UNITS:
        if facts.shared:
            alone = "automatic runs of several processes are not made for networks"
            raise ValueError(f"{what}: {alone}; give sampler=, step_size= and batch_size=, or use one process")
        if facts.folded is None:
            return "folded"
        if facts.folded:
            return on_predictions(facts, what)
    if not facts.rows or (facts.quick and not facts.streamed and not asked):
        few = f"{what}: all data at every step, because they are few enough"
        return on_all_data(few if facts.rows else what, facts)
    predicted = math.inf
    if not facts.streamed and not asked:
        if facts.seconds is None:
            return "seconds"
        predicted = facts.seconds * leapfrogs(facts) * facts.iterations
        if predicted <= PATIENCE:
            soon = f"{what}: all data at every step, because that takes about {duration(predicted)}"
            return on_all_data(soon, facts)
    slow = f"all data at every step would take {duration(predicted)}"
    if facts.streamed or asked:
        slow = "the data are streamed" if facts.streamed else "a batch size was given"
    anyway = "although that takes long" if math.isinf(predicted) else f"although that would take {duration(predicted)}"
    if facts.mode is None:
        return "mode"
    if not facts.mode:
        if facts.streamed or asked:
            remedy = "Load the data into memory" if facts.streamed else "Leave batch_size out"
            raise ValueError(
                f"{what}: minibatches need one mode to reduce their noise around, but: {facts.why}. "
                f"{remedy}, or give sampler=, step_size= and batch_size="
            )
        return on_all_data(f"{what}: all data at every step {anyway}, because {facts.why}", facts, slow=True)
    if facts.noise is None:
        return "noise"
    if facts.bend > (BENT if predicted <= LONG else CROOKED) and not facts.streamed and not asked:
        away = f"the posterior is far from normal (its gradient differs by {facts.bend:.1f} from the normal one's)"
        return on_all_data(f"{what}: all data at every step {anyway}, because {away}", facts, slow=True)
    plan = on_minibatches(facts, what, slow)
    shortest = (FIRST_ADAPT + FIRST_DRAWS) * leapfrogs(facts) * facts.replicas  # gradients of a run on all data
    if gradients(plan, facts) > shortest and not facts.streamed and not asked:
        noisy = f"minibatches of {plan.batch_size:,} rows, which their noise asks for, would take longer still"
        return on_all_data(f"{what}: all data at every step {anyway}, because {noisy}", facts, slow=True)
    return plan


def leapfrogs(facts: Measured) -> float:
    """Of a typical transition."""
    return LEAPFROGS * math.sqrt(max(1.0, facts.dimension / STRAIGHTFORWARD))


def gradients(plan: Plan, facts: Measured) -> float:
    """The work of a plan for minibatches, in gradients on all data."""
    iterations = (plan.warmup or 0) + plan.num_samples * plan.thin
    moving = REPLICAS if facts.square else MOVING
    return iterations * (plan.batch_size or facts.rows) / facts.rows * moving * plan.ensembles


def on_all_data(reason: str, facts: Measured, *, slow: bool = False) -> Plan:
    """Trajectories with a Metropolis test; a short run of them first, which is enough for most posteriors."""
    plan = Plan("all data", "ensemble_hmc", {}, 0.5, None, ENSEMBLES, None, 1, reason + TRAJECTORIES)
    if facts.counted and not slow:
        return plan
    options = {"adapt": FIRST_ADAPT} | ({"replicas": FEW_REPLICAS} if slow else {})
    return plan._replace(options=options, num_samples=FIRST_DRAWS, hasty=not facts.counted)


def first_run(plan: Plan, bend: float, uneven: float = math.inf) -> Plan:
    """The plan of a first run on all data with its lengths, by how much the posterior differs from a normal one.

    Args:
        plan: without lengths.
        bend: by how much gradients differ, :class:`hamcmc.inference.nearness.Nearness`.
        uneven: the standard deviation of the log-weights of normal draws, where they may serve as proposals.
    """
    if not plan.hasty:
        return plan
    near = bend <= NORMAL
    if near and uneven <= EVEN:
        reason = plan.reason.removesuffix(TRAJECTORIES) + PROPOSALS
        reason += f": {NORMAL_DRAWS} draws of each replica, because the posterior is nearly normal"
        how = {"sampler": "independence", "options": {}, "warmup": INDEPENDENT_WARMUP, "num_samples": NORMAL_DRAWS}
        return plan._replace(reason=reason, **how)
    if near:
        plan = plan._replace(options=plan.options | {"adapt": NORMAL_ADAPT}, num_samples=NORMAL_DRAWS)
    lengths = f": {plan.options['adapt']} iterations, then {plan.num_samples} draws of each replica"
    why = ", because the posterior is nearly normal" if near else ""
    return plan._replace(reason=plan.reason + lengths + why)


def on_minibatches(facts: Measured, what: str, slow: str) -> Plan:
    """Langevin steps in coordinates that are white at the mode, with a batch that is large enough for their noise.

    Where only a diagonal is known, the ensemble learns what it leaves out. At ε the noise adds ε/(2 − ε) λ/n to a
    variance (:class:`~hamcmc.Noise`), and a posterior that bends away from its Laplace approximation wants smaller
    steps, also if it does so in one coordinate only.
    """
    noise, most = facts.noise or 0.0, max(1, min(LARGEST_BATCH, facts.rows // 2))
    step = min(LARGEST_STEP if facts.square else DIAGONAL_STEP, STRAIGHT / max(facts.bend, facts.most_bent, 1e-9))
    wanted = step / (2 - step) * noise / NOISE
    size = facts.batch_size or min(most, max(SMALLEST_BATCH, 2 ** math.ceil(math.log2(max(wanted, 1)))))
    if wanted > size:  # the batch cannot grow, so the step must shrink
        step = 2 * size * NOISE / (noise + size * NOISE)
    added = step / (2 - step) * noise / size
    order = "second" if facts.square else "first"
    reason = (
        f"{what}: minibatches of {size:,} rows with {order}-order control variates around the mode, ε {step:.2g}, "
        f"because {slow}; the gradient's noise then adds {added:.1%} to a variance at most"
    )
    thin = spacing(step)
    if not facts.square:
        plan = Plan("minibatches", "ensemble_hamcmc", {"metric": "diagonal"}, step, size, ENSEMBLES, None, thin, reason)
        return plan._replace(importance=not facts.shared)
    warmup = settling(step)
    options: dict[str, Any] = {"replicas": REPLICAS}
    plan = Plan("minibatches", "leimkuhler_matthews", options, step, size, ENSEMBLES, warmup, thin, reason)
    plan = plan._replace(importance=not facts.shared)
    draws = facts.iterations if facts.counted else plan.num_samples
    if not facts.predictors or saved(facts, size, warmup + draws * thin) < 0:
        return plan
    seen = "the linear predictor" if facts.predictors == 1 else f"the {facts.predictors} linear predictors"
    reason += f"; gradients by {seen} of each row, because the likelihood sees nothing else and the run is long"
    return plan._replace(reason=reason, predictors=facts.predictors)


def spacing(step: float) -> int:
    """Iterations between draws that are nearly independent; in an ensemble every second iteration is a move."""
    return max(2, round(2 / step))


def settling(step: float) -> int:
    """Iterations of warm-up from starts of the Laplace approximation."""
    return SETTLING * math.ceil(1 / step)


def finer(plan: Plan, bias: float, seconds: float) -> Plan | None:
    """The plan of a run on minibatches with a smaller step, where gradients show that this one's is too large.

    A bias falls with ε, at least in proportion to it. Half of what is tolerated is aimed at.

    Args:
        plan: of a run that is finished.
        bias: the largest error of a parameter that is beyond doubt; 0 if there is none.
        seconds: that the run took. One that would take longer than AFFORDABLE is not made.
    """
    if plan.regime != "minibatches" or not bias > BIASED:
        return None
    step = plan.step_size * max(0.5 * BIASED / bias, 1 / 8)
    thin = plan.thin * spacing(step) // spacing(plan.step_size)
    if seconds * thin / plan.thin > AFFORDABLE:
        return None
    warmup = None if plan.warmup is None else settling(step)
    reason = f"{plan.reason}; a smaller step, ε {step:.2g}, because gradients show errors of {bias:.0%} with this one"
    return plan._replace(step_size=step, thin=thin, warmup=warmup, reason=reason)


def saved(facts: Measured, batch_size: int, iterations: int) -> float:
    """Seconds that gradients by linear predictors save in a run, less those that it takes to prepare their table.

    For each replica, a gradient for any likelihood has four products with the minibatch and one with a D × D matrix
    that are not needed; k predictors have two with their part of the table instead.
    """
    k, d = facts.predictors, facts.dimension
    numbers = facts.rows * k * d  # of the table, which is a product of the design with a D × D matrix
    spent = PREPARING + numbers * (2 * d / SPEED + WRITING)
    less = 2 * REPLICAS * ENSEMBLES * (d**2 + (4 - 2 * k) * batch_size * d)
    return iterations * less / SPEED - spent


def on_predictions(facts: Measured, what: str) -> Plan:
    """SGHMC from several trained networks, with a step size that rows which are held out choose."""
    size = min(facts.batch_size or NETWORK_BATCH, facts.rows)
    reason = (
        f"{what} in {facts.matrices} matrices whose units can be exchanged, as a network's: parameters will not mix, "
        f"so the run is made for predictions. SGHMC from {NETWORKS} networks, minibatches of {size:,} rows"
    )
    draws = max(20, min(NETWORK_DRAWS, STORED // (NETWORKS * facts.dimension)))
    options: dict[str, Any] = {"friction": FRICTION}
    steps = NETWORK_WARMUP * pace(facts.operations), NETWORK_THIN * pace(facts.operations)
    return Plan("predictions", "sghmc", options, 1.0, size, NETWORKS, *steps, reason, draws)


def pace(operations: float) -> int:
    """How many times as many steps as a large network a small one makes: a gradient on a row costs it little."""
    return int(min(max(SMALL // max(operations, 1.0), 1), MOST_PACES))


def longer(plan: Plan, word: str, short: float, seconds: float, numbers: int = KEPT) -> Plan | None:
    """The plan of a longer run, or None where this one is good, or time is not what it lacks.

    Args:
        plan: of a run that is finished.
        word: the verdict on it. A first run must be good and have twice the effective draws that this takes: the
            verdict on few draws is itself uncertain.
        short: how many times as many draws are wanted. Beyond HOPELESS more of the same are of no use.
        seconds: that its iterations took, warm-up included. The longer run is to take no more than AFFORDABLE.
        numbers: that it stored: draws of all chains times parameters. Where so many times as many are still few, a
            longer run on all data stores all of its draws.
    """
    if plan.regime == "predictions" or (word == "good" and (not plan.hasty or short <= PLENTY)):
        return None
    lacked = "had few effective draws" if word == "good" else f"was {word}"
    if word in ("good", "usable") and (more := further(plan, short, seconds, numbers)) is not None:
        return more._replace(reason=f"{plan.reason}; it goes on to {more.num_samples:,}, because these {lacked}")
    wanted = 2 ** math.ceil(math.log2(short)) if 1 < short <= HOPELESS else 1
    affordable = 2 ** math.floor(math.log2(max(AFFORDABLE / max(seconds, 1e-3), 1)))
    room = 2 ** math.floor(math.log2(max(KEPT / max(numbers, 1), 1))) if plan.regime == "all data" else 1
    warm = ""
    if plan.hasty:  # whatever is wrong, the warm-up may have been too short
        least = DRAWS // FIRST_DRAWS
        factor = min(MOST_LONGER, max(wanted, least), affordable)
        if factor < least:
            return None
        warm = f"ensemble_hmc with {ADAPT} iterations of warm-up, and "
        room = max(1, room * plan.num_samples // FIRST_DRAWS)
        plan = plan._replace(options=plan.options | {"adapt": ADAPT}, num_samples=FIRST_DRAWS, hasty=False)
        plan = plan._replace(sampler="ensemble_hmc", warmup=None, goes_on=False)  # whatever the first run was
    else:
        factor = min(MOST_LONGER // plan.thin if plan.regime == "all data" else MOST_LONGER, wanted, affordable)
        if factor <= 1:
            return None
    stored = min(room, factor)
    plan = plan._replace(thin=factor * plan.thin // stored, num_samples=stored * plan.num_samples)
    every = f"one iteration in {plan.thin} is stored" if plan.thin > 1 else "every iteration is stored"
    lengths = f", {plan.num_samples:,} draws of each replica" if stored > 1 else ""
    return plan._replace(reason=f"{plan.reason}; {warm}{every}{lengths}, because a shorter run {lacked}")


def further(plan: Plan, short: float, seconds: float, numbers: int) -> Plan | None:
    """The plan by which a first run on all data goes on, or None where it must not, or cannot.

    Its chains agree, so that its warm-up was long enough, and nothing that it has drawn is lost. All that follows must
    find room. Proposals from the normal approximation go on only once: where they are seldom accepted, trajectories are
    better.
    """
    independent = plan.sampler == "independence"
    if not plan.hasty or plan.thin != 1 or (independent and (plan.goes_on or short > EASY)):
        return None
    wanted = max(2, 2 ** math.ceil(math.log2(max(short / PLENTY, 1))))
    room, affordable = (
        2 ** math.floor(math.log2(max(x, 1))) for x in (KEPT / max(numbers, 1), AFFORDABLE / max(seconds, 1e-3))
    )
    factor = min(wanted, MOST_LONGER, affordable)
    if factor < 2 or factor > room:
        return None
    return plan._replace(num_samples=factor * plan.num_samples, goes_on=True)


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
