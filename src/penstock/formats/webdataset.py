"""WebDataset's tar archives: neighbouring files whose names are equal up to the first dot of the base name are a sample.

``a/001.jpg``, ``a/001.cls`` and ``a/001.seg.png`` are the record with the ``__key__`` ``a/001`` and the fields ``jpg``, ``cls`` and
``seg.png``, each the bytes of a file. A file that a sample does not have is a missing value. Directories, links, and files whose
names have no dot, or begin and end with two underscores, are left out. The archive is read where it is: only its headers are looked
at, once, and where the files are is kept in a sidecar.
"""

from collections.abc import Sequence
from typing import Any

from penstock.errors import EmptyFileError, FormatError, UnsupportedTypeError
from penstock.formats.files import Files, Names, find_files
from penstock.formats.rows_in_files import default_threads
from penstock.formats.spans import FileSpans, ScannedFile, SpanField, SpanIndex, SpanOptions, SpanSource
from penstock.native import _core
from penstock.records import Recipe
from penstock.remote.window import RemoteOptions
from penstock.schema import Field

__all__ = ["TarSource", "open_tar"]

SUFFIX, KEY = ".tar", "__key__"

COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
"""How compressed files begin."""


def open_tar(
    what: Names,
    *,
    fields: Sequence[str] | None = None,
    text: Sequence[str] = (),
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "TarSource":
    """One tar archive, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    A record has its ``__key__`` and a field of bytes for every extension; those in ``text`` are texts, which must be UTF-8.
    ``fields`` chooses some of them: at a URL, only their bytes are fetched.
    """
    for name, value in (("fields", fields), ("text", text)):
        if isinstance(value, str):
            raise TypeError(f"{name} must be a list of names, got {value!r}")
    how = SpanOptions(default_threads(threads), io, remote)
    return TarSource(find_files(what, (SUFFIX,)), None if fields is None else tuple(fields), tuple(text), how)


def _scan(file: ScannedFile) -> FileSpans:
    if file.size == 0:
        raise EmptyFileError(f"{file}: expected a tar archive, found an empty file")
    try:
        return file.scan(_core.TarScanner(str(file), file.size))
    except FormatError:
        head = file.read(0, min(8, file.size)).tobytes()
        for magic, name in COMPRESSED.items():
            if head.startswith(magic):
                raise UnsupportedTypeError(
                    f"{file}: expected a plain tar archive, found one that is compressed as a whole ({name}), in which no file can "
                    "be read by itself: decompress it; images and the like take no more space then"
                ) from None
        raise


class TarSource(SpanSource):
    """The samples of tar archives, one archive after the other."""

    def __init__(self, files: Files, fields: tuple[str, ...] | None, text: tuple[str, ...], how: SpanOptions) -> None:
        self._options = fields, text, how
        index = SpanIndex("tar", files, _scan, how)
        try:
            known = [KEY, *(name for name in index.columns if name != KEY)]
            for name in (*(fields or ()), *text):
                if name not in known:
                    raise KeyError(f"{files[0]}: unknown field {name!r}; there are {known}")
            chosen = known if fields is None else fields
            if len(set(chosen)) < len(chosen) or not chosen:
                raise ValueError(f"expected different fields, at least one, got {list(chosen)}")
        except BaseException:
            index.rows.close()
            raise
        texts = {KEY, *text}
        super().__init__(index, {name: SpanField(Field.text() if name in texts else Field.bytes()) for name in chosen})

    def _identity(self) -> tuple[Any, ...]:
        return "tar", [(name, field.kind) for name, field in self.schema.items()]

    def _recipe(self) -> Recipe:
        return (TarSource, (self._files, *self._options))
