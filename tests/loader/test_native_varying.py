"""Texts, byte strings and ragged arrays of stores, read by native threads: the batches, and the errors, that ``read`` gives."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import count, every

import penstock as pen
from penstock.errors import BatchError, BatchTooLargeError, CorruptError
from penstock.loader.native_engine import native_groups
from penstock.native import _core
from penstock.records import Source
from penstock.schema import Codec
from penstock.stream import Stream

COUNT = 90
CODECS = [pen.Raw(), pen.Zstd(3), pen.LZ4(), pen.Deflate(6)]

FIELDS = {
    "text": pen.Field.text(),
    "blob": pen.Field.bytes(),
    "tokens": pen.Field.ragged("u2"),
    "grid": pen.Field.ragged("f4", 2),
    "cube": pen.Field.ragged("i8", 3),
    "label": pen.Field("i4"),
    "vector": pen.Field("f4", (5,)),
}


@cache
def record(i: int) -> dict[str, Any]:
    chance = np.random.default_rng(i)
    return {
        "text": "grüße, 世界 " * (i % 7) + str(i),
        "blob": chance.bytes(i % 11 * 30),
        "tokens": np.full(i * 37 % 101, i, np.uint16),
        "grid": np.full((i % 4, i % 3 + 1), i, np.float32),
        "cube": chance.integers(0, 9, (i % 3, 2, i % 5)),
        "label": i,
        "vector": np.full(5, i, np.float32),
    }


def write_store(path: Path, codec: Codec, low: int = 0, *, missing: bool = False, fields: Any = FIELDS) -> None:
    made = {name: field.with_codec(codec).with_nullable(missing) for name, field in fields.items()}
    with pen.create(path, made, chunk_records=16) as out:
        for i in range(low, low + COUNT):
            whole = {name: record(i)[name] for name in fields}
            gone = list(whole)[i % (2 * len(whole)) :][:2] if missing else []
            out.append({name: None if name in gone else value for name, value in whole.items()})


def plain(column: Any) -> Any:
    """What compares by ==, with everything that a user can see."""
    if not isinstance(column, pen.Ragged):
        return type(column), np.ma.getdata(column).tolist(), np.ma.getmaskarray(column).tolist(), column.dtype
    assert column.values.flags.aligned
    assert column.values.flags.writeable
    parts = [column.values, column.offsets, column.shapes, column.present]
    return column.kind, column.values.dtype, [None if part is None else (part.dtype, part.tolist()) for part in parts]


def assert_native(stream: Stream, *, tail: str = "keep", steps: int = count(13, 25)) -> None:
    """The loader reads natively, what the caller's thread reads through Python."""
    assert native_groups(stream) is not None
    loaders = [pen.Loader(stream, 8, tail=tail, threads=threads, ids="id") for threads in (0, 2)]
    for expected, found in zip(*(loader.forever() for loader in loaders), strict=True):
        assert list(expected) == list(found)
        for name in expected:
            assert plain(expected[name]) == plain(found[name])
        assert loaders[0].state_dict() == loaders[1].state_dict()
        if loaders[0].step == steps:
            break
    for loader in loaders:
        loader.close()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[dict[str, Source]]:
    write_store(tmp_path / "a", pen.Zstd(3))
    write_store(tmp_path / "b", pen.Raw(), 1000, missing=True)
    write_store(tmp_path / "c", pen.LZ4(), 2000)
    opened = {name: pen.open(tmp_path / name) for name in "abc"}
    yield opened
    for source in opened.values():
        source.close()


@pytest.mark.parametrize(
    ("codec", "missing"), [(codec, one) for i, codec in enumerate(CODECS) for one in every(2, [False, True], i)]
)
@pytest.mark.sampled(3)
def test_all_kinds_of_fields_are_read_natively(tmp_path: Path, codec: Codec, missing: bool) -> None:
    write_store(tmp_path / "s", codec, missing=missing)
    for io in ("map", "pread"):
        with pen.open(tmp_path / "s", io=io) as store:
            assert_native(store.shuffle(seed=3))
            assert_native(store.in_order(), tail="pad")


@pytest.mark.parametrize("name", FIELDS)
def test_single_fields_are_read_natively(tmp_path: Path, name: str) -> None:
    write_store(tmp_path / "s", pen.Zstd(1), missing=True, fields={name: FIELDS[name]})
    with pen.open(tmp_path / "s") as store:
        assert_native(store.shuffle(seed=3))


def test_records_are_what_was_written(tmp_path: Path) -> None:
    write_store(tmp_path / "s", pen.Zstd(3))
    with pen.open(tmp_path / "s") as store, pen.Loader(store.shuffle(seed=1), 7, threads=2, ids="id") as loader:
        for batch in loader:
            for place, i in enumerate(batch["id"].tolist()):
                for name, value in record(i).items():
                    assert np.array_equal(batch[name][place], value), (name, i)


def test_views_and_lists_are_read_natively(data: dict[str, Source]) -> None:
    a, b, c = data["a"], data["b"], data["c"]
    assert_native(a.select(slice(60, 3, -2)).shuffle(seed=1))
    assert_native(b.pick("grid", "label", "text").in_order())
    whole = pen.open([a, b, c])
    assert_native(whole.shuffle(seed=2), tail="wrap")
    assert_native(whole.select(np.random.default_rng(0).permutation(3 * COUNT)[:200]).in_order())
    assert_native(pen.open([whole, c.select([3, 3, 1])]).shuffle(seed=3))
    texts, arrays = a.pick("text", "label"), b.pick("tokens", "vector").select(slice(None, None, -1))
    assert_native(pen.open({"t": texts, "a": arrays}).shuffle(seed=4))


def test_mixtures_are_read_natively(data: dict[str, Source]) -> None:
    a, b, c = (data[name].shuffle(seed=5) for name in "abc")
    inner = pen.mix({"a": a, "b": b}, weights={"a": 1, "b": 2}, seed=3)
    assert_native(pen.mix({"inner": inner, "c": c}, weights={"inner": 2, "c": 1}, seed=5), steps=40)


def test_fields_that_were_changed_later_are_read_natively(tmp_path: Path) -> None:
    with pen.create(tmp_path / "s", {name: field.with_codec(pen.Zstd(3)) for name, field in FIELDS.items()}) as out:
        for i in range(COUNT):
            out.append(record(i))
        out.commit()
        out.update([5, 17, 80], {"text": ["five", "", "eighty " * 50], "tokens": [np.arange(i, dtype="u2") for i in (0, 9, 999)]})
    with pen.open(tmp_path / "s") as store:
        assert store[80]["text"] == "eighty " * 50
        assert_native(store.shuffle(seed=3))


def test_ragged_fields_of_different_kinds_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """A mixture of texts and byte strings is refused, or read in the way that knows how."""
    for name, field in {"text": pen.Field.text(), "blob": pen.Field.bytes(), "one": pen.Field.ragged("u1")}.items():
        with pen.create(tmp_path / name, {"x": field}) as out:
            out.append({"x": np.frombuffer(b"abc", np.uint8) if name == "one" else "abc" if name == "text" else b"abc"})
    stores = {name: pen.open(tmp_path / name) for name in ("text", "blob", "one")}
    for first, second in pairwise([*stores, "text"]):
        try:
            stream = pen.mix({"1": stores[first].in_order(), "2": stores[second].in_order()}, seed=1)
        except (ValueError, TypeError):
            continue
        assert native_groups(stream) is None


def test_memory_of_batches_is_bounded(tmp_path: Path) -> None:
    """Batches are read one at a time where no two fit, and come all the same."""
    write_store(tmp_path / "s", pen.Zstd(3))
    with pen.open(tmp_path / "s") as store:
        whole = [plain(batch["tokens"]) for batch in pen.Loader(store.in_order(), 8, threads=0)]
        for prefetch in (1, 1000, "1MB"):
            with pen.Loader(store.in_order(), 8, threads=3, prefetch=prefetch) as loader:
                assert [plain(batch["tokens"]) for batch in loader] == whole


# Errors


def damage(store: Any, path: Path, field: str, i: int) -> None:
    """Flip a bit in the page of a record's field."""
    chunk, start, stop = store.chunks.native().page_extents(store.manifest.numbers[field], np.array([i])).tolist()[0]
    file = path / store.manifest.chunks[chunk].file
    content = bytearray(file.read_bytes())
    content[(start + stop) // 2] ^= 1
    file.write_bytes(content)


def outcomes(stream: Stream, threads: int, **options: Any) -> list[Any]:
    """The batches of an epoch, then the error that ended it."""
    found: list[Any] = []
    with pen.Loader(stream, 8, threads=threads, ids="id", **options) as loader:
        try:
            for batch in loader:
                found.append({name: plain(column) for name, column in batch.items()})
        except BatchError as error:
            found.append((str(error), type(error.__cause__)))
    return found


@pytest.mark.parametrize("field", ["text", "tokens", "cube"])
@pytest.mark.parametrize("codec", [pen.Raw(), pen.Zstd(3)], ids=repr)
@pytest.mark.sampled(2)
def test_damaged_records_fail_their_batch_as_in_the_callers_thread(tmp_path: Path, codec: Codec, field: str) -> None:
    write_store(tmp_path / "s", codec)
    with pen.open(tmp_path / "s") as store:
        damage(store, tmp_path / "s", field, 31)
    with pen.open(tmp_path / "s") as store:
        stream = store.shuffle(seed=9)
        assert native_groups(stream) is not None
        expected = outcomes(stream, 0)
        assert expected[-1][1] is CorruptError
        assert outcomes(stream, 2) == expected
        skipped = outcomes(stream, 0, on_error="skip")
        assert len(skipped) == -(-COUNT // 8)
        assert outcomes(stream, 2, on_error="skip") == skipped


def test_texts_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    with pen.create(tmp_path / "s", {"x": pen.Field.bytes()}) as out:
        out.extend({"x": [b"abc", b"\xff\xfe", b"def"]})
    manifest = next((tmp_path / "s" / "manifest").iterdir())
    line = manifest.read_bytes().splitlines()[0].replace(b'"kind":"bytes"', b'"kind":"text"')
    manifest.write_bytes(line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8)))
    with pen.open(tmp_path / "s") as store:
        assert native_groups(store.in_order()) is not None
        expected = outcomes(store.in_order(), 0)
        assert "UTF-8" in expected[-1][0]
        assert outcomes(store.in_order(), 2) == expected


def test_batches_that_are_too_large_are_refused(tmp_path: Path) -> None:
    with pen.create(tmp_path / "s", {"x": pen.Field.text(codec=pen.Zstd(3))}) as out:
        out.extend({"x": ["a" * 100] * 30 + ["b" * 1000] * 30})
    with pen.open(tmp_path / "s", max_batch_bytes=2000) as store:
        expected = outcomes(store.in_order(), 0)
        assert expected[-1][1] is BatchTooLargeError
        assert len(expected) == 4
        assert outcomes(store.in_order(), 2) == expected
    with pen.open(tmp_path / "s", max_record_bytes=500) as store:
        assert outcomes(store.in_order(), 2) == outcomes(store.in_order(), 0)


def test_batches_of_fixed_fields_that_are_too_large_are_refused(tmp_path: Path) -> None:
    """The ring made them, whatever the limit."""
    with pen.create(tmp_path / "s", {"x": pen.Field("u1", (100,))}) as out:
        out.extend({"x": np.zeros((60, 100), np.uint8)})
    with pen.open(tmp_path / "s", max_batch_bytes=500) as store:
        assert outcomes(store.in_order(), 2) == outcomes(store.in_order(), 0)
        assert outcomes(store.in_order(), 2)[-1][1] is BatchTooLargeError


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    write_store(tmp_path / "s", pen.Raw())
    store = pen.open(tmp_path / "s")
    stream = store.in_order()
    store.close()
    assert native_groups(stream) is None
    assert "closed" in outcomes(stream, 2)[-1][0]


def test_batches_outlive_their_store(tmp_path: Path) -> None:
    write_store(tmp_path / "s", pen.Raw())
    with pen.open(tmp_path / "s") as store, pen.Loader(store.in_order(), 30, threads=2) as loader:
        batches = list(loader)
    assert [text for batch in batches for text in batch["text"]] == [record(i)["text"] for i in range(COUNT)]


# Sequences of documents


def sequences(source: Source, field: str, **options: Any) -> Iterator[Stream]:
    """Of lengths that cut documents, and of one that holds many."""
    for seq_len in (7, 300):
        yield source.shuffle(seed=2).sequences(seq_len, field=field, **options)
        yield source.in_order().sequences(seq_len, field=field, **options)
        yield source.shuffle(seed=2, block=10, window=3).sequences(seq_len, field=field, documents=True, **options)
        yield source.shuffle(seed=2).without([3, 4, 50]).sequences(seq_len, field=field, **options)


@pytest.mark.parametrize(
    ("codec", "field"), [(codec, one) for i, codec in enumerate(CODECS) for one in every(3, ["text", "blob", "tokens"], i)]
)
@pytest.mark.sampled(2)
def test_documents_of_a_store_are_read_natively(tmp_path: Path, codec: Codec, field: str) -> None:
    write_store(tmp_path / "s", codec, missing=codec == pen.LZ4())
    for io in ("map", "pread"):
        with pen.open(tmp_path / "s", io=io) as store:
            for stream in every(2, list(sequences(store, field, separator=None if io == "pread" else [1, 0])), int(io == "pread")):
                assert_native(stream, steps=6)


def test_documents_of_views_and_mixtures_are_read_natively(data: dict[str, Source]) -> None:
    whole = pen.open([data["a"].select(slice(70, None, -1)), data["b"], data["c"].select([5, 5, 1])])
    streams = list(sequences(whole, "tokens", separator=0))
    for stream in every(2, streams):
        assert_native(stream, steps=6)
    texts = [data[name].shuffle(seed=1).sequences(20, field="text") for name in "abc"]
    inner = pen.mix({"a": texts[0], "b": texts[1]}, seed=1)
    assert_native(pen.mix({"inner": inner, "c": texts[2]}, seed=2))


def test_documents_follow_phases_natively(data: dict[str, Source]) -> None:
    stream = data["a"].shuffle(seed=1).sequences(20, field="text", separator=0)
    phases = [pen.Phase(steps=4, batch_size=3, seq_len=50), pen.Phase(steps=5, batch_size=8, seq_len=11)]
    assert native_groups(stream) is not None
    found = [[plain(batch["tokens"]) for batch in pen.Loader(stream, phases=phases, threads=threads)] for threads in (0, 2)]
    assert found[0] == found[1]
    assert len(found[0]) == 9


def test_tokens_of_documents_are_those_of_their_records(tmp_path: Path) -> None:
    """As plain Python says, in the order of the stream."""
    write_store(tmp_path / "s", pen.Zstd(3))
    with pen.open(tmp_path / "s") as store:
        stream = store.shuffle(seed=4)
        order = stream.order.indices(0, 0, COUNT).tolist()
        line = np.concatenate([np.append(record(i)["tokens"], np.uint16(9)) for i in order])
        with pen.Loader(stream.sequences(50, field="tokens", separator=9), 8, threads=2) as loader:
            found = np.concatenate([batch["tokens"].reshape(-1) for batch in loader])
    assert found.tolist() == line[: found.size].tolist()
    assert line.size - found.size < 50


@pytest.mark.parametrize("field", ["text", "tokens"])
@pytest.mark.parametrize("codec", [pen.Raw(), pen.Zstd(3)], ids=repr)
def test_damaged_documents_fail_their_batch_as_in_the_callers_thread(tmp_path: Path, codec: Codec, field: str) -> None:
    write_store(tmp_path / "s", codec)
    with pen.open(tmp_path / "s") as store:
        damage(store, tmp_path / "s", field, 31)
    with pen.open(tmp_path / "s") as store:
        stream = store.shuffle(seed=9).sequences(30, field=field)
        assert native_groups(stream) is not None
        expected = outcomes(stream, 0)
        assert expected[-1][1] is CorruptError
        assert outcomes(stream, 2) == expected


def test_documents_of_a_closed_store_are_not_read(tmp_path: Path) -> None:
    write_store(tmp_path / "s", pen.Raw())
    store = pen.open(tmp_path / "s")
    stream = store.in_order().sequences(10, field="text")
    len(stream)
    store.close()
    assert native_groups(stream) is None
    assert "closed" in outcomes(stream, 2)[-1][0]


def test_documents_outside_of_stores_are_read_by_python() -> None:
    stream = pen.open({"text": ["abc", "de", "fghi"]}).in_order().sequences(4)
    assert native_groups(stream) is None
    assert [batch["tokens"].tobytes() for batch in pen.Loader(stream, 1, threads=2)] == [b"abcd", b"efgh"]


# Properties

texts = st.none() | st.text(max_size=40) | st.integers(0, 3000).map(lambda n: "x" * n)
arrays = st.none() | st.lists(st.integers(0, 65535), max_size=50)


@given(
    rows=st.lists(st.tuples(texts, arrays, st.integers(-9, 9)), min_size=1, max_size=60),
    codec=st.sampled_from(CODECS),
    cut=st.integers(1, 30),
    batch=st.integers(1, 20),
    threads=st.integers(1, 3),
    prefetch=st.sampled_from([None, 1, 500]),
    seed=st.integers(0, 5),
)
def test_any_records_come_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Any],
    codec: Codec,
    cut: int,
    batch: int,
    threads: int,
    prefetch: int | None,
    seed: int,
) -> None:
    root = tmp_path_factory.mktemp("any")
    fields = {"text": pen.Field.text(codec=codec), "tokens": pen.Field.ragged("u2", codec=codec), "n": pen.Field("i2")}
    made = {name: field.with_nullable(name != "n") for name, field in fields.items()}
    for number, part in enumerate([rows[:cut], rows[cut:]]):
        with pen.create(root / str(number), made, chunk_records=7) as out:
            for text, tokens, n in part:
                out.append({"text": text, "tokens": None if tokens is None else np.array(tokens, np.uint16), "n": n})
    with pen.open([pen.open(root / "0"), pen.open(root / "1")]) as data:
        stream = data.shuffle(seed=seed)
        assert native_groups(stream) is not None
        with pen.Loader(stream, batch, threads=threads, ids="id", prefetch=prefetch) as loader:
            for found in loader:
                wanted = [rows[i] for i in found["id"].tolist()]
                assert found["text"].to_list() == [text for text, _, _ in wanted]
                assert [None if t is None else t.tolist() for t in found["tokens"]] == [tokens for _, tokens, _ in wanted]
                assert found["n"].tolist() == [n for _, _, n in wanted]


@given(
    documents=st.lists(st.none() | st.lists(st.integers(0, 65535), max_size=60), min_size=1, max_size=40),
    codec=st.sampled_from(CODECS),
    cut=st.integers(0, 30),
    seq_len=st.integers(1, 50),
    separator=st.sampled_from([None, 7, [1, 2, 3]]),
    seed=st.integers(0, 5),
)
def test_any_documents_come_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[Any],
    codec: Codec,
    cut: int,
    seq_len: int,
    separator: Any,
    seed: int,
) -> None:
    root = tmp_path_factory.mktemp("any")
    field = {"tokens": pen.Field.ragged("u2", codec=codec, nullable=True)}
    for number, part in enumerate([documents[:cut], documents[cut:]]):
        with pen.create(root / str(number), field, chunk_records=7) as out:
            for one in part:
                out.append({"tokens": None if one is None else np.array(one, np.uint16)})
    with pen.open([pen.open(root / "0"), pen.open(root / "1")]) as data:
        stream = data.shuffle(seed=seed)
        ends = [] if separator is None else np.atleast_1d(separator).tolist()
        line = [token for i in stream.order.indices(0, 0, len(data)).tolist() for token in [*(documents[i] or []), *ends]]
        if len(line) < seq_len:
            return
        cut_up = stream.sequences(seq_len, separator=separator)
        assert native_groups(cut_up) is not None
        with pen.Loader(cut_up, 3, threads=2) as loader:
            found = [token for batch in loader for token in batch["tokens"].reshape(-1).tolist()]
        assert found == line[: len(line) // seq_len * seq_len]
