"""The README and the site: Python samples run, command lines parse, links resolve, and the reference is complete."""

import ast
import fnmatch
import functools
import importlib
import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer

import hamcmc
from hamcmc.cli.app import app

ROOT = Path(__file__).parent.parent
ALL = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
ALL = tuple(
    p for p in ALL if not {"_build", "gallery"} & {*p.parts} and p.name != "commands.md"
)  # which the build makes
PAGES = [p for p in ALL if "```python" in p.read_text()]
FIGURES = "".join((ROOT / f).read_text() for f in ("docs/figures.py", "benchmarks/plots.py"))  # that make docs/_figures
# Modules that users do not import; every other module has a place in the reference.
INTERNAL = (
    *("_*", "*._*", "cli*", "paper*", "store.*", "target.landscape"),
    *("interop.sites", "target.lbfgs", "target.newton", "target.passes", "target.search", "target.sharded"),
    "target.share",
    *("target.arrays", "target.view"),
    *("samplers.ensemble*", "samplers.registry", "samplers.small"),
    *(
        "inference.again",
        "inference.ahead",
        "inference.candidates",
        "inference.checks",
        "inference.compiled",
        "inference.curvatures",
    ),
    *("inference.job", "inference.program", "inference.running", "inference.stored"),
    *("inference.scoring", "inference.stream", "inference.tempering", "inference.trials"),
    *("diagnostics.costs", "diagnostics.ess", "diagnostics.fields", "diagnostics.gradients", "diagnostics.grading"),
    *("inference.arguments", "inference.bar", "inference.display", "inference.divergence", "inference.modes"),
    *("diagnostics.confronted", "diagnostics.measured", "diagnostics.mixing", "diagnostics.names", "diagnostics.tails"),
    *("factorization.cost", "factorization.exchange", "factorization.inspect", "inference.launch"),
    *("factorization.metric", "factorization.mixture", "factorization.model", "factorization.part"),
    *("factorization.partition", "factorization.problem", "factorization.program", "factorization.recipes"),
    *("factorization.recorded", "factorization.sharded", "factorization.table", "factorization.worker"),
    *("factorization.native.blocks", "factorization.native.build", "factorization.native.twin"),
    *("stable.chains", "stable.impulses", "speech.guess", "speech.keys", "speech.model", "speech.pair"),
    *("report.error", "report.forest", "report.frame", "report.mixing", "report.parameters", "report.plots"),
    *("report.predictions", "report.predictive", "factorization.baselines", "target.narrow", "interop.delimited"),
    *("target.predicted", "target.predictors"),
)


def blocks(text: str) -> list[tuple[int, str]]:
    """The Python samples of a page, each with the number of its first line."""
    return [(text[: m.start()].count("\n") + 1, m[1]) for m in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)]


# Other tests call what these pages call: those of interop and speech, test_network.py and test_auto.py.
OTHERWISE_TESTED = (
    *("interoperability.md", "from-blackjax.md", "networks.md", "million-rows.md"),
    *("priors.md", "speech.md", "cluster.md"),
)
LONG = ("README.md", "first-posterior.md")  # runs that repay the time to optimise their programs


FEWER = {"network.LEAST_STEPS": 200, "network.TRIAL": 80, "plan.NETWORK_WARMUP": 50, "plan.NETWORK_DRAWS": 20}

SMALLER = {"million-rows.md": ("ROWS = 1_000_000", "ROWS = 4_000")}  # data of pages that say how many there are


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow) if p.name in OTHERWISE_TESTED else p for p in PAGES],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_samples_run(page, request, tmp_path, monkeypatch):
    """As they are printed, but with fewer draws where they leave their number to us, and with fewer rows."""
    monkeypatch.setattr("hamcmc.inference.sample.DRAWS", 200)
    for name, fewer in FEWER.items():
        monkeypatch.setattr(f"hamcmc.inference.{name}", fewer)
    if page.name in LONG:
        request.getfixturevalue("optimised")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "sample"}
    text = page.read_text()
    if page.name in SMALLER:
        assert SMALLER[page.name][0] in text
        text = text.replace(*SMALLER[page.name])
    for line, code in blocks(text):
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", ALL, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if target.startswith("_figures/"):
            assert f'"{Path(target).name}"' in FIGURES or f'"{Path(target).stem}"' in FIGURES, target
        else:
            assert "://" in target or (page.parent / target).exists(), target


def test_the_script_of_the_figures_makes_those_of_the_benchmarks():
    figures = importlib.import_module("docs.figures")
    assert {f"{name}.png" for name in figures.plots.available()} < figures.MAKERS.keys()


# --- command lines ---

FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def command_lines(text: str) -> list[str]:
    """The ``hamcmc`` commands in a page's shell blocks, indented or fenced, perhaps after a prompt or a launcher."""
    shell = [block for language, block in re.findall(FENCED, text) if language != "python"]
    shell += re.findall(r"^ {4}.*$", re.sub(FENCED, "", text), re.MULTILINE)
    command = r"^ *(?:\$ )?(?:mpirun -n \w+ |srun |\.venv/bin/)?(hamcmc +[a-z].*?)(?: {2,}#.*)?$"
    return re.findall(command, "\n".join(shell), re.MULTILINE)


def command_of(line: str) -> tuple:
    """The command that a line calls, and its arguments."""
    words = shlex.split(re.sub(r"[\[\]]|…", "", line))[1:]  # the brackets of a synopsis such as [--optional]
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words and words[0] != "--help":
        # `denoise FILE` means `denoise recording FILE`
        command = command.commands[words.pop(0) if words[0] in command.commands else "recording"]
    return command, words


def parse(line: str) -> None:
    """Raise if a command line has an unknown command, an unknown option or too few or too many arguments."""
    command, words = command_of(line)
    _, extra, _ = command.make_parser(command.context_class(command)).parse_args(words)
    assert not extra, f"{line}: unexpected {extra}"


def mention(line: str) -> None:
    """Raise if a command that the text mentions has no such option."""
    command, words = command_of(line)
    known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    assert {w for w in words if w.startswith("-")} <= known | {"--help"}, line


@pytest.mark.parametrize("page", ALL, ids=lambda p: str(p.relative_to(ROOT)))
def test_command_lines_parse(page):
    text = page.read_text()
    for line in command_lines(text):
        parse(line)
    for line in re.findall(r"`(hamcmc [^`]*)`", re.sub(FENCED, "", text)):
        mention(line)


def test_command_lines_are_found_and_wrong_ones_fail():
    lines = [line for page in ALL for line in command_lines(page.read_text())]
    assert {"factorize", "denoise", "sample", "reproduce", "resume"} <= {line.split()[1] for line in lines}
    for wrong in ("hamcmc fit x", "hamcmc summary run --chains", "hamcmc report run more", "hamcmc sample m.py --seed"):
        with pytest.raises(Exception):  # noqa: B017, PT011 the parser's own classes
            parse(wrong)
    with pytest.raises(AssertionError):
        mention("hamcmc factorize --process")


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ALL:
        mentioned = set(re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert mentioned <= targets, f"{page}: {mentioned - targets}"


# --- the reference ---


def public(module) -> dict:
    """The public functions and classes of a module by name: those in ``__all__``, or all that it defines."""
    names = getattr(module, "__all__", None) or [
        n for n, x in vars(module).items() if not n.startswith("_") and getattr(x, "__module__", "") == module.__name__
    ]
    values = {n: getattr(module, n) for n in names}
    return {n: x for n, x in values.items() if inspect.isfunction(x) or inspect.isclass(x)}


@functools.cache
def reference() -> dict:
    """Everything on the pages of the reference, by full name."""
    found, current = {}, ""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        lines = page.read_text().splitlines()
        for line, following in zip(lines, [*lines[1:], ""]):
            match = re.match(r"\.\. (currentmodule|auto\w+):: (\S+)", line)
            if match is None:
                continue
            kind, name = match.groups()
            if kind == "currentmodule":
                current = name
            elif kind == "automodule":
                module = found[name] = importlib.import_module(name)
                if members := re.match(r" +:members:(.*)", following):
                    names = [m.strip() for m in members[1].split(",") if m.strip()] or public(module)
                    found |= {f"{name}.{n}": getattr(module, n) for n in names}
            else:
                full = name if name.startswith("hamcmc.") else f"{current}.{name}"
                module, _, last = full.rpartition(".")
                found[full] = getattr(importlib.import_module(module), last)
    return found


def used(code: str) -> set[str]:
    """The full names of what a sample uses of the package."""
    tree = ast.parse(code)
    modules, names = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name: a.name for a in node.names if a.name.split(".")[0] == "hamcmc"}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hamcmc":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                try:
                    importlib.import_module(full)
                    modules[alias.asname or alias.name] = full
                except ModuleNotFoundError:
                    names.add(full)
    chains = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for module, full in modules.items():
        names |= {re.sub(r"^\w+", full, c) for c in chains if re.fullmatch(rf"{re.escape(module)}\.\w+", c)}
    return names


def test_everything_public_is_in_the_reference():
    missing = {f"hamcmc.{n}" for n in hamcmc.__all__} - set(reference())
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_samples_use_is_in_the_reference(page):
    wanted = used("\n".join(code for _, code in blocks(page.read_text())))
    modules = {n: x for n, x in reference().items() if inspect.ismodule(x)}
    plain = {f"{m}.{n}" for m, x in modules.items() for n in set(vars(x)) - set(public(x))}  # aliases, constants
    assert not {n for n in wanted - set(reference()) - plain if not internal(n)}


def internal(module: str) -> bool:
    return any(fnmatch.fnmatch(module.removeprefix("hamcmc."), pattern) for pattern in INTERNAL)


@functools.cache
def modules() -> tuple[str, ...]:
    """The full names of all modules of the package."""
    source = ROOT / "src" / "hamcmc"
    files = [p.relative_to(source.parent).with_suffix("") for p in source.rglob("*.py")]
    return tuple(".".join(p.parts).removesuffix(".__init__") for p in files)


def test_every_module_is_in_the_reference_or_internal():
    described = [id(x) for x in reference().values()]  # under this module's name or another
    for module in {m for m in modules() if not internal(m)} - set(reference()):
        names = public(importlib.import_module(module))
        assert not names or any(id(x) in described for x in names.values()), module


def test_every_internal_module_exists():
    short = [m.removeprefix("hamcmc.") for m in modules()]
    assert not [pattern for pattern in INTERNAL if not fnmatch.filter(short, pattern)]


def test_everything_in_the_reference_has_a_docstring():
    bare = []
    for name, value in reference().items():
        parts = {name: value}
        if inspect.isclass(value) and not issubclass(value, Exception):
            members = {n: x for n, x in vars(value).items() if not n.startswith("_")}
            kinds = (property, functools.cached_property, classmethod, staticmethod)
            parts |= {f"{name}.{n}": x for n, x in members.items() if callable(x) or isinstance(x, kinds)}
        bare += [n for n, x in parts.items() if not (inspect.getdoc(x) or "").strip()]
    assert not bare
