"""What a step of the sharded program sends: read off its compiled form, and estimated for machines we do not have."""

import re
from collections import Counter
from typing import NamedTuple

BYTES = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8, "pred": 1, "bf16": 2, "f16": 2}
KINDS = ("all-reduce", "collective-permute", "all-gather", "all-to-all", "reduce-scatter")


class Collective(NamedTuple):
    """A message in a compiled program: its kind, its bytes on each device, and the function that sends it."""

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
    """How many collectives of each kind each function has."""
    table: dict[str, Counter] = {}
    for c in found:
        table.setdefault(c.computation, Counter())[c.kind] += 1
    return table


class Traffic(NamedTuple):
    """What a step of a sampler takes, with M interleaved chains.

    Attributes:
        gradients: minibatch gradients.
        blocks: blocks of H that are sent, as a base and a multiple of M.
        numbers: numbers that are summed over all hosts, likewise.
    """

    gradients: int
    blocks: tuple[int, int]
    numbers: tuple[int, int] = (0, 0)


TRAFFIC = {
    "sgld": Traffic(1, (1, 0)),
    "sghmc": Traffic(1, (2, 0)),
    "psgld": Traffic(1, (3, 0)),
    "hamcmc": Traffic(2, (1, 3), (2, 8)),
}


def reduced(sampler: str, memory: int) -> int:
    """Numbers that a step sums over all hosts."""
    base, each = TRAFFIC[sampler].numbers
    return base + each * memory


class Sent(NamedTuple):
    """What a host sends in a mean step: messages with blocks of H, their bytes; messages of the sum, and their bytes.

    Parts are drawn at random, so the next part is often in place already, or partly so.
    """

    messages: float
    bytes: float
    rounds: int
    summed: int

    def seconds(self, latency: float, bandwidth: float) -> float:
        """The time for that on a network with this latency, and with so many bytes per second."""
        return (self.messages + self.rounds) * latency + (self.bytes + self.summed) / bandwidth


def sent(sampler: str, hosts: int, blocks: int, *, columns: int, width: int, memory: int = 0) -> Sent:
    """What a host sends in a mean step if each of `hosts` has some of the `blocks` row blocks.

    Sums are a butterfly of log₂ P messages. Factors have `width` numbers in a row, padding included.
    """
    if hosts == 1:
        return Sent(0.0, 0.0, 0, 0)
    slots = blocks // hosts
    messages = travelling = 0
    for far, near in (divmod(shift, slots) for shift in range(blocks)):  # as `exchange.ring_shift` does
        for away, size in ((far, slots - near), (far + 1, near)):
            messages += bool(size and away % hosts)
            travelling += size if away % hosts else 0
    base, each = TRAFFIC[sampler].blocks
    one = 4 * (base + each * memory) * width * -(-columns // blocks)
    rounds = (hosts - 1).bit_length() if reduced(sampler, memory) else 0
    return Sent(messages / blocks, travelling / blocks * one, rounds, rounds * 4 * reduced(sampler, memory))


class Machine(NamedTuple):
    """The speed of a host: seconds per rating and factor, per normal draw and per number touched, and its network."""

    rating_factor: float
    draw: float
    number: float
    latency: float = 25e-6
    bandwidth: float = 1.25e9  # bytes per second: 10 Gbit/s


class Step(NamedTuple):
    """Costs of one step on each host, in seconds and bytes; `noise` includes moving every number by it."""

    gradient: float
    noise: float
    message: float
    reduction: float
    waiting: float
    bytes: int

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.gradient + self.noise + self.message + self.reduction + self.waiting


def step_cost(
    machine: Machine,
    hosts: int,
    *,
    ratings: int,
    rows: int,
    columns: int,
    rank: int,
    sampler: str,
    memory: int = 3,
    imbalance: float = 1.0,
) -> Step:
    """The cost of a step on so many hosts, with one row block each.

    A host works on N/P² ratings, on rows/P rows of W and columns/P of H. It sends its block of H, and what the sampler
    remembers of it, to one other host. It takes part in one sum over all hosts, which takes 2 log₂ P messages. All
    hosts wait for the one that has `imbalance` times the mean number of ratings.
    """
    width = -(-(rank + 2) // 8) * 8
    numbers = (rows + columns) / hosts * width
    traffic = TRAFFIC[sampler]
    gradient = traffic.gradients * machine.rating_factor * rank * ratings / hosts**2
    units = traffic.blocks[0] + traffic.blocks[1] * memory
    sent = round(4 * units * width * -(-columns // hosts))
    summed = 4 * reduced(sampler, memory)
    rounds = 2 * max(hosts - 1, 0).bit_length()
    return Step(
        gradient,
        (machine.draw + machine.number * (4 + 3 * units)) * numbers,
        machine.latency + sent / machine.bandwidth if hosts > 1 else 0.0,
        rounds * (machine.latency + summed / machine.bandwidth) if summed else 0.0,
        (imbalance - 1) * gradient,
        sent if hosts > 1 else 0,
    )
