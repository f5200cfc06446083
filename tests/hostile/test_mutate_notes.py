"""Damaged notes of conversions, receipts of fragments and signs of formats: noticed, and nothing wrong comes of them."""

from pathlib import Path

import pytest
from tests.effort import count
from tests.hostile import mutate_notes
from tests.hostile.mutate_notes import CHUNK, begin, data, is_right

import penstock as pen
from penstock.conversion import convert, reading
from penstock.conversion.tasks import records_noted


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches of conversions are as they were when a test is over."""
    monkeypatch.setattr(convert, "BATCH_BYTES", 200)
    monkeypatch.setattr(reading, "FIRST_RECORDS", 12)


def test_mutants_lead_to_the_right_store_or_to_a_typed_error() -> None:
    outcomes, wrong = mutate_notes.campaign(count(60, 10_000), seed=1)
    assert wrong == []
    assert sum(outcomes.values()) == count(60, 10_000)
    assert outcomes["notes finished"] > 0


def note_of(path: Path) -> tuple[Path, list[bytes]]:
    note = path.with_name(f"{path.name}.partial.json")
    return note, [line for line in note.read_bytes().split(b"\n") if line]


@pytest.mark.parametrize("name", ["tasks", "rows"])
def test_a_receipt_that_does_not_fit_the_plan_is_left_out(tmp_path: Path, name: str) -> None:
    begin(tmp_path / "d.pen", 4, map=dict)
    note, lines = note_of(tmp_path / "d.pen")
    damaged = lines[1].rpartition(b" ")[0].decode().replace(f'"{name}": ', f'"{name}": 1')
    note.write_bytes(b"\n".join([lines[0], mutate_notes.sealed(damaged), *lines[2:], b""]))
    pen.convert(data(), tmp_path / "d.pen", chunk_records=CHUNK, map=dict)
    assert is_right(tmp_path / "d.pen")


def test_a_task_with_two_receipts_that_differ_is_done_again(tmp_path: Path) -> None:
    begin(tmp_path / "d.pen", 4, map=dict)
    note, lines = note_of(tmp_path / "d.pen")
    text = lines[2].rpartition(b" ")[0].decode()
    again = text.replace('"task": 1', '"task": 0') if '"task": 1,' in text else text.replace('"task": 0', '"task": 1')
    note.write_bytes(b"\n".join([*lines, mutate_notes.sealed(again), b""]))
    pen.convert(data(), tmp_path / "d.pen", chunk_records=CHUNK, map=dict)
    assert is_right(tmp_path / "d.pen")


def test_lines_of_a_note_with_values_of_other_types_are_not_counted(tmp_path: Path) -> None:
    begin(tmp_path / "d.pen", 4)
    note, lines = note_of(tmp_path / "d.pen")
    noted = records_noted(note)
    odd = [
        mutate_notes.sealed(f'{{"task": {task}, "rows": {rows}}}') for task, rows in (("[]", 1), ("{}", 1), (9, '"x"'), (9, "null"))
    ]
    note.write_bytes(b"\n".join([*lines, *odd, b""]))
    assert records_noted(note) == noted > 0
    pen.convert(data(), tmp_path / "d.pen", chunk_records=CHUNK)
    assert is_right(tmp_path / "d.pen")
