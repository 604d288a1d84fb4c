"""The automatic run: measure what the plan asks for, and make posterior, sampler and starts as it says."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from hamcmc import _processes, _work, samplers
from hamcmc._compile import jit
from hamcmc._types import Facts, PyTree, Record
from hamcmc.inference import network, recognise
from hamcmc.inference.arguments import Init, init_of, warmup_of
from hamcmc.inference.checks import check_shapes
from hamcmc.inference.job import batch_size_of, parameters, storable
from hamcmc.inference.modes import surveyed
from hamcmc.inference.nearness import Nearness
from hamcmc.inference.plan import FIRST_ADAPT, Measured, Plan, decide, first_run, pace
from hamcmc.inference.progress import Progress, tell
from hamcmc.inference.starts import DENSE, Search
from hamcmc.samplers.base import Sampler
from hamcmc.samplers.registry import takes
from hamcmc.store.checkpoint import Checkpoint
from hamcmc.store.files import reading
from hamcmc.target.estimators import SecondOrder, control_variate
from hamcmc.target.mode import Laplace, approximated, prepared
from hamcmc.target.noise import gradient_noise
from hamcmc.target.posterior import Posterior
from hamcmc.target.predicted import Predicted, predictors_of
from hamcmc.target.sharded import shards_of, spread
from hamcmc.target.whitened import WhiteAtAnchor, Whitened

QUICK = 2e7  # operations of one gradient of all replicas, below which all data are affordable without a measurement

TIMED = 2**16  # rows, of which a gradient is timed; of more it takes in proportion

LEFT_OUT = "; no replica starts at modes with less than e⁻¹² of the mass, of which there are some"


class Prepared(NamedTuple):
    """All that an automatic run needs.

    Attributes:
        posterior: in whitened coordinates.
        sampler: made for it.
        starts: positions of all replicas, (ensemble · replica, D).
        plan: what was decided.
        arrays: what the plan needs to be made again.
        account: what was spent, for the record.
        search: finds coordinates and starts, if those here only have the right shapes. While it works, the program of
            the run may be compiled.
    """

    posterior: Whitened
    sampler: Sampler
    starts: np.ndarray
    plan: Plan
    arrays: dict[str, np.ndarray]
    account: Record
    search: Callable[[], "Prepared"] | None = None


def prepare(
    posterior: Posterior,
    init: Any,
    *,
    iterations: int,
    counted: bool,
    ensembles: int | None,
    batch_size: int | None,
    seed: int,
    options: Record,
    progress: bool | Progress | None = False,
    cyclical: bool = False,
) -> Prepared:
    """Measure and decide. Around a mode there are starts at once, otherwise they are still to be searched for."""
    began = time.perf_counter()
    if posterior.mirror is not None:
        raise ValueError(
            "an automatic run cannot fold parameters by a mirror: use hamcmc.positive() or hamcmc.bounded(…) with "
            "by='bijection', or give sampler= and step_size="
        )
    given = posterior.init if init is None else init
    if given is None:
        raise ValueError(
            "init is missing: say what the parameters look like, as Posterior(…, init=…) or sample(…, init=…). "
            "Zeros of the right shapes will do for most models"
        )
    begin = parameters(given, jax.random.key(seed))
    like = posterior.unconstrain(begin)
    check_shapes(posterior, like, None)
    shards = shards_of(posterior)
    usual = {} if counted else {"adapt": FIRST_ADAPT}
    usual |= {k: v for k, v in options.items() if takes("ensemble_hmc", k)}
    trial = samplers.build("ensemble_hmc", posterior, **usual)
    work = operations(posterior, like)
    facts = Measured(
        rows=posterior.size,
        dimension=ravel_pytree(like)[0].size,
        streamed=posterior.streamed,
        iterations=iterations + trial.warmup,
        counted=counted,
        replicas=trial.replicas * (ensembles or 2),
        quick=work * trial.replicas * (ensembles or 2) < QUICK,
        batch_size=batch_size_of(batch_size, posterior) if batch_size is not None else None,
        matrices=recognise.weight_matrices(like),
        devices=1 if shards is None else shards.mesh.size,
        shared=shards is not None,
        operations=work / max(posterior.size, 1),
    )
    found: Laplace | None = None
    estimated: Posterior | None = None
    while isinstance(plan := decide(facts), str):
        if plan == "folded":
            tell(progress, "looking for units")
            exchangeable = recognise.exchangeable(posterior, like, seed)
            facts = facts._replace(folded=exchangeable and recognise.folded(posterior, like, seed))
        elif plan == "seconds":
            tell(progress, "timing the gradient")
            facts = facts._replace(seconds=gradient_seconds(posterior, like, facts.replicas))
        elif plan == "mode":
            tell(progress, "looking for the mode")
            passes, _ = prepared(posterior, begin, seed)
            needed = facts.streamed or facts.batch_size is not None
            found = approximated(passes, like, seed=seed, patient=needed)
            tell(progress, "looking for other modes")
            if shards is None:
                found = surveyed(passes, found, passes.flat(like), seed)
            else:  # the same coordinates whatever the number of processes
                found = surveyed(passes, found.triangular(), passes.flat(like), seed).triangular()
            square = found.precision.ndim == 2
            facts = facts._replace(mode=found.converged, why=found.reason, square=square)
        elif found is not None:
            tell(progress, "measuring the noise of minibatches")
            estimated = reduced(posterior, found, shards is None)
            noise = gradient_noise(estimated, found, seed=seed)
            facts = facts._replace(noise=noise.largest, bend=noise.bend, most_bent=noise.most_bent)
    could = decide(facts._replace(predictors=1))  # where one would not pay, none is looked for
    pays = isinstance(could, Plan) and could.predictors and isinstance(estimated, SecondOrder)
    if pays and (seen := predictors_of(posterior, like)) is not None:
        plan = cast(Plan, decide(facts._replace(predictors=seen.number)))
    plan = agreed(plan)._replace(ensembles=ensembles or plan.ensembles, options=plan.options | options)
    plan = plan._replace(hasty=plan.hasty and "adapt" not in options)
    if plan.regime == "predictions":
        return for_predictions(posterior, like, plan, seed, progress, began, pace(facts.operations), cyclical)
    if cyclical:
        raise ValueError(
            'step_size="cyclical" is for networks, and this posterior is none: leave it out, or give a sampler and '
            "hamcmc.Cyclical(step_size, period)"
        )
    replicas = samplers.build(plan.sampler, posterior, **plan.options).replicas
    spent = time.perf_counter() - began
    if found is not None and (plan.regime == "minibatches" or facts.near):
        arrays, plan = around_mode(found, plan, replicas, seed), first_run(plan, facts.bend)
        return assemble(posterior, like, plan, arrays, {"gradients": found.gradients, "seconds": spent}, estimated)
    tell(progress, "finding starts")
    began = time.perf_counter()
    searching = Search(posterior, begin, seed)
    spent += time.perf_counter() - began

    def first(near: Nearness) -> Plan:
        """The plan of the first run. Somebody who gives options of ensemble_hmc wants it."""
        return first_run(plan, near.bend, np.inf if options else near.uneven)

    def search() -> Prepared:
        """Starts, and coordinates in which the posterior's scales are alike."""
        began = time.perf_counter()
        made = searching.starts(plan.ensembles, replicas)
        settled = first(made.nearness)
        settled = settled._replace(reason=settled.reason + LEFT_OUT) if made.left_out else settled
        arrays = {"centre": made.centre, "root": made.root, "white": made.white}
        account = {"gradients": made.gradients, "seconds": spent + time.perf_counter() - began}
        return assemble(posterior, like, settled, arrays, account)

    flat = searching.first
    root = np.eye(flat.size) if flat.size <= DENSE else np.ones(flat.size)
    arrays = {"centre": flat, "root": root, "white": np.zeros((plan.ensembles, replicas, flat.size))}
    return assemble(posterior, like, first(searching.nearness), arrays, {})._replace(search=search)


def agreed(plan: Plan) -> Plan:
    """The plan of the first process: a last digit of what was measured must not part the processes."""
    if not _processes.several():
        return plan
    return Plan(**json.loads(_processes.text(json.dumps(plan._asdict()))))


def for_predictions(
    posterior: Posterior,
    like: PyTree,
    plan: Plan,
    seed: int,
    progress: bool | Progress | None,
    began: float,
    paces: int = 1,
    cyclical: bool = False,
) -> Prepared:
    """Networks to start from, scales, and steps that held-out rows chose."""
    size = plan.batch_size or posterior.size
    found = network.search(posterior, like, plan.ensembles, size, paces, seed, partial(tell, progress), cyclical)
    given = "all from the given one, which predicts these rows better than those trained here (or has seen them)"
    where = given if found.given else "trained here"
    said = found.scores
    kinds = "a constant step", "steps in cycles"
    taken, other = kinds[::-1] if found.cycle else kinds
    left = said.constant if found.cycle else said.cyclical
    reason = (
        f"{plan.reason}, {where}; {taken}, ε {found.step_size:.2g}, by {said.sampled:.3f} nats for a row that was held "
        f"out ({other} {left:.3f}, trained networks {said.single:.3f}, their average {said.together:.3f})"
    )
    arrays = {"centre": np.zeros(found.root.size), "root": found.root, "white": found.starts[:, None]}
    spent = {"seconds": time.perf_counter() - began}
    plan = plan._replace(step_size=found.step_size, cycle=found.cycle, reason=reason)
    return assemble(posterior, like, plan, arrays, network.account(found) | spent)


def around_mode(found: Laplace, plan: Plan, replicas: int, seed: int) -> dict[str, np.ndarray]:
    """What a run on minibatches needs of the Laplace approximation: its map, its starts, and the anchor's sums."""
    white = np.random.default_rng(seed).standard_normal((plan.ensembles, replicas, found.dimension))
    arrays = {"centre": found.flat, "root": found.root, "white": white, "mean_grad": np.array(found.mean_grad)}
    return arrays | ({} if found.mean_hessian is None else {"mean_hessian": found.mean_hessian})


def reduced(posterior: Posterior, found: Laplace, importance: bool) -> Posterior:
    """The posterior with the estimator that the plan has in mind for minibatches.

    Rows that processes share are drawn uniformly: chances that the processes computed would differ in their last digits
    with the number of processes, and so would the rows.
    """
    return control_variate(posterior, found, order=1 if found.mean_hessian is None else 2, importance=importance)


def assemble(
    posterior: Posterior,
    like: PyTree,
    plan: Plan,
    arrays: dict[str, np.ndarray],
    account: Record,
    estimated: Posterior | None = None,
) -> Prepared:
    """Posterior, sampler and starts from what was decided and found.

    `estimated` is the posterior with the plan's estimator, if it was made before. It needs a pass over all data.
    """
    if plan.regime != "minibatches":
        estimated = posterior
    elif estimated is None:
        estimated = reduced(posterior, kept_laplace(posterior, like, arrays), plan.importance)
    second, estimated = isinstance(estimated, SecondOrder), spread(estimated)
    predictors = predictors_of(posterior, like, crowded=True) if second and plan.predictors else None
    if predictors is not None:
        white = Predicted(estimated, like, arrays["root"], predictors)  # type: ignore[arg-type]
    elif second:
        white = WhiteAtAnchor(estimated, like, arrays["root"])  # type: ignore[arg-type]
    else:
        white = Whitened(estimated, like, arrays["centre"], arrays["root"])
    sampler = samplers.build(plan.sampler, white, **plan.options)
    z = arrays["white"]
    starts = z.reshape(-1, z.shape[-1]).astype(white.centre.dtype)
    return Prepared(white, sampler, starts, plan, arrays, account)


def kept_laplace(posterior: Posterior, like: PyTree, arrays: dict[str, np.ndarray]) -> Laplace:
    """The Laplace approximation from the arrays of :func:`around_mode`."""
    flat, unravel = ravel_pytree(like)
    position = unravel(jnp.asarray(arrays["centre"], flat.dtype))
    root = arrays["root"]
    inverse = 1 / root if root.ndim == 1 else np.linalg.inv(root)
    precision = inverse**2 if root.ndim == 1 else inverse.T @ inverse
    return Laplace(
        mode=posterior.constrain(position),
        position=position,
        precision=precision,
        root=root,
        inverse_root=inverse,
        converged=True,
        reason="",
        decrement=0.0,
        mean_grad=arrays["mean_grad"],
        mean_hessian=arrays.get("mean_hessian"),
        gradients=0.0,
        seconds=0.0,
    )


def operations(posterior: Posterior, like: PyTree) -> float:
    """A rough count of the operations of one gradient on all data."""
    if posterior.streamed:
        return np.inf
    if (shards := shards_of(posterior)) is not None:  # each device works on its own rows
        return _processes.told(operations(shards.share.held, like)) / max(1, jax.local_device_count())
    shape = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), like)
    return _work.operations(jax.grad(posterior.log_density), shape, posterior.data)


def gradient_seconds(posterior: Posterior, like: PyTree, replicas: int) -> float:
    """The time of one gradient on all data for so many replicas; the better of two measurements, on a part of many."""
    evaluate = jit(jax.vmap(jax.value_and_grad(posterior.log_density), (0, None)))
    positions = jax.tree.map(lambda x: jnp.repeat(x[None], replicas, 0), like)
    rows = posterior.size if shards_of(posterior) else min(posterior.size, TIMED)
    part = posterior.data if rows == posterior.size else posterior.part(0, rows)
    jax.block_until_ready(evaluate(positions, part))
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(evaluate(positions, part))
        taken.append(time.perf_counter() - began)
    return _processes.told(min(taken)) * posterior.size / rows


def planned_before(
    posterior: Posterior, init: Init | None, asked: Facts, checkpoint: Checkpoint | None, path: Path
) -> Prepared:
    """What an automatic run was prepared with, from its checkpoint; made anew if it never wrote one."""
    with reading(path / "run.json"):
        plan = Plan(**{k: asked["plan"][k] for k in Plan._fields if k in asked["plan"]})
    kept = {k.removeprefix("kept."): v for k, v in (checkpoint.arrays if checkpoint else {}).items() if "kept." in k}
    start = init_of(posterior, init)
    if not kept:
        how = {"ensembles": asked["ensembles"], "batch_size": plan.batch_size, "seed": asked["seed"]}
        iterations = asked["num_samples"] * asked["thin"] // plan.thin
        how |= {"options": plan.options, "counted": not plan.hasty}
        made = prepare(posterior, start, iterations=iterations, **how)
        return (made.search() if made.search else made)._replace(plan=plan)
    like = posterior.unconstrain(parameters(start, jax.random.key(asked["seed"])))
    return assemble(posterior, like, plan, kept, {})


def planned(plan: Plan, sampler: Sampler, warmup: int | None, num_samples: int | None) -> Record:
    """The settings that a plan decides, as far as nobody asked for something else."""
    steps = warmup_of(sampler, plan.warmup if warmup is None else warmup)
    found = {"plan": plan._asdict(), "warmup": steps, "options": storable(plan.options)}
    return found | ({"num_samples": plan.num_samples} if num_samples is None else {})


def say_plan(plan: Plan, progress: bool | Progress | None) -> None:
    """Show the plan's reason, and that the run is made ready next; a function that asks for progress gets both."""
    tell(progress, "plan", note=plan.reason)
    tell(progress, "compiling")
