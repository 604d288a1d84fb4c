"""From the options of ``hamcmc sample`` to the arguments of :func:`hamcmc.sample`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamcmc._types import Facts, Record
from hamcmc.cli.shell import errors
from hamcmc.store.errors import RunError

if TYPE_CHECKING:
    from hamcmc.cli.model_file import Model

MODE_BATCH = 10_000  # rows per minibatch in the search for a mode, where the data are too large for the memory


def number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number or auto, got {text!r}") from None


def schedule(epsilon: float, decay: float | None, cycles: int | None, iterations: int) -> Any:
    """The step sizes that ``--step-size``, ``--decay`` and ``--cycles`` stand for."""
    from hamcmc.inference import schedules

    if cycles is not None:
        return schedules.Cyclical(epsilon, -(-iterations // cycles))
    return schedules.Constant(epsilon) if decay is None else schedules.Polynomial(epsilon, decay)


def tune(loaded: "Model", notes: Facts, init: Any, work: int, quiet: bool, **how: Any) -> tuple[float, Record]:
    """A step size for a run of so many iterations of all chains, and what to note: the options found, and the cost."""
    from hamcmc.inference.tune import budget_for, tune

    name, options = notes["sampler"], notes["options"]
    budget = budget_for(work * loaded.sampler(name, options).gradients_per_step)
    own = loaded.own_options(name)
    found = tune(
        loaded.posterior, name, init, budget=budget, progress=not quiet and None, **how, **options, **own
    )  # fmt: skip
    account = found.account
    taken = {"step size": account["step_size"], **account["options"]}
    cost = f"{found.gradients:,} minibatch gradients, {found.seconds:.1f} s"
    errors.print(f"tuned: {', '.join(f'{k}={v:.3g}' for k, v in taken.items())} ({cost})", highlight=False)
    kept = {k: v for k, v in found.options.items() if k not in own}  # the model file has its own again on resume
    return account["step_size"], {"tuning": account, "options": kept}


def load(model: Path, data: Path | None, columns: Mapping[str, list[str]], control_variate: bool) -> "Model":
    from hamcmc.cli import model_file
    from hamcmc.target.estimators import control_variate as around
    from hamcmc.target.sharded import spread

    loaded = model_file.load(model, data, columns)
    loaded = loaded._replace(posterior=spread(loaded.posterior))  # each of several processes keeps its own rows
    return loaded._replace(posterior=around(loaded.posterior, start(loaded, "mode"))) if control_variate else loaded


def sources(notes: Facts, model: Path | None, data: Path | None) -> tuple[Path, Path | None]:
    """The model file and the data of a run that is resumed, where they were or where they have moved to."""
    from hamcmc.cli import model_file

    model = model or Path(notes["model"])
    if not model.is_file():
        raise RunError(f"the model file {model} is missing: say where it is with --model")
    if model_file.checksum(model) != notes["model_checksum"]:
        raise RunError(f"the model file {model} has changed since the run began, so the run cannot continue with it")
    data = data or (Path(notes["data"]) if notes["data"] else None)
    if data is not None and not data.exists():
        raise RunError(f"the data {data} are missing: say where they are with --data")
    return model, data


def start(loaded: "Model", start: str) -> Any:
    """Where the chains start: at the file's ``init``, or at the mode."""
    if start == "init":
        return loaded.init
    import jax

    from hamcmc.target.frozen import is_function
    from hamcmc.target.mode import find_mode

    init = loaded.init(jax.random.key(0)) if is_function(loaded.init) else loaded.init
    return find_mode(loaded.posterior, init, batch_size=MODE_BATCH if loaded.posterior.streamed else None)
