"""Source: N records with named fields, read by id. Everything that penstock can read is one.

A class of your own gives ``schema``, ``fingerprint``, ``__len__``, ``_read`` and ``_recipe``, and inherits the rest;
``penstock.testing.SourceSuite`` checks that it keeps the promises made here.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.ma  # numpy imports it late, which a signal handler that saves a state must not run into
import numpy.typing as npt

from penstock.argument import IntArray, as_ids, is_single
from penstock.batch import Batch, Outputs, Ragged, only, typed
from penstock.errors import SourceChangedError
from penstock.library import METHODS
from penstock.row_table import OwnRows, RowTable
from penstock.schema import Field

if TYPE_CHECKING:
    from typing import Self

    from penstock.remote.window import RemoteFiles
    from penstock.stream.stream import RecordStream

__all__ = [
    "DENSE",
    "FEW",
    "NOWHERE",
    "NO_METADATA",
    "SAMPLINGS",
    "Blocks",
    "Extents",
    "FieldView",
    "Leaf",
    "Recipe",
    "Sampling",
    "Source",
    "by_number",
    "common_metadata",
    "is_same_data",
    "joined_extents",
    "provide",
]

ITERATED_BYTES = 1 << 20
"""What ``for value in data["x"]`` reads at a time, about."""

Extents = tuple[IntArray, IntArray, IntArray]
"""Numbers of files, and the bytes from and to in them."""

NOWHERE: Extents = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


def joined_extents(found: Iterable[Extents]) -> Extents:
    """All of them as one."""
    numbers, low, high = (np.concatenate(column) for column in zip(NOWHERE, *found, strict=True))
    return numbers, low, high


Recipe = tuple[Callable[..., "Source"], tuple[Any, ...]]
"""A function and the arguments with which it opens an equal source in another process."""

NO_METADATA: Mapping[str, Any] = MappingProxyType({})
"""What a source says of its data if it has nothing to say."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Runs of records that are best read together: HDF5 chunks, row groups, folders, the chunks of a store.

    ``ends[i]`` is the id behind the last record of block i; without ``ends`` every block has ``size`` records, the last one what
    is left. ``size`` is that of the largest block.
    """

    length: int
    size: int
    ends: IntArray | None = None

    @classmethod
    def of_counts(cls, counts: npt.ArrayLike) -> "Blocks":
        """Blocks of these numbers of records; those of none are left out."""
        sizes = np.asarray(counts, np.int64)
        sizes = sizes[sizes > 0]
        if sizes.size == 0:
            return cls(0, 1)
        ends = np.cumsum(sizes)
        if np.all(sizes[:-1] == sizes[0]) and sizes[-1] <= sizes[0]:
            return cls(int(ends[-1]), int(sizes[0]))
        return cls(int(ends[-1]), int(sizes.max()), ends)

    def __len__(self) -> int:
        return -(-self.length // self.size) if self.ends is None else len(self.ends)

    def __getitem__(self, number: int) -> range:
        """The ids of a block."""
        if not 0 <= number < len(self):
            raise IndexError(f"block must be in [0, {len(self)}), got {number}")
        if self.ends is None:
            return range(number * self.size, min((number + 1) * self.size, self.length))
        return range(int(self.ends[number - 1]) if number else 0, int(self.ends[number]))

    def of(self, ids: IntArray) -> IntArray:
        """The block of each id."""
        return ids // self.size if self.ends is None else np.searchsorted(self.ends, ids, side="right").astype(np.int64)


def by_number(numbers: IntArray) -> list[tuple[int, IntArray]]:
    """Every number once, the smallest first, with the places that have it, in their order."""
    order = np.argsort(numbers, kind="stable")
    found, heads = np.unique(numbers[order], return_index=True)
    return list(zip(found.tolist(), np.split(order, heads[1:]), strict=True)) if found.size else []


@dataclass(frozen=True)
class Sampling:
    """How much of the data a sample digest looks at: about ``pages`` pages of 4 KiB, spread over all of it."""

    name: str
    pages: int
    least: int
    """Pages that every one of many parts gives, however many they are."""
    at_urls: bool
    """Whether objects at URLs are looked at, each page a request."""

    def shared(self, parts: int) -> "Sampling":
        """What each of a number of parts gives."""
        return replace(self, pages=max(self.least, self.pages // max(1, parts)))


DENSE = Sampling("dense", 512, 16, at_urls=False)
FEW = Sampling("few", 32, 3, at_urls=True)
SAMPLINGS = (DENSE, FEW)
"""The densest first."""


def is_same_data(
    known: Mapping[str, str],
    fingerprint: str,
    sample_digest: Callable[[Sampling], str | None],
    own_fingerprint: Callable[[], str],
) -> bool:
    """Whether data is what it was: the densest sample digest that is known of both decides, or else the fingerprint."""
    for sampling in SAMPLINGS:
        digest = sample_digest(sampling) if sampling.name in known else None
        if digest is not None:
            return digest == known[sampling.name]
    return own_fingerprint() == fingerprint


class Leaf(Protocol):
    """Rows that own bytes, and say where they are: a source, or the tokens of one. Prefetch, windows and the ring use it."""

    def __len__(self) -> int:
        """The number of rows."""

    @property
    def behind(self) -> "Source | None":
        """See :attr:`Source.behind`; the same for all of these."""

    @property
    def blocks(self) -> Blocks:
        """The runs of rows that are best read together."""

    @property
    def remote(self) -> "RemoteFiles | None":
        """The files at a URL."""

    @property
    def paths(self) -> Sequence[str]:
        """The files on a disk."""

    @property
    def is_direct(self) -> bool:
        """Whether those are read past the page cache."""

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where rows are in those."""

    def edges(self, starts: IntArray, stops: IntArray) -> Extents:
        """See :meth:`Source.edges`."""

    def hold(self, starts: IntArray, stops: IntArray) -> AbstractContextManager[object]:
        """Keeps rows in memory."""

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """Reads a field of rows."""


class Source(ABC):
    """Records [0, len) with named fields; immutable while open, safe to use from several threads, after fork and pickled.

    ``data[7]`` is a record (a dict), ``data[[7, 1, 1]]``, ``data[10:20]`` and ``data[mask]`` are batches (a dict of arrays, fields
    of varying length as :class:`~penstock.Ragged`), ``data["label"]`` is one field. Ids may come in any order, several times, and
    negative, as in numpy. A missing value is None in a record; in a batch the array is masked there. Fields whose schema says
    ``nullable`` are masked arrays (or Ragged with ``present``) in every batch, all others in none.

    >>> import numpy as np, penstock as pen
    >>> data = pen.open({"x": np.arange(6), "name": list("abcdef")})
    >>> data[1], data[[2, 0]]["x"].tolist(), data["name"][-1]
    ({'x': np.int64(1), 'name': 'b'}, [2, 0], 'f')
    """

    # What there is

    @abstractmethod
    def __len__(self) -> int:
        """The number of records."""

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Field]:
        """The fields, by name."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A text that identifies the data: equal on every host for equal data, different for other data."""

    def sample_digest(self, sampling: Sampling) -> str | None:
        """A digest of samples spread over all of the data, for states, pickles and collections: equal for equal data on every
        host, whatever the names of its files. None if that many samples are too many requests. A source that does not give one is
        known by its fingerprint.
        """
        return self.fingerprint

    def digest(self, *, progress: Callable[[int, int], None] | bool | None = None) -> str:
        """Read all records and return their sha256: of the names and types of the fields, and of every value.

        Equal for equal records in every format: that of files, and of the store they were converted into. ``progress`` is a
        function called with records and bytes done, or ``True`` for a bar in the terminal. A source remembers its digest until a
        file changes its size, times or inode (which stores through a memory map may do late).
        """
        try:
            versions = self.file_versions()
        except OSError:  # a file that is open and has no name any more can still be read
            versions = None
        known, found = self.__dict__.get("_digested", (None, ""))
        if versions is None or versions != known:
            found = str(_provided["digest"](self, progress))
            self.__dict__["_digested"] = versions, found
        return str(found)

    def file_versions(self) -> Hashable | None:
        """Sizes, times and inodes of all files that hold the records, or versions of objects: equal as long as the records are.
        None if there are no such files, or if one was changed a moment ago.
        """
        return None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Facts about the data, such as class names: a read-only mapping with JSON values."""
        return NO_METADATA

    @property
    def blocks(self) -> Blocks:
        """The runs of consecutive records to read together."""
        return Blocks(len(self), 1024)

    @property
    def reads_blocks(self) -> bool:
        """Whether one record costs about as much to read as its whole block."""
        return False

    # Reading

    @abstractmethod
    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        """Those fields of those records. Ids are in [0, len) and fields known; ``out`` may have arrays for some of them.

        Records of a nullable field that are missing are masked, or not ``present``; where none is missing, a plain array (or a
        Ragged without ``present``) will do.
        """

    def read(self, ids: Any, fields: Sequence[str] | None = None, out: Outputs | None = None) -> Batch:
        """A batch of records in the order of ``ids``. Fills the arrays in ``out``, for fixed fields, instead of new ones."""
        wanted, schema = as_ids(ids, len(self)), self.schema
        if fields is None and out is None:  # what a loader asks for, in a hurry
            return typed(self._read(wanted, list(schema), {}), self._nullable)
        given = {} if out is None else out
        if isinstance(fields, str):
            raise TypeError(f"fields must be a list of names, got {fields!r}")
        names = list(schema) if fields is None else list(fields)
        unknown = [name for name in [*names, *given] if name not in schema]
        if unknown:
            raise KeyError(f"unknown fields {unknown}; there are {list(schema)}")
        unwanted = [name for name in given if name not in names]
        if unwanted:
            raise ValueError(f"out has fields that are not read: {unwanted}")
        ragged = [name for name in given if not schema[name].is_fixed]
        if ragged:
            raise ValueError(f"fields {ragged} have records of varying length; out takes fixed fields only")
        return typed(self._read(wanted, names, given), self._nullable)

    @cached_property
    def _nullable(self) -> frozenset[str]:
        """The fields whose values may be missing."""
        return frozenset(name for name, field in self.schema.items() if field.nullable)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return FieldView(self, key)
        batch = self.read(as_ids(key, len(self)))
        return {name: only(column) for name, column in batch.items()} if is_single(key) else batch

    @property
    def max_batch_bytes(self) -> int | None:
        """The most bytes of a field that one read gives; None if there is no limit."""
        return None

    def native_reader(self, field: str) -> tuple[Any, int] | None:
        """A native reader of a field and the field's number in it (-1: it has only one), for the loader; None if there is none,
        and the loader then calls ``read``. That of a field of varying length is a ``VaryingReader``.
        """
        return None

    def row_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Of every field: in which rows of which leaves its records are, and its name there. A source that owns its bytes is the
        only leaf of its own.
        """
        own = OwnRows(self)
        return {name: (own, name) for name in self.schema}

    def tables(self) -> Sequence[RowTable]:
        """The tables of all fields, each once."""
        return list({id(table): table for table, _ in self.row_tables().values()}.values())

    def lengths(self, field: str, ids: Any) -> IntArray:
        """Elements of records of a field of varying length; 0 for missing ones. Sources that know them do not read the records."""
        lengths: IntArray = self.read(ids, [field])[field].lengths
        return lengths

    def has_documents(self, field: str) -> bool:
        """Whether each record of a text or ragged field is a document, and not a piece of a longer line, as a token block is."""
        return True

    # Where the bytes are: what a source that owns bytes says of them, for prefetch, the network and forecasts

    @property
    def behind(self) -> "Source | None":
        """The source whose records this one maps; None if it owns its bytes."""
        return None

    @property
    def remote(self) -> "RemoteFiles | None":
        """The files of this source at a URL, in their window; None for a source on this machine."""
        return None

    @property
    def paths(self) -> Sequence[str]:
        """The files of this source on a disk of this machine, as :meth:`extents` numbers them; none where that is not known."""
        return ()

    @property
    def is_direct(self) -> bool:
        """Whether those are read past the page cache (``io="direct"``)."""
        return False

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """Where records [start, stop) are in :attr:`remote` or :attr:`paths`, as far as is known without reading them: numbers of
        files, and bytes from and to in them; in any order, merged or not. Nothing depends on it but speed.
        """
        return NOWHERE

    def edges(self, starts: IntArray, stops: IntArray) -> Extents:
        """What of :attr:`remote` is worth fetching for records [start, stop), in addition to :meth:`extents`, where there is memory
        for it: files of which they are a small part.
        """
        return NOWHERE

    def hold(self, starts: IntArray, stops: IntArray) -> AbstractContextManager[object]:
        """Keeps the bytes of records [start, stop) in memory while it is entered, which waits for them. Native readers of remote
        files need that; :meth:`read` does it by itself.
        """
        return nullcontext() if self.remote is None else self.remote.hold(*self.extents(starts, stops))

    # Streams: this source in an order. They live in higher layers, which provide them.

    def in_order(self) -> "RecordStream":
        """The records in sequence."""
        stream: RecordStream = _provided["in_order"](self)
        return stream

    def shuffle(self, *, seed: int, block: int | None = None, window: int | None = None, lanes: int = 1) -> "RecordStream":
        """Every record once per epoch, in a new random order each time.

        If single records are cheap to read, the shuffle is global. If they are expensive (compressed HDF5 chunks, row groups) or
        ``block``, ``window`` or ``lanes`` is given, it permutes blocks of ``block`` records and shuffles the records of ``window``
        blocks (default: 16) together. With ``lanes``, ranks read different blocks.
        """
        stream: RecordStream = _provided["shuffle"](self, seed, block, window, lanes)
        return stream

    def slide(self, window: int, stride: int | None = None) -> "RecordStream":
        """Sliding windows of ``window`` records, ``stride`` apart (default: ``window``), that wrap around at the end."""
        stream: RecordStream = _provided["slide"](self, window, stride)
        return stream

    def sample(self, *, seed: int, weights: npt.ArrayLike | str | None = None, size: int | None = None) -> "RecordStream":
        """Records drawn at random with replacement: about a third are not used in an epoch.

        With ``weights``, numbers or the name of a field that has them, a record comes in proportion to its weight, and an epoch has
        ``size`` samples, as many as records unless given. See :class:`penstock.order.Weighted`.
        """
        stream: RecordStream = _provided["sample"](self, seed, weights, size)
        return stream

    def design(
        self,
        *,
        seed: int,
        size: int | None = None,
        fraction: float | None = None,
        strata: int | Sequence[int] | None = None,
        masses: npt.ArrayLike | None = None,
        full_pass: bool = False,
    ) -> "RecordStream":
        """A random sample with known probabilities, for estimates: batches have a field ``weight``, 1 / probability.

        ``size`` records, or a ``fraction`` of them; spread evenly over ``strata`` (blocks of that many records, or their lengths),
        or in proportion to ``masses`` (of records, or of strata). See :class:`penstock.order.Design`.
        """
        stream: RecordStream = _provided["design"](self, seed, size, fraction, strata, masses, full_pass)
        return stream

    # Other sources made of this one. They live in higher layers, which provide them.

    def select(self, ids: Any) -> "Source":
        """The records of a slice, a mask or a list of ids, in that order, as a source. Reads nothing."""
        selected: Source = _provided["select"](self, ids)
        return selected

    def split(self, parts: Mapping[str, float], *, seed: int, by: str | None = None) -> "dict[str, Source]":
        """Sources by name, each a fraction of the records, chosen by a hash: a record stays in its part for all time, whatever is
        appended. Fractions are right on average; what they leave of 1 belongs to no part.

        The hash is of the seed and the record's id, or, with ``by``, of its value of that field (texts, bytes or whole numbers):
        then equal values are in one part, and the order of the records does not matter; the field is read once. A part depends on
        its fraction and on those before it in the dict, so name first what must not change: with ``{"val": 0.01, "train": 0.9}``
        the training data may grow to 0.99 later and no record of ``val`` moves. Needs 8 bytes of memory for each record.

        >>> import numpy as np, penstock as pen
        >>> data = pen.open({"x": np.arange(1000)})
        >>> parts = data.split({"val": 0.05, "train": 0.95}, seed=7)
        >>> len(parts["val"]), len(parts["train"]), parts["val"]["x"][:4].tolist()
        (58, 942, [1, 8, 11, 37])
        """
        made: dict[str, Source] = _provided["split"](self, parts, seed, by)
        return made

    def pick(self, *fields: str) -> "Source":
        """A source with only these fields; the others are not read."""
        picked: Source = _provided["pick"](self, fields)
        return picked

    def cast(self, types: Mapping[str, npt.DTypeLike], *, allow: str | None = None) -> "Source":
        """The same records with some fields as other types: ``data.cast({"x": "f4", "ids": "i4"})``, for fields of numbers, fixed
        or ragged. Every value is checked when it is read, and one that does not fit is a :class:`~penstock.errors.CastError` that
        names field and record: beyond the range of the type, a float with a fraction as a whole number, a whole number that a float
        does not hold. ``allow="round"`` takes the nearest for the last two. Floats are rounded to shorter ones.

        >>> import numpy as np, penstock as pen
        >>> data = pen.open({"x": np.array([1.0, 2.0, 2.5])})
        >>> data.cast({"x": "i4"})[:2]["x"], data.cast({"x": "i4"}, allow="round")[2]["x"]
        (array([1, 2], dtype=int32), np.int32(2))
        >>> data.cast({"x": "i4"})[2]
        Traceback (most recent call last):
        penstock.errors.CastError: field 'x': record 2 has 2.5, which does not fit i4: cast with allow='round', or to another type
        """
        cast: Source = _provided["cast"](self, types, allow)
        return cast

    def map(self, fn: Callable[[dict[str, Any]], Mapping[str, Any]], *, schema: Mapping[str, Field] | None = None) -> "Source":
        """Apply ``fn`` to every record when it is read. ``schema`` has the fields that ``fn`` returns; by default they are inferred
        from record 0, so pass it if records differ in shape.
        """
        mapped: Source = _provided["map"](self, fn, schema)
        return mapped

    # Life

    def close(self) -> None:  # noqa: B027 - not every source holds something
        """Close files. Arrays already returned stay valid. Idempotent."""

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def _recipe(self) -> Recipe:
        """How to open this source in another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        digest = self.sample_digest(DENSE)
        known = {} if digest is None else {DENSE.name: digest}
        return (_reopen, (*self._recipe(), self.fingerprint, known))

    def __repr__(self) -> str:
        return f"<penstock {type(self).__name__}: {len(self)} records, fields {dict(self.schema)}>"


class _Provided(dict[str, Callable[..., Any]]):
    """Methods by name. The layer that owns one is loaded when it is first called."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        importlib.import_module(METHODS[name])
        return self[name]


_provided = _Provided()


def provide(**methods: Callable[..., Any]) -> None:
    """What methods of :class:`Source` do, from the higher layers that own it: they call this when they are imported."""
    _provided.update(methods)


def _reopen(
    opener: Callable[..., Source], arguments: tuple[Any, ...], fingerprint: str, known: Mapping[str, str] = MappingProxyType({})
) -> Source:
    """What a pickle calls; those of version 1 have no sample digests."""
    source = opener(*arguments)
    if not is_same_data(known, fingerprint, source.sample_digest, lambda: source.fingerprint):
        source.close()
        raise SourceChangedError(f"{str(source)[:200]}: the data is not what it was when the source was pickled; open it again")
    return source


class FieldView:
    """One field of a source, indexed like an array."""

    def __init__(self, source: Source, name: str) -> None:
        if name not in source.schema:
            raise KeyError(f"unknown field {name!r}; there are {list(source.schema)}")
        self._source, self._name = source, name

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, key: Any) -> Any:
        column = self._source.read(as_ids(key, len(self)), [self._name])[self._name]
        return only(column) if is_single(key) else column

    def __iter__(self) -> Iterator[Any]:
        """Record after record, read many at a time."""
        field = self._source.schema[self._name]
        step = max(1, min(1024, ITERATED_BYTES // max(1, field.stride))) if field.is_fixed else 256
        if 0 in field.shape:
            step = 1  # more cannot tell which of them is missing
        for low in range(0, len(self), step):
            column = self[low : low + step]
            yield from column if isinstance(column, Ragged) else (only(column[i : i + 1]) for i in range(len(column)))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """All records of a fixed field, for ``np.asarray``."""
        field = self._source.schema[self._name]
        if not field.is_fixed:
            raise TypeError(f"field {self._name!r} is {field!r}, which is no array: read it with [:], and .pad() that if you like")
        if copy is False:
            raise ValueError(f"field {self._name!r} cannot be an array without a copy: it is read")
        column = self[:]
        if np.ma.is_masked(column):
            raise ValueError(f"field {self._name!r} has missing values: read it with [:], which gives a masked array")
        return np.asarray(column, dtype)

    def __repr__(self) -> str:
        return f"<field {self._name!r} of {self._source!r}>"


def common_metadata(parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What all parts say alike."""
    first, others = parts[0], parts[1:]
    return {key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)}
