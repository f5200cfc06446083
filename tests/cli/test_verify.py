"""penstock verify: what is broken is found and named, in stores and in everything else."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import RECORDS, Run, Seen, damage

import penstock as pen
from penstock.batch import Batch, Outputs
from penstock.conversion import reading
from penstock.conversion.reading import read_all
from penstock.errors import CorruptError
from penstock.records import Blocks, Recipe, Source


def test_good_data_has_no_problem(run: Run, store: Path, images: Path, tokens: Path) -> None:
    for path in (store, images, tokens):
        result = run("verify", path)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("no problem in ")


def test_a_broken_chunk_is_named(run: Run, run_json: Callable[..., Any], damaged: Path) -> None:
    found = run_json("verify", damaged, code=1)
    assert (found["ok"], len(found["problems"]), found["records"]) == (False, 1, RECORDS)
    assert found["problems"][0]["where"].startswith(f"{damaged}/chunk/")
    result = run("verify", damaged)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == found["problems"][0]["where"]
    assert result.stdout.splitlines()[-1].startswith("1 problem in ")


def test_a_chunk_that_is_gone_is_named(run_json: Callable[..., Any], store: Path) -> None:
    gone = max((store / "chunk").iterdir(), key=lambda path: path.stat().st_size)
    gone.unlink()
    assert [problem["where"] for problem in run_json("verify", store, code=1)["problems"]] == [str(gone)]


def test_generations_are_checked_one_or_all(run: Run, run_json: Callable[..., Any], store: Path) -> None:
    newest = min((store / "chunk").iterdir(), key=lambda path: path.stat().st_size)
    damage(newest)
    assert run_json("verify", store, "--generation", 1)["ok"]
    assert not run_json("verify", store, code=1)["ok"]
    assert not run_json("verify", store, "--all-generations", code=1)["ok"]
    assert run("verify", store, "--generation", 1, "--all-generations").exit_code == 2
    assert run("verify", store, "--generation", 9).exit_code == 3


def test_all_generations_count_a_shared_chunk_once(run_json: Callable[..., Any], damaged: Path) -> None:
    found = run_json("verify", damaged, "--all-generations", code=1)
    assert len(found["problems"]) == 1


def test_a_broken_manifest_does_not_hide_the_others(run_json: Callable[..., Any], damaged: Path) -> None:
    damage(damaged / "manifest" / f"{2:020d}.json")
    assert len(run_json("verify", damaged, code=1)["problems"]) == 1
    found = run_json("verify", damaged, "--all-generations", code=1)
    assert [problem["where"].partition("/")[0] for problem in found["problems"]] == ["", "generation 2"]


def test_a_store_at_a_url_is_checked(run_json: Callable[..., Any], store: Path) -> None:
    pen.convert(str(store), "memory://cli-verify/a.pen")
    found = run_json("verify", "memory://cli-verify/a.pen", "--all-generations")
    assert (found["ok"], found["bytes"] > 0) == (True, True)


def test_a_broken_row_group_is_named_once(run: Run, run_json: Callable[..., Any], tmp_path: Path) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(4000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000, compression="zstd", write_page_checksum=True)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    begin = pq.read_metadata(tmp_path / "a.parquet").row_group(2).column(0).data_page_offset
    data[begin + 200 : begin + 260] = bytes(60)
    (tmp_path / "a.parquet").write_bytes(data)
    found = run_json("verify", tmp_path / "a.parquet", code=1)
    assert [problem["where"] for problem in found["problems"]] == ["record 2000 (block 2)"]


@pytest.mark.parametrize("cut", [0, 50, 1000])
def test_a_file_that_cannot_be_opened_is_a_problem(run: Run, images: Path, cut: int) -> None:
    images.write_bytes(images.read_bytes()[:cut])
    result = run("verify", images)
    assert (result.exit_code, result.stderr) == (1, "")
    assert str(images) in result.stdout


def test_what_is_not_there_is_exit_code_3(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.pen/manifest").mkdir(parents=True)
    for path in (tmp_path / "nothing", tmp_path / "empty.pen", "memory://cli-verify/nothing"):
        result = run("verify", path)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1), result.output


def test_only_a_store_has_generations(run: Run, images: Path) -> None:
    assert run("verify", images, "--all-generations").exit_code == 2


def test_a_terminal_gets_a_bar(in_terminal: Callable[..., Seen], damaged: Path) -> None:
    seen = in_terminal("verify", damaged, columns=100)
    assert seen.exit_code == 1
    assert "generation 2" in seen.output
    assert "━" in seen.output


# What is read, and how often


class Holes(Source):
    """Numbers, some of which cannot be read."""

    def __init__(self, length: int, bad: set[int], block: int, *, reads_blocks: bool) -> None:
        self._length, self._bad, self._block, self._reads_blocks = length, bad, block, reads_blocks
        self.tried = 0

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Mapping[str, pen.Field]:
        return {"x": pen.Field("i8")}

    @property
    def fingerprint(self) -> str:
        return "holes"

    @property
    def blocks(self) -> Blocks:
        return Blocks(self._length, self._block)

    @property
    def reads_blocks(self) -> bool:
        return self._reads_blocks

    def _read(self, ids: Any, fields: Sequence[str], out: Outputs) -> Batch:
        self.tried += 1
        bad = self._bad & set(ids.tolist())
        if bad:
            raise CorruptError(f"hole {min(bad)}")
        return {"x": ids}

    def _recipe(self) -> Recipe:
        return (Holes, (self._length, self._bad, self._block))


@pytest.mark.parametrize("batch", [8, 80, 800, 100_000])
def test_the_first_hole_of_each_block_is_found(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(reading, "READ_BYTES", batch)
    source, done = Holes(1000, {0, 1, 333, 399, 999}, 100, reads_blocks=False), []
    found = read_all(source, progress=lambda records, size: done.append(records))
    assert [(one.block, one.record, one.what) for one in found] == [(0, 0, "hole 0"), (3, 333, "hole 333"), (9, 999, "hole 999")]
    assert sum(done) == 1000


def test_blocks_that_are_read_as_a_whole_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_BYTES", 800)
    source = Holes(1000, {333}, 100, reads_blocks=True)
    assert [(one.block, one.record) for one in read_all(source)] == [(3, 300)]
    assert source.tried == 11
