"""Delivery to Grain and back: samples of a stream and batches of a loader in its data sets, and its data sources as sources.

A penstock source is a Grain data source as it is: ``grain.MapDataset.source(penstock.open(...))``.
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

try:
    import grain
except ModuleNotFoundError as error:
    if error.name != "grain":  # it is there, but something it needs is not
        raise
    raise ImportError("penstock.deliver.grain needs Grain: pip install grain") from error

import numpy as np

from penstock.algebra.view import collect
from penstock.argument import IntArray
from penstock.batch import Batch, Outputs
from penstock.formats.open import open_source
from penstock.loader import Loader
from penstock.records import Recipe, Source
from penstock.schema import Field
from penstock.stream import Stream

__all__ = ["BatchDataset", "GrainSource", "Samples"]

COMPARED = 32
"""Records that a fingerprint looks at."""


class Samples:
    """The samples of a stream, in its order, for ``grain.MapDataset.source``: shuffled records, packs, a mixture.

    ``num_samples`` may be more than an epoch has: samples are numbered through all epochs. A stream without an end needs it.
    """

    def __init__(self, stream: Stream, *, num_samples: int | None = None) -> None:
        self._loader = Loader(stream, 1, tail="wrap", threads=0)
        self._length = len(stream) if num_samples is None else num_samples

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> dict[str, Any]:
        if not 0 <= int(index) < self._length:
            raise IndexError(f"expected a sample from 0 to {self._length - 1}, got {index}")
        return {name: column[0] for name, column in self._loader.batch(int(index)).items()}

    def __repr__(self) -> str:
        return f"Samples({self._loader.stream!r})"  # Grain compares it when a state is restored


class BatchDataset(grain.IterDataset):  # type: ignore[misc]
    """The batches of a loader, to be mapped and prefetched by Grain; it ends with the epoch, or with ``forever`` never.

    Every iterator begins where the loader stands. Its state is the loader's: small, the same in all processes, exact.
    """

    def __init__(self, loader: Loader, *, forever: bool = False) -> None:
        super().__init__()
        self._loader, self._forever = loader, forever

    def __iter__(self) -> "_BatchIterator":
        return _BatchIterator(copy.copy(self._loader), self._forever)


class _BatchIterator(grain.DatasetIterator):  # type: ignore[misc]
    def __init__(self, loader: Loader, forever: bool) -> None:
        super().__init__()
        self._loader = loader
        self._batches = loader.forever() if forever else iter(loader)

    def __next__(self) -> Any:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)

    def close(self) -> None:
        self._batches.close()


class GrainSource(Source):
    """Records of a Grain data source, or of a ``grain.MapDataset``, as a penstock source: shuffled, packed, mixed and resumed.

    Items are dicts; anything else is the field ``value``. ``schema`` is found from the first item if it is left out.
    """

    def __init__(self, data: Any, *, schema: Mapping[str, Field] | None = None) -> None:
        self._data, self._given = data, None if schema is None else dict(schema)
        self._schema = self._given if self._given is not None else self._found()

    def _found(self) -> dict[str, Field]:
        numbers = open_source({"index": np.arange(len(self))})
        return dict(numbers.map(lambda record: self._item(record["index"])).schema)

    def _item(self, index: Any) -> Mapping[str, Any]:
        item = self._data[int(index)]
        return item if isinstance(item, Mapping) else {"value": item}

    def __len__(self) -> int:
        return len(self._data)

    @property
    def schema(self) -> Mapping[str, Field]:
        return dict(self._schema)

    @property
    def fingerprint(self) -> str:
        """Of the fields, the number of records, and some of them."""
        found = hashlib.sha256(repr(("grain", len(self), [(name, repr(field)) for name, field in self._schema.items()])).encode())
        for index in np.unique(np.linspace(0, max(0, len(self) - 1), min(COMPARED, len(self))).astype(int)):
            for name, value in self._item(index).items():
                array = np.asarray(value)
                found.update(repr((name, array.dtype.str, array.shape)).encode() + array.tobytes())
        return found.hexdigest()

    def _read(self, ids: IntArray, fields: Sequence[str], out: Outputs) -> Batch:
        return collect([self._item(index) for index in ids], {name: self._schema[name] for name in fields}, out)

    def _recipe(self) -> Recipe:
        return _reopened, (self._data, self._given)


def _reopened(data: Any, schema: Mapping[str, Field] | None) -> GrainSource:
    return GrainSource(data, schema=schema)
