"""How samplers are taken: by name, as they are, or as a function of the target; what they print; what they can do."""

import jax
import jax.numpy as jnp
import pytest

import hamcmc
from hamcmc.samplers import NAMES, build, maker
from hamcmc.samplers.ensemble.hamiltonian import TYPICAL_STEPS
from hamcmc.samplers.registry import requires, takes


def first_step(sampler, target):
    state = sampler.init(jnp.zeros(3) if sampler.replicas == 1 else jnp.zeros((sampler.replicas, 3)))
    return jax.jit(sampler.step)(jax.random.key(0), state, target.data, 1e-3)[0].position


def test_one_sampler_in_four_ways(model):
    """A name, the function of that name, a function of the target and the sampler itself draw the same."""
    options = {"memory": 2, "gamma": 0.5}
    made = [
        maker("hamcmc", **options)(model),
        maker(hamcmc.hamcmc, **options)(model),
        maker(lambda target: hamcmc.hamcmc(target.grad, **options))(model),
        maker(hamcmc.hamcmc(model.grad, **options))(model),
        build("hamcmc", model, **options),
    ]
    draws = [first_step(sampler, model).tolist() for sampler in made]
    assert all(draw == draws[0] for draw in draws)


def test_a_name_brings_the_mirror():
    target = hamcmc.Posterior(lambda x: -jnp.sum(x), support=hamcmc.positive(by="mirror"))
    state = build("sgld", target).init(jnp.full(100, 1e-3))
    moved, _ = jax.jit(build("sgld", target).step)(jax.random.key(0), state, None, 1.0)
    assert (moved.position > 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: maker(3), "sampler must be a name, a hamcmc.Sampler or a function of the target"),
        (lambda m: maker("nuts")(m), "sampler must be one of .*, got 'nuts'"),
        (lambda m: maker("sgld", memory=3)(m), "sampler sgld: .*unexpected keyword argument 'memory'"),
        (lambda m: maker(lambda t: hamcmc.sgld(t.grad), memory=3), "memory: options need a sampler .* by name"),
        (lambda m: hamcmc.svrg(m, hamcmc.sgld(m.grad), every=5), "svrg makes a target of its own"),
        (lambda m: hamcmc.svrg(m, "ensemble_adjusted", every=5), "needs all data: use it without svrg"),
        (lambda m: build("sgrld", m), "sampler sgrld: .*'fisher'"),
    ],
)
def test_what_is_refused(make, message, model):
    with pytest.raises(ValueError, match=message):
        make(model)


def test_options_of_samplers():
    assert {name for name in NAMES if takes(name, "metric")} == {
        "hamcmc",
        "ensemble_hamcmc",
        "ensemble_adjusted",
        "ensemble_hmc",
        "ensemble_underdamped",
    }
    assert {name for name in NAMES if requires(name, "fisher")} == {"sgrld"}
    assert not takes("sgld", "grad")  # which is its first argument, and no option
    assert not takes("blackjax.sgld", "step_size")


def test_capabilities_are_fields(model):
    """What the rest of the package asks of a sampler, for each that is not plain."""
    fields = ("gradients_per_step", "passes_per_step", "replicas", "interleaved", "pairs", "warmup", "needs_all_data")
    plain = (1, 0.0, 1, 1, 0, 0, False)
    expected = {
        "naive": (2, 0.0, 1, 1, 2, 0, False),
        "hamcmc": (2, 0.0, 1, 3, 2, 0, False),
        "ensemble_hamcmc": (11, 0.0, 22, 1, 10, 1000, False),
        "ensemble_underdamped": (11, 0.0, 22, 1, 10, 1000, False),
        "ensemble_adjusted": (11, 0.0, 22, 1, 10, 1000, True),
        "ensemble_hmc": (16 * TYPICAL_STEPS, 0.0, 16, 1, 0, 600, True),
        "independence": (16, 0.0, 16, 1, 0, 0, True),
        "leimkuhler_matthews": (16, 0.0, 16, 1, 0, 0, False),
    }
    for name in NAMES:
        options = {"fisher": jnp.eye(3)} if name == "sgrld" else {}
        sampler = build(name, model, **options)
        assert tuple(getattr(sampler, field) for field in fields) == expected.get(name, plain), name
    wrapped = build("hamcmc", model, svrg=4)
    assert tuple(getattr(wrapped, field) for field in fields) == (3, 0.25, 1, 3, 2, 0, False)
    assert build("ensemble_hamcmc", model, metric="resting", fresh=True, pairs=2).gradients_per_step == 6
    assert build("ensemble_hamcmc", model, metric="resting").warmup == 0


def test_what_samplers_and_posteriors_print(model):
    sampler = hamcmc.hamcmc(model.grad, memory=2)
    assert repr(sampler) == "<Sampler hamcmc(memory=2, gamma=1.0, metric=None, damping=0.0, cosine=0.1)>"
    assert "<th>interleaved</th><td>2</td>" in sampler._repr_html_()
    assert repr(model) == (
        "Posterior(data: 1,000 rows, a float32[1000, 3], x float32[1000]; support: real; gradient: minibatch)"
    )
    positive = hamcmc.Posterior(lambda p: -p["a"], support={"a": hamcmc.positive()})
    assert repr(positive) == "Posterior(data: none; support: a positive (log); gradient: minibatch)"
    reduced = hamcmc.control_variate(model, jnp.zeros(3))
    assert repr(reduced).startswith("ControlVariate(data: 1,000 rows")
    assert "<td>control_variate</td>" in reduced._repr_html_()
