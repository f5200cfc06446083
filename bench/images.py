"""JPEG files into batches of 224 x 224: penstock next to simplejpeg, Pillow, SPDL, DALI on the CPU and torch's DataLoader.

::

    python bench/rivals/environments.py images     # once: the rivals, in an environment of their own
    python bench/images.py [--quick] [--json FILE] [--python PATH]

Photographs of scikit-image, cut and scaled to 256 x 256, 500 x 375 and 1920 x 1280, encoded with quality 90. Everyone gets the same
random boxes and flips, which are penstock's (``stream.boxes``), two threads and batches of 64, from memory; penstock
reads a store. PSNR is that of the first batch, against Pillow's antialiased resize of the same box of the whole picture, by median.
There is no torchvision for this version of torch: its transforms of Pillow's images are what "torch DataLoader, Pillow" does.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from images_rival import BATCH, CONTENDERS, SIZE, THREADS, by_pillow, files_in, measure
from measure import machine, progress, run_child, table, write_json
from penstock.report.doctor import Others
from rivals.environments import python_of

OUT = Path(__file__).parent.parent / "out"
SIZES = {"256 x 256": (256, 256, 512), "500 x 375": (500, 375, 512), "1920 x 1280": (1920, 1280, 128)}
HEAD = ("", "images/s", "CPU s / 1,000", "penstock is x", "PSNR dB")
EPOCHS = 4
"""Boxes that are told to the others; then they begin anew."""


def stream_of(data: Any) -> pen.Stream:
    return data.in_order().images("image", SIZE, layout="nhwc")


def tell_boxes(directory: Path) -> None:
    """Write a store of the files, and the boxes of some epochs."""
    pen.convert({"image": files_in(directory)}, directory / "store.pen")
    with pen.open(directory / "store.pen") as data:
        boxes = [stream_of(data).boxes(epoch, range(len(data))) for epoch in range(EPOCHS)]
    np.save(directory / "boxes.npy", np.stack(boxes))


def ours(directory: Path, seconds: float) -> dict[str, float]:
    with pen.open(directory / "store.pen") as data, pen.Loader(stream_of(data), BATCH, threads=THREADS) as loader:
        np.save(directory / "penstock.npy", next(iter(loader))["image"])
        loader.seek(0)

        def epoch(number: int) -> Iterator[Any]:
            yield from loader

        return measure(epoch, len(data), seconds)


def psnr(directory: Path, name: str) -> float | None:
    """Of the first batch, against Pillow; None of what has no such result."""
    path = directory / f"{name}.npy"
    found = np.load(path) if path.exists() else np.empty(0)
    files, boxes = files_in(directory)[:BATCH], np.load(directory / "boxes.npy")[0].tolist()
    if found.shape[1:] != (SIZE, SIZE, 3) or name == "decoding whole images only":
        return None
    exact = np.stack([by_pillow(data, box) for data, box in zip(files, boxes, strict=False)])
    errors = np.mean((found[: len(exact)].astype(np.float64) - exact) ** 2, axis=(1, 2, 3))
    return float(np.median(10 * np.log10(255**2 / np.maximum(errors, 1e-9))))


def _decibels(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--python", type=Path, default=python_of("images"), help="the interpreter that has the rivals")
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    script, others, seconds = Path(__file__).with_name("images_rival.py"), Others(), 0.5 if given.quick else 4.0
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=OUT) as place:
        for name, (width, height, count) in SIZES.items():
            directory = Path(place) / name.replace(" ", "")
            run_child(
                script,
                "write",
                directory,
                width,
                height,
                max(BATCH, count // 4) if given.quick else count,
                python=str(given.python),
            )
            tell_boxes(directory)
            progress(f"{name}: penstock")
            found = {"penstock": ours(directory, seconds)}
            for rival in CONTENDERS:
                progress(f"{name}: {rival}")
                python = sys.executable if rival.startswith("torch") else str(given.python)
                try:
                    found[rival] = run_child(script, rival, directory, seconds, python=python)
                except RuntimeError as error:  # such as SPDL without the libraries of FFmpeg
                    progress(f"{rival} cannot run: {str(error)[-200:]}", lasting=True)
            results[name] = {one: {**figures, "psnr": psnr(directory, one)} for one, figures in found.items()}
    print(machine(), f"other programs, the rivals among them, took {others.share():.0%} of the cores", sep="; ")
    for name, found in results.items():
        rows = [
            [one, f"{f['rate']:,.0f}", f"{f['cpu_s']:.2f}", f"{found['penstock']['rate'] / f['rate']:.2f}", _decibels(f["psnr"])]
            for one, f in found.items()
        ]
        print(f"\n{name} -> {SIZE} x {SIZE}", table(HEAD, rows), sep="\n")
    if given.json:
        write_json(given.json, {"machine": machine(), "others": others.share(), "images": results})


if __name__ == "__main__":
    main()
