"""A file for libraries that want one, made of byte ranges from elsewhere."""

import io
from collections.abc import Callable

__all__ = ["RangeFile"]


class RangeFile(io.RawIOBase):
    """A read-only, seekable file of ``size`` bytes. ``read_range(start, stop)`` gives some of them."""

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._size, self._read_range, self._place = size, read_range, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go somewhere, counted from the beginning, from here or from the end."""
        place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if place < 0:
            raise ValueError(f"expected a place at or after the beginning of the file, got {place}")
        self._place = place
        return place

    def read(self, size: int | None = -1, /) -> bytes:
        """So many bytes, fewer only at the end; all of the rest by default."""
        if self.closed:
            raise ValueError("the file is closed")
        stop = self._size if size is None or size < 0 else min(self._size, self._place + size)
        if stop <= self._place:
            return b""
        data = self._read_range(self._place, stop)
        self._place = stop
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as the file goes; how many bytes that were."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
