"""Real trainers on two processes, by every launcher: every record once an epoch on both together, evaluations the same each time.

The programs check themselves, and touch a file per rank when all was well.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*command: str, place: Path) -> set[str]:
    """Run a program of this directory; the files it left."""
    done = subprocess.run(
        [sys.executable, *command, str(place)],
        cwd=HERE,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name for path in place.glob("rank*")}


def test_the_launcher_of_lightning(tmp_path: Path) -> None:
    assert run("lightning_ranks.py", place=tmp_path) == {"rank0", "rank1"}


def test_torchrun_and_accelerate_on_it(tmp_path: Path) -> None:
    assert run(*TORCHRUN, "accelerate_ranks.py", place=tmp_path) == {"rank0of2", "rank1of2"}


def test_accelerate_in_one_process(tmp_path: Path) -> None:
    assert run("accelerate_ranks.py", place=tmp_path) == {"rank0of1"}


def test_spawn_of_torch_multiprocessing(tmp_path: Path) -> None:
    assert run("spawn_ranks.py", place=tmp_path) >= {"rank0", "rank1"}
