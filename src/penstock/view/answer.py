"""What the page's server gives back: an answer, or a refusal that becomes one."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

__all__ = ["Answer", "RefusedError", "as_json"]


@dataclass(frozen=True)
class Answer:
    """A status, a content type and the bytes."""

    status: int
    kind: str
    body: bytes


class RefusedError(Exception):
    """A request that is not answered: the status says whose fault it is, the text what to do."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


def as_json(value: Any, status: int = HTTPStatus.OK) -> Answer:
    """Plain values as an answer. ASCII only: nothing in a text can mean something to whoever reads it as something else."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Answer(status, "application/json; charset=utf-8", text.encode("ascii"))
