"""Ray: conversions as Ray tasks, and stores written and read by Ray Data. Ray is the user's to start: ``ray.init(...)`` first."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

try:
    import ray
    from ray.data import Dataset, read_datasource
except ImportError as error:
    raise ImportError("this needs ray: pip install 'penstock[ray]'") from error

from penstock.cluster.ray_block import as_batch
from penstock.cluster.ray_data import Fragments, Runs
from penstock.codec import Codec
from penstock.remote.url import UrlPath
from penstock.schema import Field
from penstock.source.batch_map import guess_fields
from penstock.source.convert import coded
from penstock.source.convert import convert as convert_anywhere
from penstock.source.registry import open_source
from penstock.store.create import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_RECORDS, Layout, begin_store
from penstock.store.format import as_location, new_identity
from penstock.store.fragment import Target, commit_fragments

__all__ = ["RayExecutor", "convert", "read", "write"]

FIRST_RECORDS = 64
"""So many records of a data set tell its fields."""

P = ParamSpec("P")
T = TypeVar("T")


def _call(function: Callable[..., T], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> T:
    return function(*arguments, **keywords)


class RayExecutor(Executor):
    """Ray's tasks as an executor: for ``convert``, ``rebalance``, ``verify`` and everything else that takes one.

    ``options`` are those of ``ray.remote``, for instance ``num_cpus=2``. Ray does a task again whose worker died; one that raised
    is not done again. Safe to use from several threads.
    """

    def __init__(self, **options: Any) -> None:
        if not ray.is_initialized():
            raise RuntimeError("expected a Ray that runs, found none: call ray.init(...) first")
        self._remote: Any = ray.remote(_call).options(**options) if options else ray.remote(_call)
        self._kept: tuple[Any, Any] | None = None  # a function and where Ray has it

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Begin a task; the future ends with it, and cancelling the one cancels the other."""
        kept = self._kept
        if kept is None or kept[0] is not fn:  # the same function many times: it travels once
            kept = self._kept = (fn, ray.put(fn))
        reference = self._remote.remote(kept[1], args, kwargs)
        future: Future[T] = Future()

        def settle(done: "Future[T]") -> None:
            if not future.set_running_or_notify_cancel():
                return
            failure = done.exception()
            if failure is None:
                future.set_result(done.result())
            else:
                future.set_exception(failure)

        def cancel(done: "Future[T]") -> None:
            if done.cancelled():
                ray.cancel(reference)

        future.add_done_callback(cancel)
        reference.future().add_done_callback(settle)
        return future


def convert(source: Any, path: str | os.PathLike[str] | UrlPath, *, num_cpus: float = 1, **options: Any) -> None:
    """:func:`penstock.convert` on Ray's tasks, each of which needs so many processors; ``options`` are those of the former.

    ``source`` and ``path`` must be where all machines can reach them: a shared disk or an object store.
    """
    convert_anywhere(source, path, executor=RayExecutor(num_cpus=num_cpus), **options)


def write(
    dataset: Dataset,
    path: str | os.PathLike[str] | UrlPath,
    *,
    fields: Mapping[str, Field] | None = None,
    codec: Codec | Mapping[str, Codec] | None = None,
    chunk_bytes: int | str = DEFAULT_CHUNK_BYTES,
    chunk_records: int = DEFAULT_CHUNK_RECORDS,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a Ray data set as a new store, in its order and in one commit: all of it or nothing.

    ``fields`` are found out from the first records if left out; ``codec`` is one for all, or a dict for some.
    """
    location = as_location(path, storage_options)
    known = guess_fields(as_batch(dataset.take_batch(FIRST_RECORDS, batch_format="pyarrow"))) if fields is None else dict(fields)
    with begin_store(location, coded(known, codec), Layout(chunk_bytes, chunk_records), dataset=new_identity()) as writer:
        fragments = Fragments(Target.of(writer))
        how = dataset.context.execution_options
        before, how.preserve_order = how.preserve_order, True
        try:
            dataset.write_datasink(fragments)
        finally:
            how.preserve_order = before
        commit_fragments(writer, fragments.receipts)


def read(source: Any, **options: Any) -> Dataset:
    """A Ray data set of anything that :func:`penstock.open` opens with these options; a read task per run of blocks.

    Ray Data delivers the records in order if ``DataContext.get_current().execution_options.preserve_order`` is set.
    """
    made: Dataset = read_datasource(Runs(open_source(source, **options)))
    return made
