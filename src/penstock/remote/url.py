"""Places in object stores, named by URLs."""

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from penstock.errors import UnsafePathError
from penstock.remote.objects import Objects, shared_objects

__all__ = ["SCHEMES", "UrlPath", "is_url", "url_path"]

SCHEMES = ("s3", "gs", "az", "hf", "http", "https", "memory")
"""The schemes of URLs that are object stores."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


def is_url(text: str) -> bool:
    """Whether a text is the URL of an object store (``file://`` is not one)."""
    match = _URL.match(text)
    return match is not None and match[1] in SCHEMES


def url_path(url: str, storage_options: Mapping[str, Any] | None = None) -> "UrlPath":
    """The place that a URL names.

    ``s3://bucket/key``, ``gs://bucket/key``, ``az://container/key``, ``hf://datasets/user/name/path``, ``http(s)://host/key`` or
    ``memory://name/key``. The options are those of obstore; what they leave out comes from the environment. A memory store lasts as
    long as its process.
    """
    match = _URL.match(url)
    if match is None or match[1] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(f"expected a URL of an object store ({known}), got {_without_secrets(url)!r}")
    scheme, (host, _, key) = match[1], match[2].partition("/")
    if "@" in host:
        raise ValueError(
            f"{scheme}://...@...: expected no credentials in the URL; give them in storage_options or in the environment"
        )
    if not host and scheme != "memory":
        raise ValueError(f"{url!r}: expected a {'host' if scheme.startswith('http') else 'bucket'} after {scheme}://, found none")
    if scheme.startswith("http") and ("?" in key or "#" in key):
        raise ValueError(f"{_without_secrets(url)}: expected a URL without a query or fragment")
    if host:
        _check_name(host, f"{scheme}://{host}")
    if scheme.startswith("http"):
        key = urllib.parse.unquote(key)
    return UrlPath(shared_objects(scheme, host, storage_options or {}), key.removesuffix("/"))


class UrlPath:
    """A place under the URL of an object store: the part of ``pathlib.Path`` that stores and sources use.

    Equal if it is the same place seen with the same options. There is no ``__fspath__``: it is not a file.
    """

    __slots__ = ("key", "objects")

    key: str
    """The place in the bucket, without a slash at either end; empty for the bucket itself."""
    objects: Objects
    """The bucket or host; one for all places in it that have the same options."""

    def __init__(self, objects: Objects, key: str) -> None:
        if key:
            for name in key.split("/"):
                _check_name(name, f"{objects.url}/{key}")
        object.__setattr__(self, "objects", objects)
        object.__setattr__(self, "key", key)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a UrlPath cannot be changed, got a new {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a UrlPath cannot be changed, {name} was to be deleted")

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name, from its last dot."""
        stem, dot, end = self.name.rpartition(".")
        return dot + end if stem and end else ""

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return self.name.removesuffix(self.suffix) if self.suffix else self.name

    @property
    def parent(self) -> "UrlPath":
        """The place this one is in; the bucket is its own parent."""
        return UrlPath(self.objects, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> "UrlPath":
        """Another place with the same parent."""
        return self.parent / name

    def __truediv__(self, name: str) -> "UrlPath":
        return UrlPath(self.objects, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return self.objects.url_of(self.key)

    def __repr__(self) -> str:
        return f"UrlPath({str(self)!r})"

    @property
    def address(self) -> str:
        """What this place is called in caches: its URL, and which storage it is in, if that does not tell."""
        return f"{self} of {self.objects.identity}" if self.objects.identity else str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and self.objects is other.objects and self.key == other.key

    def __hash__(self) -> int:
        return hash((id(self.objects), self.key))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.objects.scheme, self.objects.host, dict(self.objects.options), self.key)


def _restored(scheme: str, host: str, options: dict[str, Any], key: str) -> UrlPath:
    return UrlPath(shared_objects(scheme, host, options), key)


def _check_name(name: str, whole: str) -> None:
    if name in ("", ".", ".."):
        raise UnsafePathError(f"{whole!r}: expected names between slashes that are not empty, '.' or '..'; found {name!r}")
    if _CONTROL.search(name) is not None:
        raise UnsafePathError(f"{whole!r}: expected no control characters in a name, found {name!r}")


def _without_secrets(url: str) -> str:
    return url.partition("?")[0] if "@" not in url else f"{url.partition('://')[0]}://..."
