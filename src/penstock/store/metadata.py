"""Metadata: a small JSON object that a data set carries: names of classes, tokenizer, origin.

In a file it is a JSON text, which a stranger may have written: its size, depth and numbers are bounded.
"""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_METADATA_BYTES", "decode_metadata", "encode_metadata", "fits"]

MAX_METADATA_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_DIGITS = 100


def encode_metadata(value: Mapping[str, Any]) -> str:
    """The JSON text of metadata, empty if there is none; TypeError or ValueError if it is not JSON, too deep or too large."""
    if not isinstance(value, Mapping):
        raise TypeError(f"metadata must be a dict with text keys, got a {type(value).__name__}")
    if not value:
        return ""
    text = json.dumps(_plain(value, "metadata", 0), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_METADATA_BYTES:
        raise ValueError(
            f"metadata must have at most {MAX_METADATA_BYTES} bytes as JSON, got {size}: store a file next to the data"
        )
    return text


def decode_metadata(text: str) -> dict[str, Any]:
    """The metadata of a text by :func:`encode_metadata`; ValueError, TypeError or RecursionError if it is not such a text."""
    if not text:
        return {}
    if len(text) > MAX_METADATA_BYTES or len(text.encode()) > MAX_METADATA_BYTES:
        raise ValueError(f"expected at most {MAX_METADATA_BYTES} bytes of metadata, got more")
    value = json.loads(text, object_pairs_hook=_unique, parse_int=_whole, parse_float=_real, parse_constant=_refuse)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object as metadata, got a {type(value).__name__}")
    plain: dict[str, Any] = _plain(value, "metadata", 0)
    return plain


def fits(value: Mapping[str, Any]) -> bool:
    """Whether a store can carry this metadata."""
    try:
        encode_metadata(value)
    except (TypeError, ValueError):
        return False
    return True


def _plain(value: Any, where: str, depth: int) -> Any:
    """A copy in dicts, lists, texts, numbers, booleans and None."""
    if depth > MAX_DEPTH:
        raise ValueError(f"metadata must be nested at most {MAX_DEPTH} deep, got more")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} must have texts as keys, got {key!r}")
        return {key: _plain(inner, f"{where}[{key[:40]!r}]", depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{where}[{place}]", depth + 1) for place, inner in enumerate(value)]
    if isinstance(value, str):
        value.encode()  # no surrogates
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**MAX_DIGITS:
            raise ValueError(f"{where} must have at most {MAX_DIGITS} digits, got more")
    elif value is not None and not isinstance(value, bool | float):
        raise TypeError(
            f"{where} must be a JSON value (dict, list, text, number, True, False or None), got a {type(value).__name__}"
        )
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key of the metadata stands twice")
    return made


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS + 1:
        raise ValueError(f"a number of the metadata has more than {MAX_DIGITS} digits")
    return int(text)


def _real(text: str) -> float:
    value = float(text) if len(text) <= MAX_DIGITS else float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"a number of the metadata is too large or has more than {MAX_DIGITS} characters")
    return value


def _refuse(text: str) -> object:
    raise ValueError(f"expected numbers in the metadata, got {text[:40]}")
