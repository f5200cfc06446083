"""Parameters of requests: few, short, and each within its limits before anything is done with it."""

import re
from collections.abc import Collection
from http import HTTPStatus
from urllib.parse import parse_qsl

from penstock.view.answer import RefusedError

__all__ = ["Query"]

MOST_LETTERS = 2000


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
        """A whole number within limits."""
        given = self.optional(name, least=least, most=most)
        return default if given is None else given

    def optional(self, name: str, *, least: int = 0, most: int) -> int | None:
        """A whole number within limits, or None if it was left out or is empty."""
        text = self._values.get(name, "")
        return None if text == "" else whole(text, name, least=least, most=most)

    def choice(self, name: str, options: Collection[str], default: str) -> str:
        """One of several words."""
        value = self._values.get(name) or default
        if value not in options:
            raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} must be one of {', '.join(options)}")
        return value


def whole(text: str, name: str, *, least: int = 0, most: int) -> int:
    """A text as a whole number within limits."""
    if not re.fullmatch(r"[0-9]{1,20}", text, re.ASCII) or not least <= int(text) <= most:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number in [{least}, {most}]")
    return int(text)


def _pairs(text: str) -> list[tuple[str, str]]:
    if len(text) > MOST_LETTERS:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"expected at most {MOST_LETTERS} letters of parameters, got {len(text)}")
    try:
        return parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=32, errors="strict")
    except ValueError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "expected parameters as name=value&name=value") from error
