"""Mutants: the commit protocol with one thing broken. The crash simulator must find every one of them.

They are made from outside, by replacing functions of :mod:`os` and methods of the seam before the workload starts, so that the
product itself knows nothing of them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.store import writer
from penstock.store.local import Filesystem, LocalStorage

Patch = Callable[[Path], None]

_fsync, _link, _unlink = os.fsync, os.link, os.unlink
in_gc = False


@contextlib.contextmanager
def collecting() -> Iterator[None]:
    """Around every gc of a workload, for the mutants of gc."""
    global in_gc
    in_gc = True
    try:
        yield
    finally:
        in_gc = False
        for path in _postponed:
            _unlink(path)
        _postponed.clear()


_postponed: list[str] = []


def _path(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def _without_fsync(skip: Callable[[Path, Path], bool]) -> Patch:
    def patch(store: Path) -> None:
        def fsync(descriptor: int) -> None:
            if not skip(_path(descriptor), store):
                _fsync(descriptor)

        os.fsync = fsync  # type: ignore[assignment]

    return patch


def _manifest_in_place(store: Path) -> None:
    def link(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, **_: Any) -> None:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=dst_dir_fd)
        os.pwrite(descriptor, (_path(src_dir_fd) / source).read_bytes(), 0)
        _fsync(descriptor)
        os.close(descriptor)

    os.link = link  # type: ignore[assignment]


def _rename_over(store: Path) -> None:
    def link(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, **_: Any) -> None:
        os.rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    os.link = link  # type: ignore[assignment]


def _manifest_before_chunks(store: Path) -> None:
    late: list[tuple[Path, list[Any]]] = []
    write_new, publish = Filesystem.write_new, Filesystem.publish

    def write_later(self: Filesystem, path: Path, pieces: Any, directory: int | None = None) -> None:
        if path.suffix == ".zr":
            late.append((path, list(pieces)))
        else:
            write_new(self, path, pieces, directory)

    def publish_first(self: Filesystem, temporary: Path, final: Path, directory: int | None = None) -> None:
        publish(self, temporary, final, directory)
        while late:
            write_new(self, *late.pop(0))
        self.sync_directory(store / "chunk")

    Filesystem.write_new, Filesystem.publish = write_later, publish_first  # type: ignore[assignment,method-assign]
    LocalStorage._check = lambda *_: None  # type: ignore[assignment,method-assign]


def _fsync_before_write(store: Path) -> None:
    def write_new(self: Filesystem, path: Path, pieces: Any, directory: int | None = None) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        _fsync(descriptor)
        for offset, data in pieces:
            os.pwrite(descriptor, data, offset)
        os.close(descriptor)

    Filesystem.write_new = write_new  # type: ignore[assignment,method-assign]


def _gc_data_first(store: Path) -> None:
    def unlink(path: str | Path, *, dir_fd: int | None = None) -> None:
        whole = Path(path) if dir_fd is None else _path(dir_fd) / path
        if in_gc and whole.parent.name == "manifest":
            _postponed.append(str(whole))
        else:
            _unlink(path, dir_fd=dir_fd)

    os.unlink = unlink  # type: ignore[assignment]


def _old_chunks_removed_by_commit(store: Path) -> None:
    publish = writer.publish_draft

    def publish_draft(files: Any, draft: Any, needs: Any) -> None:
        publish(files, draft, needs)
        named = {f"{chunk.writer}-{chunk.serial:08x}.zr" for chunk in draft.manifest.chunks}
        for name in set(os.listdir(store / "chunk")) - named:
            _unlink(store / "chunk" / name)

    writer.publish_draft = publish_draft


# The name of a mutant, how it is made, and the plan that brings it to light.
MUTANTS: dict[str, tuple[Patch, str]] = {
    "no-fsync-chunk": (_without_fsync(lambda path, store: path.suffix == ".zr"), "create"),
    "no-fsync-redirect": (_without_fsync(lambda path, store: path.suffix == ".rd"), "delete"),
    "no-fsync-manifest": (_without_fsync(lambda path, store: path.name.startswith(".tmp-")), "create"),
    "no-fsync-chunk-directory": (_without_fsync(lambda path, store: path == store / "chunk"), "create"),
    "no-fsync-redirect-directory": (_without_fsync(lambda path, store: path == store / "redirect"), "delete"),
    "no-fsync-manifest-directory": (_without_fsync(lambda path, store: path == store / "manifest"), "create"),
    "no-fsync-root-directory": (_without_fsync(lambda path, store: path == store), "create"),
    "no-fsync-parent-directory": (_without_fsync(lambda path, store: path == store.parent), "create"),
    "fsync-before-write": (_fsync_before_write, "create"),
    "manifest-in-place": (_manifest_in_place, "append"),
    "manifest-before-chunks": (_manifest_before_chunks, "append"),
    "rename-over": (_rename_over, "race"),
    "gc-data-first": (_gc_data_first, "gc-keep"),
    "gc-without-fsync": (_without_fsync(lambda path, store: in_gc), "gc-keep"),
    "gc-without-fsync-after-killed-commit": (_without_fsync(lambda path, store: in_gc), "killed-gc"),
    "old-chunks-removed-by-commit": (_old_chunks_removed_by_commit, "rebalance-append"),
}
