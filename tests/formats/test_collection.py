"""Collection files: parts by name, length and fingerprint."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import warm
from tests.effort import count

import penstock as pen
from penstock.errors import CorruptError, FormatError, MissingError, SourceChangedError, UnsafePathError, UnsupportedVersionError
from penstock.records import Source
from penstock.source import write_collection
from penstock.testing import SourceSuite

ROWS = np.random.default_rng(0).random((30, 3))


def parts(directory: Path) -> list[Path]:
    (directory / "sub").mkdir()
    for name, low, high in (("a", 0, 11), ("sub/b", 11, 12), ("c", 12, 30)):
        np.save(directory / f"{name}.npy", ROWS[low:high])
    return [directory / "a.npy", directory / "sub/b.npy", directory / "c.npy"]


class TestCollection(SourceSuite):
    def make(self, directory: Path) -> Source:
        write_collection(parts(directory), directory / "all.json")
        source: Source = pen.open(directory / "all.json")
        return source

    def records(self) -> list[dict[str, Any]]:
        return [{"data": row} for row in ROWS]


def test_opening_a_collection_opens_none_of_its_parts(tmp_path: Path) -> None:
    paths = parts(tmp_path)
    write_collection(paths, tmp_path / "all.json")
    paths[0].unlink()
    np.save(paths[1], np.zeros((1, 3)))
    source = pen.open(tmp_path / "all.json")
    assert len(source) == 30
    assert source[12]["data"].tolist() == ROWS[12].tolist()
    with pytest.raises(MissingError, match=r"a\.npy"):
        source[0]
    with pytest.raises(SourceChangedError, match=r"b\.npy"):
        source[11]


def test_parts_lie_in_the_directory_of_the_collection(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    np.save(tmp_path / "outside.npy", ROWS)
    with pytest.raises(UnsafePathError, match=r"outside\.npy"):
        write_collection([tmp_path / "outside.npy"], tmp_path / "inside/all.json")
    np.save(tmp_path / "inside/a.npy", ROWS)
    write_collection([tmp_path / "inside/a.npy"], tmp_path / "inside/all.json")
    (tmp_path / "inside/a.npy").unlink()
    os.symlink(tmp_path / "outside.npy", tmp_path / "inside/a.npy")
    with pytest.raises(UnsafePathError, match="leads out"):
        pen.open(tmp_path / "inside/all.json")[0]


def with_url(content: dict[str, Any], url: Any) -> dict[str, Any]:
    return content | {"parts": [content["parts"][0] | {"url": url}]}


def test_hostile_collections_are_refused(tmp_path: Path) -> None:
    write_collection(parts(tmp_path), tmp_path / "all.json")
    good = json.loads((tmp_path / "all.json").read_text())
    part = good["parts"][0]
    cases: list[tuple[Any, type[Exception]]] = [
        *(
            (with_url(good, url), UnsafePathError)
            for url in ("../x.npy", "/etc/passwd", "a/../../x.npy", "s3://x/y.npy", "a\0.npy", "")
        ),
        *((with_url(good, url), CorruptError) for url in (None, 3, ["a.npy"])),
        (good | {"version": 2}, UnsupportedVersionError),
        (good | {"kind": "another"}, FormatError),
        ([good], FormatError),
        (good | {"parts": {"a": 1}}, CorruptError),
        (good | {"parts": [part | {"length": -1}]}, CorruptError),
        (good | {"parts": [part | {"length": 2**64}]}, CorruptError),
        (good | {"parts": [part | {"length": True}]}, CorruptError),
        (good | {"parts": [part | {"fingerprint": "x"}]}, CorruptError),
        (
            good | {"fields": [{"name": "x", "kind": "fixed", "codec": {"name": "raw"}, "dtype": "O", "shape": [], "number": 0}]},
            CorruptError,
        ),
        (good | {"fields": "x"}, CorruptError),
        ({key: value for key, value in good.items() if key != "fields"}, CorruptError),
    ]
    for content, error in cases:
        (tmp_path / "bad.json").write_text(json.dumps(content))
        with pytest.raises(error, match=r"bad\.json") as caught:
            pen.open(tmp_path / "bad.json")
        assert type(caught.value) is error, content
    for text in ("{", "[" * 100_000, "\0", "NaN"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(FormatError, match=r"bad\.json"):
            pen.open(tmp_path / "bad.json")


def test_large_collections_are_not_parsed_unless_the_limit_is_raised(tmp_path: Path) -> None:
    write_collection(parts(tmp_path), tmp_path / "all.json")
    text = (tmp_path / "all.json").read_text()
    (tmp_path / "large.json").write_text(text + " " * ((32 << 20) + 1 - len(text)))
    with pytest.raises(
        CorruptError, match=r"large\.json: expected .* at most 33554432 bytes, found 33554433; .*max_collection_bytes"
    ):
        pen.open(tmp_path / "large.json")
    assert len(pen.open(tmp_path / "large.json", max_collection_bytes="34MB")) == 30
    with pytest.raises(CorruptError, match="at most 100 bytes"):
        pen.open(tmp_path / "all.json", max_collection_bytes=100)


def test_many_parts_open_with_few_descriptors(tmp_path: Path) -> None:
    num_parts = count(300, 10_000)
    for i in range(num_parts):
        np.save(tmp_path / f"{i:05d}.npy", np.arange(2 * i, 2 * i + 2))
    code = """
import resource, sys
from pathlib import Path
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import penstock as pen
from penstock.source import write_collection
root = Path(sys.argv[1])
write_collection(sorted(root.glob("*.npy")), root / "all.json")
source = pen.open(root / "all.json")
ids = np.random.default_rng(0).permutation(len(source))[:3000]
assert len(source) == int(sys.argv[2])
assert np.array_equal(source["data"][ids], ids)
"""
    warm.run([sys.executable, "-c", code, str(tmp_path), str(2 * num_parts)], check=True, timeout=600)


def test_a_pattern_in_a_collection_does_not_lead_out_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    for directory in ("out", "in"):
        np.save(tmp_path / directory / "x.npy", np.arange(3))
    write_collection([tmp_path / "in/x.npy"], tmp_path / "in/all.json")
    (tmp_path / "in/link").symlink_to(tmp_path / "out")
    content = (tmp_path / "in/all.json").read_text()
    (tmp_path / "in/all.json").write_text(content.replace('"x.npy"', '"li*k/x.npy"'))
    with pytest.raises(UnsafePathError, match="leads out"):
        pen.open(tmp_path / "in/all.json")[0]
