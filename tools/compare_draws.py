"""Whether two checkouts of hamcmc draw the same numbers, bit by bit: a check on changes that should only move code.

    python tools/compare_draws.py OLD NEW [--only PATTERN ...] [--expect PATTERN ...] [--optimised]

Every sampler, with its options, runs under a fixed seed in both checkouts, and so do factorization (on one process and
on two), denoising, alpha-stable factorization, evidence, tuning and diagnostics. A line for each case says
"identical", or how much differs at most. The exit code is 1 if a case differs that no --expect names.

Each checkout runs in processes of its own: by its .venv/bin/python, or, without one, by the Python that runs this.
Programs are compiled without most optimisations, to save time; --optimised compiles them as users do. To look into one
case, draw it alone: PYTHONPATH=CHECKOUT/src python tools/compare_draws.py --draw FILE.npz --only CASE
"""

import argparse
import importlib
import inspect
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np  # JAX and the package are for the processes that draw: they are imported where they are used

TOGETHER = 16  # cases in one process
PATIENCE = 3600  # seconds for them
MENTIONED = 3  # arrays of a case that are on one side only, or of other shapes
ABOUT, FAILED = "about", "failed"  # stand beside the names of cases, and of arrays
RENAMED = {"num_samples": "samples", "warmup": "burn_in", "ensembles": "chains", "block": "batch"}  # since 0.1.0
SETTINGS = {"num_samples": 100, "warmup": 50, "thin": 2, "batch_size": 50, "seed": 3, "progress": False}
FISHER = np.diag([100.0, 100.0, 400.0, 900.0]).astype(np.float32) + 10  # about that of the linear model

# --- the package, old or new ---


def find(*dotted: str) -> Any:
    """The first that exists of some functions, classes or values, each given as MODULE.NAME."""
    for name in dotted:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute, None)
        except ModuleNotFoundError as error:
            if not module.startswith(str(error.name)):
                raise
            continue
        if found is not None and not inspect.ismodule(found):
            return found
    raise LookupError(f"there is no {' or '.join(dotted)}")


def call(function: Callable, *arguments: Any, like: Callable | None = None, **options: Any) -> Any:
    """Call a function with options by their new names, or by the old ones where neither it nor `like` has the new."""
    known = {name for f in (function, like or function) for name in inspect.signature(f).parameters}
    return function(*arguments, **{k if k in known else RENAMED.get(k, k): v for k, v in options.items()})


# --- posteriors, each with where chains start ---


def linear(streamed: bool = False) -> tuple[Any, Any]:
    """The package's linear Gaussian model, in memory or on disk."""
    modules = "hamcmc.target.linear_gaussian", "hamcmc.models.linear_gaussian"
    simulate, model = (find(*(f"{m}.{name}" for m in modules)) for name in ("simulate", "linear_gaussian"))
    data = simulate(np.random.default_rng(0), 1000, np.diag([1.0, 1.0, 2.0, 3.0]), 10.0)
    return model(type(data)(*map(on_disk, data)) if streamed else data, 10.0), start


def start(key: Any) -> Any:
    """The start of a chain on the linear model."""
    import jax

    return 0.1 * jax.random.normal(key, (4,))


def on_disk(array: np.ndarray) -> np.ndarray:
    """The array as a memory map of a file that has no name."""
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)
    mapped[:] = array
    return mapped


def controlled() -> tuple[Any, Any]:
    """The linear model with a control variate at its mode."""
    posterior, _ = linear()
    mode = find("hamcmc.find_mode")(posterior, np.zeros(4, np.float32))
    return find("hamcmc.control_variate")(posterior, mode), start


def logistic(by: str | None = None) -> tuple[Any, Any]:
    """Logistic regression with dictionaries for positions; weights may be kept positive, where one wants to be 0."""
    import jax

    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 3)).astype(np.float32)
    y = np.where(x @ [1.0, -2.0, 0.5] + rng.logistic(size=500) > 0, 1, -1).astype(np.float32)

    def log_prior(p):
        return -0.5 * (p["weights"] ** 2).sum() - 0.5 * p["bias"] ** 2

    def log_likelihood(p, datum):
        return jax.nn.log_sigmoid(datum["y"] * (datum["x"] @ p["weights"] + p["bias"]))

    support = {"weights": find("hamcmc.positive")(by)} if by else None
    posterior = find("hamcmc.Posterior")(log_prior, log_likelihood, {"x": x, "y": y}, support=support)
    return posterior, {"bias": np.float32(0), "weights": np.full(3, 0.5, np.float32)}


def reduced(posterior: Any) -> Any:
    """An ensemble with variance reduced gradients."""
    return find("hamcmc.svrg")(posterior, "ensemble_hamcmc", every=25, pairs=2, metric=None)


def alternated(posterior: Any) -> Any:
    """Langevin steps on the weights, and draws of the bias, from a law that is not the right one but will do."""
    import jax

    def conditional(key, p):
        return {"bias": 0.1 * jax.random.normal(key) + p["weights"].mean()}

    return find("hamcmc.alternating")(posterior, conditional, find("hamcmc.sgld"), drawn=("bias",), every=3)


def fisher(theta: Any) -> Any:
    """A metric that depends on the position."""
    import jax.numpy as jnp

    return FISHER + 100 * jnp.diag(theta**2)


# --- what a case does ---


def draw(problem: Callable = linear, sampler: Any = "sgld", step_size: Any = 1e-3, **changes: Any) -> Any:
    """A run of `hamcmc.sample`: two chains, or two ensembles."""
    posterior, first = problem()
    if callable(sampler):
        sampler = sampler(posterior)
    if isinstance(step_size, tuple):
        step_size = find(f"hamcmc.{step_size[0]}")(*step_size[1:])
    if sampler == "ensemble_adjusted" and sampler not in find("hamcmc.samplers.NAMES"):
        sampler, changes = "ensemble_hamcmc", changes | {"adjusted": True}
    together = sampler.startswith("ensemble") if isinstance(sampler, str) else sampler.replicas > 1
    settings = SETTINGS | {"ensembles" if together else "chains": 2, "step_size": step_size} | changes
    return call(find("hamcmc.sample"), posterior, sampler, first, **settings)


def shown(result: Any) -> dict[str, Any]:
    """All that a run has drawn, and its moments."""
    return {k: getattr(result, k) for k in ("posterior", "sample_stats", "gradients", "mean", "variance")}


def sampled(**arguments: Any) -> dict[str, Any]:
    """A whole run."""
    return shown(draw(**arguments))


def doubled(**arguments: Any) -> dict[str, Any]:
    """A whole run in double precision."""
    import jax

    jax.config.update("jax_enable_x64", True)
    try:
        return sampled(**arguments)
    finally:
        jax.config.update("jax_enable_x64", False)


class Stop(Exception):
    """The end of a run before its time."""


def resumed(**arguments: Any) -> dict[str, Any]:
    """A run that dies after a checkpoint with draws, resumed."""

    def die(status):
        if status.draws > 5000:  # the host looks after every 4096 draws
            raise Stop

    with tempfile.TemporaryDirectory() as folder:
        settings = {"num_samples": 9000, "thin": 1, "checkpoint_seconds": 0.0, "out": Path(folder, "run")}
        try:
            draw(**arguments, **settings, progress=die)
        except Stop:
            return shown(find("hamcmc.resume")(settings["out"], *linear(), progress=False))
    raise AssertionError("the run came to its end at once")


def diagnosed() -> dict[str, Any]:
    """The summary of a run and its kernel Stein discrepancy, from stored and from full gradients."""
    result = draw(logistic, "hamcmc", step_size=0.01, store_gradients=True)
    ksd, ksd_of, summary = (find(f"hamcmc.diagnostics.{name}") for name in ("ksd", "ksd_of", "summary"))
    x = result.posterior["weights"].reshape(-1, 3)
    return {
        "summary": summary(result).columns,
        "stored": ksd_of(result),
        "full": ksd_of(result, logistic()[0]),
        "weighted": ksd(x, -x, np.arange(len(x)), statistic="V"),
    }


def evidenced(sampler: str, **settings: Any) -> Any:
    """The evidence of the linear model."""
    return find("hamcmc.evidence")(linear()[0], sampler, start, temperatures=9, chains=2, warmup=100, **settings)


def tuned(sampler: str, **options: Any) -> dict[str, Any]:
    """A search for the step size, with every candidate."""
    found = find("hamcmc.tune")(linear()[0], sampler, start, budget=20_000, batch_size=50, **options)
    return {k: getattr(found, k) for k in ("step_size", "options", "table", "gradients")}


def factorized(**asked: Any) -> dict[str, Any]:
    """A factorization with its draws and predictions, also for a user and an item that are not known."""
    ratings = find("hamcmc.factorization.synthetic.movielens_like")(60, 40, 900, rank=3, seed=0).ratings
    names = "hamcmc.factorize", "hamcmc.factorization.run.factorize"
    factorize, like = find(*names), find("hamcmc.factorization.run.prepare", *names)
    asked |= {"rank": 3, "blocks": 4, "num_samples": 10, "warmup": 3, "steps": 5, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        found = call(factorize, ratings, out, like=like, **asked)
        users, items = ([*names[:20], "unknown"] for names in (ratings.users, ratings.items))
        draws = find("hamcmc.Result").open(out).posterior
        return {"posterior": draws, "predictions": found.predict(users, items), "rmse": found.rmse()}


def denoised(sampler: str) -> dict[str, Any]:
    """One second of a tone that comes and goes, in noise."""
    t = np.arange(8000) / 8000
    tone = np.sin(2 * np.pi * 300 * t) * (np.sin(2 * np.pi * 3 * t) > 0)
    noisy = (tone + 0.3 * np.random.default_rng(4).standard_normal(8000))[:, None]
    denoise = find("hamcmc.speech.denoise.denoise")
    (found,) = denoise([noisy], 8000, sampler=sampler, iterations=30, draws=2, uncertainty=True)
    return {k: getattr(found, k) for k in ("audio", "draws", "sd")}


def heavy_tailed(sources: int = 1, **options: Any) -> dict[str, Any]:
    """An alpha-stable factorization of a complex matrix with a hole."""
    rng = np.random.default_rng(5)
    X = (rng.standard_normal((20, 30)) + 1j * rng.standard_normal((20, 30))) / rng.gamma(1.0, size=(20, 30))
    X[3, 4] = np.nan
    source, separate = (find(f"hamcmc.stable.{n}", f"hamcmc.separation.{n}") for n in ("Source", "separate"))
    options |= {"num_samples": 20, "warmup": 50, "thin": 5}
    if sources == 1:
        found = call(find("hamcmc.alpha_stable_mf"), X, 2, 1.5, like=separate, **options)
    else:
        found = call(separate, X, [source(2, 1.2 + 0.4 * n) for n in range(sources)], **options)
    return {"sources": found.sources, "potential": found.potential}


# --- cases: a function, and its arguments ---

LEARNED = {"pairs": 3, "adapt": 48, "step_size": 0.1}
GIVEN = {"sampler": "ensemble_hamcmc", "pairs": 3, "step_size": 0.1}
SCALED = {"gamma": 1e-3, "step_size": 0.1}
SAMPLERS: dict[str, dict[str, Any]] = {  # by their names in `hamcmc.samplers.NAMES`
    "ccadl": {"step_size": 1e-4},
    "ensemble_adjusted": LEARNED | {"batch_size": None},
    "ensemble_hamcmc": LEARNED | {"metric": "dense"},
    "ensemble_underdamped": LEARNED,
    "hamcmc": SCALED,
    "naive": SCALED,
    "psgld": {},
    "sgfs": {},
    "sghmc": {"step_size": 1e-4},
    "sgld": {},
    "sgnht": {"step_size": 1e-4},
    "sgrld": {"fisher": FISHER, "step_size": 0.1},
}
RUNS: dict[str, dict[str, Any]] = {
    **{f"sample/{name}": {"sampler": name} | options for name, options in SAMPLERS.items()},
    "sample/hamcmc-memory-2": {"sampler": "hamcmc", "memory": 2} | SCALED,
    "sample/hamcmc-memory-5": {"sampler": "hamcmc", "memory": 5} | SCALED,
    "sample/hamcmc-newest": {"sampler": "hamcmc", "gamma": "newest", "damping": 1.0},
    "sample/hamcmc-metric": {"sampler": "hamcmc", "metric": 1 / np.diag(FISHER), "step_size": 0.1},
    "sample/psgld-correction": {"sampler": "psgld", "correction": True},
    "sample/sgrld-function": {"sampler": "sgrld", "fisher": fisher, "step_size": 0.1},
    "sample/sgnht-multivariate": {"sampler": "sgnht", "multivariate": True, "step_size": 1e-4},
    "sample/ccadl-full": {"sampler": "ccadl", "full": True, "step_size": 1e-4},
    "sample/ensemble-identity": GIVEN | {"metric": None},
    "sample/ensemble-diagonal": GIVEN | LEARNED | {"metric": "diagonal"},
    "sample/ensemble-resting": GIVEN | {"metric": "resting"},
    "sample/ensemble-neighbours": GIVEN | {"metric": None, "update": "neighbours"},
    "sample/ensemble-fresh": GIVEN | {"metric": None, "fresh": True},
    "target/dict-hamcmc": {"problem": logistic, "sampler": "hamcmc", "step_size": 0.01},
    "target/dict-ensemble": GIVEN | LEARNED | {"problem": logistic},
    "target/mirror-sgld": {"problem": partial(logistic, "mirror")},
    "target/mirror-underdamped": LEARNED | {"problem": partial(logistic, "mirror"), "sampler": "ensemble_underdamped"},
    "target/bijection-sgld": {"problem": partial(logistic, "bijection")},
    "target/bijection-hamcmc": SCALED | {"problem": partial(logistic, "bijection"), "sampler": "hamcmc"},
    "target/control-variate": {"problem": controlled},
    "target/svrg-sgld": {"svrg": 20},
    "target/svrg-ensemble": {"sampler": reduced, "step_size": 0.1},
    "target/alternating": {"problem": logistic, "sampler": alternated},
    "run/polynomial": {"step_size": ("Polynomial", 1e-4, 0.6)},
    "run/cyclical": {"step_size": ("Cyclical", 2e-3, 40, 0.1)},
    "run/no-replacement": {"replace": False},
    "run/streamed": {"problem": partial(linear, streamed=True)},
    "run/gradients": {"store_gradients": True},
}
QUASI_NEWTON = ("hamcmc", "ensemble_hamcmc")
CASES: dict[str, tuple[Callable, dict[str, Any]]] = {
    **{name: (sampled, arguments) for name, arguments in RUNS.items()},
    **{f"resume/{n}": (resumed, RUNS[f"sample/{n}"]) for n in QUASI_NEWTON},
    **{f"float64/{n}": (doubled, RUNS[f"sample/{n}"]) for n in ("sgld", *QUASI_NEWTON)},
    "float64/dict-psgld": (doubled, {"problem": logistic, "sampler": "psgld"}),
    "diagnostics/summary-ksd": (diagnosed, {}),
    "evidence/sghmc": (evidenced, {"sampler": "sghmc", "step_size": 1e-4, "num_samples": 320, "batch_size": 50}),
    "tune/sgld": (tuned, {"sampler": "sgld"}),
    "tune/psgld": (tuned, {"sampler": "psgld"}),
    "tune/ensemble_hamcmc": (tuned, {"sampler": "ensemble_hamcmc", "pairs": 3, "adapt": 48}),
    **{
        f"factorize/{n}-{model}": (factorized, {"sampler": n, "model": model})
        for n in ("sghmc", "sgld", "psgld", *QUASI_NEWTON)
        for model in ("full", "paper")
    },
    **{f"factorize/{n}-2-processes": (factorized, {"sampler": n, "processes": 2}) for n in ("sghmc", "hamcmc")},
    **{f"denoise/{n}": (denoised, {"sampler": n}) for n in ("sgld", "psgld", *QUASI_NEWTON)},
    **{f"stable/{n}": (heavy_tailed, {"sampler": n}) for n in ("sgld", "psgld", *QUASI_NEWTON, "gibbs")},
    "stable/two-sources": (heavy_tailed, {"sources": 2, "sampler": "sgld", "block": (5, 10), "positivity": "mirror"}),
}


# --- drawing, in a process of a checkout ---


def draw_all(names: list[str], file: Path) -> None:
    """Run cases and write what they found, after each of them, so that a crash leaves those before it."""
    kernels = find("hamcmc.factorization.native.available", "hamcmc.native.available")()
    about = {"package": find("hamcmc.__file__"), "kernels": bool(kernels), "samplers": find("hamcmc.samplers.NAMES")}
    found = {f"{ABOUT}:{k}": np.asarray(v) for k, v in about.items()}
    write(found, file)
    for name in names:
        function, arguments = CASES[name]
        try:
            found |= {f"{name}:{k}": v for k, v in leaves(function(**arguments))}
        except Exception as error:
            traceback.print_exc()
            found[f"{name}:{FAILED}"] = np.asarray(f"{type(error).__name__}: {error}")
        write(found, file)


def leaves(thing: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays, numbers and texts in a nest of mappings, records and lists, by name."""
    if hasattr(thing, "_asdict"):
        thing = thing._asdict()
    elif is_dataclass(thing):
        thing = vars(thing)
    elif isinstance(thing, list | tuple):
        thing = dict(enumerate(thing))
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, np.asarray(str(thing) if thing is None else thing)


def write(found: dict[str, Any], file: Path) -> None:
    """Put the arrays in place of the file."""
    unfinished = file.with_suffix(".partial.npz")
    np.savez(unfinished, **found)
    unfinished.replace(file)


# --- comparing ---


def run(checkout: Path, names: list[str], optimised: bool) -> dict[str, dict[str, np.ndarray]]:
    """What a checkout finds in each case. Where a process dies, another one goes on after the case that killed it."""
    own = checkout / ".venv" / "bin" / "python"
    python = own if own.exists() else sys.executable
    found: dict[str, dict[str, np.ndarray]] = {}
    while left := [n for n in names if n not in found]:
        with tempfile.TemporaryDirectory() as room:
            file, log = Path(room, "found.npz"), Path(room, "log")
            environment = os.environ | {
                "PYTHONPATH": str(checkout / "src"),
                "PYTHONDONTWRITEBYTECODE": "1",
                "JAX_PLATFORMS": "cpu",
                "JAX_ENABLE_X64": "0",
                "JAX_ENABLE_COMPILATION_CACHE": "0",
                "JAX_DISABLE_MOST_OPTIMIZATIONS": str(int(not optimised)),
                "XDG_CACHE_HOME": room,
                "TMPDIR": room,
            }
            command = [python, __file__, "--draw", file, *(f"--only={n}" for n in left)]
            with log.open("w") as output:
                try:
                    ended = subprocess.run(command, env=environment, stdout=output, stderr=output, timeout=PATIENCE)
                    how = f"ended with exit code {ended.returncode}"
                except subprocess.TimeoutExpired:
                    how = f"did not end in {PATIENCE} s"
            if not file.exists():
                raise SystemExit(f"{checkout} cannot be used:\n{log.read_text()}")
            with np.load(file, allow_pickle=False) as arrays:
                for key in arrays.files:
                    case, _, name = key.partition(":")
                    found.setdefault(case, {})[name] = arrays[key]
        if not Path(str(found[ABOUT]["package"])).is_relative_to(checkout):
            raise SystemExit(f"{checkout} cannot be used: {found[ABOUT]['package']} was imported in its place")
        if lost := [n for n in left if n not in found]:
            found[lost[0]] = {FAILED: np.asarray(f"the process {how}")}
    return found


def difference(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> str:
    """How two runs of a case differ, in words; empty if all their bytes are the same."""
    failed = {side: str(x[FAILED]).partition("\n")[0] for side, x in (("OLD", old), ("NEW", new)) if FAILED in x}
    if failed:
        return "; ".join(f"failed in {side}: {why}" for side, why in failed.items())
    found = [f"{name} is only in {'OLD' if name in old else 'NEW'}" for name in sorted(old.keys() ^ new.keys())]
    common, gaps = sorted(old.keys() & new.keys()), {}
    for name in common:
        a, b = old[name], new[name]
        alike = a.shape == b.shape and a.dtype == b.dtype
        if alike and a.tobytes() == b.tobytes():
            continue
        if alike and a.dtype.kind != "U":
            gaps[name] = distance(a, b)
        else:
            found.append(f"{name} is {described(a)} in OLD, {described(b)} in NEW")
    if len(found) > MENTIONED:
        found[MENTIONED:] = [f"and {len(found) - MENTIONED} more"]
    if gaps:
        absolute, relative = np.max(list(gaps.values()), axis=0)
        worst = max(gaps, key=lambda name: gaps[name][1])
        where = f"in {len(gaps)} of {len(common)} arrays, most in {worst}"
        found.insert(0, f"absolute {absolute:.1e}, relative {relative:.1e}, {where}")
    return "; ".join(found)


def described(x: np.ndarray) -> str:
    """A text, or the type and shape of an array."""
    return repr(str(x)) if x.dtype.kind == "U" else f"{x.dtype}{list(x.shape)}"


def distance(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The largest absolute and relative difference of entries; infinite where one of them alone is not a number."""
    a, b = (x.astype(np.result_type(x, np.float64)) for x in (a, b))
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = np.abs(a - b)
        gaps = np.stack([gap, gap / np.maximum(np.abs(a), np.abs(b))])
    gaps = np.where(same, 0.0, np.where(np.isnan(gaps), np.inf, gaps)).reshape(2, -1).max(1)
    return float(gaps[0]), float(gaps[1])


def warn(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> None:
    """Say what makes a comparison less than whole."""
    if old["kernels"] != new["kernels"]:
        one, other = ("OLD", "NEW") if old["kernels"] else ("NEW", "OLD")
        print(f"warning: {one} has the compiled kernels, {other} has not: factorizations will differ", file=sys.stderr)
    unknown = {*old["samplers"].tolist(), *new["samplers"].tolist()} - SAMPLERS.keys()
    if unknown:
        print(f"warning: there is no case for {', '.join(sorted(unknown))}", file=sys.stderr)


def main() -> None:
    """Compare two checkouts, or draw for one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", metavar="OLD", type=Path, help="a checkout")
    parser.add_argument("new", nargs="?", metavar="NEW", type=Path, help="another one")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cases to run, such as 'sample/*'")
    parser.add_argument("--expect", action="append", default=[], metavar="PATTERN", help="cases that may differ")
    parser.add_argument("--optimised", action="store_true", help="compile as users do, which takes longer")
    parser.add_argument("--draw", metavar="FILE.npz", type=Path, help="run the cases here, and write what they find")
    asked = parser.parse_args()
    names = [n for n in CASES if any(fnmatch(n, p) for p in asked.only or "*")]
    if not names:
        parser.error(f"no case is like {', '.join(asked.only)}; there are {', '.join(CASES)}")
    if asked.draw:
        draw_all(names, asked.draw)
        return
    checkouts = [path.resolve() for path in (asked.old, asked.new) if path and (path / "src" / "hamcmc").is_dir()]
    if len(checkouts) < 2:
        parser.error("OLD and NEW must be two checkouts, with src/hamcmc in each")
    width, bad = max(map(len, names)), 0
    for i in range(0, len(names), TOGETHER):
        some = names[i : i + TOGETHER]
        with ThreadPoolExecutor(2) as both:
            old, new = both.map(partial(run, names=some, optimised=asked.optimised), checkouts)
        if i == 0:
            warn(old[ABOUT], new[ABOUT])
        for name in some:
            how = difference(old[name], new[name])
            expected = any(fnmatch(name, p) for p in asked.expect)
            bad += bool(how) and not expected
            print(f"{name:{width}}  {how or 'identical'}{' (expected)' if how and expected else ''}", flush=True)
    print(f"{len(names) - bad} of {len(names)} cases are as they should be")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
