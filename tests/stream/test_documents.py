"""Documents of sequences and packs: which of them are in a step, when one comes, and how it is left out; over every source."""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.token_files import write_datatrove, write_litdata, write_megatron, write_olmo
from tokenizers import Tokenizer, decoders, models

import penstock as pen
from penstock.formats.token_line import DocumentBounds
from penstock.formats.tokens_writer import write_tokens
from penstock.stream import DocumentTable
from penstock.tokenizer import load_tokenizer

NUMBER, LENGTH, SIZE = 45, 16, 5
KINDS = ["sequences", "pack"]


def make_documents() -> list[np.ndarray]:
    """Empty ones, short ones, and some that are longer than a sequence. No token is 0."""
    chance = np.random.default_rng(0)
    lengths = chance.integers(0, 25, NUMBER)
    return [chance.integers(1, 1000, length).astype("<u2") for length in lengths]


DOCUMENTS = make_documents()
FULL = [one for one in DOCUMENTS if one.size]
TEXTS = [f"{number}: grüße, " * (number % 4) for number in range(NUMBER)]


@dataclass
class Data:
    """A source, how it is cut or packed, and its documents as they should be told; ``added`` are tokens that they do not have."""

    source: Any
    documents: list[list[int]]
    options: dict[str, Any] = field(default_factory=dict)
    added: int | None = None

    def stream(self, kind: str, order: str = "shuffle", **options: Any) -> Any:
        ordered = self.source.in_order() if order == "in_order" else self.source.shuffle(seed=7, **options)
        if kind == "sequences":
            return ordered.sequences(LENGTH, **self.options)
        options = {name: value for name, value in self.options.items() if name != "separator" or self.added is None}
        return ordered.pack(LENGTH, window=20, **options)


def rox(path: Path) -> Data:
    write_tokens(DOCUMENTS, path / "a.rox", dtype="u2", separator=0, block_size=50)
    return Data(pen.open(path / "a.rox"), [[*one.tolist(), 0] for one in DOCUMENTS], {"separator": 0})


def ragged(path: Path) -> Data:
    return Data(pen.open({"ids": DOCUMENTS}), [one.tolist() for one in DOCUMENTS])


def separated(path: Path) -> Data:
    return Data(pen.open({"ids": DOCUMENTS}), [one.tolist() for one in DOCUMENTS], {"separator": 0}, added=0)


def texts(path: Path) -> Data:
    with pen.create(path / "a.pen", {"text": pen.Field.text(codec=pen.Zstd()), "url": pen.Field.text()}) as out:
        out.extend({"text": TEXTS, "url": [f"http://{number}" for number in range(NUMBER)]})
    return Data(pen.open(path / "a.pen"), [list(text.encode()) for text in TEXTS], {"field": "text"})


def selected(path: Path) -> Data:
    chosen = list(range(NUMBER - 1, -1, -1))
    data = texts(path)
    return Data(data.source.select(chosen), data.documents[::-1], data.options)


def megatron(path: Path) -> Data:
    write_megatron(path / "a", DOCUMENTS)
    return Data(pen.open(path / "a.idx"), [one.tolist() for one in DOCUMENTS])


def datatrove(path: Path) -> Data:
    for number in (0, 1):
        write_datatrove(path / f"{number}.ds", DOCUMENTS[number::2])
    return Data(pen.open(str(path / "*.ds")), [one.tolist() for number in (0, 1) for one in DOCUMENTS[number::2]])


def litdata(path: Path) -> Data:
    chunks = [[one.astype("<i4") for one in DOCUMENTS[low : low + 25]] for low in range(0, NUMBER, 25)]
    write_litdata(path / "lit", chunks, "no_header_tensor:16")
    return Data(pen.open(path / "lit"), [one.tolist() for one in DOCUMENTS])


def olmo(path: Path) -> Data:
    write_olmo(path / "a.npy", FULL)
    return Data(pen.open(path / "a.npy", documents=True, dtype="uint16"), [one.tolist() for one in FULL])


MAKERS: list[Callable[[Path], Data]] = [rox, ragged, separated, texts, selected, megatron, datatrove, litdata, olmo]


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Data]:
    made = request.param(tmp_path)
    yield made
    made.source.close()


def shown(data: Data, spans: np.ndarray) -> list[int]:
    return [token for document, low, high in spans.tolist() for token in data.documents[document][low:high]]


def delivered(data: Data, batch: dict[str, Any], row: int) -> list[int]:
    """The tokens of a sample that are of documents."""
    tokens = batch["tokens"][row]
    if "segment" in batch:
        tokens = tokens[batch["segment"][row] >= 0]
    return [token for token in tokens.tolist() if token != data.added]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.sampled(5)
def test_the_documents_of_a_step_have_the_tokens_of_its_batch(data: Data, kind: str, threads: int) -> None:
    loader = pen.Loader(data.stream(kind), SIZE, threads=threads)
    for _ in range(2):
        for step, batch in zip(loader.remaining(), loader, strict=True):
            told = loader.explain(step, documents=True)["documents"]
            assert len(told) == len(batch["tokens"])
            for row, spans in enumerate(told):
                assert shown(data, spans) == delivered(data, batch, row)
                assert all(0 <= low <= high <= len(data.documents[one]) for one, low, high in spans.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_documents_reads_and_measures_them(data: Data, kind: str) -> None:
    table = data.stream(kind).documents
    assert len(table) == len(data.documents)
    for number, tokens in enumerate(data.documents):
        assert table.length(number) == len(tokens)
        assert table.read(number).tolist() == tokens
        assert table.read(number, 3, 9).tolist() == tokens[3:9]
    with pytest.raises(ValueError, match="document"):
        table.read(len(table))


def held_by_step(loader: pen.Loader, steps: range) -> dict[int, list[int]]:
    """The steps of every document, by what explain tells."""
    held: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        for spans in loader.explain(step, documents=True)["documents"]:
            for document in dict.fromkeys(spans[:, 0].tolist()):
                held[document].append(step)
    return held


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", ["drop", "wrap"])
@pytest.mark.sampled(5)
def test_where_names_the_steps_at_which_explain_tells_a_document(data: Data, kind: str, tail: str) -> None:
    loader = pen.Loader(data.stream(kind), SIZE, tail=tail)
    steps = range(loader.schedule.first_step(2))
    held = held_by_step(loader, steps)
    for document in range(len(data.documents)):
        found = [one["step"] for one in loader.where(document, epochs=range(3)) if one["step"] in steps]
        assert sorted(found) == held[document]


def test_where_follows_blocks_that_are_shuffled(data: Data) -> None:
    for order, options in (("in_order", {}), ("shuffle", {"block": 4, "window": 2})):
        loader = pen.Loader(data.stream("sequences", order, **options), SIZE)
        held = held_by_step(loader, range(len(loader)))
        for document in range(len(data.documents)):
            assert [one["step"] for one in loader.where(document)] == held[document]


@pytest.mark.parametrize("kind", KINDS)
def test_banned_documents_do_not_come(data: Data, kind: str) -> None:
    banned, first = {3, 11, 33}, 2
    plain = pen.Loader(data.stream(kind), SIZE)
    held = pen.Loader(plain.stream.without(sorted(banned), from_step=first), SIZE, threads=2)  # type: ignore[attr-defined]
    assert held.stream.plan() != plain.stream.plan()
    for step, batch in enumerate(held):
        told = held.explain(step, documents=True)["documents"]
        if step < first:
            assert [one.tolist() for one in told] == [one.tolist() for one in plain.explain(step, documents=True)["documents"]]
        else:
            assert not banned & {one for spans in told for one in spans[:, 0].tolist()}
        for row, spans in enumerate(told):
            assert shown(data, spans) == delivered(data, batch, row)
    assert all(one["step"] < first for document in banned for one in held.where(document))
    again = pickle.loads(pickle.dumps(held.stream))
    assert again.plan() == held.stream.plan()
    assert [one.tolist() for one in again.locate(0, range(0, again.stride * 20, again.stride), first).describe()["tokens"]] == [
        one.tolist() for one in held.stream.locate(0, range(0, again.stride * 20, again.stride), first).describe()["tokens"]
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(5)
def test_documents_in_mixtures(data: Data, kind: str) -> None:
    other = Data(data.source, data.documents, data.options, data.added)
    streams = {"a": data.stream(kind), "b": other.stream(kind, "in_order")}
    mixed = pen.mix(streams, weights={"a": 2, "b": 1}, seed=3, stop="all_exhausted")
    loader = pen.Loader(pen.mix({"in": mixed, "b": data.stream(kind, block=4)}, seed=4), SIZE)
    seen: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for step, batch in enumerate(loader):
        told = loader.explain(step, documents=True)
        inner = told["parts"].get("in", {"source": np.array([]), "parts": {}})
        left = {("b", ""): iter(told["parts"].get("b", {}).get("documents", []))}
        left |= {("in", name): iter(part["documents"]) for name, part in inner["parts"].items()}
        names = iter(inner["source"].tolist())
        for row, name in enumerate(told["source"].tolist()):
            key = (name, next(names) if name == "in" else "")
            spans = next(left[key])
            assert shown(data, spans) == delivered(data, batch, row)
            for document in dict.fromkeys(spans[:, 0].tolist()):
                seen[key][document].append(step)
    for name, inner_name in list(seen):
        for document in range(0, len(data.documents), 7):
            asked = (name, (inner_name, document) if inner_name else document)
            found = [one["step"] for one in loader.where(asked, epochs=range(1))]
            assert sorted(set(found)) == sorted(set(seen[name, inner_name][document]))
    clean = pen.Loader(loader.stream.without({"in": {"a": [1, 2]}}), SIZE)  # type: ignore[attr-defined]
    assert clean.where(("in", ("a", 1))) == []


@pytest.mark.parametrize(
    "options",
    [{"weights": {"a": 3, "b": 1}}, {"unit": "batch"}, {"weights": [(0, {"a": 1, "b": 0}), (9, {"a": 1, "b": 9})], "period": 5}],
)
@pytest.mark.parametrize("kind", [*KINDS, "records"])
@pytest.mark.sampled(2)
def test_where_looks_at_steps_of_a_mixture_that_never_ends(kind: str, options: dict[str, Any]) -> None:
    data = ragged(Path())
    if kind == "records":
        streams = {name: pen.open({"x": np.arange(12)}).shuffle(seed=seed) for name, seed in (("a", 1), ("b", 2))}
    else:
        streams = {"a": data.stream(kind), "b": data.stream(kind, block=4)}
    loader = pen.Loader(pen.mix(streams, seed=3, stop="forever", **options), SIZE)
    steps, seen = range(3, 25), defaultdict(list)
    for step in steps:
        for name, part in loader.explain(step)["parts"].items():
            held = part["ids"] if kind == "records" else np.concatenate([spans[:, 0] for spans in part["documents"]])
            for document in np.unique(held).tolist():
                seen[name, document].append(step)
    for document in (1, 6, 11):
        for name in ("a", "b"):
            found = loader.where((name, document), steps=steps)
            assert sorted({one["step"] for one in found}) == seen[name, document]
    assert loader.where(("a", 1), steps=range(0)) == []
    with pytest.raises(ValueError, match="steps=range"):
        loader.where(("a", 1))
    with pytest.raises(ValueError, match="not both"):
        loader.where(("a", 1), steps=steps, epochs=range(1))


@pytest.mark.parametrize("tail", ["keep", "wrap"])
def test_where_looks_at_steps_of_epochs(tail: str) -> None:
    loader = pen.Loader(ragged(Path()).stream("sequences"), SIZE, tail=tail)
    for steps in (range(2, 7), range(0, 30, 3), range(len(loader), len(loader) + 2)):
        held = held_by_step(loader, steps)
        for document in range(NUMBER):
            assert sorted(one["step"] for one in loader.where(document, steps=steps)) == held[document]


# What is known, and what is not


def test_separators_are_searched_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = rox(tmp_path)
    with data.source:
        loader = pen.Loader(data.stream("sequences"), SIZE)
        with monkeypatch.context() as patched:
            patched.setattr(type(data.source), "separated", lambda *_: pytest.fail("all tokens were read"))
            assert "documents" not in loader.explain(0)
        assert "documents" in loader.explain(0, documents=True)


@pytest.mark.parametrize("separator", [0, [0, 0]])
@pytest.mark.parametrize("documents", [False, True])
def test_separators_are_searched_once(documents: bool, separator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, searches = rox(tmp_path), []
    search = type(data.source).separated
    monkeypatch.setattr(type(data.source), "separated", lambda *given: searches.append(1) or search(*given))
    with data.source:
        stream = data.source.shuffle(seed=7).sequences(8, separator=separator, documents=documents)
        stream = stream.without([1]).without([2], from_step=3)
        phases = [pen.Phase(steps=2, batch_size=2, seq_len=8), pen.Phase(steps=2, batch_size=2, seq_len=16)]
        loader = pen.Loader(stream, phases=phases)
        assert all("documents" in loader.explain(step, documents=True) for step in range(4))
        assert len([batch for batch, _ in zip(loader, range(4), strict=False)]) == 4
    assert len(searches) == 1


def test_token_blocks_without_a_separator_have_no_documents(tmp_path: Path) -> None:
    with rox(tmp_path).source as tokens:
        loader = pen.Loader(tokens.shuffle(seed=7).sequences(LENGTH), SIZE)
        assert "documents" not in loader.explain(0)
        with pytest.raises(ValueError, match="separator"):
            loader.explain(0, documents=True)


@pytest.mark.parametrize("tail", ["keep", "wrap"])
def test_where_finds_token_blocks_where_there_are_no_documents(tmp_path: Path, tail: str) -> None:
    with rox(tmp_path).source as tokens:
        loader = pen.Loader(tokens.shuffle(seed=7).sequences(LENGTH), SIZE, tail=tail)
        steps = range(loader.schedule.first_step(2))
        for block in range(len(tokens)):
            (start,), (count,) = tokens.token_ranges(np.array([block]))
            expected = [
                step
                for step in steps
                if any(low < start + count and high > start for runs in loader.explain(step)["tokens"] for low, high in runs)
            ]
            found = {one["step"] for one in loader.where(block, epochs=range(3))}
            assert sorted(found & set(steps)) == expected


def test_bans_before_sequences_are_of_blocks_and_behind_of_documents(tmp_path: Path) -> None:
    data = rox(tmp_path)
    with data.source as tokens:
        both = tokens.shuffle(seed=7).without([2]).sequences(LENGTH, separator=0).without([33], from_step=1)
        loader = pen.Loader(both, SIZE)
        (start,), (count,) = tokens.token_ranges(np.array([2]))
        for step in range(len(loader)):
            told = loader.explain(step, documents=True)
            assert not any(low < start + count and high > start for runs in told["tokens"] for low, high in runs)
            assert step < 1 or 33 not in {one for spans in told["documents"] for one in spans[:, 0].tolist()}
        assert [key for key in both.plan() if "ban" in key] == ["ban 0", "document ban 0"]


def test_where_leaves_out_documents_that_go_with_the_page_of_a_banned_one(tmp_path: Path) -> None:
    with rox(tmp_path).source as tokens:
        stream = tokens.shuffle(seed=7).sequences(LENGTH, separator=0).without([30])
        loader = pen.Loader(stream, SIZE)
        held = held_by_step(loader, range(len(loader)))
        neighbours = [loader.where(document) for document in (29, 31)]
        assert all(one["step"] in held[document] for document, found in zip((29, 31), neighbours, strict=True) for one in found)


def test_a_mixture_with_phases_does_not_say_where_a_document_of_sequences_is() -> None:
    stream = pen.open({"ids": FULL}).shuffle(seed=1).sequences(8)
    endless = pen.mix({"a": stream}, seed=1, stop="forever")
    with pytest.raises(ValueError, match="never ends"):
        endless.where(("a", 1))
    phases = [pen.Phase(steps=3, batch_size=2, seq_len=8)]  # which end it
    for mixed in (endless, pen.mix({"a": stream}, seed=1)):
        with pytest.raises(TypeError, match="without phases"):
            mixed.with_phases(phases).where(("a", 1))


def test_a_mixture_that_phases_end_says_where_its_records_are() -> None:
    streams = {name: pen.open({"x": np.arange(10) + low}).shuffle(seed=low) for name, low in (("a", 0), ("b", 100))}
    mixed = pen.mix(streams, seed=1, stop="forever")
    loader = pen.Loader(mixed, phases=[pen.Phase(steps=40, batch_size=2), pen.Phase(steps=5, batch_size=4)])
    seen = np.concatenate([batch["x"] for batch in loader])
    for name, low in (("a", 0), ("b", 100)):
        for record in range(10):
            places = np.flatnonzero(seen == low + record)
            assert loader.stream.where((name, record)) == [(0, place) for place in places]


# Texts and names


def small_tokenizer() -> Any:
    vocabulary = {chr(96 + number): number for number in range(1, 27)} | {"<eos>": 0}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    made.decoder = decoders.Fuse()
    return load_tokenizer(made)


def test_tokens_become_a_text_and_unknown_ones_are_shown_by_number(tmp_path: Path) -> None:
    written = write_tokens([[3, 1, 20], [4, 15, 7, 500]], tmp_path / "a.rox", dtype="u2", separator=65535)
    with pen.open(written[0]) as tokens:
        table = tokens.in_order().pack(8, separator=65535).documents
        tokenizer = small_tokenizer()
        decode = tokenizer.decode
        assert table.text(0, 0, 3, tokenizer=tokenizer) == decode([3, 1, 20])
        assert table.text(0, tokenizer=tokenizer) == decode([3, 1, 20]) + "<65535>"
        assert table.text(1, 1, tokenizer=tokenizer) == decode([15, 7]) + "<500><65535>"
        assert table.has_tokens
        with pytest.raises(ValueError, match="tokenizer"):
            table.text(0)


def test_texts_need_no_tokenizer_and_are_named_by_a_field(tmp_path: Path) -> None:
    with texts(tmp_path).source as source:
        for stream in (
            source.in_order().pack(LENGTH, field="text"),
            source.in_order().sequences(LENGTH, field="text", separator=0),
        ):
            table = stream.documents
            assert not table.has_tokens
            assert [table.text(number) for number in range(NUMBER)] == TEXTS
            assert table.text(1, 0, 6) == "1: gr\N{REPLACEMENT CHARACTER}"
            assert (table.name(7), table.name(7, "url")) == ("7", "http://7")
            with pytest.raises(KeyError, match=r"no field 'path'.*'url'"):
                table.name(7, "path")


def test_documents_of_token_files_are_named_by_file_and_number(tmp_path: Path) -> None:
    with datatrove(tmp_path).source as source:
        for stream in (source.in_order().pack(LENGTH), source.in_order().sequences(LENGTH)):
            assert stream.documents.name(31) == f"{tmp_path / '1.ds'}[8]"  # the other file has 23
    with rox(tmp_path).source as tokens, pytest.raises(KeyError, match="no records"):
        tokens.in_order().pack(LENGTH, separator=0).documents.name(1, "url")


def test_no_documents_have_no_spans() -> None:
    table = DocumentTable(pen.open({"ids": [[1], [2, 3]]}), None, DocumentBounds(np.zeros(1, np.int64)), are_records=True)
    stream = pen.open({"ids": [[1], [2, 3]]}).in_order().sequences(1)
    assert [one.shape for one in table.spans(stream.locate(0, range(2)))] == [(0, 3), (0, 3)]
