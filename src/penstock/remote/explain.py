"""What an exception of obstore means, in words that have nothing of a server's text and no secret in them."""

import re
from dataclasses import replace

from penstock.remote.retry import Failure
from penstock.remote.web import status_failure

__all__ = ["NOWHERE", "explain", "first_line"]

NOWHERE = "127.0.0.1:0"
"""An address at which nothing can listen: the proxy for all hosts but the server's own, so that no redirect reaches them."""

_MOST_TEXT = 100_000  # obstore describes an error with all that the server sent
_STATUS = re.compile(r"\n\s+status: (\d{3}),\n|status code: (\d{3})\b")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
_USER = re.compile(r"(\w+://)[^\s/]*@")
_QUERY = re.compile(r"(\w+://[^\s?]*)\?\S*")
_ANSWER = re.compile(r"(status code: \d{3}(?: [A-Z][A-Za-z -]{0,40})?).*|(error response).*")
_BY_NAME = {
    "FileNotFoundError": "missing",
    "PermissionDeniedError": "denied",
    "UnauthenticatedError": "denied",
    "PreconditionError": "changed",
    "AlreadyExistsError": "exists",
    "NotImplementedError": "unsupported",
    "NotSupportedError": "unsupported",
}
_METADATA = re.compile(r"https?://(169\.254\.169\.254|metadata\.google\.internal|metadata/)")


def first_line(text: str) -> str:
    """What an error of obstore says, on one line: without users, passwords and queries of URLs, and without the server's answer."""
    text = " ".join(text[:_MOST_TEXT].split("Debug source:")[0].split())
    text = _ANSWER.sub(r"\1\2", _QUERY.sub(r"\1?...", _USER.sub(r"\1", text)))
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= 400 else f"{text[:400]}..."


def explain(error: Exception) -> Failure:
    """What an exception of obstore means; anything else is raised again.

    The class tells little: a refused connection, a timeout and a wrong range are all a GenericError. The rest is in the description
    of the error that follows its message.
    """
    name, whole = type(error).__name__, str(error)
    if not type(error).__module__.startswith("obstore") and name not in ("FileNotFoundError", "NotImplementedError"):
        raise error
    text = whole if len(whole) <= _MOST_TEXT else f"{whole[:_MOST_TEXT]}\n{whole[-_MOST_TEXT:]}"
    status = next((int(one or other) for one, other in _STATUS.findall(text)), None)
    by_status = status_failure(status or 0, first_line(text), text)
    kind = _kind(name, text, status)
    if kind == "redirect":
        return replace(by_status, kind=kind, text="the server redirects to another host; look at the endpoint")
    if by_status.kind == "expired":
        return by_status
    if kind is None and status is None and (found := _KIND.search(text)) is not None:
        return replace(by_status, kind="again", status=None, sent=found[1] != "Connect")
    return replace(by_status, kind=kind or by_status.kind, status=status)


def _kind(name: str, text: str, status: int | None) -> str | None:
    """The kind of a failure, unless only its status or its connection tells."""
    kind = _BY_NAME.get(name)
    if f"\n{NOWHERE},\n" in re.sub(r"\n +", "\n", text):
        return "redirect"
    if _METADATA.search(text):
        return "credentials"  # none were given, and the machine's own service that hands them out does not answer
    if kind == "exists" and status == 409:
        return "again"  # a conflict with a request under way: which one wins is not known yet
    if (kind == "unsupported" and "Range request not supported" in text) or "source: NotPartial" in text:
        return "whole"
    if "source: StartTooLarge" in text:
        return "range"
    return "wrong" if "source: UnexpectedRange" in text else kind
