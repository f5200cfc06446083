"""The data that is shown: opened once, other generations of a store when they are asked for."""

import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.records import Source
from penstock.schema import Field
from penstock.store.generation import generations
from penstock.store.reader import Store
from penstock.view.picture import edges

__all__ = ["DataSet", "describe", "place_of", "without_paths"]

MOST_OPEN = 4
"""Generations that are kept open beside the first one."""
MOST_GENERATIONS = 500

Open = Callable[[int | None], Source]
"""Opens the data, or a generation of it."""


class DataSet:
    """A source and, if it is a store, its other generations. Safe to use from several threads."""

    def __init__(self, opener: Open, words: Sequence[str]) -> None:
        self._open, self.words = opener, tuple(words)
        self._lock = threading.Lock()
        self._others: dict[int, Source] = {}
        self._first = opener(None)

    def at(self, generation: int | None) -> Source:
        """The source; of a store, a generation of it."""
        first = self._first
        if generation is None or not isinstance(first, Store) or generation == first.generation:
            return first
        with self._lock:
            if generation not in self._others:
                self._others[generation] = self._open(generation)
            while len(self._others) > MOST_OPEN:  # not closed: another thread may be reading; it goes with its last reader
                self._others.pop(next(iter(self._others)))
            return self._others[generation]

    def close(self) -> None:
        """Close everything. Idempotent."""
        for source in (self._first, *self._others.values()):
            source.close()


def describe(source: Source) -> dict[str, Any]:
    """Everything about a source that is known without reading records."""
    found: dict[str, Any] = {
        "kind": type(source).__name__,
        "records": len(source),
        "fields": [_describe_field(name, field) for name, field in source.schema.items()],
        "blocks": {"count": len(source.blocks), "records": source.blocks.size, "read_whole": source.reads_blocks},
        "fingerprint": source.fingerprint,
    }
    if isinstance(source, Store):
        found["generation"] = source.generation
        found["generations"] = generations(source.path)[-MOST_GENERATIONS:]
    return found


def _describe_field(name: str, field: Field) -> dict[str, Any]:
    fixed = field.is_fixed
    return {
        "name": name,
        "kind": field.kind,
        "dtype": None if field.kind in ("text", "bytes") else str(field.dtype),
        "shape": list(field.shape) if fixed else None,
        "bytes": field.stride if fixed else None,
        "codec": repr(field.codec),
        "picture": fixed and edges(field.dtype, field.shape) is not None,
    }


def place_of(word: str) -> str:
    """The path or URL that a word of the command line names: PATH, or NAME=PATH."""
    name, equals, place = word.partition("=")
    return place if equals and name.isidentifier() else word


def without_paths(text: str, words: Sequence[str]) -> str:
    """A message without places on this machine: what the user named is called as he named it, of the rest the last name is left."""
    for word in words:
        place = place_of(word)
        text = text.replace(str(Path(place).absolute()), os.path.basename(place.rstrip("/")) or place)
    return re.sub(r"(?<![\w.:/])/(?:[^\s:'\"/]+/)*([^\s:'\"/]+)", r"\1", text)
