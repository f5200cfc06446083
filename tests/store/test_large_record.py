"""The limits of records: what can be written, and what is read of a stranger. tests/store/large.py writes records above 1 GiB."""

from pathlib import Path

import numpy as np
import pytest

import penstock as pen
from penstock import Field, Ragged
from penstock.errors import BatchTooLargeError, UnsupportedVersionError
from penstock.schema import MAX_RECORD_BYTES
from penstock.store.column import make_column
from penstock.store.manifest import decode_manifest

SIZE = 2**30 + 1


def zeros(size: int) -> Ragged:
    """One record of zeros, in memory that the system does not even reserve."""
    return Ragged(np.zeros(size, np.uint8), np.array([0, size]), "bytes")


def test_the_limit_of_compressed_records_counts_only_where_few_bytes_claim_many(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 4, 100_000, np.uint8)
    for codec in (pen.Zstd(), pen.LZ4(), pen.Deflate()):
        with pen.create(tmp_path / f"{codec.name}.pen", {"x": Field.bytes(codec=codec)}) as out:
            out.extend({"x": [noise.tobytes(), bytes(100_000), b"short"]})
        for io in ("map", "pread", "direct"):
            data = pen.open(tmp_path / f"{codec.name}.pen", max_record_bytes=50_000, io=io)
            assert data["x"][0] == noise.tobytes()  # above the limit, but no bomb
            assert data["x"][2] == b"short"
            with pytest.raises(BatchTooLargeError, match=r"stored bytes claim to be 100000, more than the limit of 50000"):
                data["x"][1]


def test_records_up_to_4_gib_less_a_byte_can_be_written() -> None:
    field = Field.bytes()
    assert make_column("x", field, zeros(MAX_RECORD_BYTES)).rows == 1
    with pytest.raises(ValueError, match="at most 4294967295 bytes"):
        make_column("x", field, zeros(MAX_RECORD_BYTES + 1))


def test_stores_that_version_1_cannot_read_say_so(tmp_path: Path) -> None:
    for fields, required in [
        ({"x": Field("i4")}, b'"required":[]'),
        ({"größe": Field("i4")}, b'"required":["unicode-names"]'),
        ({"x": Field("u1", (SIZE,))}, b'"required":["large-records"]'),
    ]:
        path = tmp_path / required.hex()
        pen.create(path, fields).__exit__(None, None, None)
        manifest = max((path / "manifest").iterdir()).read_bytes()
        assert required in manifest
        assert list(decode_manifest(manifest, "here").fields) == list(fields)


def test_required_features_that_are_not_known_are_refused(tmp_path: Path) -> None:
    from penstock import _core

    pen.create(tmp_path / "a.pen", {"x": Field("i4")}).__exit__(None, None, None)
    line = max((tmp_path / "a.pen" / "manifest").iterdir()).read_bytes().split(b"\n")[0]
    for value in (b'["other"]', b'["unicode-names","other"]', b'"unicode-names"', b"[[]]", b"null", b"[1]"):
        other = line.replace(b'"required":[]', b'"required":' + value)
        with pytest.raises(UnsupportedVersionError, match="use a newer penstock"):
            decode_manifest(other + b"\n%08x\n" % _core.crc32c(np.frombuffer(other, np.uint8)), "here")


def test_large_records_that_are_missing_take_no_memory_unless_some_are_there(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": Field("u1", (1000,))}) as out:
        out.extend({"x": [np.full(1000, 7, np.uint8), *[None] * 99]})
    with pen.open(tmp_path / "a.pen", max_record_bytes=500) as data:
        assert data["x"][:64].data.sum() == 7000
        for ids in ([5], slice(None)):
            with pytest.raises(BatchTooLargeError, match=r"'x': almost all of .* missing.*larger max_record_bytes"):
                data["x"][ids]
        with pen.Loader(data.select([0, 1]).in_order(), batch_size=2) as loader:
            assert next(iter(loader))["x"].mask.all(axis=1).tolist() == [False, True]
    with pen.open(tmp_path / "a.pen") as data:
        assert data["x"][5] is None
