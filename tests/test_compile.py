"""How programs are compiled and kept."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import hamcmc
from hamcmc import _compile
from hamcmc.inference import compiled

RUN = """
import sys
import jax, jax.numpy as jnp, numpy as np
import hamcmc

jnp.ones(3) + 1  # JAX has compiled something before hamcmc is asked for anything
scale = float(sys.argv[1])
data = scale * np.random.default_rng(int(scale)).standard_normal((50, 2)).astype(np.float32)
shift = jnp.full(2, scale)  # a constant that the model closes over
posterior = hamcmc.Posterior(
    lambda x: -jnp.sum((x - shift) ** 2), lambda x, row: -jnp.sum((x - row) ** 2), data, init=jnp.zeros(2)
)
result = hamcmc.sample(posterior, "sgld", step_size=1e-3, num_samples=200, batch_size=10, progress=False)
print(result.posterior["theta"].mean())
"""


def kept(folder):
    """The compiled loops in a cache, by name."""
    return sorted(f.name for f in folder.rglob("jit_segment*-cache"))


def run(scale, **environment):
    """A program with no other place for compiled programs than ours; it is compiled as fast as those of other tests."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT"))}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(scale)], env=clean | environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def test_a_program_is_kept_and_serves_other_data(tmp_path):
    folder = tmp_path / "cache"
    first = run(1.0, HAMCMC_CACHE=str(folder))
    loops = kept(folder)
    assert len(loops) == 1
    second = run(9.0, HAMCMC_CACHE=str(folder))
    assert kept(folder) == loops
    assert abs(first - second) > 0.1  # what was closed over is no part of the program


@pytest.mark.slow
def test_nothing_is_kept_by_a_process_that_switched_it_off(tmp_path):
    run(1.0, HAMCMC_CACHE="off", XDG_CACHE_HOME=str(tmp_path))
    assert not kept(tmp_path)


@pytest.fixture
def no_directory():
    """JAX as it is before anybody tells it where to keep compiled programs."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    _compile.keep.cache_clear()
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.mark.parametrize(("switch", "on"), [("off", False), ("0", False), ("", True)])
def test_it_can_be_switched_off(switch, on, no_directory, monkeypatch, tmp_path):
    monkeypatch.setenv("HAMCMC_CACHE", switch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _compile.keep()
    found = jax.config.jax_compilation_cache_dir
    assert (found is not None and found.startswith(str(tmp_path))) == on
    assert (tmp_path / "hamcmc").exists() == on


def test_a_directory_that_jax_has_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HAMCMC_CACHE", str(tmp_path / "ours"))
    _compile.keep.cache_clear()
    _compile.keep()
    assert not (tmp_path / "ours").exists()


def test_the_oldest_programs_go_first(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"x" * 100)
        os.utime(tmp_path / str(number), (number, number))
    _compile.shrink(tmp_path, 250)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["3", "4"]


@pytest.fixture
def other_options(monkeypatch):
    """Options that XLA does not know."""
    monkeypatch.setattr(_compile, "SOON", {"xla_no_such_option": True})
    _compile.understood.cache_clear()
    yield
    _compile.understood.cache_clear()


def test_options_that_xla_does_not_know_are_left_out(optimised, other_options):
    assert _compile.soon() is None
    assert _compile.jit(lambda x: x + 1)(1.0) == 2


def test_options_are_used_where_they_are_known(optimised):
    assert _compile.soon() == (_compile.SOON if jax.default_backend() == "cpu" else None)


def test_what_a_loop_closes_over_becomes_an_argument():
    constant = jnp.arange(3.0)

    @jax.jit
    def segment(data, state):
        return state + data * constant

    program = compiled.Traced(segment, (2.0, jnp.ones(3)), 10).program
    assert program(2.0, jnp.ones(3)).tolist() == [1.0, 3.0, 5.0]


@jax.custom_vjp
def asks_python_backwards(x):
    return jnp.sum(x)


def _backwards(x, slope):
    return (jax.pure_callback(lambda a: a, x, x) * slope,)


asks_python_backwards.defvjp(lambda x: (jnp.sum(x), x), _backwards)


def many_cholesky(x):
    return jnp.sum(jax.vmap(lambda a: jnp.linalg.cholesky(jnp.eye(3) * (1 + a**2)))(x))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: jnp.sum(jnp.outer(x, x) @ jnp.sort(x)), False),
        (lambda x: jnp.linalg.eigh(jnp.outer(x, x))[0], False),  # one matrix
        (many_cholesky, True),
        (jax.grad(many_cholesky), True),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, s: s + many_cholesky(x), 0.0), True),
        (lambda x: jax.lax.cond(x[0] > 0, many_cholesky, jnp.sum, x), True),
        (lambda x: jnp.abs(jnp.fft.fft(jnp.ones((2, 3, 4)) * x[0])), True),
        (lambda x: jax.pure_callback(lambda a: a, x, x), True),
        (jax.vmap(lambda a: jnp.linalg.cholesky(jnp.eye(3) * a)), True),  # of one number a single matrix
        (asks_python_backwards, False),
        (jax.value_and_grad(asks_python_backwards), True),
    ],
)
def test_programs_that_hand_their_work_to_other_threads_are_known(function, expected):
    assert _compile.may_block(jax.jit(function), jnp.ones(4)) == expected


@pytest.mark.slow
def test_models_with_many_matrices_run_alone(monkeypatch):
    """Two of them at once would wait for each other for ever, where XLA has two threads."""
    running, most = [], []
    wait = jax.block_until_ready

    def watched(x):
        running.append(1)
        most.append(len(running))
        found = wait(x)
        running.pop()
        return found

    def log_density(x):
        root = jnp.linalg.cholesky(jnp.eye(3) + jnp.outer(x, x) * 0.01)
        return -0.5 * jnp.sum(x**2) - jnp.sum(jnp.log(jnp.diag(root)))

    monkeypatch.setattr(jax, "block_until_ready", watched)
    posterior = hamcmc.Posterior(log_density)
    start, how = jnp.zeros(3), {"adapt": 20, "num_samples": 500, "ensembles": 4, "step_size": 0.5}
    result = hamcmc.sample(posterior, "ensemble_hmc", start, progress=False, **how)
    assert result.draws == 500
    assert max(most) == 1


def test_what_a_program_closes_over_can_be_replaced():
    """And an array that it does not close over cannot, which is said: otherwise the old one would stay in silence."""
    old, new, other = jnp.full(3, 2.0), jnp.full(3, 5.0), jnp.ones(3)
    arguments = (other, [jnp.zeros(3)], 1)
    traced = compiled.Traced(jax.jit(lambda a, s, n: [n * a * old + s[0]]), arguments, 10).begin()
    assert not traced.replace([other], [new])
    assert traced.replace([old], [new])
    assert (traced.program(*arguments)[0] == 5.0).all()


def test_programs_with_options_of_the_compiler_can_be_looked_at():
    """Tests compile without them, users with them."""
    program = jax.jit(many_cholesky, compiler_options=_compile.SOON)
    assert _compile.may_block(program, jnp.ones(4))


@pytest.mark.parametrize("gone", ["link", "none"])
def test_a_file_that_goes_away_meanwhile_does_not_turn_the_cache_off(gone, no_directory, monkeypatch, tmp_path):
    monkeypatch.setenv("HAMCMC_CACHE", str(tmp_path))
    folder = tmp_path / f"{jax.__version__}-{_compile.processor()}"
    folder.mkdir()
    if gone == "link":
        (folder / "old").symlink_to(folder / "deleted by another process")
    _compile.keep()
    assert jax.config.jax_compilation_cache_dir == str(folder)


def test_an_array_is_kept_and_a_damaged_one_is_made_again(no_directory, tmp_path):
    made = []

    def make():
        made.append(1)
        return np.arange(3.0)

    _compile.kept_array("table", make)
    assert made.pop()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    for content, times in ((None, 1), (None, 1), (b"not an array", 2), (None, 2)):
        if content:
            (tmp_path / "table.npy").write_bytes(content)
        np.testing.assert_array_equal(_compile.kept_array("table", make), np.arange(3.0))
        assert len(made) == times
    np.save(tmp_path / "table.npy", np.array([{"an": "object"}]), allow_pickle=True)  # is not opened
    np.testing.assert_array_equal(_compile.kept_array("table", make), np.arange(3.0))
    assert len(made) == 3
    assert [f.name for f in tmp_path.iterdir()] == ["table.npy"]
