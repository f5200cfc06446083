"""Writes tests/golden/foreign/{webdataset,tfrecord,energon}: small shards, written by the packages that own the formats.

::

    python -m tests.golden.make_shards            say whether the files are what the packages write, change nothing
    python -m tests.golden.make_shards --force    write them anew

It needs an environment with webdataset, tfrecord and megatron-energon: ``make token-packages`` makes one. The tests read the files,
and compare with ``SAMPLES``, ``ENERGON`` and ``EXAMPLES``.
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.formats.shards import tar

import penstock as pen

DIRECTORY = Path(__file__).parent / "foreign"

SAMPLES: list[dict[str, Any]] = [
    {"__key__": "sample000", "jpg": bytes(range(256)) * 3, "cls": b"7", "json": b'{"a": 1}'},
    {"__key__": "dir.a/sample001", "jpg": b"\xff\xd8", "cls": b"12", "json": b"{}"},
    {"__key__": "dir.a/" + "long" * 40, "jpg": b"x" * 512, "cls": b"0"},
    {"__key__": "sample003", "seg.png": b"", "cls": b"3"},
    {"__key__": "\N{SNOWMAN}004", "jpg": b"y" * 513, "cls": b"-1", "json": b"[]"},
]
"""What the archives hold, three samples in the first and the others in the second."""

ENERGON = [
    ("a/0.jpg", b"\xff\xd8"),
    ("a/0.cls", b"7"),
    ("a/1.jpg", b"x" * 600),
    ("a/1.seg.png", b""),
    ("2.cls", b"1"),
    ("3.cls", b"22"),
]
"""Names and bytes of the files in Energon's archives, four in the first and the others in the second."""

EXAMPLES: list[dict[str, Any]] = [
    {
        "image": bytes(range(i * 7)),
        "label": np.int64(i - 3),
        "box": np.array([i, i / 3, -i, 0.5], np.float32),
        "tokens": np.arange(-i, i * 40, 41, dtype=np.int64) * 10**i,
    }
    for i in range(9)
]
"""What the TFRecord files hold as tf.Examples, five in the first and the others in the second."""


def write_webdataset(directory: Path) -> None:
    from webdataset import TarWriter

    for number, samples in enumerate((SAMPLES[:3], SAMPLES[3:])):
        with TarWriter(str(directory / f"shard-{number:06}.tar"), mtime=1, encoder=False) as out:
            for sample in samples:
                out.write(sample)


def write_energon(directory: Path) -> None:
    """Archives, and what Energon's preparation puts next to them, without the name of the run."""
    from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator

    for number, samples in enumerate((ENERGON[:4], ENERGON[4:])):
        (directory / f"{number}.tar").write_bytes(tar(samples))
    names = ["0.tar", "1.tar"]
    WebdatasetPreparator.prepare_dataset(directory, names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1)
    (directory / ".nv-meta" / "index.uuid").unlink()


def write_tfrecord(directory: Path) -> None:
    from tfrecord import TFRecordWriter

    for number, examples in enumerate((EXAMPLES[:5], EXAMPLES[5:])):
        out = TFRecordWriter(str(directory / f"train.tfrecord-{number:05}-of-00002"))
        for one in examples:
            out.write(
                {
                    "image": (one["image"], "byte"),
                    "label": (int(one["label"]), "int"),
                    "box": (one["box"].tolist(), "float"),
                    "tokens": (one["tokens"].tolist(), "int"),
                }
            )
        out.close()


def write_all(directory: Path) -> list[Path]:
    writers = {"webdataset": write_webdataset, "tfrecord": write_tfrecord, "energon": write_energon}
    for name, write in writers.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        write(directory / name)
    return sorted(path for name in writers for path in (directory / name).rglob("*") if path.is_file())


def is_same(one: Path, other: Path) -> bool:
    """Whether files have the same bytes, or the same examples: their features come in any order."""
    if ".tfrecord" not in one.name:
        return filecmp.cmp(one, other, shallow=False)
    with pen.open(one, decode="example") as new, pen.open(other, decode="example") as old:
        return new.digest() == old.digest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--force", action="store_true")
    if parser.parse_args().force:
        write_all(DIRECTORY)
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = write_all(Path(folder))
        changed = [path.name for path in paths if not is_same(path, DIRECTORY / path.relative_to(folder))]
    if changed:
        sys.exit(f"not what the packages write: {changed}")


if __name__ == "__main__":
    main()
