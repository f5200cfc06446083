"""Data sets of the Hugging Face hub: ``hf://datasets/user/name/path``, ``hf://datasets/user/name@revision/path``.

A revision (``main`` unless given) is resolved to a commit once in a process, and every object is that of the commit: its etag. So
what is read cannot change, and a state of another commit is refused. A listing is one request for up to 1,000 objects.

The token is that of ``HF_TOKEN``, of ``storage_options={"token": ...}``, or the one that ``hf auth login`` has saved. It is sent to
the hub only, not to the servers that the hub redirects to, and never shown. ``HF_ENDPOINT`` or the option ``endpoint`` names
another hub.
"""

import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from penstock.remote.backend import ObjectFacts, as_meta
from penstock.remote.fetch import FailedError, Failure, Policy, Rest
from penstock.remote.http_client import HttpClient

__all__ = ["OPTIONS", "HubClient"]

T = TypeVar("T")

ENDPOINT = "https://huggingface.co"
OPTIONS = frozenset({"endpoint", "token"})
MAIN = "main"
ANSWER_BYTES = 32 << 20
"""The most bytes of an answer of the hub's API."""
COMMIT = re.compile("[0-9a-f]{40}")
NEXT = re.compile(r'<([^<>]*)>\s*;\s*rel="next"')


@dataclass(frozen=True)
class _Place:
    """A place in a data set: its repository and revision as they are written, and the path there."""

    repository: str
    revision: str
    path: str

    @classmethod
    def of(cls, key: str) -> "_Place":
        """FailedError if the key names no data set."""
        user, _, rest = key.partition("/")
        name, _, path = rest.partition("/")
        name, at, revision = name.partition("@")
        if not user or not name or (at and not revision):
            raise FailedError(Failure("refused", "expected hf://datasets/user/name/path, or user/name@revision/path"))
        return cls(f"{user}/{name}", urllib.parse.unquote(revision) or MAIN, path)


class HubClient:
    """Reads from the hub, as ``ObstoreClient`` does from buckets. Safe to use from several threads."""

    expired = False

    def __init__(self, host: str, options: Mapping[str, Any], policy: Policy) -> None:
        if host != "datasets":
            raise ValueError(f"expected hf://datasets/user/name, got hf://{host}")
        token = _token(options)
        endpoint = str(options.get("endpoint") or os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        parts = urllib.parse.urlsplit(endpoint)
        if parts.path or parts.query or parts.fragment or "@" in parts.netloc:  # not shown: it may have credentials
            raise ValueError(f"endpoint: expected scheme and host of a hub, such as {ENDPOINT}, got more than that")
        headers = {**dict(options.get("default_headers", {})), **({} if token is None else {"Authorization": f"Bearer {token}"})}
        given = {name: value for name, value in options.items() if name not in OPTIONS}
        self._http = HttpClient(endpoint, {**given, "default_headers": headers, "allow_redirects": True}, policy)
        self._commits: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def do(self, action: Callable[[], T]) -> T:
        """Do something that may wait for the hub."""
        return self._http.do(action)

    def call(self, name: str, key: str, *, options: Mapping[str, Any] | None = None) -> Any:
        """``head`` or ``get`` of an object of the commit."""
        place = _Place.of(key)
        if not place.path:
            raise FailedError(Failure("missing", "this is a data set, and not a file of it"))
        commit = self._commit(place)
        asked = {} if (options or {}).get("range") is None else {"range": (options or {})["range"]}
        found = self._http.call(name, f"datasets/{place.repository}/resolve/{commit}/{place.path}", options=asked)
        if name == "head":
            return {**found, "path": key, "e_tag": commit}
        return _Pinned(found, {**found.meta, "path": key, "e_tag": commit})

    def items(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces of a body."""
        return self._http.items(stream)

    def pages(self, seconds: float, prefix: str | None, offset: str | None) -> Iterator[list[Mapping[str, Any]]]:
        """A listing of the commit, page by page."""
        place = _Place.of(prefix or "")
        commit = self._commit(place)
        root = (prefix or "").removesuffix(f"/{place.path}") if place.path else prefix
        target = f"api/datasets/{_quoted(place.repository)}/tree/{commit}"
        if place.path:
            target += f"/{_quoted(place.path)}"
        query = "recursive=true&expand=false"
        while True:
            try:
                raw, headers = self._http.document(target, query, ANSWER_BYTES)
            except FailedError as error:
                if error.failure.kind == "missing" and place.path:
                    return  # nothing is there
                raise
            yield [
                as_meta(f"{root}/{path}", ObjectFacts(size, commit))
                for path, size in _files(_parsed(raw))
                if _is_below(path, place)
            ]
            following = NEXT.search(headers.get("link", ""))
            if following is None:
                return
            url = urllib.parse.urlsplit(following[1])
            if url.query == query:
                raise FailedError(Failure("wrong", "the next page of a listing is the same one"))
            query = url.query

    def _commit(self, place: _Place) -> str:
        """The commit of a revision, asked for once."""
        if COMMIT.fullmatch(place.revision):
            return place.revision
        with self._lock:
            known = self._commits.get((place.repository, place.revision))
            if known is None:
                revision = urllib.parse.quote(place.revision, safe="")
                raw, _ = self._http.document(f"api/datasets/{_quoted(place.repository)}/revision/{revision}", "", ANSWER_BYTES)
                answer = _parsed(raw)
                known = answer.get("sha") if isinstance(answer, dict) else None
                if not isinstance(known, str) or not COMMIT.fullmatch(known):
                    raise FailedError(Failure("wrong", "the hub does not say which commit the revision is"))
                self._commits[place.repository, place.revision] = known
            return known

    def close(self) -> None:
        """End connections. Commits stay known: this process goes on with them."""
        self._http.close()


@dataclass(frozen=True)
class _Pinned:
    """An answer whose version is the commit."""

    answer: Any
    meta: Mapping[str, Any]

    @property
    def range(self) -> tuple[int, int]:
        found: tuple[int, int] = self.answer.range
        return found

    @property
    def attributes(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.answer.attributes
        return found

    def stream(self, min_chunk_size: int) -> Iterator[bytes]:
        """The body."""
        found: Iterator[bytes] = self.answer.stream(min_chunk_size)
        return found

    @property
    def rest(self) -> Rest:
        found: Rest = self.answer.rest
        return found


def _token(options: Mapping[str, Any]) -> str | None:
    """The token of the options, of the environment, or of a file; ValueError without showing it if it is none."""
    found = options.get("token") or os.environ.get("HF_TOKEN") or _saved_token()
    if found is None:
        return None
    token = str(found).strip()
    if not re.fullmatch(r"[!-~]{1,1000}", token):
        raise ValueError("token: expected letters and digits in one line, got something else")
    return token


def _saved_token() -> str | None:
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token")
    try:
        return path.expanduser().read_text().strip() or None
    except (OSError, RuntimeError, ValueError):
        return None


def _quoted(path: str) -> str:
    return urllib.parse.quote(path)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        failure = Failure("wrong", "the answer of the hub is no JSON")
    raise FailedError(failure)


def _files(answer: Any) -> Iterator[tuple[str, int]]:
    """Paths and sizes of the files of a page."""
    if not isinstance(answer, list):
        raise FailedError(Failure("wrong", "expected a list of files from the hub"))
    for one in answer:
        path, size = (one.get("path"), one.get("size")) if isinstance(one, dict) else (None, None)
        if not isinstance(path, str) or (one.get("type") == "file" and (not isinstance(size, int) or size < 0)):
            raise FailedError(Failure("wrong", "expected files with path and size from the hub"))
        if one.get("type") == "file" and isinstance(size, int):
            yield path, size


def _is_below(path: str, place: _Place) -> bool:
    return not place.path or path.startswith(f"{place.path}/")
