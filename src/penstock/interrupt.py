"""Interrupts (Ctrl-C) that arrive while a loader runs are deferred to a point where its code can be left.

Python runs the handler of SIGINT between any two bytecodes of the main thread, and the usual one raises KeyboardInterrupt there. In
the middle of a loader that does damage which no ``try`` can undo: a thread is started and not yet stored, a lock of
``threading.Condition`` is taken and not yet inside the ``with``, the accounts of a window are half changed; in ``__del__`` the
interrupt is printed and lost; at the end of the program a thread stays in native code, and the process aborts.

So while the main thread has an engine open, SIGINT has the handler of this module (as trio has one while it runs). It looks at the
stack that it interrupts, from the innermost frame outwards. The first function that is marked decides:

* ``@shielded``: the handler returns, and a thread sends the interrupt again RESEND_S later, until it arrives in exposed code;
* ``@exposed``, or none is marked: the handler that was there before is called, which raises.

Why nothing can leak. Threads, holds and plans of an engine are made and ended only inside of shielded functions, where no interrupt
is raised but by :func:`check`, and what calls that can be left. Exposed functions inside of them only wait, or call functions of
the user's; whatever they raise passes through the shielded code, which closes the engine and is not interrupted while it does. The
handler is in place before an engine is made (``signal.signal`` is atomic), and is removed when the last one was closed and nothing
is left to protect. Marks cost nothing: they are looked up when a signal arrives. Outside of shielded functions there is only
``with`` of a plain lock, which CPython does not interrupt between ``__enter__`` and the block, nor between the block and
``__exit__``.

An interrupt is deferred for MOST_S at most, then it is raised in any code: a hang cannot block it. Where SIGINT is ignored, or left
to the system, nothing is done. Other threads are never interrupted, and need no shield.
"""

import _signal  # type: ignore[import-not-found]  # getsignal of signal looks for an enum first, which costs microseconds
import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, TypeVar

__all__ = ["HEARD_S", "check", "exposed", "lower", "patience", "shield", "shielded"]

F = TypeVar("F", bound=Callable[..., Any])

HEARD_S = 0.1
"""Shielded code of the main thread that waits checks for an interrupt this often."""

RESEND_S = 0.005
MOST_S = 10.0

_marks: dict[CodeType, bool] = {}
_kept_since: float | None = None  # when the interrupt that is deferred arrived
_current: "_Handler | None" = None
_owners: set[int] = set()


def shielded(function: F) -> F:
    """Mark a function: no interrupt is raised in it, nor in what it calls."""
    _marks[function.__code__] = True
    return function


def exposed(function: F) -> F:
    """Mark a function that only waits, or calls code of the user's: interrupts are raised in it, wherever it is called."""
    _marks[function.__code__] = False
    return function


class _Handler:
    """A handler of SIGINT, and the one before it. One object for each time it is put in place: the user's may call it, too."""

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: FrameType | None) -> None:
        global _kept_since
        if _is_shielded(frame) and (_kept_since is None or time.monotonic() < _kept_since + MOST_S):
            with suppress(RuntimeError):  # no more threads: it is raised here
                _thread.start_new_thread(_send_again, ())
                _kept_since = time.monotonic() if _kept_since is None else _kept_since
                return
        _kept_since = None
        self.previous(number, frame)


def _is_shielded(frame: FrameType | None) -> bool:
    while frame is not None:
        mark = _marks.get(frame.f_code)
        if mark is not None:
            return mark
        frame = frame.f_back
    return False


def _send_again() -> None:
    time.sleep(RESEND_S)
    _thread.interrupt_main()


def shield(owner: object) -> None:
    """Put the handler in place, if this is the main thread, and keep it there until ``lower(owner)``. Calling it again is
    cheap: it only checks whether another handler was set meanwhile.
    """
    _owners.add(id(owner))
    if _signal.getsignal(2) is not _current or _current is None:
        _put_in_place()


@shielded
def _put_in_place() -> None:
    global _current, _kept_since
    previous = _signal.getsignal(2)
    if callable(previous) and threading.current_thread() is threading.main_thread():
        _current, _kept_since = _Handler(previous), None
        signal.signal(signal.SIGINT, _current)


@shielded
def lower(owner: object) -> None:
    """The last owner restores the previous handler, if this is the main thread and no other was set meanwhile."""
    global _current, _kept_since
    _owners.discard(id(owner))
    handler = _current
    if _owners or handler is None or threading.current_thread() is not threading.main_thread():
        return
    _current, _kept_since = None, None
    if _signal.getsignal(2) is handler:
        try:
            signal.signal(signal.SIGINT, handler.previous)
        except BaseException:  # of that handler, right here, where ``__del__`` of an engine would lose it
            _thread.start_new_thread(_send_again, ())


@exposed
def check() -> None:
    """Raise the deferred interrupt, if there is one. Called where shielded code waits, in a consistent state."""
    global _kept_since
    if _kept_since is None or threading.current_thread() is not threading.main_thread():
        return
    for _ in range(int(1 / RESEND_S)):  # it is on its way, and comes here
        if _kept_since is None:
            return
        time.sleep(RESEND_S)
    _kept_since = None  # another handler had it


def patience() -> float:
    """The longest wait of shielded code at a time: in the main thread, until it has to check for an interrupt."""
    is_main = threading.current_thread() is threading.main_thread() and not sys.is_finalizing()
    return HEARD_S if is_main else 60.0


def _after_fork() -> None:
    """A deferred interrupt is the parent's, which has the thread that sends it."""
    global _kept_since
    _kept_since = None


os.register_at_fork(after_in_child=_after_fork)
