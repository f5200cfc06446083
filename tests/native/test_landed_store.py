"""StoreReader over landings: chunks of which only some bytes are in memory, that come and go."""

import struct
import threading
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from penstock import _core
from penstock.errors import CorruptError
from penstock.schema import Field, Zstd
from penstock.store.chunk import encode_chunk
from penstock.store.column import make_column

DATASET = "ab" * 16
ROWS = 3000
FIELDS = {0: Field("int64", (3,)), 1: Field.text(codec=Zstd()), 2: Field("uint8", (5,))}
STRIDE = 24
PAGE_ROWS = -(-4096 // STRIDE)


@dataclass(frozen=True)
class Chunks:
    """Three chunks as bytes, a reader of them, and the landings it reads."""

    images: list[bytes]
    landings: list[_core.Landing]
    reader: _core.StoreReader

    def land(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        self.landings[chunk].write(start, memoryview(self.images[chunk])[start:stop])

    def land_index(self, chunk: int) -> None:
        self.land(chunk, 0, 64)
        self.land(chunk, _core.chunk_index_start(self.images[chunk], len(self.images[chunk])))


def numbers(first: int) -> np.ndarray:
    return np.repeat(np.arange(first, first + ROWS, dtype=np.int64), 3).reshape(-1, 3)


def small(first: int) -> list[np.ndarray | None]:
    return [None if i % 10 == 9 else np.full(5, i % 256, np.uint8) for i in range(first, first + ROWS)]


@pytest.fixture(scope="module")
def encoded() -> list[tuple[bytes, int]]:
    """The bytes and the crc of each chunk."""
    made = []
    for serial in range(3):
        first = serial * ROWS
        data = [numbers(first), [f"record {i} " * (i % 7) for i in range(first, first + ROWS)], small(first)]
        columns = {number: make_column("f", FIELDS[number], values) for number, values in enumerate(data)}
        chunk = encode_chunk(DATASET, "cd" * 16, serial, FIELDS, columns)
        image = bytearray(chunk.size)
        for offset, piece in chunk.pieces:
            image[offset : offset + len(piece)] = bytes(piece)
        made.append((bytes(image), chunk.crc))
    return made


@pytest.fixture
def chunks(encoded: list[tuple[bytes, int]]) -> Chunks:
    landings = [_core.Landing(len(image)) for image, _ in encoded]
    facts = np.array([[len(image), ROWS, crc] for image, crc in encoded], np.uint64)
    segments = np.array([[i * ROWS, ROWS, i, 0] for i in range(3)], np.uint64)
    names = [f"s3://bucket/{i}" for i in range(3)]
    reader = _core.StoreReader(
        "s3://bucket", 3 * ROWS, names, facts, segments, bytes.fromhex(DATASET), "map", True, 2**30, landings
    )
    return Chunks([image for image, _ in encoded], landings, reader)


def read(reader: _core.StoreReader, ids: np.ndarray) -> list[int]:
    out, present = np.empty(ids.size * STRIDE, np.uint8), np.empty(ids.size, np.uint8)
    reader.read_fixed(0, STRIDE, ids, out, present, _core.ThreadPool(2))
    return out.view(np.int64)[::3].tolist()


def read_texts(reader: _core.StoreReader, ids: np.ndarray) -> list[str]:
    values, offsets, _, _ = reader.read_variable(1, 0, True, ids, _core.ThreadPool(2))
    return [values[a:b].tobytes().decode() for a, b in pairwise(offsets)]


def test_places_need_nothing_in_memory(chunks: Chunks) -> None:
    chunks.reader.set_redirects(1, np.array([[5, 2, 77]], np.uint64))
    ids = np.array([0, 5, ROWS, 3 * ROWS - 1])
    assert chunks.reader.places(0, ids).tolist() == [[0, 0], [0, 5], [1, 0], [2, ROWS - 1]]
    assert chunks.reader.places(1, ids).tolist() == [[0, 0], [2, 77], [1, 0], [2, ROWS - 1]]
    assert chunks.reader.places(0, np.empty(0, np.int64)).shape == (0, 2)
    with pytest.raises(IndexError):
        chunks.reader.places(0, np.array([3 * ROWS]))
    assert sum(landing.resident() for landing in chunks.landings) == 0


def test_chunks_that_are_not_in_memory_are_an_error(chunks: Chunks) -> None:
    ids = np.array([ROWS])
    for call in (
        lambda: read(chunks.reader, ids),
        lambda: chunks.reader.page_extents(0, ids),
        lambda: chunks.reader.view(0, STRIDE, 0),
    ):
        with pytest.raises(RuntimeError, match=r"s3://bucket/.*not in memory"):
            call()
    chunks.land(1)
    assert read(chunks.reader, ids) == [ROWS]


def test_the_index_and_the_pages_named_are_enough(chunks: Chunks) -> None:
    ids = np.random.default_rng(0).integers(0, 3 * ROWS, 40)
    for chunk in range(3):
        chunks.land_index(chunk)
    for field in FIELDS:
        extents = chunks.reader.page_extents(field, ids)
        assert extents.shape == (ids.size, 3)
        assert (extents[:, 0] == chunks.reader.places(field, ids)[:, 0]).all()
        for chunk, start, stop in extents.tolist():
            chunks.land(chunk, start, stop)
    assert read(chunks.reader, ids) == ids.tolist()
    assert read_texts(chunks.reader, ids) == [f"record {i} " * (i % 7) for i in ids.tolist()]
    out, present = np.empty(ids.size * 5, np.uint8), np.empty(ids.size, np.uint8)
    assert chunks.reader.read_fixed(2, 5, ids, out, present, _core.ThreadPool(1)) == (ids % 10 == 9).sum()
    assert out[::5].tolist() == np.where(ids % 10 == 9, 0, ids % 256).tolist()


def test_a_page_is_named_whole_and_a_missing_record_needs_none(chunks: Chunks) -> None:
    chunks.land_index(0)
    extents = chunks.reader.page_extents(0, np.array([0, PAGE_ROWS - 1, PAGE_ROWS, ROWS - 1])).tolist()
    page = PAGE_ROWS * STRIDE
    assert extents == [
        [0, 64, 64 + page],
        [0, 64, 64 + page],
        [0, 64 + page, 64 + 2 * page],
        [0, extents[3][1], 64 + ROWS * STRIDE],
    ]
    assert extents[3][1] == 64 + ROWS // PAGE_ROWS * page
    assert chunks.reader.page_extents(2, np.array([9])).tolist() == [[0, 0, 0]]
    assert chunks.reader.page_extents(17, np.array([3])).tolist() == [[0, 0, 0]]
    with pytest.raises(IndexError):
        chunks.reader.page_extents(0, np.array([-1]))
    with pytest.raises(CorruptError, match="crc does not match"):
        read(chunks.reader, np.array([0]))


def test_a_missing_record_is_read_without_its_page(chunks: Chunks) -> None:
    chunks.land_index(0)
    out, present = np.empty(5, np.uint8), np.empty(1, np.uint8)
    assert chunks.reader.read_fixed(2, 5, np.array([9]), out, present, _core.ThreadPool(1)) == 1
    assert out.tolist() == [0] * 5


def test_bytes_fetched_again_are_checked_again(chunks: Chunks) -> None:
    chunks.land(0)
    assert read(chunks.reader, np.array([1])) == [1]
    chunks.landings[0].write(64 + STRIDE, struct.pack("<q", 99))
    assert read(chunks.reader, np.array([1])) == [99]  # this page was right before
    chunks.reader.forget(0)
    with pytest.raises(CorruptError, match="crc does not match"):
        read(chunks.reader, np.array([1]))
    chunks.reader.forget(0)
    chunks.landings[0].drop()
    with pytest.raises(RuntimeError, match="not in memory"):
        read(chunks.reader, np.array([1]))
    chunks.land(0)
    assert read(chunks.reader, np.array([1])) == [1]
    chunks.reader.forget(2)
    with pytest.raises(IndexError):
        chunks.reader.forget(3)


def test_a_view_outlives_the_memory(chunks: Chunks) -> None:
    chunks.land(1)
    view = chunks.reader.view(0, STRIDE, ROWS + 7)
    chunks.reader.forget(1)
    chunks.landings[1].drop()
    assert np.asarray(view).view(np.int64).tolist() == [ROWS + 7] * 3
    assert not np.asarray(view).flags.writeable


def test_the_questions_about_a_chunk_work_on_landings(chunks: Chunks) -> None:
    chunks.land(2)
    assert chunks.reader.verify_chunk(2) == []
    assert [number for number, _, _ in chunks.reader.chunk_fields(2)] == [0, 1, 2]
    chunks.landings[2].write(64, b"\xff")
    ((number, problem),) = chunks.reader.verify_chunk(2)
    assert (number, "field 0, rows 0 to" in problem) == (0, True)
    for call in (chunks.reader.verify_chunk, chunks.reader.chunk_fields):
        with pytest.raises(IndexError):
            call(3)


def test_a_landing_of_another_size_and_another_number_of_them_are_refused(encoded: list[tuple[bytes, int]]) -> None:
    image, crc = encoded[0]

    def make(landings: list[_core.Landing]) -> _core.StoreReader:
        facts, segments = np.array([[len(image), ROWS, crc]], np.uint64), np.array([[0, ROWS, 0, 0]], np.uint64)
        return _core.StoreReader("s", ROWS, ["c"], facts, segments, bytes.fromhex(DATASET), "pread", True, 2**30, landings)

    with pytest.raises(ValueError, match="a landing per chunk"):
        make([])
    landing = _core.Landing(len(image) + 8)
    landing.write(0, image)
    with pytest.raises(CorruptError, match=r"expected .* bytes, found"):
        read(make([landing]), np.array([0]))


def test_a_ring_of_batches_reads_landed_chunks(chunks: Chunks) -> None:
    for chunk in range(3):
        chunks.land(chunk)
    ring = _core.BatchRing([([(chunks.reader, 0)], STRIDE)], 2)
    ids = np.random.default_rng(1).permutation(3 * ROWS)
    ring.put(ids, 500)
    taken = [ring.take()[0][0].view(np.int64)[::3] for _ in range(18)]
    assert np.concatenate(taken).tolist() == ids.tolist()


def test_chunks_come_and_go_while_others_are_read(chunks: Chunks) -> None:
    chunks.land(0)
    chunks.land(2)
    wrong: list[int] = []
    done = threading.Event()

    def gather(seed: int) -> None:
        random = np.random.default_rng(seed)
        while not done.is_set():
            ids = random.integers(0, 2 * ROWS, 200)
            ids[ids >= ROWS] += ROWS  # of the first and the third chunk
            wrong.extend(a for a, b in zip(read(chunks.reader, ids), ids.tolist(), strict=True) if a != b)

    threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        for i in range(50):
            chunks.land(1)
            assert read(chunks.reader, np.array([ROWS, 2 * ROWS - 1])) == [ROWS, 2 * ROWS - 1]
            chunks.reader.forget(1)
            chunks.landings[1].drop()
            chunks.reader.forget(i % 2 * 2)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_the_index_is_found_from_the_last_bytes(encoded: list[tuple[bytes, int]]) -> None:
    image, _ = encoded[0]
    footer = 64 + len(FIELDS) * 184
    start = _core.chunk_index_start(image, len(image))
    assert 64 + ROWS * STRIDE < start < len(image) - footer
    assert _core.chunk_index_start(b"", len(image)) == len(image) - 64
    assert _core.chunk_index_start(image[-63:], len(image)) == len(image) - 64
    assert _core.chunk_index_start(image[-64:], len(image)) == len(image) - footer
    assert _core.chunk_index_start(image[-footer + 1 :], len(image)) == len(image) - footer
    assert _core.chunk_index_start(image[-footer:], len(image)) == start
    assert _core.chunk_index_start(image[start:], len(image)) == start


def test_hostile_tails_are_refused(encoded: list[tuple[bytes, int]]) -> None:
    image, _ = encoded[0]
    footer = 64 + len(FIELDS) * 184
    for place in range(len(image) - footer, len(image)):
        changed = bytearray(image[-footer:])
        changed[place - len(image)] ^= 0x5A
        with pytest.raises(CorruptError, match="here"):
            _core.chunk_index_start(bytes(changed), len(image), "here")
    for size in (0, 64, 127, len(image) + 1, len(image) + 8, 2**64 - 8):
        with pytest.raises(CorruptError):
            _core.chunk_index_start(image[-64:], size)
    with pytest.raises(ValueError, match="more than it has"):
        _core.chunk_index_start(bytes(136), 128)
