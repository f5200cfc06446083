"""Token files of other tools, as they are written: read again, byte for byte as described, all or nothing."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats import token_files as made

import penstock as pen
from penstock import Ragged
from penstock.errors import SchemaMismatchError
from penstock.formats import tokens_writer
from penstock.remote.url import url_path
from penstock.source import write_documents, write_tokens

RNG = np.random.default_rng(3)
DOCUMENTS = [RNG.integers(0, 50_000, length).astype("<u2") for length in (9, 1, 0, 40, 17, 0, 3)]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_files_are_those_of_the_description_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    made.write_megatron(tmp_path / "theirs/m", DOCUMENTS)
    made.write_datatrove(tmp_path / "theirs/d.ds", DOCUMENTS)
    (tmp_path / "theirs/n.bin").write_bytes(np.concatenate(DOCUMENTS).tobytes())
    for name, files in {"m.idx": ["m.bin", "m.idx"], "d.ds": ["d.ds.index", "d.ds"], "n.bin": ["n.bin"]}.items():
        assert [path.name for path in write_documents(DOCUMENTS, tmp_path / "ours" / name)] == files
    assert names(tmp_path / "ours") == names(tmp_path / "theirs")
    for name in names(tmp_path / "ours"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


@pytest.mark.parametrize("piece", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize(("name", "options"), [("x.idx", {}), ("x.ds", {}), ("x.npy", {"documents": True})])
def test_what_is_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, name: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(tokens_writer, "PIECE", piece)
    monkeypatch.setattr(tokens_writer, "FLUSH_BYTES", 10 * piece)
    done: list[int] = []
    dtype = "int32" if name == "x.idx" else "uint32"
    write_documents(
        (one.tolist() for one in DOCUMENTS), tmp_path / name, dtype=dtype, separator=7, progress=lambda n, _: done.append(n)
    )
    assert sum(done) == len(DOCUMENTS)
    with pen.open(tmp_path / name, **options) as source:
        assert source.dtype == np.dtype(dtype)
        assert [one.tolist() for one in source["tokens"][:]] == [[*one.tolist(), 7] for one in DOCUMENTS]


@pytest.mark.parametrize("separator", [None, 7, [7, 8]])
@pytest.mark.parametrize("name", ["x.idx", "x.ds", "x.npy", "x.bin", "x.rox"])
def test_several_documents_at_once_are_written_as_one_by_one(tmp_path: Path, name: str, separator: Any) -> None:
    write: Any = write_tokens if name == "x.rox" else write_documents
    pieces = [Ragged.from_items(DOCUMENTS[low:high], dtype="u2") for low, high in ((0, 0), (0, 3), (3, 6))]
    inner = Ragged.from_items(DOCUMENTS, dtype="u2")[6:7]  # whose offsets do not begin at 0
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    done: list[int] = []
    write(DOCUMENTS, tmp_path / "one" / name, separator=separator)
    write([*pieces, inner], tmp_path / "many" / name, separator=separator, progress=lambda n, _: done.append(n))
    assert sum(done) == len(DOCUMENTS)
    assert names(tmp_path / "one") == names(tmp_path / "many")
    for one in names(tmp_path / "one"):
        assert (tmp_path / "one" / one).read_bytes() == (tmp_path / "many" / one).read_bytes()


@pytest.mark.parametrize(
    ("second", "kind", "message"),
    [
        (
            Ragged.from_items([[1], None], dtype="u2"),
            SchemaMismatchError,
            "document 3: expected a text or numbers, found that it is",
        ),
        (Ragged.from_items([[1]], dtype="u4"), TypeError, "document 2: expected uint16 as before, got uint32"),
        (Ragged.from_items([b"x"], dtype="u1", kind="bytes"), TypeError, "document 2: expected an array"),
        (Ragged.from_items([np.zeros((2, 2))], dtype="u2", ndim=2), TypeError, "document 2: expected one dimension, got 2"),
    ],
)
def test_several_documents_at_once_must_be_like_those_before(tmp_path: Path, second: Ragged, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        write_documents([Ragged.from_items([[1], [2]], dtype="u2"), second], tmp_path / "x.idx")
    assert names(tmp_path) == []


def test_tables_of_olmo_are_lines_of_start_and_end(tmp_path: Path) -> None:
    write_documents(DOCUMENTS[:3], tmp_path / "x.npy")
    assert gzip.decompress((tmp_path / "x.csv.gz").read_bytes()) == b"0,9\n9,10\n10,10\n"
    assert (tmp_path / "x.npy").read_bytes() == np.concatenate(DOCUMENTS[:3]).tobytes()


def test_nothing_is_left_behind_or_replaced(tmp_path: Path) -> None:
    def failing() -> Any:
        yield DOCUMENTS[0]
        raise RuntimeError("the end")

    for name in ("x.idx", "x.ds", "x.npy", "x.bin"):
        with pytest.raises(RuntimeError, match="the end"):
            write_documents(failing(), tmp_path / name)
        assert write_documents([], tmp_path / name) == []
        assert names(tmp_path) == []
    for name, taken in (("x.idx", "x.bin"), ("x.ds", "x.ds.index"), ("x.npy", "x.csv.gz"), ("y.bin", "y.bin")):
        (tmp_path / taken).write_bytes(b"mine")
        with pytest.raises(FileExistsError, match=taken):
            write_documents(DOCUMENTS, tmp_path / name)
        assert names(tmp_path) == [taken]
        assert (tmp_path / taken).read_bytes() == b"mine"
        (tmp_path / taken).unlink()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path must end in \.idx, \.ds, \.npy, \.bin"):
        write_documents(DOCUMENTS, tmp_path / "x.tokens")
    with pytest.raises(ValueError, match="tokens of int64 cannot be stored there: pass dtype=, one of uint16, uint32"):
        write_documents([np.arange(3)], tmp_path / "x.ds")
    with pytest.raises(ValueError, match="document 1"):
        write_documents([[1], [70_000]], tmp_path / "x.ds", dtype="uint16")
    with pytest.raises(TypeError, match=r"write \[document\]"):
        write_documents("text", tmp_path / "x.bin")
    assert names(tmp_path) == []


def test_convert_writes_token_files_on_disk_and_at_urls(tmp_path: Path) -> None:
    bucket = url_path(f"memory://convert-token-files-{tmp_path.name}")
    tokens = {"tokens": [one.astype(np.uint16) for one in DOCUMENTS]}
    with pen.open(tokens) as source:
        for place in (tmp_path, bucket):
            for name in ("x.idx", "y.ds"):
                pen.convert(source, place / name)
                with pen.open(place / name) as written:
                    assert [one.tolist() for one in written["tokens"][:]] == [one.tolist() for one in DOCUMENTS]
            pen.convert(source, place / "z.bin", separator=9)
            with pen.open(place / "z.bin", dtype="uint16") as line:
                assert line.num_tokens == 70 + len(DOCUMENTS)
        with pytest.raises(ValueError, match=r"\.npy"):
            pen.convert(source, tmp_path / "x.npy")
    with pen.open(tmp_path / "x.idx") as source:
        pen.convert(source, tmp_path / "x.pen")
        pen.convert(source, tmp_path / "x.rox")
        assert pen.open(tmp_path / "x.pen").digest() == source.digest()
        assert pen.open(tmp_path / "x.rox").num_tokens == 70
