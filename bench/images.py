"""JPEG files into batches of 224 x 224: penstock next to FFCV, DALI on the CPU, SPDL, torchvision, simplejpeg and Pillow.

::

    python bench/rivals/environments.py images ffcv torchvision     # once: the rivals, pinned, in environments of their own
    python bench/images.py [--quick] [--sizes 500x375 ...] [--only NAME ...] [--json out/images.json] [--docs]

Photographs of scikit-image, cut and scaled to 256 x 256, 500 x 375 and 1920 x 1280, encoded with quality 90. Everyone gets the same
random boxes and flips, which are penstock's (``stream.boxes``), two threads and batches of 64, from memory; penstock reads a store,
and FFCV a file of its own with the same JPEG bytes. PSNR is of the first batch, against Pillow's antialiased resize of the same
box of the whole picture, by median; below 25 dB a contender has shown something else, and has no figure.

With --json, figures are added to those that the file has: the parts of a long run may be measured one by one. --docs writes what
the file has into docs/explanation/performance.md.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import penstock as pen
from images_rival import BATCH, CONTENDERS, SIZE, THREADS, by_pillow, files_in, measure
from measure import machine, progress, run_child, table, write_json
from penstock.report.doctor import Others
from rivals.environments import PINS, python_of

ROOT = Path(__file__).resolve().parent.parent
OUT, PAGE = ROOT / "out", ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- images:begin -->", "<!-- images:end -->"
SIZES = {"256x256": (256, 256, 2048), "500x375": (500, 375, 1024), "1920x1280": (1920, 1280, 192)}
"""Width, height, and how many: an epoch takes about half a second, so that its beginning and end do not count."""
HEAD = ("", "images/s", "spread", "CPU s / 1,000", "penstock is x", "PSNR dB")
ENVIRONMENTS = {"FFCV": "ffcv", "torchvision": "torchvision"}
"""By the first word of the contender; the others are in "images"."""
OWN = ("simplejpeg in threads, penstock's resize", "limit: decoding of the boxes alone, in C")
"""Those that need penstock, and run with the interpreter of this program."""
LEAST_PSNR = 25.0
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
    if found.shape[1:] != (SIZE, SIZE, 3) or name.endswith("no resize"):
        return None
    exact = np.stack([by_pillow(data, box) for data, box in zip(files, boxes, strict=False)])
    errors = np.mean((found[: len(exact)].astype(np.float64) - exact) ** 2, axis=(1, 2, 3))
    return float(np.median(10 * np.log10(255**2 / np.maximum(errors, 1e-9))))


def compile_limit(folder: Path) -> Path:
    """images_limit.cpp with the kernels of the core, which ``make build`` has left in build/native."""
    library = folder / "images_limit.so"
    command = [os.environ.get("CXX", "c++"), "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'native'}"]
    source, core = Path(__file__).with_name("images_limit.cpp"), ROOT / "build" / "native" / "libpenstock_core.a"
    subprocess.run([*command, str(source), str(core), "-o", str(library), "-ljpeg", "-lpthread"], check=True)
    return library


def run_rival(name: str, directory: Path, seconds: float) -> dict[str, float] | None:
    """Its figures; None, with a reason on the screen, where it cannot run or shows something else."""
    environment = next((place for word, place in ENVIRONMENTS.items() if name.startswith(word)), "images")
    python = sys.executable if name in OWN else str(python_of(environment))
    try:
        figures = run_child(Path(__file__).with_name("images_rival.py"), name, directory, seconds, python=python)
    except (RuntimeError, OSError) as error:  # such as SPDL without the libraries of FFmpeg
        progress(f"{name} cannot run: {str(error)[-300:]}", lasting=True)
        return None
    seen = psnr(directory, name)
    if seen is not None and seen < LEAST_PSNR:
        progress(f"{name} shows other pictures: {seen:.1f} dB", lasting=True)
        return None
    return {**figures, "psnr": seen}


def run_size(name: str, wanted: list[str], place: Path, *, quick: bool) -> dict[str, Any]:
    """All contenders for pictures of one size. penstock is measured first and last: its figures are the means of both."""
    width, height, count = SIZES[name]
    directory, seconds = place / name, 0.6 if quick else 3.0
    number = max(BATCH, count // 4) if quick else count
    python = str(python_of("images"))
    run_child(Path(__file__).with_name("images_rival.py"), "write", directory, width, height, number, python=python)
    tell_boxes(directory)
    progress(f"{name}: penstock")
    found = {"penstock": ours(directory, seconds)}
    for rival in wanted:
        progress(f"{name}: {rival}")
        figures = run_rival(rival, directory, seconds)
        if figures is not None:
            found[rival] = figures
    first, last = found["penstock"], ours(directory, seconds)
    found["penstock"] = {**{key: (first[key] + last[key]) / 2 for key in first}, "psnr": psnr(directory, "penstock")}
    reference = found["penstock"]["rate"]
    return {one: {**figures, "ratio": reference / figures["rate"]} for one, figures in found.items()}


def rows_of(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """By rate. ``ratio`` is of the same run."""
    ordered = sorted(found.items(), key=lambda one: -one[1]["rate"])
    return [
        [
            name,
            f"{one['rate']:,.0f}",
            f"± {(one['high'] - one['low']) / 2 / one['rate']:.0%}",
            f"{one['cpu_s']:.2f}",
            "" if name == "penstock" else f"{one['ratio']:.2f}",
            "" if one["psnr"] is None else f"{one['psnr']:.1f}",
        ]
        for name, one in ordered
    ]


def merged(path: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a file with newer ones in the place of theirs."""
    before = json.loads(path.read_text())["images"] if path.exists() else {}
    return {name: {**before.get(name, {}), **results.get(name, {})} for name in SIZES if name in before or name in results}


def page_of(report: Mapping[str, Any]) -> str:
    """The part of the page of performance."""
    parts = []
    for name, found in report["images"].items():
        rows = ["| " + " | ".join(row) + " |" for row in [[*HEAD], ["---"] + ["--:"] * (len(HEAD) - 1), *rows_of(found)]]
        parts.append("\n".join([f"### JPEG of {name.replace('x', ' x ')} to {SIZE} x {SIZE}, random crops", "", *rows]))
    pins = sorted({pin for one in ("images", "ffcv", "torchvision") for pin in (*PINS[one].pins, *PINS[one].shared)})
    where = report["machine"]
    told = (
        f"Measured {report['date']} by `python bench/images.py` on {where['cpu']}, {where['cores']} cores: two threads, batches "
        f"of {BATCH}, the median of three turns; the ratio is that of the same run. Versions: "
        f"{', '.join(pin.replace('==', ' ') for pin in pins)}."
    )
    return "\n\n".join([*parts, told])


def write_page(report: Mapping[str, Any]) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{page_of(report)}\n{END}{after}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--only", nargs="+", default=[""], help="contenders whose names begin like this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--docs", action="store_true", help="write the figures of --json into the page of performance")
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    wanted = [name for name in CONTENDERS if name.startswith(tuple(given.only))]
    others, results = Others(), {}
    with tempfile.TemporaryDirectory(dir=OUT) as place:
        packages = sysconfig.get_path("purelib", vars={"base": str(python_of("images").parent.parent)})
        os.environ |= {"IMAGES_LIMIT": str(compile_limit(Path(place))), "IMAGES_PACKAGES": packages, "IMAGES_SCRATCH": place}
        for name in given.sizes:
            results[name] = run_size(name, wanted, Path(place), quick=given.quick)
    print(machine(), f"other programs, the rivals among them, took {others.share():.0%} of the cores", sep="; ")
    for name, found in results.items():
        print(f"\n{name} -> {SIZE} x {SIZE}", table(HEAD, rows_of(found)), sep="\n")
    if given.json:
        report = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "images": merged(given.json, results)}
        write_json(given.json, report)
        if given.docs:
            write_page(report)


if __name__ == "__main__":
    main()
