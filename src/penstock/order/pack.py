"""Pack: documents put together into sequences of one length, by allotted best fit.

Documents go in groups, and a formula says how many sequences each group has. So any sequence of any epoch is found by planning one
group alone. ``docs/reference/order.md`` has the arithmetic.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.argument import MAX_LENGTH, IntArray, check_positions, set_whole, whole_number
from penstock.native import _core
from penstock.order.permutation import MAX_SEED, Purpose, derive_key

__all__ = ["LONG", "SPLITS", "Pack", "Pieces"]

SPLITS = {"fit": _core.Split.FIT, "always": _core.Split.ALWAYS, "never": _core.Split.NEVER}

LONG = ("error", "truncate", "drop")
"""What split="never" does with documents that are longer than a sequence."""

MOST_PLANS = 8
"""Plans of groups that are kept."""

LEAST_SEQUENCES = 1024
"""Sequences of a group, about, unless a window is given: one of them is padding."""

MOST_ROOMS = 1 << 22
"""Blocks whose room is kept between epochs."""

LEAST_DOCUMENTS = 1 << 14
LEAST_WHOLE_DOCUMENTS = 1 << 16
"""Documents of a group unless a window is given; the second with split="never"."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of documents, sequence by sequence: sequence i has the pieces ``first[i]:first[i + 1]``, in this order. Piece k is
    ``count[k]`` tokens of document ``document[k]`` from ``offset[k]`` on.

    >>> import numpy as np
    >>> from penstock.order import Pack
    >>> pieces = Pack(np.array([0, 3, 8]), 4).pieces(0, [0, 1, 2])
    >>> pieces.first.tolist(), pieces.document.tolist(), pieces.offset.tolist(), pieces.count.tolist()
    ([0, 1, 2, 3], [1, 0, 1], [0, 0, 4], [4, 3, 1])
    """

    first: IntArray
    document: IntArray
    offset: IntArray
    count: IntArray

    def __len__(self) -> int:
        return len(self.first) - 1

    def take(self, sequences: IntArray) -> "Pieces":
        """Some of the sequences."""
        counts = (self.first[1:] - self.first[:-1])[sequences]
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        chosen = np.arange(first[-1]) + np.repeat(self.first[sequences] - first[:-1], counts)
        return Pieces(first, self.document[chosen], self.offset[chosen], self.count[chosen])

    @classmethod
    def join(cls, parts: "Sequence[Pieces]") -> "Pieces":
        """One after the other."""
        counts = np.concatenate([np.diff(part.first) for part in parts])
        columns = zip(*((part.document, part.offset, part.count) for part in parts), strict=True)
        return cls(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), *(np.concatenate(one) for one in columns))


_Places = IntArray | slice


def _take(parts: Sequence[tuple[_core.PackPlan, IntArray, _Places]], count: int) -> Pieces:
    """Sequences of plans by number, each with the places where they come among ``count``."""
    first, total = np.zeros(count + 1, np.int64), 0
    for plan, sequences, places in parts:
        counts = first[1:][places]  # a copy, unless the places are a slice
        total += plan.count(sequences, counts)
        first[1:][places] = counts
    np.cumsum(first, out=first)
    document, offset, counts = np.empty((3, total), np.int64)
    for plan, sequences, places in parts:
        plan.write(sequences, first[:-1][places], document, offset, counts)
    return Pieces(first, document, offset, counts)


def _by_group(edges: IntArray, sequences: IntArray) -> list[tuple[int, _Places]]:
    """The groups in which sequences are, at least one of them, each with the places of its own."""
    if np.all(sequences[1:] >= sequences[:-1]):
        low, high = (np.searchsorted(edges, sequences[[0, -1]], side="right") - 1).tolist()
        cuts = [0, *np.searchsorted(sequences, edges[low + 1 : high + 1]).tolist(), sequences.size]
        return [(low + number, slice(*cut)) for number, cut in enumerate(pairwise(cuts)) if cut[1] > cut[0]]
    groups = np.searchsorted(edges, sequences, side="right") - 1
    order = np.argsort(groups, kind="stable")
    heads = np.flatnonzero(np.diff(groups[order], prepend=-1))
    return [(int(groups[mine[0]]), mine) for mine in np.split(order, heads[1:])]


class _Kept:
    """The values that were made last. Safe to use from several threads and after a fork, without a lock: a value may be made twice.
    Starts empty in a pickled copy. It only saves work.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Any, Any] = {}  # replaced as a whole, never changed

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        values = self._values
        if key not in values:
            self._values = values = {**dict(list(values.items())[1 - self._most :]), key: make()}
        return values[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Kept, (self._most,))


@dataclass(frozen=True, eq=False)
class Pack:
    """Documents in sequences of ``length`` tokens, in an order of their own in every epoch. Document i has the tokens
    ``bounds[i]`` up to ``bounds[i + 1]`` of the data, and ``extra`` more that are added to each, such as one that ends it.

    An epoch has as many sequences as every other, ``len(pack)``, and every token is in one of them once. With ``split="fit"``
    documents are cut if they are longer than a sequence, and otherwise hardly ever; "always" puts them one after the other and cuts
    where sequences end; "never" keeps them whole, and ``long`` says what is done with longer ones: "error", "truncate" or "drop".

    The documents of a group, about ``window`` of them, are packed together. Blocks of ``block`` documents stay together; the blocks
    are permuted by ``seed`` (not at all without one). Pieces take room in multiples of ``multiple_of`` tokens.

    The bounds may be a map of a file: only those of the groups that are planned are read, and, once, those where blocks begin,
    unless ``block_bounds`` has them. ``need(starts, stops)`` is called before bounds [start, stop) of a group are used.

    >>> import numpy as np
    >>> from penstock.order import Pack
    >>> pack = Pack(np.cumsum([0, 3, 9, 2, 5, 1]), 8, seed=7)
    >>> len(pack)
    4
    >>> pieces = pack.pieces(0, np.arange(4))
    >>> [sorted(pieces.document[low:high].tolist()) for low, high in zip(pieces.first[:-1], pieces.first[1:])]
    [[4], [0, 3], [1, 2], [1]]
    """

    bounds: IntArray = field(repr=False)
    length: int
    _: KW_ONLY
    seed: int | None = None
    block: int = 1
    window: int | None = None
    split: str = "fit"
    extra: int = 0
    multiple_of: int = 1
    long: str = "error"
    block_bounds: IntArray | None = field(default=None, repr=False)
    need: Callable[[IntArray, IntArray], None] | None = field(default=None, repr=False)
    _edges: _Kept = field(default_factory=lambda: _Kept(4), init=False, repr=False)
    _plans: _Kept = field(default_factory=lambda: _Kept(MOST_PLANS), init=False, repr=False)

    def __post_init__(self) -> None:
        bounds = np.ascontiguousarray(self.bounds)
        if bounds.ndim != 1 or bounds.size == 0 or bounds.dtype != np.int64:
            raise TypeError(f"expected bounds of documents as one int64 array, got {bounds.dtype} of shape {bounds.shape}")
        object.__setattr__(self, "bounds", bounds)
        set_whole(self, "length", least=1, most=_core.MAX_PACK_LENGTH)
        set_whole(self, "multiple_of", least=1)
        if self.length % self.multiple_of:
            raise ValueError(f"length must be a multiple of multiple_of={self.multiple_of}, got {self.length}")
        if self.seed is not None:
            set_whole(self, "seed", most=MAX_SEED)
        set_whole(self, "block", least=1)
        set_whole(self, "extra")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {self.split!r}")
        if self.long not in LONG:
            raise ValueError(f"long must be one of {', '.join(LONG)}, got {self.long!r}")
        if self.long != "error" and self.split != "never":
            raise ValueError(
                f"long={self.long!r} is for split='never': with split={self.split!r} documents are cut, and none is lost"
            )
        if self.window is None:
            object.__setattr__(self, "window", self._default_window())
        set_whole(self, "window", least=1)
        if self.block_bounds is not None and len(self.block_bounds) != self.num_blocks + 1:
            raise ValueError(f"expected the bounds of {self.num_blocks} blocks, got {len(self.block_bounds)}")
        if self.num_tokens < 0:
            raise ValueError(f"expected bounds of documents that rise, got {bounds[0]} first and {bounds[-1]} last")
        if self.num_tokens >= MAX_LENGTH:
            raise ValueError(f"the documents have {self.num_tokens} tokens, more than {MAX_LENGTH}")
        if self.split == "never" and self.long == "error":
            self._refuse_long()

    def _default_window(self) -> int:
        wanted = -(-LEAST_SEQUENCES * self.length * self.num_documents // max(1, self.num_tokens))
        return max(LEAST_WHOLE_DOCUMENTS if self.split == "never" else LEAST_DOCUMENTS, min(wanted, max(1, self.num_documents)))

    def _refuse_long(self) -> None:
        for low in range(0, self.num_documents, 1 << 20):
            if self.need is not None:
                self.need(np.array([low]), np.array([min(low + (1 << 20), self.num_documents) + 1]))
            lengths = np.diff(self.bounds[low : low + (1 << 20) + 1]) + self.extra
            found = np.flatnonzero(lengths > self.length)
            if found.size:
                raise ValueError(
                    f"document {low + int(found[0])} has {lengths[found[0]]} tokens, a sequence {self.length}, and split='never' "
                    "cuts none: use long='truncate', long='drop' or another split"
                )

    @property
    def num_documents(self) -> int:
        return self.bounds.size - 1

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all documents, with those that are added."""
        return int(self.bounds[-1]) - int(self.bounds[0]) + self.extra * self.num_documents

    @cached_property
    def num_packed(self) -> int:
        """Tokens that come in an epoch: those of long documents that are cut or dropped do not."""
        if self.split != "never":
            return self.num_tokens
        total = 0
        for low in range(0, self.num_documents, MOST_ROOMS):
            lengths = np.diff(self.bounds[low : low + MOST_ROOMS + 1]) + self.extra
            kept = lengths[lengths <= self.length] if self.long == "drop" else np.minimum(lengths, self.length)
            total += int(kept.sum())
        return total

    def cut_share(self, groups: int) -> float:
        """The share of the documents that do not come whole in one sequence; those without a token apart. With a split of documents
        it is that of the first epoch, measured in at most as many of its groups.
        """
        documents = whole = 0
        if self.split == "never":
            for low in range(0, self.num_documents, MOST_ROOMS):
                lengths = np.diff(self.bounds[low : low + MOST_ROOMS + 1]) + self.extra
                documents += int(np.count_nonzero(lengths))
                whole += int(np.count_nonzero((lengths > 0) & (lengths <= self.length)))
            return 1 - whole / max(1, documents)
        for place in sorted({self.num_groups * k // groups for k in range(groups)} if self.num_groups else ()):
            pieces = self.plan(0, place)
            lengths = self.bounds[pieces.document + 1] - self.bounds[pieces.document] + self.extra
            documents += np.unique(pieces.document).size
            whole += int(np.count_nonzero(pieces.count == lengths))
        return 1 - whole / max(1, documents)

    @property
    def num_blocks(self) -> int:
        return -(-self.num_documents // self.block)

    @property
    def group_blocks(self) -> int:
        assert self.window is not None
        return -(-self.window // self.block)

    @property
    def num_groups(self) -> int:
        return -(-self.num_blocks // self.group_blocks) if self.num_tokens else 0

    def __len__(self) -> int:
        """Sequences of an epoch."""
        if self.split == "never":
            return int(self._counts.sum())
        return -(-self._room // self.length) + self.num_groups

    @cached_property
    def _room(self) -> int:
        """The room that all documents take."""
        return self.num_tokens if self.multiple_of == 1 or self.num_groups == 0 else int(self._block_rooms().sum())

    def _block_rooms(self) -> IntArray:
        """The room that the documents of each block take: the same in every epoch."""
        found: IntArray | None = self.__dict__.get("_rooms")
        if found is None:
            found = self._measure_blocks()
            if found.size <= MOST_ROOMS:
                self.__dict__["_rooms"] = found
        return found

    def _measure_blocks(self) -> IntArray:
        if self.block_bounds is not None and self.multiple_of == 1:
            tokens = np.diff(self.block_bounds)
            if tokens.min(initial=0) < 0:
                raise ValueError("expected bounds of documents that rise")
            tokens += self.extra * self.block
            tokens[-1] -= self.extra * (self.num_blocks * self.block - self.num_documents)
            return tokens
        if self.need is not None:
            self.need(np.zeros(1, np.int64), np.array([self.bounds.size]))
        rooms = np.empty(self.num_blocks, np.int64)
        _core.pack_block_rooms(self.bounds, self.block, self.extra, self.length, self.multiple_of, rooms)
        return rooms

    @cached_property
    def _counts(self) -> IntArray:
        """With split="never", the sequences of every group: they are counted by planning all of them once."""
        return np.array([self._plan_blocks(0, group, 0).num_sequences for group in range(self.num_groups)], np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_rooms", "need")} | {"need": None}

    def edges(self, epoch: int) -> IntArray:
        """The first sequence of every group of an epoch, in its order, and behind the last."""
        found: IntArray = self._edges.get(whole_number("epoch", epoch), lambda: self._make_edges(epoch))
        return found

    def _make_edges(self, epoch: int) -> IntArray:
        edges = np.zeros(self.num_groups + 1, np.int64)
        if self.split == "never":
            np.cumsum(self._counts[self._group_order(epoch)], out=edges[1:])
        elif self.num_groups:
            _core.pack_edges(self._block_rooms(), self.length, self._block_order(epoch), self.group_blocks, edges)
        return edges

    def _block_order(self, epoch: int) -> _core.Permutation | None:
        """The order of the blocks in an epoch; with split="never" groups are the same in every epoch."""
        if self.seed is None:
            return None
        key = derive_key(self.seed, 0 if self.split == "never" else epoch, Purpose.BLOCK_SEQUENCE)
        found: _core.Permutation = self._edges.get(("blocks", key), lambda: _core.Permutation(self.num_blocks, key))
        return found

    def _group_order(self, epoch: int) -> IntArray:
        """With split="never", the groups in the order of an epoch."""
        order = np.arange(self.num_groups)
        if self.seed is not None:
            _core.Permutation(self.num_groups, derive_key(self.seed, epoch, Purpose.PACK_GROUPS)).run(0, 1, order)
        return order

    def _plan_blocks(self, epoch: int, group: int, sequences: int, key: int | None = None) -> _core.PackPlan:
        low = group * self.group_blocks
        blocks = np.arange(low, min(low + self.group_blocks, self.num_blocks))
        order = self._block_order(epoch)
        if order is not None:
            order.run(low, 1, blocks)
        if self.need is not None:
            first = blocks * self.block
            self.need(first, np.minimum(first + self.block, self.num_documents) + 1)
        rule = self.length, self.multiple_of, SPLITS[self.split], self.long == "drop"
        return _core.PackPlan(self.bounds, self.block, self.extra, blocks, *rule, sequences, key)

    def plan(self, epoch: int, place: int) -> Pieces:
        """The sequences of the group at a place of an epoch, in the order in which they come."""
        plan = self._plan(epoch, place)
        return _take([(plan, np.arange(plan.num_sequences), slice(None))], plan.num_sequences)

    def _plan(self, epoch: int, place: int) -> _core.PackPlan:
        made: _core.PackPlan = self._plans.get((epoch, place), lambda: self._make_plan(epoch, place))
        return made

    def _make_plan(self, epoch: int, place: int) -> _core.PackPlan:
        edges = self.edges(epoch)
        group = int(self._group_order(epoch)[place]) if self.split == "never" else place
        key = None if self.seed is None else derive_key(self.seed, epoch, Purpose.PACK, group)
        return self._plan_blocks(epoch, group, int(edges[place + 1] - edges[place]), key)

    def pieces(self, epoch: int, sequences: Any) -> Pieces:
        """What is in any sequences of an epoch."""
        wanted = check_positions("sequences", sequences, len(self))
        if wanted.size == 0:
            return _take([], 0)
        edges = self.edges(epoch)
        parts = [(self._plan(epoch, place), wanted[mine] - edges[place], mine) for place, mine in _by_group(edges, wanted)]
        return _take(parts, wanted.size)

    def places(self, epoch: int, documents: Any) -> IntArray:
        """The places of the groups in which documents are, in the order of an epoch."""
        blocks = check_positions("documents", documents, self.num_documents) // self.block
        order = self._block_order(epoch)
        if order is not None:
            order.inverse(blocks.copy(), blocks)
        groups = blocks // self.group_blocks
        return np.argsort(self._group_order(epoch))[groups] if self.split == "never" and self.num_groups else groups

    def sequences_of(self, epoch: int, document: int) -> IntArray:
        """The sequences of an epoch in which a document is, in rising order; none if it is empty or left out."""
        place = int(self.places(epoch, [document])[0])
        if self.num_groups == 0:
            return np.empty(0, np.int64)
        plan = self.plan(epoch, place)
        found = np.searchsorted(plan.first, np.flatnonzero(plan.document == document), side="right") - 1
        return np.asarray(found + self.edges(epoch)[place], np.int64)
