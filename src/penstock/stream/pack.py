"""PackStream: documents put together into sequences of one length, with padding where nothing fits."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from fractions import Fraction
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from penstock.argument import MAX_LENGTH, IntArray, as_ids, set_whole
from penstock.batch import Batch, Outputs, fixed_output
from penstock.formats.token_line import DocumentBounds, as_elements
from penstock.native import _core
from penstock.order import Balance, BlockShuffle, Order, Pack, Phase, Pieces, Random, Sequential, Shuffle, Weighted
from penstock.records import Source
from penstock.row_table import OwnRows, RowTable
from penstock.schema import Field
from penstock.stream.ban_file import with_bans
from penstock.stream.cost import PieceCosts
from penstock.stream.documents import DocumentTable, are_records, find_bounds
from penstock.stream.picks import SpanPicks
from penstock.stream.sequence import (
    LOSS_MASK,
    TOKENS,
    DocumentLine,
    MaskLine,
    TokenLine,
    mask_of,
    need_token_field,
)
from penstock.stream.stream import Bans, PartStream, RecordStream, describe, order_recipe

__all__ = ["PackOptions", "PackStream", "flatten_pack", "make_pack"]

ADDED = ("pad", "bos", "eos")
PADDING, BOS, EOS = -1, -2, -3
"""The tokens that are added, and what runs of them begin with, which are not read."""

MOST_BLOCKS = 1 << 20
"""Blocks of documents, where the order has none."""

MADE = {"segment": "i4", "position": "i4", "labels": "i8", "cu_seqlens": "i4", "max_seqlen": "i4"}
"""The fields that are made of the tokens."""

FIELDS = {**MADE, LOSS_MASK: "u1"}
IGNORED = -100
"""The label of a token whose next one does not count."""


@dataclass(frozen=True)
class PackOptions:
    """How documents are packed: what :meth:`RecordStream.pack` takes."""

    length: int
    split: str
    long: str
    window: int | None
    multiple_of: int
    fields: tuple[str, ...]
    pad: Any
    bos: Any
    eos: Any
    first_segment: int

    def __post_init__(self) -> None:
        set_whole(self, "length", least=1)
        set_whole(self, "multiple_of", least=1)
        set_whole(self, "first_segment", most=1)

    @property
    def extra(self) -> int:
        """Tokens that are added to every document."""
        return (self.bos is not None) + (self.eos is not None)


def make_pack(stream: RecordStream, options: PackOptions, field: str | None, separator: Any) -> "PackStream":
    """The documents of a token file, or of a field of texts, byte strings or ragged arrays."""
    source = stream.source
    if not isinstance(source, TokenLine):
        if separator is not None:
            raise ValueError("separator finds the documents of token files; eos= adds a token to every text or ragged array")
        line = DocumentLine(source, field, None)
        return PackStream(source, line, stream.order, options, bans=stream.bans)
    need_token_field(source, field)
    known = _LineDocuments(source, None if separator is None else as_elements("separator", separator, source.dtype))
    if stream.bans and not are_records(source, known.found.bounds):
        raise ValueError("records were banned that are not documents: pack first, then ban documents with .without(...)")
    told = "" if known.separator is None else str(known.separator.tolist())
    return PackStream(source, source, stream.order, options, bans=stream.bans, bounds=known, separator=told)


@dataclass(frozen=True, eq=False)
class _LineDocuments:
    """Where the documents of a token file are, the separator that ends each included. They are found again in a pickled copy."""

    line: Any
    separator: npt.NDArray[Any] | None

    @cached_property
    def found(self) -> DocumentBounds:
        return find_bounds(self.line, self.separator)

    def __getstate__(self) -> dict[str, Any]:
        return {"line": self.line, "separator": self.separator}


class PackStream(PartStream):
    """Sequences of a fixed length, each put together from documents by best fit; what ``stream.pack`` gives.

    An epoch has every token once, in as many sequences as any other epoch. ``segment`` is the number of a token's document
    within its sequence (-1 on padding), ``position`` its place in the document as far as the sequence shows it, ``labels`` the
    next token of the document (-100 where a piece of it ends and on padding). ``loss_mask`` is that of the data, a byte for every
    token: the mask travels with its token. If the data has one, labels are -100 where the mask of the *next* token, which the label
    is, is 0, whether ``loss_mask`` is delivered or not. Of added tokens, EOS counts; BOS, which nothing predicts, and padding do
    not. ``cu_seqlens`` and ``max_seqlen`` are what
    attention of varying length takes, of each sequence: where documents and padding end, from 0 on, filled up with the length;
    and the longest of them.

    Plans of groups of documents are made when they are needed, and kept for a while. Safe to use from several threads.

    >>> import penstock as pen
    >>> stream = pen.open({"text": ["abc", "de", "fghi"]}).in_order().pack(5, eos=0)
    >>> batch = next(iter(pen.Loader(stream, batch_size=4)))
    >>> batch["tokens"].tolist()
    [[102, 103, 104, 105, 0], [97, 98, 99, 0, 0], [100, 101, 0, 0, 0], [0, 0, 0, 0, 0]]
    >>> batch["segment"].tolist()
    [[0, 0, 0, 0, 0], [0, 0, 0, 0, -1], [0, 0, 0, -1, -1], [-1, -1, -1, -1, -1]]
    """

    def __init__(
        self,
        source: Source,
        line: TokenLine,
        order: Order,
        options: PackOptions,
        *,
        bans: Bans | tuple[()] = (),
        bounds: "_LineDocuments | None" = None,
        separator: str = "",
        phases: "tuple[_PackPhase, ...] | None" = None,
    ) -> None:
        self._source, self._line, self._given, self._options = source, line, order, options
        self._bans, self._bounds, self._separator, self._phases = Bans(bans), bounds, separator, phases
        self._added = np.concatenate([_element(name, getattr(options, name), line.dtype) for name in ADDED])
        self._mask: TokenLine | None = None
        if not {LOSS_MASK, "labels"}.isdisjoint(options.fields):
            self._mask = mask_of(source, line, is_needed=LOSS_MASK in options.fields)
        if "labels" in options.fields and not np.can_cast(line.dtype, np.int64):
            raise ValueError(f"labels are whole numbers of 64 bits, and tokens are {line.dtype}: leave labels out of fields")
        if isinstance(order, Random | Weighted):
            raise ValueError("documents drawn with replacement are another number of tokens in every epoch: use shuffle()")
        if not isinstance(order, Sequential | Shuffle | BlockShuffle) or len(order) != len(source):
            raise TypeError(f"documents cannot be packed in the order {order!r}: use in_order() or shuffle()")
        if isinstance(order, BlockShuffle) and order.lanes > 1:
            raise ValueError(f"packs have no lanes, and the order has {order.lanes}: use shuffle(...) without lanes")
        if isinstance(self._mask, MaskLine):
            _ = self._mask.bounds  # every document has as many masks as tokens
        self._sequences = len(self.packing)

    @cached_property
    def packing(self) -> Pack:
        """Which documents are in which sequences."""
        options, found = self._options, self._document_bounds
        block = self._block(len(found.bounds) - 1)
        return Pack(
            found.bounds,
            options.length,
            seed=None if isinstance(self._given, Sequential) else self.seed,
            block=block,
            window=options.window,
            split=options.split,
            extra=options.extra,
            multiple_of=options.multiple_of,
            long=options.long,
            block_bounds=found.block_bounds if block == found.block else None,
            need=found.need,
        )

    @property
    def _document_bounds(self) -> DocumentBounds:
        return DocumentBounds(cast(DocumentLine, self._line).bounds) if self._bounds is None else self._bounds.found

    @property
    def _has_records(self) -> bool:
        """Whether documents are the records of the source; otherwise rows are tokens."""
        return self._bounds is None

    def _block(self, documents: int) -> int:
        """Documents that stay together: about as many as a block of the order holds. In other orders, as few as keep a seek fast:
        the sizes of all blocks are added up in every epoch.
        """
        if not isinstance(self._given, BlockShuffle):
            return max(1, -(-documents // MOST_BLOCKS))
        return max(1, self._given.block * documents // max(1, len(self._source)))

    @property
    def source(self) -> Source:  # type: ignore[override]
        return self._source

    @cached_property
    def order(self) -> Order:  # type: ignore[override]
        """The order of the records or tokens, for those who read ahead."""
        given, pack = self._given, self.packing
        if isinstance(given, Sequential):
            return _InGroups(
                len(self._source) if self._has_records else self._line.num_tokens, pack=pack, is_tokens=not self._has_records
            )
        if not self._has_records:
            return Shuffle(self._line.num_tokens, seed=self.seed)  # all that is known: tokens come from all over the file
        if isinstance(given, BlockShuffle):
            return _BlocksInGroups(given.n, block=given.block, seed=given.seed, window=pack.group_blocks, pack=pack)
        return given

    @property
    def counts_units(self) -> bool:
        """Positions are tokens, the order is one of documents."""
        return False

    def row_tables(self) -> Sequence[RowTable]:
        return self._source.tables() if self._has_records else [table for table, _ in self.field_tables().values()]

    def field_tables(self) -> Mapping[str, tuple[RowTable, str]]:
        """Tokens are rows of their own, and so are their masks."""
        leaves = {name: line if self._has_records else getattr(line, "token_leaf", None) for name, line in self._lines.items()}
        return {} if None in leaves.values() else {name: (OwnRows(leaf), name) for name, leaf in leaves.items()}

    @property
    def _lines(self) -> dict[str, TokenLine]:
        """The lines that are read, by the names of the fields."""
        return {TOKENS: self._line} if self._mask is None else {TOKENS: self._line, LOSS_MASK: self._mask}

    def units_of(self, picks: SpanPicks) -> IntArray:
        """The documents that are read; of a token file, the first and the last token of runs."""
        is_read = picks.starts >= 0
        if self._has_records and picks.documents is not None:
            return np.ascontiguousarray(picks.documents[is_read, 0])
        starts = picks.starts[is_read]
        return np.stack([starts, starts + picks.counts[is_read] - 1], axis=1).reshape(-1)

    def rows_of(self, picks: SpanPicks) -> tuple[IntArray, IntArray]:
        units = self.units_of(picks)
        return (units, units + 1) if self._has_records else (units[::2], units[1::2] + 1)

    @property
    def has_sequences(self) -> bool:
        return True

    def mean_tokens(self, field: str | None = None) -> Fraction:
        """Padding is no token."""
        if field not in (None, TOKENS):
            return super().mean_tokens(field)
        return Fraction(self.packing.num_packed, max(1, self._sequences))

    def packing_facts(self, groups: int) -> dict[str, float]:
        pack, room = self.packing, max(1, self._sequences * self._options.length)
        return {
            "padding": 1 - pack.num_packed / room,
            "truncated": 1 - pack.num_packed / max(1, pack.num_tokens),
            "cut": pack.cut_share(groups),
            "documents": pack.num_documents / max(1, self._sequences),
        }

    @property
    def packed_length(self) -> int:
        return self._options.length

    def prepare(self) -> None:
        """Documents are known."""

    @property
    def axis(self) -> int:
        """Tokens of an epoch, padding included. With phases, which may change the length, samples of the run."""
        return self._sequences * self._options.length if self._phases is None else MAX_LENGTH

    @property
    def elements(self) -> int:
        return self._sequences * self._options.length

    @property
    def stride(self) -> int:
        """Tokens of a sequence."""
        return self._options.length

    @property
    def num_samples(self) -> int:
        return self._sequences

    @property
    def counts_samples(self) -> bool:
        return self._phases is not None

    @property
    def seed(self) -> int:
        return int(getattr(self._given, "seed", 0))

    @cached_property
    def schema(self) -> Mapping[str, Field]:
        length = self._options.length
        shapes = {"cu_seqlens": (length + 1,), "max_seqlen": ()}
        return {
            name: Field(self._line.dtype if name == TOKENS else FIELDS[name], shapes.get(name, (length,)))
            for name in self._options.fields
        }

    @property
    def read_schema(self) -> Mapping[str, Field]:
        """The fields that are read; :meth:`complete` makes the others."""
        return {name: Field(line.dtype, (self._options.length,)) for name, line in self._lines.items()}

    def plan(self) -> dict[str, Any]:
        options = self._options
        added = [None if getattr(options, name) is None else token for name, token in zip(ADDED, self._added.tolist(), strict=True)]
        made = f"pad, bos, eos {added}, fields {', '.join(options.fields)}, segments from {options.first_segment}"
        where = {"field": cast(DocumentLine, self._line).field} if self._has_records else {"separator": self._separator}
        return {"order": describe(self._given), "pack": repr(self.packing), "made": made, **where, **self._bans.describe()}

    def recipe(self) -> Any:
        calls, options = order_recipe(self._given), self._options
        if calls is None:
            return None
        tokens = {
            name: None if getattr(options, name) is None else token for name, token in zip(ADDED, self._added.tolist(), strict=True)
        }
        asked = {name: getattr(options, name) for name in ("length", "split", "long", "window", "multiple_of", "first_segment")}
        asked |= {"fields": list(options.fields), "pad": tokens["pad"] or 0, "bos": tokens["bos"], "eos": tokens["eos"]}
        if self._has_records:
            asked["field"] = cast(DocumentLine, self._line).field
        elif self._bounds is not None and self._bounds.separator is not None:
            asked["separator"] = self._bounds.separator.tolist()
        return [*calls, ("pack", asked), *self._bans.recipe()]

    def without(self, ids: Any, *, from_step: int = 0) -> "PackStream":
        """The same stream in which some documents, given by number, no longer come from ``from_step`` on. Nothing moves: padding is
        in their place. Instead of ids, the name of a ban file.
        """
        if isinstance(ids, str | os.PathLike):
            return with_bans(self, ids, from_step)
        return self._remade(bans=self._bans.with_ids(ids, from_step, self.packing.num_documents))

    def unbanned(self, from_step: int) -> "PackStream":
        return self._remade(bans=self._bans.before(from_step))

    def _remade(self, **changed: Any) -> "PackStream":
        options = changed.pop("options", self._options)
        kept = {"bans": self._bans, "bounds": self._bounds, "separator": self._separator, "phases": self._phases}
        return PackStream(self._source, self._line, self._given, options, **(kept | changed))

    # Phases

    def with_phases(self, phases: Sequence[Phase]) -> "PackStream":
        """The same for a run whose sequences change their length. Where they do, the rest of the group of documents that the run
        stands in is left out, and the next group is packed to the new length: no document comes twice in an epoch.
        """
        made: list[_PackPhase] = []
        sample = begin = 0
        before: Pack | None = None
        for phase in phases:
            pack = self._sized(phase.seq_len).packing
            steps = phase.num_steps(self.elements)
            if steps and self.elements and len(pack) == 0:
                raise ValueError(
                    f"a phase has sequences of {phase.seq_len} tokens, and no document is that short: drop fewer of them"
                )
            if steps and before is not None and pack.length != before.length:
                begin = _same_place(before, begin, pack)
            made.append(_PackPhase(sample, begin))
            if steps:  # one without any moves nothing
                sample, begin, before = sample + steps * phase.batch_size, begin + steps * phase.batch_size, pack
        return self._remade(phases=tuple(made))

    def sized(self, seq_len: int) -> "PackStream":
        if seq_len != self._options.length and self._phases is None:
            raise ValueError(
                f"a mixture of packs keeps the length of its sequences, {self._options.length}, in every phase, got a phase of "
                f"{seq_len}: change the length of a single packed stream, or mix .sequences(...)"
            )
        return self._sized(seq_len)

    def _sized(self, seq_len: int) -> "PackStream":
        if seq_len == self._options.length:
            return self
        return self._remade(options=replace(self._options, length=seq_len, window=self.packing.window))

    def costing(self, balance: Balance) -> PieceCosts:
        return PieceCosts.checked(balance)

    # Where tokens are

    def locate_at(self, epoch: int, positions: IntArray, step: int = 0) -> SpanPicks:
        if self._phases is not None:
            return self._runs(*self._phased(positions), step)
        sequences = positions // self._options.length
        if np.any(sequences * self._options.length != positions):
            raise ValueError(
                f"a packed sequence begins at a multiple of {self._options.length} tokens, got {positions[:4].tolist()}"
            )
        return self._runs(self.packing.pieces(epoch, sequences), len(sequences), step)

    def _phased(self, positions: IntArray) -> tuple[Pieces, int]:
        """What is in samples of a run with phases."""
        if positions.size == 0 or self._phases is None:
            return self.packing.pieces(0, positions), 0
        firsts = [phase.first_sample for phase in self._phases]
        phase = self._phases[int(np.searchsorted(firsts, positions[0], side="right")) - 1]
        epochs, sequences = np.divmod(positions - phase.first_sample + phase.first_sequence, self._sequences)
        parts = [self.packing.pieces(epoch, sequences[epochs == epoch]) for epoch in np.unique(epochs).tolist()]
        return Pieces.join(parts), len(positions)  # positions rise, and epochs with them

    def _runs(self, pieces: Pieces, count: int, step: int) -> SpanPicks:
        """Pieces as runs of tokens: what is added in front, of the data, what is added behind, and padding. Banned documents are
        padding.
        """
        options, banned = self._options, self._bans.at(step) if self._bans else pieces.first[:0]
        added = options.bos is not None, options.eos is not None, options.multiple_of
        most = _core.most_pack_runs(pieces.document.size, count, *added, banned.size > 0)
        columns = pieces.first, pieces.document, pieces.offset, pieces.count
        first, runs = np.empty(count + 1, np.int64), np.empty((4, most), np.int64)
        made = _core.make_pack_runs(*columns, self.packing.bounds, options.length, *added, banned, first, *runs)
        return SpanPicks(options.length, runs[0, :made], runs[1, :made], first, runs[2:, :made].T)

    def where(self, record: Any, *, epochs: range = range(1)) -> list[tuple[int, int]]:
        """(epoch, position) of every sequence with tokens of a document in those epochs, bans apart."""
        if self._phases is not None:
            raise TypeError("with phases that may change their length, ask the stream without phases where a document is")
        number = int(as_ids(record, self.packing.num_documents)[0])
        length = self._options.length
        return [(epoch, int(one) * length) for epoch in epochs for one in self.packing.sequences_of(epoch, number)]

    def holds(self, picks: SpanPicks, record: Any) -> bool:
        return picks.documents is not None and bool(np.any(picks.documents[:, 0] == as_ids(record, self.packing.num_documents)[0]))

    @cached_property
    def documents(self) -> DocumentTable:
        """The documents, by the numbers that ``explain``, ``where`` and ``without`` use."""
        is_record = self._has_records or are_records(self._source, self._document_bounds.bounds)
        return DocumentTable(self._source, self._line, self._document_bounds, are_records=is_record)

    # Reading

    def fetch(self, picks: SpanPicks, out: Outputs | None = None) -> Batch:
        is_read = picks.starts >= 0
        starts, counts = picks.starts[is_read], picks.counts[is_read]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = (np.cumsum(picks.counts) - picks.counts)[is_read]
        places = np.arange(offsets[-1]) + np.repeat(places - offsets[:-1], counts)
        batch: Batch = {}
        for name, field in self.read_schema.items():
            read = np.empty(offsets[-1], field.dtype)
            self._lines[name].read_spans(starts, offsets, read)
            batch[name] = fixed_output(name, field, len(picks), out or {})
            batch[name].reshape(-1)[places] = read
        return self.complete(batch, picks, out)

    @property
    def completes(self) -> bool:
        """Padding and added tokens are not read: the place of a run that is not is filled with zeros."""
        return len(self._options.fields) > 1 or bool(self._added.any())

    @property
    def completion(self) -> object:
        """The same for sequences of all packs with these tokens and fields."""
        options = self._options
        return self._added.tobytes(), options.first_segment, options.fields, options.multiple_of, self._mask is not None

    def is_within_pages(self, starts: range) -> bool:
        """There are no pages: documents end anywhere."""
        return False

    def complete(self, batch: Batch, picks: SpanPicks | None, out: Outputs | None = None) -> Batch:
        """Sequences that were read, with padding and added tokens in them, and with the fields that are made of that. ``picks`` may
        be left out for no sequences.
        """
        tokens, schema = batch[TOKENS], self.schema
        made = {name: fixed_output(name, schema[name], len(tokens), out or {}) for name in self._options.fields if name in MADE}
        segment, position, labels, cu_seqlens, max_seqlen = (made[n].reshape(-1) if n in made else None for n in MADE)
        first = self._options.first_segment
        if len(tokens):
            assert picks is not None
            assert picks.documents is not None
            _core.fill_pack_fields(
                tokens.reshape(-1).view(np.uint8),
                tokens.itemsize,
                tokens.dtype.kind == "i",
                self._added.view(np.uint8),
                picks.starts,
                picks.counts,
                np.ascontiguousarray(picks.documents[:, 0]),
                self._options.length,
                (first, first - 1),
                segment,
                position,
                labels,
                self._options.multiple_of,
                cu_seqlens,
                max_seqlen,
            )
            if LOSS_MASK in batch:
                _apply_mask(batch[LOSS_MASK].reshape(-1), picks, labels)
        made |= batch
        return {name: made[name] for name in self._options.fields}

    def close(self) -> None:
        self._source.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("packing", "order", "documents", "schema")}


def flatten_pack(batch: Batch) -> None:
    """Make a batch of at most one sequence what attention of varying length takes: ``cu_seqlens`` without the entries that fill it
    up, and ``max_seqlen`` as one number. Everything else stays.
    """
    if "cu_seqlens" in batch:
        row = batch["cu_seqlens"].reshape(-1)
        batch["cu_seqlens"] = row[: np.searchsorted(row, row[-1]) + 1] if row.size else np.zeros(1, np.int32)
    if "max_seqlen" in batch:
        batch["max_seqlen"] = batch["max_seqlen"].max(initial=0).reshape(())


@dataclass(frozen=True)
class _InGroups(Sequential):
    """Records, or tokens, in sequence, as those see it who read ahead: what is in a group comes in any order, so that all of it is
    at the place where the group begins.
    """

    pack: Pack | None = dataclass_field(default=None, compare=False, repr=False)
    is_tokens: bool = False

    def positions(self, epoch: int, ids: Any) -> IntArray:
        pack = cast(Pack, self.pack)
        documents = np.searchsorted(pack.bounds, ids, side="right") - 1 if self.is_tokens else ids
        first = pack.places(epoch, documents) * (pack.group_blocks * pack.block)
        return pack.bounds[first] if self.is_tokens else first


@dataclass(frozen=True)
class _BlocksInGroups(BlockShuffle):
    """The same of shuffled blocks."""

    pack: Pack | None = dataclass_field(default=None, compare=False, repr=False)

    def positions(self, epoch: int, ids: Any) -> IntArray:
        pack = cast(Pack, self.pack)
        return pack.places(epoch, ids) * (pack.group_blocks * pack.block)


@dataclass(frozen=True)
class _PackPhase:
    """Sample ``first_sample`` of the run is sequence ``first_sequence`` of all epochs of the phase's length."""

    first_sample: int
    first_sequence: int


def _same_place(pack: Pack, sequence: int, other: Pack) -> int:
    """The sequence of another length with which the first group begins that the run has not begun, both counted over all epochs."""
    epoch, place = divmod(sequence, max(1, len(pack)))
    group = int(np.searchsorted(pack.edges(epoch), place, side="left"))
    return epoch * len(other) + int(other.edges(epoch)[group])


def _apply_mask(mask: npt.NDArray[np.uint8], picks: SpanPicks, labels: IntArray | None) -> None:
    """Complete the mask of tokens that are not of the data, and leave out the labels that do not count: those of tokens in front of
    one whose mask is 0.
    """
    ends = np.cumsum(picks.counts)
    added = picks.starts < 0
    lengths = picks.counts[added]
    places = np.arange(lengths.sum()) + np.repeat(ends[added] - np.cumsum(lengths), lengths)
    mask[places] = np.repeat(picks.starts[added] == EOS, lengths)
    if labels is not None:
        shifted = labels[:-1]  # without a branch for every token: a sixth of the time of numpy.copyto(where=) with masks by lot
        shifted -= IGNORED
        np.multiply(shifted, mask[1:] != 0, out=shifted)
        shifted += IGNORED


def _element(name: str, value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """A token of the right type; 0 if there is none."""
    array = as_elements(name, 0 if value is None else value, dtype)
    if array.size != 1:
        raise ValueError(f"{name} must be one token, got {array.size}")
    return array
