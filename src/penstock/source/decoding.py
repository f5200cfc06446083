"""Records that come one by one as byte strings: read in threads where that pays, and turned into fields by a function."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from penstock.errors import ReadError
from penstock.schema import Field
from penstock.store.column import guess_field

__all__ = ["Decode", "Decoder", "run_each"]

Decode = Callable[[bytes], Any]
"""A function from the bytes of a record to an array, a number, a text or bytes, or to a dict of them."""

PROBED = 4
SLOW_S = 100e-6
"""From this time per record on, threads pay: small files in the page cache are read faster by one thread than by several."""

T = TypeVar("T")


def run_each(work: Callable[[int], T], count: int, threads: int) -> list[T]:
    """``work(i)`` for every i below ``count``, in order. The first ones run here; if they are slow, the others run in threads."""
    start = time.perf_counter()
    numbers = iter(range(count))
    done = [work(i) for i in islice(numbers, PROBED)]
    if threads > 1 and count > PROBED and time.perf_counter() - start > PROBED * SLOW_S:
        with ThreadPoolExecutor(min(threads, count - PROBED)) as pool:
            return done + list(pool.map(work, numbers))
    return done + [work(i) for i in numbers]


class Decoder:
    """Turns the bytes of a record into its fields. Without a function, the bytes are the one field."""

    def __init__(
        self, field: str, decode: Decode | None, schema: Mapping[str, Field] | None, first: Callable[[], tuple[str, bytes] | None]
    ) -> None:
        """``first`` gives the name and the bytes of record 0, if there is one; the fields are found out from it if need be."""
        if decode is None and schema is not None:
            raise ValueError("schema says what decode gives: give both or neither")
        if decode is not None and not callable(decode):
            raise TypeError(f"decode must be a function of bytes, got {decode!r}")
        self._field, self._decode = field, decode
        self.schema: dict[str, Field] = {field: Field.bytes()} if schema is None else dict(schema)
        if decode is not None and schema is None:
            self.schema = self._guess(first())

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to decode."""
        return self._decode is None

    @property
    def identity(self) -> tuple[object, ...]:
        """What a fingerprint can tell of the function: its name and the fields; what it does cannot be seen."""
        inner = getattr(self._decode, "func", self._decode)
        name = None if inner is None else getattr(inner, "__qualname__", type(inner).__qualname__)
        return (name, [(field, repr(one.with_nullable(False))) for field, one in self.schema.items()])

    def __call__(self, where: str, data: bytes) -> Mapping[str, Any]:
        """The fields of a record. Errors say where it lies."""
        if self._decode is None:
            return {self._field: data}
        try:
            value = self._decode(data)
        except ReadError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            error.add_note(f"while decoding {where}")
            raise
        return value if isinstance(value, Mapping) else {self._field: value}

    def _guess(self, first: tuple[str, bytes] | None) -> dict[str, Field]:
        if first is None:
            raise ValueError("there is no record to find out the fields from: give schema={...}")
        record = self(*first)
        missing = [name for name, value in record.items() if value is None]
        if missing:
            raise ValueError(f"fields {missing} are missing in {first[0]}, so their types cannot be found out: give schema={{...}}")
        return {name: guess_field(name, [value]) for name, value in record.items()}
