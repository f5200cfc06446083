"""Ragged: a batch of arrays, texts or byte strings of different lengths, in one buffer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import whole_number
from penstock.index import as_ids, is_single
from penstock.interfaces import IntArray

__all__ = ["Ragged"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Item i is ``values[offsets[i]:offsets[i + 1]]``, decoded as ``kind`` says ("array", "bytes" or "text").

    ``shapes`` has a row per item where items have two dimensions or more; ``present`` is False where an item is missing, and None
    where none is. An empty item is not a missing one.

    >>> import numpy as np
    >>> from penstock import Ragged
    >>> batch = Ragged(np.array([1, 2, 3]), np.array([0, 2, 2, 3]))
    >>> [item.tolist() for item in batch]
    [[1, 2], [], [3]]
    >>> batch.pad(value=-1)
    array([[ 1,  2],
           [-1, -1],
           [ 3, -1]])
    >>> [item.tolist() for item in batch[[2, 0]]]
    [[3], [1, 2]]
    """

    values: npt.NDArray[Any]
    offsets: IntArray
    kind: str = "array"
    shapes: npt.NDArray[np.uint32] | None = None
    present: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> IntArray:
        """Elements of each item."""
        return np.diff(self.offsets)

    def __getitem__(self, index: Any) -> Any:
        """One item: an array, ``bytes``, ``str``, or None if it is missing. A slice, a mask or a list of places: a Ragged."""
        if isinstance(index, slice) and index.step in (None, 1):
            return self._part(*index.indices(len(self))[:2])
        if not is_single(index):
            return self.take(as_ids(index, len(self)))
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}")
        index %= len(self)
        if self.present is not None and not self.present[index]:
            return None
        item = self.values[self.offsets[index] : self.offsets[index + 1]]
        if self.kind == "text":
            return item.tobytes().decode()
        if self.kind == "bytes":
            return item.tobytes()
        return item if self.shapes is None else item.reshape(self.shapes[index])

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def to_list(self) -> list[Any]:
        """All items."""
        return list(self)

    def _part(self, low: int, high: int) -> "Ragged":
        """Items [low, high), without a copy of the values."""
        high = max(low, high)
        offsets = self.offsets[low : high + 1]
        shapes = None if self.shapes is None else self.shapes[low:high]
        present = None if self.present is None else self.present[low:high]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0], self.kind, shapes, present)

    def take(self, ids: IntArray) -> "Ragged":
        """The items at those places, in that order; a place may come several times."""
        lengths = self.lengths[ids]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][ids] - offsets[:-1], lengths)
        shapes = None if self.shapes is None else self.shapes[ids]
        return Ragged(self.values[places], offsets, self.kind, shapes, None if self.present is None else self.present[ids])

    def pad(self, length: int | Sequence[int] | None = None, *, value: Any = 0) -> npt.NDArray[Any]:
        """All items in one array, filled up with ``value`` (missing items wholly) or cut to ``length``: an int, or one for every
        dimension. Without it, as large as the largest item in every dimension.
        """
        ndim = 1 if self.shapes is None else self.shapes.shape[1]
        if length is None:
            shapes = self.lengths[:, None] if self.shapes is None else self.shapes
            length = shapes.max(axis=0, initial=0).tolist()
        size = tuple(whole_number("length", n) for n in ([length] if isinstance(length, int | np.integer) else length))
        if len(size) != ndim:
            raise ValueError(f"length must have {ndim} numbers, one for every dimension of the items, got {length}")
        out = np.full((len(self), *size), value, self.values.dtype)
        if self.shapes is None:
            column = np.arange(size[0])
            inside = column < np.minimum(self.lengths, size[0])[:, None]
            out[inside] = self.values[(self.offsets[:-1, None] + column)[inside]]
        else:
            for row, item in zip(out, self, strict=True):
                if item is not None:
                    part = item[tuple(map(slice, size))]
                    row[tuple(map(slice, part.shape))] = part
        return out

    @classmethod
    def join(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """The items of several, of one kind, one after the other."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([part.values[part.offsets[0] : part.offsets[-1]] for part in parts])
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))]).astype(np.int64)
        shapes = None if parts[0].shapes is None else np.concatenate([part.shapes for part in parts if part.shapes is not None])
        present = None
        if any(part.present is not None for part in parts):
            present = np.concatenate([np.ones(len(part), np.bool_) if part.present is None else part.present for part in parts])
        return cls(values, offsets, parts[0].kind, shapes, present)

    @classmethod
    def from_items(cls, items: Sequence[Any], *, dtype: npt.DTypeLike, kind: str = "array", ndim: int = 1) -> "Ragged":
        """Pack items; None is a missing one."""
        present = np.array([item is not None for item in items], np.bool_)
        if kind == "array":
            arrays = [np.empty((0,) * ndim, dtype) if item is None else np.asarray(item, dtype) for item in items]
            for array in arrays:
                if array.ndim != ndim:
                    raise ValueError(f"items must have {ndim} dimensions, got shape {array.shape}")
            flat = [array.reshape(-1) for array in arrays]
            values = np.concatenate(flat) if flat else np.empty(0, dtype)
            lengths = [array.size for array in arrays]
            shapes = np.array([array.shape for array in arrays], np.uint32).reshape(len(arrays), ndim) if ndim > 1 else None
        else:
            texts = [b"" if item is None else item.encode() if isinstance(item, str) else bytes(item) for item in items]
            values = np.frombuffer(b"".join(texts), np.uint8)
            lengths = [len(text) for text in texts]
            shapes = None
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(values, offsets, kind, shapes, None if present.all() else present)
