"""Damage to files, as disks, transfers, other programs and ill will do it; reproducible by a seed."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

NUMBERS = [
    b"1e999",
    b"-1",
    b"nan",
    b"inf",
    b"99999999999999999999",
    b"1e308",
    b"0x10",
    b"",
    b"-0",
    b"2147483648",
    b"\xd9\xa3",
]
VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    10**12,
    10**30,
    1e300,
    "",
    "x",
    "../x",
    "/etc/passwd",
    [],
    {},
    [[]],
    {"a": {}},
    float("nan"),
]
DEEP = 50_000


def damage(content: bytes, rng: np.random.Generator, other: bytes = b"") -> bytes:
    """A file's bytes with one to three kinds of damage."""
    for _ in range(rng.integers(1, 4)):
        content = BYTES[rng.integers(len(BYTES))](content, rng, other)
    return content


def _cut(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    return c[: rng.integers(len(c) + 1)]


def _flip(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    bits = np.frombuffer(c, np.uint8).copy()
    for _ in range(int(rng.integers(1, 9)) if len(bits) else 0):
        bits[rng.integers(len(bits))] ^= np.uint8(1 << rng.integers(8))
    return bits.tobytes()


def _span(c: bytes, rng: np.random.Generator) -> tuple[int, int]:
    a = int(rng.integers(len(c) + 1))
    return a, min(len(c), a + int(rng.integers(1, 2 + len(c) // 4)))


def _delete(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    a, b = _span(c, rng)
    return c[:a] + c[b:]


def _repeat(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    a, b = _span(c, rng)
    return c[:b] + c[a:b] * int(rng.integers(1, 4)) + c[b:]


def _zeros(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    a, b = _span(c, rng)
    return c[:a] + bytes(b - a) + c[b:]


def _noise(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    a, b = _span(c, rng)
    return c[:a] + rng.bytes(b - a) + c[b:]


def _splice(c: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    a, b = _span(c, rng)
    x, y = _span(other, rng)
    return c[:a] + other[x:y] + c[b:]


def _number(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    found = list(re.finditer(rb"-?\d+(\.\d+)?", c))
    if not found:
        return c
    at = found[rng.integers(len(found))]
    return c[: at.start()] + NUMBERS[rng.integers(len(NUMBERS))] + c[at.end() :]


def _size(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    """A large number where a binary format may have a length."""
    a = int(rng.integers(max(1, min(len(c), 256))))
    return c[:a] + [b"\xff\xff\xff\x7f", b"\xff" * 8, b"\0\0\0\x80"][rng.integers(3)] + c[a + 4 :]


def _nested(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    a, _b = _span(c, rng)
    return c[:a] + [b"[", b'{"a":', b'"', b"("][rng.integers(4)] * DEEP + c[a:]


def _empty(c: bytes, rng: np.random.Generator, _: bytes) -> bytes:
    return b""


# The last few happen seldom: there is not much to them.
OFTEN = [_cut, _flip, _delete, _repeat, _zeros, _noise, _splice, _number, _size]
BYTES: list[Callable[[bytes, np.random.Generator, bytes], bytes]] = [*OFTEN * 3, _nested, _empty]


def damage_json(value: Any, rng: np.random.Generator) -> Any:
    """A JSON value with a part replaced by something of another kind, left out, or doubled."""
    value = json.loads(json.dumps(value))
    place = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return VALUES[rng.integers(len(VALUES))]
        key = keys[rng.integers(len(keys))]
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        else:
            place[key] = VALUES[rng.integers(len(VALUES))]
        return value
