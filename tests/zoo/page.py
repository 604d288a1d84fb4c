"""The page ``docs/zoo.md`` from kept results: ``python -m tests.zoo page FILE…`` renews both."""

import json
from pathlib import Path
from typing import Any

import jax

from tests import zoo
from tests.zoo import compare, references, runner

KEPT = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
FIELDS = ("case", "seed", "precision", "hard", "kind", "word", "reason", "mean", "sd", "mean_of", "sd_of", "right")
NUMBERS = ("min_ess", "seconds", "cpu_seconds")
MARKS = {compare.RIGHT: "right", compare.DOUBTED: "*doubted*", compare.SAID: "**said**", compare.CRASHED: "crashed"}


def keep(files: list[Path]) -> dict[str, Any]:
    """Join files of results, without what the page does not need, and keep them."""
    parts = [json.loads(f.read_text()) for f in files]
    runs = [{k: r.get(k) for k in FIELDS + NUMBERS} for p in parts for r in p["runs"]]
    order = {n: i for i, n in enumerate(zoo.names())}
    runs.sort(key=lambda r: (order.get(r["case"], len(order)), r["precision"], r["seed"]))
    kept = {k: parts[-1][k] for k in ("date", "versions", "machine", "options")}
    kept |= {"sizes": sizes({r["case"] for r in runs}), "runs": runs}
    runner.save(KEPT, kept)
    return kept


def sizes(cases: set[str]) -> dict[str, list[int]]:
    """Parameters and rows of each case; those of posteriordb are the ones kept before, where it is missing."""
    found = json.loads(KEPT.read_text())["sizes"] if KEPT.exists() else {}
    for name in cases & set(zoo.names()):
        case = zoo.case(name)
        init = case.init(jax.random.key(0)) if callable(case.init) else case.init
        found[name] = [sum(x.size for x in jax.tree.leaves(init)), case.posterior.size]
    return {n: s for n, s in sorted(found.items()) if n in cases}


def text(kept: dict[str, Any]) -> str:
    """The page."""
    runs = kept["runs"]
    own = [r for r in runs if "-" not in r["case"]]
    return (
        INTRODUCTION.format(cases=len({r["case"] for r in own}), date=kept["date"][:10])
        + "\n".join(f"- {text}" for text in sentences(runs))
        + "\n\n"
        + "\n".join(table(runs, kept["sizes"]))
        + "\n"
    )


def sentences(runs: list[dict[str, Any]]) -> list[str]:
    """The totals."""
    found = []
    for precision in sorted({r["precision"] for r in runs}):
        mine = [r for r in runs if r["precision"] == precision]
        right, kinds = sum(bool(r["right"]) for r in mine), [r["kind"] for r in mine]
        seeds = sorted({r["seed"] for r in mine})
        every = len(mine) == len(seeds) * len({r["case"] for r in mine})
        which = ", ".join(map(str, seeds)) + ("" if every else ", not every posterior with each of them")
        found.append(
            f"**{precision}**, seeds {which}: {right} of {len(mine)} runs are right "
            f"({right / len(mine):.0%}). Of the others the verdict warns in {kinds.count(compare.SAID)}, "
            f"{kinds.count(compare.CRASHED)} gave no answer, and **{kinds.count(compare.SILENT)} were silent "
            f"failures**. {kinds.count(compare.DOUBTED)} right runs were called not converged, and "
            f"{kinds.count(compare.SLANDERED)} wrong."
        )
    behind = sorted({r["case"] for r in runs if not r["right"] and references.nuts_right(r["case"])})
    found.append(
        "NUTS (NumPyro, 4 chains of 500 + 500) is right and a run of ours is not: "
        + (", ".join(behind) or "nowhere")
        + "."
    )
    return found


def table(runs: list[dict[str, Any]], sizes: dict[str, list[int]]) -> list[str]:
    """One row for each case."""
    rows = [
        "| posterior | parameters | rows | float32 | float64 | worst mean (sd) | worst sd | least ESS | NUTS |",
        "| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for name in dict.fromkeys(r["case"] for r in runs):
        mine = [r for r in runs if r["case"] == name]
        size, count = (f"{s:,}" for s in sizes[name]) if name in sizes else ("", "")
        words = [
            ", ".join(MARKS.get(r["kind"], f"**{r['kind']}**") for r in mine if r["precision"] == p)
            for p in ("float32", "float64")
        ]
        nuts = {True: "right", False: "wrong"}.get(references.nuts_right(name), "–")
        worst = [max((r[k] for r in mine if r[k] is not None), default=float("nan")) for k in ("mean", "sd")]
        least = min((r["min_ess"] for r in mine if r["min_ess"] is not None), default=0)
        numbers = f"{worst[0]:.3f} | {worst[1]:.1%} | {least:,.0f}"
        rows.append(f"| {name} | {size} | {count} | {words[0]} | {words[1]} | {numbers} | {nuts} |")
    return rows


INTRODUCTION = """# The zoo

How often is `hamcmc.sample(posterior)` right, with nothing set, and does it know when it is not? The table has {cases}
posteriors of our own and some of posteriordb (names from a to h), with marginals that are known exactly or from long
runs of NUTS.

A run is **right** if every mean is within 0.1 standard deviations and every standard deviation within 10 % (medians
and quantile ranges where moments do not exist). **said** means that it is not right, and that the verdict is "not
converged" or "wrong". *doubted* means that it is right, but called "not converged". A run that is not right and called
"good" or "usable" would be a silent failure.

The starts and the limits of the verdict were developed on these posteriors, so expect somewhat less elsewhere. Failures
that led to changes, two of them silent, are not counted: those posteriors were run again. Not all runs are of the
present code, and each counts with the verdict that it had: the last rule, on a few draws far from all others, is
younger than most of them. Most runs on all data had 600 iterations of warm-up and 1000 draws of each replica; those of
our own posteriors with seed 0 in single precision began with shorter ones, as runs do now.

Measured up to {date}, on two busy cores. `make zoo` repeats it, and `tests/zoo/results.json` has every run.

"""


def main(files: list[Path]) -> None:
    """Renew what is kept, if there are files, and the page."""
    PAGE.write_text(text(keep(files) if files else json.loads(KEPT.read_text())))
