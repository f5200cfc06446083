"""The rivals' side of bench/images.py, which runs it in an environment of theirs.

::

    python bench/images_rival.py write DIRECTORY WIDTH HEIGHT COUNT     # photographs of scikit-image, as JPEG
    python bench/images_rival.py CONTENDER DIRECTORY SECONDS            # prints a JSON object

All go over the files in their order, from memory, in batches of 64, with two threads. ``boxes.npy`` in the directory has the crops
and flips of penstock: x, y, width, height and flip of every file, epoch by epoch. The first batch of the first epoch is written to
``CONTENDER.npy``.
"""

import io
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SIZE, THREADS = 64, 224, 2
PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "motorcycle_left.png",
    "hubble_deep_field.jpg",
    "rocket.jpg",
    "ihc.png",
)

Box = list[int]


def write(directory: Path, width: int, height: int, count: int) -> None:
    """Parts of photographs, scaled, as JPEG of quality 90."""
    import skimage
    from PIL import Image

    place = Path(skimage.__file__).parent / "data"
    photographs = [Image.open(place / name).convert("RGB") for name in PHOTOGRAPHS]
    directory.mkdir(parents=True)
    for number in range(count):
        chance = np.random.default_rng(number)
        photo = photographs[number % len(photographs)]
        share = chance.uniform(0.6, 1) * min(photo.width / width, photo.height / height)
        w, h = share * width, share * height
        x, y = chance.uniform(0, photo.width - w), chance.uniform(0, photo.height - h)
        small = photo.resize((width, height), Image.Resampling.BICUBIC, box=(x, y, x + w, y + h))
        small.save(directory / f"{number:05d}.jpg", quality=90)


def files_in(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(directory.glob("*.jpg"))]


def measure(epoch: Callable[[int], Iterator[Any]], count: int, seconds: float) -> dict[str, float]:
    """Images a second of whole epochs, and processor seconds of 1,000 images, behind one epoch that is not measured."""
    for _ in epoch(0):
        pass
    began, before, number = time.perf_counter(), _processor_s(), 0
    while number == 0 or time.perf_counter() - began < seconds:
        number += 1
        for _ in epoch(number):
            pass
    wall, spent = time.perf_counter() - began, _processor_s() - before
    return {"rate": number * count / wall, "cpu_s": 1000 * spent / (number * count)}


def _processor_s() -> float:
    """Of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def resized(pixels: Any, box: Box) -> np.ndarray:
    """A part of an image in the size of the output, by Pillow, whose bilinear filter is antialiased."""
    from PIL import Image

    x, y, width, height, flip = box
    part = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    made = np.asarray(part.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(x, y, x + width, y + height)))
    return made[:, ::-1] if flip else made


def by_pillow(data: bytes, box: Box) -> np.ndarray:
    from PIL import Image

    return resized(Image.open(io.BytesIO(data)).convert("RGB"), box)


def by_simplejpeg(data: bytes, box: Box) -> np.ndarray:
    import simplejpeg

    return resized(simplejpeg.decode_jpeg(data), box)


def decoded_only(data: bytes, box: Box) -> np.ndarray:
    """Whole images, and nothing more."""
    import simplejpeg

    return simplejpeg.decode_jpeg(data)


def in_threads(
    function: Callable[[bytes, Box], np.ndarray], files: list[bytes], boxes: np.ndarray
) -> Callable[[int], Iterator[Any]]:
    pool, out = ThreadPoolExecutor(THREADS), np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
    keeps = function is not decoded_only

    def fill(place: int, data: bytes, box: Box) -> None:
        made = function(data, box)
        if keeps:
            out[place] = made

    def epoch(number: int) -> Iterator[Any]:
        own = boxes[number % len(boxes)].tolist()
        for low in range(0, len(files), BATCH):
            some = range(low, min(low + BATCH, len(files)))
            list(pool.map(fill, range(len(some)), files[low : some.stop], own[low : some.stop]))
            yield out[: len(some)]

    return epoch


def by_spdl(files: list[bytes], boxes: np.ndarray) -> Callable[[int], Iterator[Any]]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def load(one: tuple[bytes, Box]) -> np.ndarray:
        data, (x, y, width, height, flip) = one
        crop = f"crop={width}:{height}:{x}:{y}:exact=1,scale={SIZE}:{SIZE}:flags=bilinear{',hflip' if flip else ''}"
        return spdl.io.to_numpy(spdl.io.load_image(data, filter_desc=f"{crop},format=pix_fmts=rgb24"))

    def epoch(number: int) -> Iterator[Any]:
        own = boxes[number % len(boxes)].tolist()
        built = PipelineBuilder().add_source(zip(files, own, strict=True)).pipe(load, concurrency=THREADS, output_order="input")
        pipeline = built.aggregate(BATCH).pipe(np.stack).add_sink(2).build(num_threads=THREADS)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


def by_dali(files: list[bytes], boxes: np.ndarray) -> Callable[[int], Iterator[Any]]:
    from nvidia.dali import fn, pipeline_def, types

    raw = [np.frombuffer(data, np.uint8) for data in files]
    state = {"epoch": 0}

    def batch(info: Any) -> Any:
        low = info.iteration * BATCH % len(raw)
        own = boxes[state["epoch"] % len(boxes)][low : low + BATCH]
        return raw[low : low + BATCH], own[:, :2].astype(np.float32), own[:, 2:4].astype(np.float32), own[:, 4].copy()

    @pipeline_def(batch_size=BATCH, num_threads=THREADS, device_id=None, prefetch_queue_depth=2)
    def graph() -> Any:
        encoded, anchor, shape, flip = fn.external_source(batch, num_outputs=4, batch_info=True, batch=True)
        pixels = fn.decoders.image_slice(encoded, anchor, shape, axis_names="WH", normalized_anchor=False, normalized_shape=False)
        return fn.flip(fn.resize(pixels, size=[SIZE, SIZE], interp_type=types.INTERP_LINEAR, antialias=True), horizontal=flip)

    running = graph()
    running.build()

    def epoch(number: int) -> Iterator[Any]:
        state["epoch"] = number
        for _ in range(len(raw) // BATCH):
            yield np.stack([np.asarray(one) for one in running.run()[0]])

    return epoch


def by_torch(workers: int) -> Callable[[list[bytes], np.ndarray], Callable[[int], Iterator[Any]]]:
    """What torchvision's RandomResizedCrop does to images of Pillow, behind torch's DataLoader."""

    def make(files: list[bytes], boxes: np.ndarray) -> Callable[[int], Iterator[Any]]:
        import torch

        class Images(torch.utils.data.Dataset[Any]):
            def __init__(self, number: int) -> None:
                self.boxes = boxes[number % len(boxes)].tolist()

            def __len__(self) -> int:
                return len(files)

            def __getitem__(self, index: int) -> Any:
                return torch.from_numpy(by_pillow(files[index], self.boxes[index]).copy())

        def epoch(number: int) -> Iterator[Any]:
            torch.set_num_threads(1)
            yield from torch.utils.data.DataLoader(Images(number), BATCH, num_workers=workers)

        return epoch

    return make


CONTENDERS: dict[str, Callable[[list[bytes], np.ndarray], Callable[[int], Iterator[Any]]]] = {
    "simplejpeg in threads, Pillow's resize": lambda files, boxes: in_threads(by_simplejpeg, files, boxes),
    "Pillow in threads": lambda files, boxes: in_threads(by_pillow, files, boxes),
    "SPDL": by_spdl,
    "DALI, CPU": by_dali,
    "torch DataLoader, Pillow, 0 workers": by_torch(0),
    "torch DataLoader, Pillow, 2 workers": by_torch(2),
    "decoding whole images only": lambda files, boxes: in_threads(decoded_only, files, boxes),
}


def main() -> None:
    """The command line."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    if name == "write":
        write(directory, *map(int, sys.argv[3:]))
        sys.stdout.write("{}\n")
        return
    files, boxes = files_in(directory), np.load(directory / "boxes.npy")
    epoch = CONTENDERS[name](files, boxes)
    np.save(directory / f"{name}.npy", np.asarray(next(iter(epoch(0)))))
    epoch = CONTENDERS[name](files, boxes)
    sys.stdout.write(json.dumps(measure(epoch, len(files), float(sys.argv[3]))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without the ends of threads of the rivals


if __name__ == "__main__":
    main()
