"""The machine and the versions that a measurement was made with, as every kept result states them."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from hamcmc._types import Record


def machine() -> Record:
    """Processor, the cores that this process may use, load and system."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return {
        "cpu": models[0] if models else platform.processor() or "?",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(load, 1),
        "platform": platform.platform(),
    }


def versions(*packages: str) -> Record:
    """Of Python and of installed packages."""
    return {"python": platform.python_version()} | {p: version(p) for p in packages}
