"""Conversion from and to BlackJAX, NumPyro, PyMC, ArviZ and scikit-learn. Each is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hamcmc.interop.arviz import to_arviz
    from hamcmc.interop.blackjax import from_blackjax, to_blackjax
    from hamcmc.interop.numpyro import from_numpyro
    from hamcmc.interop.pymc import from_pymc
    from hamcmc.interop.sklearn import MatrixFactorization

__all__ = ["MatrixFactorization", "from_blackjax", "from_numpyro", "from_pymc", "to_arviz", "to_blackjax"]

_HOME = {
    "MatrixFactorization": "sklearn",
    "from_blackjax": "blackjax",
    "from_numpyro": "numpyro",
    "from_pymc": "pymc",
    "to_arviz": "arviz",
    "to_blackjax": "blackjax",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
