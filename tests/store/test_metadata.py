"""Metadata of stores: any small JSON object, kept by everything that makes a store of a store; hostile ones are refused."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import count
from tests.store.test_nullable import without_key

import penstock as pen
from penstock import Field, _core
from penstock.errors import CorruptError
from penstock.store.fragment import Target, commit_fragments, write_fragment
from penstock.store.manifest import MAX_METADATA_BYTES, MAX_METADATA_DEPTH, decode_manifest, decode_metadata, encode_metadata

FIELDS = {"x": Field("i4")}
ABOUT: dict[str, Any] = {"classes": ["cat", "dog"], "tokenizer": "gpt2:fast", "mean": [0.5, -1e-3], "größe": {"a": None, "b": True}}


def test_metadata_is_what_was_given(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS, metadata=ABOUT) as out:
        out.extend({"x": [1]})
    data = pen.open(tmp_path / "a.pen")
    assert data.metadata == ABOUT
    assert dict(data.metadata) == json.loads(json.dumps(ABOUT))
    with pytest.raises(TypeError):
        data.metadata["x"] = 1  # type: ignore[index]
    assert pen.open({"x": np.arange(2)}).metadata == {}


def test_metadata_is_kept_by_what_comes_after(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, FIELDS, metadata=ABOUT) as out:
        out.extend({"x": [1, 2]})
        out.commit()
        out.update([0], {"x": [5]})
        out.commit()
        commit_fragments(out, [write_fragment(Target.of(out), [{"x": [3]}])])
    assert [pen.open(path, generation=g).metadata for g in (1, 2, 3)] == [ABOUT] * 3
    pen.rebalance(path)
    with ThreadPoolExecutor(1) as pool:
        pen.rebalance(path, executor=pool)
        pen.convert(path, tmp_path / "c.pen", executor=pool)
    pen.convert(path, tmp_path / "b.pen")
    for name in ("a.pen", "b.pen", "c.pen"):
        assert pen.open(tmp_path / name).metadata == ABOUT
    data = pen.open(path)
    for part in (data.select([0]), data.pick("x"), data.map(dict), pen.open([data, data]), pen.open({"x": data})):
        assert part.metadata == ABOUT


def test_parts_that_disagree_say_what_they_have_in_common(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with pen.create(tmp_path / f"{name}.pen", FIELDS, metadata={"origin": name, "year": 2024, name: 1}) as out:
            out.extend({"x": [1]})
    a, b = pen.open(tmp_path / "a.pen"), pen.open(tmp_path / "b.pen")
    assert pen.open([a, b]).metadata == {"year": 2024}
    assert pen.open({"a": a, "b": b}).metadata == {"year": 2024, "a": 1, "b": 1}


def test_a_writer_changes_metadata_with_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, FIELDS, metadata={"a": 1}) as out:
        out.extend({"x": [1]})
    with pen.open(path, mode="a") as out:
        assert out.metadata == {"a": 1}
        out.metadata["b"] = [2]
        out.abort()
        assert out.metadata == {"a": 1}
        assert out.commit() == 1
        out.metadata["b"] = [2]
        assert out.commit() == 2
        out.metadata = {}
    assert [pen.open(path, generation=g).metadata for g in (1, 2, 3)] == [{"a": 1}, {"a": 1, "b": [2]}, {}]


def test_metadata_that_is_no_json_is_refused_and_can_be_mended(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS) as out:
        out.extend({"x": [1]})
        out.metadata["bad"] = {1, 2}
        with pytest.raises(TypeError, match=r"metadata\['bad'\] must be a JSON value"):
            out.commit()
        del out.metadata["bad"]
    assert pen.open(tmp_path / "a.pen")[:]["x"].tolist() == [1]


DEEP: Any = 1
for _ in range(MAX_METADATA_DEPTH + 1):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "value",
    [
        {1: 2}, [1], "text", {"a": b"bytes"}, {"a": float("nan")}, {"a": float("inf")}, {"a": 10**100}, {"a": "\ud800"},
        {"a": DEEP}, {"a": np.float32(1)}, {"a": "x" * MAX_METADATA_BYTES}, {"a": {"b": {3: 4}}},
    ],
    ids=lambda value: ascii(value)[:40],
)  # fmt: skip
def test_values_that_no_store_carries_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        pen.create(tmp_path / "a.pen", FIELDS, metadata=value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_text_gives_the_metadata_back(value: dict[str, Any]) -> None:
    assert decode_metadata(encode_metadata(value)) == value


BAD_TEXTS = [
    "[1]", "1", "{", '{"a":1,"a":2}', '{"a":NaN}', '{"a":1e999}', '{"a":Infinity}', '{"a":"\\ud800"}',
    '{"a":' + "9" * 5000 + "}", '{"a":0.' + "1" * 500 + "}", '{"a":"' + "x" * MAX_METADATA_BYTES + '"}',
    '{"a":' + "[" * 40 + "]" * 40 + "}", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_TEXTS, ids=lambda text: text[:20])
def test_hostile_metadata_in_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, FIELDS, metadata={"a": "REPLACE"}) as out:
        out.extend({"x": [1]})
    manifest = max((path / "manifest").iterdir())
    document = json.loads(manifest.read_bytes().split(b"\n")[0])
    document["metadata"] = text
    line = json.dumps(document, separators=(",", ":")).encode()
    with pytest.raises(CorruptError, match="not a manifest"):
        decode_manifest(line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8)), "here")


def test_large_metadata_has_no_colons_that_readers_of_version_1_would_count(tmp_path: Path) -> None:
    size = count(5_000, 110_000)  # a reader of version 1 stops at 100,000
    with pen.create(tmp_path / "a.pen", FIELDS, metadata={f"{i:x}": 0 for i in range(size)}) as out:
        out.extend({"x": [1]})
    assert max((tmp_path / "a.pen" / "manifest").iterdir()).read_bytes().count(b":") < 100
    assert len(pen.open(tmp_path / "a.pen").metadata) == size


def test_stores_without_metadata_have_none(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", FIELDS, metadata=ABOUT) as out:
        out.extend({"x": [1]})
    without_key(tmp_path / "a.pen", "metadata")
    assert pen.open(tmp_path / "a.pen").metadata == {}


def test_folders_give_the_names_of_their_labels(tmp_path: Path) -> None:
    for name in ("cat", "dög"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "1.bin").write_bytes(b"x")
    assert pen.open(tmp_path / "pets").metadata == {"label": ["cat", "dög"]}
    pen.convert(tmp_path / "pets", tmp_path / "pets.pen")
    assert pen.open(tmp_path / "pets.pen").metadata == {"label": ["cat", "dög"]}


def test_commands_show_metadata_and_take_any_field_name(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from penstock.cli.main import app

    fields = {"größe, in mm": Field("i4", nullable=True), "größe": Field("i4"), "b": Field.text()}
    with pen.create(tmp_path / "a.pen", fields, metadata={"origin": "a\x1b[31mred", "classes": ["cat"] * 1000}) as out:
        out.extend({"größe, in mm": [11], "größe": [22], "b": ["x"]})
    info = CliRunner().invoke(app, ["info", str(tmp_path / "a.pen")])
    assert info.exit_code == 0, info.output
    assert "\x1b[31m" not in info.output
    assert "metadata origin" in info.output
    assert "nullable" in info.output
    about = json.loads(CliRunner().invoke(app, ["info", str(tmp_path / "a.pen"), "--json"]).output)
    assert about["metadata"]["classes"] == ["cat"] * 1000
    assert about["fields"]["größe, in mm"]["nullable"] is True
    for chosen in (["größe, in mm"], ["größe, in mm", "b"], ["b", "größe"], ["größe", "größe, in mm"]):
        done = CliRunner().invoke(app, ["convert", str(tmp_path / "a.pen"), str(tmp_path / "out"), "--fields", ",".join(chosen)])
        assert done.exit_code == 0, done.output
        with pen.open(tmp_path / "out") as made:
            assert list(made.schema) == chosen
        shutil.rmtree(tmp_path / "out")
