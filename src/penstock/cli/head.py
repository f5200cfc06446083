"""penstock head and penstock show: records as a person wants to see them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson, Data, Fields, Generation, Storage, open_data
from penstock.cli.output import NAME_WIDTH, console, facts, print_json, text
from penstock.cli.record import MOST_BYTES, Record, chosen, read_record
from penstock.cli.save import save_values
from penstock.cli.value import as_json as value_as_json
from penstock.cli.value import can_draw, shown
from penstock.records import Source

__all__ = ["HEAD_EXAMPLES", "SHOW_EXAMPLES", "head", "show"]

HEAD_EXAMPLES = (
    "penstock head train.pen",
    "penstock head images.npy -n 2 --save pictures",
    "penstock head 'tokens_*.rox' -n 1 --json",
    "penstock head image=images.npy label=labels.npy --fields label",
)
SHOW_EXAMPLES = (
    "penstock show train.pen 7",
    "penstock show train.pen 7 12 99 --fields caption",
    "penstock show train.pen -- -1",
    "penstock show image=images.npy label=labels.npy 7 --save pictures",
)

Words = Annotated[
    list[str],
    typer.Argument(metavar="DATA ID", help="Data as for info, then the ids of records (after -- if negative).", show_default=False),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save", metavar="DIR", help="Write images and other large values to files of this directory.", show_default=False
    ),
]
Count = Annotated[int, typer.Option("-n", "--records", min=1, help="How many records.")]


def head(
    data: Data,
    num_records: Count = 5,
    fields: Fields = None,
    directory: Save = None,
    generation: Generation = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show the first records.

    Images are drawn in a terminal with colors.
    """
    with open_data(data, generation=generation, storage=storage, record_bytes=MOST_BYTES) as source:
        _print(source, range(min(num_records, len(source))), fields, directory, as_json=as_json, preview=24)


def show(
    words: Words,
    fields: Fields = None,
    directory: Save = None,
    generation: Generation = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show records by id.

    Images are drawn in a terminal with colors.
    """
    data, ids = _split(words)
    with open_data(data, generation=generation, storage=storage, record_bytes=MOST_BYTES) as source:
        _print(source, ids, fields, directory, as_json=as_json, preview=40)


def _split(words: Sequence[str]) -> tuple[list[str], list[int]]:
    """Data, and the numbers behind it."""
    last = len(words)
    while last and words[last - 1].removeprefix("-").isdecimal():
        last -= 1
    if last in (0, len(words)):
        raise typer.BadParameter("expected data and then at least one id, such as train.pen 7", param_hint="DATA ID")
    return list(words[:last]), [int(word) for word in words[last:]]


def _print(source: Source, ids: Iterable[int], fields: str | None, directory: Path | None, *, as_json: bool, preview: int) -> None:
    names = chosen(source, fields)
    records = _saved((read_record(source, number, names) for number in ids), directory)
    if as_json:
        print_json([_as_json(record, files) for record, files in records])
        return
    out = console()
    room = out.width - min(NAME_WIDTH, max(map(len, names))) - 2
    pixels = max(0, min(preview, room)) if can_draw(out) else 0
    for place, (record, files) in enumerate(records):
        if place:
            out.print()
        out.print(facts(f"record {record.id}", {name: shown(value, preview=pixels) for name, value in record.values.items()}))
        for file in files.values():
            out.print(text(f"saved {file}", "green"), soft_wrap=True)


def _saved(records: Iterable[Record], directory: Path | None) -> Iterator[tuple[Record, dict[str, str]]]:
    """Records and the files that were written of each."""
    return ((record, {} if directory is None else save_values(record, directory)) for record in records)


def _as_json(record: Record, files: dict[str, str]) -> dict[str, object]:
    made = {"id": record.id, "fields": {name: value_as_json(value) for name, value in record.values.items()}}
    return {**made, "saved": files} if files else made
