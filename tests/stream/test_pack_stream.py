"""Documents packed into sequences: against a model of lists and loops, by every engine, resumed, mixed, in phases, banned."""

import json
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import every
from tests.order import reference

import penstock as pen
from penstock.errors import BatchError, StateMismatchError
from penstock.formats.tokens_writer import write_tokens
from penstock.order import Shard
from penstock.remote.url import url_path

WORLDS = (1, 2, 3, 4, 8)
FIELDS = ("tokens", "segment", "position", "labels")


def documents_of(count: int, most: int, key: int, first: int = 1) -> list[list[int]]:
    """Documents of tokens that all differ; some are empty, few are long."""
    words = [reference.absorb(key, number) for number in range(count)]
    lengths = [word % (most + 1) >> (word >> 62) for word in words]
    ends = np.cumsum(lengths).tolist()
    return [list(range(first + end - length, first + end)) for length, end in zip(lengths, ends, strict=True)]


@dataclass(frozen=True)
class Model:
    """What must come, sequence by sequence."""

    documents: Sequence[Sequence[int]]
    packing: reference.Packing
    pad: int = 0
    bos: int | None = None
    eos: int | None = None
    first_segment: int = 0
    banned: frozenset[int] = frozenset()
    epochs: dict[int, list[list[reference.Piece]]] = field(default_factory=dict)

    def sequences(self, epoch: int) -> list[list[reference.Piece]]:
        if epoch not in self.epochs:
            extra = (self.bos is not None) + (self.eos is not None)
            lengths = [len(tokens) for tokens in self.documents]
            self.epochs[epoch] = reference.pack_epoch(lengths, self.packing._replace(extra=extra), epoch)
        return self.epochs[epoch]

    def sample(self, epoch: int, number: int) -> dict[str, list[int]]:
        rows: list[tuple[int, int, int, int]] = []
        segment = self.first_segment
        padding = (self.pad, self.first_segment - 1, 0, -100)
        for document, offset, count in self.sequences(epoch)[number]:
            room = -(-count // self.packing.multiple) * self.packing.multiple
            if document in self.banned:
                rows += [padding] * room
                continue
            whole = [
                *([] if self.bos is None else [self.bos]),
                *self.documents[document],
                *([] if self.eos is None else [self.eos]),
            ]
            piece = whole[offset : offset + count]
            for place, token in enumerate(piece):
                rows.append((token, segment, place, piece[place + 1] if place + 1 < count else -100))
            rows += [padding] * (room - count)
            segment += 1
        rows += [padding] * (self.packing.length - len(rows))
        return dict(zip(FIELDS, map(list, zip(*rows, strict=True)), strict=True))


def texts(documents: Sequence[Sequence[int]], dtype: str = "i4") -> pen.Ragged:
    return pen.Ragged.from_items([np.array(one, dtype) for one in documents], dtype=dtype)


def open_store(directory: Path, documents: Sequence[Sequence[int]], dtype: str = "i4", name: str = "ids.pen") -> Any:
    if not (directory / name).exists():
        pen.convert({"ids": texts(documents, dtype)}, directory / name)
    return pen.open(directory / name)


def open_tokens(directory: Path, documents: Sequence[Sequence[int]], separator: Sequence[int] = (), dtype: str = "u2") -> Any:
    line = [token for one in documents for token in (*one, *separator)]
    write_tokens([np.array(line, dtype)], directory / "tokens.rox", dtype=dtype, block_size=16)
    return pen.open(directory / "tokens.rox")


def compare(loader: Any, model: Model, epoch: int = 0) -> None:
    """The rest of the epoch of a loader, which begins with it."""
    number = 0
    for batch in loader:
        assert list(batch) == list(loader.stream.schema)
        for row in range(len(batch["tokens"])):
            expected = model.sample(epoch, number)
            assert {name: values[row].tolist() for name, values in batch.items()} == {name: expected[name] for name in batch}
            number += 1
    assert number == len(model.sequences(epoch)) == len(loader.stream)


DOCUMENTS = documents_of(300, 60, 3)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"eos": 7},
    {"bos": 8, "eos": 7, "pad": 9, "first_segment": 1},
    {"split": "always", "bos": 8},
    {"split": "never", "long": "truncate", "eos": 7, "pad": 3},
    {"split": "never", "long": "drop"},
    {"multiple_of": 4, "eos": 7, "pad": 5},
    {"multiple_of": 8, "split": "always"},
)


def model_of(options: dict[str, Any], length: int = 40, seed: int = 11, block: int = 1, window: int = 100) -> Model:
    packing = reference.Packing(
        length,
        seed,
        block,
        -(-window // block),
        split=options.get("split", "fit"),
        multiple=options.get("multiple_of", 1),
        drops=options.get("long") == "drop",
    )
    rest = {name: options[name] for name in ("pad", "bos", "eos", "first_segment") if name in options}
    return Model(DOCUMENTS, packing, **rest)


@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.sampled(3)
def test_packs_of_a_store_are_those_of_the_model(tmp_path: Path, number: int, threads: int):
    options = OPTIONS[number]
    with open_store(tmp_path, DOCUMENTS) as source:
        stream = source.shuffle(seed=11, block=8).pack(40, window=100, fields=FIELDS, **options)
        model = model_of(options, block=8)
        loader = pen.Loader(stream, batch_size=7, threads=threads)
        assert loader.engine == ("native" if threads else "caller")
        for epoch in (0, 1):
            compare(loader, model, epoch)


@pytest.mark.parametrize("method", ["in_order", "shuffle"])
@pytest.mark.parametrize("threads", [0, 2])
def test_packs_of_arrays_in_any_order(method: str, threads: int):
    source = pen.open({"ids": texts(DOCUMENTS, "u4"), "number": np.arange(300)})
    ordered = source.in_order() if method == "in_order" else source.shuffle(seed=11)
    stream = ordered.pack(33, window=64, eos=5, fields=("labels", "tokens"))
    assert stream.schema == {"labels": pen.Field("i8", (33,)), "tokens": pen.Field("u4", (33,))}
    model = model_of({"eos": 5}, 33, -1 if method == "in_order" else 11, 1, 64)
    for epoch, loader in ((0, pen.Loader(stream, batch_size=5, threads=threads)),):
        compare(loader, model, epoch)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("separator", [[0], [0, 1]])
def test_packs_of_a_token_file_by_separator(tmp_path: Path, threads: int, separator: list[int]):
    documents = documents_of(200, 50, 9, first=10)
    with open_tokens(tmp_path, documents, separator) as source:
        stream = source.shuffle(seed=11).pack(64, window=50, separator=separator, fields=FIELDS)
        loader = pen.Loader(stream, batch_size=6, threads=threads)
        assert loader.engine == ("native" if threads else "caller")
        ended = [[*one, *separator] for one in documents]
        compare(loader, Model(ended, reference.Packing(64, 11, stream.packing.block, -(-50 // stream.packing.block))))


def test_texts_are_packed_as_bytes(tmp_path: Path):
    source = pen.open({"text": ["grüße", "", None, "ab", "x" * 30]})
    stream = source.in_order().pack(16, eos=0, pad=255, split="always")
    tokens = next(iter(pen.Loader(stream, batch_size=10)))["tokens"]
    assert tokens.tobytes() == "grüße\0\0\0ab\0".encode() + b"x" * 30 + b"\0" + b"\xff" * 20
    assert tokens.dtype == np.uint8


lists = st.lists(st.lists(st.integers(0, 99), max_size=20), max_size=15)


@given(
    documents=lists,
    length=st.integers(1, 12),
    window=st.integers(1, 6),
    split=st.sampled_from(["fit", "always"]),
    added=st.booleans(),
)
def test_any_documents(documents: list[list[int]], length: int, window: int, split: str, added: bool):
    extra = {"bos": 100, "eos": 101} if added else {}
    stream = pen.open({"ids": texts(documents)}).shuffle(seed=3).pack(length, window=window, split=split, fields=FIELDS, **extra)
    model = Model(documents, reference.Packing(length, 3, 1, window, split=split), **extra)
    compare(pen.Loader(stream, batch_size=3, threads=0), model)


@pytest.mark.parametrize("multiple_of", [1, 4])
@pytest.mark.parametrize("threads", [0, 2])
def test_bounds_of_sequences(tmp_path: Path, multiple_of: int, threads: int):
    with open_store(tmp_path, DOCUMENTS) as source:
        fields = ("tokens", "segment", "cu_seqlens", "max_seqlen")
        stream = source.shuffle(seed=11).pack(40, window=100, fields=fields, multiple_of=multiple_of).without(range(0, 300, 7))
        for batch in pen.Loader(stream, batch_size=9, threads=threads):
            assert batch["cu_seqlens"].shape == (len(batch["tokens"]), 41)
            for segment, found, longest in zip(batch["segment"], batch["cu_seqlens"], batch["max_seqlen"], strict=True):
                places, row = {0, 40}, segment.tolist()
                for number in set(row) - {-1}:
                    places |= {row.index(number), row.index(number) + -(-row.count(number) // multiple_of) * multiple_of}
                ends = sorted(places)
                assert found.tolist() == ends + [40] * (41 - len(ends))
                assert longest == max(np.diff(ends))


# Loaders


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_store(tmp_path_factory.mktemp("pack"), DOCUMENTS) as source:
        yield source


def rows_of(batches: list[Any]) -> list[list[int]]:
    """The samples of a batch of several ranks, in their order."""
    size = sum(len(batch["tokens"]) for batch in batches)
    return [batches[place % len(batches)]["tokens"][place // len(batches)].tolist() for place in range(size)]


def run(stream: Any, state: Any, world: int, steps: int, **options: Any) -> tuple[list[list[list[int]]], Any]:
    """Batches of all ranks together, from a state on, and the state behind them."""
    loaders = [pen.Loader(stream, shard=Shard(rank, world), threads=0, **options) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(state))
    iterators = [loader.forever() for loader in loaders]
    found = [rows_of([next(one) for one in iterators]) for _ in range(steps)]
    states = {json.dumps(loader.state_dict()) for loader in loaders}
    assert len(states) == 1
    return found, states.pop()


def check_resumes(stream: Any, steps: int, size: int, worlds: Sequence[int] = WORLDS, **options: Any) -> None:
    whole, _ = run(stream, None, 1, steps, batch_size=size, **options)
    for before in worlds:
        begun, states = [], [None]
        for _ in range(steps):
            batch, state = run(stream, states[-1], before, 1, batch_size=size, **options)
            begun += batch
            states.append(state)
        assert begun == whole
        for after in worlds:
            for step in range(0, steps, 3):
                again, _ = run(stream, states[step], after, min(2, steps - step), batch_size=size, **options)
                assert again == whole[step : step + 2]


@pytest.mark.parametrize("tail", ["keep", "wrap"])
def test_runs_resume_on_any_number_of_ranks(store: Any, tail: str):
    stream = store.shuffle(seed=11, block=8).pack(40, window=100, eos=7)
    check_resumes(stream, len(stream) // 24 + 3, 24, every(2, WORLDS), tail=tail)


def test_any_batch_size_gives_the_same_sequences(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100)
    epochs = [
        [row for batch in pen.Loader(stream, batch_size=size) for row in batch["tokens"].tolist()] for size in (1, 3, 16, 999)
    ]
    assert all(one == epochs[0] for one in epochs)


def test_a_run_goes_on_with_another_batch_size(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100)
    whole = [row for batch in pen.Loader(stream, batch_size=1) for row in batch["tokens"].tolist()]
    first = pen.Loader(stream, batch_size=8)
    batches = iter(first)
    begun = [row for _ in range(3) for row in next(batches)["tokens"].tolist()]
    second = pen.Loader(stream, batch_size=5)
    second.load_state_dict(first.state_dict())
    assert begun + [row for batch in second for row in batch["tokens"].tolist()] == whole


def test_tails_fill_batches_up(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100)
    count = len(stream)
    size = next(size for size in range(7, 20) if count % size)
    padded = list(pen.Loader(stream, batch_size=size, tail="pad", threads=2))
    assert sum(int(batch["valid"].sum()) for batch in padded) == count
    assert all(len(batch["tokens"]) == size for batch in padded)
    wrapped = pen.Loader(stream, batch_size=size, tail="wrap").forever()
    rows = [row for _ in range(2 * count // size) for row in next(wrapped)["tokens"].tolist()]
    model = model_of({})
    expected = [model.sample(epoch, number)["tokens"] for epoch in (0, 1) for number in range(count)]
    assert rows == expected[: len(rows)]


def test_states_of_other_packs_are_refused(store: Any):
    ordered = store.shuffle(seed=11)
    state = pen.Loader(ordered.pack(40, window=100), batch_size=4).state_dict()
    for other in (
        ordered.pack(41, window=100),
        ordered.pack(40, window=101),
        ordered.pack(40, window=100, split="always"),
        ordered.pack(40, window=100, eos=7),
        ordered.pack(40, window=100).without([3]),
        ordered.sequences(40),
        store.shuffle(seed=12).pack(40, window=100),
    ):
        with pytest.raises(StateMismatchError):
            pen.Loader(other, batch_size=4).load_state_dict(state)
    pen.Loader(ordered.pack(np.int64(40), window=np.int32(100), pad=np.uint8(0)), batch_size=8).load_state_dict(state)


def test_streams_are_picklable_and_small(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100, eos=7)
    packed = pickle.dumps(stream)
    assert len(packed) < 4000
    again = pickle.loads(packed)
    assert again.plan() == stream.plan()
    picks = stream.locate(1, range(0, 400, 40))
    assert np.array_equal(again.fetch(again.locate(1, range(0, 400, 40)))["tokens"], stream.fetch(picks)["tokens"])
    with ThreadPoolExecutor(2) as executor:
        compare(pen.Loader(stream, batch_size=16, executor=executor), model_of({"eos": 7}))


def test_threads_find_the_same(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=10, eos=7)
    assert stream.packing.num_groups == 30, "more groups than plans are kept"
    model = model_of({"eos": 7}, window=10)
    with ThreadPoolExecutor(8) as threads:
        for epoch, number, found in threads.map(
            lambda one: (one % 3, one * 37 % len(stream), stream.locate(one % 3, range(one * 37 % len(stream) * 40, 10**9, 10**9))),
            range(400),
        ):
            assert stream.fetch(found)["tokens"][0].tolist() == model.sample(epoch, number)["tokens"]


def test_memory_of_the_caller_is_filled(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100, fields=FIELDS, pad=1)
    out = [{name: np.zeros((8, 40), one.dtype) for name, one in stream.schema.items()} for _ in range(3)]
    model = model_of({"pad": 1})
    for number, batch in enumerate(pen.Loader(stream, batch_size=8, out=out)):
        for name, values in batch.items():
            assert np.shares_memory(values, out[number % 3][name])
            assert values.tolist() == [model.sample(0, number * 8 + row)[name] for row in range(len(values))]


def test_ids_and_transforms(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100, bos=8)
    seen: list[int] = []
    for batch in pen.Loader(stream, batch_size=8, ids="id", transform=lambda batch, info: batch | {"same": info.ids}):
        assert batch["id"].tolist() == batch["same"].tolist()
        seen += batch["id"].tolist()
    assert seen == [i for batch in pen.Loader(stream, batch_size=8, ids="id", threads=2) for i in batch["id"].tolist()]
    assert len(set(seen)) == len(seen)


# Questions


@pytest.mark.parametrize("options", [{}, {"bos": 8, "eos": 7}])
def test_explain_tells_documents_and_their_spans(store: Any, options: dict[str, Any]):
    stream = store.shuffle(seed=11).pack(40, window=100, **options)
    loader = pen.Loader(stream, batch_size=6)
    added = {token for token in (8, 7) if options}
    for step, batch in enumerate(loader):
        told = loader.explain(step)["documents"]
        for row, spans in zip(batch["tokens"], told, strict=True):
            shown = [token for document, low, high in spans.tolist() for token in DOCUMENTS[document][low:high]]
            assert [token for token in row.tolist() if token > 8 or (token and token not in added)] == [
                t for t in shown if t > 8 or t not in added
            ]


def test_explain_tells_as_many_documents_as_there_are_segments():
    """Also those without tokens of their own."""
    source = pen.open({"ids": [np.arange(1, 1 + number % 4) for number in range(40)]})
    for options in ({"eos": 9}, {"bos": 8, "eos": 9}):
        loader = pen.Loader(source.shuffle(seed=3).pack(12, window=10, **options), batch_size=5)
        for step, batch in enumerate(loader):
            for segment, spans in zip(batch["segment"], loader.explain(step)["documents"], strict=True):
                assert len(spans) == segment.max() + 1
                assert all(0 <= low <= high <= number % 4 for number, low, high in spans.tolist())
        assert all(loader.where(number) for number in range(40))


def test_bans_of_blocks_are_not_taken_for_bans_of_as_many_documents(tmp_path: Path):
    written = write_tokens([[1, 2], [3, 4, 5, 6, 7, 8], [9]], tmp_path / "a.rox", dtype="u2", separator=0, block_size=4)
    with pen.open(written[0]) as tokens:
        assert len(tokens) == len(tokens.in_order().pack(16, separator=0).packing.bounds) - 1
        with pytest.raises(ValueError, match="pack first"):
            tokens.in_order().without([1]).pack(16, separator=0)


@pytest.mark.parametrize("lengths", [[4] * 12, [4] * 6 + [2] * 6])
def test_a_phase_without_steps_moves_nothing(lengths: list[int]):
    source = pen.open({"ids": [np.full(length, number + 1) for number, length in enumerate(lengths)]})
    stream = source.in_order().pack(4, split="never", long="drop", window=2)
    first, last = pen.Phase(steps=2, batch_size=2, seq_len=4), pen.Phase(steps=2, batch_size=1, seq_len=8)
    without, with_one = (
        [batch["tokens"].tolist() for batch in pen.Loader(stream, phases=phases)]
        for phases in ([first, last], [first, pen.Phase(steps=0, batch_size=2, seq_len=2), last])
    )
    assert without == with_one


def test_where_finds_every_sequence_of_a_document(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100)
    loader = pen.Loader(stream, batch_size=6)
    held = {}
    for step in range(len(loader)):
        for spans in loader.explain(step)["documents"]:
            for document in spans[:, 0].tolist():
                held.setdefault(document, []).append(step)
    for document in range(len(DOCUMENTS)):
        found = loader.where(document)
        assert [one["step"] for one in found] == held.get(document, [])
        assert all(one["position"] % 40 == 0 for one in found)


def test_banned_documents_are_padding_and_nothing_moves(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=100, fields=FIELDS, eos=7, pad=2)
    banned = [5, 6, 7, 100, 250]
    held = stream.without(banned, from_step=4)
    plain, model = model_of({"eos": 7, "pad": 2}), model_of({"eos": 7, "pad": 2})
    model = Model(DOCUMENTS, model.packing, 2, eos=7, banned=frozenset(banned))
    for threads in (0, 2):
        loader = pen.Loader(held, batch_size=6, threads=threads)
        for step, batch in enumerate(loader):
            expected = [(model if step >= 4 else plain).sample(0, step * 6 + row) for row in range(len(batch["tokens"]))]
            for name, values in batch.items():
                assert values.tolist() == [one[name] for one in expected]
    assert held.plan() != stream.plan()
    for document in banned:
        assert all(one["step"] < 4 for one in loader.where(document))
    earlier = store.shuffle(seed=11).without(banned).pack(40, window=100, fields=FIELDS, eos=7, pad=2)
    compare(pen.Loader(earlier, batch_size=6), model)


def test_selections_are_packed(store: Any):
    chosen = list(range(250, 20, -3))
    stream = store.select(chosen).shuffle(seed=4, block=5).pack(50, window=30, fields=FIELDS)
    loader = pen.Loader(stream, batch_size=6)
    assert loader.engine == "native"
    compare(loader, Model([DOCUMENTS[i] for i in chosen], reference.Packing(50, 4, 5, 6)))


# Mixtures and phases


def test_mixtures_of_packs_have_weights_by_tokens(tmp_path: Path, store: Any):
    other = documents_of(200, 30, 8, first=50_000)
    with open_store(tmp_path, other) as second:
        streams = {"a": store.shuffle(seed=1).pack(32, window=80, eos=7), "b": second.shuffle(seed=2).pack(32, window=50, eos=7)}
        mixed = pen.mix(streams, weights={"a": 0.75, "b": 0.25}, seed=5, stop="all_exhausted")
        models = {
            "a": Model(DOCUMENTS, reference.Packing(32, 1, 1, 80), eos=7),
            "b": Model(other, reference.Packing(32, 2, 1, 50), eos=7),
        }
        for threads in (0, 2):
            loader = pen.Loader(mixed, batch_size=16, threads=threads)
            found: dict[str, list[Any]] = {"a": [], "b": []}
            for step, batch in enumerate(loader):
                rows = zip(*(batch[name].tolist() for name in FIELDS[:3]), strict=True)
                for row, name in zip(rows, loader.explain(step)["source"].tolist(), strict=True):
                    found[name].append(row)
            for name, model in models.items():
                places = [divmod(number, len(streams[name])) for number in range(len(found[name]))]
                samples = [model.sample(*place) for place in places]
                assert sorted(found[name]) == sorted(tuple(one[key] for key in FIELDS[:3]) for one in samples)
        assert abs(len(found["a"]) - 3 * len(found["b"])) <= 3
        record = ("b", 17)
        for one in loader.where(record):
            spans = loader.explain(one["step"])["parts"]["b"]["documents"]
            assert any(17 in span[:, 0].tolist() for span in spans)
        assert loader.where(record)
        check_resumes(mixed, 8, 24, worlds=(1, 3, 8))


def test_phases_change_the_length(store: Any):
    stream = store.shuffle(seed=11).pack(40, window=60, eos=7)
    phases = [
        pen.Phase(3, batch_size=8, seq_len=20),
        pen.Phase(2, batch_size=4, seq_len=64),
        pen.Phase(40, batch_size=8, seq_len=40),
    ]
    loader = pen.Loader(stream, phases=phases, threads=2)
    batches = list(loader)
    assert [batch["tokens"].shape for batch in batches] == [(8, 20)] * 3 + [(4, 64)] * 2 + [(8, 40)] * 40
    assert len(loader) == 45
    seen = phased_model(phases, 60)
    for step, batch in enumerate(batches):
        assert batch["tokens"].tolist() == seen[step]
    first_epoch = [token for batch in batches[:10] for token in batch["tokens"].reshape(-1).tolist() if token > 8]
    assert len(first_epoch) == len(set(first_epoch)), "no token comes twice in an epoch"
    for step in range(0, 45, 4):
        begun = pen.Loader(stream, phases=phases, threads=0)
        begun.seek(step)
        again = pen.Loader(stream, phases=phases, threads=2)
        again.load_state_dict(begun.state_dict())
        assert next(iter(again))["tokens"].tolist() == batches[step]["tokens"].tolist()
    for world in (2, 4):
        ranks = [list(pen.Loader(stream, phases=phases, shard=Shard(rank, world), threads=0)) for rank in range(world)]
        assert [rows_of(list(parts)) for parts in zip(*ranks, strict=True)] == [batch["tokens"].tolist() for batch in batches]


def phased_model(phases: list[pen.Phase], window: int) -> list[list[list[int]]]:
    """The batches of phases: where the length changes, the next group that has not begun is packed to the new one."""
    found, epoch, place = [], 0, 0
    for number, phase in enumerate(phases):
        model = Model(DOCUMENTS, reference.Packing(phase.seq_len, 11, 1, window), eos=7)
        if number and phase.seq_len != phases[number - 1].seq_len:
            groups = -(-len(DOCUMENTS) // window)
            sizes = [edges_of(epoch, length, window) for length in (phases[number - 1].seq_len, phase.seq_len)]
            group = next(g for g in range(groups + 1) if sizes[0][g] >= place)
            place = sizes[1][group]
        for _ in range(phase.steps or 0):
            batch = []
            for _ in range(phase.batch_size):
                if place == len(model.sequences(epoch)):
                    epoch, place = epoch + 1, 0
                batch.append(model.sample(epoch, place)["tokens"])
                place += 1
            found.append(batch)
    return found


def edges_of(epoch: int, length: int, window: int) -> list[int]:
    order = reference.permutation(len(DOCUMENTS), reference.derive_key(11, epoch, 3))
    edges, before = [], 0
    for group in range(-(-len(order) // window) + 1):
        edges.append(-(-before // length) + group)
        before += sum(len(DOCUMENTS[i]) + 1 for i in order[group * window : (group + 1) * window])
    return edges


def test_phases_of_one_length_go_on_in_mixtures_too(store: Any):
    phases = [pen.Phase(3, batch_size=8, seq_len=40), pen.Phase(4, batch_size=4, seq_len=40)]
    stream = store.shuffle(seed=11).pack(40, window=60)
    whole = [row for batch in pen.Loader(stream, batch_size=4) for row in batch["tokens"].tolist()]
    assert [row for batch in pen.Loader(stream, phases=phases) for row in batch["tokens"].tolist()] == whole[:40]
    mixed = pen.mix(
        {"a": stream, "b": store.shuffle(seed=12).pack(40, window=60)}, seed=1, weights={"a": 1, "b": 1}, stop="forever"
    )
    assert [len(batch["tokens"]) for batch in pen.Loader(mixed, phases=phases)] == [8, 8, 8, 4, 4, 4, 4]
    with pytest.raises(ValueError, match="a mixture of packs keeps the length"):
        pen.Loader(mixed, phases=[pen.Phase(3, batch_size=8, seq_len=20)])


# At URLs


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("kind", ["store", "tokens"])
def test_documents_at_urls(tmp_path: Path, kind: str, threads: int):
    if kind == "store":
        open_store(tmp_path, DOCUMENTS).close()
        root, path = url_path(f"memory://packs/{kind}{threads}.pen"), tmp_path / "ids.pen"
    else:
        open_tokens(tmp_path, DOCUMENTS, [0]).close()
        root, path = url_path(f"memory://packs/tokens{threads}.rox"), tmp_path / "tokens.rox"
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        place = root if path.is_file() else root / str(file.relative_to(path))
        place.objects.put(place.key, file.read_bytes())
    with pen.open(str(root)) as source:
        ordered = source.shuffle(seed=11, block=8)
        if kind == "store":
            stream, documents = ordered.pack(40, window=100, eos=0), DOCUMENTS
        else:
            stream, documents = ordered.pack(40, window=100, separator=0), DOCUMENTS
        block = stream.packing.block
        ended = [[*one, 0] for one in documents]
        model = Model(ended, reference.Packing(40, 11, block, -(-100 // block)))
        loader = pen.Loader(stream, batch_size=7, threads=threads)
        for epoch in (0, 1):
            compare(loader, model, epoch)
        assert loader.forecast() is not None


@pytest.mark.parametrize("split", ["fit", "always", "never"])
@pytest.mark.parametrize("kind", ["in order", "blocks", "tokens in order"])
@pytest.mark.sampled(2)
def test_who_reads_ahead_sees_group_after_group(tmp_path: Path, store: Any, kind: str, split: str):
    options: dict[str, Any] = {"window": 40, "split": split, "long": "truncate" if split == "never" else "error"}
    tokens = open_tokens(tmp_path, DOCUMENTS, [0])
    if kind == "tokens in order":
        stream = tokens.in_order().pack(40, separator=0, **options)
    else:
        ordered = store.in_order() if kind == "in order" else store.shuffle(seed=11, block=8)
        stream = ordered.pack(40, **options)
    for epoch in (0, 1):
        before, seen = -1, set[int]()
        for sequence in range(len(stream)):
            picks = stream.locate(epoch, range(sequence * 40, sequence * 40 + 1))
            units = stream.units_of(picks)
            low, high = stream.rows_of(picks)
            seen |= {row for first, last in zip(low, high, strict=True) for row in range(first, last)}
            if units.size:
                positions = stream.order.positions(epoch, units)
                assert before <= positions.min() == positions.max() < stream.order.n
                before = int(positions.min())
        if kind == "tokens in order" and split != "never":
            assert seen == set(range(tokens.num_tokens))
    tokens.close()


def test_token_files_may_know_their_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with open_tokens(tmp_path, DOCUMENTS) as source:
        bounds = np.cumsum([0, *map(len, DOCUMENTS)])
        monkeypatch.setattr(type(source), "document_bounds", bounds, raising=False)
        stream = source.shuffle(seed=11).pack(40, window=60, eos=7)
        compare(pen.Loader(stream, batch_size=8), model_of({"eos": 7}, block=stream.packing.block, window=60))
        for bad in (bounds + 1, bounds[:0], bounds - 1):
            monkeypatch.setattr(type(source), "document_bounds", bad)
            with pytest.raises(ValueError, match="expected bounds of documents within"):
                source.shuffle(seed=11).pack(40)


# What is refused


def test_what_cannot_be_packed_is_refused(tmp_path: Path, store: Any):
    ordered = store.shuffle(seed=1)
    for options, words in (
        ({"fields": ("segment",)}, "fields must be"),
        ({"fields": ("tokens", "labels", "labels")}, "fields must be"),
        ({"fields": ("tokens", "loss")}, "fields must be"),
        ({"eos": [1, 2]}, "eos must be one token"),
        ({"pad": 2**40}, "pad"),
        ({"first_segment": 2}, "first_segment"),
        ({"separator": 0}, "separator finds the documents of token files"),
        ({"split": "never"}, "a sequence 16, and split='never' cuts none"),
        ({"window": 0}, "window"),
        ({"multiple_of": 3}, "multiple_of"),
        ({"long": "drop"}, "none is lost"),
    ):
        with pytest.raises(ValueError, match=words):
            ordered.pack(16, **options)
    with pytest.raises(ValueError, match="length"):
        ordered.pack(0)
    with pytest.raises(ValueError, match="drawn with replacement"):
        store.sample(seed=1).pack(16)
    with pytest.raises(TypeError, match="cannot be packed in the order"):
        store.slide(window=4).pack(16)
    with pytest.raises(TypeError, match="cannot be packed in the order"):
        store.design(seed=1, size=10).pack(16)
    with pytest.raises(ValueError, match="no lanes"):
        store.shuffle(seed=1, block=4, lanes=2).pack(16)
    with pytest.raises(ValueError, match="labels are whole numbers"):
        pen.open({"x": pen.Ragged.from_items([np.ones(3, "f4")], dtype="f4")}).in_order().pack(4, fields=("tokens", "labels"))
    with pytest.raises(ValueError, match="labels are whole numbers"):
        pen.open({"x": pen.Ragged.from_items([np.ones(3, "u8")], dtype="u8")}).in_order().pack(4, fields=("tokens", "labels"))
    with pytest.raises(ValueError, match="ragged"):
        pen.open({"x": np.arange(4)}).in_order().pack(4)
    with pytest.raises(ValueError, match="on_error"):
        pen.Loader(ordered.pack(16), batch_size=4, on_error="skip")
    with open_tokens(tmp_path, DOCUMENTS, [0]) as tokens:
        with pytest.raises(ValueError, match="pass separator="):
            tokens.shuffle(seed=1).pack(16)
        with pytest.raises(ValueError, match="leave field out"):
            tokens.shuffle(seed=1).pack(16, field="text", separator=0)
        with pytest.raises(ValueError, match="pack first"):
            tokens.shuffle(seed=1).without([1]).pack(16, separator=0)
        with pytest.raises(ValueError, match="blocks of a token file"):
            tokens.select([1, 2]).shuffle(seed=1).pack(16)


def test_damaged_positions_are_refused(store: Any):
    loader = pen.Loader(store.shuffle(seed=11).pack(40, window=100), batch_size=4)
    with pytest.raises(ValueError, match="multiple of 40"):
        loader.stream.locate_at(0, np.array([13]))
    with pytest.raises(BatchError, match="multiple of 40"):
        loader.work.picks(loader.schedule.place(0)._replace(spans=(loader.schedule.place(0).spans[0]._replace(run=range(3, 4)),)))
