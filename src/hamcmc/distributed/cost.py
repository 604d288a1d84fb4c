"""What a step of the sharded program moves: read off its compiled form, and on paper for machines we do not have."""

import re
from collections import Counter
from typing import NamedTuple

BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "pred": 1, "bf16": 2, "f16": 2}
KINDS = ("all-reduce", "collective-permute", "all-gather", "all-to-all", "reduce-scatter")


class Collective(NamedTuple):
    """A message in a compiled program: its kind, its bytes on each device, and the function that it stands in."""

    kind: str
    bytes: int
    computation: str


def collectives(program: str) -> list[Collective]:
    """All collectives in the text of a compiled program (``compiled.as_text()``)."""
    found, computation = [], ""
    for line in program.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            computation = line.removeprefix("ENTRY ").split(" ")[0].lstrip("%")
        match = re.search(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\(", line)
        if match:
            found.append(Collective(match[2], _size(match[1]), computation))
    return found


def _size(shapes: str) -> int:
    """Bytes of a result such as ``f32[2,3]{1,0}`` or a tuple of them."""
    total = 0
    for kind, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
        elements = 1
        for d in filter(None, dimensions.split(",")):
            elements *= int(d)
        total += elements * BYTES.get(kind, 4)
    return total


def counts(found: list[Collective]) -> dict[str, Counter]:
    """How many collectives of each kind stand in each function."""
    table: dict[str, Counter] = {}
    for c in found:
        table.setdefault(c.computation, Counter())[c.kind] += 1
    return table
