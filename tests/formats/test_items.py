"""Records of map-style datasets."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock as pen
from penstock.errors import SchemaMismatchError
from penstock.testing import SourceSuite

Items = pen.source.Items


class Dataset(torch.utils.data.Dataset[dict[str, Any]]):
    """One of torch's, with tensors."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([index + self.first, 2]), "name": f"n{index}", "ratio": index / 2}


def test_a_loader_over_a_dataset_of_torch_gives_what_it_has() -> None:
    source = Items(Dataset(30))
    assert source.schema["x"] == pen.Field("i8", (2,))
    seen = []
    for batch in pen.Loader(source.shuffle(seed=7), 4):
        assert [batch["name"][i] for i in range(len(batch["x"]))] == [f"n{int(x)}" for x, _ in batch["x"]]
        assert (batch["ratio"] == batch["x"][:, 0] / 2).all()
        seen += batch["x"][:, 0].tolist()
    assert sorted(seen) == list(range(30))
    assert seen == [int(i) for batch in pen.Loader(pen.open({"i": np.arange(30)}).shuffle(seed=7), 4) for i in batch["i"]]


def test_other_items_are_other_data() -> None:
    source = Items(Dataset(30))
    assert Items(Dataset(30)).fingerprint == source.fingerprint
    assert pickle.loads(pickle.dumps(source)).fingerprint == source.fingerprint
    assert len({source.fingerprint, Items(Dataset(31)).fingerprint, Items(Dataset(30, 1)).fingerprint}) == 3
    rows = {"a": pen.Field.text(nullable=True)}
    first, again = (Items([{"a": text} for text in texts], schema=rows) for texts in (["x", None], ["x", None]))
    assert first.fingerprint == again.fingerprint != Items([{"a": "x"}, {"a": "y"}], schema=rows).fingerprint


def test_items_that_are_no_dicts_are_a_field() -> None:
    assert Items([b"ab", b"c"])[1]["value"] == b"c"
    assert Items(np.arange(6).reshape(3, 2))[2]["value"].tolist() == [4, 5]


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match=r"no record to infer the fields from: pass schema="):
        Items([])
    assert len(Items([], schema={"x": pen.Field("i8")})) == 0
    with pytest.raises(SchemaMismatchError, match="no field 'x'"):
        Items([{"x": 1}, {"y": 2}]).read([0, 1])


class TestItems(SourceSuite):
    """What every source promises."""

    def make(self, directory: Path) -> pen.Source:
        return Items(self.records())

    def records(self) -> list[Any]:
        return [{"x": np.int64(i), "name": f"n{i}"} for i in range(40)]
