"""penstock info, head and show: what is in a data set, and its records as a person wants to see them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from penstock.cli.options import AsJson, Data, Fields, Generation, Storage, examples, extent, indexes_of, open_data
from penstock.cli.record import MOST_BYTES, Record, can_draw, chosen, read_record, save_values, shown, value_as_json
from penstock.cli.terminal import NAME_WIDTH, console, facts, number, print_json, table, text
from penstock.records import Blocks, Source
from penstock.report.formatting import noun, size
from penstock.schema import Field
from penstock.store.generation import generations, load_manifest, storage_of
from penstock.store.maintenance import stats
from penstock.store.reader import Store
from penstock.store.storage import MANIFEST_DIRECTORY, generation_of

MOST_REMOTE_CHUNKS = 500  # of stores at URLs with more chunks than this, the chunks are not looked at: each is a request
MOST_METADATA = 500  # characters that are shown of a value

Save = Annotated[
    Path | None, typer.Option("--save", metavar="DIR", help="Write images and other large values to files in this directory.")
]


@examples(
    "penstock info train.pen",
    "penstock info train.pen --generations",
    "penstock info labels.npy --digest",
    "penstock info 'tokens_*.rox' --json",
    "penstock info train.bin --option dtype=uint16",
    "penstock info image=images.npy label=labels.npy",
    "penstock info s3://bucket/train.pen --storage region=eu-west-1",
)
def info(
    data: Data,
    generation: Generation = None,
    list_generations: Annotated[
        bool, typer.Option("--generations", help="For a store: list the generations that can be opened.")
    ] = False,
    with_digest: Annotated[bool, typer.Option("--digest", help="Read all records, and show their sha256.")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show the fields, records and size of data.

    Also blocks; for a store, its generations and utilisation. Reads no record, except with --digest.
    """
    with open_data(data, generation=generation, storage=storage) as source:
        found = _describe(source)
        on_disk = extent(data, source)
        if on_disk is not None:
            found["files"] = {"count": on_disk.files, "bytes": on_disk.bytes}
        if indexes := indexes_of(data):
            found["index"] = {"count": len(indexes), "bytes": sum(path.stat().st_size for path in indexes)}
        if list_generations:
            found["generations"] = _generations(source)
        if with_digest:
            found["digest"] = source.digest(progress=True)
    if as_json:
        print_json(found)
    else:
        _print_info(found)


# What is known


def _describe(source: Source) -> dict[str, Any]:
    """Everything about a source that is known without reading its records."""
    found: dict[str, Any] = {
        "kind": type(source).__name__,
        "records": len(source),
        "fields": {name: _field(field) for name, field in source.schema.items()},
        "blocks": _blocks(source.blocks) | {"read_whole": source.reads_blocks},
        "fingerprint": source.fingerprint,
        "metadata": dict(source.metadata),
    }
    if all(field.is_fixed for field in source.schema.values()):
        found["record_bytes"] = sum(field.stride for field in source.schema.values())
        found["bytes"] = found["record_bytes"] * len(source)
    if isinstance(source, Store):
        found["store"] = _store(source)
    return found


def _field(field: Field) -> dict[str, Any]:
    return {
        "kind": field.kind,
        "dtype": str(field.dtype) if field.kind in ("fixed", "ragged") else None,
        "shape": list(field.shape) if field.is_fixed else None,
        "codec": repr(field.codec),
        "nullable": field.nullable,
    }


def _blocks(blocks: Blocks) -> dict[str, Any]:
    largest = min(blocks.size, blocks.length)
    smallest = largest if blocks.ends is None else int(np.diff(blocks.ends, prepend=0).min())
    return {"count": len(blocks), "records": largest, "least_records": smallest}


def _store(store: Store) -> dict[str, Any]:
    found = {"generation": store.generation, "generations": generations(store.path)}
    if store.remote is not None and len(store.remote.files) > MOST_REMOTE_CHUNKS:
        return {**found, "chunks": len(store.remote.files)}
    figures = stats(store)
    return {**found, **asdict(figures), "utilisation": figures.utilisation}


def _generations(source: Source) -> list[dict[str, Any]]:
    if not isinstance(source, Store):
        raise typer.BadParameter(f"only a store has generations, this is a {type(source).__name__}", param_hint="--generations")
    listed = []
    for file in storage_of(source.path).listing(MANIFEST_DIRECTORY):
        generation = generation_of(file.name.rpartition("/")[2])
        if generation is not None:
            manifest = load_manifest(source.path, generation)
            written = datetime.fromtimestamp(file.modified, UTC).isoformat(timespec="seconds")
            chunks = {"chunks": len(manifest.chunks), "bytes": sum(chunk.size for chunk in manifest.chunks)}
            listed.append({"generation": generation, "written": written, "records": manifest.length, **chunks})
    return listed


# For a person


def _print_info(found: dict[str, Any]) -> None:
    out = console()
    out.print(facts("data", _data_rows(found)))
    out.print()
    out.print(_fields(found["fields"], found.get("store", {}).get("field_bytes")))
    if "store" in found:
        out.print()
        out.print(facts("store", _store_rows(found["store"])))
    if "generations" in found:
        out.print()
        out.print(facts("generations", {str(one["generation"]): _generation(one) for one in found["generations"]}))


def _generation(one: dict[str, Any]) -> str:
    written = one["written"].replace("T", " ").replace("+00:00", " UTC")
    return f"{written}, {number(one['records'])} {noun(one['records'], 'record')}, {size(one['bytes'])}"


def _data_rows(found: dict[str, Any]) -> dict[str, object]:
    rows: dict[str, object] = {"kind": found["kind"], "records": number(found["records"])}
    if "bytes" in found:
        rows["size"] = f"{size(found['bytes'])}, {size(found['record_bytes'])} a record"
    if "files" in found:
        rows["files"] = f"{number(found['files']['count'])}, {size(found['files']['bytes'])}"
    if "index" in found:
        count = found["index"]["count"]
        rows["index"] = f"{number(count)} {noun(count, 'file')}, {size(found['index']['bytes'])}"
    blocks = found["blocks"]
    least = "" if blocks["least_records"] == blocks["records"] else f"{number(blocks['least_records'])} to "
    how = ", read as a whole" if blocks["read_whole"] else ""
    rows["blocks"] = f"{number(blocks['count'])} of {least}{number(blocks['records'])} {noun(blocks['records'], 'record')}{how}"
    rows["fingerprint"] = found["fingerprint"]
    if "digest" in found:
        rows["digest"] = found["digest"]
    for key, value in found["metadata"].items():
        words = json.dumps(value)  # ASCII only: control characters in the data do no harm
        rows[f"metadata {ascii(key)[1:-1][:40]}"] = words if len(words) <= MOST_METADATA else f"{words[:MOST_METADATA]}..."
    return rows


def _fields(fields: Mapping[str, Any], stored: Mapping[str, int] | None) -> Table:
    cells = [
        (name, _type(field), field["codec"], *([] if stored is None else [size(stored[name])])) for name, field in fields.items()
    ]
    return table(("field", "type", "codec", *([] if stored is None else ["stored"])), cells, right=("stored",))


def _type(field: dict[str, Any]) -> str:
    words = {"fixed": [field["dtype"], " x ".join(map(str, field["shape"] or []))], "ragged": [field["dtype"], "ragged"]}
    return " ".join(
        [*(word for word in words.get(field["kind"], [field["kind"]]) if word), *(["nullable"] if field["nullable"] else [])]
    )


def _store_rows(store: dict[str, Any]) -> dict[str, object]:
    kept = store["generations"]
    rows: dict[str, object] = {
        "generation": f"{store['generation']} (kept: {len(kept)}, {kept[0]} to {kept[-1]})",
        "chunks": number(store["chunks"]),
    }
    if "utilisation" in store:
        rows["chunks"] = f"{number(store['chunks'])}, {number(store['unfull_chunks'])} of them not full"
        advice = "; penstock rebalance frees the rest" if store["utilisation"] < 0.7 else ""
        rows["in use"] = f"{size(store['live_bytes'])} of {size(store['stored_bytes'])}, {store['utilisation']:.0%}{advice}"
        rows["moved fields"] = number(store["redirects"])
    return rows


# Records


@examples(
    "penstock head train.pen",
    "penstock head images.npy -n 2 --save images",
    "penstock head 'tokens_*.rox' -n 1 --json",
    "penstock head image=images.npy label=labels.npy --fields label",
)
def head(
    data: Data,
    num_records: Annotated[int, typer.Option("-n", "--records", min=1, help="Number of records.")] = 5,
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
        _print_records(source, range(min(num_records, len(source))), fields, directory, as_json=as_json, preview=24)


@examples(
    "penstock show train.pen 7",
    "penstock show train.pen 7 12 99 --fields caption",
    "penstock show train.pen -- -1",
    "penstock show image=images.npy label=labels.npy 7 --save images",
)
def show(
    words: Annotated[
        list[str], typer.Argument(metavar="DATA ID", help="Data as for info, then the ids of records (after -- if negative).")
    ],
    fields: Fields = None,
    directory: Save = None,
    generation: Generation = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Show records by id.

    Images are drawn in a terminal with colors.
    """
    data, ids = _split_ids(words)
    with open_data(data, generation=generation, storage=storage, record_bytes=MOST_BYTES) as source:
        _print_records(source, ids, fields, directory, as_json=as_json, preview=40)


def _split_ids(words: Sequence[str]) -> tuple[list[str], list[int]]:
    last = len(words)
    while last and words[last - 1].removeprefix("-").isdecimal():
        last -= 1
    if last in (0, len(words)):
        raise typer.BadParameter("expected data and then at least one id, such as train.pen 7", param_hint="DATA ID")
    return list(words[:last]), [int(word) for word in words[last:]]


def _print_records(
    source: Source, ids: Iterable[int], fields: str | None, directory: Path | None, *, as_json: bool, preview: int
) -> None:
    names = chosen(source, fields)
    found = (read_record(source, number, names) for number in ids)
    records = ((record, {} if directory is None else save_values(record, directory)) for record in found)
    if as_json:
        print_json([_record_as_json(record, files) for record, files in records])
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


def _record_as_json(record: Record, files: dict[str, str]) -> dict[str, object]:
    made = {"id": record.id, "fields": {name: value_as_json(value) for name, value in record.values.items()}}
    return {**made, "saved": files} if files else made
