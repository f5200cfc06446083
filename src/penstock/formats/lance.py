"""Lance data sets, read by pylance: columns as fields, in the version that was opened.

Records are taken by their numbers. Fields are those of Arrow: members of structs are ``a.b``, nested lists JSON texts. Of a data
set at a URL, the files of that version are copied to the cache: first its manifest, which names them.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.argument import IntArray, whole_number
from penstock.batch import Batch, Outputs, Ragged, scatter
from penstock.errors import CorruptError, MissingError, ReadError
from penstock.fingerprint import fingerprint_of
from penstock.formats.arrow import open_table
from penstock.formats.arrow_file import Fields, choose, may_be_null, plain_fields, with_nullable
from penstock.formats.files import Prefix, one_line
from penstock.formats.publish import copy_directory
from penstock.formats.rows_in_files import default_threads
from penstock.process import need_unforked
from penstock.records import Blocks, Recipe, Source
from penstock.remote.window import RemoteOptions
from penstock.schema import Field

__all__ = ["LanceSource", "open_lance"]


def open_lance(
    what: str | os.PathLike[str] | Prefix,
    *,
    fields: Fields | None = None,
    version: int | None = None,
    threads: int | None = None,
    remote: RemoteOptions | None = None,
) -> "LanceSource":
    """A directory with a Lance data set, in its newest version unless ``version`` says another one. ``fields`` are the wanted
    columns, or a dict of new names and columns. Of one at a URL, the files of that version are copied to the cache.
    """
    wanted = None if version is None else whole_number("version", version, least=1)
    if isinstance(what, Prefix):
        what, wanted = _copied(what, wanted, remote or RemoteOptions())
    return LanceSource(os.path.abspath(what), plain_fields(fields), wanted, default_threads(threads))


def _copied(prefix: Prefix, version: int | None, remote: RemoteOptions) -> tuple[Path, int]:
    """The directory of copies of the files of a version, the newest unless given; and its number."""
    there = prefix.files()
    manifests = {number: name for name in there if (number := _version_of(name)) is not None}
    if not manifests or (version is not None and version not in manifests):
        wanted = "a version of the data set" if version is None else f"version {version}"
        raise MissingError(f"{prefix.path}/: Lance: expected {wanted} under _versions/, found {ascii(sorted(manifests))[:200]}")
    number = max(manifests) if version is None else version
    needed = [manifests[number]]
    directory = copy_directory("Lance", prefix.path.name, {name: there[name] for name in needed}, remote)
    with _translated(str(prefix.path)):
        for fragment in _lance().dataset(str(directory), version=number).get_fragments():
            needed += [f"data/{file.path}" for file in fragment.data_files()]
            needed += [] if (deleted := fragment.deletion_file()) is None else [deleted]
    missing = next((name for name in needed if name not in there), None)
    if missing is not None:
        raise CorruptError(f"{prefix.path}/: Lance: version {number} has a file {ascii(missing)[:200]}, which is not there")
    return copy_directory("Lance", prefix.path.name, {name: there[name] for name in needed}, remote), number


_MANIFEST = re.compile(r"_versions/([0-9]{1,20})\.manifest")


def _version_of(name: str) -> int | None:
    """The number of a version whose manifest has that name: 20 digits of the number below 2^64, or the number itself."""
    match = _MANIFEST.fullmatch(name)
    if match is None:
        return None
    return (1 << 64) - 1 - int(match[1]) if len(match[1]) == 20 else int(match[1])


class LanceSource(Source):
    """The records of one version of a Lance data set."""

    def __init__(self, path: str, fields: Fields | None, version: int | None, threads: int) -> None:
        self._path, self._fields, self._threads, self._closed = path, fields, threads, False
        lance = _lance()
        with _translated(path):
            dataset = lance.dataset(path, version=version)
            self._version, schema = int(dataset.version), dataset.schema
            counts = [fragment.count_rows() for fragment in dataset.get_fragments()]
        self._dataset: tuple[int, Any] = os.getpid(), dataset
        leaves = choose(schema, fields, path)
        leaves = with_nullable(leaves, [name for name, leaf in leaves.items() if may_be_null(schema, leaf)])
        self._columns = {name: leaf.path[0] for name, leaf in leaves.items()}
        self._schema = {name: leaf.field for name, leaf in leaves.items()}
        self._old = {name: ".".join(leaf.path) for name, leaf in leaves.items()}
        self._blocks = Blocks.of_counts(counts)

    def __len__(self) -> int:
        return self._blocks.length

    @property
    def version(self) -> int:
        return self._version

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def blocks(self) -> Blocks:
        """The fragments."""
        return self._blocks

    @property
    def fingerprint(self) -> str:
        """Of the version, the fields, the number of records, and the first, the middle and the last of them."""
        length = len(self)
        ids = np.unique(np.array([0, length // 2, length - 1], np.int64)) if length else np.empty(0, np.int64)
        rows = self._read(ids, list(self._schema), {})
        parts = [(name, repr(field), _digest(rows[name])) for name, field in self._schema.items()]
        return fingerprint_of("lance", self._version, length, parts)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if self._closed:
            raise ValueError("the source is closed")
        if not fields or ids.size == 0:
            return {name: scatter(name, self._schema[name], [], 0, out) for name in fields}
        wanted, back = np.unique(ids, return_inverse=True)
        dataset = self._opened()
        with _translated(self._path):
            table = dataset.take(wanted.tolist(), columns=list(dict.fromkeys(self._columns[name] for name in fields)))
        if len(table) != wanted.size:
            raise CorruptError(f"{self._path}: expected {wanted.size} records, found {len(table)}")
        source = open_table(table, fields={name: self._old[name] for name in fields}, threads=self._threads)
        return source.read(back.reshape(-1).astype(np.int64), fields, {name: out[name] for name in fields if name in out})

    def _opened(self) -> Any:
        if self._dataset[0] != os.getpid():
            self._dataset = os.getpid(), _lance().dataset(self._path, version=self._version)
        return self._dataset[1]

    def close(self) -> None:
        self._closed, self._dataset = True, (0, None)

    def _recipe(self) -> Recipe:
        return (LanceSource, (self._path, self._fields, self._version, self._threads))


def _lance() -> Any:
    return need_unforked("lance", "lance", "Lance", "whose threads are missing there")


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Errors of Lance as those of penstock, with the path."""
    try:
        yield
    except ReadError:
        raise
    except FileNotFoundError as error:
        raise MissingError(f"{path}: {one_line(error, 300)}") from error
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise CorruptError(f"{path}/: Lance: {one_line(error, 300)}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, which is no Exception
            raise
        raise CorruptError(f"{path}/: Lance: {one_line(error, 300)}") from error


def _digest(column: Any) -> str:
    parts = [column.values, column.offsets] if isinstance(column, Ragged) else [np.ma.filled(column, 0)]
    digest = hashlib.sha256(np.ma.getmaskarray(column).tobytes() if not isinstance(column, Ragged) else b"")
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
