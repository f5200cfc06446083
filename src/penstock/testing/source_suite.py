"""SourceSuite: the conformance tests that every source inherits. ResumeSuite: those that a loader resumes exactly.

A subclass says how to make its data and what must come out; pytest runs every test below on it::

    class TestMine(SourceSuite):
        def make(self, directory):
            write_my_file(directory / "data.mine", [1, 2, 3])
            return open_mine(directory / "data.mine")

        def records(self):
            return [{"x": np.int64(1)}, {"x": np.int64(2)}, {"x": np.int64(3)}]

Have missing values, empty ones and awkward sizes among the records. Texts are ``str``, byte strings ``bytes``, missing values None,
everything else numpy arrays or scalars, compared with their types.

Of a loader, a subclass says how it is made::

    class TestMine(ResumeSuite):
        def make(self):
            return pen.Loader(pen.open("train.pen").shuffle(seed=7), batch_size=256)

That ``make`` is called again whenever a test wants a loader without a history, so it must give equal loaders every time. Runs are
looked at for an epoch and a little more, at most ``most_steps`` batches.
"""

import hashlib
import json
import os
import pickle
import random
import select
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.batch import Batch, Ragged, fields_of
from penstock.errors import StateError, StateMismatchError
from penstock.loader import Loader
from penstock.loader.resume_check import verify_resume
from penstock.native import _core
from penstock.records import Source

__all__ = ["ResumeSuite", "SourceSuite", "assert_batch", "assert_same", "assert_typed", "digest", "run_in_fork"]

DEADLINE_S = 60  # how long a child may take; a hang is a failure, not a wait

Record = dict[str, Any]


class SourceSuite:
    """Inherit, and give :meth:`make` and :meth:`records`."""

    equal_when_written_again: ClassVar[bool] = True
    """The same data written a second time has the same fingerprint; a store has an identity of its own."""

    def make(self, directory: Path) -> Source:
        """Write the data somewhere in an empty directory, and open it."""
        raise NotImplementedError(f"{type(self).__name__} must define make(directory) -> a source")

    def records(self) -> list[Record]:
        """What is in it, record by record."""
        raise NotImplementedError(f"{type(self).__name__} must define records() -> a list of dicts")

    @pytest.fixture
    def source(self, tmp_path: Path) -> Iterator[Source]:
        made = self.make(tmp_path)
        yield made
        made.close()

    @pytest.fixture
    def expected(self) -> list[Record]:
        return self.records()

    # What there is

    def test_source_has_its_length_and_fields(self, source: Source, expected: list[Record]) -> None:
        assert isinstance(source, Source)
        assert len(source) == len(expected)
        for record in expected:
            assert list(record) == list(source.schema)
        assert repr(source)

    def test_blocks_cover_all_records_in_order(self, source: Source, expected: list[Record]) -> None:
        """Every id is in exactly one block, and ``of`` knows which."""
        blocks = source.blocks
        ids = [i for number in range(len(blocks)) for i in blocks[number]]
        assert ids == list(range(len(expected)))
        assert blocks.size >= max((len(blocks[number]) for number in range(len(blocks))), default=1)
        of = blocks.of(np.arange(len(expected)))
        assert [number for number in range(len(blocks)) for _ in blocks[number]] == of.tolist()
        assert isinstance(source.reads_blocks, bool)

    # Reading

    def test_every_record_is_right_by_itself(self, source: Source, expected: list[Record]) -> None:
        """``source[i]``, with i from both ends."""
        for i, record in enumerate(expected):
            assert_record(source[i], record)
        for i in range(0, len(expected), 4):
            assert_record(source[i - len(expected)], expected[i])

    def test_batches_are_right_whatever_the_ids(self, source: Source, expected: list[Record]) -> None:
        """Order and duplicates of the request are kept; slices, masks and negative ids are as in numpy."""
        n = len(expected)
        keys: list[Any] = [slice(None), slice(1, None, 2), slice(None, None, -1), [], np.arange(n)[::-1], np.zeros(n, np.bool_)]
        if n:
            rng = np.random.default_rng(n)
            keys += [[0, 0, n - 1, 0], rng.integers(-n, n, 3 * n), rng.random(n) < 0.5, [-1], np.array([0], np.uint8)]
        for key in keys:
            wanted = np.arange(n)[key] if isinstance(key, slice) or len(key) else []
            assert_batch(source[key], [expected[i] for i in wanted])

    def test_fields_can_be_chosen(self, source: Source, expected: list[Record]) -> None:
        """``read(ids, fields)`` gives those in that order, and ``source[field]`` one."""
        names = list(source.schema)[::-1]
        for chosen in [names, names[:1], []]:
            batch = source.read(np.arange(len(expected)), chosen)
            assert list(batch) == chosen
            assert_batch(batch, [{name: record[name] for name in chosen} for record in expected])
        for name in names:
            assert len(source[name]) == len(expected)
            assert_batch({name: source[name][::2]}, [{name: record[name]} for record in expected[::2]])
            if expected:
                assert_same(source[name][len(expected) // 2], expected[len(expected) // 2][name])

    def test_types_of_batches_follow_from_the_schema(self, source: Source, expected: list[Record]) -> None:
        """Nullable fields are masked arrays, or Ragged with ``present``, in every batch; others in none. Missing values need it."""
        read: set[tuple[int, ...]] = set()  # many fields miss the same values, or none
        for name, field in source.schema.items():
            missing = [i for i, record in enumerate(expected) if record[name] is None]
            assert field.nullable or not missing, f"field {name!r} has missing values, its schema says nullable=False"
            there = [i for i in range(len(expected)) if i not in set(missing)]
            for ids in ([], there, missing, list(range(len(expected)))):
                assert_typed({name: source[name][ids]}, source)
                if tuple(ids) not in read:
                    assert_typed(source.read(ids), source)
                    read.add(tuple(ids))
            part = source.select(there).pick(name)
            assert part.schema[name].nullable == field.nullable
            assert_typed(part[:], part)

    def test_given_arrays_are_filled(self, source: Source, expected: list[Record]) -> None:
        """``out=`` takes arrays for fixed fields."""
        ids = np.arange(len(expected))[::-1].copy()
        fixed = {name: field for name, field in source.schema.items() if field.is_fixed}
        out = {name: np.zeros((ids.size, *field.shape), field.dtype) for name, field in fixed.items()}
        batch = source.read(ids, out=out)
        assert_batch(batch, expected[::-1])
        for name, array in out.items():
            assert np.asarray(batch[name]).base is array or np.shares_memory(np.asarray(batch[name]), array) or array.nbytes == 0

    def test_native_readers_read_what_read_reads(self, source: Source, expected: list[Record]) -> None:
        """Readers of rows; those of stores are compared by the tests of the loader."""
        ids = np.random.default_rng(9).integers(0, max(1, len(expected)), 3 * len(expected))
        for name, field in source.schema.items():
            found = source.native_reader(name)
            if found is None or not isinstance(found[0], _core.RowReader):
                continue
            assert field.is_fixed
            assert not field.nullable
            out = np.zeros((ids.size, *field.shape), field.dtype)
            with source.hold(ids, ids + 1):
                found[0].read(ids, 1, out.reshape(-1).view(np.uint8), _core.ThreadPool(2))
            assert out.tobytes() == source.read(ids, [name])[name].tobytes(), name

    def test_bad_requests_are_refused(self, source: Source, expected: list[Record]) -> None:
        """Ids out of range, unknown fields and arrays of another shape raise, and nothing breaks."""
        n = len(expected)
        for outside in (n, -n - 1, 2**63 - 1, -(2**63)):
            with pytest.raises(IndexError):
                source[outside]
            with pytest.raises(IndexError):
                source[[0, outside] if n else [outside]]
        for bad in (0.5, [0.5], [[0]], "no such field", None):
            with pytest.raises((IndexError, KeyError)):
                source[bad]
        with pytest.raises(KeyError):
            source.read([], ["no such field"])
        with pytest.raises(ValueError, match="out"):
            source.read([], [], {name: np.empty(0, field.dtype) for name, field in source.schema.items()})
        for name, field in source.schema.items():
            with pytest.raises(ValueError, match="out"):
                source.read([], out={name: np.empty((1, *field.shape), field.dtype)})
        assert_batch(source[:], expected)

    def test_batches_are_not_overwritten_by_later_ones(self, source: Source, expected: list[Record]) -> None:
        """A batch belongs to the caller."""
        n = len(expected)
        held = [(i, source[[i] * 20]) for i in range(0, n, 1 + n // 16)]
        for i, batch in held:
            assert_batch(batch, [expected[i]] * 20)

    # Several threads and processes

    def test_threads_share_a_source(self, source: Source, expected: list[Record]) -> None:
        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(4):
                ids = rng.integers(0, len(expected), 12) if expected else np.empty(0, np.int64)
                assert_batch(source[ids], [expected[i] for i in ids])

        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(work, seed) for seed in range(6)]:
                done.result(DEADLINE_S)

    def test_forked_children_read(self, source: Source, expected: list[Record]) -> None:
        """Before and after the parent has read; parent and child give the same."""
        for _ in range(2):
            assert run_in_fork(lambda: digest(source[:])) == digest(expected)
            assert_batch(source[:], expected)

    def test_pickled_sources_read_here_and_in_a_new_process(self, source: Source, expected: list[Record]) -> None:
        """A pickle is a recipe: it opens an equal source."""
        recipe = pickle.dumps(source)
        with pickle.loads(recipe) as twin:
            assert twin.fingerprint == source.fingerprint
            assert twin.schema == source.schema
            assert_batch(twin[:], expected)
        assert self.digest_in_new_process(recipe) == digest(expected)

    def digest_in_new_process(self, recipe: bytes) -> str:
        """What a new process reads from a pickled source, as a digest; where that fails, what it said."""
        code = (
            "import pickle, sys; from penstock.testing.source_suite import digest; print(digest(pickle.load(sys.stdin.buffer)[:]))"
        )
        done = subprocess.run([sys.executable, "-c", code], input=recipe, capture_output=True, timeout=DEADLINE_S, check=False)
        return (done.stdout or done.stderr).decode().strip()

    def test_fingerprints_are_equal_for_equal_data(self, source: Source, tmp_path: Path) -> None:
        if not self.equal_when_written_again:
            return
        other = tmp_path / "other"
        other.mkdir()
        with self.make(other) as twin:
            assert twin.fingerprint == source.fingerprint
            assert len(source.fingerprint) >= 32

    # Life

    def test_closing_twice_does_no_harm(self, tmp_path: Path, expected: list[Record]) -> None:
        """What was read stays valid; descriptors are given back."""
        before = set(os.listdir("/proc/self/fd"))
        with self.make(tmp_path) as source:
            batch = source[:]
        source.close()
        assert set(os.listdir("/proc/self/fd")) <= before
        assert_batch(batch, expected)

    # Sources made of this one

    def test_selections_are_sources(self, source: Source, expected: list[Record]) -> None:
        """``select`` takes what indexing takes, and nothing is read before it is asked for."""
        n = len(expected)
        order = list(range(n))
        random.Random(1).shuffle(order)
        for key in [slice(2, None, 3), slice(None), order, np.arange(n) % 2 == 0]:
            chosen = [expected[i] for i in np.arange(n)[key]] if n or isinstance(key, slice) else []
            part = source.select(key)
            assert len(part) == len(chosen)
            assert_batch(part[:], chosen)
            assert_batch(part[::-1], chosen[::-1])
            assert part.blocks.of(np.arange(len(part))).size == len(part)


def run_in_fork(compute: Callable[[], str], *, meanwhile: Callable[[], object] = bool) -> str:
    """What ``compute`` returns in a forked child, or what it raised, while the parent calls ``meanwhile``. A hang is ended."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn when other threads exist
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, compute().encode())
        except BaseException as error:
            os.write(writing, repr(error).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writing)
    try:
        meanwhile()
    finally:
        with os.fdopen(reading) as answer:
            if not select.select([answer], [], [], DEADLINE_S)[0]:
                os.kill(child, signal.SIGKILL)
            text = answer.read()
        os.waitpid(child, 0)
    return text or "the child did not answer"


def rows(batch: Batch) -> list[Record]:
    count = max((len(column) for column in batch.values()), default=0)
    return [{name: _item(column, i) for name, column in batch.items()} for i in range(count)]


def _item(column: Any, place: int) -> Any:
    if isinstance(column, Ragged):
        return column[place]
    if isinstance(column, np.ma.MaskedArray):
        return None if np.ma.getmaskarray(column)[place].any() else column.data[place]
    return column[place]


def digest(batch: Batch | Sequence[Record]) -> str:
    """A text that equal records have, and others do not."""
    found = hashlib.sha256()
    for record in rows(batch) if isinstance(batch, dict) else batch:
        for name, value in record.items():
            array = None if value is None or isinstance(value, str | bytes) else np.asarray(value)
            head = repr(value) if array is None else f"{array.dtype} {array.shape}"
            found.update(f"{name} {head};".encode())
            found.update(b"" if array is None else array.tobytes())
    return found.hexdigest()


def assert_batch(batch: Batch, expected: Sequence[Record]) -> None:
    for name, column in batch.items():
        assert len(column) == len(expected), f"field {name!r}: expected {len(expected)} records, got {len(column)}"
    for found, record in zip(rows(batch), expected, strict=False):
        assert_record(found, record)


def assert_typed(batch: Batch, source: Source) -> None:
    """The fields of a batch must have the types that the schema promises."""
    for name, column in batch.items():
        field = source.schema[name]
        if field.is_fixed:
            wanted = np.ma.MaskedArray if field.nullable else np.ndarray
            assert type(column) is wanted, (
                f"field {name!r} ({field!r}): expected a {wanted.__name__}, got a {type(column).__name__}"
            )
        else:
            assert isinstance(column, Ragged)
            assert (column.present is not None) == field.nullable, f"field {name!r} ({field!r}): present is {column.present!r}"


def assert_record(found: Record, expected: Record) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert_same(found[name], value)


def assert_same(found: Any, expected: Any) -> None:
    """Two values must be equal: both missing, the same text, or arrays of one type and shape with the same bytes."""
    if expected is None or isinstance(expected, str | bytes):
        assert type(found) is type(expected)
        assert found == expected
        return
    one, other = np.asarray(found), np.asarray(expected)
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


class ResumeSuite:
    """Inherit, and give :meth:`make`."""

    most_steps: ClassVar[int] = 30
    """The most batches that a test compares."""

    def make(self) -> Loader:
        """The loader to test: a fresh one, equal in every call."""
        raise NotImplementedError(f"{type(self).__name__} must define make() -> a loader")

    def digest(self, batch: Any) -> Any:
        """What is compared of a batch: by default every leaf of a dict, list or tuple of arrays."""
        return fields_of(batch)

    @pytest.fixture
    def loader(self) -> Loader:
        return self.make()

    @pytest.fixture
    def expected(self) -> list[Any]:
        """The batches of a run that is not interrupted."""
        return self._run(self.make(), self.most_steps)

    def _run(self, loader: Loader, steps: int) -> list[Any]:
        """The digests of up to ``steps`` batches, epoch after epoch."""
        found: list[Any] = []
        while len(found) < steps:
            before = len(found)
            with iter(loader) as batches:
                found += [self.digest(batch) for batch in islice(batches, steps - before)]
            if len(found) == before:
                break
        return found

    # Batches

    def test_runs_are_equal(self, expected: list[Any]) -> None:
        assert self._run(self.make(), self.most_steps) == expected

    def test_length_is_the_number_of_batches(self, loader: Loader) -> None:
        """``len`` is known before, and right after, whatever was delivered."""
        promised = len(loader)
        if promised > 10 * self.most_steps:
            return
        with iter(loader) as batches:
            for number, _ in enumerate(islice(batches, promised), 1):
                assert loader.step == number
            assert next(batches, None) is None

    def test_a_loop_that_breaks_off_goes_on(self, loader: Loader, expected: list[Any]) -> None:
        """The batches that were delivered count, not those that were read ahead."""
        found: list[Any] = []
        while len(found) < len(expected):
            found += self._run(loader, min(3, len(expected) - len(found)))
        assert found == expected

    def test_any_step_is_found_by_itself(self, loader: Loader, expected: list[Any]) -> None:
        """``seek`` goes to any step, in both directions."""
        for step in [len(expected) - 1, 0, len(expected) // 2, 1, len(expected) - 1] if len(expected) > 1 else []:
            loader.seek(step)
            assert loader.step == step
            assert self._run(loader, 1) == [expected[step]]

    # States

    def test_every_place_resumes_to_the_same_batches(self, loader: Loader) -> None:
        """Saved as JSON and as bytes, loaded into fresh loaders, again and again."""
        report = verify_resume(self.make, steps=self.most_steps, digest=self.digest)
        assert report.steps <= self.most_steps

    def test_states_are_plain_json(self, loader: Loader, expected: list[Any]) -> None:
        """What is loaded is what was saved, and a cursor has 24 bytes."""
        for number in range(min(3, len(expected))):
            state = loader.state_dict()
            assert json.loads(json.dumps(state)) == state
            assert state["step"] == number
            assert len(loader.get_state()) == 24
            fresh = self.make()
            fresh.load_state_dict(state)
            assert fresh.state_dict() == state
            self._run(loader, 1)

    def test_taking_a_state_disturbs_nothing(self, loader: Loader, expected: list[Any]) -> None:
        found = []
        for _ in expected:
            found += self._run(loader, 1)
            loader.state_dict()
            loader.get_state()
        assert found == expected

    def test_states_of_other_runs_are_refused(self, loader: Loader) -> None:
        """Other data, another order, another seed; the loader stays where it was."""
        state = loader.state_dict()
        plan = dict.fromkeys(state["plan"], "something else")
        cursor = bytearray.fromhex(state["cursor"])
        cursor[0] ^= 1  # of the seed
        other = {"data": "0" * 64, "samples": dict.fromkeys(state.get("samples", {}), "0" * 64)}
        changes: list[dict[str, Any]] = [other, {"plan": plan}, {"plan": {}}, {"cursor": cursor.hex()}]
        for change in changes:
            with pytest.raises(StateMismatchError):
                loader.load_state_dict(state | change)
        with pytest.raises(StateMismatchError):
            loader.set_state(bytes(cursor))
        assert loader.state_dict() == state

    def test_damaged_states_are_refused(self, loader: Loader) -> None:
        state = loader.state_dict()
        damaged: list[Any] = [None, {}, [], "state", {**state, "more": 1}, {key: state[key] for key in list(state)[1:]}]
        values: list[Any] = [None, -1, 2**70, 0.5, "x", [], {"x": 1}, b"x"]
        unsampled = {
            key: value for key, value in state.items() if key != "samples"
        }  # samples speak for the data, whatever its name
        damaged += [(unsampled if key == "data" else state) | {key: value} for key in state for value in values]
        for one in damaged:
            with pytest.raises(StateError):
                loader.load_state_dict(one)
        for packed in (b"", bytes(23), bytes(25), None, "x"):
            with pytest.raises(StateError):
                loader.set_state(packed)  # type: ignore[arg-type]
        assert loader.state_dict() == state

    # Threads and processes

    def test_dropped_iterators_leave_no_threads(self, loader: Loader) -> None:
        before = set(threading.enumerate())
        for _ in range(5):
            for _batch in loader:
                break
        assert set(threading.enumerate()) <= before

    def test_forked_children_go_on(self, loader: Loader, expected: list[Any]) -> None:
        """In the middle of iteration; the child gives what the parent would have given, and so does the parent."""
        half = len(expected) // 2
        self._run(loader, half)
        rest = len(expected) - half

        def compare() -> str:
            return "right" if self._run(loader, rest) == expected[half:] else "other batches"

        def go_on() -> None:
            assert self._run(loader, rest) == expected[half:]

        assert run_in_fork(compare, meanwhile=go_on) == "right"
