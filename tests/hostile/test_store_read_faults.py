"""System calls that fail under a reader: an error that names the file, what failed and what to do."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as pen
from penstock.errors import MissingError, ReadError
from penstock.store import open_store
from penstock.system import read_error

CODES = {
    errno.EIO: "dmesg",
    errno.EMFILE: "ulimit -n",
    errno.ENFILE: "fs.file-max",
    errno.ENOMEM: "memory",
    errno.ESTALE: "open it again",
    errno.EACCES: "Permission denied",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with pen.create(tmp_path / "a.pen", {"x": pen.Field("i8"), "text": pen.Field.text()}, chunk_records=10) as out:
        out.extend({"x": np.arange(30), "text": [str(i) for i in range(30)]})
        out.commit()
        out.update([1], {"text": ["one"]})
    return tmp_path / "a.pen"


@contextmanager
def failing(name: str, code: int, at: int) -> Iterator[list[int]]:
    """Let the ``at``-th call of a function of os fail."""
    calls: list[int] = []
    real: Callable[..., Any] = getattr(os, name)

    def call(*args: Any, **options: Any) -> Any:
        calls.append(code)
        if len(calls) == at:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, call)
        yield calls


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["open", "fstat", "read", "listdir"])
def test_a_call_that_fails_while_a_store_is_opened_is_told(path: Path, name: str, code: int) -> None:
    for at in range(1, 100):
        with failing(name, code, at) as calls:
            try:
                with open_store(path) as store:
                    assert len(store) == 30
                if len(calls) < at:
                    break
            except ReadError as error:
                assert CODES[code] in str(error)  # noqa: PT017
                assert str(path) in str(error)  # noqa: PT017
    assert 1 < at < 99


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """Let this process open so many more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 8)]
    for descriptor in spare[-free:] if free else []:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare[-1] + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in spare[:-free] if free else spare:
            os.close(descriptor)


@pytest.mark.parametrize("io", ["map", "pread"])
@pytest.mark.parametrize("free", [0, 1])
def test_a_reader_without_descriptors_names_the_limit(path: Path, io: str, free: int) -> None:
    with open_store(path, io=io) as store:
        with few_files(free), pytest.raises(ReadError, match=r"a\.pen/chunk/.*ulimit -n|ulimit -n.*a\.pen/chunk/"):
            store["x"][:]
        assert store["x"][:].tolist() == list(range(30))
    with few_files(0), pytest.raises(ReadError, match="ulimit -n"):
        open_store(path)


def test_every_code_makes_an_error_with_a_path() -> None:
    for code in errno.errorcode:
        error = read_error(OSError(code, os.strerror(code)), "/data/a.pen")
        assert (error.errno, error.filename) == (code, "/data/a.pen")
        assert isinstance(error, MissingError) == (code in (errno.ENOENT, errno.ENOTDIR))
        assert len(str(error)) < 300
