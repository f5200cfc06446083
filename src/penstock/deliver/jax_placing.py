"""Placing: the leaves of a batch on the devices that a sharding names, and the refusal of batches that do not fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from penstock.loader import Loader
from penstock.loader.schedule import PhaseSchedule
from penstock.order import Shard
from penstock.ragged import Ragged

__all__ = ["Placing", "Shardings"]

Shardings = Sharding | Mapping[str, Sharding]

SHORT = "the last batch of an epoch is a short one, use tail='drop', 'pad' or 'wrap'"


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
    count = len(sharding.device_set)  # so many rows can be divided in every way in which the devices can
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


class Placing:
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
                    f"sharding, got {shard}: samples would come twice, or not at all"
                )
            # A transform may change the number of rows: then every leaf is looked at when it comes.
            parts = split.parts if self._loader._work.transform is None else split.groups
            for size, remedy in self._sizes(parts if split.groups > 1 else parts * shard.world):
                rows = size if split.groups > 1 else len(shard.run(0, size))
                if rows % parts:
                    raise ValueError(f"a batch of {rows} samples cannot be divided into {parts} equal parts: {remedy}")

    def _sizes(self, multiple: int) -> Iterator[tuple[int, str]]:
        """Samples of the batches to come, and what to do if they cannot be divided."""
        schedule, wanted = self._loader._schedule, f"use a batch_size that is a multiple of {multiple}"
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
