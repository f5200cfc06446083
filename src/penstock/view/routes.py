"""Addresses of the page and what is behind each of them. Everything is read; nothing can be changed from here."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib import resources
from pathlib import Path

import numpy as np

from penstock.errors import MissingError, PenstockError
from penstock.records import Source
from penstock.store.reader import Store
from penstock.view import ordering
from penstock.view.answer import Answer, RefusedError, as_json
from penstock.view.cell import LONG, SHORT
from penstock.view.chunks import chunk_map
from penstock.view.dataset import DataSet, describe, place_of, without_paths
from penstock.view.live import read_figures
from penstock.view.picture import MOST_BYTES, make_image
from penstock.view.query import Query, whole
from penstock.view.records import MOST_FIELDS, read_value, rows

__all__ = ["Routes"]

MOST_RECORDS = 200
MOST_NUMBER = 2**63 - 1
MOST_STEP = 2**48
"""Steps and epochs beyond this are refused: no run is as long."""
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Routes:
    """Answers for one data set, for one file of loader figures, or for both."""

    data: DataSet | None
    watched: Path | None = None

    def answer(self, path: str, query: str) -> Answer:
        """The answer to a path below the root; errors as JSON."""
        try:
            for pattern, allowed, function in _ROUTES:
                match = re.fullmatch(pattern, path, re.ASCII)
                if match is not None:
                    return function(self, Query(query, allowed), *match.groups())
            return _file(path)
        except RefusedError as error:
            return as_json({"error": str(error)}, error.status)
        except MissingError as error:
            return as_json({"error": self.words(error)}, HTTPStatus.NOT_FOUND)
        except (PenstockError, OSError) as error:
            return as_json({"error": self.words(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            return as_json({"error": self.words(error)}, HTTPStatus.BAD_REQUEST)

    def words(self, error: Exception) -> str:
        """What a page may say about an error."""
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return without_paths(text, () if self.data is None else self.data.words)[:2000] or type(error).__name__

    def source(self, query: Query) -> Source:
        """The data, at the generation that was asked for."""
        if self.data is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "no data was given, only a file to watch")
        return self.data.at(query.optional("generation", least=1, most=MOST_NUMBER))


def _about(routes: Routes, query: Query) -> Answer:
    watched = None if routes.watched is None else routes.watched.name
    if routes.data is None:
        return as_json({"names": [], "data": None, "watched": watched})
    source = routes.source(query)
    about = {**describe(source), "labels": ordering.label_fields(source), "shown_fields": MOST_FIELDS}
    return as_json({"names": [_short(word) for word in routes.data.words], "data": about, "watched": watched})


def _short(word: str) -> str:
    """The last part of a path or URL: the rest is nobody's business."""
    place = place_of(word)
    return word.removesuffix(place) + (place.rstrip("/").rpartition("/")[2] or place)


def _records(routes: Routes, query: Query) -> Answer:
    source = routes.source(query)
    start = query.whole("start", 0, most=MOST_NUMBER)
    count = query.whole("count", 48, least=1, most=MOST_RECORDS)
    ids = np.arange(min(start, len(source)), min(start + count, len(source)), dtype=np.int64)
    return as_json({"start": start, "total": len(source), "rows": rows(source, ids, SHORT, routes.words)})


def _record(routes: Routes, query: Query, number: str) -> Answer:
    source = routes.source(query)
    found = rows(source, np.array([_id(source, number)]), LONG, routes.words)[0]
    return as_json({**found, "total": len(source)})


def _where(routes: Routes, query: Query, number: str) -> Answer:
    source, choice = routes.source(query), ordering.Choice.of(query)
    places = ordering.places_of(source, choice, _id(source, number), query.whole("epoch", 0, most=MOST_STEP))
    return as_json({"where": places, "text": repr(choice.stream(source).order)})


def _id(source: Source, text: str) -> int:
    record = whole(text, "record", most=MOST_NUMBER)
    if record >= len(source):
        raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no record {record}; there are {len(source)}, from 0 on")
    return record


def _image(routes: Routes, query: Query, field: str, number: str) -> Answer:
    source = routes.source(query)
    names = list(source.schema)
    place = whole(field, "field", most=4096)
    if place >= len(names):
        raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no field {place}; there are {len(names)}")
    value = read_value(source, names[place], _id(source, number), MOST_BYTES)
    return make_image(value, query.optional("edge", least=16, most=4096))


def _batch(routes: Routes, query: Query) -> Answer:
    source, choice = routes.source(query), ordering.Choice.of(query)
    about, ids = ordering.batch_of(source, choice, query.whole("step", 0, most=MOST_STEP))
    start = query.whole("start", 0, most=MOST_NUMBER)
    count = query.whole("count", 64, least=1, most=MOST_RECORDS)
    return as_json({**about, "start": start, "rows": rows(source, ids[start : start + count], SHORT, routes.words)})


def _order(routes: Routes, query: Query) -> Answer:
    return as_json(ordering.picture_of(routes.source(query), ordering.Choice.of(query), query.whole("epoch", 0, most=MOST_STEP)))


def _mix(routes: Routes, query: Query) -> Answer:
    source, choice = routes.source(query), ordering.Choice.of(query)
    fields = list(source.schema)
    field = fields[query.whole("field", 0, most=len(fields) - 1)]
    if field not in ordering.label_fields(source):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "expected a field with one whole number a record")
    return as_json(ordering.mix_of(source, choice, query.whole("epoch", 0, most=MOST_STEP), field))


def _chunks(routes: Routes, query: Query) -> Answer:
    source = routes.source(query)
    if not isinstance(source, Store):
        raise RefusedError(HTTPStatus.NOT_FOUND, "only stores have chunks")
    return as_json(chunk_map(source))


def _live(routes: Routes, query: Query) -> Answer:
    if routes.watched is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "no file is watched; start with: penstock view --watch FILE")
    return as_json(read_figures(routes.watched))


_CHOICE = {"generation", "epoch", *ordering.PARAMETERS}
_ROUTES: tuple[tuple[str, set[str], Callable[..., Answer]], ...] = (
    ("api/about", {"generation"}, _about),
    ("api/records", {"generation", "start", "count"}, _records),
    ("api/record/([0-9]{1,20})", {"generation"}, _record),
    ("api/where/([0-9]{1,20})", _CHOICE, _where),
    ("image/([0-9]{1,4})/([0-9]{1,20})", {"generation", "edge"}, _image),
    ("api/batch", {"step", "start", "count", *_CHOICE} - {"epoch"}, _batch),
    ("api/order", _CHOICE, _order),
    ("api/mix", {"field", *_CHOICE}, _mix),
    ("api/chunks", {"generation"}, _chunks),
    ("api/live", set(), _live),
)


@cache
def _load_files() -> dict[str, Answer]:
    folder = resources.files("penstock.view") / "static"
    return {
        file.name: Answer(HTTPStatus.OK, f"{_KINDS[Path(file.name).suffix]}; charset=utf-8", file.read_bytes())
        for file in folder.iterdir()
        if Path(file.name).suffix in _KINDS
    }


def _file(path: str) -> Answer:
    """One of the files of the page."""
    found = _load_files().get(path or "index.html")
    if found is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "there is nothing at this address")
    return found
