"""The README and the site: Python samples run, command lines parse, links lead somewhere, the reference is complete."""

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
ALL = tuple(p for p in ALL if "_build" not in p.parts)
PAGES = [p for p in ALL if "```python" in p.read_text()]
FIGURES = (ROOT / "docs" / "figures.py").read_text()  # makes what pages show from docs/_figures
# Modules that no one is told to use; every other one has a place in the reference.
INTERNAL = (
    *("_*", "*._*", "cli*", "compilation", "demo", "distributed*", "job", "landscape", "loop", "model_file", "moments"),
    *("paper*", "progress", "record", "stream", "models.gaussian_mf", "native.blocks", "native.build", "native.twin"),
    *("report.frame", "report.plots", "samplers.ensemble*", "separation.*", "speech.guess", "speech.model"),
    "speech.pair",
)


def blocks(text: str) -> list[tuple[int, str]]:
    """The Python samples of a page, with their first line's number."""
    return [(text[: m.start()].count("\n") + 1, m[1]) for m in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)]


OTHERWISE_TESTED = ("interoperability.md",)  # what it calls is in tests/interop


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow) if p.name in OTHERWISE_TESTED else p for p in PAGES],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_samples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "sample"}
    for line, code in blocks(page.read_text()):
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize("page", ALL, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if target.startswith("_figures/"):
            assert f'"{Path(target).name}"' in FIGURES or f'"{Path(target).stem}"' in FIGURES, target
        else:
            assert "://" in target or (page.parent / target).exists(), target


# --- command lines ---


def command_lines(text: str) -> list[str]:
    """Whole lines of shell in a page's blocks: of an indented or fenced block, perhaps after a prompt or a launcher."""
    return re.findall(
        r"^ *(?:\$ )?(?:mpirun -n \w+ |srun |\.venv/bin/)?(hamcmc +[a-z].*?)(?: {2,}#.*)?$", text, re.MULTILINE
    )


def command_of(line: str) -> tuple:
    """The command that a line calls, and its arguments."""
    words = shlex.split(re.sub(r"[\[\]]|…", "", line))[1:]  # [--optional] of a synopsis is written out
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words:  # a group; `denoise FILE` is `denoise recording FILE`
        command = command.commands[words.pop(0) if words[0] in command.commands else "recording"]
    return command, words


def parse(line: str) -> None:
    """Raise where a command line names a command or an option that does not exist, or leaves a value away."""
    command, words = command_of(line)
    _, extra, _ = command.make_parser(command.context_class(command)).parse_args(words)
    assert not extra, f"{line}: too much is {extra}"


def mention(line: str) -> None:
    """Raise where a command that is spoken of has no such option."""
    command, words = command_of(line)
    known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    assert {w for w in words if w.startswith("-")} <= known | {"--help"}, line


@pytest.mark.parametrize("page", ALL, ids=lambda p: str(p.relative_to(ROOT)))
def test_command_lines_parse(page):
    text = page.read_text()
    for line in command_lines(re.sub(r"```python\n.*?```", "", text, flags=re.DOTALL)):
        parse(line)
    for line in re.findall(r"`(hamcmc [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
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
        told = set(re.findall(r"(?:^    |`)make ([a-z-]+)", page.read_text(), re.MULTILINE))
        assert told <= targets, f"{page}: {told - targets}"


# --- the reference ---


def public(module) -> dict:
    """Functions and classes of a module by name: those of ``__all__``, or all that it defines without underscore."""
    names = getattr(module, "__all__", None) or [
        n for n, x in vars(module).items() if not n.startswith("_") and getattr(x, "__module__", "") == module.__name__
    ]
    values = {n: getattr(module, n) for n in names}
    return {n: x for n, x in values.items() if inspect.isfunction(x) or inspect.isclass(x)}


@functools.cache
def reference() -> dict:
    """Everything on the pages of the reference: full name → value."""
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
    """Full names of what a sample takes from the package."""
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


def test_every_module_is_in_the_reference_or_internal():
    source = ROOT / "src" / "hamcmc"
    files = [p.relative_to(source.parent).with_suffix("") for p in source.rglob("*.py")]
    modules = [".".join(p.parts).removesuffix(".__init__") for p in files]
    described = [id(x) for x in reference().values()]  # under this module's name or another
    for module in {m for m in modules if not internal(m)} - set(reference()):
        names = public(importlib.import_module(module))
        assert not names or any(id(x) in described for x in names.values()), module


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
