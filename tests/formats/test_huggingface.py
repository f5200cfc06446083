"""Hugging Face data sets, shuffled and selected, in memory and on disk. Nothing touches the network."""

import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import (
    CorruptError,
    EmptySourceError,
    FormatError,
    MissingError,
    UnsafePathError,
    UnsupportedVersionError,
)
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


class TestSaved(SourceSuite):
    """The directory of a data set, read without the library."""

    def make(self, directory: Path) -> Source:
        dataset().save_to_disk(directory / "saved", num_shards=3)
        source: Source = pen.open(directory / "saved")
        return source

    def records(self) -> list[Record]:
        return [record(i) for i in range(N)]


class TestSavedSplit(SourceSuite):
    """A split of several, shuffled and selected before it was saved; columns under other names."""

    def make(self, directory: Path) -> Source:
        splits = hf().DatasetDict({"train": dataset().shuffle(seed=3).select(range(5, 20)), "test": dataset()})
        splits.save_to_disk(directory / "saved")
        source: Source = pen.open(directory / "saved", split="train", fields={"y": "label", "photo": "image"})
        return source

    def records(self) -> list[Record]:
        numbered = hf().Dataset.from_dict({"i": list(range(N))})
        names = {"y": "label", "photo.bytes": "image.bytes", "photo.path": "image.path"}
        wanted = numbered.shuffle(seed=3).select(range(5, 20))["i"]
        return [{new: record(i)[old] for new, old in names.items()} for i in wanted]


class TestSavedSelection(SourceSuite):
    """As old versions saved a selection: all of the data, and a file of indices."""

    wanted = (7, 3, 3, 24, 0)

    def make(self, directory: Path) -> Source:
        saved = directory / "saved"
        dataset().save_to_disk(saved, num_shards=2)
        add_indices(saved, pa.array(self.wanted, pa.uint64()))
        source: Source = pen.open(saved)
        return source

    def records(self) -> list[Record]:
        return [record(i) for i in self.wanted]


def add_indices(saved: Path, numbers: pa.Array, key: str = "_indices_data_files") -> None:
    """A file of indices, and its name in the state."""
    table = pa.table({"indices": numbers})
    with pa.ipc.new_stream(saved / "indices.arrow", table.schema) as writer:
        writer.write_table(table)
    change_state(saved, **{key: [{"filename": "indices.arrow"}]})


def change_state(saved: Path, **values: Any) -> None:
    state = json.loads((saved / "state.json").read_text())
    (saved / "state.json").write_text(json.dumps({**state, **values}))


def test_a_saved_data_set_is_what_the_library_reads(tmp_path: Path) -> None:
    dataset().save_to_disk(tmp_path, num_shards=3)
    loaded = hf().load_from_disk(tmp_path)
    source, other = pen.open(tmp_path), open_huggingface(loaded)
    assert source.schema == other.schema
    assert source.digest() == other.digest()
    assert source["text"][:].to_list() == loaded["text"][:]


def test_splits_must_be_named(tmp_path: Path) -> None:
    hf().DatasetDict({"train": dataset(), "test": dataset().select(range(3))}).save_to_disk(tmp_path)
    with pytest.raises(ValueError, match=r"there are the splits \['train', 'test'\]: choose one with split="):
        pen.open(tmp_path)
    with pytest.raises(KeyError, match=r"no split 'dev'; there are \['train', 'test'\]"):
        pen.open(tmp_path, split="dev")
    assert len(pen.open(tmp_path, split="test")) == 3
    assert len(pen.open(tmp_path / "train")) == N


def test_a_data_set_of_one_split_is_that_split_or_an_error(tmp_path: Path) -> None:
    hf().Dataset.from_dict({"x": [1, 2]}, split="train").save_to_disk(tmp_path)
    assert len(pen.open(tmp_path, split="train")) == 2
    with pytest.raises(ValueError, match="expected the split 'test', found a data set of 'train'"):
        pen.open(tmp_path, split="test")


# What is done to a saved data set, the error, and what it says.
BAD: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "indices beyond": (
        lambda d: add_indices(d, pa.array([0, N], pa.uint64())),
        CorruptError,
        f"numbers of {N} records, found 0 to {N}",
    ),
    "indices below": (lambda d: add_indices(d, pa.array([0, -1])), CorruptError, "found -1 to 0"),
    "indices of text": (lambda d: add_indices(d, pa.array(["0"])), FormatError, "one column of whole numbers"),
    "indices missing": (lambda d: add_indices(d, pa.array([0, None])), FormatError, "one column of whole numbers"),
    "indices of another version": (
        lambda d: change_state(d, _indices_files=[{"filename": "a", "skip": 3}]),
        UnsupportedVersionError,
        "'skip'.*load it with datasets and save it again",
    ),
    "indices of another form": (lambda d: change_state(d, _indices_files="indices.arrow"), FormatError, "'_indices_files'"),
    "a part of a file": (
        lambda d: change_state(d, _data_files=[{"filename": "a.arrow", "skip": 3, "take": 2}]),
        UnsupportedVersionError,
        "'skip', 'take'",
    ),
    "outside": (lambda d: change_state(d, _data_files=[{"filename": "../a.arrow"}]), UnsafePathError, r"'\.\./a.arrow'"),
    "no files": (lambda d: change_state(d, _data_files=[]), EmptySourceError, "without records"),
    "missing": (lambda d: next(d.glob("*.arrow")).unlink(), MissingError, "no such file"),
    "state": (lambda d: (d / "state.json").write_text("{"), FormatError, "expected JSON"),
    "list": (lambda d: (d / "state.json").write_text("[]"), FormatError, "names and values"),
    "no list": (lambda d: (d / "state.json").write_text("{}"), FormatError, "'_data_files', found None"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_saved_data_set_is_an_error(tmp_path: Path, name: str) -> None:
    change, kind, words = BAD[name]
    dataset().save_to_disk(tmp_path)
    change(tmp_path)
    with pytest.raises(kind, match=words) as caught:
        pen.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


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
    code = (
        "import sys; from penstock.formats import arrow, huggingface; sys.exit({'datasets', 'pyarrow'} & set(sys.modules) != set())"
    )
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
