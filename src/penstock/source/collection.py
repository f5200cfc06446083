"""Collections: a small .json file that names parts with their lengths and fingerprints, so that opening it opens none of them."""

import json
import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath

from penstock.argument import whole_number
from penstock.errors import CorruptError, FormatError, UnsafePathError, UnsupportedVersionError
from penstock.records import Source
from penstock.schema import Field, Schema, field_from_json, field_to_json
from penstock.source.concat import Concat, Part
from penstock.source.paths import file_size
from penstock.source.registry import open_source

__all__ = ["open_collection", "write_collection"]

KIND = "penstock collection"
VERSION = 1
MAX_BYTES = 256 << 20


def write_collection(path: str | os.PathLike[str], parts: Iterable[str | os.PathLike[str]]) -> None:
    """Write a collection of parts in the directory of the file or below it. Each part is opened once."""
    target = Path(path).absolute()
    names = [_relative(target.parent, Path(part).absolute()) for part in parts]
    whole = Concat.of((name, partial(open_source, target.parent / name)) for name in names)
    schema = Schema.make(whole.schema)
    content = {
        "kind": KIND,
        "version": VERSION,
        "reads_blocks": whole.reads_blocks,
        "fields": [field_to_json(name, schema.numbers[name], field) for name, field in schema.fields.items()],
        "parts": [{"url": part.name, "length": part.length, "fingerprint": part.fingerprint} for part in whole._listed],
    }
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, target)


def open_collection(path: str | os.PathLike[str]) -> Concat:
    """The parts of a collection file as one source. Parts are opened when they are read, and must be what they were."""
    where = Path(path).absolute()
    if file_size(where) > MAX_BYTES:
        raise CorruptError(f"{where}: expected a collection of at most {MAX_BYTES} bytes, found {where.stat().st_size}")
    try:
        content = json.loads(where.read_text())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected a collection in JSON: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise FormatError(f"{where}: expected a file that says {{'kind': {KIND!r}}}, found {str(content)[:100]}")
    if content.get("version") != VERSION:
        raise UnsupportedVersionError(f"{where}: expected version {VERSION}, found {str(content.get('version'))[:100]}")
    try:
        fields = dict(_field(value) for value in content["fields"])
        parts = [_part(where, value) for value in content["parts"]]
        return Concat(parts, fields, reads_blocks=content["reads_blocks"] is True)
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{where}: not a valid collection: {error!r}") from error


def _field(value: object) -> tuple[str, Field]:
    try:
        name, _, field = field_from_json(value)
    except (TypeError, ValueError) as error:
        raise TypeError(str(error)) from error
    return name, field


def _part(where: Path, value: dict[str, object]) -> Part:
    url, fingerprint = value["url"], value["fingerprint"]
    if not isinstance(url, str) or not isinstance(fingerprint, str) or not re.fullmatch("[0-9a-f]{32,128}", fingerprint):
        raise TypeError(f"expected a url and a fingerprint, found {str(value)[:200]}")
    pure = PurePosixPath(url)
    if pure.is_absolute() or ".." in pure.parts or "\0" in url or "://" in url or not pure.parts:
        raise UnsafePathError(f"{where}: a part must be a name inside the directory of the collection, found {url!r}")
    try:
        length = whole_number("length", value["length"])  # type: ignore[arg-type]
    except ValueError as error:
        raise TypeError(str(error)) from error
    return Part(url, partial(_open_inside, where.parent, url), length, fingerprint)


def _open_inside(root: Path, url: str) -> Source:
    path = root / url
    if not path.resolve().is_relative_to(root.resolve()):
        raise UnsafePathError(f"{path}: the part leads out of {root}")
    return open_source(path)


def _relative(root: Path, part: Path) -> str:
    if not part.is_relative_to(root) or ".." in part.relative_to(root).parts:
        raise UnsafePathError(f"{part}: the parts of a collection must lie in {root} or below it")
    return part.relative_to(root).as_posix()
