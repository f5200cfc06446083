"""A storage of the user's own: three methods, and penstock reads it as it reads a bucket.

::

    class Archive:
        def info(self, key): return ObjectFacts(size, etag)         # FileNotFoundError if there is no such object
        def read(self, key, start, stop): return bytes              # bytes [start, stop) of it
        def list(self, prefix): return [(key, facts), ...]          # of all objects below prefix; may be left out

    pen.open(storage(Archive()) / "train.parquet")

File systems of fsspec are taken as they are. Windows, caches, retries, forecasts and counters are those of every URL.
"""

import datetime
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock.argument import shown
from penstock.process import interruptible
from penstock.remote.fetch import FailedError, Failure
from penstock.remote.objects import shared_objects
from penstock.remote.url import UrlPath

__all__ = ["Backend", "BackendClient", "FsspecBackend", "ObjectFacts", "Result", "as_meta", "storage"]

T = TypeVar("T")

SCHEME = "storage"
PAGE = 1000
LAST_S = 253_402_300_800
"""The year 10000, which no date is behind."""
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclass(frozen=True)
class ObjectFacts:
    """An object: its bytes, what changes when they do, and when they did, in seconds since 1970 (0: not known).

    Without an ``etag``, the size and the time tell a change.
    """

    size: int
    etag: str | None = None
    modified: float = 0.0


@runtime_checkable
class Backend(Protocol):
    """What a storage must do. Called from several threads at once, and pickled for other processes.

    FileNotFoundError and PermissionError are final; any other OSError, TimeoutError and ConnectionError are tried again, as
    failures of a network are; all else is an error of the backend and passed on.
    """

    def info(self, key: str) -> ObjectFacts:
        """What is known of an object."""

    def read(self, key: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of an object, which are there."""


def storage(backend: Any, name: str = "") -> UrlPath:
    """The root of a storage: ``storage(backend) / "train/a.parquet"`` can be opened, patterns and prefixes too if it lists.

    ``backend`` has the methods of :class:`Backend`, and ``list(prefix)`` if it can list; or it is a file system of fsspec. ``name``
    is shown in errors; for fsspec it is the directory or bucket in which all keys are.

    >>> import fsspec, numpy as np, penstock as pen
    >>> from penstock.source import storage
    >>> files = fsspec.filesystem("memory")
    >>> with files.open("/bucket/x.npy", "wb") as file:
    ...     np.save(file, np.arange(5))
    >>> pen.open(storage(files, "bucket") / "x.npy")[3]
    {'data': np.int64(3)}
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a text, got {shown(name)}")
    if hasattr(backend, "cat_file") and hasattr(backend, "find"):
        backend = FsspecBackend(backend, name.rstrip("/"))
    elif not all(callable(getattr(backend, method, None)) for method in ("info", "read")):
        raise TypeError(f"expected a backend with the methods info and read, or a file system of fsspec, got {shown(backend)}")
    try:
        hash(backend)
    except TypeError:
        raise TypeError(f"expected a backend that can be hashed, got a {type(backend).__name__}; a frozen dataclass can") from None
    host = name.strip("/").replace("/", ".") or type(backend).__name__
    return UrlPath(shared_objects(SCHEME, host, {"backend": backend}), "")


@dataclass(frozen=True)
class FsspecBackend:
    """A file system of fsspec, below a directory or bucket."""

    files: Any
    root: str

    def info(self, key: str) -> ObjectFacts:
        """What fsspec says of a file, which may have changed since a listing that it remembers."""
        self.files.invalidate_cache(self._path(key))
        return self._facts(self.files.info(self._path(key)), key)

    def read(self, key: str, start: int, stop: int) -> bytes:
        """A range, by ``cat_file``."""
        return bytes(self.files.cat_file(self._path(key), start=start, end=stop))

    def list(self, prefix: str) -> Iterable[tuple[str, ObjectFacts]]:
        """All files below a prefix, by ``find``."""
        self.files.invalidate_cache()
        skipped = len(self._whole(self._path("")))
        for path, about in self.files.find(self._path(prefix), detail=True).items():
            key = self._whole(path)[skipped:].strip("/")
            yield key, self._facts(about, key)

    def _path(self, key: str) -> str:
        return "/".join(part for part in (self.root, key) if part) or "/"

    def _whole(self, path: str) -> str:
        """A path as fsspec has it, whether it was relative or a URL, without slashes at its ends."""
        return str(self.files.unstrip_protocol(path)).partition("://")[2].strip("/")

    def _facts(self, about: Mapping[str, Any], key: str) -> ObjectFacts:
        if about.get("type") == "directory" or not isinstance(about.get("size"), int):
            raise FileNotFoundError(key)
        etag = next((about[name] for name in ("ETag", "etag", "e_tag", "md5Hash", "ino") if about.get(name) is not None), None)
        times = (about.get(name) for name in ("LastModified", "last_modified", "mtime", "modified", "created"))
        when = next((one for one in times if one is not None), 0.0)
        modified = (
            when.timestamp() if isinstance(when, datetime.datetime) else float(when) if isinstance(when, int | float) else 0.0
        )
        return ObjectFacts(about["size"], None if etag is None else f"{etag}-{modified:.9f}", modified)


@dataclass(frozen=True)
class Result:
    """A range of an object, as the other clients give it."""

    meta: Mapping[str, Any]
    range: tuple[int, int]
    body: bytes
    attributes: Mapping[str, str]

    def stream(self, min_chunk_size: int) -> Iterator[bytes]:
        """All of it."""
        return iter((self.body,) if self.body else ())


def as_meta(key: str, facts: ObjectFacts) -> Mapping[str, Any]:
    """What is known of an object, as the other clients have it."""
    when = datetime.datetime.fromtimestamp(facts.modified, datetime.UTC) if facts.modified else EPOCH
    return {"path": key, "size": facts.size, "e_tag": facts.etag, "last_modified": when}


class BackendClient:
    """Reads from a backend, as ``ObstoreClient`` does from buckets. Safe to use from several threads."""

    expired = False

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend, self._name = backend, name
        self._known: dict[str, ObjectFacts] = {}
        self._lock = threading.Lock()

    def do(self, action: Callable[[], T]) -> T:
        """Do something that may wait. An interrupt ends the wait."""
        return interruptible(action)

    def call(self, name: str, key: str, *, options: Mapping[str, Any] | None = None) -> Any:
        """``head`` or ``get``."""
        if name == "head":
            return as_meta(key, self._facts(key, is_fresh=True))
        return self._get(key, (options or {}).get("range"))

    def _get(self, key: str, asked: Any) -> Result:
        """Bytes, and the version that the object had before they were read and has after it."""
        facts = self._facts(key, is_fresh=asked is None)
        bounds = _range(asked, facts.size)
        if bounds is None:  # it may have grown
            facts = self._facts(key, is_fresh=True)
            bounds = _range(asked, facts.size)
        if bounds is None:
            raise FailedError(Failure("range", f"expected a range within {facts.size} bytes"))
        start, stop = bounds
        data = self._guarded(key, lambda: self._backend.read(key, start, stop)) if stop > start else b""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"{self._name}: expected bytes from read, got a {type(data).__name__}")
        data = bytes(data)
        if self._facts(key, is_fresh=True) != facts:
            raise FailedError(Failure("again", "the object was changed while it was read"))
        if len(data) > stop - start:
            raise FailedError(Failure("wrong", f"read gave {len(data)} bytes instead of {stop - start}"))
        return Result(as_meta(key, facts), (start, stop), data, {})

    def _facts(self, key: str, *, is_fresh: bool) -> ObjectFacts:
        with self._lock:
            known = self._known.get(key)
        if known is not None and not is_fresh:
            return known
        found = self._checked("info", key, self._guarded(key, lambda: self._backend.info(key)))
        with self._lock:
            self._known[key] = found
        return found

    def _checked(self, method: str, key: Any, facts: Any) -> ObjectFacts:
        """TypeError or ValueError, without what the backend may keep to itself, unless a method gave what it must."""
        if not isinstance(key, str) or not isinstance(facts, ObjectFacts):
            what = "keys and ObjectFacts" if method == "list" else "ObjectFacts"
            found = type(key).__name__ if not isinstance(key, str) else type(facts).__name__
            raise TypeError(f"{self._name}: expected {what} from {method}, got a {found}")
        size, etag, modified = facts.size, facts.etag, facts.modified
        if isinstance(size, bool) or not hasattr(size, "__index__") or size < 0:
            raise ValueError(f"{self._name}: expected the bytes of {key!r} as size from {method}, got {shown(size)}")
        if not isinstance(etag, str | None):
            raise TypeError(f"{self._name}: expected a text or None as etag of {key!r} from {method}, got {shown(etag)}")
        if not isinstance(modified, int | float) or not math.isfinite(modified) or not 0 <= modified < LAST_S:
            raise ValueError(
                f"{self._name}: expected seconds since 1970 as modified of {key!r} from {method}, got {shown(modified)}"
            )
        return facts

    def items(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces of a result."""
        return stream

    def pages(self, seconds: float, prefix: str | None, offset: str | None) -> Iterator[list[Mapping[str, Any]]]:
        found = getattr(self._backend, "list", None)
        if found is None:
            raise FailedError(Failure("unsupported", "the backend has no method list(prefix): name the objects one by one"))
        below = f"{prefix}/" if prefix else ""
        listed = self._guarded(prefix or "", lambda: list(found(prefix or "")))
        if not all(isinstance(one, tuple | list) and len(one) == 2 for one in listed):
            raise TypeError(f"{self._name}: expected pairs of key and ObjectFacts from list")
        metas = [as_meta(key, self._checked("list", key, facts)) for key, facts in listed if str(key).startswith(below)]
        yield from (metas[low : low + PAGE] for low in range(0, len(metas), PAGE))

    def _guarded(self, key: str, action: Callable[[], T]) -> T:
        """Errors of the storage become a FailedError."""
        try:
            return self.do(action)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            failure = Failure("missing", f"{self._name} has no such object")
        except PermissionError as error:
            failure = Failure("denied", f"no permission ({type(error).__name__})")
        except OSError as error:  # TimeoutError and ConnectionError among them
            failure = Failure("again", f"{type(error).__name__} {error.strerror or ''}".rstrip())
        raise FailedError(failure)

    def close(self) -> None:
        """Nothing is open."""


def _range(asked: Any, size: int) -> tuple[int, int] | None:
    """The bytes that are asked for, as far as there are any; None if there are none."""
    if asked is None:
        return 0, size
    start, stop = (max(0, size - asked["suffix"]), size) if isinstance(asked, Mapping) else (asked[0], min(asked[1], size))
    return (start, stop) if start < stop else None
