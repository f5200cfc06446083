"""What streams and loaders must deliver: plain lists and loops, written from the documentation.

Everything here is counted out one record, token or batch at a time. From penstock come only the documented orders of one epoch
(``indices(epoch, 0, len)``) and the draw of substitutes. The layout of one epoch of a mixture is that of ``tests.order.reference``.

A source is its columns. A stream gives the sample at (epoch, position) for a batch at a step. A :class:`Job` is a stream cut into
batches: it says what every batch holds, and where the run stands after it.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple

import numpy as np
from tests.crossing.data import KNOWN, Form, data, doubled, reversed_text
from tests.crossing.mixing import AmendmentError, Course, Epoch, Regime, Rules
from tests.order.reference import (
    UNCAPPED,
    Packing,
    Piece,
    Stage,
    alias_choice,
    alias_shares,
    alias_table,
    bucketed,
    pack_epoch,
    sample_weights,
)
from tests.pictures import make, options, seed_of

from penstock import Phase, _core
from penstock.image import ImageOptions
from penstock.order import BlockShuffle, Design, Order, Permutation, Random, Sequential, Shuffle, Sliding, Weighted
from penstock.order.permutation import Purpose, derive_root

Weights = tuple[float, ...]


class NothingLeftError(Exception):
    """There is no such sample: all that could stand in for a record is banned or cannot be read."""


# Sources


@dataclass(frozen=True)
class Table:
    """A source: the expression that makes it, and its records."""

    code: str
    forms: dict[str, Form]
    columns: dict[str, list[Any]]
    length: int
    bad: frozenset[int] = frozenset()
    line: tuple[int, ...] | None = None
    block_size: int = 0
    tags: frozenset[str] = frozenset()
    is_blocks: bool = False  # records are blocks of token files, even where they are only some of them
    has_documents: bool = False  # records of a token file are documents
    parts_differ: bool = False  # parts of a list have other fields than the first


@cache
def leaf(name: str) -> Table:
    known = KNOWN[name]
    forms = {}
    for field, form in known.forms.items():  # whether values may be missing is for the format to say
        nullable = data(name).schema[field].nullable
        assert nullable or None not in known.columns[field]
        forms[field] = replace(form, nullable=nullable)
    kind = "remote" if known.is_remote else "local"
    format_tag = name.removeprefix("remote_").rstrip("0123456789")
    return Table(
        f"data({name!r})",
        forms,
        known.columns,
        known.length,
        known.bad,
        line=known.line,
        block_size=known.block_size,
        is_blocks=known.line is not None and not known.has_documents,
        has_documents=known.has_documents,
        tags=frozenset(
            {kind, f"format {format_tag}"}
            | ({"missing values"} if any(form.nullable for form in forms.values()) else set())
            | ({"unreadable"} if known.bad else set())
        ),
    )


def select(table: Table, key: slice | list[int] | list[bool]) -> Table:
    ids = list(range(table.length))
    if isinstance(key, slice):
        ids = ids[key]
    elif key and isinstance(key[0], bool):
        ids = [i for i, wanted in zip(ids, key, strict=True) if wanted]
    else:
        ids = [ids[i] for i in key]
    return _derived(
        table,
        f"{table.code}.select({_key_code(key)})",
        "select",
        columns={name: [column[i] for i in ids] for name, column in table.columns.items()},
        length=len(ids),
        bad=frozenset(place for place, i in enumerate(ids) if i in table.bad),
    )


def _key_code(key: slice | list[int] | list[bool]) -> str:
    return f"np.array({key!r}, bool)" if isinstance(key, list) and key and isinstance(key[0], bool) else repr(key)


def pick(table: Table, names: Sequence[str]) -> Table:
    return _derived(
        table,
        f"{table.code}.pick({', '.join(map(repr, names))})",
        "pick",
        forms={name: table.forms[name] for name in names},
        columns={name: table.columns[name] for name in names},
    )


def faulty(table: Table, bad: set[int]) -> Table:
    return _derived(table, f"faulty({table.code}, {bad!r})", "unreadable", bad=table.bad | bad)


def mapped(table: Table) -> Table:
    """Only for records with x and name, or with a text."""
    fn = doubled if "x" in table.forms else reversed_text
    names = ("x", "name") if "x" in table.forms else ("text",)
    forms = {name: table.forms[name] for name in names}
    rows = [fn({name: table.columns[name][i] for name in names}) for i in range(table.length)]
    schema = ", ".join(f"{name!r}: {_field_code(form)}" for name, form in forms.items())
    return _derived(
        table,
        f"{table.code}.map({fn.__name__}, schema={{{schema}}})",
        "map",
        forms=forms,
        columns={name: [row[name] for row in rows] for name in names},
    )


def _field_code(form: Form) -> str:
    nullable = ", nullable=True" if form.nullable else ""
    return f"Field.text({nullable[2:]})" if form.kind == "text" else f"Field({np.dtype(form.dtype).str[1:]!r}{nullable})"


def aligned(parts: dict[str, Table]) -> Table:
    forms, columns = {}, {}
    for name, part in parts.items():
        for inner, form in part.forms.items():
            own = name if len(part.forms) == 1 else f"{name}.{inner}"
            forms[own], columns[own] = form, part.columns[inner]
    first = next(iter(parts.values()))
    code = ", ".join(f"{name!r}: {part.code}" for name, part in parts.items())
    tags = frozenset({"dict"}).union(*(part.tags for part in parts.values()))
    bad = frozenset[int]().union(*(part.bad for part in parts.values()))
    differ = any(part.parts_differ for part in parts.values())
    blocks = any(part.is_blocks for part in parts.values())
    return Table(f"open({{{code}}})", forms, columns, first.length, bad, tags=tags, is_blocks=blocks, parts_differ=differ)


def concatenated(parts: list[Table]) -> Table:
    first = parts[0]
    starts = [sum(part.length for part in parts[:i]) for i in range(len(parts))]
    if any(not same_forms(part.forms, first.forms) for part in parts):
        parts = [replace(first, code=part.code) for part in parts]
        first = replace(first, parts_differ=True)
    return Table(
        f"open([{', '.join(part.code for part in parts)}])",
        {name: replace(form, nullable=any(part.forms[name].nullable for part in parts)) for name, form in first.forms.items()},
        {name: [value for part in parts for value in part.columns[name]] for name in first.forms},
        sum(part.length for part in parts),
        frozenset(start + i for start, part in zip(starts, parts, strict=True) for i in part.bad),
        tags=frozenset({"list"}).union(*(part.tags for part in parts)),
        is_blocks=any(part.is_blocks for part in parts),
        parts_differ=first.parts_differ or any(part.parts_differ for part in parts),
    )


def same_forms(one: dict[str, Form], other: dict[str, Form]) -> bool:
    """Whether fields are the same, but for missing values."""
    return {name: replace(form, nullable=False) for name, form in one.items()} == {
        name: replace(form, nullable=False) for name, form in other.items()
    }


def _derived(table: Table, code: str, tag: str, **changes: Any) -> Table:
    return replace(table, code=code, tags=table.tags | {tag}, **({"line": None, "has_documents": False} | changes))


# Streams


def substitute(seed: int, epoch: int, position: int, n: int, banned: Collection[int], weights: Weights = ()) -> int:
    """The first of a row of random records that is not banned; by weight, the thousandth is drawn among the others alone."""
    key = _core.absorb(derive_root(seed, epoch, Purpose.SUBSTITUTE), position)
    words = (_core.absorb(key, attempt) for attempt in (range(1000) if weights else count()))
    columns = ((word, (word * n) >> 64) for word in words)
    drawn = (alias_choice(_table(weights), column, _core.absorb(word, 0)) if weights else column for word, column in columns)
    found = next((record for record in drawn if record not in banned), None)
    return _drawn_but(weights, banned, _core.absorb(key, 1000)) if found is None else found


def _drawn_but(weights: Weights, banned: Collection[int], word: int) -> int:
    shares = {record: share for record, share in enumerate(alias_shares(weights)) if record not in banned}
    place = (word * sum(shares.values())) >> 64
    return next(record for record, end in zip(shares, accumulate(shares.values()), strict=True) if place < end)


@cache
def _table(weights: Weights) -> list[tuple[int, int]]:
    return alias_table(weights)


Bans = tuple[tuple[int, frozenset[int]], ...]


def banned_at(bans: Bans, step: int) -> frozenset[int]:
    return frozenset[int]().union(*(ids for first, ids in bans if step >= first))


@dataclass(frozen=True)
class Sample:
    """One sample: its values, its id in its own stream, and the stream's number."""

    values: dict[str, Any]
    id: int
    leaf: int = 0
    planned: int = -1  # the id before unreadable records were replaced
    original: int = -1  # the id before banned records were replaced, too
    places: tuple[int, ...] = ()  # of the tokens of a sequence, in the storage line
    pieces: tuple[int, ...] = ()  # the lengths of the documents that a pack shows


@lru_cache(4096)
def epoch_ids(order: Order, epoch: int) -> list[int]:
    found: list[int] = order.indices(epoch, 0, len(order)).tolist()
    return found


@dataclass(frozen=True)
class Ordered:
    """How records are ordered: the name of the method and its arguments."""

    method: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def seed(self) -> int:
        seed: int = dict(self.options).get("seed", 0)
        return seed

    @property
    def weights(self) -> Weights:
        """Those of a weighted order; none of others."""
        return dict(self.options)["weights"] if self.method == "weighted" else ()

    def code(self) -> str:
        method = "sample" if self.method == "weighted" else self.method
        return f"{method}({', '.join(f'{name}={value!r}' for name, value in self.options)})"

    def make(self, n: int, blocks: tuple[bool, int]) -> Order:
        """The order of n records; ``blocks`` says whether the source is read in blocks, and of which size."""
        given = dict(self.options)
        if self.method == "in_order":
            return Sequential(n)
        if self.method == "sample":
            return Random(n, **given)
        if self.method == "weighted":
            return Weighted(given["weights"], seed=given["seed"], size=given.get("size"))
        if self.method == "slide":
            return Sliding(n, **given)
        if self.method == "design":
            return _design(n, given)
        if blocks[0] or {"block", "window", "lanes"} & given.keys():
            return BlockShuffle(n, **({"block": blocks[1]} | given))
        return Shuffle(n, **given)


@lru_cache(1024)
def _blocks(code: str) -> tuple[bool, int]:
    """Whether a source is read in blocks, and of which size."""
    source = eval(code, NAMES)
    return source.reads_blocks, source.blocks.size


def _design(n: int, given: dict[str, Any]) -> Design:
    if "fraction" in given:
        return Design.fraction(n, given["fraction"], seed=given["seed"])
    if "masses" in given:
        return Design.proportional(n, **given)
    if "strata" in given:
        return Design.stratified(n, **given)
    return Design.simple(n, **given)


Draw = tuple[int, int] | None


class Stream:
    """What all streams have. ``axis(epoch)`` positions make an epoch, a sample takes ``stride`` of them."""

    stride = 1
    tags: frozenset[str]

    def code(self) -> str:
        raise NotImplementedError

    def forms(self) -> dict[str, Form]:
        raise NotImplementedError

    @property
    def seed(self) -> int:
        raise NotImplementedError

    def axis(self, epoch: int) -> int:
        raise NotImplementedError

    def sample(self, epoch: int, position: int, step: int, length: int = 0, drawn: Draw = None) -> Sample:
        """The sample that begins at a position; ``length`` tokens of it where a phase says how many.

        ``drawn`` is epoch and position in the outermost mixture, by which records are drawn instead of unreadable ones.
        """
        raise NotImplementedError

    def leaf_names(self) -> list[str]:
        return [""]

    def bind(self, size: int, tail: str) -> "Stream":
        """The stream for batches of one size."""
        return self

    def streams(self) -> Iterator["Stream"]:
        """This stream and all within it."""
        yield self

    @property
    def is_endless(self) -> bool:
        return False


@dataclass(frozen=True)
class Records(Stream):
    """The records of a source in an order. ``buckets`` are the batch size and the window of those, and the field they go by."""

    table: Table
    ordered: Ordered
    bans: Bans = ()
    buckets: tuple[int, int, str] | None = None

    @property
    def tags(self) -> frozenset[str]:  # type: ignore[override]
        given = dict(self.ordered.options)
        is_blocked = self.ordered.method == "shuffle" and {"block", "window", "lanes"} & given.keys()
        name = "block shuffle" if is_blocked else self.ordered.method
        found = {f"order {name}"} | ({"without"} if self.bans else set()) | ({"buckets"} if self.buckets else set())
        return self.table.tags | found

    def code(self) -> str:
        return f"{self.table.code}.{self.ordered.code()}{self.buckets_code}{bans_code(self.bans)}"

    @property
    def buckets_code(self) -> str:
        if self.buckets is None:
            return ""
        size, window, field = self.buckets
        return f".buckets({size}, field={field!r}, window={window})"

    def forms(self) -> dict[str, Form]:
        weight = {"weight": Form("fixed", "float64")} if self.ordered.method == "design" else {}
        return self.table.forms | weight

    @property
    def seed(self) -> int:
        return self.ordered.seed

    @cached_property
    def order(self) -> Order:
        blocks = (False, 0)
        if self.ordered.method == "shuffle" and "block" not in dict(self.ordered.options):
            blocks = _blocks(self.table.code)
        return self.ordered.make(self.table.length, blocks)

    @cached_property
    def weights(self) -> list[float] | None:
        order = self.order
        return order.weights(0, len(order)).tolist() if isinstance(order, Design) else None

    def axis(self, epoch: int) -> int:
        return len(self.order)

    def sample(self, epoch: int, position: int, step: int, length: int = 0, drawn: Draw = None) -> Sample:
        original = first = self.ids(epoch)[position]
        banned = banned_at(self.bans, step)
        if original in banned:
            first = self._other(epoch, position, banned)
        number = first
        if first in self.table.bad:
            number = self._other(epoch, position, banned | self.table.bad, drawn)
        values = {name: column[number] for name, column in self.table.columns.items()}
        if self.weights is not None:
            values["weight"] = self.weights[position]
        return Sample(values, number, planned=first, original=original)

    @cached_property
    def _bucketed(self) -> dict[int, list[int]]:
        return {}

    def ids(self, epoch: int) -> list[int]:
        """The records of an epoch."""
        ids = epoch_ids(self.order, epoch)
        if self.buckets is None:
            return ids
        if epoch not in self._bucketed:
            size, window, field = self.buckets
            lengths = [num_elements(value) for value in self.table.columns[field]]
            self._bucketed[epoch] = bucketed(ids, lengths, self.seed, epoch, size, window)
        return self._bucketed[epoch]

    def _other(self, epoch: int, position: int, banned: frozenset[int], drawn: Draw = None) -> int:
        weights = self.ordered.weights
        if banned.issuperset(i for i in range(self.table.length) if not weights or weights[i] > 0):
            raise NothingLeftError
        return substitute(self.seed, *(drawn or (epoch, position)), self.table.length, banned, weights)


PICTURES: dict[str, dict[str, Any]] = {
    "random": {"size": (2, 3)},
    "center": {"size": 2, "crop": "center", "layout": "nhwc", "dtype": "f4"},
    "pad": {"size": 3, "crop": "pad", "fill": 9, "flip": 0.25, "seed": 5},
}
"""What becomes of pictures."""


@dataclass(frozen=True)
class Pictures(Records):
    """Records with a field of pictures, decoded."""

    image: str = "image"
    how: str = "random"
    is_first: bool = False  # bans come behind

    @property
    def tags(self) -> frozenset[str]:  # type: ignore[override]
        return super().tags | {"images"}

    def code(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in PICTURES[self.how].items())
        images, bans = f".images({self.image!r}{options})", bans_code(self.bans)
        return f"{self.table.code}.{self.ordered.code()}{self.buckets_code}{images + bans if self.is_first else bans + images}"

    def forms(self) -> dict[str, Form]:
        found = super().forms()
        how = _picture_options(self.how)
        return found | {self.image: Form("fixed", np.dtype(how.dtype).name, how.shape, found[self.image].nullable)}

    def sample(self, epoch: int, position: int, step: int, length: int = 0, drawn: Draw = None) -> Sample:
        found = super().sample(epoch, position, step, length, drawn)
        place = drawn if drawn is not None and found.id != found.planned else (epoch, position)
        comes_once = self.ordered.method in ("in_order", "shuffle")
        seed = seed_of(PICTURES[self.how].get("seed", self.seed), place[0], found.id, None if comes_once else place[1])
        return replace(found, values={**found.values, self.image: _picture(found.values[self.image], seed, self.how)})


@cache
def _picture_options(how: str) -> ImageOptions:
    return options(**{name: value for name, value in PICTURES[how].items() if name != "seed"})


@lru_cache(4096)
def _picture(data: bytes | None, seed: int, how: str) -> Any:
    """As lists of lists; None at every place of a missing one."""
    made = _picture_options(how)
    return np.full(made.shape, None).tolist() if data is None else make(made, [(data, seed)])[0].tolist()


def bans_code(bans: Bans) -> str:
    return "".join(f".without({sorted(ids)!r}, from_step={step})" for step, ids in bans)


Token = tuple[int, int, bool]
"""A token, its place in the storage line, and whether it begins a document there."""


@dataclass(frozen=True)
class Sequences(Stream):
    """Sequences of ``length`` tokens of a line."""

    records: Records
    length: int
    field: str | None = None
    separator: Any = None
    documents: bool = False
    page: int | None = None
    bans: Bans = ()  # those given behind .sequences
    mask: bool = False  # whether the loss mask is delivered

    @property
    def stride(self) -> int:  # type: ignore[override]
        return self.length

    @property
    def tags(self) -> frozenset[str]:  # type: ignore[override]
        kind = "token sequences" if self.has_pages else "document sequences"
        found = self.records.tags | {kind}
        for tag, given in (
            ("separator", self.separator is not None),
            ("documents", self.documents),
            ("page", self.page is not None),
            ("without behind sequences", self.bans),
            ("loss mask", self.mask),
        ):
            if given:
                found |= {tag}
        return found

    def code(self) -> str:
        given: dict[str, Any] = {"field": self.field, "separator": self.separator, "documents": self.documents, "page": self.page}
        given["fields"] = ["tokens", "loss_mask"] if self.mask else None
        options = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None and value is not False)
        return f"{self.records.code()}.sequences({self.length}{options}){bans_code(self.bans)}"

    def forms(self) -> dict[str, Form]:
        return self.sized_forms(self.length)

    def sized_forms(self, length: int) -> dict[str, Form]:
        forms = {"tokens": Form("fixed", self.source_form.dtype, (length,))}
        if self.mask:
            forms["loss_mask"] = Form("fixed", "uint8", (length,))
        if self.documents:
            forms |= {name: Form("fixed", "int32", (length,)) for name in ("segment", "position")}
        return forms

    @property
    def seed(self) -> int:
        return self.records.seed

    @property
    def table(self) -> Table:
        return self.records.table

    @property
    def has_pages(self) -> bool:
        return self.table.line is not None

    @cached_property
    def source_field(self) -> str:
        if self.field is not None:
            return self.field
        if self.has_pages:
            return "tokens"
        ragged = [name for name, form in self.table.forms.items() if form.kind != "fixed"]
        (name,) = ragged if len(ragged) == 1 else [name for name in ragged if not name.endswith("loss_mask")]
        return name

    @property
    def mask_field(self) -> str:
        return f"{self.source_field.removesuffix('tokens')}loss_mask"

    @property
    def has_mask(self) -> bool:
        """Whether the data has a loss mask."""
        return self.mask_field in self.table.forms

    @cached_property
    def mask_line(self) -> list[int]:
        """The mask of every token of the storage line; a separator that was put there counts."""
        added = [] if self.has_pages else [1] * len(self.separators)
        return [value for mask in self.table.columns[self.mask_field] for value in [*mask, *added]]

    @cached_property
    def source_form(self) -> Form:
        return self.table.forms[self.source_field]

    @cached_property
    def separators(self) -> list[int]:
        if self.separator is None:
            return []
        return list(self.separator) if isinstance(self.separator, list) else [self.separator]

    @cached_property
    def storage(self) -> list[list[int]]:
        """The tokens of every record."""
        if self.table.line is not None:
            return self.table.columns["tokens"]
        found = []
        for value in self.table.columns[self.source_field]:
            tokens = list(value.encode() if isinstance(value, str) else value or [])
            found.append([*tokens, *self.separators])
        return found

    @cached_property
    def starts(self) -> list[int]:
        """The place of every record's first token."""
        starts, place = [], 0
        for tokens in self.storage:
            starts.append(place)
            place += len(tokens)
        return starts

    @cached_property
    def texts(self) -> list[list[int]]:
        """The documents; those of a token file end with the separator, unless it knows them and none is given."""
        if self.table.line is None or (self.table.has_documents and self.separator is None):
            return self.storage
        found: list[list[int]] = [[]]
        for token in self.table.line:
            found[-1].append(token)
            if self._ends_with_separator(found[-1]):
                found.append([])
        return found if found[-1] else found[:-1]

    @cached_property
    def first_tokens(self) -> list[int]:
        """The place of every document's first token in the data."""
        return [sum(len(one) for one in self.texts[:number]) for number in range(len(self.texts))]

    @property
    def has_marks(self) -> bool:
        """Whether documents are what separators end, and no records: bans behind .sequences are of those."""
        return self.has_pages and bool(self.separators)

    def banned(self, step: int) -> frozenset[Any]:
        """Records that do not come at a step, and documents that are no records as ("document", number)."""
        behind = banned_at(self.bans, step)
        marked = frozenset(("document", one) for one in behind) if self.has_marks else behind
        return banned_at(self.records.bans, step) | marked

    @cached_property
    def num_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.storage)

    def axis(self, epoch: int) -> int:
        return self.num_tokens

    def line(self, epoch: int, step: int) -> list[Token]:
        return self._line(epoch, self.banned(step))

    @cached_property
    def _lines(self) -> dict[Any, list[Token]]:
        return {}

    def _line(self, epoch: int, banned: frozenset[Any]) -> list[Token]:
        key = (epoch, banned)
        if key not in self._lines:
            self._lines[key] = self._page_line(epoch, banned) if self.has_pages else self._document_line(epoch, banned)
            assert len(self._lines[key]) == self.num_tokens
        return self._lines[key]

    def _page_line(self, epoch: int, banned: frozenset[Any]) -> list[Token]:
        total, page = self.num_tokens, self.page or self.length
        pages = total // page
        tokens = [token for block in self.storage for token in block]
        hit: set[int] = set()
        for one in banned:
            starts, texts = (self.first_tokens, self.texts) if isinstance(one, tuple) else (self.starts, self.storage)
            number = one[1] if isinstance(one, tuple) else one
            hit |= set(range(starts[number], starts[number] + len(texts[number])))
        bad_pages = [number for number in range(pages) if hit & set(range(number * page, (number + 1) * page))]
        line: list[Token] = []
        for place, number in enumerate(epoch_ids(self._page_order(pages, page), epoch)):
            if number in bad_pages:
                number = self._other_page(epoch, place, pages, bad_pages)
            line += [(tokens[i], i, False) for i in range(number * page, (number + 1) * page)]
        rest = range(pages * page, total)
        if hit & set(rest):
            start = self._other_page(epoch, pages, pages, bad_pages) * page
            rest = range(start, start + len(rest))
        return line + [(tokens[i], i, False) for i in rest]

    def _other_page(self, epoch: int, place: int, count: int, banned: list[int]) -> int:
        if len(banned) >= count:
            raise NothingLeftError
        return substitute(self.seed, epoch, place, count, banned)

    def _page_order(self, count: int, page: int) -> Order:
        order = self.records.order
        if isinstance(order, Shuffle):
            return Shuffle(count, seed=self.seed)
        if isinstance(order, Random):
            return Random(count, seed=self.seed)
        if isinstance(order, BlockShuffle):
            block = max(1, order.block * self.table.block_size // page)
            return BlockShuffle(count, block=block, window=order.window, lanes=order.lanes, seed=self.seed)
        return Sequential(count)

    def _document_line(self, epoch: int, banned: frozenset[int]) -> list[Token]:
        line: list[Token] = []
        for place, number in enumerate(epoch_ids(self.records.order, epoch)):
            if number in banned:
                line += self._other_documents(epoch, place, len(self.storage[number]), banned)
            else:
                line += self._document(number)
        return line

    def _document(self, number: int) -> list[Token]:
        return [(token, self.starts[number] + i, i == 0) for i, token in enumerate(self.storage[number])]

    def _other_documents(self, epoch: int, place: int, count: int, banned: frozenset[int]) -> list[Token]:
        """``count`` tokens of documents drawn by lot; what is too much is cut from the front of the first."""
        total = len(self.storage)
        if count and not any(self.storage[i] for i in range(total) if i not in banned):
            raise NothingLeftError
        root = _core.absorb(derive_root(self.seed, epoch, Purpose.SUBSTITUTE), place)
        pieces: list[list[Token]] = []
        attempt = 0
        while sum(map(len, pieces)) < count:
            candidate = (_core.absorb(root, attempt) * total) >> 64
            if candidate not in banned:
                pieces.append(self._document(candidate))
            attempt += 1
        found = [token for piece in pieces for token in piece]
        found = found[len(found) - count :]
        return [(found[0][0], found[0][1], True), *found[1:]] if found else []

    def sample(self, epoch: int, position: int, step: int, length: int = 0, drawn: Draw = None) -> Sample:
        length = length or self.length
        found: list[Token] = []
        joints = []
        while len(found) < length:
            joints.append(len(found))
            found += self.line(epoch, step)[position : position + length - len(found)]
            epoch, position = epoch + 1, 0
        values: dict[str, Any] = {"tokens": [token for token, _, _ in found]}
        if self.documents:
            values["segment"], values["position"] = self._segments(found, joints)
        places = tuple(place for _, place, _ in found)
        if self.mask:
            values["loss_mask"] = [self.mask_line[place] for place in places]
        return Sample(values, places[0], planned=places[0], places=places)

    def _segments(self, tokens: list[Token], joints: list[int]) -> tuple[list[int], list[int]]:
        """The segment of every token, and its position there. An epoch's line begins at every joint."""
        segments, positions = [], []
        number, inside = 0, list[int]()
        for i, (token, place, begins) in enumerate(tokens):
            if self.has_pages:
                fresh = place in self.first_places or (i > 0 and place != tokens[i - 1][1] + 1)
            else:
                fresh = begins or i in joints
            if i > 0 and fresh:
                number, inside = number + 1, []
            segments.append(number)
            positions.append(len(inside))
            inside.append(token)
        return segments, positions

    @cached_property
    def first_places(self) -> set[int]:
        """Where documents of a token file begin."""
        return set(self.first_tokens)

    def _ends_with_separator(self, tokens: list[int]) -> bool:
        count = len(self.separators)
        return count > 0 and len(tokens) >= count and tokens[-count:] == self.separators


@dataclass(frozen=True)
class Packs(Sequences):
    """Documents packed into sequences of ``length`` tokens. ``documents`` adds segment and position, ``labels`` labels."""

    window: int = 4
    split: str = "fit"
    long: str = "error"
    pad: int = 0
    bos: int | None = None
    eos: int | None = None
    first_segment: int = 0
    multiple_of: int = 1
    labels: bool = False
    bounds: bool = False  # cu_seqlens and max_seqlen
    phases: tuple[Phase, ...] | None = None

    @property
    def tags(self) -> frozenset[str]:  # type: ignore[override]
        found = self.records.tags | {"token packs" if self.has_pages else "document packs", f"split {self.split}"}
        for tag, given in (
            ("separator", self.separator is not None),
            ("added tokens", self.extra),
            ("labels", self.labels),
            ("cu_seqlens", self.bounds),
            ("multiple_of", self.multiple_of > 1),
            ("without behind packs", self.bans),
            ("loss mask", self.mask),
        ):
            if given:
                found |= {tag}
        return found

    def code(self) -> str:
        plain = Packs(self.records, self.length)
        names = ("field", "separator", "split", "long", "pad", "bos", "eos", "first_segment", "multiple_of")
        given = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)}
        options = "".join(f", {name}={value!r}" for name, value in given.items())
        fields = f"window={self.window}, fields={tuple(self.forms_of_tokens())!r}"
        return f"{self.records.code()}.pack({self.length}, {fields}{options}){bans_code(self.bans)}"

    def forms_of_tokens(self) -> dict[str, str]:
        """The type of every field; that of the tokens is the source's."""
        forms = {"tokens": ""} | ({"segment": "int32", "position": "int32"} if self.documents else {})
        forms |= ({"labels": "int64"} if self.labels else {}) | ({"loss_mask": "uint8"} if self.mask else {})
        return forms | ({"cu_seqlens": "int32", "max_seqlen": "int32"} if self.bounds else {})

    def sized_forms(self, length: int) -> dict[str, Form]:
        return {
            name: Form("fixed", dtype or self.source_form.dtype, shape_of(name, length))
            for name, dtype in self.forms_of_tokens().items()
        }

    @property
    def extra(self) -> int:
        return (self.bos is not None) + (self.eos is not None)

    def packing(self, length: int) -> Packing:
        order = self.records.order
        block = 1
        if isinstance(order, BlockShuffle):
            block = max(1, order.block * len(self.texts) // max(1, self.table.length))
        seed = -1 if isinstance(order, Sequential) else self.seed
        window = -(-self.window // block)
        return Packing(length, seed, block, window, self.split, self.extra, self.multiple_of, self.long == "drop")

    @cached_property
    def _epochs(self) -> dict[tuple[int, int], list[list[Piece]]]:
        return {}

    def epoch(self, epoch: int, length: int) -> list[list[Piece]]:
        if (epoch, length) not in self._epochs:
            self._epochs[epoch, length] = pack_epoch([len(one) for one in self.texts], self.packing(length), epoch)
        return self._epochs[epoch, length]

    def axis(self, epoch: int) -> int:
        return len(self.epoch(0, self.length)) * self.length

    @cached_property
    def phase_line(self) -> list[tuple[int, int]]:
        """Epoch and sequence of every sample of a curriculum. Where the length changes, the rest of a group is left out."""
        assert self.phases is not None
        if not self.axis(0):
            return []
        found: list[tuple[int, int]] = []
        epoch = sequence = before = 0
        for phase, steps in zip(self.phases, num_steps(self.phases, self.axis(0)), strict=True):
            if steps == 0:  # it moves nothing
                continue
            if before and phase.seq_len != before:
                if sequence == len(self.epoch(epoch, before)):  # over, though the last groups may have none of this length
                    epoch, sequence = epoch + 1, 0
                group = next(g for g, edge in enumerate(self._edges(epoch, before)) if edge >= sequence)
                sequence = self._edges(epoch, phase.seq_len)[group]
            before = phase.seq_len
            for _ in range(steps * phase.batch_size):
                while sequence >= len(self.epoch(epoch, before)):
                    epoch, sequence = epoch + 1, sequence - len(self.epoch(epoch, before))
                found.append((epoch, sequence))
                sequence += 1
        return found

    def _edges(self, epoch: int, length: int) -> list[int]:
        """The first sequence of every group of an epoch, and behind the last: a group is known by its documents."""
        packing = self.packing(length)
        sequences = self.epoch(epoch, length)
        if self.split == "never":
            return _edges_of_whole(self.texts, packing, epoch)
        numbers = list(range(-(-len(self.texts) // packing.block)))
        if packing.seed >= 0:
            numbers = Permutation(len(numbers), key=_core.derive_key(packing.seed, epoch, 3, 0)).run(0, len(numbers)).tolist()
        edges, before = [], 0
        for group in range(-(-len(numbers) // packing.window) + 1):
            edges.append(-(-before // length) + group)
            for block in numbers[group * packing.window : (group + 1) * packing.window]:
                for text in self.texts[block * packing.block : (block + 1) * packing.block]:
                    before += -(-(len(text) + self.extra) // self.multiple_of) * self.multiple_of
        assert edges[-1] == len(sequences)
        return edges

    def sample(self, epoch: int, position: int, step: int, length: int = 0, drawn: Draw = None) -> Sample:
        length = length or self.length
        if self.phases is not None:
            epoch, sequence = self.phase_line[position]
        else:
            sequence = position // length
        banned = banned_at(self.records.bans, step) | banned_at(self.bans, step)
        padding = (self.pad, self.first_segment - 1, 0, -100, 0)
        rows: list[tuple[int, int, int, int, int]] = []
        places: list[int] = []
        pieces: list[int] = []
        segment, first = self.first_segment, -1
        ends, is_padded = [0], False
        for number, offset, size in self.epoch(epoch, length)[sequence]:
            room = -(-size // self.multiple_of) * self.multiple_of
            ends = [*(ends[:-1] if is_padded and number in banned else ends), len(rows) + room]
            is_padded = number in banned
            if number in banned:
                rows += [padding] * room
                continue
            start = self.first_tokens[number]
            whole: list[tuple[int, int]] = [(self.bos, -1)] if self.bos is not None else []
            whole += [(token, start + i) for i, token in enumerate(self.texts[number])]
            whole += [(self.eos, -2)] if self.eos is not None else []
            piece = whole[offset : offset + size]
            pieces.append(size)
            own = [place for _, place in piece if place >= 0]
            if not rows:
                first = own[0] if own else -2 - number
            places += own
            masks = [int(place == -2) if place < 0 else self.mask_line[place] if self.has_mask else 1 for _, place in piece]
            for i, (token, _) in enumerate(piece):
                label = piece[i + 1][0] if i + 1 < size and masks[i + 1] else -100
                rows.append((token, segment, i, label, masks[i]))
            rows += [padding] * (room - size)
            segment += 1
        if len(rows) < length:
            ends = [*(ends[:-1] if is_padded else ends), length]
        rows += [padding] * (length - len(rows))
        names = ("tokens", "segment", "position", "labels", "loss_mask")
        columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        columns["cu_seqlens"] = ends + [length] * (length + 1 - len(ends))
        columns["max_seqlen"] = max(high - low for low, high in pairwise(ends))
        values = {name: columns[name] for name in self.forms_of_tokens()}
        return Sample(values, first, planned=first, places=tuple(places), pieces=tuple(pieces))


def shape_of(name: str, length: int) -> tuple[int, ...]:
    """Of a field of a sequence."""
    return {"cu_seqlens": (length + 1,), "max_seqlen": ()}.get(name, (length,))


def _edges_of_whole(texts: list[list[int]], packing: Packing, epoch: int) -> list[int]:
    """Of groups that are the same in every epoch: how many sequences each has is seen in a packing of it alone."""
    count = -(-len(texts) // packing.block)
    blocks = list(range(count))
    if packing.seed >= 0:
        blocks = Permutation(count, key=_core.derive_key(packing.seed, 0, 3, 0)).run(0, count).tolist()
    sizes = []
    for first in range(0, count, packing.window):
        own = [text for b in blocks[first : first + packing.window] for text in texts[b * packing.block : (b + 1) * packing.block]]
        alone = packing._replace(seed=-1, block=max(1, len(own)), window=1)
        sizes.append(len(pack_epoch([len(text) for text in own], alone, 0)))
    order = list(range(len(sizes)))
    if packing.seed >= 0:
        order = Permutation(len(sizes), key=_core.derive_key(packing.seed, epoch, 12, 0)).run(0, len(sizes)).tolist()
    return [sum(sizes[g] for g in order[:place]) for place in range(len(sizes) + 1)]


@dataclass(frozen=True)
class Mix(Stream):
    """Several streams drawn from by weight. ``size`` and ``tail`` are the loader's, once it is known."""

    parts: tuple[tuple[str, Stream], ...]
    seed: int = 0  # type: ignore[misc]
    weights: Any = None  # numbers by name, or [(step, numbers by name), ...]
    stop: str = "first_exhausted"
    batch_size: int | None = None
    unit: str = "sample"
    period: int | None = None
    bans: tuple[tuple[int, Any], ...] = ()  # {name: ids or the same for a mixture within}
    by: str | None = None
    temperature: float | None = None
    max_epochs: dict[str, float] | None = None
    amendments: tuple["Amended", ...] = ()  # the streams that they add are the last of the parts
    size: int = 0
    tail: str = "keep"
    phases: tuple[Phase, ...] | None = None

    @property
    def tags(self) -> frozenset[str]:  # type: ignore[override]
        found = frozenset[str]().union(*(stream.tags for _, stream in self.parts))
        found |= {f"mix {self.stop}"}
        for tag, given in (
            ("weights", self.weights is not None),
            ("weights by step", self.is_staged),
            ("unit batch", self.unit == "batch"),
            ("mix batch_size", self.batch_size is not None),
            ("mix in mix", any(isinstance(stream, Mix) for _, stream in self.parts)),
            ("without in mix", self.bans),
            ("weights by tokens", self.by is not None),
            ("temperature", self.temperature is not None),
            ("caps", bool(self.max_epochs) or any(one.max_epochs for one in self.amendments)),
            ("amendments", self.amendments),
            ("added streams", any(one.added for one in self.amendments)),
        ):
            if given:
                found |= {tag}
        return found

    def code(self) -> str:
        parts = self._parts_code([name for name, _ in self.parts[: self.num_first]])
        given: dict[str, Any] = {"weights": self.weights, "batch_size": self.batch_size, "period": self.period}
        given |= {"by": self.by, "temperature": self.temperature, "max_epochs": self.max_epochs}
        options = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
        unit = "" if self.unit == "sample" else f", unit={self.unit!r}"
        bans = "".join(f".without({ids!r}, from_step={step})" for step, ids in self.bans)
        amended = "".join(map(self._amendment_code, self.amendments))
        return f"mix({parts}, seed={self.seed}, stop={self.stop!r}{options}{unit}){amended}{bans}"

    def _parts_code(self, names: Sequence[str]) -> str:
        streams = dict(self.parts)
        return f"{{{', '.join(f'{name!r}: {streams[name].code()}' for name in names)}}}"

    def _amendment_code(self, amended: "Amended") -> str:
        add = f", add={self._parts_code(amended.added)}" if amended.added else ""
        given = {"weights": amended.weights, "max_epochs": amended.max_epochs}
        options = "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)
        return f".amend({amended.step}{options}{add})"

    def unamended(self, kept: int) -> "Mix":
        """The same with only the first amendments."""
        if kept >= len(self.amendments):
            return self
        if kept not in self._unamended:
            gone = {name for amendment in self.amendments[kept:] for name in amendment.added}
            parts = tuple((name, stream) for name, stream in self.parts if name not in gone)
            bans = tuple((step, {name: own for name, own in ids.items() if name not in gone}) for step, ids in self.bans)
            self._unamended[kept] = replace(self, parts=parts, bans=bans, amendments=self.amendments[:kept])
        return self._unamended[kept]

    @cached_property
    def _unamended(self) -> dict[int, "Mix"]:
        return {}

    def forms(self) -> dict[str, Form]:
        forms = [stream.forms() for _, stream in self.parts]
        if not all(same_forms(one, forms[0]) for one in forms):
            return forms[0]
        return {name: replace(form, nullable=any(one[name].nullable for one in forms)) for name, form in forms[0].items()}

    @property
    def is_staged(self) -> bool:
        return isinstance(self.weights, list)

    @property
    def is_bound(self) -> bool:
        """Whether the layout follows from the batch size."""
        return self.is_staged or self.unit == "batch" or bool(self.amendments)

    @property
    def has_caps(self) -> bool:
        return bool(self.max_epochs) or any(amendment.max_epochs for amendment in self.amendments)

    @property
    def is_endless(self) -> bool:
        if self.stop != "forever" or self.phases is not None:
            return self.stop == "forever"
        try:
            return self.course.epoch(0).is_endless
        except (AmendmentError, NoMeanError):
            return True

    @cached_property
    def _by_batches(self) -> dict[tuple[int, str], "Mix"]:
        return {}

    def bind(self, size: int, tail: str) -> "Mix":
        if not self.is_bound:
            return self
        if (size, tail) not in self._by_batches:
            self._by_batches[size, tail] = replace(self, size=size, tail=tail)
        return self._by_batches[size, tail]

    def streams(self) -> Iterator[Stream]:
        yield self
        for _, stream in self.parts:
            yield from stream.streams()

    @cached_property
    def banning(self) -> list[Stream]:
        """The streams, with the bans of the mixture put upon them."""
        found = []
        for name, stream in self.parts:
            for step, ids in self.bans:
                if name in ids:
                    if isinstance(stream, Mix):
                        stream = replace(stream, bans=(*stream.bans, (step, ids[name])))
                    elif isinstance(stream, Records | Sequences):
                        stream = replace(stream, bans=(*stream.bans, (step, frozenset(ids[name]))))
            found.append(stream)
        return found

    def leaf_names(self) -> list[str]:
        found = []
        for name, stream in self.parts:
            found += [f"{name}/{inner}" if inner else name for inner in stream.leaf_names()]
        return found

    @cached_property
    def _first_leaf(self) -> list[int]:
        counts = [len(stream.leaf_names()) for _, stream in self.parts]
        return [sum(counts[:i]) for i in range(len(counts))]

    @cached_property
    def lengths(self) -> list[int]:
        """Samples of every stream in an epoch of its own."""
        return [stream.axis(0) // stream.stride for stream in self.banning]

    # The run

    @cached_property
    def course(self) -> Course:
        """The epochs of the run; with phases there is one."""
        stop, lengths = self.stop, self.elements if self.phases is not None else self.lengths
        has_rests = stop == "all_exhausted_without_replacement" and self._group > 1 and self.phases is None
        size, period = self.size if self.is_bound else 0, self.period or 1024
        rules = Rules(tuple(lengths), stop, period, self.seed, size, self.tail, has_rests, self.phases is not None, self._regimes)
        return Course(rules)

    def layout(self, epoch: int) -> list[tuple[int, int]]:
        """Stream and element on the stream's endless line at every position."""
        found = self.course.line(epoch)
        if not self.max_epochs and not self.amendments and not self.course.epoch(epoch).is_endless:
            self._check(self.course.epoch(epoch), found)
        return found

    @property
    def _group(self) -> int:
        return (self.size or 1) if self.unit == "batch" else 1

    def _check(self, epoch: Epoch, found: list[tuple[int, int]]) -> None:
        """Every stream's elements come once, none is left out, and every record once where that is the policy."""
        local = sorted((which, element - epoch.taken[which]) for which, element in found)
        assert local == [(k, i) for k, given in enumerate(epoch.counts) for i in range(given)]
        if self.stop == "all_exhausted_without_replacement" and not self.is_staged:
            weights = self._regimes[0].stages[0].weights
            assert epoch.counts == [n if weight else 0 for n, weight in zip(self.lengths, weights, strict=True)]

    @property
    def _regimes(self) -> tuple[Regime, ...]:
        """What holds from the beginning, and from every amendment on."""
        caps: dict[str, Fraction] = {}
        found = [Regime(0, self._stages(), self._caps(caps, self.max_epochs))]
        names = [name for name, _ in self.parts]
        count = self.num_first
        for step, weights, added, new in self.amendments:
            count += len(added)
            shares = self._shares(weights, names[:count])
            start, stages = step * (self.size or 1), (Stage(None, shares, self._group, 1),)
            if self.phases is not None:
                start, stages = self._rest_of_phases(step, shares)
            found.append(Regime(start, stages, self._caps(caps, new)))
        return tuple(found)

    @property
    def num_first(self) -> int:
        """Streams that are there from the beginning."""
        return len(self.parts) - sum(len(amendment.added) for amendment in self.amendments)

    def _caps(self, caps: dict[str, Fraction], new: dict[str, float] | None) -> tuple[int, ...]:
        caps |= {name: Fraction(str(epochs)) for name, epochs in (new or {}).items()}
        lengths = self.elements if self.phases is not None else self.lengths
        return tuple(
            math.floor(caps[name] * length) if name in caps else UNCAPPED
            for (name, _), length in zip(self.parts, lengths, strict=True)
        )

    def _shares(self, weights: Any, names: list[str]) -> list[Fraction]:
        """Of the samples, for those streams; 0 for those that are added later."""
        count = len(names)
        lengths = self.elements if self.phases is not None else self.lengths
        means = None if self.by is None else [mean_tokens(stream, self.by) for stream in self.banning[:count]]
        given = None if weights is None else [weights[name] for name in names]
        return sample_weights(given, lengths[:count], means, self.temperature) + [Fraction(0)] * (len(self.parts) - count)

    def _stages(self) -> tuple[Stage, ...]:
        """Those without amendments."""
        names = [name for name, _ in self.parts[: self.num_first]]
        if self.phases is not None:
            return tuple(
                Stage(
                    steps * phase.batch_size // group,
                    self._shares(self.weights if phase.weights is None else phase.weights, names),
                    group,
                    phase.seq_len,
                )
                for phase, steps in zip(self.phases, num_steps(self.phases, sum(self.elements[: self.num_first])), strict=True)
                for group in [phase.batch_size if self.unit == "batch" else 1]
            )
        if not self.is_staged:
            return (Stage(None, self._shares(self.weights, names), self._group, 1),)
        steps = [step for step, _ in self.weights]
        draws = [(high - low) * (self.size or 1) // self._group for low, high in pairwise(steps)]
        return tuple(
            Stage(count, self._shares(weights, names), self._group, 1)
            for count, (_, weights) in zip([*draws, None], self.weights, strict=True)
        )

    def _rest_of_phases(self, step: int, shares: list[Fraction]) -> tuple[int, tuple[Stage, ...]]:
        """The sample at which a step begins, and the stages from there on, with other weights."""
        assert self.phases is not None
        start, stages, counts = 0, list(self._stages()), num_steps(self.phases, sum(self.elements[: self.num_first]))
        if step >= sum(counts):
            raise AmendmentError("the phases have")
        for phase, steps in zip(self.phases, counts, strict=True):
            here = min(step, steps)
            start, step = start + here * phase.batch_size, step - here
            stages[0] = stages[0]._replace(draws=stages[0].draws - here * phase.batch_size // stages[0].group)
            if here < steps:
                break
            stages.pop(0)
        return start, tuple(stage._replace(weights=shares) for stage in stages)

    def axis(self, epoch: int) -> int:
        found = self.course.epoch(epoch)
        return 1 << 62 if found.is_endless else found.length

    def sample(self, epoch: int, position: int, step: int, length: int = 0, drawn: Draw = None) -> Sample:
        if self.phases is not None:
            which, element = self.phase_line[position]
        else:
            which, element = self.layout(epoch)[position]
        stream, drawn = self.banning[which], drawn or (epoch, position)
        if length:
            turn, place = divmod(element, stream.axis(0))
            found = stream.sample(turn, place, step, length if isinstance(stream, Sequences) else 0, drawn)
        else:
            turn, place = divmod(element, self.lengths[which])
            if isinstance(stream, Mix):  # its epochs may differ in length only where it is bound, which is refused
                turn, place = divmod(element, stream.axis(0))
            found = stream.sample(turn, place * stream.stride, step, 0, drawn)
        return replace(found, leaf=self._first_leaf[which] + found.leaf)

    # Phases

    @cached_property
    def elements(self) -> list[int]:
        return [stream.axis(0) for stream in self.banning]

    @property
    def phase_line(self) -> list[tuple[int, int]]:
        """Stream and first element of every sample of a curriculum."""
        return self.course.line(0)


class Amended(NamedTuple):
    """A change to a mixture from a step on: weights, streams that are added, caps."""

    step: int
    weights: dict[str, float] | None = None
    added: tuple[str, ...] = ()
    max_epochs: dict[str, float] | None = None


class NoMeanError(Exception):
    """A stream whose samples have no mean number of tokens."""


def mean_tokens(stream: Stream, by: str) -> Fraction:
    """Tokens of a sample, or elements of a field."""
    if isinstance(stream, Mix):
        counts = stream.course.epoch(0).counts
        means = [mean_tokens(part, by) for _, part in stream.parts]
        return sum((mean * count for mean, count in zip(means, counts, strict=True)), Fraction(0)) / max(1, sum(counts))
    if isinstance(stream, Sequences) and by == "tokens":
        if not isinstance(stream, Packs):
            return Fraction(stream.length)
        found = stream.epoch(0, stream.length)
        return Fraction(sum(size for pieces in found for _, _, size in pieces), max(1, len(found)))
    forms = stream.forms()
    changing = [name for name, form in forms.items() if form.kind != "fixed"]
    name = by
    if by == "tokens" and "tokens" not in forms:
        if len(changing) != 1:
            raise NoMeanError
        name = changing[0]
    if name not in forms:
        raise NoMeanError
    if forms[name].kind == "fixed":
        return Fraction(math.prod(forms[name].shape))
    if not isinstance(stream, Records) or stream.ordered.method not in ("in_order", "shuffle", "sample"):
        raise NoMeanError
    return Fraction(sum(map(num_elements, stream.table.columns[name])), max(1, stream.table.length))


def num_steps(phases: Sequence[Phase], elements: int) -> list[int]:
    """Steps of every phase; one given in epochs has whole batches only."""
    return [
        phase.steps
        if phase.steps is not None
        else math.floor(Fraction(str(phase.epochs)) * elements / (phase.batch_size * phase.seq_len))
        for phase in phases
    ]


# Batches


@dataclass(frozen=True)
class Place:
    """Where a run stands: the next batch is that of ``step`` and begins at ``position`` of ``epoch``."""

    epoch: int = 0
    position: int = 0
    step: int = 0


Cell = tuple[int, int, int] | None
"""Epoch, position and length of a sample (0: that of the stream); None fills a batch up."""


class Job:
    """A stream in batches of one size."""

    def __init__(self, stream: Stream, size: int, tail: str) -> None:
        self.stream, self.size, self.tail = stream.bind(size, tail), size, tail

    def settle(self, place: Place) -> Place | None:
        """The place of the next batch: where nothing is left of an epoch, the next one. None: there is no batch at all."""
        for _ in range(20):
            if self.tail == "wrap":
                if 0 <= place.position < self.stream.axis(place.epoch):
                    return place if self._is_filled(place) else None
            else:
                if self._has_batch(place):
                    return place
                if place.position == 0 and not isinstance(self.stream, Mix):
                    return None
            place = Place(place.epoch + 1, 0, place.step)
        return None

    def _has_batch(self, place: Place) -> bool:
        """Whether what is left of an epoch is one, where batches end with it."""
        left = (self.stream.axis(place.epoch) - place.position) // self.stream.stride
        return left >= self.size or (left > 0 and self.tail != "drop")

    def cells(self, place: Place) -> list[Cell]:
        """The samples of the batch at a place where one begins."""
        stride = self.stream.stride
        if self.tail == "wrap":
            return self._wrapped(place)
        left = (self.stream.axis(place.epoch) - place.position) // stride
        found: list[Cell] = [(place.epoch, place.position + i * stride, 0) for i in range(min(left, self.size))]
        return found + [None] * (self.size - len(found) if self.tail == "pad" else 0)

    def _wrapped(self, place: Place) -> list[Cell]:
        found: list[Cell] = []
        epoch, position = place.epoch, place.position
        while len(found) < self.size:
            while position >= self.stream.axis(epoch):
                epoch, position = epoch + 1, position - self.stream.axis(epoch)
                if epoch > place.epoch + 20 * self.size * self.stream.stride:
                    raise NothingLeftError
            found.append((epoch, position, 0))
            position += self.stream.stride
        return found

    def _is_filled(self, place: Place) -> bool:
        """Whether a run that caps end has a whole batch from there on."""
        if not isinstance(self.stream, Mix) or not self.stream.has_caps:
            return True
        left, epoch = -place.position, place.epoch
        while left < self.size and self.stream.axis(epoch):
            left, epoch = left + self.stream.axis(epoch), epoch + 1
        return left >= self.size

    def after(self, place: Place) -> Place | None:
        """The place of the batch behind that at a place; None where no batch follows."""
        return self.settle(self.behind(place))

    def behind(self, place: Place) -> Place:
        """Where the run stands behind the batch at a place: at the end of an epoch, at the start of the next one."""
        cells = [cell for cell in self.cells(place) if cell is not None]
        epoch, position, _ = cells[-1]
        position += self.stream.stride
        if self.tail == "wrap":
            while self.stream.axis(epoch) and position >= self.stream.axis(epoch):
                epoch, position = epoch + 1, position - self.stream.axis(epoch)
        elif not self._has_batch(Place(epoch, position)):
            epoch, position = epoch + 1, 0
        return Place(epoch, position, place.step + 1)

    def rest(self, place: Place | None) -> Iterator[Place]:
        """The places of the batches of ``for batch in loader``: those that begin in the epoch."""
        epoch = None if place is None else place.epoch
        while place is not None and place.epoch == epoch:
            yield place
            place = self.after(place)

    def forms(self, place: Place) -> dict[str, Form]:
        return self.stream.forms()


class PhasedJob(Job):
    """A stream in the batches of a curriculum. The step is all there is to a place."""

    def __init__(self, stream: Stream, phases: tuple[Phase, ...]) -> None:
        self.phases = phases
        self.tail = "keep"
        self.stream = replace(stream, phases=phases) if isinstance(stream, Mix | Packs) else stream
        is_mix = isinstance(self.stream, Mix)
        elements = sum(self.stream.elements[: self.stream.num_first]) if is_mix else stream.axis(0)
        self.shapes: list[tuple[int, int]] = []  # of every step: samples, and elements of a sample
        for phase, steps in zip(phases, num_steps(phases, elements), strict=True):
            self.shapes += [(phase.batch_size, phase.seq_len)] * steps
        if isinstance(self.stream, Mix):  # the line of a mixture may end before the phases do
            most = len(self.stream.phase_line)
            while sum(size for size, _ in self.shapes) > most:
                self.shapes.pop()
        elif elements == 0:
            self.shapes = []

    @property
    def _counts_samples(self) -> bool:
        return isinstance(self.stream, Packs) or not isinstance(self.stream, Sequences)

    def place(self, step: int) -> Place:
        """The place of a step, or that behind the last one."""
        before = sum(size * (1 if self._counts_samples else length) for size, length in self.shapes[:step])
        if isinstance(self.stream, Mix | Packs):
            return Place(0, before, step)
        axis = self.stream.axis(0)
        return Place(*divmod(before, axis), step) if axis else Place(0, 0, step)

    def settle(self, place: Place) -> Place | None:
        return self.place(place.step)

    def cells(self, place: Place) -> list[Cell]:
        size, length = self.shapes[place.step]
        found: list[Cell] = []
        for i in range(size):
            if isinstance(self.stream, Mix | Packs):
                found.append((0, place.position + i, length))
                continue
            axis = self.stream.axis(0)
            start = place.epoch * axis + place.position + i * (1 if self._counts_samples else length)
            found.append((*divmod(start, axis), length))
        return found

    def after(self, place: Place) -> Place | None:
        return self.place(place.step + 1)

    def rest(self, place: Place | None) -> Iterator[Place]:
        for step in range(place.step if place else 0, len(self.shapes)):
            yield self.place(step)

    def forms(self, place: Place) -> dict[str, Form]:
        length = self.shapes[place.step][1]
        is_cut = any(isinstance(stream, Sequences) for stream in self.stream.streams())
        forms = self.stream.forms()
        return {name: replace(form, shape=shape_of(name, length)) for name, form in forms.items()} if is_cut else forms


def samples(job: Job, place: Place) -> list[Sample | None]:
    """What the batch at a place holds."""
    return [None if cell is None else job.stream.sample(cell[0], cell[1], place.step, cell[2]) for cell in job.cells(place)]


# Balance

Balanced = tuple[str, int]
"""By what, and in how many micro-batches."""

WIDTH = 1
"""Of the model, so that squares of lengths count."""


def num_elements(value: Any) -> int:
    """The length of a value of varying length; 0 where it is missing."""
    return len(value.encode() if isinstance(value, str) else value or ())


def varying(table: Table) -> list[str]:
    """The fields by whose length records may be measured."""
    names = [name for name, form in table.forms.items() if form.kind != "fixed"]
    plain = [name for name in names if name.rpartition(".")[2] != "loss_mask"]
    return plain if len(names) == 2 and len(plain) == 1 else names


def leaves(stream: Stream) -> list[Stream]:
    return [one for _, part in stream.parts for one in leaves(part)] if isinstance(stream, Mix) else [stream]


def cost(stream: Stream, row: Sample, by: str) -> Any:
    """What a sample costs: by the record that was to come, if that could be read."""
    source = leaves(stream)[row.leaf]
    if isinstance(source, Packs):
        return sum(n * (12 * WIDTH + n) if by == "attention" else n for n in row.pieces)
    assert isinstance(source, Records)
    name = varying(source.table)[0] if by in ("attention", "tokens") else by
    value = source.table.columns[name][row.planned]
    if source.table.forms[name].kind == "fixed":
        return value or 0
    n = num_elements(value)
    return n * (12 * WIDTH + n) if by == "attention" else n


NAMES: dict[str, Any] = {}
"""What the expressions of cases may use; filled by the module that runs them."""
NAMES["data"] = data
