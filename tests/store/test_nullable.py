"""Nullable fields of stores: the types of batches follow from the schema, and the schema from what was declared and written."""

import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden.make_store import STORE
from tests.remote.store_kit import doubled, upload
from tests.store.test_golden_store import FIRST

import penstock as pen
from penstock import Field, _core
from penstock.errors import CorruptError, SchemaMismatchError
from penstock.records import Source
from penstock.store import open_store
from penstock.store.fragment import Target, commit_fragments, write_fragment
from penstock.store.writer import append_to
from penstock.testing.source_suite import assert_typed

FIELDS = {"x": Field("i4"), "img": Field("u1", (2, 2), codec=pen.Zstd()), "t": Field.text(), "r": Field.ragged("f4", 2)}
WHOLE: dict[str, Any] = {"x": [1, 2], "img": np.ones((2, 2, 2), "u1"), "t": ["a", "b"], "r": [np.ones((1, 2)), np.ones((0, 2))]}


def nullable(source: Source) -> set[str]:
    return {name for name, field in source.schema.items() if field.nullable}


def test_type_of_a_batch_does_not_depend_on_what_is_missing_in_it(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        out.extend(WHOLE)
        out.extend({"x": [None], "img": [None], "t": [None], "r": [None]})
    for data in (pen.open(tmp_path / "a.pen"), pen.open(tmp_path / "a.pen", io="pread")):
        assert nullable(data) == set(FIELDS)
        for ids in ([0], [0, 1], [2], []):
            assert_typed(data[ids], data)
        assert data[2] == dict.fromkeys(FIELDS)
        assert data["x"][[0, 1]].mask.tolist() == [False, False]
        assert data["t"][[0, 1]].present.tolist() == [True, True]


def test_fields_without_missing_values_stay_plain(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        out.extend(WHOLE)
    data = pen.open(tmp_path / "a.pen")
    assert data.schema == FIELDS
    assert_typed(data[:], data)


def test_declared_fields_are_nullable_before_anything_is_missing_and_after_a_rebalance(tmp_path: Path) -> None:
    fields = {name: field.with_nullable(name != "x") for name, field in FIELDS.items()}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.extend(WHOLE)
    assert pen.open(tmp_path / "a.pen").schema == fields
    assert_typed(pen.open(tmp_path / "a.pen")[:], pen.open(tmp_path / "a.pen"))
    pen.rebalance(tmp_path / "a.pen")
    assert pen.open(tmp_path / "a.pen").schema == fields


def test_a_field_becomes_nullable_with_the_commit_that_needs_it_and_no_longer_is_after_a_rebalance(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, FIELDS) as out:
        out.extend(WHOLE)
        out.commit()
        out.extend({**WHOLE, "x": [3, None]})
        out.abort()
        out.extend(WHOLE)
        out.commit()
        out.update([0], {"t": [None]})
        out.commit()
        out.extend({"x": [5]})
        out.commit()
        out.update([0], {"t": ["there"]})
        out.delete([4])
    assert [nullable(pen.open(path, generation=g)) for g in (1, 2, 3, 4)] == [set(), set(), {"t"}, {"t", "img", "r"}]
    assert nullable(pen.open(path)) == {"t", "img", "r"}  # nothing is missing any more
    with ThreadPoolExecutor(1) as pool:
        pen.rebalance(path, executor=pool)
    assert nullable(pen.open(path)) == set()
    with pen.open(path, mode="a") as out:
        out.update([1], {"x": [None]})
    pen.rebalance(path)
    assert nullable(pen.open(path)) == {"x"}


def test_batches_of_nullable_fields_written_back_make_nothing_nullable(tmp_path: Path) -> None:
    fields = {name: field.with_nullable(True) for name, field in FIELDS.items()}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.extend(WHOLE)
    with pen.create(tmp_path / "b.pen", FIELDS) as out:
        out.extend(pen.open(tmp_path / "a.pen")[:])
    assert nullable(pen.open(tmp_path / "b.pen")) == set()


def test_fragments_bring_what_is_missing_in_them(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        target = Target.of(out)
        receipts = [
            write_fragment(target, [WHOLE], task=0, tasks=2),
            write_fragment(target, [{**WHOLE, "t": ["a", None]}], task=1, tasks=2),
        ]
        commit_fragments(out, receipts)
    assert nullable(pen.open(tmp_path / "a.pen")) == {"t"}


def without_key(path: Path, key: str = "nullable") -> None:
    """The newest manifest as version 1 would have written it."""
    manifest = max((path / "manifest").iterdir())
    document = json.loads(manifest.read_bytes().split(b"\n")[0])
    del document[key]
    line = json.dumps(document, separators=(",", ":")).encode()
    manifest.write_bytes(line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8)))


def test_stores_of_version_1_tell_by_their_chunks(tmp_path: Path) -> None:
    expected = {name for name, values in FIRST.items() if None in values}
    for io in ("map", "pread", "direct"):
        data = pen.open(STORE, io=io)
        assert nullable(data) == expected
        assert_typed(data[:], data)
        assert_typed(data[[2]], data)
        assert nullable(pickle.loads(pickle.dumps(data))) == expected


def test_what_a_version_1_store_misses_is_found_in_redirected_chunks_too(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, FIELDS, chunk_records=1) as out:
        out.extend(WHOLE)
        out.commit()
        out.update([1], {"r": [None]})
    without_key(path)
    assert nullable(pen.open(path)) == {"r"}
    with append_to(path) as out:  # which writes down what it found
        out.extend({**WHOLE, "x": [7, None]})
    assert "nullable" in json.loads(max((path / "manifest").iterdir()).read_bytes().split(b"\n")[0])
    assert nullable(pen.open(path)) == {"r", "x"}


def test_a_damaged_chunk_of_a_version_1_store_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, {"x": Field("i4")}, chunk_records=2, threads=1) as out:
        out.extend({"x": [1, None, 3, 4]})
    without_key(path)
    for chunk in sorted((path / "chunk").iterdir())[1:]:
        chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    data = pen.open(path)
    assert data["x"][[0, 1]].tolist() == [1, None]
    with pytest.raises(CorruptError):
        data[2]


def test_a_manifest_that_denies_missing_values_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, {"x": Field("i4"), "t": Field.text()}) as out:
        out.extend({"x": [1, None], "t": ["a", None]})
    manifest = max((path / "manifest").iterdir())
    line = manifest.read_bytes().split(b"\n")[0].replace(b'"found":[0,1]', b'"found":[]')
    manifest.write_bytes(line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8)))
    data = pen.open(path)
    assert nullable(data) == set()
    assert data["x"][[0]].tolist() == [1]
    for name in ("x", "t"):
        with pytest.raises(SchemaMismatchError, match=f"field '{name}': a value is missing"):
            data[name][:]


@pytest.mark.parametrize(
    "value",
    ["[0]", '{"declared":[0]}', '{"declared":[0],"found":[9]}', '{"declared":[0,0],"found":[]}', '{"declared":["0"],"found":[]}'],
)
def test_nullable_that_makes_no_sense_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, {"x": Field("i4")}) as out:
        out.extend({"x": [1]})
    manifest = max((path / "manifest").iterdir())
    line = manifest.read_bytes().split(b"\n")[0].replace(b'{"declared":[],"found":[]}', value.encode())
    manifest.write_bytes(line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8)))
    with pytest.raises(CorruptError):
        pen.open(path)


def test_sources_made_of_others_have_the_nullable_fields_of_their_parts(tmp_path: Path) -> None:
    for name, fields in {"a": {"x": Field("i4")}, "b": {"x": Field("i4", nullable=True)}}.items():
        with pen.create(tmp_path / f"{name}.pen", fields) as out:
            out.extend({"x": [1, 2]})
    plain, other = pen.open(tmp_path / "a.pen"), pen.open(tmp_path / "b.pen")
    for data, wanted in [
        (pen.open([plain, other]), {"x"}),
        (pen.open([other, plain]), {"x"}),
        (pen.open([plain, plain]), set()),
        (pen.open({"p": plain, "o": other}), {"o"}),
        (other.select([1]).pick("x"), {"x"}),
        (other.map(lambda record: {**record, "y": 1.0}), {"x"}),
        (plain.map(lambda record: record, schema={"x": Field("i4", nullable=True)}), {"x"}),
        (pen.open({"x": np.ma.MaskedArray([1, 2], mask=[False, True]), "y": np.arange(2)}), {"x"}),
        (pen.open({"x": ["a", None], "y": ["a", "b"], "z": [1, None]}), {"x", "z"}),
    ]:
        assert nullable(data) == wanted
        for ids in ([0], slice(None)):
            assert_typed(data[ids], data)


def test_a_map_that_gives_none_where_none_was_promised_says_so() -> None:
    data = pen.open({"x": np.arange(3)}).map(lambda record: {"y": None if record["x"] == 2 else 1})
    assert data[[0, 1]]["y"].tolist() == [1, 1]
    with pytest.raises(SchemaMismatchError, match=r"field 'y': a value is missing.*nullable=True"):
        data[:]


def test_loaders_and_mixtures_give_the_same_types_as_sources(tmp_path: Path) -> None:
    for name, values in {"a": [1, 2, 3, 4], "b": [5, None, 7, 8]}.items():
        with pen.create(tmp_path / f"{name}.pen", {"x": Field("i4")}) as out:
            out.extend({"x": values})
    a, b = pen.open(tmp_path / "a.pen"), pen.open(tmp_path / "b.pen")
    mixed = pen.mix({"a": a.in_order(), "b": b.in_order()}, seed=1, weights={"a": 1, "b": 1})
    for stream, kind in [(a.in_order(), np.ndarray), (b.in_order(), np.ma.MaskedArray), (mixed, np.ma.MaskedArray)]:
        for options in ({}, {"transform": lambda batch: batch}):
            with pen.Loader(stream, batch_size=1, **options) as loader:
                assert {type(batch["x"]) for batch in loader} == {kind}


def test_collections_say_which_fields_are_nullable_and_old_ones_ask_their_parts(tmp_path: Path) -> None:
    from penstock.formats.collection import write_collection

    for name, values in {"a": [1, 2], "b": [3, None]}.items():
        with pen.create(tmp_path / f"{name}.pen", {"x": Field("i4"), "y": Field("i4")}, metadata={"origin": "here"}) as out:
            out.extend({"x": values, "y": [0, 0]})
    file = tmp_path / "all.json"
    write_collection([tmp_path / "a.pen", tmp_path / "b.pen"], file)
    content = json.loads(file.read_text())
    assert content["nullable"] == ["x"]
    before = pen.open(file)
    del content["nullable"], content["metadata"]
    file.write_text(json.dumps(content))
    for data in (before, pen.open(file), pickle.loads(pickle.dumps(pen.open(file)))):
        assert nullable(data) == {"x"}
        assert data.metadata == {"origin": "here"}
        assert_typed(data[[0]], data)
        assert data.fingerprint == before.fingerprint


def test_fingerprints_do_not_know_what_is_nullable(tmp_path: Path) -> None:
    fields = {"y": Field("i8")}
    data = pen.open({"x": np.arange(3)})

    def double(record: dict[str, Any]) -> dict[str, Any]:
        return {"y": record["x"] * 2}

    plain, other = data.map(double, schema=fields), data.map(double, schema={"y": Field("i8", nullable=True)})
    assert plain.fingerprint == other.fingerprint
    shutil.copytree(STORE, tmp_path / "copy")
    assert pen.open(tmp_path / "copy").fingerprint == pen.open(STORE).fingerprint


def test_stores_of_version_1_at_urls_are_asked_one_range_per_chunk_and_only_them(tmp_path: Path) -> None:
    for kept in (True, False):
        path = tmp_path / f"{kept}.pen"
        with pen.create(path, FIELDS, chunk_records=1, threads=1, metadata={"a": 1}) as out:
            out.extend(WHOLE)
            out.extend({**WHOLE, "t": ["a", None]})
        if not kept:
            without_key(path)
        with doubled() as (double, url):
            upload(path, url)
            before = len(double.requests("GET"))
            with open_store(url) as data:
                assert nullable(data) == {"t"}
                assert data.metadata == {"a": 1}
                asked = [request for request in double.requests("GET")[before:] if "/chunk/" in request.key]
                assert len(asked) == (0 if kept else 4)
                assert_typed(data[[0]], data)
            with append_to(url) as out:
                out.extend({**WHOLE, "x": [None, 1]})
            with open_store(url) as data:
                assert nullable(data) == {"t", "x"}


# Records without elements

LOST = "a batch cannot tell which"
EMPTY = np.zeros(0, np.float32)


def without_elements(path: Path) -> Path:
    """A store that misses one of three records without elements."""
    with pen.create(path, {"z": Field("f4", (0,)), "x": Field("i4")}) as out:
        out.extend({"z": [None, EMPTY, EMPTY], "x": range(3)})
    return path


def is_missing(source: Source) -> list[bool]:
    return [source[i]["z"] is None for i in range(len(source))]


@pytest.mark.parametrize("view", ["select", "list", "dict"])
def test_conversions_and_digests_do_not_guess_which_record_without_elements_is_missing(tmp_path: Path, view: str) -> None:
    with pen.open(without_elements(tmp_path / "a.pen")) as store:
        views: dict[str, Source] = {
            "select": store.select([1, 0]),
            "list": pen.open([store, store]),
            "dict": pen.open({"a": store}),
        }
        with pytest.raises(ValueError, match=LOST):
            views[view].digest()
        with pytest.raises(ValueError, match=LOST):
            pen.convert(views[view], tmp_path / "b.pen")
        left = [name for name in views[view].schema if name.endswith("x")]
        pen.convert(views[view], tmp_path / "c.pen", fields=left)
        assert pen.open(tmp_path / "c.pen").digest() == views[view].pick(*left).digest()


def test_records_without_elements_that_are_all_there_are_converted(tmp_path: Path) -> None:
    with pen.open(without_elements(tmp_path / "a.pen")) as store:
        pen.convert(store.select([1, 2]), tmp_path / "b.pen")
        pen.convert(store, tmp_path / "c.pen")  # from store to store, which batches are not needed for
    with pen.open(tmp_path / "b.pen") as some, pen.open(tmp_path / "c.pen") as whole:
        assert is_missing(some) == [False, False]
        assert some.digest() == pen.open({"z": np.zeros((2, 0), np.float32), "x": np.arange(1, 3, dtype=np.int32)}).digest()
        assert is_missing(whole) == [True, False, False]
        with pytest.raises(ValueError, match=LOST):
            whole.digest()


def test_writers_and_maps_do_not_guess_which_record_without_elements_is_missing(tmp_path: Path) -> None:
    with pen.open(without_elements(tmp_path / "a.pen")) as store:
        mapped = store.map(lambda one: {"is_there": one["z"] is not None})
        assert [bool(mapped[i]["is_there"]) for i in range(3)] == [False, True, True]
        with pytest.raises(ValueError, match=LOST):
            mapped.digest()
        assert [value is None for value in store["z"]] == [True, False, False]
        with pen.create(tmp_path / "b.pen", store.schema) as out, pytest.raises(ValueError, match=LOST):
            out.extend(store[:])
    with pytest.raises(ValueError, match=LOST):
        pen.open({"z": [None, [], []]})
