"""Where a store is: the names of its files, and Storage, what it needs of the place where they are.

Local disks and object stores differ behind Storage only. Everything that forms or parses a file name is here::

    train.pen/
      LOCK                          held by the one writer
      manifest/<20 digits>.json     generation G, immutable; the highest is current
      chunk/<writer>-<number>.zr    records; immutable once a manifest names it
      redirect/<writer>-<number>.rd fields of records that are not where their segment says; immutable

A writer is 32 hexadecimal digits (128 random bits, new for every writer), a number 8 of them. Names are relative to the store.
"""

import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import ForkedWriterError
from penstock.remote.url import UrlPath, is_url, url_path

__all__ = [
    "CHUNK_DIRECTORY",
    "DIRECTORIES",
    "FORMAT_VERSION",
    "IDENTITY",
    "LOCK_NAME",
    "MANIFEST_DIRECTORY",
    "MAX_MANIFEST_BYTES",
    "REDIRECT_DIRECTORY",
    "Claim",
    "Found",
    "Item",
    "Location",
    "Piece",
    "Result",
    "Storage",
    "as_location",
    "chunk_file",
    "generation_of",
    "is_data_name",
    "is_temporary_name",
    "manifest_file",
    "new_identity",
    "redirect_file",
    "temporary_name",
]

FORMAT_VERSION = 1
LOCK_NAME = "LOCK"
MANIFEST_DIRECTORY = "manifest"
CHUNK_DIRECTORY = "chunk"
REDIRECT_DIRECTORY = "redirect"
DIRECTORIES = (MANIFEST_DIRECTORY, CHUNK_DIRECTORY, REDIRECT_DIRECTORY)
MAX_MANIFEST_BYTES = 64 << 20

IDENTITY = re.compile(r"[0-9a-f]{32}")
_MANIFEST = re.compile(r"([0-9]{20})\.json")
_TEMPORARY = re.compile(r"\.tmp-.*|probe-[0-9a-f]{32}")
_DATA = re.compile(r"[0-9a-f]{32}-[0-9a-f]{8}\.(zr|rd)")

Location = Path | UrlPath
"""Where a store is: a directory of this machine, or a place under the URL of an object store."""


def as_location(path: str | os.PathLike[str] | UrlPath, storage_options: Mapping[str, Any] | None = None) -> Location:
    """The place that a path or a URL names."""
    if isinstance(path, str) and is_url(path):
        return url_path(path, storage_options)
    if storage_options is not None:
        raise ValueError(f"storage_options need the URL of an object store, got {str(path)!r}")
    return path if isinstance(path, UrlPath) else Path(path)


def new_identity() -> str:
    """128 random bits, for a data set, a writer or a commit."""
    return secrets.token_hex(16)


def manifest_file(generation: int) -> str:
    """The manifest of a generation, relative to the store."""
    return f"{MANIFEST_DIRECTORY}/{generation:020d}.json"


def generation_of(name: str) -> int | None:
    """The generation of a manifest's file name; None for any other name."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def temporary_name(write_id: str) -> str:
    """The file name of a manifest before it is published."""
    return f".tmp-{write_id}"


def is_temporary_name(name: str) -> bool:
    """Whether a file in manifest/ is an unpublished manifest, or what a writer tried out an object store with."""
    return _TEMPORARY.fullmatch(name) is not None


def chunk_file(writer: str, number: int) -> str:
    """A chunk, relative to the store."""
    return f"{CHUNK_DIRECTORY}/{writer}-{number:08x}.zr"


def redirect_file(writer: str, number: int) -> str:
    """A redirect table, relative to the store."""
    return f"{REDIRECT_DIRECTORY}/{writer}-{number:08x}.rd"


def is_data_name(name: str) -> bool:
    """Whether a file in chunk/ or redirect/ is one a writer made."""
    return _DATA.fullmatch(name) is not None


Piece = tuple[int, bytes | npt.NDArray[np.uint8]]
"""An offset in a file and the bytes that go there."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a listing: its name within the store, its bytes, when it was written and when it came here, in s since 1970."""

    name: str
    size: int
    modified: float
    arrived: float


class Claim:
    """A writer's right to write, from its opening to its end, in the process that opened it. ``where`` is named in messages."""

    def __init__(self, where: object) -> None:
        self._where, self._process = where, os.getpid()

    def check_process(self) -> None:
        """ForkedWriterError in a process that did not open the writer."""
        if os.getpid() != self._process:
            raise ForkedWriterError(f"{self._where}: this writer belongs to process {self._process}; open another one here")

    def close(self) -> None:
        """Let the next writer in. Here nothing keeps it out."""


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
