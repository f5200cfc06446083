"""Where the modules of version 1 are now: its pickles name classes and functions by module, and go on loading."""

import importlib
import sys
from types import ModuleType
from typing import Any

__all__: list[str] = []

MOVED = {
    "algebra": "source.aligned source.concat source.mapped source.picked source.select",
    "batch": "ragged",
    "conversion.tasks": "source.batch_map source.convert_tasks",
    "deliver.torch": "deliver.torch_data deliver.torch_tensor",
    "deliver.torch_sampler": "deliver.torch_ranks",
    "formats.array": "source.array source.npy",
    "formats.array_record": "source.array_record",
    "formats.arrow": "source.arrow source.arrow_group",
    "formats.collection": "source.collection",
    "formats.files": "source.files",
    "formats.folder": "source.decoding source.directory source.images",
    "formats.hdf5": "source.hdf5",
    "formats.open": "source.at_url source.registry",
    "formats.parquet": "source.parquet",
    "formats.rows": "source.rows",
    "formats.tokens": "source.token_file source.tokens",
    "loader.loader": "loader.batches",
    "loader.lookahead": "loader.needs",
    "loader.make_batch": "loader.elsewhere loader.work",
    "loader.resume_check": "loader.verify",
    "order.layout": "order.mixture_plan",
    "order.order": "order.sequential",
    "order.permutation": "order.seed",
    "order.position": "order.cursor order.shard",
    "order.shuffle": "order.block_shuffle order.recent",
    "schema": "codec",
    "store.maintenance": "store.rebalance store.verify",
    "store.reader": "store.chunk_reader store.snapshot",
    "stream.sequence": "stream.document",
}
RENAMED = {"order.mixture_plan.Plan": "MixturePlan", "order.recent.Recent": "_Recent"}


class _Moved(ModuleType):
    """A module by its old name. The new one is imported when something in it is asked for."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"penstock.{old}")
        self._old, self._new = old, f"penstock.{new}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every module by those who look through them
            raise AttributeError(name)
        return getattr(importlib.import_module(self._new), RENAMED.get(f"{self._old}.{name}", name))


for _new, _olds in MOVED.items():
    for _old in _olds.split():
        sys.modules[f"penstock.{_old}"] = _Moved(_old, _new)
