"""penstock bench: how fast is my data, and what would make it faster."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.options import (
    AsJson,
    BatchSize,
    Block,
    InOrder,
    Lanes,
    Pipeline,
    Seed,
    Storage,
    Tail,
    Window,
    World,
    make_loader,
)
from penstock.cli.output import console, facts, print_json, say, text
from penstock.loader import Loader
from penstock.order import Shard
from penstock.progress import reporting
from penstock.report import Speed, measure_loader, write_page, write_plots
from penstock.report.plot import need_plots
from penstock.report.speed_section import METHOD
from penstock.report.words import command_line, count, counted, duration, percent, rate, ratio, size

__all__ = ["EXAMPLES", "bench"]

EXAMPLES = (
    "penstock bench train.pen --batch-size 512",
    "penstock bench train.pen --work 20 --html speed.html",
    "penstock bench train:make_loader --seconds 10",
    "penstock bench image=images.npy label=labels.npy --block 4096 --window 16 --json",
)

Seconds = Annotated[float, typer.Option(min=0.1, help="How long to measure.")]
Work = Annotated[float, typer.Option(min=0, metavar="MS", help="A pretended trainer is busy so many milliseconds per batch.")]
LoaderThreads = Annotated[int | None, typer.Option("--threads", min=0, help="Threads that read and transform.", show_default=False)]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.", show_default=False)]
Png = Annotated[Path | None, typer.Option(metavar="DIR", help="Write the plots as PNG files.", show_default=False)]


def bench(
    data: Pipeline,
    batch_size: BatchSize = 256,
    seconds: Seconds = 5.0,
    threads: LoaderThreads = None,
    work: Work = 0.0,
    seed: Seed = 0,
    in_order: InOrder = False,
    block: Block = None,
    window: Window = None,
    lanes: Lanes = 1,
    world: World = 1,
    tail: Tail = "keep",
    html: Html = None,
    png: Png = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Measure my data with my batch size: samples and bytes per second, beside what memory can do.

    Also where the time goes, how long the first batch and a resumed run take, the memory, and advice. With a function of yours, its
    loader is measured as it is; options of the order are for data. With several ranks, the part of rank 0 is measured.
    """
    order: dict[str, Any] = {"seed": seed, "in_order": in_order, "block": block, "window": window, "lanes": lanes, "tail": tail}

    def make() -> Any:
        made = make_loader(data, batch_size=batch_size, shard=Shard(0, world), storage=storage, **order)
        if threads is None or not isinstance(made, Loader):
            return made
        return Loader(made.stream, batch_size, shard=Shard(0, world), tail=tail, threads=threads)

    if html is not None or png is not None:
        need_plots()
    with reporting(sys.stderr.isatty(), "measuring", 100) as told:
        speed = measure_loader(make, seconds=seconds, work_s=work / 1000, progress=told)
    options = {"batch-size": batch_size, "seconds": seconds, "threads": threads, "work": work or None, "seed": seed or None}
    options |= {"in-order": in_order, "block": block, "window": window, "lanes": lanes if lanes > 1 else None}
    _write(speed, html, png, data, command_line("bench", data, options))
    if as_json:
        print_json(speed)
    else:
        show(speed)


def _write(speed: Speed, html: Path | None, png: Path | None, data: Sequence[str], command: str) -> None:
    if html is not None:
        title = f"How fast is {' '.join(Path(word).name or word for word in data[:3])}?"
        say(f"wrote {write_page(html, [speed.section()], title=title, command=command, notes=[METHOD])}")
    if png is not None:
        for path in write_plots(png, [speed.section()]):
            say(f"wrote {path}")


def show(speed: Speed) -> None:
    """For a person."""
    out = console()
    out.print(facts("speed", _rows(speed)))
    out.print()
    for line in speed.advice:
        out.print(text(f"* {line}"))


def _rows(speed: Speed) -> dict[str, object]:
    limit = f"{ratio(speed.ratio)} of {size(speed.limit_bytes_per_s.median)}/s, a bare copy in memory"
    rows: dict[str, object] = {
        "data": speed.data,
        "samples": f"{rate(speed.samples_per_s.median)}, batches of {count(speed.batch_samples)}",
        "bytes": f"{size(speed.bytes_per_s.median)}/s, {size(speed.batch_bytes)} a batch",
        "of the limit": f"{limit} by {counted(max(1, speed.threads), 'thread')}",
        "a batch takes": _in_words(speed),
        "first batch": f"{duration(speed.open_s + speed.first_batch_s)}, {duration(speed.open_s)} of it to open",
    }
    if speed.resume_s is not None:
        rows["resume"] = f"{duration(speed.resume_s)} from a saved state to its next batch"
    rows["memory"] = f"{size(speed.memory.own_bytes)}, and {size(speed.memory.mapped_bytes)} of mapped files"
    return rows | _where(speed)


def _in_words(speed: Speed) -> str:
    waits = speed.waits
    return f"half within {duration(waits.p50_s)}, 99 % within {duration(waits.p99_s)}, the slowest {duration(waits.most_s)}"


def _where(speed: Speed) -> dict[str, object]:
    """Where the time goes."""
    rows: dict[str, object] = {}
    if speed.split is not None:
        split = speed.split
        parts = {"order": split.order_s, "read and collate": split.read_s, "transform": split.transform_s}
        total = sum(parts.values())
        rows["one batch alone"] = ", ".join(f"{name} {duration(part)} ({percent(part / total)})" for name, part in parts.items())
    if speed.trainer is not None:
        busy = speed.trainer
        rows["trainer"] = (
            f"busy {duration(busy.work_s)} a batch, waits {percent(busy.waited)} of the time, {rate(busy.samples_per_s)}"
        )
    if speed.network is not None:
        rows["network"] = f"{size(speed.network.bytes)} in {counted(speed.network.requests, 'request')}"
    return rows
