"""Certificate: which records a run was given, step by step, as a chain of digests that follows from the plan alone.

The digest of a step is the sha256 of what is in the global batch: ids, runs of tokens, streams and seeds, in the order of samples.
So it does not depend on the number of ranks, and no record is read for it. The chain begins with the identity of the data and goes
on with the step and the digest of every step that was delivered: two runs have the same chain exactly if they were given the same
batches of the same data in the same order.

A step counts as delivered where the log of losses has it. Where only some ranks logged it, its digest is that of their samples.

With digests of records, a certificate also has one of the contents of every step. All data is read once for them.
"""

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, shown, whole_number
from penstock.batch import Ragged
from penstock.conversion.reading import read_spans
from penstock.errors import CorruptError
from penstock.loader import Loader
from penstock.loader.schedule import Place
from penstock.native import _core
from penstock.records import Source
from penstock.stream import PackStream
from penstock.stream.picks import RecordPicks, flatten
from penstock.system import read_note, write_note
from penstock.trace.run import Run, global_place, leaf_names

__all__ = ["Certificate", "CertifiedSteps", "certify", "certify_run", "record_digests"]

KIND = "penstock certificate"
VERSION = 1
DIGEST_BYTES = 16
"""Bytes of the sha256 of a step that a certificate keeps; the chain has all of them."""

READ_BYTES = 16 << 20
MAX_BYTES = 1 << 32

MOST_MISSING = 1 << 24
"""Ranks that did not log a step, over all steps."""

Digests = npt.NDArray[np.uint8]
"""One row of bytes for each step."""


@dataclass(frozen=True)
class CertifiedSteps:
    """Steps [first, end) whose batches follow from one plan and one batch size."""

    first: int
    end: int
    order_version: int
    batch_size: int
    tail: str
    data: str
    samples: Mapping[str, str]
    plan: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Certificate:
    """What a run was given. ``partial`` has (step, ranks that did not log it, ranks of the run)."""

    steps: IntArray
    digests: Digests
    chain: str
    sections: tuple[CertifiedSteps, ...]
    partial: tuple[tuple[int, tuple[int, ...], int], ...] = ()
    contents: Digests | None = None
    records: Mapping[str, npt.NDArray[np.uint64]] = field(default_factory=dict)

    def section(self, step: int) -> CertifiedSteps | None:
        return next((one for one in self.sections if one.first <= step < one.end), None)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON."""
        write_note(path, KIND, VERSION, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """In plain JSON types; digests in base64."""
        return {
            "kind": KIND,
            "version": VERSION,
            "chain": self.chain,
            "num_steps": len(self.steps),
            "sections": [{**one.__dict__, "samples": dict(one.samples), "plan": dict(one.plan)} for one in self.sections],
            "steps": _runs(self.steps),
            "digests": _text(self.digests),
            "partial": [[step, list(ranks), world] for step, ranks, world in self.partial],
            "contents": None if self.contents is None else _text(self.contents),
            "records": {name: _text(values.astype("<u8")) for name, values in self.records.items()},
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Certificate":
        """Read one; FormatError if the file is something else, CorruptError if it is damaged."""
        found = read_note(path, KIND, VERSION, MAX_BYTES)
        try:
            return cls._parsed(found)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptError(f"{path}: damaged certificate: {type(error).__name__}: {shown(str(error))}") from error

    @classmethod
    def _parsed(cls, found: dict[str, Any]) -> "Certificate":
        count = whole_number("num_steps", found["num_steps"], least=1)
        digests, contents = _digests(found["digests"], count), found["contents"]  # which bounds what the ranges may say
        runs = np.array(found["steps"], np.int64).reshape(-1, 2)
        if (runs[:, 1] <= runs[:, 0]).any() or (runs.reshape(-1)[1:] < runs.reshape(-1)[:-1]).any() or (runs < 0).any():
            raise ValueError("steps that are no ranges of steps")
        if sum(high - low for low, high in runs.tolist()) != count:
            raise ValueError(f"ranges of other than {count} steps")
        steps = np.concatenate([np.arange(low, high) for low, high in runs.tolist()])
        return cls(
            steps,
            digests,
            str(found["chain"]),
            tuple(_section_of(one) for one in found["sections"]),
            tuple((int(step), tuple(map(int, ranks)), int(world)) for step, ranks, world in found["partial"]),
            None if contents is None else _digests(contents, count),
            {str(name): np.frombuffer(base64.b64decode(text), "<u8") for name, text in found["records"].items()},
        )


def _section_of(told: Any) -> CertifiedSteps:
    """TypeError if it is none."""
    made = CertifiedSteps(**told)
    numbers, texts = (made.first, made.end, made.order_version, made.batch_size), (made.tail, made.data)
    known = [one for plan in (made.samples, made.plan) for pair in plan.items() for one in pair]
    if not all(type(one) is int for one in numbers) or not all(isinstance(one, str) for one in (*texts, *known)):
        raise TypeError("a section of other types")
    return made


def _text(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _digests(text: str, count: int) -> Digests:
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(count, DIGEST_BYTES)


def _runs(steps: IntArray) -> list[list[int]]:
    """Steps in rising order as ranges [low, high)."""
    if len(steps) == 0:
        return []
    breaks = np.flatnonzero(np.diff(steps) != 1)
    lows, highs = np.append(steps[0], steps[breaks + 1]), np.append(steps[breaks], steps[-1]) + 1
    return np.column_stack([lows, highs]).tolist()  # type: ignore[no-any-return]


# The digest of a step


def _step_digest(picks: Any, padding: int) -> bytes:
    flat, sources = flatten(picks)
    digest = hashlib.sha256(repr((type(flat).__name__, len(picks), padding)).encode())
    columns: list[Any] = [sources]
    if isinstance(flat, RecordPicks):
        columns += [flat.ids, flat.weights, flat.seeds]
    else:
        columns += [flat.first, flat.starts, flat.counts, flat.documents]
    for column in columns:
        data = b"" if column is None else np.ascontiguousarray(column).tobytes()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _content_digest(picks: Any, records: Sequence[npt.NDArray[np.uint64]]) -> bytes:
    flat, sources = flatten(picks)
    if isinstance(flat, RecordPicks):
        ids, owner = flat.ids, sources
    else:
        assert flat.documents is not None
        runs = np.diff(flat.first)
        ids, owner = flat.documents[:, 0], None if sources is None else np.repeat(sources, runs)
    found = np.zeros(len(ids), np.uint64)
    for number, table in enumerate(records):
        mine = (ids >= 0) if owner is None else (ids >= 0) & (owner == number)
        found[mine] = table[ids[mine]]
    return hashlib.sha256(found.astype("<u8").tobytes()).digest()[:DIGEST_BYTES]


# Certificates of loaders and runs


@dataclass(frozen=True)
class _Delivered:
    """A step, the loader that has it, and the ranks that logged it with their samples; None for all."""

    step: int
    loader: Loader
    ranks: Mapping[int, IntArray] | None = None
    world: int = 1

    def picks(self, place: Place) -> Any:
        """What is in the global batch, or in the part of it that those ranks have."""
        picks = self.loader.work.picks(place)
        if self.ranks is None:
            return picks
        return picks.take(np.sort(np.concatenate([np.empty(0, np.int64), *self.ranks.values()])))


def certify(loader: Loader, steps: Iterable[int], *, records: bool = False) -> Certificate:
    """The certificate of a run of this loader that is given these steps. ``records`` adds digests of all records, which are read.

    >>> import numpy as np, penstock as pen
    >>> from penstock.trace import certify
    >>> data = pen.open({"x": np.arange(100)})
    >>> one = certify(pen.Loader(data.shuffle(seed=7), 8, shard=pen.Shard(1, 4)), range(20))
    >>> two = certify(pen.Loader(data.shuffle(seed=7), 8), range(20))
    >>> one.chain == two.chain, certify(pen.Loader(data.shuffle(seed=8), 8), range(20)).chain == one.chain
    (True, False)
    """
    return _certify([_Delivered(step, loader) for step in sorted(set(steps))], records)


def certify_run(run: Run, *, records: bool = False) -> Certificate:
    """The certificate of a run: of all steps in its log."""
    table = run.table
    worlds = table.worlds
    is_partial = table.ranks < worlds
    given = []
    for place, step in enumerate(table.steps.tolist()):
        ranks = {rank: run.samples_of(step, rank) for rank in table.of(step)} if is_partial[place] else None
        run.place(step)  # which refuses steps that the order does not have
        given.append(_Delivered(step, run.loader_at(step), ranks, int(worlds[place])))
    return _certify(given, records)


def _certify(given: Sequence[_Delivered], with_records: bool) -> Certificate:
    if not given:
        raise ValueError("expected at least one step to certify, got none")
    stream = given[0].loader.stream
    if with_records:
        _check_records(given[0].loader)
    tables = [record_digests(part.source) for part in stream.parts] if with_records else []
    digests, contents = [], []
    chain = b""
    for one in given:
        place = global_place(one.loader, one.step)
        picks = one.picks(place)
        full = _step_digest(picks, place.padding)
        chain = hashlib.sha256((chain or _begin(one.loader)) + one.step.to_bytes(8, "little") + full).digest()
        digests.append(full[:DIGEST_BYTES])
        if with_records:
            contents.append(_content_digest(picks, tables))
    missing = tuple(_missing(given))
    return Certificate(
        np.array([one.step for one in given], np.int64),
        _rows(digests),
        chain.hex(),
        tuple(_sections(given)),
        missing,
        _rows(contents) if with_records else None,
        dict(zip(leaf_names(stream), tables, strict=True)) if with_records else {},
    )


def _missing(given: Sequence[_Delivered]) -> Iterable[tuple[int, tuple[int, ...], int]]:
    """(step, ranks that did not log it, ranks of the run) of every step that not all ranks logged."""
    ranks, known, count = tuple[int, ...](), None, 0
    for one in given:
        if one.ranks is None:
            continue
        if known != (one.world, *one.ranks):
            known = (one.world, *one.ranks)
            ranks = tuple(rank for rank in range(one.world) if rank not in one.ranks)
        count += len(ranks)
        if count > MOST_MISSING:
            raise CorruptError(
                f"step {one.step} lacks {len(ranks)} of {one.world} ranks, and steps before it many others: "
                "certify the logs of all ranks together"
            )
        yield one.step, ranks, one.world


def _rows(digests: Sequence[bytes]) -> Digests:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_BYTES)


def _begin(loader: Loader) -> bytes:
    """What a chain begins with: the data and the version of the arithmetic."""
    state = loader.state_at(getattr(loader.schedule, "start", 0))
    samples = state["samples"]
    data = samples.get("few") or state["data"]  # of files and at URLs, however closely a loader looks at its data
    return hashlib.sha256(repr((KIND, VERSION, state["order_version"], data)).encode()).digest()


def _sections(given: Sequence[_Delivered]) -> Iterable[CertifiedSteps]:
    begin = 0
    for place in range(1, len(given) + 1):
        if place == len(given) or given[place].loader is not given[begin].loader:
            loader = given[begin].loader
            state = loader.state_at(getattr(loader.schedule, "start", 0))
            yield CertifiedSteps(
                given[begin].step,
                given[place - 1].step + 1,
                state["order_version"],
                state["batch_size"],
                getattr(loader.schedule, "tail", "keep"),
                state["data"],
                state["samples"],
                state["plan"],
            )
            begin = place


def _check_records(loader: Loader) -> None:
    for part in loader.stream.parts:
        if part.has_sequences and not (isinstance(part, PackStream) and part.documents.are_records):
            raise ValueError("digests of records need samples that are records, or packed documents that are: leave them out")


# Digests of records


def record_digests(source: Source) -> npt.NDArray[np.uint64]:
    """A number of 64 bits for every record, which is read for it: of all values, lengths and shapes. Equal for equal records."""
    names = list(source.schema)
    found: list[npt.NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for batch in read_spans(source, names, range(len(source)), READ_BYTES, as_columns=False):
        count = len(batch[names[0]]) if names else 0
        mixed = np.full(count, 0x9E3779B97F4A7C15, np.uint64)
        for name in names:
            for part in _parts(batch[name], count):
                mixed = (mixed ^ part) * np.uint64(0xD6E8FEB86659FD93)
                mixed ^= mixed >> np.uint64(32)
        found.append(mixed)
    return np.concatenate(found)


def _parts(column: Any, count: int) -> Iterable[npt.NDArray[np.uint64]]:
    """Numbers that every value of a column gives; two checksums of its bytes, with different beginnings, and its length."""
    if isinstance(column, Ragged):
        values = np.ascontiguousarray(column.values).reshape(-1).view(np.uint8)
        width = values.size // max(1, len(column.values)) if len(column.values) else 1
        offsets = np.asarray(column.offsets, np.int64) * width
        present = np.ones(count, np.bool_) if column.present is None else np.asarray(column.present)
        yield np.diff(offsets).astype(np.uint64)
        yield present.astype(np.uint64)
        if column.shapes is not None:
            shapes = np.ascontiguousarray(column.shapes, np.int64)
            yield _checksums(shapes.reshape(-1).view(np.uint8), np.arange(1, count + 1) * (shapes.nbytes // max(1, count)))
        values = values[offsets[0] :] if count else values
        yield _checksums(values[: offsets[-1] - offsets[0]] if count else values, offsets[1:] - offsets[0])
        return
    plain: npt.NDArray[Any] = np.asarray(column)
    if isinstance(column, np.ma.MaskedArray):
        mask: npt.NDArray[np.bool_] = np.ma.getmaskarray(column)
        yield np.asarray(mask.reshape(count, -1).any(axis=1), np.uint64)
        plain = np.where(mask, np.zeros((), column.dtype), column.data)
    data = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
    yield _checksums(data, np.arange(1, count + 1) * (data.size // max(1, count)))


def _checksums(data: npt.NDArray[np.uint8], ends: IntArray) -> npt.NDArray[np.uint64]:
    found = np.empty(len(ends), np.uint32)
    _core.crc32c_spans(np.ascontiguousarray(data), np.ascontiguousarray(ends, np.uint64), found)
    return found.astype(np.uint64)
