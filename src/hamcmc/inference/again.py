"""An automatic run once more, longer or with smaller steps, while its draws are not good enough."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamcmc import _processes, samplers
from hamcmc._types import Facts, Record
from hamcmc.diagnostics import grading
from hamcmc.diagnostics.result import Result
from hamcmc.inference import schedules
from hamcmc.inference.auto import Prepared, planned, say_plan
from hamcmc.inference.job import prepare
from hamcmc.inference.plan import KEPT, Plan, finer, longer
from hamcmc.inference.progress import Progress
from hamcmc.inference.running import Ended, begin
from hamcmc.inference.stored import Store

MOST_RUNS = 3  # of an automatic run, each longer than the one before


def asking(num_samples: int | None, warmup: int | None, thin: int | None, searched: bool) -> Record:
    """What somebody asked of an automatic run, for the record: a resumed run is made longer by it, too."""
    return {"num_samples": num_samples, "warmup": warmup, "thin": thin, "searched": searched}


def until_good(
    ended: Ended,
    prepared: Prepared,
    init: Any,
    schedule: Callable,
    settings: Facts,
    out: str | Path | None,
    *,
    store: Store | None,
    checkpoint_seconds: float,
    progress: bool | Progress | None,
) -> Result:
    """The result of a run, or of the longer ones that follow it in its directory.

    Args:
        ended: the run.
        prepared: what it was prepared with.
        init, schedule, settings, out, store, checkpoint_seconds, progress: of the run. ``settings["plan"]`` also has
            what was asked for and how many runs there were. That of an earlier version has not, and is left as it is.
    """
    settings = dict(settings)
    about = {k: v for k, v in settings["plan"].items() if k not in Plan._fields}
    asked, plan, runs = about.get("asked"), prepared.plan, about.get("runs", 1)
    if asked is None or asked["thin"] is not None:
        return ended.result
    num_samples, searched = asked["num_samples"], asked["searched"]
    while runs < MOST_RUNS and (plan := better_after(ended.result, plan, num_samples, searched)) is not None:
        say_plan(plan, progress)
        if plan.regime == "minibatches" and searched:
            schedule = schedules.as_schedule(plan.step_size)
        made = samplers.build(plan.sampler, prepared.posterior, **plan.options)
        costs, runs = ended.result.meta["costs"], runs + 1
        settings |= planned(plan, made, asked["warmup"], num_samples) | {"thin": plan.thin}
        about.pop("shorter", None)
        about |= {"runs": runs} | ({} if plan.goes_on else {"shorter": sum(costs.values()) - costs["mode"]})
        settings["plan"] |= about
        job = prepare(prepared.posterior, made, init, schedule, settings, store)._replace(kept=prepared.arrays)
        ended = begin(job, out, True, checkpoint_seconds, progress, ended if plan.goes_on else None)
    return ended.result


def better_after(found: Result, plan: Plan, num_samples: int | None, searched: bool) -> Plan | None:
    """The plan of a run with smaller steps or of a longer one, if a finished one asks for it.

    It stores no more draws than somebody asked for, and steps that somebody chose stay.
    """
    verdict, seconds = found.check(), found.meta["seconds"]
    bias = _processes.told(verdict.bias) if searched else 0.0
    if (smaller := finer(plan, bias, seconds)) is not None:
        return smaller
    word, short = _processes.texts(verdict.word)[0], _processes.told(verdict.short)
    best = grading.attainable(found.settings["chains"] * found.draws)
    if num_samples is not None and short > 1 and grading.WORDS.index(word) <= best:
        return None  # no thinning makes more of so few draws
    if found.partial and word == "usable" and short <= 1:  # it can be no better without gradients, however long it is
        word = "good"
    numbers = verdict.parameters * found.settings["chains"] * found.draws if num_samples is None else KEPT
    return longer(plan, word, short, seconds, numbers)
