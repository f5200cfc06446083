"""JSON lines and CSV at URLs: the same records as on disk, searched once, through a bounded window."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats import test_delimited as rows
from tests.formats import test_jsonl as lines
from tests.formats.shards import tar
from tests.remote.test_sources_suite import RemoteSuite

import penstock as pen
from penstock.errors import SourceChangedError
from penstock.formats import lines as line_files
from penstock.formats import sidecar, spans
from penstock.formats.sidecar import SUFFIX
from penstock.records import Source
from penstock.remote.url import UrlPath

pytestmark = pytest.mark.usefixtures("csv_was_read")

Record = dict[str, Any]


def put(place: UrlPath, name: str, content: bytes) -> None:
    place.objects.put(f"{place.key}/{name}", content)


class TestJsonl(RemoteSuite):
    """A window that holds a few lines."""

    def put(self, place: UrlPath) -> None:
        put(place, "a.jsonl", b"\xef\xbb\xbf" + lines.lines(0, 20, "\r\n\n"))
        put(place, "c.ndjson", lines.lines(20, lines.N).rstrip())

    def open(self, place: UrlPath) -> Source:
        source: Source = pen.open(place, window_bytes=40_000)
        return source

    def records(self) -> list[Record]:
        return [lines.record(i) for i in range(lines.N)]


class TestCompressedJsonl(RemoteSuite):
    def put(self, place: UrlPath) -> None:
        whole = lines.lines(0, 30)
        put(place, "a.jsonl.zst", b"".join(lines.zstd(whole[low : low + 700]) for low in range(0, len(whole), 700)))
        put(place, "b.jsonl.gz", gzip.compress(lines.lines(30, lines.N), mtime=0))

    def open(self, place: UrlPath) -> Source:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(line_files, "BLOCK_BYTES", 2000)
            source: Source = pen.open(place)
        return source

    def records(self) -> list[Record]:
        return [lines.record(i) for i in range(lines.N)]


class TestCsv(RemoteSuite):
    def put(self, place: UrlPath) -> None:
        put(place, "a.csv", rows.rows(0, 12))
        put(place, "b.csv", rows.rows(12, rows.N))

    def records(self) -> list[Record]:
        return [rows.record(i) for i in range(rows.N)]


def test_batches_and_states_are_those_of_the_files_on_disk(prefix: UrlPath, tmp_path: Path) -> None:
    for name, content in {"a.jsonl": lines.lines(0, 20), "b.jsonl": lines.lines(20, lines.N)}.items():
        (tmp_path / name).write_bytes(content)
        put(prefix, name, content)
    with pen.open(tmp_path) as local, pen.open(prefix) as remote:
        assert remote.fingerprint == local.fingerprint
        assert remote.schema == local.schema
        one, other = (pen.Loader(data.shuffle(seed=3, block=5), batch_size=4) for data in (local, remote))
        whole = [batch["text"].to_list() for batch in one]
        assert [batch["text"].to_list() for batch in other] == whole
        assert other.stats().network is not None
        started = pen.Loader(local.shuffle(seed=3, block=5), batch_size=4)
        steps = iter(started)
        next(steps)
        again = pen.Loader(remote.shuffle(seed=3, block=5), batch_size=4)
        again.load_state_dict(started.state_dict())
        assert [batch["text"].to_list() for batch in again] == whole[1:]
        numbers, low, high = remote.extents(np.array([0]), np.array([len(remote)]))
        assert numbers.tolist() == [0, 1]
        assert int((high - low).sum()) == len(lines.lines().rstrip()) - 1  # without the last newline of each


def test_an_object_is_searched_once_and_again_when_it_was_replaced(
    prefix: UrlPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)
    monkeypatch.setattr(sidecar, "cache_directory", lambda: tmp_path / "cache")
    searched, scan = list[str](), line_files._scan_plain

    def counted(file: Any, *args: Any, **how: Any) -> Any:
        searched.append(str(file))
        return scan(file, *args, **how)

    monkeypatch.setattr(line_files, "_scan_plain", counted)
    put(prefix, "a.jsonl", lines.lines())
    for _ in range(3):
        with pen.open(prefix / "a.jsonl") as source:
            assert source[5]["text"] == lines.record(5)["text"]
    assert len(searched) == len(list((tmp_path / "cache").glob(f"*{SUFFIX}"))) == 1
    with pen.open(prefix / "a.jsonl") as source:
        put(prefix, "a.jsonl", lines.lines(1))
        with pytest.raises(SourceChangedError):
            source[:]
    with pen.open(prefix / "a.jsonl") as source:
        assert len(source) == lines.N - 1
    assert len(searched) == 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_an_index_next_to_an_object_is_used_by_every_host_as_long_as_it_is_that_of_the_object(
    prefix: UrlPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)
    searched, written = list[str](), spans.FileSpans.write

    def count(table: Any, writer: Any) -> None:
        searched.append(name)
        written(table, writer)

    monkeypatch.setattr(spans.FileSpans, "write", count)

    def on_host(host: str) -> int:
        monkeypatch.setattr(sidecar, "cache_directory", lambda: tmp_path / host)
        with sidecar.recording() as seen, pen.open(prefix / name) as source:
            assert len(source[:]) == len(source.schema)
            for subject, one in seen if host == "first" else ():
                assert sidecar.publish(subject, one) == sidecar.publish(subject, one) == subject.published
            return len(source)

    def content(count: int) -> bytes:
        members = ((f"{n}.txt", b"abc") for n in range(count))
        return lines.lines(lines.N - count) if name == "a.jsonl" else tar(members)

    put(prefix, name, content(9))
    assert [on_host(host) for host in ("first", "first", "second")] == [9, 9, 9]
    [one] = [info for info in prefix.objects.list(prefix.key) if info.key.endswith(SUFFIX)]
    assert len(searched) == 1
    with pen.open(prefix) as whole:  # it is no record, and no reason to think of other files
        assert len(whole) == 9
    good = prefix.objects.read(one, 0, one.size)
    searched.clear()
    for number, bad in enumerate((good[:4096] + bytes([good[4096] ^ 1]) + good[4097:], good[:-1], b"", bytes(len(good)))):
        prefix.objects.put(one.key, bad)
        assert on_host(f"bad {number}") == 9
        assert len(searched) == number + 1
    prefix.objects.put(one.key, good)
    put(prefix, name, content(5))
    assert on_host("third") == 5
    assert len(searched) == 5
