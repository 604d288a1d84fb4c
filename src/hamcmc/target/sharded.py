"""A posterior whose rows are shared out over devices, which may belong to several processes.

Each device holds a range of rows. A gradient is the mean of what the devices make of their own rows, by one message:
all devices gather the parts and add them up in the same order. So the outcome is the same everywhere, and does not
depend on when a message arrives. Everything else, positions and draws above all, is the same on every device.

Memory maps whose rows fit into the memory of the machines are read once. Otherwise they stay on disk: each process
reads its own rows of each minibatch, and its own part in passes over all data.
"""

import copy
import math
import socket
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import tree_leaves_with_path

from hamcmc import _processes
from hamcmc._compile import jit
from hamcmc._types import PyTree
from hamcmc.target import disk
from hamcmc.target.estimators import ControlVariate
from hamcmc.target.importance import Weighted
from hamcmc.target.passes import plain
from hamcmc.target.posterior import Posterior, name_of
from hamcmc.target.share import Share
from hamcmc.target.view import View

AXIS = "rows"  # the name of the mesh's only axis
IN_MEMORY = 0.5  # of a machine's memory: if the rows of its processes need more, they stay on disk
RARE = 1e-18  # the chance that a minibatch has more rows of a device than there is room for


class Weighing(View):
    """A posterior whose rows come with weights: 0 for those that only fill up the rows of a device."""

    def log_likelihoods(self, parameters: PyTree, rows: Weighted) -> Array:
        """The log-likelihood of each row, times its weight."""
        return jnp.asarray(rows.weight) * self.plain.log_likelihoods(parameters, rows.row)


class Sharded(Posterior):
    """A posterior whose rows are shared out over devices.

    Its density is that of the given posterior. All processes make it together, each from the same posterior, of which a
    process keeps its own rows. Memory maps are read in this range alone, or stay on disk.

    Args:
        posterior: the posterior, or a view of it with another gradient estimator.
        devices: by default all, those of other processes included.

    Attributes:
        local: the model as each device applies it to its own rows.
        share: this process's part of the rows, for sums that are made on the host.
        shards: the posterior itself, by which :func:`shards_of` finds it behind views of it.
        mesh: the devices.
        bounds: (P + 1,), the first row of each device, and N.
        streamed: whether the rows stay on disk.
        data: the rows of all devices with their weights, in arrays that are spread over the mesh; of streamed data the
            memory maps, with weights of 1.
        on_disk: of streamed data, the model with all rows, for what every process looks at alike.
    """

    def __init__(self, posterior: Posterior, devices: Sequence[Any] | None = None):
        chosen = sorted(jax.devices() if devices is None else devices, key=lambda d: (d.process_index, d.id))
        count, self.size = len(chosen), posterior.size
        self._checksum = _processes.all_or_none(lambda: _checked(posterior, count), ValueError)
        _require_same(posterior, self._checksum)
        self.shards, self.mesh = self, Mesh(np.asarray(chosen), (AXIS,))
        self.bounds = np.arange(count + 1) * self.size // count
        large = self._too_large(posterior)  # which all processes must ask, because each waits for the others
        self.streamed = _processes.agreed(posterior.streamed and large)
        self.length = int(np.diff(self.bounds).max())  # rows of each device, with those that fill them up
        importance = posterior.settings.get("rows") == "importance"
        if importance and self.streamed:
            raise ValueError(
                "rows that stay on disk cannot be drawn by importance where several processes share them: leave "
                "importance=True out"
            )
        self._needs_batches = importance
        chance = np.add.reduceat(posterior.probabilities, self.bounds[:-1]) if importance else None  # type: ignore[attr-defined]
        self._largest = float(np.diff(self.bounds).max() / self.size if chance is None else chance.max())
        if self.streamed:
            ones = np.broadcast_to(np.ones((), jnp.zeros(()).dtype), self.size)  # which takes no memory
            self.data, self.on_disk = Weighted(posterior.data, ones), plain(posterior)
        else:
            self.data, self.on_disk = Weighted(jax.tree.map(self._spread, posterior.data), self._spread(None)), None
        rows = self.data.row.row if importance else self.data.row
        without = _without_data(posterior)
        self.share = Share(plain(without), rows, self.bounds, [i for i, _ in self._mine()], self.streamed)
        self.init = posterior.init if posterior.init is not None else plain(posterior).init
        self._use(without.over(Weighing(without.plain)) if isinstance(without, ControlVariate) else Weighing(without))

    def __getattr__(self, name: str) -> Any:
        if name == "local":  # not set yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self.local, name)

    def around(self, view: ControlVariate) -> "Sharded":
        """The same rows with the control variate of a view of this posterior, whose gradient then takes one message."""
        other = copy.copy(self)
        other.shards, other._checksum = other, view.checksum()
        other._use(view.over(self.local))
        return other

    def _use(self, local: Posterior) -> None:
        """Take `local` as the model of each device."""
        self.local = local

        @jax.custom_vjp
        def mean(position: PyTree, rows: PyTree) -> Array:
            return self._total(local._mean)(position, rows)

        def forward(position: PyTree, rows: PyTree) -> tuple[Array, PyTree]:
            return self._total(jax.value_and_grad(local._mean))(position, rows)

        def backward(grad: PyTree, factor: Array) -> tuple[PyTree, None]:
            return jax.tree.map(lambda g: factor * g, grad), None

        mean.defvjp(forward, backward)  # value and gradient in one message
        self._mean_of_all = mean

    # --- the density and its gradient ---

    def _mean(self, position: PyTree, minibatch: PyTree) -> Array:
        return self._mean_of_all(position, minibatch)

    def mean_likelihood_grad(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """ḡ_Ω(θ), by one message."""
        if self._needs_batches and len(minibatch.weight) == len(self.data.weight):
            raise ValueError("minibatches by importance must have fewer rows than the data: give a batch_size")
        return self._total(self.local.mean_likelihood_grad)(position, minibatch)

    def remainder(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """That of a second-order control variate, by one message."""
        return self._total(self.local.remainder)(position, minibatch)  # type: ignore[attr-defined]

    def per_datum_grads(self, position: PyTree, minibatch: PyTree) -> PyTree:
        """There are none: no device sees all rows of a minibatch."""
        raise ValueError("this sampler needs the gradient of each row, and works on one device and in one process only")

    def log_likelihoods(self, parameters: PyTree, rows: PyTree) -> Array:
        """Those of rows with weights."""
        return self.local.log_likelihoods(parameters, rows)

    def _over_all_data(self, position: PyTree, batch_size: int) -> tuple[Array, PyTree]:
        if not self.streamed:  # each device takes all of its rows at once
            return jit(jax.value_and_grad(self.log_density))(position, self.data)
        held = self.share.held
        prior, restore = ravel_pytree(held._prior_value_and_grad(position))
        own = ravel_pytree(held._over_all_data(position, batch_size))[0]
        return restore(prior + self.share.total([np.asarray(own - prior)])[0].astype(prior.dtype))

    def _total(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """The mean over devices of a function of a position and of the device's own rows."""

        def of_device(position: PyTree, rows: PyTree) -> PyTree:
            flat, restore = ravel_pytree(function(position, rows))
            return restore(lax.all_gather(flat, AXIS).sum(0) / self.mesh.size)

        places = PartitionSpec(), PartitionSpec(AXIS)
        return jax.shard_map(of_device, mesh=self.mesh, in_specs=places, out_specs=PartitionSpec(), check_vma=False)

    # --- minibatches ---

    def minibatch_indices(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """The rows of one minibatch, numbered as in the whole data: they do not depend on the number of devices."""
        return self.local.minibatch_indices(key, iteration, batch_size, replace)

    def drawn(self, key: Array, iteration: Array, batch_size: int, replace: bool) -> Array:
        """What :meth:`found` needs to name the rows of a minibatch on the host."""
        return self.local.drawn(key, iteration, batch_size, replace)

    def found(self, drawn: np.ndarray) -> np.ndarray:
        """The rows of minibatches, on the host."""
        return self.local.found(drawn)

    def room(self, batch_size: int) -> int:
        """The most rows of a minibatch that a device may have, by Bernstein's inequality, but for a chance of RARE."""
        if self.mesh.size == 1:
            return batch_size
        mean, nats = batch_size * self._largest, -math.log(RARE)
        over = nats / 3 + math.sqrt(nats**2 / 9 + 2 * nats * mean * (1 - self._largest))
        return min(batch_size, math.ceil(mean + over))

    def rows_seen(self, batch_size: int | None) -> int:
        """Rows that a step sees on all devices, with those that only fill them up."""
        return self.mesh.size * (self.length if batch_size is None else self.room(batch_size))

    def gathered(self, data: Weighted, indices: Any) -> Weighted:
        """Minibatches: each device has those of the rows (…, n) that it holds, and rows without weight."""
        n = indices.shape[-1]
        room, bounds = self.room(n), jnp.asarray(self.bounds, jnp.int32)

        def mine(data: Weighted, rows: Array) -> Weighted:
            """The device's own rows of one minibatch."""
            first, end = (bounds[lax.axis_index(AXIS) + i] for i in (0, 1))
            own = (rows >= first) & (rows < end)
            place = jnp.where(own, jnp.cumsum(own) - 1, room)  # own rows in their order, others nowhere
            taken = jnp.zeros(room, jnp.int32).at[place].set((rows - first).astype(jnp.int32), mode="drop")
            count = own.sum()
            weight = jnp.where(jnp.arange(room) < count, self.mesh.size * room / n, 0.0)
            weight = jnp.where(count > room, jnp.nan, weight).astype(data.weight.dtype)  # a wrong sum must not pass
            return Weighted(jax.tree.map(lambda x: jnp.take(x, taken, axis=0, mode="clip"), data.row), weight)

        each = mine
        for _ in indices.shape[:-1]:
            each = jax.vmap(each, (None, 0))
        places = PartitionSpec(AXIS), PartitionSpec()
        into = PartitionSpec(*[None] * (indices.ndim - 1), AXIS)
        return jax.shard_map(each, mesh=self.mesh, in_specs=places, out_specs=into, check_vma=False)(data, indices)

    def read(self, indices: np.ndarray) -> Weighted:
        """Minibatches as those of :meth:`gathered`, from disk: each process reads the rows of its own devices."""
        n, leading = indices.shape[-1], indices.shape[:-1]
        room = self.room(n)
        where = NamedSharding(self.mesh, PartitionSpec(*[None] * len(leading), AXIS))
        parts: list[list[Array]] = []
        for i, device in self._mine():
            first, end = self.bounds[i : i + 2]
            own = (indices >= first) & (indices < end)
            count = own.sum(-1, keepdims=True)
            real = np.arange(room) < count
            order = np.argsort(~own, -1, kind="stable")[..., :room]  # own rows in their order, then others
            taken = np.where(real, np.take_along_axis(indices, order, -1), first)
            weight = np.where(real, self.mesh.size * room / n, 0.0)
            weight = np.where(count > room, np.nan, weight).astype(self.data.weight.dtype)  # a wrong sum must not pass
            found = [*(disk.rows(x, taken) for x in jax.tree.leaves(self.data.row)), weight]
            parts.append([jax.device_put(x, device, may_alias=True) for x in found])

        def joined(*of_devices: Array) -> Array:
            shape = (*leading, self.mesh.size * room, *of_devices[0].shape[len(leading) + 1 :])
            return jax.make_array_from_single_device_arrays(shape, where, list(of_devices))

        return jax.tree.unflatten(jax.tree.structure(self.data), [joined(*leaf) for leaf in zip(*parts)])

    # --- arrays on the mesh ---

    def place(self, tree: PyTree) -> PyTree:
        """Host arrays, the same in all processes, as arrays that every device has whole."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())

        def leaf(x: Any) -> Array:
            host = np.array(x)
            return jax.make_array_from_callback(host.shape, everywhere, lambda index: host[index])

        return jax.tree.map(leaf, tree)

    def _spread(self, x: Any) -> Array:
        """The rows of an array on their devices, or without an array the weights of rows."""
        kind = jnp.zeros(()).dtype if x is None else jax.dtypes.canonicalize_dtype(x.dtype)
        shape = (self.mesh.size * self.length, *(() if x is None else x.shape[1:]))

        def rows_of(index: Any) -> np.ndarray:
            device = (index[0].start or 0) // self.length
            own = slice(*self.bounds[device : device + 2].tolist())
            if x is None:
                real = np.arange(self.length) < own.stop - own.start
                return (real * (self.mesh.size * self.length / self.size)).astype(kind)
            part = np.asarray(disk.rows(x, own), kind)
            return np.concatenate([part, np.repeat(part[-1:], self.length - len(part), axis=0)])

        return jax.make_array_from_callback(shape, NamedSharding(self.mesh, PartitionSpec(AXIS)), rows_of)

    def _mine(self) -> list[tuple[int, Any]]:
        """The devices of this process, with their numbers."""
        return [(i, d) for i, d in enumerate(self.mesh.devices) if d.process_index == jax.process_index()]

    def _too_large(self, posterior: Posterior) -> bool:
        """Whether the rows of this machine's processes would take too much of its memory."""
        hosts = _processes.texts(socket.gethostname())
        here = [hosts[d.process_index] == hosts[jax.process_index()] for d in self.mesh.devices]
        row = sum(x.nbytes // len(x) for x in jax.tree.leaves(posterior.data))
        return bool(row * np.diff(self.bounds)[here].sum() > IN_MEMORY * disk.memory())

    def checksum(self) -> str:
        """SHA-256 of the whole data and of the estimator, as in a run on one device."""
        return self._checksum


def shards_of(posterior: Posterior) -> Sharded | None:
    """The sharded posterior that a posterior is, or is a view of; None if its data are in one piece."""
    return getattr(posterior, "shards", None)


def spread(posterior: Posterior) -> Posterior:
    """The posterior as several processes run it, each with its own rows; as it is in a process that is alone."""
    shards = shards_of(posterior)
    if shards is not None and isinstance(posterior, ControlVariate) and posterior.plain is shards:
        return shards.around(posterior)
    return Sharded(posterior) if shards is None and _processes.several() else posterior


def _checked(posterior: Posterior, count: int) -> str:
    """The checksum of data that can be shared out."""
    if posterior.size == 0:
        raise ValueError("this posterior has no data that several processes could share: run it in one process")
    if posterior.size < count:
        raise ValueError(
            f"data has {posterior.size} rows, fewer than the {count} devices that share them: use fewer processes"
        )
    return posterior.checksum()


def _require_same(posterior: Posterior, digest: str) -> None:
    """Raise unless all processes were given the same data."""
    shapes = [f"{name_of(p, 'data')} {x.dtype}{list(x.shape)}" for p, x in tree_leaves_with_path(plain(posterior).data)]
    for what, mine in (("shapes or types", ", ".join(shapes)), ("values", f"checksum {digest[:12]}")):
        said = _processes.texts(mine)
        other = next((i for i, text in enumerate(said) if text != said[0]), None)
        if other is not None:
            raise ValueError(
                f"the data of process {other} have other {what} than those of process 0: {said[other]} there, "
                f"{said[0]} here. Give all processes the same data; each keeps its own rows"
            )


def _without_data(posterior: Posterior) -> Posterior:
    """A posterior, or a view of one, that has no data."""
    other = copy.copy(posterior)
    for name in ("data", "_prior_value_and_grad", "_mean_value_and_grad"):
        vars(other).pop(name, None)
    if "plain" in vars(other):
        other.plain = _without_data(other.plain)  # type: ignore[attr-defined]
    else:
        other.data, other.streamed = None, False
        other.mirror = None if other.mirror is None else other._fold
    return other
