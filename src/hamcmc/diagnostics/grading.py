"""From measurements to a word: when a run is good, usable, not converged or wrong.

A run is **wrong** only if its draws contradict the gradients beyond all noise *and* by an amount that matters; it is
**not converged** if more draws, or other starts, could change the answer. A single criterion that fails decides.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hamcmc._types import Facts
from hamcmc.diagnostics.combinations import LEADING, Combination
from hamcmc.diagnostics.identities import Statistic
from hamcmc.diagnostics.measured import Measured
from hamcmc.diagnostics.tails import NO_VARIANCE

WORDS = ("good", "usable", "not converged", "wrong")
GOOD, USABLE, NOT_CONVERGED, WRONG = range(4)

R_HAT = {GOOD: 1.01, USABLE: 1.05}
ESS = {GOOD: 1000, USABLE: 400}  # the means of a few dozen parameters are then known to 0.1 and 0.15 of a deviation
RANGE = {GOOD: 0.04, USABLE: 0.05}  # standard errors of the range from 5 to 95 %
MATERIAL = 0.1  # an error of a mean in standard deviations, or a relative error of a standard deviation
MATERIAL_TAIL = 0.2  # the same in the tails, which fewer draws know
FEWEST_MIXED = 50  # effective draws of a parameter, with which an error is not owed to slow mixing
OVERWHELMING = 1.0  # an error beyond which a run is wrong even if it also has too few effective draws
ALARM = 1e-3  # probability that chance alone makes any of the statistics significant
RARELY = 0.05  # the same, where the standard errors are so small that nothing but an error is to be expected
CAUTION = 1.5  # standard errors from few clusters and skewed terms are too small: measured on exact draws
MANY = 100  # parameters beyond which there are fewer than four draws for each, and standard errors are less sure
RESOLVED = 0.05  # standard errors above this cannot exclude an error that matters
STEADY = 0.5  # share of an error that must not come from two clusters of draws
FEWEST_EFFECTIVE = {True: 3.0, False: 10.0}  # per half-chain, for the noise of R-hat; fewer if ensembles agree as well
DIGITS = {GOOD: 100.0, USABLE: 10.0}
IMPOSSIBLE = 3.0  # a tail index that no posterior has: that of a Cauchy distribution is 1
HEAVY = 0.45  # a tail index above which the terms of a statistic may have no variance, and t values mislead
LOST_NATS = 0.1
DOUBTLESS = 4.0  # standard errors, from which an error is one that smaller steps should mend
ENDED = 1e-3  # share of the draws that may be at the last number before the end of a support
LOW_ACCEPTANCE = 0.1


class Reason(NamedTuple):
    """Why a run is no better than a grade; among equal grades the larger weight comes first."""

    grade: int
    weight: float
    text: str


def reasons(m: Measured, settings: Facts, meta: Facts, draws: int) -> list[Reason]:
    """All that speaks against a run, the most important first."""
    if draws < 4:
        return [Reason(NOT_CONVERGED, 1.0, f"there are only {draws} draws per chain")]
    found = list(_stein(m))
    found += _combinations(m, max((r.grade for r in found), default=GOOD))
    found += [*_state(settings, meta, draws), *_agreement(m), *_stuck(m), *_numbers(m)]
    found += _effective(m, draws * settings["chains"])
    return sorted(found, key=lambda r: (-r.grade, -r.weight))


def _state(settings: Facts, meta: Facts, draws: int) -> Iterator[Reason]:
    """Whether the run came to its end."""
    status = meta.get("status", "complete")
    if status == "failed":
        yield Reason(NOT_CONVERGED, 1e6, f"the run failed: {meta.get('message', 'no message')}")
    elif status != "complete":
        yield Reason(USABLE, 1e6, f"the run is not finished: {draws:,} of {settings['num_samples']:,} draws per chain")


# --- gradients ---


def critical(m: Measured, probability: float = ALARM, clusters: int | None = None) -> float:
    """The value of Student's t that chance exceeds in one of all statistics with this probability."""
    from scipy import special  # it takes a while to import

    if m.stein is None:
        return np.inf
    count = 3 * len(m.stein.mean.error) + len(m.combinations)
    return float(-special.stdtrit(max(int(clusters or m.stein.clusters) - 1, 2), probability / (2 * count)))


def _stein(m: Measured) -> Iterator[Reason]:
    """What the gradients say against the draws."""
    if m.stein is None:
        yield Reason(USABLE, -1.0, f"the gradients were not confronted: {m.unconfronted}")
        return
    if m.unconfronted:
        yield Reason(GOOD, 0.0, f"the gradients were not confronted everywhere: {m.unconfronted}")
    usual = CAUTION if len(m.stein.mean.error) > MANY else 1.0
    for what, statistic, material, caution in (
        ("the mean of {} is off by {:+.2f} ± {:.2f} standard deviations", m.stein.mean, MATERIAL, usual),
        ("the standard deviation of {} is off by {:+.0%} ± {:.0%}", m.stein.sd, MATERIAL, usual),
        ("the tails of {} are off by {:+.0%} ± {:.0%}", m.stein.tail, MATERIAL_TAIL, CAUTION),
    ):
        grades = stein_grades(m, statistic, material, caution)
        size = np.abs(statistic.error) / material
        if grades.max() >= NOT_CONVERGED:
            j = int(np.argmax(grades * 1e6 + np.minimum(np.nan_to_num(size), 1e5)))
            name, error, se = np.array(m.names)[m.confronted][j], statistic.error[j], statistic.se[j]
            more = int((grades == grades.max()).sum()) - 1
            error, se = np.clip(error, -99, 99), min(se, 99)
            text = what.format(name, error, se) + " against the gradients" + (f" ({more:,} more are)" if more else "")
            yield Reason(int(grades.max()), 10 + float(size[j]), text)
        elif what.startswith("the tails") and (off := _off(m, statistic)).any():
            j = int(np.argmax(np.where(off, size, 0.0)))
            name, error, se = np.array(m.names)[m.confronted][j], statistic.error[j], statistic.se[j]
            yield Reason(USABLE, 1.5, what.format(name, error, se) + " against the gradients")
    no_sd = m.tails[m.confronted] > NO_VARIANCE  # then nobody asks for its standard deviation
    vague = (m.stein.mean.se > RESOLVED) | ((m.stein.sd.se > RESOLVED) & ~no_sd)
    if vague.any():
        worst = int(np.argmax(np.where(vague, np.fmax(m.stein.mean.se, m.stein.sd.se), 0.0)))
        name = np.array(m.names)[m.confronted][worst]
        yield Reason(
            USABLE,
            0.1,
            f"the gradients cannot exclude an error of 10 % for {vague.sum():,} parameters, above all {name}",
        )
    if m.bounded.any():
        name = np.array(m.names)[m.bounded][0]
        text = f"the density of {name} ends at a hard boundary, where gradients say nothing"
        yield Reason(GOOD, 0.0, text)


def stein_grades(m: Measured, statistic: Statistic, material: float, caution: float) -> np.ndarray:
    """The grade of each confronted parameter for one statistic."""
    limits = critical(m), max(4.0, critical(m, RARELY))
    light = ~(m.tails[m.confronted] > HEAVY)
    r_hat, ess = m.mixing.r_hat[m.confronted], m.mixing.ess_bulk[m.confronted]
    grades = _graded(statistic, material, caution, limits, light & _mixed(r_hat, ess))
    return np.where(m.bounded[m.confronted], GOOD, grades)


def _off(m: Measured, statistic: Statistic) -> np.ndarray:
    """Where an error is beyond all doubt and larger than a mean or a standard deviation may be off."""
    surely = (np.abs(statistic.error) - 2 * statistic.se > MATERIAL) & (np.abs(statistic.t) > CAUTION * critical(m))
    return surely & (statistic.steady > STEADY) & ~(m.tails[m.confronted] > HEAVY) & ~m.bounded[m.confronted]


def _mixed(r_hat: np.ndarray, ess: np.ndarray) -> np.ndarray:
    """Whether an error is not owed to slow mixing."""
    return (np.nan_to_num(ess) >= FEWEST_MIXED) & ~(r_hat > 1.1)


def _graded(
    statistic: Statistic, material: float, caution: float, limits: tuple[float, float], trusted: np.ndarray
) -> np.ndarray:
    """The grade for each of several errors.

    An error is wrong if it is significant with caution, above the material size by two standard errors, not owed to two
    clusters, and `trusted`: found where draws have mixed and tails are not heavy; or if it is overwhelming. If it is
    significant without caution, or not surely material, the run is not converged. So it is if all that chance rarely
    does would not matter, but the estimate does.
    """
    limit, resolved = limits
    doubt = caution * limit  # the few draws in the tails have standard errors that are themselves uncertain
    size, t = np.abs(np.nan_to_num(statistic.error)), np.abs(np.nan_to_num(statistic.t))
    se = np.nan_to_num(statistic.se)
    doubtful = (size > material) & (size > se) & ((t > doubt) | (caution * resolved * se < material))
    sure = doubtful & (t > CAUTION * limit) & (size - 2 * se > material) & (statistic.steady > STEADY)
    wrong = sure & (trusted | (size > OVERWHELMING))
    return np.where(wrong, WRONG, np.where(doubtful, NOT_CONVERGED, GOOD))


def _combinations(m: Measured, already: int) -> Iterator[Reason]:
    """What the gradients say along the worst direction, if it is worse than what they say of single parameters."""
    found = []
    for c in m.combinations:
        limits = critical(m, clusters=c.clusters), max(4.0, critical(m, RARELY, c.clusters))
        trusted = _mixed(c.mixing.r_hat, c.mixing.ess_bulk)
        grade = int(_graded(c.statistic, MATERIAL, CAUTION, limits, trusted)[0])
        found.append((grade, float(np.abs(np.nan_to_num(c.statistic.error[0]))), c))
    grade, size, c = max(found, key=lambda f: f[:2], default=(GOOD, 0.0, None))
    if c is None:
        return
    if grade < max(NOT_CONVERGED, already + 1):
        vaguest = max(m.combinations, key=lambda c: np.nan_to_num(c.statistic.se[0]))
        if already == GOOD and vaguest.statistic.se[0] > RESOLVED:
            yield Reason(
                GOOD, 0.0, f"the gradients cannot exclude an error of 10 % along a direction, {_of(m, vaguest)}"
            )
        return
    error, se = np.clip(c.statistic.error[0], -99, 99), min(c.statistic.se[0], 99)
    off = f"{error:+.2f} ± {se:.2f} standard deviations" if c.what == "mean" else f"{error:+.0%} ± {se:.0%}"
    what = "the mean" if c.what == "mean" else "the standard deviation"
    text = f"{what} along a direction, {_of(m, c)}, is off by {off} against the gradients"
    yield Reason(grade, 9 + size / MATERIAL, text)


def _of(m: Measured, c: Combination) -> str:
    """The parameters that a direction is made of."""
    names = [m.names[j] for j in m.combined[list(c.leading)]]
    return f"mostly of {' and '.join(names)}" if len(names) < LEADING else f"of {', '.join(names)} and others"


# --- agreement of chains, effective draws ---


def r_hat_limits(m: Measured, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """The R-hat that a scalar may have, between all chains and between ensembles.

    R-hat² − 1 is the variance of the means of half-chains in units of the variance within. With e independent draws in
    a half-chain it is 1/e, even if all is well, with a relative standard deviation of √(2/(k−1)) for k of them. Many
    short chains therefore have a larger R-hat than a few long ones, and that is no fault.
    """
    from scipy import special

    z = -special.ndtri(0.01 / max(1, len(m.names)))
    nested = 1 < m.ensembles < m.half_chains // 2
    e = np.maximum(np.nan_to_num(m.mixing.own), FEWEST_EFFECTIVE[nested])

    def allowed(count: int, effective: np.ndarray) -> np.ndarray:
        noise = (1 + z * np.sqrt(2 / max(count - 1, 1))) / effective
        return np.sqrt(limit**2 + noise)

    groups = 2 * m.ensembles
    return allowed(m.half_chains, e), allowed(groups, e * m.half_chains / groups)


def r_hat_grades(m: Measured) -> tuple[np.ndarray, np.ndarray]:
    """The grade of each scalar for the R-hat of all chains, and for that of the ensembles."""
    found = [np.zeros(len(m.names), int), np.zeros(len(m.names), int)]
    for grade in (GOOD, USABLE):
        for k, (value, limit) in enumerate(
            zip((m.mixing.r_hat, m.mixing.r_hat_ensembles), r_hat_limits(m, R_HAT[grade]))
        ):
            found[k] = np.where(value > limit, grade + 1, found[k])
    return found[0], found[1]


def _agreement(m: Measured) -> Iterator[Reason]:
    """Whether chains and ensembles agree."""
    of_chains, of_ensembles = r_hat_grades(m)
    if m.ensembles == 1:
        yield Reason(USABLE, 0.2, "there is only one ensemble or chain: nothing independent to compare it with")
    for grades, values, who in (
        (of_ensembles, m.mixing.r_hat_ensembles, "the ensembles" if m.half_chains > 2 * m.ensembles else "the chains"),
        (of_chains, m.mixing.r_hat, "the chains"),
    ):
        if grades.max() > GOOD:
            j = int(np.argmax(np.where(grades == grades.max(), np.nan_to_num(values), 0)))
            yield Reason(
                int(grades.max()), 5 + values[j], f"{who} disagree about {m.names[j]}: R-hat is {values[j]:.3f}"
            )
            return


def attainable(draws: int) -> int:
    """The best grade that so many draws of all chains allow, if they were independent."""
    return GOOD if draws >= ESS[GOOD] else USABLE if draws >= ESS[USABLE] else NOT_CONVERGED


def _effective(m: Measured, draws: int) -> Iterator[Reason]:
    """Whether there are enough effective draws, of so many of all chains."""
    ess = np.fmin(m.mixing.ess_bulk, m.mixing.ess_tail)
    if np.isnan(ess).all():
        return  # chains that never move are reported as stuck
    j = int(np.nanargmin(ess))
    grade = GOOD if ess[j] >= ESS[GOOD] else USABLE if ess[j] >= ESS[USABLE] else NOT_CONVERGED
    if grade > GOOD:
        where = "in the tails of" if ess[j] < m.mixing.ess_bulk[j] else "of"
        text = f"there are only {ess[j]:,.0f} effective draws {where} {m.names[j]}"
        if grade <= attainable(draws):
            text += f", and only {draws:,} in all: a larger num_samples is needed"
        yield Reason(grade, 3.0, text)
    j = int(np.argmax(np.nan_to_num(m.ranges)))
    grade = GOOD if not m.ranges[j] > RANGE[GOOD] else USABLE if m.ranges[j] <= RANGE[USABLE] else NOT_CONVERGED
    if grade > GOOD:
        text = f"the 5 to 95 % range of {m.names[j]} is known to ± {2 * m.ranges[j]:.0%} only"
        yield Reason(grade, 2.0, text)
    apart = np.where(m.tails > NO_VARIANCE, 0.0, m.apart)  # a tail without a variance has gaps of its own
    j = int(np.argmax(apart))
    if apart[j] > MATERIAL:
        text = f"a few draws of {m.names[j]}, far from all others, raise its standard deviation by {apart[j]:.0%}"
        yield Reason(NOT_CONVERGED, 2.5, f"{text}: a mode of unknown weight, or a start that was left late")


def bias_of(m: Measured) -> float:
    """The largest error that gradients show beyond doubt, where they are trusted; 0 if there is none.

    That takes more standard errors than usual, because few draws and skewed terms make them too small.
    """
    if m.stein is None:
        return 0.0
    sound = ~(m.tails[m.confronted] > HEAVY) & ~m.bounded[m.confronted]
    sound &= _mixed(m.mixing.r_hat[m.confronted], m.mixing.ess_bulk[m.confronted])
    limit = CAUTION * max(DOUBTLESS, critical(m, RARELY))
    tails = sound & _off(m, m.stein.tail)
    found = [(m.stein.mean, 1.0, limit, sound), (m.stein.sd, 1.0, limit, sound)]
    found.append((m.stein.tail, MATERIAL / MATERIAL_TAIL, limit, tails))
    for c in m.combinations:
        limit = CAUTION * max(DOUBTLESS, critical(m, RARELY, c.clusters))
        found.append((c.statistic, 1.0, limit, _mixed(c.mixing.r_hat, c.mixing.ess_bulk)))
    sizes = (np.where(s & (np.abs(f.error) > limit * f.se), np.abs(f.error) * w, 0.0) for f, w, limit, s in found)
    return float(max(size.max(initial=0.0) for size in sizes))


def short_of(m: Measured) -> float:
    """How many times as many draws make all effective sample sizes and ranges good; at most 1 if they are."""
    if not len(m.names):
        return 1.0
    ess = np.fmin(m.mixing.ess_bulk, m.mixing.ess_tail)
    wide = np.where(m.ranges > RANGE[GOOD], (m.ranges / RANGE[GOOD]) ** 2, 0.0)
    return float(np.max(np.where(np.isnan(ess), np.inf, np.fmax(ESS[GOOD] / ess, wide))))


def _stuck(m: Measured) -> Iterator[Reason]:
    """Chains that do not take part."""
    for chain, text in m.stuck.items():
        others = f", and {len(m.stuck) - 1} others take no part either" if len(m.stuck) > 1 else ""
        yield Reason(NOT_CONVERGED, 8.0, f"chain {chain} {text}{others}")
        return


def _numbers(m: Measured) -> Iterator[Reason]:
    """Digits of single precision, the acceptance, and moments that may not exist."""
    if np.isfinite(m.digits).any():
        j = int(np.nanargmin(m.digits))
        if m.digits[j] < DIGITS[GOOD]:
            grade = USABLE if m.digits[j] >= DIGITS[USABLE] else NOT_CONVERGED
            text = f"{m.names[j]} has a standard deviation of {m.digits[j]:.2g} units in the last digit of its values"
            yield Reason(grade, 7.0, text + ": shift it towards 0, or use double precision")
    for name, share in m.ended:
        if share > ENDED:
            text = f"{share:.1%} of the draws of {name} are as near to the end of its support as the precision allows"
            remedy = "what lies beyond is lost: use double precision, or sample it on a scale of its own"
            yield Reason(NOT_CONVERGED, 7.5, f"{text}, and {remedy}")
    if m.acceptance is not None and m.lost > LOST_NATS:
        text = f"single precision loses {m.lost:.2g} nats of the log-density that the Metropolis test needs"
        yield Reason(USABLE, 0.5, text)
    if m.acceptance is not None and m.acceptance < LOW_ACCEPTANCE:
        yield Reason(USABLE, 1.0, f"only {m.acceptance:.1%} of the proposals were accepted")
    if (m.tails > NO_VARIANCE).any():
        j = int(np.nanargmax(m.tails))
        if m.tails[j] > IMPOSSIBLE:
            yield Reason(
                NOT_CONVERGED, 9.0, f"the draws of {m.names[j]} reach impossibly far (tail index {m.tails[j]:.1f})"
            )
            return
        what = "mean and standard deviation" if m.tails[j] > 2 * NO_VARIANCE - 0.3 else "standard deviation"
        yield Reason(
            GOOD, 0.0, f"the {what} of {m.names[j]} may not exist (tail index {m.tails[j]:.2f}): use quantiles"
        )
