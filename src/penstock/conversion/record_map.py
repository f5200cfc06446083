"""What becomes of records on their way into a store or a file: a function of batches, smaller pictures, tokens of texts and
conversations.

Pictures are decoded, resized and encoded again by native code. Batches of texts are encoded in two threads at a time, which wait
without the interpreter's lock for the threads of the tokenizers package: while one takes over the ids of its batch, the other keeps
the processors busy.
"""

import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray, byte_size, set_whole
from penstock.batch import Batch, Ragged
from penstock.errors import ImageError, SchemaMismatchError
from penstock.fingerprint import fingerprint_of
from penstock.image import IMAGE, MOST_SIDE, find_encoded
from penstock.native import _core
from penstock.process import need
from penstock.schema import Field, Schema
from penstock.store.column import guess_field
from penstock.tokenizer import EXTRA, TextTokenizer, TokenizerLike, load_tokenizer

if TYPE_CHECKING:
    from penstock.conversion.chat import ChatTemplate

__all__ = [
    "LOSS_MASK",
    "TOKENS",
    "BatchMap",
    "ImageMap",
    "RecordMap",
    "ShrinkImages",
    "TextMap",
    "Tokenize",
    "as_map",
    "as_shrink",
    "as_tokenize",
    "guess_fields",
]

T = TypeVar("T")
MOST_DEEP = 8
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class RecordMap(Protocol):
    """What becomes of the records of a task. Picklable, and the same in every process."""

    @property
    def fields(self) -> Mapping[str, Field] | None:
        """What comes out, if that is known before."""

    @property
    def size(self) -> int:
        """Bytes of a batch that is read."""

    @property
    def task_records(self) -> int | None:
        """Records of a task; as many as fill a chunk if None."""

    @property
    def fingerprint(self) -> str:
        """What must be the same for an unfinished conversion to go on."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the new store says of itself, besides what its source says."""

    def over(self, batches: Iterator[Batch], first: int) -> Generator[Mapping[str, Any]]:
        """What batches become, in their order; ``first`` is the id of their first record."""


@dataclass(frozen=True)
class BatchMap:
    """A function that takes a batch and gives one: other fields, and more or fewer records, if it likes.

    ``fields`` says what it gives; they are found out from the first batch if left out. A batch has about ``batch_bytes``; a task,
    which is done in one go by one process, has ``task_records`` records of the source, as many as fill a chunk if left out. Both
    are the same in every run. To run in other processes the function must be picklable.
    """

    function: Callable[[Batch], Mapping[str, Any]]
    fields: Mapping[str, Field] | None = None
    batch_bytes: int | str = "4MiB"
    task_records: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"map must be a function from batch to batch, got {self.function!r}")
        if self.fields is not None:
            object.__setattr__(self, "fields", dict(Schema.make(self.fields).fields))
        object.__setattr__(self, "batch_bytes", byte_size("batch_bytes", self.batch_bytes))
        if self.task_records is not None:
            set_whole(self, "task_records", least=1)

    def __call__(self, batch: Batch) -> Mapping[str, Any]:
        made = self.function(batch)
        if not isinstance(made, Mapping):
            raise TypeError(f"the map must return a dict of fields, got a {type(made).__name__}")
        return made

    @property
    def size(self) -> int:
        return int(self.batch_bytes)

    @property
    def fingerprint(self) -> str:
        """Of the function's name and code, so that an unfinished conversion does not go on with another one."""
        return fingerprint_of("batch map", _identity(self.function), self.size)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def over(self, batches: Iterator[Batch], first: int) -> Generator[Mapping[str, Any]]:
        return (self(batch) for batch in batches)


def as_map(value: Callable[[Batch], Mapping[str, Any]] | BatchMap | None) -> BatchMap | None:
    """A function as a :class:`BatchMap` of which nothing more is known."""
    return value if value is None or isinstance(value, BatchMap) else BatchMap(value)


def guess_fields(batch: Mapping[str, Any]) -> dict[str, Field]:
    """The fields that fit a batch."""
    empty = [name for name, column in batch.items() if isinstance(column, list | tuple) and all(item is None for item in column)]
    try:
        if empty:
            raise ValueError(f"fields {empty} have no value there")
        return {name: guess_field(name, column) for name, column in batch.items()}
    except (TypeError, ValueError) as error:
        raise type(error)(f"the fields cannot be found out from the first batch: {error}; give BatchMap(fn, fields=...)") from error


def _identity(function: Any) -> object:
    """What a function is: its name, its code, and the values it was made with."""
    if isinstance(function, partial):
        return ("partial", _identity(function.func), _value(function.args), _value(function.keywords))
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        return (
            "method",
            getattr(function, "__qualname__", ""),
            _identity(getattr(function, "__func__", type(function))),
            _value(owner),
        )
    code = getattr(function, "__code__", None)
    if code is None:  # an object that can be called
        return (_value(function), _code(getattr(type(function).__call__, "__code__", None)))
    cells = [_contents(cell) for cell in function.__closure__ or ()]
    return (function.__qualname__, _code(code), cells, _value(function.__defaults__), _value(function.__kwdefaults__))


def _contents(cell: Any) -> object:
    try:
        return _value(cell.cell_contents)
    except ValueError:  # nothing in it yet
        return None


def _code(code: CodeType | None) -> object:
    """What code does, without where it stands."""
    if code is None:
        return None
    return (code.co_code, code.co_names, [_value(constant) for constant in code.co_consts])


def _value(value: Any, depth: int = 0) -> object:
    """A value as something whose repr is the same in every process."""
    if depth > MOST_DEEP:
        return "deeper"
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, np.ndarray):
        data = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        return (value.dtype.str, value.shape, hashlib.sha256(data).hexdigest())
    if isinstance(value, list | tuple):
        return [_value(item, depth + 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_value(item, depth + 1)) for item in value)
    if isinstance(value, Mapping):
        return sorted((repr(key), repr(_value(item, depth + 1))) for key, item in value.items())
    if hasattr(value, "__code__"):
        return _identity(value)
    if isinstance(value, type | ModuleType):
        return value.__name__
    if hasattr(value, "__dict__"):
        return (type(value).__qualname__, _value(vars(value), depth + 1))
    return ADDRESS.sub("", repr(value))


def _in_threads(
    function: Callable[[T], Mapping[str, Any]], things: Iterator[T], at_once: int, name: str
) -> Generator[Mapping[str, Any]]:
    """``map(function, things)``, a few at a time."""
    coming: deque[Future[Mapping[str, Any]]] = deque()
    with ThreadPoolExecutor(at_once, thread_name_prefix=name) as pool:
        try:
            for one in things:
                coming.append(pool.submit(function, one))
                if len(coming) > at_once:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


# Pictures

SHRUNK_AT_ONCE = min(8, os.cpu_count() or 1)
"""Batches of pictures that are worked on at a time."""


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
        return _in_threads(self._shrunk, self._numbered(batches, first), SHRUNK_AT_ONCE, "penstock-image")

    def _numbered(self, batches: Iterator[Batch], first: int) -> Iterator[tuple[Batch, int]]:
        for batch in batches:
            yield batch, first
            first += len(batch[self.data])

    def _shrunk(self, numbered: tuple[Batch, int]) -> Mapping[str, Any]:
        batch, first = numbered
        column: Ragged = batch[self.data]
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


# Texts

TOKENS, LOSS_MASK, MESSAGES = "tokens", "loss_mask", "messages"
ENCODED_AT_ONCE = 2
MOST_LOOKED_AT = 1 << 16
PROBES = ("", "a", "0", ".", "あ")
"""Texts one of which every tokenizer has tokens for, to see where it adds others."""


@dataclass(frozen=True)
class Tokenize:
    """How texts become tokens, where :func:`penstock.convert` is to know more than the tokenizer.

    ``eos`` is a token, by name or id, that is appended to every document. ``special_tokens=False`` leaves out those that the
    tokenizer's post-processor adds. With ``chat_template`` records are conversations, lists of messages with role and content: the
    path of a Jinja template, its text, or True for the one that came with the tokenizer; ``False`` takes conversations as the texts
    they are stored as. A batch of about ``batch_bytes`` is read, given to the map if there is one, and encoded at once; a task,
    after which an interrupted conversion goes on, has ``task_records`` records, those of the map, or as many as fill a chunk.
    """

    tokenizer: TokenizerLike = field(repr=False)  # some show their whole vocabulary
    eos: str | int | None = None
    special_tokens: bool = True
    chat_template: str | os.PathLike[str] | bool | None = None
    batch_bytes: int | str = "1MiB"
    task_records: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_bytes", byte_size("batch_bytes", self.batch_bytes))
        if self.task_records is not None:
            set_whole(self, "task_records", least=1)
        if self.is_chat and self.eos is not None:
            raise ValueError("eos: a chat template writes the ends of turns itself; leave eos out")
        if self.is_chat and not self.special_tokens:
            raise ValueError("special_tokens: a chat template writes all special tokens itself; leave special_tokens out")

    @property
    def is_chat(self) -> bool:
        """Whether records are conversations."""
        return self.chat_template is not None and self.chat_template is not False

    def field_of(self, schema: Mapping[str, Field], fields: Sequence[str] | None) -> str:
        """The field to encode: the one that was picked, or the only one with texts. ValueError if there is no such one."""
        texts = [name for name, field in schema.items() if field.kind == "text"]
        usual = [MESSAGES] if self.is_chat and MESSAGES in texts else texts
        found = usual if fields is None else list(fields)
        if len(found) != 1:
            raise ValueError(f"expected one field of texts to encode, found {found}: choose one with fields=[...] (--field)")
        if schema[found[0]].kind != "text":
            raise ValueError(f"field {found[0]!r}: expected texts to encode, found {schema[found[0]]!r}; texts are in {texts}")
        return found[0]


def as_tokenize(value: TokenizerLike) -> Tokenize:
    """A tokenizer as a :class:`Tokenize` of which nothing more is known."""
    return value if isinstance(value, Tokenize) else Tokenize(value)


@dataclass(frozen=True)
class _Texts:
    """Texts of records from ``first`` on, the first of them item ``skipped`` of what was read; None for those that are missing."""

    first: int
    texts: list[Any]
    is_exact: bool
    skipped: int = 0

    def name(self, place: int) -> str:
        """Which record it is; after a map that gave others, only about which."""
        item = self.skipped + place
        return f"record {self.first + item}" if self.is_exact else f"item {item} of what the map made of records {self.first} on"

    def pieces(self, size: int) -> "Iterator[_Texts]":
        """The same in runs of about ``size`` characters: encoded, a text takes many times its size."""
        low = total = 0
        for place, text in enumerate(self.texts):
            total += len(text) if isinstance(text, str) else 0
            if total >= size or place + 1 == len(self.texts):
                yield replace(self, texts=self.texts[low : place + 1], skipped=low)
                low, total = place + 1, 0


@dataclass(frozen=True)
class TextMap:
    """Batches of texts into batches of tokens, by a :class:`Tokenize`. ``before`` is a map of the user's whose result is encoded.

    ``missing`` says what to do about missing texts: None lets them be missing documents, a text is the end of the error.
    """

    tokenizer: TextTokenizer
    eos: int | None
    special_tokens: bool
    chat: "ChatTemplate | None"
    takes_messages: bool
    before: BatchMap | None
    missing: str | None
    is_nullable: bool
    size: int
    task_records: int | None

    @classmethod
    def of(cls, how: Tokenize, before: BatchMap | None, missing: str | None, *, is_nullable: bool) -> "TextMap":
        """The map of a conversion; errors of the arguments are raised here."""
        tokenizer = load_tokenizer(how.tokenizer)
        eos = None if how.eos is None else tokenizer.token_id(how.eos)
        if eos is not None and how.special_tokens:
            _refuse_twice(tokenizer, eos)
        chat = None
        if how.chat_template is not None and how.chat_template is not False:
            need("jinja2", EXTRA)
            from penstock.conversion.chat import load_chat_template

            chat = load_chat_template(how.chat_template, tokenizer)
        return cls(
            tokenizer,
            eos,
            how.special_tokens and chat is None,
            chat,
            how.chat_template is False,
            before,
            missing,
            is_nullable and missing is None,
            int(how.batch_bytes),
            before.task_records if how.task_records is None and before is not None else how.task_records,
        )

    @property
    def fields(self) -> Mapping[str, Field]:
        """Tokens, and for conversations the loss mask."""
        made = {TOKENS: Field.ragged(self.tokenizer.dtype, nullable=self.is_nullable)}
        return made if self.chat is None else {**made, LOSS_MASK: Field.ragged("u1", nullable=self.is_nullable)}

    @property
    def fingerprint(self) -> str:
        """Of everything that tokens depend on. The package may encode otherwise in another version."""
        version = need("tokenizers", EXTRA).__version__
        before = None if self.before is None else self.before.fingerprint
        chat = None if self.chat is None else self.chat.sha256
        how = (self.tokenizer.sha256, self.tokenizer.keeps_special_text, self.special_tokens, self.eos, chat, before)
        return fingerprint_of("tokenize", version, *how, self.missing is None, self.size)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What tells the tokenizer of a store."""
        about = {**self.tokenizer.about(), "special_tokens": self.special_tokens, "eos": self.eos}
        return {"tokenizer": about if self.chat is None else {**about, "chat_template": self.chat.sha256}}

    def over(self, batches: Iterator[Batch], first: int) -> Generator[Mapping[str, Any]]:
        """Tokens of batches, in their order."""
        return _in_threads(self._encoded, self._texts(batches, first), ENCODED_AT_ONCE, "penstock-tokenize")

    def _texts(self, batches: Iterator[Batch], first: int) -> Iterator[_Texts]:
        for batch in batches:
            given = _rows(batch)
            made = batch if self.before is None else self.before(batch)
            if len(made) != 1:
                raise ValueError(f"expected a map that gives one field of texts to encode, got {list(made)}")
            found = _texts_of(next(iter(made.values())), first, is_exact=self.before is None, takes_lists=self.chat is not None)
            yield from found.pieces(self.size)
            first += given

    def _encoded(self, given: _Texts) -> Mapping[str, Any]:
        present = np.array([text is not None for text in given.texts], np.bool_)
        if self.missing is not None and not present.all():
            raise SchemaMismatchError(f"{given.name(int(np.argmin(present)))}: the text is missing, {self.missing}")
        if self.chat is not None:
            return self._conversations(given, present)
        texts = [text for text in given.texts if text is not None]
        self._check(given, texts)
        with _telling(given):
            found = self.tokenizer.encode(texts, special_tokens=self.special_tokens)
        values, lengths = found.values, found.lengths
        if self.eos is not None:
            values, lengths = np.insert(values, found.offsets[1:], self.eos), lengths + 1
        return {TOKENS: _spread(values, lengths, present)}

    def _check(self, given: _Texts, texts: Sequence[str]) -> None:
        """SchemaMismatchError if these are conversations and no chat option was given: their JSON would become tokens."""
        if texts and not self.takes_messages and _is_conversation(texts[0]):
            raise SchemaMismatchError(
                f"{given.name(given.texts.index(texts[0]))}: expected a text, found messages with role and content, as JSON: give "
                "chat_template= (--chat), or chat_template=False (--no-chat) to take the JSON as text"
            )

    def _conversations(self, given: _Texts, present: npt.NDArray[np.bool_]) -> Mapping[str, Any]:
        assert self.chat is not None
        texts, spans = [], []
        for place in np.flatnonzero(present).tolist():
            try:
                text, said = self.chat.render(_messages(given.texts[place]))
            except ValueError as error:
                raise SchemaMismatchError(f"{given.name(place)}: {error}") from error
            texts.append(text)
            spans.append(said)
        with _telling(given):
            ids, offsets = self.tokenizer.encode_with_offsets(texts)
        mask = np.zeros(len(ids.values), np.uint8)
        for said, (low, high) in zip(spans, pairwise(ids.offsets.tolist()), strict=True):
            for begin, end in said:
                mark(mask[low:high], offsets[low:high], begin, end)
        return {TOKENS: _spread(ids.values, ids.lengths, present), LOSS_MASK: _spread(mask, ids.lengths, present)}


def mark(mask: npt.NDArray[np.uint8], offsets: IntArray, begin: int, end: int) -> None:
    """Put 1 for the tokens of the characters [begin, end): from the first that reaches behind ``begin`` to the last that begins
    before ``end``. Tokens between them may stand for no character at all: those of spaces do, where the tokenizer trims offsets,
    and are where the spaces end.
    """
    if begin < end:
        first, last = np.searchsorted(offsets[:, 1], begin, side="right"), np.searchsorted(offsets[:, 0], end, side="left")
        mask[first : max(last, np.searchsorted(offsets[:, 1], end, side="right"))] = 1


@contextmanager
def _telling(given: _Texts) -> Iterator[None]:
    """Errors of the tokenizers package, which has one type for them all, with where they happened."""
    try:
        yield
    except Exception as error:
        raise SchemaMismatchError(f"{given.name(0)} and later ones: the tokenizer failed: {error}") from error


def _refuse_twice(tokenizer: TextTokenizer, eos: int) -> None:
    """ValueError if the post-processor appends that token anyway: behind a text, so that one it puts in front is told from it."""
    with_it, without = (tokenizer.encode(list(PROBES), special_tokens=special) for special in (True, False))
    probe = int(np.argmax(without.lengths > 0))  # the empty one, if no other has tokens
    if len(with_it[probe]) > len(without[probe]) and with_it[probe][-1] == eos:
        raise ValueError(
            f"eos: the tokenizer's post-processor appends token {eos} to every document already; leave eos out, or give "
            "special_tokens=False"
        )


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.values()))) if batch else 0


def _texts_of(column: Any, first: int, *, is_exact: bool, takes_lists: bool) -> _Texts:
    """The texts of a column; TypeError if it has something else."""
    if isinstance(column, Ragged) and column.kind == "text":
        raw, offsets = column.values[column.offsets[0] : column.offsets[-1]].tobytes(), column.offsets - column.offsets[0]
        present = None if column.present is None else column.present.tolist()
        made = _Texts(first, [], is_exact)
        for place, (low, high) in enumerate(pairwise(offsets.tolist())):
            try:
                made.texts.append(None if present is not None and not present[place] else raw[low:high].decode())
            except UnicodeDecodeError as error:
                raise SchemaMismatchError(f"{made.name(place)}: expected a text in UTF-8: {error}") from error
        return made
    items = list(column) if isinstance(column, list | tuple | np.ndarray) else None
    made, kinds = _Texts(first, items or [], is_exact), (str, list) if takes_lists else (str,)
    bad = next((place for place, item in enumerate(made.texts) if not (item is None or isinstance(item, kinds))), None)
    if items is None or bad is not None:
        what = type(column).__name__ if bad is None else type(made.texts[bad]).__name__
        raise TypeError(f"{made.name(bad or 0)}: expected texts to encode, got {what}")
    return made


def _spread(values: npt.NDArray[Any], lengths: IntArray, present: npt.NDArray[np.bool_]) -> Ragged:
    """Documents at the places where texts were present."""
    every = np.zeros(len(present) + 1, np.int64)
    every[1:][present] = lengths
    return Ragged(values, np.cumsum(every), present=None if present.all() else present)


def _is_conversation(text: str) -> bool:
    if not text.startswith("[{") or len(text) > MOST_LOOKED_AT:
        return False
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in found)


def _messages(given: Any) -> list[dict[str, Any]]:
    """A conversation; ValueError if it is none."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected messages as JSON, found something else ({error})") from error
    if not isinstance(found, list):
        raise ValueError(f"expected a list of messages, found a {type(found).__name__}")
    for number, one in enumerate(found):
        if not isinstance(one, dict) or not isinstance(one.get("role"), str) or "content" not in one:
            keys = sorted(map(str, one)) if isinstance(one, dict) else type(one).__name__
            raise ValueError(f"message {number}: expected a role and a content, found {keys}")
    return found
