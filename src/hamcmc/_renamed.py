"""Names that 0.1.0 had: they still work, with a warning that says what they are called now."""

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Modules of 0.1.0 and where they are now; an empty name stands for a package that had no content of its own.
MODULES = {
    "cli_denoise": "cli.speech",
    "cli_factorization": "cli.ratings",
    "compilation": "_compile",
    "curvature": "samplers.curvature",
    "demo": "paper.demo",
    "distributed": "",
    "distributed.cost": "factorization.cost",
    "distributed.factorization": "factorization.sharded",
    "distributed.inspect": "factorization.inspect",
    "distributed.launch": "inference.launch",
    "distributed.partition": "factorization.partition",
    "distributed.worker": "factorization.worker",
    "distributions": "stable.distributions",
    "evidence": "inference.evidence",
    "job": "inference.job",
    "landscape": "target.landscape",
    "loop": "inference.compiled",
    "minibatch": "target.minibatch",
    "mode": "target.mode",
    "model_file": "cli.model_file",
    "models": "",
    "models.alpha_stable_mf": "stable.model",
    "models.gaussian_mf": "factorization.model",
    "models.linear_gaussian": "target.linear_gaussian",
    "moments": "store.moments",
    "native": "factorization.native",
    "native.blocks": "factorization.native.blocks",
    "native.build": "factorization.native.build",
    "native.library": "factorization.native.library",
    "native.twin": "factorization.native.twin",
    "noise": "samplers.noise",
    "potential": "target.posterior",
    "progress": "inference.progress",
    "record": "store.directory",
    "result": "diagnostics.result",
    "run": "inference.sample",
    "samplers.ensemble_adjusted": "samplers.ensemble.adjusted",
    "samplers.ensemble_hamcmc": "samplers.ensemble.langevin",
    "samplers.ensemble_underdamped": "samplers.ensemble.underdamped",
    "schedules": "inference.schedules",
    "separation": "stable",
    "separation.chains": "stable.chains",
    "separation.impulses": "stable.impulses",
    "separation.run": "stable.separation",
    "stein": "diagnostics.stein",
    "stream": "inference.stream",
    "support": "target.support",
    "tune": "inference.tune",
    "variance": "target.estimators",
}


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old names of keyword arguments, given as ``old="new"``, with a :class:`DeprecationWarning`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def accept(*args, **options):
            for old, new in names.items():
                if old in options:
                    if new in options:
                        raise TypeError(f"{function.__name__}() got {new} twice: {old} is its old name")
                    warnings.warn(f"{function.__name__}({old}=…) is now {new}=…", DeprecationWarning, stacklevel=2)
                    options[new] = options.pop(old)
            return function(*args, **options)

        return accept  # type: ignore[return-value]

    return decorate


def moved(module: str, **names: str) -> Callable[[str], object]:
    """A ``__getattr__`` for a module, which finds the names that went to other modules, given as ``name="module"``."""

    def find(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {names[name]}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(names[name]), name)

    return find


def adjusted_apart(function: Callable[P, R]) -> Callable[P, R]:
    """Accept ``ensemble_hamcmc(…, adjusted=True)``, which is a sampler of its own now."""

    @functools.wraps(function)
    def accept(*args, **options):
        adjusted, density = options.pop("adjusted", None), options.pop("log_density", None)
        if adjusted is not None or density is not None:
            message = "ensemble_hamcmc(…, adjusted=True) is now ensemble_adjusted(target, …)"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        if not adjusted:
            return function(*args, **options)
        grad, mirror = args[0] if args else options.pop("grad"), options.pop("mirror", None)
        target = getattr(grad, "__self__", None)  # of posterior.grad it is the posterior
        if density is not None:
            target = SimpleNamespace(grad=grad, log_density=density, mirror=mirror)
        if not hasattr(target, "log_density"):
            raise ValueError(
                "adjusted=True needs log_density=, or a posterior's own grad: use ensemble_adjusted(target)"
            )
        return import_module("hamcmc.samplers.ensemble.adjusted").ensemble_adjusted(target, **options)

    return accept  # type: ignore[return-value]


class Moved(MetaPathFinder, Loader):
    """Finds the modules of `MODULES` under their old names. They are loaded when first imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by Python for each module that is not loaded yet."""
        package, _, name = fullname.partition(".")
        if package != "hamcmc" or name not in MODULES:
            return None
        return ModuleSpec(fullname, self, is_package=not MODULES[name])

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in the place of the one that Python has just made."""
        if new := MODULES[module.__name__.removeprefix("hamcmc.")]:
            warnings.warn(f"{module.__name__} is now hamcmc.{new}", DeprecationWarning, stacklevel=2)
            sys.modules[module.__name__] = import_module(f"hamcmc.{new}")


class Package(ModuleType):
    """The top level of hamcmc: a moved module does not hide the function that has its name (``evidence``, ``tune``)."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in MODULES and callable(getattr(self, name, None))):
            super().__setattr__(name, value)


def accept_old_modules() -> None:
    """Let the old names of modules be imported."""
    sys.meta_path.insert(0, Moved())  # first: a moved package would find its modules a second time
    sys.modules["hamcmc"].__class__ = Package
