"""Landings seen from Python: ranges of objects in memory, and the readers that gather from them."""

import mmap
import os
import threading

import numpy as np
import obstore
import pytest

from penstock import _core
from penstock.errors import CorruptError

PAGE = mmap.PAGESIZE
HUGE = 40 << 30
STRIDE = 24


def rows_of(first: int, count: int) -> np.ndarray:
    """Rows of 24 bytes: the row's number, thrice."""
    return np.repeat(np.arange(first, first + count, dtype=np.uint64), 3)


def land(landing: _core.Landing, first: int, count: int, offset: int = 0, base: int = 0) -> None:
    landing.write(offset + (first - base) * STRIDE, rows_of(first, count))


def facts(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.uint64).reshape(-1, 2)


def read(reader: _core.RowReader, starts: list[int], run: int = 1) -> list[int]:
    out = np.empty(len(starts) * run * STRIDE, np.uint8)
    reader.read(np.array(starts, np.int64), run, out, _core.ThreadPool(2))
    rows = out.view(np.uint64).reshape(-1, 3)
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


def test_landings_of_400_terabytes_cost_nothing_until_they_are_written() -> None:
    landings = [_core.Landing(HUGE) for _ in range(10_000)]
    assert sum(landing.resident() for landing in landings) == 0
    assert landings[0].size == HUGE
    landings[0].write(HUGE - 3, b"end")
    assert landings[0].read(HUGE - 4, HUGE) == b"\0end"
    assert landings[0].resident() == PAGE


@pytest.mark.parametrize(
    "data",
    [b"abcdef", bytearray(b"abcdef"), memoryview(b"xabcdefx")[1:7], obstore.Bytes(b"abcdef"), np.frombuffer(b"abcdef", np.uint16)],
    ids=["bytes", "bytearray", "memoryview", "obstore", "numpy"],
)
def test_any_contiguous_buffer_can_be_written(data: object) -> None:
    landing = _core.Landing(100)
    landing.write(7, data)
    assert landing.read(6, 14) == b"\0abcdef\0"


def test_what_is_not_a_contiguous_buffer_is_refused() -> None:
    landing = _core.Landing(100)
    with pytest.raises(BufferError):
        landing.write(0, memoryview(b"abcdef")[::2])
    for wrong in ("text", 5, None):
        with pytest.raises(TypeError):
            landing.write(0, wrong)
    with pytest.raises(ValueError, match="not in memory"):
        landing.read(0, 1)


def test_ranges_outside_the_object_are_refused() -> None:
    landing = _core.Landing(100)
    for offset in (97, 100, 2**63, 2**64 - 1):
        with pytest.raises(ValueError, match="expected bytes within"):
            landing.write(offset, b"abcd")
    landing.write(0, b"a")
    for start, stop in ((0, 101), (2, 1), (2**64 - 1, 2**64 - 1)):
        with pytest.raises(ValueError, match="expected a range within"):
            landing.read(start, stop)
    for start, stop in ((1, 100), (0, 50), (0, PAGE), (PAGE, 0)):
        with pytest.raises(ValueError, match="expected whole pages"):
            landing.release(start, stop)
    with pytest.raises(TypeError):
        landing.write(-1, b"a")


def test_memory_goes_back_to_the_system() -> None:
    landing = _core.Landing(10 * PAGE + 5)
    landing.write(0, bytes([7]) * landing.size)
    assert landing.resident() == 11 * PAGE
    landing.release(PAGE, 3 * PAGE)
    landing.release(10 * PAGE, landing.size)
    assert landing.resident() == 8 * PAGE
    assert landing.read(PAGE - 1, PAGE + 1) == b"\7\0"
    landing.drop()
    assert landing.resident() == 0
    with pytest.raises(ValueError, match="not in memory"):
        landing.read(0, 1)
    landing.write(0, b"new")
    assert landing.read(0, 4) == b"new\0"


def test_an_object_larger_than_the_address_space_is_a_read_error() -> None:
    with pytest.raises(OSError, match="address space"):
        _core.Landing(2**62).write(0, b"a")


def test_rows_are_gathered_from_landings() -> None:
    one, two = _core.Landing(16 + 100 * STRIDE), _core.Landing(50 * STRIDE)
    reader = _core.RowReader.of_landings([one, two], facts((16, 100), (0, 50)), STRIDE)
    assert reader.length == 150
    land(one, 90, 10, offset=16)
    assert read(reader, [99, 90, 95]) == [99, 90, 95]
    for starts, run in (([100], 1), ([99], 2), ([99, 149], 1)):
        with pytest.raises(RuntimeError, match="not in memory"):
            read(reader, starts, run)
    land(two, 100, 20, base=100)
    assert read(reader, [95], 20) == list(range(95, 115))
    one.drop()
    assert read(reader, [110]) == [110]
    with pytest.raises(RuntimeError, match="not in memory"):
        read(reader, [99])


def test_a_reader_keeps_its_landings() -> None:
    landing = _core.Landing(10 * STRIDE)
    land(landing, 0, 10)
    reader = _core.RowReader.of_landings([landing], facts((0, 10)), STRIDE)
    del landing
    assert read(reader, [9, 0]) == [9, 0]


def test_rows_that_do_not_fit_are_refused() -> None:
    landing = _core.Landing(100)
    for offset, rows in ((5, 4), (0, 5), (2**64 - 1, 1), (0, 2**63)):
        with pytest.raises(CorruptError, match="no room"):
            _core.RowReader.of_landings([landing], facts((offset, rows)), STRIDE)
    for wrong in (facts(), np.zeros((1, 3), np.uint64)):
        with pytest.raises(ValueError, match="two numbers"):
            _core.RowReader.of_landings([landing], wrong, STRIDE)


def test_a_ring_of_batches_reads_landings() -> None:
    one, two = _core.Landing(1000 * STRIDE), _core.Landing(1000 * STRIDE)
    land(one, 0, 1000)
    land(two, 1000, 1000, base=1000)
    reader = _core.RowReader.of_landings([one, two], facts((0, 1000), (0, 1000)), STRIDE)
    ring = _core.BatchRing([([(reader, -1)], STRIDE)], 2)
    ids = np.random.default_rng(0).permutation(2000)
    ring.put(ids, 100)
    taken = [ring.take()[0][0].view(np.uint64)[::3] for _ in range(20)]
    assert np.concatenate(taken).tolist() == ids.tolist()
    two.drop()
    ring.put(np.array([5, 1500]), 1)
    assert ring.take()[0][0].view(np.uint64).tolist() == [5, 5, 5]
    with pytest.raises(RuntimeError, match="not in memory"):
        ring.take()
    ring.put(ids, 100)
    for _ in range(2):
        ring.close()  # its threads have ended: the bytes may go
    one.drop()
    assert ring.size == 0
    with pytest.raises(ValueError, match="closed"):
        ring.take()
    with pytest.raises(ValueError, match="closed"):
        ring.put(ids, 100)


def test_pinned_rows_are_read_while_others_come_and_go() -> None:
    rows = 64 * PAGE // STRIDE
    landing = _core.Landing(64 * PAGE)
    land(landing, 0, rows)
    reader = _core.RowReader.of_landings([landing], facts((0, rows)), STRIDE)
    wrong: list[int] = []

    def gather(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(100):
            ids = random.integers(0, rows // 2 - 1, 500).tolist()
            wrong.extend(a for a, b in zip(read(reader, ids), ids, strict=True) if a != b)

    threads = [threading.Thread(target=gather, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        landing.release(32 * PAGE, 64 * PAGE)
        land(landing, rows // 2 + 1, rows - rows // 2 - 1)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert read(reader, [rows - 1, 0]) == [rows - 1, 0]


def test_a_forked_child_reads_and_drops_a_copy() -> None:
    landing = _core.Landing(100 * STRIDE)
    land(landing, 0, 100)
    reader = _core.RowReader.of_landings([landing], facts((0, 100)), STRIDE)
    child = os.fork()
    if child == 0:
        right = read(reader, [99, 3]) == [99, 3]
        landing.drop()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(reader, [99, 3]) == [99, 3]
