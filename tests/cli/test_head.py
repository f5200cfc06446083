"""penstock head and show: values as people and scripts want them, within a limit, and files that are never replaced."""

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import RECORDS, Run, Seen, encode, pictures

import penstock as pen
from penstock.cli.record import encoded, figures, is_picture, small_pixels, value_as_json


def lines(output: str) -> dict[str, str]:
    """The first line of every fact."""
    return {line.split()[0]: " ".join(line.split()[1:]) for line in output.splitlines() if line and not line.startswith(" ")}


def test_every_kind_of_value_is_shown(run: Run, store: Path) -> None:
    assert lines(run("show", store, 30, columns=120).stdout) == {
        "record": "30",
        "image": "16 x 12 x 3 uint8, min 0, mean 136.7, max 240",
        "label": "30",
        "weight": "[22.5 22.75 23. ]",
        "caption": "caption 30",
        "png": f"PNG, 12 x 16 pixels, {len(encode(pictures(RECORDS)[30], 'PNG'))} B",
        "blob": "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 11 12 13 14 15 16 17… (30 bytes)",
        "tokens": "30 uint16, min 0, mean 14.5, max 29",
    }


def test_missing_and_empty_are_told_apart(run: Run, store: Path) -> None:
    shown = lines(run("show", store, 3).stdout)
    assert (shown["caption"], shown["blob"]) == ("missing", "00 01 02 (3 bytes)")
    shown = lines(run("show", store, 0).stdout)
    assert (shown["caption"], shown["blob"], shown["tokens"]) == ("caption 0", "(0 bytes)", "0 uint16, empty")


def test_head_shows_the_first_records(run: Run, store: Path) -> None:
    shown = run("head", store, "-n", 2, "--fields", "label,caption").stdout
    words = [line.split() for line in shown.splitlines()]
    assert words[:4] == [["record", "0"], ["label", "0"], ["caption", "caption", "0"], []]
    assert words[4:] == [["record", "1"], ["label", "1"], ["caption", "caption", "1"]]
    assert run("head", store, "-n", 1000).stdout.count("record ") == RECORDS
    assert run("head", store).stdout.count("record ") == 5


def test_ids_may_repeat_and_be_negative(run_json: Callable[..., Any], store: Path) -> None:
    assert [record["id"] for record in run_json("show", "--fields", "label", "--", store, 7, 7, -1)] == [7, 7, 39]


def run_json_values(run_json: Callable[..., Any], *words: object) -> dict[str, Any]:
    values: dict[str, Any] = run_json("show", *words)[0]["fields"]
    return values


def test_json_has_short_values_as_they_are(run_json: Callable[..., Any], store: Path) -> None:
    values = run_json_values(run_json, store, 3)
    assert values["image"] == {"shape": [16, 12, 3], "dtype": "uint8", "min": 0, "mean": pytest.approx(82.67, abs=0.01), "max": 240}
    assert (values["label"], values["weight"], values["caption"], values["tokens"]) == (3, [2.25, 2.5, 2.75], None, [0, 1, 2])
    assert values["blob"] == {"hex": "000102", "length": 3}
    assert values["png"]["hex"].startswith("ffd8ff")


def test_fields_side_by_side_are_shown(run: Run, images: Path, labels: Path) -> None:
    assert lines(run("show", f"image={images}", f"label={labels}", 7).stdout)["label"] == "7"


@pytest.mark.parametrize(
    "words",
    [
        ["{store}"],
        ["7"],
        [],
        ["{store}", "x"],
        ["{store}", "40"],
        ["{store}", "1", "--fields", "nothing"],
        ["{store}", "1", "--fields", ","],
    ],
)
def test_wrong_arguments_are_exit_code_2(run: Run, store: Path, words: list[str]) -> None:
    result = run("show", *(word.format(store=store) for word in words))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_record_that_cannot_be_read_is_exit_code_3(run: Run, damaged: Path, options: list[str]) -> None:
    result = run("head", damaged, "-n", RECORDS, *options)
    assert result.exit_code == 3
    assert result.stderr.startswith("penstock: record ")
    assert result.stderr.count("\n") == 1
    assert options == [] or result.stdout == ""


def test_a_value_beyond_the_limit_is_not_read(run: Run, run_json: Callable[..., Any], tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"big": pen.Field.bytes(codec=pen.Zstd(1)), "x": pen.Field("i4")}) as out:
        out.extend({"big": [bytes(64_000_001)], "x": [7]})
    assert lines(run("head", tmp_path / "a.pen").stdout) == {
        "record": "0", "big": "64.0 MB, not read: a record is shown up to 64 MB", "x": "7",
    }  # fmt: skip
    assert run_json("head", tmp_path / "a.pen")[0]["fields"]["big"]["bytes"] == 64_000_001


def test_records_at_a_url_are_shown(run: Run, store: Path) -> None:
    pen.convert(str(store), "memory://cli-head/train.pen")
    assert lines(run("show", "memory://cli-head/train.pen", 7).stdout)["caption"] == "a better one"


def test_long_text_is_cut(run: Run, run_json: Callable[..., Any], tmp_path: Path) -> None:
    pen.convert({"text": ["ab" * 10_000, ""]}, tmp_path / "a.pen")
    assert "… (20,000 characters)" in " ".join(run("head", tmp_path / "a.pen").stdout.split())
    first, second = run_json("head", tmp_path / "a.pen")
    assert first["fields"]["text"] == {"text": "ab" * 5_000, "length": 20_000}
    assert second["fields"]["text"] == ""


# Saving


def test_images_and_large_values_are_saved(run: Run, store: Path, tmp_path: Path) -> None:
    result = run("show", store, 30, "--save", tmp_path / "out")
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "30-blob.bin",
        "30-image.png",
        "30-png.png",
        "30-tokens.npy",
    ]
    with Image.open(tmp_path / "out/30-image.png") as image:
        assert np.array_equal(np.asarray(image), pictures(RECORDS)[30])
    assert (tmp_path / "out/30-png.png").read_bytes() == encode(pictures(RECORDS)[30], "PNG")
    assert (tmp_path / "out/30-blob.bin").read_bytes() == bytes(range(30))
    assert np.load(tmp_path / "out/30-tokens.npy").tolist() == list(range(30))
    assert str(tmp_path / "out/30-image.png") in result.stdout


def test_nothing_is_replaced(run: Run, store: Path, tmp_path: Path) -> None:
    (tmp_path / "30-image.png").write_text("mine")
    result = run("show", store, 30, "--save", tmp_path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)
    assert (tmp_path / "30-image.png").read_text() == "mine"


@pytest.mark.parametrize("directory", ["/proc/nowhere", "{file}/below"])
def test_a_directory_that_cannot_be_written_is_exit_code_4(run: Run, store: Path, images: Path, directory: str) -> None:
    result = run("show", store, 30, "--save", directory.format(file=images))
    assert (result.exit_code, result.stderr.count("\n")) == (4, 1)


def test_names_of_files_cannot_leave_the_directory(run: Run, tmp_path: Path) -> None:
    fields = {"a.b": np.zeros((1, 50)), "a-b": np.ones((1, 50)), "a..b": np.full((1, 50), 2.0)}
    pen.convert(fields, tmp_path / "a.pen")
    assert run("head", tmp_path / "a.pen", "--save", tmp_path / "out").exit_code == 0
    saved = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in saved] == ["0-a_b-0.npy", "0-a_b-1.npy", "0-a_b-2.npy"]
    assert [np.load(path)[0] for path in saved] == [0, 1, 2]


def test_without_pillow_pictures_are_arrays(run: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *more: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("penstock.cli.record.has_pillow", lambda: False)
    result = run("show", store, 30, "--save", tmp_path / "out", columns=120)
    assert lines(result.stdout)["png"].startswith("PNG, 12 x 16 pixels")
    assert np.array_equal(np.load(tmp_path / "out/30-image.npy"), pictures(RECORDS)[30])


# Pictures


def test_a_terminal_with_colors_gets_pictures(in_terminal: Callable[..., Seen], store: Path) -> None:
    seen = in_terminal("show", store, 30, "--fields", "image,png", columns=40)
    assert seen.exit_code == 0
    rows = [line for line in seen.output.splitlines() if "▀" in line]
    assert (len(rows), rows[0].count("▀")) == (16, 12)
    assert "\x1b[38;2;0;0;180;48;2;16;0;180m▀" in rows[0]  # the two topmost pixels of the first column


def test_a_terminal_without_colors_gets_figures(in_terminal: Callable[..., Seen], store: Path) -> None:
    seen = in_terminal("show", store, 30, "--fields", "image", env={"NO_COLOR": "1"})
    assert "▀" not in seen.output
    assert "16 x 12 x 3 uint8, min 0" in seen.output


def test_what_is_a_picture() -> None:
    shapes = [(8, 8), (100, 8), (8, 9, 1), (8, 9, 3), (7, 8), (8, 8, 2), (8, 8, 4), (64,), (2, 8, 8, 3)]
    assert [is_picture(np.zeros(shape, np.uint8)) for shape in shapes] == [True] * 4 + [False] * 5
    assert not is_picture(np.zeros((8, 8), np.int8))


@pytest.mark.parametrize(
    ("shape", "most", "small"), [((640, 480), 32, (32, 24)), ((10, 4000, 3), 40, (1, 40)), ((9, 8, 1), 40, (9, 8))]
)
def test_a_small_picture_has_the_shape_of_the_large_one(shape: tuple[int, ...], most: int, small: tuple[int, int]) -> None:
    assert small_pixels(np.full(shape, 77, np.uint8), most).tolist() == np.full((*small, 3), 77).tolist()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WebP"])
def test_pictures_of_every_format_are_shown(kind: str) -> None:
    found = encoded(encode(np.full((300, 400, 3), 77, np.uint8), kind))
    assert found is not None
    assert (found.kind, found.width, found.height) == (kind, 400, 300)
    assert found.pixels is not None
    assert found.pixels.shape == (36, 48, 3)
    assert np.abs(found.pixels.astype(int) - 77).max() <= 2


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0 no more", encode(pictures(1)[0], "PNG")[:60]])
def test_a_broken_image_is_no_error(data: bytes) -> None:
    found = encoded(data)
    assert found is not None
    assert found.pixels is None


def test_a_huge_image_is_not_decoded() -> None:
    data = bytearray(encode(pictures(1)[0], "PNG"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    found = encoded(bytes(data))
    assert found is not None
    assert found.pixels is None


# Figures


def test_figures_leave_out_what_is_no_number() -> None:
    assert figures(np.array([1.0, np.nan, 3.0])) == {"min": 1.0, "mean": 2.0, "max": 3.0, "nan": 1}
    assert figures(np.array([np.nan])) == {"nan": 1}
    assert figures(np.array([np.inf, 1.0])) == {"min": 1.0, "mean": np.inf, "max": np.inf}
    assert figures(np.array([True, False, True])) == {"true": 2, "false": 1}
    assert figures(np.array([60_000, 60_000], np.float16))["mean"] == pytest.approx(60_000, rel=0.01)
    assert figures(np.array([1, 2], ml_dtypes.bfloat16)) == {"min": 1.0, "mean": 1.5, "max": 2.0}
    assert figures(np.array([1j])) == figures(np.array([])) == {}


def test_arrays_of_every_type_are_shown(run: Run, run_json: Callable[..., Any], tmp_path: Path) -> None:
    values = {
        "c": np.ones((1, 300), np.complex64),
        "b": np.ones((1, 300), np.bool_),
        "n": np.full((1, 300), np.nan),
        "s": np.array([1j]),
    }
    pen.convert(values, tmp_path / "a.pen")
    assert lines(run("head", tmp_path / "a.pen").stdout)["n"] == "300 float64, nan 300"
    found = run_json("head", tmp_path / "a.pen")[0]["fields"]
    assert (found["c"], found["b"]["true"]) == ({"shape": [300], "dtype": "complex64"}, 300)
    assert value_as_json(np.arange(4)).tolist() == [0, 1, 2, 3]
