"""Where everything is: the modules of the names that ``import penstock`` offers and of the methods that layers add to sources, and
those of version 1, whose pickles name classes and functions by module, and go on loading.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

MODULES = {
    "LZ4": "penstock.schema",
    "Balance": "penstock.order.balance",
    "Deflate": "penstock.schema",
    "Field": "penstock.schema",
    "Loader": "penstock.loader.loader",
    "LossLog": "penstock.trace.loss_log",
    "Peers": "penstock.remote.peers",
    "PenstockError": "penstock.errors",
    "Phase": "penstock.order.position",
    "Ragged": "penstock.batch",
    "Raw": "penstock.schema",
    "Shard": "penstock.order.position",
    "Source": "penstock.records",
    "Stream": "penstock.stream.stream",
    "Zstd": "penstock.schema",
    "add_field": "penstock.store.maintenance",
    "convert": "penstock.conversion.convert",
    "create": "penstock.store.writer",
    "gc": "penstock.store.maintenance",
    "load_mixture": "penstock.stream.mixture_file",
    "mix": "penstock.stream.mixed",
    "open": "penstock.formats.open",
    "plan": "penstock.run_plan",
    "rebalance": "penstock.store.maintenance",
    "train_dictionary": "penstock.schema",
    "verify": "penstock.store.maintenance",
    "verify_resume": "penstock.loader.resume_check",
}
"""The public names; a module is loaded when one of its names is first used."""

METHODS = {
    "cast": "penstock.algebra",
    "map": "penstock.algebra",
    "pick": "penstock.algebra",
    "select": "penstock.algebra",
    "design": "penstock.stream.stream",
    "in_order": "penstock.stream.stream",
    "sample": "penstock.stream.stream",
    "shuffle": "penstock.stream.stream",
    "slide": "penstock.stream.stream",
    "digest": "penstock.conversion.reading",
    "split": "penstock.conversion.reading",
}
"""Methods of :class:`penstock.Source` by the layer that owns them (``records.provide``)."""


MOVED = {
    "algebra": "source.aligned source.concat source.mapped source.picked source.select",
    "batch": "ragged",
    "conversion.record_map": "source.batch_map",
    "conversion.tasks": "source.convert_tasks",
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
    "order.order": "order.block_shuffle order.recent order.sequential order.shuffle",
    "order.permutation": "order.seed",
    "order.position": "order.cursor order.phase order.shard",
    "schema": "codec",
    "store.maintenance": "store.rebalance store.verify",
    "store.reader": "store.chunk_reader store.snapshot",
    "stream.sequence": "stream.document",
}
"""Modules, each with those of version 1 that are in it."""

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
