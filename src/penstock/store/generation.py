"""Generations on disk: which there are, and reading their manifests and redirect tables. Never writes, never repairs."""

import errno
import os
import stat
from pathlib import Path

import numpy as np

from penstock import _core
from penstock.errors import CorruptError, MissingError, NotPublishedError, ReadError, SnapshotExpiredError
from penstock.store.layout import (
    MANIFEST_DIRECTORY,
    MAX_MANIFEST_BYTES,
    REDIRECT_DIRECTORY,
    generation_of,
    manifest_name,
    redirect_name,
)
from penstock.store.manifest import Manifest, decode_manifest
from penstock.store.redirect import ENTRY, Table, decode_redirects, merge

__all__ = ["generations", "is_store", "load_manifest", "load_redirects", "newest_generation", "read_file"]


def is_store(path: Path) -> bool:
    """Whether a directory looks like a store."""
    return (path / MANIFEST_DIRECTORY).is_dir()


def generations(path: Path) -> list[int]:
    """The generations that can be opened, oldest first."""
    try:
        names = os.listdir(path / MANIFEST_DIRECTORY)
    except FileNotFoundError as error:
        raise MissingError(f"{path}: there is no penstock store here") from error
    except NotADirectoryError as error:
        raise CorruptError(f"{path}: expected a directory") from error
    except OSError as error:
        raise ReadError(error.errno, f"the manifests cannot be listed: {error.strerror}", str(path)) from error
    return sorted(number for number in map(generation_of, names) if number is not None)


def newest_generation(path: Path) -> int:
    """The current generation, or 0 if none was ever committed."""
    return max(generations(path), default=0)


def load_manifest(path: Path, generation: int | None = None) -> Manifest:
    """The manifest of a generation, the newest unless given. A bad one raises; an older one is never taken in its place."""
    there = generations(path)
    if not there:
        raise NotPublishedError(
            f"{path}: nothing was ever committed here; a writer may still be at work, or was stopped before its first commit"
        )
    wanted = there[-1] if generation is None else generation
    file = path / MANIFEST_DIRECTORY / manifest_name(wanted)
    if wanted not in there:
        raise SnapshotExpiredError(f"{file}: generation {wanted} is not there (any more); there are {there[0]} to {there[-1]}")
    try:
        manifest = decode_manifest(read_file(file, MAX_MANIFEST_BYTES), str(file))
    except CorruptError as error:
        older = f"; generation {there[-2]} can be opened by name" if generation is None and len(there) > 1 else ""
        raise CorruptError(f"{error}{older}") from error
    if manifest.generation != wanted:
        raise CorruptError(f"{file}: expected generation {wanted}, found {manifest.generation}")
    return manifest


def load_redirects(path: Path, manifest: Manifest) -> dict[int, Table]:
    """The redirects in force, one table per field number."""
    merged: dict[int, Table] = {}
    for entry in manifest.redirects:
        file = path / REDIRECT_DIRECTORY / redirect_name(entry.writer, entry.serial)
        data = read_file(file, entry.size)
        if len(data) != entry.size or _core.crc32c(np.frombuffer(data, np.uint8)) != entry.crc:
            raise CorruptError(f"{file}: expected {entry.size} bytes with crc {entry.crc:08x}, found {len(data)} or others")
        for number, table in decode_redirects(data, manifest.dataset, str(file)).items():
            merged[number] = merge(merged.get(number, np.empty(0, ENTRY)), table, drop_nowhere=False)
    live = {chunk.number for chunk in manifest.chunks}
    for number, table in merged.items():
        kept = table[table["chunk"] != 0xFFFFFFFF]
        if kept.size and (int(kept["id"][-1]) >= manifest.length or not live.issuperset(np.unique(kept["chunk"]).tolist())):
            raise CorruptError(f"{path}: a redirect names a record or a chunk that generation {manifest.generation} does not have")
        merged[number] = kept
    return merged


def read_file(path: Path, most: int) -> bytes:
    """All bytes of a regular file, at most ``most``; links, fifos and directories are refused without blocking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise MissingError(f"{path}: a file of the store is missing") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise CorruptError(f"{path}: expected a file, found something else: {error.strerror}") from error
        raise ReadError(error.errno, f"cannot be opened: {error.strerror}", str(path)) from error
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_size > most:
            raise CorruptError(f"{path}: expected a file of at most {most} bytes, found {info.st_size}")
        data = os.read(descriptor, info.st_size) if info.st_size else b""
        while len(data) < info.st_size and (more := os.read(descriptor, info.st_size - len(data))):
            data += more
        return data
    except OSError as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(error.errno, f"cannot be read: {error.strerror}", str(path)) from error
    finally:
        os.close(descriptor)
