"""Who may ask, and what every answer says to the browser.

The page is for one person on this machine. Other web sites can make a browser send requests here, under a name of theirs too (DNS
rebinding), and other users of the machine can connect. So a request needs a name we expect in ``Host``, no foreign ``Origin``, and
a secret: at first in the address, then in a cookie. Browsers give cookies to every port of a host, which may be another user's;
this one is bound to a path that nobody knows.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from urllib.parse import parse_qs

from penstock.view.answer import RefusedError

__all__ = ["HEADERS", "Guard"]

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
        """The path under which everything lies."""
        return f"/{self.place}/"

    @property
    def cookie(self) -> str:
        """The header that lets a browser ask again without the secret in the address."""
        return f"penstock={self.token}; Path={self.root}; HttpOnly; SameSite=Strict"

    def admit(self, headers: Message, path: str, query: str) -> bool:
        """Refuse strangers. True if the secret is in the address, so that the cookie is to be set."""
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
