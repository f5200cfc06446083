"""Loss masks travel with their tokens: through sequences and packs of every source that has them, by every engine."""

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats import token_files as made
from tests.golden.make_token_files import DIRECTORY as GOLDEN
from tests.golden.make_token_files import DOCUMENTS as GOLDEN_DOCUMENTS
from tests.golden.make_token_files import MASKS as GOLDEN_MASKS
from tests.order import reference
from tests.stream.test_pack_stream import Model, documents_of, texts

import penstock as pen
from penstock.errors import SchemaMismatchError, StateMismatchError
from penstock.formats.array import ArraySource
from penstock.order import BlockShuffle, Sequential, Shard
from penstock.remote.url import url_path

DOCUMENTS = documents_of(120, 40, 7, first=100)
MASKS = [[reference.absorb(4, token) % 3 > 0 for token in one] for one in DOCUMENTS]
MASKED = ("tokens", "labels", "loss_mask", "segment")
PARTS = ((0, 50), (50, 51), (51, 120))
"""The documents of three files."""

LINE = [token for one in DOCUMENTS for token in one]
MASK_OF = dict(zip(LINE, [value for one in MASKS for value in one], strict=True))


def write_datatrove(directory: Path, *, index: bool = True) -> str:
    for number, (low, high) in enumerate(PARTS):
        documents = [np.array(one, "<u2") for one in DOCUMENTS[low:high]]
        masks = [np.array(one, bool) for one in MASKS[low:high]]
        made.write_datatrove(directory / f"{number}.ds", documents, masks)
        if not index:
            (directory / f"{number}.ds.index").unlink()
            (directory / f"{number}.ds.metadata").write_text(f"t|2\n{sum(map(len, documents))}\n")
    return f"{directory}/*.ds"


def write_olmo(directory: Path) -> str:
    (directory / "masks").mkdir()
    for number, (low, high) in enumerate(PARTS):
        made.write_olmo(directory / f"{number}.npy", [np.array(one, "<u2") for one in DOCUMENTS[low:high]])
        mask = [value for one in MASKS[low:high] for value in one]
        (directory / f"masks/{number}.npy").write_bytes(np.array(mask, bool).tobytes())
    return f"{directory}/*.npy"


def open_datatrove(directory: Path) -> Any:
    return pen.open(write_datatrove(directory))


def open_olmo(directory: Path) -> Any:
    return pen.open(write_olmo(directory), documents=True, dtype="u2", loss=f"{directory}/masks/*.npy")


def open_store(directory: Path, dtype: str = "u1") -> Any:
    masks = pen.Ragged.from_items([np.array(one, dtype) for one in MASKS], dtype=dtype)
    pen.convert({"tokens": texts(DOCUMENTS), "loss_mask": masks}, directory / "masked.pen")
    return pen.open(directory / "masked.pen")


SOURCES: dict[str, Callable[[Path], Any]] = {
    "datatrove": open_datatrove,
    "olmo": open_olmo,
    "store": lambda directory: open_store(directory, "?"),
    "arrays": lambda _: pen.open({"tokens": texts(DOCUMENTS), "loss_mask": texts(MASKS, "u1")}),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with SOURCES[request.param](tmp_path) as opened:
        yield opened


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"bos": 8, "eos": 7, "pad": 9, "first_segment": 1},
    {"split": "always", "eos": 7, "multiple_of": 4},
    {"split": "never", "long": "truncate", "bos": 8},
)


def masked_model(options: dict[str, Any], stream: Any, banned: Sequence[int] = ()) -> tuple[Model, Model]:
    """The tokens, and the masks packed as if they were the tokens: 0 for BOS and padding, 1 for EOS."""
    pack = stream.packing
    packing = reference.Packing(
        pack.length, 11, pack.block, pack.group_blocks, split=pack.split, multiple=pack.multiple_of, drops=pack.long == "drop"
    )
    given = {name: options[name] for name in ("pad", "bos", "eos", "first_segment") if name in options}
    added = {name: value for name, value in (("bos", 0), ("eos", 1)) if name in options}
    hidden = frozenset(banned)
    return Model(DOCUMENTS, packing, banned=hidden, **given), Model(MASKS, packing, pad=0, banned=hidden, **added)


def engine_of(source: Any, threads: int) -> str:
    """Ragged arrays in memory have no native reader."""
    return "caller" if not threads else "threads" if isinstance(source, ArraySource) else "native"


def compare(loader: Any, models: tuple[Model, Model], epoch: int = 0) -> None:
    number = 0
    for batch in loader:
        assert list(batch) == list(loader.stream.schema)
        for row in range(len(batch["tokens"])):
            expected = models[0].sample(epoch, number)
            mask = [int(value) for value in models[1].sample(epoch, number)["tokens"]]
            expected["labels"] = [-100 if not after else one for one, after in zip(expected["labels"], [*mask[1:], 0], strict=True)]
            expected["loss_mask"] = mask
            assert {name: values[row].tolist() for name, values in batch.items()} == {name: expected[name] for name in batch}
            number += 1
    assert number == len(loader.stream)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.sampled(3)
def test_masks_are_packed_with_their_tokens_and_leave_labels_out(source: Any, threads: int) -> None:
    for options in OPTIONS:
        stream = source.shuffle(seed=11).pack(32, window=40, fields=MASKED, **options)
        assert stream.schema["loss_mask"] == pen.Field("u1", (32,))
        loader = pen.Loader(stream, batch_size=7, threads=threads)
        assert loader.engine == engine_of(source, threads)
        for epoch in (0, 1):
            compare(loader, masked_model(options, stream), epoch)


@pytest.mark.parametrize("threads", [0, 2])
def test_labels_follow_the_mask_of_the_data_even_if_it_is_not_delivered(source: Any, threads: int) -> None:
    stream = source.shuffle(seed=11).pack(32, window=40, fields=("labels", "tokens"), eos=7)
    assert list(stream.schema) == ["labels", "tokens"]
    compare(pen.Loader(stream, batch_size=7, threads=threads), masked_model({"eos": 7}, stream))


@pytest.mark.parametrize("threads", [0, 2])
def test_masks_of_banned_documents_are_zeros(source: Any, threads: int) -> None:
    banned = [0, 3, 50, 119]
    stream = source.shuffle(seed=11).pack(32, window=40, fields=MASKED, eos=7).without(banned)
    compare(pen.Loader(stream, batch_size=7, threads=threads), masked_model({"eos": 7}, stream, banned))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.sampled(3)
def test_masks_are_cut_into_sequences_with_their_tokens(source: Any, threads: int) -> None:
    for ordered in (source.in_order(), source.shuffle(seed=3), source.shuffle(seed=3, block=8).without([3, 7])):
        for fields in (("tokens", "loss_mask"), ("loss_mask", "position", "tokens")):
            stream = ordered.sequences(12, fields=fields)
            plain = ordered.sequences(12, documents=True)
            assert list(stream.schema) == list(fields)
            with pen.Loader(stream, 5, threads=threads) as loader, pen.Loader(plain, 5) as other:
                assert loader.engine == engine_of(source, threads)
                for batch, expected in itertools.islice(zip(loader, other, strict=True), 30):
                    tokens = batch["tokens"].tolist()
                    assert tokens == expected["tokens"].tolist()
                    assert batch["loss_mask"].tolist() == [[MASK_OF[token] for token in row] for row in tokens]
                    assert batch["loss_mask"].dtype == np.uint8
                    assert "position" not in batch or batch["position"].tolist() == expected["position"].tolist()


def test_a_separator_that_is_put_behind_documents_counts(tmp_path: Path) -> None:
    with open_store(tmp_path) as source:
        for threads in (0, 2):
            stream = source.shuffle(seed=3).sequences(20, separator=[1, 2], fields=("tokens", "loss_mask"))
            for batch in pen.Loader(stream, 4, threads=threads):
                expected = [[int(MASK_OF.get(token, True)) for token in row] for row in batch["tokens"].tolist()]
                assert batch["loss_mask"].tolist() == expected


def test_token_files_have_the_same_line_with_masks_and_without(tmp_path: Path) -> None:
    name = write_datatrove(tmp_path)
    with pen.open(name) as masked, pen.open(name, loss=False) as plain:
        for stream in (lambda one: one.shuffle(seed=5).sequences(16), lambda one: one.shuffle(seed=5).pack(16)):
            with pen.Loader(stream(masked), 4) as first, pen.Loader(stream(plain), 4) as second:
                for one, other in zip(first, second, strict=True):
                    assert one["tokens"].tolist() == other["tokens"].tolist()
        assert masked.num_tokens == plain.num_tokens
        assert masked.read_tokens([7], 20).tolist() == plain.read_tokens([7], 20).tolist()
        assert masked.documents(DOCUMENTS[0][0]).tolist() == plain.documents(DOCUMENTS[0][0]).tolist()
        assert masked.document_name(50) == plain.document_name(50)
        assert masked.steps_per_epoch(4, 16) == plain.steps_per_epoch(4, 16)
        assert isinstance(masked.shuffle(seed=1, block=3).order, BlockShuffle)
        assert isinstance(masked.in_order().order, Sequential)


def test_blocks_of_tokens_have_masks_too(tmp_path: Path) -> None:
    """Files without a table of documents are cut at a separator."""
    with pen.open(write_datatrove(tmp_path, index=False), block_size=16) as source:
        separator = DOCUMENTS[4][-1]
        for threads in (0, 2):
            for stream in (
                source.shuffle(seed=2).sequences(10, fields=("tokens", "loss_mask")),
                source.shuffle(seed=2).pack(10, separator=separator, fields=("tokens", "loss_mask"), pad=65_535),
            ):
                for batch in pen.Loader(stream, 4, threads=threads):
                    expected = [[MASK_OF.get(token, False) for token in row] for row in batch["tokens"].tolist()]
                    assert batch["loss_mask"].tolist() == expected


def test_masks_at_urls_are_read_by_native_threads(tmp_path: Path) -> None:
    write_datatrove(tmp_path)
    place = url_path("memory://loss-masks")
    for path in tmp_path.glob("*.ds*"):
        (place / path.name).objects.put((place / path.name).key, path.read_bytes())
    with pen.open(f"{place}/*.ds") as source:
        for options in OPTIONS[:2]:
            stream = source.shuffle(seed=11, block=8).pack(32, window=40, fields=MASKED, **options)
            loader = pen.Loader(stream, batch_size=7, threads=2)
            assert loader.engine == "native"
            compare(loader, masked_model(options, stream))
        sequences = source.shuffle(seed=3).sequences(12, fields=("tokens", "loss_mask"))
        for batch in pen.Loader(sequences, 5, threads=2):
            assert batch["loss_mask"].tolist() == [[MASK_OF[token] for token in row] for row in batch["tokens"].tolist()]


def test_masks_of_selections_lists_and_dicts(tmp_path: Path) -> None:
    chosen = list(range(110, 3, -3))
    with open_store(tmp_path) as store:
        views = (store.select(chosen), pen.open([store.select(chosen[:9]), store.select(chosen[9:])]))
        for view in (*views, pen.open({"a": views[0], "n": np.arange(len(chosen))})):
            names = [name for name in view.schema if name.endswith("tokens")]
            for threads in (0, 2):
                stream = view.in_order().pack(30, window=20, fields=MASKED, field=names[0])
                for batch in pen.Loader(stream, 4, threads=threads):
                    expected = [[MASK_OF.get(token, False) for token in row] for row in batch["tokens"].tolist()]
                    assert batch["loss_mask"].tolist() == expected


@pytest.mark.parametrize("threads", [0, 2])
def test_packs_with_masks_and_without_are_mixed_each_with_its_own_labels(tmp_path: Path, threads: int) -> None:
    with open_store(tmp_path) as masked:
        plain = masked.pick("tokens")
        fields = ("tokens", "labels", "segment")
        for first, second in ((masked, plain), (plain, masked)):
            streams = {"a": first.shuffle(seed=1).pack(32, fields=fields), "b": second.shuffle(seed=1).pack(32, fields=fields)}
            mixed = pen.mix(streams, seed=2, weights={"a": 1, "b": 1})
            loader = pen.Loader(mixed, 8, threads=threads)
            for step, batch in enumerate(loader):
                for name, tokens, labels, segment in zip(
                    loader.explain(step)["source"], *(batch[one].tolist() for one in fields), strict=True
                ):
                    has_mask = (first if name == "a" else second) is masked
                    inside = [here == there >= 0 for here, there in itertools.pairwise([*segment, -2])]
                    after = [*tokens[1:], 0]
                    counts = [is_in and (not has_mask or MASK_OF[token]) for is_in, token in zip(inside, after, strict=True)]
                    assert labels == [token if one else -100 for token, one in zip(after, counts, strict=True)]


def test_a_run_with_masks_resumes_on_other_ranks_in_phases_and_pickled(tmp_path: Path) -> None:
    with open_datatrove(tmp_path) as source:
        stream = source.shuffle(seed=11).pack(32, window=40, fields=MASKED, eos=7)
        whole = list(pen.Loader(stream, 8))
        begun = pen.Loader(stream, 8)
        begun.seek(3)
        twin = pickle.loads(pickle.dumps(stream))
        for world in (2, 4):
            for rank in range(world):
                loader = pen.Loader(twin, 8, shard=Shard(rank, world))
                loader.load_state_dict(begun.state_dict())
                batch = next(iter(loader))
                for name in MASKED:
                    assert batch[name].tolist() == whole[3][name][rank::world].tolist()
        for kind in (stream, source.shuffle(seed=2).sequences(16, fields=("tokens", "loss_mask"))):
            phases = [pen.Phase(3, batch_size=4, seq_len=8), pen.Phase(3, batch_size=2, seq_len=24)]
            for batch, other in zip(pen.Loader(kind, phases=phases), pen.Loader(kind, phases=phases, threads=0), strict=True):
                assert batch["loss_mask"].shape == batch["tokens"].shape
                assert batch["loss_mask"].tolist() == other["loss_mask"].tolist()
                expected = [[int(MASK_OF.get(token, token == 7)) for token in row] for row in batch["tokens"].tolist()]
                assert batch["loss_mask"].tolist() == expected


def test_states_of_other_fields_are_refused(tmp_path: Path) -> None:
    with open_datatrove(tmp_path) as source:
        state = pen.Loader(source.shuffle(seed=1).sequences(8, fields=("tokens", "loss_mask")), 4).state_dict()
        with pytest.raises(StateMismatchError):
            pen.Loader(source.shuffle(seed=1).sequences(8), 4).load_state_dict(state)


def test_memory_of_the_caller_gets_the_masks(tmp_path: Path) -> None:
    with open_datatrove(tmp_path) as source:
        for stream in (
            source.shuffle(seed=11).pack(32, window=40, fields=MASKED),
            source.shuffle(seed=11).sequences(32, fields=("tokens", "loss_mask")),
        ):
            out = [{name: np.ones((8, 32), one.dtype) for name, one in stream.schema.items()} for _ in range(2)]
            for batch, other in zip(pen.Loader(stream, 8, out=out), pen.Loader(stream, 8), strict=True):
                assert all(batch[name].tolist() == other[name].tolist() for name in stream.schema)


def test_masks_of_datatrove_itself() -> None:
    with pen.open(GOLDEN / "datatrove/masked.ds") as source:
        line = np.concatenate(GOLDEN_MASKS).astype(int)
        batch = next(iter(pen.Loader(source.in_order().sequences(line.size, fields=("tokens", "loss_mask")), 1)))
        assert batch["tokens"][0].tolist() == np.concatenate(GOLDEN_DOCUMENTS["plain"]).tolist()
        assert batch["loss_mask"][0].tolist() == line.tolist()


# What is refused


def test_a_mask_that_is_not_there_is_refused(tmp_path: Path) -> None:
    plain = pen.open(write_datatrove(tmp_path), loss=False)
    arrays = pen.open({"tokens": texts(DOCUMENTS)})
    for source in (plain, arrays):
        for make in (source.in_order().sequences, source.in_order().pack):
            with pytest.raises(ValueError, match=r"has no loss mask: .* or leave 'loss_mask' out of fields"):
                make(16, fields=("tokens", "loss_mask"))
        assert "labels" in next(iter(pen.Loader(source.in_order().pack(16, fields=("tokens", "labels")), 4)))
    plain.close()


def test_masks_of_other_lengths_and_types_are_refused() -> None:
    masks = [list(one) for one in MASKS]
    masks[7] = [*masks[7], True]
    source = pen.open({"tokens": texts(DOCUMENTS), "loss_mask": texts(masks, "u1")})
    for make, options in ((source.in_order().sequences, {}), (source.shuffle(seed=1).pack, {"eos": 1})):
        with pytest.raises(SchemaMismatchError, match=f"found {len(masks[7])} in field 'loss_mask' of record 7, which has"):
            make(16, fields=("tokens", "loss_mask"), **options)
    for other in (texts(MASKS, "f4"), texts(MASKS, "u2"), np.zeros((120, 3), "u1"), ["x"] * 120):
        source = pen.open({"tokens": texts(DOCUMENTS), "loss_mask": other})
        with pytest.raises(ValueError, match="a loss mask is a ragged field of one byte"):
            source.in_order().pack(16, fields=("tokens", "labels"), field="tokens")
        assert list(source.in_order().pack(16, field="tokens").schema) == ["tokens", "segment", "position"]


def test_masks_of_flat_files_fit_file_by_file(tmp_path: Path) -> None:
    name = write_olmo(tmp_path)
    options: dict[str, Any] = {"documents": True, "dtype": "u2"}
    with pytest.raises(SchemaMismatchError, match="a loss mask for each of 3 files of tokens, found 1"):
        pen.open(name, loss=tmp_path / "masks/0.npy", **options)
    wrong = [tmp_path / f"masks/{number}.npy" for number in (1, 0, 2)]
    with pytest.raises(SchemaMismatchError, match=r"1\.npy: expected a loss mask of"):
        pen.open(name, loss=wrong, **options)
    with pytest.raises(TypeError, match="names of the label masks"):
        pen.open(name, loss=True, **options)
    with pytest.raises(ValueError, match="'loss_mask' is the name of the masks"):
        pen.open(name, loss=f"{tmp_path}/masks/*.npy", field="loss_mask", **options)
    with pen.open(name, loss=False, **options) as source:
        assert list(source.schema) == ["tokens"]


def test_fields_are_a_name_or_names() -> None:
    ordered = pen.open({"tokens": texts(DOCUMENTS)}).in_order()
    for make in (ordered.sequences, ordered.pack):
        for fields in ("tokens", ["tokens"], ("tokens",)):
            assert list(make(8, fields=fields).schema) == ["tokens"]
        assert list(make(8, fields=["position", "tokens"]).schema) == ["position", "tokens"]
        for fields in ("segment", "labels2", ["tokens", "tokens"], (), ["tokens", "labels2"], "token"):
            with pytest.raises(ValueError, match="fields must be 'tokens' and any of segment, position"):
                make(8, fields=fields)
        for bad in (None, 3, ["tokens", 3], {"tokens"}, b"tokens"):
            with pytest.raises(TypeError, match="fields must be a name or a sequence of names"):
                make(8, fields=bad)
    assert list(ordered.sequences(8, fields="tokens", documents=True).schema) == ["tokens", "segment", "position"]
