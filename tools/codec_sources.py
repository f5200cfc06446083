"""Fetches the sources of the codecs for wheels into a directory: ``python tools/codec_sources.py build/codecs``.

They come from source packages of PyPI that carry them, through pip, so its settings (index, proxy, cache) hold. What arrives is
compared with the digests below. What is there already is not fetched again.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Library(NamedTuple):
    """The files of a package that belong to one library."""

    name: str
    folder: str  # in the package
    needed: tuple[str, ...]  # patterns of names in that folder
    licence: tuple[str, ...]  # files of that folder; of a C file, the comment it begins with


class Package(NamedTuple):
    """A source package."""

    requirement: str
    sha256: str
    libraries: tuple[Library, ...]


PACKAGES = (
    Package(
        requirement="zstandard==0.25.0",
        sha256="7713e1179d162cf5c7906da876ec2ccb9c3a9dcbdffef0cc7f70c3667a205f0b",
        libraries=(Library("zstd", "zstd", ("*.c", "*.h"), ("LICENSE",)),),  # 1.5.7, as one file
    ),
    Package(
        requirement="lz4==4.4.5",
        sha256="5f0b9e53c1e82e88c10d7c180069363980136b9d7a8306c4dca4f760d60c39f0",
        libraries=(Library("lz4", "lz4libs", ("lz4.[ch]", "lz4hc.[ch]"), ("lz4.h",)),),  # 1.9.4
    ),
    Package(
        requirement="deflate==0.9.0",
        sha256="962e0a6f1ea3a94b900a8ea0ce138fa92bfcbafda5b86367104a259ffcd3462b",
        libraries=(Library("deflate", "libdeflate", ("*.h", "lib/*.[ch]", "lib/*/*.[ch]"), ("COPYING",)),),  # libdeflate 1.26
    ),
    Package(
        requirement="opencv-python-headless==5.0.0.93",  # 82 MB, of which these are 4
        sha256="b82f9831daab90b725c7c1ee1b36cb5732c367096ac76d119e64e14eb70d5f3c",
        libraries=(
            Library(  # libjpeg-turbo 3.1.2, the same files as in its own release
                "jpeg",
                "opencv/3rdparty/libjpeg-turbo",
                ("*.in", "src/*.[ch]", "simd/*.h", "simd/nasm/*.inc", "simd/x86_64/*", "simd/arm/*", "simd/arm/aarch64/*"),
                ("LICENSE.md", "README.ijg"),
            ),
            Library("png", "opencv/3rdparty/libpng", ("*.[ch]", "intel/*.c", "arm/*.c"), ("LICENSE",)),  # libpng 1.6.57
            Library(  # libwebp 1.6.0, the decoder
                "webp",
                "opencv/3rdparty/libwebp",
                (
                    "src/dec/*.[ch]",
                    "src/webp/*.h",
                    "src/utils/*.h",
                    *(
                        f"src/utils/{name}.c"
                        for name in (
                            "bit_reader_utils",
                            "color_cache_utils",
                            "filters_utils",
                            "huffman_utils",
                            "palette",
                            "quant_levels_dec_utils",
                            "random_utils",
                            "rescaler_utils",
                            "thread_utils",
                            "utils",
                        )
                    ),
                    "src/dsp/*.h",
                    *(
                        f"src/dsp/{name}{kind}.c"
                        for name in ("alpha_processing", "dec", "filters", "lossless", "rescaler", "upsampling", "yuv")
                        for kind in ("", "_sse2", "_sse41", "_avx2", "_neon")
                    ),
                    "src/dsp/cpu.c",
                    "src/dsp/dec_clip_tables.c",
                ),
                ("COPYING",),
            ),
            Library(  # zlib 1.3.2 without gzip files
                "zlib",
                "opencv/3rdparty/zlib",
                ("*.h", "zconf.h.in", "adler32.c", "crc32.c", "deflate.c", "inf*.c", "trees.c", "zutil.c"),
                ("LICENSE",),
            ),
        ),
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
    """The files of every library of a package, and ``LICENSE`` for each."""
    licences: dict[tuple[Library, str], bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            library = next((one for one in package.libraries if path.is_relative_to(one.folder)), None)
            if library is None or not member.isfile() or ".." in path.parts:
                continue
            name, content = path.relative_to(library.folder), tar.extractfile(member).read()  # type: ignore[union-attr]
            if str(name) in library.licence:
                licences[library, str(name)] = content[: content.index(b"*/") + 3] if name.suffix == ".h" else content
            if any(len(name.parts) == len(PurePosixPath(one).parts) and name.match(one) for one in library.needed):
                target = into / library.name / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    for library in package.libraries:
        (into / library.name / "LICENSE").write_bytes(b"\n".join(licences[library, name] for name in library.licence))


def main(directory: Path) -> None:
    for package in PACKAGES:
        described = hashlib.sha256(repr(package).encode()).hexdigest()  # another choice of files is another package
        marks = [directory / library.name / ".package" for library in package.libraries]
        if all(mark.is_file() and mark.read_text() == described for mark in marks):
            continue
        for mark in marks:
            shutil.rmtree(mark.parent, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:
            extract(fetch(package, Path(scratch)), package, directory)
        for mark in marks:
            mark.write_text(described)
        print(f"{', '.join(library.name for library in package.libraries)}: the sources in {package.requirement}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
