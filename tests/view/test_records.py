"""What the page shows is what the data holds."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.view.conftest import FIELDS
from tests.view.serving import Visitor, routes_of, serving
from tokenizers import Tokenizer, models

import penstock as pen
from penstock.source import write_tokens
from penstock.tokenizer import TextTokenizer, load_tokenizer
from penstock.view.records import LONG, SHORT, cell_of, rows

NUMBER = {name: place for place, name in enumerate(FIELDS)}


def pixels(body: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(body)))


def test_about_says_what_is_there(visitor: Visitor, store_path: Path) -> None:
    about = visitor.json("api/about")
    assert about["names"] == ["train.pen"]
    data = about["data"]
    assert (data["records"], data["generation"], data["generations"], data["labels"]) == (80, 3, [1, 2, 3], ["label"])
    fields = {field["name"]: field for field in data["fields"]}
    assert fields["image"] == {
        "name": "image", "kind": "fixed", "dtype": "uint8", "shape": [16, 12, 3], "bytes": 576, "codec": "Raw()", "picture": True,
    }  # fmt: skip
    assert (fields["caption"]["codec"], fields["caption"]["bytes"], fields["caption"]["dtype"]) == ("Zstd(3)", None, None)


def test_records_come_page_by_page(visitor: Visitor) -> None:
    found = visitor.json("api/records?start=70&count=48")
    assert [row["id"] for row in found["rows"]] == list(range(70, 80))
    assert found["total"] == 80
    assert visitor.json("api/records?start=80")["rows"] == []
    first = visitor.json("api/records?count=2")["rows"][0]["cells"]
    assert first[NUMBER["caption"]] == {"kind": "text", "text": "record 0", "length": 8}
    assert first[NUMBER["label"]] == {"kind": "number", "value": 0}
    assert first[NUMBER["pair"]]["values"] == [0.0, "nan"]
    assert first[NUMBER["file"]]["what"] == "PNG"
    assert first[NUMBER["wave"]]["kind"] == "plot"


def test_a_record_shows_more_than_a_page_does(visitor: Visitor, store_path: Path) -> None:
    short, long = visitor.json("api/records?count=1")["rows"][0]["cells"], visitor.json("api/record/0")["cells"]
    wave = pen.open(store_path)["wave"][0]
    assert len(short[NUMBER["wave"]]["points"]) < len(long[NUMBER["wave"]]["points"]) == 400
    assert np.allclose(long[NUMBER["wave"]]["points"], wave)
    assert short[NUMBER["wave"]]["low"] == long[NUMBER["wave"]]["low"] == float(wave.min())


def test_generations_are_chosen_by_number(visitor: Visitor) -> None:
    captions = [visitor.json(f"api/record/3?generation={number}")["cells"][NUMBER["caption"]]["text"] for number in (1, 2, 3, 1)]
    assert captions == ["record 3", "a newer caption", "a newer caption", "record 3"]
    assert visitor.json("api/about?generation=1")["data"]["records"] == 120


@pytest.mark.parametrize("record", [0, 79])
def test_arrays_arrive_as_png_with_every_pixel(visitor: Visitor, store_path: Path, record: int) -> None:
    reply = visitor.get(f"image/{NUMBER['image']}/{record}")
    assert reply.headers["Content-Type"] == "image/png"
    assert np.array_equal(pixels(reply.body), pen.open(store_path)["image"][record])
    mask = pixels(visitor.get(f"image/{NUMBER['mask']}/{record}").body)
    assert np.array_equal(mask, 255 * pen.open(store_path)["mask"][record])


def test_image_files_arrive_as_they_are(visitor: Visitor, store_path: Path) -> None:
    for record, kind in enumerate(["image/png", "image/jpeg", "image/gif", "image/webp"]):
        reply = visitor.get(f"image/{NUMBER['file']}/{record}?edge=64")
        assert (reply.status, reply.headers["Content-Type"]) == (200, kind)
        assert reply.body == pen.open(store_path)["file"][record]


def test_chunks_say_how_much_is_in_use(visitor: Visitor) -> None:
    before, after = visitor.json("api/chunks?generation=1"), visitor.json("api/chunks")
    assert before["live"] == before["stored"]
    assert before["total"] == len(before["chunks"]) == 8
    assert sum(chunk["rows"] for chunk in before["chunks"]) == 120
    assert 0 < after["live"] < 0.8 * after["stored"]
    assert after["redirects"] == 2


def test_only_stores_have_chunks() -> None:
    with serving(routes_of(pen.open({"x": np.arange(5)}))) as visitor:
        assert visitor.get("api/chunks").status == 404
        assert "generations" not in visitor.json("api/about")["data"]
        assert visitor.json("api/about?generation=3")["data"]["records"] == 5


def test_missing_values_are_missing(tmp_path: Path) -> None:
    fields = {"image": pen.Field("u1", (8, 8)), "x": pen.Field("f4", (3,)), "text": pen.Field.text()}
    with pen.create(tmp_path / "a.pen", fields) as out:
        out.append({"image": None, "x": None, "text": None})
        out.append({"image": np.ones((8, 8), np.uint8), "x": [1, 2, 3], "text": ""})
    with pen.open(tmp_path / "a.pen") as source:
        first, second = rows(source, np.arange(2), SHORT)
        assert [cell["kind"] for cell in first["cells"][1:]] == ["missing", "missing"]
        assert second["cells"][1]["values"] == [1.0, 2.0, 3.0]
        assert second["cells"][2] == {"kind": "text", "text": "", "length": 0}
        with serving(routes_of(source)) as visitor:
            assert visitor.get("image/0/0").status == 404
            assert visitor.get("image/0/1").status == 200


def test_one_damaged_record_does_not_hide_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.pen"
    with pen.create(path, {"x": pen.Field.bytes()}) as out:
        out.extend({"x": [bytes([number]) * 5000 for number in range(10)]})
    chunk = next((path / "chunk").iterdir())
    data = bytearray(chunk.read_bytes())
    data[data.index(b"\x07" * 5000) + 2500] ^= 1
    chunk.write_bytes(data)
    with pen.open(path, io="pread") as source:
        kinds = [row["cells"][0]["kind"] for row in rows(source, np.arange(10), SHORT)]
    assert kinds[7] == "error"
    assert kinds.count("bytes") >= 6


def test_what_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.view.records.PAGE_BYTES", 64 << 10)
    source = pen.open({"x": pen.Ragged.from_items([np.zeros(30 << 10, np.uint8), np.zeros(9, np.uint8)], dtype=np.uint8)})
    found = rows(source, np.array([1, 0, 1, 0, 0]), SHORT)
    assert [row["cells"][0]["kind"] for row in found] == ["array", "plot", "array", "plot", "large"]
    assert found[4]["cells"][0] == {"kind": "large", "bytes": 30 << 10}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(2**53 + 1), {"kind": "number", "value": str(2**53 + 1)}),
        (np.bool_(True), {"kind": "number", "value": "true"}),
        (np.float32("inf"), {"kind": "number", "value": "inf"}),
        (np.complex64(1 + 2j), {"kind": "number", "value": "(1+2j)"}),
        (b"abc", {"kind": "bytes", "hex": "61 62 63", "length": 3}),
        ("\ud800x", {"kind": "text", "text": "?x", "length": 2}),
        (None, {"kind": "missing"}),
        (np.zeros((2, 0)), {"kind": "array", "shape": [2, 0], "dtype": "float64", "values": []}),
    ],
)
def test_values_become_plain_cells(value: object, expected: dict[str, object]) -> None:
    assert cell_of(value, SHORT) == expected


def test_half_precision_numbers_of_ml_dtypes_are_numbers() -> None:
    import ml_dtypes

    value = np.array([0.5, 1.5], ml_dtypes.bfloat16)
    assert cell_of(value, SHORT)["values"] == [0.5, 1.5]
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float16, np.bool_, np.uint64):
        assert cell_of(np.ones(5000, dtype), SHORT)["high"] == 1.0


def test_long_values_are_cut() -> None:
    text = cell_of("x" * 10**6, LONG)
    assert (len(text["text"]), text["length"]) == (LONG.letters, 10**6)
    peak = np.zeros(10**6)
    peak[123_456] = 9
    peak[5] = np.nan
    plot = cell_of(peak, SHORT)
    assert max(plot["points"]) == plot["high"] == 9.0
    assert len(plot["points"]) <= SHORT.points
    assert len(cell_of(bytes(10**6), SHORT)["hex"]) < 100


def test_only_the_first_of_very_many_fields_are_shown() -> None:
    source = pen.open({f"f{number}": np.arange(3) for number in range(100)})
    assert len(rows(source, np.arange(1), SHORT)[0]["cells"]) == 64


def words_tokenizer() -> TextTokenizer:
    vocabulary = {f"w{number}": number for number in range(100)}
    return load_tokenizer(Tokenizer(models.WordLevel(vocabulary, unk_token="w0")))


def test_tokens_are_shown_as_text_if_there_is_a_tokenizer(tmp_path: Path) -> None:
    documents = [np.arange(3), np.arange(0), np.full(20_000, 7), np.array([5, 300])]
    written = write_tokens([np.arange(40)], tmp_path / "a.rox", dtype="u2", block_size=20)
    source = pen.open({"ids": documents, "block": np.arange(40, dtype="u2").reshape(4, 10), "wave": np.ones((4, 20))})
    with serving(routes_of(source, tokenizer=words_tokenizer())) as visitor:
        cells = [row["cells"] for row in visitor.json("api/records")["rows"]]
        long = visitor.json("api/record/2")["cells"][0]
        batch = visitor.json("api/batch?order=in-order&batch=4")["rows"][0]["cells"]
    assert [one[0]["text"] for one in cells[:2]] == ["w0 w1 w2", ""]
    assert cells[3][0]["text"] == "w5<300>"
    assert (len(cells[2][0]["text"]), cells[2][0]["is_cut"], cells[2][0]["shape"]) == (SHORT.letters, True, [20_000])
    assert (len(long["text"]), len(long["values"])) == (LONG.letters, 16)
    assert cells[1][1]["text"] == " ".join(f"w{number}" for number in range(10, 20))
    assert cells[0][2]["kind"] == "plot", "numbers that are not whole are no tokens"
    assert batch == cells[0]
    with pen.open(written[0]) as tokens, serving(routes_of(tokens, tokenizer=words_tokenizer())) as visitor:
        assert visitor.json("api/record/1")["cells"][0]["text"].startswith("w20 w21")


def test_missing_tokens_are_missing(tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"ids": pen.Field.ragged("u2", nullable=True)}) as out:
        out.extend({"ids": [[1, 2], None]})
    with pen.open(tmp_path / "a.pen") as source, serving(routes_of(source, tokenizer=words_tokenizer())) as visitor:
        assert [row["cells"][0]["kind"] for row in visitor.json("api/records")["rows"]] == ["tokens", "missing"]


def test_classes_with_names_are_shown_by_name(tmp_path: Path) -> None:
    names = ["cat", "dog", "<b>bird</b>"]
    with pen.create(tmp_path / "a.pen", {"label": pen.Field("i4"), "n": pen.Field("i4")}, metadata={"label": names}) as out:
        out.extend({"label": [2, 0, None, 7, -1], "n": [1, 1, 1, 1, 1]})
    with serving(routes_of(pen.open(tmp_path / "a.pen"))) as visitor:
        cells = [row["cells"] for row in visitor.json("api/records")["rows"]]
        classes = visitor.json("api/mix?field=0&batch=5&order=in-order")["classes"]
    assert [label.get("name") for label, _ in cells] == ["<b>bird</b>", "cat", None, None, None]
    assert [label.get("value") for label, _ in cells] == [2, 0, None, 7, -1]
    assert all("name" not in other for _, other in cells)
    assert sorted(classes) == ["-1", "7", "<b>bird</b>", "cat"]


@pytest.mark.parametrize("names", ["cat", {"0": "cat"}, [1, 2], ["cat", None], 7])
def test_metadata_of_another_kind_is_no_names(tmp_path: Path, names: object) -> None:
    with pen.create(tmp_path / "a.pen", {"label": pen.Field("i4")}, metadata={"label": names}) as out:
        out.extend({"label": [0]})
    assert rows(pen.open(tmp_path / "a.pen"), np.array([0]), SHORT)[0]["cells"] == [{"kind": "number", "value": 0}]
