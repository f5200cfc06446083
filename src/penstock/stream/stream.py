"""Stream: a source in an order. Sample p of epoch e is a pure function of (data, seed, e, p)."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.argument import MAX_LENGTH, IntArray, as_ids, as_positions, check_positions, whole_number
from penstock.batch import Batch, Outputs
from penstock.errors import BatchError
from penstock.fingerprint import fingerprint_arrays, fingerprint_of
from penstock.native import _core
from penstock.order import (
    BlockShuffle,
    Bucketed,
    Design,
    InvertibleOrder,
    Mixture,
    Order,
    Phase,
    Random,
    Sequential,
    Shuffle,
    Sliding,
    Weighted,
)
from penstock.order.permutation import Purpose, derive_root
from penstock.records import Leaf, Sampling, Source, provide
from penstock.row_table import RowTable
from penstock.schema import Field
from penstock.stream.ban_file import with_bans
from penstock.stream.picks import Picks, RecordPicks

if TYPE_CHECKING:
    from penstock.image import ImageOptions
    from penstock.order.balance import Balance
    from penstock.stream.cost import Costing
    from penstock.stream.image import ImageStream
    from penstock.stream.pack import PackStream
    from penstock.stream.sequence import SequenceStream

__all__ = [
    "WEIGHT",
    "Bans",
    "PartStream",
    "RecordStream",
    "Stream",
    "Unreadable",
    "describe",
    "designed",
    "in_order",
    "is_in",
    "order_recipe",
    "sampled",
    "shuffled",
    "sliding",
    "substitute",
]

LOOKED_AT = 1000
"""Draws after which all weights are looked at, to see whether one is left."""

COUNTED = 1 << 20
"""Records whose lengths are added up at a time."""

WEIGHT = "weight"
"""The field that a design adds."""


class Stream(ABC):
    """An addressable, endless sequence of samples, immutable and picklable.

    An epoch is a line of ``axis`` positions; a sample takes ``stride`` of them (the length of a sequence, 1 for a record).

    >>> import numpy as np, penstock as pen
    >>> stream = pen.open({"x": np.arange(100)}).shuffle(seed=7)
    >>> len(stream), stream.plan()
    (100, {'order': 'Shuffle(n=100, seed=7)'})
    """

    @property
    @abstractmethod
    def axis(self) -> int:
        """Positions of an epoch."""

    @property
    def axes(self) -> Sequence[tuple[int, int]]:
        """(first epoch, positions of an epoch) of every stretch of epochs of one length; the last one does not end."""
        return ((0, self.axis),)

    @property
    def stride(self) -> int:
        """Positions of a sample."""
        return 1

    @property
    def order_version(self) -> int:
        """The version of the arithmetic that this stream follows, as a state carries it."""
        return 1

    @property
    def elements(self) -> int:
        """Records or tokens of an epoch, which phases given in epochs are measured by."""
        return self.axis

    @property
    def has_sequences(self) -> bool:
        """Whether a sample is a sequence of tokens, whose length phases may change."""
        return False

    @property
    def has_records(self) -> bool:
        """Whether samples are single records, so that one that cannot be read can be replaced by another."""
        return False

    def replace_unreadable(self, picks: Any, positions: list[tuple[int, int]], unreadable: "Unreadable") -> Any:
        """The same samples, at those (epoch, position), with others in place of records that cannot be read; None if all can."""
        raise TypeError(f"{type(self).__name__} has no single records to replace")

    @property
    def is_mixture(self) -> bool:
        """Whether samples are drawn from several streams by weight."""
        return False

    @property
    def counts_samples(self) -> bool:
        """Whether positions are numbers of samples even where samples change their length, as in a mixture."""
        return False

    @property
    def needs_steps(self) -> bool:
        """Whether the order depends on where batches begin."""
        return False

    @property
    def is_finite(self) -> bool:
        """Whether the run ends: from some epoch on there are no samples, because streams of a mixture have reached their caps."""
        return False

    @property
    def endless_epoch(self) -> int | None:
        """The epoch that never ends; None if all do."""
        return None

    def unamended(self) -> "Iterator[tuple[int, Stream]]":
        """Streams that this one is equal to before a step, with that step: the mixture before its last amendment, and so on."""
        return iter(())

    def unbanned(self, from_step: int) -> "Stream":
        """The same stream without the bans that hold from that step or a later one on; this one, if it cannot be had."""
        return self

    def mean_tokens(self, field: str | None = None) -> Fraction:
        """The mean number of tokens of the samples of an epoch, bans and padding apart; or of elements of a field."""
        if field is None:
            raise TypeError(f"{type(self).__name__} has no tokens to count")
        known = self.schema.get(field)
        if known is None or not known.is_fixed:
            raise TypeError(
                f"expected a field of one size, among {[n for n, f in self.schema.items() if f.is_fixed]}, got {field!r}"
            )
        return Fraction(math.prod(known.shape))

    def packing_facts(self, groups: int) -> dict[str, float]:
        """Of packs: the shares of padding, of tokens that are lost and of documents that are cut, and documents per sequence.
        ``groups`` of documents are planned for it at most.
        """
        return {}

    @property
    def num_samples(self) -> int:
        """Samples of the first epoch; a very large number if it never ends."""
        return self.axis // self.stride

    def __len__(self) -> int:
        return self.num_samples

    @property
    @abstractmethod
    def seed(self) -> int:
        """The seed of the order, as the cursor carries it."""

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Field]:
        """The fields of a sample."""

    @property
    @abstractmethod
    def data_fingerprint(self) -> str:
        """Of the data alone."""

    def sample_digest(self, sampling: Sampling) -> str | None:
        """Of the data alone: see :meth:`penstock.Source.sample_digest`."""
        return self.data_fingerprint

    def data_digest(self) -> str:
        """Of all records of the data: see :meth:`penstock.Source.digest`."""
        raise TypeError(f"{type(self).__name__} has no digest of all records")

    @abstractmethod
    def plan(self) -> dict[str, Any]:
        """What the order follows from, in plain JSON types: two streams with equal data and plans give equal samples."""

    def recipe(self) -> Any:
        """The calls that make this stream of its source, (name, options) in plain JSON types; of a mixture ``{"mix": options,
        "streams": recipes by name}``. None if it cannot be told.
        """
        return None

    @abstractmethod
    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> Picks:
        """The samples that begin at any positions of an epoch, for a batch at ``step``. Nothing is read."""

    def locate(self, epoch: int, run: range, step: int = 0) -> Picks:
        """The same for the positions of a range."""
        return self.locate_at(epoch, as_positions(run), step)

    def native_order(self, epoch: int, position: int, leaf: int) -> _core.OrderNode | None:
        """Native code that says which records come from a position of an epoch on, as long as no stream in a mixture begins
        another epoch of its own; the first of :attr:`parts` has the number ``leaf``. None if there is none.
        """
        return None

    @property
    def parts(self) -> "tuple[PartStream, ...]":
        """The streams of single sources from which samples come."""
        return ()

    def leaves(self, epoch: int, positions: IntArray) -> "Iterator[tuple[PartStream, int, IntArray]]":
        """Those of :attr:`parts` from which the samples at positions come, each with its own epoch and positions."""
        return iter(())

    @abstractmethod
    def fetch(self, picks: Any, out: Outputs | None = None) -> Batch:
        """Read samples."""

    def images(
        self,
        field: str | Sequence[str] = "image",
        size: int | Sequence[int] = 224,
        *,
        crop: str | None = "random",
        flip: float = 0.5,
        layout: str = "nchw",
        dtype: npt.DTypeLike = "u1",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        fraction: float = 1.0,
        fill: int = 0,
        channels: int = 3,
        max_pixels: int | None = None,
        seed: int | None = None,
    ) -> "Stream":
        """Decode the images of a field (JPEG, PNG, WebP) to arrays of one size, in native threads.

        * ``field``       the encoded images: a field of bytes, or several that share crop and flip. ``"image"`` also stands for the
          image column of a Hugging Face data set, for the only field of bytes, and for jpg, png or webp of a tar archive
        * ``size``        pixels of a side, or (height, width)
        * ``crop``        "random": a random box, ``scale`` of the area with a ``ratio`` of width to height; "center": the largest
          centred box, times ``fraction``; "pad": the whole image, with ``fill`` around it; None: the whole image, stretched
        * ``flip``        the probability of a horizontal flip
        * ``layout``      "nchw", for torch, or "nhwc"
        * ``dtype``       "u1", or floats "f4" or "f2": value / 255, then minus ``mean``, divided by ``std`` (a number, or one for
          each channel)
        * ``channels``    3: red, green and blue; 1: grey
        * ``max_pixels``  images whose header claims more are refused
        * ``seed``        of crops and flips; default: that of the order

        Crop and flip are a function of (seed, epoch, record): the same for any number of threads and ranks, and after a resume. All
        images of a sample share them. :meth:`boxes` returns them. Another call adds other fields; :meth:`masks` adds masks of class
        numbers. See also :class:`ImageStream`.
        """
        from penstock.image import ImageOptions

        given: dict[str, Any] = {"crop": crop, "flip": flip, "layout": layout, "dtype": dtype, "mean": mean, "std": std}
        given |= {"scale": scale, "ratio": ratio, "fraction": fraction, "fill": fill, "channels": channels}
        given["max_pixels"] = _core.DEFAULT_MAX_PIXELS if max_pixels is None else max_pixels
        names = [field] if isinstance(field, str) else list(field)
        return self.with_images(names, ImageOptions.of(size, **given), seed)

    def with_images(self, names: Sequence[str], options: "ImageOptions", seed: int | None) -> "Stream":
        """What :meth:`images` gives."""
        raise TypeError(f"{type(self).__name__} has no images: images() is for records of a source, and for mixtures of them")

    def masks(
        self,
        field: str | Sequence[str] = "mask",
        size: int | Sequence[int] | None = None,
        *,
        fill: int = 0,
        of: str | None = None,
    ) -> "Stream":
        """Decode the masks of a field (PNG, lossless WebP) to uint8 class numbers, height x width, with the crop and flip of the
        images. Call it after :meth:`images`.

        * ``field``  the encoded masks: a field of bytes, or several
        * ``size``   pixels of a side, or (height, width); default: that of the images
        * ``fill``   the class number of the padding, with ``crop="pad"``: for example 255, to be ignored
        * ``of``     the name of the images, if there are several

        Class numbers are stored values: grey values, or palette indices. Each output pixel has that of the nearest pixel, without
        interpolation. Lossy files, colours and 16 bits are refused, and so is a mask whose size differs from that of its image.

        >>> import io, numpy as np, penstock as pen
        >>> from PIL import Image
        >>> def encoded(pixels, kind):
        ...     file = io.BytesIO()
        ...     Image.fromarray(pixels).save(file, kind)
        ...     return file.getvalue()
        >>> photos = [encoded(np.full((40, 60, 3), n, np.uint8), "JPEG") for n in range(4)]
        >>> masks = [encoded(np.full((40, 60), n, np.uint8), "PNG") for n in range(4)]
        >>> stream = pen.open({"image": photos, "mask": masks}).shuffle(seed=7).images("image", 32).masks("mask")
        >>> batch = next(iter(pen.Loader(stream, batch_size=4)))
        >>> batch["mask"].shape, bool((batch["mask"][:, 0, 0] == batch["image"][:, 0, 0, 0]).all())
        ((4, 32, 32), True)
        """
        return self.with_masks([field] if isinstance(field, str) else list(field), size, fill, of)

    def with_masks(self, names: Sequence[str], size: int | Sequence[int] | None, fill: int, of: str | None) -> "Stream":
        """What :meth:`masks` gives."""
        raise TypeError("call masks() after images(), which determines the part of an image that its mask covers")

    def boxes(self, epoch: int, positions: Any, field: str | None = None, *, step: int = 0) -> npt.NDArray[np.int32]:
        """The box of each sample at these positions of an epoch: x, y, width and height, in pixels of the displayed image, and 1 if
        it is flipped, else 0; zeros for a missing image. Decodes only headers. ``field`` is required if there are several.
        """
        places = as_positions(positions) if isinstance(positions, range) else np.atleast_1d(np.asarray(positions))
        places = check_positions("positions", places, MAX_LENGTH)
        return self.boxes_of(self.locate_at(epoch, places, step), field)

    def boxes_of(self, picks: Any, field: str | None) -> npt.NDArray[np.int32]:
        """See :meth:`boxes`."""
        raise TypeError(f"{type(self).__name__} has no images: call images() first")

    def for_batches(self, batch_size: int, tail: str) -> "Stream":
        """The same stream for batches of that size, where its order depends on them: with weights by step."""
        return self

    def with_phases(self, phases: Sequence[Phase]) -> "Stream":
        """The same stream for batches whose shape changes during the run."""
        return self

    def continued(self, epoch: int) -> "tuple[Stream, dict[str, Any]]":
        """The stream that continues a run saved with order version 1 in that epoch, and its plan as it was written then.

        StateMismatchError, with the reason, if the order of that version was wrong.
        """
        return self, self.plan()

    def costing(self, balance: "Balance") -> "Costing":
        """What says how much samples cost. ValueError, TypeError or KeyError if they have no such costs."""
        raise ValueError(
            f"samples of a {type(self).__name__} all have one length, so there is nothing to balance: leave balance out"
        )

    @abstractmethod
    def sized(self, seq_len: int) -> "Stream":
        """The same line cut into samples of another length."""

    def where(self, record: Any, *, epochs: range = range(1)) -> list[tuple[int, int]]:
        """(epoch, position) of every time a record comes in those epochs."""
        raise TypeError(f"{type(self).__name__} cannot determine where a record is used")

    def ranges_of(self, record: Any, epochs: range, before: int | None = None) -> Iterator[tuple[int, int, int]]:
        """(epoch, low, high): the positions [low, high) at which a record is, wherever samples begin, bans apart. Of an epoch that
        never ends, ``before`` is the position at which to stop.
        """
        for epoch, position in self.where(record, epochs=epochs):
            yield epoch, position, position + 1

    def holds(self, picks: Any, record: Any) -> bool:
        """Whether a record that :meth:`where` knows is among samples."""
        raise TypeError(f"{type(self).__name__} cannot determine where a record is used")

    def explain(self, picks: Any, *, documents: bool = False) -> dict[str, Any]:
        """Samples as :meth:`Loader.explain` shows them. ``documents`` finds those of token files that have no table of them."""
        shown: dict[str, Any] = picks.describe()
        return shown

    @abstractmethod
    def close(self) -> None:
        """Close the sources."""

    def __repr__(self) -> str:
        return f"<penstock {type(self).__name__}: {self._samples_told()} an epoch, fields {dict(self.schema)}>"

    def _samples_told(self) -> str:
        try:
            return f"{len(self)} samples"
        except TypeError:  # it never ends, or depends on the batch size
            return "a number of samples without an end, or set by the batch size,"


@dataclass(eq=False)
class Unreadable:
    """The records of a batch that could not be read, stream by stream, and a function that is called with them."""

    step: int
    tell: Callable[[Exception, IntArray], None]
    found: dict[int, set[int]] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        return sorted(set().union(*self.found.values()))


class PartStream(Stream):
    """A stream of a single source: an order of units (records, documents, pages of tokens), which are rows of leaves."""

    source: Source
    order: Order
    _bans: "Bans"

    @property
    def parts(self) -> "tuple[PartStream, ...]":
        return (self,)

    def leaves(self, epoch: int, positions: IntArray) -> "Iterator[tuple[PartStream, int, IntArray]]":
        yield self, epoch, positions

    def prepare(self) -> None:
        """Read the lengths that the order goes by, if any, where a pickled copy has none yet."""
        if isinstance(self.order, Bucketed):
            self.order.prepare()

    @property
    def packed_length(self) -> int | None:
        """The length of packed sequences; None where samples are something else."""
        return None

    @property
    def has_weights(self) -> bool:
        """Whether samples have weights, as those of a design."""
        return isinstance(self.order, Design)

    @property
    def completes(self) -> bool:
        """Whether something is made of what was read before it is delivered."""
        return False

    def makes(self, name: str) -> bool:
        """Whether a field is made of what is read, as a picture is."""
        return False

    @property
    def completion(self) -> object:
        """What is made of what was read, equal for streams that make the same of samples of any of them; None if there is no such
        other stream.
        """
        return None

    @property
    def data_fingerprint(self) -> str:
        return self.source.fingerprint

    def sample_digest(self, sampling: Sampling) -> str | None:
        return self.source.sample_digest(sampling)

    def data_digest(self) -> str:
        return self.source.digest()

    @property
    def bans(self) -> "Bans":
        """The records that do not come, and from which step on."""
        return self._bans

    @property
    def has_bans(self) -> bool:
        """Whether anything does not come, from any step on."""
        return bool(self._bans)

    @property
    @abstractmethod
    def read_schema(self) -> Mapping[str, Field]:
        """The fields that are read."""

    def field_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Of every field that is read: in which rows of which leaves it is, and its name there; nothing if that is not known."""
        return self.source.row_tables()

    def native_reader(self, leaf: Leaf, name: str, inner: str) -> tuple[Any, int] | None:
        """What reads a field natively, which is ``inner`` in that leaf; None if nothing does."""
        return leaf.native_reader(inner)

    @property
    def rows_per_unit(self) -> int:
        """Rows of a unit of the order."""
        return 1

    @property
    def counts_units(self) -> bool:
        """Whether a position, divided by the rows of a unit, is one of the order."""
        return True

    def row_tables(self) -> Sequence[RowTable]:
        """In which rows of leaves the units are."""
        return self.source.tables()

    @abstractmethod
    def units_of(self, picks: Any) -> IntArray:
        """The units in which samples are."""

    def rows_of(self, picks: Any) -> tuple[IntArray, IntArray]:
        """The rows [start, stop) that samples need."""
        units = self.units_of(picks)
        return units, units + 1


class RecordStream(PartStream):
    """The records of one source in an order; what ``source.shuffle`` and its like give.

    >>> import numpy as np, penstock as pen
    >>> from penstock.order import Sequential
    >>> from penstock.stream import RecordStream
    >>> stream = RecordStream(pen.open({"x": np.arange(10) * 10}), Sequential(10))
    >>> next(iter(pen.Loader(stream, batch_size=3)))["x"]
    array([ 0, 10, 20])
    """

    def __init__(self, source: Source, order: Order, *, bans: "Bans | tuple[()]" = ()) -> None:
        if int(getattr(order, "n", len(order))) > len(source):
            raise ValueError(f"the order has ids up to {getattr(order, 'n', len(order))}, the source only {len(source)} records")
        self.source, self.order, self._bans = source, order, Bans(bans)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Version 1 kept ``bans`` under that name."""
        kept = {name: value for name, value in state.items() if name != "bans"}
        self.__dict__.update({"_bans": Bans(state.get("bans", ()))} | kept)

    def mean_tokens(self, field: str | None = None) -> Fraction:
        """Of a field of varying length: of all records. Without a name, of ``tokens``, or of the only such field."""
        name = self._token_field() if field is None else field
        if name not in self.schema:
            raise KeyError(f"unknown field {name!r}; there are {list(self.schema)}")
        if self.schema[name].is_fixed:
            return super().mean_tokens(name)
        if not isinstance(self.order, Sequential | Shuffle | BlockShuffle | Bucketed | Random):
            raise TypeError(
                f"the mean of records in the order {type(self.order).__name__} is not known: use shuffle() or in_order()"
            )
        if name not in self._means:
            count = len(self.source)
            parts = (np.arange(low, min(low + COUNTED, count)) for low in range(0, count, COUNTED))
            total = sum(int(self.source.lengths(name, ids).sum()) for ids in parts)
            self._means[name] = Fraction(total, max(1, count))
        return self._means[name]

    @cached_property
    def _means(self) -> dict[str, Fraction]:
        return {}

    def _token_field(self) -> str:
        varying = [name for name, known in self.schema.items() if not known.is_fixed]
        if "tokens" in self.schema:
            return "tokens"
        if len(varying) != 1:
            raise TypeError(
                f"expected a field 'tokens', or one field of varying length, among {list(self.schema)}: pass by=, a field"
            )
        return varying[0]

    @property
    def axis(self) -> int:
        return len(self.order)

    @property
    def axes(self) -> Sequence[tuple[int, int]]:
        if isinstance(self.order, Mixture):
            return [(run.first, run.plan.num_samples) for run in self.order.runs]
        return ((0, self.axis),)

    @property
    def seed(self) -> int:
        """The seed of the order; 0 for an order without one."""
        return int(getattr(self.order, "seed", 0))

    @property
    def schema(self) -> Mapping[str, Field]:
        """The fields of the source, and the weight where the order is a design."""
        schema = dict(self.source.schema)
        if isinstance(self.order, Design):
            if WEIGHT in schema:
                raise ValueError(f"the source has a field {WEIGHT!r} already: choose other fields")
            schema[WEIGHT] = Field("f8")
        return schema

    @property
    def read_schema(self) -> Mapping[str, Field]:
        return self.source.schema

    def units_of(self, picks: RecordPicks) -> IntArray:
        return picks.ids

    @cached_property
    def _fields(self) -> list[str]:
        return list(self.source.schema)

    def plan(self) -> dict[str, Any]:
        return {"order": describe(self.order), **self.bans.describe()}

    def recipe(self) -> Any:
        calls = order_recipe(self.order)
        return None if calls is None else calls + self.bans.recipe()

    def native_order(self, epoch: int, position: int, leaf: int) -> _core.OrderNode | None:
        if self.bans:
            return None
        if isinstance(self.order, Shuffle | BlockShuffle):
            return _core.OrderNode.leaf(self.order.native_epoch(epoch), leaf)
        return _core.OrderNode.leaf(None, leaf) if isinstance(self.order, Sequential) else None

    def locate(self, epoch: int, run: range, step: int = 0) -> RecordPicks:
        if self.bans or isinstance(self.order, Design):
            return self.locate_at(epoch, as_positions(run), step)
        return RecordPicks(self.order.indices(epoch, run.start, run.stop, run.step))

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> RecordPicks:
        ids = self.order.at(epoch, positions)
        if self.bans:
            ids = self._replace(epoch, positions, step, ids)
        return RecordPicks(ids, self.order.weights_at(positions) if isinstance(self.order, Design) else None)

    def fetch(self, picks: RecordPicks, out: Outputs | None = None, fields: Sequence[str] | None = None) -> Batch:
        """``fields`` are some of the source."""
        names = self._fields if fields is None else fields
        if picks.weights is None:
            return self.source.read(picks.ids, names, out)
        given = dict(out or {})
        weights = given.pop(WEIGHT, None)
        batch = self.source.read(picks.ids, names, given)
        if weights is not None:
            weights[:] = picks.weights
        batch[WEIGHT] = picks.weights if weights is None else weights
        return batch

    def costing(self, balance: "Balance") -> "Costing":
        from penstock.stream.cost import RecordCosts

        return RecordCosts.checked(self.source, balance)

    def sized(self, seq_len: int) -> "RecordStream":
        """A record is one sample, whatever it holds."""
        if seq_len != 1:
            raise ValueError(f"a phase of sequences of {seq_len} needs a stream of tokens: use .sequences(seq_len)")
        return self

    def sequences(
        self,
        seq_len: int,
        *,
        field: str | None = None,
        separator: Any = None,
        documents: bool = False,
        page: int | None = None,
        fields: str | Sequence[str] = "tokens",
    ) -> "SequenceStream":
        """The tokens of the source, in this order, cut into sequences of ``seq_len``; see :class:`SequenceStream`.

        ``fields`` are "tokens" and any of "segment", "position" and "loss_mask"; ``documents=True`` adds the first two.
        """
        from penstock.stream.sequence import FIELDS, MARKS, as_fields, make_sequences

        names = as_fields(fields, FIELDS)
        names += tuple(name for name in MARKS if documents and name not in names)
        return make_sequences(self, seq_len, field, separator, names, page)

    def pack(
        self,
        length: int,
        *,
        field: str | None = None,
        separator: Any = None,
        split: str = "fit",
        long: str = "error",
        fields: str | Sequence[str] = ("tokens", "segment", "position"),
        pad: Any = 0,
        bos: Any = None,
        eos: Any = None,
        first_segment: int = 0,
        window: int | None = None,
        multiple_of: int = 1,
    ) -> "PackStream":
        """The documents of the source put together into sequences of ``length`` tokens; see :class:`PackStream`.

        * ``field``          the texts, byte strings or ragged arrays that are documents, where there are several such fields
        * ``separator``      the token, or tokens, that end a document of a token file which does not know its documents
        * ``split``          "fit" cuts documents longer than a sequence, and others only where nothing else is left; "always" puts
          them one after the other and cuts where sequences end; "never" cuts none
        * ``long``           with "never", what becomes of documents longer than a sequence: "error", "truncate" or "drop"
        * ``fields``         "tokens", and any of "segment", "position", "labels", "loss_mask", "cu_seqlens" and "max_seqlen"
        * ``pad``            the token that fills sequences up
        * ``bos``, ``eos``   tokens to put before and behind every document
        * ``first_segment``  0: documents count from 0, and padding is -1; 1: they count from 1, and padding is 0
        * ``window``         documents that are packed together; left out, enough for about 1,000 sequences
        * ``multiple_of``    pieces of documents begin at multiples of this many tokens, with padding between them
        """
        from penstock.stream.pack import FIELDS, PackOptions, make_pack
        from penstock.stream.sequence import as_fields

        names = as_fields(fields, tuple(FIELDS))
        options = PackOptions(length, split, long, window, multiple_of, names, pad, bos, eos, first_segment)
        return make_pack(self, options, field, separator)

    def buckets(self, batch_size: int, *, field: str | None = None, window: int = 64) -> "RecordStream":
        """The same records, with those of similar length in one batch: ``window`` batches of ``batch_size`` (that of the whole job)
        are sorted by the length of a field, cut into batches again, and these are shuffled.

        Padded to its longest record, a batch then has little padding. Every record comes once an epoch, and a larger window has
        less padding and less chance. ``field`` is needed where several vary in length. Lengths are read from the index of the
        data, as far as it has one.

        >>> import penstock as pen
        >>> texts = ["a" * n for n in (9, 1, 8, 2, 7, 3, 6, 4)]
        >>> stream = pen.open({"text": texts}).shuffle(seed=7).buckets(2)
        >>> [batch["text"].lengths.tolist() for batch in pen.Loader(stream, batch_size=2)]
        [[3, 4], [8, 9], [1, 2], [6, 7]]
        """
        from penstock.stream.cost import FieldLengths, length_field

        order = self.order
        if not isinstance(order, Sequential | Shuffle | BlockShuffle):
            raise TypeError(f"buckets need an order that has every record once, in_order() or shuffle(), got {order!r}")
        if isinstance(order, BlockShuffle) and order.lanes > 1:
            raise ValueError(f"buckets have no lanes, and the order has {order.lanes}: use shuffle(...) without lanes")
        if len(order) != len(self.source):
            raise ValueError(f"buckets need an order of all {len(self.source)} records, got one of {len(order)}")
        lengths = FieldLengths(self.source, length_field(self.source.schema, field))
        made = Bucketed(order, lengths, batch_size=batch_size, window=window)
        made.prepare()
        return RecordStream(self.source, made, bans=self.bans)

    def for_batches(self, batch_size: int, tail: str) -> "RecordStream":
        order = self.order
        if isinstance(order, Bucketed):
            if order.batch_size % batch_size:
                raise ValueError(
                    f"the buckets are for batches of {order.batch_size}, and one of {batch_size} would take from two of them: "
                    f"use .buckets({batch_size}), or a batch size that divides theirs"
                )
            if tail == "wrap" and len(order) % order.batch_size:
                raise ValueError(
                    "tail='wrap' lets batches begin anywhere in the next epoch, and buckets begin with it: use another tail"
                )
        return self

    def with_phases(self, phases: Sequence[Phase]) -> "RecordStream":
        if isinstance(self.order, Bucketed):
            raise ValueError("buckets are for batches of one size, one epoch after the other: leave out phases, or buckets")
        return self

    def without(self, ids: Any, *, from_step: int = 0) -> "RecordStream":
        """The same stream in which records no longer come from ``from_step`` on. At each of their places comes another record, the
        same on every rank and in every run, so that batches stay full. Instead of ids, the name of a file that ``penstock blame
        --ban-file`` wrote.

        >>> import numpy as np, penstock as pen
        >>> stream = pen.open({"x": np.arange(10)}).in_order()
        >>> next(iter(pen.Loader(stream.without([2]), batch_size=5)))["x"]
        array([0, 1, 4, 3, 4])
        """
        if isinstance(ids, str | os.PathLike):
            return with_bans(self, ids, from_step)
        bans = self.bans.with_ids(ids, from_step, len(self.source))
        if isinstance(self.order, Weighted) and not _can_come(self.order, bans[-1][1]):
            raise ValueError("every record that has a weight is banned, so there is no replacement")
        return RecordStream(self.source, self.order, bans=bans)

    def unbanned(self, from_step: int) -> "RecordStream":
        return RecordStream(self.source, self.order, bans=self.bans.before(from_step))

    @property
    def has_records(self) -> bool:
        return True

    def with_images(self, names: Sequence[str], options: "ImageOptions", seed: int | None) -> "ImageStream":
        from penstock.stream.image import ImageStream, find_image

        return ImageStream(self, [find_image(self.source.schema, name, options) for name in names], seed=seed)

    def replace_unreadable(
        self, picks: RecordPicks, positions: list[tuple[int, int]], unreadable: Unreadable
    ) -> RecordPicks | None:
        names = list(self.source.schema)
        return self.replace_failed(
            picks, positions, unreadable, lambda place: self.source.read(picks.ids[place : place + 1], names)
        )

    def replace_failed(
        self,
        picks: RecordPicks,
        positions: list[tuple[int, int]],
        unreadable: Unreadable,
        read: Callable[[int], object],
    ) -> RecordPicks | None:
        """The same samples with others in place of those that ``read`` fails for; None if there are none."""
        ids = picks.ids.copy()
        bad = [(place, error) for place in range(len(ids)) if (error := _error_of(read, place)) is not None]
        if not bad:
            return None
        unreadable.tell(bad[0][1], ids[[place for place, _ in bad]])
        failed = unreadable.found.setdefault(id(self), set())
        failed |= {int(ids[place]) for place, _ in bad}
        banned = np.union1d(np.array(sorted(failed), np.int64), self.banned_at(unreadable.step))
        if banned.size >= len(self.source) or (isinstance(self.order, Weighted) and not _can_come(self.order, banned)):
            raise BatchError(
                f"step {unreadable.step}: too few records can be read; records {sorted(failed)[:10]} ... failed"
            ) from bad[0][1]
        for place, _ in bad:
            ids[place] = self._substitute(*positions[place], banned)
        return RecordPicks(ids, picks.weights)

    def banned_at(self, step: int) -> IntArray:
        """The records that do not come at a step."""
        return self.bans.at(step)

    def _replace(self, epoch: int, positions: IntArray, step: int, ids: IntArray) -> IntArray:
        banned = self.banned_at(step)
        if banned.size == 0:
            return ids
        if banned.size >= len(self.source):
            raise ValueError("every record is banned, so there is no replacement")
        for place in np.flatnonzero(is_in(ids, banned)):
            ids[place] = self._substitute(epoch, int(positions[place]), banned)
        return ids

    def _substitute(self, epoch: int, position: int, banned: IntArray) -> int:
        return substitute(self.seed, epoch, position, len(self.source), banned, self.order)

    def where(self, record: Any, *, epochs: range = range(1)) -> list[tuple[int, int]]:
        """(epoch, position) of every time a record comes in those epochs, bans apart. Records that replace banned ones are not
        found.
        """
        number = int(as_ids(record, len(self.source))[0])
        if not isinstance(self.order, InvertibleOrder):
            raise TypeError(f"{self.order!r} has no inverse, so it cannot determine where a record is used")
        return [(epoch, int(self.order.positions(epoch, [number])[0])) for epoch in epochs]

    def holds(self, picks: RecordPicks, record: Any) -> bool:
        return bool(np.any(picks.ids == as_ids(record, len(self.source))[0]))

    def close(self) -> None:
        self.source.close()


def _error_of(read: Callable[[int], object], place: int) -> Exception | None:
    try:
        read(place)
    except Exception as error:
        return error
    return None


class Bans(tuple[tuple[int, IntArray], ...]):
    """(step from which on they do not come, ids in rising order), one entry for each call of ``without``."""

    _recent: tuple[tuple[bool, ...], IntArray] | None = None

    def with_ids(self, ids: Any, from_step: int, count: int) -> "Bans":
        """These bans, and one more: of ids in [0, count)."""
        banned = np.unique(as_ids(ids, count))
        if banned.size >= count:
            raise ValueError("every record is banned, so there is no replacement")
        return Bans((*self, (whole_number("from_step", from_step), banned)))

    def before(self, from_step: int) -> "Bans":
        """Those that hold before a step already."""
        return Bans(ban for ban in self if ban[0] < from_step)

    def at(self, step: int | None) -> IntArray:
        """The records that do not come at a step (at any step, for None), in rising order."""
        active = tuple(step is None or step >= from_step for from_step, _ in self)
        recent = self._recent
        if recent is None or recent[0] != active:
            chosen = [ids for (_, ids), is_active in zip(self, active, strict=True) if is_active]
            union = chosen[0] if len(chosen) == 1 else np.unique(np.concatenate([np.empty(0, np.int64), *chosen]))
            self._recent = recent = active, union
        return recent[1]

    def recipe(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls that ban these: see :meth:`Stream.recipe`."""
        return [("without", {"ids": ids.tolist(), "from_step": step}) for step, ids in self]

    def describe(self) -> dict[str, str]:
        """As a plan has them."""
        return {
            f"ban {number}": f"{len(ids)} records from step {step} on: {fingerprint_arrays('ban', [ids])[:16]}"
            for number, (step, ids) in enumerate(self)
        }


def is_in(ids: IntArray, banned: IntArray) -> Any:
    """Which ids are among the banned ones, which are sorted."""
    if banned.size == 0:
        return np.zeros(ids.shape, np.bool_)
    places = np.minimum(np.searchsorted(banned, ids), banned.size - 1)
    return banned[places] == ids


def substitute(seed: int, epoch: int, position: int, n: int, banned: IntArray, order: Order | None = None) -> int:
    """The record that comes instead of a banned one at a position: the first of a row of random records that is not banned. Of a
    weighted order they are drawn by their weights; where nearly all of the weight is banned, the last one by those of the others.
    """
    root = _core.absorb(derive_root(seed, epoch, Purpose.SUBSTITUTE), position)
    attempt = 0
    while True:
        word = _core.absorb(root, attempt)
        candidate = order.draw(word) if isinstance(order, Weighted) else (word * n) >> 64
        if not is_in(np.array([candidate]), banned)[0]:
            return int(candidate)
        attempt += 1
        if attempt == LOOKED_AT and isinstance(order, Weighted):
            if not _can_come(order, banned):
                raise ValueError("every record that has a weight is banned, or cannot be read, so there is no replacement")
            return order.draw_but(_core.absorb(root, attempt), banned)


def _can_come(order: Weighted, banned: IntArray) -> bool:
    """Whether any record but those that are banned has a weight."""
    can_come = order.can_come()
    can_come[banned[banned < order.n]] = False
    return bool(can_come.any())


def order_recipe(order: Order) -> list[tuple[str, dict[str, Any]]] | None:
    """The calls that give records in an order: see :meth:`Stream.recipe`."""
    if type(order) is Sequential and not order.wrap:
        return [("in_order", {})]
    if type(order) is Shuffle:
        return [("shuffle", {"seed": order.seed})]
    if type(order) is BlockShuffle and order.window is not None:
        return [("shuffle", {"seed": order.seed, "block": order.block, "window": order.window, "lanes": order.lanes})]
    if type(order) is Sliding:
        return [("slide", {"window": order.window, "stride": order.stride})]
    if type(order) is Design:
        return [("design", order.arguments)]
    if type(order) is Bucketed:
        before, (_, lengths, size, window) = order_recipe(order.order), order.identity
        field = getattr(lengths, "field", None)
        found = {"batch_size": size, "field": field, "window": window}
        return None if before is None or field is None else [*before, ("buckets", found)]
    return [("sample", {"seed": order.seed})] if type(order) is Random else None


def describe(order: Order) -> str:
    """An order as a text: its repr where that is short, otherwise a digest of it."""
    text = repr(order)
    return text if len(text) <= 200 else fingerprint_of(text)


# The orders of a source, as its methods give them


def in_order(source: Source) -> RecordStream:
    return RecordStream(source, Sequential(len(source)))


def shuffled(source: Source, seed: int, block: int | None, window: int | None, lanes: int) -> RecordStream:
    """Shuffled as a whole, or block by block where single records are expensive to read."""
    if block is None and (source.reads_blocks or window is not None or lanes > 1):
        block = source.blocks.size
    if block is None:
        return RecordStream(source, Shuffle(len(source), seed=seed))
    return RecordStream(
        source, BlockShuffle(len(source), block=block, window=16 if window is None else window, lanes=lanes, seed=seed)
    )


def sliding(source: Source, window: int, stride: int | None) -> RecordStream:
    return RecordStream(source, Sliding(len(source), window=window, stride=stride))


def sampled(source: Source, seed: int, weights: Any, size: int | None) -> RecordStream:
    if weights is None:
        if size is not None:
            raise ValueError("size= needs weights=: without weights an epoch has as many draws as there are records")
        return RecordStream(source, Random(len(source), seed=seed))
    order = Weighted(_weights_of(source, weights) if isinstance(weights, str) else weights, seed=seed, size=size)
    if order.n != len(source):
        raise ValueError(f"expected {len(source)} weights, one per record, got {order.n}")
    return RecordStream(source, order)


def _weights_of(source: Source, name: str) -> Any:
    """The values of a field, which is read."""
    if name not in source.schema:
        raise KeyError(f"weights: unknown field {name!r}; there are {list(source.schema)}")
    field = source.schema[name]
    if field.kind != "fixed" or field.shape or field.dtype.kind == "c":
        raise TypeError(f"weights must be one real number per record, field {name!r} is {field!r}")
    return source[name][:]


def designed(
    source: Source, seed: int, size: int | None, fraction: float | None, strata: Any, masses: Any, full_pass: bool
) -> RecordStream:
    n = len(source)
    if fraction is not None:
        if size is not None or strata is not None or masses is not None:
            raise ValueError("a fraction excludes size, strata and masses")
        return RecordStream(source, Design.fraction(n, fraction, seed=seed, full_pass=full_pass))
    if masses is not None:
        design = Design.proportional(n, masses=masses, strata=strata, size=size, seed=seed, full_pass=full_pass)
    elif strata is not None:
        design = Design.stratified(n, strata=strata, size=size, seed=seed, full_pass=full_pass)
    else:
        design = Design.simple(n, size=size, seed=seed, full_pass=full_pass)
    return RecordStream(source, design)


provide(in_order=in_order, shuffle=shuffled, slide=sliding, sample=sampled, design=designed)
