"""Trains on two processes and kills one; a single process goes on, with the very batches of a run to which nothing happened."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock as pen
from penstock.deliver.jax import deliver
from penstock.source import write_tokens

VOCABULARY = 64
PHASES = [pen.Phase(30, batch_size=16, seq_len=16), pen.Phase(30, batch_size=8, seq_len=64)]  # short sequences first
SAVE_EVERY, KILL_AT = 10, 47


@jax.jit
def train_step(table: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A table of how often each token follows each other one, a gradient step on, and the loss."""

    def loss_of(table: jax.Array) -> jax.Array:
        chances = jax.nn.log_softmax(table[tokens[:, :-1]])
        return -jnp.mean(jnp.take_along_axis(chances, tokens[:, 1:, None].astype(int), axis=-1))

    loss, gradient = jax.value_and_grad(loss_of)(table)
    return table - 30 * gradient, loss


def train(directory: Path, run: str, world: int, port: int, kill_at: int, rank: int) -> None:
    """One process of a run. It goes on from the checkpoint of the run, if there is one."""
    if world > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=world, process_id=rank)
    stream = pen.open(directory / "tokens.rox").shuffle(seed=7).sequences(PHASES[0].seq_len)
    loader = pen.Loader(stream, phases=PHASES, shard=pen.Shard(rank, world))
    table, checkpoint = np.zeros((VOCABULARY, VOCABULARY), np.float32), directory / f"{run}.npz"
    with deliver(loader) as batches, open(directory / f"{run}-{rank}-of-{world}.log", "w", buffering=1) as log:
        if checkpoint.exists():
            saved = np.load(checkpoint)
            table = saved["table"]
            batches.load_state_dict(json.loads(str(saved["state"])))
        for batch in batches:
            table, loss = train_step(table, batch["tokens"])
            rows = [zlib.crc32(row) for shard in batch["tokens"].addressable_shards for row in np.asarray(shard.data)]
            log.write(json.dumps({"step": loader.step - 1, "loss": float(loss), "rows": rows}) + "\n")
            if rank == 0 and loader.step % SAVE_EVERY == 0:
                np.savez(directory / "new.npz", table=np.asarray(table), state=json.dumps(batches.state_dict()))
                os.replace(directory / "new.npz", checkpoint)
            if rank == world - 1 and loader.step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def launch(directory: Path, run: str, world: int, kill_at: int = 0) -> list[list[dict[str, Any]]]:
    """A run of so many processes, the last of which may be killed: what each of them noted, step by step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        command = [sys.executable, __file__, *map(str, (directory, run, world, probe.getsockname()[1], kill_at))]
    environment, quiet = {**os.environ, "JAX_PLATFORMS": "cpu"}, subprocess.DEVNULL if kill_at else None
    ranks = [subprocess.Popen([*command, str(r)], env=environment, stdout=quiet, stderr=quiet) for r in range(world)]
    try:
        if ranks[-1].wait(timeout=500) != (-signal.SIGKILL if kill_at else 0):
            raise SystemExit(f"{run}: the last of {world} processes ended with {ranks[-1].returncode}")
    finally:
        for process in ranks:  # they would wait for the last one
            process.kill()
            process.wait()
    return read_notes(directory, run, world)


def read_notes(directory: Path, run: str, world: int) -> list[list[dict[str, Any]]]:
    """What each process of a run noted, step by step."""
    logs = [directory / f"{run}-{rank}-of-{world}.log" for rank in range(world)]
    return [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]


def main() -> None:
    """A run without and one with an accident, compared."""
    jax.config.update("jax_platforms", "cpu")  # as in the processes that are started below
    with tempfile.TemporaryDirectory() as name:
        walk = np.cumsum(np.random.default_rng(1).integers(1, 4, 16_000)) % VOCABULARY
        write_tokens([walk.astype(np.uint8)], Path(name) / "tokens.rox", block_size=256)
        train(Path(name), "straight", 1, 0, 0, 0)
        (straight,) = read_notes(Path(name), "straight", 1)
        print(f"1 process, {len(straight)} steps, never stopped: loss {straight[0]['loss']:.3f} -> {straight[-1]['loss']:.3f}")
        pair = launch(Path(name), "accident", 2, KILL_AT)
        print(f"2 processes, one killed (SIGKILL) after step {pair[1][-1]['step']}, checkpoint every {SAVE_EVERY} steps")
        (rest,) = launch(Path(name), "accident", 1)
        print(f"1 process, resumed at step {rest[0]['step']}: loss {rest[0]['loss']:.3f} -> {rest[-1]['loss']:.3f}")
    same = [note["rows"] == straight[note["step"]]["rows"] for note in rest]
    same += [note["rows"] == straight[note["step"]]["rows"][rank::2] for rank in range(2) for note in pair[rank]]
    complete = rest[0]["step"] <= min(map(len, pair)) and rest[-1]["step"] == len(straight) - 1
    print(f"the samples of every step are {'identical' if all(same) and complete else 'NOT THE SAME'} in both runs")
    raise SystemExit(not (all(same) and complete))


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else train(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
