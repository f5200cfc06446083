"""Batches: an iterator over a loader, which it moves on."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.interrupt import check, lower, shield, shielded
from penstock.loader.engine import Engine
from penstock.remote.window import is_changing

if TYPE_CHECKING:
    from penstock.loader.loader import Loader

__all__ = ["Batches", "close_of"]


class _Closed:
    """An engine that was open. No code runs when it goes, when interrupts are raised anywhere again."""

    engine: Engine

    def close(self) -> None:
        """It is."""


class _Opened(_Closed):
    """An engine, from before it is made until it was closed. While there is one, interrupts wait until the loader can be left."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._process = os.getpid()
        shield(self)
        self.engine = make()

    @shielded
    def close(self) -> None:
        """End its threads, unless they are those of the process that this one was forked from."""
        self.__class__ = _Closed  # type: ignore[assignment]
        if hasattr(self, "engine") and self._process == os.getpid():
            self.engine.close()
        lower(self)

    @shielded
    def __del__(self) -> None:
        if is_changing():  # collected as garbage by a thread that has the lock of a window: closed by another, behind that
            threading.Thread(target=self.close, name="penstock-close", daemon=True).start()
        else:
            self.close()


class Batches:
    """An iterator over the batches of a loader. It follows the loader's cursor: after ``seek`` the next batch is that step's."""

    def __init__(self, loader: "Loader", *, endless: bool) -> None:
        self._loader, self._endless = loader, endless
        self._opened: _Opened | None = None
        self._moves = -1
        self._end: int | None = None
        self._failure: BaseException | None = None
        loader._rewind()
        self._aim()
        _open.add(self)

    def _aim(self) -> None:
        """Begin, or begin anew, at the loader's cursor."""
        self._drop()
        loader = self._loader
        self._moves = loader._moves
        if self._endless:
            self._end = loader._schedule.total
            return
        self._end = loader.remaining().stop
        if loader.step >= self._end and loader._phases is None and not loader.restart:  # nothing is left of this epoch
            loader._at = (loader.step, loader.epoch + 1, 0)

    def _begin(self) -> Engine:
        """Who makes the batches from here on."""
        return self._loader._start(self._loader.step, self._end)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:
        check()  # in a loop that does little else, an interrupt would hardly ever find the loader idle
        with self._loader._turn:  # the cursor is the loader's: iterators in several threads take turns
            return self._next()

    @shielded
    def _next(self) -> Any:
        loader = self._loader
        loader._meter.enter()
        if self._failure is not None:
            raise self._failure
        if self._moves != loader._moves:
            self._check_restart()
            self._aim()
        if self._end is not None and loader.step >= self._end:
            self._drop()
            raise StopIteration
        opened = self._opened
        try:
            if opened is None:
                opened = self._opened = _Opened(self._begin)
            shield(opened)
            place, batch = opened.engine.take()  # of this one, even if another thread closes the iterator meanwhile
        except BaseException as error:
            self._drop()
            is_end = opened is None or isinstance(error, StopIteration)  # which is what a closed engine raises
            if isinstance(error, Exception) and not is_end:
                self._failure = error
            raise
        if place.step != loader.step:  # another iterator took batches meanwhile
            self._check_restart()
            loader._moves += 1
            return self._next()
        loader._delivered(place)
        loader._meter.leave(place.num_samples)
        return batch

    def _check_restart(self) -> None:
        """The iterations of a loader for evaluation do not share a cursor: a second one ends the first."""
        if self._loader.restart and self._moves >= 0:
            raise RuntimeError("another iteration over this loader with restart=True has begun: finish one before the next")

    @shielded
    def close(self) -> None:
        """Stop reading ahead, also while another thread waits for a batch. Idempotent; a later ``next`` begins again."""
        self._drop()

    def _drop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> "Batches":
        return self

    @shielded
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_open: "weakref.WeakSet[Batches]" = weakref.WeakSet()


@shielded
def close_of(loader: "Loader") -> None:
    """Close every iterator over a loader."""
    for batches in list(_open):
        if batches._loader is loader:
            batches.close()


def _begin_anew() -> None:
    """In a forked child: the engines are the parent's, and a turn of the parent's would be held for ever."""
    for batches in list(_open):
        batches._loader._turn = threading.Lock()
        batches._moves = -1


os.register_at_fork(after_in_child=_begin_anew)


@atexit.register
@shielded
def _close_all() -> None:
    """Threads end before the interpreter does. A thread of the user's that still takes batches stops at the next one: its turn is
    taken and not given back, so that it is not in native code when the interpreter goes.
    """
    for batches in list(_open):
        batches.close()
        batches._loader._turn.acquire(timeout=0.5)
        batches.close()
    shield(_close_all)  # for what is closed after this, such as windows on remote data
