"""Plain web servers: the one of Python, redirects, versions without etags, proxies, forks."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.hostile.server import API_KEY, BEARER, Handler, Hostile, npy, redirect

import penstock as pen
from penstock.errors import ObjectChangedError, ReadError, UnsafePathError
from penstock.remote import http_client
from penstock.remote.fetch import Policy
from penstock.remote.http_client import Origin, Pool
from penstock.remote.objects import close_all
from penstock.remote.url import url_path
from penstock.source import write_collection

RECORDS = np.arange(4000, dtype=np.int32)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[str]:
    """The web server that comes with Python, which knows neither etags nor ranges, over the directory of the test."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            found = re.search(rb"http://127.0.0.1:\d+", process.stdout.readline())
            assert found is not None
            yield found[0].decode()
        finally:
            process.kill()


@pytest.fixture
def server() -> Iterator[Hostile]:
    with Hostile() as server:
        yield server
        close_all()


@pytest.fixture
def stranger() -> Iterator[Hostile]:
    with Hostile("127.0.0.2") as server:
        yield server
        close_all()


def test_the_web_server_of_python_is_read(plain: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a b+%.npy", RECORDS)
    with pen.open(f"{plain}/a%20b+%25.npy") as source:
        assert np.array_equal(source[:]["data"], RECORDS)


@pytest.mark.parametrize("size", [4000, 3000])
def test_a_file_without_an_etag_that_was_replaced_is_noticed(plain: str, tmp_path: Path, size: int) -> None:
    file = tmp_path / "a.npy"
    np.save(file, RECORDS)
    os.utime(file, (1_700_000_000, 1_700_000_000))
    with pen.open(f"{plain}/a.npy") as source:
        np.save(tmp_path / "b.npy", RECORDS[::-1][:size])
        os.replace(tmp_path / "b.npy", file)
        with pytest.raises(ObjectChangedError, match=r"a\.npy.*open it again"):
            source[:]


def test_a_server_without_etags_and_dates_is_read(server: Hostile) -> None:
    server.state.attack = lambda handler: handler.send(handler.object_head(ETag=None, Last_Modified=None))
    with pen.open(f"{server.base}/o.npy") as source:
        assert np.array_equal(source[:]["data"], RECORDS)


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_redirect_to_another_host_is_refused_before_anything_is_sent_there(
    server: Hostile, stranger: Hostile, scheme: str
) -> None:
    server.state.stranger, server.state.attack = stranger.base, redirect(302, "{stranger}/o.npy?signature=secret")
    options = {"default_headers": {"X-Api-Key": API_KEY}}
    keys = {"endpoint": server.base, "access_key_id": "k", "secret_access_key": "s", "session_token": "t", "region": "us-east-1"}
    place = url_path(f"{server.base}/o.npy", options) if scheme == "http" else url_path("s3://data/o.npy", options | keys)
    with pytest.raises(UnsafePathError) as caught:
        pen.open(place)
    assert "o.npy" in str(caught.value)
    assert "redirects to" in str(caught.value)
    assert "signature" not in str(caught.value)
    assert stranger.state.log == []
    if scheme == "http":
        assert stranger.base in str(caught.value)
        assert "allow_redirects" in str(caught.value)


def test_a_redirect_that_is_allowed_is_followed_without_the_headers_of_the_user(server: Hostile, stranger: Hostile) -> None:
    server.state.stranger, server.state.attack = stranger.base, redirect(302, "{stranger}/other.npy?signature=1")
    headers = {"X-Api-Key": API_KEY, "Authorization": f"Bearer {BEARER}", "Cookie": API_KEY}
    options = {"default_headers": headers, "user_agent": API_KEY, "allow_redirects": True}
    with pen.open(f"{server.base}/o.npy", storage_options=options) as source:
        assert np.array_equal(source[:]["data"], RECORDS)
    assert all(sent["x-api-key"] == API_KEY for _, _, sent in server.state.log)
    assert stranger.state.log
    for _, path, sent in stranger.state.log:
        assert path == "/other.npy?signature=1"
        assert {name.lower() for name in sent} <= {"host", "user-agent", "accept", "accept-encoding", "range", "if-match"}
        assert API_KEY not in str(sent)
        assert BEARER not in str(sent)


def test_another_port_of_the_same_host_is_another_host(server: Hostile) -> None:
    with Hostile() as other:
        server.state.stranger, server.state.attack = other.base, redirect(307, "{stranger}/o.npy")
        with pytest.raises(UnsafePathError, match=re.escape(other.base)):
            pen.open(f"{server.base}/o.npy")
        assert other.state.log == []


def test_a_redirect_on_the_same_server_is_followed_with_the_headers_of_the_user(server: Hostile) -> None:
    def moved(handler: Handler) -> None:
        redirect(308, "../d/moved.npy")(handler) if handler.path == "/o.npy" else handler.honest()

    server.state.attack = moved
    with pen.open(f"{server.base}/o.npy", storage_options={"default_headers": {"X-Api-Key": API_KEY}}) as source:
        assert np.array_equal(source[:]["data"], RECORDS)
    assert {path for _, path, _ in server.state.log} == {"/o.npy", "/d/moved.npy"}
    assert all(sent["x-api-key"] == API_KEY for _, _, sent in server.state.log)


def test_options_that_are_ours_are_checked() -> None:
    for scheme, options in [
        ("s3", {"allow_redirects": True}),
        ("http", {"allow_redirects": 1}),
        ("s3", {"max_listed": 0}),
        ("s3", {"max_listed": "many"}),
        ("http", {"default_headers": {"X": "a\r\nY: b"}}),
        ("http", {"default_headers": {"X y": "a"}}),
        ("http", {"no_such_option": 1}),
    ]:
        with pytest.raises(ValueError, match="were not accepted"):
            url_path(f"{scheme}://127.0.0.1/o.npy", options)


def test_a_proxy_of_the_options_or_the_environment_is_used(server: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = server.base.replace("://", "://user:pass@")
    with pen.open("http://nowhere.invalid/o.npy", storage_options={"proxy_url": proxy}) as source:
        assert np.array_equal(source[:]["data"], RECORDS)
    monkeypatch.setenv("http_proxy", proxy)
    with pen.open("http://nowhere.invalid/p.npy") as source:
        assert np.array_equal(source[:]["data"], RECORDS)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pen.open(f"{server.base}/q.npy") as source:
        assert np.array_equal(source[:]["data"], RECORDS)
    asked = {(path, sent.get("Proxy-Authorization")) for _, path, sent in server.state.log}
    login = "Basic dXNlcjpwYXNz"
    assert asked == {("http://nowhere.invalid/o.npy", login), ("http://nowhere.invalid/p.npy", login), ("/q.npy", None)}


def test_certificates_are_checked(server: Hostile) -> None:
    pem = Path(__file__).with_name("localhost.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    base = f"https://localhost:{server.server_address[1]}"
    with pytest.raises(ReadError, match="certificate"):
        pen.open(f"{base}/o.npy")
    trusted = "-----BEGIN CERTIFICATE" + pem.read_text().partition("-----BEGIN CERTIFICATE")[2]
    for options in ({"root_certificate": trusted.encode()}, {"allow_invalid_certificates": True}):
        with pen.open(f"{base}/o.npy", storage_options=options) as source:
            assert np.array_equal(source[:]["data"], RECORDS)
    server.state.attack = redirect(302, f"http://localhost:{server.server_address[1]}/o.npy")
    options = {"allow_invalid_certificates": True, "allow_redirects": True}
    with pytest.raises(UnsafePathError, match="without encryption"):
        pen.open(f"{base}/o.npy", storage_options=options)


def test_connections_are_kept_and_end_when_they_are_closed(server: Hostile) -> None:
    place = url_path(f"{server.base}/o.npy")
    info, data = place.objects.probe("o.npy", last=100)
    whole = npy(RECORDS)
    assert data == whole[-100:]
    clients = set(server.clients)
    for start in range(0, 1000, 100):
        assert place.objects.read(info, start, start + 100) == whole[start : start + 100]
    assert server.clients == clients
    place.objects.close()
    assert place.objects.head("o.npy") == info
    assert len(server.clients) == 2


def test_idle_connections_are_bounded_over_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MOST_IDLE", 2)
    pool = Pool({"proxy_url": ""}, Policy())
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        origins = [Origin("http", *server.getsockname()) for server in servers]
        connections = [pool.take(origin) for origin in origins]
        for origin, connection in zip(origins, connections, strict=True):
            pool.give_back(origin, connection)
        assert [connection.stream.fileno() >= 0 for connection in connections] == [False, True, True]
        assert pool.take(origins[1]) is connections[1]
        connections[1].close()
        pool.close()
        assert connections[2].stream.fileno() < 0


HERE = "HERE"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data.npy",
        "http://127.0.0.2/x.npy",
        "s3://data/x.npy",
        "memory://data/x.npy",
        "http://HERE.example.org/x.npy",
        "http://user:planted-password-c44e@127.0.0.2/x.npy?planted-password-c44e",
        "file:///etc/passwd",
    ],
)
def test_a_collection_on_a_web_server_cannot_name_other_hosts(server: Hostile, url: str) -> None:
    server.state.data = collection(url.replace(HERE, server.base.removeprefix("http://")))
    with pytest.raises(UnsafePathError, match=r"all\.json") as caught:
        pen.open(f"{server.base}/all.json")
    assert "planted" not in str(caught.value)
    assert {path for _, path, _ in server.state.log} == {"/all.json"}


@pytest.mark.parametrize("url", ["http://HERE/a.npy?query", "http://u:planted-password-c44e@HERE/a.npy", "http:///a.npy"])
def test_a_part_at_no_valid_url_is_refused_also_where_others_are_allowed(server: Hostile, url: str) -> None:
    server.state.data = collection(url.replace(HERE, server.base.removeprefix("http://")))
    with pen.open(f"{server.base}/all.json", allow_urls=True) as source, pytest.raises(UnsafePathError) as caught:
        source[0]
    assert "planted" not in str(caught.value)


def collection(url: str) -> bytes:
    """The file of a collection with one part."""
    place = url_path("memory://web")
    place.objects.put("a.npy", npy(RECORDS))
    write_collection([place / "a.npy"], place / "all.json")
    return place.objects.read_all("all.json", 10_000).replace(b'"a.npy"', json.dumps(url).encode())
