"""A source from end to end: runs of records, tasks, what cannot be read, the digest of all, and parts by a hash.

Parts: the same records are in the same part for all time, whatever is appended. Part k has the records whose 64-bit hash is in
[floor(F(k) * 2**64), floor(F(k + 1) * 2**64)), F(k) being the exact sum of the fractions before it. So a part depends on nothing
but its own fraction and those before it.
"""

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import exact_fraction, shown, whole_number
from penstock.batch import Batch, Ragged, check_told
from penstock.errors import PenstockError, SchemaMismatchError
from penstock.native import _core
from penstock.order.permutation import MAX_SEED, Purpose, absorb_all, derive_root
from penstock.progress import Progress, reporting
from penstock.records import Blocks, Source, provide
from penstock.schema import Field
from penstock.store.reader import Store

__all__ = [
    "Task",
    "bounds_of",
    "hash_values",
    "load",
    "next_span",
    "plan",
    "read_all",
    "read_spans",
    "rows_of_chunk",
    "spans_of",
    "split",
]

Spans = Generator[tuple[int, int], int, None]
"""Ids [low, high) after each other; the bytes of each are sent in before the next."""

FIRST_RECORDS = 256


def spans_of(source: Source, fields: Sequence[str], ids: range, batch_bytes: int) -> Spans:
    """Runs of records of about ``batch_bytes``: as many as the size of the last run suggests. They end where blocks end if blocks
    are read as a whole. The same runs for the same arguments.
    """
    low, known = ids.start, [source.schema[name] for name in fields]
    is_fixed = all(field.is_fixed for field in known)
    step = max(1, batch_bytes // max(1, sum(field.stride for field in known))) if is_fixed else FIRST_RECORDS
    blocks = whole_blocks(source)
    while low < ids.stop:
        high = min(ids.stop, low + step)
        if blocks is not None:
            high = min(ids.stop, blocks[int(blocks.of(np.array([high - 1]))[0])].stop)
        size = yield low, high
        step = max(1, min(4 * (high - low), int((high - low) * batch_bytes / max(1, size))))
        low = high


def whole_blocks(source: Source) -> Blocks | None:
    """The blocks, if they are read as a whole. Those at URLs, which can be whole files, are not: any range can be fetched."""
    return source.blocks if source.reads_blocks and source.remote is None else None


def next_span(spans: Spans, size: int) -> tuple[int, int] | None:
    """The next run, after one of ``size`` bytes; None at the end."""
    try:
        return spans.send(size)
    except StopIteration:
        return None


def load(source: Source, low: int, high: int, fields: Sequence[str], *, as_columns: bool = True) -> tuple[Any, int]:
    """Records [low, high) and their size in bytes; those of a store as a writer takes them, without a loss."""
    ids = np.arange(low, high)
    if as_columns and isinstance(source, Store):
        columns = source.columns(ids, fields)
        return columns, sum(column.values.nbytes for column in columns.values())
    batch: Batch = source.read(ids, fields)
    return batch, sum(c.values.nbytes if isinstance(c, Ragged) else c.nbytes for c in batch.values())


def read_spans(source: Source, fields: Sequence[str], ids: range, batch_bytes: int, *, as_columns: bool) -> Generator[Batch]:
    """The records of a run of ids, batch by batch."""
    with closing(spans_of(source, fields, ids, batch_bytes)) as spans:
        span = next(spans, None)
        while span is not None:
            batch, size = load(source, *span, fields, as_columns=as_columns)
            yield batch
            span = next_span(spans, size)


SAMPLE_RUNS = 4
SAMPLE_RECORDS = 64
FILL = 15 / 16
"""How full a chunk is meant to be where sizes are only guessed: two chunks, one of them nearly empty, would be worse."""


@dataclass(frozen=True)
class Task:
    """Task ``number`` of ``tasks``: the records [low, high) of the source."""

    number: int
    tasks: int
    low: int
    high: int


def plan(source: Source, task_records: int, *, by_blocks: bool = False) -> list[Task]:
    """Runs of about ``task_records`` records. They end where blocks end if blocks are read as a whole, or if ``by_blocks`` says so.
    A source of no records has one task.
    """
    blocks, low, cuts = source.blocks if by_blocks else whole_blocks(source), 0, [0]
    while low < len(source):
        low = min(len(source), low + task_records)
        if blocks is not None:
            low = blocks[int(blocks.of(np.array([low - 1]))[0])].stop
        cuts.append(low)
    runs = list(pairwise(cuts)) or [(0, 0)]
    return [Task(number, len(runs), *run) for number, run in enumerate(runs)]


def rows_of_chunk(source: Source, fields: Sequence[str], chunk_bytes: int, chunk_records: int) -> int:
    """How many records fill a chunk: exactly where all have one size; else guessed from a few here and there."""
    stride = sum(source.schema[name].stride for name in fields if source.schema[name].is_fixed)
    varying = [name for name in fields if not source.schema[name].is_fixed]
    if not varying or len(source) == 0:
        return max(1, min(chunk_records, chunk_bytes // max(1, stride)))
    ids = _sample(len(source))
    sizes = sum(source.lengths(name, ids) * source.schema[name].dtype.itemsize for name in varying)
    mean = stride + float(np.mean(sizes))
    return max(1, min(chunk_records, int(FILL * chunk_bytes / max(1.0, mean))))


def _sample(length: int) -> list[int]:
    """A few runs of ids, spread over the source."""
    firsts = {length * run // SAMPLE_RUNS for run in range(SAMPLE_RUNS)}
    return sorted({id for first in firsts for id in range(first, min(length, first + SAMPLE_RECORDS))})


READ_BYTES = 16 << 20
"""About what is read at a time."""


@dataclass(frozen=True)
class UnreadableBlock:
    """The first record of a block that cannot be read, and why."""

    block: int
    record: int
    what: str


def read_all(source: Source, *, progress: Progress | None = None) -> list[UnreadableBlock]:
    """Read every record once; of each block, returns the first one that cannot be read. The rest of such a block is left out."""
    spans = spans_of(source, list(source.schema), range(len(source)), READ_BYTES)
    found: dict[int, UnreadableBlock] = {}
    span = next(spans, None)
    while span is not None:
        size, problem = _try(source, *span)
        if problem is not None:
            found |= {one.block: one for one in _problems(source, *span, problem, found)}
        if progress is not None:
            progress(span[1] - span[0], size)
        span = next_span(spans, size or READ_BYTES)
    return [found[block] for block in sorted(found)]


def _problems(source: Source, low: int, high: int, why: str, known: dict[int, UnreadableBlock]) -> Iterator[UnreadableBlock]:
    """What is wrong in a run of records that could not be read, block by block. What went wrong once and not again counts too."""
    blocks = source.blocks
    first, last = (int(block) for block in blocks.of(np.array([low, high - 1])))
    is_explained = not known.keys().isdisjoint(range(first, last + 1))
    for block in range(first, last + 1):
        ids = blocks[block]
        if block not in known and (problem := _first(source, max(low, ids.start), min(high, ids.stop))) is not None:
            is_explained = True
            yield UnreadableBlock(block, *problem)
    if not is_explained:
        yield UnreadableBlock(first, low, why)


def _first(source: Source, low: int, high: int) -> tuple[int, str] | None:
    """The first record of a run that cannot be read, and why, by halving."""
    _, problem = _try(source, low, high)
    while problem is not None and high - low > 1 and not source.reads_blocks:
        middle = (low + high) // 2
        _, below = _try(source, low, middle)
        low, high, problem = (low, middle, below) if below is not None else (middle, high, problem)
    return None if problem is None else (low, problem)


def _try(source: Source, low: int, high: int) -> tuple[int, str | None]:
    """Read records; their bytes, and what went wrong."""
    try:
        _, size = load(source, low, high, list(source.schema), as_columns=False)
    except (PenstockError, OSError, ValueError) as error:
        return 0, str(error) or type(error).__name__
    return size, None


def digest_all(source: Source, progress: Progress | bool | None = None) -> str:
    """The sha256 of all records: see :meth:`penstock.Source.digest`."""
    fields = {name: _Digest(field) for name, field in source.schema.items()}
    spans = spans_of(source, list(fields), range(len(source)), READ_BYTES)
    with reporting(progress, "digest", len(source)) as report:
        span = next(spans, None)
        while span is not None:
            batch, size = load(source, *span, list(fields), as_columns=False)
            for name, digest in fields.items():
                check_told(name, batch[name])
                digest.add(batch[name])
            if report is not None:
                report(span[1] - span[0], size)
            span = next_span(spans, size)
    found = [(name, *digest.found()) for name, digest in fields.items()]
    return hashlib.sha256(repr(("records", len(source), found)).encode()).hexdigest()


class _Digest:
    """Of one field: of values, lengths, shapes and what is there, each by itself, so that the runs they come in do not matter."""

    def __init__(self, field: Field) -> None:
        self._about = (field.kind, field.element, field.shape, field.ndim)
        self._parts = [hashlib.sha256() for _ in range(4)]

    def add(self, column: Any) -> None:
        """Some records more."""
        for digest, part in zip(self._parts, _arrays(column), strict=True):
            if part is not None and part.nbytes:
                digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)

    def found(self) -> tuple[object, ...]:
        """What the field is, and the digests."""
        return (*self._about, [digest.hexdigest() for digest in self._parts])


def _arrays(column: Any) -> tuple[Any, Any, Any, Any]:
    """Values, lengths, shapes and which are there. Values of missing records are 0, whatever the memory holds."""
    if isinstance(column, Ragged):
        return column.values, column.lengths, column.shapes, _present(column)
    plain, missing = np.ma.getdata(column), np.ma.getmaskarray(column)
    values = np.where(missing, np.zeros((), plain.dtype), plain) if missing.any() else plain
    return values, None, None, ~missing.reshape(len(column), -1).any(axis=1) if missing.size else None


Words = npt.NDArray[np.uint64]

HASHED = 1 << 16
"""Ids that are hashed at a time: few enough for the cache of a processor."""

MOST_PARTS = 1 << 16


def split(source: Source, parts: Mapping[str, float], seed: int, by: str | None) -> dict[str, Source]:
    """See :meth:`penstock.Source.split`."""
    bounds = bounds_of(parts)
    root = derive_root(whole_number("seed", seed, most=MAX_SEED), 0, Purpose.SPLIT)
    if by is not None:
        _check_field(source.schema, by)
    which = np.empty(len(source), np.uint8 if len(bounds) < 256 else np.uint32)  # the part of each record; one more: none
    low = 0
    for words in _hashes_of_ids(root, len(source)) if by is None else _hashes_of_field(root, source, by):
        which[low : low + words.size] = np.searchsorted(bounds, words, side="right")
        low += words.size
    return {name: source.select(np.flatnonzero(which == number)) for number, name in enumerate(parts)}


def bounds_of(parts: Mapping[str, float]) -> Words:
    """Where each part ends, in the order given: the first hash behind it. One at 2**64 is left out, as no hash is there."""
    if not isinstance(parts, Mapping):
        raise TypeError(f"parts must be a dict of fractions by name, got {shown(parts)}")
    if not 1 <= len(parts) < MOST_PARTS:
        raise ValueError(f"expected 1 to {MOST_PARTS - 1} parts, got {len(parts)}")
    for name, fraction in parts.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a part must be a text, got {shown(name)}")
        if not isinstance(fraction, Real | Fraction) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise ValueError(f"part {name!r}: expected a fraction in [0, 1], got {shown(fraction)}")
    ends = list(accumulate(exact_fraction(fraction) for fraction in parts.values()))
    if ends[-1] > 1:
        raise ValueError(
            f"the fractions must be at most 1 together, got {float(ends[-1])!r} ({shown(dict(parts))}); "
            "sums such as 0.1 + 0.2 are exact as fractions.Fraction"
        )
    whole = (int(end * 2**64) for end in ends)
    return np.array([end for end in whole if end < 2**64], np.uint64)


def _hashes_of_ids(root: int, length: int) -> Any:
    for low in range(0, length, HASHED):
        yield absorb_all(root, np.arange(low, min(length, low + HASHED), dtype=np.uint64))


def _hashes_of_field(root: int, source: Source, name: str) -> Any:
    """Those of all values of a field, which is read once, batch by batch."""
    low = 0
    with closing(read_spans(source, [name], range(len(source)), READ_BYTES, as_columns=False)) as batches:
        for batch in batches:
            column = batch[name]
            missing = ~_present(column)
            if missing.any():
                raise SchemaMismatchError(
                    f"field {name!r}: record {low + int(np.argmax(missing))} has no value, so it belongs to no part: "
                    "split by another field, or select the records that have one first"
                )
            yield hash_values(root, column)
            low += len(column)


def _present(column: Any) -> npt.NDArray[np.bool_]:
    if isinstance(column, Ragged):
        return np.ones(len(column), np.bool_) if column.present is None else column.present
    return np.logical_not(np.ma.getmaskarray(column))


def hash_values(root: int, column: Any) -> Words:
    """The hash of every value: of a byte string or the UTF-8 of a text, or of a whole number, whatever its width."""
    if isinstance(column, Ragged):
        out = np.empty(len(column), np.uint64)
        _core.absorb_strings(root, np.ascontiguousarray(column.values), np.ascontiguousarray(column.offsets), out)
        return out
    plain = np.ma.getdata(column)
    return absorb_all(root, plain.astype(np.int64).view(np.uint64) if plain.dtype.kind == "i" else plain.astype(np.uint64))


def _check_field(schema: Mapping[str, Field], name: str) -> None:
    """Values that are equal if and only if their bytes are: no floats, and no arrays."""
    if name not in schema:
        raise KeyError(f"unknown field {name!r}; there are {list(schema)}")
    field = schema[name]
    is_number = field.kind == "fixed" and field.shape == () and field.dtype.kind in "biu"
    if not is_number and field.kind not in ("text", "bytes"):
        raise TypeError(f"a split is by texts, bytes or whole numbers, field {name!r} is {field!r}")


provide(digest=digest_all, split=split)
