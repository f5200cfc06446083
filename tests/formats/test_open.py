"""penstock.open: which source reads what."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import warm

import penstock as pen
from penstock import Field
from penstock.errors import (
    EmptyFileError,
    FormatError,
    MissingError,
    NoMatchError,
    SchemaMismatchError,
    UnsafePathError,
    UnsupportedTypeError,
)
from penstock.formats.array import ArraySource, NpySource
from penstock.remote.url import url_path
from penstock.store import Store


def test_a_path_is_opened_by_its_suffix_or_its_content(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    pen.convert({"x": np.arange(3)}, tmp_path / "store")
    (tmp_path / "plain").write_bytes((tmp_path / "a.npy").read_bytes())
    assert isinstance(pen.open(tmp_path / "a.npy"), NpySource)
    assert isinstance(pen.open(str(tmp_path / "plain")), NpySource)
    assert isinstance(pen.open(f"file://{tmp_path}/a.npy"), NpySource)
    assert isinstance(pen.open(tmp_path / "store"), Store)
    assert isinstance(pen.open(f"{tmp_path}/?.npy"), NpySource)
    assert isinstance(pen.open([tmp_path / "a.npy"] * 2), NpySource)


def test_relative_paths_survive_a_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    pen.convert({"data": np.arange(3)}, tmp_path / "b.pen")
    monkeypatch.chdir(tmp_path)
    sources = [pen.open("a.npy"), pen.open("*.npy"), pen.open(["a.npy", "b.pen"])]
    monkeypatch.chdir("/")
    for source in sources:
        assert source[-1]["data"] == 2


def test_data_in_memory_is_opened_as_it_is() -> None:
    source = pen.open(np.arange(6).reshape(3, 2), field="x")
    assert isinstance(source, ArraySource)
    assert source[1]["x"].tolist() == [2, 3]
    assert pen.open(source) is source
    texts = pen.open({"x": [1, 2], "file": ["a.b", "c.d"]})
    assert texts[1] == {"x": 2, "file": "c.d"}


# Texts that could be names


def test_a_list_of_texts_in_a_dict_is_a_column_whatever_files_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for texts in (
        ["a.jpg", "b.jpg"],
        ["https://host/a.jpg", "https://host/b.jpg"],
        ["a.npy", "note"],
        ["a.pkl", "b.pt"],
        ["s3://b/x"],
    ):
        assert pen.open({"name": texts})["name"][:].to_list() == texts


@pytest.mark.parametrize("exist", [True, False], ids=["files exist", "no such files"])
def test_texts_that_may_be_files_or_not_are_refused_with_a_remedy_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exist: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["a.npy", "b.npy"]
    for name in names if exist else []:
        np.save(name, np.arange(3))
    with pytest.raises(ValueError, match=r"may be meant as files or as texts: write .*for the files, .*for the texts"):
        pen.open({"x": names})
    assert pen.open({"x": np.array(names)})["x"][:].to_list() == names
    if exist:
        for files in ([Path(name) for name in names], [Path("a.npy"), "b.npy"], pen.open(names), "*.npy"):
            assert pen.open({"x": files})["x"][:].tolist() == [0, 1, 2, 0, 1, 2]


# Values in memory

NESTED: list[tuple[list[Any], Field, list[Any]]] = [
    ([[1, 2], [3, 4]], Field("i8", (2,)), [[1, 2], [3, 4]]),
    ([[1, 2], [3]], Field.ragged("i8"), [[1, 2], [3]]),
    ([[], [1], [2, 3]], Field.ragged("i8"), [[], [1], [2, 3]]),
    ([[1], [2.5, 3]], Field.ragged("f8"), [[1.0], [2.5, 3.0]]),
    ([(1, 2), (3,)], Field.ragged("i8"), [[1, 2], [3]]),
    ([[[1, 2]], [[3, 4], [5, 6]]], Field.ragged("i8", 2), [[[1, 2]], [[3, 4], [5, 6]]]),
]


@pytest.mark.parametrize(("values", "field", "wanted"), NESTED, ids=lambda value: repr(value)[:30])
def test_nested_lists_of_one_shape_are_fixed_and_others_ragged(values: list[Any], field: Field, wanted: list[Any]) -> None:
    data = pen.open({"x": values})
    assert data.schema == {"x": field}
    assert [item.tolist() for item in data["x"]] == wanted


def test_values_that_are_none_are_missing() -> None:
    data = pen.open({"n": [1, None, 3], "v": [[1, 2], None, [3]], "f": [None, [1, 2], [3, 4]]})
    assert data[1] == {"n": None, "v": None, "f": pytest.approx([1, 2])}
    assert data["v"][:].present.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[[1], [2, 3]], [[1]]], "field 'x': record 0 is a list whose parts have different lengths"),
        ([[1], [[2]]], r"expected lists of numbers of 1 dimensions in all records, got \[\[2\]\] in record 1"),
        ([[1], ["a", "b"]], "got .* in record 1"),
        ([[1, 2], 3], "got 3 in record 1"),
        ([None, None], "expected a value to infer the type from, got 2 missing ones"),
        ([{"a": 1}], "got dict"),
    ],
    ids=str,
)
def test_other_nested_values_are_refused_with_their_record(values: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pen.open({"x": values})


def test_lists_that_are_no_sources_are_refused_with_what_to_write() -> None:
    for what in ([1, 2, 3], [[1, 2], [3]], [[[1]]], [np.float32(1)], [None], [b"a"]):
        with pytest.raises(TypeError, match=r"for one field of such values write penstock.open\(\{'data': \[...\]\}\)"):
            pen.open(what)
    records = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    with pytest.raises(
        TypeError, match=r"part 0 is a record, with one value of 'label': for records, write penstock\.open"
    ) as caught:
        pen.open(records)
    remedy = str(caught.value).partition("write ")[2]
    assert eval(remedy, {"penstock": pen, "records": records})[1] == {"text": "b", "label": 1}
    with pytest.raises(MissingError, match=r"a text in a dict is the name of a file: for records, write penstock\.open"):
        pen.open([{"text": "a"}, {"text": "b"}])


def test_a_list_of_dicts_of_columns_is_still_one_source_after_the_other() -> None:
    data = pen.open([{"x": np.arange(2), "t": ["a", "b"]}, {"x": [5], "t": ["c"]}])
    assert data[2] == {"x": 5, "t": "c"}
    assert pen.open([np.arange(2), np.arange(3)])["data"][:].tolist() == [0, 1, 0, 1, 2]


TENSORS = """
import sys
import numpy as np
import penstock as pen
class Tensor:
    def __array__(self, dtype=None, copy=None):
        return np.arange(6).reshape(3, 2)
assert pen.open(Tensor())[1]["data"].tolist() == [2, 3]
assert "torch" not in sys.modules and "jax" not in sys.modules
"""


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_tensors_and_jax_arrays_are_arrays_without_an_import() -> None:
    done = warm.run([sys.executable, "-c", TENSORS], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr

    import jax.numpy as jnp
    import torch

    rows = torch.arange(6.0).reshape(3, 2)
    ragged = [torch.arange(2), torch.arange(3), torch.arange(0)]
    data = pen.open({"x": rows, "h": rows.bfloat16(), "v": ragged, "t": ["a", "b", "c"]})
    assert data[1]["x"].tolist() == [2, 3]
    assert data[1]["x"].dtype == np.float32
    assert str(data.schema["h"]) == "Field('bf16', (2,))"
    assert data["h"][:].astype(float).tolist() == rows.tolist()
    assert data["v"][1].tolist() == [0, 1, 2]
    assert str(data.schema["v"]) == "Field.ragged('i8')"
    rows[1, 0] = 9
    assert data[1]["x"].tolist() == [9, 3]  # it is not copied
    assert len(pen.open([rows, rows])) == 6
    for bad in (torch.zeros(3, requires_grad=True), torch.zeros(3, dtype=torch.complex32)):
        with pytest.raises(TypeError, match="this Tensor cannot be read as an array"):
            pen.open(bad)
    assert pen.open({"x": jnp.arange(3), "h": jnp.zeros((3, 2), jnp.bfloat16)}).schema["h"].element == "bf16"


def test_data_frames_are_refused_with_what_to_write() -> None:
    class DataFrame:
        """As pandas and polars call theirs."""

        def __array__(self) -> Any:
            return np.zeros(3)

    for what in (DataFrame(), {"x": DataFrame()}):
        with pytest.raises(TypeError, match=r"pyarrow.Table.from_pandas\(frame\)"):
            pen.open(what)


@pytest.mark.parametrize("suffix", [".npz", ".pkl", ".pickle", ".pt"])
def test_archives_and_pickles_are_refused_with_the_reason(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"anything")
    for what in (tmp_path / f"a{suffix}", [tmp_path / f"a{suffix}"], f"{tmp_path}/*{suffix}"):
        with pytest.raises(UnsupportedTypeError, match=r"zip archive|executed"):
            pen.open(what)


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "unknown.xyz").write_bytes(b"something else")
    with pytest.raises(EmptyFileError, match="empty"):
        pen.open(tmp_path / "empty")
    with pytest.raises(FormatError, match=r"unknown\.xyz: neither its suffix nor its content"):
        pen.open(tmp_path / "unknown.xyz")
    with pytest.raises(MissingError, match="no such file or directory"):
        pen.open(tmp_path / "nothing")
    with pytest.raises(NoMatchError, match="no file matches"):
        pen.open(f"{tmp_path}/*.npy")
    for bad in (3, None, object()):
        with pytest.raises(TypeError, match="expected a path"):
            pen.open(bad)
    for bad in ([], {}):
        with pytest.raises(ValueError, match="at least one"):
            pen.open(bad)
    with pytest.raises(ValueError, match="scheme"):
        pen.open("gopher://host/data.npy")
    with pytest.raises(ValueError, match="mode"):
        pen.open(tmp_path, mode="w")
    with pytest.raises(TypeError, match="no_such_option"):
        pen.open(np.arange(3), no_such_option=1)
    with pytest.raises(TypeError, match="open already"):
        pen.open(ArraySource({"x": np.arange(3)}), threads=1)


def test_a_directory_of_several_formats_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "b.shard").write_bytes(b"x")
    with pytest.raises(SchemaMismatchError, match="npy, rows"):
        pen.open(tmp_path)


OPTIONAL = ["h5py", "pyarrow", "array_record", "PIL", "torch", "jax", "obstore", "rich", "datasets", "ml_dtypes"]


def test_import_loads_no_optional_library() -> None:
    code = f"import sys, penstock; print([name for name in {OPTIONAL!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("file", "module", "extra"),
    [
        ("a.h5", "h5py", "hdf5"),
        ("a.parquet", "pyarrow", "arrow"),
        ("a.feather", "pyarrow", "arrow"),
        ("a.array_record", "array_record", "arrayrecord"),
    ],
)
@pytest.mark.sampled(2)
def test_a_missing_library_is_named_with_the_line_that_installs_it(tmp_path: Path, file: str, module: str, extra: str) -> None:
    (tmp_path / file).write_bytes(b"content")
    code = f"import sys; sys.modules[{module!r}] = None\nimport penstock as pen\npen.open({str(tmp_path / file)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert f"ImportError: this needs {module}: pip install 'penstock[{extra}]'" in done.stderr


def test_images_without_pillow_name_it_with_the_line_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff")
    code = f"import sys; sys.modules['PIL'] = None\nimport penstock as pen\npen.open({str(tmp_path)!r}, decode='image')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    assert "ImportError: this needs pillow: pip install 'penstock[image]'" in done.stderr


def test_a_store_that_was_begun_and_never_published_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    for names in (["chunk"], ["chunk", "redirect"], ["chunk", "redirect", "manifest"], ["LOCK"]):
        path = tmp_path / "-".join(names)
        for name in names:
            (path / name).mkdir(parents=True)
        with pytest.raises(MissingError, match=r"publish|store"):
            pen.open(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoMatchError):
        pen.open(tmp_path / "empty")


@pytest.mark.parametrize("suffix", [".tar", ".jsonl", ".csv", ".npy", ".parquet", ".arrow", ".safetensors", ".tfrecord", ".tgz"])
def test_names_of_files_that_are_not_utf_8_are_refused(tmp_path: Path, suffix: str):
    path = os.path.join(os.fsencode(tmp_path), b"a\xff" + suffix.encode())
    with open(path, "wb") as file:
        file.write(b"anything" * 100)
    with pytest.raises(UnsafePathError, match=r"expected the name of a file in UTF-8, found b'.*a\\xff.*': rename it"):
        pen.open(os.fsdecode(path))
    with pytest.raises(UnsafePathError, match="rename it"):
        pen.open(tmp_path)


@pytest.mark.parametrize("place", ["disk", "url"])
def test_suffixes_open_the_files_themselves(tmp_path: Path, place: str) -> None:
    files = {"a.tar": b"1", "b.tar": b"22", "c.npy": b"3", "index.json": b'{"shards": []}'}
    for name, data in files.items():
        if place == "disk":
            (tmp_path / name).write_bytes(data)
        else:
            url_path(f"memory://suffixes/data/{name}").objects.put(f"data/{name}", data)
    where = tmp_path if place == "disk" else "memory://suffixes/data"
    for suffixes, names in (([".tar"], ["a.tar", "b.tar"]), ([".npy"], ["c.npy"]), ([".json"], ["index.json"])):
        with pen.open(where, suffixes=suffixes) as source:
            assert {one["path"]: one["data"] for one in source} == {name: files[name] for name in names}
