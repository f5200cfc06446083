"""Writes ArrayRecord files for tests, by a program of its own.

The threads that the package starts do not survive a fork: after a file was written, forked children that read one crash or hang
(195 of 200). Many tests fork, so no process of the tests writes such files.
"""

import hashlib
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

LARGEST_KEPT_BYTES = 1 << 20
_written: dict[bytes, bytes] = {}


def write_array_record(path: Path, items: Iterable[bytes], options: str = "group_size:1") -> None:
    """One file."""
    write_array_records({path: items}, options)


def write_array_records(files: Mapping[Path, Iterable[bytes]], options: str = "group_size:1") -> None:
    """Several files. What was written once is written again without the program: suites make the same files for every test."""
    wanted = {path: list(items) for path, items in files.items()}
    keys = {path: hashlib.sha256(pickle.dumps((options, items))).digest() for path, items in wanted.items()}
    for path in wanted.keys() & {path for path, key in keys.items() if key in _written}:
        path.write_bytes(_written[keys[path]])
        del wanted[path]
    if not wanted:
        return
    work = pickle.dumps((options, {str(path): items for path, items in wanted.items()}))
    subprocess.run([sys.executable, "-I", __file__], input=work, check=True, timeout=600)
    _written.update({keys[path]: path.read_bytes() for path in wanted if path.stat().st_size <= LARGEST_KEPT_BYTES})


def main() -> None:
    """What the program does: the files on its standard input are written."""
    from array_record.python.array_record_module import ArrayRecordWriter

    options, files = pickle.load(sys.stdin.buffer)
    for path, items in files.items():
        writer = ArrayRecordWriter(path, options)
        for item in items:
            writer.write(item)
        writer.close()


if __name__ == "__main__":
    main()
