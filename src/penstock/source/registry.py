"""Which source reads what: paths, URLs, lists, dicts and objects in memory."""

import os
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
from penstock.source.kinds import FOLDER, REFUSED, TOKENS, Kind, kind_of_file, kind_of_suffix
from penstock.source.paths import expand, has_pattern
from penstock.store.layout import DIRECTORIES, LOCK_NAME, MANIFEST_DIRECTORY
from penstock.store.snapshot import open_store

__all__ = ["open_source"]


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
            opened[name] = ArraySource({name: value}) if _is_column(value) else _open_part(value, options)
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
    return isinstance(item, os.PathLike | UrlPath) or (isinstance(item, str) and (is_url(item) or kind_of_suffix(item) is not None))


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
    for part in parts:
        sources.append(_open_part(part, options))
    return Concat.of_sources(sources)


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
    if has_pattern(text) and not os.path.lexists(text):
        return _open_list([str(path) for path in expand(text, ())], options)
    path = Path(text).absolute()
    if path.is_dir():
        return _open_directory(path, options)
    if not path.exists():
        return _open_prefix(path, options)
    return kind_of_file(LocalFile(path)).open(path, **options)


def _open_directory(path: Path, options: Mapping[str, Any]) -> Source:
    if _is_store(path) or "generation" in options:
        return open_store(path, **options)
    names = [name for name in os.listdir(path) if not name.startswith(".") and (path / name).is_file()]
    kinds = {kind_of_suffix(name) for name in names if Path(name).suffix.lower() not in REFUSED}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind.open(path, **options)
    known = sorted(kind.name for kind in kinds if kind is not None)
    if len(known) > 1:
        raise SchemaMismatchError(
            f"{path}: the directory holds files of several formats ({', '.join(known)}): open them by a pattern"
        )
    return FOLDER.open(path, **options)


def _is_store(path: Path) -> bool:
    """Whether a directory is a store, or one that was begun and never published."""
    names = set(os.listdir(path))
    return not names.isdisjoint({LOCK_NAME, MANIFEST_DIRECTORY}) or (bool(names) and names <= set(DIRECTORIES))


def _open_prefix(path: Path, options: Mapping[str, Any]) -> Source:
    """A name that is the beginning of the names of token shards, or of nothing."""
    base = path.with_suffix("") if path.suffix == ".rox" else path
    if path.parent.is_dir() and any(name.startswith(f"{base.name}_") and name.endswith(".rox") for name in os.listdir(path.parent)):
        return TOKENS.open(path, **options)
    raise MissingError(f"{path}: there is no such file or directory")
