"""``run.json``: the settings of a run, in the format of today or of an older version."""

import hashlib
import json
from pathlib import Path
from typing import Any

from hamcmc._types import Record
from hamcmc.store.draws import DTYPES, Array
from hamcmc.store.errors import DamagedRun, RunError

FORMAT = 2  # 0.1.0 wrote format 1, which it did not name
CAPABILITIES = {"replicas": 1, "interleaved": 1, "pairs": 0}  # of the sampler, and the least that each can be
Settings = Record


def read_settings(path: Path) -> Settings:
    """What ``run.json`` says, brought to today's format."""
    file = path / "run.json"
    if not file.is_file():
        raise RunError(f"{path} is not a run: it has no run.json")
    try:
        settings = json.loads(file.read_text())
        if not isinstance(settings, dict) or not isinstance(settings.get("arrays"), list):
            raise ValueError("it does not hold the settings of a run")
        for array in settings["arrays"]:
            _check_array(array)
        for name, least in CAPABILITIES.items():
            value = settings.get(name, least)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {str(value)[:40]!r}")
    except (ValueError, OSError, RecursionError) as error:
        raise DamagedRun(f"{file} is damaged: {error}") from error
    return upgrade(settings, str(file))


def digest(path: Path) -> str:
    """SHA-256 of ``run.json`` as it is on the disk."""
    return hashlib.sha256((path / "run.json").read_bytes()).hexdigest()


def _check_array(array: Any) -> None:
    """Raise if an entry of ``arrays`` describes no array that a run can have."""
    if not isinstance(array, dict) or set(array) != set(Array._fields):
        raise ValueError(f"arrays has {str(array)[:80]}")
    names, shape = (array["group"], array["name"]), array["shape"]
    if not all(isinstance(n, str) and n and "/" not in n and n not in (".", "..") for n in names):
        raise ValueError(f"arrays has the name {str(names)[:80]}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"arrays has the shape {str(shape)[:80]}")
    if array["dtype"] not in DTYPES:
        raise ValueError(f"arrays has the type {str(array['dtype'])[:80]}")


# --- older formats ---


def upgrade(settings: Settings, name: str = "run.json") -> Settings:
    """Settings of any older format in today's; a newer format is refused."""
    written = settings.get("format", 1)
    if type(written) is not int or written < 1:
        raise DamagedRun(f"{name} is damaged: format is {str(written)[:40]!r}")
    if written > FORMAT:
        versions = settings.get("versions")
        by = versions.get("hamcmc", "unknown") if isinstance(versions, dict) else "unknown"
        raise RunError(
            f"{name} has format {written}, written by hamcmc {str(by)[:40]}; this version reads formats up to "
            f"{FORMAT}: install that version of hamcmc, or a newer one, to open the run"
        )
    return _from_format_1(settings) if written == 1 else settings


def _from_format_1(old: Settings) -> Settings:
    """Settings of 0.1.0.

    Its ``visit`` is now called ``segment``. It kept a sampler's capabilities among the hyper-parameters. A Metropolis
    test was an option of ``ensemble_hamcmc``, and is now the sampler ``ensemble_adjusted``.
    """
    new = {k: v for k, v in old.items() if k != "visit"} | {"format": FORMAT}
    if "visit" in old:
        new["segment"] = old["visit"]
    sampler, notes = old.get("sampler"), old.get("notes")
    if not isinstance(sampler, dict):
        return new  # damaged: whoever needs the sampler says so
    name, memory = sampler.get("sampler"), sampler.get("memory")
    chains, ensembles = old.get("chains"), old.get("ensembles")
    new["interleaved"] = memory if name == "hamcmc" and type(memory) is int else 1
    new["pairs"] = memory - 1 if type(memory) is int else sampler.get("pairs", 0)
    new["replicas"] = chains // ensembles if type(chains) is int and type(ensembles) is int and ensembles > 0 else 1
    new["sampler"] = {k: v for k, v in sampler.items() if k != "adjusted"}
    if name == "ensemble_hamcmc":
        name, hyper_parameters = _ensemble_of_format_1(sampler)
        new["sampler"] = hyper_parameters | {"sampler": name}
        if isinstance(old.get("options"), dict):
            new["options"] = _ensemble_of_format_1(old["options"])[1]
    if isinstance(notes, dict) and notes.get("sampler") == "ensemble_hamcmc" and isinstance(notes.get("options"), dict):
        name, options = _ensemble_of_format_1(notes["options"])  # these are notes of ``hamcmc sample``
        new["notes"] = notes | {"sampler": name, "options": options}
    return new


def _ensemble_of_format_1(options: Record) -> tuple[str, Record]:
    """Today's name and options of what was ``ensemble_hamcmc``, with or without its option ``adjusted``."""
    adjusted = bool(options.get("adjusted"))
    dropped = ("adjusted", "update", "fresh") if adjusted else ("adjusted",)
    name = "ensemble_adjusted" if adjusted else "ensemble_hamcmc"
    return name, {k: v for k, v in options.items() if k not in dropped}
