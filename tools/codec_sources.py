"""Fetches the sources of zstd, lz4 and libdeflate for wheels into a directory: ``python tools/codec_sources.py build/codecs``.

They come from source packages of PyPI that carry them, through pip, so its settings (index, proxy, cache) hold. What arrives is
compared with the digests below. A library that is there already is not fetched again.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Package(NamedTuple):
    """A source package, and the files of it that belong to one library."""

    requirement: str
    sha256: str
    library: str
    folder: str  # in the package
    needed: tuple[str, ...]  # patterns of names in that folder
    licence: str  # a file of the package; of a C file, the comment it begins with


PACKAGES = (
    Package(
        requirement="zstandard==0.25.0",  # zstd 1.5.7, as one file
        sha256="7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b",
        library="zstd",
        folder="zstd",
        needed=("*.c", "*.h"),
        licence="zstd/LICENSE",
    ),
    Package(
        requirement="lz4==4.4.5",  # lz4 1.9.4
        sha256="5f0b9e53c1e82e88c10d7c180069363980136b9d7a8306c4dca4f760d60c39f0",
        library="lz4",
        folder="lz4libs",
        needed=("lz4.[ch]", "lz4hc.[ch]"),
        licence="lz4libs/lz4.h",
    ),
    Package(
        requirement="deflate==0.9.0",  # libdeflate 1.26
        sha256="962e0a6f1ea3a94b900a8ea0ce138fa92bfcbafda5b86367104a259ffcd3462b",
        library="libdeflate",
        folder="libdeflate",
        needed=("*.h", "lib/*.[ch]", "lib/*/*.[ch]"),
        licence="libdeflate/COPYING",
    ),
)


def fetch(package: Package, into: Path) -> Path:
    """The source package as a file, with the digest that is expected."""
    name = package.requirement.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, "--dest", str(into)]
    subprocess.run([*command, package.requirement], check=True)
    (archive,) = into.glob("*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != package.sha256:
        sys.exit(f"{archive.name}: expected sha256 {package.sha256}, found {found}")
    return archive


def extract(archive: Path, package: Package, into: Path) -> None:
    def write(name: PurePosixPath | str, content: bytes) -> None:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes(content)

    with tarfile.open(archive) as tar:
        for member in tar:
            source = tar.extractfile(member)
            name = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if source is None or ".." in name.parts:
                continue
            content = source.read()
            if str(name) == package.licence:
                write("LICENSE", content[: content.index(b"*/") + 3] if name.suffix == ".h" else content)
            if name.is_relative_to(package.folder):
                inside = name.relative_to(package.folder)
                if any(len(inside.parts) == len(PurePosixPath(one).parts) and inside.match(one) for one in package.needed):
                    write(inside, content)


def main(directory: Path) -> None:
    for package in PACKAGES:
        target = directory / package.library
        mark = target / ".sha256"
        if mark.is_file() and mark.read_text() == package.sha256:
            continue
        shutil.rmtree(target, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            extract(fetch(package, Path(scratch)), package, target)
        mark.write_text(package.sha256)
        print(f"{package.library}: the sources in {package.requirement}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
