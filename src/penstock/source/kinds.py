"""The formats: how their files are recognised, and which function opens them, imported when it is used."""

import importlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from penstock.errors import FormatError, UnsupportedTypeError
from penstock.records import Source
from penstock.source.files import File

__all__ = [
    "COLLECTION",
    "FOLDER",
    "INDEX_BYTES",
    "KINDS",
    "REFUSED",
    "TOKENS",
    "Kind",
    "is_data_name",
    "kind_of_file",
    "kind_of_suffix",
    "refuse_layout",
]


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
    ".tar": "tar archives are not read: unpack it, or read it with webdataset and write a store with penstock.create",
}

HEAD_BYTES, TAIL_BYTES = 16, 8


def kind_of_suffix(name: str) -> Kind | None:
    """The format that a file says it has."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in REFUSED:
        raise UnsupportedTypeError(f"{name}: {REFUSED[suffix]}")
    return next((kind for kind in KINDS if suffix in kind.suffixes), None)


def is_data_name(text: str) -> bool:
    """Whether a text ends like the name of a file that can be opened."""
    suffix = PurePosixPath(text).suffix.lower()
    return any(suffix in kind.suffixes for kind in KINDS)


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


# Directories of other tools. Their files are no records, so none of them may be taken for a folder of files.


@dataclass(frozen=True)
class Layout:
    """A directory of another tool: names of which each must be there, keys of its index.json, what to do with it, and if these
    are all that tells it, the names of everything that it may have.
    """

    name: str
    signs: tuple[str, ...]
    keys: tuple[str, ...]
    remedy: str
    only: tuple[str, ...] = ("*",)


_INDEX = "index.json"
INDEX_BYTES = 64 << 20
_HF = "datasets.load_from_disk({path!r})"
_ZARR = "open the arrays of zarr.open({path!r}, mode='r'), as a dict"
_WRITE = "and write its samples with penstock.create"
_BESIDE_TAR = (".*", "*.tar", "*.idx", "*.json", "*.md", "*.txt", "*.yaml")

LAYOUTS = (
    Layout("a Hugging Face data set", ("dataset_info.json", "state.json"), (), f"open {_HF}, the Dataset"),
    Layout("Hugging Face splits", ("dataset_dict.json",), (), f"open {_HF}[split], a Dataset"),
    Layout("MosaicML MDS shards", (_INDEX,), ("shards",), f"read it with streaming.StreamingDataset(local={{path!r}}) {_WRITE}"),
    Layout("LitData chunks", (_INDEX,), ("chunks", "config"), f"read it with litdata.StreamingDataset({{path!r}}) {_WRITE}"),
    Layout("zarr", ("zarr.json",), (), _ZARR),
    Layout("a zarr group", (".zgroup",), (), _ZARR),
    Layout("a zarr array", (".zarray",), (), "open zarr.open({path!r}, mode='r')[:], the array"),
    Layout("Lance", ("_versions", "data"), (), "open lance.dataset({path!r}).to_table(), an Arrow table"),
    Layout("WebDataset shards", ("*.tar",), (), f"unpack them, or read it with webdataset.WebDataset {_WRITE}", _BESIDE_TAR),
)


def refuse_layout(where: object, names: Collection[str], read: Callable[[str], bytes]) -> None:
    """FormatError that says what a directory is and what to do with it, if it was laid out by another tool.

    ``names`` are those of everything right in it; ``read`` gives the first bytes of one.
    """
    for layout in LAYOUTS:
        if _has_names(layout, names) and _has_keys(layout, read):
            remedy = layout.remedy.format(path=str(where))
            raise FormatError(
                f"{where}: expected data that penstock reads, found {layout.name} ({', '.join(layout.signs)}): {remedy}; "
                "for the files as they are, choose them with suffixes=[...]"
            )


def _has_names(layout: Layout, names: Collection[str]) -> bool:
    if not all(any(fnmatchcase(name, sign) for name in names) for sign in layout.signs):
        return False
    return all(any(fnmatchcase(name, sign) for sign in layout.only) for name in names)


def _has_keys(layout: Layout, read: Callable[[str], bytes]) -> bool:
    if not layout.keys:
        return True
    try:
        content = json.loads(read(_INDEX)[:INDEX_BYTES])
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and set(layout.keys) <= set(content)
