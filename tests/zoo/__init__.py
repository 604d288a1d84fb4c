"""The zoo: posteriors of every kind with known marginals, on which the automatic sampler and its verdict are measured.

A model is a function with the decorator :func:`model` in one of the modules `FAMILIES`. It returns a :class:`Case`; its
name is the function's, its note the function's docstring. Data are simulated with fixed seeds.

    python -m tests.zoo list                 what there is
    python -m tests.zoo run                  every case, in both precisions, with three seeds (`make zoo`)
    python -m tests.zoo.references [NAME …]  make the references again
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from importlib import import_module
from typing import Any, Literal

import hamcmc
from tests.zoo.marginals import Marginals

FAMILIES = (
    *("regressions", "classification", "scaling", "hierarchical", "effects", "shapes", "modes"),
    *("timeseries", "gp", "ode", "large", "posteriordb"),
)


@dataclass(frozen=True)
class Case:
    """A posterior with a start that a user would write without knowing it.

    Attributes:
        posterior: the posterior.
        init: parameters in the support, or a function of a key.
        exact: a function that computes the exact marginals, by parameter; None if a long run is the reference.
        published: a function that reads marginals which others have published, from the user's copy.
        quantities: a function of the parameters of one draw to what is compared, if that is not the parameters.
        measure: whether draws are compared by means and sds, or, where these do not exist or converge too slowly, by
            medians and the distances between quantiles.
        hard: True where we ask of a run only an honest verdict, because no method we know gets it right by itself.
        slow: True where a short run of NUTS would take hours, so that we do not know whether it is right.
        nuts: options of the long NUTS run that is the reference, other than its defaults.
        name, note, family: the function's name, the first line of its docstring and its module.
    """

    posterior: hamcmc.Posterior
    init: Any
    exact: Callable[[], Mapping[str, Marginals]] | None = None
    published: Callable[[], Mapping[str, Marginals]] | None = None
    quantities: Callable[[Any], Mapping[str, Any]] | None = None
    measure: Literal["moments", "quantiles"] = "moments"
    hard: bool = False
    slow: bool = False
    nuts: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    note: str = ""
    family: str = ""


_models: dict[str, Callable[[], Case]] = {}


def model(build: Callable[[], Case]) -> Callable[[], Case]:
    """Enter a function that builds a case."""
    name, family = build.__name__, build.__module__.rpartition(".")[2]
    if name in _models:
        raise ValueError(f"two models are called {name}")

    @wraps(build)
    def named() -> Case:
        note = (build.__doc__ or "").strip().partition("\n\n")[0].replace("\n    ", " ")
        return replace(build(), name=name, note=note, family=family)

    _models[name] = named
    return named


@cache
def _loaded() -> dict[str, Callable[[], Case]]:
    for family in FAMILIES:
        import_module(f"tests.zoo.{family}")
    return _models


def names() -> list[str]:
    """The names of all cases, in the order of the families."""
    return list(_loaded())


def family(name: str) -> str:
    """The module that a case is in."""
    return _loaded()[name].__module__.rpartition(".")[2]


def case(name: str) -> Case:
    """Build one case, in the precision that JAX is set to."""
    return _loaded()[name]()
