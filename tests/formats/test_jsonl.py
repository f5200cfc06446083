"""JSON lines: lines found in one pass and once, values that are right or refused, compressed files by blocks."""

import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import count

import penstock as pen
from penstock import Field, _core
from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    EmptySourceError,
    FormatError,
    PenstockError,
    SchemaMismatchError,
    SourceChangedError,
    TruncatedError,
)
from penstock.formats import lines as line_files
from penstock.formats import spans
from penstock.formats.sidecar import SUFFIX
from penstock.records import Source
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch, run_in_fork

Record = dict[str, Any]
N = 37


def value(i: int) -> Record:
    """What is written for a record: keys come in two orders, and some are missing."""
    made: Record = {
        "id": i - 5,
        "score": float(i) if i % 3 else i,
        "flag": None if i % 5 == 1 else i % 2 == 0,
        "text": f'é"{i}\n\\' * (i % 4),
        "tokens": list(range(i % 6)),
        "loss": [0.5 * k for k in range(i % 3)],
        "meta": {"url": f"http://{i}", "deep": {"n": i}},
        "messages": [{"role": "user", "content": "hi"}, {"role": "bot", "extra": [1, "x"]}][: i % 3],
        "mixed": [i, str(i), None, [i]][i % 4],
        "big": 2**64 + i,
        "hash": 2**63 + i,
        "never": None,
    }
    if i % 7 == 2:
        del made["id"]
    if i % 8 == 3:
        made["meta"] = None
    return made if i % 2 else dict(reversed(made.items()))


def record(i: int) -> Record:
    """What is read for it; ``messages`` and ``mixed`` are the JSON of the file."""
    found, here = value(i), {"id": None} | value(i)
    inner = found["meta"] or {}
    as_json = {name: json.dumps(found[name]) for name in ("messages", "mixed", "big")}
    return {
        "hash": np.uint64(found["hash"]),
        "big": as_json["big"],
        "mixed": None if found["mixed"] is None else as_json["mixed"],
        "messages": as_json["messages"],
        "meta.url": inner.get("url"),
        "meta.deep.n": None if not inner else np.int64(inner["deep"]["n"]),
        "loss": np.array(found["loss"], np.float64),
        "tokens": np.array(found["tokens"], np.int64),
        "text": found["text"],
        "flag": None if found["flag"] is None else np.bool_(found["flag"]),
        "score": np.float64(found["score"]),
        "id": None if here["id"] is None else np.int64(here["id"]),
    }


def lines(low: int = 0, high: int = N, end: str = "\n") -> bytes:
    return "".join(json.dumps(value(i), ensure_ascii=i % 3 == 0) + end for i in range(low, high)).encode()


def zstd(data: bytes) -> bytes:
    """One frame."""
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


class Suite(SourceSuite):
    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestOneFile(Suite):
    def make(self, directory: Path) -> Source:
        (directory / "a.jsonl").write_bytes(lines())
        return pen.open(directory / "a.jsonl")


class TestManyFiles(Suite):
    """With a mark, CRLF, blank lines, no newline at the end, no line at all."""

    def make(self, directory: Path) -> Source:
        (directory / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(0, 20, "\r\n"))
        (directory / "b.jsonl").write_bytes(b"")
        (directory / "c.ndjson").write_bytes(b"\n \n" + lines(20, 23, "\n\r\n \t\n"))
        (directory / "d.jsonl").write_bytes(b"\n")
        (directory / "e.jsonl").write_bytes(lines(23, N).rstrip())
        return pen.open(directory, threads=1)


class TestGzip(Suite):
    """Two members in one file, and another file."""

    def make(self, directory: Path) -> Source:
        whole = lines(0, 30)
        (directory / "a.jsonl.gz").write_bytes(gzip.compress(whole[:500], mtime=0) + gzip.compress(whole[500:], mtime=0))
        (directory / "b.jsonl.gz").write_bytes(gzip.compress(lines(30, N), mtime=0))
        return pen.open(f"{directory}/*.jsonl.gz")


class TestFrames(Suite):
    """Many zstd frames, which end anywhere, a skippable one among them; little is kept decoded."""

    def make(self, directory: Path) -> Source:
        whole = lines()
        parts = [zstd(whole[low : low + 700]) for low in range(0, len(whole), 700)]
        skippable = bytes.fromhex("5e2a4d18") + (5).to_bytes(4, "little") + b"12345"
        (directory / "a.jsonl.zst").write_bytes(b"".join([*parts[:3], skippable, *parts[3:], zstd(b""), skippable]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(line_files, "BLOCK_BYTES", 1000)
            return pen.open(directory / "a.jsonl.zst", cache_bytes=0)


class TestChosenFields(SourceSuite):
    def make(self, directory: Path) -> Source:
        (directory / "a.jsonl").write_bytes(lines())
        schema = {"id": "i4?", "meta": "json?", "loss": Field.ragged("f4"), "new": "text?"}
        return pen.open(directory / "a.jsonl", fields={"number": "id", "meta": "meta", "loss": "loss", "new": "new"}, schema=schema)

    def records(self) -> list[Record]:
        def made(i: int) -> Record:
            found = {"id": None} | value(i)
            return {
                "number": None if found["id"] is None else np.int32(found["id"]),
                "meta": None if found["meta"] is None else json.dumps(found["meta"]),
                "loss": np.array(found["loss"], np.float32),
                "new": None,
            }

        return [made(i) for i in range(N)]


class TestRaw(SourceSuite):
    def make(self, directory: Path) -> Source:
        (directory / "a.jsonl").write_bytes(b" " + lines(0, 20, " \r\n\n"))
        (directory / "b.jsonl").write_bytes(lines(20, N))
        return pen.open(directory, raw=True)

    def records(self) -> list[Record]:
        return [{"line": line} for line in lines().decode().splitlines()]


class TestFixedLists(SourceSuite):
    """Lists are fixed only if the schema says so."""

    def make(self, directory: Path) -> Source:
        rows = [{"v": None if i == 3 else [i, i + 0.5], "w": [i, i]} for i in range(5)]
        (directory / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return pen.open(directory / "a.jsonl", schema={"v": Field("f4", 2, nullable=True)})

    def records(self) -> list[Record]:
        return [{"v": None if i == 3 else np.array([i, i + 0.5], np.float32), "w": np.array([i, i])} for i in range(5)]


# Where lines are


@given(
    st.binary(max_size=60).map(lambda raw: bytes(b"\n\n\r\n {}x\t"[one % 9] if one < 200 else one for one in raw)),
    st.integers(1, 9),
)
def test_lines_are_those_of_a_naive_splitter_wherever_pieces_end(text: bytes, piece: int):
    scanner, found = _core.LineScanner(), list[list[int]]()
    for low in range(0, len(text), piece):
        out = np.empty(2 * _core.LineScanner.most_lines(piece), np.int64)
        count = scanner.scan(np.frombuffer(text[low : low + piece], np.uint8), out)
        found += out[: 2 * count].reshape(-1, 2).tolist()
    out = np.empty(2, np.int64)
    found += out[: 2 * scanner.finish(out)].reshape(-1, 2).tolist()
    body = text.removeprefix(b"\xef\xbb\xbf")
    assert [text[start : start + size] for start, size in found] == [
        line.strip(b" \t\r") for line in body.split(b"\n") if line.strip(b" \t\r")
    ]


PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        " ",
        "\\",
        "\\n",
        "\\u00e9",
        "\\ud800",
        "\\udc00",
        "\\x",
        "a",
        "é",
        "\t",
        "\x00",
        "\x7f",
        "0",
        "-",
        "12",
        "1.5",
        ".",
        "e",
        "+",
        "1e5",
        "true",
        "false",
        "null",
        "NaN",
        "Infinity",
        "-Infinity",
        "nul",
        '"a":',
        '{"a":1}',
        "[]",
    ]
)


@given(st.lists(PIECES, max_size=8), st.sampled_from(["{0}", '{{"a":{0}}}', '{{"a":"{0}"}}', '{{"a":[{0}],"b":{{"c":1}}}}']))
def test_what_is_json_is_what_python_takes_for_it(pieces: list[str], around: str):
    text = around.format("".join(pieces))
    try:
        found = json.loads(text)
        expected = isinstance(found, dict) and bool(json.dumps(found, ensure_ascii=False).encode())
    except ValueError:  # a lone half of a surrogate pair is one, too
        expected = False
    raw = np.frombuffer(text.encode(), np.uint8)
    nothing = np.empty(0, np.int64)
    fault, *_ = _core.JsonFinder([], False).find(raw, np.array([0, raw.size]), nothing, nothing)
    assert (fault == 0) == expected


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small files have sidecars, too, from the moment they are written; gets the name of every file that is searched for lines."""
    monkeypatch.setattr("penstock.system.SETTLED_NS", -(10**9))
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)
    searched: list[str] = []
    scan = line_files._scan_plain

    def counted(file: Any, *args: Any, **how: Any) -> Any:
        with (Path(str(file)).parent / "searched").open("a") as log:
            log.write("x")
        searched.append(str(file))
        return scan(file, *args, **how)

    monkeypatch.setattr(line_files, "_scan_plain", counted)
    return searched


def test_a_file_is_searched_once_and_again_when_it_changes(tmp_path: Path, scans: list[str]):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, (low, high) in zip(paths, ((0, 20), (20, N)), strict=True):
        path.write_bytes(lines(low, high))
    for _ in range(3):
        with pen.open(paths) as source:
            assert_batch(source[:], [record(i) for i in range(N)])
    assert sorted(scans) == [str(path) for path in paths]
    assert len(list(tmp_path.glob(f".*{SUFFIX}"))) == 2
    paths[1].write_bytes(lines(20, N - 1))
    with pen.open(paths) as source:
        assert len(source) == N - 1
    assert scans[2:] == [str(paths[1])]


def test_an_index_does_not_depend_on_the_files_that_it_was_built_with(tmp_path: Path, scans: list[str]):
    paths = [tmp_path / f"{number:02d}.jsonl" for number in range(20)]
    for path in paths:
        path.write_bytes(lines())
    for what in (paths[3], paths[:18], paths):
        with pen.open(what) as source:
            assert_batch(source[:N], [record(i) for i in range(N)])
    assert sorted(scans) == [str(path) for path in paths]


def test_two_ranks_and_fifty_starts_search_a_file_once(tmp_path: Path, scans: list[str]):
    (tmp_path / "a.jsonl").write_bytes(lines())

    def first_batch() -> str:
        with pen.open(tmp_path / "a.jsonl") as source:
            return str(next(iter(pen.Loader(source.shuffle(seed=1), batch_size=4)))["text"].to_list())

    starts = [run_in_fork(first_batch, meanwhile=lambda: first_batch()) for _ in range(count(8, 25))]  # two at a time
    assert set(starts) == {first_batch()}
    assert (tmp_path / "searched").read_text() == "x"


def test_a_file_that_changes_while_it_is_open_is_noticed(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines())
    with pen.open(path) as source:
        path.write_bytes(lines().replace(b"http", b"HTTP"))
        os.utime(path, ns=(1, 1))
        with pytest.raises(SourceChangedError):
            source[:]


def test_a_damaged_index_is_made_again_or_refused(tmp_path: Path, scans: list[str]):
    (tmp_path / "a.jsonl").write_bytes(lines())
    for _ in range(2):
        with pen.open(tmp_path / "a.jsonl") as source:
            assert_batch(source[:], [record(i) for i in range(N)])
        (index,) = tmp_path.glob(f".*{SUFFIX}")
        content = bytearray(index.read_bytes())
        content[200] ^= 1
        index.write_bytes(content)
    assert len(scans) == 2


# Values that are right or refused


def write(path: Path, *rows: str) -> Path:
    path.write_text("".join(row + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("usual", "other", "words"),
    [
        ('{"x":1}', '{"x":1.5}', r"field 'x': expected a whole number as in other lines, found '1\.5}'.*schema=\{'x': 'json\?'\}"),
        ('{"x":1}', '{"x":"a"}', "expected a whole number"),
        ('{"x":1}', '{"x":true}', "expected a whole number"),
        ('{"x":1}', '{"x":9223372036854775808}', "expected values of i8, found 9223372036854775808, which does not fit"),
        ('{"x":1}', '{"x":-9223372036854775809}', "which does not fit"),
        ('{"x":1}', '{"x":' + "9" * 5000 + "}", "which does not fit"),
        ('{"x":1}', '{"x":NaN}', "expected a whole number"),
        ('{"x":1}', "{}", r"field 'x': expected a whole number, found none; .*schema=\{'x': 'i8\?'\}"),
        ('{"x":1}', '{"x":null}', "found none"),
        ('{"x":1}', '{"x":1,"x":1}', "every key once in an object, found 'x' again"),
        ('{"x":1}', '{"x":1,"y":1}', "expected the keys .* found another at byte 8: '\"y\":1}'.*fields="),
        ('{"x":1.5}', '{"x":9007199254740993}', "expected values of f8, found 9007199254740993"),
        ('{"x":1.5}', '{"x":1e400}', "expected values of f8, found '1e400'"),
        ('{"x":1.5}', '{"x":"1.5"}', "expected a number"),
        ('{"x":"a"}', '{"x":5}', "expected a text"),
        ('{"x":true}', '{"x":0}', "expected true or false"),
        ('{"x":[1]}', '{"x":[1.5]}', r"expected values of i8\[\], found \[1\.5\]"),
        ('{"x":[1]}', '{"x":["a"]}', r"expected values of i8\[\]"),
        ('{"x":[1]}', '{"x":[9223372036854775808]}', "which does not fit"),
        ('{"x":[1]}', '{"x":1}', "expected a list"),
        ('{"x":[1.5]}', '{"x":[9007199254740993]}', r"expected values of f8\[\], found \[9007199254740993\]"),
        ('{"x":{"y":1}}', '{"x":5}', "expected an object as in other lines, found '5}'"),
        ('{"x":{"y":1}}', '{"x":{"y":1,"z":1}}', "found another"),
        ('{"x":1,"y":null}', '{"x":1,"y":5}', "found another"),
        ('{"x":1}', '{"x":1}{"x":2}', "expected one JSON object in UTF-8, found something else at byte 8"),
        ('{"x":1}', '{"x":1', "expected one JSON object"),
        ('{"x":1}', "[1]", "expected one JSON object"),
        ('{"x":"a"}', '{"x":"\\ud800"}', "expected one JSON object"),
        ('{"x":"a"}', '{"x":"\udcff"}', "expected one JSON object"),
        ('{"x":[[1]]}', '{"x":' + "[" * 300 + "]" * 300 + "}", "at most 256 levels"),
    ],
)
def test_a_line_that_does_not_fit_is_an_error_with_its_place(
    tmp_path: Path, usual: str, other: str, words: str, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "odd.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(line_files, "SAMPLED_LINES", 4)
        path.write_bytes("\n".join([*[usual] * 100, "", other, usual]).encode("utf-8", "surrogateescape"))
        source = pen.open(path)
    with source:
        assert len(source) == 102
        assert_batch(source[:100], [source[0]] * 100)
        for ids in ([100], [3, 100, 5], np.arange(102)):
            with pytest.raises(PenstockError, match=rf"odd\.jsonl: line 102: .*{words}"):
                source[ids]


def test_a_fault_among_the_lines_that_are_looked_at_names_its_line(tmp_path: Path):
    with pytest.raises(CorruptError, match=r"a\.jsonl: line 3: expected one JSON object"):
        pen.open(write(tmp_path / "a.jsonl", '{"x":1}', "", '{"x":}', '{"x":1}'))


NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "é"]), inner, max_size=2),
    max_leaves=4,
)
COLUMNS = [VALUES, st.integers(-5, 5), NUMBERS, st.floats(allow_nan=False), st.lists(st.integers(0, 9), max_size=3), st.booleans()]


@st.composite
def objects(draw: Any) -> list[Record]:
    """Records whose values of a key are mostly of one kind; some are missing."""
    kinds = {
        key: draw(st.sampled_from(COLUMNS)) for key in draw(st.lists(st.sampled_from(["k", "l", "m"]), min_size=1, unique=True))
    }
    return draw(st.lists(st.fixed_dictionaries({}, optional=kinds), min_size=1, max_size=6))


def is_hollow(value: Any) -> bool:
    """Whether there is no value in an object, or in those in it."""
    return value is None or (isinstance(value, dict) and all(map(is_hollow, value.values())))


@given(objects())
def test_every_value_is_the_one_that_python_reads(tmp_path_factory: pytest.TempPathFactory, rows: list[Record]):
    path = write(tmp_path_factory.mktemp("jsonl") / "a.jsonl", *map(json.dumps, rows))
    try:
        source = pen.open(path)
    except EmptySourceError:
        assert all(map(is_hollow, rows))
        return
    with source:
        batch = [source[i] for i in range(len(rows))]
        for name, field in source.schema.items():
            for row, found in zip(rows, batch, strict=True):
                value: Any = row
                for key in name.split("."):
                    value = None if value is None else value.get(key)
                if value is None:
                    assert found[name] is None
                elif field.kind == "text":
                    assert (
                        found[name] == value
                        if isinstance(value, str) and found[name] == value
                        else json.loads(found[name]) == value
                    )
                else:
                    one = np.asarray(found[name])
                    assert one.tolist() == value
                    assert one.dtype.kind == "f" or not isinstance(value, float)
        known = {name.split(".")[0] for name in source.schema}
        assert all(is_hollow(value) or key in known for row in rows for key, value in row.items())


def test_what_is_not_wanted_is_not_compared(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", '{"x":1,"y":1}', '{"x":2,"y":"a","z":[]}')
    with pen.open(path, fields=["x"]) as source:
        assert source["x"][:].tolist() == [1, 2]
    with pen.open(path, schema={"y": "json"}) as source:
        assert source["y"][:].to_list() == ["1", '"a"']


def test_numbers_that_python_writes_are_read(tmp_path: Path):
    path = write(
        tmp_path / "a.jsonl", *(json.dumps({"x": one}) for one in (0.1, float("nan"), float("inf"), -float("inf"), 1e-320))
    )
    with pen.open(path) as source:
        found = source["x"][:]
        assert found.tobytes() == np.array([0.1, np.nan, np.inf, -np.inf, 1e-320]).tobytes()


def test_unsigned_and_large_numbers_keep_every_digit(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", '{"x":18446744073709551615,"y":1e3}', '{"x":0,"y":9007199254740993}')
    with pen.open(path) as source:
        assert source["x"][:].dtype == np.uint64
        assert source["x"][:].tolist() == [2**64 - 1, 0]
        assert source["y"][:].to_list() == ["1e3", "9007199254740993"]


def test_dictionaries_and_empty_objects_stay_json(tmp_path: Path):
    rows = [json.dumps({"counts": {f"word{i}-{k}": k for k in range(20)}, "none": {}, "lists": [[1], []]}) for i in range(20)]
    with pen.open(write(tmp_path / "a.jsonl", *rows)) as source:
        assert list(source.schema) == ["counts", "none", "lists"]
        assert json.loads(source[3]["counts"]) == {f"word3-{k}": k for k in range(20)}
        assert (source[3]["none"], source[3]["lists"]) == ("{}", "[[1], []]")


def test_files_are_inferred_together(tmp_path: Path):
    write(tmp_path / "a.jsonl", '{"x":1,"l":[]}')
    write(tmp_path / "b.jsonl", '{"x":1.5,"l":[2]}', '{"l":[3,4]}')
    with pen.open(tmp_path) as source:
        assert source.schema == {"x": Field("f8", nullable=True), "l": Field.ragged("i8")}
        assert source["x"][:].filled(-1).tolist() == [1, 1.5, -1]
        assert [one.tolist() for one in source["l"][:]] == [[], [2], [3, 4]]


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"", EmptySourceError), (b"\n\n", EmptySourceError), (b"{}\n", EmptySourceError), (b'{"x":null}', EmptySourceError)],
)
def test_files_that_tell_no_field_need_a_schema(tmp_path: Path, content: bytes, error: type[Exception]):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(error, match=r"a\.jsonl.*schema="):
        pen.open(tmp_path / "a.jsonl")
    with pen.open(tmp_path / "a.jsonl", schema={"x": "i8?"}) as source:
        assert source["x"][:].mask.all()
        assert len(source) == (b"{" in content)


@pytest.mark.parametrize("kind", ["i9", "text[]", "i8[", "i8[0]", "i8[2,3]", 5, Field.bytes(), Field.ragged("i8", 2), Field("c8")])
def test_types_that_lines_cannot_have_are_refused(tmp_path: Path, kind: Any):
    with pytest.raises(TypeError, match="schema: 'x': expected"):
        pen.open(write(tmp_path / "a.jsonl", '{"x":1}'), schema={"x": kind})


def test_lists_of_another_size_than_the_schema_says_are_refused(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", '{"x":[1,2]}', '{"x":[1]}', '{"x":[1,null]}')
    with pen.open(path, schema={"x": "i8[2]"}) as source:
        assert source["x"][0].tolist() == [1, 2]
        with pytest.raises(SchemaMismatchError, match=r"line 2: field 'x': expected lists of 2, found one of 1"):
            source[:]
        with pytest.raises(SchemaMismatchError, match=r"line 3: field 'x'.*null in it"):
            source[2]


def test_names_that_no_field_has_need_another(tmp_path: Path):
    path = write(tmp_path / "a.jsonl", '{"x":1,"\\u0000":2}')
    with pytest.raises(SchemaMismatchError, match=r"fields=\{"):
        pen.open(path)
    with pen.open(path, fields={"y": "\0"}) as source:
        assert source["y"][:].tolist() == [2]


# Compressed files


def test_compressed_blocks_are_read_whole_and_shuffled_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(line_files, "BLOCK_BYTES", 1000)
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(zstd(lines(low, low + 5)) for low in range(0, 35, 5)))
    with pen.open(tmp_path / "a.jsonl.zst") as source:
        assert source.reads_blocks
        assert len(source.blocks) > 3
        numbers, low, high = source.extents(np.array([0]), np.array([len(source)]))
        assert (len(source.paths), set(numbers), int((high - low).sum())) == (1, {0}, (tmp_path / "a.jsonl.zst").stat().st_size)
        ids = [batch["id"].filled(-99).tolist() for batch in pen.Loader(source.shuffle(seed=3), batch_size=4)]
        assert ids != [batch["id"].filled(-99).tolist() for batch in pen.Loader(source.in_order(), batch_size=4)]


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.jsonl.gz", gzip.compress(lines())[:-200], TruncatedError),
        ("a.jsonl.gz", b"not gzip", CorruptError),
        ("a.jsonl.zst", zstd(lines())[:-20], TruncatedError),
        ("a.jsonl.zst", zstd(lines()) + b"\0\0\0\0", FormatError),
        ("a.jsonl.zst", zstd(lines()) + bytes.fromhex("502a4d18ff000000"), TruncatedError),
        ("a.jsonl.gz", gzip.compress(bytes(3 << 20)), BatchTooLargeError),
        ("a.jsonl.zst", zstd(bytes(3 << 20)), BatchTooLargeError),
    ],
)
def test_compressed_files_that_are_cut_or_bombs_are_refused(tmp_path: Path, name: str, content: bytes, error: type[Exception]):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=re.escape(name)):
        pen.open(tmp_path / name, max_block_bytes="1MiB")


def test_files_of_c4_and_dolma_are_json_lines(tmp_path: Path):
    (tmp_path / "c4-train.00000-of-00002.json.gz").write_bytes(gzip.compress(b'{"x":1}\n{"x":2}\n'))
    (tmp_path / "c4-train.00001-of-00002.json.gz").write_bytes(gzip.compress(b'{"x":3}\n'))
    with pen.open(tmp_path) as source:
        assert source["x"][:].tolist() == [1, 2, 3]
    (tmp_path / "a.json").write_text('{"x":1}\n{"x":2}\n')
    with pytest.raises(FormatError, match=r"a\.json: expected a collection in JSON.*name JSON lines \.jsonl"):
        pen.open(tmp_path / "a.json")


def test_a_bar_counts_the_bytes_of_a_long_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counted: list[int] = []

    @contextmanager
    def reporting(progress: bool, title: str, total: int) -> Iterator[Callable[[int, int], None]]:
        assert (progress, title, total) == (True, "index", len(lines()))
        yield lambda records, size: counted.append(size)

    monkeypatch.setattr(line_files, "reporting", reporting)
    monkeypatch.setattr(line_files, "BAR_BYTES", 1)
    monkeypatch.setattr(line_files, "PIECE_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(lines())
    with pen.open(tmp_path / "a.jsonl") as source:
        assert_batch(source[:], [record(i) for i in range(N)])
    assert sum(counted) == len(lines())
    assert len(counted) > 3


def test_compressed_and_plain_files_do_not_mix(tmp_path: Path):
    write(tmp_path / "a.jsonl", '{"x":1}')
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"x":2}'))
    with pytest.raises(SchemaMismatchError, match="all compressed or all plain"):
        pen.open(tmp_path)
    with pen.open([pen.open(tmp_path / "a.jsonl"), pen.open(tmp_path / "b.jsonl.gz")]) as both:
        assert both["x"][:].tolist() == [1, 2]
    with pytest.raises(ValueError, match="raw"):
        pen.open(tmp_path / "b.jsonl.gz", raw=True)


# Loaders


def test_loaders_on_two_ranks_resume_exactly(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(lines())

    def loader(rank: int) -> pen.Loader:
        return pen.Loader(pen.open(tmp_path / "a.jsonl").shuffle(seed=5), batch_size=4, shard=pen.Shard(rank, 2))

    whole = [[batch["text"].to_list() for batch in loader(rank)] for rank in range(2)]
    for rank in range(2):
        first = loader(rank)
        steps = iter(first)
        for _ in range(2):
            next(steps)
        again = loader(rank)
        again.load_state_dict(first.state_dict())
        assert [batch["text"].to_list() for batch in again] == whole[rank][2:]


def test_an_object_that_comes_twice_is_shown(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a":{"b":1},"a":{"b":2}}\n')
    words = r'a\.jsonl: line 1: expected every key once in an object, found one again at byte 18: \'{"b":2}}\''
    with pen.open(tmp_path / "a.jsonl") as source, pytest.raises(CorruptError, match=words):
        source[0]
