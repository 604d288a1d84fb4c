"""Our samplers in BlackJAX's loop, and BlackJAX's algorithms in ours.

The two libraries agree on what a gradient estimator is: the gradient of the log-density with the factor N/n inside.
They also agree on SGLD's step size: ε multiplies the drift and the noise has variance 2ε. The step h of BlackJAX's
SGHMC and SGNHT is the leapfrog step, which in our symbols is √(2ε).
"""

import hashlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from hamcmc._require import needs
from hamcmc._types import Facts, PyTree, Record
from hamcmc.inference.job import batch_size_of
from hamcmc.inference.schedules import as_schedule
from hamcmc.samplers.base import Sampler, norm
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior

if TYPE_CHECKING:
    from blackjax import SamplingAlgorithm

STATS = {  # BlackJAX's names → ArviZ's
    "is_divergent": "diverging",
    "num_integration_steps": "n_steps",
    "num_trajectory_expansions": "tree_depth",
}


def to_blackjax(
    sampler: Sampler,
    posterior: Posterior | None = None,
    *,
    step_size: float | Callable[[Array], Any] | None = None,
    batch_size: int | None = None,
    replace: bool = True,
) -> "SamplingAlgorithm":
    """One of our samplers as a ``blackjax.SamplingAlgorithm``.

    With a posterior, a step draws its minibatch and looks up its step size itself: ``step(rng_key, state) -> (state,
    info)``. ``blackjax.util.run_inference_algorithm`` and everything else that is written for BlackJAX's kernels takes
    it. Without a posterior it has the form of BlackJAX's stochastic gradient samplers: ``step(rng_key, state,
    minibatch, step_size) -> state``. The draw is ``state.position``, unconstrained: ``posterior.constrain`` gives the
    parameters.

    Args:
        sampler: a sampler such as ``hamcmc.sgld(posterior.grad)``. For an ensemble, positions have a leading axis of
            replicas.
        posterior: the posterior whose data the minibatches are drawn from.
        step_size: a number, or a function of the step's number; ε is the drift's factor, 2ε the noise's variance.
        batch_size: data per minibatch; None for all data.
        replace: draw minibatches with replacement; otherwise walk through random permutations, which are the same in
            every chain.
    """
    with needs("BlackJAX", "blackjax"):
        from blackjax import SamplingAlgorithm

    def init(position: PyTree, rng_key: Array | None = None):
        return sampler.init(jax.tree.map(jnp.asarray, position))

    def step(rng_key, state, batch, step_size):
        return sampler.step(rng_key, state, batch, step_size)[0]

    if posterior is None:
        if step_size is not None or batch_size is not None:
            raise ValueError(
                "step_size and batch_size go with a posterior; without one, they are arguments of each step"
            )
        return SamplingAlgorithm(init, step)  # type: ignore[arg-type]
    if step_size is None:
        raise ValueError("step_size must be given along with a posterior")
    if posterior.streamed:
        raise ValueError("streamed (memory-mapped) data are for hamcmc.sample: BlackJAX's loop cannot read them")
    schedule, rows = as_schedule(step_size), batch_size_of(batch_size, posterior)
    walk = jax.random.key(0)  # the permutations must not change from step to step

    def draw(rng_key, state):
        batch_key, step_key = jax.random.split(rng_key)
        data = posterior.data
        if rows is not None:
            key = batch_key if replace else walk
            data = minibatch.gather(data, posterior.minibatch_indices(key, state.step, rows, replace))
        return sampler.step(step_key, state, data, schedule(state.step))

    return SamplingAlgorithm(init, draw)  # type: ignore[arg-type]


class BlackJAXState(NamedTuple):
    """The state of a BlackJAX algorithm, and the number of steps taken."""

    inner: Any
    step: Array

    @property
    def position(self) -> PyTree:
        """The newest draw, which for some algorithms is the whole state."""
        return getattr(self.inner, "position", self.inner)


class BlackJAXInfo(NamedTuple):
    """The length of a step."""

    move_norm: Array


def from_blackjax(
    algorithm: "SamplingAlgorithm",
    *,
    name: str | None = None,
    settings: Facts | None = None,
    gradients_per_step: int = 1,
    **options: Any,
) -> Sampler:
    """A BlackJAX algorithm as a sampler for :func:`hamcmc.sample`: chains, checkpoints, resume, ArviZ.

    ``from_blackjax(blackjax.sgld(posterior.grad))`` takes each step on our loop's minibatch, with our loop's step size.
    ε of ``sgld`` and ``csgld`` is ours (drift ε, noise variance 2ε). ``sghmc`` and ``sgnht`` take h = √(2ε): to run
    them at our ε, give ``step_size=math.sqrt(2 * ε)``. N/n is inside ``posterior.grad``.

    A kernel on all data, such as ``blackjax.nuts(lambda x: posterior.log_density(x, posterior.data), step_size=…,
    inverse_mass_matrix=…)``, has its own step size: run it with ``step_size=1``, which then has no effect, and
    without a `batch_size`.

    Positions are unconstrained, and a posterior's mirror is not applied: use bijections. To resume a run, give
    :func:`hamcmc.resume` the same sampler. It compares the hyper-parameters that it can see in the algorithm; add the
    others by `settings`.

    Args:
        algorithm: a ``blackjax.SamplingAlgorithm``: ``step`` takes (key, state, minibatch, step_size) and returns a
            state, or takes (key, state) and returns a state and an info.
        name: for the record; by default the name of BlackJAX's module.
        settings: hyper-parameters for the record.
        gradients_per_step: minibatch gradients that a step evaluates, for cost accounts.
        **options: further arguments of its step, such as ``temperature`` or ``step_size_stoch``.
    """
    all_data = len(inspect.signature(algorithm.step).parameters) == 2
    if all_data and options:
        raise ValueError(f"{', '.join(options)}: a step of this algorithm takes a key and a state alone")

    def start(position: PyTree, key: Array) -> PyTree:
        inner = jax.tree.map(jnp.asarray, algorithm.init(position, key))
        if any(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(inner)):
            raise ValueError("this algorithm keeps a random key in its state, which a checkpoint cannot hold")
        return inner

    def init(position: PyTree) -> BlackJAXState:
        return BlackJAXState(start(position, jax.random.key(0)), jnp.zeros((), jnp.int32))

    def step(key, state: BlackJAXState, batch: PyTree, step_size) -> tuple[BlackJAXState, Any]:
        inner = state.inner
        if _random(start, state.position):  # chains must not start with the same momentum
            key, start_key = jax.random.split(key)
            inner = lax.cond(state.step == 0, lambda: start(state.position, start_key), lambda: inner)
        if all_data:
            new, info = algorithm.step(key, inner)
        else:
            new, info = algorithm.step(key, inner, batch, step_size, **options), None  # type: ignore[call-arg]
        new = BlackJAXState(jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, inner), state.step + 1)
        move = norm(jax.tree.map(jnp.subtract, new.position, state.position))
        return new, BlackJAXInfo(move) if info is None else _stats(info) | {"move_norm": move}

    record = {"sampler": name or _name(algorithm), "hyper_parameters": _hyper_parameters(algorithm.step)}
    return Sampler(
        init=init,
        step=step,
        settings=record | options | dict(settings or {}),
        gradients_per_step=gradients_per_step,
        needs_all_data=all_data,
    )


def _random(start: Callable, position: PyTree) -> bool:
    """Whether a start depends on its key."""
    program = jax.make_jaxpr(start)(position, jax.random.key(0)).jaxpr
    key = program.invars[-1]
    return any(v is key for equation in program.eqns for v in equation.invars)


def _stats(info: Any) -> dict[str, Array]:
    """The numbers in an info, by ArviZ's names."""
    fields: Record = info._asdict() if hasattr(info, "_asdict") else {}
    return {STATS.get(k) or k: jnp.asarray(v) for k, v in fields.items() if isinstance(v, Array) and v.ndim == 0}


def _parts(function: Callable) -> Record:
    """The variables that a function closes over."""
    return inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}  # type: ignore[return-value]


def _is_theirs(value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__.startswith("blackjax.")


def _name(algorithm: "SamplingAlgorithm") -> str:
    functions = (algorithm.step, *_parts(algorithm.step).values())
    homes = [f.__module__ for f in functions if _is_theirs(f) and f.__module__ != "blackjax.base"]
    return f"blackjax.{homes[0].rpartition('.')[2]}" if homes else "blackjax"


def _hyper_parameters(function: Callable) -> Record:
    """The numbers and arrays that BlackJAX's functions close over; arrays are given by a digest."""
    found: Record = {}

    def look(label: str, value: Any) -> None:
        if isinstance(value, int | float | str):
            found[label] = value
        elif isinstance(value, np.ndarray | Array):
            found[label] = hashlib.sha256(np.asarray(value).tobytes()).hexdigest()[:16]
        elif isinstance(value, tuple):
            for i, part in enumerate(value):
                look(f"{label}.{i}", part)
        elif _is_theirs(value):
            for name, part in _parts(value).items():
                look(name, part)

    for name, part in _parts(function).items():
        look(name, part)
    return found
