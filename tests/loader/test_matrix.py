"""Every kind of source in every combination is read natively and prefetched, and its figures are true, but for the holes below.

An entry of a table that is no longer needed fails too.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.effort import is_campaign
from tests.loader.matrix import ASKED, KINDS, NOT_ASKED, AtUrl, Cell, cells
from tools.docs.engines import columns, page

Holes = Mapping[tuple[str, str], str]
"""Kinds of sources and combinations, "*" for all of them, and why."""

COMPRESSED = "compressed by another library, which has to decode it"
NO_PLACES = "the source does not say where its records are in the files"

NOT_NATIVE: Holes = {
    ("*", "map"): "a function runs",
    ("HDF5, compressed", "*"): COMPRESSED,
    ("Arrow, compressed", "*"): COMPRESSED,
    ("Parquet", "*"): COMPRESSED,
    ("ArrayRecord", "*"): COMPRESSED,
    ("JSON lines", "*"): "parsed by another library",
    ("Arrow, nested", "*"): "values are nested",
}

NOT_PREFETCHED: Holes = {
    ("HDF5, compressed", "*"): NO_PLACES,
    ("Arrow, nested", "*"): NO_PLACES,
    ("Arrow, compressed", "*"): NO_PLACES,
    ("Parquet", "*"): NO_PLACES,
    ("ArrayRecord", "*"): NO_PLACES,
    ("folder of files", "*"): "a record is a file, which would have to be opened ahead of time",
}

NOT_NATIVE_AT_URLS: Holes = {
    ("*", "map"): "a function runs",
    ("Parquet", "*"): COMPRESSED,
    ("JSON lines", "*"): "parsed by another library",
}

REFUSED_IN_SMALL_WINDOWS: Holes = {
    ("store", "sequences"): "the blocks of many steps are planned together: where one of documents ends is not known before",
    ("JSON lines", "sequences"): "the same",
    ("TFRecord", "sequences"): "the same",
    ("Parquet", "sequences"): "documents of a sequence may be in many row groups",
    **{
        ("WebDataset", use): "records of 128 bytes take a kilobyte in an archive: more than two blocks do not fit"
        for use in ("select a range", "mix", "mix in mix")
    },
}

FORECAST_TOO_LOW: Holes = {}

NOT_AT_URLS: Holes = {
    (kind, "*"): "copied to this machine, if a cache is given, or to be converted"
    for kind in KINDS
    if kind.startswith(("HDF5", "Arrow", "ArrayRecord"))
} | {(name, "*"): "not asked" for name, kind in KINDS.items() if kind.suffix in NOT_ASKED}


def at_urls(cell: Cell) -> list[AtUrl]:
    return [one for one in (cell.fits, cell.larger) if isinstance(one, AtUrl)]


CHECKS: dict[str, tuple[Holes, Callable[[Cell], bool]]] = {
    "native on a disk": (NOT_NATIVE, lambda cell: cell.disk is not None and cell.disk.engine == "native"),
    "prefetched from a disk": (NOT_PREFETCHED, lambda cell: cell.disk is not None and cell.disk.is_prefetched),
    "can be read at URLs": (NOT_AT_URLS, lambda cell: cell.fits is not None),
    "native at URLs": (NOT_NATIVE_AT_URLS, lambda cell: all(one.engine == "native" for one in at_urls(cell))),
    "kept if it fits": ({}, lambda cell: cell.fits is None or (isinstance(cell.fits, AtUrl) and cell.fits.plan == "kept")),
    "blocks in a small window": (
        REFUSED_IN_SMALL_WINDOWS,
        lambda cell: cell.larger is None or (isinstance(cell.larger, AtUrl) and cell.larger.plan == "blocks"),
    ),
    "forecast": (FORECAST_TOO_LOW, lambda cell: all(one.forecast != "too low" for one in at_urls(cell))),
    "requests and bytes counted": ({}, lambda cell: all(one.counts for one in at_urls(cell))),
}


@pytest.fixture(scope="module", autouse=True)
def cells_are_asked() -> None:
    """Once, outside of the fence around each test: threads that make requests for the main thread stay for the next one."""
    cells(ASKED)


def covers(entry: tuple[str, str], cell: tuple[str, str]) -> bool:
    return all(mine in ("*", own) for mine, own in zip(entry, cell, strict=True))


@pytest.mark.parametrize("check", CHECKS)
def test_there_are_no_holes_but_those_with_a_reason(check: str) -> None:
    holes, is_good = CHECKS[check]
    there = {place: cell for place, cell in cells(ASKED).items() if cell.disk is not None}
    if "at URLs" in check and holes is not NOT_AT_URLS:
        there = {place: cell for place, cell in there.items() if cell.fits is not None}
    allowed = {place for place in there if any(covers(entry, place) for entry in holes)}
    found = {place for place, cell in there.items() if not is_good(cell)}
    assert found - allowed == set(), "a hole"
    assert allowed - found == set(), "a hole that is none any more: take it out of the table"
    assert all(any(covers(entry, place) for place in there) for entry in holes if is_campaign() or entry[1] in ("*", *ASKED))


def test_only_records_without_documents_have_no_sequences() -> None:
    without = {place for place, cell in cells(ASKED).items() if cell.disk is None}
    assert {use for _, use in without} - {"images"} == {"sequences"}
    assert {kind for kind, use in without if use != "images"}.isdisjoint({"store", "`.rox`", "Arrow, texts", "Parquet"})
    assert len(cells(ASKED)) == len(KINDS) * len(ASKED)


def test_the_page_of_the_reference_is_what_the_library_says() -> None:
    """``python -m tools.docs.engines`` writes it."""
    written = (Path(__file__).parents[2] / "docs" / "reference" / "engines.md").read_text()
    disk, heading, urls = written.partition("## At URLs")
    not_asked = tuple(f"| {name} |" for name, kind in KINDS.items() if kind.suffix in NOT_ASKED)
    urls = "".join(line for line in urls.splitlines(keepends=True) if not line.startswith(not_asked))
    assert columns(disk + heading + urls, ASKED) == page(ASKED)
