"""What lies in an HDF5 file: its data sets, their types, and where their rows are. Nothing leads from it to other files."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import (
    CorruptError,
    FormatError,
    PenstockError,
    ReadError,
    SchemaMismatchError,
    SizeOverflowError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.interfaces import IntArray
from penstock.schema import Field
from penstock.source.optional import need

__all__ = ["LEAST_CACHE_BYTES", "Fields", "Part", "inspect", "naming", "need_same", "open_file"]

MAX_LINKS = 16
LEAST_CACHE_BYTES = 1 << 20

Fields = Sequence[str] | Mapping[str, str]
"""Names of fields, or new names and the data sets they stand for."""


@dataclass(frozen=True)
class Part:
    """A data set of one file."""

    path: str
    field: Field
    dtype: np.dtype[Any]
    length: int
    rows: int  # of a chunk; 0 if there are none
    chunk_bytes: int
    filtered: bool
    places: IntArray | None  # where in the file every chunk lies, or the whole; None if it cannot be read from there

    @property
    def counts(self) -> IntArray:
        """Rows at each place."""
        edges = np.append(np.arange(0, self.length, self.rows or self.length or 1), self.length)
        return np.diff(edges)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors of h5py say which file they are about."""
    try:
        yield
    except PenstockError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise _kind_of(error)(f"{path}: {_line(error)}") from error


def open_file(path: str, cache_bytes: int = LEAST_CACHE_BYTES) -> Any:
    """A file of h5py, which keeps so much of the decoded chunks of every data set."""
    try:
        return need("h5py", "hdf5").File(path, "r", rdcc_nbytes=cache_bytes)
    except OSError as error:
        kinds = {"truncated file": TruncatedError, "file signature not found": FormatError}
        kind = next((kind for words, kind in kinds.items() if words in str(error)), _kind_of(error))
        raise kind(f"{path}: expected an HDF5 file that can be read, found: {_line(error)}") from error


def _kind_of(error: Exception) -> type[ReadError]:
    """ReadError for an error of the system, which HDF5 may only mention; CorruptError for one of the content."""
    return ReadError if getattr(error, "errno", None) or "errno = " in str(error) else CorruptError


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


def inspect(path: str, size: int, fields: Fields | None) -> dict[str, Part]:
    """The chosen data sets of a file, checked."""
    with naming(path), open_file(path) as file:
        names = _choose(path, file, fields)
        table = {name: _part(path, size, file, inner) for name, inner in names.items()}
    lengths = {name: part.length for name, part in table.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaMismatchError(f"{path}: expected data sets of one length, found {lengths}; choose some with fields=[...]")
    return table


def need_same(paths: Sequence[str], tables: Sequence[Mapping[str, Part]]) -> None:
    """SchemaMismatchError unless all files have the same fields."""
    first = {name: part.field for name, part in tables[0].items()}
    for path, table in zip(paths, tables, strict=True):
        found = {name: part.field for name, part in table.items()}
        if found != first:
            names = [name for name in {**first, **found} if first.get(name) != found.get(name)]
            expected, other = {name: first.get(name) for name in names}, {name: found.get(name) for name in names}
            raise SchemaMismatchError(f"{path}: expected {expected} as in {paths[0]}, found {other}")


def _choose(path: str, file: Any, fields: Fields | None) -> dict[str, str]:
    """Names of fields and the data sets they stand for."""
    if fields is None:
        every = _data_sets(path, file)
        names = {_name(inner): inner for inner in every}
        if len(names) < len(every):
            raise SchemaMismatchError(f"{path}: two data sets would have one name among {every}; give fields={{name: data set}}")
    elif isinstance(fields, Mapping):
        names = {name: _resolve(path, file, inner) for name, inner in fields.items()}
    else:
        names = {_name(one): _resolve(path, file, one if one in file else one.replace(".", "/")) for one in fields}
    if not names:
        raise SchemaMismatchError(f"{path}: expected data sets with a row per record, found none")
    return names


def _name(inner: str) -> str:
    return inner.strip("/").replace("/", ".")


def _data_sets(path: str, file: Any) -> list[str]:
    """All data sets with a dimension. Soft links are only other names for them, and left out; so are further hard links."""
    h5py = need("h5py", "hdf5")
    found, seen, todo = [], set(), [("", file)]
    while todo:
        prefix, one = todo.pop()
        address = h5py.h5o.get_info(one.id).addr
        if address in seen:
            continue
        seen.add(address)
        if isinstance(one, h5py.Group):
            inside = [name for name in sorted(one, reverse=True) if not _is_soft(f"{path}: {prefix}/{name}", one, name)]
            todo += [(f"{prefix}/{name}", one[name]) for name in inside]
        elif isinstance(one, h5py.Dataset) and one.shape:
            found.append(prefix)
    return sorted(found)


def _is_soft(where: str, group: Any, name: str) -> bool:
    """Whether a link leads to another name in the file. Links to other files are refused."""
    h5py = need("h5py", "hdf5")
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink) or not isinstance(link, h5py.HardLink | h5py.SoftLink):
        raise UnsafePathError(
            f"{where}: the link leads to another file ({link!r}); open that one, or choose others with fields=[...]"
        )
    return isinstance(link, h5py.SoftLink)


def _resolve(path: str, file: Any, wanted: str) -> str:
    """The path of a data set without soft links."""
    h5py = need("h5py", "hdf5")
    todo, done, links = _steps(wanted), "", 0
    while todo:
        group, name = file[done or "/"], todo.pop()
        if not isinstance(group, h5py.Group) or group.get(name, getlink=True) is None:
            raise SchemaMismatchError(f"{path}: expected a data set {wanted!r}, found only {_data_sets(path, file)}")
        if _is_soft(f"{path}: {done}/{name}", group, name):
            target, links = group.get(name, getlink=True).path, links + 1
            if links > MAX_LINKS:
                raise UnsafePathError(f"{path}: data set {wanted!r}: the links lead in circles")
            done = "" if target.startswith("/") else done
            todo += _steps(target)
        else:
            done = f"{done}/{name}"
    if not isinstance(file[done or "/"], h5py.Dataset):
        raise SchemaMismatchError(f"{path}: expected a data set {wanted!r}, found a group")
    return done


def _steps(inner: str) -> list[str]:
    return [step for step in inner.split("/") if step not in ("", ".")][::-1]


def _part(path: str, size: int, file: Any, inner: str) -> Part:
    h5py, data, where = need("h5py", "hdf5"), file[inner], f"{path}: data set {inner!r}"
    if data.is_virtual or data.external:
        raise UnsafePathError(f"{where}: its data lies in other files; open those instead")
    field, recipe = _field(where, data), data.id.get_create_plist()
    filters = [recipe.get_filter(i)[0] for i in range(recipe.get_nfilters())]
    unknown = [code for code in filters if not h5py.h5z.filter_avail(code)]
    if unknown:
        raise UnsupportedVersionError(f"{where}: HDF5 has no filter {unknown}; import hdf5plugin or compress with gzip")
    rows, chunk_bytes = (0, 0) if data.chunks is None else (data.chunks[0], math.prod(data.chunks) * data.dtype.itemsize)
    plain = field.is_fixed and field.stride > 0 and not filters and file.userblock_size == 0
    plain = plain and h5py.h5t.py_create(data.dtype, logical=True) == data.id.get_type()
    part = Part(inner, field, data.dtype, data.shape[0], rows, chunk_bytes, bool(filters), _places(data) if plain else None)
    if part.places is not None and np.any(part.places > size - part.counts * field.stride):
        raise TruncatedError(f"{where}: expected {data.nbytes} bytes in the file, found that it ends before")
    return part


def _places(data: Any) -> IntArray | None:
    """Where the chunks of a data set begin, or the whole, if the rows can be read from there."""
    if data.shape[0] == 0:
        return np.empty(0, np.int64)
    if data.chunks is None:
        offset = data.id.get_offset()
        return None if offset is None else np.array([offset], np.int64)
    rows, expected = data.chunks[0], -(-data.shape[0] // data.chunks[0])
    if data.chunks[1:] != data.shape[1:] or data.id.get_num_chunks() != expected or not hasattr(data.id, "chunk_iter"):
        return None  # rows lie in pieces, or some were never written, or the HDF5 library is too old to tell
    places = np.full(expected, -1, np.int64)

    def note(chunk: Any) -> None:
        places[chunk.chunk_offset[0] // rows] = chunk.byte_offset

    data.id.chunk_iter(note)
    return None if np.any(places < 0) else places


def _field(where: str, data: Any) -> Field:
    h5py = need("h5py", "hdf5")
    if not data.shape:
        raise SchemaMismatchError(f"{where}: expected a row per record, found a single value")
    try:
        text, items = h5py.check_string_dtype(data.dtype), h5py.check_vlen_dtype(data.dtype)
        if (text or items) and data.ndim > 1:
            raise TypeError(f"a record has {data.ndim - 1} dimensions of {data.dtype}")
        if text:
            return Field.text() if text.length is None and text.encoding == "utf-8" else Field.bytes()
        if items is None:
            return Field(data.dtype, data.shape[1:])
        if not items.isnative:
            raise TypeError(f"lists of {items}, which h5py reads wrongly")
        return Field.ragged(items)
    except TypeError as error:
        raise UnsupportedTypeError(f"{where}: {error}; choose others with fields=[...]") from error
    except ValueError as error:
        raise SizeOverflowError(f"{where}: {error}") from error
