"""penstock info: what is there, on disk and at URLs, for people and for scripts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import FIELDS, RECORDS, Run, damage

import penstock as pen


def test_a_store_is_described(run_json: Callable[..., Any], store: Path) -> None:
    found = run_json("info", store)
    assert (found["kind"], found["records"], list(found["fields"])) == ("Store", RECORDS, list(FIELDS))
    image, caption = found["fields"]["image"], found["fields"]["caption"]
    assert image | {"kind": "fixed", "dtype": "uint8", "shape": [16, 12, 3], "codec": "Raw()"} == image
    assert caption | {"kind": "text", "dtype": None, "shape": None, "codec": "Zstd(3)"} == caption
    assert found["store"]["generations"] == [1, 2]
    assert found["store"]["field_bytes"]["image"] == RECORDS * 16 * 12 * 3
    assert found["files"] == {
        "count": len([path for path in store.rglob("*") if path.is_file()]),
        "bytes": sum(path.stat().st_size for path in store.rglob("*") if path.is_file()),
    }
    with pen.open(store) as source:
        assert found["fingerprint"] == source.fingerprint


def test_generations_are_listed_with_time_and_records(run_json: Callable[..., Any], run: Run, store: Path) -> None:
    with pen.open(store, mode="a") as out:
        out.delete([0])
    found = run_json("info", store, "--generations")["generations"]
    assert [(one["generation"], one["records"]) for one in found] == [(1, RECORDS), (2, RECORDS), (3, RECORDS - 1)]
    assert found[0]["written"] <= found[2]["written"]
    assert f"UTC, {RECORDS} records" in run("info", store, "--generations").stdout


def test_the_digest_of_all_records_is_shown_where_it_is_asked_for(run_json: Callable[..., Any], run: Run, store: Path) -> None:
    with pen.open(store) as source:
        assert run_json("info", store, "--digest")["digest"] == source.digest()
        assert source.digest() in run("info", store, "--digest").stdout
    assert "digest" not in run_json("info", store)


def test_only_a_store_has_generations(run: Run, images: Path) -> None:
    result = run("info", images, "--generations")
    assert (result.exit_code, result.stdout) == (2, "")


def test_an_older_generation_can_be_asked_for(run_json: Callable[..., Any], run: Run, store: Path) -> None:
    assert run_json("info", store, "--generation", 1)["store"]["generation"] == 1
    result = run("info", store, "--generation", 9)
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)


@pytest.mark.parametrize("name", ["images.npy", "*.npy", "."])
def test_files_patterns_and_directories_are_measured(run_json: Callable[..., Any], images: Path, name: str) -> None:
    found = run_json("info", images.parent / name)
    assert (found["records"], found["bytes"]) == (RECORDS, RECORDS * 576)
    assert found["files"] == {"count": 1, "bytes": images.stat().st_size}


def test_fields_side_by_side_are_measured_together(run_json: Callable[..., Any], images: Path, labels: Path) -> None:
    found = run_json("info", f"image={images}", f"label={labels}")
    assert list(found["fields"]) == ["image", "label"]
    assert found["files"] == {"count": 2, "bytes": images.stat().st_size + labels.stat().st_size}


def test_a_prefix_of_token_shards_is_measured(run_json: Callable[..., Any], tmp_path: Path) -> None:
    for number in range(2):
        pen.convert({"t": np.arange(10, dtype=np.uint16).reshape(2, 5)}, tmp_path / f"x_{number}.rox")
    assert run_json("info", tmp_path / "x")["files"]["count"] == 2


def test_blocks_of_different_sizes_are_told(run: Run, run_json: Callable[..., Any], tmp_path: Path) -> None:
    for number, records in enumerate((5, 3, 9)):
        np.save(tmp_path / f"{number}.npy", np.zeros((records, 70_000)))
    found = run_json("info", tmp_path)
    with pen.open(tmp_path) as source:
        sizes = [len(source.blocks[block]) for block in range(len(source.blocks))]
    assert found["blocks"] == {"count": len(sizes), "records": max(sizes), "least_records": min(sizes), "read_whole": False}


def test_a_store_at_a_url_is_described(run: Run, run_json: Callable[..., Any], store: Path) -> None:
    pen.convert(str(store), "memory://cli-info/train.pen")
    found = run_json("info", "memory://cli-info/train.pen", "--generations")
    assert (found["records"], found["files"]["count"], len(found["generations"])) == (RECORDS, 1, 1)
    assert found["files"]["bytes"] > found["store"]["stored_bytes"] > 0
    assert "100%" in run("info", "memory://cli-info/train.pen").stdout


def test_everything_fits_40_columns(run: Run, store: Path) -> None:
    result = run("info", store, "--generations", columns=40)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 40
    assert "caption" in result.stdout


def test_a_wasteful_store_gets_advice(run: Run, tmp_path: Path) -> None:
    with pen.create(tmp_path / "a.pen", {"x": pen.Field("f8", (100,))}) as out:
        out.extend({"x": np.zeros((100, 100))})
        out.delete(list(range(20, 100)))
    assert "penstock rebalance" in run("info", tmp_path / "a.pen").stdout


def test_a_broken_store_is_one_line_and_exit_code_3(run: Run, store: Path) -> None:
    damage(sorted((store / "manifest").iterdir())[-1])
    result = run("info", store)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert "generation 1 can be opened by name" in result.stderr


def test_options_without_a_value_are_refused(run: Run, store: Path) -> None:
    assert run("info", store, "--generation", "one").exit_code == 2
    assert run("info", store, "--storage", "region").exit_code == 2
    assert run("info").exit_code == 2
