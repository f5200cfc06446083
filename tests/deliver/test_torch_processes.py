"""Real processes: the example that is killed and resumed, the end of the interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.effort import is_campaign

ROOT = Path(__file__).parent.parent.parent


def test_the_example_ends_with_the_same_order() -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/train_torch.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "exit codes: -9, -9" in lines[1]
    assert lines[-1] == "the order of all 2880 samples is the same"
    assert len(lines) == 6


FORKED = """
import os, runpy, sys
import torch._dynamo  # which optimizers import
import penstock.deliver.torch
for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{path} failed")
    print("--", flush=True)
"""


@pytest.fixture(scope="module")
def printed() -> list[list[str]]:
    """The lines that two examples print: forks of a program that has imported torch, in a campaign programs of their own."""
    paths = [str(ROOT / "examples" / name) for name in ("train_packed.py", "train_images.py")]
    commands = [[path] for path in paths] if is_campaign() else [["-c", FORKED, *paths]]
    texts = []
    for command in commands:
        done = subprocess.run([sys.executable, "-W", "error", *command], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        texts += [done.stdout] if is_campaign() else done.stdout.split("--\n")[:-1]
    return [text.splitlines() for text in texts]


def test_the_example_of_packs_learns_and_resumes_with_the_same_losses(printed: list[list[str]]) -> None:
    lines = printed[0]
    assert lines[-1] == "stopped after 20 steps and resumed: the losses are the same"
    assert len(lines) == 3


def test_the_example_of_images_learns_and_resumes_with_the_same_losses(printed: list[list[str]]) -> None:
    (line,) = printed[1]
    told = line.split()
    assert float(told[5].rstrip(",")) < 0.5
    assert int(told[6].rstrip("%")) > 80


def test_the_interpreter_ends_cleanly_under_a_running_delivery() -> None:
    code = """
import numpy as np, penstock as pen
from penstock.deliver.torch import DataLoader, deliver
loader = pen.Loader(pen.open(np.arange(100), field="x").shuffle(seed=7), 4, threads=2, transform=dict)
batches, workers = iter(deliver(loader)), iter(DataLoader(pen.Loader(loader.stream, 4), num_workers=2))
print(next(batches)["x"].tolist() == next(workers)["x"].tolist())
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
