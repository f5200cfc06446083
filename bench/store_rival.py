"""lmdb and h5py as a careful user would set them up: all the records of a batch in one transaction, or in one selection."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["INSTALL", "MISSING", "RIVALS", "Rival"]

Ids = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]
Texts = tuple[npt.NDArray[np.uint8], Ids]


class Rival(Protocol):
    """A store of somebody else's with records in it."""

    def read(self, ids: Ids) -> Columns: ...
    def read_variable(self, ids: Ids) -> Texts: ...
    def close(self) -> None: ...


class Lmdb:
    """All fields of a record in one value, found by 8 bytes of id."""

    def __init__(self, path: Path, layout: list[tuple[str, np.dtype[Any], tuple[int, ...]]]) -> None:
        self._layout = layout
        self._env = lmdb.open(str(path), readonly=True, lock=False, readahead=False, max_readers=4)
        self._transaction = self._env.begin(buffers=True)
        self._cursor = self._transaction.cursor()

    @classmethod
    def fixed(cls, path: Path, columns: Columns) -> "Lmdb":
        rows = [data.reshape(len(data), -1).view(np.uint8) for data in columns.values()]
        env = lmdb.open(str(path), map_size=1 << 36, sync=False)
        with env.begin(write=True) as transaction:
            for low in range(0, len(rows[0]), 4096):
                block = np.concatenate([row[low : low + 4096] for row in rows], axis=1)
                for i, record in enumerate(block):
                    transaction.put((low + i).to_bytes(8, "big"), record.data, append=True)
        env.close()
        return cls(path, [(name, data.dtype, data.shape[1:]) for name, data in columns.items()])

    @classmethod
    def variable(cls, path: Path, values: npt.NDArray[np.uint8], offsets: Ids) -> "Lmdb":
        env = lmdb.open(str(path), map_size=1 << 36, sync=False)
        with env.begin(write=True) as transaction:
            for i in range(offsets.size - 1):
                transaction.put(i.to_bytes(8, "big"), values[offsets[i] : offsets[i + 1]].data, append=True)
        env.close()
        return cls(path, [])

    def values(self, ids: Ids) -> list[memoryview]:
        """What is stored for each id, as it lies in the map."""
        keys = ids.astype(">u8").tobytes()
        found = self._cursor.getmulti([keys[at : at + 8] for at in range(0, len(keys), 8)])
        return [value for _, value in found]

    def read(self, ids: Ids) -> Columns:
        table = np.frombuffer(b"".join(self.values(ids)), np.uint8).reshape(ids.size, -1)
        if len(self._layout) == 1:
            name, dtype, shape = self._layout[0]
            return {name: table.view(dtype).reshape(ids.size, *shape)}
        made, at = {}, 0
        for name, dtype, shape in self._layout:
            size = dtype.itemsize * int(np.prod(shape))
            made[name] = np.ascontiguousarray(table[:, at : at + size]).view(dtype).reshape(ids.size, *shape)
            at += size
        return made

    def read_variable(self, ids: Ids) -> Texts:
        values = self.values(ids)
        offsets = np.concatenate([[0], np.cumsum([len(value) for value in values])])
        return np.frombuffer(b"".join(values), np.uint8), offsets

    def close(self) -> None:
        self._transaction.abort()
        self._env.close()


class H5py:
    """A contiguous data set per field. A selection takes rising ids only, so batches are sorted and put back in order."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self._file = h5py.File(path, "r")
        self._sets: dict[str, Any] = {name: self._file[name] for name in names}

    @classmethod
    def fixed(cls, path: Path, columns: Columns) -> "H5py":
        with h5py.File(path, "w") as file:
            for name, data in columns.items():
                file.create_dataset(name, data=data)
        return cls(path, list(columns))

    @classmethod
    def variable(cls, path: Path, values: npt.NDArray[np.uint8], offsets: Ids) -> "H5py":
        with h5py.File(path, "w") as file:
            texts = file.create_dataset("text", (offsets.size - 1,), h5py.vlen_dtype(np.uint8))
            for low in range(0, offsets.size - 1, 4096):
                cuts = offsets[low : low + 4097]
                block = np.empty(cuts.size - 1, object)
                block[:] = np.split(values[cuts[0] : cuts[-1]], cuts[1:-1] - cuts[0])
                texts[low : low + block.size] = block
        return cls(path, ["text"])

    def pick(self, name: str, ids: Ids) -> npt.NDArray[Any]:
        """Records of one data set, in the order of the ids."""
        order = np.argsort(ids)
        found = self._sets[name][ids[order]]
        made = np.empty_like(found)
        made[order] = found
        return made

    def read(self, ids: Ids) -> Columns:
        return {name: self.pick(name, ids) for name in self._sets}

    def read_variable(self, ids: Ids) -> Texts:
        items = self.pick("text", ids)
        return np.concatenate(list(items)), np.concatenate([[0], np.cumsum([item.size for item in items])])

    def close(self) -> None:
        self._file.close()


RIVALS: dict[str, Any] = {}
MISSING: list[str] = []
INSTALL = "pip install lmdb h5py"

try:
    import lmdb

    RIVALS["lmdb, 1 thread"] = Lmdb
except ImportError:
    MISSING.append("lmdb")
try:
    import h5py

    RIVALS["h5py, 1 thread"] = H5py
except ImportError:
    MISSING.append("h5py")
