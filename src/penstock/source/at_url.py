"""What is at a URL: an object, many of them, or a store."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from penstock.argument import byte_size
from penstock.errors import EmptyFileError, MissingError, SchemaMismatchError
from penstock.records import Source
from penstock.remote.url import UrlPath, is_url, url_path
from penstock.remote.window import RemoteOptions
from penstock.source.concat import Concat
from penstock.source.files import Files, RemoteFile
from penstock.source.kinds import FOLDER, INDEX_BYTES, REFUSED, TOKENS, Kind, kind_of_file, kind_of_suffix, refuse_layout
from penstock.source.parts import MOST_OPEN_REMOTE
from penstock.source.paths import has_pattern
from penstock.source.token_file import numbered_objects
from penstock.source.url_names import children, listing, matching
from penstock.store.format import DIRECTORIES, MANIFEST_DIRECTORY
from penstock.store.reader import open_store

__all__ = ["REMOTE_OPTIONS", "has_urls", "is_at_url", "open_url", "open_urls", "share"]

REMOTE_OPTIONS = ("storage_options", "window_bytes", "cache", "cache_bytes")
"""The options of everything that is at a URL; whatever else is given goes to the source."""

Options = Mapping[str, Any]


def is_at_url(what: Any) -> bool:
    """Whether something is the name of data at a URL."""
    return isinstance(what, UrlPath | RemoteFile) or (isinstance(what, str) and is_url(what))


def has_urls(what: Any) -> bool:
    """Whether something is the name of data at a URL, or a list or dict with such names."""
    if isinstance(what, Mapping):  # texts in a list in a dict are data
        return any(
            has_urls([one for one in part if not isinstance(one, str)] if isinstance(part, list | tuple) else part)
            for part in what.values()
        )
    return any(map(is_at_url, what)) if isinstance(what, list | tuple) else is_at_url(what)


def open_urls(kind: Kind, urls: Sequence[str | UrlPath], options: Options) -> Source:
    """Objects of one format as one source."""
    return kind.open([_place(url, options) for url in urls], **_split(options))


def open_url(what: str | UrlPath | RemoteFile, options: Options) -> Source:
    """A source by the suffix of a URL, or else by what is found there."""
    if isinstance(what, RemoteFile):
        return _open_object(what, options)
    path = _place(what, options)
    if "generation" in options:
        return open_store(path, **_split(options))
    return _open_pattern(path, options) if has_pattern(path.key) else _open_named(path, options)


def _open_named(path: UrlPath, options: Options) -> Source:
    if kind_of_suffix(str(path)) is None and path.suffix.lower() != ".json":
        return _open_unnamed(path, options)
    try:
        return _open_object(RemoteFile(path), options)
    except MissingError:
        if not _can_list(path) or not listing(path):
            raise
        return _open_under(path, options)


def _place(url: str | UrlPath, options: Options) -> UrlPath:
    return url if isinstance(url, UrlPath) else url_path(url, options.get("storage_options"))


def _split(options: Options) -> dict[str, Any]:
    """The options as openers take them."""
    remote = RemoteOptions(**{name: options[name] for name in REMOTE_OPTIONS[1:] if name in options})
    return {"remote": remote} | {name: value for name, value in options.items() if name not in REMOTE_OPTIONS}


def _open_object(file: RemoteFile, options: Options) -> Source:
    return kind_of_file(file).open(file, **_split(options))


def _open_pattern(pattern: UrlPath, options: Options) -> Source:
    found = matching(pattern)
    kinds = {kind_of_suffix(str(name)) for name, _ in found}
    files = [RemoteFile(name, info) for name, info in found if info is not None]
    if len(files) == len(found) and len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind.open(Files(files), **_split(options))
    parts = [name if info is None else RemoteFile(name, info) for name, info in found]
    if parts == [pattern]:
        return _open_named(pattern, options)
    each = share(options, len(parts))
    return Concat.of(((str(part), partial(_open_match, part, each)) for part in parts), are_remote=True)


def _open_match(part: UrlPath | RemoteFile, options: Options) -> Source:
    """What a pattern found. Its name is a name, even if it looks like a pattern."""
    return _open_object(part, options) if isinstance(part, RemoteFile) else _open_named(part, options)


def share(options: Options, parts: int) -> dict[str, Any]:
    """The options of each of several parts, which together have one window."""
    window = byte_size("window_bytes", options.get("window_bytes", RemoteOptions().window_bytes))
    return {**options, "window_bytes": window // min(MOST_OPEN_REMOTE, max(1, parts))}


def _open_unnamed(path: UrlPath, options: Options) -> Source:
    """A URL whose suffix says nothing: a store, an object of some format, or objects under it."""
    if _can_list(path) and path.objects.list((path / MANIFEST_DIRECTORY).key):
        return open_store(path, **_split(options))
    file = RemoteFile(path)
    try:
        kind = kind_of_file(file) if path.key else None
    except (MissingError, EmptyFileError) as error:
        if not _can_list(path) or (isinstance(error, EmptyFileError) and not listing(path)):
            raise
        kind = None
    return _open_under(path, options) if kind is None else kind.open(file, **_split(options))


def _can_list(path: UrlPath) -> bool:
    """Whether the objects under a URL can be listed: not those of a plain web server."""
    return path.objects.scheme not in ("http", "https")


def _open_under(path: UrlPath, options: Options) -> Source:
    """The objects under a URL as one source, as the files of a directory; or the token shards whose names begin so."""
    listed = listing(path)
    if not listed:
        if shards := numbered_objects(path) if path.key else []:
            return TOKENS.open(Files(shards), **_split(options))
        raise MissingError(f"{path}: there is no such object, and none under this URL")
    depth = len(PurePosixPath(path.key).parts)
    names = {PurePosixPath(info.key).parts[depth] for info in listed}
    if names <= set(DIRECTORIES):
        return open_store(path, **_split(options))
    if "suffixes" not in options:
        refuse_layout(path, names, lambda name: RemoteFile(path / name).first(INDEX_BYTES))
    files = [RemoteFile(name, info) for name, info in children(path, listed) if not name.name.startswith(".")]
    kinds = {kind_of_suffix(file.name) for file in files if file.path.suffix.lower() not in REFUSED}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return kind.open(Files(file for file in files if file.path.suffix.lower() in kind.suffixes), **_split(options))
    known = sorted(kind.name for kind in kinds if kind is not None)
    if len(known) > 1:
        raise SchemaMismatchError(f"{path}: there are objects of several formats ({', '.join(known)}): open them by a pattern")
    return FOLDER.open(path, **_split(options))
