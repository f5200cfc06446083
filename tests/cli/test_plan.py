"""penstock plan: a table, JSON, a page."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.report.conftest import open_fonts
from typer.testing import CliRunner

from penstock.cli.main import app


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open() -> None:
    open_fonts()


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    for name, count in (("web", 700), ("code", 100)):
        np.save(tmp_path / f"{name}.npy", np.arange(count))
    path = tmp_path / "mix.yaml"
    path.write_text(
        "seed: 5\nstop: forever\nsources:\n  web: {path: web.npy, weight: 1, shuffle: 1}\n  code: {path: code.npy, weight: 1}\n"
    )
    return path


def test_plan_prints_every_stream(mixture: Path) -> None:
    found = CliRunner().invoke(app, ["plan", str(mixture), "--steps", "50", "--batch-size", "20"])
    assert found.exit_code == 0, found.output
    assert "web" in found.output
    assert "code" in found.output


def test_plan_as_json_and_as_a_page(mixture: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    found = CliRunner().invoke(app, ["plan", str(mixture), "--steps", "50", "--batch-size", "20", "--json", "--html", str(page)])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["samples"] == 1000
    assert [one["name"] for one in told["streams"]] == ["web", "code"]
    assert sum(one["samples"] for one in told["streams"]) == 1000
    assert "Epochs of each stream" in page.read_text()


def test_a_mistake_in_the_file_is_one_line(mixture: Path) -> None:
    mixture.write_text(mixture.read_text().replace("weight: 1}", "wait: 1}"))
    found = CliRunner().invoke(app, ["plan", str(mixture), "--steps", "50"])
    assert found.exit_code == 2


@pytest.mark.parametrize("given", [["--seed", "3"], ["--in-order"], ["--block", "8"], ["--storage", "region=x"], ["more.npy"]])
def test_options_that_a_mixture_file_decides_are_refused(mixture: Path, given: list[str]) -> None:
    found = CliRunner().invoke(app, ["plan", str(mixture), "--steps", "5", *given])
    assert found.exit_code == 2, found.output
