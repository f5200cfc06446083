"""Directories that ``save_to_disk`` of Hugging Face ``datasets`` wrote, read without that package.

::

    data set  dataset_info.json | state.json = {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...], "_split": ...,
              "_indices_data_files": [{"filename": "indices.arrow"}], ...} | Arrow streams
    splits    dataset_dict.json = {"splits": ["train", ...]} | a data set in a directory for each of them

Records are those of the Arrow files in the order of the state. Old versions saved a selection as all of the data, and the numbers
of its records in a file of indices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.argument import IntArray
from penstock.errors import CorruptError, EmptySourceError, FormatError, MissingError, UnsafePathError, UnsupportedVersionError
from penstock.formats.arrow import open_arrow
from penstock.formats.arrow_file import Fields, is_stream, mapped_bytes, read_batches, translated
from penstock.formats.files import File, LocalFile, Prefix, RemoteFile, read_json
from penstock.formats.publish import copy_files
from penstock.process import need
from penstock.records import Source
from penstock.remote.url import UrlPath
from penstock.remote.window import RemoteOptions
from penstock.system import is_file

__all__ = ["open_saved"]

STATE, SPLITS = "state.json", "dataset_dict.json"
MAX_BYTES = 64 << 20


def open_saved(
    what: str | Path | Prefix,
    *,
    split: str | None = None,
    fields: Fields | None = None,
    remote: RemoteOptions | None = None,
    **options: Any,
) -> Source:
    """A directory that ``Dataset.save_to_disk`` or ``DatasetDict.save_to_disk`` wrote; of the latter, one ``split``.

    Features are taken as they are stored: an image is the fields ``image.bytes`` and ``image.path``. Formats do not apply.
    ``fields`` and other options are those of Arrow files. Of one at a URL, the files of the records are copied to the cache.
    """
    directory = _Directory(Path(what), None, None) if not isinstance(what, Prefix) else _Directory(what.path, what.files(), remote)
    if directory.has(STATE):
        return _open_state(directory, split, fields, options)
    splits = _content(directory, SPLITS).get("splits")
    if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
        raise FormatError(f"{directory.path / SPLITS}: expected the names of splits, found {ascii(splits)[:100]}")
    if split is None:
        raise ValueError(f"{directory.path}: there are the splits {ascii(splits)[:500]}: choose one with split=")
    if split not in splits:
        raise KeyError(f"{directory.path}: there is no split {split!r}; there are {ascii(splits)[:500]}")
    return _open_state(directory.inner(_plain(directory, SPLITS, split)), None, fields, options)


@dataclass(frozen=True)
class _Directory:
    """Where a data set is: on disk, or at a URL, with the objects there by their names."""

    path: Path | UrlPath
    objects: Mapping[str, RemoteFile] | None
    remote: RemoteOptions | None

    def has(self, name: str) -> bool:
        return is_file(self.path / name) if isinstance(self.path, Path) else name in (self.objects or {})

    def file(self, name: str) -> File:
        """MissingError if there is no such file."""
        if not self.has(name):
            raise MissingError(f"{self.path / name}: there is no such file")
        return LocalFile(self.path / name) if isinstance(self.path, Path) else (self.objects or {})[name]

    def inner(self, name: str) -> "_Directory":
        """The directory of a split."""
        objects = (
            None
            if self.objects is None
            else {one.removeprefix(f"{name}/"): file for one, file in self.objects.items() if one.startswith(f"{name}/")}
        )
        return _Directory(self.path / name, objects, self.remote)

    def on_disk(self, names: Sequence[str]) -> list[str]:
        """The files of these names, copied to this machine if they are at a URL."""
        if isinstance(self.path, Path):
            return [str(self.path / name) for name in names]
        found = [file for file in map(self.file, names) if isinstance(file, RemoteFile)]
        return [str(path) for path in copy_files("a saved data set", found, self.remote or RemoteOptions())]


def _open_state(directory: _Directory, split: str | None, fields: Fields | None, options: dict[str, Any]) -> Source:
    state = _content(directory, STATE)
    if split is not None and state.get("_split") != split:
        raise ValueError(f"{directory.path}: expected the split {split!r}, found a data set of {ascii(state.get('_split'))[:100]}")
    files = _files(directory, state.get("_data_files"), "_data_files")
    if not files:
        raise EmptySourceError(f"{directory.path / STATE}: expected at least one file, found none: a data set without records")
    indices = {key: _files(directory, state[key], key) for key in state if key.startswith("_indices") and state[key]}
    if len(indices) > 1:
        raise FormatError(f"{directory.path / STATE}: expected indices under one name, found {ascii(list(indices))[:200]}")
    chosen = [name for names in indices.values() for name in names]
    paths = directory.on_disk([*files, *chosen])
    source = open_arrow(paths[: len(files)], fields=fields, **options)
    if not indices:
        return source
    try:
        return source.select(np.concatenate([_indices(path, len(source)) for path in paths[len(files) :]]))
    except BaseException:
        source.close()
        raise


def _content(directory: _Directory, name: str) -> dict[str, Any]:
    return read_json(directory.file(name), MAX_BYTES)[1]


def _files(directory: _Directory, listed: object, key: str) -> list[str]:
    """The names of files that a state has."""
    where = directory.path / STATE
    if not isinstance(listed, list) or not all(isinstance(one, dict) and isinstance(one.get("filename"), str) for one in listed):
        raise FormatError(f"{where}: expected files under {key!r}, found {ascii(listed)[:100]}")
    more = next((set(one) - {"filename"} for one in listed if len(one) > 1), None)
    if more:
        raise UnsupportedVersionError(
            f"{where}: expected whole files under {key!r}, found one with {ascii(sorted(more))[:100]}, which an old version wrote: "
            "load it with datasets and save it again"
        )
    return [_plain(directory, STATE, one["filename"]) for one in listed]


def _plain(directory: _Directory, file: str, name: str) -> str:
    if not name or name in (".", "..") or any(letter in name for letter in "/\\\0"):
        raise UnsafePathError(f"{directory.path / file}: expected a name in this directory, found {ascii(name)[:100]}")
    return name


def _indices(path: str, length: int) -> IntArray:
    """The numbers of records in a file of indices, of ``length`` records."""
    pa = need("pyarrow", "arrow")
    parts = [np.empty(0, np.int64)]
    with translated(path), mapped_bytes(path) as whole:
        for batch in read_batches(is_stream(path), whole):
            if batch.num_columns != 1 or not pa.types.is_integer(batch.column(0).type) or batch.column(0).null_count:
                raise FormatError(f"{path}: expected one column of whole numbers, found {ascii(str(batch.schema))[:200]}")
            numbers = batch.column(0).to_numpy()
            if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < length:
                raise CorruptError(
                    f"{path}: expected numbers of {length} records, found {int(numbers.min())} to {int(numbers.max())}"
                )
            parts.append(numbers.astype(np.int64))
    return np.concatenate(parts)
