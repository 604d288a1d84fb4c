"""Train the networks of ``hamcmc.speech.guess`` on clean speech in generated noises.

    python tools/speech_data.py voices VOICES
    python tools/train_guess.py upper VOICES -o src/hamcmc/speech/data/guess-upper.npz
    python tools/train_guess.py lower VOICES -o src/hamcmc/speech/data/guess.npz

VOICES holds audio files of clean speech, one voice per file, at 16 kHz or more for the upper network. No recorded noise
is used (see ``noises.py``). The files named by ``--held-out`` are not trained on: at the end it prints the score on
them, for the upper network beside that of the rule without training that it replaced. Everything random follows from
the seed; the upper network takes about half an hour on one core. It sees what the lower one, which stays as it is,
finds below 4 kHz. The SHA-256 that it prints belongs into ``guess.FILES``.
"""

import argparse
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")  # before JAX starts
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.signal import resample_poly

from hamcmc.speech import audio, guess
from hamcmc.speech.guess import BINS, TOP, Weights
from hamcmc.speech.spectrum import BIN_HERTZ, transform
from noises import Source, curve, noise, unit, utterance

BATCH, TESTED, EACH = 8, 48, 250  # examples in a step, examples of held-out voices, steps between checkpoints
HELD_OUT = ("asterisk-core-sounds-fr-g722", "pocketsphinx-testdata")
LOWER = {"features": 2 * BINS, "width": 128, "layers": len(guess.DILATIONS), "outputs": 2 * BINS}
UPPER = {"features": 320, "width": 80, "layers": len(guess.UPPER_DILATIONS), "outputs": 2 * (TOP - BINS)}

Spectra = np.ndarray  # (T, F), frames 8 ms apart
Pair = tuple[jax.Array, jax.Array]  # of speech and noise, or a score of ours and of the rule


def read(path: Path, rate: int) -> np.ndarray:
    """A file at that rate, at unit power where it is loud."""
    source = audio.info(path)
    x = resample_poly(audio.read(source).mean(1), rate, source.rate)
    return x / np.sqrt(np.mean(x[np.abs(x) > 0.01 * np.abs(x).max()] ** 2))


def spectra(x: np.ndarray, rate: int) -> Spectra:
    """All frames but those at the ends."""
    return transform(rate).forward(x)[:, 2:-2].T.astype(np.complex64)


def bank(source: Source, cuts: int) -> tuple[list[Spectra], list[Spectra]]:
    """Cuts of speech that are not mostly pause, and half as many noises."""
    speech = (spectra(utterance(source), source.rate) for _ in range(cuts))
    noises = [spectra(unit(noise(source)), source.rate) for _ in range(cuts // 2)]
    return [S for S in speech if np.mean(np.abs(S) ** 2) > 0.04], noises


def gains(rng: np.random.Generator, bins: int, sd: float) -> np.ndarray:
    """A random filter for spectra, as of microphones and rooms."""
    hertz = np.arange(bins) * BIN_HERTZ
    decibels = curve(rng, bins, rng.integers(4, 10), sd)
    gain = 10 ** ((decibels - rng.uniform(-2, 4) * np.log2(np.maximum(hertz, 100) / 1000)) / 20)
    if rng.random() < 0.7:
        gain /= 1 + (rng.uniform(60, 320) / np.maximum(hertz, 1)) ** 3
    if rng.random() < 0.5:
        gain /= 1 + (hertz / (rng.uniform(0.7, 1.25) * hertz[-1])) ** 10
    return gain.astype(np.float32)


def example(
    rng: np.random.Generator, speech: list[Spectra], noises: list[Spectra], every: int = 2
) -> tuple[Spectra, Spectra]:
    """Speech, often with a pause before or after, and noise, at a random ratio and level; one in `every` frames."""

    def any_noise() -> Spectra:
        N = noises[rng.integers(len(noises))][::every]
        return np.roll(N, rng.integers(len(N)), 0)

    S = speech[rng.integers(len(speech))][::every]
    bins = S.shape[1]
    S = unit(S * gains(rng, bins, 2.0)) if rng.random() < 0.7 else unit(S)
    if rng.random() < 0.5:
        pause = int(rng.uniform(0.1, 1.2) * 125 / every)
        S[slice(0, pause) if rng.random() < 0.5 else slice(-pause, None)] = 0
    N = any_noise()
    if rng.random() < 0.3:
        N = N + rng.uniform(0.2, 1) * any_noise()
    N = unit(N * gains(rng, bins, 2.0)) * 10 ** (-rng.uniform(-3, 13) / 20)
    both = (gains(rng, bins, 0.5) if rng.random() < 0.6 else 1) * 10 ** (rng.uniform(-30, 0) / 20)
    return (S * both).astype(np.complex64), (N * both).astype(np.complex64)


def initial(key: jax.Array, features: int, width: int, layers: int, outputs: int) -> Weights:
    """Random weights."""
    shapes = {"in": (features, width, 1.0), "out": (width, outputs, 0.1)}
    shapes |= {f"w{i}": (3 * width, width, 1.4) for i in range(layers)}
    shapes |= {f"o{i}": (width, width, 0.5) for i in range(layers)}
    keys = jax.random.split(key, len(shapes))
    weights = {
        name: scale / np.sqrt(a) * jax.random.normal(k, (a, b))
        for k, (name, (a, b, scale)) in zip(keys, shapes.items())
    }
    biases = {"bin": width, "bout": outputs} | {f"b{i}": width for i in range(layers)}
    return weights | {name: jnp.zeros(size) for name, size in biases.items()}


def misfit(log_variance: jax.Array, x: jax.Array, floor: jax.Array, there: jax.Array) -> jax.Array:
    """Minus the log-density of x, but for a constant; outliers count less."""
    size = jnp.abs(x) ** 2 + floor
    divergence = log_variance - jnp.log(size) + size * jnp.exp(-jnp.clip(log_variance, -40, 40)) - 1
    return jnp.mean(jnp.minimum(divergence, 10 + 0.1 * divergence), where=there)


def filter_sdr(S: jax.Array, N: jax.Array, speech: jax.Array, noise: jax.Array, there: jax.Array) -> jax.Array:
    """SDR in dB of the Wiener filter of both guesses, of each example (B, T, F).

    Some speech has nothing in these bins: a small part of the noise counts in its place. An error 30 dB below what was
    recorded is as good as none.
    """
    error = jnp.abs(S - jax.nn.sigmoid(speech - noise) * (S + N)) ** 2
    error, s, n = (jnp.sum(x, (1, 2), where=there) for x in (error, jnp.abs(S) ** 2, jnp.abs(N) ** 2))
    return -10 * jnp.log10((error + 1e-3 * (s + n)) / (s + 0.03 * n + 1e-20))


def loss_of(S: jax.Array, N: jax.Array, speech: jax.Array, noise: jax.Array, there: jax.Array) -> Pair:
    """Minus the SDR of the Wiener filter, with the guesses' own misfit; and the SDR."""
    sdr = filter_sdr(S, N, speech, noise, there).mean()
    power = jnp.abs(S) ** 2 + jnp.abs(N) ** 2
    floor = 1e-6 * jnp.mean(power, (1, 2), keepdims=True, where=there) + 1e-20
    return 0.3 * (misfit(speech, S, floor, there) + misfit(noise, N, floor, there)) - sdr, sdr


def lower_loss(weights: Weights, S: jax.Array, N: jax.Array) -> Pair:
    """Of a batch (B, T, 129)."""
    speech, noise = jax.vmap(lambda p: guess.network(weights, p, jnp.ones(len(p), bool)))(jnp.abs(S + N) ** 2)
    return loss_of(S, N, speech, noise, jnp.ones(S.shape, bool))


def upper_loss(weights: Weights, S: jax.Array, N: jax.Array, view: guess.View, bins: jax.Array) -> Pair:
    """Of a batch (B, T, 128); what lies at or above the given number of bins is not in the recording."""
    view = guess.View(*(x.astype(jnp.float32) for x in view))
    speech, noise = jax.vmap(partial(guess.upper_network, weights))(view)
    there = jnp.broadcast_to((jnp.arange(BINS, TOP) < bins[:, None])[:, None], S.shape)
    return loss_of(S, N, speech, noise, there)


@jax.jit
def upper_view(lower: Weights, power: jax.Array, bins: int) -> guess.View:
    """What the upper network sees of a mixture (T, 257)."""
    there = jnp.ones(len(power), bool)
    return guess.upper_view(power, *guess.network(lower, power[:, :BINS], there), there, bins)


def upper_example(rng: np.random.Generator, lower: Weights, speech: list[Spectra], noises: list[Spectra]) -> tuple:
    """What :func:`upper_loss` takes. One recording in five is sampled at less than 16 kHz, and has fewer bins."""
    S, N = example(rng, speech, noises)
    bins = int(rng.integers(BINS + 16, TOP)) if rng.random() < 0.2 else TOP
    view = upper_view(lower, np.abs(S + N) ** 2, bins)
    return S[:, BINS:], N[:, BINS:], guess.View(*(np.asarray(x, np.float16) for x in view)), np.asarray(bins)


def stacked(examples: Iterable[tuple]) -> tuple:
    """A batch of examples."""
    return jax.tree.map(lambda *x: np.stack(x), *examples)


def batches(rng: np.random.Generator, make: Callable[[], tuple], examples: int | None) -> Iterator[tuple]:
    """Batches of new examples, or drawn from so many, if an example takes longer to make than to learn from."""
    if examples is None:
        while True:
            yield stacked(make() for _ in range(BATCH))
    made = [make() for _ in range(examples)]
    print(f"{examples} examples", flush=True)
    while True:
        yield stacked(made[i] for i in rng.choice(examples, BATCH, replace=False))


def train(
    weights: Weights,
    loss: Callable[..., Pair],
    examples: Iterator[tuple],
    steps: int,
    save: Callable[[Weights], None],
    rate: float = 2e-3,
) -> Weights:
    """Adam with a falling rate; the average of the last weights."""
    falling = optax.warmup_cosine_decay_schedule(0.0, rate, 50, max(steps, 51), 1e-5)
    solver = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(falling))

    @jax.jit
    def step(state, batch):
        weights, moments, average = state
        (_, sdr), g = jax.value_and_grad(loss, has_aux=True)(weights, *batch)
        updates, moments = solver.update(g, moments)
        weights = optax.apply_updates(weights, updates)
        return (weights, moments, optax.incremental_update(weights, average, 0.01)), sdr

    state, seen = (weights, solver.init(weights), weights), []
    for t in range(steps):
        state, sdr = step(state, next(examples))
        seen.append(sdr)
        if t % EACH == EACH - 1 or t == steps - 1:
            print(f"step {t + 1}: SDR {np.mean(seen[-EACH:]):.2f} dB", flush=True)
            save(state[2])
    return state[2]


def test(network: str, weights: Weights, lower: Weights, speech: list[Spectra], noises: list[Spectra]) -> np.ndarray:
    """SDR of the Wiener filter of each held-out example, by the network and, from 4 to 8 kHz, by the rule."""
    rng, found = np.random.default_rng(1), []
    for _ in range(TESTED):
        S, N = example(rng, speech, noises, every=1)
        power = np.abs(S + N) ** 2
        if network == "lower":
            own, first = guess.network(weights, power[::2], jnp.ones(len(power[::2]), bool)), 0
        else:
            own, first = guess.upper_network(weights, upper_view(lower, power[::2], TOP)), BINS
        rule = (x.T[::2] for x in guess.above(power[:, first:].T))
        high = S[None, ::2, first:], N[None, ::2, first:]
        ways = (tuple(x[None] for x in way) for way in (own, rule))
        found.append([float(filter_sdr(*high, *way, jnp.asarray(True))[0]) for way in ways])
    return np.array(found)


def write(path: Path, weights: Weights) -> None:
    """As half-precision numbers."""
    np.savez_compressed(path, **{name: np.asarray(x, np.float16) for name, x in weights.items()})


def main() -> None:
    """Read, generate, train, write, test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("lower", "upper"))
    parser.add_argument("voices", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--cuts",
        type=int,
        default=1200,
        help="of speech; half as many noises, and as many mixtures for the upper network",
    )
    parser.add_argument("--held-out", nargs="*", default=HELD_OUT, help="names of voices, without suffix")
    parser.add_argument("--start", type=Path, help="weights to go on from")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng, rate = np.random.default_rng(asked.seed), 16000 if asked.network == "upper" else 8000
    voices = {p.stem: read(p, rate) for p in sorted(asked.voices.iterdir()) if p.suffix in (".wav", ".flac", ".ogg")}
    trained = [v for name, v in voices.items() if name not in asked.held_out]
    tested = [v for name, v in voices.items() if name in asked.held_out]
    speech, noises = bank(Source(rng, trained, rate), asked.cuts)
    print(f"{len(trained)} voices, {len(speech)} cuts, {len(noises)} noises", flush=True)
    lower = guess.weights("guess.npz")
    if asked.network == "upper":
        shape, loss, more = UPPER, upper_loss, {"mix": jnp.zeros((2, 4, TOP - BINS))}
        examples = batches(rng, partial(upper_example, rng, lower, speech, noises), asked.cuts)
    else:
        shape, loss, more = LOWER, lower_loss, {}
        examples = batches(rng, partial(example, rng, speech, noises), None)
    weights = initial(jax.random.key(asked.seed), **shape) | more
    if asked.start:
        with np.load(asked.start, allow_pickle=False) as file:
            weights = {name: jnp.asarray(file[name], jnp.float32) for name in file.files}
    partial_file = asked.out.with_name(f"{asked.out.stem}.partial.npz")
    found = train(weights, loss, examples, asked.steps, partial(write, partial_file))
    write(partial_file, found)
    partial_file.rename(asked.out)
    print("SHA-256", hashlib.sha256(asked.out.read_bytes()).hexdigest())
    if tested:
        scores = test(asked.network, found, lower, *bank(Source(np.random.default_rng(2), tested, rate), TESTED))
        (own, rule), gain = scores.mean(0), scores[:, 0] - scores[:, 1]
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        print(f"held-out voices: SDR {own:.2f} dB, by the rule {rule:.2f} dB, gain {gain.mean():.2f} ± {error:.2f} dB")


if __name__ == "__main__":
    main()
