"""Objects under a URL as the files of a folder: each a record, in the order, with the labels and the fingerprint of the same folder
on disk.

They are those of one listing, in the versions that it told of. An object without bytes whose name is the beginning of others is one
that some tools put there to stand for a directory, and is left out.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.argument import IntArray
from penstock.formats.files import MAX_BATCH_BYTES, Files, Prefix, RemoteFile
from penstock.formats.folder import FolderOptions, FolderSource, Listing, check_record, folder_options
from penstock.formats.rows_in_files import FileRows, reader_of_files
from penstock.records import Extents, Recipe, Sampling
from penstock.remote.window import RemoteFiles, RemoteOptions

__all__ = ["PrefixSource", "open_prefix"]


def open_prefix(what: Prefix, *, remote: RemoteOptions, **options: Any) -> "PrefixSource":
    """All objects under a URL. Options are those of :func:`penstock.formats.folder.open_directory`."""
    return PrefixSource(what, folder_options(**options), remote)


def _files_of(prefix: Prefix, options: FolderOptions) -> tuple[Listing, list[RemoteFile]]:
    """What a scan of the same folder on disk would find."""
    found, files, top = Listing(), list[RemoteFile](), b""
    endings = None if options.suffixes is None else tuple(suffix.lower().encode() for suffix in options.suffixes)
    listed = [(name.encode().split(b"/"), info) for name, info in prefix.named()]
    for names, info in sorted(listed, key=lambda one: one[0]):
        if names[0].startswith(b"."):
            continue
        if len(names) > 1 and names[0] != top:
            top = names[0]
            found.label_names.append(top)
        if any(name.startswith(b".") for name in names) or not (endings is None or names[-1].lower().endswith(endings)):
            continue
        file = RemoteFile(prefix.path / b"/".join(names).decode(), info)
        check_record(str(file), info.size)
        found.add(b"/".join(names[:-1]), names[-1], info.size)
        files.append(file)
    if not files:
        raise options.no_files(str(prefix.path))
    return found, files


class PrefixSource(FolderSource):
    """The objects under a URL, read through a window. Every record is a request of its own, in any order."""

    def __init__(self, prefix: Prefix, options: FolderOptions, remote: RemoteOptions) -> None:
        self._prefix, self._how = prefix, remote
        found, files = _files_of(prefix, options)
        self._files = Files(files)
        self._rows = reader_of_files(
            [FileRows.whole(file) for file in files], 1, pread=False, threads=options.threads, remote=remote
        )
        self._bounds = np.concatenate([[0], np.cumsum(np.frombuffer(found.sizes, np.int64))]).astype(np.int64)
        try:
            super().__init__(str(prefix.path), found, options)
        except BaseException:
            self._rows.close()
            raise

    @property
    def remote(self) -> RemoteFiles | None:
        return self._rows.remote

    def extents(self, starts: IntArray, stops: IntArray) -> Extents:
        """All bytes of the objects."""
        return self._rows.extents(self._bounds[starts], self._bounds[stops])

    def _content_reader(self) -> tuple[Any, int] | None:
        return self._rows.native_runs(self._bounds, MAX_BATCH_BYTES)

    def file_versions(self) -> Hashable | None:
        return self._files.file_versions()

    def close(self) -> None:
        self._rows.close()

    def _where(self, record: int) -> str:
        return str(self._files[record])

    def _fill(self, ids: IntArray, offsets: IntArray, values: npt.NDArray[np.uint8]) -> None:
        self._rows.read_spans(self._bounds[ids], offsets, values)

    def _fingerprint_of(self, ids: IntArray) -> str:
        return Files(self._files[i] for i in ids.tolist()).fingerprint("sample")

    def _digest_of(self, ids: IntArray, sampling: Sampling) -> str | None:
        return Files(self._files[i] for i in ids.tolist()).sample_digest(sampling, "sample")

    def _recipe(self) -> Recipe:
        return (PrefixSource, (self._prefix, self._options, self._how))
