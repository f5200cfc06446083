"""Pictures made smaller on their way into a store: decoded, resized and encoded again by native code."""

import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import set_whole
from penstock.batch import Batch, Ragged
from penstock.errors import ImageError
from penstock.fingerprint import fingerprint_of
from penstock.image import IMAGE, MOST_SIDE, find_encoded
from penstock.native import _core
from penstock.schema import Field

__all__ = ["ImageMap", "ShrinkImages", "as_shrink"]

AT_ONCE = min(8, os.cpu_count() or 1)
"""Batches that are worked on at a time."""


@dataclass(frozen=True)
class ShrinkImages:
    """How pictures become smaller: JPEG whose longer side has at most ``max_side`` pixels, of that ``quality``, from 1 to 100.

    ``field`` has the pictures; see :meth:`~penstock.stream.Stream.images`. A JPEG that is small enough stays as it is, byte for
    byte; everything else is decoded, turned as it is displayed, resized and encoded, without transparency and metadata.
    """

    max_side: int
    quality: int = 90
    field: str = IMAGE

    def __post_init__(self) -> None:
        set_whole(self, "max_side", least=1, most=MOST_SIDE)
        set_whole(self, "quality", least=1, most=100)

    def shrink(self, data: npt.NDArray[np.uint8]) -> bytes:
        """The bytes of a picture as they are written. ImageError if it cannot be decoded."""
        kind, width, height, _ = _core.probe_image(data)
        if kind == _core.ImageFormat.JPEG and max(width, height) <= self.max_side:
            return data.tobytes()
        return _core.shrink_image(data, self.max_side, self.quality)


def as_shrink(value: "ShrinkImages | Mapping[str, Any]") -> ShrinkImages:
    """Of a dict of its options."""
    if isinstance(value, ShrinkImages):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"image must be ShrinkImages(max_side), or a dict of its options, got {value!r}")
    return ShrinkImages(**value)


@dataclass(frozen=True)
class ImageMap:
    """Batches in which one field of pictures is made smaller. The other fields stay."""

    how: ShrinkImages
    data: str
    fields: Mapping[str, Field]
    size: int = 4 << 20
    task_records: int | None = None

    @classmethod
    def of(cls, how: ShrinkImages, schema: Mapping[str, Field]) -> "ImageMap":
        """For these fields of a source."""
        return cls(how, find_encoded(schema, how.field)[0], dict(schema))

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("shrink images", self.data, self.how.max_side, self.how.quality, self.size)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Names of classes and the like are the source's, and stay."""
        return {}

    def over(self, batches: Iterator[Batch], first: int) -> Generator[Mapping[str, Any]]:
        """A few batches at a time, in their order."""
        coming: deque[Future[Mapping[str, Any]]] = deque()
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-image") as pool:
            try:
                for batch in batches:
                    column: Ragged = batch[self.data]
                    coming.append(pool.submit(self._shrunk, batch, column, first))
                    first += len(column)
                    if len(coming) > AT_ONCE:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _shrunk(self, batch: Batch, column: Ragged, first: int) -> Mapping[str, Any]:
        made: list[bytes | None] = []
        for place, (low, high) in enumerate(pairwise(column.offsets.tolist())):
            if column.present is not None and not column.present[place]:
                made.append(None)
                continue
            try:
                made.append(self.how.shrink(np.ascontiguousarray(column.values[low:high])))
            except ImageError as error:
                raise ImageError(f"record {first + place}, field {self.data!r}{_named(batch, place)}: {error.reason}") from error
        return {**batch, self.data: replace(Ragged.from_items(made, dtype=np.uint8, kind="bytes"), kind=column.kind)}


def _named(batch: Batch, place: int) -> str:
    """What a folder or a tar archive calls a record, so that its file is found."""
    return next((f", {name} {batch[name][place]!r}" for name in ("path", "__key__") if name in batch), "")
