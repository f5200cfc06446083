"""HDF5 files: every layout, many files, strings and lists, links that lead away, and files that are broken."""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.cli import warm

from penstock.errors import (
    CorruptError,
    EmptyFileError,
    FormatError,
    MissingError,
    NoMatchError,
    PenstockError,
    ReadError,
    SchemaMismatchError,
    SizeOverflowError,
    SourceChangedError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats.hdf5 import Hdf5Source, open_hdf5
from penstock.records import Source
from penstock.schema import Field
from penstock.testing import SourceSuite

Record = dict[str, Any]

RNG = np.random.default_rng(0)
N = 53
ROWS = RNG.random((N, 3, 5), np.float32)
LABELS = RNG.integers(0, 10, N)
TEXTS = ["é" * (i % 7) + str(i) * (i % 3) for i in range(N)]
LISTS = [np.arange(i % 6, dtype=np.int32) for i in range(N)]


def write(path: Path, data: dict[str, Any], **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, value in data.items():
            file.create_dataset(name, data=value, **options)


class TestContiguous(SourceSuite):
    """The layout of CDL: data and labels."""

    def make(self, directory: Path) -> Source:
        write(directory / "a.h5", {"data": ROWS, "labels": LABELS})
        return open_hdf5(directory / "a.h5")

    def records(self) -> list[Record]:
        return [{"data": row, "labels": label} for row, label in zip(ROWS, LABELS, strict=True)]


class TestLayouts(SourceSuite):
    """Chunks of whole rows, of parts of rows, compressed, in the header, never written, and of the other byte order."""

    def make(self, directory: Path) -> Source:
        with h5py.File(directory / "a.hdf5", "w") as file:
            file.create_dataset("chunks", data=ROWS, chunks=(8, 3, 5))
            file.create_dataset("deep/er/gzip", data=ROWS, chunks=(8, 3, 5), compression="gzip", shuffle=True)
            file.create_dataset("labels", data=LABELS, chunks=(7,), compression="lzf")
            file.create_dataset("never", shape=(N, 2), dtype="i2", fillvalue=7, chunks=(5, 2))
            file.create_dataset("other", data=ROWS.astype(">f8"), chunks=(10, 3, 5))
            file.create_dataset("pieces", data=ROWS, chunks=(9, 2, 5))
            file["scalar"] = 5
            some = file.create_dataset("some", shape=(N,), dtype="i8", chunks=(6,))
            some[20:30] = np.arange(10)
            file.create_dataset("true", data=LABELS > 4)
            file["alias"] = h5py.SoftLink("/labels")
            file["again"] = file["labels"]
        return open_hdf5(directory / "a.hdf5", fields=[*self.records()[0]])

    def records(self) -> list[Record]:
        some = np.zeros(N, np.int64)
        some[20:30] = np.arange(10)
        return [
            {
                "chunks": ROWS[i],
                "deep.er.gzip": ROWS[i],
                "labels": LABELS[i],
                "never": np.array([7, 7], np.int16),
                "other": ROWS[i].astype(np.float64),
                "pieces": ROWS[i],
                "some": some[i],
                "true": LABELS[i] > 4,
            }
            for i in range(N)
        ]


class TestManyFiles(SourceSuite):
    """One of them without a record; chunked differently; through h5py as well as by native threads."""

    def make(self, directory: Path) -> Source:
        for name, low, high, chunk in (("a.h5", 0, 20, 6), ("b.hdf5", 20, 20, 4), ("c.he5", 20, 23, 1), ("d.h5", 23, N, 8)):
            with h5py.File(directory / name, "w") as file:
                file.create_dataset("gzip", data=ROWS[low:high], chunks=(chunk, 3, 5), compression="gzip", maxshape=(None, 3, 5))
                file.create_dataset("plain", data=ROWS[low:high], chunks=(chunk, 3, 5), maxshape=(None, 3, 5))
                file.create_dataset("text", data=TEXTS[low:high], dtype=h5py.string_dtype())
        return open_hdf5(directory, io="pread", threads=1)

    def records(self) -> list[Record]:
        return [{"gzip": ROWS[i], "plain": ROWS[i], "text": TEXTS[i]} for i in range(N)]


class TestRagged(SourceSuite):
    """Texts, byte strings and lists of different lengths."""

    def make(self, directory: Path) -> Source:
        with h5py.File(directory / "a.h5", "w") as file:
            file.create_dataset("ascii", data=[b"x" * (i % 4) for i in range(N)], dtype=h5py.string_dtype("ascii"))
            file.create_dataset("fixed", data=np.array([b"y" * (i % 4) for i in range(N)], "S3"))
            lists = file.create_dataset("lists", (N,), dtype=h5py.vlen_dtype(np.int32), chunks=(8,), compression="gzip")
            for i, one in enumerate(LISTS):
                lists[i] = one
            file.create_dataset("text", data=TEXTS, dtype=h5py.string_dtype(), chunks=(8,), compression="gzip")
        return open_hdf5(directory / "a.h5")

    def records(self) -> list[Record]:
        return [{"ascii": b"x" * (i % 4), "fixed": b"y" * (i % 4), "lists": LISTS[i], "text": TEXTS[i]} for i in range(N)]


class TestEmpty(SourceSuite):
    def make(self, directory: Path) -> Source:
        write(directory / "a.h5", {"x": np.empty((0, 3), np.int16), "y": np.empty((0, 0)), "z": np.empty(0, "S5")})
        return open_hdf5(directory / "a.h5")

    def records(self) -> list[Record]:
        return []


# What becomes a field


def test_every_element_type_comes_back(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        code: np.arange(4).astype(code) for code in ("i1", ">i2", "i4", ">u8", "f2", ">f4", "f8", "?", "c8", ">c16")
    }
    write(tmp_path / "a.h5", {code.replace("?", "bool").replace(">", "big-"): value for code, value in values.items()})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        colors = h5py.enum_dtype({"RED": 0, "BLUE": 300}, basetype=">i4")
        file.create_dataset("enum", data=np.array([0, 300, 0, 300]), dtype=colors)
        narrow = h5py.h5t.STD_I16LE.copy()
        narrow.set_precision(12)
        made = h5py.h5d.create(file.id, b"narrow", narrow, h5py.h5s.create_simple((4,)))
        h5py.Dataset(made)[...] = [-2, -1, 0, 1]
    with open_hdf5(tmp_path) as source:
        for code, value in values.items():
            found = source[code.replace("?", "bool").replace(">", "big-")][::-1]
            assert found.dtype == np.dtype(code).newbyteorder("=")
            assert found.tolist() == value[::-1].tolist()
        assert source["enum"][[3, 0]].tolist() == [300, 0]
        assert source["narrow"][:].tolist() == [-2, -1, 0, 1]


def test_fields_are_chosen_by_name_and_renamed(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"g/x": ROWS, "g/y.z": LABELS, "other": np.arange(3)})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["soft"] = h5py.SoftLink("g/twice")
        file["g/twice"] = h5py.SoftLink("./y.z")
    for fields, names in (
        (["g.x"], ["g.x"]),
        (["/g/x", "g/y.z"], ["g.x", "g.y.z"]),
        ({"image": "g/x", "label": "/g/y.z"}, ["image", "label"]),
        ({"label": "soft"}, ["label"]),
        (["other"], ["other"]),
    ):
        with open_hdf5(tmp_path / "a.h5", fields=fields) as source:
            assert list(source.schema) == names
    with open_hdf5(tmp_path / "a.h5", fields={"label": "soft", "image": "g/x"}) as source:
        assert np.array_equal(source["label"][:], LABELS)
    for wrong in (["no"], ["g"], {"x": "g/x/y"}, {"x": ""}, []):
        with pytest.raises(SchemaMismatchError, match=r"a\.h5: expected (a )?data set"):
            open_hdf5(tmp_path / "a.h5", fields=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list of names"):
        open_hdf5(tmp_path / "a.h5", fields="other")


def test_data_sets_that_do_not_fit_together_are_shown(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"data": ROWS, "labels": LABELS[:-1]})
    with pytest.raises(SchemaMismatchError, match=r"a\.h5: .*'data': 53, 'labels': 52.*fields="):
        open_hdf5(tmp_path / "a.h5")
    write(tmp_path / "a.h5", {"a.b": LABELS, "a/b": LABELS})
    with pytest.raises(SchemaMismatchError, match=r"a\.h5: two data sets"):
        open_hdf5(tmp_path / "a.h5")
    write(tmp_path / "a.h5", {"one": 5})
    with pytest.raises(SchemaMismatchError, match="found none"):
        open_hdf5(tmp_path / "a.h5")
    with pytest.raises(SchemaMismatchError, match="single value"):
        open_hdf5(tmp_path / "a.h5", fields=["one"])


def test_files_that_do_not_fit_together_are_shown(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"x": ROWS, "y": LABELS})
    for other, words in (
        ({"x": ROWS}, r"b\.h5: expected \{'y': Field\('i8'\)\} as in .*a\.h5, found \{'y': None\}"),
        ({"x": ROWS, "y": LABELS, "z": LABELS}, r"expected \{'z': None\}"),
        ({"x": ROWS[:, 0], "y": LABELS}, r"\(3, 5\).*found \{'x': Field\('f4', \(5,\)\)\}"),
        ({"x": ROWS, "y": LABELS.astype("i4")}, r"found \{'y': Field\('i4'\)\}"),
    ):
        write(tmp_path / "b.h5", other)
        with pytest.raises(SchemaMismatchError, match=words):
            open_hdf5(tmp_path)


def test_files_of_different_byte_order_and_layout_are_one_source(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"x": ROWS})
    write(tmp_path / "b.h5", {"x": ROWS.astype(">f4")})
    write(tmp_path / "c.h5", {"x": ROWS}, compression="gzip")
    with open_hdf5(tmp_path) as source:
        ids = RNG.permutation(3 * N)
        assert np.array_equal(source["x"][ids], np.concatenate([ROWS] * 3)[ids])


def test_types_that_records_cannot_have_are_refused_by_name(tmp_path: Path) -> None:
    def compound(file: Any) -> None:
        file["bad"] = np.zeros(N, [("a", "i4"), ("b", "f4")])

    def reference(file: Any) -> None:
        file["bad"] = np.array([file["good"].ref] * N, dtype=h5py.ref_dtype)

    def opaque(file: Any) -> None:
        h5py.h5d.create(file.id, b"bad", h5py.h5t.py_create(np.dtype("V4"), logical=True), h5py.h5s.create_simple((N,)))

    def time(file: Any) -> None:
        h5py.h5d.create(file.id, b"bad", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((N,)))

    def text_table(file: Any) -> None:
        file.create_dataset("bad", (N, 2), dtype=h5py.string_dtype())

    def big_endian_lists(file: Any) -> None:
        file.create_dataset("bad", (N,), dtype=h5py.vlen_dtype(">i4"))

    for make in (compound, reference, opaque, time, text_table, big_endian_lists):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["good"] = LABELS
            make(file)
        with pytest.raises(UnsupportedTypeError, match=r"a\.h5: data set '/bad'"):
            open_hdf5(tmp_path / "a.h5")
        with open_hdf5(tmp_path / "a.h5", fields=["good"]) as source:
            assert len(source) == N


def test_records_beyond_the_limit_and_unknown_filters_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("huge", (2, 2**32), dtype="u1", chunks=(1, 1024))
    with pytest.raises(SizeOverflowError, match=r"a\.h5: data set '/huge'"):
        open_hdf5(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        recipe = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        recipe.set_chunk((4,))
        recipe.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I64LE, h5py.h5s.create_simple((8,)), recipe)
    content = (tmp_path / "a.h5").read_bytes()
    known, unknown = (number.to_bytes(2, "little") for number in (h5py.h5z.FILTER_LZF, 32_015))
    assert content.count(known) == 1
    (tmp_path / "a.h5").write_bytes(content.replace(known, unknown))
    with pytest.raises(UnsupportedVersionError, match=r"a\.h5: data set '/x': HDF5 has no filter \[32015\]"):
        open_hdf5(tmp_path / "a.h5")


def test_a_claim_of_many_rows_costs_nothing(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("x", (2**60,), dtype="i4", chunks=(1,), fillvalue=3)
    with open_hdf5(tmp_path) as source:
        assert len(source) == 2**61
        assert source["x"][[0, 2**60, 2**61 - 1]].tolist() == [3, 3, 3]
        assert len(source.blocks) <= 2**23


# Nothing leads to other files


def test_whatever_leads_to_other_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "secret.h5", {"x": LABELS})
    (tmp_path / "raw").write_bytes(LABELS.tobytes())

    def external_link(file: Any) -> None:
        file["bad"] = h5py.ExternalLink("secret.h5", "/x")

    def soft_link_through_an_external_one(file: Any) -> None:
        file["door"] = h5py.ExternalLink("secret.h5", "/")
        file["bad"] = h5py.SoftLink("/door/x")

    def external_storage(file: Any) -> None:
        file.create_dataset("bad", (N,), dtype="i8", external=[(str(tmp_path / "raw"), 0, N * 8)])

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((N,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "x", (N,))
        file.create_virtual_dataset("bad", layout)

    for make in (external_link, soft_link_through_an_external_one, external_storage, virtual):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["good"] = LABELS
            make(file)
        for fields in (None, ["bad"], {"x": "bad"}):
            with pytest.raises(UnsafePathError, match=r"a\.h5: .*(/bad|/door)"):
                open_hdf5(tmp_path / "a.h5", fields=fields)  # type: ignore[arg-type]
        with open_hdf5(tmp_path / "a.h5", fields=["good"]) as source:
            assert np.array_equal(source["good"][:], LABELS)


def test_links_that_lead_in_circles_are_not_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("g")
        group["up"] = file["/"]
        group["self"] = group
        group["x"] = LABELS
        file["twin"] = group["x"]
        file["loop"] = h5py.SoftLink("/loop")
    with open_hdf5(tmp_path / "a.h5") as source:
        assert len(source.schema) == 1
    with pytest.raises(UnsafePathError, match="circles"):
        open_hdf5(tmp_path / "a.h5", fields=["loop"])


# How it is read


def plain(source: Hdf5Source) -> list[str]:
    return sorted(source._plain)


def test_blocks_are_the_chunks_of_the_widest_field(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("labels", data=LABELS, chunks=(7,), compression="gzip")
        file.create_dataset("wide", data=ROWS, chunks=(8, 3, 5), compression="gzip")
        file.create_dataset("wider", data=ROWS.astype("f8"))
    with open_hdf5(tmp_path / "a.h5") as source:
        assert source.reads_blocks
        assert (len(source.blocks), source.blocks.size) == (7, 8)
    with open_hdf5([tmp_path / "a.h5"] * 2, fields=["wide"]) as source:
        assert [len(source.blocks[i]) for i in range(len(source.blocks))] == [*[8] * 6, 5] * 2
    with open_hdf5(tmp_path / "a.h5", fields=["wider"]) as source:
        assert not source.reads_blocks
        assert len(source.blocks) == 1
    with open_hdf5([tmp_path / "a.h5"] * 2, fields=["wider"]) as source:
        assert len(source.blocks) == 2


def test_rows_that_lie_as_they_are_do_not_pass_through_h5py(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        odd = RNG.integers(0, 256, (1000, 13), np.uint8)
        for number in range(50):  # so that chunks of both lie among each other at odd places
            for name in ("a", "b"):
                if number == 0:
                    file.create_dataset(name, (0, 13), "u1", chunks=(20, 13), maxshape=(None, 13))
                file[name].resize((number * 20 + 20, 13))
                file[name][-20:] = odd[number * 20 : number * 20 + 20]
                file.flush()
        file["whole"] = odd
        file.create_dataset("gzip", data=odd, compression="gzip")
    os.symlink("a.h5", tmp_path / "link.h5")
    for path in ("a.h5", "link.h5"):
        with open_hdf5(tmp_path / path) as source:
            assert plain(source) == ["a", "b", "whole"]
            for ids in (RNG.permutation(1000), RNG.integers(0, 1000, 500), np.arange(1000)):
                for column in source[ids].values():
                    assert np.array_equal(column, odd[ids])


def test_a_user_block_does_not_move_anything(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["x"] = ROWS
        file.create_dataset("y", data=LABELS, chunks=(7,))
    with open_hdf5(tmp_path / "a.h5") as source:
        assert plain(source) == []
        assert np.array_equal(source["x"][::-1], ROWS[::-1])
        assert np.array_equal(source["y"][:], LABELS)


def test_more_files_than_h5py_may_hold_open(tmp_path: Path) -> None:
    for i in range(100):
        write(tmp_path / f"{i:03d}.h5", {"x": np.arange(2 * i, 2 * i + 2), "t": [str(2 * i), str(2 * i + 1)]}, chunks=(1,))
    code = """
import os, resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from penstock.formats.hdf5 import open_hdf5
ids = np.random.default_rng(0).permutation(200)
with open_hdf5(sys.argv[1]) as source:
    for _ in range(2):
        assert source["x"][ids].tolist() == ids.tolist()
        assert [int(text) for text in source["t"][ids]] == ids.tolist()
"""
    warm.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=600)


def test_eight_threads_read_compressed_data(tmp_path: Path) -> None:
    data = RNG.integers(0, 100, (500, 7, 3))
    for name in ("a.h5", "b.h5"):
        write(tmp_path / name, {"x": data, "y": data}, chunks=(16, 4, 3), compression="gzip")
    with open_hdf5(tmp_path) as source:

        def work(seed: int) -> bool:
            rng = np.random.default_rng(seed)
            both = np.concatenate([data, data])
            for _ in range(10):
                ids = rng.integers(0, 1000, 64)
                batch = source[ids]
                assert np.array_equal(batch["x"], both[ids])
                assert np.array_equal(batch["y"], both[ids])
            return True

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))


# Bad files


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "good.h5", {"x": np.arange(5000)})
    whole = (tmp_path / "good.h5").read_bytes()
    bad = tmp_path / "bad.h5"
    cases: list[tuple[bytes, type[PenstockError]]] = [
        (b"", EmptyFileError),
        (b"hello world\n" * 1000, FormatError),
        (random.Random(0).randbytes(10_000), FormatError),
        (whole[:7], FormatError),
        (whole[:1000], TruncatedError),
        (whole[:-1], TruncatedError),
        (whole[:100] + bytes(len(whole) - 100), CorruptError),
    ]
    for content, error in cases:
        bad.write_bytes(content)
        with pytest.raises(error, match=r"bad\.h5: ") as caught:
            open_hdf5(tmp_path)
        assert type(caught.value) is error


def test_missing_files_and_patterns_without_a_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such file"):
        open_hdf5(tmp_path / "a.h5")
    for what in (f"{tmp_path}/*.h5", tmp_path):
        with pytest.raises(NoMatchError):
            open_hdf5(what)
    write(tmp_path / "a.h5", {"x": LABELS})
    with pytest.raises(ValueError, match="io must be"):
        open_hdf5(tmp_path, io="fast")


def test_a_file_that_somebody_writes_is_refused(tmp_path: Path) -> None:
    code = "import h5py, sys; f = h5py.File(sys.argv[1], 'w'); f['x'] = [1]; f.flush(); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "a.h5")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(ReadError, match=r"a\.h5: .*lock"):
            open_hdf5(tmp_path / "a.h5")
        writer.communicate()


def test_data_that_points_behind_the_end_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"x": np.arange(1000, dtype=np.int64)})
    with h5py.File(tmp_path / "a.h5") as file:
        place = file["x"].id.get_offset()
    content = (tmp_path / "a.h5").read_bytes()
    layout = place.to_bytes(8, "little") + (8000).to_bytes(8, "little")
    assert content.count(layout) == 1
    (tmp_path / "a.h5").write_bytes(content.replace(layout, (place + 4096).to_bytes(8, "little") + layout[8:]))
    with pytest.raises(ReadError, match=r"a\.h5: "):
        open_hdf5(tmp_path / "a.h5")


def test_broken_chunks_and_texts_are_corrupt_and_named(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"x": ROWS, "y": ROWS}, chunks=(8, 3, 5), compression="gzip")
    with h5py.File(tmp_path / "a.h5") as file:
        place = file["x"].id.get_chunk_info(2).byte_offset
    with (tmp_path / "a.h5").open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff" * 40)
    with open_hdf5(tmp_path / "a.h5") as source:
        assert np.array_equal(source["y"][:], ROWS)
        assert np.array_equal(source["x"][:16], ROWS[:16])
        for key in (slice(16, 24), [17], [0, 16, 3]):
            with pytest.raises(CorruptError, match=r"a\.h5"):
                source["x"][key]
        assert np.array_equal(source["x"][24:], ROWS[24:])
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("t", data=[b"good", b"b\xffd"], dtype=h5py.string_dtype("utf-8"))
    with open_hdf5(tmp_path / "b.h5") as source:
        assert source[0]["t"] == "good"
        with pytest.raises(CorruptError, match=r"b\.h5: field 't': expected UTF-8, found b'b"):
            source[:]


def test_flipped_bytes_are_refused_by_name_or_harmless(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"x": ROWS, "g/y": LABELS}, compression="gzip")
    code = """
import random, sys
from pathlib import Path
from penstock.errors import PenstockError
from penstock.formats.hdf5 import open_hdf5
path = Path(sys.argv[1])
whole, rng, refused = path.read_bytes(), random.Random(0), 0
used = [place for place, byte in enumerate(whole) if byte]
for _ in range(150):
    broken = bytearray(whole)
    broken[rng.choice(used)] ^= 1 << rng.randrange(8)
    path.write_bytes(broken)
    try:
        with open_hdf5(path) as source:
            source[: min(len(source), 1000)]
    except PenstockError as error:
        assert "a.h5" in str(error), error
        refused += 1
assert refused > 30, refused
"""
    done = warm.run([sys.executable, "-c", code, str(tmp_path / "a.h5")], capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_changed_files_and_closed_sources_are_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", {"x": np.arange(5000), "z": np.arange(5000) % 7}, chunks=(100,))
    write(tmp_path / "b.h5", {"x": np.arange(5000)}, compression="gzip")
    first, second = open_hdf5(tmp_path / "a.h5"), open_hdf5(tmp_path / "b.h5")
    assert first[4999]["x"] == 4999
    os.truncate(tmp_path / "a.h5", 20_000)
    with pytest.raises(TruncatedError, match=r"a\.h5"):
        first[4999]
    write(tmp_path / "b.h5", {"x": np.arange(4000)}, compression="gzip")
    with pytest.raises(SourceChangedError, match=r"b\.h5: expected \d+ bytes"):
        second[0]
    for source in (first, second):
        source.close()
        with pytest.raises(ValueError, match="closed"):
            source[0]
    assert Field("i8") == second.schema["x"]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("dtype", ["<i4", ">f8", "u1"])
def test_gzip_chunks_are_decoded_by_threads_as_by_h5py(tmp_path: Path, dtype: str, shuffle: bool) -> None:
    data = np.random.default_rng(0).integers(0, 100, (1003, 3)).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(16, 3), compression="gzip", shuffle=shuffle)
        rest = file.create_dataset("some", (1003, 3), dtype, chunks=(16, 3), compression="gzip", shuffle=shuffle, fillvalue=7)
        rest[500:520] = data[500:520]
    ids = np.random.default_rng(1).integers(0, 1003, 400)
    with h5py.File(tmp_path / "a.h5") as file:
        some = file["some"][:]
    for threads in (1, 2, 5):
        with open_hdf5(tmp_path / "a.h5", threads=threads) as source:
            batch = source[ids]
        assert np.array_equal(batch["x"], data[ids])
        assert np.array_equal(batch["some"], some[ids])


def test_a_gzip_chunk_that_does_not_decode_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", data=np.random.default_rng(0).random((640, 4)), chunks=(64, 4), compression="gzip")
        place = data.id.get_chunk_info(5)
    content = bytearray((tmp_path / "a.h5").read_bytes())
    content[place.byte_offset + 20 : place.byte_offset + 60] = bytes(40)
    (tmp_path / "a.h5").write_bytes(content)
    with open_hdf5(tmp_path / "a.h5", threads=2) as source:
        assert source[np.arange(0, 300, 7)]["x"].shape == (43, 4)
        with pytest.raises(CorruptError, match=r"a\.h5"):
            source[np.arange(0, 640, 7)]
