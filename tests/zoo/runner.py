"""Run cases in both precisions, each precision in processes of its own, and keep every answer as it comes."""

import datetime
import json
import os
import platform
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests import zoo
from tests.zoo import compare, references

Job = tuple[str, int]
WORKER = [sys.executable, "-m", "tests.zoo.worker"]


def run(
    names: list[str], seeds: list[int], precisions: list[str], out: Path, options: dict, limit: float, resume: bool
) -> list[dict[str, Any]]:
    """Run what is asked for and return the answers, old ones first. `limit` is in seconds for each run."""
    kept = json.loads(out.read_text()) if resume and out.exists() else {"runs": []}
    runs = kept["runs"]
    done = {(r["case"], r["seed"], r["precision"]) for r in runs}
    for precision in precisions:
        jobs = [(n, s) for n in names for s in seeds if (n, s, precision) not in done]
        for answer in work(precision, jobs, options, limit):
            runs.append({**answer, "precision": precision})
            print(line(runs[-1]), flush=True)
            save(out, {**facts(options), "runs": runs})
    return runs


def work(precision: str, jobs: list[Job], options: dict, limit: float) -> Iterator[dict[str, Any]]:
    """The answers of worker processes; a new worker goes on where one died or took too long."""
    while jobs:
        name, seed = jobs[0]
        process, answers, listener = start(precision, jobs, options)
        try:
            while jobs:
                name, seed = jobs[0]
                answer = answers.get(timeout=limit)
                if answer is None:
                    yield failure(name, seed, f"the process ended with code {process.wait()}")
                    break
                yield answer
                jobs = jobs[1:]
            else:
                return
        except queue.Empty:
            yield failure(name, seed, f"not done after {limit:g} s")
        finally:
            process.kill()
            process.wait()
            listener.join()
        jobs = jobs[1:]


def start(
    precision: str, jobs: list[Job], options: dict
) -> tuple[subprocess.Popen, "queue.Queue[dict | None]", threading.Thread]:
    """A worker on these jobs, the queue of its answers, which ends with None, and the thread that fills it."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps({"precision": precision, "jobs": jobs, "options": options}))
    process.stdin.close()
    answers: queue.Queue[dict | None] = queue.Queue()

    def listen(lines: Any) -> None:
        with lines:
            for text in lines:
                answers.put(json.loads(text))
        answers.put(None)

    listener = threading.Thread(target=listen, args=(process.stdout,), daemon=True)
    listener.start()
    return process, answers, listener


def failure(name: str, seed: int, reason: str) -> dict[str, Any]:
    """The answer for a run that gave none."""
    return {"case": name, "seed": seed, "kind": compare.CRASHED, "word": None, "reason": reason}


def save(out: Path, content: dict[str, Any]) -> None:
    """Replace the file of results, whole or not at all."""
    fresh = out.with_suffix(".new")
    lines = ",\n".join("    " + json.dumps(r) for r in content["runs"])
    head = "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in content.items() if k != "runs")
    fresh.write_text("{\n" + head + '  "runs": [\n' + lines + "\n  ]\n}\n")
    fresh.replace(out)


def facts(options: dict) -> dict[str, Any]:
    """What the results depend on."""
    packages = {p: version(p) for p in ("hamcmc", "jax", "numpy")}
    machine = {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}
    return {
        "command": " ".join(sys.orig_argv[1:]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **packages},
        "machine": machine,
        "options": options,
    }


def line(r: dict[str, Any]) -> str:
    """One row of the table."""

    def number(key: str, form: str) -> str:
        return format(r[key], form) if r.get(key) is not None else "–"

    cells = [
        f"{r['case']:<28.28} {r['precision'][-2:]} {r['seed']:>2} {r['kind']:<18}",
        f"{r.get('word') or '–':<14.14} mean {number('mean', '.3f'):>7} {r.get('mean_of', ''):<14.14}",
        f"sd {number('sd', '.3f'):>7} {r.get('sd_of', ''):<14.14} ESS {number('min_ess', '.0f'):>6}",
        f"{number('seconds', '.1f'):>6} s",
    ]
    return " ".join(cells)


def totals(runs: list[dict[str, Any]]) -> str:
    """How many runs there are of each kind, and what needs a look."""
    lines = []
    for precision in sorted({r["precision"] for r in runs}):
        mine = [r for r in runs if r["precision"] == precision]
        counts = {k: sum(r["kind"] == k for r in mine) for k in compare.KINDS}
        good = sum(bool(r.get("right")) for r in mine)
        text = ", ".join(f"{n} {k}" for k, n in counts.items() if n)
        lines.append(f"{precision}: {good} of {len(mine)} runs right ({good / max(len(mine), 1):.0%}): {text}")
        asked = [bool(r.get("right")) for r in mine if not r.get("hard")]
        lines.append(f"  without the hard cases, which need only an honest verdict: {sum(asked)} of {len(asked)}")
    for kind in (compare.SILENT, compare.SLANDERED, compare.CRASHED):
        bad = sorted({r["case"] for r in runs if r["kind"] == kind})
        lines += [f"{kind}: {', '.join(bad)}"] if bad else []
    behind = sorted({r["case"] for r in runs if not r.get("right") and references.nuts_right(r["case"])})
    lines += [f"NUTS is right and we are not: {', '.join(behind)}"] if behind else []
    return "\n".join(lines)


def choose(names: list[str] | None) -> list[str]:
    """Cases by name or family, all of them if none is given."""
    if not names:
        return zoo.names()
    chosen = [n for n in zoo.names() if n in names or zoo.family(n) in names]
    unknown = set(names) - set(chosen) - set(zoo.FAMILIES)
    if unknown:
        raise SystemExit(f"no case or family is called {', '.join(sorted(unknown))}")
    return chosen
