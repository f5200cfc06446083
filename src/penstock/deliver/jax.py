"""Delivery to JAX: the batches of a loader as ``jax.Array`` under a sharding, one batch ahead on the devices.

With several processes (``jax.distributed``) a batch is one global array, of which every process holds the rows that it read: rank r
has the samples p with p mod world = r, so the rows of the global array are grouped by process. On one process they stand in the
order of the stream. Each batch holds the same samples either way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.batch import Ragged
from penstock.deliver.adapter import OneAhead, check_loader, importing
from penstock.interrupt import shielded
from penstock.loader import Batches, Loader
from penstock.loader.engine import Engine
from penstock.loader.schedule import PhaseSchedule
from penstock.order import Shard

with importing("penstock.deliver.jax needs jax", "pip install 'penstock[jax]'", "jax"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

__all__ = ["Delivery", "deliver", "own_losses", "segment_losses"]

Shardings = Sharding | Mapping[str, Sharding]

SHORT = "the last batch of an epoch is a short one, use tail='drop', 'pad' or 'wrap'"


def deliver(loader: Loader, *, sharding: Shardings | None = None, forever: bool = False) -> "JaxDelivery":
    """The batches of a loader as jax arrays, in order, each sent to the devices while the one before is used.

    ``sharding`` is one for all leaves, or a dict by field name. Without one, the samples of a batch are divided among all devices:
    ``PartitionSpec("data")`` over a mesh with the one axis "data". Leaves without dimensions are copied to every device.
    A batch that cannot be divided evenly is refused. ``forever`` never ends; otherwise ``for batch in delivery`` is the rest of the
    epoch and the next ``for`` the next epoch, as with the loader; with ``Loader(..., restart=True)`` it begins at step 0.

    Element types stay as they are, but where ``jax_enable_x64`` is off those of 64 bits become 32 bits wide; ValueError if a whole
    number does not fit. Texts, ragged and masked fields have no form in jax: pad, fill or drop them in ``transform=``.

    With several processes the loader needs ``shard=Shard(jax.process_index(), jax.process_count())``.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.jax import deliver
    >>> batches = deliver(pen.Loader(pen.open(np.arange(6), field="x"), batch_size=4))
    >>> [batch["x"] for batch in batches]
    [Array([0, 1, 2, 3], dtype=int32), Array([4, 5], dtype=int32)]
    """
    return JaxDelivery(loader, _over_all_devices() if sharding is None else sharding, forever)


def _over_all_devices() -> NamedSharding:
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))  # type: ignore[no-untyped-call]


class JaxDelivery:
    """Batches of a loader as jax arrays, made by :func:`deliver`. For one thread.

    The loader's cursor counts what was handed out, not what is on the devices before its turn, so a state is exact at any time.

    >>> import numpy as np, penstock as pen
    >>> from penstock.deliver.jax import deliver
    >>> with deliver(pen.Loader(pen.open({"x": np.arange(6)}), batch_size=4)) as batches:
    ...     first = next(batches)
    ...     batches.state_dict()["step"]
    1
    """

    def __init__(self, loader: Loader, sharding: Shardings, forever: bool) -> None:
        check_loader(loader)
        if forever:
            loader.forever()  # it refuses a loader that has no batch
        self._loader, self._forever = loader, forever
        self._placing = _Placing(loader, sharding)
        self._placing.check()
        self._batches: _DeviceBatches | None = None
        self._ended = False

    @property
    def loader(self) -> Loader:
        """Where the batches come from."""
        return self._loader

    @property
    def sharding(self) -> Shardings:
        """How the leaves lie on the devices."""
        return self._placing.sharding

    def __len__(self) -> int:
        """Batches of the current epoch, those already delivered included."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._loader.restart:
            self._begin_anew()
            return self._begun()  # its own iterator: a loop over it continues, a loop over the delivery begins at step 0
        if self._ended:
            self._begin_anew()
        return self

    def __next__(self) -> Any:
        try:
            return next(self._begun())
        except StopIteration:
            self._ended = True
            raise

    def _begun(self) -> "_DeviceBatches":
        if self._batches is None:
            self._batches = _DeviceBatches(self._loader, self._forever, self._placing)
        return self._batches

    def state_dict(self) -> dict[str, Any]:
        """The loader's state as plain JSON types, after the batches that were handed out."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Resume a run; see :meth:`penstock.Loader.load_state_dict`."""
        self._loader.load_state_dict(state, strict=strict)
        self._begin_anew()

    def get_state(self) -> bytes:
        """The loader's 24-byte cursor."""
        return self._loader.get_state()

    def set_state(self, state: bytes) -> None:
        """Go to the place of a cursor; see :meth:`penstock.Loader.set_state`."""
        self._loader.set_state(state)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.close()
        self._batches, self._ended = None, False

    @shielded
    def close(self) -> None:
        """Stop reading ahead and drop the batch that waits. Idempotent; a later ``next`` continues after the last batch."""
        if self._batches is not None:
            self._batches.close()

    def __enter__(self) -> "JaxDelivery":
        return self

    @shielded
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


Delivery = JaxDelivery


class _DeviceBatches(Batches):
    """The iterator of a loader, with devices behind its engine."""

    def __init__(self, loader: Loader, endless: bool, placing: "_Placing") -> None:
        self._placing = placing
        super().__init__(loader, endless=endless)

    def _begin(self) -> Engine:
        self._placing.check()  # again: the loader may have been moved to where batches have another size
        return OneAhead(super()._begin(), self._placing.put)


# Placing batches on devices


@dataclass(frozen=True)
class _Split:
    """How a sharding divides the rows of a batch: into ``parts``, among ``groups`` of processes with the same rows.

    ``shard`` is what this process must read; None where no other process is known.
    """

    parts: int
    groups: int
    shard: Shard | None


@lru_cache(maxsize=256)
def _split_of(sharding: Sharding) -> _Split:
    count = len(sharding.device_set)  # this many rows can be divided in every way in which the devices can
    spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
    places: Mapping[Any, Any] = sharding.devices_indices_map((count,) * max(1, len(spec)))
    parts = len({index[0].indices(count) for index in places.values()})
    if jax.process_count() == 1:
        return _Split(parts, 1, None)
    rows: dict[int, set[int]] = {}
    for device, index in places.items():
        rows.setdefault(device.process_index, set()).update(range(count)[index[0]])
    own = jax.process_index()
    if own not in rows:
        raise ValueError(f"the sharding has no device of process {own}; every process that delivers needs one")
    if len(rows) == 1:
        return _Split(parts, 1, Shard(own, jax.process_count()))
    groups = list(dict.fromkeys(frozenset(rows[process]) for process in sorted(rows)))
    if sum(map(len, groups)) != count or len(set(map(len, groups))) > 1:
        raise ValueError("the sharding gives two processes some rows in common but not all; they must have all in common, or none")
    return _Split(parts, len(groups), Shard(groups.index(frozenset(rows[own])), len(groups)))


class _Placing:
    """Puts the batches of a loader on devices."""

    def __init__(self, loader: Loader, sharding: Shardings) -> None:
        self._every = list(sharding.values()) if isinstance(sharding, Mapping) else [sharding]
        for one in self._every:
            if not isinstance(one, Sharding):
                raise TypeError(f"expected a jax Sharding, or a dict of them by field name, got {type(one).__name__}")
        self._loader = loader
        self.sharding: Shardings = dict(sharding) if isinstance(sharding, Mapping) else sharding

    def check(self) -> None:
        """Refuse a loader whose batches cannot be divided among the devices, or whose shard would give samples twice."""
        shard = self._loader.shard
        for split in map(_split_of, self._every):
            if split.shard is not None and shard != split.shard:
                raise ValueError(
                    f"process {jax.process_index()} of {jax.process_count()} needs a loader with shard={split.shard} for its "
                    f"sharding, got {shard}: samples would be used twice, or not at all"
                )
            # A transform may change the number of rows: then every leaf is looked at when it comes.
            parts = split.parts if self._loader.work.transform is None else split.groups
            for size, remedy in self._sizes(parts if split.groups > 1 else parts * shard.world):
                rows = size if split.groups > 1 else len(shard.run(0, size))
                if rows % parts:
                    raise ValueError(f"a batch of {rows} samples cannot be divided into {parts} equal parts: {remedy}")

    def _sizes(self, multiple: int) -> Iterator[tuple[int, str]]:
        """Samples of the batches to come, and what to do if they cannot be divided."""
        schedule, wanted = self._loader.schedule, f"use a batch_size that is a multiple of {multiple}"
        if isinstance(schedule, PhaseSchedule):
            yield from ((phase.batch_size, f"{wanted} in every phase") for phase in schedule.curriculum.phases)
            return
        yield schedule.batch_size, wanted
        if schedule.tail == "keep":
            stream = schedule.stream
            for samples in (len(stream), (stream.axis - schedule.position) // stream.stride):
                yield samples % schedule.batch_size, SHORT

    def put(self, batch: Any) -> Any:
        """The batch with jax arrays as leaves. It returns at once; the devices copy meanwhile."""
        found, structure = jax.tree_util.tree_flatten_with_path(batch)
        arrays = [_as_array(_name(path), leaf) for path, leaf in found]
        shardings = [self._sharding_of(path, array) for (path, _), array in zip(found, arrays, strict=True)]
        shapes = [_global_shape(_name(p), array, s) for (p, _), array, s in zip(found, arrays, shardings, strict=True)]
        if jax.process_count() == 1:
            return jax.tree_util.tree_unflatten(structure, jax.device_put(arrays, shardings))
        return jax.tree_util.tree_unflatten(structure, list(map(jax.make_array_from_process_local_data, shardings, arrays, shapes)))

    def _sharding_of(self, path: tuple[Any, ...], array: npt.NDArray[Any]) -> Sharding:
        if isinstance(self.sharding, Mapping):
            field = _name(path[:1])
            if field not in self.sharding:
                raise ValueError(f"no sharding is given for field {field!r}, only for {list(self.sharding)}")
            return self.sharding[field]
        if array.ndim == 0 and isinstance(self.sharding, NamedSharding):
            return NamedSharding(self.sharding.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        return self.sharding


def _name(path: tuple[Any, ...]) -> str:
    """The place of a leaf in its batch, such as image or views.0."""
    keys = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
    return ".".join(map(str, keys))


def _global_shape(name: str, array: npt.NDArray[Any], sharding: Sharding) -> tuple[int, ...]:
    """The shape of a leaf on all processes together. The sharding must fit it."""
    if isinstance(sharding, NamedSharding) and len(sharding.spec) > array.ndim:
        remedy = 'name the first dimension only, as in P("data"), or give a dict of shardings by field name'
        raise ValueError(f"field {name!r} has {array.ndim} dimensions, its sharding is for {len(sharding.spec)}: {remedy}")
    if array.ndim == 0:
        return ()
    split = _split_of(sharding)
    shape = (len(array) * split.groups, *array.shape[1:])
    if shape[0] % split.parts:
        remedy = f"choose another batch_size; or {SHORT}"
        raise ValueError(f"field {name!r}: {shape[0]} rows cannot be divided into {split.parts} equal parts: {remedy}")
    try:
        sharding.shard_shape(shape)
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from error
    return shape


def _as_array(name: str, leaf: Any) -> npt.NDArray[Any]:
    """A leaf as an array of a type that jax has now."""
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError(f"field {name!r} is masked, values may be missing: fill them, with filled(), or drop it in transform=")
    if isinstance(leaf, Ragged):
        if leaf.kind == "array":
            raise TypeError(f"field {name!r} has records of different lengths: pad() or drop it in transform=")
        raise _no_number(name, leaf.kind)
    array = np.asarray(leaf)
    dtype = array.dtype.newbyteorder("=")
    if not _is_known(dtype):
        raise _no_number(name, {"U": "text", "S": "bytes"}.get(dtype.kind, str(dtype)))
    wanted = jax.dtypes.canonicalize_dtype(dtype)
    if dtype != wanted and dtype.kind in "iu":
        _check_range(name, array, np.iinfo(wanted))
    return array if array.dtype == wanted else array.astype(wanted)


def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether jax has a type. Those of ml_dtypes, such as bfloat16, are of numpy's kind V; long doubles are not known."""
    if dtype.kind == "V":
        return bool(jnp.issubdtype(dtype, np.number))
    return dtype.kind in "biufc" and dtype.char not in "gG"


def _no_number(name: str, kind: str) -> TypeError:
    return TypeError(f"field {name!r} holds {kind}, for which jax has no type: change or drop it in transform=")


def _check_range(name: str, array: npt.NDArray[Any], wanted: "np.iinfo[Any]") -> None:
    for value in (int(array.min()), int(array.max())) if array.size else ():
        if not wanted.min <= value <= wanted.max:
            raise ValueError(
                f"field {name!r} has the value {value}, which does not fit {wanted.dtype}: turn on jax_enable_x64, or change the "
                "field in transform="
            )


# Losses


def segment_losses(losses: Any, segment: Any, weights: Any = None, *, most: int, first_segment: int = 0) -> jax.Array:
    """The mean loss of every document of packed samples, for a :class:`penstock.LossLog` with ``per="document"``.

    ``losses`` has a loss for every token, ``segment`` the number of its document as packs give it, ``weights`` 0 where a token
    does not count. The result is f32[samples, most], filled up with ``ABSENT``, which the log leaves out; ``most`` is the largest
    number of documents in a sample. With fewer than there are, documents would be left out: the log is then refused when it is
    read. Can be compiled, with ``most`` and ``first_segment`` static.

    >>> import numpy as np
    >>> from penstock.deliver.jax import segment_losses
    >>> segment_losses(np.array([[1.0, 3.0, 5.0, 9.0]]), np.array([[0, 0, 1, -1]]), most=2)
    Array([[2., 5.]], dtype=float32)
    """
    values, number = jnp.asarray(losses, jnp.float32), jnp.asarray(segment, jnp.int32) - first_segment
    if values.shape != number.shape or values.ndim != 2:
        raise ValueError(f"expected losses and segments of one shape [samples, tokens], got {values.shape} and {number.shape}")
    counts = jnp.ones_like(values) if weights is None else jnp.asarray(weights, jnp.float32)
    counts = jnp.where((number >= 0) & (number < most), counts, 0)
    place = jnp.clip(number, 0, most - 1)
    row = jnp.arange(values.shape[0])[:, None]
    zeros = jnp.zeros((values.shape[0], most), jnp.float32)
    sums = zeros.at[row, place].add(jnp.where(counts != 0, values * counts, 0))
    sizes = zeros.at[row, place].add(counts)
    is_there = jnp.arange(most) < number.max(axis=1, keepdims=True) + 1
    bits = jax.lax.bitcast_convert_type(sums / jnp.where(sizes > 0, sizes, 1), jnp.int32)
    bits = jnp.where(is_there, jnp.where(sizes > 0, bits, -1), -2)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def own_losses(losses: jax.Array) -> npt.NDArray[np.float32]:
    """The rows of a global array that this process has, in the order of its samples: what its :class:`penstock.LossLog` is
    given.

    >>> import jax.numpy as jnp
    >>> from penstock.deliver.jax import own_losses
    >>> own_losses(jnp.array([2.0, 5.0]))
    array([2., 5.], dtype=float32)
    """
    shards = {(shard.index[0].start or 0): shard.data for shard in losses.addressable_shards}
    if any(data.shape[1:] != losses.shape[1:] for data in shards.values()):
        raise ValueError("expected losses that are divided among devices by samples only: replicate their other axes")
    return np.concatenate([np.asarray(shards[start], np.float32) for start in sorted(shards)])
