"""The rivals' side of bench/images.py, which runs each in an environment of its own.

::

    python bench/images_rival.py write DIRECTORY WIDTH HEIGHT COUNT     # photographs of scikit-image, as JPEG
    python bench/images_rival.py CONTENDER DIRECTORY SECONDS            # prints a JSON object

All go over the files in their order, from memory, in batches of 64, with two threads. ``boxes.npy`` in the directory has the crops
and flips of penstock: x, y, width, height and flip of every file, epoch by epoch (FFCV has those of the first epoch in all of them:
its compiler makes constants of them). The first batch of the first epoch is written to ``CONTENDER.npy``.
"""

import ctypes
import io
import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

BATCH, SIZE, THREADS, TURNS = 64, 224, 2, 3
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
    """Images a second of whole epochs, the median of turns, with the slowest and the fastest; and processor seconds of 1,000
    images. Behind one epoch that is not measured.
    """
    for _ in epoch(0):
        pass
    rates, before, epochs = [], _processor_s(), 0
    for _ in range(TURNS):
        began, number = time.perf_counter(), 0
        while number == 0 or time.perf_counter() - began < seconds / TURNS:
            number += 1
            for _ in epoch(epochs + number):
                pass
        rates.append(number * count / (time.perf_counter() - began))
        epochs += number
    spent = _processor_s() - before
    return {"rate": statistics.median(rates), "low": min(rates), "high": max(rates), "cpu_s": 1000 * spent / (epochs * count)}


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


def limit_library() -> ctypes.CDLL:
    """images_limit.cpp, which bench/images.py has compiled."""
    return ctypes.CDLL(os.environ["IMAGES_LIMIT"])


def by_simplejpeg_and_penstock(files: list[bytes], boxes: np.ndarray) -> Callable[[int], Iterator[Any]]:
    """simplejpeg's pixels of whole images, and penstock's own resize of the box."""
    sys.path.append(os.environ["IMAGES_PACKAGES"])  # of the environment that has it; this program has penstock
    import simplejpeg

    resize, padding = limit_library().resize_box, 256
    own, made = threading.local(), np.empty((BATCH, SIZE * SIZE * 3 + padding), np.uint8)
    height, width = simplejpeg.decode_jpeg_header(files[0])[:2]
    pool = ThreadPoolExecutor(THREADS)

    def fill(place: int, data: bytes, box: np.ndarray) -> None:
        if not hasattr(own, "pixels"):
            own.pixels = np.empty(height * width * 3 + padding, np.uint8)
        simplejpeg.decode_jpeg(data, buffer=own.pixels)
        resize(own.pixels.ctypes.data_as(_POINTER), width, box.ctypes.data_as(_POINTER), SIZE, made[place].ctypes.data_as(_POINTER))

    def epoch(number: int) -> Iterator[Any]:
        rows = np.ascontiguousarray(boxes[number % len(boxes)], np.int32)
        for low in range(0, len(files), BATCH):
            list(pool.map(fill, range(BATCH), files[low : low + BATCH], rows[low : low + BATCH]))
            yield made[:, : SIZE * SIZE * 3].reshape(BATCH, SIZE, SIZE, 3)

    return epoch


_POINTER = ctypes.c_void_p


def decoding_in_c(files: list[bytes], boxes: np.ndarray) -> Callable[[int], Iterator[Any]]:
    """Two threads of C that only decode, and only what the boxes need."""
    library = limit_library()
    pointers = (ctypes.c_char_p * len(files))(*files)
    sizes = np.array([len(one) for one in files], np.uint64)

    def epoch(number: int) -> Iterator[Any]:
        rows = np.ascontiguousarray(boxes[number % len(boxes)], np.int32)
        library.decode_all(
            pointers,
            sizes.ctypes.data_as(_POINTER),
            rows.ctypes.data_as(_POINTER),
            ctypes.c_uint64(len(files)),
            SIZE,
            THREADS,
        )
        yield np.empty(0)

    return epoch


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


def by_ffcv(files: list[bytes], boxes: np.ndarray) -> Callable[[int], Iterator[Any]]:
    """Its writer with the bytes of the same JPEG files, its decoder with the same boxes, its flip with the same choices."""
    from dataclasses import replace

    from ffcv.fields import RGBImageField, rgb_image
    from ffcv.libffcv import imdecode, resize_crop
    from ffcv.loader import Loader, OrderOption
    from ffcv.pipeline.allocation_query import AllocationQuery
    from ffcv.pipeline.compiler import Compiler
    from ffcv.pipeline.operation import Operation
    from ffcv.writer import DatasetWriter
    from PIL import Image

    given = boxes[0].astype(np.int64)

    class SameBox(rgb_image.ResizedCropRGBImageDecoder):
        get_crop_generator = None

        def generate_code(self) -> Callable[..., Any]:
            read, numbers = self.memory_read, Compiler.get_iterator()
            decode_c, resize_c = Compiler.compile(imdecode), Compiler.compile(resize_crop)

            def decode(batch_indices: Any, my_storage: Any, metadata: Any, storage_state: Any) -> Any:
                destination, whole = my_storage
                for place in numbers(len(batch_indices)):
                    index = batch_indices[place]
                    field = metadata[index]
                    height, width = np.uint32(field["height"]), np.uint32(field["width"])
                    pixels = whole[place]
                    data = read(field["data_ptr"], storage_state)
                    decode_c(data, pixels, height, width, height, width, 0, 0, 1, 1, False, False)
                    pixels = pixels.reshape(-1)[: 3 * height * width].reshape(height, width, 3)
                    x, y, w, h = given[index, 0], given[index, 1], given[index, 2], given[index, 3]
                    resize_c(pixels, y, y + h, x, x + w, destination[place])
                return destination[: len(batch_indices)]

            decode.is_parallel = True  # type: ignore[attr-defined]
            return decode

    class SameFlip(Operation):
        def generate_code(self) -> Callable[..., Any]:
            numbers = Compiler.get_iterator()

            def flip(images: Any, out: Any, indices: Any) -> Any:
                for i in numbers(images.shape[0]):
                    out[i] = images[i, :, ::-1] if given[indices[i], 4] else images[i]
                return out

            flip.is_parallel = flip.with_indices = True  # type: ignore[attr-defined]
            return flip

        def declare_state_and_memory(self, previous_state: Any) -> Any:
            return replace(previous_state, jit_mode=True), AllocationQuery(previous_state.shape, previous_state.dtype)

    class Pictures:
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> Any:
            pixels = np.array(Image.open(io.BytesIO(files[index])).convert("RGB"))
            encoded[pixels.tobytes()] = np.frombuffer(files[index], np.uint8)
            return (pixels,)

    encoded: dict[bytes, np.ndarray] = {}
    rgb_image.encode_jpeg = lambda pixels, quality: encoded.pop(pixels.tobytes())
    path = Path(os.environ["IMAGES_SCRATCH"]) / f"{os.getpid()}.beton"
    DatasetWriter(str(path), {"image": RGBImageField(write_mode="jpg")}, num_workers=1).from_indexed_dataset(Pictures())
    pipelines = {"image": [SameBox((SIZE, SIZE)), SameFlip()]}
    loader = Loader(
        str(path), BATCH, num_workers=THREADS, os_cache=True, order=OrderOption.SEQUENTIAL, pipelines=pipelines, batches_ahead=2
    )

    def epoch(number: int) -> Iterator[Any]:
        for (batch,) in loader:
            yield np.asarray(batch)

    return epoch


def by_torchvision(workers: int) -> Callable[[list[bytes], np.ndarray], Callable[[int], Iterator[Any]]]:
    """What torchvision's RandomResizedCrop and RandomHorizontalFlip do to images of Pillow, behind torch's DataLoader."""

    def make(files: list[bytes], boxes: np.ndarray) -> Callable[[int], Iterator[Any]]:
        import torch

        # Its wheel is built for CUDA. With torch for the CPU its own operators are missing, of which it declares two on import.
        declared = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        from PIL import Image
        from torchvision.transforms import functional

        class Images(torch.utils.data.Dataset[Any]):
            def __init__(self, number: int) -> None:
                self.boxes = boxes[number % len(boxes)].tolist()

            def __len__(self) -> int:
                return len(files)

            def __getitem__(self, index: int) -> Any:
                x, y, width, height, flip = self.boxes[index]
                picture = Image.open(io.BytesIO(files[index])).convert("RGB")
                made = functional.resized_crop(picture, y, x, height, width, [SIZE, SIZE])
                made = functional.hflip(made) if flip else made
                return functional.pil_to_tensor(made).permute(1, 2, 0)

        def epoch(number: int) -> Iterator[Any]:
            torch.set_num_threads(1)
            yield from torch.utils.data.DataLoader(Images(number), BATCH, num_workers=workers)

        return epoch

    return make


CONTENDERS: dict[str, Callable[[list[bytes], np.ndarray], Callable[[int], Iterator[Any]]]] = {
    "simplejpeg in threads, penstock's resize": by_simplejpeg_and_penstock,
    "simplejpeg in threads, Pillow's resize": lambda files, boxes: in_threads(by_simplejpeg, files, boxes),
    "Pillow in threads": lambda files, boxes: in_threads(by_pillow, files, boxes),
    "SPDL": by_spdl,
    "DALI, CPU": by_dali,
    "FFCV": by_ffcv,
    "torchvision, DataLoader, 0 workers": by_torchvision(0),
    "torchvision, DataLoader, 2 workers": by_torchvision(2),
    "simplejpeg in threads, whole images, no resize": lambda files, boxes: in_threads(decoded_only, files, boxes),
    "limit: decoding of the boxes alone, in C": decoding_in_c,
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
    np.save(directory / f"{name}.npy", np.array(next(iter(epoch(0)))))
    if name == "DALI, CPU":  # goes on where it was
        epoch = CONTENDERS[name](files, boxes)
    sys.stdout.write(json.dumps(measure(epoch, len(files), float(sys.argv[3]))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without the ends of threads of the rivals


if __name__ == "__main__":
    main()
