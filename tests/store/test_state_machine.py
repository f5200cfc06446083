"""A store beside a list of dicts: any sequence of changes, commits, reopenings and collections, with readers kept open."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, precondition, rule
from tests.store.records import Record, assert_batch, assert_store, delete, without_fsync

import penstock as pen
from penstock import Field
from penstock.errors import SnapshotExpiredError
from penstock.store import Store, stats

FIELDS = {
    "label": Field("i4"),
    "pair": Field("f4", (2,), codec=pen.Zstd()),
    "boxes": Field.ragged("u1", 2, codec=pen.LZ4()),
    "blob": Field.bytes(),
    "caption": Field.text(codec=pen.Deflate()),
}

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "label": st.integers(-3, 3).map(np.int32),
    "pair": st.tuples(st.integers(-2, 2), st.integers(-2, 2)).map(lambda pair: np.array(pair, np.float32)),
    "boxes": st.tuples(st.integers(0, 2), st.integers(0, 2)).map(lambda shape: np.full(shape, 7, np.uint8)),
    "blob": st.integers(0, 3).map(lambda n: b"\0ab"[:n]) | st.integers(0, 2000).map(bytes),
    "caption": st.integers(0, 30).map(lambda n: "grüße "[: n % 7] * n),
}
ANY_VALUE = {name: st.none() | values for name, values in VALUES.items()}
RECORDS = st.lists(st.fixed_dictionaries(ANY_VALUE), max_size=6)
IDS = st.lists(st.integers(0, 10**6), max_size=4)

Seen = tuple[Store, tuple[Record, ...]]


class StoreMachine(RuleBasedStateMachine):
    """The writer is open all the time but while others need the lock."""

    readers: Bundle[Seen] = Bundle("readers")

    @initialize(chunk_records=st.sampled_from([1, 3, 10, 1000]), threads=st.sampled_from([1, 2]))
    def create(self, chunk_records: int, threads: int) -> None:
        self.threads, self.stack = threads, contextlib.ExitStack()
        self.path = self.place()
        self.writer = pen.create(self.path, FIELDS, chunk_bytes=4096, chunk_records=chunk_records, threads=threads)
        self.records: list[Record] = []
        self.history: dict[int, tuple[Record, ...]] = {}
        self.changed = True
        self.commit()

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            self.stack.close()

    def place(self) -> Any:
        """Where the store is going to be."""
        self.stack.enter_context(without_fsync())
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "a.pen"

    def chosen(self, ids: Sequence[int]) -> list[int]:
        return [i % len(self.records) for i in ids] if self.records else []

    # Changes

    @rule(batch=RECORDS)
    def extend(self, batch: list[Record]) -> None:
        first = len(self.records)
        made = self.writer.extend({name: [record[name] for record in batch] for name in FIELDS})
        assert made == range(first, first + len(batch))
        self.records += batch
        self.changed |= bool(batch)

    @rule(record=st.fixed_dictionaries({}, optional=ANY_VALUE).filter(bool))
    def append(self, record: Record) -> None:
        assert self.writer.append(record) == len(self.records)
        self.records.append({name: record.get(name) for name in FIELDS})
        self.changed = True

    @rule(ids=IDS, names=st.sets(st.sampled_from(sorted(FIELDS)), min_size=1), data=st.data())
    def update(self, ids: list[int], names: set[str], data: st.DataObject) -> None:
        wanted = self.chosen(ids)
        batch = {name: data.draw(st.lists(ANY_VALUE[name], min_size=len(wanted), max_size=len(wanted))) for name in sorted(names)}
        self.writer.update([i - len(self.records) if i % 2 else i for i in wanted], batch)
        for place, record in enumerate(wanted):
            self.records[record] = self.records[record] | {name: batch[name][place] for name in names}
        self.changed |= bool(wanted)

    @rule(ids=IDS)
    def delete(self, ids: list[int]) -> None:
        wanted = self.chosen(ids)
        assert self.writer.delete(wanted) == delete(self.records, wanted)
        self.changed |= bool(wanted)

    @precondition(lambda self: len(self.records) > 3)
    @rule()
    def delete_most(self) -> None:
        wanted = range(1, len(self.records) - 1)
        assert self.writer.delete(wanted) == delete(self.records, wanted)
        self.changed = True

    @rule()
    def refused_changes_change_nothing(self) -> None:
        with pytest.raises(ValueError, match="do not fit"):
            self.writer.extend({"label": [1, 2**40]})
        with pytest.raises(IndexError):
            self.writer.delete([len(self.records)])
        with pytest.raises(IndexError):
            self.writer.update([-len(self.records) - 1], {"label": [1]})
        with pytest.raises(ValueError, match="unknown fields"):
            self.writer.extend({"nothing": [1]})

    # Transactions

    @rule()
    def commit(self) -> None:
        expected = self.writer.generation + self.changed
        assert self.writer.commit() == self.writer.generation == expected
        self.history[expected], self.changed = tuple(self.records), False

    def forget(self) -> None:
        self.records, self.changed = list(self.history[max(self.history)]), False

    @rule()
    def abort(self) -> None:
        self.writer.abort()
        self.forget()

    @rule()
    def reopen(self) -> None:
        self.writer.close()
        self.writer = pen.open(self.path, mode="a", threads=self.threads)
        self.forget()

    # Maintenance

    @rule()
    def rebalance(self) -> None:
        self.writer.close()
        self.forget()
        done = pen.rebalance(self.path, threads=self.threads)
        assert (done.after.records, done.after.redirects, done.after.utilisation) == (len(self.records), 0, 1.0)
        self.history[done.after.generation] = tuple(self.records)
        self.writer = pen.open(self.path, mode="a", threads=self.threads)

    @rule(keep=st.integers(1, 4))
    def collect(self, keep: int) -> None:
        self.writer.close()
        self.forget()
        kept = pen.gc(self.path, keep=keep, keep_hours=0).kept_generations
        assert list(kept) == sorted(self.history)[-keep:]
        self.history = {generation: self.history[generation] for generation in kept}
        assert pen.gc(self.path, keep=keep, keep_hours=0).files == ()
        self.writer = pen.open(self.path, mode="a", threads=self.threads)

    # Readers

    @rule(target=readers, io=st.sampled_from(["map", "pread", "direct"]))
    def look(self, io: str) -> Seen:
        store = pen.open(self.path, io=io, threads=self.threads)
        assert store.generation == max(self.history)
        assert_store(store, self.history[store.generation])
        return store, self.history[store.generation]

    @rule(target=readers, which=st.integers(0, 99))
    def look_back(self, which: int) -> Seen:
        generation = sorted(self.history)[which % len(self.history)]
        store = pen.open(self.path, generation=generation)
        assert store.generations() == sorted(self.history)
        assert_store(store, self.history[generation])
        return store, self.history[generation]

    @rule(seen=readers, ids=IDS)
    def look_again(self, seen: Seen, ids: list[int]) -> None:
        store, records = seen
        assert_store(store, records)
        wanted = [i % len(records) for i in ids] if records else []
        assert_batch(store.read(wanted, fields=["caption", "label"]), [records[i] for i in wanted])

    @rule(target=readers, seen=consumes(readers))
    def refresh(self, seen: Seen) -> Any:
        store, records = seen
        newer = store.refresh()
        assert newer.generation == max(self.history)
        assert_store(newer, self.history[newer.generation])
        assert_store(store, records)
        store.close()
        return multiple((newer, self.history[newer.generation]))

    @rule()
    def a_collected_generation_is_named(self) -> None:
        gone = min(self.history) - 1
        with pytest.raises(SnapshotExpiredError, match=f"generation {gone}"):
            pen.open(self.path, generation=gone)

    @rule()
    def figures_and_checksums_hold(self) -> None:
        assert pen.verify(self.path) == []
        figures = stats(pen.open(self.path))
        assert figures.records == len(self.history[max(self.history)])
        assert 0 <= figures.live_bytes <= figures.stored_bytes

    @invariant()
    def length_is_that_of_the_list(self) -> None:
        if hasattr(self, "writer"):
            assert len(self.writer) == len(self.records)


StoreMachine.TestCase.settings = settings(max_examples=settings.default.max_examples, stateful_step_count=50)  # type: ignore[union-attr]
TestStore = StoreMachine.TestCase
