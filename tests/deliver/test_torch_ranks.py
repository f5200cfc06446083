"""Real processes: torchrun with gloo on loopback, the example that is killed and resumed, the end of the interpreter."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

import penstock as pen

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # the checkpoint of two ranks is loaded by one process
def test_a_run_goes_from_one_rank_to_two_and_back(tmp_path: Path) -> None:
    store = tmp_path / "a.pen"
    with pen.create(store, {"x": pen.Field("i8")}) as out:
        out.extend({"x": np.arange(40)})

    def make() -> pen.Loader:
        return pen.Loader(pen.open(store).shuffle(seed=7), 6, tail="wrap")

    def batches(loader: pen.Loader, count: int) -> list[list[int]]:
        return [batch["x"].tolist() for batch in islice(loader.forever(), count)]

    first = make()
    found = batches(first, 3)
    (tmp_path / "state.json").write_text(json.dumps(first.state_dict()))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [ROOT / "tests/deliver/train_ranks.py", store, tmp_path / "state.json", 9, tmp_path]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["world"] == 2
    last, from_checkpoint = make(), make()
    last.load_state_dict(told["state"])
    dcp.load({"data": from_checkpoint}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    assert from_checkpoint.state_dict() == told["state"]
    assert found + told["batches"] + batches(last, 8) == batches(make(), 20)


def test_the_example_ends_with_the_same_order() -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/train_torch.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "exit codes: -9, -9" in lines[1]
    assert lines[-1] == "the order of all 2880 samples is the same"
    assert len(lines) == 6


def test_the_interpreter_ends_cleanly_under_a_running_delivery() -> None:
    code = """
import numpy as np, penstock as pen
from penstock.deliver.torch import DataLoader, deliver
loader = pen.Loader(pen.open(np.arange(100), field="x").shuffle(seed=7), 4, threads=2, transform=dict)
batches, workers = iter(deliver(loader)), iter(DataLoader(pen.Loader(loader.stream, 4), num_workers=2))
print(next(batches)["x"].tolist() == next(workers)["x"].tolist())
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
