"""Other libraries are optional: they are imported when needed, and a missing one is named in a clear message."""

import importlib
import subprocess
import sys

import pytest

import hamcmc
from hamcmc import interop


def test_importing_imports_none_of_them():
    code = (
        "import sys, hamcmc, hamcmc.interop as i; i.from_numpyro, i.to_blackjax, i.to_arviz; "
        "print({'blackjax', 'numpyro', 'sklearn', 'arviz'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("package", "extra", "use"),
    [
        ("blackjax", "blackjax", lambda: interop.to_blackjax(hamcmc.sgld(lambda x, batch: x))),
        ("numpyro", "numpyro", lambda: interop.from_numpyro(lambda: None)),
        ("pymc", "pymc", lambda: interop.from_pymc(None)),
        ("sklearn.base", "sklearn", lambda: interop.MatrixFactorization()),
        ("polars", "parquet", lambda: hamcmc.columns("rides.parquet", {"y": "paid"})),
    ],
)
def test_a_missing_one_is_named_with_its_extra(monkeypatch, package, extra, use):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "hamcmc.interop.sklearn", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'hamcmc\[{extra}\]'"):
        use()


def test_all_names_are_there():
    assert dir(interop) == sorted(interop.__all__)
    for name in interop.__all__:
        assert getattr(interop, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute nothing"):
        importlib.import_module("hamcmc.interop").nothing  # noqa: B018
