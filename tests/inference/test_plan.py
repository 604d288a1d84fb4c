"""What an automatic run decides, as a function of the facts alone."""

import math

import pytest

from hamcmc.inference.plan import (
    ADAPT,
    AFFORDABLE,
    BIASED,
    KEPT,
    LARGEST_BATCH,
    NOISE,
    PREPARING,
    Measured,
    Plan,
    decide,
    duration,
    finer,
    first_run,
    longer,
    saved,
)

MANY = Measured(10**6, 100, False, 550, 32, False)
KNOWN = MANY._replace(seconds=2.0, mode=True, noise=3.0, bend=0.01)


def added(plan, noise):
    return plan.step_size / (2 - plan.step_size) * noise / plan.batch_size


def test_without_data_or_with_few_all_are_used_at_every_step():
    for facts in (Measured(0, 5, False, 1600, 32, True), Measured(500, 5, False, 1600, 32, True)):
        plan = decide(facts)
        assert isinstance(plan, Plan)
        assert (plan.regime, plan.sampler, plan.batch_size, plan.ensembles) == ("all data", "ensemble_hmc", None, 2)
        assert (plan.num_samples, plan.options, plan.hasty) == (250, {"adapt": 300}, True)


def test_a_first_run_is_shorter_where_the_posterior_is_nearly_normal():
    plan = decide(Measured(500, 5, False, 1600, 32, True))
    short, usual = first_run(plan, 0.05), first_run(plan, 0.5)
    assert (short.num_samples, short.options["adapt"]) == (125, 100)
    assert "100 iterations, then 125 draws of each replica, because the posterior is nearly normal" in short.reason
    assert (usual.num_samples, usual.options["adapt"]) == (250, 300)
    assert "normal" not in usual.reason
    counted = decide(Measured(500, 5, False, 1600, 32, True, counted=True))
    assert first_run(counted, 0.0) == counted
    independent = first_run(plan, 0.05, 0.3)
    assert (independent.sampler, independent.num_samples, independent.warmup) == ("independence", 125, 10)
    assert "independent proposals from the normal approximation at the mode" in independent.reason
    assert "ensemble_hmc" not in independent.reason
    assert first_run(plan, 0.05, 0.6) == short  # too many proposals would be refused
    assert first_run(plan, 0.5, 0.3) == usual
    assert first_run(counted, 0.0, 0.0) == counted
    again = longer(independent, "usable", 1.5, 1.0)
    assert (again.sampler, again.options, again.warmup, again.hasty) == ("ensemble_hmc", {"adapt": ADAPT}, None, False)
    again = longer(short, "good", 0.9, 1.0)
    assert (again.num_samples, again.options["adapt"], again.thin) == (250, ADAPT, 4)


def test_the_hessian_gives_coordinates_where_it_is_known_and_means_something():
    assert KNOWN.near
    assert not KNOWN._replace(bend=10.0).near
    assert not KNOWN._replace(mode=False).near
    assert not KNOWN._replace(square=False).near
    assert not MANY.near


def test_facts_are_asked_for_only_where_they_matter():
    assert decide(MANY) == "seconds"
    assert decide(MANY._replace(seconds=1e-4)).regime == "all data"
    assert decide(MANY._replace(seconds=2.0)) == "mode"
    assert decide(MANY._replace(streamed=True)) == "mode"
    assert decide(MANY._replace(seconds=2.0, mode=True)) == "noise"
    assert decide(KNOWN).regime == "minibatches"


def test_trajectories_are_longer_in_many_dimensions():
    """So the same time for a gradient is too much for a thousand parameters, where it is not for ten."""
    assert decide(MANY._replace(dimension=10, seconds=2e-3)).regime == "all data"
    assert decide(MANY._replace(dimension=1000, seconds=2e-3)) == "mode"


def test_minibatches_of_half_the_rows_are_not_worth_it():
    few = Measured(1000, 1000, False, 1600, 32, False, seconds=2e-3, mode=True, noise=250.0, bend=0.2)
    plan = decide(few)
    assert (plan.regime, plan.num_samples) == ("all data", 250)
    assert "minibatches of 500 rows, which their noise asks for, would take longer still" in plan.reason
    assert decide(few._replace(batch_size=500)).regime == "minibatches"
    assert decide(few._replace(noise=1.0)).regime == "minibatches"


def test_a_batch_size_asks_for_minibatches():
    few = Measured(500, 5, False, 1600, 32, True, batch_size=100)
    assert decide(few) == "mode"
    plan = decide(few._replace(mode=True, noise=50.0, bend=0.01))
    assert plan.batch_size == 100
    assert added(plan, 50.0) <= NOISE * 1.001
    with pytest.raises(ValueError, match="Leave batch_size out"):
        decide(few._replace(mode=False, why="the density has no maximum"))


def test_rows_that_devices_share_are_drawn_uniformly():
    alone = MANY._replace(seconds=1.0, mode=True, noise=10.0, bend=0.01)
    shared = alone._replace(devices=3, shared=True)
    assert decide(shared._replace(seconds=None)) == "seconds"
    assert decide(shared._replace(mode=None, noise=None)) == "mode"
    one, other = decide(alone), decide(shared)
    assert (one.importance, other.importance) == (True, False)
    assert other._replace(importance=True, reason=one.reason) == one
    assert "on 3 devices: minibatches of" in other.reason
    assert decide(shared._replace(quick=True)).regime == "all data"
    with pytest.raises(ValueError, match="on 3 devices: automatic runs of several processes are not made for networks"):
        decide(shared._replace(matrices=2, dimension=1000))


def test_without_a_mode_all_data_are_used_and_the_reason_is_said():
    plan = decide(MANY._replace(seconds=2.0, mode=False, why="the density has no maximum"))
    assert plan.regime == "all data"
    assert "no maximum" in plan.reason
    assert (plan.num_samples, plan.options) == (250, {"adapt": 300, "replicas": 8})  # it takes long, so it is short
    assert "300 iterations, then 250 draws of each replica" in first_run(plan, math.inf).reason
    with pytest.raises(ValueError, match=r"no maximum.*sampler="):
        decide(MANY._replace(streamed=True, mode=False, why="the density has no maximum"))


def test_a_posterior_that_is_far_from_normal_is_sampled_on_all_data():
    plan = decide(KNOWN._replace(bend=1.5))
    assert plan.regime == "all data"
    assert "far from normal" in plan.reason


@pytest.mark.parametrize("noise", [0.01, 1.0, 30.0, 1e4, 1e7])
@pytest.mark.parametrize("rows", [2000, 10**6])
def test_the_noise_of_the_gradient_stays_within_its_share(noise, rows):
    plan = decide(KNOWN._replace(noise=noise, rows=rows, streamed=True))
    assert added(plan, noise) <= NOISE * 1.001
    assert plan.batch_size <= min(LARGEST_BATCH, rows // 2)
    assert 0 < plan.step_size <= 1


def test_batches_are_no_larger_than_needed():
    plan = decide(KNOWN)
    assert plan.step_size == 1
    assert added(plan._replace(batch_size=plan.batch_size // 2), 3.0) > NOISE


def test_a_bent_posterior_gets_smaller_steps_and_more_thinning():
    straight, bent = decide(KNOWN), decide(KNOWN._replace(bend=0.5))
    assert bent.step_size < straight.step_size
    assert bent.thin > straight.thin
    assert bent.warmup > straight.warmup


def test_with_a_diagonal_only_the_metric_is_learned():
    plan = decide(KNOWN._replace(square=False))
    assert plan.options == {"metric": "diagonal"}
    assert plan.step_size <= 0.2
    assert "first-order" in plan.reason


def test_reasons_are_one_line_with_numbers():
    for plan in (decide(KNOWN), decide(KNOWN._replace(seconds=1e-4))):
        assert "\n" not in plan.reason
        assert "1,000,000 rows, 100 parameters" in plan.reason


def test_durations_are_for_people():
    assert [duration(s) for s in (3.2, 600, 14400)] == ["3 s", "10 min", "4.0 h"]


@pytest.mark.parametrize(
    ("word", "short", "seconds", "factor"),
    [
        ("good", 3.0, 1.0, 1),
        ("usable", 1.0, 1.0, 1),
        ("usable", 1.1, 1.0, 2),
        ("usable", 3.0, 1.0, 4),
        ("usable", 200.0, 0.1, 64),
        ("not converged", 400.0, 0.1, 1),
        ("usable", 8.0, AFFORDABLE / 5, 4),
        ("usable", 2.0, AFFORDABLE, 1),
    ],
)
def test_a_run_gets_longer_where_that_helps_and_is_affordable(word, short, seconds, factor):
    plan = decide(KNOWN)
    made = longer(plan, word, short, seconds)
    assert (1 if made is None else made.thin / plan.thin) == factor
    if made is not None:
        assert f"one iteration in {made.thin} is stored, because a shorter run was {word}" in made.reason


@pytest.mark.parametrize(
    ("word", "short", "seconds", "factor"),
    [
        ("good", 0.4, 1.0, 1),
        ("good", 0.8, 1.0, 4),
        ("usable", 1.0, 1.0, 4),
        ("usable", 3.0, 1.0, 4),
        ("usable", 30.0, 1.0, 32),
        ("not converged", math.inf, 1.0, 4),
        ("wrong", math.inf, 1.0, 4),
        ("usable", 30.0, AFFORDABLE / 9, 8),
        ("usable", 30.0, AFFORDABLE / 3, 1),
    ],
)
def test_a_first_run_is_followed_by_a_thorough_one(word, short, seconds, factor):
    plan = decide(MANY._replace(seconds=1e-4))
    assert plan.hasty
    made = longer(plan, word, short, seconds)
    assert (1 if made is None else made.thin) == factor
    if made is not None:
        assert (made.options["adapt"], made.hasty) == (ADAPT, False)
        assert ("few effective draws" in made.reason) == (word == "good")
        assert longer(made, word, 1.0, seconds * factor) is None


@pytest.mark.parametrize(
    ("word", "short", "seconds", "numbers", "factor"),
    [
        ("good", 0.8, 1.0, 1000, 2),
        ("usable", 1.5, 1.0, 1000, 4),
        ("usable", 30.0, 1.0, 1000, 64),
        ("usable", 30.0, AFFORDABLE / 9, 1000, 8),
        ("usable", 1.5, AFFORDABLE, 1000, None),  # too long
        ("usable", 1.5, 1.0, KEPT // 3, None),  # no room
        ("not converged", 1.5, 1.0, 1000, None),
        ("wrong", 1.5, 1.0, 1000, None),
    ],
)
def test_a_first_run_goes_on_where_its_chains_agree(word, short, seconds, numbers, factor):
    plan = decide(MANY._replace(seconds=1e-4))
    made = longer(plan, word, short, seconds, numbers)
    if factor is None:
        assert made is None or not made.goes_on
        return
    assert (made.goes_on, made.hasty, made.thin, made.options) == (True, True, 1, plan.options)
    assert made.num_samples == factor * plan.num_samples
    assert f"it goes on to {made.num_samples:,}, because these" in made.reason
    thorough = longer(made, "not converged", math.inf, seconds * factor, numbers * factor)
    assert thorough is None or (thorough.options["adapt"], thorough.goes_on, thorough.hasty) == (ADAPT, False, False)


def test_independent_proposals_go_on_once_and_only_if_they_are_accepted_often():
    plan = first_run(decide(Measured(500, 5, False, 1600, 32, True)), 0.05, 0.3)
    more = longer(plan, "usable", 1.5, 1.0, 1000)
    assert (more.sampler, more.goes_on, more.num_samples) == ("independence", True, 4 * 125)
    assert longer(more, "usable", 1.5, 1.0, 4000).sampler == "ensemble_hmc"
    assert longer(plan, "usable", 10.0, 1.0, 1000).sampler == "ensemble_hmc"


@pytest.mark.parametrize(
    ("numbers", "draws", "thin"), [(KEPT // 100, 8000, 1), (KEPT // 9, 2000, 4), (KEPT // 2 + 1, 250, 32), (0, 8000, 1)]
)
def test_a_longer_run_stores_all_draws_where_there_is_room(numbers, draws, thin):
    plan = decide(MANY._replace(seconds=1e-4))
    made = longer(plan, "not converged", 30.0, 1.0, numbers)
    assert (made.num_samples, made.thin) == (draws, thin)
    said = "every iteration is stored, 8,000 draws" if thin == 1 else f"one iteration in {thin} is stored"
    assert said in made.reason
    again = longer(made, "usable", 2.0, 1.0, numbers * made.num_samples // 250)
    assert again is None or again.num_samples * again.thin == 2 * made.num_samples * made.thin
    minibatches = longer(decide(KNOWN), "usable", 3.0, 1.0, numbers)
    assert minibatches.num_samples == decide(KNOWN).num_samples  # their thinning is part of the plan


def test_who_says_how_many_gets_a_thorough_run_at_once():
    plan = decide(MANY._replace(seconds=1e-4, counted=True))
    assert (plan.hasty, plan.options, plan.num_samples) == (False, {}, 1000)
    slow = decide(MANY._replace(seconds=2.0, mode=False, why="the density has no maximum", counted=True))
    assert (slow.hasty, slow.options) == (False, {"adapt": 300, "replicas": 8})


def test_a_network_is_sampled_for_its_predictions():
    network = Measured(1437, 46_090, False, 550, 32, False, matrices=3)
    assert decide(network) == "folded"
    plan = decide(network._replace(folded=True))
    assert (plan.regime, plan.sampler, plan.batch_size, plan.ensembles) == ("predictions", "sghmc", 128, 4)
    assert (plan.warmup, plan.thin, plan.num_samples) == (500, 10, 200)
    assert "units can be exchanged" in plan.reason
    assert longer(plan, "not converged", 4.0, 1.0) is None
    assert decide(network._replace(folded=False)) == "seconds"  # a regression with several matrices
    assert decide(network._replace(batch_size=500, folded=True)).batch_size == 500
    assert decide(network._replace(rows=100, folded=True)).batch_size == 100
    assert decide(network._replace(dimension=10**7, folded=True)).num_samples == 20  # 3 GB of draws


@pytest.mark.parametrize("change", [{"matrices": 1}, {"dimension": 400}, {"rows": 0}])
def test_what_is_no_network_is_not_taken_for_one(change):
    assert decide(Measured(1437, 46_090, False, 550, 32, True, matrices=3)._replace(**change)) != "folded"


def test_gradients_by_predictors_are_for_runs_that_are_long_enough_to_pay():
    long = KNOWN._replace(counted=True, iterations=10**6)
    plain, one, two = (decide(long._replace(predictors=k)) for k in range(3))
    assert (plain.predictors, one.predictors, two.predictors) == (0, 1, 2)
    assert "predictor" not in plain.reason
    assert "by the linear predictor of each row" in one.reason
    assert "by the 2 linear predictors of each row" in two.reason
    assert one._replace(predictors=0, reason=plain.reason) == plain
    assert decide(KNOWN._replace(predictors=1)) == decide(KNOWN)  # the usual thousand draws take no time
    several = KNOWN._replace(predictors=1, counted=True)
    least = next(n for n in range(1000, 10**6, 1000) if decide(several._replace(iterations=n)).predictors)
    wide = several._replace(dimension=1000, rows=20_000)
    assert 3_000 < least < 100_000
    assert decide(wide._replace(iterations=10_000)).predictors == 1
    assert saved(wide, 32, 0) < -PREPARING


def test_a_single_bent_coordinate_makes_the_step_smaller():
    assert decide(KNOWN).step_size == 1.0
    plan = decide(KNOWN._replace(most_bent=0.25))
    assert plan.step_size == pytest.approx(0.4)
    assert (plan.regime, plan.thin) == ("minibatches", 5)


@pytest.mark.parametrize(
    ("bias", "seconds", "step"),
    [(0.0, 1.0, None), (BIASED, 1.0, None), (0.1, 1.0, 0.25), (9.0, 1.0, 0.125), (0.1, AFFORDABLE / 3, None)],
)
def test_a_biased_run_is_followed_by_one_with_smaller_steps(bias, seconds, step):
    plan = decide(KNOWN)
    made = finer(plan, bias, seconds)
    assert (made and made.step_size) == step
    if made is not None:
        assert made.thin * made.step_size == plan.thin * plan.step_size
        assert made.warmup * made.step_size == plan.warmup * plan.step_size
        assert f"a smaller step, ε {step:.2g}, because gradients show errors of {bias:.0%}" in made.reason


def test_all_data_have_no_smaller_steps():
    assert finer(decide(MANY._replace(seconds=1e-4)), 0.5, 1.0) is None
