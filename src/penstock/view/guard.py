"""What comes in and what goes out: who may ask, which parameters are accepted, and what every answer says to the browser.

The page is for one person on this machine. Other web sites can make a browser send requests here, also under their own host name
(DNS rebinding), and other users of the machine can connect. So a request needs a name we expect in ``Host``, no foreign ``Origin``,
and a secret: at first in the address, then in a cookie. Browsers send cookies to every port of a host, which may be another user's;
this cookie is bound to a path that is secret too.
"""

import hmac
import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, parse_qsl

MOST_LETTERS = 2000


@dataclass(frozen=True)
class Response:
    """A status, a content type and the bytes."""

    status: int
    kind: str
    body: bytes


class RefusedError(Exception):
    """A request that is refused with a status and a text that says what to do."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


def as_json(value: Any, status: int = HTTPStatus.OK) -> Response:
    """Plain values as an answer. ASCII only, without "<": no text can be mistaken for markup."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Response(status, "application/json; charset=utf-8", text.encode("ascii"))


_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""On every answer, errors too."""


@dataclass(frozen=True)
class Guard:
    """The secrets of one server, and the checks."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    place: str = field(default_factory=lambda: secrets.token_urlsafe(9))

    @property
    def url(self) -> str:
        """The address to open; it carries the secret."""
        return f"http://127.0.0.1:{self.port}{self.root}?token={self.token}"

    @property
    def root(self) -> str:
        """The path of all addresses."""
        return f"/{self.place}/"

    @property
    def cookie(self) -> str:
        """The header that lets a browser ask again without the secret in the address."""
        return f"penstock={self.token}; Path={self.root}; HttpOnly; SameSite=Strict"

    def admit(self, headers: Message, path: str, query: str) -> bool:
        """RefusedError without the secret. True if it is in the address, so that the cookie is to be set."""
        names = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        hosts = headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in names:
            raise RefusedError(HTTPStatus.FORBIDDEN, "this page answers only under the address that penstock printed")
        origin = headers.get("Origin")
        if origin is not None and origin.lower() not in {f"http://{name}" for name in names}:
            raise RefusedError(HTTPStatus.FORBIDDEN, "requests of other pages are refused")
        if path == self.root and self._is_token(parse_qs(query).get("token", [""])[0]):
            return True
        if headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "requests of other pages are refused")
        if not any(self._is_token(value) for value in _cookies(headers.get("Cookie", ""))):
            raise RefusedError(HTTPStatus.FORBIDDEN, "open the address that penstock printed, with its token")
        return False

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode("utf-8", "replace"), self.token.encode())


def _cookies(header: str) -> list[str]:
    pairs = [pair.strip().partition("=") for pair in header.split(";")]
    return [value for name, _, value in pairs if name == "penstock"]


class Query:
    """The part of an address behind the question mark."""

    def __init__(self, text: str, allowed: Collection[str]) -> None:
        pairs = _pairs(text)
        self._values = dict(pairs)
        if len(self._values) != len(pairs):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a parameter was given twice")
        if not set(self._values) <= set(allowed):
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"expected only the parameters {', '.join(sorted(allowed)) or '(none)'}")

    def whole(self, name: str, default: int, *, least: int = 0, most: int) -> int:
        given = self.optional(name, least=least, most=most)
        return default if given is None else given

    def optional(self, name: str, *, least: int = 0, most: int) -> int | None:
        """A whole number within limits, or None if it was left out or is empty."""
        text = self._values.get(name, "")
        return None if text == "" else whole(text, name, least=least, most=most)

    def text(self, name: str, default: str = "") -> str:
        """Any text; what is done with it checks it."""
        return self._values.get(name, default)

    def choice(self, name: str, options: Collection[str], default: str) -> str:
        value = self._values.get(name) or default
        if value not in options:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} must be one of {', '.join(options)}")
        return value


def whole(text: str, name: str, *, least: int = 0, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text, re.ASCII) or not least <= int(text) <= most:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number in [{least}, {most}]")
    return int(text)


def _pairs(text: str) -> list[tuple[str, str]]:
    if len(text) > MOST_LETTERS:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"expected at most {MOST_LETTERS} characters of parameters, got {len(text)}")
    try:
        return parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=32, errors="strict")
    except ValueError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "expected parameters as name=value&name=value") from error
