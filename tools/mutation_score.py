"""How many small faults the tests notice: the mutation score of the curvature and the samplers.

    python -m tools.mutation_score [FILE ...] [--mutants 10] [--seed 0] [--tests FILE ...]

Of each FILE (below src/hamcmc; by default all files of samplers/) a random sample of mutants is taken: an operator is
swapped, a term is dropped, a sign, a comparison or a condition is reversed, or a constant is changed. Each mutant is
written into a copy of the repository, where the tests of that file run until one fails, and then those of all samplers
that name it and that `make test` runs. Tests that break the source themselves are left out, because they would find the
fault by its text. The survivors are listed for a human to look at:
some mutants change nothing that matters. An interrupted run goes on where it was, as long as the file is the same;
survivors are tried again, because the tests may have become sharper. The score of all samplers is kept for the page on
calibration.
"""

import argparse
import ast
import copy
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import page
from benchmarks.measure import Table

from hamcmc.paper.journal import Journal

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src/hamcmc")
TESTS = ("tests/samplers/test_reference.py", "tests/samplers/test_protocol.py", "tests/samplers/test_exact.py")
OWN_TESTS = {  # all of these, the slow ones too, before those of TESTS that name the sampler
    **{f"samplers/{s}.py": (f"tests/samplers/test_{s}.py",) for s in ("noise", "small", "leimkuhler_matthews")},
    "samplers/curvature.py": ("tests/samplers/test_curvature.py", "tests/samplers/test_reference.py"),
    "samplers/independence.py": ("tests/samplers/test_independence.py",),
    "samplers/alternating.py": ("tests/samplers/test_alternating.py", "tests/target/test_factor.py"),
    "samplers/svrg.py": ("tests/target/test_estimators.py",),
    **{
        f"samplers/{s}.py": ("tests/samplers/test_taken.py", "tests/inference/test_bad_input.py")
        for s in ("registry", "factory")
    },
    **{f"samplers/{s}.py": ("tests/samplers/test_momentum.py",) for s in ("sghmc", "sgnht", "ccadl")},
    **{f"samplers/{s}.py": ("tests/samplers/test_reference.py",) for s in ("base", "naive", "psgld", "sgrld")},
    **{
        f"samplers/ensemble/{s}.py": ("tests/samplers/test_metric.py", "tests/samplers/test_stability.py")
        for s in ("metric", "resting", "langevin", "adjusted")
    },
    "samplers/ensemble/underdamped.py": ("tests/samplers/test_underdamped.py",),
    **{f"samplers/ensemble/{s}.py": ("tests/samplers/test_hamiltonian.py",) for s in ("hamiltonian", "mass", "pace")},
    **{
        f"target/{s}.py": ("tests/target/test_factor.py", "tests/target")
        for s in ("protocol", "posterior", "estimators", "support", "mode", "minibatch")
    },
}
ALONE = ("curvature", "noise", "small", "alternating", "svrg")  # files whose own tests are enough
WORDS = {  # of TESTS those that name a sampler: all of them would take minutes for every mutant
    **{n: n for n in ("sgld", "psgld", "sgrld", "sghmc", "sgnht", "ccadl", "naive", "hamcmc")},
    "sgfs": "sgfs or fisher",
    "langevin": "ensemble or replicas",
    "adjusted": "adjusted",
    "underdamped": "underdamped",
    **dict.fromkeys(("hamiltonian", "mass", "pace"), "hamiltonian or hmc"),
    "leimkuhler_matthews": "leimkuhler_matthews or matthews",
    "independence": "independence",
}
SKIPPED = "not broken and not noticed and not power"  # tests that break the source
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: None}
TURNS = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}


class Mutant(NamedTuple):
    """A place in a source, and what stands there instead."""

    line: int
    begin: int  # in bytes of the source
    end: int
    old: str
    new: str


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What a node might be by mistake."""
    if isinstance(node, ast.BinOp):
        other = SWAPS.get(type(node.op))
        if other:
            yield ast.BinOp(node.left, other(), node.right)
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            yield node.left
            yield node.right
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in TURNS:
        yield ast.Compare(node.left, [TURNS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1 if isinstance(node.value, int) else 2 * node.value or 1.0)


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a source, in order. Messages, annotations and docstrings stay as they are."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.expr):
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            old = source.encode()[begin:end].decode()
            for new in changes(node):
                text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(new)))
                found.append(Mutant(node.lineno, begin, end, old, f"({text})"))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    walk(child)

    walk(ast.parse(source))
    return found


def chosen_tests(file: str, asked: list[str] | None) -> list[list[str]]:
    """The arguments of pytest for each of its runs: the tests of a file, then those of all samplers that name it."""
    if asked:
        return [["-k", SKIPPED, *asked]]
    word, own = WORDS.get(Path(file).stem), OWN_TESTS.get(file, ())
    shared = ["-k", f"({word}) and {SKIPPED}" if word else SKIPPED, *(t for t in TESTS if t not in own)]
    alone = Path(file).stem in ALONE or file.startswith("target/")
    return [["-m", "slow or not slow", "-k", SKIPPED, *own]] * bool(own) + [shared] * (not alone)


def run(tree: Path, tests: list[list[str]], patience: float) -> str:
    """``passed``, ``failed`` or ``hung``."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    for arguments in tests:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:randomly", *arguments]
        try:
            done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=patience)
        except subprocess.TimeoutExpired:
            return "hung"
        if done.returncode not in (0, 5):  # 5: no test was chosen
            return "failed"
    return "passed"


def score(tree: Path, file: str, asked: argparse.Namespace, journal: Journal) -> dict[str, Any]:
    """Try a sample of the mutants of a file."""
    target, tests = tree / SOURCE / file, chosen_tests(file, asked.tests)
    source = target.read_text()
    all_of_them = mutants(source)
    chosen = random.Random(f"{asked.seed} {file}").sample(all_of_them, min(asked.mutants, len(all_of_them)))
    what = {"file": file, "source": hashlib.sha256(source.encode()).hexdigest(), "tests": tests}
    patience = None
    known, began = {}, time.monotonic()
    for m in sorted(chosen):
        if (outcome := journal.get(what | {"mutant": m})) in (None, "passed"):
            if patience is None:  # the first that is not known
                if run(tree, tests, 3600) != "passed":
                    sys.exit(f"the tests of {file} fail without any mutant")
                patience = 60 + 5 * (time.monotonic() - began)
            content = source.encode()
            target.write_bytes(content[: m.begin] + m.new.encode() + content[m.end :])
            outcome = run(tree, tests, patience)
            target.write_text(source)
            journal.put(what | {"mutant": m}, outcome)
        known[m] = outcome
        print(f"  {outcome:7s}{file}:{m.line}  {' '.join(m.old.split())[:60]}  →  {m.new[:60]}", flush=True)
    survived = [m for m, outcome in known.items() if outcome == "passed"]
    print(f"{file}: {len(chosen) - len(survived)} of {len(chosen)} noticed", flush=True)
    spent = journal.get(what | {"seconds": asked.mutants}) or 0.0
    if patience is not None:
        journal.put(what | {"seconds": asked.mutants}, spent := spent + time.monotonic() - began)
    return {"file": file, "of": len(all_of_them), "outcomes": known, "survived": survived, "seconds": spent}


def keep(scores: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    """Keep the table of scores, and that of the survivors."""
    rows = [
        {
            "file": f"`{s['file']}`",
            "mutants": s["of"],
            "tried": len(s["outcomes"]),
            "noticed": len(s["outcomes"]) - len(s["survived"]),
        }
        for s in scores
    ]
    sums = {k: sum(r[k] for r in rows) for k in ("mutants", "tried", "noticed")}
    show = lambda text: f"`{' '.join(text.split())}`".replace("|", "\\|")
    survivors = [
        {"line": f"{s['file']}:{m.line}", "code": show(m.old), "as": show(m.new)} for s in scores for m in s["survived"]
    ]
    tables = [Table("Mutants that the tests notice", [*rows, {"file": "all"} | sums])]
    tables += [Table("Mutants that no test noticed", survivors)] * bool(survivors)
    page.store(
        path := page.RESULTS / "mutation.json",
        tables,
        command="make mutation",
        seconds=sum(s["seconds"] for s in scores),
        settings={"mutants of each file": asked.mutants},
        seeds=[asked.seed],
    )
    print(f"Kept in {path}; `make pages` puts it on the page.")


def main() -> None:
    """Score every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--mutants", type=int, default=10, help="of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", help="tests to run in place of those that are known for a file")
    asked = parser.parse_args()
    samplers = sorted(p.relative_to(ROOT / SOURCE).as_posix() for p in (ROOT / SOURCE / "samplers").rglob("*.py"))
    files = asked.files or [file for file in samplers if not file.endswith("__init__.py")]
    journal = Journal(ROOT / "reproduced" / "mutation" / "mutants.json")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("src", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        scores = [score(tree, file, asked, journal) for file in files]
    survived, tried = (sum(len(s[k]) for s in scores) for k in ("survived", "outcomes"))
    print(f"mutation score: {tried - survived} of {tried}, {1 - survived / max(tried, 1):.0%}")
    if not asked.files and not asked.tests:
        keep(scores, asked)


if __name__ == "__main__":
    main()
