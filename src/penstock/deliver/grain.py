"""Delivery to Grain and back: samples of a stream and batches of a loader in its data sets, and its data sources as sources.

A penstock source is a Grain data source as it is: ``grain.MapDataset.source(penstock.open(...))``.
"""

import copy
from typing import Any

from penstock.deliver.adapter import importing
from penstock.formats.array import Items
from penstock.loader import Loader
from penstock.stream import Stream

with importing("penstock.deliver.grain needs Grain", "pip install grain", "grain"):
    import grain

__all__ = ["BatchDataset", "GrainSource", "Samples"]


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


class GrainSource(Items):
    """Records of a Grain data source, or of a ``grain.MapDataset``, as a penstock source; see :class:`penstock.source.Items`."""
