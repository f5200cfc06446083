"""Which source reads what: paths, URLs, lists, dicts and objects in memory."""

import os
import stat
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from penstock.errors import MissingError, SchemaMismatchError
from penstock.ragged import Ragged
from penstock.records import Source
from penstock.remote.client import SCHEMES
from penstock.remote.url import UrlPath, is_url
from penstock.source.aligned import Aligned
from penstock.source.array import ArraySource, open_array
from penstock.source.at_url import REMOTE_OPTIONS, is_at_url, open_url, open_urls, share
from penstock.source.concat import Concat
from penstock.source.files import LocalFile, RemoteFile
from penstock.source.kinds import (
    FOLDER,
    INDEX_BYTES,
    REFUSED,
    TOKENS,
    Kind,
    is_data_name,
    kind_of_file,
    kind_of_suffix,
    refuse_layout,
)
from penstock.source.paths import expand, has_pattern
from penstock.store.format import DIRECTORIES, LOCK_NAME, MANIFEST_DIRECTORY
from penstock.store.reader import open_store
from penstock.system import is_directory, is_file, is_there, names_in, status

__all__ = ["open_source"]

FEW_SPLITS = 8
"""A directory with no more than this in it may be one of splits."""


def open_source(what: Any, **options: Any) -> Source:
    """Anything that can be read as records, as a source.

    A path or URL (the format follows from the suffix, or from the content), a pattern, a directory, a list (one after the other), a
    dict (side by side), arrays, Arrow tables, Hugging Face data sets. Options go to the source that reads it.
    """
    if isinstance(what, Source):
        return _without_options(what, options)
    if isinstance(what, UrlPath | RemoteFile) or (isinstance(what, str) and is_url(what)):
        return open_url(what, options)
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
    if (kind := _table_kind(what)) is not None:
        return kind.open(what, **options)
    if _is_of(what, "DataFrame"):
        raise TypeError(
            "a DataFrame opens as an Arrow table: pyarrow.Table.from_pandas(frame) for pandas, frame.to_arrow() for polars"
        )
    if hasattr(what, "__array__") and not isinstance(what, str):
        return open_array(what, **options)
    raise TypeError(f"expected a path, an array, a list, a dict or a source, got {type(what).__name__}")


def _table_kind(what: Any) -> Kind | None:
    if _is_of(what, "Table", "pyarrow") or _is_of(what, "RecordBatch", "pyarrow"):
        return Kind("arrow", (), "arrow:open_table")
    return Kind("huggingface", (), "arrow:open_huggingface") if _is_of(what, "Dataset", "datasets") else None


def _is_of(what: Any, name: str, package: str | None = None) -> bool:
    """Whether an object is of a class of that name, or of one that inherits it."""
    return any(kind.__name__ == name and package in (None, kind.__module__.partition(".")[0]) for kind in type(what).__mro__)


# Lists and dicts


def _open_dict(parts: Mapping[str, Any], options: Mapping[str, Any]) -> Source:
    if _is_of(parts, "DatasetDict", "datasets"):
        raise TypeError(f"a DatasetDict has splits, {list(parts)}: open one of them, such as splits[{next(iter(parts), '')!r}]")
    if all(_is_column(name, value) for name, value in parts.items()):
        return ArraySource(parts, **options)
    opened: dict[str, Source] = {}
    try:
        for name, value in parts.items():
            opened[name] = ArraySource({name: value}) if _is_column(name, value) else _open_part(value, options)
        return Aligned(opened)
    except BaseException:
        for source in opened.values():
            source.close()
        raise


def _is_column(name: str, value: Any) -> bool:
    """Whether the value of a dict is data rather than the name of some. Texts in a list are data, paths and sources are not; texts
    that could be either are refused.
    """
    if not isinstance(value, list | tuple):
        is_array = (
            not isinstance(value, str)
            and hasattr(value, "__array__")
            and _table_kind(value) is None
            and not _is_of(value, "DataFrame")
        )
        return is_array or isinstance(value, Ragged)
    kinds = {type(item) for item in value}
    if any(issubclass(kind, Source | os.PathLike | UrlPath) for kind in kinds):
        return False
    if kinds and all(issubclass(kind, str) for kind in kinds) and all(map(is_data_name, value)):
        raise ValueError(
            f"field {name!r}: texts like {value[0]!r} may be meant as files or as texts: "
            "write penstock.open([...]) or [pathlib.Path(...), ...] for the files, numpy.array([...]) for the texts"
        )
    return True


def _open_part(part: Any, options: Mapping[str, Any]) -> Source:
    """A part of a list or a dict. Options of URLs are for those among the parts."""
    if is_at_url(part) or not isinstance(part, str | os.PathLike):
        return open_source(part, **options)
    return open_source(part, **{name: value for name, value in options.items() if name not in REMOTE_OPTIONS})


def _open_list(parts: Sequence[Any], options: Mapping[str, Any]) -> Source:
    if not parts:
        raise ValueError("expected at least one source, got an empty list")
    if all(isinstance(part, str | os.PathLike | UrlPath) for part in parts):
        kinds, remote = {kind_of_suffix(str(part)) for part in parts}, {is_at_url(part) for part in parts}
        if len(kinds) == 1 and len(remote) == 1 and (kind := kinds.pop()) is not None:
            return open_urls(kind, parts, options) if any(remote) else kind.open(list(parts), **options)
        each = share(options, len(parts)) if any(remote) else options
        return Concat.of(((str(part), partial(_open_part, _absolute(part), each)) for part in parts), are_remote=any(remote))
    sources: list[Source] = []
    for number, part in enumerate(parts):
        _need_source(number, part)
        try:
            sources.append(_open_part(part, options))
        except MissingError as error:
            if not isinstance(part, Mapping):
                raise
            raise MissingError(f"{error}; a text in a dict is the name of a file: {_COLUMNS}") from error
    return Concat.of_sources(sources)


_COLUMNS = "for records, write penstock.open({name: [record[name] for record in records] for name in records[0]})"


def _need_source(number: int, part: Any) -> None:
    """TypeError with a remedy for what looks like the values of a field, or like a record."""
    if _is_value(part):
        raise TypeError(
            f"a list is read as sources one after the other, and part {number} is {repr(part)[:60]}: "
            "for one field of such values write penstock.open({'data': [...]})"
        )
    values = part.items() if isinstance(part, Mapping) else ()
    plain = next((name for name, value in values if _is_value(value) and not isinstance(value, list | tuple)), None)
    if plain is not None:
        raise TypeError(
            f"a list is read as sources one after the other, and part {number} is a record, with one value of {plain!r}: {_COLUMNS}"
        )


def _is_value(part: Any) -> bool:
    """Whether something is a number, bytes or nothing, or a list of them: never a source, nor the name of one."""
    if isinstance(part, list | tuple):
        return len(part) > 0 and _is_value(part[0])
    return part is None or isinstance(part, int | float | complex | bytes | bytearray | np.generic)


def _absolute(part: str | os.PathLike[str] | UrlPath) -> str | UrlPath:
    if isinstance(part, UrlPath):
        return part
    text = os.fspath(part)
    return text if "://" in text else os.path.abspath(text)


# Paths


def _open_path(text: str, options: Mapping[str, Any]) -> Source:
    if "://" in text:
        url = urlsplit(text)
        if url.scheme != "file" or url.netloc not in ("", "localhost"):
            known = " ".join(f"{scheme}://" for scheme in ("file", *SCHEMES))
            raise ValueError(f"{text}: expected a path or one of {known}, got the scheme {url.scheme!r}")
        text = unquote(url.path)
    if has_pattern(text) and not is_there(text):
        return _open_list([str(path) for path in expand(text, ())], options)
    path = Path(text).absolute()
    found = status(path)
    if found is None:
        return _open_prefix(path, options)
    if stat.S_ISDIR(found.st_mode):
        return _open_directory(path, options)
    return kind_of_file(LocalFile(path)).open(path, **options)


def _open_directory(path: Path, options: Mapping[str, Any]) -> Source:
    inside = names_in(path)
    if _is_store(inside) or "generation" in options:
        return open_store(path, **options)
    if "suffixes" not in options:
        _refuse_layouts(path, inside)
    names = [name for name in inside if not name.startswith(".") and is_file(path / name)]
    kinds = {kind_of_suffix(name) for name in names if Path(name).suffix.lower() not in REFUSED}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind.open(path, **options)
    known = sorted(kind.name for kind in kinds if kind is not None)
    if len(known) > 1:
        raise SchemaMismatchError(
            f"{path}: the directory holds files of several formats ({', '.join(known)}): open them by a pattern"
        )
    return FOLDER.open(path, **options)


def _refuse_layouts(path: Path, inside: Sequence[str]) -> None:
    """FormatError for a directory of another tool, or one with a few of them, such as train and test, in it."""
    refuse_layout(path, inside, partial(_read_inside, path))
    if len(inside) <= FEW_SPLITS:
        for inner in (path / name for name in sorted(inside) if is_directory(path / name)):
            refuse_layout(inner, names_in(inner), partial(_read_inside, inner))


def _read_inside(directory: Path, name: str) -> bytes:
    return LocalFile(directory / name).first(INDEX_BYTES)


def _is_store(inside: Sequence[str]) -> bool:
    """Whether a directory with these names in it is a store, or one that was begun and never published."""
    names = set(inside)
    return not names.isdisjoint({LOCK_NAME, MANIFEST_DIRECTORY}) or (bool(names) and names <= set(DIRECTORIES))


def _open_prefix(path: Path, options: Mapping[str, Any]) -> Source:
    """A name that is the beginning of the names of token shards, or of nothing."""
    base = path.with_suffix("") if path.suffix == ".rox" else path
    beside = names_in(path.parent) if is_directory(path.parent) else []
    if any(name.startswith(f"{base.name}_") and name.endswith(".rox") for name in beside):
        return TOKENS.open(path, **options)
    raise MissingError(f"{path}: there is no such file or directory")
