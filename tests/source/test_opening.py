"""penstock.open: which source reads what."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock as pen
from penstock.errors import EmptyFileError, FormatError, MissingError, NoMatchError, SchemaMismatchError, UnsupportedTypeError
from penstock.source.array import ArraySource
from penstock.source.npy import NpySource
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
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=60)
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
def test_a_missing_library_is_named_with_the_line_that_installs_it(tmp_path: Path, file: str, module: str, extra: str) -> None:
    (tmp_path / file).write_bytes(b"content")
    code = f"import sys; sys.modules[{module!r}] = None\nimport penstock as pen\npen.open({str(tmp_path / file)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert f"ImportError: this needs {module}: pip install 'penstock[{extra}]'" in done.stderr


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
