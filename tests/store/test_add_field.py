"""One more field for a store that has records already."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.errors import ConflictError, LockedError
from penstock.store import stats

N = 300
FIELDS = {"x": pen.Field("i4"), "text": pen.Field.text()}


def write(path: Any, count: int = N, **options: Any) -> None:
    with pen.create(path, FIELDS, **{"chunk_records": 64} | options) as out:
        out.extend({"x": np.arange(count), "text": [f"text {i}" for i in range(count)]})


def values_of(kind: str, count: int = N) -> tuple[pen.Field, Any]:
    if kind == "fixed":
        return pen.Field("f4", (3,)), np.arange(3.0 * count, dtype=np.float32).reshape(count, 3)
    if kind == "text":
        return pen.Field.text(codec=pen.Zstd(3)), ["new " * (i % 4) for i in range(count)]
    if kind == "nullable":
        return pen.Field("i8", nullable=True), [None if i % 3 == 0 else i for i in range(count)]
    if kind == "missing":  # not declared to be nullable
        return pen.Field.bytes(), [None if i == 7 else b"%d" % i for i in range(count)]
    return pen.Field.ragged("u2"), [np.arange(i % 5) for i in range(count)]


def plain(column: Any) -> list[Any]:
    return [None if v is None or v is np.ma.masked else v if isinstance(v, str | bytes) else np.asarray(v).tolist() for v in column]


@pytest.mark.parametrize("kind", ["fixed", "text", "nullable", "missing", "ragged"])
@pytest.mark.parametrize("url", [False, True])
@pytest.mark.sampled(3)
def test_a_field_is_added_and_nothing_else_changes(tmp_path: Path, kind: str, url: bool):
    path = f"memory://add/{kind}.pen" if url else tmp_path / "a.pen"
    write(path)
    old = pen.open(path)
    before = [old[i] for i in range(N)]
    field, values = values_of(kind)
    assert pen.add_field(path, "new", field, values) == 2
    with pen.open(path) as data:
        assert list(data.schema) == ["x", "text", "new"]
        assert data.schema["new"] == field.with_nullable(kind in ("nullable", "missing"))
        assert plain(data["new"]) == plain(values)
        assert [{name: record[name] for name in FIELDS} for record in (data[i] for i in range(N))] == before
        ids = np.random.default_rng(1).permutation(N)
        batch = data[ids]
        assert plain(data.pick("new")[ids]["new"]) == [plain(values)[i] for i in ids]
        assert batch["x"].tolist() == ids.tolist()
        for batch in pen.Loader(data.shuffle(seed=3, block=16, window=2), 32, ids="id"):
            assert plain(batch["new"]) == [plain(values)[i] for i in batch["id"]]
    assert list(old.schema) == ["x", "text"]
    assert [old[i] for i in (0, N - 1)] == [before[0], before[-1]]
    old.close()
    assert not list(pen.verify(path))
    with pen.open(path, generation=1) as first:
        assert list(first.schema) == ["x", "text"]


def test_a_field_without_values_is_missing_in_all_records_and_needs_no_files(tmp_path: Path):
    write(tmp_path / "a.pen")
    files = sorted(tmp_path.glob("a.pen/chunk/*"))
    pen.add_field(tmp_path / "a.pen", "label", pen.Field("u1"))
    assert sorted(tmp_path.glob("a.pen/chunk/*")) == files
    assert not list(tmp_path.glob("a.pen/redirect/*"))
    with pen.open(tmp_path / "a.pen", "a") as out:
        out.extend({"x": [1], "text": ["one"], "label": [7]})
    with pen.open(tmp_path / "a.pen") as data:
        assert data.schema["label"] == pen.Field("u1", nullable=True)
        assert data[5]["label"] is None
        assert data[N]["label"] == 7


def test_values_are_computed_from_the_records(tmp_path: Path):
    write(tmp_path / "a.pen")
    seen = []

    def longer(batch: dict[str, Any]) -> Any:
        seen.append((list(batch), len(batch["text"])))
        return [len(text) for text in batch["text"]]

    pen.add_field(tmp_path / "a.pen", "length", pen.Field("i2"), longer, fields=["text"])
    assert sum(count for _, count in seen) == N
    assert {tuple(names) for names, _ in seen} == {("text",)}
    pen.add_field(tmp_path / "a.pen", "double", pen.Field("i8"), lambda batch: 2 * batch["length"].astype(np.int64))
    with pen.open(tmp_path / "a.pen") as data:
        assert data["double"][:].tolist() == [2 * len(f"text {i}") for i in range(N)]


def test_values_come_from_fields_of_other_sources(tmp_path: Path):
    write(tmp_path / "a.pen")
    np.save(tmp_path / "e.npy", np.arange(N) * 0.5)
    pen.add_field(tmp_path / "a.pen", "e", pen.Field("f2"), pen.open(tmp_path / "e.npy"))
    other = pen.open({"x": np.arange(N) * 3, "y": np.arange(N)})
    pen.add_field(tmp_path / "a.pen", "y", pen.Field("i4"), other["x"])
    with pytest.raises(ValueError, match="source of one field"):
        pen.add_field(tmp_path / "a.pen", "z", pen.Field("i4"), other)
    with pen.open(tmp_path / "a.pen") as data:
        assert data[10] == {"x": 10, "text": "text 10", "e": 5.0, "y": 30}


def test_records_are_appended_updated_and_deleted_afterwards_and_rebalanced(tmp_path: Path):
    path = tmp_path / "a.pen"
    write(path)
    pen.add_field(path, "y", pen.Field("i4"), np.arange(N) * 2)
    model = [(i, i * 2) for i in range(N)]
    with pen.open(path, "a") as out:
        out.extend({"x": [N], "text": ["last"], "y": [2 * N]})
        out.update([5, 70], {"y": [-5, -70]})
        moved = out.delete([0, 100, 299])
    model.append((N, 2 * N))
    model[5], model[70] = (5, -5), (70, -70)
    for old, new in moved.items():
        model[new] = model[old]
    model = model[: N - 2]
    for _ in range(2):
        with pen.open(path) as data:
            assert list(zip(data["x"][:].tolist(), data["y"][:].tolist(), strict=True)) == model
            assert not data.schema["y"].nullable
        assert not list(pen.verify(path))
        done = pen.rebalance(path)
    assert done.after.redirects == 0
    assert done.after.utilisation == 1.0


def test_fields_are_added_one_after_the_other_and_between_updates(tmp_path: Path):
    path = tmp_path / "a.pen"
    write(path, 40)
    for number in range(12):  # more than the redirect files that are kept apart
        pen.add_field(path, f"f{number}", pen.Field("i4"), np.arange(40) + number)
        with pen.open(path, "a") as out:
            out.update([number], {f"f{number}": [-1], "x": [1000 + number]})
    with pen.open(path) as data:
        for number in range(12):
            expected = np.arange(40) + number
            expected[number] = -1
            assert np.array_equal(data[f"f{number}"][:], expected)
        assert data["x"][:13].tolist() == [*range(1000, 1012), 12]
        assert stats(data).redirects == 12 * 40 + 12


def test_an_empty_store_gets_a_field(tmp_path: Path):
    write(tmp_path / "a.pen", 0)
    pen.add_field(tmp_path / "a.pen", "y", pen.Field("i4"), [])
    with pen.open(tmp_path / "a.pen", "a") as out:
        out.extend({"x": [1], "text": ["one"], "y": [2]})
    with pen.open(tmp_path / "a.pen") as data:
        assert data[0] == {"x": 1, "text": "one", "y": 2}
        assert not data.schema["y"].nullable


def fail(batch: dict[str, Any]) -> Any:
    raise RuntimeError("no value")


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "match"),
    [
        (("x", pen.Field("i4"), np.arange(N)), {}, ValueError, "there is a field 'x' already"),
        (("y", pen.Field("i4"), np.arange(N - 1)), {}, ValueError, f"expected {N} values, one per record, got {N - 1} of them"),
        (("y", pen.Field("i4"), 7), {}, ValueError, "one per record, got int"),
        (("y", pen.Field("u1"), np.arange(N)), {}, ValueError, "do not fit"),
        (("y", "i4", np.arange(N)), {}, TypeError, "expected a Field"),
        (("", pen.Field("i4")), {}, ValueError, "field name"),
        (("y", pen.Field("i4"), fail), {}, RuntimeError, "no value"),
        (("y", pen.Field("i4"), lambda batch: [1]), {}, ValueError, "expected 300 values for records 0 to 299, got 1"),
        (("y", pen.Field("i4"), fail), {"fields": ["nothing"]}, KeyError, "unknown fields"),
        (("y", pen.Field("i4"), np.arange(N)), {"fields": ["x"]}, TypeError, "fields="),
    ],
)
def test_what_cannot_be_added_is_refused_and_leaves_nothing(
    tmp_path: Path, arguments: Any, settings: dict[str, Any], error: type[Exception], match: str
):
    write(tmp_path / "a.pen")
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(error, match=match):
        pen.add_field(tmp_path / "a.pen", *arguments, **settings)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
    with pen.open(tmp_path / "a.pen") as data:
        assert data.generation == 1


def test_another_writer_is_not_disturbed(tmp_path: Path):
    write(tmp_path / "a.pen")
    with pen.open(tmp_path / "a.pen", "a"), pytest.raises(LockedError):
        pen.add_field(tmp_path / "a.pen", "y", pen.Field("i4"), np.arange(N))
    write("memory://add/two.pen")
    with pen.open("memory://add/two.pen", "a") as out:  # begun before, on an object store
        out.extend({"x": [1], "text": ["one"]})
        pen.add_field("memory://add/two.pen", "y", pen.Field("i4"), np.arange(N))
        with pytest.raises(ConflictError):
            out.commit()
    with pen.open("memory://add/two.pen") as data:
        assert (len(data), list(data.schema)) == (N, ["x", "text", "y"])


def test_a_writer_is_told_that_a_field_was_added_meanwhile() -> None:
    path = "memory://add-field/meanwhile.pen"
    pen.convert({"x": np.arange(5)}, path)
    with pen.open(path, mode="a") as writer:
        writer.extend({"x": [5]})
        pen.add_field(path, "y", pen.Field("i8"), np.arange(5))
        with pytest.raises(ConflictError, match="another writer added a field; reopen the store, and write these records again"):
            writer.commit()
    assert len(pen.open(path)) == 5
