"""Folders of files: their order, labels, decoding, links, and files that change or are no images."""

import io
import os
import shutil
import subprocess
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import (
    BatchTooLargeError,
    CorruptError,
    FormatError,
    MissingError,
    NoMatchError,
    SizeOverflowError,
    SourceChangedError,
    UnsafePathError,
    UnsupportedTypeError,
)
from penstock.formats.folder import MAX_PIXELS, decode_image, open_directory, run_each
from penstock.records import Source
from penstock.schema import Field
from penstock.testing import SourceSuite

Record = dict[str, Any]


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def png(pixels: np.ndarray[Any, Any], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


FLAT = {f"{i}.bin": bytes(range(i)) for i in range(12)}


class TestFlat(SourceSuite):
    """No sub-folders, so no labels; one file is empty, one hidden."""

    def make(self, directory: Path) -> Source:
        write(directory / "files", FLAT | {".hidden": b"x", "z.txt": b"x"})
        return open_directory(directory / "files", suffixes=[".bin"])

    def records(self) -> list[Record]:
        return [{"data": FLAT[name], "path": name} for name in sorted(FLAT)]


class TestNested(SourceSuite):
    """Folders of several depths, files beside folders, an empty folder, a name that is not UTF-8, a link inside."""

    ORDER = (
        ("0.txt", None), ("a/1", 0), ("a/b/c/2", 0), ("a/b.txt", 0), ("a/z\\xff", 0), ("q.txt", None), ("s10/x", 2), ("s2/x", 3),
        ("s2/zlink", 3),
    )  # fmt: skip

    def make(self, directory: Path) -> Source:
        root = directory / "files"
        for path, _ in self.ORDER[:-1]:
            write(root, {os.fsdecode(path.replace("\\xff", "\udcff")): path.encode()})
        (root / "e").mkdir()
        (root / ".git").mkdir()
        write(root, {".git/x": b"hidden"})
        (root / "s2" / "zlink").symlink_to("../s10/x")
        return open_directory(root, label="class", data="content")

    def records(self) -> list[Record]:
        made = []
        for path, label in self.ORDER:
            content = b"s10/x" if path == "s2/zlink" else path.encode()
            made.append({"content": content, "path": path, "class": None if label is None else np.int32(label)})
        return made


class TestDecodedToDict(SourceSuite):
    def make(self, directory: Path) -> Source:
        write(directory / "files", {f"c{i % 3}/{i}": bytes([i, i + 1]) for i in range(10)})
        schema = {"pair": Field("i8", (2,)), "text": Field.text(), "odd": Field("i4", nullable=True)}
        return open_directory(directory / "files", decode=to_dict, schema=schema, label=None)

    def records(self) -> list[Record]:
        order = sorted(range(10), key=lambda i: (i % 3, i))
        return [
            {
                "pair": np.array([i, i + 1]),
                "text": f"{i}",
                "odd": np.int32(i) if i % 2 else None,
                "path": f"c{i % 3}/{i}",
            }
            for i in order
        ]


def to_dict(data: bytes) -> Record:
    return {"pair": np.frombuffer(data, np.uint8).astype(np.int64), "text": str(data[0]), "odd": data[0] if data[0] % 2 else None}


IMAGES = [np.random.default_rng(i).integers(0, 256, (3 + i, 5, 3), np.uint8) for i in range(9)]


class TestImages(SourceSuite):
    def make(self, directory: Path) -> Source:
        write(directory / "files", {f"{'cat' if i < 4 else 'dog'}/{i}.png": png(image) for i, image in enumerate(IMAGES)})
        return open_directory(directory / "files", decode="image", data="image")

    def records(self) -> list[Record]:
        names = ["cat" if i < 4 else "dog" for i in range(9)]
        return [
            {"image": image, "path": f"{names[i]}/{i}.png", "label": np.int32(names[i] == "dog")} for i, image in enumerate(IMAGES)
        ]


class TestResizedImages(SourceSuite):
    def make(self, directory: Path) -> Source:
        write(directory / "files", {f"{i}.png": png(image) for i, image in enumerate(IMAGES)})
        return open_directory(directory / "files", decode="image", size=(4, 6))

    def records(self) -> list[Record]:
        resized = [np.asarray(Image.fromarray(image).resize((6, 4), Image.Resampling.BILINEAR)) for image in IMAGES]
        return [{"data": image, "path": f"{i}.png"} for i, image in enumerate(resized)]


# Order, labels, blocks


def test_the_order_is_that_of_the_name_bytes_however_the_disk_lists_them(tmp_path: Path) -> None:
    names = ["s2/b", "s2/a", "s10/c", "s1", "s1.d/x", "s1-/y", "é/1", "Z/1", "z/1"]
    wanted = ["Z/1", "s1", "s1-/y", "s1.d/x", "s10/c", "s2/a", "s2/b", "z/1", "é/1"]
    for turn, listed in enumerate((names, names[::-1], sorted(names))):
        write(tmp_path / str(turn), dict.fromkeys(listed, b""))
        assert open_directory(tmp_path / str(turn))["path"][:].to_list() == wanted


def test_labels_number_the_first_level_and_blocks_are_the_leaves(tmp_path: Path) -> None:
    write(tmp_path, {"s2/a": b"", "s2/x/b": b"", "s2/x/c": b"", "s10/d": b"", "s2/y/e": b""})
    source = open_directory(tmp_path)
    assert source.label_names == ["s10", "s2"]
    assert source["label"][:].tolist() == [0, 1, 1, 1, 1]
    assert [list(source.blocks[i]) for i in range(len(source.blocks))] == [[0], [1], [2, 3], [4]]


def test_suffixes_choose_files_in_either_case(tmp_path: Path) -> None:
    write(tmp_path, {"a.JPG": b"", "b.jpg": b"", "c.png": b"", "d.jpg.txt": b""})
    assert open_directory(tmp_path, suffixes=".jpg")["path"][:].to_list() == ["a.JPG", "b.jpg"]
    assert len(open_directory(tmp_path, suffixes=(".jpg", ".png"))) == 3


def test_paths_and_labels_are_known_without_opening_a_file(tmp_path: Path) -> None:
    write(tmp_path, {"a/1": b"x", "b/2": b"y"})
    source = open_directory(tmp_path)
    shutil.rmtree(tmp_path / "a")
    assert source["path"][:].to_list() == ["a/1", "b/2"]
    assert source["label"][:].tolist() == [0, 1]
    assert source[1]["data"] == b"y"


def test_a_folder_deeper_than_the_recursion_limit_is_read(tmp_path: Path) -> None:
    depth = 1500
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    try:
        assert open_directory(tmp_path)["path"][0] == "d/" * depth + "x"
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # pytest would not get to its bottom


# Decoding


def test_fields_are_found_out_from_the_first_file(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"\1\2", "b": b"\3"})
    source = open_directory(tmp_path, decode=lambda data: {"x": np.frombuffer(data, np.uint8), "n": len(data)})
    assert dict(source.schema) == {"x": Field.ragged("u1"), "n": Field("i8"), "path": Field.text()}
    assert [item.tolist() for item in source["x"]] == [[1, 2], [3]]
    assert open_directory(tmp_path, decode=len)["data"][:].tolist() == [2, 1]


def test_errors_of_a_decode_function_say_which_file(tmp_path: Path) -> None:
    write(tmp_path, {"good": b"1", "zbad": b"x"})
    source = open_directory(tmp_path, decode=int)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        source[:]
    assert caught.value.__notes__ == [f"while decoding {tmp_path}/zbad"]


def test_arguments_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a/1": b"1"})
    for wrong, words in (
        ({"data": "path"}, "different names"),
        ({"data": "label"}, "different names"),
        ({"label": "path"}, "different names"),
        ({"size": (2, 2)}, "size is for"),
        ({"decode": "video"}, "function or 'image'"),
        ({"decode": "image", "schema": {"data": Field("u1")}}, "needs no schema"),
        ({"schema": {"data": Field("u1")}}, "give both or neither"),
        ({"decode": lambda data: {"x": None}}, "cannot be inferred"),
    ):
        with pytest.raises(ValueError, match=words):
            open_directory(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="decode must be a function"):
        open_directory(tmp_path, decode=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "CMYK", "RGB"])
def test_images_of_every_common_mode_give_rgb(mode: str) -> None:
    file = io.BytesIO()
    Image.fromarray(IMAGES[3]).convert(mode).save(file, "TIFF" if mode == "CMYK" else "PNG")
    pixels = decode_image(file.getvalue())
    assert (pixels.shape, pixels.dtype) == (IMAGES[3].shape, np.uint8)
    assert mode != "RGB" or np.array_equal(pixels, IMAGES[3])


def test_broken_images_are_corrupt_and_named(tmp_path: Path) -> None:
    whole = png(IMAGES[5], "JPEG")
    for content in (b"", b"no image at all", whole[: len(whole) // 2], png(IMAGES[5])[:60], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        write(tmp_path, {"a.png": png(IMAGES[5]), "b.png": content})
        with pytest.raises(CorruptError, match=r"b\.png: expected an image"):
            open_directory(tmp_path, decode="image")[:]


def test_images_of_too_many_pixels_or_bits_are_refused_before_they_are_decoded(tmp_path: Path) -> None:
    bomb = bytearray(png(np.zeros((1, 1), np.uint8)))
    for side in (8193, 60_000):  # more than our limit; more than Pillow's
        bomb[16:24] = side.to_bytes(4, "big") * 2
        bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
        write(tmp_path, {"bomb.png": bytes(bomb)})
        assert side * side > MAX_PIXELS
        with pytest.raises(BatchTooLargeError, match=r"bomb\.png"):
            open_directory(tmp_path, decode="image")[0]
    bomb[16:24] = (8193).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    write(tmp_path, {"bomb.png": bytes(bomb)})
    with pytest.raises(CorruptError, match=r"bomb\.png"):  # the limit was raised, and there are no pixels
        open_directory(tmp_path, decode="image", max_block_bytes="2GiB")[0]
    with pytest.raises(UnsupportedTypeError, match="8 bits"):
        decode_image(png(np.zeros((2, 2), np.uint16)))


def test_slow_work_runs_in_threads_and_keeps_its_order_and_errors() -> None:
    used: set[str] = set()
    meet = threading.Barrier(2)

    def work(i: int) -> int:
        used.add(threading.current_thread().name)
        if i >= 4:
            meet.wait(120)  # only two threads at once get past this
        else:
            sum(range(100_000))
        return i

    assert run_each(work, 12, 2) == list(range(12))
    assert len(used) == 3
    assert run_each(lambda i: i, 3, 8) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        run_each(lambda i: sum(range(100_000)) // (9 - i), 12, 4)


# Bad folders and files that change


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no such folder"):
        open_directory(tmp_path / "none")
    write(tmp_path, {"file": b"x", "empty/.hidden": b"x"})
    with pytest.raises(FormatError, match="expected a folder"):
        open_directory(tmp_path / "file")
    with pytest.raises(NoMatchError, match="empty: expected files under"):
        open_directory(tmp_path / "empty")
    with pytest.raises(NoMatchError, match=r"\*\.jpg or \*\.png"):
        open_directory(tmp_path, suffixes=[".jpg", ".png"])


def test_links_out_of_the_folder_to_folders_and_to_nothing_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"root/a/x": b"x", "outside/y": b"y", "root-2/z": b"z"})
    link = tmp_path / "root" / "link"
    for target, error in (
        (tmp_path / "outside" / "y", UnsafePathError),
        (Path("../root-2/z"), UnsafePathError),
        (tmp_path / "outside", UnsafePathError),
        (Path("a"), UnsafePathError),
        (Path("."), UnsafePathError),
        (Path("nothing"), MissingError),
        (Path("link"), MissingError),
    ):
        link.symlink_to(target)
        with pytest.raises(error, match="root/link"):
            open_directory(tmp_path / "root")
        link.unlink()
    (tmp_path / "door").symlink_to("root")
    assert open_directory(tmp_path / "door")["path"][:].to_list() == ["a/x"]


def test_things_that_are_not_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"x": b"x"})
    os.mkfifo(tmp_path / "fifo")
    assert open_directory(tmp_path)["path"][:].to_list() == ["x"]


def test_files_that_change_after_opening_are_noticed(tmp_path: Path) -> None:
    write(tmp_path, dict.fromkeys("abcdef", b"12345"))
    source = open_directory(tmp_path)
    os.truncate(tmp_path / "a", 3)
    (tmp_path / "b").write_bytes(b"123456")
    (tmp_path / "c").unlink()
    (tmp_path / "d").unlink()
    (tmp_path / "d").symlink_to("/etc/passwd")
    (tmp_path / "e").unlink()
    os.mkfifo(tmp_path / "e")
    for number, error in enumerate((SourceChangedError, SourceChangedError, MissingError, SourceChangedError, SourceChangedError)):
        with pytest.raises(error, match=rf"/{'abcde'[number]}\b") as caught:
            source[number]
        assert type(caught.value) is error
    assert source[5]["data"] == b"12345"


def test_files_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"small": b"x", "z.big": b""})
    os.truncate(tmp_path / "z.big", 2**32)
    with pytest.raises(SizeOverflowError, match=r"z\.big"):
        open_directory(tmp_path)


def test_names_that_are_not_utf8_are_read_and_shown_as_escapes(tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"\xc3\xa9", b"\xed\xa0\x80", b"a\nb"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(name)
    source = open_directory(tmp_path)
    assert source["data"][:].to_list() == [b"a\nb", b"\xc3\xa9", b"\xed\xa0\x80", b"\xff\xfe"]
    assert source["path"][:].to_list() == ["a\nb", "é", "\\xed\\xa0\\x80", "\\xff\\xfe"]


def test_fingerprints_see_names_sizes_and_contents(tmp_path: Path) -> None:
    write(tmp_path / "1", {"a/x": b"12", "b/y": b"34"})
    seen = {open_directory(tmp_path / "1").fingerprint, open_directory(tmp_path / "1", decode=len).fingerprint}
    others = ({"a/x": b"12", "b/z": b"34"}, {"a/x": b"12", "b/y": b"3"}, {"a/x": b"12", "b/y": b"35"}, {"a/x": b"12", "a/y": b"34"})
    for number, files in enumerate(others):
        write(tmp_path / f"other{number}", files)
        seen.add(open_directory(tmp_path / f"other{number}").fingerprint)
    assert len(seen) == 6


def test_no_warnings_come_from_ordinary_images() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM"):
            assert decode_image(png(IMAGES[0], kind)).shape == IMAGES[0].shape
