"""Where a store lies, and the storage that is there."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.remote.url import UrlPath, is_url, url_path
from penstock.store.local import LocalStorage
from penstock.store.objectstore import ObjectStorage
from penstock.store.storage import Location, Storage

__all__ = ["as_location", "storage_of"]


def as_location(path: str | os.PathLike[str] | UrlPath, storage_options: Mapping[str, Any] | None = None) -> Location:
    """The place that a path or a URL names."""
    if isinstance(path, str) and is_url(path):
        return url_path(path, storage_options)
    if storage_options is not None:
        raise ValueError(f"storage_options go with the URL of an object store, got {str(path)!r}")
    return path if isinstance(path, UrlPath) else Path(path)


def storage_of(location: Location | Storage) -> Storage:
    """The files of the store at a place; a storage is its own."""
    if isinstance(location, Storage):
        return location
    return ObjectStorage(location) if isinstance(location, UrlPath) else LocalStorage(location)
