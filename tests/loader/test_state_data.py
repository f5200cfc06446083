"""How a state knows its data again: L9 for data that was changed in place, renamed, copied or converted."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.errors import SourceChangedError, StateMismatchError
from penstock.records import Sampling, Source
from penstock.source import write_collection, write_rows

LABELS = np.arange(1_000_000)


def write_labels(path: Path, changed: slice | Any = None) -> None:
    """The labels; with some of them changed, in place, as if at the same time."""
    if changed is None:
        np.save(path, LABELS)
        return
    before = path.stat()
    array = np.load(path, mmap_mode="r+")
    array[changed] = -1
    array.flush()
    del array
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def loader(path: Path | list[Path], **options: Any) -> pen.Loader:
    return pen.Loader(pen.open(path).shuffle(seed=7), 64, threads=0, **options)


def saved(of: pen.Loader, step: int = 20) -> dict[str, Any]:
    of.seek(step)
    state: dict[str, Any] = json.loads(json.dumps(of.state_dict()))
    return state


CHANGES = {
    "399,000 labels in a row": slice(100_000, 499_000),
    "a percent in a row": slice(700_000, 710_000),
    "a percent here and there": np.random.default_rng(0).choice(np.arange(10_000, 490_000), 10_000, replace=False),
    "every hundredth": slice(10_000, 490_000, 100),
}


@pytest.mark.parametrize("change", CHANGES)
def test_l9_data_that_was_changed_in_place_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "labels.npy"
    write_labels(path)
    state, recipe = saved(loader(path)), pickle.dumps(pen.open(path))
    write_collection([path], tmp_path / "all.json")
    loader(path).load_state_dict(state)
    write_labels(path, CHANGES[change])
    with pytest.raises(StateMismatchError, match="data"):
        loader(path).load_state_dict(state)
    with pytest.raises(SourceChangedError):
        pickle.loads(recipe)
    with pytest.raises(SourceChangedError):
        pen.open(tmp_path / "all.json")[0]
    loader(path).load_state_dict(state, strict=False)


def test_l9_a_loader_that_was_open_meanwhile_refuses_it_too(tmp_path: Path) -> None:
    write_labels(tmp_path / "a.npy")
    one = loader(tmp_path / "a.npy")
    state = saved(one)
    write_labels(tmp_path / "a.npy", CHANGES["a percent in a row"])
    with pytest.raises(StateMismatchError, match="between"):
        one.load_state_dict(state)


def test_l9_one_of_many_streams_that_was_changed_is_refused(tmp_path: Path) -> None:
    for name in "abc":
        write_labels(tmp_path / f"{name}.npy")

    def mixture() -> pen.Loader:
        return pen.Loader(pen.mix({name: pen.open(tmp_path / f"{name}.npy").shuffle(seed=7) for name in "abc"}, seed=7), 64)

    state = saved(mixture())
    mixture().load_state_dict(state)
    write_labels(tmp_path / "b.npy", slice(300_000, 330_000))
    with pytest.raises(StateMismatchError, match="data"):
        mixture().load_state_dict(state)


def test_renamed_and_copied_files_go_on(tmp_path: Path) -> None:
    write_labels(tmp_path / "a.npy")
    first = loader(tmp_path / "a.npy")
    state = saved(first)
    expected = next(iter(first))
    (tmp_path / "elsewhere").mkdir()
    shutil.copyfile(tmp_path / "a.npy", tmp_path / "elsewhere/b.npy")
    os.rename(tmp_path / "a.npy", tmp_path / "c.npy")
    for path in (tmp_path / "elsewhere/b.npy", tmp_path / "c.npy", [tmp_path / "c.npy"]):
        again = loader(path)
        again.load_state_dict(state)
        assert next(iter(again))["data"].tolist() == expected["data"].tolist()


def test_files_in_another_order_are_refused(tmp_path: Path) -> None:
    for name, part in zip("ab", np.split(LABELS, 2), strict=True):
        np.save(tmp_path / f"{name}.npy", part)
    state = saved(loader([tmp_path / "a.npy", tmp_path / "b.npy"]))
    os.rename(tmp_path / "a.npy", tmp_path / "z.npy")
    with pytest.raises(StateMismatchError, match="data"):
        loader(tmp_path / "*.npy").load_state_dict(state)
    loader([tmp_path / "z.npy", tmp_path / "b.npy"]).load_state_dict(state)


def test_a_state_without_sample_digests_is_known_by_its_fingerprint(tmp_path: Path) -> None:
    write_labels(tmp_path / "a.npy")
    state = saved(loader(tmp_path / "a.npy"))
    del state["samples"]
    loader(tmp_path / "a.npy").load_state_dict(state)
    os.rename(tmp_path / "a.npy", tmp_path / "b.npy")
    with pytest.raises(StateMismatchError, match="data"):
        loader(tmp_path / "b.npy").load_state_dict(state)


def test_a_source_that_gives_only_a_fingerprint_is_known_by_it() -> None:
    class Mine(Source):
        schema = {"x": pen.Field("i8")}  # noqa: RUF012
        fingerprint = "f" * 32

        def __len__(self) -> int:
            return 1000

        def _read(self, ids: Any, fields: Any, out: Any) -> Any:
            return {"x": ids}

        def _recipe(self) -> Any:
            return (Mine, ())

    state = saved(pen.Loader(Mine().shuffle(seed=7), 64), step=3)
    pen.Loader(Mine().shuffle(seed=7), 64).load_state_dict(state)
    Mine.fingerprint = "e" * 32
    with pytest.raises(StateMismatchError, match="data"):
        pen.Loader(Mine().shuffle(seed=7), 64).load_state_dict(state)


def test_data_is_not_looked_at_when_it_is_opened_and_once_when_states_are_saved(tmp_path: Path) -> None:
    looked = []

    class Watched(Source):
        schema = {"x": pen.Field("i8")}  # noqa: RUF012

        def __len__(self) -> int:
            return 1000

        @property
        def fingerprint(self) -> str:
            looked.append("fingerprint")
            return "f" * 32

        def sample_digest(self, sampling: Sampling) -> str:
            looked.append(sampling.name)
            return sampling.name * 8

        def _read(self, ids: Any, fields: Any, out: Any) -> Any:
            return {"x": ids}

        def _recipe(self) -> Any:
            return (Watched, ())

    one = pen.Loader(Watched().shuffle(seed=7), 64, threads=0)
    batches = iter(one)
    next(batches)
    assert looked == []
    states = [one.state_dict() for _ in batches]
    assert sorted(looked) == ["dense", "few", "fingerprint"]
    assert states[0]["samples"] == {"dense": "dense" * 8, "few": "few" * 8}
    looked.clear()
    one.load_state_dict(states[0])
    assert looked == ["dense"]


# check="whole"


def test_a_whole_check_sees_one_record(tmp_path: Path) -> None:
    write_labels(tmp_path / "a.npy")
    state = saved(loader(tmp_path / "a.npy", check="whole"))
    loader(tmp_path / "a.npy", check="whole").load_state_dict(state)
    place = next(i for i in range(200_000, 300_000) if _is_unseen(tmp_path / "a.npy", i))
    write_labels(tmp_path / "a.npy", slice(place, place + 1))
    loader(tmp_path / "a.npy").load_state_dict(state)  # samples do not see it
    with pytest.raises(StateMismatchError, match="all records"):
        loader(tmp_path / "a.npy", check="whole").load_state_dict(state)


def _is_unseen(path: Path, label: int) -> bool:
    from penstock.fingerprint import page_ranges

    at = path.stat().st_size - LABELS.nbytes + 8 * label
    return not any(low <= at < high for low, high in page_ranges(path.stat().st_size, 512))


def test_a_whole_check_needs_a_state_that_was_saved_with_one(tmp_path: Path) -> None:
    write_labels(tmp_path / "a.npy")
    state = saved(loader(tmp_path / "a.npy"))
    assert "whole" not in state["samples"]
    with pytest.raises(StateMismatchError, match="no digest of all records"):
        loader(tmp_path / "a.npy", check="whole").load_state_dict(state)
    with pytest.raises(ValueError, match="check"):
        loader(tmp_path / "a.npy", check="all")


def test_a_whole_check_knows_converted_data_again(tmp_path: Path) -> None:
    rows = np.arange(30_000, dtype=np.float32).reshape(-1, 3)
    write_rows(rows, tmp_path / "rows.shard")
    with pen.open(tmp_path / "rows.shard") as source:
        first = pen.Loader(source.shuffle(seed=7), 64, threads=0, check="whole")
        state = saved(first)
        pen.convert(source, tmp_path / "a.pen")
        expected = next(iter(first))["row"].tolist()
    with pen.open(tmp_path / "a.pen") as store:
        with pytest.raises(StateMismatchError, match="data"):
            pen.Loader(store.shuffle(seed=7), 64).load_state_dict(state)
        again = pen.Loader(store.shuffle(seed=7), 64, threads=0, check="whole")
        again.load_state_dict(state)
        assert next(iter(again))["row"].tolist() == expected
