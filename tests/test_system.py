"""Errors of the system as those of penstock, and questions about files."""

import errno
import glob
import os
from pathlib import Path

import pytest

from penstock.errors import AccessDeniedError, MissingError, ReadError
from penstock.formats.files import matching_paths
from penstock.system import is_directory, is_file, is_there, names_in, read_error, reading, status


@pytest.mark.parametrize(
    ("number", "kind", "builtin", "words"),
    [
        (errno.EIO, ReadError, OSError, "Input/output error"),
        (errno.ENOENT, MissingError, FileNotFoundError, "No such file"),
        (errno.EACCES, AccessDeniedError, PermissionError, "Permission denied"),
        (errno.EMFILE, ReadError, OSError, "ulimit -n"),
        (errno.ESTALE, ReadError, OSError, "open it again"),
    ],
)
def test_an_error_says_what_failed_where_and_what_helps(
    number: int, kind: type[ReadError], builtin: type[OSError], words: str
) -> None:
    with pytest.raises(builtin) as caught, reading("/data/\x1b[2Jx.npy", "listing"):
        raise OSError(number, os.strerror(number))
    error = caught.value
    assert (type(error), error.errno, error.filename) == (kind, number, "/data/\x1b[2Jx.npy")
    assert str(error).isprintable()
    assert "listing failed: " in str(error)
    assert words in str(error)


def test_an_error_without_a_number_or_with_a_long_text_is_a_short_line() -> None:
    error = read_error(OSError("a\nb" * 10_000), "x")
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def test_what_is_not_there_is_an_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("nothing", "file/below", "n" * 300, "nul\0", "loop"):
        assert status(tmp_path / name) is None
        assert not is_file(tmp_path / name)
        assert not is_directory(tmp_path / name)
    assert is_there(tmp_path / "loop")
    assert is_file(tmp_path / "file")
    assert is_directory(tmp_path)
    assert sorted(names_in(tmp_path)) == ["file", "loop"]


PATTERNS = (
    "*",
    "*.npy",
    "**",
    "**/*.npy",
    "a/**",
    "a/**/",
    "*/",
    "*/b/*.npy",
    "./*.npy",
    "a//*.npy",
    ".*",
    "**/.*",
    "d/**/g.npy",
    "[[]w].npy",
    "?.npy",
    "*/*",
    "**/b/**",
    "dead*",
    "none*",
    "a/none/*",
    "*/../*.npy",
    "x.npy/*",
    "**/e/*",
    "a/*/",
    "[ax]*",
    "[!a]*",
)


@pytest.mark.parametrize("is_absolute", [True, False])
def test_patterns_match_what_glob_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_absolute: bool) -> None:
    for name in ("a/b/c.npy", "a/.h/x.npy", "a/y.npy", ".z/q.npy", "d/e/f/g.npy", "x.npy", "[w].npy", "d/.n.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "link").symlink_to("d/e")
    (tmp_path / "dead.npy").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    for pattern in PATTERNS:
        text = f"{tmp_path}/{pattern}" if is_absolute else pattern
        expected = sorted(map(os.path.normpath, glob.glob(text, recursive=True)))
        assert sorted(map(os.path.normpath, matching_paths(text))) == expected, text
