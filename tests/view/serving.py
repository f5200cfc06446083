"""A page that really runs: on a free port, in a thread, closed at the end; and a visitor that asks it."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.records import Source
from penstock.tokenizer import TextTokenizer
from penstock.view.dataset import ShownData
from penstock.view.server import Routes, ViewServer

PATIENCE_S = 300


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Visitor:
    """Asks one server; with its cookie unless told otherwise."""

    server: ViewServer

    @property
    def root(self) -> str:
        return self.server.guard.root

    @property
    def cookie(self) -> str:
        return f"penstock={self.server.guard.token}"

    def ask(self, target: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, known: bool = True) -> Reply:
        """Any target, as it is; ``headers`` may replace Host."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=PATIENCE_S)
        given = {"Host": f"127.0.0.1:{self.server.server_port}", **({"Cookie": self.cookie} if known else {}), **(headers or {})}
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        """A path below the root."""
        return self.ask(self.root + path)

    def json(self, path: str) -> Any:
        """What an address gives that must be well."""
        reply = self.get(path)
        assert reply.status == 200, reply.body
        return reply.json

    def raw(self, request: bytes) -> bytes:
        """Bytes that may be no request at all."""
        with socket.create_connection(("127.0.0.1", self.server.server_port), timeout=PATIENCE_S) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def serving(routes: Routes) -> Iterator[Visitor]:
    server = ViewServer(routes)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Visitor(server)
    finally:
        server.shutdown()
        thread.join(PATIENCE_S)
        server.close()


def routes_of(source: Source, *words: str, watched: Path | None = None, tokenizer: TextTokenizer | None = None) -> Routes:
    return Routes(ShownData(lambda generation: source, words or ("data",)), watched, tokenizer)
