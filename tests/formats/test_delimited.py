"""CSV and TSV: rows with quotes, cells that are right or refused, compressed files by blocks."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import count

import penstock as pen
from penstock import Field
from penstock.errors import CorruptError, FormatError, PenstockError, SchemaMismatchError, SizeOverflowError, TruncatedError
from penstock.formats import jsonl
from penstock.formats import lines as line_files
from penstock.records import Source
from penstock.testing import SourceSuite

pytestmark = pytest.mark.usefixtures("csv_was_read")

Record = dict[str, Any]
N = 31
NAMES = ["id", "zip", "score", "flag", "text", "big", "hash"]


def cells(i: int) -> list[Any]:
    return [
        i - 4,
        f"{i:05d}",
        "" if i % 5 == 2 else i / 4,
        "" if i % 6 == 1 else str(i % 2 == 0).lower(),
        ["", "plain", 'a "quoted", text', "two\nlines", " é\r\n", '"', "NA"][i % 7],
        2**64 + i,
        2**63 + i,
    ]


def record(i: int) -> Record:
    row = cells(i)
    return {
        "id": np.int64(row[0]),
        "zip": row[1],
        "score": None if row[2] == "" else np.float64(row[2]),
        "flag": None if row[3] == "" else np.bool_(row[3] == "true"),
        "text": row[4],
        "big": str(row[5]),
        "hash": np.uint64(row[6]),
    }


def rows(low: int = 0, high: int = N, *, header: bool = True, **form: Any) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, **form)
    if header:
        writer.writerow(NAMES)
    writer.writerows(cells(i) for i in range(low, high))
    return out.getvalue().encode()


class Suite(SourceSuite):
    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestOneFile(Suite):
    def make(self, directory: Path) -> Source:
        (directory / "a.csv").write_bytes(rows())
        return pen.open(directory / "a.csv")


class TestManyFiles(Suite):
    """With a mark, blank lines, no newline at the end, no rows, all cells in quotes."""

    def make(self, directory: Path) -> Source:
        (directory / "a.tsv").write_bytes(b"\xef\xbb\xbf" + rows(0, 12, delimiter="\t", lineterminator="\n\n"))
        (directory / "b.tsv").write_bytes(rows(0, 0, delimiter="\t"))
        (directory / "c.tsv").write_bytes(rows(12, 15, delimiter="\t").rstrip())
        (directory / "d.tsv").write_bytes(b"\n" + rows(15, N, delimiter="\t", quoting=csv.QUOTE_ALL))
        return pen.open(directory, threads=1)


class TestCompressed(Suite):
    """Frames that end anywhere."""

    def make(self, directory: Path) -> Source:
        whole, codec = rows(0, 25), pa.Codec("zstd")
        parts = [codec.compress(whole[low : low + 300], asbytes=True) for low in range(0, len(whole), 300)]
        (directory / "a.csv.zst").write_bytes(b"".join(parts))
        (directory / "b.csv.gz").write_bytes(gzip.compress(rows(25, N), mtime=0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(line_files, "BLOCK_BYTES", 500)
            return pen.open([directory / "a.csv.zst", directory / "b.csv.gz"])


class TestChosenColumns(SourceSuite):
    def make(self, directory: Path) -> Source:
        (directory / "a.csv").write_bytes(rows(header=False))
        return pen.open(
            directory / "a.csv", names=NAMES, fields={"number": "id", "zip": "zip"}, schema={"id": Field("f4"), "zip": "text"}
        )

    def records(self) -> list[Record]:
        return [{"number": np.float32(i - 4), "zip": f"{i:05d}"} for i in range(N)]


@given(
    st.lists(st.lists(st.text('a",\n\r é', max_size=5), min_size=2, max_size=2), max_size=6), st.sampled_from(["\n", "\r\n", "\r"])
)
def test_what_the_csv_module_writes_is_read(tmp_path_factory: pytest.TempPathFactory, written: list[list[str]], end: str):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL  # which leaves only the bytes of its own end in quotes
    csv.writer(out, lineterminator=end, quoting=quoting).writerows([["x", "y"], *written])
    path.write_bytes(out.getvalue().encode())
    with pen.open(path, schema={"x": "text", "y": "text"}) as source:
        assert [list(source[i].values()) for i in range(len(source))] == written


@pytest.mark.parametrize(
    ("usual", "other", "words"),
    [
        ("1", "1.5", r"field 'x': expected a whole number of i8, found '1\.5'; .*schema=\{'x': 'text'\}"),
        ("1", "007", "expected a whole number of i8, found '007'"),
        ("1", "0x10", "expected a whole number of i8, found '0x10'"),
        ("1", "+1", "expected a whole number"),
        ("1", " 1", "expected a whole number"),
        ("1", "9223372036854775808", "found '9223372036854775808'"),
        ("1", "a", "found 'a'"),
        ("1", '""', r"field 'x': expected a whole number, found an empty cell; .*schema=\{'x': 'i8\?'\}"),
        ("1.5", "a", "expected a number of f8, found 'a'"),
        ("1.5", "9007199254740993", "found '9007199254740993'"),
        ("1.5", "1e400", "found '1e400'"),
        ("true", "yes", "expected true or false of bool, found 'yes'"),
        ("true", "1", "expected true or false of bool, found '1'"),
        ("1,5", "1", "expected 2 cells, as there are columns, found 1"),
        ("1,5", "1,2,3", "expected 2 cells, as there are columns, found 3"),
        ("a", "\udcff", "is not UTF-8|invalid UTF8"),
    ],
)
def test_a_cell_that_does_not_fit_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usual: str, other: str, words: str
):
    path, head = tmp_path / "odd.csv", "x" if "," not in usual else "x,y"
    path.write_bytes("\n".join([head, *[usual] * 100, "", other, usual]).encode("utf-8", "surrogateescape"))
    with monkeypatch.context() as patch:
        patch.setattr(line_files, "SAMPLED_LINES", 4)
        source = pen.open(path)
    with source:
        assert len(source) == 102
        assert len(source[:100]) == head.count(",") + 1
        for ids in ([100], [3, 100, 5], np.arange(102)):
            with pytest.raises(PenstockError, match=rf"odd\.csv: line 10[23].*({words})"):
                source[ids]


def test_numbers_are_those_that_are_written(tmp_path: Path):
    values = ["1e5", "-0.25", "nan", "inf", "-Infinity", "3", "+2.5", ".5", "1e-320"]
    (tmp_path / "a.csv").write_text("\n".join(["x", *values]))
    with pen.open(tmp_path / "a.csv") as source:
        assert source["x"][:].tobytes() == np.array([float(value) for value in values]).tobytes()


def test_a_newline_in_quotes_ends_no_row_and_lines_are_those_of_the_file(tmp_path: Path):
    (tmp_path / "a.csv").write_text('x,y\n1,"a\nb"\n2,"c\n\nd"\n3,e,f\n')
    with pytest.raises(FormatError, match=r"a\.csv: line 7: expected 2 cells"):
        pen.open(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ("", FormatError, "expected a row with the names of the columns"),
        ("\n\n", FormatError, "expected a row with the names"),
        ('x\n"a\nb', TruncatedError, "in quotes does not end"),
        ("x,x\n1,2\n", SchemaMismatchError, "expected one column 'x', found several"),
        ("x,\n1,2\n", SchemaMismatchError, "rename the column"),
        ("x\n1,2\n", FormatError, "expected 1 cells"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path: Path, content: str, error: type[Exception], words: str):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(error, match=rf"a\.csv.*{words}"):
        pen.open(tmp_path / "a.csv")


def test_files_of_other_columns_and_wrong_options_are_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("y,x\n1,2\n")
    with pytest.raises(SchemaMismatchError, match=r"b\.csv: expected the columns .*'x', 'y'.* found .*'y', 'x'"):
        pen.open(tmp_path)
    with pytest.raises(KeyError, match="there is no column 'z'"):
        pen.open(tmp_path / "a.csv", schema={"z": "i8"})
    for kind in ("json", "i8[]", "i9", 5):
        with pytest.raises(TypeError, match="schema: 'x': expected"):
            pen.open(tmp_path / "a.csv", schema={"x": kind})
    with pytest.raises(ValueError, match="delimiter must be a single"):
        pen.open(tmp_path / "a.csv", delimiter="ab")
    with pen.open(tmp_path / "a.csv", delimiter=";") as source:
        assert source[0] == {"x,y": "1,2"}


def test_tables_of_documents_stay_companions_of_token_files(tmp_path: Path):
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "a.npy")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0,4\n4,10\n"))
    with pen.open(tmp_path, dtype="uint16", documents=True) as source:
        assert [one.tolist() for one in source["tokens"][:]] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]


def test_files_of_pandas_and_datasets_are_read(tmp_path: Path):
    import datasets
    import pandas as pd
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # no thread of its own
    texts, numbers = ["a", 'b "c"\n', "é,"], [1, 2, 3]
    frame = pd.DataFrame({"n": numbers, "t": texts, "f": [0.5, None, 1e300]})
    frame.to_csv(tmp_path / "pandas.csv", index=False)
    frame.to_json(tmp_path / "pandas.jsonl", orient="records", lines=True)
    rows = datasets.Dataset.from_dict({"n": numbers, "t": texts, "l": [[1], [], [2, 3]], "m": [[{"r": t}] for t in texts]})
    rows.to_json(tmp_path / "hf.jsonl")
    rows.remove_columns(["l", "m"]).to_csv(tmp_path / "hf.csv")
    for name in ("pandas.csv", "pandas.jsonl", "hf.jsonl", "hf.csv"):
        with pen.open(tmp_path / name) as source:
            assert source["n"][:].tolist() == numbers
            assert source["t"][:].to_list() == texts
            if name.startswith("pandas"):
                assert source["f"][:].filled(-1).tolist() == [0.5, -1, 1e300]
            if name == "hf.jsonl":
                assert [one.tolist() for one in source["l"][:]] == [[1], [], [2, 3]]
                assert [json.loads(one) for one in source["m"][:].to_list()] == [[{"r": t}] for t in texts]


def test_blocks_of_compressed_files_name_their_records(tmp_path: Path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n" + b"1\n" * 2000 + b"z\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_files, "SAMPLED_LINES", 4)
        source = pen.open(tmp_path / "a.csv.gz")
    with source, pytest.raises(SchemaMismatchError, match=r"a\.csv\.gz: record 2000: field 'x'"):
        source[0]


def test_text_that_is_not_utf8_is_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"x\nabc\n\xff\n")
    with pytest.raises(CorruptError, match=r"a\.csv: line 3 is not UTF-8"):
        pen.open(tmp_path / "a.csv")


def test_a_row_that_begins_with_a_byte_order_mark_keeps_it_wherever_it_is_in_a_batch(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes("\ufeffx,y\na,1\n\ufeffb,2\n\ufeff\ufeffc,3\n".encode())
    with pen.open(tmp_path / "a.csv") as source:
        wanted = ["a", "\ufeffb", "\ufeff\ufeffc"]
        assert source["x"][:].to_list() == wanted
        assert [source[i]["x"] for i in range(3)] == wanted


def test_cells_may_be_long(tmp_path: Path):
    long = 'many "letters", ' * 20_000
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["x", "y"], [long, 1], ["short", 2], ["z" * 200_000, 3]])
    with pen.open(tmp_path / "a.csv") as source:
        assert source["x"][:].to_list() == [long, "short", "z" * 200_000]
        assert source["y"][:].tolist() == [1, 2, 3]


def test_rows_that_end_with_returns_alone_are_found_in_one_pass(tmp_path: Path):
    """A search for a newline from every row on would take minutes here."""
    rows = count(60_000, 500_000)
    (tmp_path / "a.csv").write_bytes(b"x,y\r" + b"1,2\r" * rows + b'"3",4\r5,6\n')
    with pen.open(tmp_path / "a.csv") as source:
        assert len(source) == rows + 2
        assert source["x"][rows - 1 :].tolist() == [1, 3, 5]


def test_a_number_with_spaces_is_named_by_its_line(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"x\n1.5\n 2.5\n")
    with (
        pen.open(tmp_path / "a.csv", schema={"x": "f8"}) as source,
        pytest.raises(
            SchemaMismatchError, match=r"a\.csv: line 3: field 'x': expected a number of f8, found ' 2\.5'; give its type"
        ),
    ):
        source["x"][:]


def test_rows_are_parsed_in_runs_and_one_that_pyarrow_cannot_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.csv").write_bytes(rows())
    with pen.open(tmp_path / "a.csv") as source:
        monkeypatch.setattr(jsonl, "PARSED_BYTES", 100)
        assert source["text"][:].to_list() == [record(i)["text"] for i in range(N)]
        monkeypatch.setattr(jsonl, "PARSED_LINES", 3)
        assert source["hash"][:].tolist() == [record(i)["hash"] for i in range(N)]
        monkeypatch.setattr(jsonl, "MOST_PARSED", 40)
        with pytest.raises(SizeOverflowError, match=r"a\.csv: line \d+: expected a line of at most 40 bytes"):
            source["hash"][:]


@pytest.mark.parametrize(("end", "start"), [("\r", ""), ("\r\n", ""), ("\r", '"two\r\nlines",2\r'), ("\r\n", "\r\r\n")])
def test_lines_that_end_with_returns_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, start: str):
    monkeypatch.setattr(line_files, "SAMPLED_LINES", 2)
    monkeypatch.setattr(line_files, "PIECE_BYTES", 7)
    text = f"x,y{end}{start}" + f"a,2{end}" * 50 + f"a,b{end}"
    (tmp_path / "a.csv").write_bytes(text.encode())
    line = text[: text.index("a,b")].replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    with (
        pen.open(tmp_path / "a.csv", schema={"y": "i8"}) as source,
        pytest.raises(SchemaMismatchError, match=rf"a\.csv: line {line}: field 'y'"),
    ):
        source["y"][:]
