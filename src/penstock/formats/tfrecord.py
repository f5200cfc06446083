"""TFRecord files: byte strings one after the other, each with checksums of its length and of its bytes.

::

    file   = record*                                              all numbers are little-endian
    record = bytes u64 | crc u32 of those 8 bytes | data | crc u32 of the data
    crc    = the crc32c c, masked: (c >> 15 | c << 17) + 0xa282ead8

The bytes of a record are its field ``data``. With ``decode="example"`` they are messages of tf.Example, whose features are fields:
native threads parse them, a batch at a time. Files that are compressed as a whole are refused.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from penstock.algebra import collect
from penstock.argument import IntArray
from penstock.batch import Batch, Outputs, Ragged, empty, fixed_output, masked
from penstock.errors import CorruptError, FormatError, SchemaMismatchError, UnsupportedTypeError
from penstock.fingerprint import spread
from penstock.formats.files import Files, Names, check_batch, check_texts, find_files
from penstock.formats.folder import Decode, Decoder, run_each
from penstock.formats.rows_in_files import default_threads
from penstock.formats.spans import FileSpans, ParsedSpans, ScannedFile, SpanField, SpanIndex, SpanOptions, SpanSource
from penstock.native import _core
from penstock.records import Recipe
from penstock.remote.window import RemoteOptions
from penstock.schema import Field

__all__ = ["TFRecordSource", "has_length", "open_tfrecord"]

SUFFIXES = (".tfrecord", ".tfrecords")
HEAD_BYTES = 12
DATA = "data"

BYTES, FLOATS, INTS = 1, 2, 3
"""The kinds of features: the numbers of their fields in the message."""

SAMPLED = 256
"""Records, spread over all files, that the fields are found out from."""


def open_tfrecord(
    what: Names,
    *,
    field: str = DATA,
    decode: Decode | Literal["example"] | None = None,
    schema: Mapping[str, Field] | None = None,
    threads: int | None = None,
    io: str = "auto",
    remote: RemoteOptions | None = None,
) -> "TFRecordSource":
    """One TFRecord file, or many as one source: a list keeps its order, a pattern or a directory gives that of the name bytes.

    A record is a byte string, the field ``field``. With ``decode="example"`` it is a tf.Example: ``schema`` says which of its
    features are fields, and of which type: ``Field("i8", shape)`` or ``Field("f4", shape)`` where all records have as many values,
    ``Field.ragged("i8")`` or ``Field.ragged("f4")``, ``Field.bytes()`` or ``Field.text()`` for a single byte string. Without it,
    that is found out from 256 records. A function as ``decode`` turns the bytes into an array, or into a dict whose fields replace
    it.
    """
    files, how = find_files(what, SUFFIXES), SpanOptions(default_threads(threads), io, remote)
    if decode is None:
        if schema is not None:
            raise ValueError("schema says what decode gives: give both or neither")
        return TFRecordSource(files, field, how)
    if isinstance(decode, str):
        if decode != "example":
            raise ValueError(f"decode must be 'example' or a function of bytes, got {decode!r}")
        return ExampleSource(files, field, how, schema)
    return DecodedSource(files, field, how, decode, schema)


def _scan(file: ScannedFile) -> FileSpans:
    """Where the records of a file are. Only lengths and checksums are read, unless records are small."""
    start = file.read(0, min(HEAD_BYTES, file.size)).tobytes()
    if len(start) == HEAD_BYTES and not has_length(start):
        if start.startswith(b"\x1f\x8b\x08") or (start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0):
            raise UnsupportedTypeError(
                f"{file}: expected records, found a file that is compressed as a whole (GZIP or ZLIB), in which no record can be "
                "read by itself: decompress it (gunzip), or convert it to a store"
            )
        raise FormatError(f"{file}: expected a TFRecord file, found a first length whose checksum is another")
    return file.scan(_core.TFRecordScanner(str(file), file.size))


def has_length(head: bytes) -> bool:
    """Whether bytes begin with the length of a record and its checksum."""
    if len(head) < HEAD_BYTES:
        return False
    crc = _core.crc32c(np.frombuffer(head[:8], np.uint8))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32 == int.from_bytes(head[8:HEAD_BYTES], "little")


class TFRecordSource(SpanSource):
    """The records of TFRecord files, one file after the other. What is read is compared with its checksum."""

    def __init__(self, files: Files, field: str, how: SpanOptions) -> None:
        self._name, self._how = field, how
        super().__init__(SpanIndex("tfrecord", files, _scan, how), {field: SpanField(Field.bytes(), DATA)})

    def _identity(self) -> tuple[Any, ...]:
        return "tfrecord", self._name

    def _recipe(self) -> Recipe:
        return (TFRecordSource, (self._files, self._name, self._how))

    def _stored(self, ids: IntArray) -> Ragged:
        """The bytes of records."""
        found: Ragged = super()._read(ids, [self._name], {})[self._name]
        return found


class DecodedSource(ParsedSpans, TFRecordSource):
    """Records that a function of the user's decodes."""

    def __init__(
        self, files: Files, field: str, how: SpanOptions, decode: Decode, schema: Mapping[str, Field] | None = None
    ) -> None:
        super().__init__(files, field, how)
        self._decode, self._given = decode, schema
        try:
            self._decoder = Decoder(field, decode, schema, self._first)
        except BaseException:
            self.close()
            raise

    def _first(self) -> tuple[str, bytes] | None:
        return (self._where(0), self._stored(np.zeros(1, np.int64))[0]) if len(self) else None

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._decoder.schema)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        wanted = {name: self._decoder.schema[name] for name in fields}
        if not wanted:
            return {}
        stored, numbers = self._stored(ids), ids.tolist()
        records = run_each(lambda i: self._decoder(self._where(numbers[i]), stored[i]), ids.size, self._how.threads)
        return collect(records, wanted, out)

    def _identity(self) -> tuple[Any, ...]:
        return *super()._identity(), self._decoder.identity

    def _recipe(self) -> Recipe:
        return (DecodedSource, (self._files, self._name, self._how, self._decode, self._given))


class ExampleSource(ParsedSpans, TFRecordSource):
    """Records of tf.Example: the features are fields."""

    def __init__(self, files: Files, field: str, how: SpanOptions, schema: Mapping[str, Field] | None = None) -> None:
        super().__init__(files, field, how)
        try:
            self._fields = self._infer() if schema is None else dict(schema)
            kinds = [_kind_of(name, one) for name, one in self._fields.items()]
            self._numbers = {name: number for number, name in enumerate(self._fields)}
            self._parser = _core.ExampleParser(list(self._fields), kinds)
        except BaseException:
            self.close()
            raise

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._fields)

    def _infer(self) -> dict[str, Field]:
        """The fields of records that are spread over all files."""
        ids = np.array(spread(len(self), SAMPLED), np.int64)
        if ids.size == 0:
            raise ValueError(f"{self._files[0]}: there is no record to infer the fields from: pass schema={{...}}")
        found: dict[str, _Feature] = {}
        stored = self._stored(ids)
        for number, record in enumerate(ids.tolist()):
            message = stored.values[stored.offsets[number] : stored.offsets[number + 1]]
            try:
                features = _core.ExampleParser.features(message)
                for raw, kind, count in features:
                    found.setdefault(raw.decode(), _Feature()).add(number, kind, count)
            except (CorruptError, UnicodeDecodeError) as error:
                raise CorruptError(f"{self._where(record)}: {error}") from error
        return {name: one.field(name, ids.size) for name, one in sorted(found.items())}

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        if not fields:
            return {}
        ids = np.ascontiguousarray(ids)
        stored = self._stored(ids)
        counts = np.empty((ids.size, len(self._fields)), np.int64)
        self._parser.measure(self._table, ids, stored.values, stored.offsets, counts, self._rows.pool)
        batch: Batch = {}
        outs: list[Any] = [None] * len(self._fields)
        for name in fields:
            number = self._numbers[name]
            batch[name], outs[number] = self._column_of(name, ids, counts[:, number], out)
        items = [1 if _kind_of(name, one) == BYTES else one.dtype.itemsize for name, one in self._fields.items()]
        self._parser.read(stored.values, stored.offsets, counts, items, outs, self._rows.pool)
        for name in fields:
            if self._fields[name].kind == "text":
                check_texts(batch[name].values, batch[name].offsets, partial(self._no_text, name, ids))
        return batch

    def _column_of(self, name: str, ids: IntArray, counts: IntArray, out: Outputs) -> tuple[Any, Any]:
        """A field of a batch that is to be filled: itself, and for the parser where each record begins, and the bytes of all."""
        field, present = self._fields[name], counts >= 0
        if not field.nullable and not present.all():
            raise SchemaMismatchError(
                f"{self._where(ids[~present][0])}: expected feature {name!r}, found none: pass schema={{...}} with "
                f"{field.with_nullable(True)!r} for it"
            )
        if field.is_fixed:
            size = int(np.prod(field.shape))
            other = np.flatnonzero(present & (counts != size))
            if other.size:
                raise SchemaMismatchError(
                    f"{self._where(ids[other[0]])}: feature {name!r}: expected {size} values, found {counts[other[0]]}: give "
                    f"schema={{...}} with Field.ragged for it"
                )
            array = fixed_output(name, field, ids.size, out)
            array[~present] = 0
            starts = np.arange(ids.size, dtype=np.int64) * field.stride
            return masked(array, None if present.all() else present), (starts, array.reshape(-1).view(np.uint8))
        offsets = np.concatenate([[0], np.cumsum(np.maximum(counts, 0))]).astype(np.int64)
        item = field.dtype.itemsize
        check_batch(str(self._files[0]), int(offsets[-1]) * item)
        values = empty((int(offsets[-1]),), field.dtype)
        kind = "array" if field.kind == "ragged" else field.kind
        column = Ragged(values, offsets, kind, None, None if present.all() else present)
        return column, (offsets[:-1] * item, values.view(np.uint8))

    def _no_text(self, name: str, ids: IntArray, number: int) -> str:
        return f"{self._where(ids[number])}: feature {name!r}: the text is not UTF-8"

    def _identity(self) -> tuple[Any, ...]:
        return *super()._identity(), "example", [(name, repr(one.with_nullable(False))) for name, one in self._fields.items()]

    def _recipe(self) -> Recipe:
        return (ExampleSource, (self._files, self._name, self._how, self._fields))


class _Feature:
    """What some records say of a feature."""

    def __init__(self) -> None:
        self._kinds: set[int] = set()
        self._counts: set[int] = set()
        self._present = 0

    def add(self, record: int, kind: int, count: int) -> None:
        if kind:
            self._kinds.add(kind)
            self._counts.add(count)
            self._present += 1

    def field(self, name: str, records: int) -> Field:
        """The field that fits them."""
        nullable = self._present < records
        if len(self._kinds) != 1:
            what = "nothing but empty ones" if not self._kinds else "lists of several types"
            raise SchemaMismatchError(f"feature {name!r}: expected lists of one type, found {what}: pass schema={{...}}")
        (kind,) = self._kinds
        if kind == BYTES:
            if self._counts != {1}:
                raise SchemaMismatchError(
                    f"feature {name!r}: expected one byte string in a record, found {min(self._counts)} to {max(self._counts)}, "
                    "which no field can be: pass schema={...} without it"
                )
            return Field.bytes(nullable=nullable)
        dtype = "f4" if kind == FLOATS else "i8"
        if len(self._counts) > 1 or self._counts == {0}:
            return Field.ragged(dtype, nullable=nullable)
        (count,) = self._counts
        return Field(dtype, () if count == 1 else (count,), nullable=nullable)


def _kind_of(name: str, field: Field) -> int:
    """The kind of feature that a field is read from."""
    if field.kind in ("bytes", "text"):
        return BYTES
    if field.kind == "ragged" and field.ndim != 1:
        raise ValueError(f"field {name!r}: expected ragged arrays of one dimension, got {field!r}")
    if field.dtype not in (np.dtype("i8"), np.dtype("f4")):
        raise TypeError(f"field {name!r}: features are i8, f4, bytes or text, got {field!r}")
    return FLOATS if field.dtype == np.dtype("f4") else INTS
