"""A write that takes fewer bytes than it was given, or is interrupted, goes on at the right place."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.crash.plan import record
from tests.crash.subject import FIELDS, made, read

import penstock as pen
from penstock.errors import NoSpaceError

_pwrite = os.pwrite


def _at_most(count: int) -> Any:
    return lambda descriptor, data, offset: _pwrite(descriptor, memoryview(data)[:count], offset)


def _write(path: Path) -> None:
    with pen.create(path, FIELDS, chunk_records=4, threads=1) as writer:
        writer.extend(made(0, 10))
        writer.commit()
        writer.update([1, 5], made(50, 2))
        writer.delete([0])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 511, 4096])
def test_a_short_write_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    _write(tmp_path / "whole.pen")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _at_most(count))
        _write(tmp_path / "short.pen")
    assert read(tmp_path / "short.pen") == read(tmp_path / "whole.pen")
    assert pen.verify(tmp_path / "short.pen") == []


@pytest.mark.parametrize("when", range(1, 30, 4))
def test_a_disk_that_is_full_after_a_short_write_leaves_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    path = tmp_path / "s.pen"
    _write(path)
    before = read(path)
    calls = 0

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > when:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _at_most(16)(descriptor, data, offset)

    with pen.open(path, mode="a", threads=1) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", pwrite)
            writer.extend(made(100, 3))
            with pytest.raises(NoSpaceError):
                writer.commit()
        assert read(path) == before
        writer.extend(made(200, 1))
    assert read(path) == (before[0] + 1, [*before[1], record(200)])
