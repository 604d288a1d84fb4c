"""Run cases one after the other in one precision; one line of JSON on standard output for each."""

import json
import sys
import time
import traceback
from typing import Any

import jax
import numpy as np

import hamcmc
from hamcmc.store.errors import RunError
from tests import zoo
from tests.zoo import compare, references


def attempt(name: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Sample one case wholly automatically and judge the draws, whatever happens."""
    case = zoo.case(name)
    begin, cpu = time.perf_counter(), time.process_time()
    try:
        found = _sampled(case, seed, options)
    except RunError as error:  # the run itself says that it failed
        found = {"kind": compare.SAID, "word": type(error).__name__, "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        found = {"kind": compare.CRASHED, "word": type(error).__name__, "reason": str(error)[:500]}
    spent = {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}
    return {"hard": case.hard, **found, **{k: round(v, 2) for k, v in spent.items()}}


def _sampled(case: zoo.Case, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    result = hamcmc.sample(case.posterior, init=case.init, seed=seed, progress=False, **options)
    verdict = result.check() if hasattr(result, "check") else None
    word, reason = (verdict.word, verdict.reason) if verdict is not None else (None, None)
    draws = compare.flatten(case, {n: result.posterior[n] for n in result.posterior})
    errors = compare.errors(draws, references.load(case), case.measure)
    numbers = {k: round(v, 4) if isinstance(v, float) else v for k, v in errors._asdict().items()}
    ess = result.summary()["ess_bulk"]
    return {
        "kind": compare.kind(errors.right, word),
        "word": word,
        "reason": None if reason is None else str(reason),
        **numbers,
        "min_ess": round(float(np.nanmin(ess)), 1) if np.isfinite(ess).any() else None,
        "sampler": result.settings["sampler"].get("sampler"),
        "plan": result.settings.get("plan", {}).get("reason"),
    }


def main() -> None:
    """Read the precision, the jobs and the options from standard input, and work."""
    order = json.load(sys.stdin)
    jax.config.update("jax_enable_x64", order["precision"] == "float64")
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed must not mix with the answers
    for name, seed in order["jobs"]:
        found = attempt(name, seed, order["options"])
        print(json.dumps({"case": name, "seed": seed, **found}), file=answers, flush=True)


if __name__ == "__main__":
    main()
