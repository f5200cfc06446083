"""The native module seen from Python: outputs are never copied silently, the GIL is free, threads survive fork."""

import os
import threading

import numpy as np
import pytest

from penstock import _core

OUTPUTS = {
    "Permutation.run": lambda out: _core.Permutation(100, 1).run(0, 1, out),
    "Permutation.forward": lambda out: _core.Permutation(100, 1).forward(np.arange(10), out),
    "Permutation.inverse": lambda out: _core.Permutation(100, 1).inverse(np.arange(10), out),
    "BlockEpoch.run": lambda out: _core.BlockEpoch(100, 8, 2, 1, 1, 2).run(0, 1, out),
    "BlockEpoch.forward": lambda out: _core.BlockEpoch(100, 8, 2, 1, 1, 2).forward(np.arange(10), out),
    "BlockEpoch.inverse": lambda out: _core.BlockEpoch(100, 8, 2, 1, 1, 2).inverse(np.arange(10), out),
    "random_run": lambda out: _core.random_run(100, 1, 0, 1, out),
    "random_at": lambda out: _core.random_at(100, 1, np.arange(10), out),
    "AliasTable.run": lambda out: _core.AliasTable(np.ones(9)).run(1, 0, 1, out),
    "AliasTable.at": lambda out: _core.AliasTable(np.ones(9)).at(1, np.arange(10), out),
    "systematic": lambda out: _core.systematic(100, 10, 3, np.arange(10), out),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_of_another_type_or_stride_is_refused(name: str) -> None:
    call = OUTPUTS[name]
    call(np.empty(10, np.int64))
    for wrong in (np.empty(10, np.int32), np.empty(20, np.int64)[::2], np.empty((5, 2), np.int64)):
        with pytest.raises(TypeError):
            call(wrong)
    read_only = np.empty(10, np.int64)
    read_only.flags.writeable = False
    with pytest.raises(TypeError):
        call(read_only)


def test_positions_out_of_range_are_refused_by_the_core_itself() -> None:
    out = np.empty(2, np.int64)
    for positions in ([0, 100], [-1, 0]):
        with pytest.raises(IndexError):
            _core.Permutation(100, 1).forward(np.array(positions), out)
    with pytest.raises(IndexError):
        _core.Permutation(100, 1).run(99, 1, out)
    with pytest.raises(IndexError):
        _core.Permutation(2**62, 1).run(0, 2**63, out)


@pytest.mark.parametrize("path", [_core.CrcPath.PORTABLE, _core.best_crc_path()])
def test_crc32c_known_values(path: _core.CrcPath) -> None:
    def crc(data: bytes) -> int:
        return _core.crc32c(np.frombuffer(data, np.uint8), 0, path)

    assert crc(b"") == 0
    assert crc(b"123456789") == 0xE3069283
    assert crc(bytes(32)) == 0x8A9136AA


def test_crc32c_paths_agree_and_continue() -> None:
    data = np.random.default_rng(0).integers(0, 256, 10_000, dtype=np.uint8)
    whole = _core.crc32c(data)
    assert whole == _core.crc32c(data, 0, _core.CrcPath.PORTABLE)
    for cut in (0, 1, 7, 4096, 9_999, 10_000):
        assert _core.crc32c(data[cut:].copy(), _core.crc32c(data[:cut].copy())) == whole


def page_crcs(pool: _core.ThreadPool, data: np.ndarray) -> list[int]:
    out = np.empty(-(-data.size // 1000), np.uint32)
    pool.crc32c_pages(data, 1000, out)
    return out.tolist()


def test_thread_pool_gives_the_same_for_any_number_of_threads() -> None:
    data = np.random.default_rng(1).integers(0, 256, 123_456, dtype=np.uint8)
    expected = [_core.crc32c(data[i : i + 1000].copy()) for i in range(0, data.size, 1000)]
    for threads in (1, 2, 5):
        assert page_crcs(_core.ThreadPool(threads), data) == expected


def test_thread_pool_works_in_a_forked_child_and_after_it() -> None:
    data = np.random.default_rng(2).integers(0, 256, 123_456, dtype=np.uint8)
    pool = _core.ThreadPool(3)
    expected = page_crcs(pool, data)
    child = os.fork()
    if child == 0:
        os._exit(0 if page_crcs(pool, data) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert page_crcs(pool, data) == expected


def test_block_epoch_used_in_a_forked_child_while_threads_of_the_parent_use_it() -> None:
    epoch = _core.BlockEpoch(10**9, 1024, 16, 64, 1, 2)

    def read() -> bytes:
        out = np.empty(4096, np.int64)
        epoch.run(0, 1, out)
        return out.tobytes()

    expected = read()
    stop = threading.Event()
    busy = [threading.Thread(target=lambda: [read() for _ in iter(stop.is_set, True)]) for _ in range(3)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(6):
            child = os.fork()
            if child == 0:
                os._exit(0 if read() == expected else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in busy:
            thread.join()


def test_gil_is_free_while_a_permutation_runs() -> None:
    """A second thread makes progress while the first is inside one long native call."""
    permutation = _core.Permutation(10**12, 1)
    out = np.empty(40_000_000, np.int64)
    started, finished = threading.Event(), threading.Event()

    def long_call() -> None:
        started.set()
        permutation.run(0, 1, out)
        finished.set()

    thread = threading.Thread(target=long_call)
    thread.start()
    started.wait()
    turns = 0
    while not finished.is_set():
        turns += 1
    thread.join()
    assert turns > 1000


def test_pages_larger_than_the_data_are_one_page() -> None:
    data = np.arange(50, dtype=np.uint8)
    for page in (50, 51, 2**63, 2**64 - 1):
        out = np.empty(1, np.uint32)
        _core.ThreadPool(2).crc32c_pages(data, page, out)
        assert out[0] == _core.crc32c(data)
    _core.ThreadPool(2).crc32c_pages(data[:0], 2**64 - 1, np.empty(0, np.uint32))


def test_an_instruction_set_that_the_processor_lacks_is_refused() -> None:
    there = _core.available_simd()
    for level in (_core.Simd.PLAIN, _core.Simd.AVX2, _core.Simd.AVX512):
        if level in there:
            assert len(_core.Permutation(100_000, 1, level)) == 100_000
        else:
            with pytest.raises(ValueError, match="does not have the instruction set"):
                _core.Permutation(100_000, 1, level)


def test_a_mixture_line_wants_rising_starts() -> None:
    def line(starts: list[int]) -> _core.MixtureLine:
        count = len(starts)
        words = [np.array(starts, np.uint64), *(np.ones(count, np.uint64) for _ in range(3))]
        return _core.MixtureLine(*words, np.zeros((count, 2), np.uint64), np.zeros((count, 1), np.int64))

    for starts in ([0, 5, 5], [0, 7, 3]):
        with pytest.raises(ValueError, match=r"."):
            line(starts)


def test_a_ring_refuses_rows_of_another_size_than_its_field() -> None:
    reader = _core.RowReader.of_memory([np.zeros(1000, np.uint8)], 10)
    with pytest.raises(ValueError, match="as many bytes"):
        _core.BatchRing([([(reader, -1)], 8)], 1)


def test_a_ring_closed_by_another_thread_ends_a_wait() -> None:
    rows = np.zeros(1 << 26, np.uint8)
    reader = _core.RowReader.of_memory([rows], 1 << 20)
    ring = _core.BatchRing([([(reader, -1)], 1 << 20)], 1)
    for _ in range(8):
        ring.put(np.arange(64), 64)
    ended: list[str] = []

    def take() -> None:
        try:
            while True:
                ring.take()
        except ValueError as error:
            ended.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    ring.close()
    thread.join()
    assert ended == ["the ring is closed"] or ended == ["the ring is empty"]


def test_a_ring_refuses_records_that_do_not_exist() -> None:
    long, short = (_core.RowReader.of_memory([np.zeros(10 * rows, np.uint8)], 10) for rows in (100, 50))
    ring = _core.BatchRing([([(long, -1), (short, -1)], 10)], 1)
    ring.put(np.array([99, 49]), 2, np.array([0, 1], np.int32))
    assert len(ring.take()[0][0]) == 20
    for record, source in ((100, 0), (50, 1), (-1, 0), (-(2**63), 1)):
        with pytest.raises(IndexError, match="expected records"):
            ring.put(np.array([record]), 1, np.array([source], np.int32))
    with pytest.raises(IndexError, match="10 from 91"):
        ring.put_runs(np.array([91]), np.array([0, 10]), np.array([0, 1]))
    ring.put_runs(np.array([90, 100]), np.array([0, 10, 10]), np.array([0, 2]))
    assert len(ring.take()[0][0]) == 100
    with pytest.raises(ValueError, match="rising"):
        ring.put_runs(np.array([90, 10]), np.array([0, 10, 5]), np.array([0, 2]))


def test_a_mixture_of_no_or_other_data_sets_is_refused() -> None:
    edges = np.array([[0, 1 << 62, 1 << 63]], np.uint64)
    first, period, unit, before = (np.array([one], np.uint64) for one in (0, 10, 1, 0))
    line = _core.MixtureLine(first, period, unit, before, edges, np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="for every data set"):
        _core.OrderNode.mix(line, 5, [], [])
    one = _core.OrderNode.mix(line, 5, [0], [(_core.OrderNode.leaf(None, 0), 0, 1000)])
    leaves, ids = np.zeros(100, np.int32), np.zeros(100, np.int64)
    with pytest.raises(ValueError, match="for every data set"):
        one.run(0, leaves, ids)
