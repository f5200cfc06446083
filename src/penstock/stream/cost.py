"""Costs: what samples cost, by the lengths of their documents or by a field. Nothing is read for a batch.

The costs of records are a table, read once when a loader is made: from the index of a field of varying length where the source has
one, from the field itself otherwise. So every rank deals by the same numbers, whatever can be read when a batch is made, and
prefetch can ask for costs while it has the memory of remote data locked.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.errors import WindowTooSmallError
from penstock.native import _core
from penstock.order.balance import Balance
from penstock.records import Source
from penstock.schema import Field
from penstock.stream.picks import MixedPicks, RecordPicks, SpanPicks

__all__ = ["Costing", "FieldLengths", "MixedCosts", "PieceCosts", "RecordCosts", "in_parts", "length_field", "read_lengths"]

AT_ONCE = 1 << 16
"""Records whose lengths are read at a time."""

Table = npt.NDArray[Any]


class Costing(Protocol):
    """Says what samples of a stream cost."""

    def of(self, picks: Any) -> Table:
        """A number for each sample."""

    def prepare(self) -> None:
        """Read what is needed; ValueError if a record has no cost."""


def length_field(schema: Mapping[str, Field], field: str | None) -> str:
    """The field of varying length by which records are measured: the given one, or the only one (loss masks apart)."""
    varying = [name for name, one in schema.items() if not one.is_fixed]
    if field is None:
        plain = [name for name in varying if name.rpartition(".")[2] != "loss_mask"] if len(varying) == 2 else varying
        if len(plain) == 1:
            return plain[0]
        if not varying:
            raise ValueError(f"records of the fields {list(schema)} all have one length, so there is nothing to go by")
        raise ValueError(f"several fields vary in length: choose field= among {varying}")
    if field not in schema:
        raise KeyError(f"unknown field {field!r}; there are {list(schema)}")
    if field not in varying:
        raise ValueError(
            f"field {field!r} is {schema[field]!r}, so that all records have one length: choose field= among {varying}"
        )
    return field


def read_lengths(source: Source, field: str) -> IntArray:
    """The lengths of all records of a field, as 4 bytes each if they fit."""
    parts = [
        found.astype(np.uint32) if found.min() >= 0 and found.max() < 2**32 else found
        for found in in_parts(len(source), lambda ids: source.lengths(field, ids))
    ]
    return np.concatenate(parts or [np.empty(0, np.int64)])


def in_parts(count: int, read: Callable[[IntArray], Table]) -> Iterator[Table]:
    """What ``read`` gives for ids 0, 1, ..., many at once; fewer where a window on remote data has no room for them."""
    low, size = 0, AT_ONCE
    while low < count:
        high = min(low + size, count)
        try:
            yield read(np.arange(low, high, dtype=np.int64))
        except WindowTooSmallError:
            if size == 1:
                raise
            size = max(1, (high - low) // 2)
        else:
            low = high


@dataclass(frozen=True, repr=False)
class FieldLengths:
    """The lengths of all records of a field, as a function: read when they are asked for."""

    source: Source = dataclass_field(compare=False)
    field: str

    def __call__(self) -> IntArray:
        return read_lengths(self.source, self.field)

    def __repr__(self) -> str:
        return f"those of {self.field!r}"


@dataclass(frozen=True, eq=False)
class RecordCosts:
    """Of records: by the length of a field, or by its value. Safe to use from several threads; a pickled copy reads again."""

    source: Source
    field: str
    balance: Balance

    @classmethod
    def checked(cls, source: Source, balance: Balance, hidden: Sequence[str] = ()) -> "RecordCosts":
        """ValueError, TypeError or KeyError if the source has no such costs. Fields in ``hidden`` are not delivered as they are."""
        schema = {name: field for name, field in source.schema.items() if name not in hidden}
        if balance.is_of_lengths:
            return cls(source, length_field(schema, balance.field), balance)
        if balance.by not in schema:
            raise KeyError(f"balance: expected 'attention', 'tokens' or a field, one of {list(schema)}, got {balance.by!r}")
        field = schema[balance.by]
        if field.is_fixed and (field.shape or field.dtype.kind not in "biuf"):
            raise TypeError(f"balance needs one real number per record, or a varying length; field {balance.by!r} is {field!r}")
        return cls(source, balance.by, balance)

    @cached_property
    def table(self) -> Table:
        """The length or the value of every record; 0 where it is missing."""
        if not self.source.schema[self.field].is_fixed:
            return read_lengths(self.source, self.field)
        source, name = self.source, self.field
        parts = in_parts(len(source), lambda ids: np.ma.filled(source.read(ids, [name])[name], 0))
        values: Table = np.concatenate([np.empty(0, source.schema[name].dtype), *parts])
        bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
        if bad.size:
            raise ValueError(
                f"balance by {self.field!r}: expected numbers of at least 0, record {int(bad[0])} has {values[bad[0]]}; "
                f"{bad.size} such records"
            )
        return values

    def prepare(self) -> None:
        _ = self.table

    def of(self, picks: RecordPicks) -> Table:
        found: Table = self.table[picks.ids]
        return self.balance.cost(found) if self.balance.is_of_lengths else found

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "field": self.field, "balance": self.balance}


@dataclass(frozen=True)
class PieceCosts:
    """Of packs: by the documents' pieces in each sequence, with the tokens that are added to them; padding costs nothing."""

    balance: Balance

    @classmethod
    def checked(cls, balance: Balance) -> "PieceCosts":
        if not balance.is_of_lengths or balance.field is not None:
            raise ValueError(
                "packed sequences are balanced by 'attention' or 'tokens', and have no other field: "
                f"got {balance.field or balance.by!r}"
            )
        return cls(balance)

    def prepare(self) -> None:
        """Documents are known."""

    def of(self, picks: SpanPicks) -> Table:
        found = np.empty(len(picks), np.uint64)
        if picks.documents is not None:
            owner = np.ascontiguousarray(picks.documents[:, 0])
            _core.piece_costs(picks.first, owner, np.ascontiguousarray(picks.counts), *self.balance.factors, found)
        return found


@dataclass(frozen=True)
class MixedCosts:
    """Of a mixture: those of its streams."""

    parts: tuple[Costing, ...]

    def prepare(self) -> None:
        for part in self.parts:
            part.prepare()

    def of(self, picks: MixedPicks) -> Table:
        found = [costing.of(part) for costing, part in zip(self.parts, picks.parts, strict=True) if part is not None]
        if not found:
            return np.empty(0, np.uint64)
        costs = np.empty(len(picks), np.result_type(*found))
        picks.gather(found, costs)
        return costs
