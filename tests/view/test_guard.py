"""Only the person who started the page gets an answer, and every answer tells the browser to be careful."""

import re

import pytest
from tests.view.serving import PATIENCE_S, Reply, Visitor

from penstock.view.guard import HEADERS

METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get")


def assert_guarded(reply: Reply) -> None:
    for name, value in HEADERS.items():
        assert reply.headers.get_all(name) == [value]
    assert not [name for name in reply.headers if name.lower().startswith("access-control-")]
    assert reply.headers["Server"] == "penstock"
    assert reply.headers["Content-Type"]
    assert int(reply.headers["Content-Length"]) >= 0


def test_the_policy_is_strict() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert HEADERS["X-Content-Type-Options"] == "nosniff"
    assert HEADERS["Referrer-Policy"] == "no-referrer"
    assert HEADERS["Cache-Control"] == "no-store"


def test_it_listens_on_this_machine_only(visitor: Visitor) -> None:
    assert visitor.server.server_address[0] == "127.0.0.1"
    assert visitor.server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path",
    ["", "app.js", "api/about", "api/records", "image/0/5", "nothing", "api/record/99999", "api/records?count=x", "icon.svg"],
)
def test_every_answer_has_the_headers(visitor: Visitor, path: str) -> None:
    assert_guarded(visitor.get(path))
    assert_guarded(visitor.ask(visitor.root + path, method="HEAD"))
    assert_guarded(visitor.ask(visitor.root + path, method="POST"))
    assert_guarded(visitor.ask(visitor.root + path, known=False))


def test_head_is_get_without_a_body(visitor: Visitor) -> None:
    got, head = visitor.get("api/about"), visitor.ask(f"{visitor.root}api/about", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(got.body))


@pytest.mark.parametrize("method", METHODS)
def test_other_methods_are_refused(visitor: Visitor, method: str) -> None:
    reply = visitor.ask(f"{visitor.root}api/about", method=method)
    assert reply.status == 405
    assert reply.headers["Allow"] == "GET, HEAD"
    assert_guarded(reply)


@pytest.mark.parametrize(
    "host", ["evil.com", "evil.com:80", "127.0.0.1", "localhost", "127.0.0.1.evil.com", "localhost:1", "", "127.0.0.1:0", "[::1]"]
)
def test_other_names_of_this_host_are_refused(visitor: Visitor, host: str) -> None:
    reply = visitor.ask(f"{visitor.root}api/about", headers={"Host": host})
    assert reply.status == 403
    assert "error" in reply.json
    assert b"fields" not in reply.body


def test_localhost_with_the_port_is_a_name_too(visitor: Visitor) -> None:
    assert visitor.ask(f"{visitor.root}api/about", headers={"Host": f"localhost:{visitor.server.server_port}"}).status == 200


def test_a_request_needs_exactly_one_host(visitor: Visitor) -> None:
    good, line = (
        f"Host: 127.0.0.1:{visitor.server.server_port}\r\n",
        f"GET {visitor.root}api/about HTTP/1.1\r\nCookie: {visitor.cookie}\r\n",
    )
    assert b" 200 " in visitor.raw(f"{line}{good}\r\n".encode())
    assert b" 403 " in visitor.raw(f"{line}{good}Host: evil.com\r\n\r\n".encode())
    assert b" 403 " in visitor.raw(f"{line}\r\n".encode())


@pytest.mark.parametrize("origin", ["http://evil.com", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
def test_requests_of_other_pages_are_refused(visitor: Visitor, origin: str) -> None:
    assert visitor.ask(f"{visitor.root}api/about", headers={"Origin": origin}).status == 403


def test_the_page_itself_may_ask(visitor: Visitor) -> None:
    own = f"http://127.0.0.1:{visitor.server.server_port}"
    assert visitor.ask(f"{visitor.root}api/about", headers={"Origin": own, "Sec-Fetch-Site": "same-origin"}).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_page_embeds_is_refused(visitor: Visitor, site: str) -> None:
    """Pages on other ports of this host count as the same site, and cookies do not know about ports."""
    assert visitor.ask(f"{visitor.root}image/0/5", headers={"Sec-Fetch-Site": site}).status == 403


@pytest.mark.parametrize("path", ["", "api/about", "image/0/5", "app.js", "nothing"])
def test_without_the_token_nothing_is_told(visitor: Visitor, path: str) -> None:
    for headers in ({}, {"Cookie": "penstock="}, {"Cookie": "penstock=x"}, {"Cookie": visitor.cookie + "x"}, {"Cookie": "a=b; c"}):
        reply = visitor.ask(visitor.root + path, headers=headers, known=False)
        assert reply.status == 403
        assert visitor.server.guard.token.encode() not in reply.body
    assert visitor.ask(f"{visitor.root}{path}?token=wrong", known=False).status == 403
    assert visitor.ask(f"/{path}", known=False).status == 403


def test_the_address_lets_a_browser_in_and_the_cookie_keeps_it_there(visitor: Visitor) -> None:
    target = visitor.server.guard.url.partition(str(visitor.server.server_port))[2]
    reply = visitor.ask(target, known=False)
    assert reply.status == 200
    assert b"<!doctype html>" in reply.body
    cookie = reply.headers["Set-Cookie"]
    assert re.fullmatch(r"penstock=[\w-]{32}; Path=/[\w-]{12}/; HttpOnly; SameSite=Strict", cookie)
    assert (
        visitor.ask(f"{visitor.root}api/about", headers={"Cookie": f"a=b; {cookie.partition(';')[0]}"}, known=False).status == 200
    )
    assert "Set-Cookie" not in visitor.get("api/about").headers


def test_the_token_in_the_address_opens_the_page_and_nothing_else(visitor: Visitor) -> None:
    assert visitor.ask(f"{visitor.root}api/about?token={visitor.server.guard.token}", known=False).status == 403
    assert visitor.ask(f"/?token={visitor.server.guard.token}", known=False).status == 403


def test_two_pages_have_nothing_in_common(visitor: Visitor) -> None:
    from penstock.view.guard import Guard

    one, other = Guard(1), Guard(1)
    assert one.token != other.token
    assert one.place != other.place


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nbroken\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"GET //evil.com/%2e%2e HTTP/1.1\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_gets_a_guarded_refusal(visitor: Visitor, request_: bytes) -> None:
    reply = visitor.raw(request_)
    assert reply.startswith(b"HTTP/1.0 4") or reply.startswith(b"HTTP/1.0 5")
    for name in HEADERS:
        assert f"\r\n{name}: ".encode() in reply
    assert b"Python" not in reply


def test_an_empty_connection_does_not_hold_up_the_end(visitor: Visitor) -> None:
    """Browsers open connections ahead of time; the fixture must close although this one asks nothing."""
    import socket

    idle = socket.create_connection(("127.0.0.1", visitor.server.server_port), timeout=PATIENCE_S)
    try:
        assert visitor.get("api/about").status == 200
        visitor.server.shutdown()
        visitor.server.close()
        assert idle.recv(1) == b""
    finally:
        idle.close()
