"""Where a store is, and the names and constants of its files; everything that forms or parses a file name is here.

::

    train.pen/
      LOCK                          held by the one writer
      manifest/<20 digits>.json     generation G, immutable; the highest is current
      chunk/<writer>-<number>.zr    records; immutable once a manifest names it
      redirect/<writer>-<number>.rd fields of records that are not where their segment says; immutable

A writer is 32 hexadecimal digits (128 random bits, new for every writer), a number 8 of them.
"""

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    "Location",
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
        raise ValueError(f"storage_options go with the URL of an object store, got {str(path)!r}")
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
