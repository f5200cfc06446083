"""Directories of other tools are told what they are, and are not taken for folders of files."""

import json
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.errors import FormatError
from penstock.remote.url import url_path

MDS_SHARD = {"format": "mds", "version": 2, "column_names": ["x"], "column_encodings": ["int"], "column_sizes": [8], "samples": 1}
LITDATA = {
    "chunks": [{"filename": "chunk-0-0.bin", "chunk_bytes": 20, "chunk_size": 1, "dim": None}],
    "config": {"compression": None},
}

# What the directories look like: files and their content; the last parts are what the message must say.
LAYOUTS: dict[str, tuple[dict[str, bytes], list[str]]] = {
    "mds": (
        {"index.json": json.dumps({"version": 2, "shards": [MDS_SHARD]}).encode(), "shard.00000.mds": b"\1\0\0\0"},
        ["MosaicML MDS", "streaming.StreamingDataset(local="],
    ),
    "litdata": (
        {"index.json": json.dumps(LITDATA).encode(), "chunk-0-0.bin": b"\1\0\0\0"},
        ["LitData", "litdata.StreamingDataset("],
    ),
    "zarr3": ({"zarr.json": b'{"zarr_format": 3, "node_type": "group"}', "x/zarr.json": b"{}", "x/c/0": b"abc"}, ["zarr.open("]),
    "zarr2": ({".zgroup": b'{"zarr_format": 2}', "x/.zarray": b"{}", "x/0": b"abc"}, ["zarr group", "zarr.open("]),
    "zarr2 array": ({".zarray": b'{"zarr_format": 2}', "0": b"abc"}, ["zarr array", "zarr.open("]),
    "lance": (
        {"_versions/1.manifest": b"x", "_transactions/0-a.txn": b"x", "data/0a1b.lance": b"xLANC"},
        ["Lance", "lance.dataset("],
    ),
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


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_directory_of_another_tool_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    files, words = LAYOUTS[name]
    write(tmp_path / "data", files)
    message = refusal(tmp_path / "data")
    assert all(word in message for word in [*words, str(tmp_path / "data"), "suffixes=[...]"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_same_at_a_url(name: str) -> None:
    files, words = LAYOUTS[name]
    root = url_path(f"memory://layouts-{name.replace(' ', '-')}/data")
    for file, content in files.items():
        root.objects.put(f"{root.key}/{file}", content)
    message = refusal(str(root))
    assert all(word in message for word in [*words, str(root)])


def test_a_hugging_face_directory_is_refused_and_its_dataset_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # datasets draws bars, and they start a thread
    data = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    splits = datasets.DatasetDict({"train": data, "test": data})
    data.save_to_disk(tmp_path / "one")
    splits.save_to_disk(tmp_path / "many")
    assert f"datasets.load_from_disk('{tmp_path}/one')" in refusal(tmp_path / "one")
    assert f"datasets.load_from_disk('{tmp_path}/many')[split]" in refusal(tmp_path / "many")
    assert f"datasets.load_from_disk('{tmp_path}/many/test')" in refusal(tmp_path / "many/test")
    assert pen.open(datasets.load_from_disk(tmp_path / "one"))["x"][:].tolist() == [1, 2, 3]
    assert pen.open(str(tmp_path / "one/*.arrow"))["x"][:].tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match=r"splits, \['train', 'test'\]: open one of them"):
        pen.open(splits)


def test_the_files_themselves_are_had_by_their_suffix(tmp_path: Path) -> None:
    write(tmp_path / "mds", LAYOUTS["mds"][0])
    assert pen.open(tmp_path / "mds", suffixes=[".mds"])["path"][:].to_list() == ["shard.00000.mds"]


def test_a_tar_file_among_others_is_a_file_as_any_other(tmp_path: Path) -> None:
    write(tmp_path, {"a.tar": b"a", "b.jpg": b"b"})
    assert pen.open(tmp_path)["path"][:].to_list() == ["a.tar", "b.jpg"]


def test_an_index_of_something_else_is_a_file_as_any_other(tmp_path: Path) -> None:
    for number, content in enumerate((b"{}", b"[]", b"not json", b'{"chunks": 1}', b'{"Shards": 1}')):
        write(tmp_path / str(number), {"index.json": content, "a.txt": b"a"})
        assert len(pen.open(tmp_path / str(number))) == 2
