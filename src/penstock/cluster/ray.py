"""Ray: conversions as Ray tasks, and stores written and read by Ray Data. It starts no Ray: call ``ray.init(...)`` first."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

try:
    import ray
    from ray.data import Dataset, Datasink, Datasource, read_datasource
    from ray.data.block import Block, BlockAccessor, BlockMetadata
    from ray.data.datasource import ReadTask, WriteResult
except ImportError as error:
    raise ImportError("this needs ray: pip install 'penstock[ray]'") from error

from penstock.batch import Batch, Ragged
from penstock.conversion.convert import coded
from penstock.conversion.convert import convert as convert_anywhere
from penstock.conversion.reading import plan, read_spans
from penstock.conversion.record_map import guess_fields
from penstock.formats.open import open_source
from penstock.records import Source
from penstock.remote.url import UrlPath
from penstock.schema import Codec, Field
from penstock.store.fragment import Receipt, Target, commit_fragments, write_fragment
from penstock.store.storage import as_location, new_identity
from penstock.store.writer import DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_RECORDS, ChunkLimits, begin_store

__all__ = ["RayExecutor", "convert", "read", "write"]

FIRST_RECORDS = 64  # records of a data set that tell its fields
BATCH_BYTES = 32 << 20

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
    """:func:`penstock.convert`, with its ``options``, as Ray tasks that need ``num_cpus`` processors each.

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
    known = guess_fields(_as_batch(dataset.take_batch(FIRST_RECORDS, batch_format="pyarrow"))) if fields is None else dict(fields)
    with begin_store(location, coded(known, codec), ChunkLimits(chunk_bytes, chunk_records), dataset=new_identity()) as writer:
        fragments = _Fragments(Target.of(writer))
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
    made: Dataset = read_datasource(_Runs(open_source(source, **options)))
    return made


# Ray Data: write tasks are fragments, read tasks are runs of blocks


def _column(name: str, field: Field, column: Any) -> Any:
    """A field of a batch as a column of a block: arrays are tensors; what varies is a list, a text or bytes; missing is null."""
    if isinstance(column, Ragged):
        return _ragged(name, field, column)
    if field.shape == ():
        mask = np.ma.getmaskarray(column) if isinstance(column, np.ma.MaskedArray) else None
        return pa.array(np.asarray(column), mask=mask)
    if isinstance(column, np.ma.MaskedArray):
        raise _no_missing(name)
    return _tensors(np.asarray(column))


def _ragged(name: str, field: Field, column: Ragged) -> Any:
    if column.shapes is not None:
        if column.present is not None and not column.present.all():
            raise _no_missing(name)
        items = np.empty(len(column), object)
        items[:] = column.to_list()
        return _tensors(items)
    if field.kind == "ragged":
        mask = None if column.present is None else pa.array(~column.present)
        return pa.LargeListArray.from_arrays(column.offsets.astype(np.int64), pa.array(column.values), mask=mask)
    kind = pa.large_utf8() if field.kind == "text" else pa.large_binary()
    present = None if column.present is None else pa.py_buffer(np.packbits(column.present, bitorder="little"))
    buffers = [present, pa.py_buffer(column.offsets.astype(np.int64)), pa.py_buffer(np.ascontiguousarray(column.values))]
    return pa.Array.from_buffers(kind, len(column), buffers)


def _tensors(array: npt.NDArray[Any]) -> Any:
    return BlockAccessor.batch_to_block({"x": array}).column("x")


def _no_missing(name: str) -> ValueError:
    return ValueError(
        f"field {name!r}: expected every record, found missing ones; Ray's tensors cannot be missing, select the others"
    )


def _as_batch(block: Any) -> Batch:
    accessor = BlockAccessor.for_block(block)
    table = accessor.to_arrow()
    tensors = [field.name for field in table.schema if isinstance(field.type, pa.BaseExtensionType)]
    others = [name for name in table.column_names if name not in tensors]
    batch: Batch = {}
    if others:
        with open_source(table.select(others)) as source:
            batch = source.read(np.arange(len(source)))
    for name in tensors:
        array: Any = BlockAccessor.for_block(table.select([name])).to_numpy(name)
        batch[name] = list(array) if array.dtype == object else array
    return {name: batch[name] for name in table.column_names}


class _Fragments(Datasink[tuple[int, Receipt]]):
    """Every write task writes a fragment; ``receipts`` are there, in the order of the records, when all are done."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.receipts: list[Receipt] = []

    def write(self, blocks: Iterable[Block], ctx: Any) -> tuple[int, Receipt]:
        batches = (batch for batch in map(_as_batch, blocks) if batch)
        return ctx.task_idx, write_fragment(self._target, batches)

    def on_write_complete(self, write_result: WriteResult[tuple[int, Receipt]]) -> None:
        """Number the receipts: only now it is known how many there are."""
        found = [receipt for _, receipt in sorted(write_result.write_returns, key=lambda pair: pair[0])]
        self.receipts = [{**receipt, "task": task, "tasks": len(found)} for task, receipt in enumerate(found)]


class _Runs(Datasource):
    """The records of a source: a read task per run of blocks, in order."""

    def __init__(self, source: Source) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source

    def get_name(self) -> str:
        return "Penstock"

    def estimate_inmemory_data_size(self) -> int | None:
        return int(len(self._source) * self._record_bytes())

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any | None = None
    ) -> list[ReadTask]:
        """About as many tasks as asked for; each reads whole blocks."""
        if len(self._source) == 0:
            return []
        size = self._record_bytes()
        return [
            ReadTask(
                partial(_read, self._source, run),
                BlockMetadata(num_rows=len(run), size_bytes=int(len(run) * size), input_files=None, exec_stats=None),
                per_task_row_limit=per_task_row_limit,
            )
            for run in self._runs(parallelism)
        ]

    def _runs(self, count: int) -> list[range]:
        """About ``count`` runs of records; of whole blocks if there are enough of those."""
        tasks = plan(self._source, -(-len(self._source) // count), by_blocks=len(self._source.blocks) >= count)
        return [range(task.low, task.high) for task in tasks]

    def _record_bytes(self) -> float:
        """Mean bytes of a record; fields of varying size are estimated from the first records."""
        known = sum(field.stride for field in self._source.schema.values() if field.is_fixed)
        ids = np.arange(min(64, len(self._source)))
        varying = [(name, field) for name, field in self._source.schema.items() if not field.is_fixed and ids.size]
        return known + sum(float(np.mean(self._source.lengths(name, ids))) * field.dtype.itemsize for name, field in varying)


def _read(source: Source, ids: range) -> Iterator[Block]:
    for batch in read_spans(source, list(source.schema), ids, BATCH_BYTES, as_columns=False):
        yield pa.table({name: _column(name, field, batch[name]) for name, field in source.schema.items()})
