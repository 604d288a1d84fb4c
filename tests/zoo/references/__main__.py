"""Make references: exact where a case says how, otherwise a long run of NUTS; and try a short run of NUTS on each.

python -m tests.zoo.references              those that are missing
python -m tests.zoo.references NAME …       these, again
"""

import argparse
import datetime
import platform
import warnings
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from tests import zoo
from tests.zoo import compare, nuts
from tests.zoo.marginals import of_draws
from tests.zoo.references import Reference, path, save

LONG = {"warmup": 1000, "samples": 3000, "target_accept_prob": 0.9}
SHORT = {"warmup": 500, "samples": 500}
ENOUGH, MIXED = 2000, 1.005  # effective draws and R-hat that a reference needs
LONGER = (1, 3, 8)  # times as many draws, one of each kept, until there are enough


def make(case: zoo.Case) -> Reference:
    """The reference of one case."""
    made = {"date": datetime.date.today().isoformat(), "versions": versions()}
    if case.exact is not None:
        reference = Reference(dict(case.exact()), {"method": "exact", **made})
    elif case.published is not None:
        errors = {"mean_error": 0.01, "sd_error": 0.01}  # of 10 000 nearly independent draws
        reference = Reference(dict(case.published()), {"method": "posteriordb's reference draws", **made}, **errors)
    else:
        draws, how = long_run(case)
        parameters = {k: of_draws(x) for k, x in compare.flatten(case, draws).items()}
        errors = {k: how.pop(k) for k in ("mean_error", "sd_error")}
        reference = Reference(parameters, {**how, **made}, **errors)
    return replace(reference, nuts=short(case, reference))


def long_run(case: zoo.Case) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Draws of NUTS, of which there are enough, and how they were made."""
    settings = {**LONG, **case.nuts}
    for thin in (case.nuts["thin"],) if "thin" in case.nuts else LONGER:
        draws, facts = nuts.run(case, **{**settings, "thin": thin})
        found = nuts.diagnose(draws)
        print(f"  {case.name}: thin {thin}, {found}, {facts}", flush=True)
        if found["min_ess"] >= ENOUGH and found["max_rhat"] <= MIXED:
            break
    else:
        warnings.warn(f"{case.name}: the long run has not converged: {found}", stacklevel=1)
    return draws, {"method": "NUTS", "settings": {"chains": nuts.CHAINS, **settings, "thin": thin}, **found, **facts}


def short(case: zoo.Case, reference: Reference) -> dict[str, Any]:
    """Whether a short run of NUTS with default settings is right; None if it would take hours."""
    if case.slow:
        return {"right": None}
    draws, facts = nuts.run(case, seed=1, **SHORT)
    found = compare.errors(compare.flatten(case, draws), reference, case.measure)
    numbers = {"mean": round(found.mean, 3), "sd": round(found.sd, 3)} if np.isfinite(found[:2]).all() else {}
    return {"right": found.right, **numbers, "mean_of": found.mean_of, "sd_of": found.sd_of, **facts}


def versions() -> dict[str, str]:
    """Of everything that matters."""
    return {"python": platform.python_version(), **{p: version(p) for p in ("jax", "numpy", "scipy", "numpyro")}}


def main() -> None:
    """Make the references that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.references", description="Make references of the zoo.")
    parser.add_argument("names", nargs="*", choices=[[], *zoo.names()], metavar="NAME")
    names = parser.parse_args().names or [n for n in zoo.names() if not path(n).exists()]
    jax.config.update("jax_enable_x64", True)
    for name in names:
        case = zoo.case(name)
        reference = make(case)
        save(case, reference)
        print(f"{name}: {reference.how['method']}; a short run of NUTS: {reference.nuts}", flush=True)


if __name__ == "__main__":
    main()
