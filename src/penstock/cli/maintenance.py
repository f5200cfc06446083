"""penstock verify, index, rebalance and gc: whether data can be read, the indexes of files, and keeping a store in shape."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.options import (
    AsJson,
    Data,
    Generation,
    Storage,
    StorePath,
    Threads,
    check_storage,
    examples,
    given_options,
    indexes_of,
    open_data,
    storage_options,
)
from penstock.cli.terminal import MOST_LETTERS, Code, clip, console, number, print_json, say, table, text
from penstock.conversion.reading import read_all
from penstock.errors import CorruptError
from penstock.formats.sidecar import publish as publish_sidecar
from penstock.formats.sidecar import recording
from penstock.progress import ProgressMeter, reporting
from penstock.records import Source
from penstock.report.formatting import noun, size
from penstock.store import Stats
from penstock.store import gc as collect
from penstock.store import rebalance as rebalance_store
from penstock.store import verify as verify_store
from penstock.store.generation import generations, load_manifest
from penstock.store.reader import Store
from penstock.store.storage import MANIFEST_DIRECTORY, Location, as_location
from penstock.system import is_directory, writing


@dataclass(frozen=True)
class Fault:
    """Something wrong: where, and what."""

    where: str
    what: str


@dataclass
class Checked:
    """What was looked at, and what was found."""

    records: int
    meter: ProgressMeter
    findings: list[Fault]


@examples(
    "penstock verify train.pen",
    "penstock verify train.pen --all-generations",
    "penstock verify 'part-*.parquet' --json",
    "penstock verify s3://bucket/train.pen --storage region=eu-west-1",
)
def verify(
    data: Data,
    generation: Generation = None,
    all_generations: Annotated[
        bool, typer.Option("--all-generations", help="For a store: every generation that can be opened.")
    ] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Read everything and report errors.

    Every byte of a store is checked. Other data is read once; the first unreadable record of each block is reported.

    Exit code 1 if there are errors.
    """
    if all_generations and generation is not None:
        raise typer.BadParameter("choose one generation or all of them", param_hint="--all-generations")
    check_storage(data, storage)
    began = time.monotonic()
    try:
        checked = _check(data, generation, storage, all_generations=all_generations)
    except CorruptError as error:  # so broken that it cannot even be opened
        checked = Checked(0, ProgressMeter(), [Fault(" ".join(data), str(error))])
    checked.findings = [Fault(one.where, clip(one.what, MOST_LETTERS)) for one in checked.findings]
    _print_checked(checked, time.monotonic() - began, as_json=as_json)
    if checked.findings:
        raise typer.Exit(Code.FOUND)


# Looking


def _check(data: Sequence[str], generation: int | None, storage: Sequence[str] | None, *, all_generations: bool) -> Checked:
    location = None if given_options() else _store_on_disk(data)
    if location is None:
        with open_data(data, generation=generation, storage=storage) as source:
            if not isinstance(source, Store):
                return _check_source(source, all_generations=all_generations)
            location = source.path
    chosen = generations(location) if all_generations else [generation]
    return _check_store(location, chosen or [None])


def _store_on_disk(data: Sequence[str]) -> Location | None:
    """A store is found by its name here, because one with a broken manifest cannot be opened."""
    is_store = len(data) == 1 and is_directory(os.path.join(data[0], MANIFEST_DIRECTORY))
    return as_location(data[0]) if is_store else None


def _check_source(source: Source, *, all_generations: bool) -> Checked:
    if all_generations:
        raise typer.BadParameter(f"only a store has generations, this is a {type(source).__name__}", param_hint="--all-generations")
    meter = ProgressMeter()
    with reporting(meter, "verify", len(source)) as report:
        found = read_all(source, progress=report)
    return Checked(len(source), meter, [Fault(f"record {one.record} (block {one.block})", one.what) for one in found])


def _check_store(location: Location, chosen: Sequence[int | None]) -> Checked:
    checked = Checked(0, ProgressMeter(), [])
    for generation in chosen:
        try:
            manifest = load_manifest(location, generation)
        except CorruptError as error:
            checked.findings.append(Fault(f"generation {generation or 'newest'}", str(error)))
            continue
        checked.records = max(checked.records, manifest.length)
        with reporting(checked.meter, f"generation {manifest.generation}", sum(chunk.rows for chunk in manifest.chunks)) as report:
            problems = verify_store(location, generation=manifest.generation, progress=report)
        checked.findings += [Fault(problem.file, problem.what) for problem in problems]
    checked.findings = list(dict.fromkeys(checked.findings))  # generations share chunks
    return checked


# Telling


def _print_checked(checked: Checked, seconds: float, *, as_json: bool) -> None:
    if as_json:
        told = {"ok": not checked.findings, "problems": checked.findings, "records": checked.records}
        print_json({**told, "bytes": checked.meter.num_bytes, "seconds": seconds})
        return
    out = console()
    for finding in checked.findings:
        out.print(text(finding.where, "bold red"), soft_wrap=True)
        out.print(text(f"  {finding.what}"), soft_wrap=True)
    what = f"{number(checked.records)} {noun(checked.records, 'record')}, {size(checked.meter.num_bytes)} read in {seconds:.1f} s"
    count = len(checked.findings)
    found = f"{number(count)} {noun(count, 'problem')}" if checked.findings else "no problem"
    out.print(text(f"{found} in {what}"))


@examples(
    "penstock index 'train-*.jsonl'",
    "penstock index s3://bucket/train.jsonl --storage region=eu-west-1",
    "penstock index 's3://bucket/train-*.tar' --publish",
    "penstock index train.bin --option dtype=uint16 --separator 50256",
    "penstock index --remove train.jsonl",
)
def index(
    data: Data,
    separator: Annotated[
        list[int] | None,
        typer.Option(help="For token files: the token that ends a document. Repeat it for a separator of several tokens."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the indexes of these files.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Also store the indexes of objects at URLs next to them.")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Build the indexes of files in advance, or remove them.

    An index has the offsets of the records of a JSON lines, CSV, tar or similar file. It is a small file next to the data, or in
    the cache directory. The first program that opens the data builds it; this command builds it in advance. Indexes of objects at
    URLs are in the cache directory of this machine; with --publish all machines find them next to the objects.
    """
    check_storage(data, storage)
    if remove and publish:
        raise typer.BadParameter("indexes are removed from this machine, not from URLs", param_hint="--publish")
    before, began = {path: _version(path) for path in indexes_of(data)}, time.monotonic()
    if remove:
        for path in before:
            with writing(path, "removing"):
                os.unlink(path)
        _print_indexes(
            {"removed": [str(path) for path in before], "bytes": sum(size for size, *_ in before.values())}, as_json=as_json
        )
        return
    with recording() as seen, open_data(data, storage=storage) as source:
        if separator is not None:
            if not hasattr(source, "separated"):
                raise typer.BadParameter(
                    f"token files have separators, this is a {type(source).__name__}", param_hint="--separator"
                )
            source.separated(separator)
        records = len(source)
    after = {path: _version(path) for path in indexes_of(data)}
    built = [str(path) for path, version in after.items() if before.get(path) != version]
    found = {"records": records, "indexes": [str(path) for path in after], "built": built}
    if publish:
        places = (publish_sidecar(subject, one) for subject, one in seen)
        found["published"] = list(dict.fromkeys(str(place) for place in places if place is not None))
    found |= {"bytes": sum(size for size, *_ in after.values()), "seconds": time.monotonic() - began}
    _print_indexes(found, as_json=as_json)


def _version(path: Path) -> tuple[int, ...]:
    info = os.stat(path)
    return info.st_size, info.st_mtime_ns, info.st_ino


def _print_indexes(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = console()
    for path in found["removed"] if "removed" in found else [*found["built"], *found.get("published", ())]:
        out.print(text(path), soft_wrap=True)
    if "removed" in found:
        count = len(found["removed"])
        out.print(text(f"removed {number(count)} {noun(count, 'index', 'indexes')}, {size(found['bytes'])}"))
        return
    count, built = len(found["indexes"]), len(found["built"])
    there = f"{number(count)} {noun(count, 'index', 'indexes')}, {size(found['bytes'])}, {number(built)} of them new"
    records = f"{number(found['records'])} {noun(found['records'], 'record')}"
    shared = f", {number(len(found['published']))} at URLs" if "published" in found else ""
    out.print(text(f"{records}: {there if count else 'no index is needed'}{shared}, in {found['seconds']:.1f} s"))


@examples(
    "penstock rebalance train.pen", "penstock rebalance train.pen --threads 8", "penstock rebalance s3://bucket/train.pen --json"
)
def rebalance(store: StorePath, threads: Threads = 2, storage: Storage = None, as_json: AsJson = False) -> None:
    """Rewrite a store into full chunks.

    The records are put in the order of their ids, as a new generation. Older generations stay until penstock gc
    removes them. If it is interrupted, the store is what it was.
    """
    location = as_location(store, storage_options(storage))
    records, began = load_manifest(location).length, time.monotonic()
    with reporting(True, "rebalance", records) as report:
        done = rebalance_store(location, threads=threads, progress=report)
    seconds = time.monotonic() - began
    if as_json:
        print_json({"before": _stats_as_json(done.before), "after": _stats_as_json(done.after), "seconds": seconds})
        return
    rows = [(name, _stats_rows(done.before)[name], _stats_rows(done.after)[name]) for name in _stats_rows(done.before)]
    console().print(table(("", "before", "after"), rows, right=("before", "after")))
    say("penstock gc frees what only older generations use, once they are old enough")


def _stats_rows(stats: Stats) -> dict[str, str]:
    return {
        "generation": str(stats.generation),
        "records": number(stats.records),
        "chunks": number(stats.chunks),
        "not full": number(stats.unfull_chunks),
        "stored": size(stats.stored_bytes),
        "in use": f"{stats.utilisation:.0%}",
        "moved fields": number(stats.redirects),
    }


def _stats_as_json(stats: Stats) -> dict[str, Any]:
    return {**asdict(stats), "utilisation": stats.utilisation}


@examples(
    "penstock gc train.pen --dry-run",
    "penstock gc train.pen --keep 3",
    "penstock gc train.pen --keep 1 --keep-hours 0",
    "penstock gc s3://bucket/train.pen --keep-hours 24",
)
def gc(
    store: StorePath,
    keep: Annotated[int, typer.Option(min=1, help="Number of generations to keep, the newest ones.")] = 10,
    keep_hours: Annotated[
        float | None,
        typer.Option(min=0, help="Also keep generations and files younger than this. Default: 24 hours on a disk, 168 at a URL."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only list what would be removed.")] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Remove old generations of a store.

    Also removes files that no generation needs, such as those of crashed writers, once they are older
    than --keep-hours: younger ones may belong to a commit or a copy in progress.
    Readers of the kept generations are not affected.
    """
    done = collect(store, keep=keep, keep_hours=keep_hours, dry_run=dry_run, storage_options=storage_options(storage))
    if as_json:
        print_json({"dry_run": dry_run, **asdict(done)})
        return
    out = console()
    for file in done.files:
        out.print(text(file), soft_wrap=True)
    kept = done.kept_generations
    freed = f"{number(len(done.files))} {noun(len(done.files), 'file')}, {size(done.freed_bytes)}"
    stay = f"generation {kept[0]} stays" if len(kept) == 1 else f"generations {kept[0]} to {kept[-1]} stay"
    out.print(text(f"{'would free' if dry_run else 'freed'} {freed}; {stay}"))
