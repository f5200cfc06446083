"""open: anything for reading, a store for writing."""

from typing import Any, Literal, overload

from penstock.records import Source
from penstock.source.registry import open_source
from penstock.store.create import append_to
from penstock.store.writer import Writer

__all__ = ["open"]


@overload
def open(what: Any, mode: Literal["r"] = "r", **options: Any) -> Any: ...
@overload
def open(what: Any, mode: Literal["a"], **options: Any) -> Writer: ...
def open(what: Any, mode: str = "r", **options: Any) -> Source | Writer:
    """Open data for reading as a :class:`~penstock.Source`, or a store for writing (``mode="a"``).

    ``what`` is a path (a store, .npy, .h5, .parquet, .arrow, .feather, .array_record, .shard, .rox, a collection in .json, a
    folder of files), a pattern or a list of them (one after the other), a dict (fields side by side), arrays or tensors, an Arrow
    table or a Hugging Face data set. In a dict a text is a path, and a list of texts a field of texts; paths in a list are
    ``pathlib.Path``. Options depend on what is opened; for a store: ``generation``, ``threads``, ``io``, ``verify``.

    Stores, .npy, .parquet, .shard, .rox and collections open by URL too (``s3://``, ``gs://``, ``az://``, ``https://``), with
    ``storage_options`` (credentials, region, endpoint), ``window_bytes`` (the most bytes in memory), ``cache`` (a directory) and
    ``cache_bytes``.

    >>> import numpy as np, penstock as pen
    >>> data = pen.open({"x": np.arange(6).reshape(3, 2), "name": ["a", "b", "c"]})
    >>> data[1]
    {'x': array([2, 3]), 'name': 'b'}
    >>> data[[2, 0]]["x"]
    array([[4, 5],
           [0, 1]])
    """
    if mode == "a":
        return append_to(what, **options)
    if mode != "r":
        raise ValueError(f"mode must be 'r' or 'a', got {mode!r}")
    return open_source(what, **options)
