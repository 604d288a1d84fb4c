"""The race: one automatic call of hamcmc against the best that a user could do instead, everything included.

Every method is used as its documentation says, starts where hamcmc starts, sees the same posterior in single precision
and runs in a fresh process with nothing compiled before. Its seconds are counted from the call to the draws, and so
include compiling, and where it needs them the mode, the Hessian and tuning. Imports and making the data are not
counted. Each has a budget: where the recommended number of draws does not fit, warm-up is shortened in proportion, and
sampling goes on until the budget is spent ("stopped at the budget"); a trial finds that out and is not counted. A
method that has no effective draw by then is not run on more rows of the same kind. Whitened NUTS, the one to beat, is
run again with five times the budget instead.

Effective draws are those of the poorest of all directions, and errors are the largest: all eigenvectors of the Hessian
at the mode (or of the covariance), and all coordinates, against exact moments. An error of a variance is partly chance.
"Chance" is the largest error to expect from as many independent draws as there are effective ones ("–": there is none).
Where the error is more than 15 % above that, the draws are wrong, and their number says nothing. Nor do fewer than 50
effective draws.

posteriors takes part if it is installed, because PyTorch is not among the packages that ``make bench`` installs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import page
from benchmarks.measure import Against, Table
from benchmarks.race_clock import Clock, Judged, NotForThis, TooSlow, judge
from benchmarks.race_problems import ENTRIES, HUGE, SCRATCH, Truth, truth
from benchmarks.racers import METHODS, OURS

Row = dict[str, Any]
KEY = ("problem", "method", "round", "seconds", "quick")  # of a measurement
ONE_TO_BEAT, LONGER = "nuts-white", 5  # the method that is given so many times the budget if it has no draws at its end
LEAST = 50  # effective draws, of fewer nobody can say whether they are right
UNINFORMATIVE = 10.0  # an error by chance that is larger says only that there is no effective draw
PARTS = ("preparation", "compile", "warm-up", "sampling")
COLUMNS = (
    "ESS",
    "total, s",
    "sampling, s",
    "ESS/s, all included",
    "ESS/s of sampling",
    "variance error",
    "chance",
    "mean error, sd",
    "hamcmc has",
)
SUMMARY = "Effective draws per second, everything included: logistic regression, condition number "


def run(
    quick: bool,
    only: Sequence[str] = (),
    methods: Sequence[str] = (),
    seconds: float = 0.0,
    rounds: int = 0,
    huge: bool = False,
    fresh: bool = False,
) -> list[Table]:
    """A table for each problem, and one over sizes of data, from all measurements that were kept."""
    entries = ENTRIES | (HUGE if huge else {})
    if unknown := {*only} - {*entries} | {*methods} - {*METHODS}:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(entries)} and {', '.join(METHODS)}")
    log = page.RESULTS / "race.jsonl"
    seconds, rounds = seconds or (10.0 if quick else 120.0), rounds or (1 if quick else 3)
    wanted = [
        dict(zip(KEY, (problem, method, r, seconds, quick)))
        for r in range(rounds)
        for problem in only or entries
        for method in list(methods or METHODS)[:: -1 if r % 2 else 1]
    ]
    kept = measured(wanted, log, fresh)
    return tables([m for m in kept.values() if m["quick"] == quick and m["seconds"] == seconds])


def seconds_in_log() -> float:
    """Seconds of all measurements in the log, which several calls may have made; trials are not counted."""
    log = (page.RESULTS / "race.jsonl").read_text().splitlines()
    kept = {tuple(m[k] for k in KEY): m for m in map(json.loads, log)}
    return sum(m.get("total", 0.0) for m in kept.values() if not m["quick"])


def measured(wanted: Iterable[Row], log: Path, fresh: bool) -> dict[tuple, Row]:
    """All measurements in the log, after those that are wanted and not in it were made and appended."""
    log.touch()
    text = log.read_text()
    log.write_text(text[: text.rfind("\n") + 1])  # without a line in the middle of which a run was stopped
    key = lambda m: tuple(m[k] for k in KEY)
    kept = {key(m): m for m in map(json.loads, log.read_text().splitlines())}
    for m in wanted:
        if fresh or key(m) not in kept:
            found = m | {"load": round(os.getloadavg()[0], 1)} | (hopeless(m, kept.values()) or raced(**m))
            print(json.dumps(found, ensure_ascii=False), flush=True)
            kept[key(m)] = found
            with log.open("a") as file:
                file.write(json.dumps(found, ensure_ascii=False) + "\n")
    return kept


def raced(problem: str, method: str, round: int, seconds: float, quick: bool) -> Row:
    """Run one method in a process of its own, after another one has found the truth if nobody had."""
    if not exact_path(problem, quick).exists():
        found = command(problem, "truth", 0, seconds, quick, 3600.0)
        if not exact_path(problem, quick).exists():
            raise SystemExit(f"{problem}: no exact moments to compare with: {found.get('status', 'none were written')}")
    found = command(problem, method, round, seconds, quick, 120 + 2 * seconds)
    nothing = found.get("slow") or found.get("ess", 1.0) < 1
    if nothing and method == ONE_TO_BEAT and not quick:
        longer = LONGER * seconds
        found = {"budget": longer} | command(problem, method, round, longer, quick, 120 + 2 * longer)
    return found


def hopeless(wanted: Row, kept: Iterable[Row]) -> Row:
    """Why a method need not be run: it had no draws on fewer rows of the same kind, or in another round."""
    entries = ENTRIES | HUGE
    of = entries[wanted["problem"]]
    for m in kept:
        nothing = m.get("slow") or m.get("ess", 1.0) < 1
        same = all(m[k] == wanted[k] for k in ("method", "seconds", "quick")) and nothing
        other = entries[m["problem"]]
        if same and (m["problem"] == wanted["problem"] or (other.condition == of.condition and of.condition)):
            if other.size < of.size:
                return {"status": f"not run: no effective draw at N = {other.size:,}", "slow": True}
            if other.size == of.size and m.get("slow"):
                return {"status": m["status"], "slow": True}
    return {}


def command(problem: str, method: str, seed: int, seconds: float, quick: bool, patience: float) -> Row:
    """What a child process found, or why it found nothing."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        arguments = [problem, method, str(seed), str(seconds), str(int(quick)), str(out)]
        cold = {"JAX_ENABLE_COMPILATION_CACHE": "false", "XDG_CACHE_HOME": folder}
        try:
            child = subprocess.run(
                [sys.executable, "-m", "benchmarks.race", *arguments],
                env=os.environ | cold,
                capture_output=True,
                text=True,
                timeout=patience,
            )
        except subprocess.TimeoutExpired as e:
            stage = (e.stdout or b"").decode().split("\n")[-2:-1] or ["the start"]
            return {"status": f"not finished after {patience:.0f} s, in {stage[0]}", "slow": True}
        if child.returncode:
            last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
            return {"status": f"failed: {last[:200]}"}
        return json.loads(out.read_text())


def exact_path(problem: str, quick: bool) -> Path:
    """Where exact moments are kept."""
    return SCRATCH / f"{problem}{'-small' * quick}.npz"


def child(problem: str, method: str, seed: str, seconds: str, quick: str, out: str) -> None:
    """Run one method on one problem, and write what it found."""
    small = bool(int(quick))
    entry = (ENTRIES | HUGE)[problem]
    SCRATCH.mkdir(parents=True, exist_ok=True)
    made, path = entry.build(small), exact_path(problem, small)
    if method == "truth":
        np.savez(path, **truth(made, entry.pairs)._asdict())
        Path(out).write_text("{}")
        return
    stored = np.load(path)
    exact = Truth(*(stored[k] for k in Truth._fields))
    found: Row = {"title": made.name, "reference": float(exact.error)}
    clock = Clock(float(seconds))
    try:
        result = METHODS[method][1](made, clock, int(seed))
    except NotForThis as e:
        found |= {"status": str(e), "slow": isinstance(e, TooSlow)}
    else:
        found |= {"status": "stopped at the budget" if result.stopped else "", "settings": result.settings}
        found |= {"total": clock.total, "parts": clock.parts}
        found |= judge(result.draws, exact, result.together)._asdict()
    Path(out).write_text(json.dumps(found))


# --- tables ---


def tables(kept: list[Row]) -> list[Table]:
    """One for each problem, and one over N for each condition number."""
    entries = ENTRIES | HUGE
    of = {p: [m for m in kept if m["problem"] == p] for p in entries}
    found = [t for rows in of.values() if any("title" in m for m in rows) for t in of_problem(rows)]
    for condition in sorted({e.condition for e in entries.values() if e.condition}):
        family = {e.size: of[p] for p, e in entries.items() if e.condition == condition and of[p]}
        if len(family) > 1:
            found.append(over_sizes(condition, family))
    left = [{"problem": p, "methods": text} for p in entries if (text := unmeasured(of[p]))]
    return found + [Table("Not measured yet", left)] * bool(left)


def unmeasured(kept: list[Row]) -> str:
    """The methods that are still to be run on a problem."""
    names = [name for m, (name, _) in METHODS.items() if not of_method(kept, m)]
    return "all" if len(names) == len(METHODS) else ", ".join(names)


def of_problem(kept: list[Row]) -> list[Table]:
    """All methods on one problem, the median over rounds: what they found, and where their seconds went."""
    rates = {m: rate(kept, m) for m in METHODS}
    mine = rates["hamcmc"]
    rows = [row(name, own, rates[m], mine) for m, (name, _) in METHODS.items() if (own := of_method(kept, m))]
    title = next(m["title"] for m in kept if "title" in m)
    error = next(m["reference"] for m in kept if "title" in m)
    best = sorted((m for m in METHODS if m != "hamcmc" and rates[m] > 0), key=lambda m: -rates[m])[:3]
    what = f"effective draws per second, everything included, {title}"
    against = [
        Against(METHODS[m][0], what, f"{mine:.3g}, {rates[m]:.3g}", ahead(kept, m)) for m in best if rates["hamcmc"] > 0
    ]
    spent = [{"method": n} | seconds(own) for m, (n, _) in METHODS.items() if (own := with_draws(kept, m))]
    found = [Table(f"{title}; exact variances ± {100 * error:.1f} %", rows, against)]
    return found + [Table(f"{title}: where the seconds go", spent)] * bool(spent)


def of_method(kept: list[Row], method: str) -> list[Row]:
    """The measurements of one method."""
    return [m for m in kept if m["method"] == method]


def fault(m: Row) -> str:
    """Why a measurement does not count, in words; empty if it does."""
    if m.get("ess", 0.0) < LEAST:
        return "too few effective draws to count"
    return "" if Judged(*(m[k] for k in Judged._fields)).right else "wrong"


def rates_of(kept: list[Row], method: str) -> list[float]:
    """Effective draws per second, everything included, in each round; 0 where there are none or they are wrong."""
    return [0.0 if fault(m) else m["ess"] / m["total"] for m in of_method(kept, method)]


def rate(kept: list[Row], method: str) -> float:
    """The median over rounds."""
    return float(np.median(rates_of(kept, method) or [0.0]))


def ahead(kept: list[Row], method: str) -> str:
    """Who is, if the slowest round of one beats the fastest of the other."""
    mine, theirs = rates_of(kept, "hamcmc"), rates_of(kept, method)
    return "hamcmc" if min(mine) > max(theirs) else "peer" if max(mine) < min(theirs) else "even"


def with_draws(kept: list[Row], method: str) -> list[Row]:
    """The measurements of one method that have draws."""
    return [m for m in of_method(kept, method) if "ess" in m]


def seconds(own: list[Row]) -> Row:
    """Of each part, the median over rounds; what is in no part is the rest."""
    found = {p: float(np.median([m["parts"].get(p, 0.0) for m in own])) for p in PARTS}
    found["rest"] = max(0.0, float(np.median([m["total"] - sum(m["parts"].get(p, 0.0) for p in PARTS) for m in own])))
    return {f"{p}, s": f"{v:.2f}" for p, v in found.items()}


def row(name: str, own: list[Row], own_rate: float, mine: float) -> Row:
    """For the table: medians, and the range of the rate over rounds."""
    drew = [m for m in own if "ess" in m]
    if not drew:
        return {"method": name} | dict.fromkeys(COLUMNS, "–") | {"settings": own[0]["status"]}
    median = lambda of: float(np.median([of(m) for m in drew]))
    all_in = [m["ess"] / m["total"] for m in drew]
    sampling = lambda m: max(m["parts"].get("sampling", 0.0), 1e-3)
    values = (
        round(median(lambda m: m["ess"])),
        f"{median(lambda m: m['total']):.1f}",
        f"{median(sampling):.2f}",
        f"{np.median(all_in):.3g} ({min(all_in):.3g}–{max(all_in):.3g})",
        f"{median(lambda m: m['ess'] / sampling(m)):.3g}",
        f"{median(lambda m: m['error']):.1%}",
        f"{chance:.1%}" if (chance := median(lambda m: m["chance"])) < UNINFORMATIVE else "–",
        f"{median(lambda m: m['mean_error']):.2f}",
        f"× {mine / own_rate:.3g}" if own_rate and mine and name != OURS else "–",
    )
    words = [drew[0]["settings"], drew[0]["status"], *dict.fromkeys(map(fault, drew))]
    return {"method": name} | dict(zip(COLUMNS, values)) | {"settings": "; ".join(filter(None, words))}


def over_sizes(condition: float, family: dict[int, list[Row]]) -> Table:
    """Rates of all methods for each N. The figure is drawn from this."""
    rows = []
    for size, kept in sorted(family.items()):
        found = {name: rate(kept, m) for m, (name, _) in METHODS.items()}
        rows.append({"N": size} | {name: f"{r:.3g}" if r > 0 else "–" for name, r in found.items()})
    return Table(f"{SUMMARY}{condition:.0e}", rows)


if __name__ == "__main__":
    child(*sys.argv[1:])
