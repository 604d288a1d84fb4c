from functools import partial

import jax
import jax.numpy as jnp
import pytest

from hamcmc.factorization import cost, exchange
from hamcmc.paper import scale

TEXT = """
%region_1.2 (arg: f32[4]) -> f32[4] {
  %permute = f32[2,3]{1,0} collective-permute(f32[2,3]{1,0} %x), channel_id=1
  ROOT %r = (f32[10]{0}, s32[]) all-reduce(f32[10]{0} %a, s32[] %b), to_apply=%add
}

ENTRY %main.3 (a: f32[4]) -> f32[4] {
  %s = (f64[5]{0}, f64[5]{0}) all-gather-start(f64[5]{0} %x)
  %not = f32[9]{0} add(f32[9]{0} %x, f32[9]{0} %all-reduce)
}
"""


def test_collectives_are_read_with_their_bytes():
    assert cost.collectives(TEXT) == [
        ("collective-permute", 24, "region_1.2"),
        ("all-reduce", 44, "region_1.2"),
        ("all-gather", 80, "main.3"),
    ]


def test_a_step_by_hand():
    """100 ratings, 40 × 24, rank 6 (8 numbers a row), 4 hosts, HAMCMC with M = 3, everything one second."""
    machine = cost.Machine(rating_factor=1, draw=1, number=0, latency=1, bandwidth=4)
    step = cost.step_cost(machine, 4, ratings=1600, rows=40, columns=24, rank=6, sampler="hamcmc", imbalance=1.5)
    assert step.gradient == 2 * 100 * 6
    assert step.noise == (10 + 6) * 8
    assert step.bytes == 10 * 6 * 8 * 4
    assert step.message == 1 + step.bytes / 4
    assert step.reduction == 4 * (1 + 26)
    assert step.waiting == step.gradient / 2


@pytest.mark.parametrize(("blocks", "hosts"), [(4, 2), (4, 4), (8, 2), (12, 3)])
def test_what_is_sent_is_what_the_ring_sends(blocks, hosts):
    """Against the messages in the traced ring, over all shifts."""
    slots = blocks // hosts
    messages, rows = 0, 0
    for shift in range(blocks):
        ring = partial(exchange.ring_shift, shift=shift, B=blocks, P=hosts)
        traced = jax.make_jaxpr(ring, axis_env=[(exchange.AXIS, hosts)])(jnp.zeros((slots, 1)))
        sent = [e.outvars[0].aval.shape[0] for e in traced.eqns if e.primitive.name == "ppermute"]
        messages, rows = messages + len(sent), rows + sum(sent)
    found = cost.sent("psgld", hosts, blocks, columns=10 * blocks, width=8)
    assert found == (messages / blocks, rows / blocks * 4 * 3 * 8 * 10, 0, 0)


def test_what_hamcmc_sends():
    """4 hosts with one block each: 3 of 4 shifts send 7 blocks of 6 columns. Two rounds of a sum of 18 numbers."""
    found = cost.sent("hamcmc", 4, 4, columns=24, width=8, memory=2)
    assert found == (0.75, 0.75 * 7 * 6 * 8 * 4, 2, 2 * 18 * 4)
    assert found.seconds(1.0, 4.0) == 2.75 + (found.bytes + 144) / 4
    assert cost.sent("hamcmc", 1, 4, columns=24, width=8, memory=2).seconds(1.0, 4.0) == 0


def test_a_popular_column_unbalances_many_hosts_more():
    few, many = (scale.simulated_imbalance(hosts, 20_000, 5_000, 10**6, seed=0) for hosts in (4, 64))
    assert 1 <= few["block"] < 1.1 < many["block"]


@pytest.mark.slow
def test_the_formula_gives_the_bytes_of_the_compiled_program():
    for found in scale.check_formula():
        assert found["formula"] == found["compiled"]
        assert found["reduced by formula"] == found["reduced"]
        assert found["reductions"] == (found["sampler"] == "hamcmc")
