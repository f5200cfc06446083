"""The formats: how their files are recognised, and which function opens them, imported when it is used."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from penstock.errors import FormatError, UnsupportedTypeError
from penstock.records import Source
from penstock.source.files import File

__all__ = ["COLLECTION", "FOLDER", "KINDS", "REFUSED", "TOKENS", "Kind", "kind_of_file", "kind_of_suffix"]


@dataclass(frozen=True)
class Kind:
    """A format: how its files are recognised, and the function that opens a list of them."""

    name: str
    suffixes: tuple[str, ...]
    opener: str
    head: bytes | None = None
    tail: bytes | None = None
    at_urls: bool = False

    def open(self, paths: Any, **options: Any) -> Source:
        """Open files of this kind."""
        if "remote" in options and not self.at_urls:
            first = paths[0] if isinstance(paths, Sequence) else paths
            raise ValueError(
                f"{first}: {self.name} cannot be read at a URL; copy it to a disk, or convert it to a store and copy that"
            )
        module, _, function = self.opener.partition(":")
        opener: Callable[..., Source] = getattr(importlib.import_module(f"penstock.source.{module}"), function)
        return opener(paths, **options)


TOKENS = Kind("tokens", (".rox",), "tokens:open_tokens", tail=b"ROXXEL02", at_urls=True)
COLLECTION = Kind("collection", (), "collection:open_collection", at_urls=True)
FOLDER = Kind("a folder of any files", (), "directory:open_directory")

KINDS = (
    Kind("npy", (".npy",), "npy:open_npy", head=b"\x93NUMPY", at_urls=True),
    Kind("hdf5", (".h5", ".hdf5", ".he5"), "hdf5:open_hdf5", head=b"\x89HDF\r\n\x1a\n"),
    Kind("arrow", (".arrow", ".feather"), "arrow:open_arrow", head=b"ARROW1"),
    Kind("parquet", (".parquet",), "parquet:open_parquet", head=b"PAR1", at_urls=True),
    Kind("array_record", (".array_record", ".arrayrecord", ".ar"), "array_record:open_array_record"),
    Kind("rows", (".shard",), "rows:open_rows", head=b"GAMSAE01", at_urls=True),
    TOKENS,
)

REFUSED = {
    ".npz": "an .npz is a zip archive, whose arrays cannot be mapped: save each array as a .npy file, and open them as a dict",
    ".pkl": "a pickle would have to be executed to be read",
    ".pickle": "a pickle would have to be executed to be read",
    ".pt": "a torch file is a pickle, which would have to be executed to be read: save its tensors as .npy files",
}

HEAD_BYTES, TAIL_BYTES = 16, 8


def kind_of_suffix(name: str) -> Kind | None:
    """The format that a file says it has."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in REFUSED:
        raise UnsupportedTypeError(f"{name}: {REFUSED[suffix]}")
    return next((kind for kind in KINDS if suffix in kind.suffixes), None)


def kind_of_file(file: File) -> Kind:
    """The format of a file by its suffix, or else by its content; an error if it has none."""
    if PurePosixPath(file.name).suffix.lower() == ".json":
        return COLLECTION
    if (named := kind_of_suffix(str(file))) is not None:
        return named
    head = file.first(HEAD_BYTES)
    tail = file.last(TAIL_BYTES) if file.size > HEAD_BYTES else head[-TAIL_BYTES:]
    for kind in KINDS:
        if (kind.head is not None and head.startswith(kind.head)) or (kind.tail is not None and tail == kind.tail):
            return kind
    known = " ".join(suffix for kind in KINDS for suffix in kind.suffixes)
    raise FormatError(f"{file}: neither its suffix nor its content tells what it is; expected one of {known} .json")
