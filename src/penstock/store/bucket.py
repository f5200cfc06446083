"""A store on an object store: several writers, no lock, and a commit is a put-if-absent of the next manifest.

::

    1  put the new chunk objects and the redirect object, each under a key of its own
    2  put manifest/<G + 1> if it is absent
    3  if that did not plainly succeed, read it back: mine, absent (again from 2) or another's (ConflictError)
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.errors import (
    ConflictError,
    CorruptError,
    DurabilityError,
    MissingError,
    OutcomeUnknownError,
    PenstockError,
    ReadError,
    StoreError,
)
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import UrlPath
from penstock.store.manifest import decode_manifest
from penstock.store.storage import (
    MANIFEST_DIRECTORY,
    MAX_MANIFEST_BYTES,
    Claim,
    Found,
    Item,
    Piece,
    Result,
    Storage,
    generation_of,
    manifest_file,
)

__all__ = ["ObjectStorage"]

COMMIT_TRIES = 5
READS_AT_ONCE = 16
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
MAX_GAPS = 1000


class ObjectStorage(Storage):
    """The objects of one store. A writer that comes second at a commit learns it from the server."""

    keep_hours = 7 * 24.0  # readers and writers are unknown: only age tells a leftover from a commit under way
    read_tries = 3
    many_writers = True

    def __init__(self, url: UrlPath) -> None:
        super().__init__(url)
        self._url, self._objects = url, url.objects

    def _key(self, name: str) -> str:
        return f"{self._url.key}/{name}" if self._url.key else name

    # Reading

    def _list(self, directory: str) -> Iterator[tuple[str, ObjectInfo]]:
        """The objects right under a directory of the store, by their last name."""
        prefix = self._key(directory)
        for info in self._objects.list(prefix):
            name = info.key[len(prefix) + 1 :]
            if name and "/" not in name:
                yield name, info

    def check_directories(self) -> None:
        """Nothing: there are no links."""

    def names(self, directory: str) -> list[str]:
        return [name for name, _ in self._list(directory)]

    def read(self, name: str, most: int) -> bytes:
        return self._objects.read_all(self._key(name), most)

    def read_end(self, name: str, size: int, count: int) -> bytes:
        """The last bytes of an object, in one request."""
        return self._objects.read(ObjectInfo(self._key(name), size, None, 0.0), size - count, size)

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(len(items), READS_AT_ONCE), thread_name_prefix="penstock-read") as pool:
            return list(pool.map(work, items))

    def listing(self, directory: str) -> list[Found]:
        return [Found(f"{directory}/{name}", info.size, info.modified, info.modified) for name, info in self._list(directory)]

    # Writing

    def prepare(self) -> None:
        """Nothing: there are no directories."""

    def claim(self, *, single_writer: bool) -> Claim:
        """The right to write; StoreError if the server takes no condition and the caller does not promise to be alone."""
        if not single_writer and not self._heeds_conditions():
            raise StoreError(
                f"{self._url}: this server ignores If-None-Match, so that two writers would overwrite each other's commits; "
                "open with single_writer=True if there is never more than one"
            )
        return Claim(self._url)

    def write_new(self, name: str, pieces: Sequence[Piece]) -> None:
        """Put an object. Its name has 128 random bits, so that to put it twice is harmless."""
        self._objects.put(self._key(name), list(_joined(pieces)))

    def settle(self, directories: Sequence[str], *, is_new: bool) -> None:
        """Nothing: an object that was put is durable, and its name with it."""

    def draft(self, temporary: str, data: bytes) -> None:
        """Nothing: a manifest appears whole or not at all."""

    def publish(self, temporary: str, final: str, data: bytes, needs: Mapping[str, int]) -> None:
        """Put the manifest if it is absent; whatever is unclear is settled by reading it back.

        The files that it needs are not checked: they stay for as long as gc keeps files, and a transaction may take no longer.
        """
        for tries in range(COMMIT_TRIES):
            try:
                if self._put_new(final, data):
                    return
            except OutcomeUnknownError:
                pass
            except PenstockError as error:
                if tries == 0:
                    raise
                raise self._unknown(final) from error
            # A plain refusal is no proof: a proxy between here and the server may have sent the request twice.
            if self._is_mine(final, data):
                return
            self.pause(tries)
        raise self._unknown(final)

    def _put_new(self, final: str, data: bytes) -> bool:
        if self._heeds_conditions():
            return self._objects.put_new(self._key(final), data)
        if self._is_mine(final, data):  # ConflictError if another's is there: the one promise that can be checked
            return True
        self._objects.put(self._key(final), data)
        return True

    def _heeds_conditions(self) -> bool:
        """Whether the server does; tried once in a process, in manifest/, where gc finds what a killed writer leaves."""
        return self._objects.supports_put_new(self._key(MANIFEST_DIRECTORY))

    def _is_mine(self, final: str, data: bytes) -> bool:
        """Whether the manifest is there and this one; ConflictError if it is another's."""
        for _ in range(3):  # bytes that were damaged on their way are neither
            try:
                found = self.read(final, MAX_MANIFEST_BYTES)
                if found == data:  # with 128 random bits in it
                    return True
                decode_manifest(found, self.full(final))
            except MissingError:
                return False
            except CorruptError:
                continue
            except ReadError as error:
                raise self._unknown(final) from error
            raise ConflictError(f"{self.full(final)}: another writer committed this generation first")
        raise self._unknown(final)

    def _unknown(self, final: str) -> DurabilityError:
        return DurabilityError(0, "the server did not confirm whether the commit exists; reopen the store to see", self.full(final))

    def is_current(self, generation: int, digest: str) -> bool:
        """Whether there is no successor, and the manifest is still there, looked at in this order.

        gc removes older generations first. So while a generation is there, none that followed it was collected, and a successor
        that was absent before had never been there. Without that look, gc could remove an old successor after this call, and the
        next commit would take its number, below the newest generation. A successor that comes from now on is younger than gc takes.
        """
        if generation == 0:
            return not any(generation_of(name) is not None for name in self.names(MANIFEST_DIRECTORY))
        if self._exists(generation + 1):
            return False
        try:
            data = self.read(manifest_file(generation), MAX_MANIFEST_BYTES)
        except MissingError:
            return False
        return hashlib.sha256(data).hexdigest() == digest

    def newest_generation(self, known: int) -> int:
        """The highest number in the listing, or the one that follows by name: a listing may be late."""
        newest = max((g for g in map(generation_of, self.names(MANIFEST_DIRECTORY)) if g is not None), default=0)
        return self._last_from(max(newest, known))

    def _last_from(self, generation: int) -> int:
        while self._exists(generation + 1):
            generation += 1
        return generation

    def _exists(self, generation: int) -> bool:
        try:
            self._objects.head(self._key(manifest_file(generation)))
        except MissingError:
            return False
        return True

    def unlisted(self, listed: Sequence[int]) -> set[int]:
        """Those in gaps, and next to the ends."""
        if not listed:
            return set()
        if listed[-1] - listed[0] >= len(listed) + MAX_GAPS:
            raise CorruptError(f"{self._url}: there are too many gaps between generations {listed[0]} and {listed[-1]}")
        gaps = set(range(max(1, listed[0] - 1), listed[-1])) - set(listed)
        return {g for g in gaps if self._exists(g)} | set(range(listed[-1] + 1, self._last_from(listed[-1]) + 1))

    def pause(self, tries: int) -> None:
        clock = self._objects.clock
        clock.sleep(clock.jitter() * min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**tries))

    def remove(self, name: str) -> None:
        self._objects.delete(self._key(name))

    def discard(self, names: Sequence[str]) -> None:
        """Delete objects that are not needed; gc finds them if the server does not answer."""
        try:
            for name in names:
                self.remove(name)
        except PenstockError:
            pass


def _joined(pieces: Sequence[Piece]) -> Iterator[bytes | memoryview]:
    """Pieces one after the other, with zeros where nothing was said."""
    end = 0
    for offset, data in pieces:
        if offset > end:
            yield bytes(offset - end)
        yield data if isinstance(data, bytes) else data.data
        end = offset + len(data)
