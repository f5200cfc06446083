"""Masks of class numbers: the nearest pixel exactly, of every way to store them, with the crops of their pictures, or refused."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from tests.effort import count
from tests.image import reference
from tests.image.pictures import encoded, photograph
from tests.image.reference import Box, Bytes, Crop
from tests.image.test_core import joined, make, maker_of
from tests.pictures import seed_of

import penstock as pen
from penstock import _core
from penstock.errors import BatchError, ImageError
from penstock.records import Source

COUNT, SEED = 17, 7


def mask_of(width: int, height: int, seed: int, classes: int = 256) -> Bytes:
    """Neighbours differ, so that a wrong pixel shows."""
    return np.random.default_rng(seed).integers(0, classes, (height, width), dtype=np.uint8)


def numbers_of(crop: Crop, data: bytes, seed: int, **options: Any) -> Bytes:
    maker = maker_of(crop, channels=1, numbers=True, **options)
    return make(maker, [data], [seed]).reshape(crop.size[1], crop.size[0])


def palette(numbers: Bytes, bits: int = 8) -> bytes:
    """Colours that have nothing to do with the numbers."""
    picture = Image.fromarray(numbers, "P")
    picture.putpalette(np.random.default_rng(5).integers(0, 256, 3 << bits, dtype=np.uint8).tobytes())
    return encoded(picture, "PNG", bits=bits)


# The core


def test_numbers_are_those_of_the_nearest_pixels() -> None:
    rng = np.random.default_rng(1)
    for number in range(count(40, 2000)):
        width, height = (int(2**x) for x in rng.uniform(0, 8.5, 2))
        size = (int(rng.integers(1, 130)), int(rng.integers(1, 130)))
        crop = Crop(("random", "center", "none")[number % 3], size=size, fraction=0.8)
        numbers = mask_of(width, height, number)
        box = reference.box_of(crop, width, height, number)
        expected = reference.nearest(numbers, box, *size)
        for data in (encoded(Image.fromarray(numbers), "PNG"), palette(numbers)):
            for level in (None, _core.Simd.PLAIN):
                np.testing.assert_array_equal(numbers_of(crop, data, number, level=level), expected)


@pytest.mark.parametrize("size", [(31, 23), (64, 64), (150, 90), (7, 200)])
def test_numbers_are_those_of_pillow(size: tuple[int, int]) -> None:
    numbers = mask_of(128, 96, 3)
    crop = Crop(size=size)
    for seed in range(6):
        x, y, width, height, flip = reference.box_of(crop, 128, 96, seed)
        seen = np.asarray(Image.fromarray(numbers).crop((x, y, x + width, y + height)).resize(size, Image.Resampling.NEAREST))
        found = numbers_of(crop, encoded(Image.fromarray(numbers), "PNG"), seed)
        same = found == (seen[:, ::-1] if flip else seen)
        # Pillow adds fixed-point steps: where a middle is on the edge of two pixels, it may take the other one.
        on_edge = [
            [(2 * i + 1) * length % (2 * out) == 0 for i in range(out)] for length, out in ((height, size[1]), (width, size[0]))
        ]
        edges = np.array(on_edge[0])[:, None] | np.array(on_edge[1])[None, :: -1 if flip else 1]
        assert (same | edges).all()
        assert same.mean() > 0.4


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_fewer_bits_are_not_expanded(bits: int) -> None:
    numbers = mask_of(37, 29, bits, 1 << bits)
    crop = Crop("none", size=(37, 29), flip=0.0)
    np.testing.assert_array_equal(numbers_of(crop, palette(numbers, bits), 0), numbers)
    if bits == 1:
        data = encoded(Image.fromarray(numbers.astype(bool)), "PNG")
        np.testing.assert_array_equal(numbers_of(crop, data, 0), numbers)


def test_grey_with_alpha_and_lossless_webp_are_read() -> None:
    numbers = mask_of(33, 21, 9)
    crop = Crop("none", size=(33, 21), flip=0.0)
    both = Image.merge("LA", [Image.fromarray(numbers), Image.fromarray(mask_of(33, 21, 10))])
    for data in (encoded(both, "PNG"), encoded(Image.fromarray(numbers).convert("RGB"), "WEBP", lossless=True)):
        np.testing.assert_array_equal(numbers_of(crop, data, 0), numbers)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_masks_are_turned_as_their_exif_data_says(orientation: int) -> None:
    numbers = mask_of(40, 24, orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(numbers), "PNG", exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    for crop in (Crop(size=(19, 31)), Crop("none", size=(20, 8)), Crop("none", size=(50, 9), flip=1.0)):
        box = reference.box_of(crop, upright.shape[1], upright.shape[0], 4)
        np.testing.assert_array_equal(numbers_of(crop, data, 4), reference.nearest(upright, box, *crop.size))


def test_padding_has_its_own_number() -> None:
    numbers = mask_of(60, 20, 2, 9)
    x, y, width, height, _ = reference.fit_inside(60, 20, 32, 32)
    expected = np.full((32, 32), 255, np.uint8)
    expected[y : y + height, x : x + width] = reference.nearest(numbers, Box(0, 0, 60, 20), width, height)
    found = numbers_of(Crop("pad", size=(32, 32), flip=0.0), palette(numbers), 0, fill=255)
    np.testing.assert_array_equal(found, expected)


def test_what_has_no_numbers_is_refused() -> None:
    colours, grey = photograph(40, 30), Image.fromarray(mask_of(40, 30, 1))
    deep = Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40))
    for data, words in (
        (encoded(grey, "JPEG"), "JPEG: it does not keep the numbers"),
        (encoded(grey, "WEBP", quality=80), "WebP: lossy"),
        (encoded(colours, "PNG"), "PNG: colours"),
        (encoded(colours, "WEBP", lossless=True), "WebP: colours"),
        (encoded(deep, "PNG"), "PNG: 16 bits"),
        (palette(mask_of(40, 30, 1))[:-20], "PNG"),
    ):
        with pytest.raises(ImageError, match=words):
            numbers_of(Crop(size=(16, 16)), data, 0)
    for wrong in ({"channels": 3}, {"channels": 1, "type": _core.ImageType.F4}):
        with pytest.raises(ValueError, match="one channel of bytes"):
            maker_of(Crop(size=(16, 16)), numbers=True, **wrong)


def test_a_partner_of_another_size_is_refused() -> None:
    mask, same, other = (encoded(Image.fromarray(mask_of(*size, 1)), "PNG") for size in ((40, 30), (40, 30), (30, 40)))
    maker = maker_of(Crop(size=(8, 8)), channels=1, numbers=True)
    seeds, pool = np.arange(3, dtype=np.uint64), _core.ThreadPool(2)
    out = np.empty(3 * maker.nbytes, np.uint8)
    maker.make(*joined([mask] * 3), seeds, out, pool, partners=joined([same, b"", same]))
    with pytest.raises(ImageError, match="picture 1: a mask of 40 x 30 pixels for a picture of 30 x 40"):
        maker.make(*joined([mask] * 3), seeds, out, pool, partners=joined([same, other, same]))


# Streams


def sizes(n: int) -> tuple[int, int]:
    return 40 + 3 * n, 30 + 5 * n


PHOTOS = [encoded(photograph(*sizes(n), n), "JPEG") for n in range(COUNT)]
NUMBERS = [mask_of(*sizes(n), n, 21) for n in range(COUNT)]
MASKS = [palette(one) if n % 2 else encoded(Image.fromarray(one), "PNG") for n, one in enumerate(NUMBERS)]


def write(path: Path, photos: list[bytes], masks: list[bytes | None]) -> Path:
    with pen.create(path, {"image": pen.Field.bytes(), "mask": pen.Field.bytes(nullable=None in masks)}, chunk_records=5) as out:
        out.extend({"image": photos, "mask": masks})
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    with pen.open(write(tmp_path_factory.mktemp("masks") / "x.pen", PHOTOS, list(MASKS))) as source:
        yield source


def masks_in(stream: Any, size: int = 5, name: str = "mask", **how: Any) -> Any:
    with pen.Loader(stream, size, **how) as loader:
        return np.ma.concatenate([batch[name] for batch in loader])


@pytest.mark.parametrize("given", [{}, {"scale": (0.5, 1), "flip": 1}, {"crop": "center", "fraction": 0.7}, {"crop": None}])
def test_a_mask_is_of_the_part_of_its_picture(store: Source, given: dict[str, Any]) -> None:
    stream = store.shuffle(seed=SEED).images("image", (24, 20), dtype="f4", mean=0.5, **given).masks("mask")
    assert stream.schema["mask"].shape == (24, 20)
    assert np.array_equal(stream.boxes(1, range(COUNT), "image"), stream.boxes(1, range(COUNT), "mask"))
    ids = stream.locate(0, range(COUNT)).ids.tolist()
    boxes = [Box(*box[:4], bool(box[4])) for box in stream.boxes(0, range(COUNT), "image").tolist()]
    expected = np.stack([reference.nearest(NUMBERS[i], box, 20, 24) for i, box in zip(ids, boxes, strict=True)])
    for threads in (0, 1, 2, 4):
        assert np.array_equal(masks_in(stream, threads=threads), expected)
    assert pen.Loader(stream, 5, threads=2).engine == "native"


def test_masks_have_a_size_of_their_own_and_several_fields(store: Source, tmp_path: Path) -> None:
    small = store.shuffle(seed=SEED).images("image", 32).masks("mask", 8)
    assert small.schema["mask"].shape == (8, 8)
    with pen.create(tmp_path / "x.pen", {name: pen.Field.bytes() for name in ("a", "b", "m", "n")}) as out:
        out.extend({"a": PHOTOS, "b": PHOTOS, "m": MASKS, "n": MASKS})
    with pen.open(tmp_path / "x.pen") as data:
        two: Any = data.shuffle(seed=SEED).images("a", 16).images("b", 16, crop="center", flip=0)
        with pytest.raises(KeyError, match=r"one of \['a', 'b'\], got None"):
            two.masks("m")
        made = two.masks("m", of="a").masks("n", of="b")
        assert np.array_equal(made.boxes(0, range(COUNT), "m"), made.boxes(0, range(COUNT), "a"))
        assert np.array_equal(made.boxes(0, range(COUNT), "n"), made.boxes(0, range(COUNT), "b"))
        assert not np.array_equal(masks_in(made, name="m"), masks_in(made, name="n"))


def test_masks_of_a_mixture_and_of_other_engines_are_the_same(store: Source) -> None:
    plain = store.shuffle(seed=SEED)
    mixed = pen.mix({"x": plain, "y": plain}, seed=1).images("image", 16).masks("mask")
    assert np.array_equal(masks_in(mixed, threads=0), masks_in(mixed, threads=2))
    joined_up = pen.open({"image": store.pick("image"), "mask": MASKS})
    stream = joined_up.shuffle(seed=SEED).images("image", 16).masks("mask")
    assert np.array_equal(masks_in(stream), masks_in(plain.images("image", 16).masks("mask")))
    whole = masks_in(plain.images("image", 16).masks("mask"), 4, tail="wrap")
    for world in (2, 4):
        parts = [
            masks_in(plain.images("image", 16).masks("mask"), 4, tail="wrap", shard=pen.Shard(rank, world)) for rank in range(world)
        ]
        assert np.array_equal(np.stack(parts, axis=1).reshape(whole.shape), whole)


def test_missing_masks_are_masked(tmp_path: Path) -> None:
    items: list[bytes | None] = [None if n in (2, 9) else one for n, one in enumerate(MASKS)]
    with pen.open(write(tmp_path / "x.pen", PHOTOS, items)) as data:
        stream = data.in_order().images("image", 16).masks("mask")
        for threads in (0, 2):
            made = masks_in(stream, threads=threads)
            assert np.flatnonzero(made.mask.all(axis=(1, 2))).tolist() == [2, 9]
            box = Box(*stream.boxes(0, [3], "mask")[0].tolist())
            assert np.array_equal(made[3], reference.nearest(NUMBERS[3], box, 16, 16))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("kind", ["turned", "other size"])
def test_a_mask_that_does_not_fit_its_picture_is_an_error_that_names_the_record(tmp_path: Path, kind: str, threads: int) -> None:
    photos = list(PHOTOS)
    exif = Image.Exif()
    exif[0x0112] = 6
    photos[6] = encoded(photograph(*sizes(6)), "JPEG", exif=exif) if kind == "turned" else PHOTOS[7]
    with pen.open(write(tmp_path / "x.pen", photos, list(MASKS))) as data:
        for source in (data, pen.open({"image": data.pick("image"), "mask": MASKS})):
            stream = source.in_order().images("image", 16).masks("mask")
            with (
                pen.Loader(stream, 5, threads=threads) as loader,
                pytest.raises(BatchError, match=r"record 6, field 'mask'.*a mask of 58 x 60 pixels for a picture of") as found,
            ):
                list(loader)
            assert isinstance(found.value.__cause__, ImageError)
            with pen.Loader(stream, 5, threads=threads, ids="id", on_error="skip") as loader:
                assert 6 not in np.concatenate([batch["id"] for batch in loader])


def test_masks_that_cannot_be_right_are_refused(store: Source) -> None:
    records = store.shuffle(seed=SEED)
    center: Any = records.images("image", 16, crop="center")
    for refused, error, words in (
        (lambda: records.masks("mask"), TypeError, "after images"),
        (lambda: pen.mix({"a": records}, seed=1).masks("mask"), TypeError, "after images"),
        (lambda: center.masks("mask", 8), ValueError, "the size of their images, 16 x 16"),
        (lambda: center.masks("image"), ValueError, "twice"),
        (lambda: center.masks("mask", fill=256), ValueError, "fill"),
        (lambda: center.masks("mask", of="photo"), KeyError, "one of"),
        (lambda: center.masks(["mask", "mask"]), ValueError, "twice"),
    ):
        with pytest.raises(error, match=words):
            refused()
    state = pen.Loader(center, 6).state_dict()
    with pytest.raises(pen.errors.StateMismatchError):
        pen.Loader(center.masks("mask"), 6).load_state_dict(state)


def test_seeds_of_masks_are_those_of_their_pictures(store: Source) -> None:
    picks = store.shuffle(seed=SEED).images("image", 16).masks("mask").locate(2, range(4))
    assert picks.seeds.tolist() == [seed_of(SEED, 2, i) for i in picks.ids.tolist()]
