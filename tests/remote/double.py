"""An object store that misbehaves on demand: an HTTP server on loopback that speaks the part of S3 that penstock uses.

::

    with Double() as double:
        double.put("a/b", b"0123456789")
        double.plan("GET", "a/b", Fault(status=503), times=2)       # the next two GETs of a/b
        double.plan("GET", "a/b", Fault(reset_at=4), after=1)       # then one is fine, then one breaks off after 4 bytes
        url_path(double.base + "/a/b", double.storage_options)      # or "http_base", the same objects read as plain HTTP
        double.requests("GET", "a/b")                               # what was asked, in order

A plan counts the requests of one method and key from the moment it is made; several plans apply one after the other, in the order
in which they were made. ``key`` may be ``ANY``. The key of a listing is its prefix without the last slash, its method "LIST". The
parts of a multipart upload are "PART", its begin and end "BEGIN" and "END".

Every request is logged when its headers were read. No thread and no connection is left after ``close``.
"""

import threading
from typing import Any

from tests.remote.double_http import ANY, Fault, Plan, Request, Server, State, Stored
from tests.remote.options import s3_options

from penstock.remote.objects import _shared

__all__ = ["ANY", "Double", "Fault", "Request"]


class Double:
    """The server; a context manager."""

    def __init__(self, bucket: str = "data", page: int = 1000) -> None:
        self.bucket = bucket
        self.state = State(bucket, page)
        self.lock = self.state.lock
        self._server = Server(self.state)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="double")
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def base(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def http_base(self) -> str:
        return f"{self.endpoint}/{self.bucket}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return s3_options(self.endpoint)

    def put(self, key: str, data: bytes) -> None:
        """Have an object, without a request."""
        with self.lock:
            self.state.objects[key] = Stored.of(data)

    def delete(self, key: str) -> None:
        """Have no such object, without a request."""
        with self.lock:
            self.state.objects.pop(key, None)

    def get(self, key: str) -> bytes | None:
        """The bytes of an object, or None, without a request."""
        with self.lock:
            found = self.state.objects.get(key)
        return None if found is None else found.data

    def keys(self) -> list[str]:
        """The keys there are."""
        with self.lock:
            return sorted(self.state.objects)

    def uploads(self) -> int:
        """How many multipart uploads were begun and neither completed nor aborted."""
        with self.lock:
            return len(self.state.uploads)

    def plan(self, method: str, key: str, fault: Fault, *, after: int = 0, times: int = 1) -> None:
        """Let ``after`` requests pass, then do this to ``times`` of them."""
        with self.lock:
            self.state.plans.append(Plan(method, key, fault, after, times))

    def clear(self) -> None:
        """Forget the plans and the log; keep the objects."""
        with self.lock:
            self.state.plans.clear()
            self.state.log.clear()

    def requests(self, method: str | None = None, key: str | None = None) -> list[Request]:
        """The requests so far, of one method and key if they are given."""
        with self.lock:
            return [r for r in self.state.log if method in (None, r.method) and key in (None, r.key)]

    def hang_up(self) -> None:
        """End every answer that is held back or stalls, from now on."""
        self.state.closing.set()

    def close(self) -> None:
        self.hang_up()
        self._server.shutdown()
        self._thread.join()
        self._server.close_connections()
        self._server.server_close()
        self._forget()

    def _forget(self) -> None:
        """Clients that no request can use any more: every test and every fork would go through them."""
        address = repr(self.endpoint).removeprefix("'http://")  # with the quote behind the port
        for identity, objects in list(_shared.items()):
            if address in repr(identity):
                objects.end_connections()
                del _shared[identity]

    def __enter__(self) -> "Double":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
