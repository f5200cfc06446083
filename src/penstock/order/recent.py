"""A memo of one: what an order made for the epoch asked for last."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Recent"]

T = TypeVar("T")


class Recent(Generic[T]):
    """Keeps the value of the last key. Safe to use from several threads; starts empty in a pickled copy.

    It only saves work: an order gives the same ids with or without it.
    """

    __slots__ = ("_pair",)

    def __init__(self) -> None:
        self._pair: tuple[int, T] | None = None

    def get(self, key: int, make: Callable[[], T]) -> T:
        """The value of ``key``, made now unless it was the key asked for last."""
        pair = self._pair
        if pair is None or pair[0] != key:
            self._pair = pair = (key, make())
        return pair[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return (Recent, ())
