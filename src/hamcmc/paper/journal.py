"""Finished pieces of long work, kept in a file, so that a run that was killed goes on where it was."""

import json
from pathlib import Path
from typing import Any

from hamcmc._types import Record
from hamcmc.store.files import write_atomically


class Journal:
    """Results by what they depend on. The file is replaced as a whole with each new one.

    Args:
        file: a JSON file; if it exists, its results are taken over.
    """

    def __init__(self, file: Path):
        self.file = file
        self.kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    @staticmethod
    def name(what: Record) -> str:
        """One string for all that a result depends on."""
        return json.dumps(what, sort_keys=True)

    def get(self, what: Record) -> Any | None:
        """The kept result, or None."""
        return self.kept.get(self.name(what))

    def put(self, what: Record, result: Any) -> None:
        """Keep a result."""
        self.kept[self.name(what)] = result
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, json.dumps(self.kept, indent=0).encode())
