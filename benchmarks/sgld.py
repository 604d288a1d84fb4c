"""Time per iteration of SGLD, against BlackJAX's SGLD.

The model is the linear Gaussian one in single precision, with minibatches of a hundredth of the data. Our side is the
loop that ``sample`` runs, including infos, running moments and the check for non-finite states. Theirs is a compiled
``lax.scan`` that draws minibatches and collects positions. "Kernel alone" puts both kernels in the same bare scan,
where our infos are not used.

The difference comes from the noise. On a CPU, JAX compiles Threefry to a loop of passes over memory.
``hamcmc.samplers.noise`` unrolls the rounds, so that they fuse with the transformation to a normal. Up to 2¹⁰ numbers
are those of ``jax.random.normal``; more are made in pairs, one from each of the two words that Threefry gives.
"""

import blackjax

import hamcmc
from benchmarks.measure import Table, by_time, interleave, microseconds, ratio
from benchmarks.problems import SIZES, STEP_SIZE, bare, blackjax_sgld, ours, problem


def run(quick: bool) -> list[Table]:
    """The whole loop against theirs, and kernel against kernel."""
    rows, against = [], []
    for dimension in [2, 100, 1000] if quick else SIZES:
        p = problem(dimension)
        sampler, peer = hamcmc.sgld(p.posterior.grad), blackjax.sgld(p.posterior.grad)
        bursts = {
            "ours": ours(p, sampler),
            "peer": blackjax_sgld(p),
            "our kernel": bare(p, lambda k, s, b, f=sampler.step: f(k, s, b, STEP_SIZE)[0], sampler.init(p.start)),
            "peer's kernel": bare(p, lambda k, s, b, f=peer.step: f(k, s, b, STEP_SIZE), p.start),
        }
        t = interleave(bursts, 5 if quick else 11)
        against.append(by_time("BlackJAX SGLD", f"an iteration of SGLD, D = {dimension:,}", t["ours"], t["peer"]))
        rows.append(
            {
                "D": dimension,
                "n": p.batch_size,
                "hamcmc, µs": microseconds(t["ours"], p.iterations),
                "BlackJAX, µs": microseconds(t["peer"], p.iterations),
                "ratio (goal ≤ 1.0)": ratio(t["ours"], t["peer"]),
                "kernel alone": ratio(t["our kernel"], t["peer's kernel"]),
            }
        )
    return [Table("SGLD per iteration against BlackJAX's SGLD", rows, against)]
