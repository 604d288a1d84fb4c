"""The kept references: for each case the marginals of its parameters, and how they were computed.

One small JSON file for each case, beside this module. ``python -m tests.zoo.references`` makes them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.zoo import Case
from tests.zoo.marginals import LEVELS, Marginals

FOLDER = Path(__file__).parent
COLUMNS = tuple(f"q{100 * level:02.0f}" for level in LEVELS)


@dataclass(frozen=True)
class Reference:
    """What a run is compared with.

    Attributes:
        parameters: the marginals by name of the parameter, in its support.
        how: how they were computed: method, settings, diagnostics, versions, date.
        mean_error: the largest standard error of a mean, in sds; 0 if exact.
        sd_error: the largest relative standard error of an sd; 0 if exact.
        nuts: whether NUTS with 4 × (500 + 500) iterations is right (``right``), and its largest errors.
    """

    parameters: Mapping[str, Marginals]
    how: Mapping[str, Any]
    mean_error: float = 0.0
    sd_error: float = 0.0
    nuts: Mapping[str, Any] = field(default_factory=dict)


def path(name: str) -> Path:
    """The file of one case."""
    return FOLDER / f"{name}.json"


def load(case: Case) -> Reference:
    """The reference of one case. Raises FileNotFoundError if there is none."""
    kept = json.loads(path(case.name).read_text())
    if case.published is not None:
        del kept["parameters"]
        return Reference(case.published(), **kept)
    parameters = {
        k: Marginals(_array(v["mean"]), _array(v["sd"]), np.stack([_array(v[q]) for q in COLUMNS]))
        for k, v in kept.pop("parameters").items()
    }
    return Reference(parameters, **kept)


def nuts_right(name: str) -> bool | None:
    """Whether a short run of NUTS is right on a case; None if nobody has tried."""
    return json.loads(path(name).read_text())["nuts"].get("right") if path(name).exists() else None


def save(case: Case, reference: Reference) -> None:
    """Write the reference of one case, its numbers with 7 digits; without the marginals if others publish them."""
    parameters = {
        k: {"mean": _list(m.mean), "sd": _list(m.sd), **{q: _list(x) for q, x in zip(COLUMNS, m.quantiles)}}
        for k, m in reference.parameters.items()
        if case.published is None
    }
    head = {k: v for k, v in vars(reference).items() if k != "parameters"}
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    entries = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in parameters.items()]
    text = ",\n".join([*lines, '  "parameters": {\n' + ",\n".join(entries) + "\n  }"])
    path(case.name).write_text("{\n" + text + "\n}\n")


def _array(x: Any) -> np.ndarray:
    """Numbers; null where a moment does not exist."""
    return np.asarray(x, np.float64)


def _list(x: np.ndarray) -> Any:
    if np.ndim(x) > 0:
        return [_list(entry) for entry in x]
    return float(f"{float(x):.7g}") if np.isfinite(x) else None
