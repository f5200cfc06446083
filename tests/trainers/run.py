"""A run of a trainer that is killed with SIGKILL at step 7, resumed on another number of ranks, and compared with a run in one go.

A program of this directory has a function ``train(place, log)``. It trains :class:`Model` on :func:`make_loader` for STEPS steps,
from the newest checkpoint in ``place`` if there is one, saves one every SAVED steps, and calls ``log(step, loss)`` after every step
with the loss over all ranks. ``main(__file__, train, ...)`` does the rest: without arguments the program starts itself as ranks.

Everything is float64. On the same number of ranks the losses are equal to the last bit. On another number the losses and gradients
of the ranks are added up in another order, which moves the last bits of a sum: TOLERANCE, relative. A batch in the wrong place
moves the third digit.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import penstock as pen

STEPS, KILLED, SAVED = 24, 7, 5
ROWS, LENGTH, VOCABULARY = 8, 16, 64
TOLERANCE = 1e-12
WAIT_S = 1800

Log = Callable[[int, float], None]


def documents() -> pen.Ragged:
    """Documents of 1 to 23 tokens, 150 of them: an epoch is 14 steps, so a run of STEPS ends in the second."""
    lengths = np.random.default_rng(5).integers(1, 24, 150)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pen.Ragged(np.random.default_rng(6).integers(1, VOCABULARY, offsets[-1]).astype("i4"), offsets)


def make_loader(shard: pen.Shard | None = None, **options: Any) -> pen.Loader:
    """Packed documents, ROWS sequences a step on all ranks together."""
    stream = pen.open({"tokens": documents()}).shuffle(seed=7).pack(LENGTH, fields=("tokens", "labels", "segment", "position"))
    return pen.Loader(stream, ROWS, shard=shard, **{"tail": "wrap", **options})


class Model(torch.nn.Module):
    """Predicts the next token from a token and its position."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.token = torch.nn.Embedding(VOCABULARY, 8, dtype=torch.float64)
        self.place = torch.nn.Embedding(LENGTH, 8, dtype=torch.float64)
        self.out = torch.nn.Linear(8, VOCABULARY, dtype=torch.float64)

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.token(tokens.long()) + self.place(position.long()))
        return logits

    def loss(self, tokens: torch.Tensor, position: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The sum over the tokens that count, over a constant: so the mean over ranks is that over the samples."""
        logits = self(tokens, position)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.long().flatten(), ignore_index=-100, reduction="sum")
        return loss / (ROWS // num_ranks() * LENGTH)


def num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def over_ranks(loss: torch.Tensor) -> float:
    """The mean over the ranks."""
    total = loss.detach().to(torch.float64).clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return float(total) / num_ranks()


class _Log:
    """Writes losses to a file, on the first rank; and kills this process after a step."""

    def __init__(self, path: Path, killed: int | None) -> None:
        self._path, self._killed = path, killed

    def __call__(self, step: int, loss: float) -> None:
        if not dist.is_initialized() or dist.get_rank() == 0:
            with self._path.open("a") as file:
                file.write(json.dumps([step, loss]) + "\n")
        if step == self._killed:
            if dist.is_initialized():
                dist.barrier()  # the first rank has written
            os.kill(os.getpid(), signal.SIGKILL)


def _losses(path: Path) -> list[tuple[int, float]]:
    return [(step, loss) for step, loss in map(json.loads, path.read_text().splitlines())]


def _start(program: str, place: Path, part: str, ranks: int, *, killed: bool = False, launched: bool) -> None:
    arguments = [program, str(place), part, str(KILLED if killed else 0)]
    if launched:
        port = ["--standalone", "--nproc-per-node", str(ranks)]
        arguments = ["-m", "torch.distributed.run", *port, *arguments]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "RANKS": str(ranks), "USE_LIBUV": "0"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=WAIT_S)
    ended = (place / f"{part}.losses").exists() and (done.returncode != 0) == killed
    assert ended, done.stdout[-4000:] + done.stderr[-8000:]


def main(
    program: str,
    train: Callable[[Path, Log], None],
    packages: Sequence[str],
    *,
    degrees: Sequence[tuple[int, int]] = ((2, 1), (1, 2)),
    launcher: bool = True,
    always: bool = False,
    same_start: bool = True,
    tolerance: float = TOLERANCE,
) -> None:
    """Run the program on ``degrees`` numbers of ranks: before the kill, and after it. ``launcher``: torchrun starts the ranks, with
    ``always`` a single one, too. Without ``same_start`` the first weights depend on the number of ranks: then the run in one go is
    on as many as the killed one.
    """
    if sys.argv[1:]:
        place, part, killed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
        train(place / part.split("-")[0], _Log(place / f"{part}.losses", killed or None))
        if dist.is_initialized():
            dist.destroy_process_group()
        return
    told = ", ".join(f"{name} {version(name)}" for name in packages)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for before, after in degrees:
            first = 1 if same_start else before
            if not (place / f"whole{first}.losses").exists():
                _start(program, place, f"whole{first}", first, launched=always or (launcher and first > 1))
            whole = _losses(place / f"whole{first}.losses")
            assert [step for step, _ in whole] == list(range(1, STEPS + 1)), whole
            run = f"run{before}to{after}"
            _start(program, place, f"{run}-killed", before, killed=True, launched=always or (launcher and before > 1))
            _start(program, place, f"{run}-resumed", after, launched=always or (launcher and after > 1))
            killed, resumed = _losses(place / f"{run}-killed.losses"), _losses(place / f"{run}-resumed.losses")
            assert [step for step, _ in killed] == list(range(1, KILLED + 1)), killed
            assert [step for step, _ in resumed] == list(range(SAVED + 1, STEPS + 1)), resumed
            worst = max(abs(loss / whole[step - 1][1] - 1) for step, loss in killed + resumed)
            assert worst <= (tolerance if max(before, after) > 1 else 0), (before, after, worst, killed, resumed, whole)
            sys.stdout.write(f"{told}: killed at {KILLED} on {before}, resumed on {after}: losses equal, {worst:.1e} apart\n")
