"""What all tests share: compiled programs kept between runs, shapes of the curvature algebra checked, small models."""

import gc
import json
import os
import signal
from pathlib import Path

# Two workers share the cores, and threads that wait for each other cost more than these small problems gain by them.
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "NPROC": "1"}  # of NumPy and XLA, which read them when they are imported

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

with install_import_hook("hamcmc.samplers.curvature", "beartype.beartype"):
    import hamcmc

from hamcmc.inference import compiled
from hamcmc.inference.job import describe
from hamcmc.samplers import factory, registry
from hamcmc.target import linear_gaussian as lg

settings.register_profile("fixed", derandomize=True, deadline=None)  # the same examples on every machine
settings.load_profile("fixed")


# What XLA does last and takes longest over, for speed that short programs cannot repay.
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def pytest_configure(config):
    """Compile fast, and keep compiled programs between tests, workers and sessions: they are most of the time."""
    # Most programs here take less time to run than to compile; in the processes that tests start, too.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"  # read when the first program is compiled
    switches = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(config.cache.mkdir("xla")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in switches.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background job; started processes inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # An entry read while another worker writes it is compiled anew.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache entry")


# The files that take longest, which come first: no worker begins one of them when the other is nearly done.
LONGEST = (
    *("samplers/test_exact.py", "test_docs.py", "inference/test_kill.py", "inference/test_sample.py"),
    *("inference/test_resume.py", "factorization/test_processes.py", "test_examples.py", "samplers/test_protocol.py"),
    *("cli/test_cli.py", "test_import.py", "inference/test_tune.py", "diagnostics/test_diagnostics.py"),
)


def pytest_collection_modifyitems(items):
    """Begin with the longest files, each with its tests in their order."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.relative_to(Path(__file__).parent).as_posix(), len(place)))


class Remembered:
    """A function that builds a program, or what it is made of, and returns the same one for the same arguments.

    Many tests run the same sampler on the same posterior: what JAX has traced and compiled then serves all of them.
    """

    MOST = 100  # so that posteriors, which the values hold, do not fill the memory

    def __init__(self, function):
        self.function, self.values = function, {}

    def __call__(self, *args, **options):
        modes = [jax.config.read(f"jax_{name}") for name in ("enable_x64", "disable_most_optimizations")]
        key = (*modes, *map(identity, args), *((k, identity(v)) for k, v in sorted(options.items())))
        if key not in self.values:
            if len(self.values) >= self.MOST:
                del self.values[next(iter(self.values))]
            made = self.function(*args, **options)
            self.values[key] = (made, args, options)  # as long as these are kept, no others have their ids
        return self.values[key][0]


class Programs(Remembered):
    """The same for a program, which depends on the shapes of its arguments."""

    def __call__(self, segment, arguments, iterations):
        shapes = [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(arguments)]
        key = (id(segment), str(shapes), iterations < compiled.MANY, jax.config.read("jax_disable_most_optimizations"))
        if key not in self.values:
            if len(self.values) >= self.MOST:
                del self.values[next(iter(self.values))]
            self.values[key] = (self.function(segment, arguments, iterations), segment)
        return self.values[key][0]


def identity(value):
    """What is equal for equal arguments: the value, what a schedule or a posterior consists of, or else an id."""
    if isinstance(value, str | int | float | bool | None):
        return (type(value), value)
    if isinstance(value, hamcmc.Posterior):  # a run copies it, with an init of its own, which no program uses
        return (type(value), *((k, id(v)) for k, v in sorted(vars(value).items()) if k != "init"))
    described = describe(value)
    return json.dumps(described, sort_keys=True) if described["schedule"] != "custom" else id(value)


@pytest.fixture(scope="session", autouse=True)
def programs_are_shared():
    """Build each sampler and each compiled loop once for all runs that differ in nothing."""
    with pytest.MonkeyPatch.context() as patch:
        build_one = Remembered(registry.build_one)
        for module in (registry, factory):
            patch.setattr(module, "build_one", build_one)
        patch.setattr(compiled, "build", Remembered(compiled.build))
        patch.setattr(compiled, "Traced", Programs(compiled.Traced))
        yield


def pytest_collection_finish(session):
    """Look for garbage less often, and not among the modules: that was a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture
def optimised():
    """Programs compiled as users have them, for a test with long runs."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def x64():
    """Double precision for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="session")
def data() -> lg.Data:
    """1000 rows in 3 dimensions."""
    return lg.simulate(np.random.default_rng(0), 1000, np.eye(3), 10.0)


@pytest.fixture(scope="session")
def model(data) -> hamcmc.Posterior:
    """A linear Gaussian posterior; its precision is about 100."""
    return lg.linear_gaussian(data, 10.0)


@pytest.fixture(scope="session")
def draw(model):
    """``hamcmc.sample`` on the small model with small settings, any of which can be changed."""

    def run(sampler="sgld", init=None, *, posterior=model, **changes) -> hamcmc.Result:
        settings = {"step_size": 1e-3, "num_samples": 40, "warmup": 25, "thin": 3, "batch_size": 50}
        name = sampler if isinstance(sampler, str) else ""
        settings["ensembles" if name.startswith("ensemble") else "chains"] = 2
        init = jnp.zeros(3) if init is None else init
        return hamcmc.sample(posterior, sampler, init, **(settings | {"progress": False} | changes))

    return run


@pytest.fixture
def short_segments(monkeypatch):
    """Make the segments of the compiled loop short."""

    def shorten(iterations: int) -> None:
        monkeypatch.setattr("hamcmc.inference.job.segment_length", lambda *_: iterations)

    return shorten
