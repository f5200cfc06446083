"""penstock verify: whether all data can be read, and is what was written."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from penstock.cli.failure import Code
from penstock.cli.options import AsJson, Data, Generation, Storage, check_storage, open_data
from penstock.cli.output import MOST_LETTERS, console, number, print_json, text
from penstock.cli.safe import clip
from penstock.errors import CorruptError
from penstock.progress import Meter, reporting
from penstock.records import Source
from penstock.report.words import noun, size
from penstock.source.reading import read_all
from penstock.store import verify as verify_store
from penstock.store.format import MANIFEST_DIRECTORY, Location, as_location
from penstock.store.generation import generations, load_manifest
from penstock.store.reader import Store
from penstock.system import is_directory

__all__ = ["EXAMPLES", "verify"]

EXAMPLES = (
    "penstock verify train.pen",
    "penstock verify train.pen --all-generations",
    "penstock verify 'part-*.parquet' --json",
    "penstock verify s3://bucket/train.pen --storage region=eu-west-1",
)

AllGenerations = Annotated[bool, typer.Option("--all-generations", help="Of a store: every generation that can be opened.")]


@dataclass(frozen=True)
class Finding:
    """Something wrong: where, and what."""

    where: str
    what: str


@dataclass
class Checked:
    """What was looked at, and what was found."""

    records: int
    meter: Meter
    findings: list[Finding]


def verify(
    data: Data,
    generation: Generation = None,
    all_generations: AllGenerations = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Read everything and report what is wrong.

    Of a store every byte is checked; other data is read once, and of each block the first record that cannot be read is named.
    Exit code 1 if something is wrong.
    """
    if all_generations and generation is not None:
        raise typer.BadParameter("choose one generation or all of them", param_hint="--all-generations")
    check_storage(data, storage)
    began = time.monotonic()
    try:
        checked = _check(data, generation, storage, all_generations=all_generations)
    except CorruptError as error:  # so broken that it cannot even be opened
        checked = Checked(0, Meter(), [Finding(" ".join(data), str(error))])
    checked.findings = [Finding(one.where, clip(one.what, MOST_LETTERS)) for one in checked.findings]
    _print(checked, time.monotonic() - began, as_json=as_json)
    if checked.findings:
        raise typer.Exit(Code.FOUND)


# Looking


def _check(data: Sequence[str], generation: int | None, storage: Sequence[str] | None, *, all_generations: bool) -> Checked:
    location = _store_on_disk(data)
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
    meter = Meter()
    with reporting(meter, "verify", len(source)) as report:
        found = read_all(source, progress=report)
    return Checked(len(source), meter, [Finding(f"record {one.record} (block {one.block})", one.what) for one in found])


def _check_store(location: Location, chosen: Sequence[int | None]) -> Checked:
    checked = Checked(0, Meter(), [])
    for generation in chosen:
        try:
            manifest = load_manifest(location, generation)
        except CorruptError as error:
            checked.findings.append(Finding(f"generation {generation or 'newest'}", str(error)))
            continue
        checked.records = max(checked.records, manifest.length)
        with reporting(checked.meter, f"generation {manifest.generation}", sum(chunk.rows for chunk in manifest.chunks)) as report:
            problems = verify_store(location, generation=manifest.generation, progress=report)
        checked.findings += [Finding(problem.file, problem.what) for problem in problems]
    checked.findings = list(dict.fromkeys(checked.findings))  # generations share chunks
    return checked


# Telling


def _print(checked: Checked, seconds: float, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(checked, seconds))
        return
    out = console()
    for finding in checked.findings:
        out.print(text(finding.where, "bold red"), soft_wrap=True)
        out.print(text(f"  {finding.what}"), soft_wrap=True)
    what = f"{number(checked.records)} {noun(checked.records, 'record')}, {size(checked.meter.num_bytes)} read in {seconds:.1f} s"
    count = len(checked.findings)
    found = f"{number(count)} {noun(count, 'problem')}" if checked.findings else "no problem"
    out.print(text(f"{found} in {what}"))


def _as_json(checked: Checked, seconds: float) -> dict[str, Any]:
    return {
        "ok": not checked.findings,
        "problems": checked.findings,
        "records": checked.records,
        "bytes": checked.meter.num_bytes,
        "seconds": seconds,
    }
