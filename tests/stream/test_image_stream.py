"""Pictures as arrays: the same for any threads, ranks and engines, from any source, and refused where they cannot be right."""

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats import packed_files, shards
from tests.pictures import encode, make, options, pictures, pixels, seed_of
from tests.remote.double import Double

import penstock as pen
from penstock import _core
from penstock.deliver.torch import Sampler
from penstock.errors import BatchError, ImageError, SchemaMismatchError, StateMismatchError
from penstock.records import Source
from penstock.remote.objects import close_all
from penstock.stream import ImageStream, Stream

COUNT, SIZE, SEED = 23, 16, 7
PICTURES = pictures(COUNT)
LABELS = np.arange(COUNT, dtype=np.int32)
HOW = options(SIZE)


def write_store(path: Path, items: list[bytes | None] = PICTURES, **more: Any) -> Path:
    fields = {"image": pen.Field.bytes(nullable=None in items), "label": pen.Field("i4")}
    with pen.create(path, fields, chunk_records=5) as out:
        out.extend({"image": items, "label": np.arange(len(items), dtype=np.int32)})
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    with pen.open(write_store(tmp_path_factory.mktemp("pictures") / "x.pen")) as source:
        yield source


def batches(stream: Stream, size: int = 6, epochs: int = 1, **how: Any) -> list[dict[str, Any]]:
    with pen.Loader(stream, size, **how) as loader:
        return [{name: np.ma.copy(value) for name, value in batch.items()} for _ in range(epochs) for batch in loader]


def together(found: list[dict[str, Any]], name: str = "image") -> Any:
    return np.ma.concatenate([batch[name] for batch in found])


def expected(ids: Any, seeds: list[int], how: Any = HOW, items: list[bytes] = PICTURES) -> Any:
    return make(how, [(items[i], seed) for i, seed in zip(np.asarray(ids).tolist(), seeds, strict=True)])


def epoch_of(stream: Any, epoch: int, how: Any = HOW) -> Any:
    """An epoch of a shuffled stream by the formulas."""
    ids = stream.order.at(epoch, np.arange(len(stream)))
    return expected(ids, [seed_of(SEED, epoch, i) for i in ids.tolist()], how)


# The same batches, whatever makes them


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_batches_are_those_of_a_plain_loop_with_documented_seeds(store: Source, threads: int) -> None:
    stream = store.shuffle(seed=SEED).images("image", SIZE)
    found = batches(stream, epochs=2, threads=threads)
    assert np.array_equal(together(found), np.concatenate([epoch_of(stream, 0), epoch_of(stream, 1)]))
    assert sorted(together(found[:4], "label").tolist()) == LABELS.tolist()
    assert pen.Loader(stream, 6, threads=threads).engine == ("native" if threads else "caller")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """Two pictures and a mask a record."""
    sides = [_core.probe_image(np.frombuffer(one, np.uint8))[1:3] for one in PICTURES]
    depths = [encode(pixels(n + 30, height, width), "PNG") for n, (width, height) in enumerate(sides)]
    masks = [encode(pixels(n, height, width)[..., 0], "PNG") for n, (width, height) in enumerate(sides)]
    path = tmp_path_factory.mktemp("scenes") / "x.pen"
    with pen.create(path, {name: pen.Field.bytes() for name in ("image", "depth", "mask")}, chunk_records=5) as out:
        out.extend({"image": PICTURES, "depth": depths, "mask": masks})
    with pen.open(path) as source:
        yield source


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("threads", [0, 1, 2, 4])
@pytest.mark.sampled(5)
def test_ranks_get_the_parts_of_the_same_batches_also_after_a_resume(scenes: Source, world: int, threads: int) -> None:
    stream: Any = scenes.shuffle(seed=SEED).images("image", SIZE).images("depth", 8, crop="center", flip=0, channels=1, dtype="f4")
    stream = stream.masks("mask", of="image")
    whole = batches(stream, 8, 2, tail="wrap", threads=0)
    first = pen.Loader(stream, 8, tail="wrap", threads=4 - threads)
    for _, _ in zip(range(2), first, strict=False):
        pass
    state = first.state_dict()
    first.close()
    loaders = [pen.Loader(stream, 8, tail="wrap", shard=pen.Shard(rank, world), threads=threads) for rank in range(world)]
    for loader in loaders:
        loader.load_state_dict(state)
    for batch in whole[2:]:  # over the end of the epoch
        parts = [next(iter(loader.forever())) for loader in loaders]
        for name, value in batch.items():
            made = np.empty_like(value)
            for rank, part in enumerate(parts):
                made[rank::world] = part[name]
            assert np.array_equal(made, value), name
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(
    "given",
    [
        {"crop": "center", "flip": 0, "layout": "nhwc"},
        {"crop": None, "dtype": "f4", "mean": (0.5, 0.4, 0.3), "std": 0.25},
        {"crop": "pad", "fill": 9, "channels": 1},
        {"dtype": np.float16, "scale": (0.5, 1), "ratio": (1, 1), "flip": 1},
    ],
    ids=["center", "whole", "pad", "f2"],
)
def test_options_are_those_of_the_core_natively_and_not(store: Source, given: dict[str, Any]) -> None:
    stream = store.shuffle(seed=SEED).images("image", (12, 20), **given)
    how = options((12, 20), **given)
    one, other = (together(batches(stream, threads=threads)) for threads in (0, 2))
    assert one.dtype == other.dtype == stream.schema["image"].dtype
    assert one.shape[1:] == stream.schema["image"].shape == how.shape
    assert np.array_equal(one, other)
    assert np.array_equal(one, epoch_of(stream, 0, how))


def test_all_pictures_of_a_sample_have_the_same_box(tmp_path: Path) -> None:
    fields = {"image": pen.Field.bytes(), "mask": pen.Field.bytes(), "x": pen.Field("u1")}
    with pen.create(tmp_path / "x.pen", fields) as out:
        out.extend({"image": PICTURES, "mask": PICTURES, "x": np.arange(COUNT, dtype=np.uint8)})
    with pen.open(tmp_path / "x.pen") as data:
        stream = data.shuffle(seed=SEED).images(["image", "mask"], SIZE)
        batch = batches(stream, COUNT)[0]
        assert np.array_equal(batch["image"], batch["mask"])
        again = data.shuffle(seed=SEED).images("image", SIZE).images("mask", 8, crop="center", flip=0)
        assert isinstance(again, ImageStream)
        batch = batches(again, COUNT)[0]
        assert list(batch) == ["image", "mask", "x"]
        assert batch["mask"].shape == (COUNT, 3, 8, 8)
        assert np.array_equal(batch["image"], epoch_of(stream, 0))
        boxes = [again.boxes(0, range(COUNT), name) for name in ("image", "mask")]
        assert not np.array_equal(*boxes)
        with pytest.raises(KeyError, match="field of images"):
            again.boxes(0, range(2))
        for wrong in ("image", "mask"):
            with pytest.raises(KeyError, match="unknown field"):
                again.images(wrong)


def test_boxes_are_what_is_delivered(store: Source) -> None:
    stream = store.shuffle(seed=SEED).images("image", SIZE)
    places = np.array([3, 0, 20])
    ids = stream.locate_at(1, places).ids.tolist()
    for (x, y, width, height, flip), record in zip(stream.boxes(1, places).tolist(), ids, strict=True):
        how = HOW.maker
        size = _core.probe_image(np.frombuffer(PICTURES[record], np.uint8))[1:3]
        assert how.box(*size, seed_of(SEED, 1, record)) == (x, y, width, height, flip)
        assert x + width <= size[0]
        assert y + height <= size[1]


# Orders, mixtures, bans


def test_a_record_that_is_drawn_twice_has_two_crops(store: Source) -> None:
    for stream in (store.sample(seed=SEED), store.sample(seed=SEED, weights=LABELS + 1.0, size=40)):
        drawn = stream.images("image", SIZE)
        ids = stream.order.at(0, np.arange(len(stream)))
        seeds = [seed_of(SEED, 0, record, position) for position, record in enumerate(ids.tolist())]
        assert len(set(ids.tolist())) < len(ids) == len(set(seeds))
        for threads in (0, 2):
            assert np.array_equal(together(batches(drawn, threads=threads)), expected(ids, seeds))


def test_a_stream_that_is_repeated_in_a_mixture_gets_new_crops(store: Source, tmp_path: Path) -> None:
    small = pen.open(write_store(tmp_path / "small.pen", PICTURES[:3]))
    parts = [store.shuffle(seed=SEED), small.shuffle(seed=SEED), small.shuffle(seed=SEED)]
    plain = pen.mix({"a": parts[0], "b": parts[1]}, weights={"a": 0.5, "b": 0.5}, seed=1, stop="all_exhausted")
    stream = pen.mix({"in": plain, "c": parts[2]}, seed=2, stop="all_exhausted").images("image", SIZE)
    one, other = (batches(stream, ids="id", threads=threads) for threads in (0, 2))
    assert np.array_equal(together(one), together(other))
    assert pen.Loader(stream, 6, threads=2).engine == "native"
    leaves = together(one, "id_source")
    for leaf, part in enumerate(parts):  # a leaf gives its epochs one after the other; within a period in another order
        made = together(one)[leaves == leaf]
        samples = [(n // len(part), int(part.order.at(n // len(part), [n % len(part)])[0])) for n in range(len(made))]
        wanted = expected([record for _, record in samples], [seed_of(SEED, *sample) for sample in samples])
        assert sorted(map(bytes, made)) == sorted(map(bytes, wanted))
    assert np.count_nonzero(leaves == 1) > 6
    assert stream.boxes(0, range(len(leaves))).shape == (len(leaves), 5)
    small.close()


def test_bans_designs_and_questions_pass_through(store: Source) -> None:
    stream = store.shuffle(seed=SEED).without([3, 4]).images("image", SIZE)
    assert isinstance(stream, ImageStream)
    more = stream.without([5], from_step=1)
    assert not {3, 4, 5} & set(more.locate(0, range(COUNT), 1).ids.tolist())
    found = [together(batches(more, threads=threads)) for threads in (0, 2)]
    assert np.array_equal(*found)
    ids = np.concatenate([more.locate(0, range(low, min(COUNT, low + 6)), low // 6).ids for low in range(0, COUNT, 6)])
    assert np.array_equal(found[0], expected(ids, [seed_of(SEED, 0, i) for i in ids.tolist()]))
    assert stream.where(9) == store.shuffle(seed=SEED).where(9)
    with pen.Loader(stream, 6, ids="id") as loader:
        assert loader.explain(1)["ids"].tolist() == next(iter(batches(stream, 6, ids="id")[1:]))["id"].tolist()
        assert loader.where(9)[0]["epoch"] == 0
    design = store.design(seed=SEED, size=10).images("image", SIZE)
    one, other = (batches(design, 5, threads=threads) for threads in (0, 2))
    assert np.array_equal(together(one), together(other))
    assert together(one, "weight").tolist() == [COUNT / 10] * 10


# Values that are missing, and pictures that cannot be decoded


def test_missing_pictures_are_masked(tmp_path: Path) -> None:
    items: list[bytes | None] = [None if n in (2, 9, 10) else one for n, one in enumerate(PICTURES)]
    with pen.open(write_store(tmp_path / "x.pen", items)) as data:
        stream = data.in_order().images("image", SIZE)
        assert stream.schema["image"].nullable
        for threads in (0, 2):
            made = together(batches(stream, threads=threads))
            assert np.flatnonzero(made.mask.all(axis=(1, 2, 3))).tolist() == [2, 9, 10]
            assert not made.data[[2, 9, 10]].any()
            there = [n for n in range(COUNT) if items[n] is not None]
            assert np.array_equal(made[there], expected(there, [seed_of(0, 0, n) for n in there]))
        assert stream.boxes(0, [2])[0].tolist() == [0] * 5
        assert pen.Loader(stream, 6, threads=2).engine == "native"


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Source]:
    items = list(PICTURES)
    items[4], items[11] = b"no picture", PICTURES[11][: len(PICTURES[11]) // 3]
    with pen.open(write_store(tmp_path / "x.pen", items)) as data:
        yield data


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_names_the_record_and_its_file(broken: Source, threads: int) -> None:
    stream = broken.in_order().images("image", SIZE)
    with (
        pen.Loader(stream, 6, threads=threads) as loader,
        pytest.raises(BatchError, match=r"record 4, field 'image', in .*x\.pen") as found,
    ):
        next(iter(loader))
    assert isinstance(found.value.__cause__, ImageError)
    with pytest.raises(ImageError, match="record 4, field 'image'"):
        stream.boxes(0, range(6))


def test_pictures_that_cannot_be_decoded_are_replaced_alike(broken: Source) -> None:
    stream = broken.in_order().images("image", SIZE)
    told: list[int] = []
    found = {}
    for threads in (0, 1, 2):
        with pen.Loader(stream, 6, threads=threads, ids="id", on_error=lambda error, ids: told.extend(ids.tolist())) as loader:
            found[threads] = [{name: value.copy() for name, value in batch.items()} for batch in loader]
            assert loader.stats().skipped == 2
    assert set(told) == {4, 11}
    ids = together(found[0], "id")
    assert not {4, 11} & set(ids.tolist())
    for made in found.values():
        assert np.array_equal(together(made, "id"), ids)
        assert np.array_equal(together(made), expected(ids, [seed_of(0, 0, i) for i in ids.tolist()]))


# Sources


def _tar(path: Path) -> Source:
    members = [(f"{n:03d}.{ext}", data) for n, one in enumerate(PICTURES) for ext, data in (("cls", b"%d" % n), ("jpg", one))]
    (path / "x.tar").write_bytes(shards.tar(members))
    return pen.open(path / "x.tar")


def _mds(path: Path) -> Source:
    rows = [(one, np.int32(n).tobytes()) for n, one in enumerate(PICTURES)]
    return pen.open(packed_files.write_mds(path / "mds", {"image": ("jpeg", None), "label": ("int32", 4)}, [rows[:9], rows[9:]]))


def _folder(path: Path) -> Source:
    for n, one in enumerate(PICTURES):
        file = path / "photos" / f"{'ab'[n >= 12]}" / f"{n:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(one)
    return pen.open(path / "photos")


def _struct(items: list[dict[str, Any] | None]) -> pa.Table:
    column = pa.array(items, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    return pa.table({"image": column, "label": pa.array(range(len(items)), pa.int32())})


def _parquet(path: Path) -> Source:
    table = _struct([{"bytes": one, "path": f"{n}.jpg"} for n, one in enumerate(PICTURES)])
    pq.write_table(table, path / "x.parquet", row_group_size=6)
    return pen.open(path / "x.parquet")


def _same(record: dict[str, Any]) -> dict[str, Any]:
    return record


SOURCES: dict[str, tuple[Callable[[Path], Source], str]] = {
    "memory": (lambda path: pen.open({"image": PICTURES, "label": LABELS}), "threads"),
    "tar": (_tar, "native"),
    "MDS": (_mds, "native"),
    "folder": (_folder, "native"),
    "Parquet": (_parquet, "threads"),
    "list": (
        lambda path: pen.open([write_store(path / "a.pen", PICTURES[:9]), write_store(path / "b.pen", PICTURES[9:])]),
        "native",
    ),
    "dict": (lambda path: pen.open({"image": pen.open(write_store(path / "a.pen")).pick("image"), "label": LABELS}), "native"),
    "select": (lambda path: pen.open(write_store(path / "a.pen", PICTURES[::-1])).select(np.arange(COUNT)[::-1].copy()), "native"),
    "map": (lambda path: (data := pen.open(write_store(path / "a.pen"))).map(_same, schema=data.schema), "threads"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_pictures_come_from_any_source(tmp_path: Path, kind: str) -> None:
    opener, engine = SOURCES[kind]
    with opener(tmp_path) as data:
        stream = data.in_order().images("image", SIZE)
        assert pen.Loader(stream, 6, threads=2).engine == engine
        ids = list(range(COUNT))
        for threads in (0, 2):
            made = together([{"image": batch["image"]} for batch in pen.Loader(stream, 6, threads=threads)])
            assert np.array_equal(made, expected(ids, [seed_of(0, 0, i) for i in ids]))


def test_pictures_at_a_url_are_the_same_and_counted(tmp_path: Path) -> None:
    path = write_store(tmp_path / "x.pen")
    with Double() as server:
        for file in path.rglob("*"):
            if file.is_file():
                server.put(f"x.pen/{file.relative_to(path)}", file.read_bytes())
        with pen.open(f"{server.base}/x.pen", storage_options=server.storage_options) as data:
            stream = data.shuffle(seed=SEED).images("image", SIZE)
            with pen.Loader(stream, 6, threads=2) as loader:
                assert loader.engine == "native"
                foreseen = loader.forecast().requests
                assert np.array_equal(together(list(loader)), epoch_of(stream, 0))
                assert foreseen == loader.stats().network.requests > 0
        close_all()


def test_pictures_that_are_only_named_are_an_error_and_missing_ones_are_not(tmp_path: Path) -> None:
    rows: list[dict[str, Any] | None] = [{"bytes": one, "path": None} for one in PICTURES[:8]]
    rows[3], rows[6] = None, {"bytes": None, "path": "photo.jpg"}
    pq.write_table(_struct(rows), tmp_path / "x.parquet")
    with pen.open(tmp_path / "x.parquet") as data:
        stream = data.in_order().images("image", SIZE)
        assert list(stream.schema) == ["image", "label"]
        with pen.Loader(stream, 4) as loader:
            made = next(iter(loader))["image"]
            assert made.mask.all(axis=(1, 2, 3)).tolist() == [False, False, False, True]
            with pytest.raises(BatchError, match=r"record 6, field 'image': the data has only a file name, 'photo.jpg'"):
                next(iter(loader))
        assert stream.boxes(0, [2, 3])[:, 2].astype(bool).tolist() == [True, False]
        with pytest.raises(ImageError, match="record 6, field 'image': the data has only a file name"):
            stream.boxes(0, range(8))
        kept = data.in_order().images("image.bytes", SIZE)
        assert list(kept.schema) == ["image.bytes", "image.path", "label"]


# Memory, states, refusals


def test_pictures_fill_memory_of_the_user(store: Source) -> None:
    stream = store.shuffle(seed=SEED).images("image", SIZE)
    out = [{"image": np.zeros((6, 3, SIZE, SIZE), np.uint8)} for _ in range(2)]
    with pen.Loader(stream, 6, out=out) as loader:
        for step, batch in enumerate(loader):
            assert np.shares_memory(batch["image"], out[step % 2]["image"])
            assert np.array_equal(batch["image"], epoch_of(stream, 0)[6 * step : 6 * step + 6])


def test_a_state_of_other_settings_is_refused(store: Source) -> None:
    state = pen.Loader(store.shuffle(seed=SEED).images("image", SIZE), 6).state_dict()
    pen.Loader(store.shuffle(seed=SEED).images("image", SIZE), 8).load_state_dict(state)
    for other in ({"flip": 0}, {"crop": "center"}, {"seed": 3}):
        with pytest.raises(StateMismatchError):
            pen.Loader(store.shuffle(seed=SEED).images("image", SIZE, **other), 6).load_state_dict(state)
    with pytest.raises(StateMismatchError):
        pen.Loader(store.shuffle(seed=SEED), 6).load_state_dict(state)


def test_a_stream_is_pickled_and_made_by_an_executor(store: Source) -> None:
    stream = store.shuffle(seed=SEED).images("image", SIZE, seed=SEED)
    again = pickle.loads(pickle.dumps(stream))
    assert np.array_equal(together(batches(again)), epoch_of(stream, 0))
    with ThreadPoolExecutor(2) as executor:
        assert np.array_equal(together(batches(stream, executor=executor)), epoch_of(stream, 0))
    assert threading.active_count() < 50


def test_what_has_no_pictures_is_refused(store: Source) -> None:
    records = store.shuffle(seed=SEED)
    stream: Any = records.images("image", SIZE)
    texts = pen.open({"text": ["a", "b"], "blob": [b"x", b"y"], "other": [b"x", b"y"]}).in_order()
    two = pen.open({"image.bytes": PICTURES, "mask": PICTURES}).in_order()
    weighed = pen.open({"weight.bytes": PICTURES}).design(seed=1, size=4)
    for refused, error, words in (
        (lambda: stream.sequences(4), TypeError, "without images"),
        (lambda: stream.pack(4), TypeError, "without images"),
        (lambda: texts.pack(4, field="text").images("text"), TypeError, "has no images"),
        (lambda: records.images("label"), TypeError, "field of bytes"),
        (lambda: texts.images("text"), TypeError, "field of bytes"),
        (lambda: texts.images("image"), KeyError, r"\['blob', 'other'\]"),
        (lambda: records.images("imgae"), KeyError, "unknown field"),
        (lambda: records.boxes(0, [0]), TypeError, "call images"),
        (lambda: records.images("image", 0), ValueError, "size"),
        (lambda: records.images("image", (1, 2, 3)), ValueError, "height, width"),
        (lambda: records.images("image", crop="middle"), ValueError, "crop must be"),
        (lambda: records.images("image", layout="chw"), ValueError, "layout must be"),
        (lambda: records.images("image", dtype="i4"), ValueError, "dtype must be"),
        (lambda: records.images("image", mean=0.5), ValueError, "for floats"),
        (lambda: records.images("image", dtype="f4", std=0), ValueError, "above 0"),
        (lambda: records.images("image", flip=2), ValueError, "flip"),
        (lambda: records.images("image", scale=(2, 1)), ValueError, "scale"),
        (lambda: records.images(["image", "image"]), ValueError, "twice"),
        (lambda: records.images([]), ValueError, "at least one"),
        (lambda: two.images("image").images("image"), ValueError, "twice"),
        (lambda: weighed.images("weight"), ValueError, r"\['weight'\] already"),
        (lambda: records.images("image", 8.5), TypeError, "height, width"),
        (lambda: records.images("image", 16_385), ValueError, "16384"),
        (lambda: records.images("image", crop=["random"]), ValueError, "crop must be"),
        (lambda: records.images("image", scale=0.5), TypeError, r"scale must be \(low, high\)"),
        (lambda: records.images("image", channels=2), ValueError, "channels must be 1 or 3, got 2"),
        (lambda: records.images("image", dtype="f4", mean=(0.5, 0.5)), ValueError, "one for each of 3 channels"),
        (lambda: stream.boxes(0, [0.5]), TypeError, "positions"),
        (lambda: Sampler(stream), TypeError, r"give it stream\.records"),
        (lambda: pen.mix({"a": stream, "b": records.images("image", 8)}, seed=1), SchemaMismatchError, "same fields"),
        (lambda: pen.Loader(stream, phases=[pen.Phase(2, batch_size=2, seq_len=8)]), ValueError, "sequences"),
    ):
        with pytest.raises(error, match=words):
            refused()


def test_phases_change_the_batch_size(store: Source) -> None:
    stream = store.shuffle(seed=SEED).images("image", SIZE)
    with pen.Loader(stream, phases=[pen.Phase(steps=2, batch_size=2), pen.Phase(steps=2, batch_size=5)]) as loader:
        assert np.array_equal(together(list(loader)), epoch_of(stream, 0)[:14])


def test_seeds_are_golden(store: Source) -> None:
    stream = store.shuffle(seed=42).images("image", SIZE)
    picks = stream.locate_at(3, np.array([0, 1]))
    assert picks.ids.tolist() == GOLDEN_IDS
    assert picks.seeds.tolist() == GOLDEN_SEEDS
    drawn = store.sample(seed=42).images("image", SIZE).locate_at(3, np.array([0, 1]))
    assert drawn.ids.tolist() == GOLDEN_DRAWN
    assert drawn.seeds.tolist() == GOLDEN_DRAWN_SEEDS


GOLDEN_IDS, GOLDEN_SEEDS = [11, 0], [2418311789865486130, 17732012159561712911]
GOLDEN_DRAWN, GOLDEN_DRAWN_SEEDS = [22, 10], [3792696310620973032, 4626147591899958695]


def test_torch_and_jax_get_them_without_a_copy(store: Source) -> None:
    from penstock.deliver import jax as to_jax
    from penstock.deliver import torch as to_torch

    stream = store.shuffle(seed=SEED).images("image", SIZE, dtype="f4")
    how = options(SIZE, dtype="f4")
    for batch in to_torch.deliver(pen.Loader(stream, COUNT)):
        assert np.array_equal(batch["image"].numpy(), epoch_of(stream, 0, how))
    out = [{"image": np.zeros((6, 3, SIZE, SIZE), np.float32)} for _ in range(2)]
    for step, batch in enumerate(to_torch.deliver(pen.Loader(stream, 6, out=out))):
        assert batch["image"].data_ptr() == out[step % 2]["image"].ctypes.data
    for batch in to_jax.deliver(pen.Loader(stream, COUNT)):
        assert np.array_equal(np.asarray(batch["image"]), epoch_of(stream, 0, how))


def test_a_center_crop_of_a_picture_of_that_size_is_the_picture() -> None:
    picture = pixels(5, SIZE, SIZE)
    data = pen.open({"image": [encode(picture, "PNG")]})
    stream = data.in_order().images("image", SIZE, crop="center", flip=0, layout="nhwc")
    assert np.array_equal(batches(stream)[0]["image"][0], picture)
