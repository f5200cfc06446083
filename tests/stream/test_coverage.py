"""Every token comes exactly once an epoch: of any documents, degenerate ones too, of every source, in packs and sequences."""

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats import token_files as made

import penstock as pen
from penstock.source import write_documents, write_tokens

PAD, BOS, EOS, SEPARATOR, FIRST = 1, 2, 3, 4, 100
Documents = list[Any]


def documents_of(lengths: list[int]) -> Documents:
    """Documents of tokens that all differ."""
    ends = np.cumsum(lengths).tolist()
    return [np.arange(FIRST + end - length, FIRST + end).astype("<u2") for length, end in zip(lengths, ends, strict=True)]


def open_ragged(_: Path, documents: Documents) -> Any:
    return pen.open({"ids": pen.Ragged.from_items(documents, dtype="u2")})


def open_store(path: Path, documents: Documents) -> Any:
    pen.convert({"ids": pen.Ragged.from_items(documents, dtype="u2")}, path / "x.pen")
    return pen.open(path / "x.pen")


def open_megatron(path: Path, documents: Documents) -> Any:
    write_documents(documents, path / "x.idx", dtype="u2")
    return pen.open(path / "x.idx")


def open_olmo(path: Path, documents: Documents) -> Any:
    made.write_olmo(path / "x.npy", documents)
    return pen.open(path / "x.npy", documents=True, dtype="u2")


def open_datatrove(path: Path, documents: Documents) -> Any:
    made.write_datatrove(path / "x.ds", documents, [one % 2 for one in documents])
    (path / "x.ds.metadata").write_text(f"t|2\n{sum(map(len, documents))}\n")
    return pen.open(path / "x.ds")


def open_litdata(path: Path, documents: Documents) -> Any:
    half = len(documents) // 2
    made.write_litdata(path, [part for part in (documents[:half], documents[half:]) if part], "no_header_numpy:5")
    return pen.open(path)


def open_rox(path: Path, documents: Documents) -> Any:
    write_tokens(documents, path / "x.rox", dtype="u2", separator=SEPARATOR, block_size=7)
    return pen.open(path / "x.rox")


def open_nanogpt(path: Path, documents: Documents) -> Any:
    (path / "x.bin").write_bytes(_separated(documents).tobytes())
    return pen.open(path / "x.bin", dtype="u2", block_size=7, check=False)


def open_by_separator(path: Path, documents: Documents) -> Any:
    (path / "x.bin").write_bytes(_separated(documents).tobytes())
    return pen.open(path / "x.bin", dtype="u2", separator=SEPARATOR, check=False)


def _separated(documents: Documents) -> Any:
    return np.concatenate([np.append(one, SEPARATOR) for one in documents]).astype("<u2")


SOURCES: dict[str, tuple[Callable[[Path, Documents], Any], bool, bool]] = {
    "ragged": (open_ragged, False, False),
    "store": (open_store, False, False),
    "megatron": (open_megatron, False, False),
    "olmo": (open_olmo, False, False),
    "datatrove": (open_datatrove, False, False),
    "litdata": (open_litdata, False, False),
    "rox": (open_rox, True, True),
    "nanogpt": (open_nanogpt, True, True),
    "by separator": (open_by_separator, True, False),
}
"""How they are opened, whether documents end with a separator there, and whether a pack must be told of it."""


@contextmanager
def opened(name: str, documents: Documents) -> Iterator[tuple[Any, Documents, dict[str, Any]]]:
    """A source of documents, these with their separators, and options of packs."""
    make, is_separated, is_told = SOURCES[name]
    with tempfile.TemporaryDirectory() as directory, make(Path(directory), documents) as source:
        ended = [np.append(one, SEPARATOR) for one in documents] if is_separated else documents
        yield source, ended, {"separator": SEPARATOR} if is_told else {}


@st.composite
def corpora(draw: Any) -> tuple[list[int], int]:
    """Lengths of documents, and that of a sequence."""
    length = draw(st.sampled_from([1, 2, 3, 8, 12, 16, 31]))
    one = st.one_of(st.integers(0, 3 * length), st.sampled_from([0, length - 1, length, length + 1, 2 * length]), st.integers(0, 3))
    lengths = draw(
        st.one_of(
            st.lists(one, min_size=1, max_size=30),
            st.lists(one, min_size=1, max_size=6).map(lambda some: [*some, 20 * length, 0]),  # a giant
            st.tuples(one, st.integers(1, 20)).map(lambda pair: [pair[0]] * pair[1]),  # all equal, all empty, one document
        )
    )
    return lengths, length


def possible(name: str, lengths: list[int]) -> list[int]:
    """Lengths that documents of a source may have: a table of OLMo has no more of them than there are tokens."""
    return [length + 1 for length in lengths] if name == "olmo" else lengths


def tokens_of(loader: Any) -> Counter[int]:
    """The tokens of an epoch."""
    return Counter(token for batch in loader for token in batch["tokens"].reshape(-1).tolist())


def kept_of(whole: list[int], length: int, split: str, long: str) -> list[int]:
    """What of a document comes."""
    if split != "never" or len(whole) <= length:
        return whole
    return [] if long == "drop" else whole[:length]


@given(
    corpus=corpora(),
    name=st.sampled_from(list(SOURCES)),
    split=st.sampled_from([("fit", "error"), ("fit", "error"), ("always", "error"), ("never", "truncate"), ("never", "drop")]),
    multiple_of=st.sampled_from([1, 1, 2, 4]),
    added=st.sampled_from([{}, {"eos": EOS}, {"bos": BOS, "eos": EOS}, {"bos": BOS}]),
    window=st.sampled_from([None, 1, 3, 10]),
    order=st.sampled_from(["in_order", "shuffle", "blocks"]),
    threads=st.sampled_from([0, 0, 0, 2]),
)
def test_packs_have_every_token_once_in_every_epoch(
    corpus: tuple[list[int], int],
    name: str,
    split: tuple[str, str],
    multiple_of: int,
    added: dict[str, int],
    window: int | None,
    order: str,
    threads: int,
) -> None:
    lengths, length = possible(name, corpus[0]), -(-corpus[1] // multiple_of) * multiple_of
    with opened(name, documents_of(lengths)) as (source, documents, options):
        ordered = {
            "in_order": source.in_order,
            "shuffle": lambda: source.shuffle(seed=5),
            "blocks": lambda: source.shuffle(seed=5, block=3),
        }[order]()
        stream = ordered.pack(
            length, split=split[0], long=split[1], multiple_of=multiple_of, window=window, pad=PAD, **added, **options
        )
        expected = Counter[int]()
        for one in documents:
            whole = [*([BOS] if "bos" in added else []), *one.tolist(), *([EOS] if "eos" in added else [])]
            expected.update(kept_of(whole, length, *split))
        if len(stream) == 0:
            assert not expected
            return
        loader = pen.Loader(stream, 5, threads=threads)
        for _ in range(3):
            found = tokens_of(loader)
            padding = found.pop(PAD, 0)
            assert found == expected
            assert padding == len(stream) * length - expected.total()


@given(corpus=corpora(), name=st.sampled_from(list(SOURCES)), order=st.sampled_from(["in_order", "shuffle", "blocks"]))
def test_sequences_have_every_token_once_before_any_comes_again(corpus: tuple[list[int], int], name: str, order: str) -> None:
    lengths, length = possible(name, corpus[0]), corpus[1]
    lengths = lengths if sum(lengths) else [*lengths, 1]
    with opened(name, documents_of(lengths)) as (source, documents, _):
        ordered = {
            "in_order": source.in_order,
            "shuffle": lambda: source.shuffle(seed=5),
            "blocks": lambda: source.shuffle(seed=5, block=3),
        }[order]()
        stream = ordered.sequences(length)
        expected = Counter(token for one in documents for token in one.tolist())
        total = expected.total()
        with pen.Loader(stream, 4, tail="wrap", threads=0) as loader:
            batches = itertools.islice(loader.forever(), -(-3 * total // (4 * length)))
            line = [token for batch in batches for token in batch["tokens"].reshape(-1).tolist()]
        for epoch in range(3):
            assert Counter(line[epoch * total : (epoch + 1) * total]) == expected


@given(
    texts=st.lists(st.one_of(st.text(max_size=20), st.just(""), st.text("ab", min_size=60, max_size=80)), min_size=1, max_size=20),
    length=st.integers(1, 24),
    split=st.sampled_from(["fit", "always"]),
)
def test_texts_have_every_byte_once_in_every_epoch(texts: list[str], length: int, split: str) -> None:
    source = pen.open({"text": texts})
    whole = Counter(b"".join(one.encode() + b"\xff" for one in texts))  # neither byte is one of utf-8
    for stream in (
        source.shuffle(seed=3).pack(length, split=split, eos=255, pad=254, window=4),
        source.in_order().pack(length, split=split, eos=255, pad=254),
    ):
        loader = pen.Loader(stream, 3, threads=0)
        for _ in range(2):
            found = tokens_of(loader)
            found.pop(254, 0)
            assert found == whole
    stream = source.shuffle(seed=3).sequences(length, separator=255)
    with pen.Loader(stream, 3, tail="wrap", threads=0) as loader:
        batches = itertools.islice(loader.forever(), -(-2 * whole.total() // (3 * length)))
        line = [token for batch in batches for token in batch["tokens"].reshape(-1).tolist()]
    assert Counter(line[: whole.total()]) == Counter(line[whole.total() : 2 * whole.total()]) == whole


DEGENERATE: dict[str, list[int]] = {
    "no document at all": [],
    "one empty": [0],
    "all empty": [0] * 9,
    "one of a sequence": [8],
    "one of a token more": [9],
    "all of a sequence": [8] * 7,
    "all of a token more": [9] * 7,
    "a giant": [300],
    "a giant among the small": [1, 0, 300, 2, 8, 9, 0],
    "one token": [1],
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.sampled(3)
def test_degenerate_documents_of_every_source(name: str) -> None:
    lengths = DEGENERATE[name]
    for source_name, split in itertools.product(("ragged", "megatron", "datatrove", "litdata", "rox"), ("fit", "always", "never")):
        if not lengths and source_name != "ragged":
            continue
        long = "truncate" if split == "never" else "error"
        with opened(source_name, documents_of(lengths)) as (source, documents, options):
            for multiple_of, added in ((1, {}), (4, {"eos": EOS})):
                stream = source.shuffle(seed=2).pack(
                    8, split=split, long=long, multiple_of=multiple_of, pad=PAD, **added, **options
                )
                expected = Counter[int]()
                for one in documents:
                    expected.update(kept_of([*one.tolist(), *added.values()], 8, split, long))
                loader = pen.Loader(stream, 3, threads=0)
                for _ in range(2) if len(stream) else ():
                    found = tokens_of(loader)
                    found.pop(PAD, 0)
                    assert found == expected
                assert bool(len(stream)) == bool(expected)
