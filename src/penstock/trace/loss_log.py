"""LossLog: the losses of a run, 4 bytes each, appended by every rank to files of its own.

A run is a directory. Each rank of each start of the run appends to one file, ``<number>-<rank>.losses``; all numbers
little-endian::

    file  = head block*
    head  = "PENLOSS1" u32 length  u32 crc32c of text  text of that length  zeros up to a multiple of 8
    text  = JSON: what the losses belong to (see Stretch), the rank, and optionally how to open the data again
    block = u32 "BLK1"  u32 steps  u64 first step  u32 losses  u32 each  u32 crc32c of body  u32 crc32c of these 28 bytes  body
    body  = u32 losses of every step, if ``each`` is 2^32 - 1 (otherwise every step has ``each``, at least 1)  f32 losses

The steps of a block are consecutive. A file is only appended to, a block at a time, so a killed process loses what it had not
written: a block that is cut is the end of the file. The number of a new file is greater than all numbers in the directory. Where
two files have a step, the one with the greater number counts: a resumed run overwrites what it repeats, without a word to other
ranks.

Two patterns of bits have a meaning of their own. ``MISSING`` is the loss of a sample of which nothing is known, such as a document
without a token to predict. ``ABSENT`` fills arrays up, and is not written. Any other NaN is a loss that is not a number.
"""

import atexit
import json
import os
import re
import struct
import time
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import byte_size, shown, whole_number
from penstock.loader import Loader
from penstock.loader.schedule import Schedule
from penstock.native import _core
from penstock.order import Balance
from penstock.trace.recipe import data_named, recipe_of

__all__ = [
    "ABSENT",
    "BALANCE",
    "BLOCK",
    "BLOCK_MAGIC",
    "HEAD",
    "MAGIC",
    "MISSING",
    "UNITS",
    "VARYING",
    "LossLog",
    "LossLogWarning",
    "Losses",
    "Stretch",
    "block_bytes",
    "head_bytes",
    "parse_name",
    "segment_losses",
]

MAGIC = b"PENLOSS1"
HEAD = struct.Struct("<8sII")
BLOCK = struct.Struct("<IIQIIII")
BLOCK_MAGIC = int.from_bytes(b"BLK1", "little")
VARYING = 0xFFFFFFFF
UNITS = ("sample", "document")
BALANCE = ("by", "width", "micro_batches", "field")
"""What a head says of the balance of a loader."""

Losses = npt.NDArray[np.float32]

MISSING = np.array([0xFFFFFFFF], np.uint32).view(np.float32)[0]
"""The loss of a sample of which nothing is known."""

ABSENT = np.array([0xFFFFFFFE], np.uint32).view(np.float32)[0]
"""What fills arrays of losses up; it is not written."""

MOST_TRIES = 1000
"""Files of one name that others may make at the same moment."""

_NAME = re.compile(r"(\d{6,12})-(\d{5,10})\.losses")


class LossLogWarning(UserWarning):
    """Losses that could not be logged. The training goes on without them."""


def parse_name(name: str) -> tuple[int, int] | None:
    """Number and rank of a file of losses; None for other files."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Stretch:
    """Steps of a run whose batches follow from one state: what losses belong to.

    ``state`` is that of the loader where its schedule begins, ``per`` what has a loss: a "sample", or a "document" of packed
    samples. ``balance`` says how samples were dealt to ranks, ``skips`` whether records that could not be read were replaced.
    """

    state: Mapping[str, Any]
    tail: str
    world: int
    per: str
    balance: Balance | None = None
    skips: bool = False

    @property
    def batch_size(self) -> int:
        """Samples of the global batch; 0 with phases."""
        return int(self.state["batch_size"])

    @cached_property
    def key(self) -> str:
        """Equal for stretches whose steps have the same losses on the same ranks."""
        return json.dumps(self.as_json(), sort_keys=True)

    def as_json(self) -> dict[str, Any]:
        """As the head of a file has it: what is not usual only where it is so."""
        told: dict[str, Any] = {"state": dict(self.state), "tail": self.tail, "world": self.world, "per": self.per}
        if self.balance is not None:
            told["balance"] = {name: getattr(self.balance, name) for name in BALANCE}
        return told | {"skips": True} if self.skips else told


def head_bytes(stretch: Stretch, rank: int, made_by: Mapping[str, Any] | None = None) -> bytes:
    """The beginning of a file."""
    told = stretch.as_json() | {"rank": rank}
    text = json.dumps(told if made_by is None else told | {"made_by": dict(made_by)}).encode()
    return HEAD.pack(MAGIC, len(text), _crc(text)) + text + bytes(-(HEAD.size + len(text)) % 8)


def block_bytes(first: int, counts: list[int], losses: Losses) -> bytes:
    """The losses of consecutive steps."""
    is_even = len(set(counts)) == 1 and 0 < counts[0] < VARYING
    body = b"" if is_even else np.array(counts, "<u4").tobytes()
    body += losses.astype("<f4", copy=False).tobytes()
    head = struct.pack("<IIQIII", BLOCK_MAGIC, len(counts), first, losses.size, counts[0] if is_even else VARYING, _crc(body))
    return head + struct.pack("<I", _crc(head)) + body


def _crc(data: bytes) -> int:
    return int(_core.crc32c(np.frombuffer(data, np.uint8)))


class LossLog:
    """The losses of every sample, or packed document, of a run: what ``penstock blame`` finds bad records by. For one thread.

    * ``path``    the directory of the run, the same for all ranks and for every start of the run
    * ``loader``  whose batches the losses are of; :meth:`follow` gives it later
    * ``per``     "sample", or "document" where a loss is that of a piece of a document in a packed sample (:func:`segment_losses`)
    * ``data``    what the data was opened by, such as "train.pen" (a dict by name for a mixture): with it, commands find the data
      themselves
    * ``buffer``  bytes of losses in memory, and ``seconds`` the longest time they stay there: what a killed process loses at most

    Ids are not logged, because they follow from the order. Nothing here raises once the log is made: what cannot be written is
    counted in ``lost``, and warned of once. A run that resumes, with any number of ranks and any batch size, overwrites the steps
    it repeats.

    >>> import tempfile, numpy as np, penstock as pen
    >>> loader = pen.Loader(pen.open({"x": np.arange(100)}).shuffle(seed=7), batch_size=10)
    >>> with tempfile.TemporaryDirectory() as run, pen.LossLog(run, loader) as log:
    ...     for batch in loader:
    ...         log(batch["x"] / 100.0)
    >>> log.written, log.lost
    (100, 0)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loader: Loader | None = None,
        *,
        per: str = "sample",
        data: Any = None,
        buffer: int | str = "64kB",
        seconds: float = 5.0,
    ) -> None:
        if per not in UNITS:
            raise ValueError(f"per must be one of {', '.join(UNITS)}, got {per!r}")
        self.path, self.per = Path(path), per
        self._data, self._most = None if data is None else data_named(data), byte_size("buffer", buffer) // 4
        self._seconds = float(seconds)
        self._loader: Loader | None = None
        self._schedule: Schedule | None = None
        self._stretch: Stretch | None = None  # what the held losses belong to: of the schedule in which they were computed
        self._made_by: Mapping[str, Any] | None = None
        self._held: list[tuple[int, Any]] = []
        self._held_losses, self._held_since = 0, 0.0
        self._file = _File(self.path)
        self._process = os.getpid()
        self._written = self._lost = 0
        self._is_warned = False
        _unfinished.add(self)
        if loader is not None:
            self.follow(loader)

    @property
    def written(self) -> int:
        """Losses that are in the file."""
        return self._written

    @property
    def lost(self) -> int:
        """Losses that could not be written."""
        return self._lost

    def follow(self, loader: Loader) -> None:
        """Log the losses of this loader's batches from here on."""
        if not isinstance(loader, Loader):
            raise TypeError(f"expected a penstock Loader, got {type(loader).__name__}")
        if loader.restart:
            raise ValueError("the loader has restart=True: the steps of its iterations are not those of one run, leave restart out")
        self.flush()
        self._loader = loader

    def follows(self, loader: Loader) -> bool:
        """Whether the losses are those of this loader."""
        return self._loader is loader

    def miss(self, reason: str) -> None:
        """Count a loss that a trainer did not give, and warn once."""
        self._lose(1, ValueError(reason))

    def __call__(self, losses: Any, *, step: int | None = None) -> None:
        """Log the losses of a batch of this rank, in the order of its samples. ``step`` is that of the batch that the loader gave
        last, unless given: give it where batches are taken ahead. An array on a device is copied when the buffer is written.
        """
        try:
            self._hold(losses, step)
        except Exception as error:
            self._lose(_num_losses(losses), error)

    def _hold(self, losses: Any, step: int | None) -> None:
        loader = self._loader
        if loader is None:
            raise ValueError("the log has no loader: pass it, or call follow(loader)")
        if self._process != os.getpid():
            raise RuntimeError("the log belongs to the process that made it, this is another")
        if loader.schedule is not self._schedule:
            self.flush()
            self._schedule = None  # if this fails, the next call tries again
            self._stretch, self._made_by = self._stretch_of(loader), None if self._data is None else recipe_of(loader, self._data)
            self._schedule = loader.schedule
        number = loader.step - 1 if step is None else whole_number("step", step)
        if number < 0:
            raise ValueError("the loader has returned no batch yet: log losses after their batch, or pass step=")
        now = time.monotonic()
        if not self._held:
            self._held_since = now
        held = _held(losses)
        self._held.append((number, held))
        self._held_losses += _num_losses(held)
        if self._held_losses >= self._most or now - self._held_since >= self._seconds:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory. Nothing is raised, as everywhere here."""
        held, self._held, self._held_losses = self._held, [], 0
        if not held or self._process != os.getpid():
            return
        steps: list[tuple[int, Losses]] = []
        for step, losses in held:
            try:
                steps.append((step, self._checked(step, _as_losses(losses))))
            except Exception as error:
                self._lose(_num_losses(losses), error)
        num_losses = sum(losses.size for _, losses in steps)
        try:
            if steps:
                assert self._stretch is not None
                assert self._loader is not None
                self._file.append(self._stretch, self._loader.shard.rank, self._made_by, _blocks(steps))
                self._written += num_losses
        except Exception as error:
            self._lose(num_losses, error)

    def _checked(self, step: int, losses: Losses) -> Losses:
        """Losses of which there are as many as samples. How many documents a batch has is found out when the log is read."""
        if self.per == "sample" and self._schedule is not None:
            wanted = self._schedule.place(step).num_samples
            if losses.size != wanted:
                raise ValueError(
                    f"expected {wanted} losses of step {step}, one per sample of this rank, got {losses.size}: "
                    "for documents of packed samples, make the log with per='document'"
                )
        return losses

    def _stretch_of(self, loader: Loader) -> Stretch:
        schedule = loader.schedule
        state = loader.state_at(getattr(schedule, "start", 0))
        tail, skips = getattr(schedule, "tail", "keep"), loader.work.on_error != "raise"
        return Stretch(state, tail, loader.shard.world, self.per, loader.balance, skips)

    def _lose(self, num_losses: int, error: Exception) -> None:
        self._lost += num_losses
        if not self._is_warned:
            self._is_warned = True
            told = f"{type(error).__name__}: {shown(str(error))[1:-1]}" if not str(error).isprintable() else str(error)
            try:
                warnings.warn(f"{self.path}: losses were not logged, training continues: {told}", LossLogWarning, stacklevel=3)
            except LossLogWarning:  # where warnings are errors: not in a training
                return

    def close(self) -> None:
        """Write what is in memory, and close the file. Idempotent; a later call begins a new file."""
        self.flush()
        if self._process == os.getpid():
            self._file.close()

    def __enter__(self) -> "LossLog":
        return self

    def __exit__(self, *failed: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def __repr__(self) -> str:
        return f"<penstock LossLog {str(self.path)!r}: {self.written} losses written, {self.lost} lost>"


_unfinished: "weakref.WeakSet[LossLog]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends without closing its logs loses nothing."""
    for log in list(_unfinished):
        log.close()


class _File:
    """The file of a rank, made at the first write. A write that fails leaves it as it was, or it is given up for a new one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None
        self._end = 0
        self._key = ""

    def append(self, stretch: Stretch, rank: int, made_by: Mapping[str, Any] | None, data: bytes) -> None:
        key = f"{rank} {stretch.key}"
        if self._key != key:
            self.close()
        if self._descriptor is None:
            self._begin(rank, head_bytes(stretch, rank, made_by))
            self._key = key
        self._write(data)

    def _begin(self, rank: int, head: bytes) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        number = 1 + max((found[0] for name in os.listdir(self._directory) if (found := parse_name(name))), default=0)
        for attempt in range(number, number + MOST_TRIES):
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = os.open(self._directory / f"{attempt:06d}-{rank:05d}.losses", flags, 0o666)
                break
            except FileExistsError:  # of another process that takes itself for this rank
                if attempt == number + MOST_TRIES - 1:
                    raise
        self._end = 0
        self._write(head)

    def _write(self, data: bytes) -> None:
        assert self._descriptor is not None
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except BaseException:
            try:
                os.ftruncate(self._descriptor, self._end)
            except OSError:  # what comes behind a cut block would not be found
                self._end = 0
            if self._end == 0:
                self.close()
            raise
        self._end += len(data)

    def close(self) -> None:
        descriptor, self._descriptor, self._key = self._descriptor, None, ""
        if descriptor is not None:
            os.close(descriptor)


def _held(losses: Any) -> Any:
    """Losses to be kept: a copy, but for arrays that cannot change or are on a device."""
    if hasattr(losses, "detach"):  # torch's, which is not imported here
        losses = losses.detach()
        return losses.clone() if losses.device.type != "cpu" else losses.float().numpy().astype(np.float32, copy=True)
    if hasattr(losses, "addressable_shards"):  # jax's
        return losses
    return np.array(losses, np.float32)


def _num_losses(losses: Any) -> int:
    if isinstance(losses, np.ndarray):  # almost always: a tenth of the cost of a call
        return losses.size
    try:
        return int(np.prod(np.shape(losses), dtype=np.int64))
    except Exception:
        return 1


def _as_losses(held: Any) -> Losses:
    """Losses one after the other, without those that fill up."""
    if hasattr(held, "detach"):
        held = held.float().cpu().numpy()
    flat: Losses = np.ascontiguousarray(held, np.float32).reshape(-1)
    is_absent = flat.view(np.uint32) == ABSENT.view(np.uint32)
    return flat[~is_absent] if is_absent.any() else flat


def _blocks(steps: list[tuple[int, Losses]]) -> bytes:
    """A block for each run of consecutive steps."""
    blocks, begin = [], 0
    for place in range(1, len(steps) + 1):
        if place == len(steps) or steps[place][0] != steps[place - 1][0] + 1:
            part = steps[begin:place]
            losses = np.concatenate([one for _, one in part])
            blocks.append(block_bytes(part[0][0], [one.size for _, one in part], losses))
            begin = place
    return b"".join(blocks)


def segment_losses(losses: Any, segment: Any, weights: Any = None, *, first_segment: int = 0) -> Losses:
    """The mean loss of every document of packed samples, for a log with ``per="document"``.

    ``losses`` has a loss for every token, ``segment`` the number of its document as packs give it, ``weights`` 0 where a token
    does not count (all of those that are not padding, unless given). A document of which no token counts gets ``MISSING``. This is
    the one for numpy; ``penstock.deliver.torch`` and ``penstock.deliver.jax`` have theirs.

    >>> import numpy as np
    >>> from penstock.trace import segment_losses
    >>> segment_losses(np.array([[1.0, 3.0, 5.0, 9.0]]), np.array([[0, 0, 1, -1]]))
    array([2., 5.], dtype=float32)
    """
    values, number = np.asarray(losses, np.float64), np.asarray(segment, np.int64) - first_segment
    if values.shape != number.shape or values.ndim != 2:
        raise ValueError(f"expected losses and segments of one shape [samples, tokens], got {values.shape} and {number.shape}")
    counts = np.ones_like(values) if weights is None else np.asarray(weights, np.float64)
    documents = number.max(axis=1, initial=-1) + 1
    place = number + (np.cumsum(documents) - documents)[:, None]
    is_document = number >= 0
    total = int(documents.sum())
    does_count = is_document & (counts != 0)
    sums = np.bincount(place[does_count], (values * counts)[does_count], total)
    sizes = np.bincount(place[does_count], counts[does_count], total)
    mean = np.full(total, MISSING, np.float32)
    np.divide(sums, sizes, out=mean, where=sizes > 0, casting="same_kind")
    return mean
