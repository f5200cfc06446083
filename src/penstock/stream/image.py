"""ImageStream: encoded pictures of records become arrays of one size, made by native threads."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, as_positions, whole_number
from penstock.batch import Batch, Outputs, Ragged, empty, fixed_output, masked
from penstock.errors import ImageError
from penstock.image import ImageOptions, find_encoded
from penstock.native import _core
from penstock.order import Balance, InvertibleOrder, Order, Phase
from penstock.order.permutation import MAX_SEED, Purpose, absorb_all, derive_root
from penstock.records import Leaf, Source
from penstock.row_table import RowTable
from penstock.schema import Field
from penstock.stream.cost import RecordCosts
from penstock.stream.picks import RecordPicks
from penstock.stream.stream import Bans, PartStream, RecordStream, Unreadable

__all__ = ["ImageField", "ImageStream", "find_image", "image_seeds"]

BOXES_AT_ONCE = 256
"""Records of which the bytes are in memory while headers are looked at."""

OPTIONS = ("crop", "flip", "layout", "dtype", "mean", "std", "scale", "ratio", "fraction", "channels", "max_pixels")
"""What ``images`` takes as it is; size and fill are those of masks, too."""


@lru_cache(maxsize=1)
def _pool() -> _core.ThreadPool:
    """For batches that no ring makes. A thread that makes batches next to others works alone."""
    return _core.ThreadPool(min(8, os.cpu_count() or 1))


@dataclass(frozen=True)
class ImageField:
    """A field of pictures: its name in batches, the field of the source with the bytes, that with names of files outside of the
    data (as in the image columns of Hugging Face), what becomes of the pictures, and the field of the source with the pictures that
    they are masks of.
    """

    name: str
    data: str
    path: str | None
    options: ImageOptions
    partner: str | None = None

    def field(self, nullable: bool) -> Field:
        return Field(self.options.dtype, self.options.shape, nullable=nullable)


def find_image(schema: Mapping[str, Field], name: str, options: ImageOptions, partner: str | None = None) -> ImageField:
    """The pictures that a name stands for."""
    return ImageField(name, *find_encoded(schema, name), options, partner)


def image_seeds(order: Order, seed: int, epoch: int, positions: IntArray, ids: IntArray) -> npt.NDArray[np.uint64]:
    """The seed of each sample, from which its crop and flip follow: of the record and the epoch. In an order in which a record may
    come several times in an epoch, of the position as well.
    """
    seeds = absorb_all(derive_root(seed, epoch, Purpose.IMAGE), ids.astype(np.uint64))
    return seeds if isinstance(order, InvertibleOrder) else absorb_all(seeds, positions.astype(np.uint64))


class ImageStream(PartStream):
    """Records of which some fields are pictures, decoded; what ``stream.images`` gives. Everything else is the stream's of records.

    >>> import io, numpy as np, penstock as pen
    >>> from PIL import Image
    >>> def picture(number):
    ...     file = io.BytesIO()
    ...     Image.fromarray(np.full((40, 60, 3), number, np.uint8)).save(file, "JPEG")
    ...     return file.getvalue()
    >>> data = pen.open({"image": [picture(n) for n in range(10)], "label": np.arange(10)})
    >>> stream = data.shuffle(seed=7).images("image", 32)
    >>> batch = next(iter(pen.Loader(stream, batch_size=4)))
    >>> batch["image"].shape, batch["image"].dtype, (batch["image"][:, 0, 0, 0] == batch["label"]).all()
    ((4, 3, 32, 32), dtype('uint8'), np.True_)
    >>> stream.boxes(0, range(2)).shape
    (2, 5)
    """

    def __init__(self, records: RecordStream, images: Sequence[ImageField], *, seed: int | None = None) -> None:
        self._records, self._images = records, tuple(images)
        self._seed = None if seed is None else whole_number("seed", seed, most=MAX_SEED)
        names = [one.name for one in self._images]
        if not names:
            raise ValueError("expected at least one field of images, got none")
        if len(set(names)) < len(names) or len({one.data for one in self._images}) < len(names):
            raise ValueError(f"a field of images is given twice: {names}")
        replaced = {place for one in self._images for place in (one.data, one.path)}
        if taken := [name for name in names if name in records.schema and name not in replaced]:
            raise ValueError(f"the stream has fields {taken} already")

    # The stream of records

    @property
    def records(self) -> RecordStream:
        """The records, with their pictures as they are stored."""
        return self._records

    @property
    def source(self) -> Source:  # type: ignore[override]
        return self._records.source

    @property
    def order(self) -> Order:  # type: ignore[override]
        return self._records.order

    @property
    def _bans(self) -> Bans:  # type: ignore[override]
        return self._records.bans

    @property
    def axis(self) -> int:
        return self._records.axis

    @property
    def axes(self) -> Sequence[tuple[int, int]]:
        return self._records.axes

    @property
    def seed(self) -> int:
        return self._records.seed

    @property
    def has_records(self) -> bool:
        return True

    def units_of(self, picks: RecordPicks) -> IntArray:
        return picks.ids

    def where(self, record: Any, *, epochs: range = range(1)) -> list[tuple[int, int]]:
        return self._records.where(record, epochs=epochs)

    def holds(self, picks: RecordPicks, record: Any) -> bool:
        return self._records.holds(picks, record)

    def without(self, ids: Any, *, from_step: int = 0) -> "ImageStream":
        """See :meth:`RecordStream.without`."""
        return self._with(self._records.without(ids, from_step=from_step))

    def unbanned(self, from_step: int) -> "ImageStream":
        return self._with(self._records.unbanned(from_step))

    def for_batches(self, batch_size: int, tail: str) -> "ImageStream":
        self._records.for_batches(batch_size, tail)
        return self

    def with_phases(self, phases: Sequence[Phase]) -> "ImageStream":
        self._records.with_phases(phases)
        return self

    def costing(self, balance: Balance) -> RecordCosts:
        """By what is not a picture: those all have one size."""
        return RecordCosts.checked(self.source, balance, [one.data for one in self._images])

    def sized(self, seq_len: int) -> "ImageStream":
        self._records.sized(seq_len)
        return self

    def sequences(self, seq_len: int, **options: Any) -> Any:
        """Pictures are no tokens: TypeError."""
        raise TypeError("sequences() cuts tokens, and this stream has images: call it on the stream of records, without images()")

    def pack(self, length: int, **options: Any) -> Any:
        """Pictures are no tokens: TypeError."""
        raise TypeError("pack() packs documents, and this stream has images: call it on the stream of records, without images()")

    def close(self) -> None:
        self._records.close()

    # The fields

    @cached_property
    def _fields(self) -> dict[str, ImageField | None]:
        """The fields of a batch in their order, weights apart; None for those that are read as they are."""
        by_data = {one.data: one for one in self._images}
        dropped = {one.path for one in self._images}
        found = [(name, by_data.get(name)) for name in self.source.schema if name not in dropped]
        return {name if one is None else one.name: one for name, one in found}

    @property
    def read_schema(self) -> Mapping[str, Field]:
        schema = self.source.schema
        return {name: schema[name] if one is None else one.field(schema[one.data].nullable) for name, one in self._fields.items()}

    @property
    def schema(self) -> Mapping[str, Field]:
        added = {name: field for name, field in self._records.schema.items() if name not in self.source.schema}
        return {**self.read_schema, **added}

    def field_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        tables = self.source.row_tables()
        names = {name: name if one is None else one.data for name, one in self._fields.items()}
        return {name: tables[data] for name, data in names.items() if data in tables}

    def makes(self, name: str) -> bool:
        return self._fields[name] is not None

    def native_reader(self, leaf: Leaf, name: str, inner: str) -> tuple[Any, int] | None:
        """Of a picture: the reader of its bytes, and what makes an array of them. Where a picture may be in a file outside of the
        data, one that is missing is left to :meth:`fetch`.
        """
        image, reader = self._fields[name], leaf.native_reader(inner)
        if image is None or reader is None:
            return reader
        partner = None if image.partner is None else self._partner_reader(leaf, image.data, image.partner)
        if not isinstance(reader[0], _core.VaryingReader) or (partner is None) != (image.partner is None):
            return None
        return _core.ImageReader(reader[0], image.options.maker, image.path is not None, partner), -1

    def _partner_reader(self, leaf: Leaf, data: str, partner: str) -> _core.VaryingReader | None:
        """Of the pictures of masks, where both are in the same rows."""
        tables = self.source.row_tables()
        (table, _), (other, inner) = tables[data], tables[partner]
        reader = leaf.native_reader(inner) if table is other else None
        return reader[0] if reader is not None and isinstance(reader[0], _core.VaryingReader) else None

    def with_images(self, names: Sequence[str], options: ImageOptions, seed: int | None) -> "ImageStream":
        if seed is not None and seed != self._image_seed:
            raise ValueError("all images of a sample have one seed: pass it to the first call of images()")
        return self._adding([find_image(self._left, name, options) for name in names])

    def with_masks(self, names: Sequence[str], size: int | Sequence[int] | None, fill: int, of: str | None) -> "ImageStream":
        pictures = [one for one in self._images if not one.options.numbers]
        picture = pictures[0] if of is None and len(pictures) == 1 else next((one for one in pictures if one.name == of), None)
        if picture is None:
            raise KeyError(f"expected in ``of`` the images of the masks, one of {[one.name for one in pictures]}, got {of!r}")
        options = picture.options.of_masks(size, fill)
        return self._adding([find_image(self._left, name, options, picture.data) for name in names])

    @property
    def _left(self) -> dict[str, Field]:
        """The fields of the source that are no pictures yet."""
        taken = {one.data for one in self._images}
        return {name: field for name, field in self.source.schema.items() if name not in taken}

    def _adding(self, images: Sequence[ImageField]) -> "ImageStream":
        return ImageStream(self._records, (*self._images, *images), seed=self._seed)

    def _with(self, records: RecordStream) -> "ImageStream":
        return ImageStream(records, self._images, seed=self._seed)

    def plan(self) -> dict[str, Any]:
        told = {f"image {one.name}": f"of {one.data!r}: {one.options.describe()}" for one in self._images}
        own = {} if self._seed is None else {"image seed": str(self._seed)}
        return {**self._records.plan(), **told, **own}

    def recipe(self) -> Any:
        calls = self._records.recipe()
        if calls is None:
            return None
        by_data = {one.data: one.name for one in self._images}
        for one in self._images:
            asked = {"field": one.name, "size": [one.options.height, one.options.width], "fill": one.options.fill}
            if one.partner is not None:
                calls = [*calls, ("masks", {**asked, "of": by_data[one.partner]})]
            else:
                others = {name: getattr(one.options, name) for name in OPTIONS}
                calls = [*calls, ("images", {**asked, **others, "seed": self._seed})]
        return calls

    # Samples

    @property
    def _image_seed(self) -> int:
        return self.seed if self._seed is None else self._seed

    def locate(self, epoch: int, run: range, step: int = 0) -> RecordPicks:
        return self._seeded(self._records.locate(epoch, run, step), epoch, as_positions(run))

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> RecordPicks:
        return self._seeded(self._records.locate_at(epoch, positions, step), epoch, positions)

    def _seeded(self, picks: RecordPicks, epoch: int, positions: IntArray) -> RecordPicks:
        return picks.with_seeds(image_seeds(self.order, self._image_seed, epoch, positions, picks.ids))

    def replace_unreadable(
        self, picks: RecordPicks, positions: list[tuple[int, int]], unreadable: Unreadable
    ) -> RecordPicks | None:
        """A picture that cannot be decoded is one that cannot be read."""
        fixed = self._records.replace_failed(picks, positions, unreadable, lambda place: self.fetch(picks.part(place, place + 1)))
        if fixed is None:
            return None
        seeds = _need_seeds(picks).copy()
        for place in np.flatnonzero(fixed.ids != picks.ids):
            epoch, position = positions[place]
            here = slice(place, place + 1)
            seeds[here] = image_seeds(self.order, self._image_seed, epoch, np.array([position]), fixed.ids[here])
        return fixed.with_seeds(seeds)

    def fetch(self, picks: RecordPicks, out: Outputs | None = None) -> Batch:
        given = dict(out or {})
        arrays = {one.name: given.pop(one.name) for one in self._images if one.name in given}
        names = [name if one is None else one.data for name, one in self._fields.items()]
        batch = self._records.fetch(picks, given, names)
        encoded: dict[str | None, Ragged] = {one.data: batch[one.data] for one in self._images}
        made: Batch = {
            name: batch.pop(name)
            if one is None
            else self._decode(one, batch.pop(one.data), encoded.get(one.partner), picks, arrays)
            for name, one in self._fields.items()
        }
        return made | batch  # the weights are left there

    def _decode(
        self, image: ImageField, column: Ragged, partner: Ragged | None, picks: RecordPicks, out: Outputs
    ) -> npt.NDArray[Any]:
        """The pictures of a batch; those that are missing are 0, and masked."""
        field = image.field(column.present is not None)
        array = fixed_output(image.name, field, len(picks), out)
        if column.present is None or column.present.all():
            self._make(image, column, partner, picks, array)
            return masked(array, None, nullable=field.nullable)
        self._check_paths(image, picks.ids[~column.present])
        rows = np.flatnonzero(column.present)
        there = empty((rows.size, *field.shape), field.dtype)
        self._make(image, column.take(rows), None if partner is None else partner.take(rows), picks.take(rows), there)
        array[rows], array[~column.present] = there, 0
        return masked(array, column.present)

    def _make(self, image: ImageField, column: Ragged, partner: Ragged | None, picks: RecordPicks, array: npt.NDArray[Any]) -> None:
        values, seeds = np.ascontiguousarray(column.values), _need_seeds(picks)
        partners = None if partner is None else (np.ascontiguousarray(partner.values), partner.offsets)
        try:
            image.options.maker.make(values, column.offsets, seeds, array.reshape(-1).view(np.uint8), _pool(), partners=partners)
        except ImageError as error:
            raise self._named(image, picks.ids, error) from error

    def _named(self, image: ImageField, ids: IntArray, error: ImageError) -> ImageError:
        """The error of one of several pictures, which says of which."""
        if error.index is None:
            return error
        record = int(ids[error.index])
        return ImageError(f"record {record}, field {image.name!r}{self._place(image, record)}: {error.reason}")

    def _place(self, image: ImageField, record: int) -> str:
        """In which file a record is, as far as that is known."""
        table, _ = self.source.row_tables()[image.data]
        which, rows = table.find(np.array([record]))
        leaf: Leaf = table.leaves[0 if which is None else int(which[0])]
        numbers = leaf.extents(rows, rows + 1)[0]
        if numbers.size == 0 or not leaf.paths:
            return ""
        return f", in {leaf.paths[int(numbers[0])]}"

    def _check_paths(self, image: ImageField, ids: IntArray) -> None:
        """ImageError if pictures that are missing are in files, which the data only names."""
        if image.path is None:
            return
        for record, path in zip(ids.tolist(), self.source.read(ids, [image.path])[image.path], strict=True):
            if path is not None:
                raise ImageError(
                    f"record {record}, field {image.name!r}: the data has only a file name, {path!r}, and not its bytes: "
                    "embed the images when the data is written, or open the files as a folder"
                )

    def boxes_of(self, picks: RecordPicks, field: str | None) -> npt.NDArray[np.int32]:
        image, seeds = self._image_named(field), _need_seeds(picks)
        found = [np.zeros((0, 5), np.int32)]
        for low in range(0, len(picks), BOXES_AT_ONCE):
            some = picks.part(low, low + BOXES_AT_ONCE)
            column: Ragged = self.source.read(some.ids, [image.data])[image.data]
            boxes = np.zeros((len(some), 5), np.int32)
            rows = np.arange(len(some)) if column.present is None else np.flatnonzero(column.present)
            there = column if column.present is None else column.take(rows)
            if column.present is not None:
                self._check_paths(image, some.ids[~column.present])
            try:
                boxes[rows] = image.options.maker.boxes(
                    np.ascontiguousarray(there.values), there.offsets, seeds[low : low + BOXES_AT_ONCE][rows]
                )
            except ImageError as error:
                raise self._named(image, some.ids[rows], error) from error
            found.append(boxes)
        return np.concatenate(found)

    def _image_named(self, field: str | None) -> ImageField:
        found = [one for one in self._images if field in (None, one.name)]
        if len(found) != 1:
            raise KeyError(f"expected the name of a field of images, one of {[one.name for one in self._images]}, got {field!r}")
        return found[0]


def _need_seeds(picks: RecordPicks) -> npt.NDArray[np.uint64]:
    if picks.seeds is None:
        raise TypeError("these samples were located by another stream: locate them with the stream of images")
    return picks.seeds
