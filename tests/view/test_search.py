"""A search finds what a look at every record finds, and a request does a bounded part of it."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.view.conftest import FIELDS
from tests.view.hostile import CORPUS, hostile_source, hostile_tokenizer
from tests.view.serving import Visitor, routes_of, serving
from tokenizers import Tokenizer, models

import penstock as pen
from penstock.batch import Ragged
from penstock.tokenizer import load_tokenizer
from penstock.view import search as module
from penstock.view.guard import RefusedError
from penstock.view.search import search, searchable

LETTERS = st.text(alphabet="abAB éÉ.µΩω漢", max_size=6)


def found_in(source: pen.Source, field: str, text: str, *, most: int = 3, tokenizer: Any = None) -> list[int]:
    """All ids, request by request."""
    start, found = 0, []
    while start < len(source):
        looked, ids = search(source, field, text, start, most, tokenizer)
        assert looked.next > start
        assert len(ids) <= most
        assert all(start <= number < looked.next for number in ids)
        found += ids.tolist()
        start = looked.next
    return found


@given(st.lists(LETTERS, min_size=1, max_size=30), LETTERS.filter(bool), st.integers(1, 4))
def test_a_search_finds_the_records_that_hold_the_text(texts: list[str], text: str, most: int) -> None:
    expected = [number for number, one in enumerate(texts) if text.lower() in one.lower()]
    assert found_in(pen.open({"text": texts}), "text", text, most=most) == expected
    blobs = Ragged.from_items([one.encode() for one in texts], dtype=np.uint8, kind="bytes")
    assert found_in(pen.open({"blob": blobs}), "blob", text, most=most) == expected


def test_the_place_is_shown_with_what_is_around_it() -> None:
    source = pen.open({"text": ["é" * 500 + "Needle" + "漢" * 500, "needle", "no"]})
    looked, _ = search(source, "text", "nEEDLE", 0, 10)
    (_, before, place, behind), (_, *second) = looked.hits
    assert place == "Needle"
    assert before == "… " + "é" * 40
    assert behind == "漢" * 80 + " …"
    assert second == ["", "needle", ""]


class Counting(type(pen.open({"text": ["a"]}))):  # type: ignore[misc]
    """Counts the bytes that are read."""

    read_bytes = 0

    def _read(self, ids: Any, fields: Any, out: Any) -> Any:
        batch = super()._read(ids, fields, out)
        self.read_bytes += sum(column.values.nbytes for column in batch.values())
        return batch


def test_a_request_reads_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    monkeypatch.setattr(module, "READ_RECORDS", 7)
    source = Counting({"text": ["x" * 100] * 500 + ["found"]})
    start, requests = 0, 0
    while start < len(source):
        before = source.read_bytes
        looked, ids = search(source, "text", "found", start, 5)
        assert source.read_bytes - before <= 2 * 1000  # lengths may be read, then values
        start, requests = looked.next, requests + 1
    assert ids.tolist() == [500]
    assert requests >= 50


def test_a_value_that_is_too_large_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 30)
    monkeypatch.setattr(module, "LARGEST", 50)
    looked, ids = search(pen.open({"text": ["needle", "needle" + "x" * 100, "needle"]}), "text", "needle", 1, 9)
    assert (ids.tolist(), looked.left_out, looked.next) == ([2], 1, 3)


def test_a_damaged_record_is_left_out_and_the_others_are_found(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"text": pen.Field.text()}, chunk_records=4) as out:
        out.extend({"text": [f"needle {number}" for number in range(12)]})
    with pen.open(tmp_path / "a.pen", io="pread") as source:
        chunk = sorted((tmp_path / "a.pen" / "chunk").iterdir())[1]
        chunk.write_bytes(b"\0" * chunk.stat().st_size)
        looked, ids = search(source, "text", "needle", 0, 20)
    assert (ids.tolist(), looked.left_out) == ([0, 1, 2, 3, 8, 9, 10, 11], 4)


def test_missing_texts_are_not_found() -> None:
    source = pen.open(
        {"text": Ragged.from_items(["a", None, "a"], dtype=np.uint8, kind="text"), "n": np.ma.masked_equal([1, 7, 7], 1)}
    )
    assert found_in(source, "text", "a") == [0, 2]
    assert found_in(source, "n", "7") == [1, 2]
    assert found_in(source, "n", "1") == []


def test_numbers_are_found_by_value_and_by_the_name_of_their_class(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"label": pen.Field("u1")}, metadata={"label": ["cat", "dog", "Catfish"]}) as out:
        out.extend({"label": [0, 1, 2, 1, 7]})
    with pen.open(tmp_path / "a.pen") as source:
        assert found_in(source, "label", "cat") == [0, 2]
        assert found_in(source, "label", "1") == [1, 3]
        assert found_in(source, "label", "7") == [4]
        assert found_in(source, "label", "c", most=1) == [0, 2]
        assert found_in(source, "label", "-1") == found_in(source, "label", "999999999999999999999") == []


def test_tokens_are_searched_as_text() -> None:
    tokenizer = load_tokenizer(Tokenizer(models.WordLevel({"zero": 0, "one": 1, "two": 2}, unk_token="zero")))
    source = pen.open(
        {
            "tokens": Ragged.from_items([[0, 1], [2], [], [1, 2]], dtype=np.uint16),
            "fixed": np.array([[0, 1], [1, 1], [2, 2], [2, 0]]),
        }
    )
    assert found_in(source, "tokens", "one", tokenizer=tokenizer) == [0, 3]
    assert found_in(source, "tokens", "ONE TWO", tokenizer=tokenizer) == [3]
    assert found_in(source, "fixed", "two", tokenizer=tokenizer) == [2, 3]
    with pytest.raises(RefusedError, match="tokenizer"):
        search(source, "tokens", "one", 0, 1)


def test_fields_that_can_be_searched() -> None:
    source = pen.open({"x": np.zeros(2), "n": np.arange(2), "t": ["a", "b"], "v": np.zeros((2, 3), np.int64)})
    assert searchable(source, None) == ["t", "n"]
    assert searchable(source, hostile_tokenizer()) == ["t", "v", "n"]


@pytest.mark.parametrize(
    "query",
    [
        "field=2",
        "field=2&text=",
        f"field=2&text={'x' * 101}",
        "field=0&text=a",
        "field=4&text=a",
        "field=2&text=a&start=-1",
        "field=2&text=a&count=1000",
        "field=2&text=a&x=1",
        "field=2&text=%ff",
    ],
)
def test_bad_searches_are_refused(visitor: Visitor, query: str) -> None:
    reply = visitor.get(f"api/search?{query}")
    assert (reply.status, list(reply.json)) == (400, ["error"])


def test_a_field_that_is_not_there_is_not_found(visitor: Visitor) -> None:
    assert visitor.get("api/search?field=99&text=a").status == 404


def test_pages_of_a_search_go_on_where_the_last_one_ended(visitor: Visitor) -> None:
    field = list(FIELDS).index("caption")
    first = visitor.json(f"api/search?field={field}&text=RECORD&count=30")
    assert (len(first["rows"]), first["next"], first["looked"], first["total"]) == (30, 31, 31, 80)
    assert [row["id"] for row in first["rows"][:5]] == [0, 1, 2, 4, 5]
    rest = visitor.json(f"api/search?field={field}&text=record&start=31&count=200")
    assert (len(rest["rows"]), rest["next"]) == (49, None)
    assert rest["rows"][0]["found"] == ["", "record", " 31"]
    assert visitor.json(f"api/search?field={field}&text=record&start=80")["rows"] == []


def test_hostile_texts_are_found_and_sent_as_text() -> None:
    with serving(routes_of(hostile_source(), tokenizer=hostile_tokenizer())) as visitor:
        for text in CORPUS:
            for field in (0, 1, 4):
                reply = visitor.get(f"api/search?field={field}&text={quote(text[:100])}")
                assert reply.status == 200
                assert b"<" not in reply.body
            assert visitor.json(f"api/search?field=0&text={quote(text[:100])}")["rows"]
