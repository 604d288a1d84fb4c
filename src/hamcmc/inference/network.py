"""Automatic runs on networks, where predictions matter and parameters mean nothing by themselves.

The posterior of a network has modes that no chain can travel between, and more parameters than a metric can be learned
for. Such a run is therefore judged by what it predicts. A tenth of the rows is held out, and on the others

1. several networks are trained by Adam: the given one, and some that are drawn anew. Of each, the weights are kept that
   predicted the held-out rows best on the way;
2. scales are taken from the curvature of the prior and from the mean squares of the last gradients, which estimate
   the likelihood's;
3. SGHMC runs from all networks with three step sizes, as shares of the largest that the steepest direction allows, and
   with steps that fall in cycles from twice the best of them, which is the same on average. What predicts the held-out
   rows best is taken.

The run itself then goes on from there on all rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from hamcmc import samplers
from hamcmc._compile import jit
from hamcmc._random import below
from hamcmc._types import PyTree, Record
from hamcmc.inference.curvatures import flat_view, largest_curvature, prior_curvature, some_rows
from hamcmc.inference.plan import FRICTION
from hamcmc.inference.schedules import Cyclical
from hamcmc.target import minibatch
from hamcmc.target.posterior import Posterior
from hamcmc.target.whitened import Whitened

HELD, FEWEST_HELD, MOST_HELD = 0.1, 20, 2000  # share of the rows that is held out, and limits of their number
EPOCHS, LEAST_STEPS, MOST_STEPS = 30, 2000, 20_000  # of training
RATE = 5e-3  # of Adam at the beginning; it falls to 0
LOOKS = 20  # at the held-out rows, in training
LAST = 0.005  # the weight of the last minibatch in what is remembered of training
TRIAL, BETWEEN = 450, 20  # steps with each step size, and from one prediction to the next
SHARES = (0.05, 0.2, 0.8)  # ε times the largest curvature
LOOKED_AT = 2048  # rows on which curvatures are measured
FLATTEST = 1e-6  # the smallest precision, as a share of the largest
BETTER = 0.1  # nats per row that a given network has to be better than one trained here, to be the start of all chains

Tell = Callable[[str], None]


class Scores(NamedTuple):
    """Mean log-densities of rows that were held out.

    Attributes:
        single: of the trained networks, one by one. These rows have chosen them, so it is a little too good.
        together: of their average.
        sampled: of the average over draws.
        constant: the same with the best constant step.
        cyclical: the same with steps in cycles.
    """

    single: float
    together: float
    sampled: float
    constant: float
    cyclical: float


class Found(NamedTuple):
    """What a run on a network needs.

    Attributes:
        step_size: ε, in the coordinates of `root`; where each cycle begins, if there are any.
        cycle: steps of a cycle; 0 for a constant step.
        root: (D,), the scale of each parameter.
        starts: (chain, D), in units of these scales.
        scores: on rows that were held out.
        given: whether all chains start from the network that was given.
        gradients: gradients on all data that the search was worth.
    """

    step_size: float
    cycle: int
    root: np.ndarray
    starts: np.ndarray
    scores: Scores
    given: bool
    gradients: float


class Tried(NamedTuple):
    """A trial of a step size: what held-out rows say, ε, whether it fell in cycles, and where the chains ended."""

    score: float
    step_size: float
    cycles: bool
    ends: Array


def search(
    posterior: Posterior,
    like: PyTree,
    chains: int,
    batch_size: int,
    paces: int,
    seed: int,
    tell: Tell,
    cyclical: bool = False,
) -> Found:
    """Train, find scales, and choose ε by predictions of rows that are held out.

    Args:
        posterior: of the network's parameters.
        like: the given position, unconstrained.
        chains: how many networks.
        batch_size: rows of a minibatch.
        paces: how many times as many steps as a large network this one makes.
        seed: everything random follows from it.
        tell: called with what is being done.
        cyclical: take steps in cycles, whatever held-out rows say.
    """
    if posterior.streamed:
        raise ValueError(
            "an automatic run on a network needs its data in memory, because it learns scales and steps from all of "
            'them: load them, or give sampler="sghmc", step_size= and batch_size='
        )
    rng = np.random.default_rng(seed)
    training, held = divided(posterior.data, rng)
    known = posterior.on(training)
    size = min(batch_size, known.size)
    flat = flat_view(known, like)
    given = ravel_pytree(like)[0]
    redrawn = [ravel_pytree(drawn_anew(like, rng))[0] for _ in range(chains)]
    blank = all(float(jnp.std(x)) == 0 for x in jax.tree.leaves(like) if jnp.ndim(x) >= 2)
    starts = jnp.stack([redrawn[0] if blank else given, *redrawn[1:]])
    keys = jax.random.split(jax.random.key(seed), 3)

    tell("training networks")
    steps = training_steps(known.size, size, paces)
    trained, squares, values = trainer(flat, size, steps)(starts, known.data, keys[0], held)
    trained, kept = _from_given(flat, given, blank, trained, np.asarray(values), known, size)
    precision = prior_curvature(flat, trained[0], seed) + known.size * size * jnp.mean(squares, 0)
    precision = jnp.maximum(precision, FLATTEST * jnp.max(precision))
    root = 1 / jnp.sqrt(precision)

    white = Whitened(known, like, np.zeros(given.size), np.asarray(root))
    looked_at = some_rows(known.data, LOOKED_AT)
    steepest = jit(lambda z, rows: jnp.max(jax.vmap(lambda x: largest_curvature(white, x, rows, seed))(z)))
    trial_steps = TRIAL * paces
    trial = tried(white, size, trial_steps)
    z = trained * jnp.sqrt(precision)
    before = jax.vmap(lambda x: white.log_predictive(white.constrain(x), held))(z)
    together = float(jnp.mean(jax.nn.logsumexp(before, 0) - jnp.log(chains)))

    tell("trying step sizes")
    limit = float(steepest(z, looked_at))

    def scored(number: int, epsilon: float, depth: float) -> Tried:
        """A trial from where the chains are."""
        ends, score = trial(z, epsilon, depth, known.data, held, jax.random.fold_in(keys[1], number))
        return Tried(float(score) if bool(jnp.isfinite(ends).all()) else -np.inf, epsilon, bool(depth), ends)

    constant = [scored(0, SHARES[0] / limit, 0.0)]
    if np.isfinite(constant[0].score):  # from here on draws are typical, and so is their curvature
        z, limit = constant[0].ends, float(steepest(constant[0].ends, looked_at))
    constant += [scored(number, share / limit, 0.0) for number, share in enumerate(SHARES[1:], 1)]
    steady = max(constant, key=lambda t: t.score)
    waves = scored(len(SHARES), 2 * steady.step_size, 1.0)
    taken = waves if cyclical or waves.score > steady.score else steady
    if not np.isfinite(taken.score):
        how = "with steps in cycles" if cyclical and np.isfinite(steady.score) else "with every step size"
        raise ValueError(
            f"SGHMC left the finite numbers {how} from the trained networks: "
            "look at log_prior and log_likelihood, or sample a part of the network with sampled=[…]"
        )
    work = (steps + (len(SHARES) + 1) * trial_steps) * chains * size / posterior.size
    scores = Scores(float(jnp.mean(before)), together, taken.score, steady.score, waves.score)
    cycle = cycle_of(trial_steps) if taken.cycles else 0
    return Found(taken.step_size, cycle, np.asarray(root, np.float64), np.asarray(taken.ends), scores, kept, work)


def divided(data: PyTree, rng: np.random.Generator) -> tuple[PyTree, PyTree]:
    """Rows to train on, and rows that are held out."""
    size = len(jax.tree.leaves(data)[0])
    held = int(np.clip(round(HELD * size), FEWEST_HELD, MOST_HELD))
    if held > size // 2:
        raise ValueError(f"{size} rows are too few to hold {FEWEST_HELD} of them out: give sampler= and step_size=")
    order = rng.permutation(size)

    def at(rows: np.ndarray) -> PyTree:
        """Some of the rows."""
        return jax.tree.map(lambda x: jnp.asarray(x)[rows], data)

    return at(np.sort(order[held:])), at(np.sort(order[:held]))


def drawn_anew(like: PyTree, rng: np.random.Generator) -> PyTree:
    """Parameters with the means and standard deviations of the given ones, leaf by leaf.

    A matrix that is constant, as zeros are, is drawn with a standard deviation of one over the root of its longer side.
    """

    def one(x: Array) -> Array:
        """A leaf like another one."""
        given = np.asarray(x)
        sd = float(given.std())
        if sd == 0 and given.ndim >= 2:
            sd = 1 / np.sqrt(max(given.shape))
        return jnp.asarray(given.mean() + sd * rng.standard_normal(given.shape), given.dtype) if sd else jnp.asarray(x)

    return jax.tree.map(one, like)


def training_steps(rows: int, size: int, paces: int) -> int:
    """For so many rows, of which a minibatch has `size`."""
    return int(np.clip(EPOCHS * rows // size, LEAST_STEPS * paces, MOST_STEPS))


def trainer(flat: Posterior, size: int, steps: int) -> Callable[..., tuple[Array, Array, Array]]:
    """Build ``train(starts, data, key, held=None)``: Adam on minibatches for each start, side by side.

    It returns positions (chain, D), mean squares of the gradient of −log p / N, and log p / N, both over the last
    minibatches. With rows that are held out, all three are from when these were predicted best, otherwise from the end.
    """
    import optax  # it takes a while

    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    length = flat.size

    @jit
    def train(starts: Array, data: PyTree, key: Array, held: PyTree = None) -> tuple[Array, Array, Array]:
        def one(x: Array, key: Array) -> tuple[Array, Array, Array]:
            """One network."""

            def turn(t: Array, carry: tuple) -> tuple:
                x, state, squares, mean = carry
                rows = minibatch.gather(data, minibatch.draw(key, t, length, size, True))
                value, g = jax.value_and_grad(lambda x: -flat.log_density(x, rows) / length)(x)
                updates, state = optimizer.update(g, state, x)
                squares, mean = squares + LAST * (g * g - squares), mean + LAST * (value - mean)
                return optax.apply_updates(x, updates), state, squares, mean

            def stretch(k: Array, both: tuple) -> tuple:
                """Training up to the next look, and what was best so far."""
                carry, best = both
                carry = lax.fori_loop(k * steps // LOOKS, (k + 1) * steps // LOOKS, turn, carry)
                x, _, squares, mean = carry
                score = k.astype(x.dtype) if held is None else jnp.mean(flat.log_predictive(flat.constrain(x), held))
                now = score, x, squares, -mean
                return carry, jax.tree.map(lambda new, old: jnp.where(score >= best[0], new, old), now, best)

            none, nothing = jnp.zeros_like(x), jnp.zeros((), x.dtype)
            begin = (x, optimizer.init(x), none, nothing), (nothing - jnp.inf, x, none, nothing)  # NaN is never better
            return lax.fori_loop(0, LOOKS, stretch, begin)[1][1:]

        return jax.vmap(one)(starts, jax.random.split(key, len(starts)))

    return train


def _from_given(
    flat: Posterior, given: Array, blank: bool, trained: Array, values: np.ndarray, known: Posterior, size: int
) -> tuple[Array, bool]:
    """The networks to begin with: all of them as given, if training here came nowhere near."""
    if blank:
        return trained, False
    rows = some_rows(known.data, LOOKED_AT)
    own = float(jit(lambda x, rows: flat.log_density(x, rows) / known.size)(given, rows))
    if own > values[1:].max(initial=-np.inf) + BETTER:
        return jnp.broadcast_to(given, trained.shape), True
    return trained, False


def cycle_of(steps: int) -> int:
    """Steps of a cycle: the half of a trial's that is scored."""
    return steps // BETWEEN // 2 * BETWEEN


def tried(white: Posterior, size: int, steps: int) -> Callable[..., tuple[Array, Array]]:
    """Build ``trial(starts, ε, depth, data, held, key)``: where SGHMC ends, and the score of its second half.

    With a depth of 0 the step is ε. With 1 it falls from ε to 0 in cosine cycles, and draws count by their steps.
    """
    sampler = samplers.build("sghmc", white, friction=FRICTION)
    length, half = white.size, steps // BETWEEN // 2
    wave = Cyclical(1.0, cycle_of(steps))

    @jit
    def trial(
        starts: Array, epsilon: Array, depth: Array, data: PyTree, held: PyTree, key: Array
    ) -> tuple[Array, Array]:
        def share(t: Array) -> Array:
            """Of ε, at step t."""
            return 1 - depth * (1 - wave(t))

        def one(x: Array, key: Array) -> tuple[Array, Array]:
            """One chain, and the sum over its predictions."""
            count = len(jax.tree.leaves(held)[0])

            def step(t: Array, state: Any) -> Any:
                key_rows, key_step = jax.random.split(jax.random.fold_in(key, t))
                rows = minibatch.gather(data, below(key_rows, size, length))
                return sampler.step(key_step, state, rows, (epsilon * share(t)).astype(x.dtype))[0]

            def turn(k: Array, carry: tuple) -> tuple:
                state, total, weight = carry
                state = lax.fori_loop(k * BETWEEN, (k + 1) * BETWEEN, step, state)
                each = white.log_predictive(white.constrain(state.position), held)
                w = share((k + 1) * BETWEEN - 1).astype(x.dtype)
                total = jnp.where(k >= half, jnp.logaddexp(total, each + jnp.log(w)), total)
                return state, total, weight + jnp.where(k >= half, w, 0)

            begin = sampler.init(x), jnp.full(count, -jnp.inf, x.dtype), jnp.zeros((), x.dtype)
            state, total, weight = lax.fori_loop(0, 2 * half, turn, begin)
            return state.position, total - jnp.log(weight)

        ends, scores = jax.vmap(one)(starts, jax.random.split(key, len(starts)))
        return ends, jnp.mean(jax.nn.logsumexp(scores, 0) - jnp.log(len(starts)))

    return trial


def account(found: Found) -> Record:
    """What was found, for the record."""
    return {"gradients": found.gradients, "held_out": found.scores._asdict(), "from_given": found.given}
