"""penstock info: what is in a data set."""

from dataclasses import asdict
from typing import Any

from penstock.cli.options import AsJson, Data, Generation, Storage, open_data
from penstock.cli.output import console, facts, number, print_json, size, table
from penstock.records import Source
from penstock.schema import Field
from penstock.store.generation import generations
from penstock.store.maintenance import stats
from penstock.store.snapshot import Store

__all__ = ["EXAMPLES", "info"]

EXAMPLES = (
    "penstock info train.pen",
    "penstock info 'tokens_*.rox' --json",
    "penstock info image=images.npy label=labels.npy",
    "penstock info s3://bucket/train.pen --storage region=eu-west-1",
)


def info(data: Data, generation: Generation = None, storage: Storage = None, as_json: AsJson = False) -> None:
    """Show what is there: fields, records, bytes, blocks; of a store also its generations and how full it is."""
    with open_data(data, generation=generation, storage=storage) as source:
        found = describe(source)
    if as_json:
        print_json(found)
    else:
        show(found)


def describe(source: Source) -> dict[str, Any]:
    """Everything about a source that is known without reading its records."""
    found: dict[str, Any] = {
        "kind": type(source).__name__,
        "records": len(source),
        "fields": {name: _field(field) for name, field in source.schema.items()},
        "blocks": {"count": len(source.blocks), "records": source.blocks.size, "read_whole": source.reads_blocks},
        "fingerprint": source.fingerprint,
    }
    if all(field.is_fixed for field in source.schema.values()):
        found["record_bytes"] = sum(field.stride for field in source.schema.values())
        found["bytes"] = found["record_bytes"] * len(source)
    if isinstance(source, Store):
        figures = stats(source)
        found["store"] = {**asdict(figures), "utilisation": figures.utilisation, "generations": generations(source.path)}
    return found


def _field(field: Field) -> dict[str, Any]:
    return {
        "kind": field.kind,
        "dtype": None if field.dtype is None else str(field.dtype),
        "shape": list(field.shape) if field.is_fixed else None,
        "codec": repr(field.codec),
    }


def show(found: dict[str, Any]) -> None:
    """For a person."""
    out = console()
    rows: dict[str, object] = {"kind": found["kind"], "records": number(found["records"])}
    if "bytes" in found:
        rows["size"] = f"{size(found['bytes'])}, {size(found['record_bytes'])} a record"
    blocks = found["blocks"]
    how = ", read as a whole" if blocks["read_whole"] else ""
    rows["blocks"] = f"{number(blocks['count'])} of up to {number(blocks['records'])} records{how}"
    rows["fingerprint"] = found["fingerprint"]
    out.print(facts("data", rows))
    out.print()
    cells = [(name, f["kind"], f["dtype"] or "", _shape(f["shape"]), f["codec"]) for name, f in found["fields"].items()]
    out.print(table(("field", "kind", "type", "shape", "codec"), cells))
    if "store" in found:
        out.print()
        out.print(facts("store", _store_rows(found["store"])))


def _shape(shape: list[int] | None) -> str:
    return "varies" if shape is None else " x ".join(map(str, shape)) or "scalar"


def _store_rows(store: dict[str, Any]) -> dict[str, object]:
    kept = store["generations"]
    return {
        "generation": f"{store['generation']} (kept: {len(kept)}, {kept[0]} to {kept[-1]})",
        "chunks": f"{number(store['chunks'])}, {number(store['unfull_chunks'])} of them not full",
        "on disk": size(store["stored_bytes"]),
        "in use": f"{size(store['live_bytes'])}, {store['utilisation']:.0%}"
        + ("; penstock rebalance frees the rest" if store["utilisation"] < 0.7 else ""),
        "moved fields": number(store["redirects"]),
    }
