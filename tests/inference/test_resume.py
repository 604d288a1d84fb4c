"""Resuming in one process: every write made to fail in turn, signals, full disks, and runs that do not match."""

import errno
import json
import os
import shutil
import signal
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_array_equal

import hamcmc
from hamcmc import samplers
from hamcmc.inference import compiled as loop
from hamcmc.inference import running
from hamcmc.inference import sample as run
from hamcmc.store.errors import RunError
from hamcmc.target import linear_gaussian as lg
from tests.store.trees import tree


class Crash(BaseException):
    """The process is no more: nothing may clean up after it."""


class Disk:
    """Lets `allowed` files be put in place, then none: as if the process had died, or as if the disk were full."""

    def __init__(self, monkeypatch):
        self.replace, self.allowed, self.count, self.error = os.replace, 10**9, 0, Crash()
        monkeypatch.setattr(os, "replace", self)

    def __call__(self, source, target, **how):
        if self.count >= self.allowed:
            raise self.error
        self.count += 1
        self.replace(source, target, **how)

    def fail_after(self, allowed, error):
        self.allowed, self.count, self.error = allowed, 0, error

    def repair(self):
        self.allowed, self.count = 10**9, 0


@pytest.fixture
def compiled_once(monkeypatch):
    """Reuse the first run's compiled loop and start: what is tested here is the disk."""
    kept = {}

    def once(name, make):
        if name not in kept:
            kept[name] = make()
        return kept[name]

    build, prepare = loop.build, run.prepare
    monkeypatch.setattr(loop, "build", lambda *a, **k: once("loop", lambda: build(*a, **k)))
    monkeypatch.setattr(run, "prepare", lambda *a: once("job", lambda: prepare(*a)))


class TestEveryWrite:
    """A run is cut short before its k-th write, for every k; resumed, it has the bytes of a whole run."""

    def first_or_again(self, model, out, step_size):
        if (out / "run.json").exists():
            return hamcmc.resume(out, model, jnp.zeros(3), checkpoint_seconds=0, progress=False)
        settings = {"num_samples": 7, "warmup": 3, "thin": 2, "batch_size": 50, "checkpoint_seconds": 0}
        return hamcmc.sample(model, "sgld", jnp.zeros(3), step_size=step_size, out=out, progress=False, **settings)

    @pytest.mark.parametrize(
        ("step_size", "error", "stride"),
        [
            (1e-3, Crash(), 9),
            (1e3, Crash(), 9),  # turns non-finite after some draws
            (1e-3, OSError(errno.ENOSPC, "No space left on device"), 11),
            pytest.param(1e-3, Crash(), 1, marks=pytest.mark.slow),
            pytest.param(1e3, Crash(), 1, marks=pytest.mark.slow),
        ],
        ids=["killed", "killed while it fails", "full disk", "killed everywhere", "killed everywhere while it fails"],
    )
    def test_cut_before_it(self, model, tmp_path, monkeypatch, compiled_once, short_segments, step_size, error, stride):
        short_segments(4)
        monkeypatch.setattr("hamcmc.store.draws.chunk_draws", lambda *_: 3)
        whole = tmp_path / "whole"
        disk = Disk(monkeypatch)

        def to_the_end(out):
            if step_size < 1:
                return self.first_or_again(model, out, step_size)
            with pytest.raises(hamcmc.NonFinite):
                return self.first_or_again(model, out, step_size)

        to_the_end(whole)
        writes = disk.count
        assert writes > 25
        assert 0 < hamcmc.Result.open(whole).draws <= 7
        expected = tree(whole / "draws.zarr")
        refusal = Crash if isinstance(error, Crash) else RunError
        for k in range(0, writes, stride):
            out = tmp_path / str(k)
            disk.fail_after(k, error)
            with pytest.raises(refusal, match=None if refusal is Crash else "no room left on the disk"):
                self.first_or_again(model, out, step_size)
            disk.repair()
            to_the_end(out)
            assert tree(out / "draws.zarr") == expected, f"cut before write {k}"
            assert not list(out.rglob("*.partial"))
            shutil.rmtree(out)


class TestSignals:
    def test_the_run_stops_between_segments_with_all_saved(self, draw, model, short_segments, tmp_path):
        short_segments(15)
        whole = draw(out=tmp_path / "whole")
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

        def interrupt(status):
            if status.iteration > 60:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(hamcmc.Interrupted, match=r"stopped by SIGTERM at iteration 70 of 145, all saved") as stop:
            draw(out=tmp_path / "run", progress=interrupt)
        assert stop.value.signal == signal.SIGTERM
        assert_array_equal(stop.value.result.posterior["theta"], whole.posterior["theta"][:, :15])
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
        assert hamcmc.Result.open(tmp_path / "run").draws == 15
        result = hamcmc.resume(tmp_path / "run", model, jnp.zeros(3), progress=False)
        assert tree(tmp_path / "run" / "draws.zarr") == tree(tmp_path / "whole" / "draws.zarr")
        assert_array_equal(result.mean["theta"], whole.mean["theta"])
        events = [json.loads(x)["event"] for x in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
        assert events == ["start", "interrupted", "start", "complete"]

    def test_a_run_in_memory_keeps_its_draws(self, draw, short_segments):
        short_segments(15)
        with pytest.raises(KeyboardInterrupt, match="give out= to be able to resume") as stop:
            draw(progress=lambda s: os.kill(os.getpid(), signal.SIGINT) if s.draws else None)
        assert stop.value.result.posterior["theta"].shape == (2, 5, 3)

    def test_the_second_one_acts_at_once(self, request, draw, model, short_segments, tmp_path):
        short_segments(15)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

        def twice(status):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)  # or both would be taken for one
            pytest.fail("still going on")

        with pytest.raises(KeyboardInterrupt) as stop:
            draw(out=tmp_path / "run", progress=twice)
        assert not isinstance(stop.value, hamcmc.Interrupted)
        hamcmc.resume(tmp_path / "run", model, jnp.zeros(3), progress=False)

    def test_one_during_the_last_segment_is_not_lost(self, draw, tmp_path):
        """Or Ctrl-C could not end a program that makes many short runs."""
        with pytest.raises(hamcmc.Interrupted, match="at iteration 145 of 145, which was the last"):
            draw(out=tmp_path / "run", progress=lambda s: os.kill(os.getpid(), signal.SIGINT) if s.draws else None)
        assert hamcmc.Result.open(tmp_path / "run").meta["status"] == "complete"


class TestNonFinite:
    def posterior(self):
        """Two parameters of which only `stiff` blows up."""
        log_prior = lambda p: -0.5 * jnp.sum(p["calm"] ** 2) - 5e3 * jnp.sum(p["stiff"] ** 2)
        return hamcmc.Posterior(log_prior)

    def test_it_stops_where_it_turned_and_keeps_the_rest(self, short_segments, tmp_path):
        short_segments(11)
        posterior, init = self.posterior(), {"calm": jnp.zeros(2), "stiff": jnp.zeros(2)}
        schedule = lambda t: jnp.where(t < 12, 1e-5, 1e-2)  # stable, then a factor of −99 at each step
        sampler = samplers.build("sgld", posterior)

        first = []  # by hand
        for chain in range(3):
            keys = jax.tree.map(lambda k: k[chain], loop.keys(5, 3))  # noqa: B023
            state, step, t = sampler.init(init), jax.jit(sampler.step), 0
            while jnp.isfinite(state.position["stiff"]).all():
                state, _ = step(jax.random.fold_in(keys.step, t), state, None, schedule(jnp.int32(t)))
                t += 1
            first.append(t - 1)
            assert jnp.isfinite(state.position["calm"]).all()
        iteration, chain = min(first), int(np.argmin(first))

        settings = {"num_samples": 50, "warmup": 5, "thin": 2, "chains": 3, "seed": 5, "progress": False}
        out = tmp_path / "run"
        with pytest.raises(hamcmc.NonFinite) as failure:
            hamcmc.sample(posterior, "sgld", init, step_size=schedule, out=out, **settings)
        message, result = str(failure.value), failure.value.result
        draws = (iteration - 5) // 2
        assert f"chain {chain} turned non-finite at iteration {iteration} in parameter stiff" in message
        assert f"the {draws} draws per chain before that are kept" in message
        assert "a smaller step size (it was 0.01; try 0.003, and a larger thin)" in message
        for r in (result, hamcmc.Result.open(out)):
            assert r.posterior["stiff"].shape == (3, draws, 2)
            assert all(np.isfinite(x).all() for x in r.posterior.values())
            assert r.meta["status"] == "failed"
            assert r.meta["iteration"] == iteration
            assert r.to_arviz().posterior.sizes["draw"] == draws
            assert np.isfinite(r.mean["calm"]).all()
        with pytest.raises(RunError, match=rf"cannot be resumed: chain {chain} turned non-finite at iteration"):
            hamcmc.resume(out, posterior, init, step_size=schedule)

    def test_a_parameter_that_overflows_before_its_logarithm_does(self):
        """log θ near 89 is finite, θ is not: such a draw is not a good one."""
        posterior = hamcmc.Posterior(lambda theta: 5 * jnp.log(theta), support=hamcmc.positive())
        with pytest.raises(hamcmc.NonFinite, match="in parameter theta") as failure:
            hamcmc.sample(posterior, "sgld", jnp.float32(1.0), step_size=1.0, num_samples=50, progress=False)
        theta = failure.value.result.posterior["theta"]
        assert theta.size > 5
        assert np.isfinite(theta).all()

    def test_in_warm_up_nothing_is_left(self, model, draw, tmp_path):
        with pytest.raises(hamcmc.NonFinite, match=r"the 0 draws .* cosine or damping \(they were 0.1 and 0.0\)") as e:
            draw("hamcmc", step_size=1e30, out=tmp_path / "run")
        assert e.value.result.posterior["theta"].shape == (2, 0, 3)
        assert np.isnan(e.value.result.mean["theta"]).all()


def crash(status):
    raise Crash


@pytest.fixture(scope="module")
def usual(draw, tmp_path_factory):
    """A run with one segment done, to be copied."""
    out = tmp_path_factory.mktemp("usual") / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr("hamcmc.inference.job.segment_length", lambda *_: 15)
        draw(out=out, progress=crash)
    return out


class TestRunsThatDoNotMatch:
    @pytest.fixture
    def begun(self, usual, draw, short_segments, tmp_path):
        """Such a run, or one with other settings."""
        short_segments(15)
        out = tmp_path / "run"

        def begin(*sampler, **changes):
            if not sampler and not changes:
                return shutil.copytree(usual, out)
            with pytest.raises(Crash):
                draw(*sampler, out=out, progress=crash, **changes)
            return out

        return begin

    def resume(self, out, posterior, init=None, **how):
        return hamcmc.resume(out, posterior, jnp.zeros(3) if init is None else init, progress=False, **how)

    def test_other_data(self, begun, model, data):
        out = begun()
        other = lg.Data(data.a, data.x + np.float32(1e-3))
        with pytest.raises(RunError, match=f"{out} was run on other data"):
            self.resume(out, lg.linear_gaussian(other, 10.0))
        with pytest.raises(RunError, match=f"{out} was run on other data"):
            self.resume(out, hamcmc.Posterior(lambda t: -jnp.sum(t**2)))
        assert self.resume(out, model).draws == 40

    def test_another_step_size_or_sampler(self, begun, model):
        out = begun()
        with pytest.raises(RunError, match="another step_size"):
            self.resume(out, model, step_size=2e-3)
        with pytest.raises(RunError, match=r"another sampler: {'sampler': 'sgld'} then"):
            self.resume(out, model, sampler=samplers.build("hamcmc", model))
        with pytest.raises(RunError, match="another model"):
            self.resume(out, model, init=jnp.zeros(3, jnp.float16))

    def test_another_precision(self, begun, model, data):
        out = begun()
        jax.config.update("jax_enable_x64", True)
        try:
            with pytest.raises(RunError, match="jax_enable_x64=False: set it likewise"):
                self.resume(out, lg.linear_gaussian(data, 10.0))
        finally:
            jax.config.update("jax_enable_x64", False)

    def test_what_json_cannot_hold_must_be_given_again(self, begun, model):
        schedule = optax.exponential_decay(1e-3, 10, 0.99)
        out = begun(samplers.build("sgld", model), step_size=schedule)
        with pytest.raises(RunError, match=r"a sampler that run.json cannot hold: give sampler to resume"):
            self.resume(out, model)
        with pytest.raises(RunError, match=r"a step-size schedule that run.json cannot hold: give step_size to resume"):
            self.resume(out, model, sampler=samplers.build("sgld", model))
        assert self.resume(out, model, sampler=samplers.build("sgld", model), step_size=schedule).draws == 40

    def test_options_that_are_arrays(self, begun, model, data):
        fisher = np.asarray(lg.exact(data, 10.0).precision, np.float32)
        out = begun("sgrld", fisher=fisher, step_size=np.float32(0.01))
        with pytest.raises(RunError, match=r"a sampler that run.json cannot hold"):
            self.resume(out, model)
        assert self.resume(out, model, sampler=samplers.build("sgrld", model, fisher=fisher)).draws == 40

    @pytest.mark.parametrize("part", ["header", "meta", "arrays", "end"])
    def test_an_edited_checkpoint(self, begun, model, part):
        out = begun()
        content = bytearray((out / "checkpoint").read_bytes())
        place = {"header": 3, "meta": content.index(b"iteration"), "arrays": len(content) // 2}
        if part == "end":
            del content[-100:]
        else:
            content[place[part]] ^= 4
        (out / "checkpoint").write_bytes(content)
        for read in (lambda: self.resume(out, model), lambda: hamcmc.Result.open(out)):
            with pytest.raises(RunError, match=rf"{out / 'checkpoint'} is (truncated|not a checkpoint)"):
                read()

    def test_edited_settings(self, begun, model):
        out = begun()
        settings = json.loads((out / "run.json").read_text())
        (out / "run.json").write_text(json.dumps(settings | {"seed": 1}))
        with pytest.raises(RunError, match=r"run.json is not the one"):
            self.resume(out, model)

    def test_missing_draws(self, begun, model):
        out = begun()
        shutil.rmtree(out / "draws.zarr")
        for read in (lambda: self.resume(out, model), lambda: hamcmc.Result.open(out)):
            with pytest.raises(RunError, match=r"draws.zarr is missing or damaged"):
                read()

    def test_a_lost_checkpoint_means_a_new_start(self, begun, model, draw, tmp_path):
        out = begun()
        (out / "checkpoint").unlink()
        with pytest.raises(RunError, match="has no draws yet"):
            hamcmc.Result.open(out)
        self.resume(out, model)
        draw(out=tmp_path / "whole")
        assert tree(out / "draws.zarr") == tree(tmp_path / "whole" / "draws.zarr")

    def test_a_complete_run_is_only_read(self, draw, model, tmp_path):
        whole = draw(out=tmp_path / "run")
        before = tree(tmp_path / "run")
        again = self.resume(tmp_path / "run", model)
        assert_array_equal(again.posterior["theta"], whole.posterior["theta"])
        assert tree(tmp_path / "run") == before


def test_a_disk_that_is_really_full(draw, model, short_segments, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = lambda *options: subprocess.run(["mount", *options], capture_output=True).returncode == 0
    if not mount("-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)):
        pytest.skip("mounting a small disk is not permitted here")
    try:
        short_segments(500)
        settings = {"num_samples": 4000, "thin": 1, "checkpoint_seconds": 0}
        with pytest.raises(RunError, match=f"{disk} has .* free: store"):  # seen before anything is drawn
            draw(out=disk / "run", **settings)
        assert not (disk / "run").exists()
        # Another program may fill the disk after that look.
        monkeypatch.setattr(running, "require_room", lambda *_: None)
        with pytest.raises(RunError, match=f"no room left on the disk of {disk}/run"):
            draw(out=disk / "run", **settings)
        assert mount("-o", "remount,size=4m", str(disk))
        hamcmc.resume(disk / "run", model, jnp.zeros(3), progress=False)
        draw(out=tmp_path / "whole", **settings)
        assert tree(disk / "run" / "draws.zarr") == tree(tmp_path / "whole" / "draws.zarr")
    finally:
        subprocess.run(["umount", disk], check=True)
