"""Collections: a small .json file that names parts with their lengths and fingerprints, so that opening it opens none of them."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.algebra import Concat, Part
from penstock.argument import byte_size, shown, whole_number
from penstock.errors import CorruptError, FormatError, UnsafePathError, UnsupportedVersionError
from penstock.formats.files import File, LocalFile, RemoteFile, has_pattern, matching_paths
from penstock.formats.open import open_source, open_url, share
from penstock.formats.publish import replace_file
from penstock.records import Source
from penstock.remote.url import UrlPath, is_url, url_path
from penstock.remote.window import RemoteOptions
from penstock.schema import Field, Schema, field_from_json, field_to_json
from penstock.store.manifest import decode_metadata, encode_metadata
from penstock.store.storage import as_location

__all__ = ["write_collection"]

KIND = "penstock collection"
VERSION = 1
MAX_BYTES = 32 << 20
"""Parsed, JSON can take 25 times its bytes. The option ``max_collection_bytes`` raises this."""
MAX_URL = 4096
"""Characters of the URL of a part. No file has a longer path."""


def write_collection(
    parts: Iterable[str | os.PathLike[str] | UrlPath],
    path: str | os.PathLike[str] | UrlPath,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a collection of parts in the directory of the file or below it. Each part is opened once.

    A collection at a URL may also name parts at other URLs; ``storage_options`` are for it and them. Parts in other buckets or on
    other hosts are read only by those who open it with ``allow_urls=True``.
    """
    target = as_location(path, storage_options)
    if isinstance(target, UrlPath):
        names = [_name_at_url(target.parent, as_location(part, storage_options)) for part in parts]
        target.objects.put(target.key, _content(target.parent, names))
        return
    target = target.absolute()
    content = _content(target.parent, [_relative(target.parent, Path(str(part)).absolute()) for part in parts])
    replace_file(target, content)


def _content(root: Path | UrlPath, names: Sequence[str]) -> bytes:
    """The bytes of a collection."""
    openers = ((name, partial(_open_inside, root, name, {})) for name in names)
    with Concat.of(openers, num_remote=len(names) if isinstance(root, UrlPath) else 0) as whole:
        return _written(whole)


def _written(whole: Concat) -> bytes:
    schema = Schema.make(whole.schema)
    content = {
        "kind": KIND,
        "version": VERSION,
        "reads_blocks": whole.reads_blocks,
        "fields": [field_to_json(name, schema.numbers[name], field) for name, field in schema.fields.items()],
        "nullable": [name for name, field in schema.fields.items() if field.nullable],
        "metadata": encode_metadata(whole.metadata),
        "parts": [
            {"url": part.name, "length": part.length, "fingerprint": part.fingerprint, "samples": dict(part.samples or {})}
            for part in whole.sampled()
        ],
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def open_collection(
    what: str | os.PathLike[str] | UrlPath | RemoteFile,
    *,
    remote: RemoteOptions | None = None,
    allow_urls: bool = False,
    max_collection_bytes: int | str = MAX_BYTES,
) -> Concat:
    """The parts of a collection file as one source. Parts are opened when they are read, and must be what they were.

    ``remote`` says how parts at URLs are read. A collection at a URL may name others in its own bucket or on its own host; with
    ``allow_urls`` it may name any, and each is asked for what is there. A larger file than ``max_collection_bytes`` is not parsed.
    """
    place = what if isinstance(what, RemoteFile) else as_location(what)
    file = LocalFile(place.absolute()) if isinstance(place, Path) else RemoteFile(place) if isinstance(place, UrlPath) else place
    where, content = file.path, _parsed(file, byte_size("max_collection_bytes", max_collection_bytes))
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise FormatError(f"{where}: expected a file that says {{'kind': {KIND!r}}}, found {shown(content)}")
    if content.get("version") != VERSION:
        raise UnsupportedVersionError(f"{where}: expected version {VERSION}, found {shown(content.get('version'))}")
    try:
        fields = _nullable(dict(_field(value) for value in content["fields"]), content.get("nullable", []))
        metadata = _metadata(content["metadata"]) if "nullable" in content and "metadata" in content else None
        is_remote, listed = isinstance(where, UrlPath), content["parts"]
        options = share(vars(remote or RemoteOptions())) if is_remote else {}
        return Concat(
            [_part(where, value, options, allow_urls=allow_urls) for value in listed],
            fields,
            reads_blocks=content["reads_blocks"] is True or is_remote,
            num_remote=len(listed) if is_remote else 0,
            metadata=metadata,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{where}: not a valid collection: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return ascii(f"{type(error).__name__}: {error}")[1:-1][:300]


def _parsed(file: File, most: int) -> Any:
    where, size = file.path, file.size
    if size > most:
        raise CorruptError(
            f"{where}: expected a collection of at most {most} bytes, found {size}; if that is right, open it with "
            f"max_collection_bytes={size} (it may take 25 times that in memory); name JSON lines .jsonl"
        )
    try:
        return json.loads(file.read(0, size).decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected a collection in JSON: {_one_line(error)}; name JSON lines .jsonl") from error


def _field(value: object) -> tuple[str, Field]:
    try:
        name, _, field = field_from_json(value)
    except (TypeError, ValueError) as error:
        raise TypeError(str(error)) from error
    return name, field


def _nullable(fields: dict[str, Field], names: object) -> dict[str, Field]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name in fields for name in names):
        raise TypeError(f"expected names of fields as nullable, found {shown(names)}")
    return {name: field.with_nullable(name in names) for name, field in fields.items()}


def _metadata(text: object) -> dict[str, Any]:
    try:
        return decode_metadata(text if isinstance(text, str) else "?")
    except (ValueError, RecursionError) as error:
        raise TypeError(f"expected metadata, found {shown(text)}") from error


def _part(where: Path | UrlPath, value: dict[str, object], options: Mapping[str, Any], *, allow_urls: bool) -> Part:
    url, fingerprint, samples = value["url"], value["fingerprint"], value.get("samples", {})
    if not isinstance(url, str) or not _is_digest(fingerprint):
        raise TypeError(f"expected a url and a fingerprint, found {shown(value)}")
    if not isinstance(samples, dict) or not all(map(_is_digest, samples.values())):
        raise TypeError(f"expected sample digests by name, found {shown(samples)}")
    if len(url) > MAX_URL:
        raise TypeError(f"expected a url of at most {MAX_URL} characters, found one of {len(url)}")
    _check_name(where, url, allow_urls=allow_urls)
    try:
        length = whole_number("length", value["length"])  # type: ignore[arg-type]
    except ValueError as error:
        raise TypeError(str(error)) from error
    return Part(url, partial(_open_inside, where.parent, url, options), length, str(fingerprint), samples)


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32,128}", value) is not None


def _check_name(where: Path | UrlPath, url: str, *, allow_urls: bool) -> None:
    """UnsafePathError if a part is neither in the directory of the collection nor at a URL that is allowed."""
    if isinstance(where, UrlPath) and is_url(url):
        if not allow_urls and not url.startswith(f"{where.objects.url}/"):
            name = url.partition("?")[0].rpartition("@")[2]
            raise UnsafePathError(
                f"{where}: expected parts under {where.objects.url}, found {shown(name)}; open the collection with allow_urls=True "
                "if it may make this machine read from other buckets and hosts"
            )
        return
    pure = PurePosixPath(url)
    if pure.is_absolute() or ".." in pure.parts or "\0" in url or "://" in url or not pure.parts:
        raise UnsafePathError(f"{where}: a part must be a name inside the directory of the collection, found {shown(url)}")


def _open_inside(root: Path | UrlPath, url: str, options: Mapping[str, Any]) -> Source:
    if isinstance(root, UrlPath):
        return open_url(_part_at_url(root, url), options)
    path = root / url
    for one in matching_paths(str(path)) if has_pattern(str(path)) else [path]:
        if not Path(one).resolve().is_relative_to(root.resolve()):
            raise UnsafePathError(f"{one}: the part leads out of {root}")
    return open_source(path)


def _part_at_url(root: UrlPath, url: str) -> UrlPath:
    """A part next to the collection, or at a URL of its own; with the same options if it is of the same kind of store."""
    if not is_url(url):
        return root / url
    try:
        if url.startswith(f"{root.objects.url}/"):
            return url_path(url, root.objects.options)
        scheme = url.partition("://")[0]
        return url_path(url, root.objects.options if scheme == root.objects.scheme and _can_share(root) else None)
    except ValueError as error:  # what url_path says has no secret in it
        raise UnsafePathError(f"{root}: a part of a collection is not at a valid URL: {error}") from error


def _can_share(root: UrlPath) -> bool:
    """Whether the options of a place are for others of that scheme too. Web servers are strangers to one another."""
    return root.objects.scheme not in ("http", "https")


def _name_at_url(root: UrlPath, part: Path | UrlPath) -> str:
    """What a collection at a URL calls a part: relative where that is possible, so that both can be moved together."""
    if not isinstance(part, UrlPath):
        raise UnsafePathError(f"{part}: the parts of a collection at a URL must be at URLs too")
    return str(part).removeprefix(f"{root}/")


def _relative(root: Path, part: Path) -> str:
    if not part.is_relative_to(root) or ".." in part.relative_to(root).parts:
        raise UnsafePathError(f"{part}: the parts of a collection must lie in {root} or below it")
    return part.relative_to(root).as_posix()
