"""open: which source reads what. The table of formats, and names on disk, at URLs and in memory resolved with it."""

import importlib
import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, overload
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from penstock.algebra import Aligned, Concat
from penstock.batch import Ragged
from penstock.errors import EmptyFileError, FormatError, MissingError, SchemaMismatchError, UnsupportedTypeError
from penstock.formats.array import ArraySource, open_array
from penstock.formats.files import (
    File,
    Files,
    LocalFile,
    Prefix,
    RemoteFile,
    children,
    expand,
    find_files,
    has_pattern,
    is_file_there,
    listing,
    matching_objects,
    next_to,
    suffix_of,
)
from penstock.formats.publish import copy_files
from penstock.formats.tokens import numbered_objects
from penstock.records import Source
from penstock.remote.objects import ObjectInfo
from penstock.remote.url import SCHEMES, UrlPath, is_url, url_path
from penstock.remote.window import RemoteOptions, SharedWindow
from penstock.store.reader import open_store
from penstock.store.storage import DIRECTORIES, LOCK_NAME, MANIFEST_DIRECTORY
from penstock.store.writer import Writer, append_to
from penstock.system import is_directory, is_file, is_there, names_in, status

__all__ = ["companions_of", "has_urls", "is_at_url", "open", "open_source", "open_url", "share"]


@dataclass(frozen=True)
class Kind:
    """A format: how its files are recognised, and the function that opens a list of them."""

    name: str
    suffixes: tuple[str, ...]
    opener: str
    head: bytes | None = None
    tail: bytes | None = None
    at_urls: bool = False
    head_at: int = 0
    is_listed: bool = False
    """Whether it takes a URL with all that was listed there."""

    def open(self, paths: Any, **options: Any) -> Source:
        """Open files of this kind. Those at URLs are copied to this machine where its package reads only files."""
        if "remote" in options and not self.at_urls:
            remote = options.pop("remote")
            paths = copy_files(
                self.name, [file for file in find_files(paths, self.suffixes) if isinstance(file, RemoteFile)], remote
            )
        module, _, function = self.opener.partition(":")
        opener: Callable[..., Source] = getattr(importlib.import_module(f"penstock.formats.{module}"), function)
        return opener(paths, **options)


def _also_compressed(*suffixes: str) -> tuple[str, ...]:
    return tuple(f"{suffix}{end}" for end in ("", ".gz", ".zst") for suffix in suffixes)


TOKENS = Kind("tokens", (".rox",), "tokens:open_tokens", tail=b"ROXXEL02", at_urls=True)
MEGATRON = Kind("megatron", (".idx",), "megatron:open_megatron", head=b"MMIDIDX\0\0", at_urls=True)
BIN = Kind("token arrays", (), "flat_tokens:open_bin", at_urls=True)
LITDATA = Kind("LitData chunks", (), "litdata:open_litdata", at_urls=True)
MDS = Kind("MosaicML MDS shards", (), "mds:open_mds", at_urls=True)
LANCE = Kind("Lance", (), "lance:open_lance", at_urls=True, is_listed=True)
ZARR = Kind("zarr", (), "zarr:open_zarr", at_urls=True, is_listed=True)
SAVED = Kind("a saved Hugging Face data set", (), "huggingface:open_saved", at_urls=True, is_listed=True)
TFRECORD = Kind("tfrecord", (".tfrecord", ".tfrecords"), "tfrecord:open_tfrecord", at_urls=True)
TAR = Kind("tar", (".tar", ".tgz", ".tar.gz", ".tar.zst"), "webdataset:open_tar", head=b"ustar", at_urls=True, head_at=257)
COLLECTION = Kind("collection", (), "collection:open_collection", at_urls=True)
FOLDER = Kind("a folder of any files", (), "folder:open_directory")
PREFIX = Kind("objects under a URL", (), "folder:open_prefix", at_urls=True, is_listed=True)

KINDS = (
    Kind("npy", (".npy",), "flat_tokens:open_npy_file", head=b"\x93NUMPY", at_urls=True),
    Kind("hdf5", (".h5", ".hdf5", ".he5"), "hdf5:open_hdf5", head=b"\x89HDF\r\n\x1a\n"),
    Kind("arrow", (".arrow", ".feather"), "arrow:open_arrow", head=b"ARROW1"),
    Kind("parquet", (".parquet",), "parquet:open_parquet", head=b"PAR1", at_urls=True),
    Kind("array_record", (".array_record", ".arrayrecord", ".ar"), "array_record:open_array_record"),
    Kind("safetensors", (".safetensors",), "safetensors:open_safetensors", at_urls=True),
    Kind("rows", (".shard",), "rows:open_rows", head=b"GAMSAE01", at_urls=True),
    TOKENS,
    MEGATRON,
    Kind("datatrove", (".ds",), "flat_tokens:open_datatrove", at_urls=True),
    TFRECORD,
    TAR,
    Kind("jsonl", (*_also_compressed(".jsonl", ".ndjson"), ".json.gz", ".json.zst"), "jsonl:open_jsonl", at_urls=True),
    Kind("csv", _also_compressed(".csv", ".tsv"), "delimited:open_delimited", at_urls=True),
)

REFUSED = {
    ".npz": "an .npz is a zip archive, whose arrays cannot be mapped: save each array as a .npy file, and open them as a dict",
    ".pkl": "a pickle would have to be executed to be read",
    ".pickle": "a pickle would have to be executed to be read",
    ".pt": "a torch file is a pickle, which would have to be executed to be read: save its tensors as .npy files",
    **dict.fromkeys(
        (".tbz2", ".txz", ".tar.bz2", ".tar.xz", ".tar.lz4"),
        "of archives that are compressed as a whole, .tgz, .tar.gz and .tar.zst are read: decompress it to a .tar",
    ),
}

HEAD_BYTES, TAIL_BYTES = 512, 8


def kind_of_suffix(name: str) -> Kind | None:
    """The format that a file says it has."""
    if (words := _refusal(name)) is not None:
        raise UnsupportedTypeError(f"{name}: {words}")
    suffix = suffix_of(name)
    return next((kind for kind in KINDS if suffix in kind.suffixes), None)


def _refusal(name: str) -> str | None:
    """Why a file of that name is not read; None if it may be."""
    lower = name.lower()
    return next((words for end, words in REFUSED.items() if lower.endswith(end)), None)


def is_data_name(text: str) -> bool:
    """Whether a text ends like the name of a file that can be opened."""
    suffix = suffix_of(text)
    return any(suffix in kind.suffixes for kind in KINDS)


def kind_of_file(file: File) -> Kind:
    """The format of a file by its suffix, or else by its content; an error if it has none. Many things are called .bin: what is
    nothing else holds tokens.
    """
    suffix = PurePosixPath(file.name).suffix.lower()
    if suffix == ".json":
        return COLLECTION
    if (named := kind_of_suffix(str(file))) is not None:
        return named
    if suffix == ".bin" and is_file_there(next_to(file, file.name[:-4] + ".idx")):
        return BIN
    head = file.first(HEAD_BYTES)
    tail = file.last(TAIL_BYTES) if file.size > HEAD_BYTES else head[-TAIL_BYTES:]
    for kind in KINDS:
        if (kind.head is not None and head.startswith(kind.head, kind.head_at)) or (kind.tail is not None and tail == kind.tail):
            return kind
    if is_tfrecord(head):
        return TFRECORD
    if suffix == ".bin":
        return BIN
    known = " ".join(suffix for kind in KINDS for suffix in kind.suffixes)
    raise FormatError(f"{file}: neither its suffix nor its content tells what it is; expected one of {known} .json")


def without_companions(names: Iterable[str]) -> list[str]:
    """Names without those of files that are opened together with another one of them."""
    listed = list(names)
    known = set(listed)
    return [name for name in listed if not any(other in known for other in _opened_by(name))]


def _opened_by(name: str) -> Iterator[str]:
    """The names of files that are opened together with this one."""
    if name.endswith(".tar.idx"):
        yield name.removesuffix(".idx")
    elif name.endswith(".bin"):
        yield name.removesuffix(".bin") + ".idx"
    elif name.endswith(".csv.gz"):
        yield from (name.removesuffix(".csv.gz") + suffix for suffix in (".npy", ".bin"))
    elif name.endswith((".ds.index", ".ds.loss", ".ds.metadata")):
        yield name.rpartition(".")[0]


def companions_of(name: str) -> Iterator[str]:
    """The names of files that may be next to this one and are opened together with it."""
    if name.endswith((".bin", ".idx")):
        yield name[:-4] + (".idx" if name.endswith(".bin") else ".bin")
    elif name.endswith(".ds"):
        yield from (f"{name}{end}" for end in (".index", ".loss", ".metadata"))


# Directories of other tools. Their files are no records, so none of them may be taken for a folder of files.


@dataclass(frozen=True)
class Layout:
    """A directory of another tool: names of which each must be there, keys of its index.json, and what reads it."""

    name: str
    signs: tuple[str, ...]
    keys: tuple[str, ...]
    reader: Kind


_INDEX = "index.json"
INDEX_BYTES = 256 << 20

LAYOUTS = (
    Layout("a Hugging Face data set", ("dataset_info.json", "state.json"), (), SAVED),
    Layout("Hugging Face splits", ("dataset_dict.json",), (), SAVED),
    Layout("MosaicML MDS shards", (_INDEX,), ("shards",), MDS),
    Layout("LitData chunks", (_INDEX,), ("chunks", "config"), LITDATA),
    Layout("zarr", ("zarr.json",), (), ZARR),
    Layout("a zarr group", (".zgroup",), (), ZARR),
    Layout("a zarr array", (".zarray",), (), ZARR),
    Layout("Lance", ("_versions", "data"), (), LANCE),
)

NOTES = (".*", "*.tar.idx", "*.json", "*.md", "*.txt", "*.yaml")
"""What is often next to shards, and says something of them."""


def _shards_in(names: Collection[str]) -> Kind | None:
    """The format of the shards in a directory that has nothing else but notes of them."""
    kinds = {
        next((kind for kind in (TAR, TFRECORD) if suffix_of(name) in kind.suffixes), None)
        for name in names
        if not any(fnmatchcase(name, sign) for sign in NOTES)
    }
    return kinds.pop() if len(kinds) == 1 else None


def kind_of_layout(names: Collection[str], read: Callable[[str], bytes]) -> tuple[str, Kind] | None:
    """What a directory was laid out as by another tool, and the format that reads it; None if it was not.

    ``names`` are those of everything right in it; ``read`` gives the first bytes of one, at most :data:`INDEX_BYTES`.
    """
    keys = _keys_of(read(_INDEX)) if _INDEX in names else set()
    layout = next((one for one in LAYOUTS if _has_names(one, names) and set(one.keys) <= keys), None)
    return None if layout is None else (layout.name, layout.reader)


def _has_names(layout: Layout, names: Collection[str]) -> bool:
    return all(any(fnmatchcase(name, sign) for name in names) for sign in layout.signs)


def _keys_of(raw: bytes) -> set[str]:
    """The names in an index.json."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return set()
    return set(content) if isinstance(content, dict) else set()


REMOTE_OPTIONS = ("storage_options", "window_bytes", "cache", "cache_bytes", "peers", "shared")
"""The options of everything that is at a URL; whatever else is given goes to the source."""

Options = Mapping[str, Any]


def is_at_url(what: Any) -> bool:
    """Whether something is the name of data at a URL."""
    return isinstance(what, UrlPath | RemoteFile) or (isinstance(what, str) and is_url(what))


def has_urls(what: Any) -> bool:
    """Whether something is the name of data at a URL, or a list or dict with such names."""
    if isinstance(what, Mapping):  # texts in a list in a dict are data
        return any(
            has_urls([one for one in part if not isinstance(one, str)] if isinstance(part, list | tuple) else part)
            for part in what.values()
        )
    return any(map(is_at_url, what)) if isinstance(what, list | tuple) else is_at_url(what)


def open_url(what: str | UrlPath | RemoteFile, options: Options) -> Source:
    """A source by the suffix of a URL, or else by what is found there."""
    if isinstance(what, RemoteFile):
        return _open_object(what, options)
    path = _place(what, options)
    if "generation" in options:
        return open_store(path, **_split(options))
    return _open_pattern(path, options) if has_pattern(path.key) else _open_named(path, options)


def _open_named(path: UrlPath, options: Options) -> Source:
    if kind_of_suffix(str(path)) is None and path.suffix.lower() != ".json":
        return _open_unnamed(path, options)
    try:
        return _open_object(RemoteFile(path), options)
    except MissingError:
        if not path.objects.can_list or not listing(path):
            raise
        return _open_under(path, options)


def _place(url: str | UrlPath, options: Options) -> UrlPath:
    return url if isinstance(url, UrlPath) else url_path(url, options.get("storage_options"))


def _split(options: Options) -> dict[str, Any]:
    """The options as openers take them."""
    remote = RemoteOptions(**{name: options[name] for name in REMOTE_OPTIONS[1:] if name in options})
    return {"remote": remote} | {name: value for name, value in options.items() if name not in REMOTE_OPTIONS}


def _open_object(file: RemoteFile, options: Options) -> Source:
    return kind_of_file(file).open(file, **_split(options))


def _open_pattern(pattern: UrlPath, options: Options) -> Source:
    found = matching_objects(pattern)
    kept = set(without_companions(str(name) for name, _ in found))
    found = [(name, info) for name, info in found if str(name) in kept]
    kinds = {kind_of_suffix(str(name)) for name, _ in found}
    files = [RemoteFile(name, info) for name, info in found if info is not None]
    if len(files) == len(found) and len(kinds) == 1 and (kind := kinds.pop() or _kind_of_bins(files)) is not None:
        return kind.open(Files(files), **_split(options))
    parts = [name if info is None else RemoteFile(name, info) for name, info in found]
    if parts == [pattern]:
        return _open_named(pattern, options)
    each = share(options)
    return Concat.of(((str(part), partial(_open_match, part, each)) for part in parts), num_remote=len(parts))


def _open_match(part: UrlPath | RemoteFile, options: Options) -> Source:
    """What a pattern found. Its name is a name, even if it looks like a pattern."""
    return _open_object(part, options) if isinstance(part, RemoteFile) else _open_named(part, options)


def share(options: Options) -> dict[str, Any]:
    """The options of several parts, which together have one window."""
    return {**options, "shared": options.get("shared") or SharedWindow()}


def _open_unnamed(path: UrlPath, options: Options) -> Source:
    """A URL whose suffix says nothing: a store, an object of some format, or objects under it."""
    if path.objects.can_list and path.objects.list((path / MANIFEST_DIRECTORY).key):
        return open_store(path, **_split(options))
    file = RemoteFile(path)
    try:
        kind = kind_of_file(file) if path.key else None
    except (MissingError, EmptyFileError) as error:
        if path.key and is_file_there(index := next_to(file, f"{path.name}.idx")):
            return MEGATRON.open(index, **_split(options))
        if not path.objects.can_list or (isinstance(error, EmptyFileError) and not listing(path)):
            raise
        kind = None
    return _open_under(path, options) if kind is None else kind.open(file, **_split(options))


def _open_under(path: UrlPath, options: Options) -> Source:
    """The objects under a URL as one source, as the files of a directory; or the token shards whose names begin so."""
    listed = listing(path)
    if not listed:
        if shards := numbered_objects(path) if path.key else []:
            return TOKENS.open(Files(shards), **_split(options))
        raise MissingError(f"{path}: there is no such object, and none under this URL")
    prefix = Prefix(path, listed)
    names = {name.partition("/")[0] for name, _ in prefix.named()}
    if names <= set(DIRECTORIES):
        return open_store(path, **_split(options))
    if "suffixes" in options:  # the files themselves are wanted
        return PREFIX.open(prefix, **_split(options))
    found = kind_of_layout(names, partial(_read_in, path))
    if found is not None:
        return found[1].open(prefix if found[1].is_listed else path, **_split(options))
    if (kind := _shards_in(names)) is not None:
        return kind.open(Files(_objects_of(kind, path, listed)), **_split(options))
    _refuse_prefixes_inside(prefix)
    files = [RemoteFile(name, info) for name, info in children(path, listed) if not name.name.startswith(".")]
    kept = without_companions(file.name for file in files)
    kind = _kind_of_names(kept, options, f"{path}: there are objects")
    if kind is None:
        return PREFIX.open(prefix, **_split(options))
    found_files = [file for file in files if file.name in set(kept)] if kind is BIN else _objects_of(kind, path, listed)
    return kind.open(Files(found_files), **_split(options))


def _kind_of_names(names: Sequence[str], options: Options, what: str) -> Kind | None:
    """The format that the names of the files of a directory tell; None if they tell none. SchemaMismatchError for several."""
    if "dtype" in options and names and all(name.endswith(".bin") for name in names):
        return BIN
    kinds = {kind_of_suffix(name) for name in names if _refusal(name) is None}
    if len(kinds) == 1:
        return kinds.pop()
    known = sorted(kind.name for kind in kinds if kind is not None)
    if len(known) > 1:
        raise SchemaMismatchError(f"{what} of several formats ({', '.join(known)}): open them by a pattern")
    return None


def _refuse_prefixes_inside(prefix: Prefix) -> None:
    """FormatError for a URL under which there are a few of another tool, such as train and test."""
    inside: dict[str, set[str]] = {}
    for whole, _ in prefix.named():
        name, _, below = whole.partition("/")
        inside.setdefault(name, set()).add(below.partition("/")[0])
    if len(inside) <= FEW_SPLITS:
        for name in sorted(name for name, names in inside.items() if names != {""}):
            inner = prefix.path / name
            if (words := _layout_words(inside[name], partial(_read_in, inner))) is not None:
                raise FormatError(f"{prefix.path}: expected data, found some under other URLs ({name}, {words}): open {inner}")


def _layout_words(names: Collection[str], read: Callable[[str], bytes]) -> str | None:
    """What a directory with these names in it is; None if it is one of any files."""
    if (found := kind_of_layout(names, read)) is not None:
        return found[0]
    return None if (kind := _shards_in(names)) is None else f"{kind.name} files"


def _read_in(directory: Path | UrlPath, name: str) -> bytes:
    file = RemoteFile(directory / name) if isinstance(directory, UrlPath) else LocalFile(directory / name)
    return file.first(INDEX_BYTES)


def _objects_of(kind: Kind, path: UrlPath, listed: Sequence[ObjectInfo]) -> list[RemoteFile]:
    """The objects right under a URL that are named like that format; hidden ones are left out."""
    found = [(name, info) for name, info in children(path, listed) if suffix_of(name.name) in kind.suffixes]
    return [RemoteFile(name, info) for name, info in found if not name.name.startswith(".")]


FEW_SPLITS = 8
"""A directory with no more than this in it may be one of splits."""


def open_source(what: Any, **options: Any) -> Source:
    """Anything that can be read as records, as a source.

    A path or URL (the format follows from the suffix, or from the content), a pattern, a directory, a list (one after the other), a
    dict (side by side), arrays, Arrow tables, Hugging Face data sets. Options go to the source that reads it.
    """
    if isinstance(what, Source):
        if options:
            raise TypeError(f"options {sorted(options)} do not apply to a source that is open already")
        return what
    if is_at_url(what):
        return open_url(what, options)
    if isinstance(what, str | os.PathLike):
        return _open_path(os.fspath(what), options)
    if isinstance(what, np.ndarray | Ragged):
        return open_array(what, **options)
    if isinstance(what, Mapping):
        return _open_dict(what, options)
    if isinstance(what, list | tuple):
        return _open_list(what, options)
    return _open_foreign(what, options)


def _open_foreign(what: Any, options: Mapping[str, Any]) -> Source:
    """Objects of other libraries, told by the name of their class so that none of them is imported here."""
    if (kind := _table_kind(what)) is not None:
        return kind.open(what, **options)
    if _is_of(what, "DataFrame"):
        raise TypeError(
            "a DataFrame opens as an Arrow table: pyarrow.Table.from_pandas(frame) for pandas, frame.to_arrow() for polars"
        )
    if hasattr(what, "__array__") and not isinstance(what, str):
        return open_array(what, **options)
    raise TypeError(f"expected a path, an array, a list, a dict or a source, got {type(what).__name__}")


def _table_kind(what: Any) -> Kind | None:
    if _is_of(what, "Table", "pyarrow") or _is_of(what, "RecordBatch", "pyarrow"):
        return Kind("arrow", (), "arrow:open_table")
    return Kind("huggingface", (), "arrow:open_huggingface") if _is_of(what, "Dataset", "datasets") else None


def _is_of(what: Any, name: str, package: str | None = None) -> bool:
    """Whether an object is of a class of that name, or of one that inherits it."""
    return any(kind.__name__ == name and package in (None, kind.__module__.partition(".")[0]) for kind in type(what).__mro__)


# Lists and dicts


def _open_dict(parts: Mapping[str, Any], options: Mapping[str, Any]) -> Source:
    if _is_of(parts, "DatasetDict", "datasets"):
        raise TypeError(f"a DatasetDict has splits, {list(parts)}: open one of them, such as splits[{next(iter(parts), '')!r}]")
    if all(_is_column(name, value) for name, value in parts.items()):
        return ArraySource(parts, **options)
    opened: dict[str, Source] = {}
    try:
        for name, value in parts.items():
            opened[name] = ArraySource({name: value}) if _is_column(name, value) else _open_part(value, options)
        return Aligned(opened)
    except BaseException:
        for source in opened.values():
            source.close()
        raise


def _is_column(name: str, value: Any) -> bool:
    """Whether the value of a dict is data rather than the name of some. Texts in a list are data, paths and sources are not; texts
    that could be either are refused.
    """
    if not isinstance(value, list | tuple):
        is_array = (
            not isinstance(value, str)
            and hasattr(value, "__array__")
            and _table_kind(value) is None
            and not _is_of(value, "DataFrame")
        )
        return is_array or isinstance(value, Ragged)
    kinds = {type(item) for item in value}
    if any(issubclass(kind, Source | os.PathLike | UrlPath) for kind in kinds):
        return False
    if kinds and all(issubclass(kind, str) for kind in kinds) and all(map(is_data_name, value)):
        raise ValueError(
            f"field {name!r}: texts like {value[0]!r} may be meant as files or as texts: "
            "write penstock.open([...]) or [pathlib.Path(...), ...] for the files, numpy.array([...]) for the texts"
        )
    return True


def _open_part(part: Any, options: Mapping[str, Any]) -> Source:
    """A part of a list or a dict. Options of URLs are for those among the parts."""
    if is_at_url(part) or not isinstance(part, str | os.PathLike):
        return open_source(part, **options)
    return open_source(part, **{name: value for name, value in options.items() if name not in REMOTE_OPTIONS})


def _open_list(parts: Sequence[Any], options: Mapping[str, Any]) -> Source:
    if not parts:
        raise ValueError("expected at least one source, got an empty list")
    if all(isinstance(part, str | os.PathLike | UrlPath) for part in parts):
        parts = _with_indices(parts)
        kinds, num_remote = {kind_of_suffix(str(part)) for part in parts}, sum(map(is_at_url, parts))
        if len(kinds) == 1 and num_remote in (0, len(parts)) and (kind := kinds.pop() or _kind_of_bins(parts)) is not None:
            urls = [_place(part, options) for part in parts] if num_remote else []
            return kind.open(urls, **_split(options)) if urls else kind.open(list(parts), **options)
        each = share(options) if num_remote else options
        return Concat.of(((str(part), partial(_open_part, _absolute(part), each)) for part in parts), num_remote=num_remote)
    sources: list[Source] = []
    for number, part in enumerate(parts):
        _need_source(number, part)
        try:
            sources.append(_open_part(part, options))
        except MissingError as error:
            if not isinstance(part, Mapping):
                raise
            raise MissingError(f"{error}; a text in a dict is the name of a file: {_COLUMNS}") from error
    return Concat.of_sources(sources)


def _with_indices(parts: Sequence[Any]) -> list[Any]:
    """Names in a list: of the files of Megatron that of the index, also where a prefix is given; none of companions."""
    kept = set(without_companions(map(str, parts)))
    named = [part for part in parts if str(part) in kept]
    return [f"{part}.idx" if _is_prefix(part) else part for part in named]


def _is_prefix(part: Any) -> bool:
    """Whether a name on a disk is that of the files of Megatron without their suffixes."""
    text = str(part)
    if is_at_url(part) or has_pattern(text) or PurePosixPath(text).suffix == ".bin" or kind_of_suffix(text) is not None:
        return False
    return not is_there(text) and is_there(f"{text}.idx")


def is_tfrecord(head: bytes) -> bool:
    """Whether a file that begins so is a TFRecord: its first length has its checksum."""
    from penstock.formats.tfrecord import has_length

    return has_length(head)


def _kind_of_bins(parts: Sequence[Any]) -> Kind | None:
    """What files that all end in .bin are, by the first of them, if they hold tokens."""
    names = [part.name if isinstance(part, LocalFile | RemoteFile) else str(part) for part in parts]
    if not all(PurePosixPath(name).suffix.lower() == ".bin" and not has_pattern(name) for name in names):
        return None
    first = parts[0]
    if isinstance(first, str | os.PathLike) and not is_at_url(first):
        first = LocalFile(Path(first))
    if isinstance(first, UrlPath):
        first = RemoteFile(first)
    return BIN if isinstance(first, str) or kind_of_file(first) is BIN else None


_COLUMNS = "for records, write penstock.open({name: [record[name] for record in records] for name in records[0]})"


def _need_source(number: int, part: Any) -> None:
    """TypeError with a remedy for what looks like the values of a field, or like a record."""
    if _is_value(part):
        raise TypeError(
            f"a list is read as sources one after the other, and part {number} is {repr(part)[:60]}: "
            "for one field of such values write penstock.open({'data': [...]})"
        )
    values = part.items() if isinstance(part, Mapping) else ()
    plain = next((name for name, value in values if _is_value(value) and not isinstance(value, list | tuple)), None)
    if plain is not None:
        raise TypeError(
            f"a list is read as sources one after the other, and part {number} is a record, with one value of {plain!r}: {_COLUMNS}"
        )


def _is_value(part: Any) -> bool:
    """Whether something is a number, bytes or nothing, or a list of them: never a source, nor the name of one."""
    if isinstance(part, list | tuple):
        return len(part) > 0 and _is_value(part[0])
    return part is None or isinstance(part, int | float | complex | bytes | bytearray | np.generic)


def _absolute(part: str | os.PathLike[str] | UrlPath) -> str | UrlPath:
    if isinstance(part, UrlPath):
        return part
    text = os.fspath(part)
    return text if "://" in text else os.path.abspath(text)


# Paths


def _open_path(text: str, options: Mapping[str, Any]) -> Source:
    if "://" in text:
        url = urlsplit(text)
        if url.scheme != "file" or url.netloc not in ("", "localhost"):
            known = " ".join(f"{scheme}://" for scheme in ("file", *SCHEMES))
            raise ValueError(f"{text}: expected a path or one of {known}, got the scheme {url.scheme!r}")
        text = unquote(url.path)
    if has_pattern(text) and not is_there(text):
        return _open_list([str(path) for path in expand(text, ())], options)
    path = Path(text).absolute()
    found = status(path)
    if found is None:
        return _open_prefix(path, options)
    if stat.S_ISDIR(found.st_mode):
        return _open_directory(path, options)
    return kind_of_file(LocalFile(path)).open(path, **options)


def _open_directory(path: Path, options: Mapping[str, Any]) -> Source:
    inside = names_in(path)
    if _is_store(inside) or "generation" in options:
        return open_store(path, **options)
    if "suffixes" in options:  # the files themselves are wanted
        return FOLDER.open(path, **options)
    found = kind_of_layout(inside, partial(_read_in, path))
    if found is not None:
        return found[1].open(path, **options)
    if (kind := _shards_in(inside)) is not None:
        return kind.open(path, **options)
    _refuse_layouts_inside(path, inside)
    names = without_companions(name for name in inside if not name.startswith(".") and is_file(path / name))
    return (_kind_of_names(names, options, f"{path}: the directory holds files") or FOLDER).open(path, **options)


def _refuse_layouts_inside(path: Path, inside: Sequence[str]) -> None:
    """FormatError for a directory with a few of another tool, such as train and test, in it."""
    if len(inside) <= FEW_SPLITS:
        for inner in (path / name for name in sorted(inside) if is_directory(path / name)):
            if (words := _layout_words(names_in(inner), partial(_read_in, inner))) is not None:
                raise FormatError(f"{path}: expected data, found directories of it ({inner.name}, {words}): open {inner}")


def _is_store(inside: Sequence[str]) -> bool:
    """Whether a directory with these names in it is a store, or one that was begun and never published."""
    names = set(inside)
    return not names.isdisjoint({LOCK_NAME, MANIFEST_DIRECTORY}) or (bool(names) and names <= set(DIRECTORIES))


def _open_prefix(path: Path, options: Mapping[str, Any]) -> Source:
    """A name that is the beginning of the names of token shards, of the files of Megatron, or of nothing."""
    base = path.with_suffix("") if path.suffix == ".rox" else path
    siblings = names_in(path.parent) if is_directory(path.parent) else []
    if any(name.startswith(f"{base.name}_") and name.endswith(".rox") for name in siblings):
        return TOKENS.open(path, **options)
    if f"{path.name}.idx" in siblings:
        return MEGATRON.open(path.with_name(f"{path.name}.idx"), **options)
    raise MissingError(f"{path}: there is no such file or directory")


S = TypeVar("S", bound=Source)


@overload
def open(what: S, mode: Literal["r"] = "r") -> S: ...
@overload
def open(what: str | os.PathLike[str] | UrlPath, mode: Literal["a"], **options: Any) -> Writer: ...
@overload
def open(what: object, mode: Literal["r"] = "r", *, cast: Mapping[str, npt.DTypeLike] | None = None, **options: Any) -> Source: ...
def open(what: Any, mode: str = "r", *, cast: Mapping[str, npt.DTypeLike] | None = None, **options: Any) -> Source | Writer:
    """Open data for reading as a :class:`~penstock.Source`, or a store for writing (``mode="a"``).

    ``what`` is a path (a store, .npy, .h5, .parquet, .arrow, .feather, .jsonl, .csv, .safetensors, .array_record, .tfrecord, .tar
    of WebDataset, .shard, .rox, token files of Megatron, OLMo, nanoGPT, datatrove and LitData, a directory of MDS, LitData, zarr,
    Lance or a saved Hugging Face data set, a collection in .json, a folder of files), a pattern or a list of them (concatenated), a
    dict (fields of the same records), arrays or tensors, an Arrow table or a Hugging Face data set. In a dict a text is a path,
    and a list of texts is a text field; paths in a list are ``pathlib.Path``. Options depend on what is opened; for a store:
    ``generation``, ``threads``, ``io``, ``verify``.

    All of it opens by URL too (``s3://``, ``gs://``, ``az://``, ``hf://``, ``https://``), with ``storage_options`` (credentials,
    region, endpoint), ``window_bytes`` (limit for bytes in memory), ``cache`` (a directory), ``cache_bytes`` and ``peers``
    (:class:`penstock.Peers`, processes that together fetch each byte once).

    ``cast`` converts fields to other types and checks every value: see :meth:`penstock.Source.cast`.

    >>> import numpy as np, penstock as pen
    >>> data = pen.open({"x": np.arange(6).reshape(3, 2), "name": ["a", "b", "c"]})
    >>> data[1]
    {'x': array([2, 3]), 'name': 'b'}
    >>> data[[2, 0]]["x"]
    array([[4, 5],
           [0, 1]])
    """
    if mode == "a":
        if cast is not None:
            raise TypeError("cast= is for reading; a writer takes values that fit its fields, of any type")
        return append_to(what, **options)
    if mode != "r":
        raise ValueError(f"mode must be 'r' or 'a', got {mode!r}")
    source = open_source(what, **options)
    if cast is None:
        return source
    with ExitStack() as if_refused:
        if source is not what:
            if_refused.callback(source.close)
        made = source.cast(cast)
        if_refused.pop_all()
    return made
