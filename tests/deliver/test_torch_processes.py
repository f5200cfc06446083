"""Real processes: the example that is killed and resumed, the end of the interpreter."""

import subprocess
import sys
from pathlib import Path

from tests.effort import is_campaign

ROOT = Path(__file__).parent.parent.parent


def learned(name: str) -> list[str]:
    """The lines that an example prints."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


if is_campaign():

    def test_the_example_ends_with_the_same_order() -> None:
        lines = learned("train_torch.py")
        assert "exit codes: -9, -9" in lines[1]
        assert lines[-1] == "the order of all 2880 samples is the same"
        assert len(lines) == 6

    def test_the_example_of_packs_learns_and_resumes_with_the_same_losses() -> None:
        lines = learned("train_packed.py")
        assert lines[-1] == "stopped after 20 steps and resumed: the losses are the same"
        assert len(lines) == 3

    def test_the_example_of_images_learns_and_resumes_with_the_same_losses() -> None:
        (line,) = learned("train_images.py")
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
