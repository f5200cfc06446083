"""Pickles of version 1 name modules that are elsewhere now."""

import base64
import importlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.golden import make_pickles

import penstock
import penstock as pen
from penstock.library import MOVED, RENAMED

GOLDEN = json.loads(make_pickles.PATH.read_text())
OLD = [(old, new) for new, olds in MOVED.items() for old in olds.split()]
NAMED = [  # what they name, as found in some of them
    ("codec", "Raw"),
    ("deliver.torch_ranks", "UnshardedWarning"),
    ("deliver.torch_tensor", "as_tensors"),
    ("loader.batches", "Batches"),
    ("loader.elsewhere", "make_elsewhere"),
    ("loader.needs", "Forecast"),
    ("loader.verify", "Report"),
    ("loader.work", "Info"),
    ("loader.work", "Work"),
    ("order.block_shuffle", "BlockShuffle"),
    ("order.cursor", "Cursor"),
    ("order.mixture_plan", "EpochRun"),
    ("order.mixture_plan", "Plan"),
    ("order.mixture_plan", "Stage"),
    ("order.recent", "Recent"),
    ("order.seed", "Purpose"),
    ("order.sequential", "Sequential"),
    ("order.shard", "Shard"),
    ("ragged", "Ragged"),
    ("source.aligned", "Aligned"),
    ("source.array", "_rebuild"),
    ("source.array_record", "ArrayRecordSource"),
    ("source.arrow", "_open_files"),
    ("source.arrow_group", "Decoding"),
    ("source.batch_map", "BatchMap"),
    ("source.collection", "_open_inside"),
    ("source.concat", "Part"),
    ("source.concat", "_rebuild"),
    ("source.directory", "DirectorySource"),
    ("source.files", "Files"),
    ("source.files", "LocalFile"),
    ("source.files", "RemoteFile"),
    ("source.hdf5", "Hdf5Source"),
    ("source.mapped", "Mapped"),
    ("source.npy", "NpySource"),
    ("source.parquet", "ParquetSource"),
    ("source.picked", "Picked"),
    ("source.registry", "_open_part"),
    ("source.rows", "RowShards"),
    ("source.select", "Selection"),
    ("source.token_file", "TokenFile"),
    ("source.tokens", "TokenBlocks"),
    ("store.chunk_reader", "Reading"),
    ("store.reader", "_open"),
    ("store.rebalance", "Rebalanced"),
    ("store.snapshot", "Reading"),
    ("store.snapshot", "_open"),
    ("store.verify", "Problem"),
    ("stream.document", "DocumentLine"),
    ("stream.document", "DocumentStream"),
]


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_what_pickles_of_version_1_name_is_there(module: str, name: str) -> None:
    pickled = f"cpenstock.{module}\n{name}\n.".encode()  # a pickle of the class or function itself
    found = pickle.loads(pickled)
    assert found.__name__ == RENAMED.get(f"{module}.{name}", name)
    assert found.__module__ == f"penstock.{dict(OLD).get(module, module)}"


def test_a_pickle_with_the_old_names_opens(tmp_path: Path) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.arange(5))
    source = pen.open([tmp_path / "a.npy", tmp_path / "b.npy"]).select([7, 1]).pick("data")
    text = pickle.dumps(source, protocol=0)
    for old, name in NAMED:
        new = dict(OLD).get(old, old)
        text = text.replace(f"cpenstock.{new}\n{name}\n".encode(), f"cpenstock.{old}\n{name}\n".encode())
    assert b"penstock.source.npy" in text
    assert not any(f"cpenstock.{new}\n".encode() in text for _, new in OLD)  # no new name is left
    with pickle.loads(text) as again:
        assert np.array_equal(again["data"][:], source["data"][:])
        assert again.fingerprint == source.fingerprint


@pytest.mark.parametrize(("old", "new"), OLD)
def test_no_module_has_an_old_name(old: str, new: str) -> None:
    root = Path(penstock.__file__).parent
    assert not (root / f"{old.replace('.', '/')}.py").exists()
    assert importlib.import_module(f"penstock.{new}").__file__ is not None


@pytest.mark.parametrize("name", GOLDEN)
def test_pickled_streams_and_loaders_of_version_1_give_the_batches_they_gave(name: str) -> None:
    case = pickle.loads(base64.b64decode(GOLDEN[name]["pickle"]))
    again = pickle.loads(pickle.dumps(case))
    assert make_pickles.first_batch(case) == make_pickles.first_batch(again) == GOLDEN[name]["first"]


def test_every_kind_of_pickle_has_golden_values() -> None:
    assert list(make_pickles.cases()) == list(GOLDEN)
