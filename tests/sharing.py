"""Programs that tests share: what is made of the same source and equal values is traced and compiled once."""

import copy
import functools
import hashlib
import inspect
import json
from types import CellType, CodeType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hamcmc
from hamcmc import _compile
from hamcmc.diagnostics import gradients
from hamcmc.inference import auto, checks, compiled, job, stream
from hamcmc.samplers import factory, registry
from hamcmc.samplers.base import Sampler
from hamcmc.target import passes

SMALL = 2**20  # bytes of an array, up to which its numbers are compared
DEPTH = 5  # of what closes over what closes over …: what is deeper inside must be the same object
EMPTY = CellType()  # of a name that has no value yet
FOLLOWS = ("init", "mirror")  # attributes of a posterior that no program uses, or that another one implies


class Remembered:
    """A function that builds a program, or what it is made of, and returns the same one for equal arguments.

    Many tests run the same sampler on the same posterior: what JAX has traced and compiled then serves all of them.
    """

    MOST = 100  # so that posteriors, which the values hold, do not fill the memory

    def __init__(self, function):
        self.function, self.values = function, {}

    def __call__(self, *args, **options):
        modes = [jax.config.read(f"jax_{name}") for name in ("enable_x64", "disable_most_optimizations")]
        key = (*modes, *self.key(*args, **options))
        if key not in self.values:
            if len(self.values) >= self.MOST:
                del self.values[next(iter(self.values))]
            made = self.function(*args, **options)
            self.values[key] = (made, args, options)  # as long as these are kept, no others have their ids
        return self.values[key][0]

    def key(self, *args, **options):
        """What is equal for equal arguments."""
        return (*map(identity, args), *((k, identity(v)) for k, v in sorted(options.items())))


class Programs(Remembered):
    """The same for a program, which depends on the shapes of its arguments."""

    def __init__(self, trace):
        def once(*args):
            made = trace(*args)
            made.lowered = SimpleNamespace(compile=functools.cache(made.lowered.compile))
            return made

        super().__init__(once)

    def __call__(self, *args):
        return copy.copy(super().__call__(*args))  # because a run may replace what the model closes over

    def key(self, segment, arguments, iterations):
        return id(segment), shapes(arguments), iterations < compiled.MANY


class Compiled(Remembered):
    """The same for functions to be compiled, of which a run has many."""

    MOST = 300


class OfSteps(Remembered):
    """The same for what a run asks about the shapes of its steps."""

    def key(self, posterior, sampler, position, settings):
        asked = [settings.get(k) for k in ("ensembles", "batch_size", "store_gradients")]
        return identity(posterior), identity(sampler), shapes(position), stream.HELD_BYTES, *asked


class OfShapes(Remembered):
    """The same for what a run asks about a posterior, where of a position only its shape counts."""

    def key(self, posterior, position, *others):
        return identity(posterior), shapes(position), *map(identity, others)


def shapes(tree):
    """Structure, shapes and types of a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    return str(structure), *((jnp.shape(x), str(jnp.result_type(x))) for x in leaves)


def identity(value, depth=DEPTH):
    """What is equal for equal values: for functions of one source that hold equal values, too. Otherwise an id."""
    inside = functools.partial(identity, depth=depth - 1)
    if isinstance(value, str | int | float | bool | None):
        return type(value), value
    if depth == 0:
        return id(value)
    if isinstance(value, hamcmc.Posterior):  # a run copies it
        parts = {k: v for k, v in sorted(vars(value).items()) if k not in FOLLOWS and not lazy(value, k)}
        return type(value), *((k, tree_identity(v, depth - 1)) for k, v in parts.items())
    if isinstance(value, Sampler):  # a run wraps its step anew
        return id(value.init), id(value.step.__wrapped__ if hasattr(value.step, "lower") else value.step)
    if isinstance(value, passes.Passes):
        position = jax.eval_shape(value._to_session, jax.ShapeDtypeStruct((value.dimension,), value.kind))
        sizes = (value.chunk, value._tiles, value._block, vars(value).get("double"))
        return inside(value.posterior), shapes(position), *sizes
    if isinstance(value, functools.partial):
        named = ((k, inside(v)) for k, v in sorted(value.keywords.items()))
        return inside(value.func), *map(inside, value.args), *named
    if inspect.ismethod(value):
        return inside(value.__func__), inside(value.__self__)
    if inspect.isfunction(value):
        held = [c.cell_contents for c in value.__closure__ or () if c != EMPTY]
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return value.__code__, *map(inside, (*held, *defaults)), *globals_of(value, min(depth - 1, 2))
    if isinstance(value, tuple):
        return type(value), *map(inside, value)
    if plain_array(value):
        return value.dtype.str, value.shape, hashlib.sha256(np.asarray(value).tobytes()).digest()
    described = job.describe(value)
    return json.dumps(described, sort_keys=True) if described["schedule"] != "custom" else id(value)


def tree_identity(tree, depth):
    """The same for data, supports and settings: a dict is what it holds, where a function's own dict may change."""
    if isinstance(tree, dict):
        return tuple((k, tree_identity(v, depth)) for k, v in sorted(tree.items()))
    return identity(tree, depth)


def lazy(value, name):
    """Whether an attribute is computed when it is first asked for, from the others."""
    return isinstance(getattr(type(value), name, None), functools.cached_property)


def plain_array(value):
    """Whether a value is an array with few numbers, all of them in memory."""
    if isinstance(value, jax.core.Tracer | np.memmap) or not isinstance(value, np.ndarray | jax.Array):
        return False
    return isinstance(value.dtype, np.dtype) and value.dtype.kind in "biuf" and value.nbytes <= SMALL


def globals_of(function, depth):
    """What the names of a module mean that a function uses. Those of a package stay what they are."""
    known = function.__globals__
    if str(known.get("__name__")).split(".")[0] in ("hamcmc", "jax"):
        return [id(known)]  # a package that is broken on purpose has modules of its own
    used = sorted(n for n in names_in(function.__code__) if n in known)
    return [(n, identity(known[n], depth)) for n in used]


def names_in(code):
    """All names that a piece of code uses, with those of the functions inside it."""
    return {*code.co_names}.union(*(names_in(c) for c in code.co_consts if isinstance(c, CodeType)))


def share(patch: pytest.MonkeyPatch):
    """Build each sampler and each program once for all runs that differ in nothing."""
    build_one = Remembered(registry.build_one)
    for module in (registry, factory):
        patch.setattr(module, "build_one", build_one)
    patch.setattr(compiled, "build", Remembered(compiled.build))
    patch.setattr(compiled, "Traced", Programs(compiled.Traced))
    patch.setattr(job, "recorded", OfSteps(job.recorded))
    patch.setattr(job, "segment_length", OfSteps(job.segment_length))
    patch.setattr(auto, "Whitened", OfShapes(auto.Whitened))
    patch.setattr(auto, "operations", OfShapes(auto.operations))
    jitted = Compiled(_compile.jit)
    for module in (checks, compiled, job, auto, passes, gradients):
        patch.setattr(module, "jit", jitted)
