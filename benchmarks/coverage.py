"""Does the uncertainty of ``hamcmc denoise`` cover? The share of true values inside its central 50, 90 and 99 % sets.

The files are those of the comparison of denoisers, which need a corpus laid out like NOIZEUS. Draws of the clean sound
are compared with the clean file, sample by sample, and their spectra with its spectrum, in parts along and across the
noisy one. "Loud" are the bins in which the true speech is within 30 dB of the loudest of its file. If the posterior is
right, a set of probability p holds the truth in a share p of all cases.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import denoisers
from benchmarks.measure import Table
from hamcmc.speech import audio, spectrum
from hamcmc.speech.denoise import denoise
from hamcmc.stable.calibration import LEVELS, coverage

DRAWS = 199  # so that the outermost ranks hold 1 %
LOUD = 1e-3  # of the loudest bin's power

Shares = dict[str, np.ndarray]  # the shares at LEVELS for each kind of values


def run(quick: bool, corpus: str | None = None, snr: Iterable[int] = (5,)) -> list[Table]:
    """A row for each level of noise and each kind of values: means over files."""
    if corpus is None:
        return [Table("Coverage was left out", [{"reason": "it needs --corpus PATH, laid out as NOIZEUS is"}])]
    sentences = [i for i in range(1, 31) if i not in denoisers.TUNED_ON][: 1 if quick else None]
    rows = []
    for level in snr:
        files = [denoisers.paths(Path(corpus), n, i, level) for i in sentences for n in denoisers.NOISES]
        found = [of_file(*pair) for pair in files]
        for kind in found[0]:
            each = np.array([f[kind] for f in found])
            error = each.reshape(len(sentences), -1, len(LEVELS)).mean(1).std(0, ddof=1) if len(sentences) > 1 else None
            rows.append({"SNR": f"{level} dB", "values": kind} | shown(each.mean(0), error, len(sentences)))
    return [Table(f"Shares of true values inside central sets, {len(files)} files at each level", rows)]


def shown(mean: np.ndarray, sd: np.ndarray | None, sentences: int) -> dict[str, str]:
    """Columns of shares, with standard errors over sentences."""
    errors = ["" if sd is None else f" ± {x / np.sqrt(sentences):.3f}" for x in (mean if sd is None else sd)]
    return {f"in {100 * p:.0f} %": f"{m:.3f}{e}" for p, m, e in zip(LEVELS, mean, errors)}


def of_file(clean: Path, noisy: Path) -> Shares:
    """The shares of one file."""
    s, x = (audio.read(source := audio.info(p))[:, 0].astype(float) for p in (clean, noisy))
    s, x = s[: len(x)], x[: len(s)]
    parts = list(denoise([x[:, None]], source.rate, draws=DRAWS))
    draws = np.concatenate([c.draws[..., 0] for c in parts if c.draws is not None], 1)
    return shares(s, x, draws, source.rate)


def shares(s: np.ndarray, x: np.ndarray, draws: np.ndarray, rate: int) -> Shares:
    """The shares of true values inside central sets of draws (draws, samples).

    Args:
        s: the true sound.
        x: the noisy one.
        draws: of the clean sound.
        rate: samples per second.
    """
    S, turn = spectrum.analyse(s, rate), np.exp(-1j * np.angle(spectrum.analyse(x, rate)))
    below: Any = np.zeros((2, *S.shape))
    true = S * turn
    for draw in draws:
        one = spectrum.analyse(draw, rate) * turn
        below += [one.real < true.real, one.imag < true.imag]
    power = np.abs(S) ** 2
    loud = np.broadcast_to(power > LOUD * power.max(), below.shape)
    ranks = (below + 0.5) / (len(draws) + 1)
    found = {
        "samples of the sound": ((draws < s).sum(0) + 0.5) / (len(draws) + 1),
        "loud bins": ranks[loud],
        "other bins": ranks[~loud],
    }
    return {kind: np.array(list(coverage(r).values())) for kind, r in found.items()}
