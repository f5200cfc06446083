"""Ray Data reads stores, and everything else that penstock opens, and writes stores."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from ray.data import Datasink, Datasource
from ray.data.block import Block, BlockMetadata
from ray.data.datasource import ReadTask, WriteResult

from penstock.cluster.ray_block import as_batch, as_block
from penstock.records import Source
from penstock.source.plan import plan
from penstock.source.spans import read_spans
from penstock.store.fragment import Receipt, Target, write_fragment

__all__ = ["Fragments", "Runs"]

BATCH_BYTES = 32 << 20


class Fragments(Datasink[tuple[int, Receipt]]):
    """Every write task writes a fragment; ``receipts`` are there, in the order of the records, when all are done."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.receipts: list[Receipt] = []

    def write(self, blocks: Iterable[Block], ctx: Any) -> tuple[int, Receipt]:
        """Write the fragment of one task."""
        batches = (batch for batch in map(as_batch, blocks) if batch)
        return ctx.task_idx, write_fragment(self._target, batches)

    def on_write_complete(self, write_result: WriteResult[tuple[int, Receipt]]) -> None:
        """Number the receipts: only now it is known how many there are."""
        found = [receipt for _, receipt in sorted(write_result.write_returns, key=lambda pair: pair[0])]
        self.receipts = [{**receipt, "task": task, "tasks": len(found)} for task, receipt in enumerate(found)]


class Runs(Datasource):
    """The records of a source: a read task per run of blocks, in order."""

    def __init__(self, source: Source) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source = source

    def get_name(self) -> str:
        """What Ray calls its read tasks."""
        return "Penstock"

    def estimate_inmemory_data_size(self) -> int | None:
        """Bytes of all records."""
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
        """About so many runs of records; of whole blocks if there are enough of those."""
        tasks = plan(self._source, -(-len(self._source) // count), by_blocks=len(self._source.blocks) >= count)
        return [range(task.low, task.high) for task in tasks]

    def _record_bytes(self) -> float:
        """Bytes of a record: of those of varying size, of the first few."""
        known = sum(field.stride for field in self._source.schema.values() if field.is_fixed)
        ids = np.arange(min(64, len(self._source)))
        varying = [(name, field) for name, field in self._source.schema.items() if not field.is_fixed and ids.size]
        return known + sum(float(np.mean(self._source.lengths(name, ids))) * field.dtype.itemsize for name, field in varying)


def _read(source: Source, ids: range) -> Iterator[Block]:
    """The blocks of one read task."""
    for batch in read_spans(source, list(source.schema), ids, BATCH_BYTES, as_columns=False):
        yield as_block(batch, source.schema)
