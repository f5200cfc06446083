"""Real trainers on two processes, by every launcher: every record once an epoch on both together, evaluations the same each time.

The programs check themselves, and touch a file per rank when all was well. In every run the ranks are forks of one program
(``forked_ranks.py``); in a campaign the launchers start programs of their own.
"""

import json
import os
import subprocess
import sys
import time
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from tests.effort import is_campaign
from tests.trainers import spawn_ranks

import penstock as pen

HERE = Path(__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WAIT_S = 600
ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

resource_tracker.ensure_running()  # Python's own, started by the first spawned process, stays as long as the tests: no leak


def run(*command: str, place: Path) -> None:
    """Run a program of this directory."""
    done = subprocess.run(
        [sys.executable, *command, str(place)],
        cwd=HERE,
        env={**os.environ, **ON_LOOPBACK},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def ranks(place: Path) -> set[str]:
    """The ranks that left their file."""
    return {path.name for path in place.glob("rank*")}


def make(place: Path) -> pen.Loader:
    return pen.Loader(pen.open(place / "a.pen").shuffle(seed=7), 6, tail="wrap")


def batches(loader: pen.Loader, count: int) -> list[list[int]]:
    return [batch["x"].tolist() for batch in islice(loader.forever(), count)]


if is_campaign():  # make trainers

    def test_the_launcher_of_lightning(tmp_path: Path) -> None:
        run("lightning_ranks.py", place=tmp_path)
        assert ranks(tmp_path) == {"rank0", "rank1"}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """Where torchrun was run, with a state that one rank saved; and the batches of that rank."""
    place = tmp_path_factory.mktemp("torchrun")
    (place / "alone").mkdir()
    with pen.create(place / "a.pen", {"x": pen.Field("i8")}) as out:
        out.extend({"x": np.arange(40)})
    first = make(place)
    found = batches(first, 3)
    (place / "state.json").write_text(json.dumps(first.state_dict()))
    if is_campaign():
        run(*TORCHRUN, "accelerate_ranks.py", place=place)
    else:
        run("forked_ranks.py", place=place)
    return place, found


def test_torchrun_and_accelerate_on_it(begun: tuple[Path, list[list[int]]]) -> None:
    assert ranks(begun[0]) == {"rank0of2", "rank1of2"}


def test_accelerate_in_one_process(begun: tuple[Path, list[list[int]]]) -> None:
    assert ranks(begun[0] / "alone") == {"rank0of1"}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # the checkpoint of two ranks is loaded by one process
def test_a_run_goes_from_one_rank_to_two_and_back(begun: tuple[Path, list[list[int]]]) -> None:
    place, found = begun
    told = json.loads((place / "found.json").read_text())
    assert told["world"] == 2
    last, from_checkpoint = make(place), make(place)
    last.load_state_dict(told["state"])
    dcp.load({"data": from_checkpoint}, checkpoint_id=place / "checkpoint", no_dist=True)
    assert from_checkpoint.state_dict() == told["state"]
    assert found + told["batches"] + batches(last, 8) == batches(make(place), 20)


def test_ranks_of_torch_multiprocessing(begun: tuple[Path, list[list[int]]]) -> None:
    place = begun[0] / "spawned"
    if is_campaign():
        spawn(place)
    assert ranks(place) >= {"rank0", "rank1"}


def spawn(place: Path) -> None:
    """The ranks as processes that are not forks."""
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ON_LOOPBACK.items():
            patch.setenv(name, value)
        running = torch.multiprocessing.spawn(spawn_ranks.run, (place,), nprocs=2, join=False)
    until = time.monotonic() + WAIT_S
    try:
        while not running.join(max(0, until - time.monotonic())):  # after each rank
            assert time.monotonic() < until
    finally:
        for process in running.processes:
            process.kill()
            process.join()
            process.close()
