"""Blocks of coming batches, asked for ahead of time: the system brings them from the disk while earlier batches are made.

Maps are read record by record, and the system is told not to guess what comes next. Where an order reads block after block, the
loader knows: a thread tells the system which bytes are going to be needed, a little ahead of the batches. It only gives advice, and
the batches are the same without it. (Block shuffle of 2 KiB records from a cold disk: about 20 times faster.)
"""

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.interfaces import IntArray
from penstock.loader.needs import MOST_STEPS, Leaf, leaves_of, reads_blocks, stretch_of
from penstock.loader.schedule import Schedule
from penstock.loader.work import Work
from penstock.order import BlockShuffle
from penstock.records import Blocks
from penstock.stream import SequenceStream
from penstock.stream.picks import SpanPicks

__all__ = ["ReadAhead", "coming_blocks", "make_read_ahead"]

AHEAD_BYTES = 128 << 20
MOST_AHEAD_BYTES = 1 << 30
"""So many bytes are asked for ahead of the batches: a whole window of a block shuffle, if that is more, up to the second figure."""

MOST_AHEAD_STEPS = 4096
"""No further than this, however small the batches are: looking ahead costs time too."""

PIECE_BYTES = 8 << 20
"""The system is asked for so many bytes at a time."""

MOST_BLOCKS = 1 << 26
MOST_OPEN = 32
PAGE = 4096

Ask = Callable[[str, int, int], None]


def make_read_ahead(work: Work, schedule: Schedule, steps: range) -> "ReadAhead | None":
    """What reads ahead for these steps; None where nothing lies on a disk and is read block by block."""
    try:
        is_useful = bool(steps) and any(_is_on_disk(leaf) for leaf in leaves_of(work.stream))
    except (PenstockError, OSError, ValueError):  # found again, and told, when a batch needs it
        return None
    return ReadAhead(work, schedule, steps) if is_useful else None


class ReadAhead:
    """A thread that stays a bounded number of bytes ahead of the batches. It ends when it is told to, or when this is gone."""

    def __init__(self, work: Work, schedule: Schedule, steps: range, ask: Ask | None = None) -> None:
        self._passed = _Passed(steps.start - 1)
        arguments = coming_blocks(work, schedule, steps), self._passed, ask, weakref.ref(self, self._passed.told.put)
        self._thread = threading.Thread(target=_run, args=arguments, name="penstock-read-ahead", daemon=True)
        self._thread.start()

    def passed(self, step: int) -> None:
        """Batches up to a step were made."""
        self._passed.told.put(step)

    def close(self) -> None:
        """Ask for nothing more. Idempotent."""
        self._passed.close()
        if self._thread is not threading.current_thread():
            self._thread.join(2)


class _Passed:
    """How far the batches are. Told through a queue, which needs no lock: a fork or an interrupt would leave it locked."""

    def __init__(self, step: int) -> None:
        self.told: SimpleQueue[Any] = SimpleQueue()  # steps; all else is the end
        self.is_closed = False
        self._step = step

    def close(self) -> None:
        """No more are wanted."""
        self.is_closed = True
        self.told.put(None)

    def wait_for(self, step: int) -> bool:
        """Wait until batches up to a step were made; False if no more are wanted."""
        while not self.is_closed and self._step < step:
            told = self.told.get()
            if isinstance(told, int):
                self._step = max(self._step, told)
            else:
                self.is_closed = True
        return not self.is_closed


def _run(
    blocks: Iterator[tuple[int, Leaf | None, range]], passed: _Passed, ask: Ask | None, owner: "weakref.ref[ReadAhead]"
) -> None:
    files = _OpenFiles()
    ask = files.ask if ask is None else ask
    # What cannot be read is found again, and told, when the batch is made.
    with contextlib.suppress(PenstockError, OSError, ValueError), contextlib.closing(files):
        for step, leaf, units in blocks:
            if not passed.wait_for(step):
                return
            for path, start, stop in () if leaf is None else leaf.disk_ranges(units):
                for low in range(start, stop, PIECE_BYTES):
                    if passed.is_closed:
                        return
                    ask(path, low, min(stop, low + PIECE_BYTES))


def coming_blocks(work: Work, schedule: Schedule, steps: range) -> Iterator[tuple[int, Leaf | None, range]]:
    """The blocks that steps read, each once: after which step to ask for it, its stream, and its records or pages. Now and then
    nothing, with the step to wait for before looking further: there may be nothing to ask for, for ever.
    """
    uses: dict[tuple[int, int], _Use | None] = {}
    step = steps.start
    while step < steps.stop:
        ahead = max((use.steps for use in uses.values() if use is not None), default=0)
        yield step - 1 - ahead - MOST_STEPS, None, range(0)
        count, parts = stretch_of(work, schedule, step, steps.stop)
        for leaf, epoch, positions in parts:
            key = id(leaf.source), id(leaf.order)
            if key not in uses:
                uses[key] = _Use(leaf, positions.size / count) if _is_on_disk(leaf) else None
            use = uses[key]
            if use is not None and positions.size:
                yield from use.fresh(epoch, positions, range(step, step + count))
        step += count


def _is_on_disk(leaf: Leaf) -> bool:
    """Whether a stream reads block by block from a disk of this machine."""
    if leaf.source.remote is not None or not reads_blocks(leaf) or not len(leaf.source):
        return False
    return bool(leaf.disk_ranges(range(0, 1)))


class _Use:
    """Which blocks of a stream were asked for, and how many steps ahead."""

    def __init__(self, leaf: Leaf, samples: float) -> None:
        self._leaf, order = leaf, leaf.order
        self._page = leaf.page if isinstance(leaf, SequenceStream) else 1
        length = -(-leaf.axis // self._page) if isinstance(leaf, SequenceStream) else len(leaf.source)
        per_step = samples * leaf.stride / self._page
        some = range(0, min(1024, length))
        record_bytes = max(1.0, sum(stop - start for _, start, stop in leaf.disk_ranges(some)) / len(some))
        is_shuffled = isinstance(order, BlockShuffle)
        block = order.block if isinstance(order, BlockShuffle) else max(1, int(PIECE_BYTES / record_bytes))
        self.blocks = Blocks(length, block)
        group = (order.window or 1) * order.lanes * order.block if isinstance(order, BlockShuffle) else 0
        records = min(max(AHEAD_BYTES / record_bytes, group if is_shuffled else 0), MOST_AHEAD_BYTES / record_bytes)
        self.steps = min(MOST_AHEAD_STEPS, max(1, int(records / per_step)) if per_step else 1)
        self._epochs = np.zeros(min(MOST_BLOCKS, len(self.blocks)), np.int32)  # in which each block was asked for last, plus 1

    def fresh(self, epoch: int, positions: IntArray, steps: range) -> Iterator[tuple[int, Leaf, range]]:
        """The blocks that are read for the first time in an epoch."""
        picks = self._leaf.locate_at(epoch, positions, steps.start)
        numbers = self.blocks.of(picks.starts // self._page if isinstance(picks, SpanPicks) else picks.ids)
        numbers = np.minimum(numbers, len(self._epochs) - 1)
        first_seen = np.flatnonzero(self._epochs[numbers] != (epoch + 1) % (1 << 31))
        if first_seen.size == 0:
            return
        found, first = np.unique(numbers[first_seen], return_index=True)
        self._epochs[found] = (epoch + 1) % (1 << 31)
        per_step = len(numbers) / len(steps)
        for place in np.argsort(first).tolist():
            step = steps.start + int(first_seen[first[place]] / per_step)
            yield step - 1 - self.steps, self._leaf, self.blocks[int(found[place])]


class _OpenFiles:
    """A few files, open to be asked for."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._byte = [bytearray(1)]

    def ask(self, path: str, start: int, stop: int) -> None:
        """Tell the system that bytes are going to be needed, unless it seems to have them."""
        file = self._file(path)
        if not all(self._has(file, place) for place in (start, (start + stop) // 2, stop - 1)):
            os.posix_fadvise(file, start, stop - start, os.POSIX_FADV_WILLNEED)

    def _has(self, file: int, place: int) -> bool:
        try:
            return os.preadv(file, self._byte, place, os.RWF_NOWAIT) >= 0
        except OSError:  # it would have to wait, or the file system cannot tell
            return False

    def _file(self, path: str) -> int:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > MOST_OPEN:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return file

    def close(self) -> None:
        """Let go of them."""
        while self._open:
            os.close(self._open.popitem()[1])
