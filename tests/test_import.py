"""Importing hamcmc is quick and touches no device; what is optional waits for its use; old names still work."""

import subprocess
import sys
import warnings
from graphlib import TopologicalSorter
from importlib import import_module

import grimp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc._renamed import MODULES

PROBE = """
import sys
import hamcmc
import jax._src.xla_bridge as bridge
print(*sorted(sys.modules))
import hamcmc.cli.app
print(*sorted(sys.modules))
print(bool(bridge._backends))
bridge.devices()
print(bool(bridge._backends))
"""
DRAWING = ("matplotlib", "PIL")  # which ArviZ imports, too
EXTRAS = ("polars", "soundfile", "pystoi", "blackjax", "numpyro", "sklearn", *DRAWING)
ABSENT = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(code: str, absent=(), **options) -> str:
    """What a Python of its own prints, as if the packages `absent` were not installed."""
    code = f"ABSENT = {tuple(absent)}" + ABSENT + code
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def imported():
    """The modules after ``import hamcmc``, and after that of the shell, too; and whether a device was touched."""
    by_hamcmc, by_shell, touched, after = run(PROBE).splitlines()
    assert after == "True"  # the probe sees a device that is touched
    return set(by_hamcmc.split()), set(by_shell.split()), touched


def test_no_device_is_touched(imported):
    assert imported[2] == "False"


def test_little_is_imported(imported):
    """What takes long to import waits for its first use; so do the packages of the extras and the applications."""
    late = {"arviz", "xarray", "zarr", "optax", "typer", "rich", "scipy.stats"}
    assert not imported[0] & (late | set(EXTRAS))
    folders = {m.split(".")[1] for m in imported[0] if m.startswith("hamcmc.")}
    assert not folders & {"factorization", "stable", "speech", "report", "interop", "paper", "cli"}


def test_the_shell_starts_quickly(imported):
    """``hamcmc --help`` needs neither what draws nor what reads the files of one application."""
    assert not imported[1] & {*EXTRAS, "arviz", "xarray", "zarr", "optax", "scipy"}
    folders = {m.split(".")[1] for m in imported[1] if m.startswith("hamcmc.")}
    assert not folders & {"factorization", "stable", "speech", "report", "interop", "paper"}


# --- names at the top level ---


def test_applications_load_when_first_used():
    for name, where in hamcmc._APPLICATIONS.items():
        assert getattr(hamcmc, name) is getattr(import_module(where), name)
        assert name in dir(hamcmc)
    assert set(hamcmc.__all__) <= set(dir(hamcmc))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hamcmc.nothing  # noqa: B018


def test_no_modules_import_each_other_in_a_circle():
    """import-linter sees folders; this sees a package whose module imports the package, too."""
    graph = grimp.build_graph("hamcmc", exclude_type_checking_imports=True)
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    assert len(imports) > 50
    TopologicalSorter(imports).prepare()


# --- without the extras ---


@pytest.mark.slow
def test_sampling_needs_no_extra(tmp_path):
    code = """
import hamcmc, jax.numpy as jnp, numpy as np
from hamcmc.report import write_report

posterior = hamcmc.Posterior(
    lambda theta: -0.5 * jnp.sum(theta**2), lambda theta, y: -0.5 * jnp.sum((y - theta) ** 2), np.ones((50, 2))
)
result = hamcmc.sample(posterior, "sgld", jnp.zeros(2), step_size=1e-3, num_samples=40, warmup=10, batch_size=10,
                       out="run", progress=False)
print(result.summary())
write_report("run")
"""
    assert "theta[1]" in run(code, set(EXTRAS) - set(DRAWING), cwd=tmp_path)
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


MISSING = {
    "from hamcmc.factorization.ratings import read; read('ratings.csv')": "ratings",
    "import hamcmc; hamcmc.denoise": "audio",
    "import hamcmc; hamcmc.MatrixFactorization": "sklearn",
    "from hamcmc.speech.metrics import stoi; stoi(0.0, 0.0, 8000)": "audio",
    "import hamcmc.report.denoise": "report",
}
TRY = """
for use in USES:
    try:
        exec(use)
    except ImportError as error:
        print(error)
"""


SHELL = """
import io
from hamcmc.cli.app import main
for command in ("demo", "factorize ratings.csv"):
    sys.argv, sys.stderr = ["hamcmc", *command.split()], io.StringIO()
    try:
        main()
    except SystemExit as end:
        print(end.code, sys.stderr.getvalue(), end="")
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What each use of an extra that is not installed says, and the shell; all but the last use in one process."""
    folder = tmp_path_factory.mktemp("missing")
    (folder / "ratings.csv").write_text("user,item,rating\n1,1,1\n")
    *uses, drawn = MISSING
    said = run(f"\nUSES = {uses}{TRY}{SHELL}", EXTRAS, cwd=folder).splitlines()
    said += run(f"\nUSES = {[drawn]}{TRY}", DRAWING).splitlines()
    shell = [said.pop(len(uses)) for _ in range(2)]
    return dict(zip(MISSING, said, strict=True)) | {"shell": shell}


@pytest.mark.parametrize(("use", "extra"), MISSING.items())
def test_what_is_missing_is_named_with_its_extra(use, extra, complaints):
    assert f"pip install 'hamcmc[{extra}]'" in complaints[use]


def test_the_shell_names_the_extra_in_one_line(complaints):
    expected = "2 error: this needs {}: pip install 'hamcmc[{}]'"
    assert complaints["shell"] == [expected.format("matplotlib", "report"), expected.format("polars", "ratings")]


# --- names of 0.1.0 ---


@pytest.fixture
def forgotten():
    """Old names, as if they had never been imported."""
    for name in MODULES:
        sys.modules.pop(f"hamcmc.{name}", None)


@pytest.mark.parametrize("old", MODULES)
def test_old_modules_are_the_new_ones(old, forgotten):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        module = import_module(f"hamcmc.{old}")
    if MODULES[old]:
        assert module is import_module(f"hamcmc.{MODULES[old]}")
        assert f"hamcmc.{old} is now hamcmc.{MODULES[old]}" in [str(w.message) for w in seen]
    assert module.__spec__.name == f"hamcmc.{MODULES[old] or old}"


def test_an_old_module_does_not_hide_a_function(forgotten):
    with pytest.warns(DeprecationWarning, match="hamcmc.tune is now hamcmc.inference.tune") as seen:
        from hamcmc.tune import Tuned
    assert seen[0].filename == __file__
    assert Tuned is hamcmc.Tuned
    assert hamcmc.tune is import_module("hamcmc.inference.tune").tune
    with pytest.raises(ModuleNotFoundError):
        import_module("hamcmc.models.nothing")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("diagnostics", "effective_size"),
        ("diagnostics", "weighted_quantiles"),
        ("run", "NonFinite"),
    ],
)
def test_names_that_went_to_another_module_are_found(module, name, forgotten):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = import_module(f"hamcmc.{module}")
    with pytest.warns(DeprecationWarning, match=rf"\.{name} is now hamcmc\..*\.{name}"):
        assert getattr(old, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(old, "nothing")  # noqa: B009


def test_samplers_take_the_old_name_of_their_target():
    posterior = hamcmc.Posterior(
        lambda x: -0.5 * jnp.sum(x**2), lambda x, row: -jnp.sum((x - row) ** 2), np.ones((3, 1))
    )
    with pytest.warns(DeprecationWarning, match=r"psgld\(posterior=…\) is now target=…"):
        assert hamcmc.psgld(posterior=posterior).settings["sampler"] == "psgld"


def test_the_adjusted_ensemble_is_found_under_its_old_name():
    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    posterior = hamcmc.Posterior(log_density)
    with pytest.warns(DeprecationWarning, match="now ensemble_adjusted"):
        by_gradient = hamcmc.ensemble_hamcmc(posterior.grad, pairs=2, adjusted=True)
    options = {"pairs": 2, "adjusted": True, "log_density": lambda x, _: log_density(x)}
    with pytest.warns(DeprecationWarning, match="now ensemble_adjusted"):
        by_density = hamcmc.ensemble_hamcmc(lambda x, _: -x, **options)
    with (
        pytest.warns(DeprecationWarning, match="now ensemble_adjusted"),
        pytest.raises(ValueError, match="log_density="),
    ):
        hamcmc.ensemble_hamcmc(lambda x, _: -x, pairs=2, adjusted=True)
    now = hamcmc.ensemble_adjusted(posterior, pairs=2)
    assert by_gradient.settings == by_density.settings == now.settings
    start = jax.random.normal(jax.random.key(0), (6, 3))

    def stepped_by(s):
        return jax.jit(lambda x: s.step(jax.random.key(1), s.init(x), None, 0.5)[0].position)(start)

    stepped = [stepped_by(s) for s in (by_gradient, by_density, now)]
    np.testing.assert_allclose(stepped[0], stepped[2])
    np.testing.assert_allclose(stepped[1], stepped[2], rtol=1e-5)
    with pytest.warns(DeprecationWarning, match="now ensemble_adjusted"):
        plain = hamcmc.ensemble_hamcmc(posterior.grad, pairs=2, adjusted=False)
    assert plain.settings["sampler"] == "ensemble_hamcmc"


@pytest.mark.slow
def test_the_adjusted_ensemble_runs_under_its_old_name():
    posterior = hamcmc.Posterior(lambda x: -0.5 * jnp.sum(x**2))
    settings = {"pairs": 2, "step_size": 0.5, "num_samples": 20}
    with pytest.warns(DeprecationWarning, match="now ensemble_adjusted"):
        run = hamcmc.sample(posterior, "ensemble_hamcmc", jnp.zeros(3), adjusted=True, **settings)
    assert run.settings["sampler"]["sampler"] == "ensemble_adjusted"
