"""What all tests share: compiled programs kept between runs, shapes of the curvature algebra checked, small models."""

import gc
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

from hamcmc import _compile
from hamcmc.target import linear_gaussian as lg
from tests.sharing import share

settings.register_profile("fixed", derandomize=True, deadline=None)  # the same examples on every machine
settings.load_profile("fixed")


# What XLA does last and takes longest over, for speed that short programs cannot repay.
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def kept_programs(config) -> Path:
    """Where compiled programs are kept: in the user's cache, which all checkouts share, if that can be written."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "hamcmc" / "tests" / f"{jax.__version__}-{_compile.processor()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not hasattr(config, "workerinput"):  # once, and not while another worker reads
            _compile.shrink(folder, 2**28)
    except OSError:
        return config.cache.mkdir("xla")
    return folder


def pytest_configure(config):
    """Compile fast, and keep compiled programs between tests, workers and sessions: they are most of the time."""
    # Most programs here take less time to run than to compile; in the processes that tests start, too.
    flags = os.environ.get("XLA_FLAGS", "")  # read when the first program is compiled
    if QUICK not in flags:  # workers inherit it; given twice, it would be another key of the kept programs
        os.environ["XLA_FLAGS"] = f"{flags} {QUICK}"
    switches = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(kept_programs(config)),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
        "jax_persistent_cache_enable_xla_caches": "none",  # their folder would be part of every key
        "jax_traceback_in_locations_limit": 0,  # lines of source in programs, which nobody reads
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
    *("samplers/test_exact.py", "test_docs.py", "inference/test_auto.py", "stable/test_separation.py"),
    *("paper/test_fig3.py", "inference/test_sample.py", "inference/test_resume.py", "inference/test_network.py"),
    *("samplers/test_protocol.py", "inference/test_tune.py", "cli/test_cli.py", "diagnostics/test_diagnostics.py"),
    *("factorization/test_processes.py", "target/test_estimators.py", "inference/test_diverged.py", "zoo/test_zoo.py"),
)


def pytest_collection_modifyitems(items):
    """Begin with the longest files, each with its tests in their order."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.relative_to(Path(__file__).parent).as_posix(), len(place)))


@pytest.fixture(scope="session", autouse=True)
def programs_are_shared():
    """Most of the time goes into programs: runs that differ in nothing have the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        share(patch)
        yield


def pytest_collection_finish(session):
    """Look for garbage less often, and not among the modules: that was a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


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
        coupled = name.startswith("ensemble") or name in ("independence", "leimkuhler_matthews")
        settings["ensembles" if coupled else "chains"] = 2
        init = jnp.zeros(3) if init is None else init
        return hamcmc.sample(posterior, sampler, init, **(settings | {"progress": False} | changes))

    return run


@pytest.fixture
def short_segments(monkeypatch):
    """Make the segments of the compiled loop short."""

    def shorten(iterations: int) -> None:
        monkeypatch.setattr("hamcmc.inference.job.segment_length", lambda *_: iterations)

    return shorten
