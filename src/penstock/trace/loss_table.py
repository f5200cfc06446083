"""LossTable: the losses of a run, as its ranks logged them. Files are mapped; what is computed is computed for whole blocks.

A step belongs to the stretch of the newest file that has it. Of every rank of that stretch, the newest file counts; losses of that
step in files of other stretches were overwritten. So were all later steps of older files of other stretches: the run was resumed
there with other batches, and what it did before from that step on is no part of it.
"""

import errno
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, shown, whole_number
from penstock.errors import CorruptError, FormatError, NoMatchError, StateError, UnsafePathError
from penstock.loader.schedule import TAILS
from penstock.loader.state import parse_state
from penstock.native import _core
from penstock.order import Balance
from penstock.system import is_directory, names_in, reading
from penstock.trace.loss_log import (
    BALANCE,
    BLOCK,
    BLOCK_MAGIC,
    HEAD,
    MAGIC,
    MISSING,
    UNITS,
    VARYING,
    Losses,
    Stretch,
    parse_name,
)

__all__ = ["LossTable", "RankFile", "is_missing"]

MAX_HEAD = 1 << 24
MAX_WORLD = 1 << 20
FREE_SAMPLES = 1 << 17
MOST_SAMPLES = 64
"""Samples that a batch may always have, and how many for each loss of its largest step: heads are not believed beyond that."""

FloatArray = npt.NDArray[np.float64]


def is_missing(losses: Losses) -> npt.NDArray[np.bool_]:
    """Which losses are not known."""
    found: npt.NDArray[np.bool_] = losses.view(np.uint32) == MISSING.view(np.uint32)
    return found


@dataclass(frozen=True)
class _Block:
    """Consecutive steps in a file: ``ends`` are where the losses of each end, or None where each has as many."""

    first: int
    steps: int
    each: int
    ends: IntArray | None
    losses: Losses

    @property
    def counts(self) -> IntArray:
        return np.full(self.steps, self.each, np.int64) if self.ends is None else np.diff(self.ends, prepend=0)

    @property
    def most(self) -> int:
        """Losses of the step that has the most."""
        return self.each if self.ends is None else int(self.counts.max())

    def before(self, step: int) -> "_Block | None":
        """The steps before one; None if there are none."""
        count = step - self.first
        if count >= self.steps:
            return self
        if count <= 0:
            return None
        end = count * self.each if self.ends is None else int(self.ends[count - 1])
        return _Block(self.first, count, self.each, None if self.ends is None else self.ends[:count], self.losses[:end])

    def of(self, place: int) -> Losses:
        if self.ends is None:
            return self.losses[place * self.each : (place + 1) * self.each]
        return self.losses[0 if place == 0 else self.ends[place - 1] : self.ends[place]]


def _mapped(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, which must be one: a link may lead anywhere, and a pipe does not end."""
    with reading(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UnsafePathError(f"{path}: expected a file of losses, found a link, which is not followed") from error
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise FormatError(f"{path}: expected a file of losses, found something that is no file")
            return np.memmap(file, np.uint8, "r") if found.st_size else np.empty(0, np.uint8)


class RankFile:
    """A file of one rank. ``unread_bytes`` are those behind the last whole block: a block that was being written, as a rule."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        self._data = _mapped(path)
        self.stretch: Stretch | None = None
        self.rank = 0
        self.made_by: dict[str, Any] | None = None
        self.blocks: list[_Block] = []
        self.damaged = 0
        end = self._read_head()
        while end < len(self._data) and (after := self._read_block(end)) is not None:
            end = after
        self.unread_bytes = len(self._data) - end

    def _read_head(self) -> int:
        """Where the blocks begin; 0 if the head was being written when its process ended."""
        data = self._data
        if len(data) < HEAD.size:
            return self._cut_head()
        magic, length, crc = HEAD.unpack(bytes(data[: HEAD.size]))
        length = int(length)
        if magic != MAGIC:
            raise FormatError(f"{self.path}: expected a file of losses that begins with {MAGIC!r}, found {magic!r}")
        if length > MAX_HEAD:
            raise CorruptError(f"{self.path}: expected a head of at most {MAX_HEAD} bytes, found {length}")
        end: int = HEAD.size + length + -(HEAD.size + length) % 8
        if end > len(data):
            return self._cut_head()
        text = data[HEAD.size : HEAD.size + length]
        if int(_core.crc32c(text)) != crc:
            raise CorruptError(f"{self.path}: the head does not have its checksum; the losses of the file cannot be told apart")
        self._parse(bytes(text))
        return end

    def _cut_head(self) -> int:
        if bytes(self._data[: len(MAGIC)]) != MAGIC[: len(self._data)]:
            raise FormatError(f"{self.path}: expected a file of losses that begins with {MAGIC!r}")
        return 0

    def _parse(self, text: bytes) -> None:
        try:
            found = json.loads(text)
            tail, per = str(found["tail"]), str(found["per"])
            world = whole_number("world", found["world"], least=1, most=MAX_WORLD)
            self.rank = whole_number("rank", found["rank"], most=world - 1)
            parse_state(found["state"])
            if per not in UNITS:
                raise ValueError(f"per: expected one of {', '.join(UNITS)}, got {shown(per)}")
            if tail not in TAILS:
                raise ValueError(f"tail: expected one of {', '.join(TAILS)}, got {shown(tail)}")
            batch_size = found["state"]["batch_size"]
            if batch_size and batch_size % world:
                raise ValueError(f"batches of {batch_size} on {world} ranks")
            balance = found.get("balance")
            balance = None if balance is None else Balance(**{name: balance[name] for name in BALANCE})
        except (ValueError, TypeError, KeyError, RecursionError, StateError) as error:
            raise CorruptError(f"{self.path}: the head is not that of a file of losses: {shown(str(error))}") from error
        self.stretch = Stretch(found["state"], tail, world, per, balance, found.get("skips") is True)
        made_by = found.get("made_by")
        self.made_by = made_by if isinstance(made_by, dict) else None

    def _read_block(self, begin: int) -> int | None:
        """The block at a place; where the next one is, or None if this one is not whole."""
        data = self._data
        if self.stretch is None or begin + BLOCK.size > len(data):
            return None
        head = data[begin : begin + BLOCK.size]
        magic, steps, first, losses, each, crc, own = BLOCK.unpack(bytes(head))
        if magic != BLOCK_MAGIC or int(_core.crc32c(head[: BLOCK.size - 4])) != own:
            return None
        start = begin + BLOCK.size
        middle = start + (4 * steps if each == VARYING else 0)
        end: int = middle + 4 * losses
        if end > len(data):
            return None
        counts = data[start:middle].view("<u4") if each == VARYING else None
        is_whole = int(_core.crc32c(data[start:end])) == crc and 0 < steps <= first + steps < 2**63 and each > 0
        is_whole = is_whole and (int(counts.sum(dtype=np.int64)) if counts is not None else each * steps) == losses
        if is_whole:
            ends = None if counts is None else np.cumsum(counts, dtype=np.int64)
            self.blocks.append(_Block(first, steps, each, ends, data[middle:end].view("<f4")))
        else:
            self.damaged += 1
        return end


class LossTable:
    """The losses of a run by step. Immutable; files that grow meanwhile are seen by opening it anew. Safe to use from several
    threads.

    >>> import tempfile, numpy as np, penstock as pen
    >>> from penstock.trace import LossTable
    >>> loader = pen.Loader(pen.open({"x": np.arange(100)}).shuffle(seed=7), batch_size=10)
    >>> with tempfile.TemporaryDirectory() as run:
    ...     with pen.LossLog(run, loader) as log:
    ...         for batch in loader:
    ...             log(batch["x"] / 100.0)
    ...     table = LossTable.open(run)
    >>> len(table), float(table.mean.mean().round(3))
    (10, 0.495)
    """

    def __init__(self, path: Path, files: Sequence[RankFile]) -> None:
        """``files`` have a stretch each, the oldest first."""
        self.path, self._files = path, tuple(files)
        keys: dict[str, int] = {}
        self.stretches: list[Stretch] = []
        self._key_of: list[int] = []
        for file in self._files:
            assert file.stretch is not None
            key = file.stretch.key
            if key not in keys:
                keys[key] = len(keys)
                self.stretches.append(file.stretch)
            self._key_of.append(keys[key])
        self._check_sizes()
        self._index()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "LossTable":
        """The losses in the directory of a run; NoMatchError if there are none."""
        directory = Path(path)
        if not is_directory(directory):
            raise NoMatchError(f"{directory}: expected the directory of a run, as penstock.LossLog writes it, found none")
        named = sorted((found, name) for name in names_in(directory) if (found := parse_name(name)) is not None)
        files = [RankFile(directory / name, number) for (number, _), name in named]
        if not any(file.blocks for file in files):
            raise NoMatchError(f"{directory}: expected losses of a run, as penstock.LossLog writes them, found none")
        return cls(directory, [file for file in files if file.stretch is not None])

    def _check_sizes(self) -> None:
        """CorruptError if the batches of a stretch have far more samples than there are losses of any step."""
        most = [0] * len(self.stretches)
        for file, key in zip(self._files, self._key_of, strict=True):
            most[key] += max((block.most for block in file.blocks), default=0)
        for stretch, losses in zip(self.stretches, most, strict=True):
            if stretch.batch_size > max(FREE_SAMPLES, MOST_SAMPLES * losses):
                raise CorruptError(
                    f"{self.path}: the log says batches of {stretch.batch_size} samples, and its largest step has {losses} losses: "
                    "files of ranks are missing, or damaged"
                )

    def _index(self) -> None:
        """Which block has the losses of which step and rank."""
        blocks = [
            (number, kept)
            for number, (file, end) in enumerate(zip(self._files, self._ends(), strict=True))
            for block in file.blocks
            if (kept := block.before(end)) is not None
        ]
        self._blocks = [block for _, block in blocks]
        self._file_of = np.array([number for number, _ in blocks], np.int64)
        sizes = np.array([block.steps for block in self._blocks], np.int64)
        self._firsts = firsts = np.array([block.first for block in self._blocks], np.int64)
        self._entries = np.concatenate([[0], np.cumsum(sizes)])  # of every block: its steps, one after the other
        total = int(self._entries[-1])
        steps = np.arange(total) + np.repeat(firsts - self._entries[:-1], sizes)
        lowest, highest = int(steps.min(initial=0)), int(steps.max(initial=0))
        if highest - lowest <= 4 * total + 1000:
            is_there = np.zeros(highest - lowest + 1, np.bool_)
            is_there[steps - lowest] = True
            self.steps: IntArray = np.flatnonzero(is_there) + lowest
            where = np.cumsum(is_there) - 1
            self._place: IntArray = where[steps - lowest]
        else:
            self.steps, self._place = np.unique(steps, return_inverse=True)
        self._choose()

    def _ends(self) -> list[int]:
        """The step of every file from which on it does not count: where a newer file of another stretch begins."""
        begins: dict[int, int] = {}
        ends: list[int] = []
        for file, key in zip(reversed(self._files), reversed(self._key_of), strict=True):
            ends.append(min((first for other, first in begins.items() if other != key), default=1 << 63))
            if file.blocks:
                begins[key] = min(begins.get(key, 1 << 63), *(block.first for block in file.blocks), 1 << 63)
        return ends[::-1]

    def _choose(self) -> None:
        """The stretch of every step, and which entries count."""
        self.stretch_of: IntArray = np.zeros(len(self.steps), np.int64)
        for number in range(len(self._blocks)):  # the oldest first: the newest is what stays
            self.stretch_of[self._of_block(number)] = self._key_of[self._file_of[number]]
        ranks = np.array([file.rank for file in self._files], np.int64)
        self._chosen = np.zeros(int(self._entries[-1]), np.bool_)
        last = np.empty(len(self.steps), np.int64)
        rank_of = ranks[self._file_of]
        for rank in np.unique(rank_of):
            mine = np.flatnonzero(rank_of == rank)
            last[:] = -1
            for number in mine.tolist():
                places = self._of_block(number)
                fits = self.stretch_of[places] == self._key_of[self._file_of[number]]
                if fits.all():
                    last[places] = np.arange(self._entries[number], self._entries[number + 1])
                else:
                    last[places[fits]] = np.arange(self._entries[number], self._entries[number + 1])[fits]
            self._chosen[last[last >= 0]] = True

    def _of_block(self, number: int) -> IntArray:
        return self._place[self._entries[number] : self._entries[number + 1]]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def unread_bytes(self) -> int:
        """Bytes of blocks that were cut, as by a process that was killed."""
        return sum(file.unread_bytes for file in self._files)

    @property
    def damaged(self) -> int:
        """Blocks that do not have their checksum."""
        return sum(file.damaged for file in self._files)

    @property
    def made_by(self) -> tuple[Any, Stretch]:
        """How the data can be opened again, as the newest file tells it (None if none does), and the stretch of that file."""
        found = [file for file in self._files if file.made_by is not None] or list(self._files)
        assert found[-1].stretch is not None
        return found[-1].made_by, found[-1].stretch

    def blocks(self) -> Iterator[tuple[int, IntArray, IntArray, Losses]]:
        """All losses that count: the rank, places in :attr:`steps`, how many losses each has there, and the losses themselves."""
        for number, block in enumerate(self._blocks):
            chosen = self._chosen[self._entries[number] : self._entries[number + 1]]
            rank, places = self._files[self._file_of[number]].rank, self._of_block(number)
            if chosen.all():
                yield rank, places, block.counts, block.losses
            elif chosen.any():
                counts = block.counts
                yield rank, places[chosen], counts[chosen], block.losses[np.repeat(chosen, counts)]

    @cached_property
    def _sums(self) -> tuple[FloatArray, IntArray, IntArray]:
        """Of every step: the sum of its finite losses, how many there are, and how many are not finite."""
        total, finite, others = np.zeros(len(self)), np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        for _, places, counts, losses in self.blocks():
            known = np.isfinite(losses)
            if known.all():
                sums, sizes = _added(losses, counts), counts
            else:
                sums, sizes = _added(np.where(known, losses, np.float32(0)), counts), _added(known, counts).astype(np.int64)
                unknown = _added(is_missing(losses), counts).astype(np.int64)
                others[places] += counts - sizes - unknown
            total[places] += sums  # a block has a step once
            finite[places] += sizes
        return total, finite, others

    @cached_property
    def mean(self) -> FloatArray:
        """The mean loss of every step over all ranks, of losses that are finite; NaN where there is none."""
        total, finite, _ = self._sums
        mean: FloatArray = np.divide(total, finite, out=np.full(len(self), np.nan), where=finite > 0)
        return mean

    @property
    def num_losses(self) -> IntArray:
        """How many losses of every step are known."""
        return self._sums[1] + self._sums[2]

    @property
    def not_finite(self) -> IntArray:
        """How many losses of every step are infinite or not a number."""
        return self._sums[2]

    def place(self, step: int) -> int:
        """Where a step is in :attr:`steps`; IndexError if it was not logged."""
        found = int(np.searchsorted(self.steps, step))
        if found == len(self) or self.steps[found] != step:
            raise IndexError(f"step {step} is not in the log of {self.path}")
        return found

    def stretch(self, step: int) -> Stretch:
        """What the losses of a step belong to."""
        return self.stretches[int(self.stretch_of[self.place(step)])]

    def of(self, step: int) -> dict[int, Losses]:
        """The losses of a step, of every rank that logged them."""
        self.place(step)
        inside, found = step - self._firsts, {}
        for number in np.flatnonzero((inside >= 0) & (inside < np.diff(self._entries))).tolist():
            if self._chosen[self._entries[number] + inside[number]]:
                found[self._files[self._file_of[number]].rank] = self._blocks[number].of(int(inside[number]))
        return dict(sorted(found.items()))

    @cached_property
    def ranks(self) -> IntArray:
        """How many ranks logged each step."""
        found = np.zeros(len(self), np.int64)
        for _, places, _, _ in self.blocks():
            found[places] += 1
        return found

    @property
    def worlds(self) -> IntArray:
        """How many ranks had each step."""
        return np.array([stretch.world for stretch in self.stretches], np.int64)[self.stretch_of]


def _added(values: npt.NDArray[Any], counts: IntArray) -> FloatArray:
    """Sums of values, ``counts`` of them at a time."""
    if counts.size and counts[0] > 0 and (counts == counts[0]).all():
        even: FloatArray = values.reshape(counts.size, -1).sum(axis=1, dtype=np.float64)
        return even
    ends = np.concatenate([[0], np.cumsum(values, dtype=np.float64)])
    edges = np.concatenate([[0], np.cumsum(counts)])
    return np.diff(ends[edges])
