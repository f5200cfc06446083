"""Token files of Megatron, OLMo, nanoGPT, datatrove and LitData: read as those who wrote them mean it, or refused."""

import gzip
import itertools
import json
import os
import pickle
import resource
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import count
from tests.formats import token_files as made
from tests.golden.make_token_files import DIRECTORY as GOLDEN
from tests.golden.make_token_files import DOCUMENTS, MASKS, SENTENCES

import penstock as pen
from penstock.errors import (
    BatchError,
    BatchTooLargeError,
    CorruptError,
    EmptyFileError,
    FormatError,
    MissingError,
    PenstockError,
    SchemaMismatchError,
    SizeOverflowError,
    SourceChangedError,
    TrailingBytesError,
    TruncatedError,
    UnsafePathError,
    UnsupportedTypeError,
    UnsupportedVersionError,
)
from penstock.formats import megatron, token_line
from penstock.formats.tokens_writer import write_documents, write_tokens
from penstock.records import Source
from penstock.remote.url import UrlPath, url_path
from penstock.source import open_blend
from penstock.testing import SourceSuite
from penstock.testing.source_suite import assert_batch

RNG = np.random.default_rng(5)
LENGTHS = (9, 1, 0, 40, 17, 0, 3)
PARTS = [[RNG.integers(0, 50_000, length) for length in lengths] for lengths in (LENGTHS, (5,), LENGTHS[::-1])]
"""Documents of three files."""

Record = dict[str, Any]


def typed(dtype: str, parts: Sequence[Sequence[np.ndarray]] = PARTS) -> list[list[np.ndarray]]:
    return [[document.astype(dtype) for document in part] for part in parts]


def as_records(parts: Sequence[Sequence[np.ndarray]]) -> list[Record]:
    return [{"tokens": document.astype(document.dtype.newbyteorder("="))} for part in parts for document in part]


def blocks(parts: Sequence[np.ndarray], size: int) -> list[Record]:
    return [{"tokens": tokens[low : low + size]} for tokens in parts for low in range(0, len(tokens), size)]


# What every source promises


class TestMegatron(SourceSuite):
    def make(self, directory: Path) -> Source:
        for number, documents in enumerate(typed("<u2")):
            made.write_megatron(directory / f"part-{number}_text_document", documents)
        return pen.open(directory)

    def records(self) -> list[Record]:
        return as_records(typed("<u2"))


class TestMegatronByPread(TestMegatron):
    def make(self, directory: Path) -> Source:
        for number, documents in enumerate(typed("<i4")):
            made.write_megatron(directory / f"{number}", documents)
        return pen.open([directory / "0", directory / "1", directory / "2"], io="pread", threads=1)

    def records(self) -> list[Record]:
        return as_records(typed("<i4"))


class TestMegatronOutOfOrder(SourceSuite):
    """Sequences that are anywhere in the .bin, overlap, and leave something out."""

    lengths, pointers = (3, 0, 5, 5, 2, 4), (40, 7, 0, 10, 20, 31)

    def make(self, directory: Path) -> Source:
        (directory / "x.bin").write_bytes(bytes(range(46)))
        index = made.megatron_index(self.lengths, np.dtype("<u2"), pointers=self.pointers)
        (directory / "x.idx").write_bytes(index)
        return pen.open(directory / "x.idx", scattered=True)

    def records(self) -> list[Record]:
        data = bytes(range(46))
        spans = zip(self.pointers, self.lengths, strict=True)
        return [{"tokens": np.frombuffer(data[at : at + 2 * count], "<u2")} for at, count in spans]


class TestMegatronScattered(TestMegatronOutOfOrder):
    """The same where nothing is at the end, nor at the beginning."""

    def make(self, directory: Path) -> Source:
        super().make(directory).close()
        (directory / "x.bin").write_bytes(bytes(range(61)))
        return pen.open(directory / "x.idx", scattered=True)


class TestMegatronDocuments(SourceSuite):
    """Documents of several sequences, and of none."""

    firsts = (0, 2, 2, 3, 7)

    def make(self, directory: Path) -> Source:
        documents = typed("<u2")[0]
        (directory / "x.bin").write_bytes(np.concatenate(documents).tobytes())
        index = made.megatron_index([len(one) for one in documents], np.dtype("<u2"), documents=self.firsts)
        (directory / "x.idx").write_bytes(index)
        return pen.open(directory / "x", records="document")

    def records(self) -> list[Record]:
        documents = typed("<u2")[0]
        none = np.empty(0, "<u2")
        return [{"tokens": np.concatenate([none, *documents[low:high]])} for low, high in itertools.pairwise(self.firsts)]


class TestNoSequences(SourceSuite):
    def make(self, directory: Path) -> Source:
        (directory / "x.bin").write_bytes(b"")
        (directory / "x.idx").write_bytes(made.megatron_index([], np.dtype("<u2")))
        return pen.open(directory / "x.idx")

    def records(self) -> list[Record]:
        return []


class TestFlat(SourceSuite):
    """nanoGPT's."""

    def make(self, directory: Path) -> Source:
        for name, documents in zip("abc", typed("<u2"), strict=True):
            (directory / f"{name}.bin").write_bytes(np.concatenate(documents).tobytes())
        return pen.open(f"{directory}/*.bin", dtype=np.uint16, block_size=10)

    def records(self) -> list[Record]:
        return blocks([np.concatenate(documents) for documents in typed("<u2")], 10)


class TestFlatOfOneSize(SourceSuite):
    """OLMo's, of the other byte order."""

    def make(self, directory: Path) -> Source:
        (directory / "a.npy").write_bytes(np.arange(60, dtype=">u4").tobytes())
        return pen.open(directory / "a.npy", dtype=">u4", block_size=12, field="text")

    def records(self) -> list[Record]:
        return [{"text": np.arange(low, low + 12, dtype=np.uint32)} for low in range(0, 60, 12)]


class TestFlatDocuments(SourceSuite):
    def make(self, directory: Path) -> Source:
        for name, documents in zip("abc", typed("<u4"), strict=True):
            made.write_olmo(directory / f"{name}.npy", documents)
        return pen.open(directory, documents=True, dtype="uint32")

    def records(self) -> list[Record]:
        return as_records(typed("<u4"))


class TestFlatBySeparator(SourceSuite):
    """Documents that end with two tokens, or with their file."""

    lines = ([7, 8, 1, 2, 7, 8, 7, 7, 8, 8, 3], [8, 7], [7, 8, 7, 8], [])

    def make(self, directory: Path) -> Source:
        for name, line in zip("abcd", self.lines, strict=True):
            (directory / f"{name}.npy").write_bytes(np.array(line, ">u2").tobytes() or b"\0\1")
        return pen.open(f"{directory}/*.npy", dtype=">u2", separator=[7, 8])

    def records(self) -> list[Record]:
        documents = ([7, 8], [1, 2, 7, 8], [7, 7, 8], [8, 3], [8, 7], [7, 8], [7, 8], [1])
        return [{"tokens": np.array(one, np.uint16)} for one in documents]


class TestDatatrove(SourceSuite):
    def make(self, directory: Path) -> Source:
        for name, documents in zip("abc", typed("<u2"), strict=True):
            made.write_datatrove(directory / f"{name}.ds", documents)
        return pen.open(directory)

    def records(self) -> list[Record]:
        return as_records(typed("<u2"))


class TestDatatroveWithMasks(SourceSuite):
    masks = [[document % 2 for document in part] for part in PARTS]  # noqa: RUF012

    def make(self, directory: Path) -> Source:
        for name, documents, masks in zip("abc", typed("<u4"), self.masks, strict=True):
            made.write_datatrove(directory / f"{name}.ds", documents, masks)
        return pen.open(f"{directory}/*.ds")

    def records(self) -> list[Record]:
        masks = [mask.astype(np.uint8) for part in self.masks for mask in part]
        return [one | {"loss_mask": mask} for one, mask in zip(as_records(typed("<u4")), masks, strict=True)]


class TestLitData(SourceSuite):
    def make(self, directory: Path) -> Source:
        made.write_litdata(directory, typed("<i4"), "no_header_tensor:16")
        return pen.open(directory)

    def records(self) -> list[Record]:
        return as_records(typed("<i4"))


# Files of those who own the formats


GOLDEN_FILES: dict[str, tuple[Any, dict[str, Any], list[np.ndarray], str]] = {
    "megatron": ("megatron/plain.idx", {}, DOCUMENTS["plain"], "uint16"),
    "megatron, prefix": ("megatron/wide", {}, DOCUMENTS["wide"], "int32"),
    "megatron, bin": ("megatron/more.bin", {}, DOCUMENTS["more"], "uint16"),
    "megatron, merged": ("megatron/merged.idx", {}, DOCUMENTS["plain"] + DOCUMENTS["more"], "uint16"),
    "olmo": ("olmo/plain.npy", {"documents": True}, DOCUMENTS["plain"], "uint16"),
    "olmo, wide": ("olmo/wide.npy", {"documents": True}, DOCUMENTS["wide"], "uint32"),
    "datatrove": ("datatrove/plain.ds", {}, DOCUMENTS["plain"], "uint16"),
    "datatrove, wide": ("datatrove/wide.ds", {}, DOCUMENTS["wide"], "uint32"),
    "datatrove, masks left out": ("datatrove/masked.ds", {"loss": False}, DOCUMENTS["plain"], "uint16"),
    "litdata, tensors": ("litdata/wide", {}, DOCUMENTS["wide"], "int32"),
    "litdata, arrays": ("litdata/plain", {}, DOCUMENTS["plain"], "uint16"),
}


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_files_of_the_real_packages_are_read_bit_for_bit(name: str) -> None:
    what, options, documents, dtype = GOLDEN_FILES[name]
    with pen.open(GOLDEN / what, **options) as source:
        assert source.schema == {"tokens": pen.Field.ragged(dtype)}
        found = source["tokens"][:]
        assert [one.tolist() for one in found] == [one.tolist() for one in documents]
        line = source.read_tokens([0], source.num_tokens)[0]
        assert line.tolist() == np.concatenate(documents).tolist()
        assert source.document_bounds.tolist() == np.cumsum([0, *map(len, documents)]).tolist()


def test_documents_of_several_sequences_are_read_as_megatron_has_them() -> None:
    with pen.open(GOLDEN / "megatron/sentences.idx") as source:
        assert [one.tolist() for one in source["tokens"][:]] == [one.tolist() for one in DOCUMENTS["plain"]]
    edges = np.cumsum([0, *SENTENCES])
    with pen.open(GOLDEN / "megatron/sentences.idx", records="document") as source:
        expected = [[t for one in DOCUMENTS["plain"][low:high] for t in one.tolist()] for low, high in itertools.pairwise(edges)]
        assert [one.tolist() for one in source["tokens"][:]] == expected


def test_loss_masks_of_datatrove_are_a_field_of_the_same_records() -> None:
    with pen.open(GOLDEN / "datatrove/masked.ds") as source:
        assert [one.tolist() for one in source["tokens"][:]] == [one.tolist() for one in DOCUMENTS["plain"]]
        assert [one.tolist() for one in source["loss_mask"][:]] == [one.astype(int).tolist() for one in MASKS]
    with pytest.raises(MissingError, match=r"plain\.ds\.loss: .* leave loss out"):
        pen.open(GOLDEN / "datatrove/plain.ds", loss=True)


def test_a_datatrove_file_without_an_index_is_read_in_blocks_of_the_type_in_its_metadata() -> None:
    line = np.concatenate(DOCUMENTS["more"])
    with pen.open(GOLDEN / "datatrove/bare.ds", block_size=50) as source:
        assert source.dtype == np.uint16
        assert source["tokens"][:].lengths.tolist() == [50, 50, 50, 47]
        assert source.read_tokens([0], line.size)[0].tolist() == line.tolist()
        assert source.document_bounds is None


# One line of tokens, as .rox has it


FORMATS: dict[str, Callable[[Path], Any]] = {
    "megatron": lambda directory: f"{directory}/m-*.idx",
    "olmo": lambda directory: f"{directory}/o-*.npy",
    "nanogpt": lambda directory: f"{directory}/n-*.bin",
    "llm.c": lambda directory: f"{directory}/c-*.bin",
    "datatrove": lambda directory: f"{directory}/d-*.ds",
    "litdata": lambda directory: directory / "litdata",
}
OPTIONS: dict[str, dict[str, Any]] = {"olmo": {"dtype": "uint16"}, "nanogpt": {"dtype": "uint16"}}


@pytest.fixture(scope="module")
def every_format(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokens in files of every format, and in .rox."""
    directory = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(11)
    parts = [[rng.integers(0, 60_000, length).astype("<u2") for length in rng.integers(0, 90, 40)] for _ in range(3)]
    for name, documents in zip("abc", parts, strict=True):
        line = np.concatenate(documents)
        made.write_megatron(directory / f"m-{name}", documents)
        made.write_olmo(directory / f"o-{name}.npy", documents)
        (directory / f"n-{name}.bin").write_bytes(line.tobytes())
        made.write_llm_c(directory / f"c-{name}.bin", line)
        made.write_datatrove(directory / f"d-{name}.ds", documents)
    made.write_litdata(directory / "litdata", parts, "no_header_numpy:5")
    write_tokens([one for part in parts for one in part], directory / "all.rox", block_size=64)
    return directory


def batches(stream: Any) -> list[dict[str, Any]]:
    with pen.Loader(stream, 3) as loader:
        assert loader.engine == "native"
        return [{name: value.tolist() for name, value in batch.items()} for batch in itertools.islice(loader, 40)]


@pytest.mark.parametrize("name", FORMATS)
def test_sequences_are_those_of_rox(every_format: Path, name: str) -> None:
    with pen.open(every_format / "all.rox") as rox, pen.open(FORMATS[name](every_format), **OPTIONS.get(name, {})) as source:
        assert (source.num_tokens, source.dtype) == (rox.num_tokens, rox.dtype)
        for stream in (lambda data: data.shuffle(seed=3), lambda data: data.in_order()):
            assert batches(stream(source).sequences(32)) == batches(stream(rox).sequences(32))
            marked = {"separator": 7, "documents": True}
            assert batches(stream(source).sequences(20, **marked)) == batches(stream(rox).sequences(20, **marked))
        starts = np.random.default_rng(1).integers(0, source.num_tokens - 300, 20)
        assert np.array_equal(source.read_tokens(starts, 300), rox.read_tokens(starts, 300))
        assert source.documents(7).tolist() == rox.documents(7).tolist()
        assert source.steps_per_epoch(4, 32) == rox.steps_per_epoch(4, 32)
        twin = pickle.loads(pickle.dumps(source))
        assert np.array_equal(twin.read_tokens([5], 300), rox.read_tokens([5], 300))


@pytest.mark.parametrize("name", ["megatron", "datatrove", "litdata"])
def test_documents_of_sequences_are_those_of_the_file(every_format: Path, name: str) -> None:
    """Without a separator: every token has the number of its document in the sequence, and its place there."""
    with pen.open(FORMATS[name](every_format)) as source:
        bounds = source.document_bounds
        for stream in (source.in_order(), source.shuffle(seed=5)):
            for length in (16, 25):
                sequences = stream.sequences(length, documents=True)
                plain = batches(stream.sequences(length))
                for number, batch in enumerate(batches(sequences)):
                    assert batch["tokens"] == plain[number]["tokens"]
                    picks = sequences.locate_at(0, np.arange(3) * length + number * 3 * length)
                    for row in range(3):
                        low, high = picks.first[row], picks.first[row + 1]
                        places = np.concatenate(
                            [np.arange(s, s + c) for s, c in zip(picks.starts[low:high], picks.counts[low:high], strict=True)]
                        )
                        document = np.searchsorted(bounds, places, side="right") - 1
                        begins = np.flatnonzero((np.diff(document, prepend=-1) != 0) | (np.diff(places, prepend=-5) != 1))
                        segment = np.searchsorted(begins, np.arange(length), side="right") - 1
                        assert batch["segment"][row] == segment.tolist()
                        assert batch["position"][row] == (np.arange(length) - begins[segment]).tolist()
        with pytest.raises(ValueError, match="documents=True needs the separator"):
            pen.open(every_format / "all.rox").in_order().sequences(16, documents=True)


@pytest.mark.parametrize("name", ["megatron", "datatrove", "litdata"])
def test_records_are_documents_shuffled_selected_mapped_and_banned(every_format: Path, name: str) -> None:
    with pen.open(FORMATS[name](every_format)) as source:
        bounds, line = source.document_bounds, source.read_tokens([0], source.num_tokens)[0]
        documents = [line[low:high].tolist() for low, high in itertools.pairwise(bounds)]
        assert source.has_documents("tokens")
        assert source.lengths("tokens", np.arange(len(source))).tolist() == np.diff(bounds).tolist()
        stream = source.shuffle(seed=2)
        with pen.Loader(stream, 7) as loader:
            assert loader.engine == "native"
            found = [one.tolist() for batch in itertools.islice(loader, 17) for one in batch["tokens"]]
        assert found == [documents[one] for one in stream.order.indices(0, 0, 17 * 7).tolist()]
        part = source.select(slice(5, 60))
        assert [one.tolist() for one in part["tokens"][:]] == documents[5:60]
        assert batches(part.in_order().sequences(8))[0]["tokens"][0] == line[bounds[5] : bounds[5] + 8].tolist()
        banned = source.shuffle(seed=2).sequences(10).without([3, 4, 80])
        begins, counts = source.token_ranges(np.array([3, 4, 80]))
        gone = {place for low, count in zip(begins.tolist(), counts.tolist(), strict=True) for place in range(low, low + count)}
        picks = banned.locate_at(0, np.arange(0, banned.axis - 20, 10))
        taken = {p for s, c in zip(picks.starts.tolist(), picks.counts.tolist(), strict=True) for p in range(s, s + c)}
        assert gone
        assert not gone & taken


def test_documents_by_separator_are_those_of_packs_by_separator(every_format: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens are searched at a time."""
    line = np.fromfile(every_format / "n-a.bin", U2)
    separator = int(np.bincount(line % 64).argmax())
    (every_format / "s.bin").write_bytes((line % 64).tobytes())
    ends = [*(np.flatnonzero(line % 64 == separator) + 1).tolist(), line.size]
    for scanned in (2, 6, 8 << 20):
        monkeypatch.setattr(token_line, "SCAN_BYTES", scanned)
        with pen.open(every_format / "s.bin", dtype="u2", separator=separator) as source:
            assert source.document_bounds.tolist() == [0, *dict.fromkeys(ends)]
            with pen.open(every_format / "s.bin", dtype="u2") as flat:
                packs = flat.shuffle(seed=3).pack(16, separator=separator, window=9)
                assert packs.packing.bounds.tolist() == source.document_bounds.tolist()
    for separator, options, kind, words in (
        (70_000, {}, ValueError, "70000"),
        ([], {}, ValueError, "at least one"),
        ("x", {}, TypeError, "str"),
        (3, {"documents": True}, ValueError, "got both"),
    ):
        with pytest.raises(kind, match=words):
            pen.open(every_format / "s.bin", dtype="u2", separator=separator, **options)


def test_a_document_can_be_named(every_format: Path) -> None:
    cases = {"megatron": "m-b.bin[1]", "datatrove": "d-b.ds[1]", "litdata": "chunk-0-1.bin[1]"}
    for name, expected in cases.items():
        with pen.open(FORMATS[name](every_format)) as source:
            assert source.document_name(41).endswith(expected)
            with pytest.raises(ValueError, match="document must be in"):
                source.document_name(120)
    with pen.open(f"{every_format}/o-*.npy", documents=True) as source:
        assert source.document_name(41).endswith("o-b.npy[1] id-1,corpus,1")


# At URLs


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> UrlPath:
    return url_path(f"memory://{request.node.name.partition('[')[0]}-{abs(hash(request.node.name))}")


def upload(directory: Path, place: UrlPath) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            target = place / str(path.relative_to(directory))
            target.objects.put(target.key, path.read_bytes())


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_at_urls(every_format: Path, bucket: UrlPath, name: str) -> None:
    upload(every_format, bucket)
    options = OPTIONS.get(name, {})
    what = FORMATS[name](every_format)
    url = str(what).replace(str(every_format), str(bucket))
    with pen.open(what, **options) as local, pen.open(url, **options) as remote:
        assert (remote.fingerprint, len(remote), remote.schema) == (local.fingerprint, len(local), local.schema)
        assert remote.remote is not None
        ids = np.random.default_rng(3).integers(0, len(local), 50)
        assert_batch(remote[ids], [{"tokens": local["tokens"][i]} for i in ids.tolist()])
        for part in (remote, pickle.loads(pickle.dumps(remote))):
            how = {"seed": 4, "block": 8, "window": 2}
            assert batches(part.shuffle(**how).sequences(16)) == batches(local.shuffle(**how).sequences(16))
            if local.document_bounds is not None:
                assert part.document_bounds.tolist() == local.document_bounds.tolist()
                assert batches(part.shuffle(**how).sequences(16, documents=True)) == batches(
                    local.shuffle(**how).sequences(16, documents=True)
                )


@pytest.mark.parametrize(
    ("what", "options", "expected"),
    [
        ("d-*.ds", {}, {"LIST": 2, "GET": 8}),  # what is next to them, and the end of every index
        ("d-*.ds", {"loss": False}, {"LIST": 2, "GET": 8}),
        ("bare-*.ds", {}, {"LIST": 2, "GET": 8}),  # without an index, the metadata
        ("m-*.idx", {}, {"LIST": 2, "GET": 8}),  # the beginning of every index
        ("n-*.bin", {"dtype": "uint16"}, {"LIST": 2, "HEAD": 1, "GET": 9}),  # that they are nothing else is seen in the first
        ("o-*.npy", {"dtype": "uint16", "documents": True}, {"LIST": 2, "GET": 16}),
    ],
)
def test_files_at_urls_are_opened_by_few_requests(
    tmp_path: Path, bucket: UrlPath, what: str, options: dict[str, Any], expected: dict[str, int]
) -> None:
    """Of eight files: a listing says which are there and what is next to them."""
    documents = typed("<u2")[0]
    line = np.concatenate(documents)
    for number in range(8):
        made.write_datatrove(tmp_path / f"d-{number}.ds", documents, documents)
        (tmp_path / f"bare-{number}.ds").write_bytes(line.tobytes())
        for name in ("d", "bare"):
            (tmp_path / f"{name}-{number}.ds.metadata").write_text(f"gpt2|2\n{line.size}\n")
        made.write_megatron(tmp_path / f"m-{number}", documents)
        (tmp_path / f"n-{number}.bin").write_bytes(line.tobytes())
        made.write_olmo(tmp_path / f"o-{number}.npy", documents)
    place = bucket / what.replace("*", "x")
    upload(tmp_path, place.parent)
    log: list[tuple[str, ...]] = []
    place.objects.account.log = log
    with pen.open(f"{bucket}/{what}", **options) as source:
        assert source.num_tokens == 8 * line.size
        asked = Counter(method for method, *_ in log)
        assert asked == expected
        assert np.array_equal(source.read_tokens([0], 8 * line.size)[0], np.tile(line, 8))


def test_megatron_opens_by_prefix_name_pattern_and_list_at_urls_and_on_disk(every_format: Path, bucket: UrlPath) -> None:
    upload(every_format, bucket)
    for base in (str(every_format), str(bucket)):
        for what in (f"{base}/m-a", f"{base}/m-a.bin", f"{base}/m-a.idx"):
            with pen.open(what) as source:
                assert isinstance(source, megatron.MegatronTokens)
                assert len(source) == 40
        for many in (f"{base}/m-*.idx", f"{base}/m-*.bin", f"{base}/m-*", [f"{base}/m-{name}.idx" for name in "abc"]):
            with pen.open(many) as source:
                assert isinstance(source, megatron.MegatronTokens)
                assert len(source) == 120
        with pen.open([f"{base}/m-a.idx", f"{base}/m-a.idx"]) as twice:
            assert len(twice) == 80
        with pytest.raises(MissingError):
            pen.open(f"{base}/m-nothing")
    with pen.open([every_format / f"m-{name}" for name in "ab"]) as source:
        assert len(source) == 80


def test_directories_of_token_files_open_whole(tmp_path: Path) -> None:
    documents = typed("<u2")[0]
    for name in ("megatron", "olmo", "datatrove", "flat"):
        (tmp_path / name).mkdir()
    made.write_megatron(tmp_path / "megatron/x", documents)
    made.write_olmo(tmp_path / "olmo/x.npy", documents)
    made.write_datatrove(tmp_path / "datatrove/x.ds", documents, documents)
    (tmp_path / "flat/x.bin").write_bytes(np.concatenate(documents).tobytes())
    for name, options in {"megatron": {}, "olmo": {"documents": True}, "datatrove": {"loss": False}}.items():
        with pen.open(tmp_path / name, **options) as source:
            assert len(source) == len(documents)
    with pen.open(tmp_path / "flat", dtype="uint16") as source:
        assert source.num_tokens == 70
    for split in ("train", "val"):
        made.write_litdata(tmp_path / "splits" / split, [documents], "no_header_numpy:5")
    assert f"open {tmp_path}/splits/train" in refusal(tmp_path / "splits", FormatError)
    assert list(pen.open(tmp_path / "flat").schema) == ["data", "path"], "a folder of files called .bin stays one"


# Types that cannot be known, and files that are something else


def refusal(what: Any, kind: type[Exception], **options: Any) -> str:
    with pytest.raises(kind) as caught, pen.open(what, **options) as source:
        source[:]
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_type_that_is_not_known_must_be_given(tmp_path: Path) -> None:
    tokens = np.arange(1000, dtype="<u2")
    for name in ("a.npy", "a.bin"):
        (tmp_path / name).write_bytes(tokens.tobytes())
        assert "dtype='uint16'" in refusal(tmp_path / name, FormatError)
        with pen.open(tmp_path / name, dtype="uint16") as source:
            assert source.read_tokens([0], 1000)[0].tolist() == tokens.tolist()
    (tmp_path / "a.ds").write_bytes(tokens.tobytes())
    assert "a.ds.index or .metadata" in refusal(tmp_path / "a.ds", FormatError)
    with pytest.raises(ValueError, match="dtype must be a type of whole numbers"):
        pen.open(tmp_path / "a.npy", dtype="float32")


def test_tokens_read_as_another_type_are_refused_unless_the_vocabulary_allows_them(tmp_path: Path) -> None:
    narrow, wide = RNG.integers(0, 50_000, 4000).astype("<u2"), RNG.integers(0, 100_000, 4000).astype("<u4")
    (tmp_path / "narrow.npy").write_bytes(narrow.tobytes())
    (tmp_path / "wide.npy").write_bytes(wide.tobytes())
    assert "not in any vocabulary" in refusal(tmp_path / "narrow.npy", FormatError, dtype="uint32")
    assert "as in tokens of 4 bytes" in refusal(tmp_path / "wide.npy", FormatError, dtype="uint16")
    assert "a vocabulary of 50000" in refusal(tmp_path / "wide.npy", FormatError, dtype="uint32", vocab_size=50_000)
    assert "any vocabulary" in refusal(tmp_path / "wide.npy", FormatError, dtype=">u4")
    with pen.open(tmp_path / "narrow.npy", dtype="uint32", vocab_size=2**32) as source:
        assert source.num_tokens == 2000
    assert "as in tokens of 4 bytes" in refusal(tmp_path / "wide.npy", FormatError, dtype="uint16", vocab_size=2**16)
    with pen.open(tmp_path / "wide.npy", dtype="uint16", check=False) as source:
        assert source.num_tokens == 8000
    assert "a vocabulary of 9" in refusal(tmp_path / "wide.npy", FormatError, dtype="uint16", vocab_size=9, check=False)
    small = RNG.integers(0, 50_000, 4000).astype("<u4")
    (tmp_path / "small.npy").write_bytes(small.tobytes())
    text = refusal(tmp_path / "small.npy", FormatError, dtype="uint16", vocab_size=50_257)
    assert "as in tokens of 4 bytes" in text
    assert "check=False" in text
    (tmp_path / "odd.npy").write_bytes(narrow.tobytes()[:-1])
    assert "no whole number" in refusal(tmp_path / "odd.npy", TruncatedError, dtype="uint16")


def test_types_that_a_file_tells_itself_are_not_doubted(tmp_path: Path) -> None:
    """Every second token is small, as in tokens of 4 bytes; but the index, the table or the header says that they have 2."""
    documents = [np.stack([RNG.integers(0, 50_000, 200), np.zeros(200, np.int64)], axis=1).reshape(-1).astype("<u2")]
    made.write_olmo(tmp_path / "x.npy", documents)
    made.write_datatrove(tmp_path / "x.ds", documents)
    made.write_llm_c(tmp_path / "x.bin", documents[0])
    for name, options in {"x.npy": {"documents": True}, "x.ds": {}, "x.bin": {}}.items():
        with pen.open(tmp_path / name, **options) as source:
            assert source.read_tokens([0], 400)[0].tolist() == documents[0].tolist()
        assert "vocabulary of 100" in refusal(tmp_path / name, FormatError, vocab_size=100, **options)
    (tmp_path / "x.ds.index").unlink()
    assert "as in tokens of 4 bytes" in refusal(tmp_path / "x.ds", FormatError, dtype="uint16")


def test_real_arrays_and_headerless_ones_are_never_confused(tmp_path: Path) -> None:
    np.save(tmp_path / "real.npy", np.arange(10, dtype=np.uint16))
    assert "a .npy file with a header: leave dtype out" in refusal(tmp_path / "real.npy", FormatError, dtype="uint16")
    with pen.open(tmp_path / "real.npy") as source:
        assert source["data"][:].tolist() == list(range(10))
    (tmp_path / "flat.npy").write_bytes(np.arange(10, dtype=np.uint16).tobytes())
    assert "OLMo" in refusal(tmp_path / "flat.npy", FormatError)
    for list_of_both in ([tmp_path / "real.npy", tmp_path / "flat.npy"], [tmp_path / "flat.npy", tmp_path / "real.npy"]):
        refusal(list_of_both, FormatError)
        refusal(list_of_both, FormatError, dtype="uint16")


def test_what_is_called_bin_and_is_something_else_is_refused(tmp_path: Path) -> None:
    for number, magic in enumerate((b"PK\x03\x04", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd")):
        (tmp_path / f"{number}.bin").write_bytes(magic + bytes(100))
        assert "expected tokens without a header" in refusal(tmp_path / f"{number}.bin", FormatError, dtype="uint16")
    made.write_litdata(tmp_path / "litdata", typed("<u2"), "no_header_numpy:5")
    assert "index.json" in refusal(tmp_path / "litdata/chunk-0-0.bin", FormatError, dtype="uint16")
    made.write_megatron(tmp_path / "m", typed("<u2")[0])
    assert "found that they are uint16" in refusal(tmp_path / "m.bin", SchemaMismatchError, dtype="int32")
    (tmp_path / "flat.bin").write_bytes(bytes(100))
    both = [tmp_path / "flat.bin", tmp_path / "m.bin"]
    assert "expected an .idx next to it" in refusal(both, SchemaMismatchError, dtype="uint16")


def test_headers_of_llm_c_say_the_type(tmp_path: Path) -> None:
    for dtype in ("<u2", "<u4"):
        tokens = np.arange(500).astype(dtype)
        made.write_llm_c(tmp_path / "a.bin", tokens)
        with pen.open(tmp_path / "a.bin") as source:
            assert source.read_tokens([0], 500)[0].tolist() == tokens.tolist()
            assert source.dtype == np.dtype(dtype)
    assert "leave dtype out" in refusal(tmp_path / "a.bin", SchemaMismatchError, dtype="uint16")
    raw = bytearray((tmp_path / "a.bin").read_bytes())
    (tmp_path / "a.bin").write_bytes(raw[:-4])
    assert "for 500 tokens" in refusal(tmp_path / "a.bin", TruncatedError)
    raw[4] = 3
    (tmp_path / "a.bin").write_bytes(raw)
    assert "version" in refusal(tmp_path / "a.bin", UnsupportedVersionError)


def test_the_magic_of_llm_c_is_never_read_as_tokens_unless_told_to(tmp_path: Path) -> None:
    for dtype in ("<u2", "<u4"):
        made.write_llm_c(tmp_path / "a.bin", np.arange(500).astype(dtype))
        raw = bytearray((tmp_path / "a.bin").read_bytes())
        (tmp_path / "a.npy").write_bytes(raw)
        for given in ("uint16", "uint32"):
            assert "rename the file to .bin" in refusal(tmp_path / "a.npy", FormatError, dtype=given)
        raw[100] = 1
        for name, content in (("b.bin", raw), ("b.npy", raw), ("c.bin", raw[:8]), ("c.npy", raw[:4]), ("d.npy", raw[:100])):
            (tmp_path / name).write_bytes(content)
            text = refusal(tmp_path / name, FormatError, dtype="uint16", vocab_size=2**16)
            assert "of llm.c: re" in text
            assert "check=False" in text
            with pen.open(tmp_path / name, dtype="uint16", check=False) as source:
                assert source.num_tokens == len(content) // 2


def test_files_of_different_types_are_no_one_source(tmp_path: Path) -> None:
    made.write_megatron(tmp_path / "a", typed("<u2")[0])
    made.write_megatron(tmp_path / "b", typed("<i4")[0])
    assert "expected uint16 tokens as in" in refusal(f"{tmp_path}/*.idx", SchemaMismatchError)
    made.write_datatrove(tmp_path / "a.ds", typed("<u2")[0])
    made.write_datatrove(tmp_path / "b.ds", typed("<u4")[0])
    assert "expected uint16 tokens as in" in refusal(f"{tmp_path}/*.ds", SchemaMismatchError)
    (tmp_path / "b.ds.index").unlink()
    assert "b.ds.index: expected it" in refusal(f"{tmp_path}/*.ds", SchemaMismatchError)


# Hostile headers


U2 = np.dtype("<u2")
HUGE = 1 << 60

BAD_INDICES: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty": (b"", EmptyFileError, "empty"),
    "cut header": (b"MMIDIDX\0\0\1", TruncatedError, "header"),
    "another magic": (b"X" * 60, FormatError, "MMIDIDX"),
    "version": (made.megatron_index([3, 4], U2, version=2), UnsupportedVersionError, "found 2"),
    "code": (made.megatron_index([3, 4], U2, code=9), UnsupportedTypeError, "found 9"),
    "2^60 sequences": (made.megatron_index([3, 4], U2, head=(HUGE, 3)), SizeOverflowError, str(HUGE)),
    "2^58 sequences": (made.megatron_index([3, 4], U2, head=(1 << 58, 3)), TruncatedError, "bytes for"),
    "2^59 documents": (made.megatron_index([3, 4], U2, head=(2, 1 << 59)), TruncatedError, "entries of documents"),
    "2^64 - 1 sequences": (made.megatron_index([3, 4], U2, head=(2**64 - 1, 2**64 - 1)), SizeOverflowError, "beyond"),
    "cut": (made.megatron_index([3, 4], U2)[:-5], TruncatedError, "expected 82 bytes"),
    "longer": (made.megatron_index([3, 4], U2) + bytes(9), TrailingBytesError, "expected 82 bytes"),
    "modes": (made.megatron_index([3, 4], U2) + bytes(2), UnsupportedTypeError, "modes"),
    "no sequences but tokens": (made.megatron_index([], U2), TrailingBytesError, "no sequences"),
    "a negative length": (made.megatron_index([-3, 10], U2, pointers=[0, -6]), FormatError, "sequence 0"),
    "a negative last length": (made.megatron_index([3, -4], U2, pointers=[0, 22]), FormatError, "found 0 to 14"),
    "beyond the data": (made.megatron_index([3, 40], U2), TruncatedError, "expected 86 bytes, as x.idx says, found 14"),
    "short of the data": (made.megatron_index([3, 3], U2), TrailingBytesError, "expected 12 bytes, as x.idx says, found 14"),
    "not from the beginning": (made.megatron_index([3, 4], U2, pointers=[-2, 6]), FormatError, "found -2 to 14"),
    "half a token": (made.megatron_index([3, 4], U2, pointers=[0, 5]), FormatError, "found 0 to 13"),
    "a pointer of 2^63 - 1": (made.megatron_index([3, 4], U2, pointers=[0, 2**63 - 1]), FormatError, "scattered=True"),
    "a gap inside": (made.megatron_index([2, 1, 4], U2, pointers=[0, 2, 6]), FormatError, "sequence 1 at byte 4"),
    "too few tokens": (made.megatron_index([1, 4], U2, pointers=[0, 6]), FormatError, "sequence 1 at byte 2"),
}


@pytest.mark.parametrize("name", BAD_INDICES)
def test_bad_indices_of_megatron_are_refused(tmp_path: Path, name: str) -> None:
    content, kind, words = BAD_INDICES[name]
    (tmp_path / "x.idx").write_bytes(content)
    (tmp_path / "x.bin").write_bytes(bytes(range(14)))
    text = refusal(tmp_path / "x.idx", kind)
    assert words in text
    assert str(tmp_path) in text


SCATTERED: dict[str, tuple[bytes, type[Exception], str]] = {
    "a negative length": (made.megatron_index([-3, 4], U2), FormatError, "sequence 0"),
    "beyond the data": (made.megatron_index([3, 40], U2), TruncatedError, "sequence 1 at bytes 6 to 86"),
    "a negative pointer": (made.megatron_index([3, 4], U2, pointers=[-2, 6]), TruncatedError, "sequence 0"),
    "a pointer of 2^63 - 1": (made.megatron_index([3, 4], U2, pointers=[0, 2**63 - 1]), TruncatedError, "sequence 1"),
}


@pytest.mark.parametrize("name", SCATTERED)
def test_scattered_sequences_must_be_in_the_file(tmp_path: Path, name: str) -> None:
    content, kind, words = SCATTERED[name]
    (tmp_path / "x.idx").write_bytes(content)
    (tmp_path / "x.bin").write_bytes(bytes(range(14)))
    assert words in refusal(tmp_path / "x.idx", kind, scattered=True)


def test_bad_documents_of_megatron_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(range(14)))
    for documents in ([0, 1], [1, 2], [0, 3], [0, -1, 2], [0, 2, 1, 2], [], [0], [2]):
        (tmp_path / "x.idx").write_bytes(made.megatron_index([3, 4], U2, documents=documents))
        assert len(pen.open(tmp_path / "x.idx")["tokens"][:]) == 2, "sequences do not depend on them"
        assert "records='sequence'" in refusal(tmp_path / "x.idx", FormatError, records="document")
    with pytest.raises(ValueError, match="records must be"):
        pen.open(tmp_path / "x.idx", records="sentence")
    (tmp_path / "x.bin").unlink()
    refusal(tmp_path / "x.idx", MissingError)


def test_tokens_that_are_in_no_document_are_refused_at_once(tmp_path: Path) -> None:
    made.write_megatron(tmp_path / "a", typed("<u2")[0])
    (tmp_path / "b.bin").write_bytes(bytes(range(14)))
    for documents in ([], [0]):
        (tmp_path / "b.idx").write_bytes(made.megatron_index([3, 4], U2, documents=documents))
        with pytest.raises(FormatError, match=rf"b\.idx: .* found {len(documents)} entries, .* records='sequence'"):
            pen.open(f"{tmp_path}/*.idx", records="document")
        (tmp_path / "c.bin").write_bytes(b"")
        (tmp_path / "c.idx").write_bytes(made.megatron_index([], U2, documents=documents))
        with pen.open(tmp_path / "c.idx", records="document") as source:
            assert (len(source), source.num_tokens) == (0, 0)


def test_an_index_that_is_written_anew_after_it_was_opened_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_line, "EARLY", 0)
    made.write_megatron(tmp_path / "x", typed("<u2")[0])
    made.write_datatrove(tmp_path / "x.ds", typed("<u2")[0])
    made.write_litdata(tmp_path / "l", typed("<u2"), "no_header_numpy:5")
    for what, changed in (("x.idx", "x.idx"), ("x.ds", "x.ds.index"), ("l", "l/chunk-0-1.bin")):
        with pen.open(tmp_path / what) as source:
            os.utime(tmp_path / changed, ns=(1, 1))
            with pytest.raises(SourceChangedError, match=Path(changed).name):
                source[0]


BAD_TABLES: dict[str, tuple[bytes, type[Exception], str]] = {
    "empty file": (b"", EmptyFileError, "empty"),
    "not gzip": (b"0,70\n" * 5, CorruptError, "gzip"),
    "cut": (gzip.compress(b"0,70\n")[:-9], TruncatedError, "too early"),
    "words": (gzip.compress(b"start,end\n"), FormatError, "line 0"),
    "one number": (gzip.compress(b"0\n"), FormatError, "line 0"),
    "negative": (gzip.compress(b"0,-5\n"), FormatError, "line 0"),
    "long numbers": (gzip.compress(b"0," + b"1" * 5000 + b"\n"), FormatError, "line 0"),
    "a gap": (gzip.compress(b"0,5\n6,70\n"), FormatError, "document 1 to begin at 5"),
    "falling": (gzip.compress(b"0,5\n5,3\n"), FormatError, "document 1"),
    "beyond the tokens": (gzip.compress(b"0,71\n"), FormatError, "end by 70"),
    "no end of line": (gzip.compress(b"9" * (3 << 20)), FormatError, "longer one"),
    "a bomb of empty documents": (gzip.compress(b"0,0\n" * 3_000_000), SizeOverflowError, "at most one document"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_of_documents_are_refused(tmp_path: Path, name: str) -> None:
    content, kind, words = BAD_TABLES[name]
    (tmp_path / "x.npy").write_bytes(np.arange(70, dtype=U2).tobytes())
    (tmp_path / "x.csv.gz").write_bytes(content)
    text = refusal(tmp_path / "x.npy", kind, dtype="uint16", documents=True)
    assert words in text
    assert "x.csv.gz" in text


def test_tables_of_documents_may_be_short_have_members_and_leave_the_last_tokens(tmp_path: Path) -> None:
    documents = typed("<u2")[0]
    made.write_olmo(tmp_path / "x.npy", documents, tail=2)
    assert "neither by 2 nor by 4" in refusal(tmp_path / "x.npy", FormatError, documents=True)
    with pen.open(tmp_path / "x.npy", documents=True, dtype="uint16") as source:
        assert source["tokens"][:].lengths.tolist() == [9, 1, 0, 40, 17, 3]
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"0,9\r\n") + gzip.compress(b"9,10\n10,70"))
    with pen.open(tmp_path / "x.npy", documents=True) as source:
        assert source["tokens"][:].lengths.tolist() == [9, 1, 60]
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b""))
    with pen.open(tmp_path / "x.npy", documents=True, dtype="uint16") as source:
        assert source["tokens"][:].lengths.tolist() == [70]
    (tmp_path / "x.csv.gz").unlink()
    assert "x.csv.gz" in refusal(tmp_path / "x.npy", MissingError, documents=True)


BAD_ENDS: dict[str, tuple[bytes, type[Exception], str]] = {
    "odd size": (bytes(23), FormatError, "8 bytes each"),
    "last too small": (np.array([3, 6], "<u8").tobytes(), FormatError, "neither 2 nor 4"),
    "2^63": (np.array([3, 2**63], "<u8").tobytes(), FormatError, "neither 2 nor 4"),
    "falling": (np.array([6, 3, 7], "<u8").tobytes(), FormatError, "document 1"),
    "beyond": (np.array([3, 2**64 - 1, 7], "<u8").tobytes(), FormatError, "document 1"),
    "none": (b"", FormatError, "states the type"),
}


@pytest.mark.parametrize("name", BAD_ENDS)
def test_bad_indices_of_datatrove_are_refused(tmp_path: Path, name: str) -> None:
    content, kind, words = BAD_ENDS[name]
    (tmp_path / "x.ds").write_bytes(bytes(range(14)))
    (tmp_path / "x.ds.index").write_bytes(content)
    assert words in refusal(tmp_path / "x.ds", kind)
    (tmp_path / "x.ds.index").write_bytes(np.array([3, 7], "<u8").tobytes())
    (tmp_path / "x.ds.loss").write_bytes(bytes(6))
    assert "x.ds.loss: expected a loss mask of 7 bytes" in refusal(tmp_path / "x.ds", SchemaMismatchError)


def test_bad_metadata_of_datatrove_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.ds").write_bytes(bytes(range(14)))
    for text in ("gpt2|3\n7", "gpt2", "", "gpt2|2\x00"):
        (tmp_path / "x.ds.metadata").write_text(text or "\n")
        assert "x.ds.metadata" in refusal(tmp_path / "x.ds", FormatError)


def test_what_is_said_of_a_datatrove_file_must_be_the_same_everywhere(tmp_path: Path) -> None:
    file, index, metadata = (tmp_path / f"x.ds{end}" for end in ("", ".index", ".metadata"))
    file.write_bytes(np.arange(1, 30, dtype="<u4").tobytes())
    metadata.write_text("gpt2|4\n29\n29 T\n")
    text = refusal(file, SchemaMismatchError, dtype="uint16")
    assert "x.ds.metadata: expected tokens of uint16, found that they are uint32: leave dtype out" in text
    for options in ({}, {"dtype": "uint32"}, {"dtype": "int32"}):
        assert pen.open(file, **options)["tokens"][0].tolist() == list(range(1, 30))
    for size, kind in ((40, TruncatedError), (0, TruncatedError), (120, TrailingBytesError)):
        os.truncate(file, size)
        for options in ({}, {"dtype": "uint32"}):
            text = refusal(file, kind, **options)
            assert "x.ds: expected 29 tokens, as x.ds.metadata says" in text
            assert f"found {size // 4}" in text
    os.truncate(file, 116)
    index.write_bytes(np.array([5, 29], "<u8").tobytes())
    assert len(pen.open(file)) == 2
    metadata.write_text("gpt2|4\n28\n")
    assert "expected 28 tokens" in refusal(file, TrailingBytesError)
    metadata.write_text("gpt2|2\n29\n")
    assert "x.ds.metadata: expected tokens of uint32" in refusal(file, SchemaMismatchError)
    for old in ("", "gpt2\n29\n29 T", "gpt2|4", "gpt2|4\nmany"):
        metadata.write_text(old)
        assert len(pen.open(file)) == 2, "what is not said contradicts nothing"


def test_a_datatrove_file_without_tokens_is_of_the_type_of_the_others(tmp_path: Path) -> None:
    documents = typed("<u4")[0]
    for name in ("b", "d"):
        made.write_datatrove(tmp_path / f"{name}.ds", documents)
    for name in ("a", "c", "e"):
        made.write_datatrove(tmp_path / f"{name}.ds", [np.empty(0, "<u4")])
    (tmp_path / "e.ds.index").write_bytes(b"")
    with pen.open(f"{tmp_path}/*.ds") as source:
        assert source.dtype == np.uint32
        expected = [[], *map(np.ndarray.tolist, documents), [], *map(np.ndarray.tolist, documents)]
        assert [one.tolist() for one in source["tokens"][:]] == expected
    with pen.open([tmp_path / "a.ds", tmp_path / "c.ds"]) as source:
        assert source.num_tokens == 0
    (tmp_path / "a.ds.metadata").write_text("gpt2|2\n0\n")
    assert "expected uint16 tokens as in" in refusal(f"{tmp_path}/*.ds", SchemaMismatchError)
    for path in tmp_path.glob("*.index"):
        path.unlink()
    assert "states the type" in refusal(tmp_path / "c.ds", FormatError)
    (tmp_path / "a.ds.metadata").write_text("gpt2|4\n0\n")
    for name in ("b", "d"):
        (tmp_path / f"{name}.ds.metadata").write_text("gpt2|4\n70\n")
    with pen.open(f"{tmp_path}/*.ds", block_size=70) as source:
        assert (source.dtype, len(source), source.num_tokens) == (np.uint32, 2, 140)


def test_datatrove_tokens_that_look_like_wide_ones_can_be_taken(tmp_path: Path) -> None:
    (tmp_path / "x.ds").write_bytes(np.arange(1000, dtype="<u4").tobytes())
    assert "check=False" in refusal(tmp_path / "x.ds", FormatError, dtype="uint16")
    with pen.open(tmp_path / "x.ds", dtype="uint16", check=False) as source:
        assert source.num_tokens == 2000


def test_loss_masks_of_datatrove_fit_file_by_file(tmp_path: Path) -> None:
    """Of as many masks as tokens in all, but not in each file, every one behind the first file would be that of another token."""
    for name, masks in (("a", 8), ("b", 12)):
        (tmp_path / f"{name}.ds").write_bytes(np.arange(10, dtype=U2).tobytes())
        (tmp_path / f"{name}.ds.metadata").write_text("gpt2|2\n10\n10 T\n")
        (tmp_path / f"{name}.ds.loss").write_bytes(bytes(masks))
    text = refusal(f"{tmp_path}/*.ds", SchemaMismatchError)
    assert "a.ds.loss: expected a loss mask of 10 bytes" in text
    assert "found 8" in text
    with pen.open(f"{tmp_path}/*.ds", loss=False) as source:
        assert source.num_tokens == 20
    for name in "ab":
        (tmp_path / f"{name}.ds.loss").write_bytes(bytes([1, 0] * 5))
    with pen.open(f"{tmp_path}/*.ds", block_size=6) as source:
        assert [one.tolist() for one in source["loss_mask"][:]] == [[1, 0] * 3, [1, 0] * 2] * 2


def litdata_with(directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    made.write_litdata(directory, typed("<u2"), "no_header_numpy:5")
    index = json.loads((directory / "index.json").read_text())
    change(index)
    (directory / "index.json").write_text(json.dumps(index))
    return directory


LITDATA: dict[str, tuple[Callable[[dict[str, Any]], Any], type[Exception], str]] = {
    "compression": (lambda index: index["config"].update(compression="zstd"), UnsupportedTypeError, "compression"),
    "encryption": (lambda index: index["config"].update(encryption={"algorithm": "fernet"}), UnsupportedTypeError, "encryption"),
    "type": (lambda index: index["config"].update(data_format=["no_header_numpy:99"]), UnsupportedTypeError, "data_format"),
    "pickle": (lambda index: index["config"].update(data_format=["pickle"]), FormatError, "LitData"),
    "another loader": (lambda index: index["config"].update(item_loader="PyTreeLoader"), CorruptError, "the sizes of 1 columns"),
    "2^60 items": (lambda index: index["chunks"][0].update(chunk_size=HUGE), TruncatedError, "chunk-0-0.bin"),
    "2^60 tokens": (lambda index: index["chunks"][0].update(dim=HUGE), TruncatedError, "chunk-0-0.bin"),
    "a negative count": (lambda index: index["chunks"][0].update(dim=-1), FormatError, "dim"),
    "a float": (lambda index: index["chunks"][0].update(chunk_size=7.5), FormatError, "chunk_size"),
    "other items": (lambda index: index["chunks"][0].update(chunk_size=5, dim=74), FormatError, "5 items"),
    "a path": (lambda index: index["chunks"][0].update(filename="../x.bin"), UnsafePathError, "../x.bin"),
    "an absolute path": (lambda index: index["chunks"][0].update(filename="/etc/passwd"), UnsafePathError, "passwd"),
    "no name": (lambda index: index["chunks"][0].pop("filename"), FormatError, "filename"),
    "a missing chunk": (lambda index: index["chunks"][0].update(filename="chunk-9-9.bin"), MissingError, "chunk-9-9.bin"),
    "no chunks": (lambda index: index.update(chunks=[]), PenstockError, "at least one chunk"),
    "texts": (lambda index: index.update(chunks=["a"]), FormatError, "filename"),
}


@pytest.mark.parametrize("name", LITDATA)
def test_bad_indices_of_litdata_are_refused(tmp_path: Path, name: str) -> None:
    change, kind, words = LITDATA[name]
    assert words in refusal(litdata_with(tmp_path / "data", change), kind)


def test_bad_offsets_of_litdata_are_refused(tmp_path: Path) -> None:
    for at, value in ((3, 0), (3, 2**32 - 1), (4, 33), (8, 40)):
        made.write_litdata(tmp_path, typed("<u2"), "no_header_numpy:5")
        raw = bytearray((tmp_path / "chunk-0-0.bin").read_bytes())
        raw[4 * at : 4 * at + 4] = struct.pack("<I", value)
        (tmp_path / "chunk-0-0.bin").write_bytes(raw)
        assert "chunk-0-0.bin" in refusal(tmp_path, FormatError)


def test_overlapping_sequences_that_are_more_than_memory_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """A few kilobytes claim to be terabytes: one run of tokens, a million times."""
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "x.idx").write_bytes(made.megatron_index([1 << 29] * 5000, U2, pointers=[0] * 5000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "scattered=True" in refusal(tmp_path / "x.idx", FormatError)
    with pen.open(tmp_path / "x.idx", scattered=True) as source:
        assert source.num_tokens == 5000 << 29
        assert source.read_tokens([(1 << 29) - 2], 4)[0].tolist() == [0, 0, 0, 0]
        with pytest.raises(BatchTooLargeError, match=r"x\.bin"):
            source[:]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18, "kilobytes"


def test_the_tables_of_two_thousand_files_are_read_once_when_they_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [np.arange(length, dtype="<u2") for length in (5, 0, 11)]
    files = count(500, 2000)
    for number in range(files):
        made.write_megatron(tmp_path / f"part-{number:04d}", documents)
    read: list[int] = []
    numbers = megatron.Indexed._numbers
    monkeypatch.setattr(megatron.Indexed, "_numbers", lambda self, *arguments: (read.append(1), numbers(self, *arguments))[1])
    with pen.open(f"{tmp_path}/*.idx") as source:
        assert (len(source), source.num_tokens) == (3 * files, 16 * files)
        assert not any(one.head for one in source._found), "what was read is not kept twice"
        assert len(read) == 2 * files, "lengths and pointers of every file"
        assert source.read_tokens([16 * (files - 1)], 16)[0].tolist() == [*range(5), *range(11)]
        with pen.Loader(source.shuffle(seed=1).sequences(64), 8) as loader:
            assert next(iter(loader))["tokens"].shape == (8, 64)
        assert (source.document_bounds[-4:] - 16 * files).tolist() == [-16, -11, -11, 0]
        assert len(read) == 2 * files, "once"
    monkeypatch.setattr(token_line, "EARLY", 3 * files - 1)
    read.clear()
    with pen.open(f"{tmp_path}/*.idx") as source:
        assert len(read) == 2 * files, "a spot of each"
        assert source.read_tokens([16 * (files - 1)], 16)[0].tolist() == [*range(5), *range(11)]
        assert len(read) == 4 * files, "all of each before the first token, and no table of documents"
        assert not source._pieces.is_loaded


MISLEADING: dict[str, tuple[list[int], list[int], str]] = {
    "a part left out": ([2, 2, 2], [0, 8, 16], "sequence 1 at byte 4"),
    "another order": ([2, 3, 3, 2], [0, 10, 4, 16], "sequence 1 at byte 4"),
    "overlapping": ([4, 4, 4], [0, 6, 12], "sequence 1 at byte 8"),
    "a negative length": ([4, -1, 7], [0, 8, 6], "sequence 1"),
}
"""Indices of a .bin of 10 tokens that begin with its first one, and end with its last one."""


@pytest.mark.parametrize("piece", [1, 2, 1 << 20])
@pytest.mark.parametrize("name", MISLEADING)
def test_a_line_that_the_index_of_megatron_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, piece: int
) -> None:
    lengths, pointers, words = MISLEADING[name]
    monkeypatch.setattr(megatron, "PIECE", piece)
    tokens = np.arange(1, 11, dtype=U2)
    (tmp_path / "x.bin").write_bytes(tokens.tobytes())
    (tmp_path / "x.idx").write_bytes(made.megatron_index(lengths, U2, pointers=pointers))
    with pytest.raises(FormatError) as caught:
        pen.open(tmp_path / "x.idx")
    assert words in str(caught.value)
    assert "x.idx: expected" in str(caught.value)
    monkeypatch.setattr(token_line, "EARLY", 0)
    with pytest.raises(FormatError, match=r"x\.idx: expected"):
        pen.open(tmp_path / "x.idx")
    monkeypatch.setattr(megatron.Indexed, "check_spots", lambda self, count: None)  # as if the index were so large that none hits
    for use in (
        lambda source: next(iter(pen.Loader(source.in_order().sequences(3), 1))),
        lambda source: next(iter(pen.Loader(source.in_order().sequences(3), 1, threads=0))),
        lambda source: next(iter(pen.Loader(source.shuffle(seed=1).sequences(3, documents=True), 1))),
        lambda source: next(iter(pen.Loader(source.in_order().pack(3, split="always"), 1))),
        lambda source: source.read_tokens([0], 3),
        lambda source: source.documents(5),
        lambda source: source[0],
    ):
        for _ in range(2):
            with pen.open(tmp_path / "x.idx") as source, pytest.raises((FormatError, BatchError)) as caught:
                use(source)
            assert words in str(caught.value)
            assert "x.idx: expected" in str(caught.value)
    if min(lengths) >= 0:
        assert "scattered=True" in str(caught.value)
        with pen.open(tmp_path / "x.idx", scattered=True) as source:
            line = np.concatenate([tokens[at // 2 :][:count] for at, count in zip(pointers, lengths, strict=True)])
            found = [batch["tokens"][0].tolist() for batch in itertools.islice(pen.Loader(source.in_order().sequences(3), 1), 2)]
            assert found == [line[:3].tolist(), line[3:6].tolist()]


def test_one_bad_entry_of_many_is_refused_when_it_is_opened(tmp_path: Path, bucket: UrlPath) -> None:
    """By lot: any length or pointer of 400 that is another number, or any two that changed their places."""
    lengths = np.random.default_rng(3).integers(0, 9, 400)
    tokens = np.zeros(int(lengths.sum()), U2)
    (tmp_path / "x.bin").write_bytes(tokens.tobytes())
    (bucket / "x.bin").objects.put((bucket / "x.bin").key, tokens.tobytes())
    good = made.megatron_index(lengths.tolist(), U2)
    rng = np.random.default_rng(4)
    for number in range(300):
        raw = bytearray(good)
        size, base = ((4, 34), (8, 34 + 1600))[number % 2]
        at, other = (base + size * int(one) for one in rng.integers(0, 400, 2))
        if number % 3 == 0:
            raw[at : at + size], raw[other : other + size] = raw[other : other + size], raw[at : at + size]
        else:
            delta = int(rng.choice([-1, 1, 2, 1 << 31, -(1 << 30)]))
            value = int.from_bytes(raw[at : at + size], "little", signed=True) + delta
            raw[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        if raw == good:
            continue
        (tmp_path / "x.idx").write_bytes(raw)
        with pytest.raises(CorruptError, match=r"x\.(idx|bin)"):
            pen.open(tmp_path / "x.idx")
        if number % 10 == 0:
            (bucket / "x.idx").objects.put((bucket / "x.idx").key, bytes(raw))
            with pytest.raises(CorruptError, match=r"x\.(idx|bin)"):
                pen.open(f"{bucket}/x.idx")


@pytest.mark.parametrize("rest", [b"\1", b"\1\0", b"\1\0\2\0\3"])
def test_bytes_behind_the_sequences_of_megatron_are_refused(tmp_path: Path, rest: bytes) -> None:
    tokens = np.arange(1, 8, dtype=U2)
    (tmp_path / "x.bin").write_bytes(tokens.tobytes() + rest)
    for lengths, pointers in (([3, 4], [0, 6]), ([4, 3], [6, 0]), ([3, 4, 0], [0, 6, 0]), ([3, 3, 1], [0, 8, 6])):
        (tmp_path / "x.idx").write_bytes(made.megatron_index(lengths, U2, pointers=pointers))
        is_line = pointers == [0, 6]
        with pytest.raises(TrailingBytesError if is_line else CorruptError, match="scattered=True") as caught:
            pen.open(tmp_path / "x.idx")
        assert not is_line or f"x.bin: expected 14 bytes, as x.idx says, found {14 + len(rest)}" in str(caught.value)
        with pen.open(tmp_path / "x.idx", scattered=True) as source:
            spans = [tokens[at // 2 :][:count].tolist() for at, count in zip(pointers, lengths, strict=True)]
            assert [one.tolist() for one in source["tokens"][:]] == spans
            assert source.num_tokens == 7


def test_a_line_at_a_url_is_checked_once(tmp_path: Path, bucket: UrlPath, monkeypatch: pytest.MonkeyPatch) -> None:
    made.write_megatron(tmp_path / "x", typed("<u2")[0])
    (tmp_path / "y.bin").write_bytes(np.arange(10, dtype=U2).tobytes())
    (tmp_path / "y.idx").write_bytes(made.megatron_index([2, 2, 2], U2, pointers=[0, 8, 16]))
    upload(tmp_path, bucket)
    with pytest.raises(FormatError, match="scattered=True"):
        pen.open(f"{bucket}/y.idx")
    monkeypatch.setattr(megatron, "FIRST_BYTES_REMOTE", 40)  # as if it had not come with the first request
    with pen.open(f"{bucket}/y.idx") as source, pytest.raises(FormatError, match="scattered=True"):
        source.in_order().sequences(3).source.read_tokens([0], 3)
    with pen.open(f"{bucket}/x.idx") as source:
        line = source.read_tokens([0], 70)
        monkeypatch.setattr(megatron.Indexed, "_numbers", None)
        assert np.array_equal(pickle.loads(pickle.dumps(source)).read_tokens([0], 70), line)


def test_tables_longer_than_a_piece_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = typed("<u2")[0]
    expected = np.cumsum([0, *map(len, documents)]).tolist()
    made.write_megatron(tmp_path / "x", documents)
    made.write_datatrove(tmp_path / "x.ds", documents)
    made.write_litdata(tmp_path / "l", [documents], "no_header_numpy:5")
    shuffled = made.megatron_index([len(one) for one in documents], U2, pointers=[100, 0, 2, 20, 100, 50, 50])
    (tmp_path / "y.idx").write_bytes(shuffled)
    (tmp_path / "y.bin").write_bytes(bytes(134))
    for module, piece in itertools.product(("megatron", "flat_tokens", "litdata"), (1, 2, 3, 7)):
        monkeypatch.setattr(f"penstock.formats.{module}.PIECE", piece)
        for what in ("x.idx", "x.ds", "l"):
            assert pen.open(tmp_path / what).document_bounds.tolist() == expected
        assert pen.open(tmp_path / "y.idx", scattered=True).document_bounds.tolist() == expected


# Blends


def test_a_blend_opens_as_data_sets_and_weights_to_be_mixed(every_format: Path, tmp_path: Path) -> None:
    blend = tmp_path / "blend.txt"
    blend.write_text(f"0.25 {every_format}/m-a\n 3 {every_format}/m-b\t1e-1 {every_format}/m-c\n")
    data, weights = open_blend(blend, io="pread")
    assert weights == {"m-a": 0.25, "m-b": 3.0, "m-c": 0.1}
    assert [len(one) for one in data.values()] == [40, 40, 40]
    mixed = pen.mix({name: one.shuffle(seed=1).sequences(16) for name, one in data.items()}, weights=weights, seed=2)
    with pen.Loader(mixed, 4) as loader:
        assert next(iter(loader))["tokens"].shape == (4, 16)
    blend.write_text(f"{every_format}/m-a {every_format}/m-b")
    data, none = open_blend(blend)
    assert (list(data), none) == (["m-a", "m-b"], None)
    (tmp_path / "x").mkdir()
    made.write_megatron(tmp_path / "x/m-a", typed("<u2")[0])
    blend.write_text(f"1 {every_format}/m-a 2 {tmp_path}/x/m-a")
    assert list(open_blend(blend)[0]) == [f"{every_format}/m-a", f"{tmp_path}/x/m-a"]


def test_what_is_no_blend_is_refused(every_format: Path, tmp_path: Path) -> None:
    blend, prefix = tmp_path / "blend.txt", f"{every_format}/m-a"
    for text in (
        f"0.5 {prefix} 0.5",
        f"{prefix} 0.5",
        f"0.5 0.5 {prefix}",
        f"-1 {prefix}",
        f"nan {prefix}",
        " \n",
        f"1 {prefix} 2 {prefix}",
    ):
        blend.write_text(text)
        with pytest.raises(FormatError, match=r"blend\.txt: "):
            open_blend(blend)
    blend.write_bytes(b"\xff\xfe 1")
    with pytest.raises(FormatError, match=r"blend\.txt: "):
        open_blend(blend)
    blend.write_text(f"1 {prefix} 1 {prefix}-nothing")
    with pytest.raises(MissingError, match="m-a-nothing"):
        open_blend(blend)


def test_a_table_of_half_the_tokens_of_two_bytes_is_not_taken_for_one_of_four(tmp_path: Path) -> None:
    """Tokens may follow the last document, so the table alone does not tell."""
    table = gzip.compress(b"0,60\n60,100\n")
    (tmp_path / "x.csv.gz").write_bytes(table)
    for tokens in (np.arange(200) % 200, np.arange(200) * 300 % 50_000, np.zeros(200)):
        (tmp_path / "x.npy").write_bytes(tokens.astype(U2).tobytes())
        assert "fits all tokens of 4 bytes and half of those of 2" in refusal(tmp_path / "x.npy", FormatError, documents=True)
        with pen.open(tmp_path / "x.npy", documents=True, dtype=U2, check=False) as source:
            assert [len(one) for one in source["tokens"][:]] == [60, 40, 100]
    wide = np.arange(100, dtype="<u4") * 1000
    (tmp_path / "x.npy").write_bytes(wide.tobytes())
    with pen.open(tmp_path / "x.npy", documents=True) as source:
        assert np.array_equal(np.concatenate(list(source["tokens"][:])), wide)


@pytest.mark.parametrize("name", ["a.idx", "a.ds", "a.npy"])
def test_a_type_that_is_none_is_told_with_its_name(name: str, tmp_path: Path) -> None:
    write_documents([np.arange(5, dtype="u2")], tmp_path / name)
    with pytest.raises(TypeError, match="dtype: expected a type such as 'uint16', got 'u99'"):
        pen.open(tmp_path / name, dtype="u99")
