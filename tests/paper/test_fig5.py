"""Figure 5: one search for all methods, a curve that is the error it says, and claims that may come out false."""

import json

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from hamcmc.factorization import ratings as files
from hamcmc.factorization import sharded as factorization
from hamcmc.factorization.program import FactorizationProgram
from hamcmc.factorization.synthetic import movielens_like
from hamcmc.paper import fig5, fig5_figure, processes
from hamcmc.paper.factorizing import Runner, Split
from hamcmc.paper.speedup import Cost
from hamcmc.store.errors import Interrupted

TINY = {
    "iterations": 40,
    "burn_in": 10,
    "marks": [5, 10, 40],
    "trials": 4,
    "every": 5,
    "timings": 1,
    "most": 3000,
    "rank": 3,
}


class Stand:
    """In place of a compiled method: its error is least at step 1, and from step 8 on it is lost."""

    def __init__(self, s, method):
        self.s, self.method, self.unit, self.calls = s, method, 1.0, []

    def curve(self, data, step_size, iterations, burn_in, *, seed, every=1):
        self.calls.append((data is self.s.trial, seed))
        miss = abs(np.log(step_size))
        slow = 1 if self.method.sampler == "hamcmc" else 2
        curve = 1 + miss + slow / np.arange(1, iterations + 1)
        return (curve if step_size < 8 else np.full(iterations, np.inf))[every - 1 :: every]

    def seconds(self, step_size, steps):
        return 0.1 + steps * (4e-3 if self.method.sampler == "hamcmc" else 1e-3)


NETWORK = {"latency": 2e-4, "bandwidth": 1e8}
WIDTH = 8  # numbers in a row of H, of which 3 are factors
UNITS = {"sgld": 1, "psgld": 3, "hamcmc": 7}  # blocks of H that a message has


def computing(sampler, hosts):
    """Seconds of one host's share of a step, in the stand-in."""
    return {"sgld": 1e-3, "psgld": 2e-3, "hamcmc": 4e-3}[sampler] / hosts


def messages(sampler, hosts):
    """Seconds of a step's messages by hand, with 4 blocks on 2 processes or 16 on 16."""
    if hosts == 1:
        return 0.0
    # 2 processes: of 4 shifts one sends nothing, two send one block of 13 columns, and one sends both.
    sent, blocks, columns = (3 / 4, 1, 13) if hosts == 2 else (15 / 16, 15 / 16, 4)
    rounds = {2: 1, 16: 4}[hosts] if sampler == "hamcmc" else 0
    size = 4 * (UNITS[sampler] * blocks * columns * WIDTH + rounds * 18)
    return (sent + rounds) * NETWORK["latency"] + size / NETWORK["bandwidth"]


class Launches:
    """In place of real processes: times of a known machine. The launch with the number `killed` ends early."""

    def __init__(self, killed=None):
        self.tasks, self.killed, self.number = [], killed, 0

    def __call__(self, folder, n, tasks, keep):
        self.number += 1
        for i, task in enumerate(tasks):
            if self.number == self.killed and i == 2:
                raise Interrupted("stopped", 2)
            sampler = task["settings"]["sampler"]["sampler"]
            blocks, hosts = map(int, task["ratings"].split("-")[1:])
            self.tasks.append((task["kind"], n, sampler, hosts))
            assert (folder / task["ratings"]).exists()
            assert task["settings"]["blocks"] == (1 if hosts else blocks)
            if task["kind"] == "curve":
                slow = 1 if sampler == "hamcmc" else 2
                keep(task["name"], {"rmse": [1 + slow / t for t in range(1, 41)], "seconds": 1.0, "load": 0.5})
                continue
            sent = 0.0 if hosts else messages(sampler, n)
            step = computing(sampler, hosts or n) + sent
            found = {"of": 50, "look": [0.2, 0.1], "steps": [0.3 + 50 * step, 0.1 + 50 * step], "load": 0.5}
            several = not hosts and n > 1
            found |= {"no messages": [0.01] * several, "messages": [0.01 + 50 * sent] * several}
            keep(task["name"], found)


def put_in_place(patch):
    """The stand-ins, and the launches that they count."""
    quick = fig5.settings(True)
    patch.setattr(fig5, "settings", lambda _: quick | TINY)
    patch.setattr("hamcmc.paper.ratings.movielens_like", lambda *_, seed: movielens_like(60, 50, 3000, seed=seed))
    patch.setattr(fig5, "Runner", Stand)
    launches = Launches()
    patch.setattr(processes, "perform", launches)
    return launches


@pytest.fixture
def stand(monkeypatch):
    """Without pictures, which take longest: those of `made` are looked at."""
    monkeypatch.setattr(fig5, "draw", lambda *_: Figure(figsize=(1, 1)))
    return put_in_place(monkeypatch)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A whole reproduction with the stand-ins, its folder, and how far it said it was."""
    folder, said = tmp_path_factory.mktemp("fig5"), []
    with pytest.MonkeyPatch.context() as patch:
        put_in_place(patch)
        found = fig5.reproduce(folder, quick=True, seed=3, progress=lambda status: said.append(status.done))
    return found, folder, said


def test_results(made):
    found, folder, said = made
    results = json.loads((folder / "results.json").read_text())
    assert {f.name for f in found.files} == {"fig5.png", "fig5.svg", "results.json"}
    assert list(results["tuned"]) == list(results["rmse"]) == [row[0] for row in found.rows[:5]] == list(fig5.METHODS)
    assert [tuple(row[:2]) for row in found.rows[5:]] == [
        (m, n) for n in ("1", "2", "16, estimated") for m in fig5.CLAIM
    ]
    assert {len(t["tried"]) for t in results["tuned"].values()} == {4}
    assert {len(curve) for curve in results["rmse"].values()} == {40}
    assert all(len(row) == len(found.columns) for row in found.rows)
    assert results["seconds_per_iteration"]["DSGLD"] == pytest.approx(1e-3)
    assert results["seconds_per_iteration"]["HAMCMC"] == pytest.approx(4e-3)
    assert said == sorted(said)
    assert said[-1] < 1


def test_costs_on_processes_and_on_more_cores(made):
    """The network is found from the times of messages, and with it the costs on 16 cores."""
    found, _, _ = made
    costs = found.results["processes"]
    assert costs["network"] == pytest.approx(NETWORK)
    for n in (1, 2, 16):
        for method, sampler in zip(fig5.CLAIM, UNITS):
            expected = {
                "seconds": computing(sampler, n) + messages(sampler, n),
                "messages": pytest.approx(messages(sampler, n)),
                "load": 0.5,
            }
            assert costs["estimated"][str(n)][method] == pytest.approx(expected)
            if n < 16:
                assert costs["measured"][str(n)][method] == pytest.approx(expected)
    cell = {(row[0], row[1]): dict(zip(found.columns, row)) for row in found.rows}
    two, many = cell["HAMCMC", "2"], cell["HAMCMC", "16, estimated"]
    # 1.75 messages, and 7 blocks of 13 × 8 numbers: 0.38 ms beside 2 ms of computing
    assert (two["ms"], two["in messages"], two["model ms"], two["of that messages"]) == ("2.38", "16%", "2.38", "16%")
    assert (many["ms"], many["model ms"], many["of that messages"]) == ("", "1.25", "80%")
    assert (cell["DSGLD", "1"]["ms"], cell["DSGLD", "1"]["in messages"]) == ("1", "")
    assert found.results["claims"]["2"]["same_time"]["HAMCMC"] == pytest.approx(
        1 + 1 / 11, abs=1e-3
    )  # 40 · 0.654 / 2.38 = 11


def test_it_goes_on_where_it_was(stand, tmp_path, monkeypatch):
    """It is killed in its second launch; later only the times are measured again, and then nothing."""
    monkeypatch.setattr(processes, "perform", first := Launches(killed=2))
    with pytest.raises(Interrupted):
        fig5.reproduce(tmp_path, quick=True)
    # One process: 3 curves, 3 times, and shares of 1, 2 and 16 hosts. Two processes: 2 of 3 curves and 3 times.
    assert len(first.tasks) == 3 + 3 + 9 + 2
    monkeypatch.setattr(fig5, "search", None)  # searches are kept
    monkeypatch.setattr(processes, "perform", second := Launches())
    before = fig5.reproduce(tmp_path, quick=True)
    assert second.tasks == [("curve", 2, "hamcmc", 0), *(("times", 2, sampler, 0) for sampler in UNITS)]
    fig5.reproduce(tmp_path, quick=True)
    assert len(second.tasks) == 4
    (tmp_path / "times.json").unlink()
    again = fig5.reproduce(tmp_path, quick=True)
    assert {kind for kind, *_ in second.tasks[4:]} == {"times"}
    assert [row[:-1] for row in again.rows] == [row[:-1] for row in before.rows]  # the last is the load


def test_numbers_of_processes(stand, tmp_path):
    assert fig5.chosen_processes(None, [1, 2, 4], 2) == [1, 2]
    assert fig5.chosen_processes("4,1", [], 4) == [1, 4]
    with pytest.raises(ValueError, match="processes must divide blocks: 3 processes, 4 blocks"):
        fig5.chosen_processes("1,3", [], 4)
    with pytest.raises(ValueError, match="processes must be a list of numbers"):
        fig5.chosen_processes("two", [], 4)
    alone = fig5.reproduce(tmp_path / "alone", quick=True, processes="1")
    assert [row[1] for row in alone.rows[5:]] == ["1"] * 3
    assert not alone.results["processes"]["estimated"]
    without = fig5.reproduce(tmp_path / "without", quick=True, processes="none")
    assert len(without.rows) == 5
    assert all(task[1] == 1 for task in stand.tasks)


def test_the_title_says_what_the_data_are(stand, made, tmp_path):
    found, folder, _ = made
    assert "synthetic" in found.title
    assert "(quick)" in found.title
    assert "synthetic" in (folder / "fig5.svg").read_text()
    lines = ["user,item,rating", *(f"{u},{i},{1 + (u * i) % 5}" for u in range(70) for i in range(50))]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    own = fig5.reproduce(tmp_path / "own", quick=True, ratings=tmp_path / "own.csv", blocks=2)
    assert "synthetic" not in own.title
    assert "users of a file that is not MovieLens 1M (3,000 ratings, 60 × 50)" in own.title
    assert own.results["settings"]["blocks"] == 2
    with pytest.raises(ValueError, match="blocks"):
        fig5.reproduce(tmp_path, blocks=0)


def test_the_search_takes_the_best_step(stand):
    s = Split(*[None] * 4, None, None, 1.0)._replace(trial="trial", data="data")
    runner = Stand(s, fig5.METHODS["DSGLD"])
    found = fig5.search(runner, TINY | {"trials": 5}, seed=7)
    assert found["step_size"] == 1
    assert not found["at_the_edge"]
    assert [t["step_size"] for t in found["tried"]] == [8, 4, 2, 1, 0.5]
    assert found["tried"][0]["score"] == np.inf
    assert runner.calls == [(True, 7)] * 5  # never on the held-out ratings
    assert fig5.search(runner, TINY | {"trials": 3}, seed=7)["at_the_edge"]


def test_claims_may_come_out_false():
    """HAMCMC needs half as many iterations, each four times as long."""
    t = np.arange(1, 101)
    costs = lambda *seconds: {m: Cost(s, 0, 0) for m, s in zip(fig5.CLAIM, seconds)}
    curves = {"DSGLD": 1 + 2 / t, "pSGLD": 1 + 3 / t, "HAMCMC": 1 + 1 / t}
    claim = fig5.compare(curves, costs(0.1, 0.2, 0.4), [20, 100])
    assert claim["ahead_at_equal_iterations"] == {20: True, 100: True}
    assert claim["ahead_at_equal_seconds"] == {20: False, 100: False}
    assert claim["same_time"] == pytest.approx({"DSGLD": 1.02, "pSGLD": 1.06, "HAMCMC": 1.04})
    assert "20 yes, 100 yes; at equal seconds: 2 s no; 10 s no" in fig5_figure.said(claim)
    cheap = fig5.compare(curves, costs(0.1, 0.2, 0.15), [20, 100])
    assert cheap["ahead_at_equal_seconds"] == {20: True, 100: True}


@pytest.fixture(scope="module")
def dsgld():
    ratings = files.hold_out(movielens_like(60, 50, 1500, seed=1).ratings, 0.1, 0)
    s = fig5.split(ratings, rank=3, blocks=2, validation=0.2, seed=0)
    return ratings, s, Runner(s, fig5.METHODS["DSGLD"])


def test_splits(dsgld):
    ratings, s, _ = dsgld
    count = lambda blocks: int(np.asarray(blocks.indptr)[:, -1, -1].sum())
    assert count(s.data.train) == (~ratings.test).sum() == s.p.parts.sum()
    assert count(s.data.test) == ratings.test.sum()
    assert count(s.trial.train) + count(s.trial.test) == count(s.data.train)
    assert 0.15 < count(s.trial.test) / count(s.data.train) < 0.25
    assert jax.tree.map(np.shape, s.trial) == jax.tree.map(np.shape, s.data)  # so that one program serves both


def test_curve_is_the_error_of_draws_and_then_of_their_mean(dsgld):
    """Against predictions of the same draws, made here."""
    ratings, s, runner = dsgld
    curve = runner.curve(s.data, runner.unit, 6, 3, seed=5)
    row, column, value = (x[ratings.test] for x in (ratings.row, ratings.column, ratings.value))
    carry, keys, predicted = runner.start(s.data), factorization.keys(5), []
    for _ in range(6):
        carry, _ = runner.segment(np.float32(runner.unit), carry, s.data, keys, np.int32(1), np.int32(0))
        W, H = (side.gather(np.asarray(carry.state.position[k])) for k, side in (("W", s.p.rows), ("H", s.p.columns)))
        predicted.append((W[row] * H[column]).sum(1))
    rmse = lambda x: np.sqrt(np.mean((x - value) ** 2))
    expected = [rmse(x) for x in predicted[:3]] + [rmse(np.mean(predicted[3:n], axis=0)) for n in (4, 5, 6)]
    np.testing.assert_allclose(curve, expected, rtol=1e-4)


def test_the_better_of_two_steps_is_found_and_steps_that_are_too_large_end(dsgld):
    _, s, runner = dsgld
    budget = (60, 20)
    good, slow = (runner.curve(s.trial, e * runner.unit, *budget, seed=0, every=5)[-1] for e in (0.5, 0.004))
    assert good < slow - 0.05
    assert runner.curve(s.trial, 1e3 * runner.unit, *budget, seed=0)[-1] == np.inf


ASKED = {"rank": 3, "burn_in": 3, "iterations": 6, "test": 0.1, "seed": 0}


def test_a_process_has_the_same_curve(dsgld):
    """What a worker runs is what the search ran; and the times have what they say."""
    ratings, s, runner = dsgld
    made = processes.problem(ratings, fig5.METHODS["DSGLD"], runner.unit, s.curvature, 2, ASKED)
    program = FactorizationProgram(made.settings, made.partition, made.train, made.test)
    expected = runner.curve(s.data, runner.unit, 6, 3, seed=0)
    np.testing.assert_allclose(processes.curve(program)["rmse"], expected, rtol=1e-5)
    found = processes.times(program, 5, 2)
    assert [len(found[k]) for k in ("steps", "look", "messages", "no messages")] == [2, 2, 0, 0]
    assert found["of"] == 5
    assert int(program.carry.iteration) == 6 + 1 + 2 * 5
    lasted = {"of": 10, "steps": [3.0, 2.5], "look": [0.5, 0.7], "messages": [1.5], "no messages": [0.5]}
    assert processes.per_step(lasted) == (0.2, 0.1)


def test_a_share_is_what_one_host_has_in_a_step(dsgld):
    ratings, s, _ = dsgld
    whole = processes.share(ratings, s.p, 1)
    assert whole.size in s.p.parts
    assert (len(whole.users), len(whole.items)) == (60, 50)
    part = processes.share(ratings, s.p, 2)
    assert (len(part.users), len(part.items)) == (30, 25)
    assert part.size in s.p.sizes
    busiest = s.p.imbalance * s.p.parts.mean() / 2
    assert abs(part.size - busiest) == np.abs(s.p.sizes - busiest).min()
    rated = {(u, i): v for u, i, v in zip(ratings.row, ratings.column, ratings.value)}
    number = {
        "users": {u: k for k, u in enumerate(ratings.users)},
        "items": {i: k for k, i in enumerate(ratings.items)},
    }
    for u, i, v in zip(part.users[part.row], part.items[part.column], part.value):
        assert rated[number["users"][u], number["items"][i]] == v


@pytest.mark.slow
def test_real_processes(dsgld, tmp_path):
    """Two of them have the curve of one, up to rounding, and times of messages."""
    ratings, s, runner = dsgld
    made = processes.problem(ratings, fig5.METHODS["DSGLD"], runner.unit, s.curvature, 2, ASKED)
    processes.save(tmp_path, "ratings", made)
    task = {"ratings": "ratings", "settings": made.settings, "steps": 5, "repeats": 2}
    found = {}
    tasks = [task | {"name": "a", "kind": "curve"}, task | {"name": "b", "kind": "times"}]
    processes.perform(tmp_path, 2, tasks, found.__setitem__)
    expected = runner.curve(s.data, runner.unit, 6, 3, seed=0)
    np.testing.assert_allclose(found["a"]["rmse"], expected, rtol=1e-4)
    assert len(found["b"]["messages"]) == 2
    assert min(processes.per_step(found["b"])) > 0


@pytest.mark.slow
def test_hamcmc_is_ahead_by_iterations(tmp_path):
    found = fig5.reproduce(tmp_path, quick=True)
    assert found.results["claim"]["ahead_at_equal_iterations"]["100"]
    assert all(curve[-1] < 0.95 for curve in found.results["rmse"].values())
    assert not any(t["at_the_edge"] for t in found.results["tuned"].values())
