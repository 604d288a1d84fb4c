"""Import the package with one place in its source changed, to show that a test would notice."""

import contextlib
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hamcmc

ROOT = Path(hamcmc.__file__).parent


@contextlib.contextmanager
def mutant(file: str, old: str, new: str) -> Iterator[ModuleType]:
    """The whole package, freshly imported, with `old` replaced by `new` in `file`.

    The text must be there exactly once, so that a mutation cannot go stale unnoticed.
    """
    path = ROOT / file
    source = path.read_text()
    assert source.count(old) == 1, f"{file} has {source.count(old)} places like {old!r}"
    changed = source.replace(old, new)

    class Loader(importlib.machinery.SourceFileLoader):
        def get_data(self, p):
            return changed.encode() if Path(p) == path else super().get_data(p)

        def get_code(self, fullname):  # never from a cached .pyc
            return compile(self.get_data(self.get_filename(fullname)), self.path, "exec")

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, search, target=None):
            spec = importlib.machinery.PathFinder.find_spec(fullname, search)
            if spec and spec.origin and Path(spec.origin) == path:
                spec.loader = Loader(fullname, str(path))
            return spec

    mine = lambda: [n for n in sys.modules if n == "hamcmc" or n.startswith("hamcmc.")]
    saved = {n: sys.modules.pop(n) for n in mine()}
    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module("hamcmc")
    finally:
        sys.meta_path.remove(finder)
        for n in mine():
            del sys.modules[n]
        sys.modules.update(saved)
