"""Storage: what a store needs of the place where it is. Local disks and object stores differ behind this seam only.

Names are relative to the store: ``chunk/<writer>-<serial>.zr``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from penstock.store.filesystem import Piece
from penstock.store.format import Location

__all__ = ["Claim", "Found", "Storage"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a listing: its name within the store, its bytes, when it was written and when it came here, in s since 1970."""

    name: str
    size: int
    modified: float
    arrived: float


class Claim(Protocol):
    """A writer's right to write, from its opening to its end."""

    def check_process(self) -> None:
        """ForkedWriterError in a process that did not open the writer."""

    def close(self) -> None:
        """Let the next writer in."""


class Storage(ABC):
    """The files of one store. Safe to use from several threads."""

    keep_hours: float
    """How old a file must be before gc takes it, unless told otherwise."""
    read_tries: int
    """How often bytes that fail their checks are read before that is believed."""
    many_writers: bool
    """Whether several writers may be at work, so that an append that comes second is put behind what came first."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def full(self, name: str) -> str:
        """Where a file of the store is, for messages."""
        return f"{self.location}/{name}"

    # Reading

    @abstractmethod
    def check_directories(self) -> None:
        """CorruptError if a directory of the store is a link."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """The file names in a directory of the store, sorted."""

    @abstractmethod
    def read(self, name: str, most: int) -> bytes:
        """All bytes of a file, at most ``most``; MissingError if it is not there."""

    @abstractmethod
    def read_end(self, name: str, size: int, count: int) -> bytes:
        """The last ``count`` bytes of a file of ``size`` bytes; MissingError if it is not there, CorruptError if it is shorter."""

    @abstractmethod
    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do something that reads with each item, several at a time where waiting is most of it."""

    @abstractmethod
    def listing(self, directory: str) -> list[Found]:
        """The files in a directory of the store, with size and age, sorted by name."""

    # Writing

    @abstractmethod
    def prepare(self) -> None:
        """Make room for a new store; StoreError where that is not possible."""

    @abstractmethod
    def claim(self, *, single_writer: bool) -> Claim:
        """Become a writer of the store; StoreError where commits would not be safe."""

    @abstractmethod
    def write_new(self, name: str, pieces: Sequence[Piece]) -> None:
        """Write a file under a name that no other file has, durably except for its name."""

    @abstractmethod
    def settle(self, directories: Sequence[str], *, is_new: bool) -> None:
        """Make the names in directories durable; of a new store its own name too."""

    @abstractmethod
    def draft(self, temporary: str, data: bytes) -> None:
        """Write a manifest under a temporary name, where publishing needs that."""

    @abstractmethod
    def publish(self, temporary: str, final: str, data: bytes, needs: Mapping[str, int]) -> None:
        """Give a manifest its final name, durably and never in place of another: ConflictError if another writer was first.

        ``needs`` are new files that it names, with their sizes: ConflictError if one is seen to be gone. DurabilityError if the
        manifest may or may not be there.
        """

    @abstractmethod
    def is_current(self, generation: int, digest: str) -> bool:
        """Whether the next generation may still be the successor of this one (0: of none), whose manifest has this sha256.

        Where there are many writers, only publishing tells for certain.
        """

    @abstractmethod
    def newest_generation(self, known: int) -> int:
        """The current generation, for a writer that knows of generation ``known``."""

    @abstractmethod
    def unlisted(self, listed: Sequence[int]) -> set[int]:
        """Generations that are there although a listing of the manifests does not have them."""

    @abstractmethod
    def pause(self, tries: int) -> None:
        """Wait a moment after ``tries`` conflicts, each writer for another time."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    @abstractmethod
    def discard(self, names: Sequence[str]) -> None:
        """Remove files that are not needed, as far as that is possible."""
