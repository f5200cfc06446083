"""
The native core of penstock. Private: its functions trust their callers about sizes they cannot see.
"""

from collections.abc import Mapping, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


TABLE_LIMIT: int = 65536

class Simd(enum.Enum):
    """An instruction set; every level gives identical results."""

    PLAIN = 0

    AVX2 = 1

    AVX512 = 2

    NEON = 3

def available_simd() -> list[Simd]:
    """The levels this processor can run, slowest first."""

def finalize(word: int) -> int:
    """The SplitMix64 finalizer."""

def absorb(hash: int, word: int) -> int:
    """Mix one more word into a hash."""

def absorb_strings(hash: int, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Fill out with the hash into which string i, values[offsets[i]:offsets[i + 1]], was mixed.
    """

def derive_key(seed: int, epoch: int, purpose: int, number: int) -> int:
    """The key of one random decision."""

class Permutation:
    """
    A keyed bijection of [0, n). Immutable; safe to use from several threads.
    """

    def __init__(self, n: int, key: int, simd: Simd | None = None) -> None: ...

    def __len__(self) -> int: ...

    def run(self, start: int, step: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with the images of start, start + step, ..."""

    def forward(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with the images of positions."""

    def inverse(self, indices: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with the positions of indices."""

class BlockEpoch:
    """One epoch of a block shuffle. Safe to use from several threads."""

    def __init__(self, n: int, block: int, window: int, lanes: int, sequence_key: int, group_root: int) -> None: ...

    def run(self, start: int, step: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with the ids at start, start + step, ..."""

    def forward(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with the ids at positions."""

    def inverse(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with the positions of ids."""

class MixtureLine:
    """The line of a mixture. Immutable; safe to use from several threads."""

    def __init__(self, starts: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], periods: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], units: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], counted: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], edges: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], before: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], levels: Sequence[int] = [], deferred: Sequence[Sequence[tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]]]] = []) -> None:
        """
        Segments; and the level of each, from 1 on, of (numbers, elements) of deferred runs of every data set.
        """

    def at(self, root: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], which: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], element: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], before: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Fill which and element with the data set and first element at each position, with before[k] added for data set k.
        """

    def given_before(self, position: int) -> list[int]:
        """Elements that each data set has given before the period of a position."""

class AliasTable:
    """
    Draws in proportion to weights. Immutable; safe to use from several threads.
    """

    def __init__(self, weights: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    @staticmethod
    def of_columns(columns: Annotated[NDArray[numpy.uint32], dict(shape=(None, 2), order='C', device='cpu', writable=False)]) -> AliasTable:
        """The table that has these columns."""

    def copy_columns(self, out: Annotated[NDArray[numpy.uint32], dict(shape=(None, 2), order='C', device='cpu')]) -> None:
        """Fill out with (bound, other id) of every column."""

    def run(self, key: int, start: int, step: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with draws for positions start, start + step, ..."""

    def at(self, key: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with draws for positions."""

    def by_word(self, word: int) -> int:
        """The id that one word draws."""

    def mark_drawn(self, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with 1 for ids that can be drawn, 0 for others."""

class OrderNode:
    """
    Mixtures, also in mixtures, as a tree. Safe to use from several threads.
    """

    @staticmethod
    def leaf(epoch: object | None, leaf: int) -> OrderNode:
        """An epoch of an order (None: in sequence) of a leaf's records."""

    @staticmethod
    def mix(line: object, root: int, before: Sequence[int], parts: Sequence[tuple[object, int, int]]) -> OrderNode:
        """
        A mixture: (order, first element of its epoch, elements of its epoch) of every data set.
        """

    def at(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], leaves: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> bool:
        """
        Fill leaves and ids with what is at positions; False if one of them is in an epoch that the tree does not have.
        """

    def run(self, first: int, leaves: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> bool:
        """The same for positions first, first + 1, ..."""

def random_run(n: int, key: int, start: int, step: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Fill out with draws below n for positions start, start + step, ..."""

def random_at(n: int, key: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Fill out with draws below n for positions."""

def systematic(n: int, size: int, offset: int, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Fill out with evenly spread places in [0, n)."""

MAX_COST: int = 1099511627776

def deal(costs: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], room: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], micro_batches: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Fill out with samples dealt to slots of those sizes, slot after slot, so that slots cost about the same.
    """

def piece_costs(first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], owner: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], count: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], linear: int, quadratic: int, out: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Fill out with the costs of samples made of runs of documents."""

MAX_PACK_LENGTH: int = 16777216

class Split(enum.Enum):
    """Where packing cuts documents."""

    FIT = 0

    ALWAYS = 1

    NEVER = 2

def pack_block_rooms(bounds: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], block: int, extra: int, length: int, multiple: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Fill out with the room that the documents of every block take."""

def pack_edges(rooms: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int, order: Permutation | None, window: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Fill out with the first sequence of every group of blocks of these rooms, in the order of a permutation, and behind the last one.
    """

class PackPlan:
    """Pieces of documents, sequence by sequence. Immutable."""

    def __init__(self, bounds: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], block: int, extra: int, blocks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int, multiple: int, split: Split, drops: bool, sequences: int, key: int | None = None) -> None:
        """
        The plan of a group of blocks over that number of sequences (Split.NEVER: as many as it takes), in the order of the permutation with that key.
        """

    @property
    def num_sequences(self) -> int: ...

    @property
    def num_pieces(self) -> int: ...

    def count(self, sequences: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Fill out with the number of pieces of each of these sequences. Gives the sum.
        """

    def write(self, sequences: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], document: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], count: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """
        Fill in the document of every piece of these sequences, its place in it, and its tokens: those of a sequence from its start on.
        """

def make_pack_runs(first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], document: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offset: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], count: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], bounds: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int, before: bool, behind: bool, multiple: int, banned: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out_first: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], inside: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
    """
    Fill in the runs of tokens that pieces and what is added to them make: where each begins (below 0: -1 padding, -2 before, -3 behind a document), its tokens, its document and the place in it; and the first run of every sequence. Gives how many.
    """

def most_pack_runs(pieces: int, sequences: int, before: bool, behind: bool, multiple: int, bans: bool) -> int:
    """The most runs that make_pack_runs gives."""

def fill_pack_fields(tokens: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], item: int, is_signed: bool, added: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], documents: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: int, segments: tuple[int, int], segment: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')] | None, position: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')] | None, labels: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')] | None, multiple: int, cu_seqlens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')] | None, max_seqlen: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')] | None) -> None:
    """
    Put added tokens where runs start below 0, and fill the fields that are asked for. segments: the number of the first piece, and that of padding.
    """

class CrcPath(enum.Enum):
    """A way to compute crc32c; both give the same value."""

    PORTABLE = 0

    HARDWARE = 1

def best_crc_path() -> CrcPath:
    """The fastest path of this processor."""

def crc32c(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], before: int = 0, path: CrcPath | None = None) -> int:
    """The crc32c of data, continued from the crc of what came before."""

def crc32c_spans(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Fill out with the crc32c of consecutive spans of data."""

def find_bad_page(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], page_bytes: int, crcs: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], pages: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """
    The first of these pages whose crc32c is not the given one, or -1. The data may be a map of a file.
    """

class ThreadPool:
    """
    Native threads that share a job. Usable from several threads and after fork.
    """

    def __init__(self, threads: int) -> None: ...

    def __len__(self) -> int: ...

    @staticmethod
    def work_alone() -> None:
        """
        From now on this thread does its jobs alone, in every pool: for one of several that work side by side.
        """

    def crc32c_pages(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], page_bytes: int, out: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """Fill out with the crc32c of each page of data."""

class Landing:
    """
    Memory for ranges of an object of ``size`` bytes; costs nothing before the first write. Safe to use from several threads for different ranges.
    """

    def __init__(self, bytes: int) -> None: ...

    @property
    def is_mapped(self) -> bool: ...

    @property
    def size(self) -> int: ...

    def expect(self, start: int, stop: int) -> None:
        """Say that all of a range is going to be written, which then costs less."""

    def write(self, offset: int, data: object) -> None:
        """Copy the bytes of a contiguous buffer to where they lie in the object."""

    def receive(self, socket: int, start: int, stop: int, seconds: float) -> tuple[int, bool]:
        """
        Receive bytes of a connected stream socket straight to [start, stop), until all came, the stream ends or breaks, or the time is over: how many came, and whether the stream goes on.
        """

    def release(self, start: int, stop: int) -> None:
        """
        Give whole pages back to the system; no thread may read them meanwhile, and they are zeros then.
        """

    def drop(self) -> None:
        """
        Give everything back to the system; no thread may read meanwhile, and the next write begins anew.
        """

    def read(self, start: int, stop: int) -> bytes:
        """A copy of the bytes [start, stop); zeros where none were written."""

    def resident(self) -> int:
        """Bytes of the pages that are in memory."""

class LineScanner:
    """
    The lines of a file that comes in pieces: JSON lines, or rows of a delimiter.
    """

    def __init__(self, delimiter: str = '\x00', from_start: bool = True) -> None: ...

    def scan(self, piece: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], spans: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """
        Fill spans with offset and size of the lines that end in the next piece; gives how many.
        """

    def finish(self, spans: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> int:
        """The last line, if nothing ended it: 1, or 0."""

    @staticmethod
    def most_lines(bytes: int) -> int:
        """Places that a piece of that many bytes may need."""

    @property
    def newlines(self) -> int: ...

    @property
    def in_quotes(self) -> bool: ...

def join_lines(text: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Copy lines to out, each followed by a newline."""

class JsonFinder:
    """
    Where values are in JSON objects, one a line. Safe to use from several threads.
    """

    def __init__(self, paths: Sequence[tuple[Sequence[str], int, bool]], strict: bool) -> None:
        """
        Of every value its keys, what it must be, and whether it may be missing.
        """

    @property
    def num_paths(self) -> int: ...

    def find(self, text: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> tuple[int, int, int, int]:
        """
        Fill starts and sizes, a row for each line, with where values are in the text; -1 for those that are missing. Gives (fault, line, place, path) of the first line that is not right; a fault of 0: all are.
        """

class RowLookup:
    """
    Records of streams as rows of leaves. Immutable; safe to use from several threads.
    """

    def __init__(self, streams: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None, 4), order='C', device='cpu', writable=False)]]) -> None:
        """
        Of each stream its runs, (end, base, step, leaf) each: record i below end is row base + i * step of that leaf.
        """

    def find(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], streams: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, which: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
        """
        Fill which and rows with the leaf and row of each record; ``streams`` has the stream of each (None: the first).
        """

def group_by(which: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Fill order with the places of each group's members, group by group, and ends with where each group ends there.
    """

class VaryingReader:
    """
    Records of one field that have different lengths, as a ring reads them.
    """

class RowReader:
    """
    Rows of one size, in files, in memory or in landings. Safe to use from several threads and after fork.
    """

    def __init__(self, paths: Sequence[str | bytes], facts: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], stride: int, access: str) -> None: ...

    @staticmethod
    def of_memory(arrays: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], stride: int) -> RowReader: ...

    @staticmethod
    def of_landings(landings: Sequence[Landing], facts: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], stride: int) -> RowReader:
        """
        Rows of landings: where the first row of each begins, and how many there are. What is read must be in memory.
        """

    @property
    def length(self) -> int: ...

    def read(self, starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], run: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], pool: ThreadPool) -> None:
        """Fill out with rows [start, start + run) of every start."""

    def read_spans(self, starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], pool: ThreadPool) -> None:
        """
        Fill out with rows [start, start + offsets[i + 1] - offsets[i]) of every start, at offsets[i].
        """

    def runs(self, bounds: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], batch_bytes: int) -> VaryingReader:
        """Records that are runs of rows, [bounds[i], bounds[i + 1]), for a ring."""

def row_addresses(ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], bases: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stride: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Fill out with bases[r] + id * stride of every id, r being the first run that ends behind it.
    """

def find_document_ends(tokens: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], item: int, separator: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], start: int, out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> tuple[int, int]:
    """
    Fill out with the places behind separators that begin at token `start` or later, in tokens of `item` bytes. Gives how many, and the first token at which one could begin that these tokens do not show.
    """

def mark_documents(tokens: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], item: int, length: int, separator: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], breaks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], segment: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], position: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Of sequences of tokens of `item` bytes: the number of each token's document, and its place in it.
    """

def empty(rows: int, stride: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None, None))]:
    """
    Rows of bytes with whatever they held before, in memory that is used again when the array is gone.
    """

def kept_buffer_bytes() -> int:
    """Bytes kept for the next arrays of empty()."""

class SpanScanner:
    """
    Where the records of a file are, found by reading it once. For one thread.
    """

    @property
    def is_done(self) -> bool: ...

    @property
    def next(self) -> int:
        """The next byte that it wants."""

    @property
    def need(self) -> int:
        """
        How many bytes from there on it wants at least; the file may end before.
        """

    def feed(self, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Bytes of the file from next on: need of them or more, or all up to its end.
        """

    def scan(self, path: str | bytes, device: int, inode: int, written_ns: int) -> None:
        """Read the file, which must be that version; 0 0 0: any."""

    def take(self) -> tuple[list[str], NDArray[numpy.int64], NDArray[numpy.uint8], int, bool]:
        """
        When it is done: the columns, the words of all records, bytes in memory, columns in the file, whether there are crcs.
        """

class TFRecordScanner(SpanScanner):
    """TFRecord files: one column, with crcs."""

    def __init__(self, name: str | bytes, bytes: int) -> None: ...

class TarScanner(SpanScanner):
    """tar archives: samples as WebDataset groups them, keys in memory."""

    def __init__(self, name: str | bytes, bytes: int) -> None: ...

class SpanTable:
    """
    Where the fields of records are in files, one table a file. Safe to use from several threads.
    """

    def __init__(self, parts: list[tuple[str | bytes, int, int, tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]], tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')]], str | bytes]], page_bytes: int) -> None:
        """
        Of every file: name, bytes, words of a record, (table, crcs of its pages, flags), (memory, crcs, flags), name of the sidecar. A record has the first byte and the size of each column, -1 for a missing one, then crcs.
        """

    @property
    def length(self) -> int: ...

    def name(self, record: int) -> str:
        """A record in a message: its file, and its number there."""

    def extents(self, starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stops: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], words: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))]]:
        """
        In which bytes of which files records [start, stop) are: of the columns at words, as many for every file.
        """

    def column(self, rows: RowReader, words: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], crc_words: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], in_memory: bool, batch_bytes: int, item_bytes: int, is_text: bool) -> SpanReader:
        """
        A field: in every file the column at that word (-1: missing), with its crc (-1: none), in the files or in the memories, whose bytes are the rows.
        """

class SpanReader:
    """
    A field of records anywhere in files. Safe to use from several threads.
    """

    def sizes(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], shapes: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu')] | None = None) -> None:
        """
        Fill out with the bytes of records; -1: missing. Of arrays with several dimensions, fill shapes, too.
        """

    def read(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], pool: ThreadPool) -> None:
        """
        Fill out with records, each from its start on; the sizes are those of sizes().
        """

    def read_fixed(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], stride: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], present: Annotated[NDArray[numpy.bool_], dict(shape=(None,), order='C', device='cpu')], pool: ThreadPool) -> None:
        """
        Fill out with records of one size, zeros for those that are missing, and present.
        """

    @property
    def varying(self) -> VaryingReader: ...

def arrow_field(rows: RowReader, chunks: Annotated[NDArray[numpy.int64], dict(shape=(None, 4), order='C', device='cpu', writable=False)], bits: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu', writable=False)], offset_bytes: int, item_bytes: int, is_text: bool, batch_bytes: int) -> SpanReader:
    """
    A column of Arrow arrays on a line of bytes. Of each array: records, and where on the line its offsets are (or its records, if offset_bytes is 0), where its values are, and how many; and the bits, from the first record's on, that say which are there (-1: all), of every level of structs.
    """

class ExampleParser:
    """
    tf.Example messages as columns. Immutable; safe to use from several threads.
    """

    def __init__(self, names: Sequence[str], kinds: Sequence[int]) -> None:
        """
        The features, and their kinds: 1 byte strings, 2 floats, 3 whole numbers.
        """

    def measure(self, table: SpanTable, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], pool: ThreadPool) -> None:
        """
        Fill out with the values of every feature in messages, one after the other: bytes of a byte string, -1: missing.
        """

    def read(self, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int64], dict(shape=(None, None), order='C', device='cpu')], items: Sequence[int], outs: Sequence[tuple[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]] | None], pool: ThreadPool) -> None:
        """
        Fill the outs, (starts, bytes) of each feature or None, with values of that many bytes each.
        """

    @staticmethod
    def features(message: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[tuple[bytes, int, int]]:
        """Name, kind and number of values of every feature of a message."""

def map_file(descriptor: int, bytes: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
    """The first bytes of an open file, mapped; it may be closed then."""

def is_in_memory(descriptor: int, start: int, stop: int) -> bool:
    """Whether the system seems to have a range of an open file in memory."""

def advise(map: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], start: int, stop: int) -> None:
    """Tell the system that a range of a map will be read."""

class PackedRecords:
    """
    Records in files that begin with a table of them, whose columns are packed: sizes of some, then the bytes of all. Safe to use from several threads.
    """

    def __init__(self, rows: RowReader, names: Sequence[str | bytes], facts: Annotated[NDArray[numpy.uint64], dict(shape=(None, 4), order='C', device='cpu', writable=False)], offsets: Sequence[Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)]], columns: Annotated[NDArray[numpy.int64], dict(shape=(None, 2), order='C', device='cpu', writable=False)]) -> None:
        """
        Of a line of bytes: names of files, and of each where it begins there, its bytes, its records and where its table begins; the tables, or none of them, to read them from the files; and of each column the bytes of a value, or -1, and whether records have its size.
        """

    @property
    def length(self) -> int: ...

    def find(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.int64], dict(shape=(None, 2), order='C', device='cpu')]) -> None:
        """Fill out with where whole records begin on the line, and their bytes."""

    def field(self, column: int, form: int, code: int, ndim: int, item_bytes: int, is_text: bool, batch_bytes: int) -> SpanReader:
        """
        A column as a field. Form: 0 plain bytes, 1 and 2 arrays of MDS (2: with their types), 3 arrays of LitData.
        """

def decompress_zstd(stored: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> bool:
    """
    Fill out with what zstd frames have; False if that is not as many bytes.
    """

def zstd_content_bytes(head: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int:
    """
    The bytes that a zstd frame has, decompressed; -1 if its header does not say.
    """

class FileList:
    """
    Files of a folder as records. Safe to use from several threads and after fork.
    """

    def __init__(self, root: str | bytes, folders: Sequence[str | bytes], run_ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], names: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], name_ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], versions: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], links: Mapping[int, str | bytes], labels: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], batch_bytes: int) -> None:
        """
        The root and the folder of each run of files, both with a slash at their ends; the names of files, one behind the other; their bytes; three numbers each that say which version (none: any); where links lead to; a label for every run, below 0: none.
        """

    def read(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], pool: ThreadPool) -> None:
        """Fill out with the bytes of files, each at its offset."""

    @property
    def contents(self) -> VaryingReader:
        """The bytes of files, for a ring."""

    @property
    def paths(self) -> VaryingReader:
        """The paths of files below the root, as text, for a ring."""

    @property
    def labels(self) -> SpanReader:
        """The labels of the runs that files are in."""

class StoreReader:
    """
    One generation of a store. Safe to use from several threads and after fork.
    """

    def __init__(self, path: str | bytes, length: int, paths: Sequence[str | bytes], chunks: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], segments: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)], dataset: bytes, access: str, verify: bool, batch_bytes: int, landings: Sequence[Landing] | None = None, record_bytes: int = 1073741824, names: Sequence[tuple[int, str]] = []) -> None: ...

    def set_redirects(self, field: int, rows: Annotated[NDArray[numpy.uint64], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """Let records of a field point elsewhere; before the first read."""

    def read_fixed(self, field: int, stride: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], present: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], pool: ThreadPool) -> int:
        """
        Fill out with fixed records and present with which are there; returns how many are not.
        """

    def measure(self, field: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sizes: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')], pool: ThreadPool) -> None:
        """
        Fill sizes with the decoded bytes of records of varying length, -1 for missing ones.
        """

    def read_variable(self, field: int, ndim: int, is_text: bool, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], pool: ThreadPool) -> tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,))], Annotated[NDArray[numpy.int64], dict(shape=(None,))], Annotated[NDArray[numpy.bool_], dict(shape=(None,))] | None, Annotated[NDArray[numpy.uint32], dict(shape=(None,))]]:
        """
        Records of varying length: their bytes, where each begins and the last ends, which are present (None: all), and ndim dimensions of each.
        """

    def varying(self, field: int, is_text: bool) -> VaryingReader:
        """A field of varying length, for a ring."""

    def verify_chunk(self, index: int) -> list[tuple[int, str]]:
        """
        Check every page of a chunk; returns the first 1000 things that are wrong, by the number of the field.
        """

    def chunk_fields(self, index: int) -> list[tuple[int, int, bool]]:
        """
        Number and stored bytes of each field of a chunk, and whether it says which records are missing.
        """

    def view(self, field: int, stride: int, id: int) -> object:
        """
        A plain record where it is in the map (a copy if it is in a landing); None if it is missing.
        """

    def places(self, field: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.uint64], dict(shape=(None, None))]:
        """The chunk and the row of each record of a field."""

    def page_extents(self, field: int, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.uint64], dict(shape=(None, None))]:
        """
        The chunk of each record of a field, and from where to where the page that holds the record is in its file (0 and 0 for a missing record). Only the indices of the chunks need to be in memory.
        """

    def forget(self, chunk: int) -> None:
        """
        Close a chunk after the reads under way; its memory may go then. The next read opens and checks it anew.
        """

def chunk_index_start(tail_bytes: bytes, file_bytes: int, name: str = 'chunk') -> int:
    """
    Where the index of a chunk begins, by its last bytes. An answer before those bytes asks for more of them, from there on.
    """

def encode_records(codec: int, level: int, dictionary: bytes, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
    """Compress records one by one; fills ends with where each one ends."""

def train_dictionary(samples: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], size: int) -> bytes:
    """A zstd dictionary from samples."""

def all_below(values: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], n: int) -> bool:
    """Whether every value is in [0, n)."""

def is_network_filesystem(path: str | bytes) -> bool:
    """
    Whether files there come over a network (NFS, SMB, FUSE, Lustre, 9p, Ceph, AFS), where maps are unsafe.
    """

class ImageFormat(enum.Enum):
    """Formats that are decoded."""

    JPEG = 0

    PNG = 1

    WEBP = 2

class ImageCrop(enum.Enum):
    """Which part of a picture is taken."""

    NONE = 0

    CENTER = 1

    RANDOM = 2

    PAD = 3

class ImageLayout(enum.Enum):
    """The order of the axes."""

    NCHW = 0

    NHWC = 1

class ImageType(enum.Enum):
    """Element types."""

    U1 = 0

    F2 = 1

    F4 = 2

DEFAULT_MAX_PIXELS: int = 178956970

class ImageMaker:
    """
    Decodes, crops, resizes and converts pictures into arrays of one size. Immutable, thread-safe.
    """

    def __init__(self, *, height: int, width: int, crop: ImageCrop = ImageCrop.RANDOM, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (0.75, 1.3333333333333333), fraction: float = 1.0, flip: float = 0.0, layout: ImageLayout = ImageLayout.NHWC, type: ImageType = ImageType.U1, mean: Sequence[float] | None = None, std: Sequence[float] | None = None, fill: int = 0, channels: int = 3, max_pixels: int = 178956970, max_scale: int = 8, level: Simd | None = None, numbers: bool = False) -> None: ...

    @property
    def nbytes(self) -> int:
        """Bytes of one output."""

    def make(self, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], threads: ThreadPool, errors: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')] | None = None, partners: tuple[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None) -> int:
        """
        Decode record i, values[offsets[i]:offsets[i + 1]], with seeds[i] into out[i * nbytes:]. Raises ImageError for the first record that fails (index, reason); with errors, sets errors[i] to 1 and the output to 0 instead. Gives the number of failures. ``partners`` are the values and offsets of pictures that must have the sizes of these; no bytes: none.
        """

    def boxes(self, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int32], dict(shape=(None, None))]:
        """
        x, y, width, height and flip of every record, in pixels as displayed; reads headers only.
        """

    def box(self, width: int, height: int, seed: int) -> tuple[int, int, int, int, bool]:
        """x, y, width, height and flip for a picture of that displayed size."""

def probe_image(data: bytes | NDArray[numpy.uint8], max_pixels: int = 178956970) -> tuple[ImageFormat, int, int, int]:
    """
    Format, width, height (as displayed) and channels (as stored), by the header.
    """

def shrink_image(data: bytes | NDArray[numpy.uint8], max_side: int, quality: int, max_pixels: int = 178956970) -> bytes:
    """
    The picture as a JPEG whose longer side has at most max_side pixels, with its orientation applied.
    """

class ImageReader:
    """Pictures of records, for a ring. Safe to use from several threads."""

    def __init__(self, reader: VaryingReader, maker: ImageMaker, needs_all: bool, partner: VaryingReader | None = None) -> None:
        """
        The bytes of pictures, and what makes arrays of them; with needs_all, a missing picture is an error. ``partner`` has those of which they are masks.
        """

class DocumentLine:
    """
    Documents as one line of tokens, for a ring. Safe to use from several threads.
    """

    def __init__(self, readers: Sequence[VaryingReader], bounds: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], which: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, rows: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, token_bytes: int, separator: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Document i has the tokens [bounds[i], bounds[i + 1]), of which the last are the separator; it is row rows[i] of reader which[i] (row i of the first).
        """

class ReadAhead:
    """
    Extents of files that are read directly, brought into memory before they are needed.
    """

    def __init__(self, most_bytes: int) -> None:
        """The oldest that were not used are dropped when there are more bytes."""

    def fetch(self, path: str | bytes, start: int, stop: int, step: int = -9223372036854775808) -> None:
        """
        Read bytes of a file as soon as steps up to that one have passed; what cannot be read is left to those who need it.
        """

    def passed(self, step: int) -> None:
        """Steps up to this one have passed."""

    def wait(self) -> None:
        """Wait until all that was asked for is there."""

    def close(self) -> None:
        """Drop everything. Idempotent."""

    @property
    def size(self) -> int:
        """Bytes in memory or on their way."""

class BatchRing:
    """
    Batches of records read ahead, in order. For one thread; not for forked children.
    """

    def __init__(self, fields: Sequence[tuple[Sequence[tuple[object, int]], int]], threads: int, varying: Sequence[tuple[Sequence[VaryingReader], int, int]] = [], room_batches: int = 1, room_bytes: int = 18446744073709551615, piece_bytes: int = 262144) -> None:
        """
        Fields as ([(reader, number of the field or -1 for rows) of each source], bytes of a record); fields of varying length as ([reader of each source], bytes of an item, dimensions or 0). Batches with such fields are in memory before they are taken as far as they fit room_bytes, but at least room_batches. A thread reads piece_bytes at a time.
        """

    def put(self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], batch: int, which: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Ask for batches of ``batch`` ids each; ``which`` says of which source each is, ``seeds`` what is drawn for it, where there are pictures. IndexError if one does not exist.
        """

    def put_runs(self, starts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], cuts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], which: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Ask for batches of runs of rows: run i has those from starts[i] on, offsets[i + 1] - offsets[i] of them; batch b has the runs from cuts[b] up to cuts[b + 1]. A run that starts below 0 is padding: zeros. IndexError if a row does not exist.
        """

    def take(self) -> tuple[list[object], list[Annotated[NDArray[numpy.bool_], dict(shape=(None,))] | None]]:
        """
        The oldest batch asked for: the bytes of each field, and what is present of each (nothing if all is; None for a field of which all is). Behind the fixed fields are those of varying length: (bytes, offsets in items, shapes or None).
        """

    def close(self) -> None:
        """
        End the threads of the ring, and wait for that. What they read may go away then. Idempotent.
        """

    @property
    def size(self) -> int: ...
