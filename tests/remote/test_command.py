"""Commands with options of an object store."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.remote.seaweed import Seaweed
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.formats import sidecar, spans
from penstock.remote.url import UrlPath


def test_convert_from_a_disk_to_a_bucket_takes_options_of_the_bucket(seaweed: Seaweed, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20))
    url, storage = f"{seaweed.url}/{tmp_path.name}/a.pen", [f"-s{key}={value}" for key, value in seaweed.storage_options.items()]
    for words in (["convert", str(tmp_path / "x.npy"), url], ["info", url]):
        done = CliRunner().invoke(app, [*words, *storage, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["records"] == 20


def test_indexes_of_objects_are_published(
    seaweed: Seaweed, prefix: UrlPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "KEPT_BYTES", 1)
    monkeypatch.setattr(sidecar, "cache_directory", lambda: tmp_path / "cache")
    for name in ("a", "b"):
        prefix.objects.put(f"{prefix.key}/{name}.jsonl", b'{"x": 1}\n' * 3)
    storage = [f"-s{key}={value}" for key, value in seaweed.storage_options.items()]
    done = CliRunner().invoke(app, ["index", str(prefix), "--publish", "--json", *storage])
    assert done.exit_code == 0, done.output
    names = [info.key.rpartition("/")[2] for info in prefix.objects.list(prefix.key)]
    published = [name for name in names if name.endswith(sidecar.SUFFIX)]
    assert [url.rpartition("/")[2] for url in json.loads(done.stdout)["published"]] == published
    assert [name[:9] for name in published] == [".a.jsonl.", ".b.jsonl."]
    done = CliRunner().invoke(app, ["index", str(prefix), "--publish", *storage])
    assert "2 indexes" in done.stdout
    assert "0 of them new, 2 at URLs" in done.stdout
    refused = CliRunner().invoke(app, ["index", str(prefix), "--publish", "--remove", *storage])
    assert (refused.exit_code, "not from URLs" in refused.stderr) == (2, True)
