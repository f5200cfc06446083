"""Directories of other tools are told what they are, and are not taken for folders of files."""

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.errors import FormatError, ReadError
from penstock.remote.url import url_path

# What the directories look like: files and their content; and what is said of them.
LAYOUTS: dict[str, tuple[dict[str, bytes], str]] = {
    "zarr3": (
        {"zarr.json": b'{"zarr_format": 3, "node_type": "group"}', "x/zarr.json": b"{}", "x/c/0": b"abc"},
        "array or a group",
    ),
    "zarr2": ({".zgroup": b'{"zarr_format": 2}', "x/.zarray": b"{}", "x/0": b"abc"}, "shape of the array"),
    "zarr2 array": ({".zarray": b'{"zarr_format": 2}', "0": b"abc"}, "shape of the array"),
    "lance": ({"_versions/1.manifest": b"x", "_transactions/0-a.txn": b"x", "data/0a1b.lance": b"xLANC"}, "Lance"),
    "mds": ({"index.json": b'{"shards": [{}]}', "shard.00000.mds": b"x"}, "of the format 'mds'"),
    "litdata": ({"index.json": b'{"chunks": [], "config": {}}', "chunk-0-0.bin": b"x"}, "at least one chunk"),
}


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def refusal(what: Any, **options: Any) -> str:
    with pytest.raises(FormatError) as caught:
        pen.open(what, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "lance"])  # which starts threads
def test_a_directory_of_another_tool_is_read_as_what_it_is(tmp_path: Path, name: str) -> None:
    files, words = LAYOUTS[name]
    write(tmp_path / "data", files)
    with pytest.raises(ReadError, match=words) as caught:
        pen.open(tmp_path / "data")
    assert str(tmp_path / "data") in str(caught.value)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "zarr" in name])
def test_at_a_url_it_is_read_as_what_it_is_too(name: str) -> None:
    files, words = LAYOUTS[name]
    root = url_path(f"memory://layouts-{name.replace(' ', '-')}/data")
    for file, content in files.items():
        root.objects.put(f"{root.key}/{file}", content)
    with pytest.raises(FormatError, match=words) as caught:
        pen.open(str(root))
    assert str(root) in str(caught.value)
    assert f"found some under other URLs (data, {'a zarr array' if 'array' in name else 'zarr'}" in refusal(
        str(root.parent)
    ).replace("a zarr group", "zarr")
    assert len(pen.open(str(root), suffixes=["0"])) == 1


def test_splits_in_directories_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # datasets draws bars, and they start a thread
    data = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    splits = datasets.DatasetDict({"train": data, "test": data})
    splits.save_to_disk(tmp_path / "many")
    assert pen.open(datasets.load_from_disk(tmp_path / "many/train"))["x"][:].tolist() == [1, 2, 3]
    assert pen.open(str(tmp_path / "many/train/*.arrow"))["x"][:].tolist() == [1, 2, 3]
    (tmp_path / "many/dataset_dict.json").unlink()
    assert f"(test, a Hugging Face data set): open {tmp_path}/many/test" in refusal(tmp_path / "many")
    with pytest.raises(TypeError, match=r"splits, \['train', 'test'\]: open one of them"):
        pen.open(splits)


def test_the_files_themselves_are_had_by_their_suffix(tmp_path: Path) -> None:
    write(tmp_path / "mds", {"index.json": json.dumps({"version": 2, "shards": []}).encode(), "shard.00000.mds": b"\1\0\0\0"})
    assert pen.open(tmp_path / "mds", suffixes=[".mds"])["path"][:].to_list() == ["shard.00000.mds"]
    assert f"(mds, MosaicML MDS shards): open {tmp_path}/mds" in refusal(tmp_path)


def test_a_tar_file_among_others_is_a_file_as_any_other(tmp_path: Path) -> None:
    write(tmp_path, {"a.tar": b"a", "b.jpg": b"b"})
    assert pen.open(tmp_path)["path"][:].to_list() == ["a.tar", "b.jpg"]


def test_an_index_of_something_else_is_a_file_as_any_other(tmp_path: Path) -> None:
    for number, content in enumerate((b"{}", b"[]", b"not json", b'{"chunks": 1}', b'{"Shards": 1}')):
        write(tmp_path / str(number), {"index.json": content, "a.txt": b"a"})
        assert len(pen.open(tmp_path / str(number))) == 2
