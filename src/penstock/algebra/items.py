"""Records of an object that has them by number: a dataset of torch or Grain, a list, a class of the user's."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from penstock.algebra.view import collect, schema_of_record
from penstock.argument import IntArray
from penstock.batch import Batch, Outputs
from penstock.fingerprint import fingerprint_of
from penstock.interrupt import exposed
from penstock.records import Recipe, Source
from penstock.schema import Field

__all__ = ["Items", "MapStyle"]

COMPARED = 32
"""Records that a fingerprint looks at."""


class MapStyle(Protocol):
    """What PyTorch calls a map-style dataset, and Grain a random-access data source."""

    def __len__(self) -> int:
        """Records."""

    def __getitem__(self, index: Any, /) -> Any:
        """One of them, always the same."""


class Items(Source):
    """The records of a map-style dataset as a source: shuffled, packed, mixed and resumed. Items are read one by one, in Python.

    Items are dicts; anything else is the field ``value``. ``schema`` is found from the first item if it is left out. The dataset
    must be safe to read in several threads, and picklable where the source is to be.

    >>> import penstock as pen
    >>> data = pen.source.Items([{"x": 3, "name": "a"}, {"x": 4, "name": "b"}])
    >>> next(iter(pen.Loader(data, 2)))["x"]
    array([3, 4])
    """

    def __init__(self, data: MapStyle, *, schema: Mapping[str, Field] | None = None) -> None:
        self._data, self._given = data, None if schema is None else dict(schema)
        if self._given is None and len(data) == 0:
            raise ValueError("there is no record to find out the fields from: give schema={...}")
        self._schema = self._given if self._given is not None else schema_of_record(self._item(0))

    def _item(self, index: Any) -> Mapping[str, Any]:
        item = self._data[int(index)]
        fields = item if isinstance(item, Mapping) else {"value": item}
        return {name: np.asarray(value) if hasattr(value, "__array__") else value for name, value in fields.items()}

    def __len__(self) -> int:
        return len(self._data)

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of the fields, the number of records, and some of them."""
        looked_at = np.unique(np.linspace(0, max(0, len(self) - 1), min(COMPARED, len(self))).astype(int))
        shown = [(name, *_shown(value)) for index in looked_at for name, value in self._item(index).items()]
        return fingerprint_of("items", len(self), [(name, repr(field)) for name, field in self._schema.items()], shown)

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return collect(self._items(ids), {name: self._schema[name] for name in fields}, out)

    @exposed
    def _items(self, ids: IntArray) -> list[Mapping[str, Any]]:
        return [self._item(index) for index in ids]

    def _recipe(self) -> Recipe:
        return _reopened, (self._data, self._given)


def _shown(value: Any) -> tuple[object, ...]:
    array = np.asarray(value)
    if array.dtype.hasobject:  # whose bytes are addresses
        return ("object", repr(value))
    return array.dtype.str, array.shape, array.tobytes().hex()


def _reopened(data: MapStyle, schema: Mapping[str, Field] | None) -> Items:
    return Items(data, schema=schema)
