"""Names and constants of the files of a store; everything that forms or takes apart a file name is here.

::

    train.pen/
      LOCK                          held by the one writer
      manifest/<20 digits>.json     generation G, immutable; the highest is current
      chunk/<writer>-<number>.zr    records; immutable once a manifest names it
      redirect/<writer>-<number>.rd fields of records that live elsewhere than their segment says; immutable

A writer is 32 hexadecimal digits (128 random bits, new for every writer), a number 8 of them.
"""

import re
import secrets

__all__ = [
    "CHUNK_DIRECTORY",
    "DIRECTORIES",
    "FORMAT_VERSION",
    "LOCK_NAME",
    "MANIFEST_DIRECTORY",
    "MAX_MANIFEST_BYTES",
    "REDIRECT_DIRECTORY",
    "chunk_name",
    "generation_of",
    "is_data_name",
    "is_temporary_name",
    "manifest_name",
    "new_identity",
    "redirect_name",
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


def new_identity() -> str:
    """128 random bits, for a data set, a writer or a commit."""
    return secrets.token_hex(16)


def manifest_name(generation: int) -> str:
    """The file name of a generation."""
    return f"{generation:020d}.json"


def generation_of(name: str) -> int | None:
    """The generation of a manifest's file name; None for any other name."""
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def temporary_name(write_id: str) -> str:
    """The name of a manifest before it is published."""
    return f".tmp-{write_id}"


def is_temporary_name(name: str) -> bool:
    """Whether a file in manifest/ is an unpublished manifest, or what a writer tried out an object store with."""
    return _TEMPORARY.fullmatch(name) is not None


def chunk_name(writer: str, number: int) -> str:
    """The file name of a chunk."""
    return f"{writer}-{number:08x}.zr"


def redirect_name(writer: str, number: int) -> str:
    """The file name of a redirect table."""
    return f"{writer}-{number:08x}.rd"


def is_data_name(name: str) -> bool:
    """Whether a file in chunk/ or redirect/ is one a writer made."""
    return _DATA.fullmatch(name) is not None
