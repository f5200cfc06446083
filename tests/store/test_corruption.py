"""Damage of every kind to every file of a small store: the right answer or an error that names the file, never a wrong record."""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import count, every

import penstock as pen
from penstock.errors import CorruptError, MissingError, ReadError
from penstock.schema import Codec

FIELDS = {
    "image": pen.Field("u1", (3,)),
    "text": pen.Field.text(codec=pen.Zstd(3)),
    "grid": pen.Field.ragged("f4", 2, codec=pen.LZ4()),
    "pose": pen.Field("i8", (4,), codec=pen.Deflate()),
    "blob": pen.Field.bytes(),
}


def records(low: int, high: int) -> dict[str, Any]:
    """Records in which some values are missing, some empty, and some compress."""
    rows = range(low, high)
    return {
        "image": [None if i % 5 == 4 else [i, i + 1, i + 2] for i in rows],
        "text": [None if i % 4 == 3 else "" if i % 4 == 2 else f"word {i} " * 5 for i in rows],
        "grid": [None if i % 6 == 5 else np.full((i % 3, 8), i, np.float32) for i in rows],
        "pose": np.array([[i, 0, 0, 0] for i in rows]),
        "blob": [None if i % 7 == 6 else bytes([i]) * (i % 4) for i in rows],
    }


def make_store(path: Path) -> None:
    with pen.create(path, FIELDS, chunk_records=4) as writer:
        writer.extend(records(0, 7))
    with pen.open(path, mode="a") as writer:
        writer.update([1, 5], {"text": ["another one, " * 3, None], "image": [[9, 9, 9], [8, 8, 8]]})
        writer.delete([2])


Answer = list[tuple[int, list[Any]]]


def answer(path: Path, generation: int | None = None, io: str = "auto") -> Answer:
    """Every value of every record of a generation, in a form that compares exactly."""
    store = pen.open(path, generation=generation, threads=1, io=io)
    batch = store.read(slice(None))
    found: Answer = [(len(store), list(store.schema))]
    for column in batch.values():
        if isinstance(column, pen.Ragged):
            shapes = None if column.shapes is None else column.shapes.tolist()
            present = None if column.present is None else column.present.tolist()
            found.append((0, [column.values.tobytes(), column.offsets.tolist(), shapes, present]))
        else:
            found.append((1, [np.ma.getdata(column).tobytes(), np.ma.getmaskarray(column).tolist()]))
    return found


@dataclass
class Target:
    """A store in memory, what its generations hold, and the generations a file matters to."""

    path: Path
    files: list[Path]
    answers: dict[int, Answer]
    readers: dict[Path, list[int]]
    io: str = "auto"
    tried: int = 0
    refused: int = 0

    def check(self, file: Path, damage: str) -> None:
        """The right answer, or an error that names the damaged file."""
        for generation in self.readers[file]:
            self.tried += 1
            message = ""
            try:
                found = answer(self.path, None if generation == max(self.answers) else generation, self.io)
            except pen.PenstockError as error:
                message = str(error)
            if message:
                self.refused += 1
                assert str(file) in message, f"{file.name} {damage}: {message}"
            else:
                assert found == self.answers[generation], f"{file.name} {damage}: a wrong answer"


@pytest.fixture
def target() -> Iterator[Target]:
    path = Path("/dev/shm") / f"penstock-corruption-{os.getpid()}"
    shutil.rmtree(path, ignore_errors=True)
    make_store(path)
    try:
        yield open_target(path)
    finally:
        shutil.rmtree(path)


def open_target(path: Path) -> Target:
    answers = {g: answer(path, g) for g in pen.open(path).generations()}
    files = sorted(file for file in path.glob("*/*") if file.is_file())
    newest = max(answers)
    readers = {}
    for file in files:
        named = [g for g in answers if file.name == f"{g:020d}.json" or names(path, g, file)]
        readers[file] = [newest] if newest in named or not named else [max(named)]
    return Target(path, files, answers, readers)


def names(path: Path, generation: int, file: Path) -> bool:
    """Whether a generation's manifest names a chunk or redirect file."""
    writer, serial = file.stem.split("-") if "-" in file.stem else ("none", "0")
    text = (path / "manifest" / f"{generation:020d}.json").read_text()
    return f'"{writer}",{int(serial, 16)},' in text


def overwrite(file: Path, data: bytes) -> None:
    with file.open("r+b") as handle:
        handle.write(data)


def values_tried(value: int, offset: int) -> set[int]:
    """Three single bits flipped (other ones from byte to byte), all bits cleared, all set."""
    return {*(value ^ (1 << ((offset + i) % 8)) for i in (0, 3, 5)), 0x00, 0xFF} - {value}


def test_every_byte_flipped_cleared_or_set_gives_the_right_answer_or_names_the_file(target: Target) -> None:
    """One change of every ninth byte, in a campaign every change of every byte."""
    for file in target.files:
        original = file.read_bytes()
        descriptor = os.open(file, os.O_RDWR)
        try:
            for offset, value in every(9, list(enumerate(original))):
                for other in every(5, sorted(values_tried(value, offset)), offset // 9):
                    os.pwrite(descriptor, bytes([other]), offset)
                    target.check(file, f"byte {offset} = {other:#x}")
                os.pwrite(descriptor, bytes([value]), offset)
        finally:
            os.close(descriptor)
    assert target.tried > count(440, 24_000)
    assert target.refused > 0.8 * target.tried  # the rest is padding between regions


def test_every_file_cut_at_every_length_names_the_file(target: Target) -> None:
    for file in target.files:
        original = file.read_bytes()
        for length in every(23, range(len(original) - 1, -1, -1)):
            os.truncate(file, length)
            target.check(file, f"cut to {length}")
        overwrite(file, original)
    assert target.refused == target.tried > count(240, 5_500)


def test_bytes_after_the_end_of_a_file_name_the_file(target: Target) -> None:
    for file in target.files:
        original = file.read_bytes()
        for extra in [b"\0", b"\n", b" ", b"}", bytes(512), original]:
            overwrite(file, original + extra)
            target.check(file, f"{len(extra)} bytes longer")
        os.truncate(file, len(original))
    assert target.refused == target.tried


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"x"])
def test_every_block_of_512_bytes_filled_with_something_else_is_noticed(target: Target, fill: bytes) -> None:
    for file in target.files:
        original = file.read_bytes()
        for low in range(0, len(original), 512):
            block = original[low : low + 512]
            overwrite(file, original[:low] + fill * len(block) + original[low + 512 :])
            target.check(file, f"block at {low} filled with {fill!r}")
        overwrite(file, fill * len(original))
        target.check(file, f"wholly {fill!r}")
        overwrite(file, original)
    assert target.refused > 0.9 * target.tried


def test_every_pair_of_files_swapped_names_one_of_them(target: Target) -> None:
    for one, other in itertools.combinations(target.files, 2):
        if one.suffix == other.suffix:
            first, second = one.read_bytes(), other.read_bytes()
            one.write_bytes(second)
            other.write_bytes(first)
            for file in (one, other):
                for generation in target.readers[file]:
                    with pytest.raises(CorruptError, match=f"{one.name}|{other.name}"):
                        answer(target.path, generation)
                    target.tried += 1
            one.write_bytes(first)
            other.write_bytes(second)
    assert target.tried >= 8


def in_place_of(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def replace(file: Path) -> None:
        file.unlink()
        make(file)

    return replace


REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "nothing": lambda file: file.unlink(),
    "an empty file": lambda file: os.truncate(file, 0),
    "a directory": in_place_of(lambda file: file.mkdir()),
    "a fifo": in_place_of(lambda file: os.mkfifo(file)),
    "a socket or device": in_place_of(lambda file: os.mknod(file, 0o140644)),
    "a link to nowhere": in_place_of(lambda file: file.symlink_to("nowhere")),
    "a link to itself": in_place_of(lambda file: file.symlink_to(file.name)),
    "a link to /dev/zero": in_place_of(lambda file: file.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("kind", REPLACEMENTS)
def test_something_else_in_place_of_a_file_names_the_file_and_never_blocks(target: Target, kind: str) -> None:
    for file in target.files:
        original = file.read_bytes()
        REPLACEMENTS[kind](file)
        # Without the newest manifest the one before it is the newest, which nobody can tell; by number it is missed.
        generation = target.readers[file][0]
        expected = MissingError if kind == "nothing" else ReadError
        with pytest.raises(expected, match=re.escape(str(file))):
            answer(target.path, generation)
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink(missing_ok=True)
        file.write_bytes(original)
    assert answer(target.path) == target.answers[max(target.answers)]


def test_a_link_to_the_right_bytes_is_refused(target: Target, tmp_path: Path) -> None:
    for file in target.files:
        moved = tmp_path / file.name
        shutil.move(file, moved)
        file.symlink_to(moved)
        with pytest.raises(CorruptError, match=re.escape(str(file))):
            answer(target.path, target.readers[file][0])
        file.unlink()
        shutil.move(moved, file)


def test_files_of_another_data_set_with_the_same_records_are_refused(target: Target, tmp_path: Path) -> None:
    make_store(tmp_path / "twin")
    for kind in ("chunk", "redirect"):
        mine, theirs = (sorted((path / kind).iterdir()) for path in (target.path, tmp_path / "twin"))
        assert sorted(f.stat().st_size for f in mine) == sorted(f.stat().st_size for f in theirs)
        for file in mine:
            original = file.read_bytes()
            for other in theirs:
                file.write_bytes(other.read_bytes())
                target.check(file, "of another data set")
            file.write_bytes(original)
    assert target.refused == target.tried


def test_a_whole_directory_that_is_missing_or_a_file_is_an_error(target: Target) -> None:
    for kind in ("manifest", "chunk", "redirect"):
        folder, aside = target.path / kind, target.path / "aside"
        makers: list[Callable[[Path], object]] = [
            lambda p: p.symlink_to(p.name), lambda p: p.write_bytes(b""), os.mkfifo, lambda p: p.symlink_to("no"), lambda _: None
        ]  # fmt: skip
        folder.rename(aside)
        for make in makers:
            make(folder)
            with pytest.raises(ReadError, match=re.escape(str(target.path))):
                answer(target.path)
            with pytest.raises(ReadError, match=re.escape(str(target.path))):
                answer(target.path, 1 if kind == "manifest" else 2)
            folder.unlink(missing_ok=True)
        aside.rename(folder)
    assert answer(target.path) == target.answers[max(target.answers)]


def test_damage_is_noticed_where_files_are_read_by_pread(target: Target) -> None:
    target.io = "pread"
    for file in target.files:
        original = file.read_bytes()
        for offset in range(0, len(original), count(43, 7)):
            overwrite(file, original[:offset] + bytes([original[offset] ^ 0x10]) + original[offset + 1 :])
            target.check(file, f"byte {offset}")
        overwrite(file, original)
        for length in range(0, len(original), count(187, 31)):
            os.truncate(file, length)
            target.check(file, f"cut to {length}")
            overwrite(file, original)
    assert target.refused > 0.8 * target.tried > count(120, 800)


def regions(path: Path) -> Iterator[tuple[Path, str, int, int]]:
    """File, field name, and first and last byte of every region of stored records."""
    for file in sorted((path / "chunk").iterdir()):
        data = file.read_bytes()
        count = int.from_bytes(data[-40:-36], "little")
        for i in range(count):
            entry = data[len(data) - 64 - 184 * (count - i) :]
            number, offset, size = (int.from_bytes(entry[low:high], "little") for low, high in ((0, 4), (16, 24), (24, 32)))
            yield file, list(FIELDS)[number], offset, offset + size


def test_verify_names_file_field_and_rows_of_every_damaged_byte_of_records(target: Target) -> None:
    assert pen.verify(target.path) == []
    tried = 0
    for file, field, low, high in regions(target.path):
        original = file.read_bytes()
        for offset in range(low, high, count(7, 1)):
            overwrite(file, original[:offset] + bytes([original[offset] ^ 4]) + original[offset + 1 :])
            (problem,) = pen.verify(target.path)
            assert problem.file == str(file)
            assert f"field {field!r}, row" in problem.what
            tried += 1
        overwrite(file, original)
    assert tried > count(28, 200)


def test_verify_names_every_damaged_field_of_a_chunk(target: Target) -> None:
    damaged = [(file, field, low) for file, field, low, high in regions(target.path) if high > low]
    for file, _, low in damaged:
        original = file.read_bytes()
        overwrite(file, original[:low] + bytes([original[low] ^ 1]) + original[low + 1 :])
    text = "\n".join(f"{problem.file}: {problem.what}" for problem in pen.verify(target.path))
    for file, field, _ in damaged:
        assert re.search(rf"{file.name}.*field {field!r}, row", text), f"{field} of {file.name}"


def test_verify_names_the_file_of_damage_anywhere(target: Target) -> None:
    newest = max(target.answers)
    for file in target.files:
        if target.readers[file] == [newest]:
            original = file.read_bytes()
            for offset in (0, len(original) // 2, len(original) - 2):
                overwrite(file, original[:offset] + bytes([original[offset] ^ 1]) + original[offset + 1 :])
                problems = pen.verify(target.path)
                if answer_or_none(target.path) != target.answers[newest]:
                    assert any(str(file) in f"{p.file} {p.what}" for p in problems), (file.name, offset, problems)
            overwrite(file, original)


def answer_or_none(path: Path) -> Answer | None:
    try:
        return answer(path)
    except pen.PenstockError:
        return None


def test_a_damaged_newest_manifest_is_an_error_that_names_the_generation_before(target: Target) -> None:
    newest = max(target.files, key=lambda file: (file.suffix == ".json", file.name))
    overwrite(newest, newest.read_bytes().replace(b'"length":6', b'"length":5'))
    with pytest.raises(CorruptError, match="generation 1 can be opened by name"):
        pen.open(target.path)
    assert answer(target.path, 1) == target.answers[1]


def test_damage_without_verification_may_pass_but_never_crashes(target: Target) -> None:
    for file in target.files:
        original = file.read_bytes()
        for offset in range(0, len(original), count(31, 5)):
            overwrite(file, original[:offset] + bytes([original[offset] ^ 0x80]) + original[offset + 1 :])
            try:
                pen.open(target.path, threads=1, verify=False).read(slice(None))
            except pen.PenstockError:
                target.refused += 1
        overwrite(file, original)
    assert target.refused > count(15, 100)


@pytest.mark.parametrize("io", ["map", "pread", "direct"])
@pytest.mark.parametrize("codec", [pen.Raw(), pen.Zstd()], ids=repr)
def test_errors_name_the_field_the_record_and_the_file(tmp_path: Path, codec: Codec, io: str) -> None:
    path, noise = tmp_path / "a.pen", np.random.default_rng(0).integers(0, 256, (30, 4096), np.uint8)
    with pen.create(path, {"größe in mm": pen.Field("u1", (4096,), codec=codec)}, chunk_records=10) as out:
        out.extend({"größe in mm": noise})  # which no codec makes smaller: row 7 of a chunk is where one expects it
    for chunk in (path / "chunk").iterdir():
        data = bytearray(chunk.read_bytes())
        data[64 + 7 * 4096] ^= 1
        chunk.write_bytes(data)
    with pen.open(path, io=io) as store:
        assert np.array_equal(store["größe in mm"][16], noise[16])
        with pytest.raises(CorruptError, match=r"a\.pen/chunk/.*: field 'größe in mm', record 17, rows 7 to 7: the crc"):
            store["größe in mm"][[16, 17]]
        with (
            pen.Loader(store.in_order(), batch_size=10) as loader,
            pytest.raises(pen.PenstockError, match="'größe in mm', record 7"),
        ):
            next(iter(loader))
    assert [problem.what for problem in pen.verify(path)] == ["field 'größe in mm', rows 7 to 7: the crc does not match"] * 3
