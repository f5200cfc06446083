"""How a run's loader is made again: the name by which its data was opened, and the calls that make the stream. Names and numbers
only, no code.

A log may come from somebody else. So the data that it names is opened only if the caller says so, and its calls are only those
listed here, none of which opens a file or asks a server. What is made is compared with the state in the log before it is used: a
recipe can be wrong, but never lead to other records.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.argument import shown
from penstock.errors import CorruptError, PenstockError, UnsafePathError
from penstock.formats.open import open_source
from penstock.loader import Loader
from penstock.order import Phase
from penstock.remote.url import is_url
from penstock.stream import Stream, mix

__all__ = ["by_stream", "data_named", "has_calls", "make_loader", "recipe_of"]

CALLS = ("buckets", "design", "images", "in_order", "masks", "pack", "sample", "sequences", "shuffle", "slide", "without")
"""What a recipe may call, on a source or a stream."""

MIX = ("by", "max_epochs", "period", "seed", "stop", "temperature", "unit", "weights")
"""What a recipe may give to a mixture."""

MOST_TEXT = 1 << 20
"""Characters of a recipe. A longer one, as of a ban of very many records, is left out: the loader must then be given."""

MOST_LENGTH = 1 << 28
"""Elements of a sample that a recipe may ask for."""


# Writing


def data_named(data: Any) -> Any:
    """What data was opened by, so that it is found from any working directory; TypeError if it is not made of texts."""
    if isinstance(data, Mapping):
        return {str(name): data_named(one) for name, one in data.items()}
    if isinstance(data, list | tuple):
        return [data_named(one) for one in data]
    if not isinstance(data, str | os.PathLike):
        raise TypeError(f"data must be the path or URL that the data was opened by, got {shown(data)}")
    name = os.fspath(data)
    return name if is_url(name) else os.path.abspath(name)


def recipe_of(loader: Loader, data: Any) -> dict[str, Any]:
    """What a log says of a loader: the name of its data, and the calls, None if they cannot be told."""
    told: dict[str, Any] = {"data": data}
    try:
        calls = _plain(loader.stream.recipe())
        phases = None if loader.phases is None else [_plain(_phase_options(phase)) for phase in loader.phases]
        if len(json.dumps([calls, phases])) > MOST_TEXT:
            calls = None
    except (TypeError, ValueError):  # such as weights that are fractions, or numpy's: a plan shows them as such
        calls = phases = None
    told["calls"] = calls
    if phases is not None:
        told["phases"] = phases
    if loader.work.ids is not None:
        told["ids"] = loader.work.ids
    return told | {"transform": True} if loader.work.transform is not None else told


def _phase_options(phase: Phase) -> dict[str, Any]:
    names = ("steps", "epochs", "batch_size", "seq_len", "weights")
    return {name: value for name in names if (value := getattr(phase, name)) is not None}


def _plain(value: Any) -> Any:
    """In the types of JSON; TypeError if it has others."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"{type(value).__name__} is no type of JSON")


# Reading


def has_calls(told: Any) -> bool:
    """Whether a log says how its stream is made of its data."""
    return isinstance(told, Mapping) and told.get("calls") is not None


def by_stream(data: Mapping[str, Any]) -> dict[str, Any]:
    """Data by the names of streams, "outer/inner" for one of a mixture in another, as a dict of dicts."""
    found: dict[str, Any] = {}
    for name, one in data.items():
        *outer, last = name.split("/")
        inner = found
        for word in outer:
            inner = inner.setdefault(word, {})
        inner[last] = one
    return found


def make_loader(told: Any, batch_size: int, tail: str, path: Path, data: Any = None, *, trust: bool = False) -> Loader:
    """The loader of a run, of ``data`` or, with ``trust``, of what the log in ``path`` names. ValueError if the log does not say
    how; UnsafePathError if it names data that is not trusted.
    """
    if not has_calls(told) or (data is None and told.get("data") is None):
        raise ValueError(
            f"{path}: the log does not say how its stream is made: pass the loader (--of train:make_loader in a shell), "
            "or log with LossLog(..., data=...)"
        )
    if data is None and not trust:
        raise UnsafePathError(
            f"{path}: the log names its data, {shown(told['data'])}, and a log may come from anyone: pass the data (--of DATA in a "
            "shell), or allow it to be opened (trust=True, --trust in a shell)"
        )
    if data is not None:
        _check_names(data, told["calls"])
    try:
        stream = _made(told["data"] if data is None else data, told["calls"])
        phases = None if told.get("phases") is None else [_phase(one) for one in told["phases"]]
        ids = None if told.get("ids") is None else str(told["ids"])
        size: dict[str, Any] = {"batch_size": batch_size} if phases is None else {"phases": phases}
        return Loader(stream, tail=tail, ids=ids, threads=0, **size)
    except PenstockError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptError(
            f"{path}: the stream cannot be made as the log says: {shown(str(error))}: give the loader (--of MODULE:FUNCTION)"
        ) from error


def _check_names(data: Any, calls: Any) -> None:
    """ValueError if data is not given by the names of a mixture."""
    streams = calls.get("streams") if isinstance(calls, Mapping) else None
    if not isinstance(streams, Mapping):
        return
    if not isinstance(data, Mapping) or set(data) != set(streams):
        got = ", ".join(map(shown, data)) if isinstance(data, Mapping) else shown(data)
        raise ValueError(f"expected data by name, of the streams {', '.join(map(shown, streams))}, got {got}")
    for name, inner in streams.items():
        _check_names(data[name], inner)


def _phase(options: Any) -> Phase:
    _check_lengths(options)
    return Phase(**options)


def _made(data: Any, calls: Any) -> Stream:
    if isinstance(calls, Mapping):
        return _mixed(data, calls)
    made: Any = open_source(data)
    if not isinstance(calls, Sequence):
        raise TypeError(f"expected a list of calls, got {shown(calls)}")
    for name, options in calls:
        if name not in CALLS:
            raise ValueError(f"unknown call {shown(name)}")
        if name == "without" and not isinstance(options["ids"], list):
            raise TypeError(f"expected a list of ids, got {shown(options['ids'])}")  # a text would be the name of a file
        _check_lengths(options)
        made = getattr(made, name)(**options)
    if not isinstance(made, Stream):
        raise ValueError("the calls make no stream")
    return made


def _check_lengths(options: Any) -> None:
    for name in ("length", "seq_len"):
        if isinstance(options.get(name), int) and options[name] > MOST_LENGTH:
            raise ValueError(f"{name}: expected at most {MOST_LENGTH}, got {options[name]}")


def _mixed(data: Any, calls: Mapping[str, Any]) -> Stream:
    options, amendments = calls["mix"], calls.get("amend") or []
    if unknown := set(options) - set(MIX):
        raise ValueError(f"unknown options {shown(sorted(unknown))} of a mixture")
    streams = {name: _made(data[name], inner) for name, inner in calls["streams"].items()}
    later = {name for one in amendments for name in one["add"]}
    stream = mix({name: one for name, one in streams.items() if name not in later}, **options)
    for one in amendments:
        added = {name: streams[name] for name in one["add"]}
        stream = stream.amend(one["step"], weights=one["weights"], add=added, max_epochs=one["max_epochs"])
    return stream
