"""Text out of data on a terminal: it moves no cursor and fills no screen, and errors about it are one line."""

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.effort import count
from tests.hostile.fault_workloads import command

import penstock as pen
from penstock.source import write_collection

ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202e\u2066"
LONG = count(200_000, 10_000_000)
MOST_OUTPUT = 100_000


def files_with_odd_names(path: Path) -> Path:
    folder = path / "folder"
    folder.mkdir()
    (folder / f"a{ESCAPES}.bin").write_bytes(b"x")
    (folder / "b\nTraceback (most recent call last):.bin").write_bytes(b"y")
    (folder / os.fsdecode(b"c\xff\xfe.bin")).write_bytes(b"z")
    return folder


def columns_with_odd_names(path: Path) -> Path:
    pq.write_table(
        pa.table({f"a{ESCAPES}": [1, 2], "b" * 100_000: ["x", "y"], "c\n\n": [ESCAPES, "\n" * 1000]}), path / "p.parquet"
    )
    return path / "p.parquet"


def data_sets_with_odd_names(path: Path) -> Path:
    with h5py.File(path / "h.h5", "w") as file:
        file[f"a{ESCAPES}"] = np.arange(3)
        file["b" * 10_000] = np.arange(4)
    return path / "h.h5"


def header_of_garbage(path: Path) -> Path:
    text = ("{'descr': '" + ESCAPES * 3000).encode("utf-8")[:60_000]
    (path / "x.npy").write_bytes(b"\x93NUMPY\x03\x00" + len(text).to_bytes(4, "little") + text)
    return path / "x.npy"


def collection(path: Path, **replaced: object) -> Path:
    np.save(path / "a.npy", np.arange(3))
    write_collection([path / "a.npy"], path / "c.json")
    content = json.loads((path / "c.json").read_text())
    (path / "c.json").write_text(json.dumps(content | replaced))
    return path / "c.json"


LONG_TEXT = ESCAPES * (LONG // len(ESCAPES))
MAKE: dict[str, Callable[[Path], Path]] = {
    "files": files_with_odd_names,
    "parquet": columns_with_odd_names,
    "hdf5": data_sets_with_odd_names,
    "npy": header_of_garbage,
    "kind of a collection": lambda path: collection(path, kind=LONG_TEXT),
    "version of a collection": lambda path: collection(path, version=LONG_TEXT),
    "field of a collection": lambda path: collection(path, fields=[{"name": LONG_TEXT}]),
    "type of a collection": lambda path: collection(
        path, fields=[{"name": "x", "number": 0, "kind": LONG_TEXT, "codec": {"name": "raw"}}]
    ),
    "part of a collection": lambda path: collection(path, parts=[{"url": LONG_TEXT, "length": 1, "fingerprint": "0" * 64}]),
    "part above a collection": lambda path: collection(
        path, parts=[{"url": "../" + ESCAPES * 400, "length": 1, "fingerprint": "0" * 64}]
    ),
    "nullable of a collection": lambda path: collection(path, nullable=[LONG_TEXT]),
    "nothing": lambda path: path / f"no{ESCAPES}thing",
}


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.sampled(2)
def test_hostile_text_is_escaped_bounded_and_ends_in_one_line(name: str, tmp_path: Path) -> None:
    target = MAKE[name](tmp_path)
    for words in (["info"], ["info", "--json"], ["head"], ["verify"], ["verify", "--json"], ["show", "0"], ["convert", "OUT"]):
        out = str(tmp_path / f"{len(list(tmp_path.iterdir()))}.pen")
        verb, *rest = [out if word == "OUT" else word for word in words]
        seen = command(verb, str(target), *rest)
        shown = (seen.printed + seen.said).replace("\n", "")
        assert "Traceback" not in seen.said, (words, seen.said[-2000:])
        assert shown.isprintable(), (words, [c for c in shown if not c.isprintable()][:5])
        assert len(shown) < MOST_OUTPUT, (words, len(seen.printed), len(seen.said))
        assert seen.code in (0, 1, 2, 3, 4)
        if seen.code > 1:
            assert seen.said.splitlines()[-1].startswith("penstock: "), (words, seen.said)


def test_metadata_and_field_names_of_a_store_are_escaped(tmp_path: Path) -> None:
    with pen.create(tmp_path / "s.pen", {"x": pen.Field.text()}, metadata={"note": ESCAPES * 1000}) as out:
        out.extend({"x": [ESCAPES * 1000]})
    for words in (["info"], ["info", "--json"], ["head"], ["show", "0"], ["show", "0", "--json"]):
        seen = command(words[0], str(tmp_path / "s.pen"), *words[1:])
        assert (seen.code, (seen.printed + seen.said).replace("\n", "").isprintable()) == (0, True), words


def test_too_little_memory_is_one_line(tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.uint8, (1, 1 << 30)).flush()  # a file of holes
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20), before[1]))
    try:
        seen = command("verify", str(tmp_path / "x.npy"))
        other = command("convert", str(tmp_path / "x.npy"), str(tmp_path / "x.pen"))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    for one in (seen, other):
        assert one.code == 3
        assert one.said.splitlines()[-1].startswith("penstock: there is not enough memory for this")
    assert not (tmp_path / "x.pen").exists()
