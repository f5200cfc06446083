"""Redirect tables: bytes and back, and the later one wins."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptError
from penstock.store.redirect import ENTRY, NOWHERE, Table, decode_redirects, encode_redirects, merge

DATASET = "0123456789abcdef" * 2
PLACES = st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 5) | st.just(NOWHERE), st.integers(0, 9)), max_size=10)


def table(places: dict[int, tuple[int, int]]) -> Table:
    return np.array([(i, *places[i]) for i in sorted(places)], ENTRY)


def as_dict(entries: Table) -> dict[int, tuple[int, int]]:
    return {int(i): (int(chunk), int(row)) for i, chunk, row in entries}


@given(st.dictionaries(st.integers(0, 4095), PLACES, max_size=4))
def test_tables_come_back(tables: dict[int, dict[int, tuple[int, int]]]) -> None:
    data = encode_redirects(DATASET, {number: table(places) for number, places in tables.items()})
    assert len(data) == 32 + 16 * len(tables) + 16 * sum(map(len, tables.values()))
    found = decode_redirects(data, DATASET, "here")
    assert {number: as_dict(entries) for number, entries in found.items()} == tables


@given(PLACES, PLACES)
def test_newer_entries_win_and_ids_rise(older: dict[int, tuple[int, int]], newer: dict[int, tuple[int, int]]) -> None:
    both = merge(table(older), table(newer), drop_nowhere=False)
    assert as_dict(both) == older | newer
    assert both["id"].tolist() == sorted(older | newer)
    kept = {i: place for i, place in (older | newer).items() if place[0] != NOWHERE}
    assert as_dict(merge(table(older), table(newer), drop_nowhere=True)) == kept


GOOD = encode_redirects(DATASET, {0: table({1: (2, 3), 5: (0, 0)}), 7: table({2: (NOWHERE, 0)})})


def test_layout_is_the_documented_one() -> None:
    head = b"PENREDIR" + struct.pack("<II", 1, 2) + bytes.fromhex(DATASET) + struct.pack("<IIQIIQ", 0, 0, 2, 7, 0, 1)
    assert head + struct.pack("<QIIQIIQII", 1, 2, 3, 5, 0, 0, 2, NOWHERE, 0) == GOOD


def replaced(offset: int, data: bytes) -> bytes:
    return GOOD[:offset] + data + GOOD[offset + len(data) :]


BAD: dict[str, Any] = {
    "nothing": b"",
    "short header": GOOD[:31],
    "short fields": GOOD[:40],
    "short table": GOOD[:-1],
    "long": GOOD + b"\0",
    "magic": replaced(0, b"X"),
    "version": replaced(8, b"\2"),
    "many fields": replaced(12, b"\xff\xff\xff\xff"),
    "other data set": replaced(16, b"\xff"),
    "field twice": replaced(48, b"\0"),
    "padding": replaced(36, b"\1"),
    "entries beyond the file": replaced(40, struct.pack("<Q", 2**60)),
    "ids equal": replaced(80, struct.pack("<Q", 1)),
    "ids fall": replaced(80, struct.pack("<Q", 0)),
}


@pytest.mark.parametrize("name", BAD)
def test_other_bytes_are_refused_by_name(name: str) -> None:
    assert set(decode_redirects(GOOD, DATASET, "here")) == {0, 7}
    with pytest.raises(CorruptError, match=r"^here: not a redirect table"):
        decode_redirects(BAD[name], DATASET, "here")
