"""The runs of figure 3: a search with the same budget for all, then the test files, with finished runs kept."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.stats import qmc

from hamcmc._types import Record
from hamcmc.inference.progress import Progress, Status
from hamcmc.paper.beside import cores, side_by_side
from hamcmc.paper.denoising import CHANGES, PAPER, Outcome, Recording, clean
from hamcmc.paper.journal import Journal

ROUNDS = 2  # of the search; the box of the second is half as wide in each logarithm
SEARCH_SEED = 1_000_000  # added to the seed of the runs of the search


class Sampler(Protocol):
    """What a method says of itself: the sampler's name, fixed options, and the ranges to search."""

    @property
    def sampler(self) -> str: ...
    @property
    def options(self) -> Record: ...
    @property
    def mirrored(self) -> Mapping[str, tuple[float, float]]: ...
    @property
    def logs(self) -> Mapping[str, tuple[float, float]]: ...


class Work:
    """A method with some changes, and the files it is tested on."""

    def __init__(self, label: str, method: Sampler, changes: tuple[str, ...], files: Sequence[Recording]):
        self.label, self.method, self.changes, self.files = label, method, changes, list(files)

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """What is searched, in the coordinates that are sampled."""
        return self.method.logs if "log" in self.changes else self.method.mirrored

    @property
    def options(self) -> Record:
        """Those of :func:`hamcmc.stable.separate`."""
        merged = dict(PAPER)
        for change in self.changes:
            merged |= CHANGES[change]
        return merged


class Done(NamedTuple):
    """The outcome of each file, the parameters that were chosen, and all that were tried, with their mean SDR."""

    outcomes: list[Outcome]
    parameters: Record
    tried: list[Record]


class Bench:
    """Runs work, and keeps what is finished.

    Args:
        W: spectra of speech.
        asked: the settings of the reproduction.
        seed: everything random follows from it.
        tuning: the files to search on.
        journal: where finished runs are kept.
        data: a digest of the corpus.

    Attributes:
        spent: the seconds of all runs, those that were finished before among them, shared by the cores.
    """

    def __init__(self, W: np.ndarray, asked: Record, seed: int, tuning: list[Recording], journal: Journal, data: str):
        self.W, self.asked, self.seed, self.tuning, self.journal, self.data = W, asked, seed, tuning, journal, data
        self.spent = 0.0
        names = ("speech_alpha", "noise_alpha", "speech_rank", "noise_rank", "iterations", "averaged")
        self.model = {k: asked[k] for k in names} | {"data": data, "dictionary_seed": seed, "held": _held(asked)}

    def run(self, work: list[Work], progress: Progress) -> dict[Work, Done]:
        """All of it: the search where the coordinates are new, then the files."""
        per_search = self.asked["candidates"] * len(self.tuning)
        searches = {(w.label, "log" in w.changes) for w in work if w.ranges}
        self._clock = Clock(per_search * len(searches) + sum(len(w.files) for w in work), progress)
        found: dict[tuple[str, bool], tuple[Record, list[Record]]] = {}
        done = {}
        for w in work:
            place = w.label, "log" in w.changes
            if place not in found:
                found[place] = self._search(w)
            parameters, tried = found[place]
            outcomes = self._all([(w, r, parameters, self.seed) for r in w.files])
            done[w] = Done(outcomes, parameters, tried)
        return done

    def _search(self, w: Work) -> tuple[Record, list[Record]]:
        """The parameters with the best mean SDR on the development files, and all candidates.

        It is made for the first work with these coordinates. Without candidates it takes the middle of the ranges.
        """
        low, high = np.log(np.array(list(w.ranges.values())).reshape(-1, 2)).T
        if not w.ranges or not self.asked["candidates"]:
            return w.method.options | dict(zip(w.ranges, np.exp((low + high) / 2).tolist())), []
        sequence = qmc.Halton(len(low), rng=np.random.default_rng(self.seed))
        box, best = (low, high), {}
        tried: list[Record] = []
        for k in range(ROUNDS):
            points = qmc.scale(sequence.random(self.asked["candidates"] // ROUNDS), *box)
            candidates = [w.method.options | dict(zip(w.ranges, np.exp(point).tolist())) for point in points]
            outcomes = self._all([(w, r, c, self.seed + SEARCH_SEED) for c in candidates for r in self.tuning])
            scores = np.mean(np.reshape([o.sdr for o in outcomes], (len(candidates), -1)), 1).tolist()
            for point, parameters, score in zip(points, candidates, scores):
                tried.append({"parameters": parameters, "score": score if np.isfinite(score) else -np.inf, "at": point})
            best = max(tried, key=lambda t: t["score"])
            half = 0.5 ** (k + 2) * (high - low)
            box = np.maximum(best["at"] - half, low), np.minimum(best["at"] + half, high)
        return best["parameters"], [{k: t[k] for k in ("parameters", "score")} for t in tried]

    def _all(self, runs: list[tuple[Work, Recording, Record, int]]) -> list[Outcome]:
        """The outcomes of runs, each a method on a file with its parameters and a seed. Those that were finished before
        are not made again, and the others run side by side."""
        names = [self._name(*run) for run in runs]
        new = [(run, name) for run, name in zip(runs, names) if self.journal.get(name) is None]
        for _ in range(len(runs) - len(new)):
            self._clock.end(None)

        def piece(w: Work, r: Recording, parameters: Record, seed: int) -> Callable[[Progress], Outcome]:
            return lambda look: clean(
                r, self.W, w.method.sampler, parameters, w.options, self.asked, seed, progress=look
            )

        if new:
            self._clock.say(new[0][0][0].label)
        for i, outcome in side_by_side([piece(*run) for run, _ in new]):
            (w, r, _, _), name = new[i]
            lost = np.isnan(outcome.sdr)
            covered = [None] * 3 if lost else list(outcome.covered)
            self.journal.put(name, [None if lost else outcome.sdr, covered, outcome.seconds])
            self._clock.end(outcome.seconds)
            self._clock.say(f"{w.label}{' with ' + ' and '.join(w.changes) if w.changes else ''}: {r.noise}")
        found = [self._outcome(self.journal.kept[Journal.name(name)]) for name in names]
        self.spent += sum(outcome.seconds for outcome in found) / cores()
        return found

    @staticmethod
    def _outcome(kept: tuple[float | None, list[float | None], float]) -> Outcome:
        """As it was before None stood for NaN."""
        sdr, covered, seconds = kept
        return Outcome(np.nan if sdr is None else sdr, tuple(np.nan if c is None else c for c in covered), seconds)

    def _name(self, w: Work, r: Recording, parameters: Record, seed: int) -> Record:
        """All that a run depends on."""
        return self.model | {
            "file": r.noisy.name,
            "sampler": w.method.sampler,
            "parameters": parameters,
            "options": w.options,
            "seed": seed,
        }


class Clock:
    """Says how many runs are done and, from the time of those before, how long the rest takes."""

    def __init__(self, total: int, progress: Progress):
        self.total, self.progress, self.done = total, progress, 0
        self.times: list[float] = []

    def say(self, label: str) -> None:
        """Report how far the work is, with the method and the file that were last."""
        note = f"{self.total} runs"
        if self.times:
            mean = float(np.mean(self.times)) / cores()
            note = f"about {_minutes((self.total - self.done) * mean)} left, {_minutes(self.total * mean)} in all"
        self.progress(Status(self.done / self.total, label, note=note))

    def end(self, seconds: float | None) -> None:
        """Count a run, and its time if it was not kept from before."""
        self.done += 1
        if seconds is not None:
            self.times.append(seconds)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _held(asked: Record) -> list[int]:
    """How many sentences the dictionary is not trained on."""
    return [asked["test"], asked["development"]]
