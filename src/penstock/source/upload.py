"""New objects made as files: whole, on a disk first, then put under their URL."""

import errno
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import MissingError
from penstock.remote.url import UrlPath
from penstock.system import is_there

__all__ = ["new_file"]

AT_ONCE_BYTES = 64 << 20
"""Objects up to this size are put only if there is none of that name, in one request. Larger ones come in parts, which stores put
without asking, so that is looked at before.
"""


@contextmanager
def new_file(target: Path | UrlPath) -> Iterator[Path]:
    """A path to write a new file to. If the target is at a URL, the file goes there when the block is left without an error."""
    if isinstance(target, Path):
        yield target
        return
    _refuse_existing(target)
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        local = Path(directory) / target.name
        yield local
        if is_there(local):  # no tokens at all are no file
            _put_new(local, target)


def _refuse_existing(target: UrlPath) -> None:
    try:
        target.objects.head(target.key)
    except MissingError:
        return
    raise FileExistsError(errno.EEXIST, "there is something of this name already; choose another name", str(target))


def _put_new(local: Path, target: UrlPath) -> None:
    if local.stat().st_size <= AT_ONCE_BYTES and target.objects.supports_put_new():
        if not target.objects.put_new(target.key, local.read_bytes()):
            _refuse_existing(target)
        return
    _refuse_existing(target)
    with local.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
        target.objects.put(target.key, [view])
