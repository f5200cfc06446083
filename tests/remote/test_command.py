"""Commands with options of an object store."""

import json
from pathlib import Path

import numpy as np
from tests.remote.seaweed import Seaweed
from typer.testing import CliRunner

from penstock.cli.main import app


def test_convert_from_a_disk_to_a_bucket_takes_options_of_the_bucket(seaweed: Seaweed, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20))
    url, storage = f"{seaweed.url}/{tmp_path.name}/a.pen", [f"-s{key}={value}" for key, value in seaweed.storage_options.items()]
    for words in (["convert", str(tmp_path / "x.npy"), url], ["info", url]):
        done = CliRunner().invoke(app, [*words, *storage, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["records"] == 20
