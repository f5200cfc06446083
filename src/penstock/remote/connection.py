"""The clients and threads of one bucket or host, made when they are first needed, and made anew after a fork."""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, TypeVar

from penstock.remote.client import Client, open_client
from penstock.remote.retry import FailedError, Policy

__all__ = ["Connection"]

T = TypeVar("T")

_MAX_THREADS = 256

_inherited: list[object] = []  # clients of a parent process: to drop one would end connections that are not ours


class Connection:
    """One client for reading, one for writing (their deadlines differ), and threads for requests that may be left behind."""

    def __init__(self, scheme: str, host: str, options: Mapping[str, Any]) -> None:
        self.scheme, self.host, self.options = scheme, host, MappingProxyType(dict(options))
        self._clients: dict[bool, tuple[int, Policy, Client]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def client(self, policy: Policy, *, write: bool = False) -> Client:
        """The client of this process; ValueError if the options are not accepted."""
        write = write and self.scheme != "memory"
        known = self._known(policy, write)
        if known is not None:
            return known
        with self._lock:
            known = self._known(policy, write)
            if known is None:
                _inherited.extend(old for old in self._clients.values() if old[0] != os.getpid())
                known = open_client(self.scheme, self.host, self.options, policy, write=write)
                self._clients[write] = os.getpid(), policy, known
            return known

    def _known(self, policy: Policy, write: bool) -> Client | None:
        pid, made_for, client = self._clients.get(write, (0, policy, None))
        # The bytes of a memory store are in its client: it goes with the process, through a fork too.
        fits = self.scheme == "memory" or (pid == os.getpid() and made_for is policy)
        return client if client is not None and fits and not client.expired else None

    def submit(self, action: Callable[[], T]) -> "Future[T]":
        """Run something in a thread; right here once the interpreter is ending and gives no more threads."""
        try:
            with self._lock:
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="penstock-fetch")
                return self._threads.submit(action)
        except RuntimeError:
            done: Future[T] = Future()
            try:
                done.set_result(action())
            except FailedError as error:
                done.set_exception(error)
            return done

    def close(self) -> None:
        """End threads and connections; the next request makes new ones. A memory store stays."""
        with self._lock:
            threads, self._threads = self._threads, None
            if self.scheme != "memory":
                self._clients.clear()
        if threads is not None:
            threads.shutdown(wait=True)

    def after_fork(self) -> None:
        """Forget what only the parent has: its threads, and a lock that one of them may hold."""
        self._lock, self._threads = threading.Lock(), None
