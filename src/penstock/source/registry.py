"""Which source reads what: one table from suffixes and magic bytes to openers, imported when they are used."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from penstock.errors import FormatError, MissingError, SchemaMismatchError, UnsupportedTypeError
from penstock.ragged import Ragged
from penstock.records import Source
from penstock.source.aligned import Aligned
from penstock.source.array import ArraySource, open_array
from penstock.source.concat import Concat
from penstock.source.paths import expand, file_size, has_pattern
from penstock.store.layout import DIRECTORIES, LOCK_NAME, MANIFEST_DIRECTORY
from penstock.store.snapshot import open_store

__all__ = ["KINDS", "Kind", "open_source"]


@dataclass(frozen=True)
class Kind:
    """A format: how its files are recognised, and the function that opens a list of them."""

    name: str
    suffixes: tuple[str, ...]
    opener: str
    head: bytes | None = None
    tail: bytes | None = None

    def open(self, paths: Any, **options: Any) -> Source:
        """Open files of this kind."""
        module, _, function = self.opener.partition(":")
        opener: Callable[..., Source] = getattr(importlib.import_module(f"penstock.source.{module}"), function)
        return opener(paths, **options)


KINDS = (
    Kind("npy", (".npy",), "npy:open_npy", head=b"\x93NUMPY"),
    Kind("hdf5", (".h5", ".hdf5", ".he5"), "hdf5:open_hdf5", head=b"\x89HDF\r\n\x1a\n"),
    Kind("arrow", (".arrow", ".feather"), "arrow:open_arrow", head=b"ARROW1"),
    Kind("parquet", (".parquet",), "parquet:open_parquet", head=b"PAR1"),
    Kind("array_record", (".array_record", ".arrayrecord", ".ar"), "array_record:open_array_record"),
    Kind("rows", (".shard",), "rows:open_rows", head=b"GAMSAE01"),
    Kind("tokens", (".rox",), "tokens:open_tokens", tail=b"ROXXEL02"),
)

REFUSED = {
    ".npz": "an .npz is a zip archive, whose arrays cannot be mapped: save each array as a .npy file, and open them as a dict",
    ".pkl": "a pickle would have to be executed to be read",
    ".pickle": "a pickle would have to be executed to be read",
    ".pt": "a torch file is a pickle, which would have to be executed to be read: save its tensors as .npy files",
}


def open_source(what: Any, **options: Any) -> Source:
    """Anything that can be read as records, as a source.

    A path (the format follows from the suffix, or from the content), a pattern, a directory, a list (one after the other), a dict
    (side by side), arrays, Arrow tables, Hugging Face data sets. Options go to the source that reads it.
    """
    if isinstance(what, Source):
        return _without_options(what, options)
    if isinstance(what, str | os.PathLike):
        return _open_path(os.fspath(what), options)
    if isinstance(what, np.ndarray | Ragged):
        return open_array(what, **options)
    if isinstance(what, Mapping):
        return _open_dict(what, options)
    if isinstance(what, list | tuple):
        return _open_list(what, options)
    return _open_foreign(what, options)


def _without_options(source: Source, options: Mapping[str, Any]) -> Source:
    if options:
        raise TypeError(f"options {sorted(options)} do not apply to a source that is open already")
    return source


def _open_foreign(what: Any, options: Mapping[str, Any]) -> Source:
    """Objects of other libraries, told by the name of their class so that none of them is imported here."""
    for kind in type(what).__mro__:
        package = kind.__module__.partition(".")[0]
        if package == "pyarrow" and kind.__name__ in ("Table", "RecordBatch"):
            return Kind("arrow", (), "arrow:open_table").open(what, **options)
        if package == "datasets" and kind.__name__ == "Dataset":
            return Kind("huggingface", (), "arrow:open_huggingface").open(what, **options)
    raise TypeError(f"expected a path, an array, a list, a dict or a source, got {type(what).__name__}")


# Lists and dicts


def _open_dict(parts: Mapping[str, Any], options: Mapping[str, Any]) -> Source:
    if all(_is_column(value) for value in parts.values()):
        return ArraySource(parts, **options)
    opened: dict[str, Source] = {}
    try:
        for name, value in parts.items():
            opened[name] = ArraySource({name: value}) if _is_column(value) else open_source(value, **options)
        return Aligned(opened)
    except BaseException:
        for source in opened.values():
            source.close()
        raise


def _is_column(value: Any) -> bool:
    """Whether the value of a dict is data rather than the name of some: lists of texts are data unless they look like files."""
    if isinstance(value, list | tuple):
        return not value or not all(isinstance(item, Source) or _is_file_name(item) for item in value)
    return isinstance(value, np.ndarray | Ragged)


def _is_file_name(item: Any) -> bool:
    return isinstance(item, os.PathLike) or (isinstance(item, str) and _kind_of_suffix(item) is not None)


def _open_list(parts: Sequence[Any], options: Mapping[str, Any]) -> Source:
    if not parts:
        raise ValueError("expected at least one source, got an empty list")
    if all(isinstance(part, str | os.PathLike) for part in parts):
        kinds = {_kind_of_suffix(os.fspath(part)) for part in parts}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            return kind.open(list(parts), **options)
        return Concat.of((str(part), partial(open_source, _absolute(part), **options)) for part in parts)
    sources: list[Source] = []
    for part in parts:
        sources.append(open_source(part, **options))
    return Concat.of_sources(sources)


def _absolute(part: str | os.PathLike[str]) -> str:
    text = os.fspath(part)
    return text if "://" in text else os.path.abspath(text)


# Paths


def _open_path(text: str, options: Mapping[str, Any]) -> Source:
    if "://" in text:
        url = urlsplit(text)
        if url.scheme != "file" or url.netloc not in ("", "localhost"):
            raise ValueError(f"{text}: expected a path or a file:// URL, got the scheme {url.scheme!r}")
        text = unquote(url.path)
    if has_pattern(text) and not os.path.lexists(text):
        return _open_list([str(path) for path in expand(text, ())], options)
    path = Path(text).absolute()
    if path.is_dir():
        return _open_directory(path, options)
    if not path.exists():
        return _open_prefix(path, options)
    kind = _kind_of_suffix(text) or _kind_of_content(path)
    if path.suffix.lower() == ".json":
        return Kind("collection", (), "collection:open_collection").open(path, **options)
    if kind is None:
        known = " ".join(suffix for one in KINDS for suffix in one.suffixes)
        raise FormatError(f"{path}: neither its suffix nor its content tells what it is; expected one of {known} .json")
    return kind.open(path, **options)


def _kind_of_suffix(text: str) -> Kind | None:
    suffix = Path(text).suffix.lower()
    if suffix in REFUSED:
        raise UnsupportedTypeError(f"{text}: {REFUSED[suffix]}")
    return next((kind for kind in KINDS if suffix in kind.suffixes), None)


def _kind_of_content(path: Path) -> Kind | None:
    size = file_size(path)
    with path.open("rb") as file:
        head = file.read(16)
        file.seek(max(0, size - 8))
        tail = file.read(8)
    return next(
        (k for k in KINDS if (k.head is not None and head.startswith(k.head)) or (k.tail is not None and tail == k.tail)), None
    )


def _open_directory(path: Path, options: Mapping[str, Any]) -> Source:
    if _is_store(path) or "generation" in options:
        return open_store(path, **options)
    names = [name for name in os.listdir(path) if not name.startswith(".") and (path / name).is_file()]
    kinds = {_kind_of_suffix(name) for name in names if Path(name).suffix.lower() not in REFUSED}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind.open(path, **options)
    known = sorted(kind.name for kind in kinds if kind is not None)
    if len(known) > 1:
        raise SchemaMismatchError(
            f"{path}: the directory holds files of several formats ({', '.join(known)}): open them by a pattern"
        )
    return Kind("directory", (), "directory:open_directory").open(path, **options)


def _is_store(path: Path) -> bool:
    """Whether a directory is a store, or one that was begun and never published."""
    names = set(os.listdir(path))
    return not names.isdisjoint({LOCK_NAME, MANIFEST_DIRECTORY}) or (bool(names) and names <= set(DIRECTORIES))


def _open_prefix(path: Path, options: Mapping[str, Any]) -> Source:
    """A name that is the beginning of the names of token shards, or of nothing."""
    base = path.with_suffix("") if path.suffix == ".rox" else path
    if path.parent.is_dir() and any(name.startswith(f"{base.name}_") and name.endswith(".rox") for name in os.listdir(path.parent)):
        return next(kind for kind in KINDS if kind.name == "tokens").open(path, **options)
    raise MissingError(f"{path}: there is no such file or directory")
