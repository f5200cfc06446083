"""Manifests of 64 MiB that a stranger wrote: refused in little memory, whatever they are full of. Large right ones open."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from tests.effort import count

import penstock as pen
from penstock import _core
from penstock.errors import CorruptError
from penstock.store.manifest import ChunkEntry, decode_manifest, encode_manifest
from penstock.store.storage import MAX_MANIFEST_BYTES

ROOT = Path(__file__).parents[2]
IDENTITY = "0123456789abcdef" * 2

FILLINGS = {
    "empty lists": "[],",
    "empty objects": "{},",
    "small numbers": "7,",
    "large numbers": "12345678901234567890,",
    "empty texts": '"",',
    "nulls": "null,",
    "lists in lists": "[[]],",
    "rows of segments that are all the first": "[0,1,0,0],",
    "rows of one": "[0],",
    "rows with a fraction": "[0.5,1,0,0],",
    "brackets that do not end": "[",
    "brackets that do not begin": "]",
    "quotes": '"],[",',
    "spaces": " " * 1000 + "[],",
}
PLACES = ["segments", "chunks", "redirects", "optional", "fields", "later"]
CHILD = """
import sys
from penstock.errors import ReadError
from penstock.store.generation import load_manifest
from pathlib import Path
for line in sys.stdin:
    try:
        load_manifest(Path(line.strip()))
        found = "opened"
    except ReadError as error:
        found = f"{type(error).__name__}, {len(str(error)) < 1000}"
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(found, int(peak.split()[1]) >> 10, sep=", ", flush=True)
"""


def sealed(line: bytes) -> bytes:
    return line + b"\n%08x\n" % _core.crc32c(np.frombuffer(line, np.uint8))


def make(path: Path) -> dict[str, Any]:
    """A small store; returns its manifest."""
    with pen.create(path, {"x": pen.Field("i8")}) as out:
        out.extend({"x": np.arange(5)})
    document: dict[str, Any] = json.loads(manifest_of(path).read_bytes().split(b"\n")[0])
    return document


def manifest_of(path: Path) -> Path:
    (found,) = (path / "manifest").glob("*.json")
    return found


def fill(path: Path, place: str, filling: str) -> None:
    """Replace a value of the manifest by a list of as many of something as a manifest may have."""
    document = make(path)
    document[place] = "HERE"
    before, after = json.dumps(document, separators=(",", ":")).encode().split(b'"HERE"')
    room = MAX_MANIFEST_BYTES - len(before) - len(after) - 12
    inner = (filling.encode() * (room // len(filling))).removesuffix(b",")
    manifest_of(path).write_bytes(sealed(before + b"[" + inner + b"]" + after))


CASES = [(place, name) for place in PLACES for name in FILLINGS if (place, name) != ("later", "spaces")]


def test_a_manifest_full_of_anything_is_refused_in_little_memory() -> None:
    command = [sys.executable, "-c", CHILD]
    with (
        TemporaryDirectory(dir="/dev/shm", prefix="penstock-manifest-") as folder,
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        for place, name in CASES[:: count(56, 1)]:
            path = Path(folder) / "a.pen"
            fill(path, place, FILLINGS[name])
            child.stdin.write(f"{path}\n")
            child.stdin.flush()
            kind, is_short, peak = child.stdout.readline().split(", ")
            shutil.rmtree(path)
            assert (kind, is_short, int(peak) < 200) == ("CorruptError", "True", True), (place, name, peak)
        child.stdin.close()


def test_a_manifest_of_very_many_chunks_opens(tmp_path: Path) -> None:
    document = make(tmp_path / "a.pen")
    rows = count(10_000, 120_000)
    document["chunks"] += [[k, f"{k:032x}", k, 500 + k, 1, k, 8] for k in range(1, rows)]
    document["segments"] += [[4 + k, 1, k, 0] for k in range(1, rows)]
    document["next_chunk"], document["length"] = rows, rows + 4
    manifest_of(tmp_path / "a.pen").write_bytes(sealed(json.dumps(document, separators=(",", ":")).encode()))
    with pen.open(tmp_path / "a.pen") as store:
        assert len(store) == rows + 4
        assert store["x"][:5].tolist() == list(range(5))
        chunks = store.manifest.chunks
        assert chunks[rows - 1] == ChunkEntry(rows - 1, f"{rows - 1:032x}", rows - 1, 499 + rows, 1, rows - 1, 8)
        data = encode_manifest(store.manifest)
    assert decode_manifest(data, "here") == store.manifest


SPACED = {"separators": (" ,\t", " :\r "), "indent": None}


@pytest.mark.parametrize("options", [SPACED, {"indent": 1}, {"sort_keys": True}], ids=["spaces", "lines", "sorted"])
def test_json_may_be_written_in_any_way(options: dict[str, Any], tmp_path: Path) -> None:
    document = make(tmp_path / "a.pen")
    text = json.dumps(document, **options).encode()
    assert decode_manifest(sealed(text), "here").chunks == decode_manifest(manifest_of(tmp_path / "a.pen").read_bytes(), "h").chunks


ROWS = {
    "a comma behind the last row": "[[0,5,0,0],]",
    "a comma before the first row": "[,[0,5,0,0]]",
    "two commas": "[[0,2,0,0],,[2,3,0,2]]",
    "no comma": "[[0,2,0,0][2,3,0,2]]",
    "a row that is an object": '[{"a":1}]',
    "a number between": "[[0,2,0,0],7,[2,3,0,2]]",
    "a row in a row": "[[[0,5,0,0]]]",
    "a text of brackets": '[["]]",5,0,0]]',
    "not a list": "null",
    "a number": "17",
    "deep": "[" * 200_000,
    "many digits": f"[[0,{'9' * 5000},0,0]]",
    "some digits": f"[[0,{'9' * 30},0,0]]",
    "not infinite": "[[0,Infinity,0,0]]",
    "true": "[[0,true,0,0]]",
    "other characters": '[["\u00e9",5,0,0]]',
    "a gap": "[[0,2,0,0],[3,2,0,2]]",
    "none": "[[0,0,0,0],[0,5,0,0]]",
    "beyond 64 bits": f"[[0,{2**63 - 1},0,0],[{2**63 - 1},{2**63 - 1},0,0],[{2**63 - 1},2,0,0]]",
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_none_are_refused(name: str, tmp_path: Path) -> None:
    document = make(tmp_path / "a.pen")
    document["segments"] = "HERE"
    before, after = json.dumps(document).encode().split(b'"HERE"')
    with pytest.raises(CorruptError, match=r"^here: not a manifest"):
        decode_manifest(sealed(before + ROWS[name].encode() + after), "here")


def test_a_table_under_a_key_that_is_written_otherwise_or_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(make(tmp_path / "a.pen"))
    for other in ('"segments":[[0,5,0,0]],"segments":', '"x\\"segments":', '{"segments":'):
        with pytest.raises(CorruptError, match=r"^here: not a manifest"):
            decode_manifest(sealed(text.replace('"segments":', other).encode()), "here")
    for cut in (1, 5, len(text) - 1):
        with pytest.raises(CorruptError, match=r"^here: not a manifest"):
            decode_manifest(sealed(text[:-cut].encode()), "here")
    for more in ("}", "[]", " x", ","):
        with pytest.raises(CorruptError, match=r"^here: not a manifest"):
            decode_manifest(sealed((text + more).encode()), "here")
