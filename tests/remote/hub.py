"""A double of the Hugging Face hub on loopback: the API that lists and resolves, and the servers that it redirects to.

::

    with Hub({"user/name": {"main": {"data/a.parquet": b"..."}}}) as hub:
        pen.open("hf://datasets/user/name/data/a.parquet", storage_options=hub.options)
        hub.asked, hub.served                              # requests to the hub, and to the other servers
"""

import json
import re
import threading
import urllib.parse
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_secret"
PAGE = 3


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        self.server.answer(self)

    do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    def log_message(self, *arguments: Any) -> None:
        pass

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_range(self, data: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self.send(200, data, ETag='"of the file"')
        first, last = wanted[1], wanted[2]
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(len(data), int(last) + 1) if first and last else len(data)
        if start >= len(data):
            return self.send(416)
        return self.send(206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", ETag='"of the file"')


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Any) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def end(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class Hub:
    """Repositories, their revisions, and the files of each."""

    def __init__(self, content: dict[str, dict[str, dict[str, bytes]]], *, is_private: bool = False) -> None:
        self.content, self.is_private = content, is_private
        self.asked: list[str] = []
        self.served: list[tuple[str, str | None]] = []
        """Paths and Authorization headers."""
        self.refused = 0
        """So many of the next requests for bytes are answered as if the signature were too old."""
        self.page_link: str | None = None
        self._hub, self._files = _Server(self._answer), _Server(self._serve)

    @property
    def endpoint(self) -> str:
        return self._hub.url

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint, "token": TOKEN}

    @staticmethod
    def commit(repository: str, revision: str) -> str:
        return revision if re.fullmatch("[0-9a-f]{40}", revision) else sha1(f"{repository} {revision}".encode()).hexdigest()

    def _files_of(self, repository: str, commit: str) -> dict[str, bytes] | None:
        found = self.content.get(repository, {})
        return next((files for revision, files in found.items() if self.commit(repository, revision) == commit), None)

    def _answer(self, request: _Handler) -> None:
        self.asked.append(request.path)
        if self.is_private and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return request.send(401)
        path, _, query = request.path.partition("?")
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/revision/([^/]+)", path):
            revision = urllib.parse.unquote(match[2])
            if revision not in self.content.get(match[1], {}):
                return request.send(404)
            return request.send(200, json.dumps({"sha": self.commit(match[1], revision)}).encode())
        if match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([0-9a-f]{40})(?:/(.+))?", path):
            return self._tree(request, match[1], match[2], urllib.parse.unquote(match[3] or ""), urllib.parse.parse_qs(query))
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([0-9a-f]{40})/(.+)", path):
            files = self._files_of(match[1], match[2])
            name = urllib.parse.unquote(match[3])
            if files is None or name not in files:
                return request.send(404)
            if name.endswith(".json"):  # small files come from the hub itself
                return request.send_range(files[name])
            return request.send(302, Location=f"{self._files.url}/{match[1]}/{match[2]}/{match[3]}?signature=x")
        return request.send(404)

    def _tree(self, request: _Handler, repository: str, commit: str, below: str, query: dict[str, list[str]]) -> None:
        files = self._files_of(repository, commit)
        names = [name for name in sorted(files or {}) if not below or name.startswith(f"{below}/")]
        if files is None or (below and not names):
            return request.send(404)
        first = int(query.get("cursor", ["0"])[0])
        page: list[dict[str, Any]] = [{"type": "directory", "path": "folder", "oid": "0"}]
        page += [{"type": "file", "path": name, "size": len(files[name]), "oid": "0"} for name in names[first : first + PAGE]]
        headers = {}
        if first + PAGE < len(names):
            url = f"{self.endpoint}{request.path.partition('?')[0]}?recursive=true&cursor={first + PAGE}"
            headers["Link"] = self.page_link or f'<{url}>; rel="next"'
        return request.send(200, json.dumps(page).encode(), **headers)

    def _serve(self, request: _Handler) -> None:
        self.served.append((request.path, request.headers.get("Authorization")))
        if self.refused > 0:
            self.refused -= 1
            return request.send(403)
        user, name, commit, path = request.path.partition("?")[0].strip("/").split("/", 3)
        files = self._files_of(f"{user}/{name}", commit) or {}
        return request.send_range(files[urllib.parse.unquote(path)])

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *error: object) -> None:
        self._hub.end()
        self._files.end()
