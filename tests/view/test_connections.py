"""Connections that say nothing, or say it slowly: the owner gets in all the same."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.view.conftest import routes_at
from tests.view.serving import PATIENCE_S, Visitor, serving

from penstock.view import server as view_server


@pytest.fixture
def visitor(store_path: Path) -> Iterator[Visitor]:
    with serving(routes_at(store_path)) as found:
        yield found


@contextlib.contextmanager
def connections(visitor: Visitor, count: int, says: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection(("127.0.0.1", visitor.server.server_port), PATIENCE_S)))
            made[-1].sendall(says)
        yield made


def is_closed(connection: socket.socket) -> bool:
    """Whether the server ends a connection; waits until it does."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.0\r\nHost: "], ids=["nothing", "half a request"])
def test_the_owner_gets_in_however_many_others_wait(visitor: Visitor, says: bytes) -> None:
    with connections(visitor, 3 * view_server.MOST_CONNECTIONS, says):
        for _ in range(5):
            assert visitor.get("api/about").status == 200


def test_the_oldest_of_those_that_wait_is_closed_first(visitor: Visitor) -> None:
    with connections(visitor, view_server.MOST_CONNECTIONS) as idle:
        assert visitor.get("api/about").status == 200
        assert is_closed(idle[0])
        last = idle[-1]
        last.sendall(f"GET {visitor.root} HTTP/1.0\r\nHost: 127.0.0.1:{visitor.server.server_port}\r\n\r\n".encode())
        assert last.recv(12) == b"HTTP/1.0 403"


def test_a_request_that_comes_byte_by_byte_ends_at_its_deadline(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time; all of them together do not."""
    monkeypatch.setattr(view_server, "REQUEST_S", 0.3)
    with connections(visitor, 1, b"GET / HTTP/1.0\r\nX: ") as (slow,):
        slow.settimeout(0.05)
        for _ in range(int(PATIENCE_S / 0.05)):
            try:
                slow.sendall(b"a")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the connection was kept")
    assert visitor.get("api/about").status == 200
