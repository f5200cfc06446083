"""penstock bench, shuffle-report, verify-resume and doctor: how fast my data is, how well it is mixed, whether my loader resumes
exactly, and whether this machine is fit.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from penstock.batch import fields_of
from penstock.cli.options import (
    AsJson,
    OrderOptions,
    Pipeline,
    ShuffleOptions,
    Storage,
    World,
    examples,
    given_options,
    make_loader,
    open_data,
    places,
    takes_order,
)
from penstock.cli.terminal import Code, console, facts, number, print_json, say, table, text
from penstock.errors import StateMismatchError
from penstock.formats.files import matching_paths
from penstock.loader import Loader
from penstock.loader import verify_resume as verify
from penstock.loader.resume_check import BEYOND_EPOCH, MOST_STEPS, SPREAD
from penstock.order import BlockShuffle, Shard, Shuffle
from penstock.order.order import InvertibleOrder
from penstock.progress import reporting
from penstock.records import Blocks, Source
from penstock.remote.url import is_url
from penstock.report import (
    Finding,
    Mixing,
    Section,
    Speed,
    examine,
    field_labels,
    measure_loader,
    measure_order,
    train,
    verify_kills,
    write_page,
    write_plots,
)
from penstock.report.formatting import command_line, count, counted, duration, noun, option_words, percent, rate, ratio, size
from penstock.report.page import need_plots
from penstock.report.sections import MIXING_METHOD, SPEED_METHOD, locality_rows, locality_text, suggestion_text
from penstock.stream import RecordStream
from penstock.system import is_there

STYLES = {"ok": "green", "hurts": "yellow", "breaks": "bold red", "good": "green", "fair": "yellow", "poor": "bold red"}

Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")]
Png = Annotated[Path | None, typer.Option(metavar="DIR", help="Write the plots as PNG files.")]
SHADES = " ░▒▓█"
PLAIN_SHADES = " .:*#"

Kill = Annotated[bool, typer.Option("--kill", help="Kill a training process (kill -9) and resume in a new one, three times.")]

KILL_STEPS = 60


@takes_order
@examples(
    "penstock bench train.pen --batch-size 512",
    "penstock bench train.pen --work 20 --html speed.html",
    "penstock bench train:make_loader --seconds 10",
    "penstock bench image=images.npy label=labels.npy --block 4096 --window 16 --json",
)
def bench(
    data: Pipeline,
    order: OrderOptions,
    world: World = 1,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 5.0,
    threads: Annotated[int | None, typer.Option("--threads", min=0, help="Threads that read and transform.")] = None,
    work: Annotated[
        float, typer.Option(min=0, metavar="MS", help="Simulate a trainer that takes MS milliseconds per batch.")
    ] = 0.0,
    html: Html = None,
    png: Png = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Measure the throughput of data or a loader: samples and bytes per second, relative to a copy in memory.

    Also where the time goes, how long the first batch and a resumed run take, the memory, and advice.

    The loader of your own function is measured as it is; options of the order are for data.

    With several ranks, the part of rank 0 is measured.
    """

    def make() -> Any:
        made = make_loader(data, order, world, storage)
        if threads is None or not isinstance(made, Loader):
            return made
        return Loader(made.stream, order.batch_size, shard=Shard(0, world), tail=order.tail, threads=threads)

    if html is not None or png is not None:
        need_plots()
    with reporting(sys.stderr.isatty(), "measuring", 100) as told:
        speed = measure_loader(make, seconds=seconds, work_s=work / 1000, progress=told)
    options = {"batch-size": order.batch_size, "seconds": seconds, "threads": threads, "work": work or None, **order.given()}
    title = f"How fast is {_short(data)}?"
    _write([speed.section()], html, png, title, SPEED_METHOD, command_line("bench", data, options))
    if as_json:
        print_json(speed)
    else:
        _show_speed(speed)


def _short(data: Sequence[str]) -> str:
    return " ".join(Path(word).name or word for word in data[:3])


def _write(sections: Sequence[Section], html: Path | None, png: Path | None, title: str, method: str, command: str) -> None:
    if html is not None:
        say(f"wrote {write_page(html, sections, title=title, command=command, notes=[method])}")
    for path in [] if png is None else write_plots(png, sections):
        say(f"wrote {path}")


def _show_speed(speed: Speed) -> None:
    out = console()
    out.print(facts("speed", _speed_rows(speed)))
    out.print()
    for line in speed.advice:
        out.print(text(f"* {line}"))


def _speed_rows(speed: Speed) -> dict[str, object]:
    waits = f"99 % within {duration(speed.waits.p99_s)}, the slowest {duration(speed.waits.most_s)}"
    limit = f"{ratio(speed.ratio)} of {size(speed.limit_bytes_per_s.median)}/s, a bare copy in memory"
    rows: dict[str, object] = {
        "data": speed.data,
        "samples": f"{rate(speed.samples_per_s.median)}, batches of {count(speed.batch_samples)}",
        "bytes": f"{size(speed.bytes_per_s.median)}/s, {size(speed.batch_bytes)} a batch",
        "of the limit": f"{limit} by {counted(max(1, speed.threads), 'thread')}",
        "a batch takes": f"half within {duration(speed.waits.p50_s)}, {waits}",
        "first batch": f"{duration(speed.open_s + speed.first_batch_s)}, {duration(speed.open_s)} of it to open",
    }
    if speed.resume_s is not None:
        rows["resume"] = f"{duration(speed.resume_s)} from a saved state to its next batch"
    rows["memory"] = f"{size(speed.memory.own_bytes)}, and {size(speed.memory.mapped_bytes)} of mapped files"
    return rows | _time_rows(speed)


def _time_rows(speed: Speed) -> dict[str, object]:
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


@takes_order
@examples(
    "penstock shuffle-report train.pen --label label",
    "penstock shuffle-report train.pen --block 4096 --window 8 --html mixing.html",
    "penstock shuffle-report --records 1000000000 --block 8192 --window 16 --world 8",
    "penstock shuffle-report train.pen --target 0.9 --json",
)
def shuffle_report(
    order: ShuffleOptions,
    data: Annotated[list[str] | None, typer.Argument(metavar="DATA", help="Data as for info; or --records.")] = None,
    records: Annotated[int | None, typer.Option(min=4, help="Measure an order of this many records, without data.")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field with the class of a record. Default: sorted classes.")
    ] = None,
    num_labels: Annotated[int, typer.Option("--labels", min=2, help="Number of sorted classes, without --label.")] = 1000,
    target: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Suggest a window that reaches this share of the ideal class mix.")
    ] = 0.95,
    world: World = 1,
    cache: Annotated[
        int | None,
        typer.Option(min=0, metavar="BLOCKS", help="Blocks a reader caches. Default: those that are shuffled together, or 16."),
    ] = None,
    html: Html = None,
    png: Png = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Measure a shuffle: how well it mixes batches, compared with a perfect shuffle, in six figures and two plots.

    Also what it costs to read: blocks, seeks, and bytes read per byte used.

    Without --label it assumes that the data is sorted by class, the worst case. It reads only labels.
    """
    if (not data) == (records is None):
        raise typer.BadParameter("expected data or --records, and not both", param_hint="DATA")
    if html is not None or png is not None:
        need_plots()
    settings: dict[str, Any] = {"batch_size": order.batch_size, "world": world, "num_labels": num_labels}
    settings |= {"target": target, "cache": cache}
    if records is not None:
        if label is not None:
            raise typer.BadParameter("--label needs data", param_hint="--label")
        mixing = measure_order(_order(records, order), **settings)
    else:
        with open_data(data or [], storage=storage) as source:
            mixing = _measure_source(source, order, label, settings)
    options: dict[str, object] = {
        "records": records,
        "batch-size": order.batch_size,
        "label": label,
        "labels": None if label else num_labels,
    }
    options |= {"target": target, **order.given(), "world": world, "cache": cache}
    title = f"How well is {_short(data or []) or counted(mixing.records, 'record')} mixed?"
    _write([mixing.section()], html, png, title, MIXING_METHOD, command_line("shuffle-report", data or [], options))
    if as_json:
        print_json(mixing)
    else:
        _show_mixing(mixing)


def _measure_source(source: Source, options: ShuffleOptions, label: str | None, settings: dict[str, Any]) -> Mixing:
    stream = options.stream(source)
    assert isinstance(stream, RecordStream)
    order: Any = stream.order
    return measure_order(
        order,
        block=options.block or (source.blocks.size if isinstance(order, Shuffle) else None),
        labels=None if label is None else field_labels(source, label),
        record_bytes=_record_bytes(source),
        blocks=_blocks(source, order),
        reads_blocks=source.reads_blocks,
        **settings,
    )


def _order(records: int, options: ShuffleOptions) -> InvertibleOrder:
    block, window, lanes, seed = options.block, options.window, options.lanes, options.seed
    if block is None and window is None and lanes == 1:
        return Shuffle(records, seed=seed)
    return BlockShuffle(records, block=block or 1024, window=16 if window is None else window, lanes=lanes, seed=seed)


def _blocks(source: Source, order: object) -> Blocks:
    """What is read at a time: the blocks of the data, or those of the shuffle where records can be read one by one."""
    return source.blocks if source.reads_blocks or not isinstance(order, BlockShuffle) else Blocks(len(source), order.block)


def _record_bytes(source: Source) -> float | None:
    """Bytes of a record, where all fields are of fixed size."""
    if not all(field.is_fixed for field in source.schema.values()):
        return None
    return float(sum(field.stride for field in source.schema.values()))


def _show_mixing(mixing: Mixing) -> None:
    out = console()
    rows = {
        "order": mixing.order,
        "batches": f"of {count(mixing.batch_size)}, {counted(mixing.world, 'rank')}",
        "classes": mixing.labels,
        "class mix": f"{percent(mixing.share)} of a perfect shuffle: {count(mixing.class_mix)} of {count(mixing.ideal_class_mix)}",
    }
    out.print(facts("shuffle", rows))
    out.print()
    for verdict in mixing.verdicts:
        out.print(text(f"{verdict.name} {verdict.value:.3g} (ideal {verdict.ideal:.3g}), {verdict.word}", STYLES[verdict.word]))
        out.print(text(f"   {verdict.told}"))
    out.print()
    _draw_heat(mixing, out)
    out.print(text(suggestion_text(mixing)))
    out.print()
    columns = ("reads", "a batch", "an epoch")
    out.print(table(columns, locality_rows(mixing), right=columns[1:]))
    out.print(text(locality_text(mixing)))


def _draw_heat(mixing: Mixing, out: Console) -> None:
    """Which records come when, in letters: time to the right, records upwards."""
    wide = out.width >= 76
    side = 32 if out.width >= 72 else max(8, min(32, out.width - 2))
    shades = SHADES if _can_show(SHADES, out) else PLAIN_SHADES
    yours = _letters(mixing.heat, side, shades)
    if wide:
        ideal = _letters(mixing.ideal_heat, side, shades)
        out.print(text(f"{'yours'.ljust(side + 3)}perfect shuffle", "bold"))
        yours = [f"{one}   {other}" for one, other in zip(yours, ideal, strict=True)]
    else:
        out.print(text("yours", "bold"))
    for line in yours:
        out.print(text(line, "cyan"))
    out.print(text("time runs to the right, record numbers upwards", "dim"))
    out.print()


def _can_show(letters: str, out: Console) -> bool:
    try:
        letters.encode(out.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _letters(heat: Sequence[Sequence[float]], side: int, shades: str) -> list[str]:
    """A heat map as lines of ``side`` letters, half as many lines."""
    cells, lines = len(heat), max(4, side // 2)

    def mean(row: int, column: int) -> float:
        xs = range(column * cells // side, max(column * cells // side + 1, (column + 1) * cells // side))
        ys = range(row * cells // lines, max(row * cells // lines + 1, (row + 1) * cells // lines))
        values = [heat[min(x, cells - 1)][min(y, cells - 1)] for x in xs for y in ys]
        return sum(values) / len(values)

    def shade(value: float) -> str:
        """An even spread is the middle one."""
        return shades[min(len(shades) - 1, round(value * (len(shades) // 2)))]

    return ["".join(shade(mean(row, column)) for column in range(side)) for row in reversed(range(lines))]


@takes_order
@examples(
    "penstock verify-resume train:make_loader",
    "penstock verify-resume train.pen --batch-size 64 --seed 7",
    "penstock verify-resume train:make_loader --steps 50 --points 0,7,49",
    "penstock verify-resume train:make_loader --kill --json",
)
def verify_resume(
    data: Pipeline,
    order: OrderOptions,
    steps: Annotated[int | None, typer.Option(min=1, help="Batches of the run. Default: slightly more than an epoch.")] = None,
    points: Annotated[str | None, typer.Option(metavar="A,B,...", help="After which batches to save and resume.")] = None,
    kill: Kill = False,
    storage: Storage = None,
    log: Annotated[Path | None, typer.Option("--train-log", hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Save and resume a loader at many points, and compare every batch with an uninterrupted run.

    Exit code 1, with the point, the step and the field, if a batch differs.
    """

    def make() -> Any:
        return make_loader(data, order, storage=storage)

    if log is not None:
        train(make, log, steps or KILL_STEPS, pace=0)
        return
    chosen = _points(points)
    try:
        if kill:
            same = [*option_words(order.given()), *(f"--storage={pair}" for pair in storage or ())]
            same += [f"--option={pair}" for pair in given_options()]
            found = _killed(same, data, steps or KILL_STEPS, chosen)
        else:
            found = _resumed(make, steps, chosen)
    except StateMismatchError as error:
        _show_resume({"resumes": False, "killed": kill, "difference": str(error)}, as_json)
        raise typer.Exit(Code.FOUND) from error
    if found["batches"] == 0:
        raise ValueError("an epoch has no batch, so there is nothing to compare: give a smaller batch size, or another tail")
    _show_resume({"resumes": True, "killed": kill, **found}, as_json)


def _points(points: str | None) -> list[int] | None:
    if points is None:
        return None
    words = [word.strip() for word in points.split(",")]
    if not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"expected numbers of batches such as 0,7,49, got {points!r}", param_hint="--points")
    return [int(word) for word in words]


def _resumed(make: Callable[[], Any], steps: int | None, points: list[int] | None) -> dict[str, Any]:
    number_of = steps or _expected_steps(make)
    num_points = SPREAD + 5 if points is None else len(points)
    with reporting(sys.stderr.isatty(), "comparing batches", 2 * number_of + num_points * number_of * 3 // 2) as told:

        def digest(batch: Any) -> Any:
            if told is not None:
                told(1, 0)
            return fields_of(batch)

        report = verify(make, steps=steps, points=points, digest=digest)
    return {"steps": report.steps, "points": report.points, "batches": report.batches}


def _expected_steps(make: Callable[[], Any]) -> int:
    loader = make()
    return min(MOST_STEPS, len(loader) + BEYOND_EPOCH) if hasattr(loader, "__len__") else MOST_STEPS


def _killed(options: list[str], data: list[str], steps: int, points: list[int] | None) -> dict[str, Any]:
    """This very command, as the process that is killed."""

    def command(log: str, steps: int) -> list[str]:
        own = ["--steps", str(steps), "--train-log", log]
        return [sys.executable, "-m", "penstock", "verify-resume", *options, *own, "--", *data]

    with reporting(sys.stderr.isatty(), "training and dying", 2 * steps) as told:
        found = verify_kills(command, steps=steps, points=points, progress=told)
    return {"steps": found.steps, "points": found.points, "batches": found.steps}


def _show_resume(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = console()
    if not found["resumes"]:
        out.print(text("does not resume", "bold red"))
        out.print(text(found["difference"]))
        return
    out.print(text("resumes exactly", "bold green"))
    run, compared = (f"{number(found[name])} {noun(found[name], 'batch', 'batches')}" for name in ("steps", "batches"))
    num_points = len(found["points"])
    times = f"{'killed' if found['killed'] else 'saved and resumed'} at {number(num_points)} {noun(num_points, 'place')}"
    out.print(text(f"a run of {run}, {times}: {compared} compared, all equal"))


@examples("penstock doctor", "penstock doctor train.pen", "penstock doctor 'part-*.parquet' --json")
def doctor(
    data: Annotated[list[str] | None, typer.Argument(metavar="DATA", help="Data as for info.")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Check the machine and the location of data: cores, memory, disk, limits, versions; what is slow or broken, and remedies.

    A file of 64 MB is written next to the data, or in the directory for temporary files, and removed.

    Exit code 1 if something will not work.
    """
    findings = examine() if not data else _examine(data, storage)
    if as_json:
        print_json({"findings": findings, "fit": all(one.level != "breaks" for one in findings)})
    else:
        _show_findings(findings)
    if any(one.level == "breaks" for one in findings):
        raise typer.Exit(Code.FOUND)


def _examine(data: Sequence[str], storage: Sequence[str] | None) -> list[Finding]:
    with open_data(data, storage=storage) as source:
        words = [word for word in places(data) if not is_url(word)]
        paths = [path for word in words for path in ([word] if is_there(word) else sorted(matching_paths(word)))]
        findings = examine(paths, source)
        if not paths:
            remedy = f"shuffle in blocks (block={source.blocks.size}), and give a cache on disk for later epochs"
            findings.append(Finding("data", "hurts", f"{len(source):,} records in an object store", remedy))
        return findings


def _show_findings(findings: Sequence[Finding]) -> None:
    """For a person: a line for each thing, with what to do below it."""
    out = console()
    for one in findings:
        line = text(f"{one.level:<7}", STYLES[one.level])
        line.append_text(text(f"{one.name}: ", "bold")).append_text(text(one.found))
        out.print(line)
        if one.remedy:
            out.print(text(f"        {one.remedy}"))
    worst = [name for name in ("breaks", "hurts") if any(one.level == name for one in findings)]
    told = {"breaks": "Something here will not work.", "hurts": "It works, but something here will be slow."}
    out.print()
    out.print(text(told[worst[0]] if worst else "No problems found.", "bold"))
