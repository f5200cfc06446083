"""BatchMap: a function from batch to batch, and what is known of it."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from penstock.argument import byte_size, set_whole
from penstock.records import Batch
from penstock.schema import Field, Schema
from penstock.source.fingerprint import fingerprint_of
from penstock.store.column import guess_field

__all__ = ["BatchMap", "as_map", "guess_fields"]

MOST_DEEP = 8
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


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
        """The batch that a batch becomes."""
        made = self.function(batch)
        if not isinstance(made, Mapping):
            raise TypeError(f"the map must give a dict of fields, got a {type(made).__name__}")
        return made

    @property
    def size(self) -> int:
        """The bytes of a batch as a number."""
        return int(self.batch_bytes)

    @property
    def fingerprint(self) -> str:
        """Of the function's name and code, so that an unfinished conversion does not go on with another one."""
        return fingerprint_of("batch map", _identity(self.function), self.size)


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
