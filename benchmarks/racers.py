"""The samplers of the race, each used as its documentation says.

A method gets its recommended number of draws if they fit into the budget of seconds. If they do not, which a trial
finds out that is not counted, its warm-up is shortened in proportion, and it draws until the budget is spent.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import hamcmc
from benchmarks.automatic import FREEDOM
from benchmarks.race_clock import (
    GLANCE,
    Clock,
    Loop,
    NotForThis,
    Raced,
    TooSlow,
    at_mode,
    flattened,
    frame,
    judge,
    shortened,
)
from benchmarks.race_problems import Problem, Regression, Truth, watched
from benchmarks.race_torch import posteriors

TRIAL = 0.5  # of the budget, after which a method must be on its way to finish in time; its first steps are slow
WARMUP, DRAWS, CHAINS = 500, 500, 4  # of NUTS
SHARING = 22  # chains that share minibatches


def flat_draws(tree: Any) -> np.ndarray:
    """Draws (chain, draw, …) of a pytree as (chain, draw, D), in the order of the directions."""
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]
    return np.concatenate([x.reshape(*x.shape[:2], -1) for x in leaves], -1)


def ours(problem: Problem, clock: Clock, seed: int) -> Raced:
    """Nothing but the posterior."""
    print("hamcmc.sample", flush=True)
    result = hamcmc.sample(problem.posterior(), seed=seed, progress=False)
    draws = flat_draws(dict(result.posterior))
    names = {"mode": "preparation", "tuning": "preparation", "adaptation": "warm-up"}
    for part, seconds in result.meta["costs"].items():
        clock.parts[names.get(part, part)] = clock.parts.get(names.get(part, part), 0.0) + seconds
    plan = result.settings["plan"]
    words = f"automatic ({plan['sampler']}, {plan['regime']}; verdict: {result.check().word})"
    together = int(result.settings["replicas"]) if plan["regime"] == "minibatches" else 1  # they share minibatches
    return Raced(draws, together, words)


def nuts(problem: Problem, clock: Clock, seed: int, *, dense: bool = False, whiten: bool = False) -> Raced:
    """NumPyro's NUTS: vectorized chains, from the start that hamcmc gets, or in whitened coordinates from the mode."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import NUTS

    def model(data, centre, root):
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), centre.shape))
        numpyro.factor("log_density", flat.log_density(centre + (root @ z if whiten else z), data))

    def kernel():
        # In white coordinates the metric is known, and only the step is left to be learned.
        learned = NUTS(model, dense_mass=dense, adapt_mass_matrix=not whiten)
        return learned, jax.random.split(jax.random.key(seed), CHAINS)

    flat = flattened(problem)
    centre, root = frame(flat, clock, whiten)
    words = "whitened by the Hessian at the mode" if whiten else "dense mass" if dense else "diagonal mass"
    start = {"z": jnp.zeros((CHAINS, len(centre)))}
    z = lambda state, data, centre, root: centre + (state.z["z"] @ root.T if whiten else state.z["z"])
    return stepped(kernel, start, z, (flat.data, centre, root), clock, seed, words)


def ecs(problem: Problem, clock: Clock, seed: int, *, whiten: bool = False) -> Raced:
    """NumPyro's HMC with energy-conserving subsampling, with the settings of its example and started at the mode."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import HMCECS, NUTS

    if not isinstance(problem, Regression):
        raise NotForThis("not a model with one plate of data")
    response = {
        "logistic": lambda a: dist.Bernoulli(logits=a),
        "poisson": lambda a: dist.Poisson(jnp.exp(a)),
        "normal": lambda a: dist.Normal(a, 1.0),
        "student": lambda a: dist.StudentT(FREEDOM, a, 1.0),
    }[problem.family]
    size = min(1300, len(problem.y) // 2)

    def model(data, centre, root):
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), centre.shape))
        theta = centre + (root @ z if whiten else z)
        numpyro.factor("prior", flat.posterior.log_prior(theta))
        with numpyro.plate("rows", len(problem.y), subsample_size=size):
            x, y = numpyro.subsample(data["x"], event_dim=1), numpyro.subsample(data["y"], event_dim=0)
            numpyro.sample("y", response(x @ theta), obs=y)

    def kernel():
        proxy = HMCECS.taylor_proxy({"z": jnp.zeros(len(centre))})
        return HMCECS(NUTS(model), num_blocks=100, proxy=proxy), jax.random.key(seed)

    flat = flattened(problem)
    around = at_mode(flat, clock)
    centre = jnp.asarray(around.flat, jnp.float32)
    root = jnp.asarray(around.root if whiten else np.eye(len(centre)), jnp.float32)
    start = {"z": jnp.zeros(len(centre))}
    z = lambda state, data, centre, root: (centre + (root @ state.z["z"] if whiten else state.z["z"]))[None]
    words = f"subsamples of {size:,} in 100 blocks, Taylor proxy at the mode" + ", whitened by the Hessian" * whiten
    return stepped(kernel, start, z, (flat.data, centre, root), clock, seed, words)


def stepped(
    make: Callable[[], tuple[Any, jax.Array]],
    start: dict[str, jax.Array],
    position: Callable,
    args: tuple,
    clock: Clock,
    seed: int,
    words: str,
) -> Raced:
    """Run a kernel of NumPyro, if need be a second time, with the warm-up that the first one found to be possible."""

    def begun(warmup: int) -> Loop:
        kernel, keys = make()
        with clock.part("compile"):
            state = kernel.init(keys, warmup, start, args, {})
        return Loop(lambda state, _, *args: kernel.sample(state, args, {}), position, clock, state, args, seed)

    warmup = WARMUP
    loop = begun(warmup)
    mark = clock.mark()
    began = mark[0]
    with clock.part("warm-up"):
        done = loop.run(warmup, 1, began + max(GLANCE, TRIAL * clock.left)).shape[1]
    if done < warmup:
        warmup = shortened(WARMUP, DRAWS, done, clock.total - began, clock.seconds - began)
        if warmup < WARMUP:
            loop, done = begun(warmup), 0
            clock.back(mark)  # compiling was counted the first time
        with clock.part("warm-up"):
            done += loop.run(warmup - done, 1, clock.seconds).shape[1]
    if done < warmup:
        raise TooSlow(f"{done} of {warmup} iterations of warm-up within {clock.seconds:.0f} s; {words}")
    with clock.part("sampling"):
        draws = loop.run(DRAWS, 1, clock.seconds)
    chains, made, _ = draws.shape
    chains = f"{chains} chains, " if chains > 1 else ""
    return Raced(draws, 1, f"{words}, {chains}{warmup} + {made} iterations", warmup < WARMUP or made < DRAWS)


def nutpie(problem: Problem, clock: Clock, seed: int, *, low_rank: bool = False) -> Raced:
    """nutpie's NUTS on a function that JAX compiled, with its default lengths and all chains at once."""
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    flat = flattened(problem)
    size = len(flat.init)
    both = jax.jit(jax.value_and_grad(flat.log_density))
    with clock.part("compile"):
        jax.block_until_ready(both(flat.init, flat.data))

    def log_density(x):
        value, grad = both(x.astype(np.float32), flat.data)
        return float(value), np.asarray(grad, np.float64)

    def start(seed):  # a little off, because it refuses a start where a derivative is exactly zero
        return np.asarray(flat.init, np.float64) + 1e-6 * np.random.default_rng(seed).standard_normal(size)

    model = from_pyfunc(
        size,
        lambda: log_density,
        lambda *_: lambda x: {"theta": x},
        [np.dtype(np.float64)],
        [(size,)],
        ["theta"],
        make_initial_point_fn=start,
    )
    options: dict[str, Any] = {"chains": CHAINS, "cores": CHAINS, "seed": seed, "progress_bar": False}
    options["low_rank_modified_mass_matrix"] = low_rank
    warmup, draws = 800 if low_rank else 400, 1000  # its defaults

    def started(tune: int) -> Any:
        return nutpie.sample(model, draws=draws, tune=tune, blocking=False, **options)

    def waited(sampler: Any, seconds: float) -> Any:
        try:
            return sampler.wait(timeout=max(seconds, 0.1))
        except TimeoutError:
            return None

    mark, began, tune = clock.mark(), clock.total, warmup
    with clock.part("iterations"):
        sampler = started(tune)
        trace = waited(sampler, max(GLANCE, TRIAL * clock.left))
    if trace is None:
        tune = shortened(warmup, draws, made(sampler.inspect()), clock.total - began, clock.seconds - began)
        if tune < warmup:
            sampler.abort()
            clock.back(mark)
        with clock.part("iterations"):
            sampler = started(tune) if tune < warmup else sampler
            trace = waited(sampler, clock.left)
    finished = trace is not None
    trace = trace if finished else sampler.abort()
    x = np.asarray(trace.posterior["theta"].values, np.float64) if "posterior" in trace else np.zeros((1, 0, size))
    x = x[:, : int(np.isfinite(x).all((0, 2)).sum())]
    if x.shape[1] == 0:
        raise TooSlow(f"warm-up of {tune} iterations not finished within {clock.seconds:.0f} s")
    words = f"{'low-rank' if low_rank else 'diagonal'} mass, {CHAINS} chains, {tune} + {x.shape[1]} iterations"
    both, share = clock.parts.pop("iterations"), tune / (tune + x.shape[1])
    clock.parts |= {"warm-up": both * share, "sampling": both * (1 - share)}
    return Raced(x, 1, words, not finished or tune < warmup)


def made(trace: Any) -> int:
    """Iterations that the slowest chain of an unfinished trace has made."""
    groups = (trace[g]["theta"].values for g in ("warmup_posterior", "posterior") if g in trace)
    return max(1, int(sum(np.isfinite(x).all((0, 2)).sum() for x in groups if x.size)))


def mclmc(problem: Problem, clock: Clock, seed: int) -> Raced:
    """BlackJAX's microcanonical Langevin sampler, tuned by its own function: 20,000 steps as in its book, 4 chains."""
    from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState

    steps, thin = 20_000, 5
    flat = flattened(problem)
    kernel = blackjax.mclmc.build_kernel()

    def step(both, key, data):
        log_density = partial(flat.log_density, data=data)
        one = lambda k, s, p: kernel(k, s, log_density, p.inverse_mass_matrix, p.L, p.step_size)[0]
        return jax.vmap(one)(jax.random.split(key, CHAINS), *both), both[1]

    def start(key, data):
        size = len(flat.init)
        params = MCLMCAdaptationState(jnp.sqrt(size), 1e-3, jnp.ones(size))
        return blackjax.mclmc.init(flat.init, partial(flat.log_density, data=data), key), params

    def tuned(key, state, data):
        log_density = partial(flat.log_density, data=data)
        return blackjax.mclmc_find_L_and_step_size(kernel, made, state, key, log_density)[:2]

    keys = jax.random.split(jax.random.key(seed), CHAINS)
    with clock.part("compile"):
        begun = jax.jit(jax.vmap(start, (0, None)))(keys, flat.data)
    loop = Loop(step, lambda both, data: both[0].position, clock, begun, (flat.data,), seed)
    mark = clock.mark()
    done = 10 * loop.run(200, 10, mark[0] + TRIAL * clock.left).shape[1]
    rate = done / (clock.total - mark[0])
    clock.back(mark)
    made = int(min(steps, rate * clock.left / 1.35))  # a third more for tuning
    thin = max(1, min(thin, made // 200))
    with clock.part("compile"):
        program = jax.jit(jax.vmap(tuned, (0, 0, None))).lower(keys, begun[0], flat.data).compile()
    with clock.part("warm-up"):
        loop.state = jax.block_until_ready(program(keys, begun[0], flat.data))
    with clock.part("sampling"):
        draws = loop.run(made // thin, thin, clock.seconds)
    words = f"tuned by itself, {CHAINS} chains, {made:,} steps each, every {thin} kept"
    return Raced(draws, 1, words, made < steps or draws.shape[1] < made // thin)


def sgld(posterior: hamcmc.Posterior) -> Callable:
    """BlackJAX's SGLD; its ε is ours."""
    kernel = blackjax.sgld(posterior.grad)
    return lambda key, x, batch, step_size: kernel.step(key, x, batch, step_size)


def sghmc(posterior: hamcmc.Posterior) -> Callable:
    """BlackJAX's SGHMC with ten inner steps and its default friction; its ε is a leapfrog step, √ of ours."""
    kernel = blackjax.sghmc(posterior.grad, num_integration_steps=10)
    return lambda key, x, batch, step_size: kernel.step(key, x, batch, step_size)


KERNELS = {"sgld": sgld, "sghmc": sghmc}


def stochastic(problem: Problem, clock: Clock, seed: int, *, kernel: str, tries: int = 5) -> Raced:
    """BlackJAX's SGLD or SGHMC with control variates: 22 chains that share minibatches, until the budget is spent.

    Of a few steps, a pilot run finds the one with the most effective draws among those whose variances agree with the
    Hessian's. The step of SGHMC is one of a leapfrog integrator, and so the square root of SGLD's.
    """
    flat = flattened(problem)
    around = at_mode(flat, clock)
    curvatures = np.linalg.eigvalsh(around.precision)
    with clock.part("preparation"):
        view = hamcmc.control_variate(flat.posterior, around.mode)
    size = min(1000, flat.posterior.size // 10)
    one = KERNELS[kernel](view)

    def step(both, key, data):
        (x, step_size), (k_rows, k_step) = both, jax.random.split(key)
        rows = jax.random.randint(k_rows, (size,), 0, flat.posterior.size)
        batch = jax.tree.map(lambda a: a[rows], data)
        keys = jax.random.split(k_step, SHARING)
        return jax.vmap(lambda k, x: one(k, x, batch, step_size))(keys, x), step_size

    start = around.unravel(np.tile(around.flat, (SHARING, 1)))
    position = lambda both, data: jnp.concatenate([v.reshape(len(v), -1) for v in jax.tree.leaves(both[0])], 1)
    loop = Loop(step, position, clock, (start, jnp.float32(0)), (flat.data,), seed)
    axes = watched(around.precision)[:, : len(curvatures)]
    normal = Truth(axes, around.flat @ axes, 1 / curvatures, 0.0)

    def run(step_size: float, seconds: float, draws: int) -> np.ndarray:
        loop.state = start, jnp.float32(step_size)
        began = clock.total
        done = 10 * loop.run(50, 10, began + 0.1 * seconds).shape[1]
        thin = max(1, int(0.8 * seconds / ((clock.total - began) / done) / (1.2 * draws)))
        loop.run(draws // 5, thin, began + 0.3 * seconds)
        return loop.run(draws, thin, began + seconds)

    grid = 0.5 / curvatures[-1] * 0.25 ** np.arange(tries)
    grid = np.sqrt(grid) if kernel == "sghmc" else grid
    with clock.part("preparation"):
        found = [judge(run(e, 0.25 * clock.seconds / tries, 200), normal, SHARING) for e in grid]
        best = max(range(tries), key=lambda i: (found[i].right, found[i].ess if found[i].right else -found[i].error))
    with clock.part("sampling"):
        draws = run(float(grid[best]), clock.left, 1000)
    words = f"ε = {grid[best]:.2g}, the best of {tries}, {SHARING} chains share minibatches of {size:,}, "
    return Raced(draws, SHARING, words + "control variate at the mode")


Method = Callable[[Problem, Clock, int], Raced]
OURS = "hamcmc"
METHODS: dict[str, tuple[str, Method]] = {
    "hamcmc": (OURS, ours),
    "nuts": ("NUTS (NumPyro)", nuts),
    "nuts-dense": ("NUTS (NumPyro), dense", partial(nuts, dense=True)),
    "nuts-white": ("NUTS (NumPyro), whitened", partial(nuts, whiten=True)),
    "nutpie": ("nutpie", nutpie),
    "nutpie-low-rank": ("nutpie, low rank", partial(nutpie, low_rank=True)),
    "mclmc": ("MCLMC (BlackJAX)", mclmc),
    "sgld": ("SGLD (BlackJAX)", partial(stochastic, kernel="sgld")),
    "sghmc": ("SGHMC (BlackJAX)", partial(stochastic, kernel="sghmc")),
    "posteriors": ("SGHMC (posteriors)", posteriors),
    "ecs": ("HMCECS (NumPyro)", ecs),
    "ecs-white": ("HMCECS (NumPyro), whitened", partial(ecs, whiten=True)),
}
