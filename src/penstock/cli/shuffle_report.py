"""penstock shuffle-report: how well are my batches mixed, and which window would be enough."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.cli.options import AsJson, BatchSize, Block, Lanes, Seed, Storage, Window, World, open_data
from penstock.cli.output import console, facts, print_json, say, table, text
from penstock.interfaces import InvertibleOrder
from penstock.order import BlockShuffle, Shuffle
from penstock.records import Blocks, Source
from penstock.report import Mixing, field_labels, measure_order, write_page, write_plots
from penstock.report.mixing_section import METHOD, locality_rows, locality_text, suggestion_text
from penstock.report.plot import need_plots
from penstock.report.words import command_line, count, counted, percent

__all__ = ["EXAMPLES", "shuffle_report"]

EXAMPLES = (
    "penstock shuffle-report train.pen --label label",
    "penstock shuffle-report train.pen --block 4096 --window 8 --html mixing.html",
    "penstock shuffle-report --records 1000000000 --block 8192 --window 16 --world 8",
    "penstock shuffle-report train.pen --target 0.9 --json",
)

MaybeData = Annotated[list[str] | None, typer.Argument(metavar="DATA", help="Data as for info; or --records.", show_default=False)]
Records = Annotated[int | None, typer.Option(min=4, help="So many records instead of data; nothing is read.", show_default=False)]
Label = Annotated[
    str | None, typer.Option(metavar="FIELD", help="The class of a record; sorted classes if left out.", show_default=False)
]
NumLabels = Annotated[int, typer.Option("--labels", min=2, help="How many sorted classes, without --label.")]
Target = Annotated[float, typer.Option(min=0.01, max=1.0, help="A window is suggested for this share of the ideal class mix.")]
Cache = Annotated[
    int | None,
    typer.Option(min=0, metavar="BLOCKS", help="Blocks a reader keeps; those that are mixed together, or 16.", show_default=False),
]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.", show_default=False)]
Png = Annotated[Path | None, typer.Option(metavar="DIR", help="Write the plots as PNG files.", show_default=False)]

SHADES = " ░▒▓█"
PLAIN_SHADES = " .:*#"


def shuffle_report(
    data: MaybeData = None,
    records: Records = None,
    batch_size: BatchSize = 256,
    label: Label = None,
    num_labels: NumLabels = 1000,
    target: Target = 0.95,
    seed: Seed = 0,
    block: Block = None,
    window: Window = None,
    lanes: Lanes = 1,
    world: World = 1,
    cache: Cache = None,
    html: Html = None,
    png: Png = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Judge a shuffle: how well batches are mixed, compared with a perfect shuffle, in six figures and two pictures.

    Also what it costs to read: blocks, seeks, and bytes read per byte used.

    Without --label the data is taken to be sorted by class, the worst case. Only labels are read.
    """
    if (not data) == (records is None):
        raise typer.BadParameter("expected data or --records, and not both", param_hint="DATA")
    if html is not None or png is not None:
        need_plots()
    if records is not None:
        if label is not None:
            raise typer.BadParameter("--label needs data", param_hint="--label")
        order = _order(records, seed, block, window, lanes)
        mixing = measure_order(order, batch_size=batch_size, world=world, num_labels=num_labels, target=target, cache=cache)
    else:
        with open_data(data or [], storage=storage) as source:
            stream = source.shuffle(seed=seed, block=block, window=window, lanes=lanes)
            mixing = measure_order(
                stream.order,  # type: ignore[arg-type]
                batch_size=batch_size,
                block=block or (source.blocks.size if isinstance(stream.order, Shuffle) else None),
                world=world,
                num_labels=num_labels,
                labels=None if label is None else field_labels(source, label),
                record_bytes=_record_bytes(source),
                target=target,
                blocks=_blocks(source, stream.order),
                reads_blocks=source.reads_blocks,
                cache=cache,
            )
    options = {
        "records": records,
        "batch-size": batch_size,
        "label": label,
        "labels": None if label else num_labels,
        "target": target,
    }
    options |= {"seed": seed or None, "block": block, "window": window, "lanes": lanes if lanes > 1 else None}
    options |= {"world": world, "cache": cache}
    _write(mixing, html, png, data or [], command_line("shuffle-report", data or [], options))
    if as_json:
        print_json(mixing)
    else:
        show(mixing)


def _order(records: int, seed: int, block: int | None, window: int | None, lanes: int) -> InvertibleOrder:
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


def _write(mixing: Mixing, html: Path | None, png: Path | None, data: Sequence[str], command: str) -> None:
    if html is not None:
        what = " ".join(Path(word).name or word for word in data[:3]) or counted(mixing.records, "record")
        page = write_page(html, [mixing.section()], title=f"How well is {what} mixed?", command=command, notes=[METHOD])
        say(f"wrote {page}")
    if png is not None:
        for path in write_plots(png, [mixing.section()]):
            say(f"wrote {path}")


def show(mixing: Mixing) -> None:
    """For a person."""
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
        out.print(text(f"{verdict.name} {verdict.value:.3g} (ideal {verdict.ideal:.3g}), {verdict.word}", _style(verdict.word)))
        out.print(text(f"   {verdict.told}"))
    out.print()
    draw(mixing, out)
    out.print(text(suggestion_text(mixing)))
    out.print()
    columns = ("reads", "a batch", "an epoch")
    out.print(table(columns, locality_rows(mixing), right=columns[1:]))
    out.print(text(locality_text(mixing)))


def _style(word: str) -> str:
    return {"good": "green", "fair": "yellow", "poor": "bold red"}[word]


def draw(mixing: Mixing, out: Console) -> None:
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
    """A heat map with so many letters a line, half as many lines."""
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
