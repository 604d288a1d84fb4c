"""Tests on broken code are in the slow run; whether the code that they break is still there is seen here."""

import ast
import importlib
import inspect
import textwrap
from itertools import chain, product
from pathlib import Path

import pytest

from tests.mutation import ROOT, mutant

TESTS = Path(__file__).parent


def functions():
    """All tests on broken code, each with its module."""
    for file in sorted(TESTS.rglob("test_*.py")):
        if file == Path(__file__) or "mutant(" not in file.read_text():
            continue
        module = importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
        classes = [x for n, x in vars(module).items() if n.startswith("Test") and inspect.isclass(x)]
        for name, value in chain(*(vars(holder).items() for holder in (module, *classes))):
            if name.startswith("test") and inspect.isfunction(value) and value.__module__ == module.__name__:
                yield module, value


def cases(function):
    """The parameters of each case of a test."""
    marks = [m for m in getattr(function, "pytestmark", ()) if m.name == "parametrize"]
    for values in product(*(m.args[1] for m in marks)):
        found = {}
        for mark, value in zip(marks, values):
            names = mark.args[0] if isinstance(mark.args[0], tuple) else mark.args[0].replace(" ", "").split(",")
            value = value.values if hasattr(value, "marks") else value if len(names) > 1 else (value,)
            found |= dict(zip(names, value, strict=True))
        yield found


def mutations(module, function):
    """File and text of everything that a test replaces: constants, parameters of the test, or names of its module."""
    source = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [n for n in ast.walk(source) if isinstance(n, ast.Call) and ast.unparse(n.func) == "mutant"]
    for call, case in product(calls, cases(function) if calls else ()):
        # Not the new text, which a test may have made itself.
        first = call.args if any(isinstance(a, ast.Starred) for a in call.args) else call.args[:2]
        file, old, *_ = eval(f"[{', '.join(map(ast.unparse, first))}]", vars(module), case)
        yield file, old


@pytest.fixture(scope="module")
def found():
    return {
        (function.__module__, file, old)
        for module, function in functions()
        for file, old in mutations(module, function)
    }


def test_what_tests_break_is_there_once(found):
    assert len(found) > 100
    stale = [m for m in found if (ROOT / m[1]).read_text().count(m[2]) != 1]
    assert not stale, "\n".join(f"{test}: {file} has not exactly one {old!r}" for test, file, old in stale)


def test_broken_code_is_what_a_test_gets():
    """And only inside of the block."""
    with mutant("_check.py", "def positive(", "BROKEN = True\n\n\ndef positive(") as package:
        assert importlib.import_module("hamcmc._check").BROKEN
    assert not hasattr(importlib.import_module("hamcmc._check"), "BROKEN")
    assert importlib.import_module("hamcmc") is not package
    with (
        pytest.raises(AssertionError, match="has 0 places like 'no such text'"),
        mutant("_check.py", "no such text", ""),
    ):
        pass
