"""Hugging Face data sets, shuffled and selected, in memory and on disk. Nothing touches the network."""

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from penstock.formats.arrow import open_arrow, open_huggingface, open_table
from penstock.records import Source
from penstock.schema import Field
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch

Record = dict[str, Any]

N = 25


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The library reads its settings when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("huggingface")))
        hf()
        yield


def hf() -> ModuleType:
    import datasets
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # no thread of its own
    return datasets


def dataset() -> Any:
    features = hf().Features(
        {
            "label": hf().ClassLabel(names=["no", "yes"]),
            "text": hf().Value("string"),
            "tokens": hf().Sequence(hf().Value("int32")),
            "vector": hf().Sequence(hf().Value("float32"), length=3),
            "image": hf().Image(),
        }
    )
    rows = {
        "label": [i % 2 for i in range(N)],
        "text": [None if i % 5 == 1 else "é" * (i % 4) for i in range(N)],
        "tokens": [list(range(i % 6)) for i in range(N)],
        "vector": [[i, i + 0.5, -i] for i in range(N)],
        "image": [None if i % 7 == 1 else {"bytes": b"png" * (i % 3), "path": None if i % 2 else f"{i}.png"} for i in range(N)],
    }
    return hf().Dataset.from_dict(rows, features=features)


def record(i: int) -> Record:
    return {
        "label": np.int64(i % 2),
        "text": None if i % 5 == 1 else "é" * (i % 4),
        "tokens": np.arange(i % 6, dtype=np.int32),
        "vector": np.array([i, i + 0.5, -i], np.float32),
        "image.bytes": None if i % 7 == 1 else b"png" * (i % 3),
        "image.path": None if i % 7 == 1 or i % 2 else f"{i}.png",
    }


class TestInMemory(SourceSuite):
    def make(self, directory: Path) -> Source:
        return open_huggingface(dataset())

    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestOnDisk(SourceSuite):
    """Several files, shuffled and then selected."""

    def make(self, directory: Path) -> Source:
        dataset().save_to_disk(directory / "saved", num_shards=2)
        loaded = hf().load_from_disk(directory / "saved")
        return open_huggingface(loaded.shuffle(seed=3).select(range(5, 20)))

    def records(self) -> list[Record]:
        numbered = hf().Dataset.from_dict({"i": list(range(N))})
        return [record(i) for i in numbered.shuffle(seed=3).select(range(5, 20))["i"]]


def test_features_become_fields() -> None:
    assert open_huggingface(dataset()).schema == {
        "label": Field("i8"),
        "text": Field.text(nullable=True),
        "tokens": Field.ragged("i4"),
        "vector": Field("f4", (3,)),
        "image.bytes": Field.bytes(nullable=True),
        "image.path": Field.text(nullable=True),
    }


def test_columns_can_be_chosen_here_and_there() -> None:
    assert list(open_huggingface(dataset(), fields={"y": "label", "photo": "image"}).schema) == ["y", "photo.bytes", "photo.path"]
    assert list(open_huggingface(dataset().select_columns(["text"])).schema) == ["text"]


def test_the_files_of_a_saved_data_set_are_arrow_files(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path, num_shards=2)
    assert_batch(open_arrow(tmp_path)[:], [record(i) for i in range(N)])


def test_data_sets_put_together_are_one(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path)
    odd = hf().load_from_disk(tmp_path).filter(bool, input_columns=["label"])
    both = hf().concatenate_datasets([dataset().select(range(10)), odd])
    wanted = [*range(10), *range(1, N, 2)]
    assert_batch(open_huggingface(both)[:], [record(i) for i in wanted])


def test_the_pickle_of_a_data_set_on_disk_names_its_files(tmp_path: Path) -> None:
    big = hf().Dataset.from_dict({"x": [b"x" * 1000] * 1000})
    big.save_to_disk(tmp_path)
    source = open_huggingface(hf().load_from_disk(tmp_path))
    assert len(pickle.dumps(source)) < 100_000
    assert len(pickle.dumps(open_table(big.data.table))) > 1_000_000


def test_what_is_no_data_set_is_refused() -> None:
    for other in (hf().DatasetDict({"train": dataset()}), [1, 2]):
        with pytest.raises(TypeError, match="choose a split"):
            open_huggingface(other)


def test_the_library_does_not_import_datasets() -> None:
    code = "import sys; from penstock.formats import arrow, parquet; sys.exit({'datasets', 'pyarrow'} & set(sys.modules) != set())"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
