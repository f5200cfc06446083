"""How a run's loader is made again: data by its name, and the calls that make the stream. Names and numbers only, no code.

What is made is compared with the state in the log before it is used, so a recipe can be wrong, but never lead to other records.
"""

from collections.abc import Mapping
from typing import Any

from penstock.argument import shown
from penstock.errors import CorruptError
from penstock.formats.open import open_source
from penstock.loader import Loader
from penstock.stream import Stream, mix
from penstock.trace.loss_table import LossTable

__all__ = ["make_loader"]

CALLS = ("in_order", "shuffle", "sample", "sequences", "pack", "without")
"""What a recipe may call, on a source or a stream."""


def make_loader(table: LossTable) -> Loader:
    """The loader of a run whose log says how; ValueError if it does not."""
    made_by, stretch = table.made_by, table.stretches[-1]
    if made_by is None or made_by.get("calls") is None or stretch.batch_size == 0:
        raise ValueError(
            f"{table.path}: the log does not say how its stream is made: give the loader (--of train:make_loader in a shell), "
            "or log with LossLog(..., data=...)"
        )
    try:
        stream = _made(made_by["data"], made_by["calls"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, OSError):
            raise
        raise CorruptError(
            f"{table.path}: the stream cannot be made as the log says: {shown(str(error))}: give the loader (--of)"
        ) from error
    return Loader(stream, stretch.batch_size, tail=stretch.tail, threads=0)


def _made(data: Any, calls: Any) -> Stream:
    if isinstance(calls, Mapping):
        streams = {name: _made(data[name], inner) for name, inner in calls["streams"].items()}
        return mix(streams, **{str(name): value for name, value in calls["mix"].items()})
    made: Any = open_source(data)
    for name, options in calls:
        if name not in CALLS:
            raise ValueError(f"unknown call {name!r}")
        made = getattr(made, name)(**options)
    if not isinstance(made, Stream):
        raise ValueError("the calls make no stream")
    return made
