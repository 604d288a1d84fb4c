"""What an automatic run decides, as a function of the facts alone."""

import pytest

from hamcmc.inference.plan import LARGEST_BATCH, NOISE, PATIENCE, Measured, Plan, decide, duration, lengthened, longer

MANY = Measured(10**6, 100, False, 1600, 32, False)
KNOWN = MANY._replace(seconds=2.0, mode=True, noise=3.0, bend=0.01)


def added(plan, noise):
    return plan.step_size / (2 - plan.step_size) * noise / plan.batch_size


def test_without_data_or_with_few_all_are_used_at_every_step():
    for facts in (Measured(0, 5, False, 1600, 32, True), Measured(500, 5, False, 1600, 32, True)):
        plan = decide(facts)
        assert isinstance(plan, Plan)
        assert (plan.regime, plan.sampler, plan.batch_size, plan.ensembles) == ("all data", "ensemble_hmc", None, 2)
        assert plan.num_samples == 1000


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


def test_without_a_mode_all_data_are_used_and_the_reason_is_said():
    plan = decide(MANY._replace(seconds=2.0, mode=False, why="the density has no maximum"))
    assert plan.regime == "all data"
    assert "no maximum" in plan.reason
    assert (plan.num_samples, plan.options["adapt"]) == (250, 300)  # it takes long, so it is short
    assert "300 iterations, and each replica 250 draws" in plan.reason
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
    ("short", "seconds", "factor"),
    [
        (1.0, 1.0, 1),
        (1.1, 1.0, 2),
        (3.0, 1.0, 4),
        (40.0, 0.1, 16),
        (100.0, 0.1, 1),
        (8.0, PATIENCE / 5, 4),
        (2.0, 60.0, 1),
    ],
)
def test_a_run_gets_longer_where_that_helps_and_is_affordable(short, seconds, factor):
    assert longer(short, seconds) == factor


def test_the_longer_plan_says_so():
    plan = decide(KNOWN)
    made = lengthened(plan, 4)
    assert made.thin == 4 * plan.thin
    assert f"one iteration in {4 * plan.thin} is stored" in made.reason
