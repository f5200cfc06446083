"""Advice in plain words, from what was measured: what to change, and when there is nothing to gain."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.codec import Raw
from penstock.loader import Loader
from penstock.order import Shuffle
from penstock.report.words import counted, duration, percent, size
from penstock.stream import RecordStream

if TYPE_CHECKING:
    from penstock.report.speed import Speed

__all__ = ["advise"]

SMALL_BATCH = 64_000
"""Bytes. Below this, what every batch costs beside its bytes is most of it."""


def advise(speed: "Speed", core: Loader | None) -> "Speed":
    """The same figures, with advice."""
    told = [_about_trainer(speed), _about_limit(speed)]
    told += [_about_transform(speed), _about_codecs(speed, core), _about_disk(speed, core)]
    told += [_about_batch(speed), _about_threads(speed), _about_others(speed)]
    return replace(speed, advice=tuple(line for line in told if line))


def _about_trainer(speed: "Speed") -> str:
    batch_s = speed.samples / speed.batches / speed.samples_per_s.median
    if speed.trainer is None:
        return f"A trainer that takes longer than {duration(batch_s)} per batch does not wait for this loader."
    reason = "this loader is fast enough" if speed.trainer.waited < 0.05 else f"the loader needs {duration(batch_s)} for a batch"
    if speed.trainer.waited >= 0.05 and batch_s < speed.trainer.work_s:
        reason += ", but some come late"
    told = f"A trainer that is busy for {duration(speed.trainer.work_s)} per batch"
    return f"{told} waits {percent(speed.trainer.waited)} of the time: {reason}."


def _about_limit(speed: "Speed") -> str:
    if speed.ratio >= 0.8:
        return f"It runs at {percent(speed.ratio)} of what memory can do: only smaller records would be faster."
    return ""


def _about_transform(speed: "Speed") -> str:
    split = speed.split
    if split is None or split.transform_s < 0.5 * (split.order_s + split.read_s + split.transform_s):
        return ""
    share = split.transform_s / (split.order_s + split.read_s + split.transform_s)
    remedy = "make it cheaper, or give the loader an executor if it holds the interpreter"
    return f"The transform takes {percent(share)} of the work: {remedy}."


def _about_codecs(speed: "Speed", core: Loader | None) -> str:
    if core is None or speed.ratio >= 0.8:
        return ""
    packed = [name for name, field in core.stream.schema.items() if not isinstance(field.codec, Raw)]
    if not packed:
        return ""
    named = ", ".join(packed[:5]) + (" and others" if len(packed) > 5 else "")
    remedy = "LZ4 is faster to read than Zstd or Deflate, Raw is fastest where the disk has room"
    return f"Compressed fields ({named}) are decompressed record by record: {remedy}."


def _about_disk(speed: "Speed", core: Loader | None) -> str:
    delivered = speed.batches * speed.batch_bytes
    if not speed.disk_bytes or speed.disk_bytes < 0.2 * delivered:
        return ""
    ratio = speed.disk_bytes / delivered
    told = f"{size(speed.disk_bytes)} came from the disk, {ratio:.1f} bytes for each one delivered: the data was not in memory."
    if _reads_singly(core) and ratio > 1.2:
        return f"{told} A block shuffle (--block, --window) reads runs of records instead of single ones."
    return f"{told} A second run may be faster."


def _reads_singly(core: Loader | None) -> bool:
    stream: Any = None if core is None else core.stream
    return isinstance(stream, RecordStream) and isinstance(stream.order, Shuffle)


def _about_batch(speed: "Speed") -> str:
    if speed.batch_bytes >= SMALL_BATCH or speed.ratio >= 0.8:
        return ""
    return f"Batches are small ({size(speed.batch_bytes)}): larger ones would cost less per sample."


def _about_threads(speed: "Speed") -> str:
    if speed.threads == 0:
        return "Nothing is read ahead (threads=0): with threads the trainer need not wait while a batch is made."
    if speed.threads < speed.cores and speed.ratio < 0.8:
        return f"The loader has {counted(speed.threads, 'thread')} and the machine {speed.cores:g} cores: try more threads."
    if speed.threads > 2 * speed.cores:
        return f"The loader has {counted(speed.threads, 'thread')} for {speed.cores:g} cores: fewer would do."
    return ""


def _about_others(speed: "Speed") -> str:
    if speed.others <= 0.15:
        return ""
    return f"Other programs took {percent(speed.others)} of the cores meanwhile: on a quiet machine it is faster."
