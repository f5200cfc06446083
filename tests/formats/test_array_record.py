"""ArrayRecord files: one, many, thousands, compressed in groups, decoded, and broken."""

import os
import random
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.array_record import write_array_record as write
from tests.array_record import write_array_records
from tests.cli import warm
from tests.effort import count

from penstock.errors import (
    CorruptError,
    EmptyFileError,
    FormatError,
    MissingError,
    NoMatchError,
    SourceChangedError,
    TruncatedError,
)
from penstock.formats.array_record import open_array_record
from penstock.records import Source
from penstock.schema import Field
from penstock.testing import SourceSuite

Record = dict[str, Any]


ITEMS = [bytes([i]) * (i * 7 % 50) for i in range(60)]


class TestManyFiles(SourceSuite):
    """One of them without a record."""

    def make(self, directory: Path) -> Source:
        for name, low, high in (("a.ar", 0, 20), ("b.arrayrecord", 20, 20), ("c.ar", 20, 23), ("d.array_record", 23, 60)):
            write(directory / name, ITEMS[low:high])
        (directory / "meta.json").write_text("{}")
        return open_array_record(directory)

    def records(self) -> list[Record]:
        return [{"data": item} for item in ITEMS]


class TestGroups(SourceSuite):
    def make(self, directory: Path) -> Source:
        write(directory / "a.ar", ITEMS[:30], "group_size:8,zstd:3")
        write(directory / "b.ar", ITEMS[30:], "group_size:4,brotli:1")
        return open_array_record(f"{directory}/*.ar", threads=1)

    def records(self) -> list[Record]:
        return [{"data": item} for item in ITEMS]


class TestEmpty(SourceSuite):
    def make(self, directory: Path) -> Source:
        write(directory / "a.ar", [])
        return open_array_record(directory / "a.ar")

    def records(self) -> list[Record]:
        return []


class TestDecoded(SourceSuite):
    def make(self, directory: Path) -> Source:
        for shard in range(6):
            write(
                directory / f"{shard}.ar", [np.arange(i, i + 3, dtype=np.int32).tobytes() for i in range(shard * 4, shard * 4 + 4)]
            )
        schema = {"x": Field("i4", (3,)), "text": Field.text(), "even": Field("i8", nullable=True)}
        return open_array_record(directory, decode=to_dict, schema=schema)

    def records(self) -> list[Record]:
        return [
            {"x": np.arange(i, i + 3, dtype=np.int32), "text": f"{i}", "even": None if i % 2 else np.int64(i)} for i in range(24)
        ]


def to_dict(data: bytes) -> Record:
    x = np.frombuffer(data, np.int32)
    return {"x": x, "text": str(x[0]), "even": None if x[0] % 2 else int(x[0])}


def test_fields_are_found_out_from_the_first_record(tmp_path: Path) -> None:
    write(tmp_path / "a.ar", [])
    write(tmp_path / "b.ar", ITEMS)
    with open_array_record(tmp_path, field="x", decode=lambda data: np.frombuffer(data, np.uint8)) as source:
        assert dict(source.schema) == {"x": Field.ragged("u1")}
        assert [item.tobytes() for item in source["x"][:]] == ITEMS


def test_files_are_in_the_order_of_their_names_and_lists_keep_theirs(tmp_path: Path) -> None:
    for number in (2, 10):
        write(tmp_path / f"s{number}.ar", [b"%d" % number])
    with open_array_record(tmp_path) as source:
        assert source["data"][:].to_list() == [b"10", b"2"]
    with open_array_record([tmp_path / "s2.ar", tmp_path / "s10.ar"]) as source:
        assert source["data"][:].to_list() == [b"2", b"10"]


def test_blocks_are_groups_or_files(tmp_path: Path) -> None:
    write(tmp_path / "a.ar", ITEMS[:10], "group_size:4")
    write(tmp_path / "b.ar", ITEMS[:3])
    with open_array_record(tmp_path / "a.ar") as source:
        assert source.reads_blocks
        assert [len(source.blocks[i]) for i in range(len(source.blocks))] == [4, 4, 2]
    with open_array_record([tmp_path / "b.ar", tmp_path / "b.ar"]) as source:
        assert not source.reads_blocks
        assert [len(source.blocks[i]) for i in range(len(source.blocks))] == [3, 3]


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "good.ar", ITEMS)
    whole = (tmp_path / "good.ar").read_bytes()
    bad = tmp_path / "bad.ar"
    for content, error in (
        (b"", EmptyFileError),
        (b"hello world\n" * 10_000, FormatError),
        (random.Random(0).randbytes(200_000), FormatError),
        (whole[:40], TruncatedError),
        (whole[:1000], TruncatedError),
        (whole[:65_536], CorruptError),
        (whole[:-1], CorruptError),
        (whole + b"x", CorruptError),
        (whole[:-65_536] + bytes(65_536), CorruptError),
        (whole[:64] + bytes(len(whole) - 64), CorruptError),
    ):
        bad.write_bytes(content)
        with pytest.raises(error, match=r"bad\.ar: ") as caught:
            open_array_record(tmp_path)
        assert type(caught.value) is error


def test_missing_files_and_patterns_without_a_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"a\.ar: there is no such file"):
        open_array_record(tmp_path / "a.ar")
    for what in (f"{tmp_path}/*.ar", tmp_path):
        with pytest.raises(NoMatchError):
            open_array_record(what)
    (tmp_path / "d.ar").mkdir()
    with pytest.raises(FormatError, match="directory"):
        open_array_record(f"{tmp_path}/*.ar")


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    write(tmp_path / "a.ar", ITEMS)
    whole = (tmp_path / "a.ar").read_bytes()
    rng = random.Random(0)
    used = [place for place, byte in enumerate(whole) if byte]
    caught = []
    for place in rng.sample(used, 60):
        broken = bytearray(whole)
        broken[place] ^= 1 << rng.randrange(8)
        (tmp_path / "a.ar").write_bytes(broken)
        try:
            with open_array_record(tmp_path / "a.ar") as source:
                assert source["data"][:].to_list() == ITEMS
        except CorruptError as error:
            caught.append(str(error))
    assert len(caught) > 50
    assert all("a.ar" in message for message in caught)


def test_errors_of_decode_say_which_record(tmp_path: Path) -> None:
    write(tmp_path / "a.ar", [b"1", b"2"])
    write(tmp_path / "b.ar", [b"3", b"x"])
    with open_array_record(tmp_path, decode=int) as source:
        assert source["data"][:3].tolist() == [1, 2, 3]
        with pytest.raises(ValueError, match="invalid literal") as caught:
            source[3]
        assert caught.value.__notes__ == [f"while decoding {tmp_path}/b.ar, record 1"]
    with pytest.raises(ValueError, match="invalid literal"):
        open_array_record(tmp_path / "b.ar", decode=lambda data: int(data + b"x"))
    write(tmp_path / "c.ar", [])
    with pytest.raises(ValueError, match="no record to infer"):
        open_array_record(tmp_path / "c.ar", decode=int)


def test_closed_sources_and_changed_files_are_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a.ar", ITEMS)
    source = open_array_record(tmp_path / "a.ar")
    write(tmp_path / "a.ar", ITEMS[:5])
    with pytest.raises(SourceChangedError, match=r"a\.ar: expected 60 records"):
        source[0]
    (tmp_path / "a.ar").unlink()
    with pytest.raises(MissingError, match=r"a\.ar"):
        source[0]
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source[0]


def test_a_fork_in_the_middle_of_other_reads_leaves_a_child_that_reads(tmp_path: Path) -> None:
    write(tmp_path / "a.ar", ITEMS * 200, "group_size:16")
    with open_array_record(tmp_path / "a.ar") as source:
        ids, done = np.arange(0, len(source), 16), threading.Event()

        def busy() -> None:
            while not done.is_set():
                source.read(ids)

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(count(3, 20)):
                assert _child_reads(source, ids)
        finally:
            done.set()
            for thread in threads:
                thread.join()


def test_threads_of_a_child_do_not_get_the_stacks_of_threads_that_a_fork_has_ended(tmp_path: Path) -> None:
    """The package leaves a thread behind that waits; a child whose threads wrote over its stack crashed, two of five."""
    paths = [tmp_path / f"{number}.ar" for number in range(6)]
    write_array_records(dict.fromkeys(paths, ITEMS))
    with open_array_record(paths) as source:
        assert all(_child_reads(source, np.arange(len(source))) for _ in range(count(5, 100)))


def _child_reads(source: Source, ids: Any) -> bool:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"1" if len(source.read(ids)["data"]) == ids.size else b"0")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        if not select.select([answer], [], [], 30)[0]:
            os.kill(child, signal.SIGKILL)
        text = answer.read()
    os.waitpid(child, 0)
    return text == "1"


def test_thousands_of_shards_need_few_descriptors(tmp_path: Path) -> None:
    num_shards = count(300, 3000)
    write_array_records({tmp_path / f"{i:05d}.ar": [b"%d" % (2 * i), b"%d" % (2 * i + 1)] for i in range(num_shards)})
    code = """
import os, resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from penstock.formats.array_record import open_array_record
ids = np.random.default_rng(0).permutation(int(sys.argv[2]))
with open_array_record(sys.argv[1]) as source:
    assert len(os.listdir("/proc/self/fd")) < 20
    assert [int(item) for item in source["data"][ids]] == ids.tolist()
    assert len(os.listdir("/proc/self/fd")) < 100
"""
    warm.run([sys.executable, "-c", code, str(tmp_path), str(2 * num_shards)], check=True, timeout=600)
