"""The native image core: against the plain-Python twin exactly, against Pillow by PSNR, and with pictures of every kind."""

import io
import itertools
import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps
from tests.effort import count
from tests.golden import make_images
from tests.image import reference
from tests.image.pictures import encoded, kinds, photograph
from tests.image.reference import Box, Bytes, Crop

from penstock import _core
from penstock.errors import CorruptError, ImageError

CROPS = {
    "none": _core.ImageCrop.NONE,
    "center": _core.ImageCrop.CENTER,
    "random": _core.ImageCrop.RANDOM,
    "pad": _core.ImageCrop.PAD,
}


def maker_of(crop: Crop, **options: Any) -> _core.ImageMaker:
    """The native twin of a crop."""
    width, height = crop.size
    return _core.ImageMaker(
        width=width,
        height=height,
        crop=CROPS[crop.kind],
        scale=crop.scale,
        ratio=crop.ratio,
        fraction=crop.fraction,
        flip=crop.flip,
        **options,
    )


def joined(records: Sequence[bytes]) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Records one behind the other, and where they begin and end."""
    offsets = np.cumsum([0, *map(len, records)]).astype(np.int64)
    return np.frombuffer(b"".join(records), np.uint8), offsets


def make(maker: _core.ImageMaker, records: Sequence[bytes], seeds: Sequence[int], threads: int = 1) -> Bytes:
    """One row of bytes per record."""
    out = np.empty(len(records) * maker.nbytes, np.uint8)
    maker.make(*joined(records), np.array(seeds, np.uint64), out, _core.ThreadPool(threads))
    return out.reshape(len(records), -1)


def pixels(crop: Crop, data: bytes, seed: int, **options: Any) -> Bytes:
    """One output, height x width x 3."""
    return make(maker_of(crop, **options), [data], [seed]).reshape(crop.size[1], crop.size[0], -1)


def psnr(one: Bytes, other: Bytes) -> float:
    """In dB."""
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def by_pillow(picture: Image.Image, box: Box, size: tuple[int, int]) -> Bytes:
    """Cropped, then resized with antialiasing."""
    x, y, width, height, flip = box
    made = np.asarray(picture.crop((x, y, x + width, y + height)).resize(size, Image.Resampling.BILINEAR))
    return made[:, ::-1] if flip else made


# --- exact ----------------------------------------------------------------------------------------------------------------------


def test_golden_values_are_those_of_the_reference() -> None:
    assert json.loads(make_images.PATH.read_text()) == json.loads(json.dumps(make_images.golden()))


@pytest.mark.parametrize("crop", make_images.CROPS, ids=lambda crop: f"{crop.kind}-{crop.size[0]}")
def test_boxes_are_the_golden_ones(crop: Crop) -> None:
    maker = maker_of(crop)
    golden = json.loads(make_images.PATH.read_text())
    seen = 0
    for case in golden["boxes"]:
        if case["crop"] != json.loads(json.dumps(make_images.asdict(crop))):
            continue
        found = [list(maker.box(*case["size"], int(seed))) for seed in golden["seeds"]]
        assert found == case["boxes"]
        seen += 1
    assert seen == len(make_images.SIZES)


def test_boxes_are_those_of_the_reference() -> None:
    rng = np.random.default_rng(1)
    for number in range(count(60, 3000)):
        low, high = sorted(rng.uniform(0.05, 1, 2).tolist())
        crop = Crop(
            kind=("random", "center")[number % 2],
            scale=(low, high),
            ratio=(rng.uniform(0.2, 1), rng.uniform(1, 4)),
            fraction=rng.uniform(0.3, 1),
            flip=rng.uniform(0, 1),
            size=(int(rng.integers(1, 300)), int(rng.integers(1, 300))),
        )
        width, height = (int(2**x) for x in rng.uniform(0, 14, 2))
        maker = maker_of(crop)
        for seed in rng.integers(0, 2**64, 5, dtype=np.uint64).tolist():
            assert maker.box(width, height, seed) == reference.box_of(crop, width, height, seed)


@pytest.mark.parametrize("size", [(31, 23), (90, 70), (150, 20), (1, 1), (200, 160)])
def test_a_lossless_picture_is_resized_exactly_as_defined(size: tuple[int, int]) -> None:
    picture = photograph(150, 110)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        data = encoded(picture, kind, **options)
        for seed, crop_kind in enumerate(("none", "center", "random", "random")):
            crop = Crop(crop_kind, size=size, fraction=0.7)
            box = reference.box_of(crop, *picture.size, seed)
            expected = reference.resize(np.asarray(picture), box, *size)
            np.testing.assert_array_equal(pixels(crop, data, seed), expected)


def test_padding_is_around_the_middle() -> None:
    picture = photograph(100, 30)
    crop = Crop("pad", size=(48, 40), flip=0.0)
    x, y, width, height, _ = reference.fit_inside(100, 30, 48, 40)
    expected = np.full((40, 48, 3), 7, np.uint8)
    expected[y : y + height, x : x + width] = reference.resize(np.asarray(picture), Box(0, 0, 100, 30), width, height)
    np.testing.assert_array_equal(pixels(crop, encoded(picture, "PNG"), 0, fill=7), expected)


@pytest.mark.parametrize("layout", [_core.ImageLayout.NHWC, _core.ImageLayout.NCHW])
@pytest.mark.parametrize("kind", ["f4", "f2"])
def test_floats_are_the_bytes_normalised(layout: _core.ImageLayout, kind: str) -> None:
    data = encoded(photograph(80, 60), quality=90)
    crop, mean, std = Crop(size=(33, 21)), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    numbers = {"f4": _core.ImageType.F4, "f2": _core.ImageType.F2}[kind]
    plain = pixels(crop, data, 5)
    found = make(maker_of(crop, layout=layout, type=numbers, mean=mean, std=std), [data], [5]).view(kind)
    expected = reference.as_float(plain, mean, std)
    if layout == _core.ImageLayout.NCHW:
        expected = expected.transpose(2, 0, 1)
    np.testing.assert_array_equal(found[0], expected.astype(kind).ravel())
    unit = make(maker_of(crop, type=numbers), [data], [5]).view(kind)[0]
    np.testing.assert_array_equal(unit, (plain.astype("f4") * np.float32(1 / 255)).astype(kind).ravel())


# --- like others ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_without_scaling_a_jpeg_is_within_45_db_of_pillow(subsampling: int) -> None:
    rng = np.random.default_rng(subsampling)
    for number in range(count(6, 60)):
        width, height = rng.integers(30, 450, 2).tolist()
        data = encoded(photograph(width, height, number), quality=int(rng.integers(60, 96)), subsampling=subsampling)
        size = (int(rng.integers(16, 256)), int(rng.integers(16, 256)))
        whole = Image.open(io.BytesIO(data))
        for crop in (Crop(size=size), Crop("center", fraction=0.875, size=size), Crop("none", size=size)):
            box = reference.box_of(crop, width, height, number)
            assert psnr(pixels(crop, data, number, max_scale=1), by_pillow(whole, box, size)) >= 45


def test_scaling_in_the_transform_stays_close() -> None:
    # A scaled picture is one of other low-pass filters. Measured: 50.7 to 52.7 dB here; of 54 random boxes of nine enlarged
    # photographs of 1920 x 1280 the median was 47.1 and the least 40.3.
    picture = photograph(800, 600)
    data = encoded(picture, quality=90)
    whole = Image.open(io.BytesIO(data))
    for side in (90, 140, 180):
        crop = Crop("none", size=(side, side), flip=0.0)
        found = pixels(crop, data, 0)
        assert psnr(found, by_pillow(whole, Box(0, 0, 800, 600), crop.size)) >= 45


def torchvision_box(rng: np.random.Generator, width: int, height: int, scale: Sequence[float], ratio: Sequence[float]) -> Box:
    """RandomResizedCrop.get_params, with numpy's generator."""
    for _ in range(10):
        target = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            y = int(rng.integers(0, height - h + 1))
            return Box(int(rng.integers(0, width - w + 1)), y, w, h)
    w, h = width, height
    if width / height < min(ratio):
        h = round(w / min(ratio))
    elif width / height > max(ratio):
        w = round(h * max(ratio))
    return Box((width - w) // 2, (height - h) // 2, w, h)


@pytest.mark.parametrize("size", [(500, 375), (300, 900), (64, 40)])
def test_boxes_are_distributed_as_those_of_torchvision(size: tuple[int, int]) -> None:
    n = count(3000, 40_000)
    crop = Crop()
    maker = maker_of(crop)
    rng = np.random.default_rng(3)
    ours = np.array([maker.box(*size, seed) for seed in range(n)])
    theirs = np.array([torchvision_box(rng, *size, crop.scale, crop.ratio) for _ in range(n)])
    measures = {
        "x": lambda b: b[:, 0],
        "y": lambda b: b[:, 1],
        "width": lambda b: b[:, 2],
        "height": lambda b: b[:, 3],
        "area": lambda b: b[:, 2] * b[:, 3],
        "ratio": lambda b: b[:, 2] / b[:, 3],
        "right": lambda b: b[:, 0] + b[:, 2],
    }
    for name, measure in measures.items():  # two-sample Kolmogorov-Smirnov: 1 in 10,000 is above this
        one, other = np.sort(measure(ours)), np.sort(measure(theirs))
        both = np.concatenate([one, other])
        gap = np.abs(np.searchsorted(one, both, "right") - np.searchsorted(other, both, "right")).max() / n
        assert gap < math.sqrt(-math.log(0.00005) / n), name
    assert abs(ours[:, 4].mean() - 0.5) < 4 * 0.5 / math.sqrt(n)


# --- pictures of every kind -----------------------------------------------------------------------------------------------------


def as_pillow_sees(data: bytes) -> Image.Image:
    """Upright, in RGB; 16 bits rounded to 8."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if picture.mode.startswith("I"):
        picture = Image.fromarray(((np.asarray(picture).astype(np.int64) * 255 + 32767) // 65535).astype(np.uint8))
    return picture.convert("RGBA").convert("RGB")


@pytest.mark.parametrize("name", kinds())
def test_every_kind_of_picture_looks_as_in_pillow(name: str) -> None:
    picture, kind, options = kinds()[name]
    data = encoded(picture, kind, options)
    seen = as_pillow_sees(data)
    crop = Crop(size=(40, 40))
    for seed in range(4):
        box = reference.box_of(crop, 64, 48, seed)
        found = pixels(crop, data, seed)
        expected = reference.resize(np.asarray(seen), box, 40, 40)
        assert psnr(found, expected) > (48 if kind == "JPEG" else 60)
        grey = pixels(crop, data, seed, channels=1)
        assert psnr(grey[..., 0], np.asarray(Image.fromarray(found).convert("L"))) > 40
    found_kind, width, height, channels = _core.probe_image(data)
    assert (found_kind.name, width, height) == (kind, 64, 48)
    assert channels == {"CMYK": 4, "P": 3, "I;16": 1}.get(picture.mode, len(picture.getbands()))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    picture = photograph(60, 44)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture, kind, exif=exif)
    upright = as_pillow_sees(data)
    assert _core.probe_image(data)[1:3] == upright.size
    crop = Crop(size=(30, 20))
    for seed in range(3):
        box = reference.box_of(crop, *upright.size, seed)
        assert psnr(pixels(crop, data, seed), reference.resize(np.asarray(upright), box, 30, 20)) > 48
    shrunk = Image.open(io.BytesIO(_core.shrink_image(data, 22, 95)))
    assert max(shrunk.size) == 22
    assert (shrunk.size[0] > shrunk.size[1]) == (upright.size[0] > upright.size[1])


def test_an_interlaced_png_is_read() -> None:
    # Pillow does not write any: these are the seven passes of 3 x 2 grey pixels, made by hand.
    rows = [b"\0\x0a", b"\0\x14", b"\0\x1e\x28\x32"]  # pass 1: (0, 0); pass 6: (1, 0); pass 7: row 1; pass 4: (2, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 2, 8, 0, 0, 0, 1))
    data += chunk(b"IDAT", zlib.compress(rows[0] + b"\0\x63" + rows[1] + rows[2])) + chunk(b"IEND", b"")
    seen = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(pixels(Crop("none", size=(3, 2), flip=0.0), data, 0), seen)


def test_a_shrunk_picture_is_a_smaller_jpeg_that_looks_the_same() -> None:
    picture = photograph(640, 400)
    data = encoded(picture, quality=95)
    small = Image.open(io.BytesIO(_core.shrink_image(data, 320, 95)))
    assert (small.format, small.size, small.mode) == ("JPEG", (320, 200), "RGB")
    assert psnr(np.asarray(small), np.asarray(picture.resize((320, 200), Image.Resampling.BILINEAR))) > 33
    assert Image.open(io.BytesIO(_core.shrink_image(encoded(picture.convert("L"), "PNG"), 99, 90))).mode == "L"
    assert Image.open(io.BytesIO(_core.shrink_image(data, 4000, 90))).size == (640, 400)


# --- threads and errors ---------------------------------------------------------------------------------------------------------


def test_any_number_of_threads_and_any_level_give_the_same_bytes() -> None:
    records = [encoded(photograph(90 + 7 * i, 70 + 5 * i, i), kind) for i, kind in enumerate(["JPEG", "PNG", "WEBP", "JPEG"] * 4)]
    seeds = range(len(records))
    expected = make(maker_of(Crop(size=(32, 32))), records, seeds)
    for threads in (2, 4):
        np.testing.assert_array_equal(make(maker_of(Crop(size=(32, 32))), records, seeds, threads), expected)
    plain = maker_of(Crop(size=(32, 32)), level=_core.Simd.PLAIN)
    np.testing.assert_array_equal(make(plain, records, seeds, 2), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_is_written_behind_an_output(channels: int) -> None:
    # Kernels write a few bytes more than a row; the next output may be another thread's.
    data = encoded(photograph(40, 30), "PNG")
    for width, height in itertools.product((1, 2, 3, 7, 8, 9, 31, 33), (1, 2, 5, 12)):
        maker = maker_of(Crop(size=(width, height)), channels=channels)
        memory = np.full(maker.nbytes + 64, 77, np.uint8)
        values, offsets = joined([data])
        maker.make(values, offsets, np.zeros(1, np.uint64), memory[: maker.nbytes], _core.ThreadPool(1))
        assert (memory[maker.nbytes :] == 77).all()


def test_the_first_bad_record_is_named_whatever_the_threads_do() -> None:
    good, bad = encoded(photograph(40, 40)), encoded(photograph(40, 40))[:-300]
    records = [good] * 5 + [bad] + [good] * 3 + [b"GIF89a"] + [good]
    maker = maker_of(Crop(size=(16, 16)))
    for threads in (1, 3):
        with pytest.raises(ImageError, match=r"picture 5: JPEG: ") as raised:
            make(maker, records, range(len(records)), threads)
        assert raised.value.index == 5
        assert raised.value.reason.startswith("JPEG: ")
        assert isinstance(raised.value, CorruptError)
    with pytest.raises(ImageError, match="picture 9: neither JPEG, PNG nor WebP: it begins with the bytes 474946383961"):
        maker.boxes(*joined(records), np.arange(len(records), dtype=np.uint64))


def test_bad_records_can_be_marked_instead() -> None:
    good = encoded(photograph(40, 40))
    records = [good, b"", good, good[:200]]
    maker = maker_of(Crop(size=(16, 16)))
    out, errors = np.full(4 * maker.nbytes, 9, np.uint8), np.full(4, 9, np.uint8)
    bad = maker.make(*joined(records), np.arange(4, dtype=np.uint64), out, _core.ThreadPool(2), errors=errors)
    assert bad == 2
    assert errors.tolist() == [0, 1, 0, 1]
    rows = out.reshape(4, -1)
    assert not rows[1].any()
    assert not rows[3].any()
    np.testing.assert_array_equal(rows[[0, 2]], make(maker, [good, good], [0, 2]))


def cut_in_half(kind: str, **options: object) -> bytes:
    data = encoded(photograph(60, 60), kind, **options)
    return data[: len(data) // 2]


BAD = {
    "no bytes": (b"", "no bytes"),
    "text": (b"not a picture", "neither JPEG, PNG nor WebP"),
    "cut jpeg": (cut_in_half("JPEG"), "JPEG: "),
    "cut progressive": (cut_in_half("JPEG", progressive=True), "JPEG: "),
    "cut png": (cut_in_half("PNG"), "PNG: the file was cut"),
    "cut webp": (cut_in_half("WEBP"), "WebP: the file was cut"),
    "animation": (encoded(photograph(9, 9), "WEBP", save_all=True, append_images=[photograph(9, 9, 1)]), "an animation"),
    "large": (encoded(Image.new("L", (400, 400)), "PNG"), "400 x 400 pixels, more than max_pixels=100000"),
    "wide": (encoded(Image.new("L", (66_000, 1)), "PNG"), "sides have at most 65,535"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_refused_with_the_reason(name: str) -> None:
    data, reason = BAD[name]
    for crop in ("random", "none"):
        with pytest.raises(ImageError, match=reason):
            make(maker_of(Crop(crop, size=(8, 8)), max_pixels=100_000), [data], [0])
    with pytest.raises(ImageError, match=reason):
        _core.shrink_image(data, 8, 90, 100_000)


@pytest.mark.parametrize(
    "crop", [Crop("none", size=(8, 8)), Crop("random", size=(8, 8), scale=(0.01, 0.05))], ids=lambda crop: crop.kind
)
def test_a_flipped_byte_of_a_png_is_found_wherever_the_crop_is(crop: Crop) -> None:
    # Uncompressed: any byte is a byte of a pixel. A crop ends before the checksum of the only chunk of pixels.
    good = encoded(photograph(60, 60), "PNG", compress_level=0)
    assert good.count(b"IDAT") == 1
    for place in range(100, len(good) - 100, 997):
        data = bytearray(good)
        data[place] ^= 1
        with pytest.raises(ImageError, match="PNG: IDAT: the bytes do not have their checksum"):
            make(maker_of(crop), [bytes(data)], [3])


def chunk(name: bytes, body: bytes) -> bytes:
    """Of a PNG."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def test_exif_of_a_png_is_found_behind_the_pixels_and_its_damage_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    plain = encoded(photograph(60, 44), "PNG")
    late = plain[:-12] + chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")) + plain[-12:]
    upright = as_pillow_sees(late)
    assert _core.probe_image(late)[1:3] == upright.size == (44, 60)
    found = pixels(Crop("none", size=upright.size, flip=0.0), late, 0)
    np.testing.assert_array_equal(found, np.asarray(upright))
    broken = bytearray(late)
    broken[late.index(b"eXIf") + 20] ^= 1
    with pytest.raises(ImageError, match="PNG: eXIf: the bytes do not have their checksum"):
        _core.probe_image(bytes(broken))


def test_arguments_are_checked() -> None:
    maker = maker_of(Crop(size=(8, 8)))
    values, offsets = joined([encoded(photograph(20, 20))])
    seeds, out, pool = np.zeros(1, np.uint64), np.empty(maker.nbytes, np.uint8), _core.ThreadPool(1)
    with pytest.raises(ValueError, match="expected input and output of one length"):
        maker.make(values, offsets, seeds, out[:-1], pool)
    for wrong in (offsets[::-1].copy(), offsets + 1, offsets - 1):
        with pytest.raises(ValueError, match="rising offsets within the values"):
            maker.make(values, wrong, seeds, out, pool)
    with pytest.raises(TypeError):
        maker.make(values, offsets, seeds, np.empty(2 * maker.nbytes, np.uint8)[::2], pool)
    with pytest.raises(ValueError, match="probability"):
        maker_of(Crop(flip=2.0))
    with pytest.raises(ValueError, match="sides from 1"):
        maker.box(0, 1, 0)
