"""The program that calls the HDF5 library: it says what is in files, and reads what cannot be read without it.

The library is not made for hostile files: some make it crash, loop without end, or ask for all memory. So it runs in a process of
its own, which has a deadline and a limit of memory for every request. This file imports nothing of penstock, to start quickly.

A message, in either direction, is the size of a JSON text (4 bytes) and of further bytes (8 bytes), then both. Requests::

    {"do": "inspect", "path", "fields", ...}    what the data sets are; further bytes of the answer: where their chunks are
    {"do": "read", "path", "data_set", ...}     rows of a data set, whose numbers are the further bytes
    either with "deadline_s", "memory_bytes" (more than now), "plugins"

An answer is {"error", "words"} if something is wrong.
"""

import json
import math
import os
import resource
import select
import signal
import struct
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = []

MAX_FILES = 64
"""Files that are held open."""

MAX_LINKS = 16
LEAST_CACHE_BYTES, MOST_CACHE_BYTES = 1 << 20, 1 << 24
IDLE_S = 60
HEADER = struct.Struct("<IQ")
SHUFFLE, DEFLATE = 2, 1

h5py: Any = None


class Refused(Exception):  # noqa: N818
    """What is wrong, with the name of the error that the user shall see."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


def main() -> None:
    """Answer until the other side is gone, or asks nothing for a while."""
    global h5py
    import h5py

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    files = OpenFiles()
    while select.select([0], [], [], IDLE_S)[0] and (head := receive(HEADER.size)):
        size, more = HEADER.unpack(head)
        request, blob = json.loads(receive(size)), receive(more)
        begin(request)
        answer, data = respond(files, request, blob)
        signal.setitimer(signal.ITIMER_REAL, 0)
        text = json.dumps(answer).encode()
        send(HEADER.pack(len(text), len(data)) + text)
        send(data)


def receive(size: int) -> bytes:
    """``size`` bytes; fewer at the end."""
    data = bytearray()
    while len(data) < size and (part := os.read(0, min(1 << 20, size - len(data)))):
        data += part
    return bytes(data)


def send(data: Any) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(1, view) :]


def begin(request: dict[str, Any]) -> None:
    """The deadline ends this process, wherever it is; beyond the limit, nothing more is allocated."""
    signal.setitimer(signal.ITIMER_REAL, request["deadline_s"])
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = now + request["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    if request["plugins"]:
        import hdf5plugin  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401


def respond(files: "OpenFiles", request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        if request["do"] == "inspect":
            files.forget_all(os.stat(request["path"]))
            return inspect(request["path"], request["fields"])
        return files.read(request, np.frombuffer(blob, np.int64))
    except Refused as error:
        return {"error": error.kind, "words": str(error)}, b""
    except MemoryError:
        return {
            "error": "BatchTooLargeError",
            "words": "it needs more memory than a block may have: open it with a larger max_block_bytes",
        }, b""
    except Exception as error:  # broken files make h5py raise almost anything
        return {"error": error_kind(error), "words": f"{type(error).__name__}: {error}"}, b""


def error_kind(error: Exception) -> str:
    """ReadError for an error of the system, which HDF5 may only mention; CorruptError for one of the content."""
    return "ReadError" if getattr(error, "errno", None) or "errno = " in str(error) else "CorruptError"


def open_file(path: str, **options: Any) -> Any:
    try:
        return h5py.File(path, "r", **options)
    except OSError as error:
        kinds = {"truncated file": "TruncatedError", "file signature not found": "FormatError"}
        kind = next((kind for words, kind in kinds.items() if words in str(error)), error_kind(error))
        raise Refused(kind, f"expected an HDF5 file that can be read, found: {error}") from error


# What is in a file


def inspect(path: str, fields: Any) -> tuple[dict[str, Any], bytes]:
    """The chosen data sets. The places and stored sizes of their chunks follow, of one after the other."""
    with open_file(path) as file:
        parts = {name: describe(file, inner) for name, inner in choose(file, fields).items()}
    blob = b"".join(part.pop("chunks").tobytes() for part in parts.values())
    return {"parts": parts}, blob


def choose(file: Any, fields: Any) -> dict[str, str]:
    """Names of fields and the data sets they stand for."""
    if fields is None:
        every = data_sets(file)
        names = {name_of(inner): inner for inner in every}
        if len(names) < len(every):
            raise Refused("SchemaMismatchError", f"two data sets would have one name among {every}; pass fields={{name: data set}}")
    elif isinstance(fields, dict):
        names = {name: resolve(file, inner) for name, inner in fields.items()}
    else:
        names = {name_of(one): resolve(file, one if one in file else one.replace(".", "/")) for one in fields}
    if not names:
        raise Refused("SchemaMismatchError", "expected data sets with a row per record, found none")
    return names


def name_of(inner: str) -> str:
    """The name of the field that a data set becomes."""
    return inner.strip("/").replace("/", ".")


def data_sets(file: Any) -> list[str]:
    """The paths of all data sets with rows; what has several names comes once."""
    found, seen, todo = [], set(), [("", file["/"])]
    while todo:
        prefix, one = todo.pop()
        address = h5py.h5o.get_info(one.id).addr
        if address in seen:
            continue
        seen.add(address)
        if isinstance(one, h5py.Group):
            inside = [name for name in sorted(one, reverse=True) if not is_soft(f"{prefix}/{name}", one, name)]
            todo += [(f"{prefix}/{name}", one[name]) for name in inside]
        elif isinstance(one, h5py.Dataset) and one.shape:
            found.append(prefix)
    return sorted(found)


def is_soft(where: str, group: Any, name: str) -> bool:
    """Whether a link leads to another name in the file. Links to other files are refused."""
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink) or not isinstance(link, h5py.HardLink | h5py.SoftLink):
        raise Refused(
            "UnsafePathError",
            f"{where}: the link leads to another file ({link!r}); open that one, or choose others with fields=[...]",
        )
    return isinstance(link, h5py.SoftLink)


def resolve(file: Any, wanted: str) -> str:
    """The path of a data set without soft links."""
    todo, done, links = steps(wanted), "", 0
    while todo:
        group, name = file[done or "/"], todo.pop()
        if not isinstance(group, h5py.Group) or group.get(name, getlink=True) is None:
            raise Refused("SchemaMismatchError", f"expected a data set {wanted!r}, found only {data_sets(file)}")
        if is_soft(f"{done}/{name}", group, name):
            target, links = group.get(name, getlink=True).path, links + 1
            if links > MAX_LINKS:
                raise Refused("UnsafePathError", f"data set {wanted!r}: the links lead in circles")
            done = "" if target.startswith("/") else done
            todo += steps(target)
        else:
            done = f"{done}/{name}"
    if not isinstance(file[done or "/"], h5py.Dataset):
        raise Refused("SchemaMismatchError", f"expected a data set {wanted!r}, found a group")
    return done


def steps(inner: str) -> list[str]:
    """The parts of a path, the last one first."""
    return [step for step in inner.split("/") if step not in ("", ".")][::-1]


def describe(file: Any, inner: str) -> dict[str, Any]:
    """A data set: the type and shape of a row, how many there are, and how they are stored."""
    data, where = file[inner], f"data set {inner!r}"
    if data.is_virtual or data.external:
        raise Refused("UnsafePathError", f"{where}: its data is in other files; open those instead")
    kind, dtype = kind_of(where, data)
    recipe = data.id.get_create_plist()
    filters = [recipe.get_filter(i)[0] for i in range(recipe.get_nfilters())]
    unknown = [code for code in filters if not h5py.h5z.filter_avail(code)]
    if unknown:
        raise Refused("UnsupportedVersionError", f"{where}: HDF5 has no filter {unknown}; import hdf5plugin or compress with gzip")
    rows, chunk_bytes = (0, 0) if data.chunks is None else (data.chunks[0], math.prod(data.chunks) * data.dtype.itemsize)
    chunks, layout = np.empty((0, 2), np.int64), "other"
    by_offset = kind == "fixed" and math.prod(data.shape[1:]) > 0 and file.userblock_size == 0
    if by_offset and filters in ([], [DEFLATE], [SHUFFLE, DEFLATE]):
        found = chunk_table(data)
        if found is not None and h5py.h5t.py_create(data.dtype, logical=True) == data.id.get_type():
            chunks, layout = found, {0: "plain", 1: "gzip", 2: "shuffled gzip"}[len(filters)]
    sizes = {"rows": int(rows), "chunk_bytes": int(chunk_bytes), "stored_bytes": int(data.id.get_storage_size())}
    row = {"kind": kind, "dtype": dtype.str, "shape": [int(one) for one in data.shape[1:]], "length": int(data.shape[0])}
    stored = {"filtered": bool(filters), "layout": layout, "num_chunks": len(chunks), "chunks": chunks}
    return {"data_set": inner, **row, **sizes, **stored}


def kind_of(where: str, data: Any) -> tuple[str, np.dtype[Any]]:
    """What becomes of a row, and the type of its elements."""
    if not data.shape:
        raise Refused("SchemaMismatchError", f"{where}: expected a row per record, found a single value")
    try:
        text, items = h5py.check_string_dtype(data.dtype), h5py.check_vlen_dtype(data.dtype)
        if (text or items) and data.ndim > 1:
            raise TypeError(f"a record has {data.ndim - 1} dimensions of {data.dtype}")
        if text:
            return ("text" if text.length is None and text.encoding == "utf-8" else "bytes"), np.dtype(np.uint8)
        if items is not None and not items.isnative:
            raise TypeError(f"lists of {items}, which h5py reads wrongly")
        dtype = data.dtype if items is None else items
        if dtype.kind not in "biufc":
            raise TypeError(f"expected numbers or texts, found {dtype}")
    except TypeError as error:
        raise Refused("UnsupportedTypeError", f"{where}: {error}; choose others with fields=[...]") from error
    return ("fixed" if items is None else "ragged"), dtype


def chunk_table(data: Any) -> np.ndarray[Any, Any] | None:
    """Where the chunks of a data set begin, or the whole, and their bytes in the file; None if rows cannot be read from there."""
    if data.shape[0] == 0:
        return np.empty((0, 2), np.int64)
    if data.chunks is None:
        offset = data.id.get_offset()
        return None if offset is None else np.array([[offset, data.nbytes]], np.int64)
    rows, expected = data.chunks[0], -(-data.shape[0] // data.chunks[0])
    if data.chunks[1:] != data.shape[1:] or data.id.get_num_chunks() != expected or not hasattr(data.id, "chunk_iter"):
        return None  # rows are in pieces, or some were never written, or the HDF5 library is too old to tell
    table, masks = np.full((expected, 2), -1, np.int64), []

    def note(chunk: Any) -> None:
        table[chunk.chunk_offset[0] // rows] = chunk.byte_offset, chunk.size
        masks.append(chunk.filter_mask)

    data.id.chunk_iter(note)
    return None if np.any(table < 0) or any(masks) else table


# Reading


class OpenFiles:
    """The files used last."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, tuple[Any, tuple[int, ...], dict[str, DataSet]]] = OrderedDict()

    def read(self, request: dict[str, Any], ids: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bytes]:
        """Rows, one after the other; of different lengths, their lengths before them."""
        try:
            return self._data_set(request).read(ids)
        except BaseException:
            self.forget(request["path"])  # it may be in any state
            raise

    def _data_set(self, request: dict[str, Any]) -> "DataSet":
        path, inner, info = request["path"], request["data_set"], os.stat(request["path"])
        if info.st_size != request["size"]:
            raise Refused(
                "SourceChangedError", f"expected {request['size']} bytes as at opening, found {info.st_size}; open it again"
            )
        version = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
        if path in self._open and self._open[path][1] != version:
            self.forget(path)
        if path not in self._open:
            cache_bytes = min(max(request["chunk_bytes"], LEAST_CACHE_BYTES), MOST_CACHE_BYTES)
            # Without a lock: the file may stay open for longer than its source, and another program may want to write it.
            self._open[path] = (open_file(path, rdcc_nbytes=cache_bytes, locking=False), version, {})
            while len(self._open) > MAX_FILES:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(path)
        file, _, known = self._open[path]
        if inner not in known:
            known[inner] = DataSet(file[inner])
        return known[inner]

    def forget_all(self, info: os.stat_result) -> None:
        """Close a file under all its names: the library would go on with what it knows of it."""
        for path in [path for path, one in self._open.items() if one[1][:2] == (info.st_dev, info.st_ino)]:
            self.forget(path)

    def forget(self, path: str) -> None:
        if path in self._open:
            self._open.pop(path)[0].close()


class DataSet:
    """A data set of an open file, with what every read of it needs."""

    def __init__(self, data: Any) -> None:
        self._kind, self._element = kind_of("the data set", data)
        self._dtype = self._element.newbyteorder("=") if self._kind == "fixed" else data.dtype
        self._id, self._space, self._row = data.id, data.id.get_space(), data.shape[1:]
        self._type = h5py.h5t.py_create(self._dtype)
        self._chunk_rows = 1 if data.chunks is None else data.chunks[0]

    def read(self, ids: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bytes]:
        """The rows as bytes."""
        out = np.empty((ids.size, *self._row), self._dtype)
        self._fill(ids, out)
        if self._kind == "fixed":
            return {}, out.tobytes()
        items = [one.tobytes() if self._kind == "ragged" else one for one in out.tolist()]
        lengths = np.array([len(one) for one in items], np.int64)
        return {}, lengths.tobytes() + b"".join(items)

    def _fill(self, ids: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """Rows in the order of ``ids``. Every chunk is read once."""
        if ids.size and ids[-1] - ids[0] == ids.size - 1 and (np.diff(ids) == 1).all():
            return self._read_run(int(ids[0]), out)
        order = np.argsort(ids, kind="stable")
        if out.ndim == 1:
            rows = np.empty(out.shape, out.dtype)
            self._space.select_elements(ids[order].astype(np.uint64).reshape(-1, 1))
            self._read(rows)
            out[order] = rows
            return None
        return self._read_chunks(ids[order], order, out)

    def _read_chunks(self, ids: np.ndarray[Any, Any], places: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None:
        """What is wanted of a chunk, and all between it, at once."""
        edges = np.flatnonzero(np.diff(ids // self._chunk_rows, prepend=-1, append=-1)).tolist()
        for low, high in pairwise(edges):
            rows = np.empty((int(ids[high - 1] - ids[low]) + 1, *out.shape[1:]), out.dtype)
            self._read_run(int(ids[low]), rows)
            out[places[low:high]] = rows[ids[low:high] - ids[low]]

    def _read_run(self, start: int, out: np.ndarray[Any, Any]) -> None:
        self._space.select_hyperslab((start, *[0] * (out.ndim - 1)), out.shape)
        self._read(out)

    def _read(self, out: np.ndarray[Any, Any]) -> None:
        if out.size:
            self._id.read(h5py.h5s.create_simple(out.shape), self._space, out, self._type)


if __name__ == "__main__":
    main()
